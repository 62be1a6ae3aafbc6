// SPDX-License-Identifier: MIT OR Apache-2.0
//! A queue of this node: its builder, its mapping, and waiting for its elements.

use super::arms::Arms;
use super::dequeue::{Dequeue, Found, Memory, Orders, Pass};
use super::passes::Passes;
use crate::access_policy::{AccessPolicy, READ_WRITE, access_options, mode_digits, name_bytes};
use crate::backoff::Backoff;
use crate::context::Context;
use crate::error::{Error, Object, Result, latched};
use crate::handle::{End, Handle};
use crate::node::Node;
use crate::sys::{self, Mapping};
use rustix::io::{Errno, retry_on_intr};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use telegraphos_wire::context::{QUEUE_ARM, QueueArm};
use telegraphos_wire::queue::{Control, DEAD, FULL, HEAD_WORD, HELD, NEXT_WORD, OWNER_SHIFT, Shape, TAIL_WORD};
use telegraphos_wire::{Rights, Status, queue, uapi};

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
///     .mode(0o602) // processes of all users may append
///     .create()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "there is no queue before create()"]
pub struct QueueBuilder {
    context: Arc<Context>,
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

    /// Words per buffer, of which 4 are not for elements: a power of two from 8 on, at most 64 KiB in all, which is
    /// also the default.
    pub fn words(mut self, words: u32) -> Self {
        self.words = Some(words);
        self
    }

    /// Buffers that may be linked behind the first when it overflows, 1 to 1024; 16 by default. Their memory is
    /// allocated at once. When they are used up, senders are held back.
    pub fn quota(mut self, quota: u32) -> Self {
        self.quota = quota;
        self
    }

    /// The number of linked buffers at which the consumers are notified that they are slow ([`Queue::limits`]), before
    /// senders are held back: 1 to the quota, 0 for never; half the quota by default.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    access_options! {
        self.access;
        /// Access rights, as the mode of a file, by the digits' write bits: `0o600` (the default) admits processes of
        /// this user id, on any node, `0o602` or `0o606` everyone. Queues cannot be read from other nodes. There are no
        /// groups: that digit is 0, or the same as the last.
        mode;
        /// A secret that importers must present; zeros mean none.
        secret;
        /// Admits only these nodes, below 256; without it, every node is admitted.
        nodes;
    }

    /// The request to the driver. Fails for arguments that no driver would accept.
    fn request(&self) -> Result<uapi::Queue> {
        let words = self.words.unwrap_or((queue::MAX_BYTES / u64::from(self.width)) as u32);
        if Shape::new(words, self.width).is_none() {
            let most = queue::MAX_BYTES / u64::from(self.width);
            let expected = format!("a power of two from {} to {most}", queue::WORDS_MIN);
            return Err(Error::argument("the number of words of a queue's buffer", words, expected));
        }
        if self.quota == 0 || u64::from(self.quota) > queue::QUOTA_MAX {
            let expected = format!("1 to {} linked buffers", queue::QUOTA_MAX);
            return Err(Error::argument("the quota of a queue", self.quota, expected));
        }
        let limit = self.limit.unwrap_or(self.quota.div_ceil(2));
        if limit > self.quota {
            return Err(Error::argument("the limit of a queue", limit, format!("at most {}, its quota", self.quota)));
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

    /// Allocates the buffers, publishes the queue under its name, and maps it into this process. Fails with
    /// [`Error::Queue`].
    pub fn create(self) -> Result<Queue> {
        let mut request = self.request()?;
        sys::queue_create(self.context.device.fd(), &mut request).map_err(|errno| Error::Queue {
            name: self.name.clone(),
            words: request.words,
            quota: request.quota,
            errno,
        })?;
        Queue::map(self.context, self.name, &request, Some((sys::queue_destroy, "ending")))
    }
}

/// The state of a queue.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let queue = telegraphos::Queue::create(&node, "work").create()?;
/// let state = queue.state()?;
/// if state.held {
///     println!("senders wait after {} overflows: take more elements, or raise the quota", state.overflows);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueState {
    /// Why it accepts no more elements; `None` if it does.
    pub dead: Option<Status>,
    /// The board has stopped it, and the driver has not handled the overflow yet.
    pub full: bool,
    /// The quota is used up, and senders are held back until a buffer is emptied.
    pub held: bool,
    /// Linked buffers, as the driver counts them: including those that consumers have emptied since the last overflow.
    pub linked: u32,
    /// Overflows handled.
    pub overflows: u64,
    /// The number of times that a consumer stayed in the dequeue section for too long and lost its mapping.
    pub evictions: u64,
}

