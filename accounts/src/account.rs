// SPDX-License-Identifier: MIT OR Apache-2.0
//! Units that are held and given back.

use alloc::collections::BTreeMap;
use core::fmt;
use core::hash::{Hash, Hasher};

/// How the units of an account are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    /// Units in all.
    pub capacity: u64,
    /// Spenders that the guarantee holds for.
    pub spenders: u64,
    /// Units that each spender gets whatever the others hold.
    pub guaranteed: u64,
    /// Most units that one spender may hold, at least `guaranteed`.
    pub limit: u64,
}

impl Shares {
    /// A single spender, which may hold everything.
    pub const fn single(capacity: u64) -> Shares {
        Shares { capacity, spenders: 1, guaranteed: capacity, limit: capacity }
    }

    /// Equal parts, none of which can be borrowed.
    pub const fn equal(capacity: u64, spenders: u64) -> Shares {
        let spenders = if spenders == 0 { 1 } else { spenders };
        let part = capacity / spenders;
        Shares { capacity, spenders, guaranteed: part, limit: part }
    }

    /// Half of the capacity in equal guaranteed parts, the rest for the spenders that ask first, up to `limit` each.
    pub const fn half_guaranteed(capacity: u64, spenders: u64, limit: u64) -> Shares {
        let spenders = if spenders == 0 { 1 } else { spenders };
        let guaranteed = capacity / 2 / spenders;
        let limit = if limit < guaranteed { guaranteed } else { limit };
        Shares { capacity, spenders, guaranteed, limit }
    }

    /// Whether a spender may take one of `free` units, of units that come back without the name of the spender: `held`
    /// is the most that it can have then, which is all that is known.
    ///
    /// Within its guarantee it takes any free unit, beyond that only what leaves every other spender's guarantee. So a
    /// spender within its guarantee never depends on what the others hold, as long as all of them ask first.
    pub const fn admits(&self, free: u64, held: u64) -> bool {
        let own = held < self.guaranteed && free > 0;
        held < self.limit && (own || free > self.guaranteed.saturating_mul(self.spenders.saturating_sub(1)))
    }
}

/// A spender requested more than is available to it. The text names what it holds and the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Exhausted {
    /// Units the spender holds.
    pub held: u64,
    /// Units it requested.
    pub requested: u64,
    /// The bound: its limit, or what the others leave of the capacity.
    pub limit: u64,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "holds {} and requested {} more; expected at most {}", self.held, self.requested, self.limit)
    }
}

impl core::error::Error for Exhausted {}

/// Units of one resource, by spender. A spender that holds none takes no memory.
///
/// A request succeeds if the spender stays within [`Shares::limit`] and what it holds beyond its guarantee fits into
/// the part of the capacity that is not guaranteed to any spender. So a spender within its guarantee never depends on
/// the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account<K> {
    shares: Shares,
    held: BTreeMap<K, u64>,
    /// Units held beyond guarantees, of all spenders.
    borrowed: u64,
    /// Statistics, not state: requests that were refused.
    refused: u64,
}

impl<K: Hash> Hash for Account<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.held.hash(state);
    }
}

impl<K: Ord> Account<K> {
    /// An account of which nothing is held. If the guarantees of all spenders exceed the capacity they are cut to fit.
    pub fn new(shares: Shares) -> Account<K> {
        let fits = shares.capacity / shares.spenders.max(1);
        let guaranteed = shares.guaranteed.min(fits);
        let limit = shares.limit.clamp(guaranteed, shares.capacity.max(guaranteed));
        Account { shares: Shares { guaranteed, limit, ..shares }, held: BTreeMap::new(), borrowed: 0, refused: 0 }
    }

    fn pool(&self) -> u64 {
        self.shares.capacity - self.shares.guaranteed * self.shares.spenders
    }

    /// Takes `units` for a spender.
    ///
    /// # Errors
    /// [`Exhausted`] if its limit or the common part of the capacity is met; nothing is taken then.
    pub fn take(&mut self, spender: K, units: u64) -> Result<(), Exhausted> {
        let held = self.held(&spender);
        let available = self.available(&spender);
        if units > available {
            self.refused = self.refused.saturating_add(1);
            return Err(Exhausted { held, requested: units, limit: held + available });
        }
        if units > 0 {
            let guaranteed = self.shares.guaranteed;
            self.borrowed += (held + units).saturating_sub(guaranteed) - held.saturating_sub(guaranteed);
            self.held.insert(spender, held + units);
        }
        Ok(())
    }

