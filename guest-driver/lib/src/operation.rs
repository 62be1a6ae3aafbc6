// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics and block copies (SPEC items 17 to 20), and the handles of those in flight.

use crate::access::AtomicWord;
use crate::backoff::Backoff;
use crate::bounds::check;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::launch::{Launch, Progress, describe};
use crate::local::Local;
use crate::remote::Remote;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
pub use telegraphos_wire::context::MAX_COPY;
use telegraphos_wire::{AtomicOp, NodeId, Rights, Status, context};

mod sealed {
    /// The result of an operation.
    pub trait Outcome {
        /// The result in the word that the HIB has written.
        fn from_word(word: u64) -> Self;
    }
    impl Outcome for () {
        fn from_word(_: u64) {}
    }
    impl<T: crate::access::AtomicWord> Outcome for T {
        fn from_word(word: u64) -> T {
            T::from_u64(word)
        }
    }
}

/// The result of an operation: the previous value of an atomic's word, or nothing for a copy.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::{AtomicWord, Operation, Outcome, Remote, Result};
///
/// /// Draws a ticket in the background, of either width.
/// fn draw<T: AtomicWord + Outcome>(words: &Remote) -> Result<Operation<T>> {
///     words.fetch_inc_nbi(0)
/// }
/// # let words = node.import(3, "words").open()?;
/// let ticket: u32 = draw(&words)?.wait(None)?;
/// # Ok(()) }
/// ```
pub trait Outcome: sealed::Outcome {}
impl<T: sealed::Outcome> Outcome for T {}

/// Launches an operation, for the caller to wait for.
fn launch<T: Outcome>(launch: &Launch<'_>) -> Result<Operation<T>> {
    let context = &launch.target.handle.context;
    Ok(Operation {
        context: context.clone(),
        progress: launch.start(context.clone(), &mut Backoff::new(None))?,
        operation: launch.operation,
        label: launch.target.handle.label.clone(),
        outcome: PhantomData,
    })
}

/// Launches an operation and waits for it.
fn perform<T: Outcome>(launch: &Launch<'_>) -> Result<T> {
    let mut backoff = Backoff::new(None);
    let context = &launch.target.handle.context;
    let answer = launch.start(&**context, &mut backoff)?.wait(&mut backoff)?;
    result(context, answer, &backoff, || launch.what())
}

/// The result of an operation whose wait has ended with this answer, or without one.
fn result<T: Outcome>(
    context: &Context,
    answer: Option<(Status, u64)>,
    backoff: &Backoff,
    what: impl FnOnce() -> String,
) -> Result<T> {
    match answer {
        Some((Status::Ok, value)) => Ok(T::from_word(value)),
        Some((status, _)) => Err(Error::Failed { what: what(), status }),
        None => Err(context.pending(what(), backoff)),
    }
}

/// An atomic or a copy that was launched.
///
/// The board performs it in any case: dropping the handle neither stops nor loses it. A program that does not need the
/// result may drop the handle and rely on [`quiet`](crate::Node::quiet), which covers it. A context has 64 slots for
/// operations in flight; a launch that finds none free waits until one of those operations has ended, whether its
/// handle was polled or not.
///
/// # Memory ordering The operation is performed after the earlier stores of this thread to the same node, and after
/// earlier ordinary stores to the memory that it reads. A thread that has seen it done sees its effects (acquire). Two
/// operations in flight at the same time are not ordered, unless both are atomics launched by one thread to one node; a
/// copy moves in blocks, which later stores may pass.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// # let ring = node.export("ring", 64 << 10).create()?;
/// # let remote = node.import(3, "ring").open()?;
/// let mut copy = remote.get_nbi(0, &ring, 0, 64 << 10)?; // returns before the data lands
/// while !copy.is_done() {
///     // something else
/// }
/// copy.wait(Some(Duration::from_secs(1)))?; // returns its error, if it failed
/// # Ok(()) }
/// ```
#[must_use = "the operation continues when this is dropped, and only quiet waits for it"]
pub struct Operation<T: Outcome> {
    context: Arc<Context>,
    progress: Progress<Arc<Context>>,
    operation: context::Operation,
    label: Arc<str>,
    outcome: PhantomData<fn() -> T>,
}

