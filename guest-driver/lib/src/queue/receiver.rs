// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue of ours: its builder, its mapping, and who waits for its elements.

use super::dequeue::{Dequeue, Found, Memory, Orders, Pass};
use super::sender::QueueImportBuilder;
use crate::access_policy::{AccessPolicy, mode_digits};
use crate::error::{Error, Object, Result, name_bytes};
use crate::node::{Inner, Node};
use crate::slots::Backoff;
use crate::sys::{self, Mapping};
use crate::{NodeId, READ_WRITE, Rights, Secret, Status};
use rustix::io::Errno;
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telegraphos_wire::queue::{Control, DEAD, FULL, HEAD_WORD, HELD, NEXT_WORD, Shape, TAIL_WORD};
use telegraphos_wire::{context, queue, uapi};

/// How to make a queue; made by [`Queue::create`].
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use telegraphos::Queue;
///
/// let queue = Queue::create(&node, "work")
///     .wide() // elements of 64 bits
///     .words(1024) // in each buffer
///     .quota(8) // buffers behind the first
///     .mode(0o602) // everybody may append
///     .create()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "there is no queue before create()"]
pub struct QueueBuilder {
    inner: Arc<Inner>,
    name: String,
    words: Option<u32>,
    width: u32,
    quota: u32,
    limit: Option<u32>,
    access: AccessPolicy,
}

impl QueueBuilder {
    /// Words of 8 bytes instead of 4: elements are `u64`, and hold pointers.
    pub fn wide(mut self) -> Self {
        self.width = 8;
        self
    }

    /// Words per buffer, of which 4 are not for elements: a power of two from 8 on, at most 64 KiB in all; those 64 KiB
    /// unless told otherwise.
    pub fn words(mut self, words: u32) -> Self {
        self.words = Some(words);
        self
    }

    /// Buffers that may be linked behind the first when it overflows, 1 to 1024; 16 unless told otherwise. Their memory
    /// is allocated at once. When they are used up, senders are held back.
    pub fn quota(mut self, quota: u32) -> Self {
        self.quota = quota;
        self
    }

    /// Linked buffers at which the consumers are told that they are slow ([`Queue::limits`]), before senders are held
    /// back: 1 to the quota, 0 for never; half the quota unless told otherwise.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Who may append, as for a file, by the digits' write bits: `0o600` (the default) admits processes of this user
    /// id, on any node, `0o602` or `0o606` everybody. There is no reading of queues from outside. There are no groups:
    /// that digit is 0, or the same as the last.
    pub fn mode(mut self, mode: u32) -> Self {
        self.access.mode = Some(mode);
        self
    }

    /// A secret that importers must present; zeros mean none.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.access.secret = secret;
        self
    }

    /// Admits only these nodes, below 256; without it, every node is admitted.
    pub fn nodes(mut self, nodes: &[NodeId]) -> Self {
        self.access.nodes = Some(nodes.to_vec());
        self
    }

    /// All of [`mode`](Self::mode), [`secret`](Self::secret) and [`nodes`](Self::nodes).
    pub(crate) fn access(mut self, access: AccessPolicy) -> Self {
        self.access = access;
        self
    }

    /// The request to the driver.
    fn request(&self) -> Result<uapi::Queue> {
        let words = self.words.unwrap_or((queue::MAX_BYTES / u64::from(self.width)) as u32);
        if Shape::new(words, self.width).is_none() {
            return Err(Error::Argument {
                what: "the number of words of a queue's buffer",
                value: words.to_string(),
                expected: format!(
                    "a power of two from {} to {}",
                    queue::WORDS_MIN,
                    queue::MAX_BYTES / u64::from(self.width)
                ),
            });
        }
        if self.quota == 0 || u64::from(self.quota) > queue::QUOTA_MAX {
            return Err(Error::Argument {
                what: "the quota of a queue",
                value: self.quota.to_string(),
                expected: format!("1 to {} linked buffers", queue::QUOTA_MAX),
            });
        }
        let limit = self.limit.unwrap_or(self.quota.div_ceil(2));
        if limit > self.quota {
            return Err(Error::Argument {
                what: "the limit of a queue",
                value: limit.to_string(),
                expected: format!("at most {}, its quota", self.quota),
            });
        }
        let (owner, others) = mode_digits("the mode of a queue", self.access.mode())?;
        let rights = |digit: u32| if digit & 2 != 0 { Rights::ENQUEUE.0 } else { 0 };
        Ok(uapi::Queue {
            name: name_bytes(&self.name)?,
            secret: self.access.secret,
            nodes: self.access.node_set()?,
            words,
            width: self.width,
            quota: self.quota,
            limit,
            rights_owner: rights(owner),
            rights_others: rights(others),
            ..uapi::Queue::default()
        })
    }

    /// Allocates the buffers, makes the queue known under its name, and maps it into this process.
    pub fn create(self) -> Result<Queue> {
        let mut request = self.request()?;
        sys::queue_create(self.inner.fd(), &mut request).map_err(|errno| Error::Queue {
            name: self.name.clone(),
            words: request.words,
            quota: request.quota,
            errno,
        })?;
        Queue::map(self.inner, self.name, &request, Some(std::process::id()))
    }
}

