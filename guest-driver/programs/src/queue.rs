// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of programs about notification queues: elements with sender and number, a queue's memory as its owner
//! may abuse it, consumers that are processes, and a log that outlives them.

use crate::child::End;
use crate::interface::call;
use crate::mapping::{Mapping, READ_WRITE};
use crate::patience::{ABSENT, admitted};
use crate::random;
use rustix::mm::MapFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telegraphos::{Error, Node, NodeId, Queue, QueueBuilder, RemoteQueue};
use telegraphos_wire::{queue::Control, uapi};

/// Senders there may be; an element names one of them.
pub const SENDERS: u32 = 1 << 12;
/// Elements of a sender there may be; an element has a number below it.
pub const NUMBERS: u32 = 1 << 20;
const CHECK: u64 = 0x7175_6575_6573;

/// The element that a sender sends as its number so and so. In a wide one the upper half is made of the lower one, so
/// that what is put together of two does not pass.
pub fn element(width: u32, sender: u32, number: u32) -> u64 {
    let low = u64::from(((sender % SENDERS) << 20) | (number % NUMBERS));
    if width == 8 { random::word(CHECK, low) << 32 | low } else { low }
}

/// Sender and number; `None` if no sender sent this.
pub fn parse(width: u32, element: u64) -> Option<(u32, u32)> {
    let (sender, number) = ((element >> 20) as u32 % SENDERS, element as u32 % NUMBERS);
    (self::element(width, sender, number) == element).then_some((sender, number))
}

/// A builder for buffers of that many words of `width` bytes.
pub fn shaped(builder: QueueBuilder, words: u32, width: u32) -> QueueBuilder {
    match width {
        8 => builder.wide().words(words),
        _ => builder.words(words),
    }
}

/// Imports a queue that may not be there yet.
pub fn import_patiently(node: &Node, id: NodeId, name: &str, patience: Duration) -> Result<RemoteQueue, Error> {
    admitted(patience, ABSENT, || Queue::import(node, id, name).open())
}

/// A raw mapping of a queue of this process.
#[derive(Debug)]
pub struct Memory {
    mapping: Mapping,
    arena: u64,
    width: u64,
    length: u64,
}

impl Memory {
    /// Of that queue, which was made through `node`.
    pub fn of(node: &Node, queue: &Queue) -> Result<Memory, String> {
        let mut about = uapi::Queue { handle: queue.handle(), ..uapi::Queue::default() };
        call::structure(node, 13, &mut about)
            .map_err(|errno| format!("TG_IOCTL_QUEUE_ATTACH: {}", std::io::Error::from_raw_os_error(errno)))?;
        let mapping = Mapping::of(node, about.offset, about.length as usize, READ_WRITE)
            .map_err(|e| format!("mmap of {:?}: {e}", queue.name()))?;
        Ok(Memory { mapping, arena: about.arena, width: about.width.into(), length: about.length })
    }

    fn at(&self, word: u64) -> u64 {
        let at = self.arena + word * self.width;
        assert!(at + self.width <= self.length, "word {word} lies outside the arena");
        at
    }

    /// A word of the arena.
    pub fn word(&self, word: u64) -> u64 {
        let at = self.at(word);
        // SAFETY: checked just now.
        let value = unsafe { crate::raw::load_size(self.mapping.at(), at, self.width as usize) };
        std::sync::atomic::fence(Ordering::Acquire);
        value
    }

    /// Overwrites a word of the arena.
    pub fn set(&self, word: u64, value: u64) {
        let at = self.at(word);
        std::sync::atomic::fence(Ordering::Release);
        // SAFETY: checked just now.
        unsafe { crate::raw::store_size(self.mapping.at(), at, self.width as usize, value) }
    }

    fn control(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: a word of the control page, with which the mapping begins, aligned.
        unsafe { AtomicU64::from_ptr(self.mapping.at().add(offset).cast()) }
    }

    /// The word that keeps consumers and driver apart.
    pub fn state(&self) -> &AtomicU64 {
        self.control(std::mem::offset_of!(Control, state))
    }

    /// Overflows handled, as the control page says.
    pub fn overflows(&self) -> u64 {
        self.control(std::mem::offset_of!(Control, overflows)).load(Ordering::Acquire)
    }
}

/// What consumers have been handed over: shared by all that are forked after it was made, and there when they are dead.
///
/// It is written inside [`Queue::try_pop_with`], where one consumer is at a time, and before the element is taken.
#[derive(Debug)]
pub struct Log {
    mapping: Mapping,
    capacity: usize,
}

/// Words in front of the entries: one with their number in the lower half, and in the upper half how many of them are
/// not the one before once more; and some for any use.
const HEAD: usize = 8;
const COUNTS: usize = 0;
const NOTES: usize = 1;

impl Log {
    /// With room for that many entries.
    pub fn new(capacity: usize) -> Result<Log, String> {
        let length = 8 * (HEAD + 2 * capacity);
        let mapping = Mapping::anonymous(length, MapFlags::SHARED);
        Ok(Log { mapping: mapping.map_err(|e| format!("{length} bytes for a log: {e}"))?, capacity })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(8 * index < self.mapping.length());
        // SAFETY: callers stay within head and capacity; aligned, and accessed atomically only.
        unsafe { AtomicU64::from_ptr(self.mapping.at().cast::<u64>().add(index)) }
    }

