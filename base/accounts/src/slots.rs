// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slots that a new request can displace from the spender that has most.

use alloc::collections::BTreeMap;

use crate::{Account, Exhausted, Shares};

/// Slots by name, each on the account of a spender; names rise with age, the oldest is the lowest. For what
/// unidentified parties hold and may lose: connections before their first frame, handshakes.
///
/// When a share is used up, a new slot displaces an old one: the oldest of its own spender if that has reached its
/// limit or has as many as any other, or else the oldest of one that has most. So a spender with few slots keeps them
/// whatever others do, and one with many displaces its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slots<S, N> {
    account: Account<S>,
    held: BTreeMap<N, S>,
}

impl<S: Copy + Ord, N: Copy + Ord> Slots<S, N> {
    /// No slot is taken.
    pub fn new(shares: Shares) -> Slots<S, N> {
        Slots { account: Account::new(shares), held: BTreeMap::new() }
    }

    /// Takes a slot for a spender, with a name that is not in use; `Some`: the one that it displaces.
    ///
    /// # Errors
    /// [`Exhausted`] if the spender may have none at all.
    pub fn take(&mut self, spender: S, name: N) -> Result<Option<N>, Exhausted> {
        let mut displaced = None;
        if let Err(exhausted) = self.account.take(spender, 1) {
            let victim = self.victim(spender).ok_or(exhausted)?;
            self.give(victim);
            displaced = Some(victim);
            self.account.take(spender, 1)?;
        }
        self.held.insert(name, spender);
        Ok(displaced)
    }

    /// The slot that a new one of this spender would displace; `None` if there is room, or none can be displaced.
    pub fn would_displace(&self, spender: S) -> Option<N> {
        if self.account.available(&spender) > 0 { None } else { self.victim(spender) }
    }

    /// The spender of a slot.
    pub fn spender(&self, name: N) -> Option<S> {
        self.held.get(&name).copied()
    }

    fn victim(&self, spender: S) -> Option<N> {
        let own = self.account.held(&spender);
        let most = self.held.values().map(|holder| self.account.held(holder)).max()?;
        let from_itself = own >= self.account.shares().limit || own >= most;
        let goes = |holder: &S| if from_itself { *holder == spender } else { self.account.held(holder) == most };
        self.held.iter().find(|(_, holder)| goes(holder)).map(|(name, _)| *name)
    }

    /// Gives a slot back; false if it was not taken.
    pub fn give(&mut self, name: N) -> bool {
        let Some(spender) = self.held.remove(&name) else { return false };
        self.account.give(&spender, 1);
        true
    }

    pub fn account(&self) -> &Account<S> {
        &self.account
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub fn contains(&self, name: N) -> bool {
        self.held.contains_key(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_spender_with_most_makes_room() {
        let mut slots = Slots::new(Shares { capacity: 12, spenders: 1, guaranteed: 0, limit: 5 });
        assert!((0..5).all(|name| slots.take('a', name) == Ok(None)));
        assert_eq!(slots.take('a', 5), Ok(Some(0)), "at its limit it takes from itself");
        assert!((10..15).all(|name| slots.take('b', name) == Ok(None)));
        assert!((20..22).all(|name| slots.take('c', name) == Ok(None)));
        assert_eq!(slots.take('c', 22), Ok(Some(1)));
        assert_eq!(slots.take('d', 30), Ok(Some(10)));
        // Now a and b have 4, c has 3, d has 1: it keeps it.
        for name in 40..100 {
            assert_ne!(slots.take(['a', 'b', 'c'][name % 3], name), Ok(Some(30)));
        }
        assert!(slots.contains(30) && slots.give(30) && !slots.give(30));
        assert_eq!(Slots::new(Shares::equal(0, 1)).take('a', 0).unwrap_err().limit, 0);
    }

    proptest! {
        #[test]
        fn within_its_shares_and_no_smaller_holder_loses(
            capacity in 1u64..30,
            limit in 1u64..10,
            steps in proptest::collection::vec((0u8..5, any::<bool>()), 0..200),
        ) {
            let mut slots = Slots::new(Shares { capacity, spenders: 1, guaranteed: 0, limit });
            for (name, (spender, give)) in steps.into_iter().enumerate() {
                if give {
                    slots.give(name / 2);
                    continue;
                }
                let (before, own) = (slots.clone(), slots.account.held(&spender));
                if let Ok(Some(displaced)) = slots.take(spender, name) {
                    let loser = before.held[&displaced];
                    prop_assert!(loser == spender || before.account.held(&loser) > own);
                    prop_assert!(before.held.iter().all(|(name, holder)| *holder != loser || *name >= displaced));
                }
                prop_assert!(slots.account.total() <= capacity && slots.account.held(&spender) <= limit);
                prop_assert_eq!(slots.account.total(), slots.len() as u64);
            }
        }
    }
}