/// What has become of a queue.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let queue = telegraphos::Queue::create(&node, "work").create()?;
/// let state = queue.state()?;
/// if state.held {
///     println!("senders wait after {} overflows: take more out, or raise the quota", state.overflows);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Why it takes no elements any more; `None` if it does.
    pub dead: Option<Status>,
    /// The board has stopped it, and the driver has not handled the overflow yet.
    pub full: bool,
    /// The quota is used up, and senders are held back until a buffer is emptied.
    pub held: bool,
    /// Linked buffers, as the driver counts them: those that consumers have emptied since the last overflow are among
    /// them.
    pub linked: u32,
    /// Overflows handled.
    pub overflows: u64,
    /// How often a consumer stayed in the dequeue section for too long and lost its mapping.
    pub evictions: u64,
}

/// A notification queue of this node: senders on any node append words to it ([`RemoteQueue`](crate::RemoteQueue)), and
/// consumers here, any number of threads and processes, take them out, oldest first, each once. It ends on drop.
///
/// Taking an element is a handful of accesses to memory, with no system call unless the queue has overflowed meanwhile.
/// Threads of a process wait for each other; other processes are waited for as long as they are at it.
///
/// # SIGBUS
/// A consumer may be stopped amid taking an element, by a debugger, say. When an overflow waits for it longer than the
/// driver's `queue_hold_ms` (5 s), the driver goes on without it: it takes their mappings of the queue away from *all*
/// processes, and whoever touches his gets SIGBUS (SPEC E13). Nothing is lost but what was in the hands of the one
/// stopped, which is there again. Such a process starts anew, or handles SIGBUS and [attaches](Queue::attach) again.
/// The same comes to consumers that have attached when the queue ends.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// use std::time::Duration;
/// use telegraphos::Queue;
///
/// let queue = Queue::create(&node, "work").create()?;
/// while let Some(element) = queue.pop_wait(Some(Duration::from_secs(1)))? {
///     println!("{element}");
/// }
/// let mut batch = [0; 32];
/// let count = queue.pop_batch(&mut batch)?; // many, for the price of one
/// println!("{:?}", &batch[..count]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Queue {
    inner: Arc<Inner>,
    name: String,
    handle: u32,
    page: u32,
    shape: Shape,
    quota: u32,
    dequeue: Dequeue,
    /// One thread of this process at a time, before the word that keeps processes apart.
    alone: Mutex<()>,
    /// Word 0 of the first buffer when a look last found nothing.
    seen: AtomicU32,
    /// The process that made it and ends it.
    maker: Option<u32>,
    /// From the control page to the arena.
    arena: usize,
    /// `None` only while it is dropped.
    mapping: Option<Mapping>,
}

/// What a look has found.
enum Look {
    Took(usize),
    Empty(u32),
    /// Another process was inside until patience ended.
    Late,
}

impl Queue {
    /// A new queue under `name`.
    #[allow(clippy::new_ret_no_self, reason = "as Node::export and Node::import, it says how before it does")]
    pub fn create(node: &Node, name: &str) -> QueueBuilder {
        QueueBuilder {
            inner: node.inner.clone(),
            name: name.into(),
            words: None,
            width: 4,
            quota: 16,
            limit: None,
            access: AccessPolicy::default(),
        }
    }

