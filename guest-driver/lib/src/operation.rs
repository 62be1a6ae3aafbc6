// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics and block copies (SPEC items 17 to 20).
//!
//! The default launch is that of Telegraphos II (s1, SPEC item 20), all of it stores:
//!
//! ```text
//!   argument aperture of the import:  at the address meant <- context | slot | which | key      (once or twice)
//!   the slot's registers:             OPERAND, COMPARE, LENGTH <- ...                            (as needed)
//!                                     LAUNCH <- operation | cookie                               (starts it)
//!   status page, written by the HIB:  value[slot], then done[slot] = status | cookie
//! ```
//!
//! By [`LaunchStyle::Load`] the last access of an atomic is a load of `FETCH[slot]` instead, which launches it and
//! returns its result.
//!
//! Only who has the page in its page tables can pass its address, and the board believes the context only with its key.
//! A slot keeps its arguments however long the process is interrupted, and belongs to one thread.

use crate::access::{AtomicWord, publish};
use crate::error::{Error, Result, status_of};
use crate::node::Inner;
use crate::remote::Remote;
use crate::segment::Segment;
use crate::slots::{Backoff, Question, Use};
use crate::sys;
use rustix::io::Errno;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use telegraphos_wire::{AtomicOp, Rights, Status, context, uapi};

/// Longest copy in bytes.
pub const MAX_COPY: u64 = 16 << 20;

/// How an operation reaches the board. All do the same, so that they can be compared (SPEC items 19 to 21).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::LaunchStyle;
/// # let words = node.import(3, "words").open()?;
/// node.set_launch_style(LaunchStyle::Load); // no system call, and the result by one load
/// let ticket: u64 = words.fetch_inc(0)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LaunchStyle {
    /// A system call that does everything in the kernel: the yardstick. The operation is done when the call returns.
    /// Needs `telegraphos_lab.ko`.
    Plain = 0,
    /// Telegraphos I (s1, SPEC item 19): the kernel, standing in for PAL code, makes the board take the next accesses
    /// to the window as arguments. The operation is done when the call returns. Needs `telegraphos_lab.ko`.
    Special = 1,
    /// Telegraphos II (s1, SPEC item 20): stores from user level, no system call.
    #[default]
    Context = 2,
    /// The same, but the last access of an atomic is a load that returns its result (s1). The processor, and with it
    /// the virtual machine, stands still until that is there; the operation is done when the call returns. Copies,
    /// which have no result, are launched as by [`LaunchStyle::Context`].
    Load = 3,
}

impl LaunchStyle {
    /// Every style.
    pub const ALL: [LaunchStyle; 4] =
        [LaunchStyle::Plain, LaunchStyle::Special, LaunchStyle::Context, LaunchStyle::Load];

    pub(crate) fn from_u32(number: u32) -> Option<LaunchStyle> {
        LaunchStyle::ALL.into_iter().find(|style| *style as u32 == number)
    }
}

mod sealed {
    /// What an operation gives.
    pub trait Outcome {
        /// From the word that the HIB has written.
        fn from_word(word: u64) -> Self;
    }
    impl Outcome for () {
        fn from_word(_: u64) {}
    }
    impl Outcome for u32 {
        fn from_word(word: u64) -> u32 {
            word as u32
        }
    }
    impl Outcome for u64 {
        fn from_word(word: u64) -> u64 {
            word
        }
    }
}

/// What an operation gives: the previous value of an atomic's word, or nothing for a copy.
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

/// Which operation, on what; checked.
struct Request<'a> {
    operation: context::Operation,
    /// Of an atomic, or destination of a copy.
    target: &'a Remote,
    target_offset: u64,
    /// Of a copy.
    source: Option<(&'a Remote, u64)>,
    length: u64,
    operand: u64,
    compare: u64,
}

/// An operation under way, or its end.
enum Progress<I: Deref<Target = Inner>> {
    Asked(Question<I>),
    Done(Status, u64),
}

