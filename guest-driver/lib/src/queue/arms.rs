// SPDX-License-Identifier: MIT OR Apache-2.0
//! How many wake-ups a consumer asks its board for when it goes to sleep.
//!
//! A store to QUEUE_ARM costs processor and board as much as the notification itself. So a consumer that sleeps after
//! each element asks for more than one wake-up at a time; one that finds several elements when it wakes asks for one,
//! since each further element would interrupt it while it is awake. Few wake-ups are of no use: [`MOST`] at most.
//!
//! After an arm for n elements the board holds at least n wake-ups less the elements that have come since. Those are
//! known while only this process takes elements: each that it takes counts. When another one was inside, they are not
//! ([`Arms::forget`]).

use std::sync::atomic::{AtomicU32, Ordering};

/// The most wake-ups to ask for.
const MOST: u32 = 16;

/// The wake-ups of a queue's consumer, whose threads share them.
#[derive(Debug)]
pub(super) struct Arms {
    /// Wake-ups that the board holds, at least. Changed before what is taken is seen as taken, so that a thread that
    /// finds the queue empty sees all that was taken.
    left: AtomicU32,
    /// How many to ask for.
    next: AtomicU32,
    /// Elements taken since a thread was last about to sleep.
    taken: AtomicU32,
}

impl Default for Arms {
    fn default() -> Arms {
        Arms { left: AtomicU32::new(0), next: AtomicU32::new(1), taken: AtomicU32::new(0) }
    }
}

impl Arms {
    /// An element is about to be taken, for which the board may have used up a wake-up.
    pub(super) fn take(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
    }

    /// Others have taken elements, or armed the queue.
    pub(super) fn forget(&self) {
        self.left.store(0, Ordering::Relaxed);
    }

    /// The number of wake-ups to ask for by a thread that has found the queue empty and is about to sleep; `None` if
    /// the board holds one. They count at once: what is taken before the arm arrives is no reason for one of them.
    pub(super) fn before_sleep(&self) -> Option<u16> {
        let taken = self.taken.swap(0, Ordering::Relaxed);
        let held = self.left.load(Ordering::Relaxed) > 0;
        let next = match (taken, self.next.load(Ordering::Relaxed)) {
            (1, next) if !held => (2 * next).min(MOST),
            (0 | 1, next) => next,
            _ => 1,
        };
        self.next.store(next, Ordering::Relaxed);
        if held {
            return None;
        }
        self.left.store(next, Ordering::Relaxed);
        u16::try_from(next).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn who_sleeps_after_each_element_arms_less_and_less_often() {
        let arms = Arms::default();
        let mut counts = Vec::new();
        for _ in 0..1000 {
            counts.extend(arms.before_sleep());
            arms.take();
        }
        assert_eq!(counts[..6], [1, 2, 4, 8, 16, 16]);
        assert_eq!(counts.len(), 4 + (1000 - 15) / 16 + 1);
        // Gusts: one wake-up for all of them.
        for _ in 0..3 {
            for _ in 0..20 {
                arms.take();
            }
            assert_eq!(arms.before_sleep(), Some(1));
        }
        // Wake-ups for nothing change nothing.
        assert_eq!([arms.before_sleep(), arms.before_sleep()], [None; 2]);
        arms.forget();
        assert_eq!(arms.before_sleep(), Some(1));
    }

    proptest! {
        /// A board that holds what was asked for, less one for each element, always has one for a sleeper.
        #[test]
        fn a_sleeper_is_armed(gusts in prop::collection::vec((0..4u32, any::<bool>()), 0..200)) {
            let (arms, mut board) = (Arms::default(), 0u32);
            for (gust, other) in gusts {
                if let Some(count) = arms.before_sleep() {
                    board = board.max(count.into());
                }
                prop_assert!(board > 0);
                for _ in 0..gust {
                    board = board.saturating_sub(1);
                    if other {
                        arms.forget();
                    } else {
                        arms.take();
                    }
                }
            }
        }
    }
}