    /// Imports the queue `name` of node `id`, which may be this node, to append to it.
    pub fn import(node: &Node, id: NodeId, name: &str) -> QueueImportBuilder {
        QueueImportBuilder::new(node, id, name)
    }

    /// A queue that another process has made through the same open file ([`Node::from_fd`]), or this process when it
    /// has lost its mapping, by its [`Queue::handle`]. Dropping it does not end the queue.
    pub fn attach(node: &Node, handle: u32) -> Result<Queue> {
        let mut answer = uapi::Queue { handle, ..uapi::Queue::default() };
        sys::queue_attach(node.inner.fd(), &mut answer).map_err(|errno| match errno {
            Errno::BADF => Error::Argument {
                what: "the handle of a queue",
                value: handle.to_string(),
                expected: "what Queue::handle says in a process with the same open file, of a queue that has not ended"
                    .into(),
            },
            errno => node.inner.error(&format!("attaching the queue of handle {handle}"), errno),
        })?;
        let end = answer.name.iter().position(|byte| *byte == 0).unwrap_or(answer.name.len());
        let name = String::from_utf8_lossy(&answer.name[..end]).into_owned();
        Queue::map(node.inner.clone(), name, &answer, None)
    }

    /// Maps what the driver has described. Ends the queue if that fails and this process has made it.
    fn map(inner: Arc<Inner>, name: String, answer: &uapi::Queue, maker: Option<u32>) -> Result<Queue> {
        let what = Object::Queue.of(&name, inner.id);
        let mapped = match shape_of(answer) {
            Some(shape) => Mapping::new(inner.fd(), answer.offset, answer.length as usize, READ_WRITE)
                .map(|mapping| (shape, mapping))
                .map_err(|errno| Error::Os { what: format!("mapping {what}"), errno }),
            None => Err(Error::Os { what: format!("the driver describes {what} as {answer:?}"), errno: Errno::PROTO }),
        };
        let (shape, mapping) = match mapped {
            Ok(mapped) => mapped,
            Err(error) => {
                if maker.is_some() {
                    // What failed first is what the caller learns.
                    let _ = sys::queue_destroy(
                        inner.fd(),
                        &mut uapi::Handle { handle: answer.handle, ..Default::default() },
                    );
                }
                return Err(error);
            }
        };
        Ok(Queue {
            inner,
            name,
            handle: answer.handle,
            page: answer.page,
            shape,
            quota: answer.quota,
            dequeue: Dequeue::new(shape, answer.quota, answer.owner),
            alone: Mutex::default(),
            seen: AtomicU32::new(0),
            maker,
            arena: answer.arena as usize,
            mapping: Some(mapping),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Words of a buffer, and bytes of a word.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The driver's handle, by which processes that share the open file [attach](Queue::attach).
    pub fn handle(&self) -> u32 {
        self.handle
    }

    fn what(&self) -> String {
        Object::Queue.of(&self.name, self.inner.id)
    }

    fn base(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), Mapping::at)
    }

    fn control(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass the offset of a word of the control page, with which the mapping begins; it lasts as
        // long as this queue, and everybody accesses these words atomically.
        unsafe { AtomicU64::from_ptr(self.base().add(offset).cast()) }
    }

    fn flags(&self) -> &AtomicU64 {
        self.control(std::mem::offset_of!(Control, state))
    }

    /// A word of the arena.
    fn at(&self, word: u32) -> *mut u8 {
        debug_assert!(u64::from(word) < (1 + u64::from(self.quota)) * u64::from(self.shape.words()));
        self.base().wrapping_add(self.arena + word as usize * usize::from(self.shape.width()))
    }

    fn load(&self, word: u32) -> u64 {
        let at = self.at(word);
        // SAFETY: the dequeue, the only caller, has checked that the word lies in the arena, and `map` that the arena
        // lies in the mapping, aligned. Board, driver and consumers access its words atomically.
        unsafe {
            match self.shape.width() {
                4 => AtomicU32::from_ptr(at.cast()).load(Orders::SOUND.load).into(),
                _ => AtomicU64::from_ptr(at.cast()).load(Orders::SOUND.load),
            }
        }
    }

    fn store(&self, word: u32, value: u64) {
        let at = self.at(word);
        // SAFETY: as in `load`.
        unsafe {
            match self.shape.width() {
                4 => AtomicU32::from_ptr(at.cast()).store(value as u32, Orders::SOUND.store),
                _ => AtomicU64::from_ptr(at.cast()).store(value, Orders::SOUND.store),
            }
        }
    }

    /// Hands elements to `with` until it breaks or there are no more. Waits for others as long as `backoff` has
    /// patience.
    fn look(&self, backoff: &mut Backoff, mut with: impl FnMut(u64) -> ControlFlow<()>) -> Result<Look> {
        let _alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let mut count = 0;
            let counting = |value| {
                let more = with(value);
                count += 1;
                more
            };
            let Ok(pass) = self.dequeue.pass(&mut Mapped { queue: self, inside: false }, counting);
            match pass {
                Pass::Busy if !backoff.wait() => return Ok(Look::Late),
                Pass::Busy => {}
                Pass::Full => self.service()?,
                Pass::Dead => return Err(self.failed("taking an element", Errno::IO)),
                Pass::Left { found, call } => {
                    let called = if call { self.service() } else { Ok(()) };
                    return match (found, called) {
                        (Ok(Found::Empty { seen }), Ok(())) => {
                            self.seen.store(seen, Ordering::Relaxed);
                            Ok(Look::Empty(seen))
                        }
                        // Whatever is wrong, these are taken; the next look fails as well.
                        _ if count > 0 => Ok(Look::Took(count)),
                        (Err(broken), _) => Err(Error::Broken { what: self.what(), broken }),
                        (_, Err(error)) => Err(error),
                        (Ok(Found::Took { count }), Ok(())) => Ok(Look::Took(count)),
                    };
                }
            }
        }
    }

