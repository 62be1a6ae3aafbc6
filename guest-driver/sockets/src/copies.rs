// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory from which the board copies to other nodes, and what becomes of copies that a node does not answer.
//!
//! A copy is waited for so long and no longer ([`LIMIT`]). One that is not answered then may be under way still: its
//! memory stays as it is until the board has an answer, however late, and meanwhile nothing else is copied to that
//! node: each silent node takes the time of one wait and one piece of memory, and other nodes' connections have the
//! rest. What such a copy would have written is never announced.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use telegraphos::NodeId;

/// How long a copy is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(1);
/// How long a thread waits for memory that another one uses before it makes another piece.
const PATIENCE: Duration = Duration::from_millis(10);
/// Pieces of memory, at most, and so copies under way.
const MOST: usize = 8;

/// Why nothing is copied now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// All memory is in use.
    Busy,
    /// The node has not answered an earlier copy.
    Silent,
}

/// Pieces of memory `M`, and copies `C` from them.
#[derive(Debug)]
pub(crate) struct Pool<M, C> {
    pieces: Mutex<Pieces<M, C>>,
    returned: Condvar,
}

#[derive(Debug)]
struct Pieces<M, C> {
    free: Vec<M>,
    /// All that there are.
    made: usize,
    /// Copies that were not answered in time, and their memory.
    unanswered: Vec<(NodeId, M, C)>,
}

impl<M, C> Pool<M, C> {
    /// A pool with its first piece.
    pub(crate) fn new(first: M) -> Pool<M, C> {
        let pieces = Pieces { free: vec![first], made: 1, unanswered: Vec::new() };
        Pool { pieces: Mutex::new(pieces), returned: Condvar::new() }
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces<M, C>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for a copy to a node. `make` makes another piece, if it can; `is_answered` looks at a copy.
    pub(crate) fn take(
        &self,
        node: NodeId,
        make: impl Fn() -> Option<M>,
        is_answered: impl Fn(&mut C) -> bool,
    ) -> Result<M, Refusal> {
        let mut pieces = self.pieces();
        let mut waited = Duration::ZERO;
        loop {
            if !pieces.unanswered.is_empty() {
                pieces.collect(&is_answered);
                if pieces.is_silent(node) {
                    return Err(Refusal::Silent);
                }
            }
            if let Some(piece) = pieces.free.pop() {
                return Ok(piece);
            }
            let all_are_lost = pieces.unanswered.len() == pieces.made;
            if pieces.made < MOST && (all_are_lost || waited >= PATIENCE) {
                // A place for it, whether it can be made or not: others look meanwhile.
                pieces.made += 1;
                drop(pieces);
                if let Some(piece) = make() {
                    return Ok(piece);
                }
                pieces = self.pieces();
                pieces.made -= 1;
            }
            if waited >= LIMIT || pieces.unanswered.len() == pieces.made {
                return Err(Refusal::Busy);
            }
            pieces = self.returned.wait_timeout(pieces, PATIENCE).unwrap_or_else(PoisonError::into_inner).0;
            waited += PATIENCE;
        }
    }

    /// The memory is free again.
    pub(crate) fn put_back(&self, piece: M) {
        self.pieces().free.push(piece);
        self.returned.notify_one();
    }

    /// The node has not answered this copy.
    pub(crate) fn lose(&self, node: NodeId, piece: M, copy: C) {
        self.pieces().unanswered.push((node, piece, copy));
        self.returned.notify_all();
    }

    /// Whether the node has left a copy unanswered.
    pub(crate) fn is_silent(&self, node: NodeId) -> bool {
        self.pieces().is_silent(node)
    }
}

impl<M, C> Pieces<M, C> {
    fn is_silent(&self, node: NodeId) -> bool {
        self.unanswered.iter().any(|(silent, ..)| *silent == node)
    }

    /// Memory whose copy has been answered late is free.
    fn collect(&mut self, is_answered: impl Fn(&mut C) -> bool) {
        let mut at = 0;
        while at < self.unanswered.len() {
            if is_answered(&mut self.unanswered[at].2) {
                self.free.push(self.unanswered.swap_remove(at).1);
            } else {
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A copy that is answered when it is said to be.
    type Copy = &'static AtomicUsize;

    fn is_answered(copy: &mut Copy) -> bool {
        copy.load(Ordering::SeqCst) != 0
    }

    fn copy() -> Copy {
        Box::leak(Box::default())
    }

    #[test]
    fn memory_of_a_copy_that_is_not_answered_is_not_used_until_it_is() {
        let pool = Pool::new(0);
        let made = Cell::new(0);
        let make = || {
            made.set(made.get() + 1);
            Some(made.get())
        };
        let late = copy();
        let lost = pool.take(3, make, is_answered).unwrap();
        pool.lose(3, lost, late);
        assert!(pool.is_silent(3) && !pool.is_silent(4));
        assert_eq!(pool.take(3, make, is_answered), Err(Refusal::Silent), "without a wait");
        // Other nodes have memory of their own, always the same.
        for _ in 0..100 {
            let piece = pool.take(4, make, is_answered).unwrap();
            assert_ne!(piece, lost);
            pool.put_back(piece);
        }
        assert_eq!(made.get(), 1);
        late.store(1, Ordering::SeqCst);
        let two = [pool.take(3, make, is_answered).unwrap(), pool.take(4, make, is_answered).unwrap()];
        assert!(two.contains(&lost) && made.get() == 1 && !pool.is_silent(3), "{two:?}");
    }

    #[test]
    fn silent_nodes_take_so_much_memory_and_no_more() {
        let pool = Pool::new(());
        let made = Cell::new(1);
        let make = || {
            made.set(made.get() + 1);
            Some(())
        };
        for node in 0..MOST as NodeId {
            pool.take(node, make, is_answered).unwrap();
            pool.lose(node, (), copy());
        }
        assert_eq!(pool.take(100, make, is_answered), Err(Refusal::Busy), "at once: nothing can be returned");
        assert_eq!(pool.take(2, make, is_answered), Err(Refusal::Silent));
        assert_eq!(made.get(), MOST);
    }

    #[test]
    fn threads_wait_for_each_other_or_make_more_and_all_memory_comes_back() {
        let pool: Pool<usize, Copy> = Pool::new(0);
        let (made, inside) =
            (AtomicUsize::new(1), std::array::from_fn::<AtomicUsize, MOST, _>(|_| AtomicUsize::new(0)));
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    for n in 0..50 {
                        let make = || Some(made.fetch_add(1, Ordering::SeqCst));
                        let Ok(piece) = pool.take(1, make, is_answered) else { continue };
                        assert_eq!(inside[piece].fetch_add(1, Ordering::SeqCst), 0, "one thread has it");
                        if n % 10 == 0 {
                            std::thread::sleep(2 * PATIENCE);
                        }
                        inside[piece].fetch_sub(1, Ordering::SeqCst);
                        pool.put_back(piece);
                    }
                });
            }
        });
        let pieces = pool.pieces();
        assert!(pieces.free.len() == pieces.made && pieces.made <= MOST, "{pieces:?}");
    }

    #[test]
    fn without_more_memory_a_wait_ends() {
        let pool: Pool<(), Copy> = Pool::new(());
        pool.take(1, || None, is_answered).unwrap();
        assert_eq!(pool.take(2, || None, is_answered), Err(Refusal::Busy));
        pool.lose(1, (), copy());
        assert_eq!(pool.take(2, || None, is_answered), Err(Refusal::Busy), "at once: nothing can be returned");
    }
}
