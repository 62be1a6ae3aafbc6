// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all guests of one process take of what a process has once: mappings, and addresses. Each board is a spender of
//! its own, so that none can take what others need.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use telegraphos_accounts::{Account, Exhausted, Shares};

/// What Linux allows a process unless the host's administrator has changed it (`vm.max_map_count`).
const USUAL_MAPPINGS: u64 = 65_530;
/// Mappings for everything else: heap, stacks of threads, rings, slices of trust groups. A process without them cannot
/// allocate memory, and ends.
const RESERVE: u64 = 8192;
/// Most mappings of one board.
pub(super) const MAX_MAPS: u64 = 32_768;
/// Addresses for the mapped memory of several boards: half of the 2^47 bytes that a process has.
const ADDRESSES: u64 = 1 << 46;

/// What the boards of a process share. Each clone is of the same process.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Divided>);

#[derive(Debug)]
struct Divided {
    accounts: Mutex<Accounts>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Accounts {
    mappings: Account<u64>,
    bytes: Account<u64>,
}

/// What is exhausted, and by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Mappings(Exhausted),
    Bytes(Exhausted),
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Over::Mappings(e) => write!(f, "of the mappings of this process (vm.max_map_count) the board {e}"),
            Over::Bytes(e) => write!(f, "of the addresses of this process the board {e} bytes"),
        }
    }
}

impl Budget {
    /// For so many boards in this process. Half of the mappings is guaranteed in equal parts, as is half of the
    /// addresses; the rest is for those that ask first.
    pub fn of_process(boards: usize) -> Budget {
        let allowed = std::fs::read_to_string("/proc/sys/vm/max_map_count");
        let allowed = allowed.ok().and_then(|text| text.trim().parse().ok());
        Budget::new(boards as u64, allowed.unwrap_or(USUAL_MAPPINGS))
    }

    fn new(boards: u64, allowed: u64) -> Budget {
        let mappings = allowed.saturating_sub(RESERVE).max(allowed / 2);
        let limit = MAX_MAPS.min(mappings);
        let (mappings, bytes) = match boards {
            // The limit of its own configuration is the only one.
            0 | 1 => (Shares::single(limit), Shares::single(u64::MAX)),
            _ => (
                Shares::half_guaranteed(mappings, boards, limit),
                Shares::half_guaranteed(ADDRESSES, boards, ADDRESSES),
            ),
        };
        let accounts = Mutex::new(Accounts { mappings: Account::new(mappings), bytes: Account::new(bytes) });
        Budget(Arc::new(Divided { accounts, next: AtomicU64::new(0) }))
    }

    /// The part of another board.
    pub(super) fn part(&self) -> Allotment {
        Allotment { budget: self.clone(), board: self.0.next.fetch_add(1, Ordering::Relaxed) }
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of one board.
#[derive(Debug)]
pub(super) struct Allotment {
    budget: Budget,
    board: u64,
}

impl Allotment {
    /// Takes a mapping of so many bytes.
    pub(super) fn take(&self, bytes: u64) -> Result<Charge, Over> {
        let mut accounts = self.budget.accounts();
        accounts.mappings.take(self.board, 1).map_err(Over::Mappings)?;
        if let Err(e) = accounts.bytes.take(self.board, bytes) {
            accounts.mappings.give(&self.board, 1);
            return Err(Over::Bytes(e));
        }
        Ok(Charge { budget: self.budget.clone(), board: self.board, bytes })
    }
}

/// What one mapping takes, as long as it is there.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Budget,
    board: u64,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = self.budget.accounts();
        accounts.mappings.give(&self.board, 1);
        accounts.bytes.give(&self.board, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many mappings of so many bytes each of two boards gets if the first takes all that it can, then the second.
    fn greedy(budget: &Budget, bytes: u64) -> [u64; 2] {
        let parts = [budget.part(), budget.part()];
        let taken = parts.each_ref().map(|part| std::iter::from_fn(|| part.take(bytes).ok()).collect::<Vec<_>>());
        taken.map(|taken| taken.len() as u64)
    }

    #[test]
    fn a_board_gets_its_part_whatever_the_others_have() {
        for boards in [2, 3, 64] {
            let budget = Budget::new(boards, USUAL_MAPPINGS);
            let mappings = USUAL_MAPPINGS - RESERVE;
            let guaranteed = mappings / 2 / boards;
            let [first, second] = greedy(&budget, 4096);
            assert_eq!(first, MAX_MAPS.min(mappings - guaranteed * (boards - 1)), "of {boards}");
            assert!(second >= guaranteed && first + second <= mappings, "{second} of {boards}");
            // What is given back is there again.
            assert_eq!(greedy(&budget, 4096)[0], first);
            let [first, second] = greedy(&budget, 1 << 34);
            let guaranteed = (ADDRESSES / 2 / boards) >> 34;
            assert!(second >= guaranteed && first + second <= ADDRESSES >> 34, "{first} and {second} of {boards}");
        }
    }

    #[test]
    fn a_single_board_has_the_limits_of_its_configuration_alone() {
        // There is no second one.
        assert_eq!(greedy(&Budget::new(1, USUAL_MAPPINGS), 1 << 46)[0], MAX_MAPS);
        // A host that allows little.
        assert_eq!(greedy(&Budget::new(1, 1000), 4096)[0], 500);
        assert_eq!(greedy(&Budget::new(2, 1000), 4096), [375, 125]);
    }

    #[test]
    fn a_refusal_names_the_limit() {
        let budget = Budget::new(2, 1000);
        let part = budget.part();
        let _taken: Vec<_> = (0..375).map(|_| part.take(1).unwrap()).collect();
        let text = part.take(1).unwrap_err().to_string();
        assert!(text.contains("vm.max_map_count") && text.contains("expected at most 375"), "{text}");
        let text = budget.part().take(ADDRESSES).unwrap_err().to_string();
        assert!(text.contains("addresses of this process"), "{text}");
    }
}
