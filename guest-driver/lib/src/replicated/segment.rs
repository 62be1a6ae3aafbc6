// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy of a replicated segment, and the window through which it is stored to.

use super::mode::ReplicaMode;
use super::stores::Stores;
use crate::access::{AtomicWord, Word};
use crate::access_policy::{READ_WRITE, Secret};
use crate::backoff::Backoff;
use crate::bounds::check;
use crate::context::Context;
use crate::destination::Destination;
use crate::error::{Error, Object, Result, latched};
use crate::handle::Handle;
use crate::operation::Operation;
use crate::remote::{Remote, State};
use crate::sys::{self, Mapping};
use crate::word_wait::Watchable;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::{NodeId, Rights, Status, context, uapi};

/// The state of a replicated segment.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let board = telegraphos::Replicated::join(&node, 0, "board").open()?;
/// let state = board.state()?;
/// if let Some(why) = state.orphan {
///     println!("node {} is no longer the home: {}", state.home, why.describe());
///     board.adopt()?; // this node does from now on
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaState {
    /// The node that orders the stores.
    pub home: NodeId,
    /// Why the copy is an orphan: its home is gone, or has revoked it. Copies may differ, and stores are impossible,
    /// until one of them is [adopted](Replicated::adopt) and the others have joined that. `None` if it has a home.
    pub orphan: Option<Status>,
    /// The state of the window through which this process stores.
    pub window: State,
}

/// A replicated segment: this node's copy, which is left on drop.
///
/// A [`store`](Replicated::store) is one store instruction and returns before any copy has the value. A
/// [`load`](Replicated::load) is an ordinary load of this node's memory after one comparison. The documentation of the
/// module says which values readers see, and in which order.
///
/// All threads of the process may use it at once. Stores of *other* processes on this node count as those of other
/// nodes do.
///
/// # SIGBUS
/// When the copy becomes an [orphan](ReplicaState::orphan), the driver removes its mappings: touching it raises SIGBUS,
/// until it is [adopted](Replicated::adopt). [`Node::wait_error`](crate::Node::wait_error) reports it. When the board
/// goes away, touching it raises SIGBUS for good.
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
    /// This node's copy, read-only. Unmapped before the segment is left, as is the window.
    copy: Mapping,
    /// The import behind the window; for atomics and loads, since stores through it would not be counted.
    pub(super) window: Remote,
    rights: Rights,
    pub(super) replica_mode: ReplicaMode,
    pub(super) secret: Secret,
    pub(super) stores: Stores,
    watchable: Watchable,
    pub(super) handle: Handle,
}

impl Replicated {
    /// Maps the segment that the driver describes in `answer`.
    pub(super) fn map(context: Arc<Context>, name: &str, home: NodeId, answer: &uapi::Replica) -> Result<Replicated> {
        let label = Object::Replicated.of(name, home);
        // From here on it is left if anything fails.
        let handle = Handle::new(context, answer.handle, label, Some((sys::replica_leave, "leaving")));
        let unsound = |what| Error::Os { what, errno: Errno::PROTO };
        let replica_mode = ReplicaMode::from_u32(answer.mode)
            .filter(|_| answer.taken < context::TAKEN_WORDS && answer.length > 0)
            .ok_or_else(|| unsound(format!("the driver describes {} as {answer:?}", handle.label)))?;
        // With the count of another segment, loads would not wait.
        let before = handle.context.slots.taken(answer.taken);
        if before != 0 {
            let word = format!("word taken[{}] is {before} before the first store: expected 0", answer.taken);
            return Err(unsound(format!("{}: {word}", handle.label)));
        }
        let copy = handle.map(answer.offset, answer.length, Rights::READ)?;
        let window = handle.map(answer.window, answer.length, Rights(answer.rights_owner & READ_WRITE.0))?;
        Ok(Replicated::of(handle, name, answer, replica_mode, copy, window))
    }

