// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connections that others begin: admission of their handshakes, their accounts, the queue of the acceptor, and what is
//! counted and logged of them. An endpoint that only connects has one without an acceptor.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use telegraphos_accounts::{Account, Shares};
use telegraphos_link::limit::Limiter;
use telegraphos_transport::{AcceptorStatistics, Waker};

use crate::Peer;
use crate::admission::Admission;
use crate::config::Engine;
use crate::ending::Ending;
use crate::entry::Key;

/// Authenticated connections at a time, in equal parts for each peer.
const CONNECTIONS: u64 = 1024;

/// See the module. Times are microseconds.
pub(crate) struct Reception {
    /// For log lines.
    local: SocketAddr,
    /// The acceptor's waker, until [`Reception::close`].
    pub(crate) acceptor: Option<Arc<Waker>>,
    /// Connections to be accepted.
    queue: VecDeque<Key>,
    admission: Admission,
    connections: Account<Peer>,
    /// Without rejected datagrams.
    pub(crate) counted: AcceptorStatistics,
    limiter: Limiter,
}

impl Reception {
    /// With nothing in progress. `acceptor` is signalled while the queue is not empty.
    pub(crate) fn new(engine: &Engine, local: SocketAddr, acceptor: Option<Arc<Waker>>) -> Reception {
        Reception {
            local,
            acceptor,
            queue: VecDeque::new(),
            admission: Admission::new(engine.peers, engine.addresses.iter().copied()),
            connections: Account::new(Shares::equal(CONNECTIONS, engine.peers as u64)),
            counted: AcceptorStatistics::default(),
            limiter: Limiter::default(),
        }
    }

    /// Whether a client at `from` must first prove by a Retry that it receives at that address; counts those.
    pub(crate) fn must_validate(&mut self, from: SocketAddr) -> bool {
        let must = self.admission.must_validate(from.ip());
        self.counted.validated += u64::from(must);
        must
    }

    /// Decides on a new handshake. `None`: it must be ignored. Otherwise it is charged, and the handshake that it
    /// displaces, if any, must be ended. `key` is greater than those before.
    pub(crate) fn admit(&mut self, key: Key, remote: SocketAddr, now: u64) -> Option<Option<Key>> {
        self.admission
            .admit(key, remote.ip(), now)
            .map_err(|why| {
                self.counted.crowded += 1;
                if let Some(more) = self.limiter.admit("crowded", now) {
                    log::warn!("{}: {remote} gets no answer: {why}{more}", self.local);
                }
            })
            .ok()
    }

    /// Counts a handshake that was ended for a newer one, `age` after it began.
    pub(crate) fn displaced(&mut self, remote: SocketAddr, age: u64, now: u64) {
        self.counted.displaced += 1;
        if let Some(more) = self.limiter.admit("displaced", now) {
            log::warn!("{}: the handshake with {remote} ends after {age} us for a newer one{more}", self.local);
        }
    }

    /// Queues an authenticated connection for the acceptor and charges it to its peer. False: its peer's share is used
    /// up, or nothing accepts any more; the connection must be closed.
    pub(crate) fn authenticated(&mut self, key: Key, peer: &Peer, remote: SocketAddr, now: u64) -> bool {
        self.admission.authenticated(key, peer, remote.ip());
        let Some(acceptor) = &self.acceptor else { return false };
        if let Err(why) = self.connections.take(peer.clone(), 1) {
            self.counted.crowded += 1;
            if let Some(more) = self.limiter.admit("connections", now) {
                log::warn!("{}: no connection with {peer} at {remote}: it {why}{more}", self.local);
            }
            return false;
        }
        self.queue.push_back(key);
        self.counted.accepted += 1;
        acceptor.signal();
        true
    }

    /// Counts a handshake that has failed.
    pub(crate) fn failed(&mut self, remote: SocketAddr, ending: &Ending, now: u64) {
        let why = ending.error();
        match why.kind() {
            io::ErrorKind::PermissionDenied => self.counted.refused += 1,
            _ => self.counted.broken += 1,
        }
        if let Some(more) = self.limiter.admit("handshake", now) {
            log::warn!("{}: no connection with {remote}: {why}{more}", self.local);
        }
    }

    /// Takes a handshake or connection off its accounts; `charged` is the peer that it was charged to.
    pub(crate) fn ended(&mut self, key: Key, charged: Option<&Peer>) {
        self.admission.ended(key);
        if let Some(peer) = charged {
            self.connections.give(peer, 1);
        }
    }

    /// The connection to be accepted next. Without one the acceptor sleeps.
    pub(crate) fn first(&self) -> Option<Key> {
        let first = self.queue.front().copied();
        if let (None, Some(acceptor)) = (first, &self.acceptor) {
            acceptor.clear();
        }
        first
    }

    /// Removes [`Reception::first`] from the queue.
    pub(crate) fn pop(&mut self) {
        self.queue.pop_front();
    }

    /// Empties the queue; nothing is accepted any more.
    pub(crate) fn close(&mut self) {
        self.acceptor = None;
        self.queue.clear();
    }
}

impl std::fmt::Debug for Reception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reception")
            .field("queue", &self.queue)
            .field("counted", &self.counted)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
