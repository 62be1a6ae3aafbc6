// SPDX-License-Identifier: MIT OR Apache-2.0
//! `quiet`: when stores, atomics and copies have arrived (the papers' FENCE, SPEC item 27, E19; OpenSHMEM's
//! `shmem_quiet`). And `fence`, which only orders.
//!
//! A thread takes one of the context's slots, stores `import << 48 | cookie` to the slot's `QUIET` word of the context
//! page, and waits until the board has written `status << 48 | cookie` to the slot's word of the status page. The store
//! travels behind the process's earlier stores, and that is all the ordering there is to it: on x86, stores to
//! uncached memory are performed in program order and after earlier ordinary stores; on aarch64 a barrier sees to the
//! second half.

use crate::access::fence;
use crate::error::{Error, Result};
use crate::node::Inner;
use crate::slots::{Backoff, Question, Use};
use std::time::Duration;
use telegraphos_wire::{NodeId, Status, context};

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Whose stores.
#[derive(Clone, Copy)]
pub(crate) enum Scope<'a> {
    /// Of one import: its handle, and what to call it.
    Import(u32, &'a dyn Fn() -> String),
    /// Of the whole context.
    All,
}

/// Where what this context sends arrives in the order of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Destination {
    /// All segments of a node (SPEC I8).
    Segments(NodeId),
    /// The queue behind that import: later stores to its node, and elements of other imports, may pass what waits for
    /// room.
    Queue(u32),
    /// The copies of the replicated segment behind that import.
    Copies(u32),
}

/// Destinations of this context: how many of its imports each has.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    imports: Mutex<BTreeMap<Destination, u32>>,
    /// Number of different destinations.
    count: AtomicUsize,
}

impl Destinations {
    pub(crate) fn enter(&self, destination: Destination) {
        let mut imports = self.imports.lock().unwrap_or_else(PoisonError::into_inner);
        *imports.entry(destination).or_default() += 1;
        self.count.store(imports.len(), Ordering::Release);
    }

    /// An import has been closed, and with it nothing of it is on its way any more.
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
}

impl Inner {
    pub(crate) fn quiet(&self, scope: Scope<'_>, limit: Option<Duration>) -> Result<()> {
        let what = || match scope {
            Scope::Import(_, what) => what(),
            Scope::All => format!("all imports of {}", self.path.display()),
        };
        let mut backoff = Backoff::new(limit);
        let pending = |backoff: &Backoff| self.pending(format!("quiet of {}", what()), backoff);
        let Some(mut question) = Question::new(self, Use::Quiet, &mut backoff) else {
            return Err(pending(&backoff));
        };
        let number = match scope {
            Scope::Import(handle, _) => u64::from(handle),
            Scope::All => context::QUIET_ALL,
        };
        fence();
        let word = number << context::COOKIE_BITS | question.cookie();
        question.ask(context::QUIET + 8 * u64::from(question.slot), word);
        match question.wait(&mut backoff, Inner::can_still_answer)? {
            Some((status, _)) => {
                fence();
                match status {
                    Status::Ok => Ok(()),
                    status => Err(Error::Failed { what: what(), status }),
                }
            }
            None => Err(pending(&backoff)),
        }
    }

    /// Orders, see [`Node::fence`](crate::Node::fence).
    pub(crate) fn fence(&self) -> Result<()> {
        if self.destinations.count.load(Ordering::Acquire) <= 1 && self.slots.unfinished() == 0 {
            fence();
            return Ok(());
        }
        self.quiet(Scope::All, None)
    }

    pub(crate) fn pending(&self, what: String, backoff: &Backoff) -> Error {
        Error::Pending { what, waited: backoff.waited(), operations: self.slots.unfinished() }
    }

    /// A board that is gone never answers. One that is there answers each question, also about an import that is dead
    /// or closed: what is dead says nothing of what was stored before (an orphan's stores had all arrived).
    pub(crate) fn can_still_answer(&self) -> Result<()> {
        let mut info = telegraphos_wire::uapi::Info::default();
        crate::sys::info(self.fd(), &mut info).map_err(|errno| self.error("waiting for the board", errno))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_counted_once_each() {
        let destinations = Destinations::default();
        let count = || destinations.count.load(Ordering::Relaxed);
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
        // The copies of a replicated segment are elsewhere than the node, or the queue, of the same number.
        destinations.enter(Destination::Segments(3));
        destinations.enter(Destination::Copies(3));
        assert_eq!(count(), 2);
        destinations.leave(Destination::Segments(3));
        destinations.leave(Destination::Copies(3));
        assert_eq!(count(), 0);
    }
}