    fn of(
        mut handle: Handle,
        name: &str,
        answer: &uapi::Replica,
        replica_mode: ReplicaMode,
        copy: Mapping,
        window: Mapping,
    ) -> Replicated {
        let rights = Rights(answer.rights_owner);
        if rights != Rights::READ {
            handle.enter(Destination::Copies(answer.import));
        }
        let without_stores = Rights(rights.0 & (Rights::READ.0 | Rights::ATOMIC.0));
        let context = handle.context.clone();
        let (node, import) = (context.id, Handle::new(context, answer.import, handle.label.clone(), None));
        Replicated {
            copy,
            window: Remote::new(import, node, name, answer.length, without_stores, Some(window)),
            rights,
            replica_mode,
            secret: answer.secret,
            stores: Stores::new(answer.taken),
            watchable: Watchable::of(answer.page),
            handle,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.window.name()
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.window.size()
    }

    /// How stores reach the copies.
    pub fn replica_mode(&self) -> ReplicaMode {
        self.replica_mode
    }

    /// The rights it was created or joined with.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The driver's handle.
    pub fn handle(&self) -> u32 {
        self.handle.number
    }

    /// Its name in messages.
    pub(crate) fn what(&self) -> String {
        self.handle.label.to_string()
    }

    /// Where this node's copy lies, read-only, for programs that make atomic loads of their own. Valid until the
    /// segment is dropped.
    ///
    /// A raw read may miss a store that this process has just made (I4 does not hold for it): call
    /// [`Replicated::settle`] before it, or use [`Replicated::load`]. For words that only other processes store to, it
    /// is the same as [`Replicated::load`].
    pub fn as_ptr(&self) -> *const u8 {
        self.copy.at()
    }

    /// Where the window lies, for programs that make stores of their own: naturally aligned words of 1, 2, 4 or 8
    /// bytes, by scalar instructions, never by `memcpy`, [`announced`](Replicated::announce) before. Valid until the
    /// segment is dropped. For a single pointer for loads and stores, see [`Replicated::trapped_ptr`].
    pub fn window_ptr(&self) -> *mut u8 {
        self.window.as_ptr()
    }

    /// The single-pointer form, with both trapped (SPEC E22b): one pointer for loads *and* stores, both of which go
    /// through the board, where loads are behind this process's stores. So no store is announced and no load waits; but
    /// a load costs a round trip to the board of this node (and on to the home in mode
    /// [`Invalidate`](ReplicaMode::Invalidate) only), where [`Replicated::load`] is one of memory. All ones may mean
    /// that a load failed: see [`Replicated::state`].
    ///
    /// It is the window, always readable, and writable if the segment was opened for stores; accesses are as for
    /// [`Replicated::window_ptr`]. From the first call on there may be stores that are not counted, so every
    /// [`Replicated::load`] of this process begins with such a round trip too (in mode
    /// [`Invalidate`](ReplicaMode::Invalidate) with [`quiet`](Replicated::quiet)), and is as correct as before.
    pub fn trapped_ptr(&self) -> *mut u8 {
        if self.rights.contains(Rights::WRITE) {
            self.stores.uncount();
        }
        self.window_ptr()
    }

    /// The window as an import of this node: for atomics that do not wait, for example [`Remote::fetch_add_nbi`].
    /// Stores through it are refused, since [`Replicated::load`] would not wait for them.
    pub fn remote(&self) -> &Remote {
        &self.window
    }

    #[inline(always)]
    fn loads<T: Word>(&self, offset: u64, count: usize) -> Result<*const T> {
        check::<T>(offset, count as u64, self.size(), || self.what())?;
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    #[inline(always)]
    fn stores<T: Word>(&self, offset: u64, count: usize) -> Result<*mut T> {
        check::<T>(offset, count as u64, self.size(), || self.what())?;
        if !self.rights.contains(Rights::WRITE) {
            return Err(self.window.lacks("store", "join it with a mode of 6"));
        }
        Ok(self.window_ptr().wrapping_add(offset as usize).cast())
    }

    /// Announces `count` stores through [`Replicated::window_ptr`], which this process is about to make: exactly so
    /// many instructions. With more stores than that, loads may miss some; with fewer, loads wait for ever.
    #[inline]
    pub fn announce(&self, count: u64) {
        self.stores.announce(count);
    }

    /// Stores `value` at `offset`, in all copies, with one store instruction. It arrives at each copy after all
    /// earlier stores of this thread to the same page. The next store waits when there are too many in flight.
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

    /// The word at `offset`, from this node's memory, with acquire ordering: earlier stores of its writer into the same
    /// page are visible too. Never older than the last store of this process that this thread made or has synchronised
    /// with (SPEC E22b, I4).
    ///
    /// It checks whether the board has taken all stores of this process; if not, it waits until the board has, which is
    /// a round trip of a few microseconds to the board of this node, not to the home. In mode
    /// [`Invalidate`](ReplicaMode::Invalidate) a store is taken when no copy has the older value any more, and the load
    /// may wait, killably, in a page fault, until the home has sent the page. Fails with [`Error::Failed`] when a store
    /// is lost.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.loads::<T>(offset, 1)?;
        if !self.stores.settled(&self.handle.context.slots) {
            self.settle(None)?;
        }
        // SAFETY: `loads` checked bounds and alignment; board and processors store to the copy word by word,
        // atomically.
        Ok(unsafe { T::load_copy(at) })
    }

    /// Loads words from `offset` on, in order. Every word moves at once, the whole does not.
    pub fn load_slice<T: Word>(&self, offset: u64, values: &mut [T]) -> Result<()> {
        let at = self.loads::<T>(offset, values.len())?;
        if !self.stores.settled(&self.handle.context.slots) {
            self.settle(None)?;
        }
        for (index, value) in values.iter_mut().enumerate() {
            // SAFETY: `loads` checked all of them; otherwise as in `load`.
            *value = unsafe { T::load_copy(at.wrapping_add(index)) };
        }
        Ok(())
    }

    /// The word at `offset` in the raw copy: for words that this process does not store to.
    #[inline]
    pub(crate) fn peek<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.loads::<T>(offset, 1)?;
        // SAFETY: as in `load`.
        Ok(unsafe { T::load_copy(at) })
    }