/// A notification queue of this node: senders on any node append words to it ([`RemoteQueue`](crate::RemoteQueue)), and
/// consumers here, any number of threads and processes, take them out, oldest first, each once. It ends on drop.
///
/// Taking an element is a handful of accesses to memory, with no system call unless the queue has overflowed meanwhile.
/// Consumers take elements one at a time: a thread waits for other threads and processes in the dequeue section.
///
/// # SIGBUS
/// A consumer may be stopped while it takes an element, for example by a debugger. When an overflow waits for it longer
/// than the driver's `queue_hold_ms` (5 s), the driver continues without it: it removes the mappings of the queue from
/// *all* processes, and touching them raises SIGBUS (SPEC E13). Nothing is lost; an element that the stopped consumer
/// has not taken completely is in the queue again. Such a process restarts, or handles SIGBUS and
/// [attaches](Queue::attach) again. The same happens to consumers that have attached when the queue ends.
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
/// let count = queue.pop_batch(&mut batch)?; // many, at the cost of one
/// println!("{:?}", &batch[..count]);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Queue {
    /// Unmapped before the queue is ended.
    mapping: Mapping,
    name: String,
    page: u32,
    shape: Shape,
    quota: u32,
    dequeue: Dequeue,
    /// Excludes other threads of this process; the control page's state word then excludes other processes.
    exclusive: Mutex<()>,
    /// Changed under it.
    passes: Passes,
    arms: Arms,
    /// Word 0 of the first buffer when the queue was last found empty.
    seen: AtomicU32,
    /// Bytes from the control page to the arena.
    arena: usize,
    /// One that was attached does not end the queue.
    handle: Handle,
}

impl Queue {
    /// A new queue under `name`.
    #[allow(clippy::new_ret_no_self, reason = "as Node::export and Node::import, it returns a builder")]
    pub fn create(node: &Node, name: &str) -> QueueBuilder {
        QueueBuilder {
            context: node.context.clone(),
            name: name.into(),
            words: None,
            width: 4,
            quota: 16,
            limit: None,
            access: AccessPolicy::default(),
        }
    }

    /// A queue that another process has created through the same open file ([`Node::from_fd`]), or that this process
    /// has created before it lost the mapping, by its [`Queue::handle`]. Dropping it does not end the queue.
    pub fn attach(node: &Node, handle: u32) -> Result<Queue> {
        let mut answer = uapi::Queue { handle, ..uapi::Queue::default() };
        sys::queue_attach(node.context.device.fd(), &mut answer).map_err(|errno| match errno {
            Errno::BADF => Error::argument(
                "the handle of a queue",
                handle,
                "what Queue::handle returns in a process with the same open file, of a queue that has not ended",
            ),
            errno => node.context.device.error(&format!("attaching the queue of handle {handle}"), errno),
        })?;
        let name = answer.name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into_owned();
        Queue::map(node.context.clone(), name, &answer, None)
    }

    /// Maps the queue that the driver has described.
    fn map(context: Arc<Context>, name: String, answer: &uapi::Queue, end: Option<End>) -> Result<Queue> {
        let label = Object::Queue.of(&name, context.id);
        // From here on it is ended if anything fails.
        let mut handle = Handle::new(context, answer.handle, label, end);
        // A forked child has a copy of this object, but does not own the queue.
        handle.owner = Some(std::process::id());
        let shape = shape_of(answer).ok_or_else(|| {
            let what = format!("the driver describes {} as {answer:?}", handle.label);
            Error::Os { what, errno: Errno::PROTO }
        })?;
        let mapping = handle.map(answer.offset, answer.length, READ_WRITE)?;
        Ok(Queue::of(handle, mapping, name, shape, answer))
    }

