// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways to notify a receiver that a message has arrived: the notification queue, and the paper's alternatives (s0
//! §1, SPEC items 1 and 3).
//!
//! All of them announce the same messages, which their sender has stored into the receiver's memory before. Each is
//! given its best form: where the receiver looks at words, they are its own, by ordinary loads.
//!
//! | Method | The sender, after its message | The receiver's look |
//! |---|---|---|
//! | `flag` | stores the message's place into the one flag | loads the flag, clears it |
//! | `flag-look` | loads the flag until it is clear, then as above | as above |
//! | `flags` | stores its message's number into its own flag | loads N flags until one has changed |
//! | `groups` | as `flags`; then stores 1 into its group's word | loads the groups' words; clears one, *then* loads its flags |
//! | `add` | fetch-and-add for a slot; loads the head (full?); stores the place into the slot | loads the next slot, clears it, stores the head |
//! | `add-known` | as `add`, but loads the head only if its last value does not do | as above |
//! | `lock` | takes a ticket lock; loads tail and head; stores slot and tail; unlocks, which waits for both | loads the tail, and the slot |
//! | `req` | stores the place into the queue's aperture | `Queue::try_pop` |
//! | `req-batch` | the same | `Queue::pop_batch` |
//! | `req-kernel` | the same | `Queue::pop_in_kernel`, the stand-in for the paper's PAL code |
//!
//! `flag` and `flag-look` lose: a sender that stores second, before the receiver has looked, overwrites the first; and
//! one that has looked at the flag has not reserved it. Flags per sender lose nothing because a flag has one writer and
//! holds a number: number 7 implies 6.
//!
//! Groups of about the square root of N senders lose nothing either. All senders of a group store the same value in its
//! word. The flag is stored before the word, towards one node, so it is performed before it. The receiver clears the
//! word first, and loads the flags after that store has been performed (a full fence). So if the clearing came after
//! the 1, the flag was there before; if it came before, the 1 is still there at the next look. With the clearing after
//! the loads, or without the fence, a notification that comes in between stays unseen until another of the same group.

use crate::cli::{self, Failure, Outcome};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};
use telegraphos::{Queue, Remote, RemoteQueue, Segment, sync::TicketLock};

/// How the receiver is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The notification queue, taken one by one.
    Req,
    /// The notification queue, taken as many as there are.
    ReqBatch,
    /// The notification queue, taken by a system call.
    ReqKernel,
    /// One flag for all.
    Flag,
    /// One flag for all, looked at before.
    FlagLook,
    /// One flag for each.
    Flags,
    /// One flag for each, and one for each group.
    Groups,
    /// A queue in software, with fetch-and-add.
    Add,
    /// The same, with the head remembered.
    AddKnown,
    /// A queue in software, with a lock.
    Lock,
}

impl Method {
    /// All, in the order in which they are measured.
    pub const ALL: [Method; 10] = [
        Method::Req,
        Method::ReqBatch,
        Method::ReqKernel,
        Method::Flag,
        Method::FlagLook,
        Method::Flags,
        Method::Groups,
        Method::Add,
        Method::AddKnown,
        Method::Lock,
    ];

    /// As it is called.
    pub fn name(self) -> &'static str {
        match self {
            Method::Req => "req",
            Method::ReqBatch => "req-batch",
            Method::ReqKernel => "req-kernel",
            Method::Flag => "flag",
            Method::FlagLook => "flag-look",
            Method::Flags => "flags",
            Method::Groups => "groups",
            Method::Add => "add",
            Method::AddKnown => "add-known",
            Method::Lock => "lock",
        }
    }

    pub fn named(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether it needs a notification queue.
    pub fn queued(self) -> bool {
        matches!(self, Method::Req | Method::ReqBatch | Method::ReqKernel)
    }

    /// Whether notifications may be lost.
    pub fn loses(self) -> bool {
        matches!(self, Method::Flag | Method::FlagLook)
    }

    /// Whether senders make progress while the receiver does not poll.
    pub fn runs_ahead(self) -> bool {
        self != Method::FlagLook
    }
}

/// Words of a message.
pub const MESSAGE: usize = 8;
/// Slots of the queues in software.
pub const SLOTS: usize = 1024;
/// Senders there are flags for.
pub const FLAGS: usize = 1024;

