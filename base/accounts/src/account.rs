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
/// the others. Of more spenders than [`Shares::spenders`] those have a guarantee that were the first to hold any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account<K> {
    shares: Shares,
    held: BTreeMap<K, Held>,
    /// Spenders that hold any and have a guarantee.
    guaranteed: u64,
    /// Units held beyond guarantees, of all spenders.
    borrowed: u64,
    /// Statistics, not state: requests that were refused.
    refused: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    units: u64,
    /// Of them those that are guaranteed.
    guarantee: u64,
}

impl<K: Hash> Hash for Account<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.held.len());
        self.held.iter().for_each(|(spender, held)| (spender, held.units).hash(state));
    }
}

impl<K: Ord> Account<K> {
    /// An account of which nothing is held. If the guarantees of all spenders exceed the capacity they are cut to fit.
    pub fn new(shares: Shares) -> Account<K> {
        let fits = shares.capacity / shares.spenders.max(1);
        let guaranteed = shares.guaranteed.min(fits);
        let limit = shares.limit.clamp(guaranteed, shares.capacity.max(guaranteed));
        let shares = Shares { guaranteed, limit, ..shares };
        Account { shares, held: BTreeMap::new(), guaranteed: 0, borrowed: 0, refused: 0 }
    }

    /// What a spender has, or would have.
    fn of(&self, spender: &K) -> Held {
        let more = self.guaranteed < self.shares.spenders;
        let none = Held { units: 0, guarantee: if more { self.shares.guaranteed } else { 0 } };
        self.held.get(spender).copied().unwrap_or(none)
    }

    fn pool(&self) -> u64 {
        self.shares.capacity - self.shares.guaranteed * self.shares.spenders
    }

    /// Takes `units` for a spender.
    ///
    /// # Errors
    /// [`Exhausted`] if its limit or the common part of the capacity is met; nothing is taken then.
    pub fn take(&mut self, spender: K, units: u64) -> Result<(), Exhausted> {
        let Held { units: held, guarantee } = self.of(&spender);
        let available = self.available(&spender);
        if units > available {
            self.refused = self.refused.saturating_add(1);
            return Err(Exhausted { held, requested: units, limit: held + available });
        }
        if units > 0 {
            self.borrowed += (held + units).saturating_sub(guarantee) - held.saturating_sub(guarantee);
            self.guaranteed += u64::from(held == 0 && guarantee > 0);
            self.held.insert(spender, Held { units: held + units, guarantee });
        }
        Ok(())
    }

    /// Gives back `units` of a spender, at most what it holds; returns how many.
    pub fn give(&mut self, spender: &K, units: u64) -> u64 {
        let Some(held) = self.held.get_mut(spender) else { return 0 };
        let (Held { units: before, guarantee }, given) = (*held, units.min(held.units));
        held.units -= given;
        let after = held.units;
        if after == 0 {
            self.held.remove(spender);
            self.guaranteed -= u64::from(guarantee > 0);
        }
        self.borrowed -= before.saturating_sub(guarantee) - after.saturating_sub(guarantee);
        given
    }

    /// Gives back all units of a spender; returns how many.
    pub fn close(&mut self, spender: &K) -> u64 {
        self.give(spender, u64::MAX)
    }

    /// Gives back everything.
    pub fn clear(&mut self) {
        self.held.clear();
        (self.guaranteed, self.borrowed) = (0, 0);
    }

    /// Units that a spender holds.
    pub fn held(&self, spender: &K) -> u64 {
        self.held.get(spender).map_or(0, |held| held.units)
    }

    /// Units that all spenders hold.
    pub fn total(&self) -> u64 {
        self.held.values().map(|held| held.units).sum()
    }

    /// Units that a spender could take now.
    pub fn available(&self, spender: &K) -> u64 {
        let Held { units: held, guarantee } = self.of(spender);
        let own = guarantee.saturating_sub(held);
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
    use alloc::vec::Vec;
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
    fn equal_parts_are_exclusive() {
        let mut account = Account::new(Shares::equal(8192, 64));
        assert_eq!(account.take(1, 128), Ok(()));
        assert!(account.take(1, 1).is_err());
        assert_eq!(account.take(2, 128), Ok(()));
    }

    #[test]
    fn more_spenders_than_have_a_guarantee_take_what_is_left() {
        let mut account = Account::new(Shares { capacity: 10, spenders: 2, guaranteed: 3, limit: 8 });
        assert_eq!(account.take('a', 1), Ok(()));
        assert_eq!(account.take('b', 1), Ok(()));
        assert_eq!(account.take('c', 5), Err(Exhausted { held: 0, requested: 5, limit: 4 }));
        assert_eq!(account.take('c', 4), Ok(()));
        assert_eq!((account.available(&'a'), account.available(&'b'), account.available(&'d')), (2, 2, 0));
        account.close(&'a');
        // The place of the first is another's.
        assert_eq!(account.take('d', 3), Ok(()));
        assert_eq!((account.available(&'a'), account.available(&'b')), (0, 2));
        account.close(&'c');
        assert_eq!(account.take('a', 4), Ok(()));
        assert_eq!((account.total(), account.available(&'b')), (8, 2));
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
            spenders in 1u8..8,
            steps in proptest::collection::vec((0u8..8, 0u64..60, any::<bool>()), 0..200),
        ) {
            let steps = steps.into_iter().map(|(spender, units, take)| (spender % spenders, units, take));
            let mut account = Account::new(Shares { capacity, spenders: 4, guaranteed, limit });
            let shares = account.shares();
            for (spender, units, take) in steps {
                let has_guarantee = account.of(&spender).guarantee == shares.guaranteed;
                if take {
                    let fits = account.held(&spender) + units <= shares.guaranteed;
                    let taken = account.take(spender, units);
                    prop_assert!(taken.is_ok() || !(fits && has_guarantee));
                } else {
                    account.give(&spender, units);
                }
                prop_assert!(account.total() <= capacity);
                let beyond: u64 = account.held.values().map(|held| held.units.saturating_sub(held.guarantee)).sum();
                prop_assert_eq!(account.borrowed, beyond);
                prop_assert!((0..spenders).all(|s| account.held(&s) <= shares.limit));
                let of: Vec<Held> = (0..spenders).map(|s| account.of(&s)).collect();
                let has = |s: u8| account.held(&s) + account.available(&s);
                prop_assert!((0..spenders).all(|s| has(s) >= account.of(&s).guarantee));
                prop_assert!(spenders > 4 || of.iter().all(|held| held.guarantee == shares.guaranteed));
            }
        }
    }
}
