// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection of a driver, as a byte pipe.

use std::io;
use std::sync::Arc;

use quinn_proto::{
    Connection, ConnectionHandle, Dir, Event, ReadError, ReadableError, StreamEvent, StreamId, VarInt, WriteError,
};
use telegraphos_transport::{Received, Waker};

use crate::Peer;
use crate::ending::{Ending, ending};

/// Microseconds that a handshake which a client began may take.
const HANDSHAKE_TIME: u64 = 6_000_000;
/// Microseconds that the handshake of a connecting end may take.
const CONNECT_TIME: u64 = 10_000_000;

/// Identifies a connection of a driver; later ones have greater keys.
pub(crate) type Key = u64;

/// The owner of a connection.
#[derive(Debug)]
pub(crate) enum Owner {
    /// None: a handshake that a client began, or a connection that is being closed.
    None,
    Queue,
    Transport(Arc<Waker>),
    /// None any more: it ends when the peer has acknowledged everything, or at this time (microseconds).
    Lingers(u64),
}

/// An event that concerns the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The peer is authenticated and streams can be opened.
    Established,
    /// It has ended.
    Over,
    /// The peer has all that was sent.
    Delivered,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) handle: ConnectionHandle,
    pub(crate) connection: Connection,
    pub(crate) owner: Owner,
    /// When it was created, in microseconds.
    pub(crate) born: u64,
    /// Its handshake was completed once.
    pub(crate) established: bool,
    pub(crate) peer: Option<Peer>,
    /// The peer that it is charged to, if a client began it.
    pub(crate) charged: Option<Peer>,
    pub(crate) ending: Option<Ending>,
    /// The engine has no state of it any more.
    pub(crate) drained: bool,
    /// The engine may have something to send.
    pub(crate) dirty: bool,
    outgoing: Option<StreamId>,
    incoming: Option<StreamId>,
    /// There may be bytes.
    readable: bool,
    /// All bytes of the peer have been given out and no more will come.
    finished: bool,
    /// The last `send` took less than was offered, and there has been no room since.
    short: bool,
    /// Bytes have been taken that the peer has not acknowledged yet.
    outstanding: bool,
    /// Bytes that may be in flight.
    window: u64,
    /// Its user waits until nothing is left to send.
    pub(crate) waits: bool,
    /// Bytes given out.
    pub(crate) received: u64,
    /// Bytes taken.
    pub(crate) sent: u64,
}

impl Entry {
    /// A connection created at `born` (microseconds), with at most `window` bytes in flight.
    pub(crate) fn new(handle: ConnectionHandle, connection: Connection, owner: Owner, born: u64, window: u64) -> Entry {
        Entry {
            handle,
            connection,
            owner,
            born,
            established: false,
            peer: None,
            charged: None,
            ending: None,
            drained: false,
            dirty: true,
            outgoing: None,
            incoming: None,
            readable: false,
            finished: false,
            short: false,
            outstanding: false,
            window,
            waits: false,
            received: 0,
            sent: 0,
        }
    }

    /// Whether `receive` has something to return.
    pub(crate) fn ready(&self) -> bool {
        self.readable || self.finished || self.ending.is_some()
    }

    /// Whether its user must be called.
    pub(crate) fn wants_call(&self) -> bool {
        self.ready() || (self.waits && self.idle())
    }

    /// Wakes its user, if it has one.
    pub(crate) fn wake(&self) {
        if let Owner::Transport(waker) = &self.owner {
            waker.signal();
        }
    }

