// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shared state of the connections of one socket.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use rustix::net::SocketAddrAny;
use telegraphos_link::limit::Limiter;
use telegraphos_rdp_core::{Config, Identity, Key, Listener, State};

use super::parameters::{BATCH, RETRY, buffer, fresh, longest, with_faults};
use super::socket::BoundSocket;
use crate::branch::{Branch, Inbox, SharedSocket};
use crate::faults::LinkFaults;
use crate::{Datagrams, Waker};

/// Peers without a connection, at most.
const UNKNOWN: usize = 256;

/// A peer that sends to the shared socket.
#[derive(Debug)]
struct Peer {
    /// Its branch of the socket, with faults.
    datagrams: Box<dyn Datagrams>,
    inbox: Inbox,
    /// A datagram that waits for room in the socket; empty: none.
    pending: Vec<u8>,
    retry: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Hub {
    socket: Arc<BoundSocket>,
    pub(super) core: Listener<SocketAddrAny>,
    peers: BTreeMap<SocketAddrAny, Peer>,
    /// Of connections that have a user.
    wakers: BTreeMap<Key, Arc<Waker>>,
    acceptor: Option<Arc<Waker>>,
    accepted: VecDeque<Key>,
    /// Connections that lost their users before everything was acknowledged, and until when (microseconds) delivery is
    /// tried.
    lingering: Vec<(Key, u64)>,
    fresh: Identity,
    longest: usize,
    silence: u64,
    faults: Option<LinkFaults>,
    buffer: Box<[u8]>,
    datagram: Vec<u8>,
    limiter: Limiter,
    /// Refusals that were logged, or suppressed by the limiter.
    logged: u64,
    pub(super) now: u64,
}

/// The account of an address: that of its host, by the IPv4 address or the IPv6 network of 64 bits. All Unix sockets of
/// this host share one.
fn origin(address: &SocketAddrAny) -> u64 {
    match SocketAddr::try_from(address.clone()).map(|address| address.ip().to_canonical()) {
        Ok(IpAddr::V4(four)) => u64::from(u32::from(four)),
        Ok(IpAddr::V6(six)) => (u128::from(six) >> 64) as u64,
        Err(_) => 0,
    }
}

impl Hub {
    /// A hub for its acceptor and the connections.
    pub(super) fn shared(
        socket: BoundSocket,
        config: Config,
        faults: Option<LinkFaults>,
        acceptor: Arc<Waker>,
    ) -> io::Result<Arc<Mutex<Hub>>> {
        let (longest, silence, buffer) = (longest(&config), config.silence, buffer(&config));
        let core =
            Listener::with_origins(config, origin).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(Arc::new(Mutex::new(Hub {
            socket: Arc::new(socket),
            core,
            peers: BTreeMap::new(),
            wakers: BTreeMap::new(),
            acceptor: Some(acceptor),
            accepted: VecDeque::new(),
            lingering: Vec::new(),
            fresh: fresh()?,
            longest,
            silence,
            faults,
            buffer,
            datagram: Vec::new(),
            limiter: Limiter::default(),
            logged: 0,
            now: 0,
        })))
    }

    /// Reads the socket, processes expired timers, and wakes the users that have something to do, except the caller's.
    pub(super) fn pump(&mut self, now: u64, asking: Option<Key>) -> io::Result<()> {
        self.now = now;
        let mut busy = BTreeSet::new();
        for _ in 0..BATCH {
            let Some((len, from)) = self.socket.receive(&mut self.buffer)? else { break };
            let datagram = self.buffer[..len].to_vec();
            if let Some(peer) = self.peer(&from) {
                peer.inbox.put(datagram);
                busy.insert(from);
            }
        }
        let due = |peer: &Peer| peer.datagrams.deadline().is_some_and(|at| at <= now);
        busy.extend(self.peers.iter().filter(|(_, peer)| due(peer)).map(|(address, _)| address.clone()));
        let mut touched = BTreeSet::new();
        for address in busy {
            self.take(now, &address, &mut touched)?;
        }
        touched.extend(self.core.keys().filter(|key| self.is_due(*key, now)).collect::<Vec<_>>());
        self.core.timer(now);
        self.accepted.extend(self.core.accepted());
        self.log_refusals();
        if let (false, Some(waker)) = (self.accepted.is_empty(), &self.acceptor) {
            waker.signal();
        }
        // A connection that was set up may have ended others.
        let ended = |key: &Key| self.core.connection(*key).is_none_or(|c| matches!(c.state(), State::Ended(_)));
        touched.extend(self.wakers.keys().copied().filter(ended));
        for key in touched.into_iter().filter(|key| Some(*key) != asking) {
            if let Some(waker) = self.wakers.get(&key) {
                waker.signal();
            }
        }
        Ok(())
    }

