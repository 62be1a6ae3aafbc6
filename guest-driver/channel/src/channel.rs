// SPDX-License-Identifier: MIT OR Apache-2.0
//! One end of a channel.

use crate::error::{Error, Result};
use crate::memory::{FarMemory, NearMemory};
use crate::options::Options;
use std::time::{Duration, Instant};
use telegraphos::{NodeId, Remote, Segment, State};
use telegraphos_channel_core::handshake::{PROBE, WAKE};
use telegraphos_channel_core::{Announce, End, Layout, Look, Progress, PutError, RECORDS, ROOM, Violation};

/// How long a sleep lasts at most, before the other end is looked after.
const SLICE: Duration = Duration::from_millis(250);
/// The same while memory in common is reached through boards: what says that the other end sleeps may come late then.
const OBSERVED_SLICE: Duration = Duration::from_millis(2);
/// Looks between two readings of the clock.
const LOOKS: u32 = 256;
/// Looks between two pauses of the processor: where it is emulated, a pause leaves the emulated code.
const LOOKS_AT_ONCE: u32 = 16;
/// The kind of a record of [`Channel::send`].
const BYTES: u8 = 1;

/// How records of one direction get into the other end's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// By ordinary stores into memory in common.
    Direct,
    /// By stores that the boards perform.
    Boards,
}

/// What [`Channel::try_recv`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A record of so many bytes.
    Record(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing ever: the other end has closed the channel, and all that it had sent was received.
    Ended,
}

/// One end of a channel: records of bytes to and from one other process, each once, whole and in order.
///
/// What was sent is in the other end's memory. It is received if the other end lives to receive it, also after this
/// end has closed; there is no acknowledgement.
///
/// ```no_run
/// use telegraphos::Node;
/// use telegraphos_channel::{Channel, Options};
///
/// # fn main() -> telegraphos_channel::Result<()> {
/// let node = Node::open()?;
/// let mut channel = Channel::connect(&node, 3, "worker", Options::default())?;
/// channel.send(b"question")?;
/// let mut answer = [0; 100];
/// if let Some(length) = channel.recv(&mut answer)? {
///     println!("{:?}", &answer[..length]);
/// }
/// channel.close()
/// # }
/// ```
#[derive(Debug)]
pub struct Channel {
    end: End,
    far: FarMemory,
    far_control: Remote,
    near: NearMemory,
    control: Segment,
    options: Options,
    /// Whether the other end's memory is in common, and this end's.
    direct: (bool, bool),
    wakes: u64,
    has_ended: bool,
}

impl Channel {
    pub(crate) fn new(
        options: Options,
        control: Segment,
        far_control: Remote,
        (near, says): (Segment, bool),
        (far, looks): (Remote, bool),
        (near_layout, far_layout): (Layout, Layout),
    ) -> Channel {
        let announce = if looks { Announce::Look } else { Announce::Armed };
        Channel {
            end: End::new(near_layout, far_layout, announce, says),
            far: FarMemory::new(far, looks),
            far_control,
            near: NearMemory(near),
            control,
            options,
            direct: (looks, says),
            wakes: 0,
            has_ended: false,
        }
    }

    /// The node of the other end.
    pub fn peer(&self) -> NodeId {
        self.far_control.node()
    }

    /// How what this end sends gets to the other, and the other way round.
    pub fn carriers(&self) -> (Carrier, Carrier) {
        let carrier = |direct| if direct { Carrier::Direct } else { Carrier::Boards };
        (carrier(self.direct.0), carrier(self.direct.1))
    }

    /// Bytes of the longest record that this end may send: the other end's choice.
    pub fn max_record(&self) -> usize {
        self.end.max_record() as usize
    }

    fn violation(&self, violation: Violation) -> Error {
        Error::Violation { node: self.peer(), violation }
    }

    fn gone(&self, reason: impl ToString) -> Error {
        Error::Gone { node: self.peer(), reason: reason.to_string() }
    }

    /// Wakes the other end if it must be, and finds what has failed.
    #[inline]
    fn after(&mut self, progress: Progress) -> Result<()> {
        if progress == Progress::Wake {
            self.wakes += 1;
            self.far_control.put(WAKE, self.wakes)?;
        }
        if let Some(error) = self.far.failed.take() {
            return Err(self.gone(error));
        }
        // A load from memory, unless an import has had an error.
        self.far.remote.check_sound().map_err(|error| self.gone(error))
    }

    /// Sends a record if there is room for it: whether there was. Returns before the other end has received it. Fails
    /// with [`Error::Record`] if it is longer than [`Channel::max_record`], with [`Error::Gone`] as soon as it is known
    /// that the other end does not receive any more.
    #[inline]
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<bool> {
        self.try_send_parts(BYTES, &[bytes])
    }

    /// The same with a kind, 1 to 255, which the receiver's [`Channel::try_recv`] does not show yet, of bytes in
    /// several places, of which all but the last are a multiple of 8 long: a head and its data, by one release store.
    #[inline]
    pub fn try_send_parts(&mut self, kind: u8, parts: &[&[u8]]) -> Result<bool> {
        let put = self.end.put(&self.near, &mut self.far, kind, parts).map_err(|error| match error {
            PutError::Violation(violation) => self.violation(violation),
            error => Error::Record(error),
        })?;
        match put {
            Some(progress) => self.after(progress).map(|()| true),
            None => Ok(false),
        }
    }

