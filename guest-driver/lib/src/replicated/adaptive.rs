// SPDX-License-Identifier: MIT OR Apache-2.0
//! A segment that is replicated here once this node uses it much: page access counters as the alarm (SPEC items 22 and
//! 28).

use super::builder::JoinBuilder;
use super::segment::Replicated;
use crate::access::{AtomicWord, Word};
use crate::counter::PageCounter;
use crate::error::{Error, Result};
use crate::operation::Outcome;
use crate::remote::Remote;
use crate::{NodeId, Status};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// A replicated segment of another node, without a copy here at first: loads and stores go to the home. When the
/// board's page access counters say that this node has used one of its pages so much, a copy is made ([`Replicated`]),
/// and from then on loads are loads of memory. Made by [`JoinBuilder::when_used`].
///
/// ```no_run
/// # use telegraphos::{Node, Replicated};
/// # fn main() -> telegraphos::Result<()> {
/// # let node = Node::open()?;
/// let table = Replicated::join(&node, 0, "table").when_used(1000, 0)?;
/// loop {
///     let value: u64 = table.load(64)?; // a trip to node 0, about a thousand times; then a load of memory
///     # let _ = value;
/// }
/// # }
/// ```
///
/// Each access of this node counts, also those of other processes through other imports, but the counter is looked at
/// by [`load`](Adaptive::load) and the like of this one only, or by [`look`](Adaptive::look). The access that finds it
/// gone off makes the copy, which takes as long as [`JoinBuilder::open`]; other threads go on meanwhile.
///
/// A program sees one memory throughout: what it stored before is in the copy when its first load comes from there. If
/// no copy can be made (there is no memory, say), it goes on as an import, tells the log, and tries again after as many
/// accesses more.
#[derive(Debug)]
pub struct Adaptive {
    join: JoinBuilder,
    home: NodeId,
    label: Arc<str>,
    reads: u64,
    writes: u64,
    /// `None` once there is a copy. Accesses hold it shared, so that the copy comes between two of them.
    import: RwLock<Option<Import>>,
    /// Held by who makes the copy.
    making: Mutex<()>,
    copy: OnceLock<Replicated>,
}

#[derive(Debug)]
struct Import {
    remote: Remote,
    unit: u64,
    /// One for each page. Those that went off are armed again if no copy can be made.
    counters: Vec<Mutex<PageCounter>>,
}

impl Import {
    fn new(remote: Remote, reads: u64, writes: u64) -> Result<Import> {
        let unit = remote.inner.unit;
        let pages = remote.size().div_ceil(unit) as u32;
        let counters =
            (0..pages).map(|page| remote.arm_counter(page, reads, writes).map(Mutex::new)).collect::<Result<_>>()?;
        Ok(Import { remote, unit, counters })
    }

    /// Whether the counter of that page has gone off since this was asked last.
    fn fired(&self, page: usize) -> Result<bool> {
        match self.counters.get(page) {
            Some(counter) => counter.lock().unwrap_or_else(PoisonError::into_inner).wait(Some(Duration::ZERO)),
            None => Ok(false),
        }
    }

    fn arm_again(&self, page: usize, reads: u64, writes: u64) -> Result<()> {
        if let Some(counter) = self.counters.get(page) {
            *counter.lock().unwrap_or_else(PoisonError::into_inner) =
                self.remote.arm_counter(page as u32, reads, writes)?;
        }
        Ok(())
    }
}

impl Adaptive {
    pub(super) fn open(join: JoinBuilder, reads: u64, writes: u64) -> Result<Adaptive> {
        let remote = join.import()?;
        let (home, label) = (remote.node(), remote.label.clone());
        let import = RwLock::new(Some(Import::new(remote, reads, writes)?));
        Ok(Adaptive { join, home, label, reads, writes, import, making: Mutex::new(()), copy: OnceLock::new() })
    }

    /// The home it was opened at.
    pub fn opened_at(&self) -> NodeId {
        self.home
    }

    /// The copy, if there is one by now.
    pub fn copy(&self) -> Option<&Replicated> {
        self.copy.get()
    }

