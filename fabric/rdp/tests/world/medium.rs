// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lies between the two: it delays, loses, doubles, reorders and damages datagrams, as a seed says.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use telegraphos_testkit::Rng;

use super::Side;

/// Faults; how often each happens in thousandths of datagrams, times in microseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplication: u64,
    /// The most microseconds by which a datagram is delayed.
    pub(crate) reordering: u64,
    pub(crate) lateness: u64,
    /// A copy comes again after seconds.
    pub(crate) ghosts: u64,
    pub(crate) corruption: u64,
    pub(crate) delay: u64,
    pub(crate) jitter: u64,
    /// Bytes per second; 0: without bound. What finds more than `queue` microseconds of others before it is lost.
    pub(crate) bandwidth: u64,
    pub(crate) queue: u64,
}

impl Faults {
    pub(crate) fn random(rng: &mut Rng) -> Faults {
        let mut some = |chance: u64, most: u64| if rng.percent(chance) { rng.below(most) } else { 0 };
        Faults {
            loss: some(60, 300),
            duplication: some(50, 300),
            reordering: some(50, 300),
            lateness: 20_000,
            ghosts: some(30, 100),
            corruption: some(50, 200),
            delay: some(80, 5_000),
            jitter: some(50, 500),
            bandwidth: 0,
            queue: 0,
        }
    }
}

type Arrival = (u64, u64, bool, u32, Vec<u8>);

#[derive(Debug)]
pub(crate) struct Medium {
    faults: Faults,
    partitions: Vec<(u64, u64)>,
    /// (when, serial, to the server, the client's address, bytes)
    queue: BinaryHeap<Reverse<Arrival>>,
    serial: u64,
    /// When each direction has passed on what it has.
    free: [u64; 2],
    calm: bool,
    pub(crate) sent: u64,
}

impl Medium {
    pub(crate) fn new(faults: Faults, partitions: Vec<(u64, u64)>) -> Medium {
        Medium { faults, partitions, queue: BinaryHeap::new(), serial: 0, free: [0; 2], calm: false, sent: 0 }
    }

    /// Ends the faults, except that delayed copies still arrive.
    pub(crate) fn calm(&mut self) {
        if !self.calm {
            self.calm = true;
            let Faults { delay, bandwidth, queue, .. } = self.faults;
            self.faults = Faults { delay, bandwidth, queue, ..Faults::default() };
        }
    }

    /// For how long, until some time before now, nothing passed: the longest of all partitions that have begun.
    pub(crate) fn cut_for(&self, now: u64) -> u64 {
        self.partitions.iter().filter(|(from, _)| *from <= now).map(|(from, to)| (*to).min(now) - from).sum()
    }

    pub(crate) fn next(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(arrival)| arrival.0)
    }

    pub(crate) fn arrived(&mut self, now: u64) -> Option<(Side, u32, Vec<u8>)> {
        if self.next()? > now {
            return None;
        }
        let Reverse((_, _, to_server, address, bytes)) = self.queue.pop()?;
        Some((if to_server { Side::Server } else { Side::Client }, address, bytes))
    }

    pub(crate) fn send(&mut self, rng: &mut Rng, now: u64, to: Side, address: u32, bytes: &[u8]) {
        self.sent += 1;
        let faults = self.faults.clone();
        let direction = usize::from(to == Side::Server);
        let mut start = now;
        // Ethernet, IP and UDP add to each datagram.
        if let Some(time) = ((bytes.len() as u64 + 66) * 1_000_000).checked_div(faults.bandwidth) {
            start = self.free[direction].max(now);
            if start - now > faults.queue {
                return;
            }
            start += time;
            self.free[direction] = start;
        }
        if self.partitions.iter().any(|(from, until)| (*from..*until).contains(&now)) || rng.permille(faults.loss) {
            return;
        }
        let at = start + faults.delay + rng.below(faults.jitter + 1);
        let delay = if rng.permille(faults.reordering) { rng.below(faults.lateness) } else { 0 };
        self.put(rng, at + delay, to, address, bytes);
        if rng.permille(faults.duplication) {
            let delay = rng.below(faults.lateness + 1);
            self.put(rng, at + delay, to, address, bytes);
        }
        if rng.permille(faults.ghosts) {
            let delay = rng.below(3_000_000);
            self.put(rng, at + delay, to, address, bytes);
        }
    }

    fn put(&mut self, rng: &mut Rng, at: u64, to: Side, address: u32, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        if rng.permille(self.faults.corruption) {
            damage(rng, &mut bytes);
        }
        self.serial += 1;
        self.queue.push(Reverse((at, self.serial, to == Side::Server, address, bytes)));
    }
}

/// A few bits, a cut, a tail, a hole, or garbage.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let len = bytes.len() as u64;
    match rng.below(6) {
        0 | 1 => {
            for _ in 0..=rng.below(4) {
                let bit = rng.below(len * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        2 => bytes.truncate(rng.below(len) as usize),
        3 => {
            for _ in 0..=rng.below(40) {
                bytes.push(rng.next() as u8);
            }
        }
        4 => {
            let at = rng.below(len) as usize;
            let end = (at + 1 + rng.below(16) as usize).min(bytes.len());
            bytes[at..end].fill(0);
        }
        _ => bytes.iter_mut().for_each(|b| *b = rng.next() as u8),
    }
}
