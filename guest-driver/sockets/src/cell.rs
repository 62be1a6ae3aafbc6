// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes that share a connection share: in memory that a fork leaves in common, and that a program started by
//! `exec` finds again.

use crate::lock::{Broken, Guard, Lock};
use libc::c_int;
use std::cell::UnsafeCell;
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
    /// Frames.
    pub(crate) const FRAMED: u32 = 3;
    /// As without us, for good.
    pub(crate) const LEFT: u32 = 4;
}

/// One direction of a connection.
#[repr(C)]
pub(crate) struct Side<T> {
    phase: AtomicU32,
    /// System calls under way that count bytes.
    busy: AtomicU32,
    /// Bytes of the raw connection.
    bytes: AtomicU64,
    /// How many there are to be for the next try to make it framed.
    next_try: AtomicU64,
    lock: Lock,
    state: UnsafeCell<T>,
}

// SAFETY: the state is accessed under the lock.
unsafe impl<T: Send> Sync for Side<T> {}

/// The state of a direction, locked.
pub(crate) struct Locked<'a, T> {
    state: &'a UnsafeCell<T>,
    _guard: Guard<'a>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: under the lock.
        unsafe { &*self.state.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: under the lock.
        unsafe { &mut *self.state.get() }
    }
}

/// A raw system call is under way.
pub(crate) struct Busy<'a, T>(&'a Side<T>);

impl<T> Drop for Busy<'_, T> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<T: Default> Side<T> {
    /// Begins anew; nobody uses it. False if the system has no such locks.
    fn begin(&self, next_try: u64) -> bool {
        self.phase.store(phase::RAW, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.next_try.store(next_try, Ordering::Relaxed);
        // SAFETY: nobody uses it.
        unsafe { *self.state.get() = T::default() };
        self.lock.init()
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

    pub(crate) fn lock(&self) -> Result<Locked<'_, T>, Broken> {
        Ok(Locked { _guard: self.lock.lock()?, state: &self.state })
    }

    /// Begins a raw system call, if the direction is in one of these phases.
    pub(crate) fn begin_raw(&self, phases: &[u32]) -> Option<Busy<'_, T>> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let busy = Busy(self);
        // Behind the count: `change` looks the other way round.
        phases.contains(&self.phase()).then_some(busy)
    }

    /// Locks it for a change of its phase, which is `from`, with no raw system call under way. `None` if that is not
    /// now.
    pub(crate) fn change(&self, from: u32) -> Option<Change<'_, T>> {
        let guard = self.lock.try_lock()?;
        let locked = Locked { _guard: guard, state: &self.state };
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
pub(crate) struct Change<'a, T> {
    side: &'a Side<T>,
    pub(crate) locked: Locked<'a, T>,
    to: u32,
}

impl<T> Change<'_, T> {
    /// It ends in that phase.
    pub(crate) fn to(mut self, phase: u32) {
        self.to = phase;
    }
}

impl<T> Drop for Change<'_, T> {
    fn drop(&mut self) {
        self.side.enter(self.to);
    }
}

/// The state of the direction that is read.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Input {
    pub(crate) incoming: Incoming,
}

/// The state of the direction that is written.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Output {
    pub(crate) outgoing: Outgoing,
    /// Bytes of data that went through the ring since frames began, and those that did not.
    pub(crate) by_ring: u64,
    pub(crate) by_connection: u64,
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
    /// SO_KEEPALIVE, likewise.
    pub(crate) keepalive: AtomicU32,
    /// TCP_NODELAY, likewise.
    pub(crate) no_delay: AtomicU32,
    pub(crate) input: Side<Input>,
    pub(crate) output: Side<Output>,
}

impl Cell {
    /// Begins anew, for a socket. False if that is not possible.
    pub(crate) fn begin(&self, socket: u64, after: u64) -> bool {
        self.socket.store(socket, Ordering::Relaxed);
        self.ring.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        self.bare.store(0, Ordering::Relaxed);
        self.send_buffer.store(0, Ordering::Relaxed);
        self.keepalive.store(0, Ordering::Relaxed);
        self.no_delay.store(0, Ordering::Relaxed);
        self.input.begin(after) && self.output.begin(after)
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