impl<I: Deref<Target = Inner>> Progress<I> {
    fn look(&mut self) -> Option<(Status, u64)> {
        match self {
            Progress::Asked(question) => {
                let (status, value) = question.look()?;
                // Gives the slot back.
                *self = Progress::Done(status, value);
                Some((status, value))
            }
            Progress::Done(status, value) => Some((*status, *value)),
        }
    }

    fn wait(&mut self, backoff: &mut Backoff) -> Result<Option<(Status, u64)>> {
        if let Progress::Asked(question) = self {
            question.wait(backoff, Inner::can_still_answer)?;
        }
        Ok(self.look())
    }
}

impl Request<'_> {
    fn what(&self) -> String {
        describe(self.operation, &self.target.label)
    }

    fn start<I: Deref<Target = Inner>>(&self, inner: I, backoff: &mut Backoff) -> Result<Progress<I>> {
        let style = inner.launch_style();
        if style == LaunchStyle::Plain {
            return self.call(&inner, style, 0);
        }
        let Some(question) = Question::new(inner, Use::Operation, backoff) else {
            let what = format!("a free slot for {}", self.what());
            return Err(self.target.inner.pending(what, backoff));
        };
        match style {
            LaunchStyle::Load => match self.operation {
                context::Operation::Atomic { op, size } => self.load(question, op, size),
                context::Operation::Copy => self.store(question),
            },
            LaunchStyle::Context => self.store(question),
            LaunchStyle::Special | LaunchStyle::Plain => self.call(&question.inner, style, question.slot),
        }
    }

    /// Passes the addresses; their low bits, as LENGTH takes them.
    fn pass<I: Deref<Target = Inner>>(&self, question: &Question<I>) -> Result<u64> {
        let place = |remote: &Remote, offset: u64, which: u8| -> Result<u64> {
            let window = remote.arguments()?;
            let word = question.inner.argument(question.slot, which);
            // SAFETY: the offset was checked against the import's size, and the mapping is that long in whole pages;
            // rounded down to 8 bytes the word lies aligned in it.
            unsafe {
                crate::access::Instructions::window_store(window.add((offset & !7) as usize).cast::<u64>(), word)
            };
            Ok(offset & 7)
        };
        publish();
        let low = place(self.target, self.target_offset, 0)?;
        let low = match self.source {
            Some((remote, offset)) => low | place(remote, offset, 1)? << 4,
            None => low,
        };
        if let context::Operation::Atomic { op, .. } = self.operation {
            let (slots, registers) = (&question.inner.slots, registers_of(question.slot));
            slots.tell(registers + context::OPERAND, self.operand);
            if op == AtomicOp::CompareSwap {
                slots.tell(registers + context::COMPARE, self.compare);
            }
        }
        Ok(low << 48)
    }

    /// Telegraphos II.
    fn store<I: Deref<Target = Inner>>(&self, mut question: Question<I>) -> Result<Progress<I>> {
        let low = self.pass(&question)?;
        let registers = registers_of(question.slot);
        question.inner.slots.tell(registers + context::LENGTH, self.length | low);
        let launch = context::Launch { operation: self.operation, notify: false, cookie: question.cookie() };
        question.ask(registers + context::LAUNCH, launch.encode());
        Ok(Progress::Asked(question))
    }

    /// An atomic whose last access is a load.
    fn load<I: Deref<Target = Inner>>(&self, question: Question<I>, op: AtomicOp, size: u8) -> Result<Progress<I>> {
        let (inner, slots) = (&*question.inner, &question.inner.slots);
        let low = self.pass(&question)?;
        slots.tell(registers_of(question.slot) + context::LENGTH, (op as u64) << 56 | low);
        let errors = slots.errors();
        let value = slots.fetch_word(context::FETCH + 8 * u64::from(question.slot), size);
        let all_ones = u64::MAX >> (64 - 8 * u32::from(size));
        if value != all_ones {
            return Ok(Progress::Done(Status::Ok, value));
        }
        // The word's value, or a load that could not be served: then an error was counted before it was answered, or
        // the board is gone.
        inner.can_still_answer()?;
        if slots.errors() == errors {
            return Ok(Progress::Done(Status::Ok, value));
        }
        let state = inner.import_state(self.target.handle(), &|| self.target.what())?;
        Ok(Progress::Done(state.error.unwrap_or(Status::Argument), u64::MAX))
    }

    /// One system call.
    fn call<I: Deref<Target = Inner>>(&self, inner: &Inner, style: LaunchStyle, slot: u32) -> Result<Progress<I>> {
        let address = |remote: &Remote, offset: u64| match style {
            LaunchStyle::Special if remote.as_ptr().is_null() => {
                Err(remote.lacks("pass its addresses in special mode", "import it with the right to load or to store"))
            }
            LaunchStyle::Special => Ok(remote.as_ptr() as u64 + offset),
            LaunchStyle::Context | LaunchStyle::Load | LaunchStyle::Plain => Ok(offset),
        };
        let word = context::Launch { operation: self.operation, notify: false, cookie: 0 }.encode();
        let mut launch = uapi::Launch {
            style: style as u32,
            // From `operation << 56 | flags << 48`.
            operation: (word >> 56) as u32 | ((word >> 48) as u32 & u32::from(context::WIDE)) << 8,
            target: self.target.handle(),
            target_address: address(self.target, self.target_offset)?,
            length: self.length,
            operand: self.operand,
            compare: self.compare,
            slot,
            ..uapi::Launch::default()
        };
        if let Some((remote, offset)) = self.source {
            launch.source = remote.handle();
            launch.source_address = address(remote, offset)?;
        }
        if style == LaunchStyle::Special {
            (launch.target, launch.source) = (0, 0);
        }
        publish();
        match sys::launch(inner.fd(), &mut launch) {
            Ok(()) => Ok(Progress::Done(Status::Ok, launch.value)),
            Err(Errno::NOTTY) => Err(Error::Os {
                what: format!(
                    "{}: launch style {style:?} is for comparisons, and the module of that is not loaded: \
                     insmod telegraphos_lab.ko",
                    self.what()
                ),
                errno: Errno::NOTTY,
            }),
            Err(errno) => {
                let status = match launch.status {
                    0 => status_of(errno),
                    status => Some(Status::from_u16(status as u16)),
                };
                match status {
                    Some(status) => Ok(Progress::Done(status, u64::MAX)),
                    None => Err(inner.error(&self.what(), errno)),
                }
            }
        }
    }

    fn launch<T: Outcome>(&self) -> Result<Operation<T>> {
        let mut backoff = Backoff::new(None);
        Ok(Operation {
            inner: self.target.inner.clone(),
            progress: self.start(self.target.inner.clone(), &mut backoff)?,
            operation: self.operation,
            label: self.target.label.clone(),
            outcome: PhantomData,
        })
    }

    /// Launches and waits, without a handle.
    fn perform<T: Outcome>(&self) -> Result<T> {
        let mut backoff = Backoff::new(None);
        let mut progress = self.start(&*self.target.inner, &mut backoff)?;
        match progress.wait(&mut backoff)? {
            Some((Status::Ok, value)) => Ok(T::from_word(value)),
            Some((status, _)) => Err(Error::Failed { what: self.what(), status }),
            None => Err(self.target.inner.pending(self.what(), &backoff)),
        }
    }
}

