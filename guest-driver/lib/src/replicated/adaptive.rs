// SPDX-License-Identifier: MIT OR Apache-2.0
//! A segment that is copied to this node once this node uses it often, which page access counters report (SPEC items 22
//! and 28).

use super::builder::JoinBuilder;
use super::segment::Replicated;
use crate::access::{AtomicWord, Word};
use crate::counter::PageCounter;
use crate::error::{Error, Result};
use crate::remote::Remote;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;
use telegraphos_wire::{NodeId, Status};

/// A replicated segment of another node, without a copy here at first: loads and stores go to the home. When the
/// board's page access counters report that this node has used one of its pages often enough, a copy is made
/// ([`Replicated`]), and from then on loads are loads of memory. Made by [`JoinBuilder::when_used`].
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
/// Each access of this node counts, also those of other processes through other imports, but the counters are read only
/// by [`load`](Adaptive::load) and the other accesses of this object, and by [`look`](Adaptive::look). The access that
/// finds a counter expired makes the copy, which takes as long as [`JoinBuilder::open`]; other threads continue
/// meanwhile.
///
/// A program sees one memory throughout: its earlier stores are in the copy when its first load comes from there. If
/// no copy can be made (for lack of memory, for example), the import stays in use, a warning is logged, and the next
/// attempt comes after as many accesses more.
#[derive(Debug)]
pub struct Adaptive {
    join: JoinBuilder,
    home: NodeId,
    label: Arc<str>,
    reads: u64,
    writes: u64,
    /// `None` once there is a copy. Accesses hold the lock shared, so that the switch comes between two of them.
    import: RwLock<Option<Import>>,
    /// Held by the thread that makes the copy.
    making: Mutex<()>,
    copy: OnceLock<Replicated>,
}

#[derive(Debug)]
struct Import {
    remote: Remote,
    /// One for each page. An expired one is armed again if no copy can be made.
    counters: Vec<Mutex<PageCounter>>,
}

impl Import {
    fn new(remote: Remote, reads: u64, writes: u64) -> Result<Import> {
        let pages = remote.size().div_ceil(remote.handle.context.unit) as u32;
        let counters =
            (0..pages).map(|page| remote.arm_counter(page, reads, writes).map(Mutex::new)).collect::<Result<_>>()?;
        Ok(Import { remote, counters })
    }

    /// Whether the counter of that page has expired since the last call.
    fn fired(&self, page: usize) -> Result<bool> {
        match self.counters.get(page) {
            Some(counter) => counter.lock().unwrap_or_else(PoisonError::into_inner).wait(Some(Duration::ZERO)),
            None => Ok(false),
        }
    }

    /// The page of `offset` if its counter has expired since the last call.
    fn fired_at(&self, offset: u64) -> Result<Option<usize>> {
        let page = (offset / self.remote.handle.context.unit) as usize;
        Ok(self.fired(page)?.then_some(page))
    }