    /// Logs how many were refused because a share was used up, without their addresses, which can be forged.
    fn log_refusals(&mut self) {
        let counted = self.core.statistics();
        let refused = counted.crowded + counted.displaced;
        if refused > self.logged {
            if let Some(more) = self.limiter.admit("crowded", self.now) {
                log::warn!(
                    "RDP: {} attempts to connect were refused or displaced, {} of them now: too many from their addresses{more}",
                    refused,
                    refused - self.logged
                );
            }
            self.logged = refused;
        }
    }

    fn is_due(&self, key: Key, now: u64) -> bool {
        self.core.connection(key).and_then(|c| c.deadline()).is_some_and(|at| at <= now)
    }

    /// Processes what came from a peer.
    fn take(&mut self, now: u64, address: &SocketAddrAny, touched: &mut BTreeSet<Key>) -> io::Result<()> {
        let Some(peer) = self.peers.get_mut(address) else { return Ok(()) };
        while let Some(len) = peer.datagrams.receive(now, &mut self.buffer)? {
            let key = self.core.datagram(now, address, &self.buffer[..len], self.fresh);
            if key == Some(self.fresh.id) {
                self.fresh = fresh()?;
            }
            touched.extend(key);
        }
        Ok(())
    }

    /// The peer of this address; a new one unless there are too many without a connection.
    fn peer(&mut self, address: &SocketAddrAny) -> Option<&mut Peer> {
        if !self.peers.contains_key(address) {
            // The count is an upper bound of the known peers: they are collected once in so many new addresses.
            if self.peers.len() >= self.core.keys().count() + UNKNOWN {
                let known: BTreeSet<SocketAddrAny> =
                    self.core.keys().filter_map(|k| self.core.peer(k).cloned()).collect();
                self.peers.retain(|address, _| known.contains(address));
            }
            let (branch, inbox) = Branch::new(Arc::clone(&self.socket), address.clone(), self.longest);
            let datagrams = with_faults(branch, self.faults.as_ref());
            self.peers.insert(address.clone(), Peer { datagrams, inbox, pending: Vec::new(), retry: None });
        }
        self.peers.get_mut(address)
    }

    /// Sends what all connections have to send.
    pub(super) fn transmit(&mut self, now: u64) -> io::Result<()> {
        self.linger(now);
        for peer in self.peers.values_mut() {
            peer.datagrams.flush(now)?;
            peer.retry = None;
            if !peer.pending.is_empty() && peer.datagrams.send(now, &peer.pending)? {
                peer.pending.clear();
            }
        }
        loop {
            let peers = &self.peers;
            let ready = |address: &SocketAddrAny| peers.get(address).is_none_or(|peer| peer.pending.is_empty());
            let Some((to, _)) = self.core.poll_transmit_to(now, &mut self.datagram, ready) else { break };
            // Otherwise it is a Reset to an unknown peer or behind another datagram: it may be lost.
            if let Some(peer) = self.peers.get_mut(&to).filter(|peer| peer.pending.is_empty()) {
                if !peer.datagrams.send(now, &self.datagram)? {
                    std::mem::swap(&mut peer.pending, &mut self.datagram);
                }
            }
        }
        for peer in self.peers.values_mut() {
            if peer.datagrams.wants_write() || !peer.pending.is_empty() {
                peer.retry = Some(now.saturating_add(RETRY));
            }
        }
        Ok(())
    }

