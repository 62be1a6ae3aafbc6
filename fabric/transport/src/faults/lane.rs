// SPDX-License-Identifier: MIT OR Apache-2.0
//! Datagrams in flight in one direction, and their faults. Pure: no socket, no clock.

use std::collections::BTreeMap;

use super::delay::Transmitter;
use super::{Direction, FaultEvent, FaultKind, FaultPlan, LinkFaults};

/// Datagrams that may be in flight; more are lost.
const LIMIT: usize = 4096;
/// Datagrams that pass one that was held back, at most.
const PASSES: u64 = 4;
/// Microseconds that one is held back, at most.
const HOLD: u64 = 10_000;

/// A datagram that others are to pass.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    passes: u64,
    due: u64,
    until: u64,
}

/// Datagrams in flight in one direction.
#[derive(Debug)]
pub(super) struct Lane {
    direction: Direction,
    rng: fastrand::Rng,
    /// Datagrams offered so far.
    number: u64,
    transmitter: Transmitter,
    /// By time of arrival, then order.
    waiting: BTreeMap<(u64, u64), Vec<u8>>,
    order: u64,
    held: Vec<Held>,
}

impl Lane {
    /// Nothing in flight, with the random numbers of `link` in `direction`.
    pub(super) fn new(direction: Direction, link: &LinkFaults) -> Lane {
        Lane {
            direction,
            rng: link.rng(direction),
            number: 0,
            transmitter: Transmitter::default(),
            waiting: BTreeMap::new(),
            order: 0,
            held: Vec::new(),
        }
    }

    /// Whether nothing is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_empty()
    }

    /// A datagram passes without a fault; random numbers are drawn regardless. Only while nothing is in flight.
    pub(super) fn pass(&mut self) {
        self.number += 1;
        for _ in 0..DRAWS {
            self.rng.u64(..);
        }
    }

    /// A datagram is sent at `now`.
    pub(super) fn offer(&mut self, now: u64, plan: &FaultPlan, link: &LinkFaults, bytes: &[u8]) {
        let number = self.number;
        self.number += 1;
        // Always as many numbers, so that a change of one chance leaves the other faults where they were.
        let draws: [u64; DRAWS] = std::array::from_fn(|_| self.rng.u64(..));
        let [loss, corrupt, duplicate, reorder, place, jitter, second_jitter, passes] = draws;
        let direction = self.direction;
        let report = |kind, delay| link.fault(FaultEvent { link: "", now, direction, kind, number, delay, bytes });
        if !plan.concerns(direction) {
            return self.arrives(now, bytes.to_vec());
        }
        if plan.down {
            return report(FaultKind::Down, 0);
        }
        if plan.loss.hits(loss) {
            return report(FaultKind::Loss, 0);
        }
        if self.waiting.len() + self.held.len() >= LIMIT {
            return report(FaultKind::Overflow, 0);
        }
        let leaves = self.transmitter.send(now, plan.rate, bytes.len());
        if leaves > now {
            report(FaultKind::Rate, leaves - now);
        }
        let mut copy = bytes.to_vec();
        if plan.corrupt.hits(corrupt) && !copy.is_empty() {
            let bit = place % (copy.len() as u64 * 8);
            copy[(bit / 8) as usize] ^= 1 << (bit % 8);
            report(FaultKind::Corrupt, 0);
        }
        let due = leaves.saturating_add(plan.delay(jitter));
        if due > leaves {
            report(FaultKind::Delay, due - leaves);
        }
        if plan.duplicate.hits(duplicate) {
            report(FaultKind::Duplicate, 0);
            self.arrives(leaves.saturating_add(plan.delay(second_jitter)), copy.clone());
        }
        if plan.reorder.hits(reorder) {
            report(FaultKind::Reorder, 0);
            self.held.push(Held { bytes: copy, passes: 1 + passes % PASSES, due, until: due.saturating_add(HOLD) });
        } else {
            self.arrives(due, copy);
            self.passed(due);
        }
    }

    fn arrives(&mut self, due: u64, bytes: Vec<u8>) {
        self.waiting.insert((due, self.order), bytes);
        self.order += 1;
    }

    /// One that arrives at `due` passes those that are held back.
    fn passed(&mut self, due: u64) {
        for held in &mut self.held {
            held.passes -= 1;
        }
        self.release(|held| if held.passes == 0 { Some(held.due.max(due)) } else { None });
    }

    /// Releases those for which `when` returns a time.
    fn release(&mut self, when: impl Fn(&Held) -> Option<u64>) {
        let mut at = 0;
        while let Some(held) = self.held.get(at) {
            match when(held) {
                Some(due) => {
                    let held = self.held.remove(at);
                    self.arrives(due, held.bytes);
                }
                None => at += 1,
            }
        }
    }

    /// The next datagram that has arrived by `now`.
    pub(super) fn take(&mut self, now: u64) -> Option<Vec<u8>> {
        self.release(|held| (held.until <= now).then_some(held.until));
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// When the next one arrives.
    pub(super) fn deadline(&self) -> Option<u64> {
        let waiting = self.waiting.first_key_value().map(|((due, _), _)| *due);
        self.held.iter().map(|held| held.until).chain(waiting).min()
    }

    /// Loses everything in flight, since the link went down.
    pub(super) fn clear(&mut self, now: u64, link: &LinkFaults) {
        let (direction, number) = (self.direction, self.number);
        let waiting = std::mem::take(&mut self.waiting).into_values();
        for bytes in waiting.chain(self.held.drain(..).map(|held| held.bytes)) {
            let bytes = &bytes;
            link.fault(FaultEvent { link: "", now, direction, kind: FaultKind::Down, number, delay: 0, bytes });
        }
    }
}