    /// The queue that the driver has described, in memory that is mapped.
    fn of(handle: Handle, mapping: Mapping, name: String, shape: Shape, answer: &uapi::Queue) -> Queue {
        Queue {
            mapping,
            name,
            page: answer.page,
            shape,
            quota: answer.quota,
            dequeue: Dequeue::new(shape, answer.quota, answer.owner),
            exclusive: Mutex::default(),
            passes: Passes::default(),
            arms: Arms::default(),
            seen: AtomicU32::new(0),
            arena: answer.arena as usize,
            handle,
        }
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
        self.handle.number
    }

    fn what(&self) -> String {
        self.handle.label.to_string()
    }

    #[inline]
    fn control(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass the offset of a word of the control page, with which the mapping begins; it lasts as
        // long as this queue, and all accesses to these words are atomic.
        unsafe { AtomicU64::from_ptr(self.mapping.at().add(offset).cast()) }
    }

    #[inline]
    fn flags(&self) -> &AtomicU64 {
        self.control(std::mem::offset_of!(Control, state))
    }

    /// Where a word of the arena lies.
    #[inline]
    fn at(&self, word: u32) -> *mut u8 {
        debug_assert!(u64::from(word) < (1 + u64::from(self.quota)) * u64::from(self.shape.words()));
        self.mapping.at().wrapping_add(self.arena + word as usize * usize::from(self.shape.width()))
    }

    #[inline]
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

    /// Passes elements to `with` until it breaks or there are no more. While other processes are in the dequeue
    /// section, waits until `backoff` ends. Returns word 0 of the first buffer if the queue was empty.
    fn take(&self, backoff: &mut Backoff, mut with: impl FnMut(u64) -> ControlFlow<()>) -> Result<Option<u32>> {
        if let Some(seen) = self.look() {
            return Ok(Some(seen));
        }
        let _exclusive = self.exclusive.lock().unwrap_or_else(PoisonError::into_inner);
        let _passing = self.passes.begin();
        loop {
            let mut took = false;
            let noting = |value| {
                let more = with(value);
                self.arms.take();
                took = true;
                more
            };
            let Ok(pass) = self.dequeue.pass(&mut Mapped { queue: self, inside: false }, noting);
            match pass {
                Pass::Busy if !backoff.wait() => return Ok(None),
                Pass::Busy => {}
                Pass::Full => self.service()?,
                Pass::Dead => return Err(self.failed("taking an element", Errno::IO)),
                Pass::Left { found, call } => {
                    let called = if call { self.service() } else { Ok(()) };
                    return match (found, called) {
                        (Ok(Found::Empty { seen }), Ok(())) => {
                            self.seen.store(seen, Ordering::Relaxed);
                            Ok(Some(seen))
                        }
                        // Whatever is wrong, elements are taken; the next pass fails as well.
                        _ if took => Ok(None),
                        (Err(broken), _) => Err(Error::Broken { what: self.what(), broken }),
                        (_, called) => called.map(|()| None),
                    };
                }
            }
        }
    }

    /// Word 0 of the first buffer if the queue is empty, without entering the dequeue section: a few loads. `None` if
    /// it is not, or if a pass is needed to tell: the process that was inside last is another, or is inside.
    #[inline]
    fn look(&self) -> Option<u32> {
        let mut memory = Mapped { queue: self, inside: false };
        let Ok(seen) = self.passes.between(|| self.dequeue.look(&mut memory));
        if let Some(seen) = seen {
            self.seen.store(seen, Ordering::Relaxed);
        }
        seen
    }

    /// The error behind an errno of the driver: for EIO, why the queue is dead.
    fn failed(&self, action: &str, errno: Errno) -> Error {
        if errno == Errno::IO {
            if let Ok(QueueState { dead: Some(status), .. }) = self.state() {
                return Error::Failed { what: self.what(), status };
            }
        }
        let ended = if errno == Errno::BADF { " (it has ended)" } else { "" };
        self.handle.context.device.error(&format!("{}{ended}: {action}", self.what()), errno)
    }