/// Where a slot's launch registers are in the context page.
fn registers_of(slot: u32) -> u64 {
    context::REGISTERS + context::STRIDE * u64::from(slot)
}

fn describe(operation: context::Operation, label: &str) -> String {
    match operation {
        context::Operation::Atomic { .. } => format!("an atomic on {label}"),
        context::Operation::Copy => format!("a copy to {label}"),
    }
}

/// An atomic or a copy that was launched.
///
/// It goes on by itself: dropping the handle neither stops nor loses it. Who does not need its result may drop the
/// handle and rely on [`quiet`](crate::Node::quiet), which covers it. A context has 64 slots for what is under way; a
/// launch that finds none free waits until one of those operations has ended, whether anybody has looked or not.
///
/// # Memory ordering
/// The operation is performed after the earlier stores of this thread to the same node, and after earlier ordinary
/// stores to the memory that it reads. When it is seen to be done, what it did is visible to the thread that looked
/// (acquire). Between two operations under way at the same time there is no order but that of atomics launched by one
/// thread to one node; a copy moves in blocks, which stores launched later may pass.
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
/// copy.wait(Some(Duration::from_secs(1)))?; // tells of errors
/// # Ok(()) }
/// ```
#[must_use = "dropped, it goes on and only quiet tells of its end"]
pub struct Operation<T: Outcome> {
    inner: Arc<Inner>,
    progress: Progress<Arc<Inner>>,
    operation: context::Operation,
    label: Arc<str>,
    outcome: PhantomData<fn() -> T>,
}

