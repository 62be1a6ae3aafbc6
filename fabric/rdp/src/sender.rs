// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sending half: the window, going back, the pause, the timer.

use std::collections::VecDeque;

use crate::bugs::Bug;
use crate::config::Config;
use crate::sequence::Sequence;
use crate::statistics::Statistics;

/// Units of [`Sender::allowed`] in one segment.
const PART: u32 = 1 << 10;

/// A segment that is not acknowledged. Its bytes stay together however often it is sent.
#[derive(Debug)]
struct Segment {
    bytes: Vec<u8>,
    finish: bool,
    sent_at: u64,
}

/// A segment to send now; `ask` requests an immediate acknowledgement.
pub(crate) struct Outgoing<'a> {
    pub(crate) sequence: Sequence,
    pub(crate) bytes: &'a [u8],
    pub(crate) finish: bool,
    pub(crate) ask: bool,
}

/// While the other side has no room, the first segment is sent again from time to time: the announcement of room may be
/// lost.
#[derive(Clone, Copy, Debug)]
struct Pause {
    next: u64,
    times: u32,
}

/// The sending half of a connection: unsent bytes, and segments in flight.
#[derive(Debug, Default)]
pub(crate) struct Sender {
    unsent: VecDeque<u8>,
    /// Sent at least once and not acknowledged; the first has number `base`.
    segments: VecDeque<Segment>,
    base: Sequence,
    /// The next of `segments` to send in this round; those before it are in flight.
    cursor: usize,
    /// How often the sender has gone back, modulo 2^16.
    pub(crate) round: u16,
    window: u16,
    mtu: u16,
    /// How many may be in flight now, in [`PART`]s: at most the window, fewer after losses.
    allowed: u32,
    pause: Option<Pause>,
    /// The next segment requests an immediate acknowledgement: the timer expired.
    ask: bool,
    /// When the other side last acknowledged a new segment.
    progress: u64,
    /// Timeouts since then.
    times: u32,
    /// [`Sender::close`] was called.
    pub(crate) closing: bool,
    finish_cut: bool,
    spare: Vec<Vec<u8>>,
}

impl Sender {
    /// A sender that numbers its segments from `first` on.
    pub(crate) fn new(config: &Config, first: Sequence) -> Sender {
        Sender {
            base: first,
            window: config.window,
            mtu: config.mtu,
            allowed: u32::from(config.window) * PART,
            ..Sender::default()
        }
    }

    /// Applies the limits of the other side's greeting: window in segments, mtu in payload bytes.
    pub(crate) fn agree(&mut self, window: u16, mtu: u16) {
        self.window = self.window.min(window);
        self.mtu = self.mtu.min(mtu);
        self.allowed = u32::from(self.window) * PART;
    }

    /// Number of the next new segment.
    pub(crate) fn next(&self) -> Sequence {
        self.base.plus(self.segments.len() as u32)
    }

    /// Bytes that are not acknowledged, or not yet sent.
    pub(crate) fn outstanding(&self) -> usize {
        self.unsent.len() + self.segments.iter().map(|s| s.bytes.len()).sum::<usize>()
    }

    /// Bytes that [`Sender::send`] would queue.
    pub(crate) fn room(&self, config: &Config) -> usize {
        if self.closing { 0 } else { config.send_buffer.saturating_sub(self.unsent.len()) }
    }

    /// Queues as many bytes as there is room for and returns how many.
    pub(crate) fn send(&mut self, config: &Config, bytes: &[u8]) -> usize {
        let taken = &bytes[..bytes.len().min(self.room(config))];
        self.unsent.extend(taken);
        taken.len()
    }

    /// Queues the end: it is sent behind all bytes, and no more are accepted.
    pub(crate) fn close(&mut self) {
        self.closing = true;
    }

    /// Whether everything was acknowledged, the end included.
    pub(crate) fn finished(&self) -> bool {
        self.finish_cut && self.segments.is_empty()
    }

    /// Whether everything was acknowledged, except perhaps the end.
    pub(crate) fn delivered(&self) -> bool {
        self.finish_cut && self.segments.len() <= 1
    }

    /// Drops everything that is not acknowledged.
    pub(crate) fn discard(&mut self) {
        self.unsent.clear();
        self.segments.clear();
        self.cursor = 0;
    }

    /// How many segments may be in flight now.
    fn limit(&self, config: &Config) -> usize {
        if config.has(Bug::IgnoreWindow) {
            return usize::MAX;
        }
        let least = self.window.min(config.window_floor);
        ((self.allowed / PART) as usize).clamp(usize::from(least), usize::from(self.window))
    }