impl<T: Outcome> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = describe(self.operation, &self.label);
        match &self.progress {
            Progress::InFlight(request) => write!(f, "Operation({what}, slot {})", request.slot),
            Progress::Done(status, _) => write!(f, "Operation({what}, done: {status:?})"),
        }
    }
}

impl<T: Outcome> Operation<T> {
    /// Whether it has ended, successfully or not. A load from memory, no system call.
    pub fn is_done(&mut self) -> bool {
        self.progress.poll().is_some()
    }

    fn result(&mut self, backoff: &Backoff) -> Result<T> {
        result(&self.context, self.progress.poll(), backoff, || describe(self.operation, &self.label))
    }

    /// Its result, waited for by polling memory with growing pauses; past `timeout` (`None`: never) [`Error::Pending`],
    /// after which it may be called again. Fails with [`Error::Failed`] if the operation did.
    ///
    /// A copy is slept through until shortly before its expected end, known from earlier copies of about its length.
    /// What is overdue by 20 ms is waited for as by [`Operation::wait_event`], unless the program reads the events
    /// itself ([`Node::completions`](crate::Node::completions)), or shares its open file with another process.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<T> {
        let mut backoff = Backoff::new(timeout);
        self.progress.wait(&mut backoff)?;
        self.result(&backoff)
    }

    /// [`Operation::wait`] that sleeps until the board's interrupt instead of polling: for long copies.
    pub fn wait_event(&mut self, timeout: Option<Duration>) -> Result<T> {
        let backoff = Backoff::new(timeout);
        if let Progress::InFlight(request) = &mut self.progress {
            let Context { completions, device, .. } = &*self.context;
            completions.prepare(device)?;
            request.arm();
            completions.wait(device, &backoff, || request.poll().is_some())?;
        }
        self.result(&backoff)
    }

    /// Makes [`Node::completions`](crate::Node::completions) readable when this is done; at once if it is, so that no
    /// wake-up is lost between a poll and the sleep.
    pub fn arm(&mut self) -> Result<()> {
        let Context { completions, device, .. } = &*self.context;
        match &mut self.progress {
            Progress::InFlight(request) => {
                completions.fd(device)?;
                request.arm();
                Ok(())
            }
            // The answer was fetched, so the board has no record of the request any more.
            Progress::Done(..) => completions.signal(device),
        }
    }

    /// The same operation with its value in 64 bits.
    pub(crate) fn widen(self) -> Operation<u64> {
        let Operation { context, progress, operation, label, .. } = self;
        Operation { context, progress, operation, label, outcome: PhantomData }
    }
}

/// Copies `length` bytes (1 to [`MAX_COPY`], at any alignment) from `src_offset` of `src` to `dst_offset` of `dst`; at
/// least one of them is memory of this node (user-level DMA and remote copy, s1, SPEC item 17). Returns before the data
/// lands.
///
/// A segment of this node is given as its [`Segment::remote`](crate::Segment::remote), memory that the process had
/// before as its [`Registration::remote`](crate::Registration::remote). The source needs the rights to load and to
/// copy, the destination those to store and to copy. The board refuses ranges that overlap ([`Status::Overlap`]), and
/// two remote ones ([`Status::NotLocal`]). The bytes move in blocks, in no particular order.
pub fn copy_nbi(dst: &Remote, dst_offset: u64, src: &Remote, src_offset: u64, length: u64) -> Result<Operation<()>> {
    launch(&copy_launch(dst, dst_offset, src, src_offset, length)?)
}