    /// Reads the word at `offset` of this node's copy, and requests an event when it is another one: see
    /// [`Watchable::arm`].
    pub(crate) fn arm_word(&self, offset: u64) -> Result<bool> {
        let value = self.peek(offset)?;
        Ok(self.watchable.arm(&self.handle.context, offset, value))
    }

    /// The word at `offset`, loaded through the window with one instruction: behind all earlier stores of this
    /// processor, without counting, for a round trip to the board of this node (SPEC E22b, the form with both trapped),
    /// and on to the home in mode [`Invalidate`](ReplicaMode::Invalidate). All ones may mean that it failed: see
    /// [`Replicated::state`].
    #[inline]
    pub fn load_trapped<T: Word>(&self, offset: u64) -> Result<T> {
        self.window.get(offset)
    }

    /// Waits until the board has put every store that this process has made so far into this node's copy, so that raw
    /// reads find them; past `timeout` (`None`: never) [`Error::Pending`]. It does not wait for other copies, as
    /// [`quiet`](Replicated::quiet) does.
    ///
    /// Fails with [`Error::Failed`] when one of them is lost.
    #[cold]
    pub fn settle(&self, timeout: Option<Duration>) -> Result<()> {
        let mut backoff = Backoff::new(timeout);
        let follow = || match self.replica_mode {
            // The load would be performed at the home, and not show the state of the copy.
            ReplicaMode::Invalidate => self.window.quiet_within(timeout),
            // A load through the window returns after all stores made before it.
            _ => self.window.get::<u8>(0).map(|_| ()),
        };
        if self.stores.settle(&self.handle.context.slots, &mut backoff, || self.check_alive(), follow)? {
            return Ok(());
        }
        let what = format!("the board to take the stores to {}", self.handle.label);
        Err(self.handle.context.pending(what, &backoff))
    }