    /// Processes an event of the engine. `Some` if it concerns the driver.
    pub(crate) fn event(&mut self, event: Event) -> Option<Change> {
        match event {
            Event::Connected => {
                self.established = true;
                self.open();
                return Some(Change::Established);
            }
            Event::ConnectionLost { reason } => {
                self.ending.get_or_insert_with(|| ending(&reason, self.established, self.connection.remote_address()));
                return Some(Change::Over);
            }
            Event::Stream(StreamEvent::Available { dir: Dir::Uni }) => self.open(),
            Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                if self.incoming.is_none() {
                    self.incoming = self.connection.streams().accept(Dir::Uni);
                }
                self.readable = true;
            }
            Event::Stream(StreamEvent::Readable { id }) => self.readable |= Some(id) == self.incoming,
            Event::Stream(StreamEvent::Writable { .. }) => {
                if std::mem::take(&mut self.short) {
                    self.watch_delivery();
                } else {
                    self.outstanding = false;
                }
            }
            Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Stopped { .. }) => {
                return Some(Change::Delivered);
            }
            _ => {}
        }
        None
    }

    fn open(&mut self) {
        if self.outgoing.is_none() {
            self.outgoing = self.connection.streams().open(Dir::Uni);
            self.short = false;
        }
    }

    /// Reads bytes that have arrived into `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        let len = if self.readable { self.take(buffer) } else { 0 };
        if len > 0 {
            self.received += len as u64;
            return Ok(Received::Bytes(len));
        }
        match &self.ending {
            _ if self.finished => Ok(Received::End),
            Some(Ending::Gone(_)) => Ok(Received::End),
            Some(failed) => Err(failed.error()),
            None => Ok(Received::Nothing),
        }
    }

    fn take(&mut self, buffer: &mut [u8]) -> usize {
        let Some(id) = self.incoming else {
            self.readable = false;
            return 0;
        };
        let mut stream = self.connection.recv_stream(id);
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            // It was read to its end before; it is never read out of order.
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                (self.readable, self.finished) = (false, true);
                return 0;
            }
        };
        let mut len = 0;
        while len < buffer.len() {
            match chunks.next(buffer.len() - len) {
                Ok(Some(chunk)) => {
                    buffer[len..len + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
                    len += chunk.bytes.len();
                }
                Ok(None) | Err(ReadError::Reset(_)) => {
                    (self.readable, self.finished) = (false, true);
                    break;
                }
                Err(ReadError::Blocked) => {
                    self.readable = false;
                    break;
                }
            }
        }
        self.dirty |= chunks.finalize().should_transmit();
        len
    }

    /// Queues bytes and returns how many.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.ending {
            // The end is returned by `receive`, behind the last bytes; these are dropped.
            Some(Ending::Gone(_)) => return Ok(bytes.len()),
            Some(failed) => return Err(failed.error()),
            None => {}
        }
        let Some(id) = self.outgoing else {
            self.short = !bytes.is_empty();
            self.waits |= self.short;
            return Ok(0);
        };
        self.connection.set_send_window(self.window);
        let mut stream = self.connection.send_stream(id);
        let mut taken = 0;
        while taken < bytes.len() {
            match stream.write(&bytes[taken..]) {
                Ok(more) => taken += more,
                // The engine reports room only after it has returned this.
                Err(WriteError::Blocked) => break,
                // The peer has dropped its end.
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return Ok(bytes.len()),
            }
        }
        self.short = taken < bytes.len();
        self.waits |= self.short;
        self.dirty |= taken > 0;
        self.outstanding |= taken > 0;
        self.sent += taken as u64;
        if self.outstanding && !self.short {
            self.watch_delivery();
        }
        Ok(taken)
    }

    /// Has the engine report by the next `Writable` that the peer has acknowledged everything: a window of one byte has
    /// room only then. It has no other event for that.
    fn watch_delivery(&mut self) {
        let Some(id) = self.outgoing else { return };
        self.connection.set_send_window(1);
        self.outstanding = matches!(self.connection.send_stream(id).write(&[]), Err(WriteError::Blocked));
    }

    /// Whether the peer has acknowledged everything and there is room.
    pub(crate) fn idle(&self) -> bool {
        self.ending.is_some() || (self.outgoing.is_some() && !self.short && !self.outstanding)
    }

    /// When it is closed whatever the engine's timers say, in microseconds.
    pub(crate) fn limit(&self) -> Option<u64> {
        match self.owner {
            _ if self.connection.is_closed() => None,
            Owner::Lingers(until) => Some(until),
            Owner::None if !self.established => Some(self.born.saturating_add(HANDSHAKE_TIME)),
            _ if !self.established => Some(self.born.saturating_add(CONNECT_TIME)),
            _ => None,
        }
    }

    /// Ends both streams after the transport was dropped. True if nothing is left to deliver.
    pub(crate) fn finish(&mut self) -> bool {
        self.dirty = true;
        if let Some(id) = self.incoming {
            // Fails if the peer has finished too.
            let _ = self.connection.recv_stream(id).stop(VarInt::from_u32(0));
        }
        match self.outgoing {
            Some(id) if self.ending.is_none() => self.connection.send_stream(id).finish().is_err(),
            _ => true,
        }
    }
}
