// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events per time, by spender.

use alloc::collections::BTreeMap;

use crate::Rate;

/// A [`Rate`] for each spender and one for all of them. Bounded: it keeps `spenders` of them; those beyond share
/// the rate of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates<K> {
    each: Rate,
    all: Rate,
    spenders: usize,
    used: BTreeMap<K, Rate>,
    /// Statistics, not state: events that were refused.
    refused: u64,
}

impl<K: Ord> Rates<K> {
    /// Full buckets for at most `spenders` spenders at a time.
    pub const fn new(each: Rate, all: Rate, spenders: usize) -> Rates<K> {
        Rates { each, all, spenders, used: BTreeMap::new(), refused: 0 }
    }

    /// Takes one event of a spender at `now` (microseconds); false if its rate or that of all is exceeded, and nothing
    /// is taken.
    pub fn take(&mut self, spender: K, now: u64) -> bool {
        if !self.used.contains_key(&spender) && self.used.len() >= self.spenders {
            // A full bucket is the same as none.
            self.used.retain(|_, rate| !rate.is_full(now));
        }
        let place = self.used.len() < self.spenders || self.used.contains_key(&spender);
        let mut rate = self.used.get(&spender).copied().unwrap_or(self.each);
        let taken = rate.take(now) && self.all.take(now);
        if taken && place {
            self.used.insert(spender, rate);
        }
        self.refused = self.refused.saturating_add(u64::from(!taken));
        taken
    }

    /// Events refused so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spender_does_not_use_up_what_another_has() {
        let mut rates = Rates::new(Rate::new(10, 2), Rate::new(100, 6), 3);
        assert_eq!([0, 0, 0, 1, 1].map(|spender| rates.take(spender, 0)), [true, true, false, true, true]);
        assert!(rates.take(2, 0));
        assert!(rates.take(3, 0), "one beyond those remembered has the rate of all");
        assert!(!rates.take(4, 0), "which is used up");
        assert_eq!(rates.refused(), 2);
        assert!(rates.take(0, 100_000) && !rates.take(0, 100_000));
    }

    #[test]
    fn spenders_that_are_quiet_are_forgotten() {
        let mut rates = Rates::new(Rate::new(10, 1), Rate::new(1000, 1000), 2);
        for spender in 0..100u64 {
            assert!(rates.take(spender, spender * 100_000), "{spender}");
            assert!(rates.used.len() <= 2);
        }
    }
}
