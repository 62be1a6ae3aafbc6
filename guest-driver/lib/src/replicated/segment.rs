// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy of a replicated segment, and the window through which it is stored to.

use super::builder::{JoinBuilder, ReplicaMode, ReplicatedBuilder};
use super::stores::Stores;
use crate::access::{AtomicWord, Word};
use crate::error::{Error, Object, Result, status_of};
use crate::node::{Inner, Node};
use crate::operation::{Operation, Outcome};
use crate::quiet::Destination;
use crate::remote::{Remote, State};
use crate::segment::check;
use crate::slots::Backoff;
use crate::sys::{self, Mapping};
use crate::{NodeId, READ_WRITE, Rights, Secret, Status};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::{context, uapi};

/// What has become of a replicated segment.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let board = telegraphos::Replicated::join(&node, 0, "board").open()?;
/// let state = board.state()?;
/// if let Some(why) = state.orphan {
///     println!("node {} orders no more: {}", state.home, why.describe());
///     board.adopt()?; // this node does from now on
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// The node that orders the stores.
    pub home: NodeId,
    /// Why the copy is an orphan: its home has gone, or has revoked it. Copies may differ, and nobody can store, until
    /// one of them is [adopted](Replicated::adopt) and the others have joined that. `None` if it is none.
    pub orphan: Option<Status>,
    /// Of the window through which this process stores.
    pub window: State,
}

/// A replicated segment: this node's copy, which is left on drop.
///
/// A [`store`](Replicated::store) is one store instruction and returns before any copy has the value. A
/// [`load`](Replicated::load) is an ordinary load of this node's memory behind one comparison. What readers see, in
/// which order, is in the documentation of the module.
///
/// All threads of the process may use it at once. The stores of *other* processes on this node are those of others.
///
/// # SIGBUS
/// When the copy becomes an [orphan](ReplicaState::orphan), the driver takes its mappings away: touching it raises
/// SIGBUS, until it is [adopted](Replicated::adopt). [`Node::wait_error`] tells of it. When the board goes away,
/// touching it raises SIGBUS for good.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Replicated;
///
/// let board = Replicated::join(&node, 0, "board").open()?;
/// board.store(8, 42u64)?; // reaches all copies
/// assert_eq!(board.load::<u64>(8)?, 42); // from this node's memory, unless another process has stored to it meanwhile
/// let ticket: u64 = board.fetch_inc(16)?; // performed at the home
/// board.quiet()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Replicated {
    inner: Arc<Inner>,
    name: String,
    label: Arc<str>,
    /// `u32::MAX` once it is left.
    handle: u32,
    size: u64,
    rights: Rights,
    replica_mode: ReplicaMode,
    secret: Secret,
    stores: Stores,
    /// Read-only. `None` only while it is left.
    copy: Option<Mapping>,
    /// The import behind the window; for atomics and loads, since stores through it would not be counted.
    window: Remote,
}

impl Replicated {
    /// A new segment of `size` bytes under `name`, with this node as its home.
    ///
    /// A [naive](ReplicaMode::Naive) one has no home: it is created on every node, and each then
    /// [takes over](Replicated::join_peer) the stores of each other.
    #[allow(clippy::new_ret_no_self, reason = "as Node::export and Node::import, it says how before it does")]
    pub fn create(node: &Node, name: &str, size: u64) -> ReplicatedBuilder {
        ReplicatedBuilder::new(node, name, size)
    }

    /// A copy on this node of the segment `name` whose home is node `home`, another than this. A node has one copy of
    /// it, which belongs to one process: who shares it are that process's threads.
    pub fn join(node: &Node, home: NodeId, name: &str) -> JoinBuilder {
        JoinBuilder::new(node, home, name)
    }