    /// One of seven words for any use.
    pub fn note(&self, number: usize) -> &AtomicU64 {
        self.word(NOTES + number % (HEAD - NOTES))
    }

    /// Entries; more than the capacity if some found no room.
    pub fn count(&self) -> u64 {
        self.word(COUNTS).load(Ordering::Acquire) & u64::from(u32::MAX)
    }

    /// Entries that differ from the one before.
    pub fn different(&self) -> u64 {
        self.word(COUNTS).load(Ordering::Acquire) >> 32
    }

    /// Appends what was handed over to the consumer of that number. Killed amid this, it has appended nothing or all:
    /// one store publishes the entry and both counts. One consumer at a time.
    pub fn push(&self, value: u64, life: u64) {
        let count = self.count() as usize;
        let again = count > 0 && count <= self.capacity && self.entry(count - 1).0 == value;
        if count < self.capacity {
            self.word(HEAD + 2 * count).store(value, Ordering::Relaxed);
            self.word(HEAD + 2 * count + 1).store(life, Ordering::Relaxed);
        }
        let different = self.different() + u64::from(!again);
        self.word(COUNTS).store(different << 32 | (count as u64 + 1), Ordering::Release);
    }

    /// An entry: the element, and the number of the consumer.
    pub fn entry(&self, index: usize) -> (u64, u64) {
        let word = |at: usize| self.word(HEAD + 2 * index + at).load(Ordering::Acquire);
        (word(0), word(1))
    }

    /// Compares the log with what was sent: by each of `senders`, the numbers below `each`, in order. A consumer for
    /// whom `ended` is true was killed, so the last element it was handed may have been handed over again to the next.
    pub fn tally(&self, width: u32, senders: u32, each: u32, ended: impl Fn(u64) -> bool) -> Tally {
        let mut tally = Tally::default();
        let mut seen = vec![vec![false; each as usize]; senders as usize];
        let mut newest = vec![None; senders as usize];
        let mut before = None;
        let count = self.count() as usize;
        tally.beyond = count.saturating_sub(self.capacity) as u64;
        for index in 0..count.min(self.capacity) {
            let (value, life) = self.entry(index);
            if let Some((_, last)) = before.filter(|(last, _)| *last == value) {
                match last != life && ended(last) {
                    true => tally.again += 1,
                    false => tally.doubled += 1,
                }
                before = Some((value, life));
                continue;
            }
            before = Some((value, life));
            let found = parse(width, value).filter(|(sender, number)| *sender < senders && *number < each);
            let Some((sender, number)) = found else {
                tally.foreign += 1;
                continue;
            };
            let (sender, number) = (sender as usize, number as usize);
            if std::mem::replace(&mut seen[sender][number], true) {
                tally.doubled += 1;
                continue;
            }
            tally.received += 1;
            if newest[sender].is_some_and(|newest| number < newest) {
                tally.disordered += 1;
            }
            newest[sender] = Some(number);
        }
        tally.lost = seen.iter().flatten().filter(|seen| !**seen).count() as u64;
        tally
    }
}

/// How a log compares with what was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Elements of the senders, each counted once.
    pub received: u64,
    /// Elements that were handed over again after a consumer was killed with them in its hands: no violation.
    pub again: u64,
    /// Elements sent that never came.
    pub lost: u64,
    /// Elements that came a second time.
    pub doubled: u64,
    /// Elements that came after a later one of the same sender.
    pub disordered: u64,
    /// Elements that no sender sent.
    pub foreign: u64,
    /// Entries that found no room in the log.
    pub beyond: u64,
}

impl Tally {
    /// Whether every element came once and in its sender's order (SPEC I9, I10).
    pub fn is_right(&self) -> bool {
        let Tally { lost, doubled, disordered, foreign, beyond, .. } = *self;
        lost + doubled + disordered + foreign + beyond == 0
    }
}

/// A process forked from this one; killed on drop.
#[derive(Debug)]
pub struct Forked {
    pid: libc::pid_t,
    end: Option<End>,
}

/// Exit code of a forked process whose work failed.
pub const FAILED: i32 = 11;