    /// Makes the driver handle an overflow, and returns when it has.
    fn service(&self) -> Result<()> {
        let fd = self.handle.context.device.fd();
        retry_on_intr(|| sys::queue_service(fd, &mut sys::handle(self.handle())))
            .map_err(|errno| self.failed("handling an overflow", errno))
    }

    /// Takes the oldest element; `None` if there is none. No system call, unless the queue has overflowed.
    pub fn try_pop(&self) -> Result<Option<u64>> {
        self.try_pop_with(|value| value)
    }

    /// [`Queue::try_pop`] that runs `with` on the element *before* it is taken: when the process is killed
    /// meanwhile, or `with` panics, the element stays in the queue. `with` runs inside the dequeue section: it must be
    /// short, and must not use this queue.
    pub fn try_pop_with<R>(&self, with: impl FnOnce(u64) -> R) -> Result<Option<R>> {
        // Most polls find nothing: not even what a pass needs is made for these.
        if self.look().is_some() {
            return Ok(None);
        }
        self.one(&mut Backoff::new(None), with).map(|found| found.ok())
    }

    /// An element; or else the word that an empty queue showed, or `None` when another process was in the dequeue
    /// section until `backoff` ended.
    fn one<R>(
        &self,
        backoff: &mut Backoff,
        with: impl FnOnce(u64) -> R,
    ) -> Result<std::result::Result<R, Option<u32>>> {
        let mut with = Some(with);
        let mut result = None;
        let empty = self.take(backoff, |value| {
            result = with.take().map(|with| with(value));
            ControlFlow::Break(())
        })?;
        Ok(result.ok_or(empty))
    }

