// SPDX-License-Identifier: MIT OR Apache-2.0
//! The deadlines of pending requests.

use crate::keyed::Key;
use std::collections::VecDeque;

/// Which time limit a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Limit {
    /// A processor waits for it, or a command: the limit of loads.
    Load,
    /// It concerns a replicated page.
    Replica,
    /// It moves the home of a replicated page.
    Move,
}

/// Deadlines and requests. One list for each limit: in each of them they ascend, since the time does.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Deadlines {
    lists: [VecDeque<(u64, Key)>; 3],
}

impl Deadlines {
    /// Adds the deadline of a new request, at least that of every earlier one with the same limit.
    pub(super) fn insert(&mut self, limit: Limit, deadline: u64, number: Key) {
        self.lists[limit as usize].push_back((deadline, number));
    }

    /// Removes the deadline of a request.
    pub(super) fn remove(&mut self, limit: Limit, deadline: u64, number: Key) {
        let list = &mut self.lists[limit as usize];
        if let Ok(at) = list.binary_search(&(deadline, number)) {
            list.remove(at);
        }
    }

    /// The earliest deadline, and the oldest request that has it.
    pub(super) fn first(&self) -> Option<(u64, Key)> {
        self.lists.iter().filter_map(VecDeque::front).min().copied()
    }

    /// Removes the earliest deadline, and returns its request, if that is not after `now`.
    pub(super) fn take_due(&mut self, now: u64) -> Option<Key> {
        let first = self.first().filter(|(deadline, _)| *deadline <= now)?;
        self.lists.iter_mut().find(|list| list.front() == Some(&first))?.pop_front();
        Some(first.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Keyed;
    use std::collections::BTreeSet;
    use telegraphos_testkit::{Rng, seeds};

    #[test]
    fn the_first_is_the_earliest_of_all_limits() {
        for seed in seeds(20, 2000) {
            let (mut rng, mut numbers, mut deadlines) = (Rng::new(seed), Keyed::default(), Deadlines::default());
            let (mut all, mut expected, mut now) = (Vec::new(), BTreeSet::new(), 0);
            for _ in 0..200 {
                now += rng.below(3);
                if rng.percent(60) {
                    let limit = [Limit::Load, Limit::Replica, Limit::Move][rng.below(3) as usize];
                    let (deadline, number) = (now + 7 * (1 + limit as u64), numbers.insert(()));
                    deadlines.insert(limit, deadline, number);
                    expected.insert((deadline, number));
                    all.push((limit, deadline, number));
                } else if !all.is_empty() {
                    let (limit, deadline, number) = all[rng.below(all.len() as u64) as usize];
                    deadlines.remove(limit, deadline, number);
                    expected.remove(&(deadline, number));
                }
                assert_eq!(deadlines.first(), expected.first().copied(), "seed {seed}");
                while let Some(due) = deadlines.take_due(now) {
                    assert!(expected.pop_first().is_some_and(|(at, number)| at <= now && number == due), "seed {seed}");
                }
                assert!(expected.first().is_none_or(|(at, _)| *at > now), "seed {seed}");
            }
        }
    }
}