    /// A page whose counter has expired since the last call.
    fn any_fired(&self) -> Result<Option<usize>> {
        for page in 0..self.counters.len() {
            if self.fired(page)? {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    fn arm_again(&self, page: usize, reads: u64, writes: u64) -> Result<()> {
        if let Some(counter) = self.counters.get(page) {
            *counter.lock().unwrap_or_else(PoisonError::into_inner) =
                self.remote.arm_counter(page as u32, reads, writes)?;
        }
        Ok(())
    }
}

impl JoinBuilder {
    /// Opens the segment as an ordinary import, whose loads and stores go to the home, and makes a copy here once this
    /// node has made `reads` loads from one of its pages (64 KiB), or `writes` stores and atomics to it, by the board's
    /// page access counters (SPEC item 22); 0 counts none. See [`Adaptive`].
    pub fn when_used(self, reads: u64, writes: u64) -> Result<Adaptive> {
        let remote = self.import()?;
        let (home, label) = (remote.node(), remote.handle.label.clone());
        let import = RwLock::new(Some(Import::new(remote, reads, writes)?));
        Ok(Adaptive { join: self, home, label, reads, writes, import, making: Mutex::new(()), copy: OnceLock::new() })
    }
}

impl Adaptive {
    /// The node that was the home when this was opened.
    pub fn opened_at(&self) -> NodeId {
        self.home
    }

    /// The copy, once there is one.
    pub fn copy(&self) -> Option<&Replicated> {
        self.copy.get()
    }

    /// The word at `offset`, with acquire ordering: by [`Remote::get`] from the home, where all ones may mean that it
    /// failed, or by [`Replicated::load`] from the copy. Never older than the last store of this process.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        self.access(offset, |remote| remote.get(offset), |copy| copy.load(offset))
    }

    /// Stores `value` at `offset`, in the home and all copies; returns before any has it.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        self.access(offset, |remote| remote.put(offset, value), |copy| copy.store(offset, value))
    }

    /// Fetch-and-add at the home, wrapping; when it returns, every copy has it (SPEC E20).
    pub fn fetch_add<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T> {
        self.access(offset, |remote| remote.fetch_add(offset, value), |copy| copy.fetch_add(offset, value))
    }

    /// Returns when the home and every copy have every earlier store and atomic of this process to the segment (SPEC
    /// E19).
    pub fn quiet(&self) -> Result<()> {
        self.either(Remote::quiet, Replicated::quiet)
    }

    /// Makes the copy if a counter has expired: whether there is a copy now. For programs that make accesses other than
    /// [`Adaptive::load`] and the like, which check the counters themselves.
    pub fn look(&self) -> Result<bool> {
        if self.copy.get().is_none() {
            self.check(Import::any_fired)?;
        }
        Ok(self.copy.get().is_some())
    }

    fn import(&self) -> RwLockReadGuard<'_, Option<Import>> {
        self.import.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes an access by the import, or by the copy once there is one.
    #[cold]
    fn either<R>(
        &self,
        far: impl FnOnce(&Remote) -> Result<R>,
        near: impl FnOnce(&Replicated) -> Result<R>,
    ) -> Result<R> {
        let import = self.import();
        match (import.as_ref(), self.copy.get()) {
            (Some(import), _) => far(&import.remote),
            (None, Some(copy)) => near(copy),
            // Not possible: the copy is set before the import is dropped.
            (None, None) => Err(Error::Failed { what: self.label.to_string(), status: Status::Unmapped }),
        }
    }

    /// Makes an access by the copy if there is one; else by the import, and looks at the counter of the page.
    #[inline]
    fn access<R>(
        &self,
        offset: u64,
        far: impl FnOnce(&Remote) -> Result<R>,
        near: impl FnOnce(&Replicated) -> Result<R>,
    ) -> Result<R> {
        if let Some(copy) = self.copy.get() {
            return near(copy);
        }
        let result = self.either(far, near)?;
        self.check(|import| import.fired_at(offset))?;
        Ok(result)
    }

    /// Makes the copy if `fired` finds an expired counter.
    #[cold]
    fn check(&self, fired: impl FnOnce(&Import) -> Result<Option<usize>>) -> Result<()> {
        let page = self.import().as_ref().map(fired).transpose()?.flatten();
        page.map_or(Ok(()), |page| self.alarm(page))
    }

    /// Makes the copy, because the counter of that page has expired.
    fn alarm(&self, page: usize) -> Result<()> {
        // Another thread makes it already.
        let Ok(_making) = self.making.try_lock() else { return Ok(()) };
        if self.copy.get().is_some() {
            return Ok(());
        }
        match self.join.clone().open() {
            Ok(copy) => self.switch(copy),
            Err(error @ Error::Gone { .. }) => Err(error),
            Err(error) => {
                log::warn!("{}: used often, but no copy could be made: {error}", self.label);
                match self.import().as_ref() {
                    Some(import) => import.arm_again(page, self.reads, self.writes),
                    None => Ok(()),
                }
            }
        }
    }

    /// Replaces the import by the copy. Fails as quiet does, if stores through the import were lost.
    fn switch(&self, copy: Replicated) -> Result<()> {
        let mut import = self.import.write().unwrap_or_else(PoisonError::into_inner);
        // No access is in progress now. A store through the import is acknowledged when all copies have it, this one
        // too.
        let arrived = import.as_ref().map_or(Ok(()), |import| import.remote.quiet());
        if self.copy.set(copy).is_err() {
            log::warn!("{}: a second copy was made, and is dropped", self.label);
        }
        *import = None;
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_policy::{FULL, READ_WRITE};
    use crate::context::Context;
    use crate::node::Node;
    use telegraphos_wire::Rights;

    const ALL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0);

    fn adaptive(context: &Arc<Context>) -> Adaptive {
        let remote = Remote::without_board(context, 4, 2, FULL);
        let counters = vec![Mutex::new(PageCounter::without_board(context))];
        let node = Node { context: context.clone() };
        Adaptive {
            join: Replicated::join(&node, 2, "x"),
            home: 2,
            label: "x".into(),
            reads: 8,
            writes: 0,
            import: RwLock::new(Some(Import { remote, counters })),
            making: Mutex::new(()),
            copy: OnceLock::new(),
        }
    }

    #[test]
    fn accesses_go_to_the_home_until_there_is_a_copy() {
        let context = Arc::new(Context::without_board());
        let adaptive = adaptive(&context);
        adaptive.store(8, 5u64).unwrap();
        assert_eq!(adaptive.load::<u64>(8).unwrap(), 5);
        assert!(adaptive.copy().is_none() && !adaptive.look().unwrap());
        // Without a board quiet of the import fails; the copy replaces it regardless.
        let copy = Replicated::mirrored(&context, ALL);
        copy.store(8, 6u64).unwrap();
        context.slots.count_taken(7, 1);
        assert!(adaptive.switch(copy).is_err());
        assert!(adaptive.copy().is_some() && adaptive.look().unwrap());
        assert_eq!(adaptive.load::<u64>(8).unwrap(), 6);
        assert!(adaptive.import.read().unwrap().is_none());
    }

    /// Without a board no copy can be made, and no counter armed again.
    #[test]
    fn an_expired_counter_makes_a_copy() {
        let context = Arc::new(Context::without_board());
        let adaptive = adaptive(&context);
        adaptive.store(0, 1u8).unwrap();
        adaptive.import.read().unwrap().as_ref().unwrap().counters[0].lock().unwrap().fire();
        let error = adaptive.load::<u8>(0).unwrap_err().to_string();
        assert!(error.contains("arming access counters"), "{error}");
        assert!(adaptive.copy().is_none());
    }
}