    /// Processes an acknowledgement of all segments before `expected`. False if that was never sent: it is invalid.
    pub(crate) fn acknowledge(&mut self, config: &Config, now: u64, expected: Sequence) -> bool {
        let count = config.distance(expected, self.base);
        if count <= 0 {
            return true;
        }
        if count > self.segments.len() as i64 {
            return false;
        }
        let count = count as usize;
        for segment in self.segments.drain(..count) {
            if self.spare.len() < 16 {
                self.spare.push(segment.bytes);
            }
        }
        self.base = expected;
        self.cursor = self.cursor.saturating_sub(count);
        self.pause = None;
        self.times = 0;
        self.progress = now;
        self.grow(count as u32);
        true
    }

    /// Allows one more segment in flight for each window that is acknowledged.
    fn grow(&mut self, acknowledged: u32) {
        let full = u32::from(self.window) * PART;
        let share = acknowledged.saturating_mul(PART) / (self.allowed / PART).max(1);
        self.allowed = self.allowed.saturating_add(share).min(full);
    }

    /// Processes a sequence NACK: all segments before `expected` were received, one behind it was refused. Returns
    /// whether the sender went back; a NACK of an earlier round was answered then.
    pub(crate) fn refused(&mut self, config: &Config, expected: Sequence, round: u16) -> bool {
        if config.has(Bug::IgnoreNack) || round != self.round || expected != self.base || self.cursor == 0 {
            return false;
        }
        self.allowed = (self.allowed / 2).max(u32::from(config.window_floor) * PART);
        self.go_back();
        true
    }

    /// Processes a capacity NACK: the other side had no room for the segment `expected`. Returns whether the sender
    /// paused.
    pub(crate) fn no_room(&mut self, config: &Config, now: u64, timeout: u64, expected: Sequence, round: u16) -> bool {
        if config.has(Bug::NoPause) || expected != self.base || self.segments.is_empty() || self.pause.is_some() {
            return false;
        }
        if round != self.round {
            return false;
        }
        self.pause = Some(Pause { next: now.saturating_add(config.back_off(timeout, 0)), times: 0 });
        self.go_back();
        true
    }

    /// Ends a pause: the other side has room again.
    pub(crate) fn resume(&mut self) {
        self.pause = None;
    }

    fn go_back(&mut self) {
        self.cursor = 0;
        self.round = self.round.wrapping_add(1);
    }

    /// When [`Sender::timer`] must be called; `timeout` is the present retransmission timeout in microseconds.
    pub(crate) fn deadline(&self, config: &Config, timeout: u64) -> Option<u64> {
        if config.has(Bug::NoTimer) {
            return None;
        }
        match (&self.pause, self.segments.front()) {
            (Some(pause), _) => Some(pause.next),
            (None, Some(first)) if self.cursor > 0 => {
                Some(first.sent_at.max(self.progress).saturating_add(config.back_off(timeout, self.times)))
            }
            _ => None,
        }
    }

    /// Goes back, or sends a probe segment in a pause, if the deadline has passed.
    pub(crate) fn timer(&mut self, config: &Config, now: u64, timeout: u64, statistics: &mut Statistics) {
        if self.deadline(config, timeout).is_none_or(|at| at > now) {
            return;
        }
        match &mut self.pause {
            Some(pause) => {
                pause.times += 1;
                pause.next = now.saturating_add(config.back_off(timeout, pause.times));
            }
            None => {
                self.times += 1;
                statistics.timeouts += 1;
                self.allowed = u32::from(config.window_floor) * PART;
                self.go_back();
            }
        }
        self.ask = true;
    }

    /// The next segment to send, if the window and the pause admit one.
    pub(crate) fn poll(&mut self, config: &Config, now: u64, statistics: &mut Statistics) -> Option<Outgoing<'_>> {
        let limit = self.limit(config);
        let at = if self.pause.is_some() {
            if !self.ask || self.segments.is_empty() {
                return None;
            }
            0
        } else {
            if self.cursor >= limit || (self.cursor == self.segments.len() && !self.cut()) {
                return None;
            }
            self.cursor += 1;
            self.cursor - 1
        };
        let ask = std::mem::take(&mut self.ask) || self.cursor >= limit;
        let sequence = self.base.plus(at as u32);
        let segment = self.segments.get_mut(at)?;
        if segment.sent_at == NEVER {
            statistics.segments_sent += 1;
            statistics.bytes_sent += segment.bytes.len() as u64;
        } else {
            statistics.retransmissions += 1;
        }
        segment.sent_at = now;
        Some(Outgoing { sequence, bytes: &segment.bytes, finish: segment.finish, ask })
    }

    /// Makes the next segment of the unsent bytes, or of the end; false if there is neither.
    fn cut(&mut self) -> bool {
        let len = self.unsent.len().min(usize::from(self.mtu));
        let finish = len == 0;
        if finish && (!self.closing || self.finish_cut) {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend(self.unsent.drain(..len));
        self.finish_cut |= finish;
        self.segments.push_back(Segment { bytes, finish, sent_at: NEVER });
        true
    }
}

/// `sent_at` of a segment that was never sent.
const NEVER: u64 = u64::MAX;
