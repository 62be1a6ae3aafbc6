// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: frames in and out of a transport.

use std::io;

use telegraphos_transport::{Received, Transport};
use telegraphos_wire::link::{Frame, FrameError, MAX_LEN};

use crate::link::Input;

/// Frames of the largest size that one connection's output buffer holds: 2 MiB.
pub(super) const OUT_ROOM: usize = (2 << 20) / MAX_LEN;

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// No frame yet: not even the switch that it belongs to is known.
    Stranger,
    /// Of a HIB that its switch has not welcomed yet.
    Joining,
    /// Of a HIB.
    Link,
    /// Of another process that has called at an acceptor, by its index, and not said for which trunk.
    Caller(usize),
    /// The end of a trunk, by its index.
    Trunk(usize),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) transport: Box<dyn Transport>,
    input: Input,
    output: Vec<u8>,
    /// Bytes of `output` that the transport has taken.
    taken: usize,
    /// The switch here that it belongs to, by its index.
    pub(super) switch: usize,
    pub(super) role: Role,
    /// Its transport has a place for faults.
    pub(super) faulty: bool,
    /// Watched for writable.
    pub(super) watched: bool,
    /// In the list of connections to flush.
    pub(super) touched: bool,
    /// To be ended once its output was offered to the transport.
    pub(super) closing: bool,
    /// Order of acceptance.
    pub(super) number: u64,
    /// When the first probe was queued that the other end has not answered.
    probed: Option<u64>,
    /// Microseconds that the last answer to a probe took.
    answered_after: Option<u64>,
}

impl Connection {
    pub(super) fn new(transport: Box<dyn Transport>, switch: usize, role: Role, number: u64) -> Connection {
        Connection {
            transport,
            input: Input::new(),
            output: Vec::new(),
            taken: 0,
            switch,
            role,
            faulty: false,
            watched: false,
            touched: false,
            closing: false,
            number,
            probed: None,
            answered_after: None,
        }
    }

    /// One receive.
    pub(super) fn fill(&mut self, now: u64) -> io::Result<Received> {
        let received = self.transport.receive(now, self.input.space())?;
        if let Received::Bytes(n) = received {
            self.input.filled(n);
        }
        Ok(received)
    }

    /// The next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.input.next()
    }

    /// Bytes that have come and are no frame yet, or never will be.
    pub(super) fn unread(&self) -> &[u8] {
        self.input.unread()
    }

    pub(super) fn queue(&mut self, frame: &Frame) {
        frame.encode(&mut self.output);
    }

    /// A probe was queued.
    pub(super) fn probed(&mut self, now: u64) {
        self.probed.get_or_insert(now);
    }

    /// Whether a probe would measure something.
    pub(super) fn may_probe(&self) -> bool {
        self.probed.is_none() && self.room() > 0
    }

    /// The other end has answered a probe.
    pub(super) fn alive(&mut self, now: u64) {
        if let Some(at) = self.probed.take() {
            self.answered_after = Some(now.saturating_sub(at).max(1));
        }
    }

    /// Microseconds of a round trip: what the transport measures, or else how long the last probe took.
    pub(super) fn round_trip(&self) -> Option<u64> {
        self.transport.statistics().round_trip.or(self.answered_after)
    }

    /// Frames of the largest size for which there is room.
    pub(super) fn room(&self) -> usize {
        OUT_ROOM.saturating_sub((self.output.len() - self.taken).div_ceil(MAX_LEN))
    }

    /// Hands on what is queued as far as the transport takes it.
    pub(super) fn flush(&mut self, now: u64) -> io::Result<()> {
        loop {
            let taken = match self.output.len() - self.taken {
                0 => 0,
                _ => self.transport.send(now, &self.output[self.taken..])?,
            };
            self.taken += taken;
            if self.taken == self.output.len() {
                self.output.clear();
                self.taken = 0;
            } else if self.taken >= self.output.len() / 2 {
                // Moving the rest costs no more than handing it on did.
                self.output.drain(..self.taken);
                self.taken = 0;
            }
            // Room there is of use only if something waits for it here.
            if !self.transport.flush(now)? || self.output.is_empty() || taken == 0 {
                return Ok(());
            }
        }
    }
}