impl<T: Outcome> fmt::Debug for Operation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = describe(self.operation, &self.label);
        match &self.progress {
            Progress::Asked(question) => write!(f, "Operation({what}, slot {})", question.slot),
            Progress::Done(status, _) => write!(f, "Operation({what}, done: {status:?})"),
        }
    }
}

impl<T: Outcome> Operation<T> {
    /// Whether it has ended, well or badly: one look at memory, no system call.
    pub fn is_done(&mut self) -> bool {
        self.progress.look().is_some()
    }

    fn result(&mut self, backoff: &Backoff) -> Result<T> {
        let what = describe(self.operation, &self.label);
        match self.progress.look() {
            Some((Status::Ok, value)) => Ok(T::from_word(value)),
            Some((status, _)) => Err(Error::Failed { what, status }),
            None => Err(self.inner.pending(what, backoff)),
        }
    }

    /// Its result, waited for by looking at memory, in growing steps; past `timeout` (`None`: never)
    /// [`Error::Pending`], after which it may be called again. Fails with [`Error::Failed`] if the operation did.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<T> {
        let mut backoff = Backoff::new(timeout);
        self.progress.wait(&mut backoff)?;
        self.result(&backoff)
    }

    /// [`Operation::wait`] that sleeps until the board's interrupt instead of looking again and again: for long copies.
    pub fn wait_event(&mut self, timeout: Option<Duration>) -> Result<T> {
        let backoff = Backoff::new(timeout);
        if let Progress::Asked(question) = &mut self.progress {
            self.inner.bell.ready(&self.inner)?;
            question.arm();
            self.inner.bell.wait(&self.inner, &backoff, || question.look().is_some())?;
        }
        self.result(&backoff)
    }

    /// Asks for [`Node::completions`](crate::Node::completions) to become readable when this is done; at once if it is,
    /// so that no wake-up is lost between a look and the sleep.
    pub fn arm(&mut self) -> Result<()> {
        match &mut self.progress {
            Progress::Asked(question) => {
                self.inner.bell.ready(&self.inner)?;
                question.arm();
                Ok(())
            }
            // Its end has been seen, so the board knows nothing of it any more.
            Progress::Done(..) => self.inner.bell.pull(&self.inner),
        }
    }

    /// The same with its value in 64 bits.
    pub(crate) fn widen(self) -> Operation<u64> {
        let Operation { inner, progress, operation, label, .. } = self;
        Operation { inner, progress, operation, label, outcome: PhantomData }
    }
}

/// Copies `length` bytes (1 to [`MAX_COPY`], at any alignment) from `src_offset` of `src` to `dst_offset` of `dst`; at
/// least one of them is memory of this node (user-level DMA and remote copy, s1, SPEC item 17). Returns before the data
/// lands.
///
/// Memory of ours is named by [`Segment::remote`]. The source needs the rights to load and to copy, the destination
/// those to store and to copy. The board refuses ranges that overlap ([`Status::Overlap`]), and two remote ones
/// ([`Status::NotLocal`]). The bytes move in blocks, in no order that others may rely on.
pub fn copy_nbi(dst: &Remote, dst_offset: u64, src: &Remote, src_offset: u64, length: u64) -> Result<Operation<()>> {
    copy_request(dst, dst_offset, src, src_offset, length)?.launch()
}

/// [`copy_nbi`], waited for.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let ring = node.export("ring", 64 << 10).create()?;
/// # let remote = node.import(3, "ring").open()?;
/// telegraphos::copy(ring.remote()?, 0, &remote, 4096, 1000)?; // node 3's bytes into our memory
/// # Ok(()) }
/// ```
pub fn copy(dst: &Remote, dst_offset: u64, src: &Remote, src_offset: u64, length: u64) -> Result<()> {
    copy_request(dst, dst_offset, src, src_offset, length)?.perform()
}