/// Random numbers for each datagram.
const DRAWS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(seed: u64, plan: &str) -> (Lane, FaultPlan, LinkFaults) {
        let link = LinkFaults::new("a-b", seed);
        (Lane::new(Direction::Send, &link), plan.parse().unwrap(), link)
    }

    /// Sends numbered datagrams, one each 10 µs, and gives what arrives with its time.
    fn run_with(seed: u64, plan: &str, count: u32) -> (Vec<(u64, u32)>, LinkFaults) {
        let (mut lane, plan, link) = lane(seed, plan);
        let mut arrived = Vec::new();
        let mut collect = |lane: &mut Lane, now| {
            while let Some(bytes) = lane.take(now) {
                arrived.push((now, u32::from_le_bytes(bytes[..4].try_into().unwrap())));
            }
        };
        for n in 0..count {
            let now = u64::from(n) * 10;
            let mut bytes = n.to_le_bytes().to_vec();
            bytes.resize(100, 0);
            lane.offer(now, &plan, &link, &bytes);
            collect(&mut lane, now);
        }
        while let Some(now) = lane.deadline() {
            collect(&mut lane, now.max(u64::from(count) * 10));
        }
        (arrived, link)
    }

    fn run(plan: &str, count: u32) -> (Vec<(u64, u32)>, LinkFaults) {
        run_with(5, plan, count)
    }

    #[test]
    fn without_faults_everything_arrives_at_once() {
        let (arrived, link) = run("", 100);
        assert_eq!(arrived, (0..100).map(|n| (u64::from(n) * 10, n)).collect::<Vec<_>>());
        assert_eq!(link.counts().total(), 0);
    }

    #[test]
    fn each_fault_does_what_it_says_and_is_counted() {
        let numbers = |arrived: &[(u64, u32)]| arrived.iter().map(|(_, n)| *n).collect::<Vec<_>>();
        let (lost, link) = run("loss=10%", 10_000);
        assert_eq!(lost.len() as u64, 10_000 - link.counts().of(FaultKind::Loss));
        assert!((800..1200).contains(&link.counts().of(FaultKind::Loss)));

        let (doubled, link) = run("duplicate=10%", 10_000);
        assert_eq!(doubled.len() as u64, 10_000 + link.counts().of(FaultKind::Duplicate));
        assert!(link.counts().of(FaultKind::Duplicate) > 800);

        let (reordered, link) = run("reorder=10%", 10_000);
        let behind = reordered.windows(2).filter(|pair| pair[0].1 > pair[1].1).count() as u64;
        let mut sorted = numbers(&reordered);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10_000).collect::<Vec<_>>(), "each once");
        let counted = link.counts().of(FaultKind::Reorder);
        assert!(behind > counted / 2 && behind <= counted, "{behind} of {counted}");
        let farthest = reordered.iter().enumerate().map(|(at, (_, n))| at.abs_diff(*n as usize)).max();
        assert!(farthest <= Some(PASSES as usize * 4), "{farthest:?}");

        let (delayed, _) = run("latency=1ms", 100);
        assert_eq!(delayed[0], (1000, 0));
        assert_eq!(numbers(&delayed), (0..100).collect::<Vec<_>>());

        let (jittered, link) = run("jitter=1ms", 1000);
        assert!(numbers(&jittered) != (0..1000).collect::<Vec<_>>(), "jitter reorders");
        assert!(link.counts().of(FaultKind::Delay) > 900);

        // 100 bytes at 1 MB/s: 100 µs each.
        let (limited, link) = run("rate=1MB/s", 50);
        assert_eq!(limited.last(), Some(&(5000, 49)));
        assert_eq!(link.counts().of(FaultKind::Rate), 50);

        let (none, link) = run("down", 100);
        assert_eq!((none.len(), link.counts().of(FaultKind::Down)), (0, 100));

        let (_, link) = run("rate=1kB/s", 5000);
        assert_eq!(link.counts().of(FaultKind::Overflow), 5000 - LIMIT as u64);

        let (other, link) = run("loss=100% only=receive", 100);
        assert_eq!((other.len(), link.counts().total()), (100, 0));
    }

    #[test]
    fn corruption_flips_one_bit() {
        let (mut lane, plan, link) = lane(5, "corrupt=100%");
        for len in 0..200 {
            let bytes = vec![0; len];
            lane.offer(0, &plan, &link, &bytes);
            let got = lane.take(0).unwrap();
            assert_eq!(got.iter().map(|b| b.count_ones()).sum::<u32>(), u32::from(len > 0));
        }
        assert_eq!(link.counts().of(FaultKind::Corrupt), 199);
    }

    #[test]
    fn the_same_seed_and_calls_give_the_same_faults() {
        let plan = "loss=5% corrupt=5% duplicate=5% reorder=5% latency=100us jitter=50us rate=20MB/s";
        assert_eq!(run_with(5, plan, 2000).0, run_with(5, plan, 2000).0);
        assert_ne!(run_with(5, plan, 2000).0, run_with(6, plan, 2000).0);
    }

    #[test]
    fn a_change_of_one_chance_leaves_the_others_where_they_were() {
        let lost = |plan: &str| {
            let (arrived, _) = run(plan, 1000);
            (0..1000).filter(|n| !arrived.iter().any(|(_, m)| m == n)).collect::<Vec<u32>>()
        };
        assert_eq!(lost("loss=5%"), lost("loss=5% duplicate=10% latency=1ms jitter=3ms"));
    }

    #[test]
    fn what_is_on_its_way_is_lost_when_the_link_goes_down() {
        let (mut lane, plan, link) = lane(5, "latency=1s reorder=50%");
        for _ in 0..10 {
            lane.offer(0, &plan, &link, b"x");
        }
        lane.clear(0, &link);
        assert!(lane.is_empty() && lane.take(u64::MAX).is_none());
        assert_eq!(link.counts().of(FaultKind::Down), 10);
    }
}
