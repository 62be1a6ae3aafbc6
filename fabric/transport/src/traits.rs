// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contract between transports and their users.

use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use telegraphos_link::MemoryLink;

use crate::faults::LinkFaults;

/// What one [`Transport::receive`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, at least one; there may be more.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The peer has gone, and every byte of it that arrived was returned. All later calls return this.
    End,
}

/// One end of an established connection: bytes, in order, each once. No call blocks. `now` is microseconds of any clock
/// that never runs backwards, the same one for all calls.
///
/// # Events
/// The caller sleeps until [`fd`](Transport::fd) is readable, or is writable while
/// [`wants_write`](Transport::wants_write), or [`deadline`](Transport::deadline) has passed. After any of these, in
/// this order:
/// 1. [`receive`](Transport::receive), as often as it likes, at least once;
/// 2. [`flush`](Transport::flush);
/// 3. [`send`](Transport::send) again what was not taken before, and [`flush`](Transport::flush) that.
///
/// Readable is level-triggered: as long as `receive` has not said `Nothing`, the descriptor is readable, or will be in
/// a moment. It may be readable without need (then `receive` says `Nothing`), but does not stay so. `wants_write` and
/// `deadline` change with every call, the descriptor never.
///
/// # Back-pressure
/// An end holds a bounded number of bytes for a peer that does not read; then `send` takes fewer than offered, or 0.
/// When there is room again there is an event.
///
/// # End
/// An error of any call means that the connection is unusable and says why; the caller drops it. A peer that went away,
/// cleanly or killed, is no error but [`Received::End`], behind its last bytes. Dropping a transport ends the
/// connection without waiting; what `flush` has not handed on is lost.
pub trait Transport: Send + Debug {
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether to poll for writable too. Not where the descriptor is readable when there is room.
    fn wants_write(&self) -> bool {
        false
    }

    /// When to continue at the latest, without any event: timers of protocols and of faults.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Takes out bytes that have arrived. `buffer` is not empty.
    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received>;

    /// Queues bytes: how many were taken. They leave with the next [`flush`](Transport::flush), so that a batch costs
    /// one system call.
    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Sends what was queued and processes expired timers. True when nothing is left here and there is room for more;
    /// false when the rest waits for an event.
    fn flush(&mut self, now: u64) -> io::Result<bool>;

    /// The link behind it, if the other end is in this process and nothing lies between: then whole frames may be
    /// handed over by that, instead of bytes by the other calls.
    fn memory(&self) -> Option<&MemoryLink> {
        None
    }

    /// Two descriptors that go with the byte that is sent next. False, and they are closed, if this transport carries
    /// none ([`carries_descriptors`](Transport::carries_descriptors)).
    fn attach(&mut self, fds: [OwnedFd; 2]) -> bool {
        drop(fds);
        false
    }

    /// Whether the other end gets descriptors, and is a process of this host.
    fn carries_descriptors(&self) -> bool {
        false
    }

    /// The cause of a [`Received::End`], where it is known: the peer was restarted, or silent for too long.
    fn end_reason(&self) -> Option<&'static str> {
        None
    }

    /// From now on this connection has the faults of `link`. False, and nothing happens, if it was made without a place
    /// for faults ([`Options::faults`](crate::Options::faults)).
    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        let _ = link;
        false
    }

    /// The authenticated peer: the name, or `sha256:` and the fingerprint, by which it was accepted
    /// (`telegraphos_quic::Peer`). `None` without or before authentication.
    fn peer(&self) -> Option<String> {
        None
    }

    /// What it counted so far.
    fn statistics(&self) -> TransportStatistics;
}

/// A source of incoming connections.
pub trait Acceptor: Send + Debug {
    /// The descriptor to poll for readable: then call [`accept`](Acceptor::accept) until it gives `None`.
    fn fd(&self) -> BorrowedFd<'_>;

