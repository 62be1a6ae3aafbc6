// SPDX-License-Identifier: MIT OR Apache-2.0
//! The destinations of a context: with one alone, the network keeps the program's order without quiet.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use telegraphos_wire::NodeId;

/// A place where stores of one context are performed in the order of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    /// All segments of a node (SPEC I8).
    Segments(NodeId),
    /// The queue behind the import of this handle: later stores to its node, and elements of other imports, may pass an
    /// element that waits for room.
    Queue(u32),
    /// The copies of the replicated segment behind the import of this handle.
    Copies(u32),
}

/// The destinations of a context, with the number of its imports of each.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    imports: Mutex<BTreeMap<Destination, u32>>,
    /// Number of different destinations.
    count: AtomicUsize,
}

impl Destinations {
    /// An import has been opened.
    pub(crate) fn enter(&self, destination: Destination) {
        let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        *imports.entry(destination).or_default() += 1;
        self.count.store(imports.len(), Ordering::Release);
    }

    /// An import has been closed, which waits until nothing of it is in flight any more.
    pub(crate) fn leave(&self, destination: Destination) {
        let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = imports.get_mut(&destination) {
            *count -= 1;
            if *count == 0 {
                imports.remove(&destination);
            }
        }
        self.count.store(imports.len(), Ordering::Release);
    }

    /// The number of different destinations. No lock.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_counted_once_each() {
        let destinations = Destinations::default();
        let count = || destinations.count();
        destinations.enter(Destination::Segments(3));
        destinations.enter(Destination::Segments(3));
        assert_eq!(count(), 1);
        destinations.enter(Destination::Queue(3));
        assert_eq!(count(), 2);
        destinations.leave(Destination::Segments(3));
        assert_eq!(count(), 2);
        destinations.leave(Destination::Segments(3));
        assert_eq!(count(), 1);
        destinations.leave(Destination::Queue(3));
        // The copies of a replicated segment differ from the node, and from the queue, of the same number.
        destinations.enter(Destination::Segments(3));
        destinations.enter(Destination::Copies(3));
        assert_eq!(count(), 2);
        destinations.leave(Destination::Segments(3));
        destinations.leave(Destination::Copies(3));
        assert_eq!(count(), 0);
    }
}