/// [`copy_nbi`] that waits until the copy is done.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let ring = node.export("ring", 64 << 10).create()?;
/// # let remote = node.import(3, "ring").open()?;
/// telegraphos::copy(ring.remote()?, 0, &remote, 4096, 1000)?; // node 3's bytes into this node's memory
/// # Ok(()) }
/// ```
pub fn copy(dst: &Remote, dst_offset: u64, src: &Remote, src_offset: u64, length: u64) -> Result<()> {
    perform(&copy_launch(dst, dst_offset, src, src_offset, length)?)
}

/// A copy, checked.
fn copy_launch<'a>(
    dst: &'a Remote,
    dst_offset: u64,
    src: &'a Remote,
    src_offset: u64,
    length: u64,
) -> Result<Launch<'a>> {
    if length == 0 || length > MAX_COPY {
        return Err(Error::argument("the length of a copy", length, format!("1 to {MAX_COPY} bytes")));
    }
    if !Arc::ptr_eq(&dst.handle.context, &src.handle.context) {
        return Err(Error::argument(
            "the source of a copy",
            format!("an import of another Node than that of {}", dst.handle.label),
            "source and destination imported through the same Node",
        ));
    }
    for (remote, offset, right) in [(dst, dst_offset, Rights::WRITE), (src, src_offset, Rights::READ)] {
        check::<u8>(offset, length, remote.size(), || remote.what())?;
        if !remote.rights().contains(Rights(Rights::DMA.0 | right.0)) {
            let what = if right == Rights::READ { "copy from it" } else { "copy to it" };
            return Err(remote.lacks(what, "it needs the rights to copy (DMA) and to load or store"));
        }
    }
    Ok(Launch {
        operation: context::Operation::Copy,
        target: dst,
        target_offset: dst_offset,
        source: Some((src, src_offset)),
        length,
        operand: 0,
        compare: 0,
    })
}

/// Opens the gate of a registration, given as its own import, to a node for its first `length` bytes, or closes it if
/// that is 0; returns when the board has.
pub(crate) fn set_gate(own: &Remote, node: NodeId, length: u64) -> Result<()> {
    perform(&Launch {
        operation: context::Operation::Gate,
        target: own,
        target_offset: 0,
        source: None,
        length,
        operand: node.into(),
        compare: 0,
    })
}