fn copy_request<'a>(
    dst: &'a Remote,
    dst_offset: u64,
    src: &'a Remote,
    src_offset: u64,
    length: u64,
) -> Result<Request<'a>> {
    if length == 0 || length > MAX_COPY {
        return Err(Error::Argument {
            what: "the length of a copy",
            value: length.to_string(),
            expected: format!("1 to {MAX_COPY} bytes"),
        });
    }
    if !Arc::ptr_eq(&dst.inner, &src.inner) {
        return Err(Error::Argument {
            what: "the source of a copy",
            value: format!("an import of another Node than that of {}", dst.label),
            expected: "source and destination imported through the same Node".into(),
        });
    }
    for (remote, offset, right) in [(dst, dst_offset, Rights::WRITE), (src, src_offset, Rights::READ)] {
        crate::segment::check::<u8>(offset, length, remote.size(), || remote.what())?;
        if !remote.rights().contains(Rights(Rights::DMA.0 | right.0)) {
            let what = if right == Rights::READ { "copy from it" } else { "copy to it" };
            return Err(remote.lacks(what, "it needs the rights to copy (DMA) and to load or store"));
        }
    }
    Ok(Request {
        operation: context::Operation::Copy,
        target: dst,
        target_offset: dst_offset,
        source: Some((src, src_offset)),
        length,
        operand: 0,
        compare: 0,
    })
}