    /// Takes as many elements as there are and `values` has room for, oldest first, in one pass: how many. They are
    /// taken one by one: a process that is killed meanwhile loses none but those already stored to `values`.
    pub fn pop_batch(&self, values: &mut [u64]) -> Result<usize> {
        let (mut count, most) = (0, values.len());
        if most == 0 {
            return Ok(0);
        }
        self.take(&mut Backoff::new(None), |value| {
            // Below `most`, or the pass had ended.
            values[count] = value;
            count += 1;
            if count < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(count)
    }

    /// Takes the oldest element, waiting for one: asleep until the board's interrupt. `None` when `timeout` has passed
    /// (`None`: never).
    ///
    /// No wake-up is lost: the arm carries the word that the empty queue showed, and the board signals at once if that
    /// has changed since. Of several threads that wait, each element wakes all, and one gets it. A consumer that sleeps
    /// after each element arms the queue for several at a time.
    pub fn pop_wait(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        let arm = |seen| {
            if let Some(count) = self.arms.before_sleep() {
                self.arm_with(count, seen);
            }
        };
        self.wait(timeout, arm, |seen| self.changed(seen))
    }

    /// [`Queue::pop_wait`] that arms without the word that it has seen: with a board that trusts it, it can sleep for
    /// ever.
    #[cfg(feature = "literal")]
    pub fn pop_wait_literally(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        self.wait(timeout, |_| self.arm_with(1, self.load(TAIL_WORD as u32) as u32), |_| false)
    }

    fn wait(&self, timeout: Option<Duration>, arm: impl Fn(u32), changed: impl Fn(u32) -> bool) -> Result<Option<u64>> {
        let Context { completions, device, .. } = &*self.handle.context;
        let backoff = Backoff::new(timeout);
        loop {
            // Before the pass: an event that comes after it, and is read by another thread, is noticed.
            let epoch = completions.epoch();
            let seen = match self.one(&mut Backoff::new(backoff.left()), |value| value)? {
                Ok(value) => return Ok(Some(value)),
                Err(seen) => seen,
            };
            if backoff.expired() {
                return Ok(None);
            }
            let Some(seen) = seen else { continue };
            completions.prepare(device)?;
            arm(seen);
            completions.wait(device, &backoff, || completions.epoch() != epoch || changed(seen))?;
        }
    }

    /// Whether a queue that was empty may have changed: without entering the dequeue section, for a thread whose event
    /// another process has read.
    fn changed(&self, seen: u32) -> bool {
        let word = |word: u64| self.load(word as u32);
        // Empty means head == tail, so both words were the same.
        word(TAIL_WORD) != seen.into()
            || word(HEAD_WORD) != seen.into()
            || word(NEXT_WORD) != 0
            || self.flags().load(Ordering::Acquire) & (FULL | DEAD) != 0
    }

    /// Asks for an event at each of the next `count` elements.
    fn arm_with(&self, count: u16, seen: u32) {
        let arm = QueueArm { count, page: self.page, seen };
        self.handle.context.slots.write_register(QUEUE_ARM, arm.encode());
    }

    /// Makes [`Node::completions`] readable at the next element, for a program's own `poll`; at once if there has been
    /// one since the queue was last found empty. So: pop until the queue is empty, arm, poll, read, and repeat.
    pub fn arm(&self) -> Result<()> {
        self.handle.context.completions.fd(&self.handle.context.device)?;
        self.arm_with(1, self.seen.load(Ordering::Relaxed));
        Ok(())
    }

    /// Takes the oldest element by a system call that does everything in the kernel, as the paper's PAL code did: the
    /// baseline for [`Queue::try_pop`]. Needs `telegraphos_lab.ko`.
    pub fn pop_in_kernel(&self) -> Result<Option<u64>> {
        let mut pop = uapi::QueuePop { handle: self.handle(), ..uapi::QueuePop::default() };
        match retry_on_intr(|| sys::queue_pop(self.handle.context.device.fd(), &mut pop)) {
            Ok(()) => Ok(Some(pop.value)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::NOTTY) => {
                let what = "taking an element in the kernel is for comparisons, and its module is not loaded: insmod \
                            telegraphos_lab.ko";
                Err(self.failed(what, Errno::NOTTY))
            }
            Err(errno) => Err(self.failed("taking an element in the kernel", errno)),
        }
    }

    /// The number of times that the linked buffers have reached the limit. When it rises, consumers are slow, and
    /// senders are about to be held back; sleeping consumers are woken then. A load from memory.
    pub fn limits(&self) -> u64 {
        self.control(std::mem::offset_of!(Control, limits)).load(Ordering::Acquire)
    }

    /// Its state. A system call.
    pub fn state(&self) -> Result<QueueState> {
        let mut state = uapi::QueueState { handle: self.handle(), ..uapi::QueueState::default() };
        let action = || format!("{}: asking for its state", self.what());
        self.handle.context.device.call(sys::queue_state, &mut state, action)?;
        let has = |bit: u64| u64::from(state.state) & bit != 0;
        Ok(QueueState {
            dead: has(DEAD).then(|| latched(state.status).unwrap_or(Status::Stale)),
            full: has(FULL),
            held: has(HELD),
            linked: state.linked,
            overflows: state.overflows,
            evictions: state.evictions,
        })
    }

    /// Ends the queue, if this process has created it: its senders' imports are gone, and elements not taken are lost.
    /// One that was attached is only unmapped. Dropping does the same, and only logs errors.
    pub fn close(self) -> Result<()> {
        let Queue { mapping, handle, .. } = self;
        drop(mapping);
        handle.close()
    }
}

/// The shape of a queue, if the driver's description is consistent: all later accesses rely on it.
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
        // The owner that was inside before, by the driver's numbers: if it was another, it has taken elements.
        if self.inside && (expected ^ new) >> OWNER_SHIFT != 0 {
            self.queue.arms.forget();
        }
        Ok(before)
    }

    #[inline]
    fn leave(&mut self, mask: u64) -> std::result::Result<u64, Infallible> {
        self.inside = false;
        Ok(self.queue.flags().fetch_and(mask, Orders::SOUND.leave))
    }
}

impl Drop for Mapped<'_> {
    /// The caller's closure has panicked in the dequeue section: leaves it, and the element is not taken.
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