    /// Why the driver says EIO, or something else.
    fn failed(&self, action: &str, errno: Errno) -> Error {
        if errno == Errno::IO {
            if let Ok(QueueState { dead: Some(status), .. }) = self.state() {
                return Error::Failed { what: self.what(), status };
            }
        }
        let ended = if errno == Errno::BADF { " (it has ended)" } else { "" };
        self.inner.error(&format!("{}{ended}: {action}", self.what()), errno)
    }

    /// Has the driver handle an overflow, and waits until it has.
    fn service(&self) -> Result<()> {
        loop {
            let mut handle = uapi::Handle { handle: self.handle, ..Default::default() };
            match sys::queue_service(self.inner.fd(), &mut handle) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed("handling an overflow", errno)),
            }
        }
    }

    /// Takes the oldest element; `None` if there is none. No system call, unless the queue has overflowed.
    pub fn try_pop(&self) -> Result<Option<u64>> {
        self.try_pop_with(|value| value)
    }

    /// [`Queue::try_pop`] that runs `with` on the element *before* it is taken: a process that is killed meanwhile has
    /// not lost it, and the next look finds it again; neither has a `with` that panics. It runs inside the dequeue
    /// section: it is short, and does not use this queue.
    pub fn try_pop_with<R>(&self, with: impl FnOnce(u64) -> R) -> Result<Option<R>> {
        self.one(&mut Backoff::new(None), with).map(|found| found.ok())
    }

    /// An element, or what was seen instead; `None` when another process was inside until patience ended.
    fn one<R>(
        &self,
        backoff: &mut Backoff,
        with: impl FnOnce(u64) -> R,
    ) -> Result<std::result::Result<R, Option<u32>>> {
        let mut with = Some(with);
        let mut result = None;
        let look = self.look(backoff, |value| {
            result = with.take().map(|with| with(value));
            ControlFlow::Break(())
        })?;
        Ok(match (look, result) {
            (_, Some(result)) => Ok(result),
            (Look::Empty(seen), None) => Err(Some(seen)),
            (Look::Took(_) | Look::Late, None) => Err(None),
        })
    }

    /// Takes as many elements as there are and `values` has room for, oldest first, in one pass: how many. They are
    /// taken one by one: a process that is killed meanwhile has had all but the last of them.
    pub fn pop_batch(&self, values: &mut [u64]) -> Result<usize> {
        let mut free = values.iter_mut();
        let Some(mut place) = free.next() else { return Ok(0) };
        let look = self.look(&mut Backoff::new(None), |value| {
            *place = value;
            match free.next() {
                Some(next) => {
                    place = next;
                    ControlFlow::Continue(())
                }
                None => ControlFlow::Break(()),
            }
        })?;
        Ok(match look {
            Look::Took(count) => count,
            Look::Empty(_) | Look::Late => 0,
        })
    }

    /// Takes the oldest element, waiting for one: asleep until the board's interrupt, which costs nothing while there
    /// is none. `None` when `timeout` has passed (`None`: never).
    ///
    /// No wake-up is lost: the board is told how the queue looked when nothing was found, and rings at once if it has
    /// changed since. Of several threads that wait, each element wakes all, and one gets it.
    pub fn pop_wait(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.wait(timeout, |seen| seen, |seen| self.stirred(seen))
    }

    /// [`Queue::pop_wait`] that arms without what it has seen: with a board that believes it, it can sleep for ever.
    #[cfg(feature = "literal")]
    pub fn pop_wait_literally(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.wait(timeout, |_| self.load(TAIL_WORD as u32) as u32, |_| false)
    }

    fn wait(
        &self,
        timeout: Option<Duration>,
        armed: impl Fn(u32) -> u32,
        stirred: impl Fn(u32) -> bool,
    ) -> Result<Option<u64>> {
        let backoff = Backoff::new(timeout);
        loop {
            // Before the look: an event that comes after it, and is read off by another thread, is noticed.
            let round = self.inner.bell.round();
            let seen = match self.one(&mut Backoff::new(backoff.left()), |value| value)? {
                Ok(value) => return Ok(Some(value)),
                Err(seen) => seen,
            };
            if backoff.left() == Some(Duration::ZERO) {
                return Ok(None);
            }
            let Some(seen) = seen else { continue };
            let heard = || self.inner.bell.round() != round;
            self.inner.bell.ready(&self.inner)?;
            self.tell(armed(seen));
            self.inner.bell.wait(&self.inner, &backoff, || heard() || stirred(seen))?;
        }
    }

    /// Whether a queue that looked empty may not be so any more: a look from outside, for who has missed an event that
    /// went to another process.
    fn stirred(&self, seen: u32) -> bool {
        let word = |word: u64| self.load(word as u32);
        // Empty is head == tail, so both words were the same.
        word(TAIL_WORD) != seen.into()
            || word(HEAD_WORD) != seen.into()
            || word(NEXT_WORD) != 0
            || self.flags().load(Ordering::Acquire) & (FULL | DEAD) != 0
    }

    fn tell(&self, seen: u32) {
        self.inner.slots.tell(context::QUEUE_ARM, u64::from(self.page) << 32 | u64::from(seen));
    }

    /// Asks for [`Node::completions`] to become readable at the next element, for a program's own `poll`; at once if
    /// there has been one since a look last found nothing. So: pop until there is nothing, arm, poll, read, and again.
    pub fn arm(&self) -> Result<()> {
        self.inner.bell.ready(&self.inner)?;
        self.tell(self.seen.load(Ordering::Relaxed));
        Ok(())
    }

    /// Takes the oldest element by a system call that does everything in the kernel, as the paper's PAL code did: the
    /// yardstick for [`Queue::try_pop`]. Needs `telegraphos_lab.ko`.
    pub fn pop_in_kernel(&self) -> Result<Option<u64>> {
        loop {
            let mut pop = uapi::QueuePop { handle: self.handle, ..uapi::QueuePop::default() };
            match sys::queue_pop(self.inner.fd(), &mut pop) {
                Ok(()) => return Ok(Some(pop.value)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(Errno::NOTTY) => {
                    let what = "taking an element in the kernel is for comparisons, and the module of that is not loaded: \
                                insmod telegraphos_lab.ko";
                    return Err(self.failed(what, Errno::NOTTY));
                }
                Err(errno) => return Err(self.failed("taking an element in the kernel", errno)),
            }
        }
    }

    /// How often the linked buffers have come to the limit: a count that has risen says that the consumers are slow,
    /// before senders are held back. Who sleeps is woken then. A look at memory.
    pub fn limits(&self) -> u64 {
        self.control(std::mem::offset_of!(Control, limits)).load(Ordering::Acquire)
    }

    /// What has become of it. A system call.
    pub fn state(&self) -> Result<QueueState> {
        let mut state = uapi::QueueState { handle: self.handle, ..uapi::QueueState::default() };
        sys::queue_state(self.inner.fd(), &mut state)
            .map_err(|errno| self.inner.error(&format!("{}: asking for its state", self.what()), errno))?;
        let has = |bit: u64| u64::from(state.state) & bit != 0;
        let reason = Some(Status::from_u16(state.status as u16)).filter(|status| !status.is_ok());
        Ok(QueueState {
            dead: has(DEAD).then(|| reason.unwrap_or(Status::Stale)),
            full: has(FULL),
            held: has(HELD),
            linked: state.linked,
            overflows: state.overflows,
            evictions: state.evictions,
        })
    }

    /// Ends the queue, if this process has made it: its senders' imports are gone, and elements not taken are lost. One
    /// that was attached is only unmapped. Dropping does the same, without telling of errors.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.mapping = None;
        // A child that was forked has a copy of this, but it is not the child's.
        if self.maker.take() != Some(std::process::id()) {
            return Ok(());
        }
        let mut handle = uapi::Handle { handle: self.handle, ..Default::default() };
        sys::queue_destroy(self.inner.fd(), &mut handle)
            .map_err(|errno| self.inner.error(&format!("ending {}", self.what()), errno))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        match self.end() {
            // The board has gone, and the queue with it.
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}

/// The shape of a queue, if the driver's description of it holds together: all later accesses rely on it.
fn shape_of(answer: &uapi::Queue) -> Option<Shape> {
    let shape = Shape::new(answer.words, answer.width)?;
    let quota = Some(u64::from(answer.quota)).filter(|quota| *quota <= queue::QUOTA_MAX)?;
    let end = answer.arena.checked_add((1 + quota) * shape.bytes())?;
    let sane = answer.arena >= queue::CONTROL_SIZE && answer.arena % 8 == 0 && end <= answer.length;
    (sane && usize::try_from(answer.length).is_ok()).then_some(shape)
}

/// The queue's mapping, for one pass.
struct Mapped<'a> {
    queue: &'a Queue,
    inside: bool,
}

