// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes that share a connection share: in memory that a fork leaves in common, and that a program started by
//! `exec` finds again.

use crate::kernel;
use crate::lock::{self, Broken};
use libc::c_int;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use telegraphos_sockets_core::{Incoming, Outgoing};

/// How far a direction is. Zeros are the beginning.
pub(crate) mod phase {
    /// As without us; bytes are counted.
    pub(crate) const RAW: u32 = 0;
    /// The same, and the other end may make it framed: a receiver looks before it consumes, a sender whether there is a
    /// ring.
    pub(crate) const OFFERED: u32 = 1;
    /// In between, under the lock.
    pub(crate) const CHANGING: u32 = 2;
    pub(crate) const FRAMED: u32 = 3;
    /// As without us, for good.
    pub(crate) const LEFT: u32 = 4;
}

/// Words of the state of a direction.
const WORDS: usize = 5;

/// The state of a direction: it is taken out of shared memory and put back as a whole, under the lock. What other
/// processes write there meanwhile changes nothing that this one has checked.
pub(crate) trait State: Default {
    /// The state of these words; `None` if they are of none.
    fn of(words: [u64; WORDS]) -> Option<Self>;
    /// Its words.
    fn words(&self) -> [u64; WORDS];
}

/// One direction of a connection. Zeros are one that is raw.
#[repr(C)]
pub(crate) struct Side<T> {
    phase: AtomicU32,
    /// System calls under way that count bytes.
    busy: AtomicU32,
    /// Bytes of the raw connection.
    bytes: AtomicU64,
    /// How many there are to be for the next try to make it framed.
    next_try: AtomicU64,
    lock: AtomicU64,
    state: [AtomicU64; WORDS],
    of: PhantomData<T>,
}

/// The state of a direction, locked. What is changed is put back when it is dropped.
pub(crate) struct Locked<'a, T: State> {
    side: &'a Side<T>,
    own: lock::Owner,
    state: T,
}

impl<T: State> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T: State> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state
    }
}

impl<T: State> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        if lock::is_held(&self.side.lock, self.own) {
            self.side.put(&self.state);
            lock::unlock(&self.side.lock, self.own);
        }
    }
}

/// A raw system call is under way.
pub(crate) struct Busy<'a, T>(&'a Side<T>);

impl<T> Drop for Busy<'_, T> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T: State> Side<T> {
    /// Begins anew; no process uses it.
    fn begin(&self, next_try: u64) {
        self.phase.store(phase::RAW, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.next_try.store(next_try, Ordering::Relaxed);
        self.put(&T::default());
        self.lock.store(0, Ordering::Release);
    }

    fn put(&self, state: &T) {
        for (at, word) in self.state.iter().zip(state.words()) {
            at.store(word, Ordering::Relaxed);
        }
    }

    /// The state, of which this thread has the lock.
    fn locked(&self, own: lock::Owner) -> Result<Locked<'_, T>, Broken> {
        let words = self.state.each_ref().map(|word| word.load(Ordering::Relaxed));
        match T::of(words) {
            Some(state) => Ok(Locked { side: self, own, state }),
            None => {
                lock::unlock(&self.lock, own);
                Err(Broken::State)
            }
        }
    }

    /// Waits for the lock, for a bounded time.
    pub(crate) fn lock(&self) -> Result<Locked<'_, T>, Broken> {
        let own = kernel::thread();
        lock::lock(&self.lock, own)?;
        self.locked(own)
    }

    /// Locks it for a change of its phase, which is `from`, with no raw system call under way. `None` if that is not
    /// now.
    pub(crate) fn change(&self, from: u32) -> Option<Change<'_, T>> {
        let own = kernel::thread();
        let locked = lock::try_lock(&self.lock, own).then(|| self.locked(own).ok()).flatten()?;
        if self.phase() != from {
            return None;
        }
        self.enter(phase::CHANGING);
        if self.busy.load(Ordering::SeqCst) != 0 {
            self.enter(from);
            return None;
        }
        Some(Change { side: self, locked, to: phase::LEFT })
    }
}

impl<T> Side<T> {
    pub(crate) fn phase(&self) -> u32 {
        self.phase.load(Ordering::SeqCst)
    }