/// Atomics (s1, SPEC item 18). They run in the HIB of the word's node, one after the other, so they are linearisable
/// with each other and with words stored and loaded through windows, whoever launches them.
///
/// They are *not* atomic with the processor's own locked instructions on that node: there, too, use these, on
/// [`Segment::remote`]. The word lies at a multiple of its 4 or 8 bytes, and the import needs the right to atomics.
/// [`Error::Failed`] says why the board has refused. A failed one has not changed the word, unless its status is
/// [`Status::Timeout`], [`Status::NodeDown`] or [`Status::LinkDown`]: then nobody knows.
impl Remote {
    fn atomic<T: AtomicWord>(&self, offset: u64, op: AtomicOp, operand: T, compare: T) -> Result<Request<'_>> {
        crate::segment::check::<T>(offset, 1, self.size(), || self.what())?;
        if !self.rights().contains(Rights::ATOMIC) {
            return Err(self.lacks("change it atomically", "import it with that right"));
        }
        Ok(Request {
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
    pub fn swap<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<T> {
        self.atomic(offset, AtomicOp::Swap, value, T::from_u64(0))?.perform()
    }

    /// [`Remote::swap`], not waited for.
    pub fn swap_nbi<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        self.atomic(offset, AtomicOp::Swap, value, T::from_u64(0))?.launch()
    }

    /// Adds `value`, wrapping; gives what the word was.
    pub fn fetch_add<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<T> {
        self.atomic(offset, AtomicOp::Add, value, T::from_u64(0))?.perform()
    }

    /// [`Remote::fetch_add`], not waited for.
    pub fn fetch_add_nbi<T: AtomicWord + Outcome>(&self, offset: u64, value: T) -> Result<Operation<T>> {
        self.atomic(offset, AtomicOp::Add, value, T::from_u64(0))?.launch()
    }

    /// Adds 1, wrapping; gives what the word was.
    pub fn fetch_inc<T: AtomicWord + Outcome>(&self, offset: u64) -> Result<T> {
        self.fetch_add(offset, T::from_u64(1))
    }

    /// [`Remote::fetch_inc`], not waited for.
    pub fn fetch_inc_nbi<T: AtomicWord + Outcome>(&self, offset: u64) -> Result<Operation<T>> {
        self.fetch_add_nbi(offset, T::from_u64(1))
    }

    /// The word becomes `value` if it is `expected`; gives what it was, so it has been changed exactly if that is
    /// `expected`.
    pub fn compare_swap<T: AtomicWord + Outcome>(&self, offset: u64, expected: T, value: T) -> Result<T> {
        self.atomic(offset, AtomicOp::CompareSwap, value, expected)?.perform()
    }

    /// [`Remote::compare_swap`], not waited for.
    pub fn compare_swap_nbi<T: AtomicWord + Outcome>(
        &self,
        offset: u64,
        expected: T,
        value: T,
    ) -> Result<Operation<T>> {
        self.atomic(offset, AtomicOp::CompareSwap, value, expected)?.launch()
    }

    /// Copies `length` bytes from our segment, at `src_offset`, to `offset` here; see [`copy`].
    pub fn put_block(&self, offset: u64, src: &Segment, src_offset: u64, length: u64) -> Result<()> {
        copy(self, offset, src.remote()?, src_offset, length)
    }

    /// [`Remote::put_block`], not waited for. The source must not change before it is done.
    pub fn put_nbi(&self, offset: u64, src: &Segment, src_offset: u64, length: u64) -> Result<Operation<()>> {
        copy_nbi(self, offset, src.remote()?, src_offset, length)
    }

    /// Copies `length` bytes from `offset` here to our segment, at `dst_offset`; see [`copy`].
    pub fn get_block(&self, offset: u64, dst: &Segment, dst_offset: u64, length: u64) -> Result<()> {
        copy(dst.remote()?, dst_offset, self, offset, length)
    }

    /// [`Remote::get_block`], not waited for: the papers' fetch(remote, local).
    pub fn get_nbi(&self, offset: u64, dst: &Segment, dst_offset: u64, length: u64) -> Result<Operation<()>> {
        copy_nbi(dst.remote()?, dst_offset, self, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FULL, READ_WRITE};

    fn board() -> Arc<Inner> {
        Arc::new(Inner::without_board())
    }

    fn passed(remote: &Remote, offset: u64) -> context::Argument {
        let at = remote.arguments().unwrap().wrapping_add(offset as usize).cast::<u64>();
        // SAFETY: the test's own page.
        context::Argument::decode(unsafe { crate::access::Instructions::load_acquire(at) })
    }

    fn argument(slot: u8, which: u8) -> context::Argument {
        context::Argument { context: 5, slot, which, key: 0x0123_4567_89ab }
    }

    #[test]
    fn an_atomic_is_launched_as_the_interface_says() {
        let inner = board();
        let remote = Remote::without_board(&inner, 9, 1, FULL);
        let mut first = remote.fetch_add_nbi(64, 7u64).unwrap();
        let mut second = remote.compare_swap_nbi(100, 3u32, u32::MAX).unwrap();
        let told = |slot: u64, register| inner.slots.told(context::REGISTERS + context::STRIDE * slot + register);
        assert_eq!(passed(&remote, 64), argument(0, 0));
        assert_eq!(passed(&remote, 96), argument(1, 0));
        assert_eq!((told(0, context::OPERAND), told(0, context::LENGTH)), (7, 0));
        // The high word of its eight bytes.
        assert_eq!(
            [context::OPERAND, context::COMPARE, context::LENGTH].map(|r| told(1, r)),
            [0xffff_ffff, 3, 4 << 48]
        );
        let launched = |slot| context::Launch::decode(told(slot, context::LAUNCH)).unwrap();
        assert_eq!(launched(0).operation, context::Operation::Atomic { op: AtomicOp::Add, size: 8 });
        assert_eq!(launched(1).operation, context::Operation::Atomic { op: AtomicOp::CompareSwap, size: 4 });
        assert_ne!(launched(0).cookie, launched(1).cookie);

        assert!(!first.is_done() && !second.is_done());
        let early = first.wait(Some(Duration::ZERO));
        assert!(matches!(early, Err(Error::Pending { operations: 2, .. })), "{early:?}");
        inner.slots.give_answer(1, Status::Ok, 0xffff_ffff_0000_0003);
        assert_eq!(second.wait(None).unwrap(), 3);
        assert_eq!(inner.slots.unfinished(), 1);
        inner.slots.give_answer(0, Status::Rights, u64::MAX);
        let failed = first.wait(None).unwrap_err();
        assert_eq!(failed.status(), Some(Status::Rights));
        assert!(failed.to_string().starts_with("an atomic on segment \"x\" of node 1: "), "{failed}");
        assert_eq!(first.wait(None).unwrap_err().status(), Some(Status::Rights), "asked again");
    }

    #[test]
    fn an_atomic_by_load_is_launched_as_the_interface_says() {
        let inner = board();
        inner.style.store(LaunchStyle::Load as u8, std::sync::atomic::Ordering::Relaxed);
        let remote = Remote::without_board(&inner, 9, 1, FULL);
        // What the board would answer.
        inner.slots.tell(context::FETCH, 0x1234_5678_9abc_def0);
        assert_eq!(remote.fetch_add(64, 7u64).unwrap(), 0x1234_5678_9abc_def0);
        assert_eq!(remote.compare_swap(100, 3u32, u32::MAX).unwrap(), 0x9abc_def0);
        let told = |register| inner.slots.told(context::REGISTERS + register);
        assert_eq!((passed(&remote, 64), passed(&remote, 96)), (argument(0, 0), argument(0, 0)));
        let length = (AtomicOp::CompareSwap as u64) << 56 | 4 << 48;
        assert_eq!([context::OPERAND, context::COMPARE, context::LENGTH].map(told), [0xffff_ffff, 3, length]);
        assert_eq!((told(context::LAUNCH), inner.slots.unfinished()), (0, 0), "nothing else, and its slot is free");
        let mut done = remote.swap_nbi(0, 1u64).unwrap();
        assert!(done.is_done());
        // All ones is a value, unless an error was counted.
        inner.slots.tell(context::FETCH, u64::MAX);
        assert!(matches!(remote.fetch_inc::<u64>(0), Err(Error::Os { .. })), "there is no driver to ask");
        // A copy has no result to load.
        let copy = copy_nbi(&remote, 0, &remote, 1000, 10).unwrap();
        assert_ne!(told(context::LAUNCH), 0);
        drop(copy);
    }

    #[test]
    fn a_copy_passes_both_addresses_with_their_low_bits() {
        let inner = board();
        let (far, near) = (Remote::without_board(&inner, 1, 1, FULL), Remote::without_board(&inner, 2, 0, FULL));
        let mut operation = copy_nbi(&far, 1003, &near, 17, 2989).unwrap();
        assert_eq!((passed(&far, 1000), passed(&near, 16)), (argument(0, 0), argument(0, 1)));
        assert_eq!(inner.slots.told(context::REGISTERS + context::LENGTH), 2989 | 3 << 48 | 1 << 52);
        operation.arm().unwrap_err(); // There is no board to ask for events.
        inner.slots.give_answer(0, Status::Ok, 0);
        operation.wait(None).unwrap();
        // Its slot is free again.
        drop(copy_nbi(&far, 0, &near, 0, 1).unwrap());
        assert_eq!(passed(&far, 0), argument(0, 0));
    }

    #[test]
    fn what_can_never_be_right_is_refused_before_the_board_sees_it() {
        let (inner, other) = (board(), board());
        let far = Remote::without_board(&inner, 1, 1, FULL);
        let plain = Remote::without_board(&inner, 2, 1, READ_WRITE);
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
            assert_eq!(inner.slots.told(context::REGISTERS + context::STRIDE * slot + context::LAUNCH), 0);
        }
    }

    #[test]
    fn a_handle_dropped_keeps_its_slot_until_the_end() {
        let inner = board();
        let remote = Remote::without_board(&inner, 1, 1, FULL);
        for _ in 0..64 {
            drop(remote.fetch_inc_nbi::<u64>(0).unwrap());
        }
        assert_eq!(inner.slots.unfinished(), 64);
        let mut backoff = Backoff::new(Some(Duration::ZERO));
        assert!(Question::new(&*inner, Use::Operation, &mut backoff).is_none());
        inner.slots.give_answer(40, Status::Ok, 0);
        assert_eq!(Question::new(&*inner, Use::Operation, &mut backoff).map(|q| q.slot), Some(40));
    }
}