    /// When to call [`accept`](Acceptor::accept) at the latest, without any event.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// The next connection, if one waits. Errors concern the acceptor, not a peer: `EMFILE` and its like pass when
    /// something is closed; until then the descriptor stays readable.
    fn accept(&mut self, now: u64) -> io::Result<Option<Box<dyn Transport>>>;

    /// What it counted so far.
    fn statistics(&self) -> AcceptorStatistics {
        AcceptorStatistics::default()
    }
}

/// Counters of an acceptor. What it does not have stays 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptorStatistics {
    /// Peers that were authenticated and accepted.
    pub accepted: u64,
    /// Peers refused because of their certificate, or for lack of one.
    pub refused: u64,
    /// Handshakes that were not completed: the peer fell silent, aborted, or broke the protocol.
    pub broken: u64,
    /// Connections not answered, or ended after their handshake, because a share was used up.
    pub crowded: u64,
    /// Handshakes ended for newer ones.
    pub displaced: u64,
    /// Clients that had to prove that they receive at their address.
    pub validated: u64,
    /// Datagrams that belonged to nothing.
    pub rejected: u64,
}

/// A connected, unreliable datagram socket: each datagram arrives whole or not at all, perhaps twice, delayed, or
/// changed. Under RDP and QUIC; [`faults`](crate::faults) stack on it. No call blocks; `now` is as for [`Transport`].
pub trait Datagrams: Send + Debug {
    /// The descriptor to poll for readable.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether to poll for writable too: a [`send`](Datagrams::send) said `false`.
    fn wants_write(&self) -> bool;

    /// When to call [`receive`](Datagrams::receive) and [`flush`](Datagrams::flush) at the latest, without any event.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Bytes of the longest datagram it carries.
    fn max_len(&self) -> usize;

    /// Sends one datagram. `false`: there is no room now, try again when the descriptor is writable. An
    /// unreachable peer is a loss, as in any network, not an error.
    fn send(&mut self, now: u64, bytes: &[u8]) -> io::Result<bool>;

    /// The next datagram, cut to `buffer`: its length. `None`: nothing is there now.
    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Sends datagrams that were held back until now.
    fn flush(&mut self, now: u64) -> io::Result<()>;

    /// From now on these datagrams have the faults of `link`. False, and nothing happens, if there is no place for
    /// faults.
    fn set_faults(&mut self, link: &LinkFaults) -> bool {
        let _ = link;
        false
    }

    /// Faults injected so far.
    fn faults(&self) -> u64 {
        0
    }
}

/// Counters of one end of a connection, since it was made. What a transport does not have stays 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportStatistics {
    /// Bytes given out by `receive`.
    pub received_bytes: u64,
    /// Bytes taken by `send`.
    pub sent_bytes: u64,
    /// Datagrams that arrived.
    pub received_datagrams: u64,
    /// Datagrams that left.
    pub sent_datagrams: u64,
    /// Datagrams sent again.
    pub retransmitted: u64,
    /// Datagrams discarded on arrival: bad checksum, duplicate, not of this connection.
    pub rejected: u64,
    /// Times that the peer was woken: system calls for nothing but that.
    pub wakes: u64,
    /// Faults injected at this end.
    pub faults: u64,
    /// Microseconds that a round trip takes now, smoothed, where the protocol measures it.
    pub round_trip: Option<u64>,
}

impl TransportStatistics {
    /// The sums, for a transport that stands on another, or comes after it: its round trip is the one that counts.
    #[must_use]
    pub fn plus(self, other: TransportStatistics) -> TransportStatistics {
        TransportStatistics {
            received_bytes: self.received_bytes + other.received_bytes,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            received_datagrams: self.received_datagrams + other.received_datagrams,
            sent_datagrams: self.sent_datagrams + other.sent_datagrams,
            retransmitted: self.retransmitted + other.retransmitted,
            rejected: self.rejected + other.rejected,
            wakes: self.wakes + other.wakes,
            faults: self.faults + other.faults,
            round_trip: other.round_trip.or(self.round_trip),
        }
    }
}