// Places in the receiver's memory, in words. What different parties store to lies in different cache lines.
const ONE_FLAG: usize = 0;
const LOCK: usize = 8;
const LOCK_TAIL: usize = 16;
const LOCK_HEAD: usize = 24;
const ADD_TAIL: usize = 32;
const ADD_HEAD: usize = 40;
const OWN_FLAGS: usize = 512;
const GROUPS: usize = OWN_FLAGS + FLAGS;
const ADD_RING: usize = GROUPS + FLAGS;
const LOCK_RING: usize = ADD_RING + SLOTS;
const MESSAGES: usize = LOCK_RING + SLOTS;

/// Where messages lie in the receiver's memory, and what the senders have measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Senders there may be.
    pub senders: usize,
    /// Messages of a sender there is room for.
    pub room: usize,
}

impl Layout {
    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        8 * (MESSAGES + self.senders * (self.room * MESSAGE + 1 + self.room)) as u64
    }

    /// The place of a sender's message of that number, counted from 1: never 0.
    pub fn message(&self, sender: usize, number: u64) -> usize {
        MESSAGES + (sender * self.room + (number % self.room as u64) as usize) * MESSAGE
    }

    /// The place of what a sender has measured: how many messages it has sent, and a word for each.
    pub fn results(&self, sender: usize) -> usize {
        MESSAGES + self.senders * self.room * MESSAGE + sender * (1 + self.room)
    }

    /// The sender whose message has that place, and which of its places it is; `None` if no message has it.
    pub fn find(&self, place: u64) -> Option<(usize, u64)> {
        let at = usize::try_from(place).ok()?.checked_sub(MESSAGES)?;
        let index = at / MESSAGE;
        (at % MESSAGE == 0 && index < self.senders * self.room).then(|| (index / self.room, (index % self.room) as u64))
    }
}

/// Senders of a group, of so many senders.
fn group_of(senders: usize) -> usize {
    (1..=senders).find(|size| size * size >= senders).unwrap_or(1)
}

/// The receiver's memory as a sender reaches it. Places count words.
pub trait Far {
    /// Stores a word.
    fn put(&self, place: usize, value: u64) -> Outcome<()>;
    /// Loads a word.
    fn get(&self, place: usize) -> Outcome<u64>;
    /// Adds 1 to a word; what it was before.
    fn next(&self, place: usize) -> Outcome<u64>;
    /// Runs `critical` while it holds the lock of two words there.
    fn locked(&self, place: usize, critical: &mut dyn FnMut() -> Outcome<()>) -> Outcome<()>;
    /// Appends a word to the notification queue, after the message.
    fn enqueue(&self, value: u64) -> Outcome<()>;
}

/// The imports of a sender.
pub struct Imports {
    pub data: Remote,
    pub queue: Option<RemoteQueue>,
}

impl Far for Imports {
    fn put(&self, place: usize, value: u64) -> Outcome<()> {
        Ok(self.data.put(8 * place as u64, value)?)
    }

    fn get(&self, place: usize) -> Outcome<u64> {
        Ok(self.data.get(8 * place as u64)?)
    }

    fn next(&self, place: usize) -> Outcome<u64> {
        Ok(self.data.fetch_inc(8 * place as u64)?)
    }

    fn locked(&self, place: usize, critical: &mut dyn FnMut() -> Outcome<()>) -> Outcome<()> {
        let lock = TicketLock::new(&self.data, 8 * place as u64)?;
        let guard = lock.lock()?;
        critical()?;
        Ok(guard.unlock()?)
    }

    fn enqueue(&self, value: u64) -> Outcome<()> {
        let queue = self.queue.as_ref().ok_or_else(no_queue)?;
        // The message has been stored; so this is the look at its import and the one store.
        Ok(queue.put_notify::<u64>(&self.data, 0, &[], value)?)
    }
}

fn no_queue() -> Failure {
    Failure::Refused("there is no notification queue: expected one, since a method needs it".into())
}

/// One that notifies.
pub struct Sender<F> {
    pub far: F,
    index: usize,
    /// The head of the `add` queue, as last seen.
    head: u64,
    patience: Duration,
}

impl<F: Far> Sender<F> {
    /// The sender of that number, counted from 0, which waits at most so long for room.
    pub fn new(far: F, index: usize, patience: Duration) -> Sender<F> {
        Sender { far, index, head: 0, patience }
    }

