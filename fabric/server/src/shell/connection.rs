// SPDX-License-Identifier: MIT OR Apache-2.0
//! One connection: frames in and out of a transport. A transport in memory hands them over whole; others carry their
//! bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use telegraphos_link::Input;
use telegraphos_link::ring_end::Within;
use telegraphos_service::wait::Readiness;
use telegraphos_transport::{Received, Transport};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::{Frame, FrameError, MAX_LEN};

use super::turns::{self, Flow};
use super::watch;

/// Frames of the largest size that one connection's output buffer holds: 4 MiB.
pub(super) const OUT_ROOM: usize = (4 << 20) / MAX_LEN;

/// Bytes that one flush hands on at most; the rest waits for the next round of the loop.
const MOST_AT_ONCE: usize = 256 << 10;

/// What a connection is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// No frame yet: not even the switch that it belongs to is known.
    Unidentified,
    /// Of a HIB that its switch has not welcomed yet.
    Joining,
    Link,
    /// Of another process that has called at an acceptor, by its index, and not said for which trunk.
    Caller(usize),
    /// The end of a trunk, by its index.
    Trunk(usize),
}

impl Role {
    /// Whether it is identified, and so a separate flow.
    pub(super) fn is_identified(self) -> bool {
        matches!(self, Role::Link | Role::Trunk(_))
    }
}

/// What a connection holds in this process, besides its transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) switch: usize,
    pub(super) role: Role,
    pub(super) queued: bool,
    pub(super) process: Option<u32>,
    pub(super) unidentified: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) transport: Box<dyn Transport>,
    input: Input,
    /// Frames that arrived whole, or must wait: before those in `input`.
    arrived: VecDeque<Frame>,
    output: Vec<u8>,
    /// Bytes of `output` that the transport has taken.
    taken: usize,
    /// Descriptors that go with bytes of `output`, by their index there.
    attached: VecDeque<(usize, [OwnedFd; 2])>,
    /// A frame found no room in memory.
    overrun: bool,
    /// The switch here that it belongs to, by its index.
    pub(super) switch: usize,
    pub(super) role: Role,
    /// Faults can be injected into its transport.
    pub(super) faulty: bool,
    /// Watched for writable.
    pub(super) watched: bool,
    /// In the list of connections to flush.
    pub(super) touched: bool,
    /// To be ended once its output was offered to the transport.
    pub(super) closing: bool,
    /// Its turns in the loop, once it is identified.
    pub(super) flow: Flow,
    /// It waits for a turn.
    pub(super) queued: bool,
    /// The other end has hung up: it is read to its end.
    pub(super) ended: bool,
    /// It cannot be sent to.
    pub(super) broken: bool,
    /// The node, of a link.
    pub(super) node: Option<NodeId>,
    /// It is not read until then.
    pub(super) rests_until: Option<u64>,
    /// The process that connected by the listener: its account is charged.
    pub(super) process: Option<u32>,
    /// It is charged as unidentified.
    pub(super) unidentified: bool,
    /// Order of acceptance.
    pub(super) number: u64,
    /// When the first probe was queued that the other end has not answered.
    probed: Option<u64>,
    /// Microseconds that the last answer to a probe took.
    answered_after: Option<u64>,
}

impl Connection {
    /// A connection of switch `switch`, by its index; `number` is its ordinal among all accepted.
    pub(super) fn new(transport: Box<dyn Transport>, switch: usize, role: Role, number: u64) -> Connection {
        Connection {
            transport,
            // Room for a hello; more when it is identified.
            input: if role.is_identified() { Input::new() } else { Input::small() },
            arrived: VecDeque::new(),
            output: Vec::new(),
            taken: 0,
            attached: VecDeque::new(),
            overrun: false,
            switch,
            role,
            faulty: false,
            watched: false,
            touched: false,
            closing: false,
            flow: Flow::default(),
            queued: false,
            ended: false,
            broken: false,
            node: None,
            rests_until: None,
            process: None,
            unidentified: false,
            number,
            probed: None,
            answered_after: None,
        }
    }

    /// What is to be released when it ends.
    pub(super) fn place(&self) -> Place {
        let Connection { switch, role, queued, process, unidentified, .. } = *self;
        Place { switch, role, queued, process, unidentified }
    }

    /// What it is watched for.
    pub(super) fn interest(&self) -> Readiness {
        let read = if self.rests_until.is_none() { watch::READ } else { Readiness::NONE };
        Readiness { write: self.watched, ..read }
    }

    /// Whether it is not read. What has hung up is read to its end at once.
    pub(super) fn rests(&self) -> bool {
        self.rests_until.is_some() && !self.ended
    }

    /// Whether a link in memory has something to do now, and then whether its other end has gone.
    pub(super) fn attention(&self) -> Option<bool> {
        let link = self.transport.memory().filter(|link| link.needs_attention())?;
        let ended = link.has_ended();
        (ended || !self.rests()).then_some(ended)
    }