    /// The word at `offset`, with acquire ordering: by [`Remote::get`] from the home, where all ones may mean that it
    /// failed, or by [`Replicated::load`] from the copy. Never older than the last store of this process.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        match self.copy.get() {
            Some(copy) => copy.load(offset),
            None => self.access(offset, |remote| remote.get(offset), |copy| copy.load(offset)),
        }
    }

    /// Stores `value` at `offset`, in the home and all copies; returns before any has it.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        match self.copy.get() {
            Some(copy) => copy.store(offset, value),
            None => self.access(offset, |remote| remote.put(offset, value), |copy| copy.store(offset, value)),
        }
    }

    /// Fetch-and-add at the home, wrapping; when it returns, every copy has it (SPEC E20).
    pub fn fetch_add<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<T> {
        match self.copy.get() {
            Some(copy) => copy.fetch_add(offset, value),
            None => self.access(offset, |remote| remote.fetch_add(offset, value), |copy| copy.fetch_add(offset, value)),
        }
    }

    /// Returns when the home and every copy have every earlier store and atomic of this process to the segment (SPEC
    /// E19).
    pub fn quiet(&self) -> Result<()> {
        match self.copy.get() {
            Some(copy) => copy.quiet(),
            None => self.either(Remote::quiet, Replicated::quiet).map(|_| ()),
        }
    }

    /// Looks whether a counter has gone off, and then makes the copy: whether there is one now. For programs whose
    /// accesses are others' than [`Adaptive::load`] and the like, which look themselves.
    pub fn look(&self) -> Result<bool> {
        if self.copy.get().is_none() {
            let fired = match self.import.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
                Some(import) => (0..import.counters.len()).find_map(|page| match import.fired(page) {
                    Ok(false) => None,
                    Ok(true) => Some(Ok(page)),
                    Err(error) => Some(Err(error)),
                }),
                None => None,
            };
            if let Some(page) = fired.transpose()? {
                self.alarm(page)?;
            }
        }
        Ok(self.copy.get().is_some())
    }

    /// Does it by the import, or by the copy if that has come.
    fn either<R>(
        &self,
        far: impl FnOnce(&Remote) -> Result<R>,
        near: impl FnOnce(&Replicated) -> Result<R>,
    ) -> Result<R> {
        let import = self.import.read().unwrap_or_else(PoisonError::into_inner);
        match (import.as_ref(), self.copy.get()) {
            (Some(import), _) => far(&import.remote),
            (None, Some(copy)) => near(copy),
            // Not possible: the copy is there before the import goes.
            (None, None) => Err(Error::Failed { what: self.label.to_string(), status: Status::Unmapped }),
        }
    }

    #[cold]
    fn access<R>(
        &self,
        offset: u64,
        far: impl FnOnce(&Remote) -> Result<R>,
        near: impl FnOnce(&Replicated) -> Result<R>,
    ) -> Result<R> {
        let result = self.either(far, near)?;
        let fired = match self.import.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(import) => {
                let page = (offset / import.unit) as usize;
                import.fired(page)?.then_some(page)
            }
            None => None,
        };
        if let Some(page) = fired {
            self.alarm(page)?;
        }
        Ok(result)
    }

    /// The counter of that page has gone off.
    fn alarm(&self, page: usize) -> Result<()> {
        // Somebody else is at it already.
        let Ok(_making) = self.making.try_lock() else { return Ok(()) };
        if self.copy.get().is_some() {
            return Ok(());
        }
        match self.join.clone().open() {
            Ok(copy) => self.switch(copy),
            Err(error @ Error::Gone { .. }) => Err(error),
            Err(error) => {
                log::warn!("{}: used much, and yet not copied: {error}", self.label);
                match self.import.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
                    Some(import) => import.arm_again(page, self.reads, self.writes),
                    None => Ok(()),
                }
            }
        }
    }

    /// From here on accesses are those of the copy. Fails as quiet does, if stores through the import were lost.
    fn switch(&self, copy: Replicated) -> Result<()> {
        let mut import = self.import.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody is amid an access now. What was stored through the import is acknowledged when all copies have it,
        // this one too.
        let arrived = import.as_ref().map_or(Ok(()), |import| import.remote.quiet());
        if self.copy.set(copy).is_err() {
            log::warn!("{}: a second copy was made, and is left again", self.label);
        }
        *import = None;
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Inner, Node};
    use crate::{FULL, READ_WRITE, Rights};

    const ALL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0);

    fn adaptive(inner: &Arc<Inner>) -> Adaptive {
        let remote = Remote::without_board(inner, 4, 2, FULL);
        let counters = vec![Mutex::new(PageCounter::without_board(inner))];
        let node = Node { inner: inner.clone() };
        Adaptive {
            join: Replicated::join(&node, 2, "x"),
            home: 2,
            label: "x".into(),
            reads: 8,
            writes: 0,
            import: RwLock::new(Some(Import { remote, unit: 65536, counters })),
            making: Mutex::new(()),
            copy: OnceLock::new(),
        }
    }

    #[test]
    fn accesses_go_to_the_home_until_there_is_a_copy() {
        let inner = Arc::new(Inner::without_board());
        let adaptive = adaptive(&inner);
        adaptive.store(8, 5u64).unwrap();
        assert_eq!(adaptive.load::<u64>(8).unwrap(), 5);
        assert!(adaptive.copy().is_none() && !adaptive.look().unwrap());
        // Without a board its import is not quiet; the copy is there all the same, and says so.
        let copy = Replicated::mirrored(&inner, ALL);
        copy.store(8, 6u64).unwrap();
        inner.slots.count_taken(7, 1);
        assert!(adaptive.switch(copy).is_err());
        assert!(adaptive.copy().is_some() && adaptive.look().unwrap());
        assert_eq!(adaptive.load::<u64>(8).unwrap(), 6);
        assert!(adaptive.import.read().unwrap().is_none());
    }

    /// Here no copy can be made, and no counter armed again: there is no board.
    #[test]
    fn a_counter_that_goes_off_makes_a_copy() {
        let inner = Arc::new(Inner::without_board());
        let adaptive = adaptive(&inner);
        adaptive.store(0, 1u8).unwrap();
        adaptive.import.read().unwrap().as_ref().unwrap().counters[0].lock().unwrap().fire();
        let error = adaptive.load::<u8>(0).unwrap_err().to_string();
        assert!(error.contains("arming access counters"), "{error}");
        assert!(adaptive.copy().is_none());
    }
}