    /// Notifies the receiver that message `number`, counted from 1 without gaps, is at `place`. `senders` is their
    /// number.
    pub fn notify(&mut self, method: Method, senders: usize, number: u64, place: u64) -> Outcome<()> {
        let far = &self.far;
        match method {
            Method::Req | Method::ReqBatch | Method::ReqKernel => far.enqueue(place),
            Method::Flag => far.put(ONE_FLAG, place),
            Method::FlagLook => {
                until(self.patience, || Ok(far.get(ONE_FLAG)? == 0))?;
                far.put(ONE_FLAG, place)
            }
            Method::Flags => far.put(OWN_FLAGS + self.index, number),
            Method::Groups => {
                far.put(OWN_FLAGS + self.index, number)?;
                far.put(GROUPS + self.index / group_of(senders), 1)
            }
            Method::Add | Method::AddKnown => {
                let slot = far.next(ADD_TAIL)?;
                if method == Method::Add || slot - self.head >= SLOTS as u64 {
                    let head = &mut self.head;
                    until(self.patience, || {
                        *head = far.get(ADD_HEAD)?;
                        Ok(slot.wrapping_sub(*head) < SLOTS as u64)
                    })?;
                }
                far.put(ADD_RING + slot as usize % SLOTS, place)
            }
            Method::Lock => far.locked(LOCK, &mut || {
                let tail = far.get(LOCK_TAIL)?;
                until(self.patience, || Ok(tail.wrapping_sub(far.get(LOCK_HEAD)?) < SLOTS as u64))?;
                far.put(LOCK_RING + tail as usize % SLOTS, place)?;
                far.put(LOCK_TAIL, tail + 1)
            }),
        }
    }
}

/// Polls without a pause: each poll is a round trip already. The clock is read once one was too early.
fn until(patience: Duration, mut ready: impl FnMut() -> Outcome<bool>) -> Outcome<()> {
    let mut begun = None;
    while !ready()? {
        let waited = begun.get_or_insert_with(Instant::now).elapsed();
        let late = || format!("waited {patience:?} for room at the receiver: has it ended?");
        cli::must(waited <= patience, Failure::Refused, late)?;
    }
    Ok(())
}

/// The consumer's side of a notification queue.
pub trait Pop {
    fn pop(&self) -> Outcome<Option<u64>>;
    /// The oldest elements: how many.
    fn batch(&self, into: &mut [u64]) -> Outcome<usize>;
    /// The oldest element, by a system call.
    fn kernel(&self) -> Outcome<Option<u64>>;
}

impl Pop for Queue {
    fn pop(&self) -> Outcome<Option<u64>> {
        Ok(self.try_pop()?)
    }

    fn batch(&self, into: &mut [u64]) -> Outcome<usize> {
        Ok(self.pop_batch(into)?)
    }

    fn kernel(&self) -> Outcome<Option<u64>> {
        Ok(self.pop_in_kernel()?)
    }
}

/// The one that is notified.
pub struct Receiver<'a, Q> {
    pub memory: &'a [AtomicU64],
    queue: Option<&'a Q>,
    layout: Layout,
    /// Of each sender, the messages taken: of all methods together, as they are numbered.
    seen: Vec<u64>,
    /// The flag or group to begin with, so that no sender is preferred.
    turn: usize,
    add_head: u64,
    lock_head: u64,
}

