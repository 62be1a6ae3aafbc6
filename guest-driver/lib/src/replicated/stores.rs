// SPDX-License-Identifier: MIT OR Apache-2.0
//! The number of stores that this process has made to a replicated segment, and the number that the board has put into
//! the copy (SPEC E22b).

use crate::access::fence;
use crate::backoff::Backoff;
use crate::error::Result;
use crate::slots::Slots;
use std::sync::atomic::{AtomicU64, Ordering};

/// Set in `issued` once there may be stores that are not counted: no count of stores taken reaches it.
const UNCOUNTED: u64 = 1 << 63;

/// The stores of one segment.
#[derive(Debug, Default)]
pub(super) struct Stores {
    /// Stores announced so far.
    issued: AtomicU64,
    /// Index of the word in the status page that counts those taken.
    index: u32,
}

impl Stores {
    /// No stores yet; `index` is that of the segment's word in the status page.
    pub(super) fn new(index: u32) -> Stores {
        Stores { issued: AtomicU64::new(0), index }
    }

    /// Counts `count` stores. To be called *before* them.
    #[inline(always)]
    pub(super) fn announce(&self, count: u64) {
        // Relaxed: a thread that has synchronised with the store has synchronised with this, too.
        self.issued.fetch_add(count, Ordering::Relaxed);
    }

    /// From now on there may be stores that are not announced.
    pub(super) fn uncount(&self) {
        self.issued.fetch_or(UNCOUNTED, Ordering::Relaxed);
    }

    /// Whether the copy has all stores that this thread has made or synchronised with: one load and one comparison.
    ///
    /// The count of stores taken is read first. So if another thread announces a store meanwhile, which may have been
    /// taken instead of this thread's, the count of stores issued includes it.
    #[inline(always)]
    pub(super) fn settled(&self, slots: &Slots) -> bool {
        slots.taken(self.index) >= self.issued.load(Ordering::Relaxed)
    }

    /// Waits for the stores made so far, even while other threads make more: false when `backoff` ends first. `check`
    /// fails when they cannot be taken any more, and is called from time to time. `follow` waits for stores that are
    /// not counted.
    #[cold]
    pub(super) fn settle(
        &self,
        slots: &Slots,
        backoff: &mut Backoff,
        check: impl Fn() -> Result<()>,
        follow: impl FnOnce() -> Result<()>,
    ) -> Result<bool> {
        // This thread's stores are in flight before another thread announces one that does not count here.
        fence();
        let issued = self.issued.load(Ordering::Relaxed);
        if issued & UNCOUNTED != 0 {
            return follow().map(|()| true);
        }
        while slots.taken(self.index) < issued {
            if !backoff.wait_checked(&check)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Ends waiting for stores that were not taken by now: they are lost. No thread stores meanwhile.
    pub(super) fn forget_lost(&self, slots: &Slots) {
        let taken = slots.taken(self.index);
        let uncounted = self.issued.load(Ordering::Relaxed) & UNCOUNTED;
        self.issued.store(taken | uncounted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;
    use crate::sys::Mapping;
    use std::time::Duration;

    fn slots() -> Slots {
        Slots::new(Mapping::anonymous(4096), Mapping::anonymous(4096))
    }

    const NOW: Option<Duration> = Some(Duration::ZERO);

    fn settle(stores: &Stores, slots: &Slots) -> bool {
        stores.settle(slots, &mut Backoff::new(NOW), || Ok(()), || unreachable!()).unwrap()
    }

    #[test]
    fn e22b_stores_announced_must_be_taken() {
        let slots = slots();
        let stores = Stores::new(7);
        assert!(stores.settled(&slots) && settle(&stores, &slots));
        stores.announce(1);
        assert!(!stores.settled(&slots) && !settle(&stores, &slots));
        // Another segment's count.
        slots.count_taken(8, 100);
        assert!(!stores.settled(&slots));
        slots.count_taken(7, 1);
        assert!(stores.settled(&slots) && settle(&stores, &slots));
        stores.announce(3);
        for taken in 1..4 {
            slots.count_taken(7, taken);
            assert!(!stores.settled(&slots), "{taken}");
        }
        slots.count_taken(7, 4);
        assert!(stores.settled(&slots));
    }

    #[test]
    fn e22b_waiting_ends_when_the_board_has_taken_them() {
        let slots = slots();
        let stores = Stores::new(0);
        stores.announce(1000);
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=1000).for_each(|count| slots.count_taken(0, count)));
            assert!(stores.settle(&slots, &mut Backoff::new(None), || Ok(()), || unreachable!()).unwrap());
        });
        assert_eq!(slots.taken(0), 1000);
    }

    #[test]
    fn waiting_ends_when_stores_cannot_be_taken_any_more() {
        let slots = slots();
        let stores = Stores::new(0);
        stores.announce(1);
        let gone = || Err(Error::Gone { path: "/dev/null".into() });
        let result = stores.settle(&slots, &mut Backoff::new(None), gone, || unreachable!());
        assert!(matches!(result, Err(Error::Gone { .. })), "{result:?}");
    }

    /// The count of stores taken says nothing of stores that were not announced.
    #[test]
    fn e22b_uncounted_stores_are_followed() {
        let slots = slots();
        let stores = Stores::new(5);
        stores.uncount();
        slots.count_taken(5, 1000);
        for _ in 0..3 {
            assert!(!stores.settled(&slots));
            let mut followed = 0;
            let follow = || {
                followed += 1;
                Ok(())
            };
            assert!(stores.settle(&slots, &mut Backoff::new(NOW), || Ok(()), follow).unwrap());
            assert_eq!(followed, 1);
            stores.announce(u64::from(u32::MAX));
            stores.forget_lost(&slots);
        }
    }

    #[test]
    fn settle_does_not_wait_for_lost_stores() {
        let slots = slots();
        let stores = Stores::new(3);
        stores.announce(10);
        slots.count_taken(3, 6);
        stores.forget_lost(&slots);
        assert!(stores.settled(&slots));
        stores.announce(1);
        assert!(!stores.settled(&slots));
        slots.count_taken(3, 7);
        assert!(stores.settled(&slots));
    }
}