    /// Maps what the driver has described; leaves it again if that fails.
    pub(super) fn map(inner: Arc<Inner>, name: String, home: NodeId, answer: &uapi::Replica) -> Result<Replicated> {
        let label: Arc<str> = Object::Replicated.of(&name, home).into();
        let rights = Rights(answer.rights_owner);
        let failed = |errno| Error::Os { what: format!("mapping {label}"), errno };
        let mapped = (|| {
            let replica_mode = ReplicaMode::from_u32(answer.mode);
            let (Some(replica_mode), true) = (replica_mode, answer.taken < context::TAKEN_WORDS && answer.length > 0)
            else {
                let what = format!("the driver describes {label} as {answer:?}");
                return Err(Error::Os { what, errno: Errno::PROTO });
            };
            // With what was counted for somebody else, loads would not wait.
            let before = inner.slots.taken(answer.taken);
            if before != 0 {
                let what =
                    format!("{label}: word taken[{}] is {before} before the first store: expected 0", answer.taken);
                return Err(Error::Os { what, errno: Errno::PROTO });
            }
            let size = usize::try_from(answer.length).map_err(|_| failed(Errno::OVERFLOW))?;
            let copy = Mapping::new(inner.fd(), answer.offset, size, Rights::READ).map_err(failed)?;
            let window =
                Mapping::new(inner.fd(), answer.window, size, Rights(rights.0 & READ_WRITE.0)).map_err(failed)?;
            Ok((replica_mode, copy, window))
        })();
        let (replica_mode, copy, window) = match mapped {
            Ok(mapped) => mapped,
            Err(error) => {
                // What failed first is what the caller learns.
                let _ =
                    sys::replica_leave(inner.fd(), &mut uapi::Handle { handle: answer.handle, ..Default::default() });
                return Err(error);
            }
        };
        Ok(Replicated::of(inner, name, label, answer, rights, replica_mode, copy, window))
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one thing, in one place")]
    fn of(
        inner: Arc<Inner>,
        name: String,
        label: Arc<str>,
        answer: &uapi::Replica,
        rights: Rights,
        replica_mode: ReplicaMode,
        copy: Mapping,
        window: Mapping,
    ) -> Replicated {
        let without_stores = Rights(rights.0 & (Rights::READ.0 | Rights::ATOMIC.0));
        let window =
            Remote::of_replicated(&inner, &name, label.clone(), answer.import, answer.length, without_stores, window);
        if rights != Rights::READ {
            inner.destinations.enter(Destination::Copies(answer.import));
        }
        Replicated {
            inner,
            name,
            label,
            handle: answer.handle,
            size: answer.length,
            rights,
            replica_mode,
            secret: answer.secret,
            stores: Stores::new(answer.taken),
            copy: Some(copy),
            window,
        }
    }

    /// For tests of what does not reach the board: copy and window are different memory.
    #[cfg(test)]
    pub(crate) fn without_board(inner: &Arc<Inner>, rights: Rights) -> Replicated {
        Replicated::in_memory(inner, rights, Mapping::anonymous(4096), Mapping::anonymous(4096))
    }

    /// For tests whose stores reach the copy at once, and are not counted taken.
    #[cfg(test)]
    pub(crate) fn mirrored(inner: &Arc<Inner>, rights: Rights) -> Replicated {
        let [copy, window] = Mapping::anonymous_twice(4096);
        Replicated::in_memory(inner, rights, copy, window)
    }

    #[cfg(test)]
    fn in_memory(inner: &Arc<Inner>, rights: Rights, copy: Mapping, window: Mapping) -> Replicated {
        let answer = uapi::Replica { length: 4000, import: 9, taken: 7, handle: 3, ..uapi::Replica::default() };
        let label = Object::Replicated.of("x", 2).into();
        let mode = ReplicaMode::Counters;
        let replicated = Replicated::of(inner.clone(), "x".into(), label, &answer, rights, mode, copy, window);
        replicated.window.set_arguments();
        replicated
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How stores reach the copies.
    pub fn replica_mode(&self) -> ReplicaMode {
        self.replica_mode
    }

    /// What it was made or joined for.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The driver's handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    pub(crate) fn what(&self) -> String {
        self.label.to_string()
    }

    /// Where this node's copy lies, read-only, for programs that load themselves, atomically. Valid until the segment
    /// is dropped.
    ///
    /// A raw read may miss a store that this process has just made (I4 does not hold for it): [`Replicated::settle`]
    /// before it, or [`Replicated::load`] instead. For what only others store it is the same as [`Replicated::load`].
    pub fn as_ptr(&self) -> *const u8 {
        self.copy.as_ref().map_or(std::ptr::null(), |copy| copy.at().cast_const())
    }

    /// Where the window lies, for programs that store themselves: naturally aligned words of 1, 2, 4 or 8 bytes, by
    /// scalar instructions, never by `memcpy`, and [`announced`](Replicated::announce) before. Valid until the segment
    /// is dropped. For a single pointer to load and to store through, see [`Replicated::trapped_ptr`].
    pub fn window_ptr(&self) -> *mut u8 {
        self.window.as_ptr()
    }

    /// The single-pointer form, with both trapped (SPEC E22b): one pointer for loads *and* stores, both of which go by
    /// the board. A load is behind this process's stores for that reason alone, so nothing is announced and nothing
    /// waited for; it costs a trip to the board of this node (and on to the home in mode
    /// [`Invalidate`](ReplicaMode::Invalidate) only), where [`Replicated::load`] costs one to memory. All ones may mean
    /// that a load failed: [`Replicated::state`].
    ///
    /// It is the window, readable if the segment was opened for loads (which all are), writable if for stores; accesses
    /// are as for [`Replicated::window_ptr`]. From the first call on stores are made that nobody counts, so every
    /// [`Replicated::load`] of this process begins with such a trip too (in mode
    /// [`Invalidate`](ReplicaMode::Invalidate) with [`quiet`](Replicated::quiet)), and is right as before.
    pub fn trapped_ptr(&self) -> *mut u8 {
        if self.rights.contains(Rights::WRITE) {
            self.stores.uncount();
        }
        self.window_ptr()
    }

    /// The window as an import of this node: for atomics that are not waited for, for example
    /// [`Remote::fetch_add_nbi`]. Stores through it are refused, since [`Replicated::load`] would not know of them.
    pub fn remote(&self) -> &Remote {
        &self.window
    }

    #[inline(always)]
    fn loads<T: Word>(&self, offset: u64, count: usize) -> Result<*const T> {
        check::<T>(offset, count as u64, self.size, || self.what())?;
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    #[inline(always)]
    fn stores<T: Word>(&self, offset: u64, count: usize) -> Result<*mut T> {
        check::<T>(offset, count as u64, self.size, || self.what())?;
        if !self.rights.contains(Rights::WRITE) {
            return Err(self.window.lacks("store", "join it with a mode of 6"));
        }
        Ok(self.window_ptr().wrapping_add(offset as usize).cast())
    }

    /// Tells that this process is about to make `count` stores through [`Replicated::window_ptr`]: so many
    /// instructions, no more and no fewer. Too few, and loads may miss them; too many, and loads wait for ever.
    #[inline]
    pub fn announce(&self, count: u64) {
        self.stores.announce(count);
    }

    /// Stores `value` at `offset`, in all copies, with one store instruction. It arrives at each copy after all that
    /// this thread has stored to the same page before. The next store waits when there are too many on their way.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        let at = self.stores::<T>(offset, 1)?;
        self.stores.announce(1);
        // SAFETY: `stores` checked bounds and alignment, and that the window is writable.
        unsafe { T::window_store(at, value) };
        Ok(())
    }

    /// Stores `values` from `offset` on, in order, one instruction each. Every word moves at once, the whole does not.
    pub fn store_slice<T: Word>(&self, offset: u64, values: &[T]) -> Result<()> {
        let at = self.stores::<T>(offset, values.len())?;
        self.stores.announce(values.len() as u64);
        for (index, value) in values.iter().enumerate() {
            // SAFETY: `stores` checked all of them.
            unsafe { T::window_store(at.wrapping_add(index), *value) };
        }
        Ok(())
    }

    /// The word at `offset`, from this node's memory, with acquire ordering: what its writer stored into the same page
    /// before it is visible too. Never older than the last store of this process, or of one of whose stores this thread
    /// knows (SPEC E22b, I4).
    ///
    /// It looks whether the board has taken all stores of this process; if not, it waits until it has, which is a trip
    /// of a few microseconds to the board of this node, not to the home. In mode
    /// [`Invalidate`](ReplicaMode::Invalidate) a store is taken when no copy has the older value any more, and the load
    /// may wait, killably, in a page fault, until the home has sent the page. Fails with [`Error::Failed`] when a store
    /// is lost.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.loads::<T>(offset, 1)?;
        if !self.stores.settled(&self.inner) {
            self.settle(None)?;
        }
        // SAFETY: `loads` checked bounds and alignment; board and processors store to the copy word by word,
        // atomically.
        Ok(unsafe { T::load_copy(at) })
    }

