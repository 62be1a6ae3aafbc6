// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ages of requests that other nodes have not answered.
//!
//! Time is divided into phases of a quarter of [`HibConfig::answer_limit`](crate::HibConfig::answer_limit), and each
//! request is counted in the phase in which it was sent: so neither sending nor an answer searches anything. A request
//! that is older than four whole phases has exceeded the limit, by a quarter of it at most. A phase ends with a tick,
//! and a tick ends one phase at most: a board that was not scheduled for long reads what has come meanwhile before it
//! counts on.

/// Phases that are distinguished: the current one, and four whole ones before it.
const PHASES: usize = 5;

/// The phase in which a request was sent, modulo [`PHASES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Phase(u8);

/// The unanswered requests of one node, by phase.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Unanswered([u32; PHASES]);

impl Unanswered {
    /// Returns whether a request of this phase is unanswered.
    pub(super) fn has(&self, phase: Phase) -> bool {
        self.0[usize::from(phase.0)] > 0
    }
}

/// The phase of now; see the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Phases {
    now: Phase,
    /// The time at which it ends.
    end: u64,
    /// Requests that are counted in any phase. Without any, time does not count.
    counted: u32,
}

impl Phases {
    /// No request is unanswered.
    pub(super) fn new() -> Phases {
        Phases { now: Phase(0), end: 0, counted: 0 }
    }

    /// One more request of a node is unanswered: the phase that it is counted in.
    pub(super) fn enter(&mut self, now: u64, limit: u64, node: &mut Unanswered) -> Phase {
        if self.counted == 0 {
            self.end = now.saturating_add(quarter(limit));
        }
        self.counted += 1;
        node.0[usize::from(self.now.0)] += 1;
        self.now
    }

    /// A request of a node that is counted in this phase is answered or lost.
    pub(super) fn leave(&mut self, phase: Phase, node: &mut Unanswered) {
        let count = &mut node.0[usize::from(phase.0)];
        *count = count.saturating_sub(1);
        self.counted = self.counted.saturating_sub(1);
        if self.counted == 0 {
            // What has been leaves nothing: boards in the same state behave alike.
            *self = Phases::new();
        }
    }

    /// The end of the phase, if any request is unanswered.
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.counted > 0).then_some(self.end)
    }

    /// Ends the phase if it is over at `now`, and returns the next one. Requests that are still counted in that have
    /// exceeded the limit; it must count none when new ones are.
    pub(super) fn advance(&mut self, now: u64, limit: u64) -> Option<Phase> {
        if self.counted == 0 || now < self.end {
            return None;
        }
        self.end = now.saturating_add(quarter(limit));
        self.now = Phase((self.now.0 + 1) % PHASES as u8);
        Some(self.now)
    }
}

/// Length of a phase.
fn quarter(limit: u64) -> u64 {
    limit.div_ceil(4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use telegraphos_testkit::{Rng, seeds};

    /// Every request that is unanswered for longer than five quarters is found, and none before four.
    #[test]
    fn a_request_exceeds_the_limit_after_four_to_five_quarters() {
        const LIMIT: u64 = 40;
        for seed in seeds(50, 2000) {
            let (mut rng, mut phases, mut node) = (Rng::new(seed), Phases::new(), Unanswered::default());
            let mut sent: VecDeque<(u64, Phase)> = VecDeque::new();
            for now in 0..1000 {
                if let Some(oldest) = phases.advance(now, LIMIT) {
                    let found = sent.iter().filter(|(_, phase)| *phase == oldest).count();
                    assert_eq!(node.has(oldest), found > 0, "seed {seed}");
                    while sent.front().is_some_and(|(_, phase)| *phase == oldest) {
                        let (at, phase) = sent.pop_front().unwrap();
                        assert!((LIMIT..=LIMIT + 10).contains(&(now - at)), "seed {seed}: {at} is found at {now}");
                        phases.leave(phase, &mut node);
                    }
                    assert!(!node.has(oldest), "seed {seed}");
                }
                if rng.percent(30) {
                    sent.push_back((now, phases.enter(now, LIMIT, &mut node)));
                }
                // Long times of silence, and others in which all is answered.
                while now / 100 % 3 > 0 && rng.percent(40) {
                    let Some((_, phase)) = sent.pop_front() else { break };
                    phases.leave(phase, &mut node);
                }
                let late = sent.front().is_some_and(|(at, _)| now - at > LIMIT + 10);
                assert!(!late, "seed {seed}: at {now} {sent:?}");
                assert_eq!(phases.deadline().is_some(), !sent.is_empty(), "seed {seed}");
            }
        }
    }

    #[test]
    fn time_in_which_the_board_did_not_run_counts_as_one_phase() {
        let (mut phases, mut node) = (Phases::new(), Unanswered::default());
        phases.enter(0, 40, &mut node);
        for now in [1_000_000, 1_000_010, 1_000_020, 1_000_030] {
            assert!(!node.has(phases.advance(now, 40).unwrap()), "at {now}");
            assert_eq!(phases.advance(now, 40), None);
        }
        assert!(node.has(phases.advance(1_000_040, 40).unwrap()));
    }
}
