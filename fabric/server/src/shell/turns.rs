// SPDX-License-Identifier: MIT OR Apache-2.0
//! Turns in the loop: deficit round robin over work, not over messages. A turn ends when its flow's work is used up;
//! work beyond that is a debt, which the flow pays with its next turns while others wait. So a busy flow gets its share
//! of the loop, and a flow waits for at most one turn of each other.
//!
//! Each node and trunk is a flow. All unidentified connections together are one flow.

use std::collections::VecDeque;

use telegraphos_fabric_core::PortId;

/// Work of one turn, in units of about a quarter of a microsecond.
pub(super) const QUANTUM: i64 = 32;
/// Debt that is remembered, at most.
const MOST_DEBT: i64 = 256 * QUANTUM;

/// A frame that comes in, or one that goes out.
pub(super) const FRAME: i64 = 1;
/// What a group costs besides.
pub(super) const GROUP: i64 = 3;
/// So many bytes cost as much as a frame.
pub(super) const BYTES: usize = 1024;
/// A receive, or a send to a connection that had nothing to send.
pub(super) const CALL: i64 = 8;
/// Bytes of one receive, at most: those that a turn pays for. A debt is paid only while others have something to do; a
/// pair that waits for each other's packets seldom has, and would wait for each receive of a node that sends blocks.
pub(super) const RECEIVE: usize = (QUANTUM - CALL) as usize * BYTES;

/// What one flow may still do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow(i64);

impl Flow {
    /// A turn begins: whether there is anything that it may do in it.
    pub(super) fn begin(&mut self) -> bool {
        self.0 = (self.0 + QUANTUM).min(QUANTUM);
        self.0 > 0
    }

    /// Work was done.
    pub(super) fn spend(&mut self, units: i64) {
        self.0 = (self.0 - units).max(-MOST_DEBT);
    }

    pub(super) fn may_continue(&self) -> bool {
        self.0 > 0
    }

    /// Turns that it must let pass.
    fn debt(&self) -> i64 {
        (-self.0).max(0)
    }

    fn relieve(&mut self, units: i64) {
        self.0 = (self.0 + units).min(0);
    }
}

/// The connections that have something to do.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Those of nodes and trunks.
    pub(super) identified: VecDeque<PortId>,
    pub(super) unidentified: VecDeque<PortId>,
    /// The flow of the latter.
    pub(super) common: Flow,
}

impl Turns {
    /// Whether no connection has anything to do.
    pub(super) fn is_empty(&self) -> bool {
        self.identified.is_empty() && self.unidentified.is_empty()
    }
}

/// If all flows with work are in debt, no other flow waits: the least debt is forgiven to all.
pub(super) fn relieve<'a>(flows: impl Iterator<Item = &'a mut Flow>) {
    let flows: Vec<&mut Flow> = flows.collect();
    let least = flows.iter().map(|flow| flow.debt()).min().unwrap_or(0);
    flows.into_iter().for_each(|flow| flow.relieve(least));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flows that always have something to do, each step of which costs so much: what each did in so many rounds.
    fn run(costs: &[i64], rounds: usize) -> Vec<i64> {
        let mut flows = vec![Flow::default(); costs.len()];
        let mut done = vec![0; costs.len()];
        for _ in 0..rounds {
            let mut idle = true;
            for (flow, (cost, done)) in flows.iter_mut().zip(costs.iter().zip(&mut done)) {
                if !flow.begin() {
                    continue;
                }
                idle = false;
                while flow.may_continue() {
                    flow.spend(*cost);
                    *done += cost;
                }
            }
            if idle {
                relieve(flows.iter_mut());
            }
        }
        done
    }

    #[test]
    fn shares_are_of_work_not_of_messages() {
        let done = run(&[1, 3, 100, 2000], 10_000);
        for work in &done {
            assert!((work - done[0]).abs() <= 2000 + QUANTUM, "{done:?}");
        }
    }

    #[test]
    fn one_alone_does_not_wait_for_its_debt() {
        let done = run(&[5000], 1000);
        assert!(done[0] >= 500 * 5000, "{done:?}");
    }

    #[test]
    fn a_turn_ends_with_the_step_that_uses_it_up() {
        let mut flow = Flow::default();
        assert!(flow.begin());
        flow.spend(QUANTUM - 1);
        assert!(flow.may_continue());
        flow.spend(1 << 40);
        assert!(!flow.may_continue() && !flow.begin());
        assert_eq!(flow.debt(), MOST_DEBT - QUANTUM, "what is remembered is bounded");
    }
}