    /// Loads words from `offset` on, in order. Every word moves at once, the whole does not.
    pub fn load_slice<T: Word>(&self, offset: u64, values: &mut [T]) -> Result<()> {
        let at = self.loads::<T>(offset, values.len())?;
        if !self.stores.settled(&self.inner) {
            self.settle(None)?;
        }
        for (index, value) in values.iter_mut().enumerate() {
            // SAFETY: `loads` checked all of them; otherwise as in `load`.
            *value = unsafe { T::load_copy(at.wrapping_add(index)) };
        }
        Ok(())
    }

    /// The word at `offset` as the raw copy has it: for words that this process does not store.
    #[inline]
    pub(crate) fn peek<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.loads::<T>(offset, 1)?;
        // SAFETY: as in `load`.
        Ok(unsafe { T::load_copy(at) })
    }

    /// The word at `offset`, loaded through the window with one instruction: behind all earlier stores of this
    /// processor, without counting, for a trip to the board of this node (SPEC E22b, the form with both trapped), and
    /// on to the home in mode [`Invalidate`](ReplicaMode::Invalidate). All ones may mean that it failed:
    /// [`Replicated::state`].
    #[inline]
    pub fn load_trapped<T: Word>(&self, offset: u64) -> Result<T> {
        self.window.get(offset)
    }

    /// Waits until the board has put every store that this process has made so far into this node's copy, so that raw
    /// reads find them; past `timeout` (`None`: never) [`Error::Pending`]. It says nothing of other copies: that is
    /// [`quiet`](Replicated::quiet).
    ///
    /// Fails with [`Error::Failed`] when one of them is lost.
    #[cold]
    pub fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        let mut backoff = Backoff::new(timeout);
        let follow = || match (self.replica_mode, timeout) {
            // The load would be performed at the home, and say nothing of the copy.
            (ReplicaMode::Invalidate, Some(timeout)) => self.window.quiet_timeout(timeout),
            (ReplicaMode::Invalidate, None) => self.window.quiet(),
            // A load through the window comes back behind all stores made before it.
            _ => self.window.get::<u8>(0).map(|_| ()),
        };
        if self.stores.settle(&self.inner, &mut backoff, || self.alive(), follow)? {
            return Ok(());
        }
        Err(self.inner.pending(format!("the board to take the stores to {}", self.label), &backoff))
    }

    /// What was waited for has not come.
    pub(crate) fn pending(&self, what: String, backoff: &Backoff) -> Error {
        self.inner.pending(what, backoff)
    }

    /// Fails if a store is lost, or if the copy is an orphan.
    pub(crate) fn alive(&self) -> Result<()> {
        let ReplicaState { orphan, window: State { cut, dead, error, .. }, .. } = self.state()?;
        let status = match (orphan, error) {
            (Some(status), _) | (None, Some(status)) => status,
            (None, None) if cut || dead => Status::Cut,
            (None, None) => return Ok(()),
        };
        Err(Error::Failed { what: self.what(), status })
    }

    /// Returns when every copy has every earlier store and atomic of this process to the segment (SPEC E19, I7).
    ///
    /// Fails with [`Error::Failed`] while an error is latched: something was lost.
    pub fn quiet(&self) -> Result<()> {
        self.window.quiet()
    }

    /// [`Replicated::quiet`] that gives up after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.window.quiet_timeout(timeout)
    }

    /// Fetch-and-store at the home, multicast to all copies (SPEC E20): the word becomes `value`; gives what it was.
    /// When it returns, every copy has it. See [`Remote::swap`].
    pub fn swap<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<T> {
        self.window.swap(offset, value)
    }

    /// Fetch-and-add at the home, wrapping; as [`Replicated::swap`].
    pub fn fetch_add<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<T> {
        self.window.fetch_add(offset, value)
    }

    /// [`Replicated::fetch_add`], not waited for.
    pub fn fetch_add_nbi<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        self.window.fetch_add_nbi(offset, value)
    }

    /// Fetch-and-increment at the home, wrapping; as [`Replicated::swap`].
    pub fn fetch_inc<T: AtomicWord + Outcome>(&self, offset: u64) -> Result<T> {
        self.window.fetch_inc(offset)
    }

    /// Compare-and-swap at the home; as [`Replicated::swap`]. The word has become `value` exactly if the result is
    /// `expected`.
    pub fn compare_swap<T: AtomicWord + Outcome>(&self, offset: u64, expected: T, value: T) -> Result<T> {
        self.window.compare_swap(offset, expected, value)
    }

    /// The node that orders the stores; of a [naive](ReplicaMode::Naive) segment this node. A system call.
    pub fn home(&self) -> Result<NodeId> {
        Ok(self.ask()?.0)
    }

    /// Home, and why the copy is an orphan.
    fn ask(&self) -> Result<(NodeId, Option<Status>)> {
        let mut state = uapi::ReplicaState { handle: self.handle, ..uapi::ReplicaState::default() };
        sys::replica_state(self.inner.fd(), &mut state)
            .map_err(|errno| self.inner.error(&format!("asking for the state of {}", self.label), errno))?;
        let home = match u64::from(state.home) {
            uapi::REPLICA_HERE => self.inner.id,
            home => home as NodeId,
        };
        Ok((home, Some(Status::from_u16(state.status as u16)).filter(|status| !status.is_ok())))
    }

    /// What has become of it. System calls.
    pub fn state(&self) -> Result<ReplicaState> {
        let (home, orphan) = self.ask()?;
        Ok(ReplicaState { home, orphan, window: self.window.state()? })
    }

    /// Clears the latched error, and goes on after a cut. Lost stores stay lost; this node's copy may have them or not.
    /// No other thread uses the segment meanwhile.
    pub fn acknowledge(&self) -> Result<()> {
        self.window.acknowledge()?;
        // The last count may be stored behind the answer to the first.
        self.window.quiet()?;
        self.window.quiet()?;
        self.stores.forget_lost(&self.inner);
        Ok(())
    }

    /// Makes this node the home of an orphan: its copy is the truth from now on, under the same name, and the others
    /// leave theirs and join here. That only one node does so is for the program to decide. Stores begin anew; those
    /// that were on their way may be lost. No other thread uses the segment meanwhile.
    pub fn adopt(&self) -> Result<()> {
        let mut handle = uapi::Handle { handle: self.handle, ..Default::default() };
        sys::replica_adopt(self.inner.fd(), &mut handle).map_err(|errno| match errno {
            Errno::INVAL => Error::Argument {
                what: "the copy to be adopted",
                value: format!("{}, which has a home", self.label),
                expected: "an orphan".into(),
            },
            errno => match status_of(errno) {
                Some(status) => Error::Failed { what: format!("adopting {}", self.label), status },
                None => self.inner.error(&format!("adopting {}", self.label), errno),
            },
        })?;
        // The board counts from 0.
        self.stores.forget_lost(&self.inner);
        Ok(())
    }

    /// Makes this node the home, while all nodes go on loading and storing; the home until now is a copy from then on.
    /// Returns when it is, and at once if it was. Nothing is lost or seen out of order; stores wait at their copies for
    /// the time of a few trips, and the others' programs need not know: [`Replicated::home`] tells them.
    ///
    /// Who joins from now on joins here; at the old home that fails with [`Status::NotHome`], and so do loads and
    /// stores through an ordinary import of it. This copy must have been joined with all rights (else
    /// [`Error::Right`]), since it lets nobody do more than [`JoinBuilder::mode`] said; and this node must have nothing
    /// else under the segment's name ([`Status::NameTaken`]). Copies on nodes that [`JoinBuilder::nodes`] leaves out
    /// are orphans. Modes [`Naive`](ReplicaMode::Naive) and [`Invalidate`](ReplicaMode::Invalidate) have no home that
    /// could move.
    ///
    /// Of several nodes that try at once one is first; the others may get [`Status::Busy`] or [`Status::NotHome`], and
    /// try again. It moves page by page (64 KiB). When it fails midway, which the death of the home or of this node's
    /// link is the only reason for, the pages have different homes: loads and stores go on, [`Replicated::home`] still
    /// names the node that has all of them or had them last, joins fail with [`Status::NotHome`], and calling again
    /// finishes it.
    pub fn take_home(&self) -> Result<()> {
        if !matches!(self.replica_mode, ReplicaMode::Owner | ReplicaMode::Counters) {
            return Err(Error::Argument {
                what: "the mode of a segment whose home is to move",
                value: format!("{:?}", self.replica_mode),
                expected: "ReplicaMode::Counters or ReplicaMode::Owner".into(),
            });
        }
        let mut handle = uapi::Handle { handle: self.handle, ..Default::default() };
        sys::replica_move(self.inner.fd(), &mut handle).map_err(|errno| {
            let failed = |status| Error::Failed { what: format!("moving the home of {} here", self.label), status };
            match errno {
                Errno::ACCESS => self.window.lacks("become the home", "join it with a mode of 6"),
                // What has no errno of its own.
                Errno::REMOTEIO => failed(Status::NotHome),
                errno => match status_of(errno) {
                    Some(status) => failed(status),
                    None => self.inner.error(&format!("moving the home of {} here", self.label), errno),
                },
            }
        })
    }

    /// Has a [naive](ReplicaMode::Naive) segment take the stores of node `peer` too, which has created it under the
    /// same name, with the same size, mode and secret. Its content replaces what is here, so it is done before the
    /// first store.
    ///
    /// All who are to see each other's stores join each other.
    pub fn join_peer(&self, peer: NodeId) -> Result<()> {
        if self.replica_mode != ReplicaMode::Naive {
            return Err(Error::Argument {
                what: "the mode of a segment that joins a peer",
                value: format!("{:?}", self.replica_mode),
                expected: "ReplicaMode::Naive: others are joined at their home".into(),
            });
        }
        let node = Node { inner: self.inner.clone() };
        let join = Replicated::join(&node, peer, &self.name).secret(self.secret).replica_mode(ReplicaMode::Naive);
        let answer = join.ask()?;
        if answer.handle != self.handle {
            let what = format!("joining node {peer} to {}: the driver joined it to another", self.label);
            return Err(Error::Os { what, errno: Errno::PROTO });
        }
        Ok(())
    }

    /// Leaves the segment, once this process's stores have been acknowledged. If this node is its home, the copies of
    /// the others become orphans. Dropping does the same, without telling of errors.
    pub fn leave(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.copy = None;
        self.window.unmap();
        if self.handle == u32::MAX {
            return Ok(());
        }
        let mut handle = uapi::Handle { handle: std::mem::replace(&mut self.handle, u32::MAX), ..Default::default() };
        let left = sys::replica_leave(self.inner.fd(), &mut handle);
        if self.rights != Rights::READ {
            self.inner.destinations.leave(Destination::Copies(self.window.handle()));
        }
        left.map_err(|errno| self.inner.error(&format!("leaving {}", self.label), errno))
    }
}