    /// Whether the other end has gone.
    pub(super) fn has_hung_up(&self) -> bool {
        match self.transport.memory() {
            Some(link) => link.has_ended(),
            None => watch::hung_up(self.transport.fd()),
        }
    }

    /// Something is about to lie between, so that frames pass as bytes. Its descriptor becomes ready as any other's.
    pub(super) fn as_bytes(&mut self) {
        if let Some(link) = self.transport.memory() {
            link.ring();
            self.input.grow();
        }
    }

    /// One receive, of no more than a turn pays for.
    pub(super) fn fill(&mut self, now: u64) -> io::Result<Received> {
        if let Some(link) = self.transport.memory() {
            let received = link.receive(&mut self.arrived);
            return Ok(match received.frames {
                0 if received.closed => Received::End,
                0 => Received::Nothing,
                // No byte was copied.
                _ => Received::Bytes(0),
            });
        }
        let space = self.input.space();
        let most = space.len().min(turns::RECEIVE);
        let received = self.transport.receive(now, &mut space[..most])?;
        if let Received::Bytes(n) = received {
            self.input.filled(n);
        }
        Ok(received)
    }

    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        match self.arrived.pop_front() {
            Some(frame) => Ok(Some(frame)),
            None => self.input.frame(),
        }
    }

    /// Puts a frame back that must wait: it is the next again.
    pub(super) fn put_back(&mut self, frame: Frame) {
        self.arrived.push_front(frame);
    }

    /// Whether the buffer is full without holding a whole frame.
    pub(super) fn is_full(&mut self) -> bool {
        !self.is_in_memory() && self.input.space().is_empty()
    }

    /// It is identified: frames of any size may come.
    pub(super) fn identified(&mut self, role: Role) {
        self.role = role;
        if !self.is_in_memory() {
            self.input.grow();
        }
    }

    /// Whether something was received that was not processed.
    pub(super) fn has_unread(&self) -> bool {
        !self.arrived.is_empty() || !self.input.unread().is_empty()
    }

    /// Bytes that were received and are not a whole frame.
    pub(super) fn unread(&self) -> &[u8] {
        self.input.unread()
    }

    /// Whether its frames are handed over in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        self.transport.memory().is_some()
    }

    /// Bytes that are copied for it.
    pub(super) fn queue(&mut self, frame: Frame) -> usize {
        match self.transport.memory() {
            Some(link) => {
                // The switch sends what there is room for; more than that ends the connection at its next flush.
                self.overrun |= link.send(frame).is_err();
                0
            }
            None => frame.encode(&mut self.output),
        }
    }

    /// Queues a frame that these descriptors go with. For a transport that carries them.
    pub(super) fn queue_with(&mut self, frame: &Frame, fds: [OwnedFd; 2]) {
        self.attached.push_back((self.output.len(), fds));
        frame.encode(&mut self.output);
    }

    /// Queues a frame that this end of a ring goes with. For a transport in memory.
    pub(super) fn queue_with_end(&mut self, frame: Frame, end: Within) {
        if let Some(link) = self.transport.memory() {
            link.attach(end);
        }
        self.queue(frame);
    }

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
        if let Some(link) = self.transport.memory() {
            return link.room(OUT_ROOM);
        }
        OUT_ROOM.saturating_sub((self.output.len() - self.taken).div_ceil(MAX_LEN))
    }

    /// Sends what is queued as far as the transport takes it. True if the limit of one flush is reached and more is
    /// queued.
    pub(super) fn flush(&mut self, now: u64) -> io::Result<bool> {
        if self.is_in_memory() {
            return match self.overrun {
                true => Err(io::Error::other("its HIB takes no frames, and more were sent than it has room for")),
                false => Ok(false),
            };
        }
        let mut handed_on = 0;
        loop {
            let mut end = self.output.len();
            while let Some((at, _)) = self.attached.front() {
                if *at > self.taken {
                    end = *at;
                    break;
                }
                if let Some((_, fds)) = self.attached.pop_front() {
                    self.transport.attach(fds);
                }
            }
            let taken = match end - self.taken {
                0 => 0,
                _ => self.transport.send(now, &self.output[self.taken..end])?,
            };
            self.taken += taken;
            handed_on += taken;
            if self.taken == self.output.len() {
                self.output.clear();
                self.taken = 0;
            } else if self.taken >= self.output.len() / 2 {
                // Moving the rest costs no more than handing it on did.
                self.output.drain(..self.taken);
                self.attached.iter_mut().for_each(|(at, _)| *at -= self.taken);
                self.taken = 0;
            }
            // Room there is of use only if something waits for it here.
            if !self.transport.flush(now)? || self.output.is_empty() || taken == 0 {
                return Ok(false);
            }
            if handed_on >= MOST_AT_ONCE {
                return Ok(true);
            }
        }
    }
}