impl Memory for Mapped<'_> {
    type Stop = Infallible;

    #[inline]
    fn load(&mut self, word: u32) -> std::result::Result<u64, Infallible> {
        Ok(self.queue.load(word))
    }

    #[inline]
    fn store(&mut self, word: u32, value: u64) -> std::result::Result<(), Infallible> {
        self.queue.store(word, value);
        Ok(())
    }

    #[inline]
    fn state(&mut self) -> std::result::Result<u64, Infallible> {
        Ok(self.queue.flags().load(Orders::SOUND.state))
    }

    #[inline]
    fn enter(&mut self, expected: u64, new: u64) -> std::result::Result<std::result::Result<u64, u64>, Infallible> {
        let before = self.queue.flags().compare_exchange(expected, new, Orders::SOUND.enter, Orders::SOUND.state);
        self.inside = before.is_ok();
        Ok(before)
    }

    #[inline]
    fn leave(&mut self, mask: u64) -> std::result::Result<u64, Infallible> {
        self.inside = false;
        Ok(self.queue.flags().fetch_and(mask, Orders::SOUND.leave))
    }
}

impl Drop for Mapped<'_> {
    /// The caller's closure has panicked inside: its element is not taken, and the others go on.
    fn drop(&mut self) {
        if !self.inside {
            return;
        }
        let Ok(call) = self.queue.dequeue.leave(self, true);
        if call {
            if let Err(error) = self.queue.service() {
                log::warn!("{error}");
            }
        }
    }
}

#[cfg(test)]
#[path = "receiver_tests.rs"]
mod tests;