    /// Sends a record; waits for room as long as the other end is there. Otherwise as [`Channel::try_send`].
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        if self.try_send(bytes)? {
            return Ok(());
        }
        let sent = self.wait(ROOM, None, |channel| Ok(channel.try_send(bytes)?.then_some(())))?;
        sent.ok_or(Error::TimedOut { what: "sending a record", time: Duration::MAX })
    }

    /// Receives the next record if it is there. Fails with [`Error::Longer`] if the record is longer than `buffer`: it
    /// stays, and can be received with more memory; with [`Error::Violation`] if the other end has stored what it must
    /// not.
    #[inline]
    pub fn try_recv(&mut self, buffer: &mut [u8]) -> Result<Received> {
        match self.end.look(&self.near) {
            Ok(Look::Empty) => Ok(Received::Nothing),
            Ok(Look::Ended) => Ok(Received::Ended),
            Ok(Look::Record(record)) if record.length > buffer.len() => {
                Err(Error::Longer { length: record.length, room: buffer.len() })
            }
            Ok(Look::Record(record)) => {
                let progress = self.end.take(&self.near, &mut self.far, &mut buffer[..record.length]);
                // What was received is whole, whatever has become of the other end.
                if let Err(error) = self.after(progress) {
                    log::debug!("a credit is not returned: {error}");
                }
                Ok(Received::Record(record.length))
            }
            Err(violation) => Err(self.violation(violation)),
        }
    }

    /// Receives the next record, and returns its length; `None` when the other end has closed the channel, and all that
    /// it had sent was received. Waits as long as the other end is there: fails with [`Error::Gone`] when its process
    /// or its node has gone without closing, after some 0.5 s, once all whole records were received. Otherwise as
    /// [`Channel::try_recv`].
    pub fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.recv_within(buffer, None)
    }

    /// The same, which fails with [`Error::TimedOut`] after `timeout`; it may be called again.
    pub fn recv_timeout(&mut self, buffer: &mut [u8], timeout: Duration) -> Result<Option<usize>> {
        self.recv_within(buffer, Some(timeout))
    }

    fn recv_within(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>> {
        let mut attempt = |channel: &mut Channel| {
            Ok(match channel.try_recv(buffer)? {
                Received::Nothing => None,
                Received::Record(length) => Some(Some(length)),
                Received::Ended => Some(None),
            })
        };
        if let Some(done) = attempt(self)? {
            return Ok(done);
        }
        let late = Error::TimedOut { what: "receiving a record", time: timeout.unwrap_or(Duration::MAX) };
        self.wait(RECORDS, timeout, attempt)?.ok_or(late)
    }

    /// Attempts it until it succeeds: for a while by looking, then asleep until the other end has done `what`. `None`
    /// after `timeout`.
    fn wait<T>(
        &mut self,
        what: u64,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Channel) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let look = timeout.map_or(self.options.look, |timeout| timeout.min(self.options.look));
        // What comes soon needs no clock, which takes longer than many looks.
        let mut begun = None;
        while !look.is_zero() && begun.is_none_or(|begun: Instant| begun.elapsed() < look) {
            for at in 1..=LOOKS {
                if let Some(done) = attempt(self)? {
                    return Ok(Some(done));
                }
                if at % LOOKS_AT_ONCE == 0 {
                    std::hint::spin_loop();
                }
            }
            begun.get_or_insert_with(Instant::now);
        }
        let begun = begun.unwrap_or_else(Instant::now);
        loop {
            let left = timeout.map_or(SLICE, |timeout| timeout.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                return Ok(None);
            }
            let lost = self.check().err();
            // Before this end says that it sleeps: a wake-up that comes later changes the word.
            let seen = self.control.load(WAKE)?;
            self.end.begin_sleep(&mut self.far, what);
            // The last look; and what was sent before the other end went.
            let found = attempt(self).transpose();
            if let Some(found) = found.or_else(|| lost.map(Err)) {
                self.end.end_sleep(&mut self.far);
                return found.map(Some);
            }
            let limit = if self.is_observed() { OBSERVED_SLICE } else { SLICE };
            let slept = match self.direct.1 {
                true => self.control.wait_change(&[(WAKE, seen)], left.min(limit)),
                false => {
                    let words: Vec<_> = self.end.waits_for(what).collect();
                    self.near.0.wait_change(&words, left.min(limit))
                }
            };
            self.end.end_sleep(&mut self.far);
            slept?;
            if let Some(done) = attempt(self)? {
                return Ok(Some(done));
            }
        }
    }

    /// Whether memory in common is reached through the boards now: faults or a capture must see what passes.
    fn is_observed(&self) -> bool {
        self.direct.0 && !self.far.is_direct
    }

    /// Fails if an import has lost a store, or is dead.
    fn sound(&self, state: &State) -> Result<()> {
        match state.error {
            Some(status) => Err(self.gone(status.describe().trim_end_matches('.'))),
            None if state.dead || state.cut => Err(self.gone("its memory was withdrawn")),
            None => Ok(()),
        }
    }

    /// Fails if the other end is gone; and learns whether memory in common is reached through the boards for a while.
    fn check(&mut self) -> Result<()> {
        let state = self.far.remote.state()?;
        self.sound(&state)?;
        if !self.direct.0 {
            // No board says that a segment was withdrawn, before it refuses an access. Seen by the next check.
            self.sound(&self.far_control.state()?)?;
            self.far_control.put(PROBE, 0_u64)?;
        }
        if let Some(error) = self.far.failed.take() {
            return Err(self.gone(error));
        }
        if self.direct.0 && state.direct != self.far.is_direct {
            self.far.is_direct = state.direct;
            self.end.set_announce(if state.direct { Announce::Look } else { Announce::Always });
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        let progress = self.end.end(&self.near, &mut self.far);
        self.after(progress)
    }

    /// Closes the channel: the other end receives what was sent, and then the end. What it has sent and was not
    /// received is lost. Dropping does the same, and only logs errors.
    pub fn close(mut self) -> Result<()> {
        self.finish()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            log::debug!("closing a channel: {error}");
        }
    }
}