    /// Gives back `units` of a spender, at most what it holds; returns how many.
    pub fn give(&mut self, spender: &K, units: u64) -> u64 {
        let Some(held) = self.held.get_mut(spender) else { return 0 };
        let (before, given) = (*held, units.min(*held));
        *held -= given;
        let (after, guaranteed) = (*held, self.shares.guaranteed);
        if after == 0 {
            self.held.remove(spender);
        }
        self.borrowed -= before.saturating_sub(guaranteed) - after.saturating_sub(guaranteed);
        given
    }

    /// Gives back all units of a spender; returns how many.
    pub fn close(&mut self, spender: &K) -> u64 {
        self.give(spender, u64::MAX)
    }

    /// Gives back everything.
    pub fn clear(&mut self) {
        self.held.clear();
        self.borrowed = 0;
    }

    /// Units that a spender holds.
    pub fn held(&self, spender: &K) -> u64 {
        self.held.get(spender).copied().unwrap_or(0)
    }

    /// Units that all spenders hold.
    pub fn total(&self) -> u64 {
        self.held.values().sum()
    }

    /// Units that a spender could take now.
    pub fn available(&self, spender: &K) -> u64 {
        let held = self.held(spender);
        let own = self.shares.guaranteed.saturating_sub(held);
        (own + (self.pool().saturating_sub(self.borrowed))).min(self.shares.limit.saturating_sub(held))
    }

    /// How the units are divided.
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// Requests refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    #[test]
    fn a_guarantee_does_not_depend_on_the_others() {
        let mut account = Account::new(Shares { capacity: 100, spenders: 4, guaranteed: 10, limit: 80 });
        assert_eq!(account.take('a', 70), Ok(()));
        assert_eq!(account.available(&'a'), 0);
        assert_eq!(account.take('a', 1), Err(Exhausted { held: 70, requested: 1, limit: 70 }));
        for other in ['b', 'c', 'd'] {
            assert_eq!(account.take(other, 10), Ok(()));
            assert!(account.take(other, 1).is_err());
        }
        assert_eq!(account.give(&'a', 5), 5);
        assert_eq!(account.take('b', 5), Ok(()));
        assert_eq!(account.close(&'b'), 15);
        assert_eq!((account.total(), account.refused()), (85, 4));
    }

    #[test]
    fn equal_parts_are_nobody_elses() {
        let mut account = Account::new(Shares::equal(8192, 64));
        assert_eq!(account.take(1, 128), Ok(()));
        assert!(account.take(1, 1).is_err());
        assert_eq!(account.take(2, 128), Ok(()));
    }

    proptest! {
        #[test]
        fn units_without_names_leave_every_guarantee(
            capacity in 0u64..100,
            spenders in 1u64..6,
            limit in 0u64..100,
            steps in proptest::collection::vec((0usize..6, any::<bool>()), 0..400),
        ) {
            let shares = Shares::half_guaranteed(capacity, spenders, limit);
            let mut held = vec![0u64; spenders as usize];
            for (spender, take) in steps {
                let free = capacity - held.iter().sum::<u64>();
                let Some(held) = held.get_mut(spender) else { continue };
                if !take {
                    *held = held.saturating_sub(1);
                } else if shares.admits(free, *held) {
                    *held += 1;
                    prop_assert!(*held <= shares.limit.min(capacity));
                } else {
                    prop_assert!(*held >= shares.guaranteed);
                }
            }
            let free = capacity - held.iter().sum::<u64>();
            prop_assert!(held.iter().all(|held| *held >= shares.guaranteed || shares.admits(free, *held)));
        }

        #[test]
        fn sums_hold_and_everybody_gets_the_guarantee(
            capacity in 0u64..200,
            guaranteed in 0u64..50,
            limit in 0u64..250,
            steps in proptest::collection::vec((0u8..4, 0u64..60, any::<bool>()), 0..200),
        ) {
            let mut account = Account::new(Shares { capacity, spenders: 4, guaranteed, limit });
            let shares = account.shares();
            for (spender, units, take) in steps {
                if take {
                    let fits = account.held(&spender) + units <= shares.guaranteed;
                    let taken = account.take(spender, units);
                    prop_assert!(taken.is_ok() || !fits);
                } else {
                    account.give(&spender, units);
                }
                prop_assert!(account.total() <= capacity);
                let beyond: u64 = (0..4).map(|s| account.held(&s).saturating_sub(shares.guaranteed)).sum();
                prop_assert_eq!(account.borrowed, beyond);
                prop_assert!((0..4).all(|s| account.held(&s) <= shares.limit));
                prop_assert!((0..4).all(|s| account.held(&s) + account.available(&s) >= shares.guaranteed));
            }
        }
    }
}