    /// The next connection for the acceptor, and the waker of its user, which is woken at once. If no waker can be
    /// made, the connection is closed.
    pub(super) fn accept(&mut self) -> io::Result<Option<(Key, Arc<Waker>)>> {
        let key = self.accepted.pop_front();
        if let (true, Some(waker)) = (self.accepted.is_empty(), &self.acceptor) {
            waker.clear();
        }
        let Some(key) = key else { return Ok(None) };
        let waker = Arc::new(Waker::new(self.socket.fd()).inspect_err(|_| self.release(key))?);
        waker.signal();
        self.wakers.insert(key, waker.clone());
        Ok(Some((key, waker)))
    }

    /// The user of a connection has seen its end: it is not woken any more.
    pub(super) fn detach(&mut self, key: Key) {
        self.wakers.remove(&key);
    }

    pub(super) fn stop(&mut self) {
        self.acceptor = None;
        self.core.stop();
        for key in self.accepted.drain(..) {
            if let Some(connection) = self.core.connection_mut(key) {
                connection.abandon();
            }
        }
        let now = self.now;
        let _ = self.transmit(now);
    }

    /// The user of a connection has gone: what it sent is delivered as long as the socket has users.
    pub(super) fn release(&mut self, key: Key) {
        self.wakers.remove(&key);
        let now = self.now;
        if let Some(connection) = self.core.connection_mut(key) {
            connection.close();
            self.lingering.push((key, now.saturating_add(self.silence)));
        }
        let _ = self.transmit(now);
    }

    /// Ends the connections without a user that have delivered everything, or have run out of time.
    fn linger(&mut self, now: u64) {
        let core = &mut self.core;
        let datagram = &mut self.datagram;
        let peers = &mut self.peers;
        self.lingering.retain(|&(key, until)| {
            let Some(connection) = core.connection_mut(key) else { return false };
            let over = matches!(connection.state(), State::Ended(_));
            if !over && connection.outstanding() > 0 && now < until {
                return true;
            }
            let address = core.peer(key).cloned();
            let peer = address.and_then(|address| peers.get_mut(&address));
            if let (Some(mut connection), Some(peer)) = (core.remove(key), peer) {
                // The end, and a Reset.
                while connection.poll_transmit(now, datagram) {
                    let _ = peer.datagrams.send(now, datagram);
                }
                connection.abandon();
                while connection.poll_transmit(now, datagram) {
                    let _ = peer.datagrams.send(now, datagram);
                }
            }
            false
        });
    }

    /// The earliest deadline of all connections.
    pub(super) fn deadline(&self) -> Option<u64> {
        let peers = self.peers.values().flat_map(|peer| [peer.retry, peer.datagrams.deadline()]).flatten().min();
        let lingering = self.lingering.iter().map(|(_, until)| *until).min();
        [self.core.deadline(), peers, lingering].into_iter().flatten().min()
    }

    /// The deadline of one connection; that of all if there is no acceptor to serve them.
    pub(super) fn deadline_of(&self, key: Key) -> Option<u64> {
        if self.acceptor.is_none() {
            return self.deadline();
        }
        let connection = self.core.connection(key).and_then(|c| c.deadline());
        let peer = self.core.peer(key).and_then(|address| self.peers.get(address));
        let peer = peer.and_then(|peer| [peer.retry, peer.datagrams.deadline()].into_iter().flatten().min());
        [connection, peer].into_iter().flatten().min()
    }

    /// The datagrams of a connection's peer, and whether none of them waits.
    pub(super) fn datagrams_of(&mut self, key: Key) -> Option<(&mut dyn Datagrams, bool)> {
        let address = self.core.peer(key)?;
        let peer = self.peers.get_mut(address)?;
        Some((&mut *peer.datagrams, peer.pending.is_empty()))
    }
}
