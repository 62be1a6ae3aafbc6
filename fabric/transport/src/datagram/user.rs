// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's view of a connection: received bytes, the end, wake-ups and counters.

use std::io;
use std::sync::Arc;

use telegraphos_rdp_core::{Connection, End, State};

use super::address::DatagramAddress;
use crate::{Received, TransportStatistics, Waker};

/// The user of one connection. Calls for connections of a shared socket are serialised by its lock.
#[derive(Debug)]
pub(super) struct User {
    pub(super) waker: Arc<Waker>,
    address: DatagramAddress,
    /// The socket was found empty, and nothing else happened since.
    dry: bool,
    /// [`User::receive`] has returned the end or an error.
    pub(super) ended: bool,
    pub(super) counted: TransportStatistics,
}

impl User {
    /// A user that is woken by `waker`; `address` is for errors.
    pub(super) fn new(waker: Arc<Waker>, address: DatagramAddress) -> User {
        User { waker, address, dry: false, ended: false, counted: TransportStatistics::default() }
    }

    /// Reads received bytes. The descriptor stays readable until everything was returned; the error of a connection
    /// that was never established is returned once.
    pub(super) fn receive(&mut self, connection: &mut Connection, buffer: &mut [u8]) -> io::Result<Received> {
        let received = outcome(connection, buffer, &self.address);
        match received {
            Ok(Received::Bytes(count)) => {
                self.counted.received_bytes += count as u64;
                if has_news(connection) {
                    self.waker.signal();
                }
            }
            _ => {
                self.waker.clear();
                self.dry = true;
                self.ended = !matches!(received, Ok(Received::Nothing));
            }
        }
        received
    }

    /// Queues bytes and returns how many. If the connection has ended, all of them are dropped, so that the caller does
    /// not wait for room.
    pub(super) fn send(&mut self, connection: &mut Connection, bytes: &[u8]) -> usize {
        let taken = match connection.state() {
            State::Ended(_) => bytes.len(),
            _ => connection.send(bytes),
        };
        self.counted.sent_bytes += taken as u64;
        taken
    }

    /// Whether `flush` has to read the socket: not if `receive` has just found it empty. A user that does not read
    /// still has acknowledgements to process.
    pub(super) fn must_pump(&mut self) -> bool {
        !std::mem::take(&mut self.dry)
    }

    /// Wakes the user if [`User::receive`] has something to return.
    pub(super) fn notify(&self, connection: &Connection) {
        if has_news(connection) && !self.ended {
            self.waker.signal();
        }
    }

    /// The counters of a connection; `faults` are those of the datagrams below it.
    pub(super) fn statistics(&self, connection: &Connection, faults: u64) -> TransportStatistics {
        let s = connection.statistics();
        TransportStatistics {
            received_datagrams: s.datagrams_received,
            sent_datagrams: s.datagrams_sent,
            retransmitted: s.retransmissions,
            rejected: s.damaged() + s.foreign + s.duplicates + s.out_of_order,
            faults,
            round_trip: connection.round_trip(),
            ..self.counted
        }
    }
}

/// What a connection has for its user: bytes, nothing, or the end. A connection that was never answered is an error.
fn outcome(connection: &mut Connection, buffer: &mut [u8], address: &DatagramAddress) -> io::Result<Received> {
    match connection.receive(buffer) {
        0 => {}
        count => return Ok(Received::Bytes(count)),
    }
    match connection.state() {
        State::Ended(End::Silent) if connection.statistics().established == 0 => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "nothing answers at {address}: is the process that listens there running, and does the network let datagrams through?"
            ),
        )),
        State::Ended(_) => Ok(Received::End),
        _ if connection.at_end() => Ok(Received::End),
        State::Opening | State::Answering | State::Established => Ok(Received::Nothing),
    }
}

/// Why a connection has ended, if it has.
pub(super) fn end_reason(connection: &Connection) -> Option<&'static str> {
    match connection.state() {
        State::Ended(End::Restarted) => Some("the other end was restarted: what was on the way is lost"),
        State::Ended(End::Silent) => Some("nothing came from the other end for too long: it has gone, or is cut off"),
        State::Ended(End::Abandoned) if !connection.at_end() => Some("the other end aborted the connection"),
        _ => None,
    }
}

/// Whether [`outcome`] is more than nothing.
fn has_news(connection: &Connection) -> bool {
    connection.available() > 0 || connection.at_end() || matches!(connection.state(), State::Ended(_))
}