impl Forked {
    /// Runs `work` in a copy of this process, which has no other thread now. SIGBUS ends it, and so does our end.
    pub fn run(work: impl FnOnce() -> Result<(), String>) -> Result<Forked, String> {
        let parent = std::process::id();
        // SAFETY: no other thread exists that could hold a lock.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(format!("fork: {}", std::io::Error::last_os_error())),
            0 => {
                // SAFETY: these take numbers only.
                unsafe {
                    libc::signal(libc::SIGBUS, libc::SIG_DFL);
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                }
                let code = if std::os::unix::process::parent_id() != parent {
                    FAILED
                } else {
                    match work() {
                        Ok(()) => 0,
                        Err(text) => {
                            eprintln!("consumer {}: {text}", std::process::id());
                            FAILED
                        }
                    }
                };
                // SAFETY: the parent's state, of which this is a copy, must not be closed or flushed.
                unsafe { libc::_exit(code) }
            }
            pid => Ok(Forked { pid, end: None }),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        if self.end.is_none() {
            // SAFETY: it has not been waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Its end, if it has come.
    pub fn ended(&mut self) -> Option<End> {
        self.wait_with(libc::WNOHANG)
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> End {
        loop {
            if let Some(end) = self.wait_with(0) {
                return end;
            }
        }
    }

    fn wait_with(&mut self, flags: libc::c_int) -> Option<End> {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        if self.end.is_none() && unsafe { libc::waitpid(self.pid, &mut status, flags) } == self.pid {
            self.end = Some(ExitStatus::from_raw(status).into());
        }
        self.end
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        self.kill();
        self.wait();
    }
}

/// In a forked process: the queue of that handle, through a copy of the parent's open file.
pub fn attach(file: &OwnedFd, handle: u32) -> Result<Queue, Error> {
    let copy = rustix::io::dup(file)
        .map_err(|errno| Error::Os { what: "copying the descriptor of the board".into(), errno })?;
    Queue::attach(&Node::from_fd(copy)?, handle)
}

/// The open file of a node, for [`attach`].
pub fn file_of(node: &Node) -> Result<OwnedFd, String> {
    node.as_fd().try_clone_to_owned().map_err(|e| format!("copying the descriptor of the board: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_say_who_sent_them() {
        for width in [4, 8] {
            for (sender, number) in [(0, 0), (1, 2), (SENDERS - 1, NUMBERS - 1)] {
                assert_eq!(parse(width, element(width, sender, number)), Some((sender, number)));
            }
        }
        assert_eq!(parse(4, 1 << 32), None);
        assert_eq!(parse(8, 5), None);
        assert_eq!(parse(8, element(8, 1, 1) & !0xffff_ffff | element(8, 1, 2) & 0xffff_ffff), None);
    }

    fn logged(capacity: usize, entries: &[(u32, u32, u64)]) -> Tally {
        let log = Log::new(capacity).unwrap();
        for (sender, number, life) in entries {
            log.push(element(4, *sender, *number), *life);
        }
        // Consumers below 5 have been killed.
        log.tally(4, 2, 2, |life| life < 5)
    }

    #[test]
    fn a_log_tells_what_is_wrong() {
        let right = logged(9, &[(0, 0, 7), (1, 0, 7), (1, 1, 7), (0, 1, 8)]);
        assert_eq!(right, Tally { received: 4, ..Tally::default() });
        assert!(right.is_right());
        // The first consumer was killed with its element in hand.
        let again = logged(9, &[(0, 0, 1), (0, 0, 7), (1, 0, 7), (1, 1, 7), (0, 1, 8)]);
        assert_eq!(again, Tally { received: 4, again: 1, ..Tally::default() });
        assert!(again.is_right());
        for (entries, wrong) in [
            (&[(0, 0, 7), (1, 0, 7), (1, 1, 7)][..], Tally { received: 3, lost: 1, ..Tally::default() }),
            // The consumer that got it first is still running.
            (
                &[(0, 0, 7), (0, 0, 8), (1, 0, 7), (1, 1, 7), (0, 1, 8)],
                Tally { received: 4, doubled: 1, ..Tally::default() },
            ),
            // Not the last one of the consumer that was killed.
            (
                &[(0, 0, 1), (1, 0, 1), (0, 0, 7), (1, 1, 7), (0, 1, 8)],
                Tally { received: 4, doubled: 1, ..Tally::default() },
            ),
            (&[(0, 1, 7), (0, 0, 7), (1, 0, 7), (1, 1, 7)], Tally { received: 4, disordered: 1, ..Tally::default() }),
            (
                &[(0, 0, 7), (2, 0, 7), (0, 1, 7), (1, 0, 7), (1, 1, 7), (1, 2, 7)],
                Tally { received: 4, foreign: 2, ..Tally::default() },
            ),
        ] {
            let tally = logged(9, entries);
            assert_eq!(tally, wrong, "{entries:?}");
            assert!(!tally.is_right());
        }
        assert!(!logged(3, &[(0, 0, 7), (1, 0, 7), (1, 1, 7), (0, 1, 8)]).is_right());
    }

    #[test]
    fn a_log_outlives_a_forked_writer() {
        let log = Log::new(4).unwrap();
        let mut child = Forked::run(|| {
            log.push(1, 1);
            log.note(0).store(5, Ordering::Release);
            loop {
                std::thread::yield_now();
            }
        })
        .unwrap();
        while log.note(0).load(Ordering::Acquire) != 5 {
            std::thread::yield_now();
        }
        assert_eq!(child.ended(), None);
        child.kill();
        assert_eq!(child.wait(), End::Signal(libc::SIGKILL));
        assert_eq!((log.count(), log.different(), log.entry(0)), (1, 1, (1, 1)));
    }
}
