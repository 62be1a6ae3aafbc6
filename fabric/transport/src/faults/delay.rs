// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of a stream in flight in one direction. Pure: no socket, no clock.

use std::collections::VecDeque;

use super::{Direction, FaultEvent, FaultKind, FaultPlan, LinkFaults};

/// Bytes of a stream for which random numbers are drawn together.
pub(super) const SEGMENT: usize = 1024;
/// Random numbers for each segment.
const DRAWS: usize = 5;
/// Bytes that may be in flight.
const LIMIT: usize = 1 << 20;

/// A transmitter of limited rate.
#[derive(Debug, Default)]
pub(super) struct Transmitter {
    /// When it is idle again, in nanoseconds: a short message at a high rate takes less than a microsecond.
    free_at: u64,
}

impl Transmitter {
    /// Sends `len` bytes at `now` and returns when they have left, in microseconds. `rate` is in bytes per second.
    pub(super) fn send(&mut self, now: u64, rate: Option<u64>, len: usize) -> u64 {
        let Some(rate) = rate else { return now };
        let takes = u64::try_from(len as u128 * 1_000_000_000 / u128::from(rate.max(1))).unwrap_or(u64::MAX);
        self.free_at = self.free_at.max(now.saturating_mul(1000)).saturating_add(takes);
        self.free_at.div_ceil(1000).max(now)
    }
}

#[derive(Debug)]
struct Chunk {
    due: u64,
    bytes: Vec<u8>,
    taken: usize,
}

/// Bytes in flight, which arrive in order.
#[derive(Debug)]
pub(super) struct Delay {
    direction: Direction,
    rng: fastrand::Rng,
    /// Bytes offered so far.
    offset: u64,
    /// The jitter of the segment that `offset` is in.
    jitter: u64,
    transmitter: Transmitter,
    chunks: VecDeque<Chunk>,
    len: usize,
}

impl Delay {
    /// Nothing in flight, with the random numbers of `link` in `direction`.
    pub(super) fn new(direction: Direction, link: &LinkFaults) -> Delay {
        Delay {
            direction,
            rng: link.rng(direction),
            offset: 0,
            jitter: 0,
            transmitter: Transmitter::default(),
            chunks: VecDeque::new(),
            len: 0,
        }
    }

    /// Continues with the random numbers of another link.
    pub(super) fn set_link(&mut self, link: &LinkFaults) {
        self.rng = link.rng(self.direction);
    }

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that may be offered.
    pub(super) fn room(&self) -> usize {
        LIMIT - self.len
    }

    /// Bytes until the next segment begins.
    fn left(&self) -> usize {
        SEGMENT - (self.offset % SEGMENT as u64) as usize
    }

    fn draw(&mut self) -> [u64; DRAWS] {
        std::array::from_fn(|_| self.rng.u64(..))
    }

    /// `len` bytes pass without a fault; random numbers are drawn regardless. Only while nothing is in flight.
    pub(super) fn pass(&mut self, mut len: usize) {
        while len > 0 {
            if self.left() == SEGMENT {
                let [.., jitter] = self.draw();
                self.jitter = jitter;
            }
            let piece = len.min(self.left());
            self.offset += piece as u64;
            len -= piece;
        }
    }

