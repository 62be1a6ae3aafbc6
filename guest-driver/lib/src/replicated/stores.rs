// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many stores of a replicated segment this process has made, against how many the board has put into the copy
//! (SPEC E22b).

use crate::access::fence;
use crate::error::Result;
use crate::node::Inner;
use crate::slots::Backoff;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in the count issued once there are stores that nobody counts: no count taken reaches it.
const UNCOUNTED: u64 = 1 << 63;

/// The stores of one segment.
#[derive(Debug, Default)]
pub(super) struct Stores {
    issued: AtomicU64,
    /// Index of the word in the status page that counts those taken.
    index: u32,
}

impl Stores {
    pub(super) fn new(index: u32) -> Stores {
        Stores { issued: AtomicU64::new(0), index }
    }

    /// To be called *before* the stores.
    #[inline(always)]
    pub(super) fn announce(&self, count: u64) {
        // Who knows of a store, by whatever it has synchronised with, knows of this too.
        self.issued.fetch_add(count, Ordering::Relaxed);
    }

    /// From now on stores may be made that are not announced.
    pub(super) fn uncount(&self) {
        self.issued.fetch_or(UNCOUNTED, Ordering::Relaxed);
    }

    /// Whether the copy has all stores of which this thread can know: one look at memory and one comparison.
    ///
    /// The count taken is read first. Then what another thread has announced meanwhile, whose store may have been taken
    /// instead of ours, is in the count issued.
    #[inline(always)]
    pub(super) fn settled(&self, inner: &Inner) -> bool {
        inner.slots.taken(self.index) >= self.issued.load(Ordering::Relaxed)
    }

    /// Waits for the stores made so far, though other threads may go on storing: false when patience has ended first.
    /// `doubt` says from time to time whether they can still be taken. `follow` follows those that nobody has counted,
    /// until they are.
    #[cold]
    pub(super) fn settle(
        &self,
        inner: &Inner,
        backoff: &mut Backoff,
        doubt: impl Fn() -> Result<()>,
        follow: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        // Our stores are on their way before another thread announces one that does not count here.
        fence();
        let issued = self.issued.load(Ordering::Relaxed);
        if issued & UNCOUNTED != 0 {
            return follow().map(|()| true);
        }
        while inner.slots.taken(self.index) < issued {
            if !backoff.wait() {
                return Ok(false);
            }
            if backoff.doubts() {
                doubt()?;
            }
        }
        Ok(true)
    }

    /// Stores were lost, and what has not been taken by now never will be. Nobody stores meanwhile.
    pub(super) fn forget_lost(&self, inner: &Inner) {
        let taken = inner.slots.taken(self.index);
        let uncounted = self.issued.load(Ordering::Relaxed) & UNCOUNTED;
        self.issued.store(taken | uncounted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use std::time::Duration;

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn settle(stores: &Stores, inner: &Inner) -> bool {
        stores.settle(inner, &mut Backoff::new(NOW), || Ok(()), || unreachable!()).unwrap()
    }

    #[test]
    fn e22b_stores_announced_must_be_taken() {
        let inner = Inner::without_board();
        let stores = Stores::new(7);
        assert!(stores.settled(&inner) && settle(&stores, &inner));
        stores.announce(1);
        assert!(!stores.settled(&inner) && !settle(&stores, &inner));
        // Another segment's.
        inner.slots.count_taken(8, 100);
        assert!(!stores.settled(&inner));
        inner.slots.count_taken(7, 1);
        assert!(stores.settled(&inner) && settle(&stores, &inner));
        stores.announce(3);
        for taken in 1..4 {
            inner.slots.count_taken(7, taken);
            assert!(!stores.settled(&inner), "{taken}");
        }
        inner.slots.count_taken(7, 4);
        assert!(stores.settled(&inner));
    }

    #[test]
    fn e22b_waiting_ends_when_the_board_has_taken_them() {
        let inner = Inner::without_board();
        let stores = Stores::new(0);
        stores.announce(1000);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=1000).for_each(|count| inner.slots.count_taken(0, count)));
            assert!(stores.settle(&inner, &mut Backoff::new(None), || Ok(()), || unreachable!()).unwrap());
        });
        assert_eq!(inner.slots.taken(0), 1000);
    }

    #[test]
    fn waiting_ends_when_they_can_never_be_taken() {
        let inner = Inner::without_board();
        let stores = Stores::new(0);
        stores.announce(1);
        let gone = || Err(Error::Gone { path: inner.path.clone() });
        let result = stores.settle(&inner, &mut Backoff::new(None), gone, || unreachable!());
        assert!(matches!(result, Err(Error::Gone { .. })), "{result:?}");
    }

    /// What is taken of stores that were not announced says nothing of those that were.
    #[test]
    fn e22b_uncounted_stores_are_followed() {
        let inner = Inner::without_board();
        let stores = Stores::new(5);
        stores.uncount();
        inner.slots.count_taken(5, 1000);
        for _ in 0..3 {
            assert!(!stores.settled(&inner));
            let mut followed = 0;
            let follow = || {
                followed += 1;
                Ok(())
            };
            assert!(stores.settle(&inner, &mut Backoff::new(NOW), || Ok(()), follow).unwrap());
            assert_eq!(followed, 1);
            stores.announce(u64::from(u32::MAX));
            stores.forget_lost(&inner);
        }
    }

    #[test]
    fn what_is_lost_is_not_waited_for() {
        let inner = Inner::without_board();
        let stores = Stores::new(3);
        stores.announce(10);
        inner.slots.count_taken(3, 6);
        stores.forget_lost(&inner);
        assert!(stores.settled(&inner));
        stores.announce(1);
        assert!(!stores.settled(&inner));
        inner.slots.count_taken(3, 7);
        assert!(stores.settled(&inner));
    }
}
