// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiving half: order, room, and when to answer what.

use std::collections::VecDeque;

use crate::bugs::Bug;
use crate::config::Config;
use crate::datagram::{Datagram, Kind};
use crate::sequence::Sequence;
use crate::statistics::Statistics;

/// The expected segment was refused, or one behind it. A NACK is sent after 1, 2, 4, 8... refused datagrams of a round.
#[derive(Clone, Copy, Debug)]
struct Refused {
    kind: Kind,
    round: u16,
    times: u32,
}

/// A NACK to send; `echo` is the stamp of the refused datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nack {
    pub(crate) kind: Kind,
    pub(crate) round: u16,
    pub(crate) echo: u32,
}

/// The receiving half of a connection.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    buffer: VecDeque<u8>,
    /// Number of the next segment; all before it were received.
    pub(crate) expected: Sequence,
    /// The end of the stream was received; bytes before it may still have to be read.
    pub(crate) finished: bool,
    /// Refusals since the last accepted segment.
    refused: Option<Refused>,
    pub(crate) nack: Option<Nack>,
    /// Bytes of the segment for which there was no room.
    wanting: Option<usize>,
    pub(crate) room: bool,
    /// Segments accepted and not acknowledged.
    unacknowledged: u32,
    /// When they must be acknowledged.
    pub(crate) due: Option<u64>,
    now: bool,
    /// Stamp of the first of them.
    echo: u32,
}

impl Receiver {
    /// A receiver that expects the number `expected` first.
    pub(crate) fn new(expected: Sequence) -> Receiver {
        Receiver { expected, ..Receiver::default() }
    }

    /// Bytes that can be read.
    pub(crate) fn available(&self) -> usize {
        self.buffer.len()
    }

    /// Has an acknowledgement that echoes `stamp` sent at once.
    pub(crate) fn answer(&mut self, stamp: u32) {
        self.now = true;
        self.echo = stamp;
    }

    /// Processes a [`Kind::Data`] or [`Kind::Finish`] of this connection; `window` is in segments.
    pub(crate) fn segment(
        &mut self,
        config: &Config,
        window: u16,
        now: u64,
        datagram: &Datagram<'_>,
        statistics: &mut Statistics,
    ) {
        let ahead = config.distance(datagram.sequence, self.expected);
        if datagram.payload.len() > usize::from(config.mtu) || ahead >= i64::from(window) {
            statistics.malformed += 1;
            return;
        }
        if ahead < 0 {
            statistics.duplicates += 1;
            self.answer(datagram.stamp);
            if config.has(Bug::DeliverDuplicates) {
                self.buffer.extend(datagram.payload);
            }
            return;
        }
        if self.finished {
            statistics.malformed += 1;
            return;
        }
        if datagram.kind == Kind::Finish && config.has(Bug::FinishOvertakes) {
            self.finished = true;
        }
        if ahead > 0 && !config.has(Bug::AcceptOutOfOrder) {
            statistics.out_of_order += 1;
            self.refuse(Kind::NackSequence, datagram);
            return;
        }
        let len = datagram.payload.len();
        let fits = self.buffer.len() + len <= config.receive_buffer || config.has(Bug::NoCapacityCheck);
        if !fits && !config.has(Bug::AcknowledgeUndelivered) {
            self.wanting = Some(len);
            self.refuse(Kind::NackCapacity, datagram);
            return;
        }
        if fits {
            self.buffer.extend(datagram.payload);
        }
        statistics.bytes_received += len as u64;
        statistics.segments_received += 1;
        self.finished |= datagram.kind == Kind::Finish;
        self.expected = datagram.sequence.plus(1);
        self.refused = None;
        self.nack = None;
        self.wanting = None;
        self.room = false;
        if self.unacknowledged == 0 && !self.now {
            self.echo = datagram.stamp;
        }
        self.unacknowledged += 1;
        self.due = self.due.or(Some(now.saturating_add(config.ack_delay)));
        self.now |= datagram.ask || self.finished || self.unacknowledged >= u32::from(config.ack_every);
    }

    fn refuse(&mut self, kind: Kind, datagram: &Datagram<'_>) {
        let round = datagram.round;
        let refused = match self.refused {
            // Segments behind one without room are out of order only because of that.
            Some(before) if before.round == round && (before.kind == kind || before.kind == Kind::NackCapacity) => {
                Refused { times: before.times.saturating_add(1), ..before }
            }
            _ => Refused { kind, round, times: 1 },
        };
        self.refused = Some(refused);
        if refused.times.is_power_of_two() || datagram.ask {
            self.nack = Some(Nack { kind: refused.kind, round, echo: datagram.stamp });
        }
    }

    /// Reads bytes into `out` and returns how many. Schedules an announcement if the peer waits for room.
    pub(crate) fn read(&mut self, config: &Config, out: &mut [u8]) -> usize {
        let mut read = 0;
        while read < out.len() {
            let (front, _) = self.buffer.as_slices();
            let len = front.len().min(out.len() - read);
            if len == 0 {
                break;
            }
            out[read..read + len].copy_from_slice(&front[..len]);
            self.buffer.drain(..len);
            read += len;
        }
        let free = config.receive_buffer.saturating_sub(self.buffer.len());
        // Announced only when half the buffer is free: otherwise each segment would be followed by a NACK.
        if self.wanting.is_some_and(|len| free >= len.max(config.receive_buffer / 2)) {
            self.wanting = None;
            self.room = !config.has(Bug::ForgetRoom);
        }
        read
    }

    /// Whether an acknowledgement must be sent at `now`.
    pub(crate) fn must_acknowledge(&self, now: u64) -> bool {
        self.now || self.due.is_some_and(|at| at <= now)
    }

    /// Notes that a datagram with an acknowledgement is sent and returns the stamp that it echoes.
    pub(crate) fn acknowledged(&mut self) -> u32 {
        self.unacknowledged = 0;
        self.due = None;
        self.now = false;
        std::mem::take(&mut self.echo)
    }
}