impl Drop for Replicated {
    fn drop(&mut self) {
        match self.end() {
            // The board has gone, and the segment with it.
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Instructions;

    const ALL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0);

    fn board() -> Arc<Inner> {
        Arc::new(Inner::without_board())
    }

    /// The bytes of the window, and of the copy.
    fn bytes(replicated: &Replicated) -> (Vec<u8>, Vec<u8>) {
        let read = |at: *const u8| {
            // SAFETY: the test's own page.
            (0..4096).map(|byte| unsafe { at.add(byte).read_volatile() }).collect::<Vec<u8>>()
        };
        (read(replicated.window_ptr()), read(replicated.as_ptr()))
    }

    /// What the board does: puts a word that was stored into the copy, then counts it.
    fn take(replicated: &Replicated, offset: usize, value: u64) {
        // SAFETY: the test's own page.
        unsafe { u64::store_release(replicated.as_ptr().cast_mut().add(offset).cast(), value) };
        replicated.inner.slots.count_taken(7, replicated.inner.slots.taken(7) + 1);
    }

    fn settled(replicated: &Replicated) -> bool {
        replicated.settle(Some(Duration::ZERO)).is_ok()
    }

    /// Every store is announced once, and changes exactly its bytes, in the window alone.
    #[test]
    fn a_store_is_one_instruction_and_one_count() {
        fn one<T: Word>(value: u64) {
            let replicated = Replicated::without_board(&board(), ALL);
            let at = 1024 + 2 * T::SIZE;
            for byte in 0..4096 {
                // SAFETY: the test's own page.
                unsafe { replicated.window_ptr().add(byte).write_volatile(0x55) };
            }
            replicated.store(at as u64, T::from_u64(value)).unwrap();
            let mut expected = vec![0x55; 4096];
            expected[at..at + T::SIZE].copy_from_slice(&value.to_le_bytes()[..T::SIZE]);
            assert_eq!(bytes(&replicated), (expected, vec![0; 4096]), "{} bytes", T::SIZE);
            assert!(!settled(&replicated));
            replicated.inner.slots.count_taken(7, 1);
            assert!(settled(&replicated));
        }
        one::<u8>(0x11);
        one::<u16>(0x2233);
        one::<u32>(0x4455_6677);
        one::<u64>(0x8899_aabb_ccdd_eeff);
    }

    #[test]
    fn i4_a_load_waits_for_the_stores_of_this_process() {
        let replicated = Replicated::without_board(&board(), ALL);
        assert_eq!(replicated.load::<u64>(64).unwrap(), 0);
        replicated.store(64, 3u64).unwrap();
        // A raw read misses it, and so would a load that did not wait.
        assert_eq!(replicated.peek::<u64>(64).unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                take(&replicated, 64, 3);
            });
            assert_eq!(replicated.load::<u64>(64).unwrap(), 3);
        });
        // What others store is there at once.
        // SAFETY: the test's own page.
        unsafe { u64::store_release(replicated.as_ptr().cast_mut().add(64).cast(), 9) };
        assert_eq!(replicated.load::<u64>(64).unwrap(), 9);
    }

    #[test]
    fn i4_slices_count_every_word() {
        let replicated = Replicated::without_board(&board(), ALL);
        replicated.store_slice(8, &[1u64, 2, 3]).unwrap();
        replicated.store_slice::<u64>(8, &[]).unwrap();
        for word in 1..=3 {
            assert!(!settled(&replicated), "{word}");
            take(&replicated, 8 * word, word as u64);
        }
        let mut found = [0u64; 4];
        replicated.load_slice(0, &mut found).unwrap();
        assert_eq!(found, [0, 1, 2, 3]);
        // Stores of the program's own are announced by it.
        replicated.announce(1);
        assert!(!settled(&replicated));
    }

    #[test]
    fn a_load_that_waits_for_a_lost_store_fails() {
        // There is no driver to say that it is still to come.
        let replicated = Replicated::without_board(&board(), ALL);
        replicated.store(0, 1u8).unwrap();
        assert!(matches!(replicated.load::<u8>(0), Err(Error::Os { .. })));
    }

    #[test]
    fn the_trapped_form_looks_through_the_window() {
        let replicated = Replicated::without_board(&board(), ALL);
        replicated.store(16, 7u32).unwrap();
        assert_eq!(replicated.load_trapped::<u32>(16).unwrap(), 7);
    }

    /// One pointer for both, and loads from memory are right beside it.
    #[test]
    fn e22b_one_pointer_with_both_trapped() {
        let replicated = Replicated::mirrored(&board(), ALL);
        let word = replicated.trapped_ptr().cast::<u64>();
        // SAFETY: the test's own page, aligned.
        unsafe {
            u64::window_store(word.add(3), 5);
            assert_eq!(u64::window_load(word.add(3)), 5);
        }
        assert_eq!(replicated.load::<u64>(24).unwrap(), 5);
        // As if the board had taken more than was ever announced.
        replicated.inner.slots.count_taken(7, 100);
        replicated.store(32, 6u64).unwrap();
        assert!(!replicated.stores.settled(&replicated.inner));
        assert_eq!(replicated.load::<u64>(32).unwrap(), 6);
        // Who cannot store has nothing to follow.
        let reader = Replicated::without_board(&board(), Rights::READ);
        assert!(!reader.trapped_ptr().is_null());
        assert!(reader.stores.settled(&reader.inner));
    }

    #[test]
    fn only_modes_with_a_home_move_it() {
        let mut replicated = Replicated::without_board(&board(), ALL);
        for mode in [ReplicaMode::Naive, ReplicaMode::Invalidate] {
            replicated.replica_mode = mode;
            let error = replicated.take_home().unwrap_err().to_string();
            assert!(error.contains("is to move is") && error.contains("ReplicaMode::Counters"), "{error}");
        }
    }

    #[test]
    fn accesses_are_checked() {
        let replicated = Replicated::without_board(&board(), ALL);
        assert!(matches!(replicated.store(3999, 1u16), Err(Error::Bounds { .. })));
        assert!(matches!(replicated.store(1, 1u16), Err(Error::Misaligned { width: 2, .. })));
        assert!(matches!(replicated.load::<u64>(4000), Err(Error::Bounds { .. })));
        assert!(matches!(replicated.load_trapped::<u64>(4), Err(Error::Misaligned { .. })));
        assert!(matches!(replicated.store_slice(3992, &[1u64, 2]), Err(Error::Bounds { .. })));
        assert!(matches!(replicated.load_slice(u64::MAX, &mut [0u8]), Err(Error::Bounds { .. })));
        // None of them was announced.
        assert!(settled(&replicated));
        let reader = Replicated::without_board(&board(), Rights::READ);
        let error = reader.store(0, 1u8).unwrap_err().to_string();
        assert!(error.contains("replicated segment \"x\" of node 2 is open without the right to store"), "{error}");
        assert!(reader.fetch_inc::<u64>(0).is_err());
        assert_eq!(reader.load::<u8>(0).unwrap(), 0);
    }

    /// The import would store past the count.
    #[test]
    fn the_import_behind_the_window_refuses_stores() {
        let replicated = Replicated::without_board(&board(), ALL);
        let error = replicated.remote().put64(0, 1).unwrap_err().to_string();
        assert!(error.contains("Replicated::store"), "{error}");
        assert!(settled(&replicated));
    }

    #[test]
    fn e20_atomics_are_launched_at_the_window() {
        use telegraphos_wire::AtomicOp;
        let replicated = Replicated::without_board(&board(), ALL);
        let mut operation = replicated.fetch_add_nbi(64, 7u64).unwrap();
        let launch = replicated.inner.slots.told(context::REGISTERS + context::LAUNCH);
        let launch = context::Launch::decode(launch).unwrap();
        assert_eq!(launch.operation, context::Operation::Atomic { op: AtomicOp::Add, size: 8 });
        replicated.inner.slots.give_answer(0, Status::Ok, 35);
        assert_eq!(operation.wait(None).unwrap(), 35);
        // Atomics are not stores: no load waits for them.
        assert!(settled(&replicated));
    }

    #[test]
    fn only_naive_segments_join_peers() {
        let replicated = Replicated::without_board(&board(), ALL);
        let error = replicated.join_peer(1).unwrap_err().to_string();
        assert!(error.contains("is Counters: expected ReplicaMode::Naive"), "{error}");
    }

    /// A fence between two segments, or a segment and a node, must wait: nothing else orders them.
    #[test]
    fn segments_are_destinations_of_their_own() {
        let inner = board();
        let fence = |inner: &Arc<Inner>| inner.fence();
        let _replicated = Replicated::without_board(&inner, ALL);
        fence(&inner).unwrap();
        inner.destinations.enter(Destination::Segments(0));
        // Here it asks the board, of which there is none.
        assert!(fence(&inner).is_err());
        inner.destinations.leave(Destination::Segments(0));
        fence(&inner).unwrap();
    }
}