    /// Bytes are sent at `now`, no more than there is [`room`](Delay::room) for. An error is a fault that a stream
    /// cannot survive.
    pub(super) fn offer(
        &mut self,
        now: u64,
        plan: &FaultPlan,
        link: &LinkFaults,
        mut bytes: &[u8],
    ) -> Result<(), FaultKind> {
        let concerned = plan.concerns(self.direction);
        while !bytes.is_empty() {
            let number = self.offset / SEGMENT as u64;
            let begins = self.left() == SEGMENT;
            let (piece, rest) = bytes.split_at(bytes.len().min(self.left()));
            let direction = self.direction;
            let report =
                |kind, delay| link.fault(FaultEvent { link: "", now, direction, kind, number, delay, bytes: piece });
            if begins {
                let [loss, corrupt, duplicate, reorder, jitter] = self.draw();
                self.jitter = jitter;
                let fatal = [
                    (plan.loss, loss, FaultKind::Loss),
                    (plan.corrupt, corrupt, FaultKind::Corrupt),
                    (plan.duplicate, duplicate, FaultKind::Duplicate),
                    (plan.reorder, reorder, FaultKind::Reorder),
                ];
                let hit = fatal.into_iter().find(|(chance, draw, _)| concerned && chance.hits(*draw));
                if let Some((.., kind)) = hit {
                    report(kind, 0);
                    return Err(kind);
                }
            }
            let mut due = now;
            if concerned {
                due = self.transmitter.send(now, plan.rate, piece.len());
                if due > now && begins {
                    report(FaultKind::Rate, due - now);
                }
                let delay = plan.delay(self.jitter);
                if delay > 0 && begins {
                    report(FaultKind::Delay, delay);
                }
                due = due.saturating_add(delay);
            }
            self.push(due, piece);
            self.offset += piece.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn push(&mut self, due: u64, bytes: &[u8]) {
        self.len += bytes.len();
        match self.chunks.back_mut() {
            // A stream keeps its order: no byte arrives before those ahead of it.
            Some(last) if last.due >= due => last.bytes.extend_from_slice(bytes),
            _ => self.chunks.push_back(Chunk { due, bytes: bytes.to_vec(), taken: 0 }),
        }
    }

    /// The first bytes that have arrived by `now`; [`used`](Delay::used) removes them.
    pub(super) fn arrived(&self, now: u64) -> &[u8] {
        match self.chunks.front() {
            Some(chunk) if chunk.due <= now => &chunk.bytes[chunk.taken..],
            _ => &[],
        }
    }

    /// Removes `len` of the bytes that [`arrived`](Delay::arrived) returned.
    pub(super) fn used(&mut self, len: usize) {
        self.len -= len;
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.taken += len;
            if chunk.taken == chunk.bytes.len() {
                self.chunks.pop_front();
            }
        }
    }

    /// When the next bytes arrive.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(plan: &str, cuts: usize) -> (Vec<(u64, u8)>, Result<(), FaultKind>, u64) {
        let link = LinkFaults::new("a-b", 3);
        let plan = plan.parse().unwrap();
        let mut delay = Delay::new(Direction::Send, &link);
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        let mut result = Ok(());
        for piece in bytes.chunks(cuts) {
            result = result.and_then(|()| delay.offer(100, &plan, &link, piece));
        }
        let mut arrived = Vec::new();
        while let Some(due) = delay.deadline() {
            let now = due.max(100);
            let got = delay.arrived(now);
            arrived.extend(got.iter().map(|byte| (now, *byte)));
            let len = got.len();
            delay.used(len);
        }
        assert!(delay.is_empty());
        (arrived, result, delay.offset)
    }

    #[test]
    fn bytes_arrive_in_order_each_once_and_later() {
        let (arrived, result, _) = run("latency=1ms jitter=5ms rate=1MB/s", 700);
        assert_eq!(result, Ok(()));
        assert!(arrived.iter().enumerate().all(|(at, (_, byte))| *byte == (at % 251) as u8));
        assert!(arrived.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert_eq!(arrived.len(), 20_000);
        assert!(arrived[0].0 >= 100 + 1000 && arrived[19_999].0 >= 100 + 1000 + 20_000);
    }

    #[test]
    fn what_a_stream_cannot_have_ends_it_at_the_same_byte_under_any_cut() {
        for (plan, kind) in [
            ("loss=20%", FaultKind::Loss),
            ("corrupt=20%", FaultKind::Corrupt),
            ("duplicate=20%", FaultKind::Duplicate),
            ("reorder=20%", FaultKind::Reorder),
        ] {
            let (arrived, result, offset) = run(plan, 20_000);
            assert_eq!(result, Err(kind));
            assert_eq!(offset % SEGMENT as u64, 0);
            assert_eq!(arrived.len() as u64, offset);
            for cuts in [1, 3, 1000, 1024, 5000] {
                assert_eq!(run(plan, cuts).2, offset, "{plan} in pieces of {cuts}");
            }
        }
    }

    #[test]
    fn passing_draws_the_same_numbers() {
        let link = LinkFaults::new("a-b", 3);
        let (mut a, mut b) = (Delay::new(Direction::Send, &link), Delay::new(Direction::Send, &link));
        a.offer(0, &FaultPlan::default(), &link, &[0; 5000]).unwrap();
        for _ in 0..50 {
            b.pass(100);
        }
        assert_eq!((a.offset, a.jitter, a.rng.u64(..)), (b.offset, b.jitter, b.rng.u64(..)));
    }
}