impl<'a, Q: Pop> Receiver<'a, Q> {
    /// In this segment, zero at first, of [`Layout::bytes`] or more.
    pub fn of(segment: &'a Segment, queue: Option<&'a Q>, layout: Layout) -> Outcome<Receiver<'a, Q>> {
        let words = usize::try_from(segment.size() / 8).unwrap_or(0);
        // SAFETY: the segment is mapped until it is dropped, at a page, zero at first; all accesses are word by word,
        // atomically.
        let memory = unsafe { std::slice::from_raw_parts(segment.as_ptr().cast::<AtomicU64>(), words) };
        Receiver::new(memory, queue, layout)
    }

    /// In this memory.
    fn new(memory: &'a [AtomicU64], queue: Option<&'a Q>, layout: Layout) -> Outcome<Receiver<'a, Q>> {
        cli::must(memory.len() * 8 >= layout.bytes() as usize, Failure::Usage, || {
            format!("memory of {} words: expected {layout:?} to fit", memory.len())
        })?;
        Ok(Receiver { memory, queue, layout, seen: vec![0; FLAGS], turn: 0, add_head: 0, lock_head: 0 })
    }

    #[inline]
    fn load(&self, place: usize) -> u64 {
        self.memory[place].load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, place: usize, value: u64) {
        self.memory[place].store(value, Ordering::Release);
    }

    /// Before a trial: the last numbers of the senders until now. What was not seen of them never will be.
    pub fn start(&mut self, numbers: &[u64]) {
        self.seen[..numbers.len()].copy_from_slice(numbers);
        self.turn = 0;
        self.store(ONE_FLAG, 0);
        for group in 0..FLAGS {
            self.store(GROUPS + group, 0);
        }
    }

    /// What a sender has changed in its flag, as places.
    #[inline]
    fn flag(&mut self, sender: usize, taken: &mut Vec<u64>) -> bool {
        let (number, seen) = (self.load(OWN_FLAGS + sender), self.seen[sender]);
        if number <= seen {
            return false;
        }
        taken.extend((seen + 1..=number).map(|number| self.layout.message(sender, number) as u64));
        self.seen[sender] = number;
        true
    }

    /// One look for messages of so many senders: their places are appended to `taken`, none if there are none.
    #[inline]
    pub fn look(&mut self, method: Method, senders: usize, taken: &mut Vec<u64>) -> Outcome<()> {
        match method {
            Method::Req => taken.extend(self.queue.ok_or_else(no_queue)?.pop()?),
            Method::ReqKernel => taken.extend(self.queue.ok_or_else(no_queue)?.kernel()?),
            Method::ReqBatch => {
                let mut batch = [0; 32];
                let count = self.queue.ok_or_else(no_queue)?.batch(&mut batch)?;
                taken.extend(&batch[..count]);
            }
            Method::Flag | Method::FlagLook => {
                let place = self.load(ONE_FLAG);
                if place != 0 {
                    self.store(ONE_FLAG, 0);
                    taken.push(place);
                }
            }
            Method::Flags => {
                for _ in 0..senders {
                    let sender = self.turn;
                    self.turn = if sender + 1 >= senders { 0 } else { sender + 1 };
                    if self.flag(sender, taken) {
                        break;
                    }
                }
            }
            Method::Groups => {
                let size = group_of(senders);
                let groups = senders.div_ceil(size);
                for _ in 0..groups {
                    let group = self.turn;
                    self.turn = if group + 1 >= groups { 0 } else { group + 1 };
                    if self.load(GROUPS + group) == 0 {
                        continue;
                    }
                    self.store(GROUPS + group, 0);
                    // The flags are loaded when the board can see that the word is clear, not before.
                    fence(Ordering::SeqCst);
                    let mut found = false;
                    for sender in group * size..((group + 1) * size).min(senders) {
                        found |= self.flag(sender, taken);
                    }
                    if found {
                        break;
                    }
                }
            }
            Method::Add | Method::AddKnown => {
                let slot = ADD_RING + self.add_head as usize % SLOTS;
                let place = self.load(slot);
                if place != 0 {
                    self.store(slot, 0);
                    self.add_head += 1;
                    // Senders that see this find the slot clear.
                    self.store(ADD_HEAD, self.add_head);
                    taken.push(place);
                }
            }
            Method::Lock => {
                if self.load(LOCK_TAIL) != self.lock_head {
                    taken.push(self.load(LOCK_RING + self.lock_head as usize % SLOTS));
                    self.lock_head += 1;
                    self.store(LOCK_HEAD, self.lock_head);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// The receiver's memory, in this process: the processor's atomics stand in for the board's.
    struct Near<'a> {
        memory: &'a [AtomicU64],
        queue: &'a Mutex<VecDeque<u64>>,
        lock: &'a Mutex<()>,
    }

    impl Far for Near<'_> {
        fn put(&self, place: usize, value: u64) -> Outcome<()> {
            self.memory[place].store(value, Ordering::Release);
            Ok(())
        }
        fn get(&self, place: usize) -> Outcome<u64> {
            // There may be fewer processors than threads that wait for each other.
            std::thread::yield_now();
            Ok(self.memory[place].load(Ordering::Acquire))
        }
        fn next(&self, place: usize) -> Outcome<u64> {
            Ok(self.memory[place].fetch_add(1, Ordering::AcqRel))
        }
        fn locked(&self, _: usize, critical: &mut dyn FnMut() -> Outcome<()>) -> Outcome<()> {
            let _guard = self.lock.lock().unwrap();
            critical()
        }
        fn enqueue(&self, value: u64) -> Outcome<()> {
            self.queue.lock().unwrap().push_back(value);
            Ok(())
        }
    }

    impl Pop for Mutex<VecDeque<u64>> {
        fn pop(&self) -> Outcome<Option<u64>> {
            Ok(self.lock().unwrap().pop_front())
        }
        fn batch(&self, into: &mut [u64]) -> Outcome<usize> {
            let mut queue = self.lock().unwrap();
            let count = queue.len().min(into.len());
            queue.drain(..count).zip(into).for_each(|(value, place)| *place = value);
            Ok(count)
        }
        fn kernel(&self) -> Outcome<Option<u64>> {
            self.pop()
        }
    }

    /// Threads send as fast as they can, more than the queues' slots. Each sender's messages come in order, each once,
    /// with all of their words, and the looks after the last store find all that is there; but for the methods that
    /// lose.
    #[test]
    fn nothing_is_lost_but_by_a_shared_flag() {
        const SENDERS: usize = 3;
        const EACH: u64 = 1000;
        let layout = Layout { senders: SENDERS, room: EACH as usize };
        let words = layout.bytes() as usize / 8;
        let memory: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let (queue, lock) = (Mutex::new(VecDeque::new()), Mutex::new(()));
        let mut receiver = Receiver::new(&memory, Some(&queue), layout).unwrap();
        let mut numbers = [0; SENDERS];
        // Twice: queues in software continue where they were.
        for method in Method::ALL.into_iter().chain(Method::ALL) {
            receiver.start(&numbers);
            let before = numbers;
            let mut taken = Vec::new();
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..SENDERS)
                    .map(|index| {
                        let far = Near { memory: &memory, queue: &queue, lock: &lock };
                        scope.spawn(move || {
                            let mut sender = Sender::new(far, index, Duration::from_secs(60));
                            for number in before[index] + 1..=before[index] + EACH {
                                let place = layout.message(index, number);
                                for word in 0..MESSAGE {
                                    sender.far.put(place + word, number * 8 + word as u64).unwrap();
                                }
                                sender.notify(method, SENDERS, number, place as u64).unwrap();
                            }
                        })
                    })
                    .collect();
                while !threads.iter().all(|thread| thread.is_finished()) {
                    let count = taken.len();
                    receiver.look(method, SENDERS, &mut taken).unwrap();
                    if taken.len() == count {
                        std::thread::yield_now();
                    }
                }
            });
            loop {
                let count = taken.len();
                receiver.look(method, SENDERS, &mut taken).unwrap();
                if taken.len() == count {
                    break;
                }
            }
            let mut last = before;
            for place in &taken {
                let (sender, at) = layout.find(*place).unwrap();
                let number = (last[sender] + 1..=before[sender] + EACH).find(|n| n % EACH == at).unwrap();
                for word in 0..MESSAGE {
                    assert_eq!(memory[*place as usize + word].load(Ordering::Relaxed), number * 8 + word as u64);
                }
                assert!(method.loses() || number == last[sender] + 1, "{method:?}, sender {sender}: {number}");
                last[sender] = number;
            }
            numbers = numbers.map(|n| n + EACH);
            assert!(method.loses() || last == numbers, "{method:?}: {last:?}, sent {numbers:?}");
        }
    }

    /// Two senders look at the flag, find it clear, and store: the first is lost.
    #[test]
    fn a_shared_flag_loses_even_if_it_is_looked_at_before() {
        let layout = Layout { senders: 2, room: 1 };
        let memory: Vec<AtomicU64> = (0..layout.bytes() as usize / 8).map(|_| AtomicU64::new(0)).collect();
        let queue = Mutex::new(VecDeque::new());
        let mut receiver = Receiver::new(&memory, Some(&queue), layout).unwrap();
        for sender in 0..2 {
            assert_eq!(memory[ONE_FLAG].load(Ordering::Relaxed), 0, "looks: it is clear");
            if sender == 1 {
                memory[ONE_FLAG].store(layout.message(0, 1) as u64, Ordering::Relaxed);
                memory[ONE_FLAG].store(layout.message(1, 1) as u64, Ordering::Relaxed);
            }
        }
        let mut taken = Vec::new();
        for _ in 0..3 {
            receiver.look(Method::FlagLook, 2, &mut taken).unwrap();
        }
        assert_eq!(taken, [layout.message(1, 1) as u64]);
    }

    #[test]
    fn places_and_groups() {
        let layout = Layout { senders: 16, room: 32 };
        for (sender, number) in [(0, 1), (0, 32), (15, 33), (7, 100)] {
            assert_eq!(layout.find(layout.message(sender, number) as u64), Some((sender, number % 32)));
        }
        let end = layout.message(15, 31) + MESSAGE;
        assert_eq!(layout.results(0), end);
        assert_eq!(layout.results(15) + 1 + 32, layout.bytes() as usize / 8);
        for bad in [0, MESSAGES as u64 - 8, MESSAGES as u64 + 1, end as u64, u64::MAX] {
            assert_eq!(layout.find(bad), None, "{bad}");
        }
        assert_eq!([1, 2, 4, 8, 16, 1024].map(group_of), [1, 2, 2, 3, 4, 32]);
        assert!(Method::ALL.into_iter().all(|method| Method::named(method.name()) == Some(method)));
    }
}
