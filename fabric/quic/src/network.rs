// SPDX-License-Identifier: MIT OR Apache-2.0
//! The datagrams between an endpoint and its peers: the socket, and a place for faults on the path to each peer.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use telegraphos_transport::faults::{FaultyDatagrams, LinkFaults};
use telegraphos_transport::{Branch, Datagrams, Inbox, SharedSocket};

use crate::config::LONGEST;
use crate::udp::Udp;

/// Datagrams read from the socket in one call.
const BATCH: usize = 64;
/// Peers with a place for faults, at most.
const PATHS: usize = 256;

/// The path to one peer.
#[derive(Debug)]
struct Path {
    datagrams: FaultyDatagrams<Branch<Udp>>,
    /// Datagrams from the peer that were read from the socket.
    arrived: Inbox,
}

/// A socket, and faults on the path to each peer if `faults` was given.
#[derive(Debug)]
pub(crate) struct Network {
    udp: Arc<Udp>,
    faults: Option<LinkFaults>,
    paths: BTreeMap<SocketAddr, Path>,
    /// The socket had no room for the last datagram.
    blocked: bool,
    /// A datagram that waits for room.
    unsent: Option<(SocketAddr, Vec<u8>)>,
}

impl Network {
    pub(crate) fn new(udp: Arc<Udp>, faults: Option<LinkFaults>) -> Network {
        Network { udp, faults, paths: BTreeMap::new(), blocked: false, unsent: None }
    }

    pub(crate) fn udp(&self) -> &Arc<Udp> {
        &self.udp
    }

    /// Whether a datagram of [`Network::send`] waits for room in the socket: no other can be sent before it.
    pub(crate) fn is_full(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether anything waits for room in the socket.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.is_full() || self.blocked || self.paths.values().any(|path| path.datagrams.wants_write())
    }

    /// When the next datagram that faults hold back is sent or received, in microseconds.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.paths.values().filter_map(|path| path.datagrams.deadline()).min()
    }

    fn path(&mut self, peer: SocketAddr) -> Option<&mut Path> {
        let faults = self.faults.as_ref()?;
        if !self.paths.contains_key(&peer) && self.paths.len() >= PATHS {
            return None;
        }
        Some(self.paths.entry(peer).or_insert_with(|| {
            let (branch, arrived) = Branch::new(self.udp.clone(), peer, usize::from(LONGEST));
            Path { datagrams: FaultyDatagrams::new(branch, faults.clone()), arrived }
        }))
    }

    /// Sends a datagram, or keeps it until [`Network::flush`] finds room. Not while [`Network::is_full`].
    pub(crate) fn send(&mut self, now: u64, to: SocketAddr, bytes: &[u8]) -> io::Result<()> {
        if !self.try_send(now, to, bytes)? {
            self.unsent = Some((to, bytes.to_vec()));
        }
        Ok(())
    }

    /// Sends a datagram if there is room now; false, and it is lost, if not.
    pub(crate) fn try_send(&mut self, now: u64, to: SocketAddr, bytes: &[u8]) -> io::Result<bool> {
        if let Some(path) = self.path(to) {
            return path.datagrams.send(now, bytes);
        }
        let sent = self.udp.send_to(&to, bytes)?;
        self.blocked = !sent;
        Ok(sent)
    }

    /// Receives the next datagram into `buffer`: its length and its source address, which may be forged.
    pub(crate) fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        if self.faults.is_none() {
            return self.udp.receive(buffer);
        }
        for _ in 0..BATCH {
            let Some((len, from)) = self.udp.receive(buffer)? else { break };
            let Some(path) = self.path(from) else { return Ok(Some((len, from))) };
            path.arrived.put(buffer[..len].to_vec());
        }
        for (peer, path) in &mut self.paths {
            if let Some(len) = path.datagrams.receive(now, buffer)? {
                return Ok(Some((len, *peer)));
            }
        }
        Ok(None)
    }

    /// Sends what waits for its time in the faults, or for room.
    pub(crate) fn flush(&mut self, now: u64) -> io::Result<()> {
        self.paths.values_mut().try_for_each(|path| path.datagrams.flush(now))?;
        match self.unsent.take() {
            Some((to, bytes)) => self.send(now, to, &bytes),
            None => Ok(()),
        }
    }

    /// When there are many paths, removes those of peers that are not in use.
    pub(crate) fn tidy(&mut self, in_use: impl Fn(&SocketAddr) -> bool) {
        if self.paths.len() >= PATHS / 2 {
            self.paths.retain(|peer, _| in_use(peer));
        }
    }

    /// Replaces the faults on the path to `peer`; false if there is no place for faults.
    pub(crate) fn set_faults(&mut self, peer: SocketAddr, link: &LinkFaults) -> bool {
        self.path(peer).is_some_and(|path| path.datagrams.set_faults(link))
    }

    /// How many faults were injected on the path to `peer`.
    pub(crate) fn faults(&self, peer: &SocketAddr) -> u64 {
        self.paths.get(peer).map_or(0, |path| path.datagrams.faults())
    }
}