    /// Sets the phase; the caller has the lock.
    pub(crate) fn enter(&self, phase: u32) {
        self.phase.store(phase, Ordering::SeqCst);
    }

    /// Begins a raw system call, if the direction is in one of these phases.
    pub(crate) fn begin_raw(&self, phases: &[u32]) -> Option<Busy<'_, T>> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let busy = Busy(self);
        // Behind the count: `change` looks the other way round.
        phases.contains(&self.phase()).then_some(busy)
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether it is time for a try; the next one is when there are half as many bytes more: a receiver may look just
    /// before the sender, whose bytes arrive first, has offered.
    pub(crate) fn is_time(&self) -> bool {
        let (bytes, next) = (self.bytes(), self.next_try.load(Ordering::Relaxed));
        bytes >= next
            && self
                .next_try
                .compare_exchange(next, bytes.saturating_add(bytes / 2), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// A change of phase; left for good, unless it says otherwise.
pub(crate) struct Change<'a, T: State> {
    side: &'a Side<T>,
    pub(crate) locked: Locked<'a, T>,
    to: u32,
}

impl<T: State> Change<'_, T> {
    /// It ends in that phase.
    pub(crate) fn to(mut self, phase: u32) {
        self.to = phase;
    }
}

impl<T: State> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.side.enter(self.to);
    }
}

/// The state of the direction that is read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) incoming: Incoming,
}

impl State for Input {
    fn of(words: [u64; WORDS]) -> Option<Input> {
        Incoming::of(words).map(|incoming| Input { incoming })
    }

    fn words(&self) -> [u64; WORDS] {
        self.incoming.words()
    }
}

/// The state of the direction that is written.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) outgoing: Outgoing,
    /// Bytes of data that went through the ring since frames began, and those that did not.
    pub(crate) by_ring: u64,
    pub(crate) by_connection: u64,
}

impl State for Output {
    fn of([owed, tail, size, by_ring, by_connection]: [u64; WORDS]) -> Option<Output> {
        Outgoing::of([owed, tail, size]).map(|outgoing| Output { outgoing, by_ring, by_connection })
    }

    fn words(&self) -> [u64; WORDS] {
        let [owed, tail, size] = self.outgoing.words();
        [owed, tail, size, self.by_ring, self.by_connection]
    }
}

/// What processes share of a connection.
#[repr(C)]
pub(crate) struct Cell {
    /// The number of the socket's inode: by it a program that has been started finds its connections.
    pub(crate) socket: AtomicU64,
    /// That of the memory file of the ring that is read; 0 if there is none that another program could find.
    pub(crate) ring: AtomicU64,
    /// Never to be framed, if 1.
    pub(crate) refused: AtomicU32,
    /// A process has it that has no ring: what is read is never to be framed, if 1.
    bare: AtomicU32,
    /// SO_SNDBUF, as the program knows it, plus one; 0 if it is the kernel's.
    pub(crate) send_buffer: AtomicU32,
    pub(crate) keepalive: AtomicU32,
    pub(crate) no_delay: AtomicU32,
    pub(crate) input: Side<Input>,
    pub(crate) output: Side<Output>,
}

impl Cell {
    /// Begins anew, for a socket.
    pub(crate) fn begin(&self, socket: u64, after: u64) {
        self.socket.store(socket, Ordering::Relaxed);
        self.ring.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        self.bare.store(0, Ordering::Relaxed);
        self.send_buffer.store(0, Ordering::Relaxed);
        self.keepalive.store(0, Ordering::Relaxed);
        self.no_delay.store(0, Ordering::Relaxed);
        self.input.begin(after);
        self.output.begin(after);
    }

    /// An option that may be other in the kernel than the program knows.
    pub(crate) fn option(&self, level: c_int, name: c_int) -> Option<&AtomicU32> {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => Some(&self.send_buffer),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => Some(&self.keepalive),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => Some(&self.no_delay),
            _ => None,
        }
    }

    /// Whether it has been asked to stay raw.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed) != 0
    }

    /// A process has it that has no ring.
    pub(crate) fn set_bare(&self) {
        self.bare.store(1, Ordering::SeqCst);
    }

    /// Whether what is read has to stay raw: not all processes that may read it have its ring.
    pub(crate) fn is_bare(&self) -> bool {
        self.bare.load(Ordering::SeqCst) != 0
    }
}