    /// [`Error::Pending`]: `what` did not happen within the limit of `backoff`.
    pub(crate) fn pending(&self, what: String, backoff: &Backoff) -> Error {
        self.handle.context.pending(what, backoff)
    }

    /// Fails if a store is lost, or if the copy is an orphan. System calls.
    pub(crate) fn check_alive(&self) -> Result<()> {
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

    /// [`Replicated::quiet`] that fails after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.window.quiet_timeout(timeout)
    }

    /// Fetch-and-store at the home, multicast to all copies (SPEC E20): the word becomes `value`; gives what it was.
    /// When it returns, every copy has it. See [`Remote::swap`].
    pub fn swap<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T> {
        self.window.swap(offset, value)
    }

    /// Fetch-and-add at the home, wrapping; as [`Replicated::swap`].
    pub fn fetch_add<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T> {
        self.window.fetch_add(offset, value)
    }

    /// [`Replicated::fetch_add`] that does not wait.
    pub fn fetch_add_nbi<T: AtomicWord>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        self.window.fetch_add_nbi(offset, value)
    }

    /// Fetch-and-increment at the home, wrapping; as [`Replicated::swap`].
    pub fn fetch_inc<T: AtomicWord>(&self, offset: u64) -> Result<T> {
        self.window.fetch_inc(offset)
    }

    /// Compare-and-swap at the home; as [`Replicated::swap`]. The word has become `value` exactly if the result is
    /// `expected`.
    pub fn compare_swap<T: AtomicWord>(&self, offset: u64, expected: T, value: T) -> Result<T> {
        self.window.compare_swap(offset, expected, value)
    }

    /// The node that orders the stores; of a [naive](ReplicaMode::Naive) segment this node. A system call.
    pub fn home(&self) -> Result<NodeId> {
        Ok(self.home_state()?.0)
    }

    /// The home, and why the copy is an orphan.
    fn home_state(&self) -> Result<(NodeId, Option<Status>)> {
        let mut state = uapi::ReplicaState { handle: self.handle(), ..uapi::ReplicaState::default() };
        self.handle.call(sys::replica_state, &mut state, "asking for the state of")?;
        let home = match u64::from(state.home) {
            uapi::REPLICA_HERE => self.handle.context.id,
            home => home as NodeId,
        };
        Ok((home, latched(state.status)))
    }

    /// Its state. System calls.
    pub fn state(&self) -> Result<ReplicaState> {
        let (home, orphan) = self.home_state()?;
        Ok(ReplicaState { home, orphan, window: self.window.state()? })
    }

    /// Leaves the segment, once this process's stores have been acknowledged. If this node is its home, the other
    /// copies become orphans. Dropping does the same, and only logs errors.
    pub fn leave(self) -> Result<()> {
        let Replicated { copy, window, handle, .. } = self;
        drop((copy, window));
        handle.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Instructions;

    impl Replicated {
        /// For tests of what does not reach the board: copy and window are different memory.
        pub(crate) fn without_board(context: &Arc<Context>, rights: Rights) -> Replicated {
            Replicated::in_memory(context, rights, Mapping::anonymous(4096), Mapping::anonymous(4096))
        }

        /// For tests whose stores reach the copy at once, and are not counted taken.
        pub(crate) fn mirrored(context: &Arc<Context>, rights: Rights) -> Replicated {
            let [copy, window] = Mapping::anonymous_twice(4096);
            Replicated::in_memory(context, rights, copy, window)
        }

        fn in_memory(context: &Arc<Context>, rights: Rights, copy: Mapping, window: Mapping) -> Replicated {
            let (length, rights_owner) = (4000, rights.0);
            let answer = uapi::Replica { length, import: 9, taken: 7, rights_owner, ..uapi::Replica::default() };
            let label = Object::Replicated.of("x", 2);
            let handle = Handle::new(context.clone(), 3, label, Some((sys::replica_leave, "leaving")));
            let replicated = Replicated::of(handle, "x", &answer, ReplicaMode::Counters, copy, window);
            replicated.window.set_arguments();
            replicated
        }
    }

    const ALL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0);

    fn board() -> Arc<Context> {
        Arc::new(Context::without_board())
    }

    /// The bytes of the window, and of the copy.
    fn bytes(replicated: &Replicated) -> (Vec<u8>, Vec<u8>) {
        let read = |at: *const u8| {
            // SAFETY: the test's own page.
            (0..4096).map(|byte| unsafe { at.add(byte).read_volatile() }).collect::<Vec<u8>>()
        };
        (read(replicated.window_ptr()), read(replicated.as_ptr()))
    }

    /// Takes a store, as the board does: puts the word into the copy, then counts it.
    fn take(replicated: &Replicated, offset: usize, value: u64) {
        // SAFETY: the test's own page.
        unsafe { u64::store_release(replicated.as_ptr().cast_mut().add(offset).cast(), value) };
        replicated.handle.context.slots.count_taken(7, replicated.handle.context.slots.taken(7) + 1);
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
            replicated.handle.context.slots.count_taken(7, 1);
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
        // Stores of other processes are there at once.
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
        // A program announces its own raw stores.
        replicated.announce(1);
        assert!(!settled(&replicated));
    }

    #[test]
    fn a_load_that_waits_for_a_lost_store_fails() {
        // No driver says that it is still in flight.
        let replicated = Replicated::without_board(&board(), ALL);
        replicated.store(0, 1u8).unwrap();
        assert!(matches!(replicated.load::<u8>(0), Err(Error::Os { .. })));
    }

    #[test]
    fn the_trapped_form_loads_through_the_window() {
        let replicated = Replicated::without_board(&board(), ALL);
        replicated.store(16, 7u32).unwrap();
        assert_eq!(replicated.load_trapped::<u32>(16).unwrap(), 7);
    }

    /// One pointer for both; loads from memory are as correct as before.
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
        replicated.handle.context.slots.count_taken(7, 100);
        replicated.store(32, 6u64).unwrap();
        assert!(!replicated.stores.settled(&replicated.handle.context.slots));
        assert_eq!(replicated.load::<u64>(32).unwrap(), 6);
        // A process that cannot store has nothing to follow.
        let reader = Replicated::without_board(&board(), Rights::READ);
        assert!(!reader.trapped_ptr().is_null());
        assert!(reader.stores.settled(&reader.handle.context.slots));
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
        let launch = replicated.handle.context.slots.register(context::REGISTERS + context::LAUNCH);
        let launch = context::Launch::decode(launch).unwrap();
        assert_eq!(launch.operation, context::Operation::Atomic { op: AtomicOp::Add, size: 8 });
        replicated.handle.context.slots.give_answer(0, Status::Ok, 35);
        assert_eq!(operation.wait(None).unwrap(), 35);
        // Atomics are not stores: no load waits for them.
        assert!(settled(&replicated));
    }

    /// A fence between two segments, or a segment and a node, must wait: nothing else orders them.
    #[test]
    fn segments_are_destinations_of_their_own() {
        let context = board();
        let fence = |context: &Arc<Context>| context.fence();
        let _replicated = Replicated::without_board(&context, ALL);
        fence(&context).unwrap();
        context.destinations.enter(Destination::Segments(0));
        // Here it needs a board.
        assert!(fence(&context).is_err());
        context.destinations.leave(Destination::Segments(0));
        fence(&context).unwrap();
    }
}
