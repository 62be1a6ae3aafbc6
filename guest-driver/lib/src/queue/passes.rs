// SPDX-License-Identifier: MIT OR Apache-2.0
//! The passes of one process through a queue's dequeue section, counted, so that its threads can look at the queue from
//! outside ([`Dequeue::look`](super::dequeue::Dequeue::look)).
//!
//! The word `state` says which process was inside last, but not how often. So the threads of one process tell each
//! other here: the count is odd during a pass. A thread whose count is the same even number before and after its look
//! has looked while no thread of its process was inside.

use std::sync::atomic::{AtomicU64, Ordering};

/// An atomic word: that of the standard library, or a model checker's.
pub(super) trait Counter {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Counter for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// The number of begun and ended passes. One thread at a time changes it.
#[derive(Debug, Default)]
pub(super) struct Passes<C = AtomicU64>(pub(super) C);

/// A pass in progress; it ends on drop.
pub(super) struct Passing<'a, C: Counter>(&'a Passes<C>);

impl<C: Counter> Passes<C> {
    /// A pass begins. The caller excludes others until it has ended.
    #[inline]
    pub(super) fn begin(&self) -> Passing<'_, C> {
        // Seen by each thread that sees a store of the pass: each of these releases.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        Passing(self)
    }

    /// What `look` returns, if no pass was in progress while it ran. All of its loads acquire.
    #[inline]
    pub(super) fn between<T, E>(&self, look: impl FnOnce() -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        let before = self.0.load(Ordering::Acquire);
        if before % 2 != 0 {
            return Ok(None);
        }
        let seen = look()?;
        Ok(seen.filter(|_| self.0.load(Ordering::Relaxed) == before))
    }
}

impl<C: Counter> Drop for Passing<'_, C> {
    #[inline]
    fn drop(&mut self) {
        let counter = &self.0.0;
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    #[test]
    fn a_look_counts_only_between_passes() {
        let passes = Passes::<AtomicU64>::default();
        let seen = || Ok::<_, Infallible>(Some(7));
        assert_eq!(passes.between(seen), Ok(Some(7)));
        assert_eq!(passes.between(|| Ok::<Option<u32>, Infallible>(None)), Ok(None));
        let pass = passes.begin();
        assert_eq!(passes.between(seen), Ok(None), "one is in progress");
        drop(pass);
        assert_eq!(passes.between(seen), Ok(Some(7)));
        let amid = passes.between(|| {
            drop(passes.begin());
            seen()
        });
        assert_eq!(amid, Ok(None), "one has come and gone");
        assert_eq!(passes.between(|| Err::<Option<u32>, _>("stopped")), Err("stopped"));
    }
}