/// Atomics (s1, SPEC item 18). They run in the HIB of the word's node, one after the other, so they are linearisable
/// with each other and with words stored and loaded through windows, from any node.
///
/// They are *not* atomic with the locked instructions of that node's processors: processes there use these atomics,
/// too, on [`Segment::remote`](crate::Segment::remote). The word lies at a multiple of its 4 or 8 bytes, and the import
/// needs the right to atomics. [`Error::Failed`] says why the board has refused. One that fails has not changed the
/// word, unless its status is [`Status::Timeout`], [`Status::NodeDown`] or [`Status::LinkDown`]: then it may have.
impl Remote {
    /// An atomic, checked.
    fn atomic<T: AtomicWord>(&self, offset: u64, op: AtomicOp, operand: T, compare: T) -> Result<Launch<'_>> {
        check::<T>(offset, 1, self.size(), || self.what())?;
        if !self.rights().contains(Rights::ATOMIC) {
            return Err(self.lacks("change it atomically", "import it with that right"));
        }
        Ok(Launch {
            operation: context::Operation::Atomic { op, size: T::SIZE as u8 },
            target: self,
            target_offset: offset,
            source: None,
            length: 0,
            operand: operand.to_u64(),
            compare: compare.to_u64(),
        })
    }

    /// Fetch-and-store: the word becomes `value`; gives what it was.
    pub fn swap<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T> {
        perform(&self.atomic(offset, AtomicOp::Swap, value, T::from_u64(0))?)
    }

    /// [`Remote::swap`] that does not wait.
    pub fn swap_nbi<T: AtomicWord>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        launch(&self.atomic(offset, AtomicOp::Swap, value, T::from_u64(0))?)
    }

    /// Adds `value`, wrapping; gives what the word was.
    pub fn fetch_add<T: AtomicWord>(&self, offset: u64, value: T) -> Result<T> {
        perform(&self.atomic(offset, AtomicOp::Add, value, T::from_u64(0))?)
    }

    /// [`Remote::fetch_add`] that does not wait.
    pub fn fetch_add_nbi<T: AtomicWord>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        launch(&self.atomic(offset, AtomicOp::Add, value, T::from_u64(0))?)
    }

    /// Adds 1, wrapping; gives what the word was.
    pub fn fetch_inc<T: AtomicWord>(&self, offset: u64) -> Result<T> {
        self.fetch_add(offset, T::from_u64(1))
    }

    /// [`Remote::fetch_inc`] that does not wait.
    pub fn fetch_inc_nbi<T: AtomicWord>(&self, offset: u64) -> Result<Operation<T>> {
        self.fetch_add_nbi(offset, T::from_u64(1))
    }

    /// The word becomes `value` if it is `expected`; gives what it was, so it has been changed exactly if that is
    /// `expected`.
    pub fn compare_swap<T: AtomicWord>(&self, offset: u64, expected: T, value: T) -> Result<T> {
        perform(&self.atomic(offset, AtomicOp::CompareSwap, value, expected)?)
    }

    /// [`Remote::compare_swap`] that does not wait.
    pub fn compare_swap_nbi<T: AtomicWord>(&self, offset: u64, expected: T, value: T) -> Result<Operation<T>> {
        launch(&self.atomic(offset, AtomicOp::CompareSwap, value, expected)?)
    }

    /// Copies `length` bytes from `src_offset` of local memory to `offset` of this import; see [`copy`].
    pub fn put_block(&self, offset: u64, src: &impl Local, src_offset: u64, length: u64) -> Result<()> {
        copy(self, offset, src.local()?, src_offset, length)
    }

    /// [`Remote::put_block`] that does not wait. The source must not change before it is done.
    pub fn put_nbi(&self, offset: u64, src: &impl Local, src_offset: u64, length: u64) -> Result<Operation<()>> {
        copy_nbi(self, offset, src.local()?, src_offset, length)
    }

    /// Copies `length` bytes from `offset` of this import to `dst_offset` of local memory; see [`copy`].
    pub fn get_block(&self, offset: u64, dst: &impl Local, dst_offset: u64, length: u64) -> Result<()> {
        copy(dst.local()?, dst_offset, self, offset, length)
    }

    /// [`Remote::get_block`] that does not wait: the papers' fetch(remote, local).
    pub fn get_nbi(&self, offset: u64, dst: &impl Local, dst_offset: u64, length: u64) -> Result<Operation<()>> {
        copy_nbi(dst.local()?, dst_offset, self, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Instructions;
    use crate::access_policy::{FULL, READ_WRITE};
    use crate::launch_style::LaunchStyle;
    use crate::pending_request::PendingRequest;
    use crate::slots::SlotUse;

    fn board() -> Arc<Context> {
        Arc::new(Context::without_board())
    }

    fn passed(remote: &Remote, offset: u64) -> context::Argument {
        let at = remote.arguments().unwrap().wrapping_add(offset as usize).cast::<u64>();
        // SAFETY: the test's own page.
        context::Argument::decode(unsafe { Instructions::load_acquire(at) })
    }

    fn argument(slot: u8, which: u8) -> context::Argument {
        context::Argument { context: 5, slot, which, key: 0x0123_4567_89ab }
    }

    #[test]
    fn an_atomic_is_launched_as_the_interface_says() {
        let context = board();
        let remote = Remote::without_board(&context, 9, 1, FULL);
        let mut first = remote.fetch_add_nbi(64, 7u64).unwrap();
        let mut second = remote.compare_swap_nbi(100, 3u32, u32::MAX).unwrap();
        let register = |slot: u64, offset| context.slots.register(context::REGISTERS + context::STRIDE * slot + offset);
        assert_eq!(passed(&remote, 64), argument(0, 0));
        assert_eq!(passed(&remote, 96), argument(1, 0));
        assert_eq!((register(0, context::OPERAND), register(0, context::LENGTH)), (7, 0));
        // The high word of its eight bytes.
        assert_eq!(
            [context::OPERAND, context::COMPARE, context::LENGTH].map(|r| register(1, r)),
            [0xffff_ffff, 3, 4 << 48]
        );
        let launched = |slot| context::Launch::decode(register(slot, context::LAUNCH)).unwrap();
        assert_eq!(launched(0).operation, context::Operation::Atomic { op: AtomicOp::Add, size: 8 });
        assert_eq!(launched(1).operation, context::Operation::Atomic { op: AtomicOp::CompareSwap, size: 4 });
        assert_ne!(launched(0).cookie, launched(1).cookie);

        assert!(!first.is_done() && !second.is_done());
        let timed_out = first.wait(Some(Duration::ZERO));
        assert!(matches!(timed_out, Err(Error::Pending { operations: 2, .. })), "{timed_out:?}");
        context.slots.give_answer(1, Status::Ok, 0xffff_ffff_0000_0003);
        assert_eq!(second.wait(None).unwrap(), 3);
        assert_eq!(context.slots.unfinished(), 1);
        context.slots.give_answer(0, Status::Rights, u64::MAX);
        let failed = first.wait(None).unwrap_err();
        assert_eq!(failed.status(), Some(Status::Rights));
        assert!(failed.to_string().starts_with("an atomic on segment \"x\" of node 1: "), "{failed}");
        assert_eq!(first.wait(None).unwrap_err().status(), Some(Status::Rights), "the second call");
    }

    #[test]
    fn an_atomic_by_load_is_launched_as_the_interface_says() {
        let context = board();
        context.set_launch_style(LaunchStyle::Load);
        let remote = Remote::without_board(&context, 9, 1, FULL);
        // The board's answer.
        context.slots.write_register(context::FETCH, 0x1234_5678_9abc_def0);
        assert_eq!(remote.fetch_add(64, 7u64).unwrap(), 0x1234_5678_9abc_def0);
        assert_eq!(remote.compare_swap(100, 3u32, u32::MAX).unwrap(), 0x9abc_def0);
        let register = |offset| context.slots.register(context::REGISTERS + offset);
        assert_eq!((passed(&remote, 64), passed(&remote, 96)), (argument(0, 0), argument(0, 0)));
        let length = (AtomicOp::CompareSwap as u64) << 56 | 4 << 48;
        assert_eq!([context::OPERAND, context::COMPARE, context::LENGTH].map(register), [0xffff_ffff, 3, length]);
        assert_eq!(
            (register(context::LAUNCH), context.slots.unfinished()),
            (0, 0),
            "nothing else, and its slot is free"
        );
        let mut done = remote.swap_nbi(0, 1u64).unwrap();
        assert!(done.is_done());
        // All ones is a value, unless an error was counted.
        context.slots.write_register(context::FETCH, u64::MAX);
        assert!(matches!(remote.fetch_inc::<u64>(0), Err(Error::Os { .. })), "no driver answers");
        // A copy has no result to load.
        let copy = copy_nbi(&remote, 0, &remote, 1000, 10).unwrap();
        assert_ne!(register(context::LAUNCH), 0);
        drop(copy);
    }

    #[test]
    fn a_copy_passes_both_addresses_with_their_low_bits() {
        let context = board();
        let (far, near) = (Remote::without_board(&context, 1, 1, FULL), Remote::without_board(&context, 2, 0, FULL));
        let mut operation = copy_nbi(&far, 1003, &near, 17, 2989).unwrap();
        assert_eq!((passed(&far, 1000), passed(&near, 16)), (argument(0, 0), argument(0, 1)));
        assert_eq!(context.slots.register(context::REGISTERS + context::LENGTH), 2989 | 3 << 48 | 1 << 52);
        operation.arm().unwrap_err(); // No board gives events.
        context.slots.give_answer(0, Status::Ok, 0);
        operation.wait(None).unwrap();
        // Its slot is free again.
        drop(copy_nbi(&far, 0, &near, 0, 1).unwrap());
        assert_eq!(passed(&far, 0), argument(0, 0));
    }

    #[test]
    fn an_import_without_a_window_is_named_by_its_number() {
        let context = board();
        let far = Remote::without_board(&context, 1, 1, FULL);
        let handle = crate::handle::Handle::new(context.clone(), 700, "memory", None);
        let near = Remote::windowless(handle, 0, "", 5 << 30, FULL);
        let offset = (4 << 30) + 13;
        let mut operation = copy_nbi(&far, 1003, &near, offset, 2989).unwrap();
        let word = context.slots.register(context::ARGUMENT);
        let named = context::NumberedArgument { slot: 0, which: 1, import: 700, offset };
        assert_eq!(context::NumberedArgument::decode(word), named);
        // Its low bits are there, those of the other argument in LENGTH.
        assert_eq!(context.slots.register(context::REGISTERS + context::LENGTH), 2989 | 3 << 48);
        context.slots.give_answer(0, Status::Ok, 0);
        operation.wait(None).unwrap();
        assert!(matches!(near.get64(0), Err(Error::Right { .. })), "there is nothing to load from");
    }

    #[test]
    fn invalid_arguments_are_refused_before_the_board_sees_them() {
        let (context, other) = (board(), board());
        let far = Remote::without_board(&context, 1, 1, FULL);
        let plain = Remote::without_board(&context, 2, 1, READ_WRITE);
        let foreign = Remote::without_board(&other, 3, 1, FULL);
        assert!(matches!(far.swap(4, 1u64), Err(Error::Misaligned { width: 8, .. })));
        assert!(matches!(far.swap(2, 1u32), Err(Error::Misaligned { width: 4, .. })));
        assert!(matches!(far.swap(4000, 1u64), Err(Error::Bounds { .. })));
        assert!(matches!(plain.fetch_inc::<u64>(0), Err(Error::Right { .. })));
        assert!(matches!(copy(&far, 0, &plain, 0, 8), Err(Error::Right { .. })));
        assert!(matches!(copy(&plain, 0, &far, 0, 8), Err(Error::Right { .. })));
        assert!(matches!(copy(&far, 0, &foreign, 0, 8), Err(Error::Argument { .. })));
        for length in [0, MAX_COPY + 1, 1 << 63, u64::MAX] {
            assert!(matches!(copy(&far, 0, &far, 0, length), Err(Error::Argument { .. })), "{length}");
        }
        for (to, from, length) in [(3999, 0, 2), (0, 3000, 1001), (u64::MAX, 0, 1)] {
            assert!(matches!(copy(&far, to, &far, from, length), Err(Error::Bounds { .. })));
        }
        for slot in 0..64 {
            assert_eq!(context.slots.register(context::REGISTERS + context::STRIDE * slot + context::LAUNCH), 0);
        }
    }

    #[test]
    fn a_handle_dropped_keeps_its_slot_until_the_end() {
        let context = board();
        let remote = Remote::without_board(&context, 1, 1, FULL);
        for _ in 0..64 {
            drop(remote.fetch_inc_nbi::<u64>(0).unwrap());
        }
        assert_eq!(context.slots.unfinished(), 64);
        let mut backoff = Backoff::new(Some(Duration::ZERO));
        assert!(PendingRequest::new(&*context, SlotUse::Operation, &mut backoff).is_none());
        context.slots.give_answer(40, Status::Ok, 0);
        assert_eq!(PendingRequest::new(&*context, SlotUse::Operation, &mut backoff).map(|q| q.slot), Some(40));
    }
}
