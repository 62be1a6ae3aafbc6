// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors and their connections, without locks: programs use descriptors in signal handlers, too.
//!
//! Slots of connections are never freed, but used again when no descriptor has them and no process has the socket: a
//! child, or a program that was started with it, may know it by its state long after this process has closed it.

use crate::cell::{Cell, Input, Locked, Output, phase};
use crate::descriptors::{disown, entry, is_tracked, owned, tracked};
use crate::lock::Broken;
use crate::memory::{Shared, Use, ring_bytes};
use crate::peer::Neighbours;
use crate::settings::{say, settings};
use crate::{kernel, process, signals};
use libc::c_int;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telegraphos::{Registration, Remote, Segment};

/// Slots are made in chunks of so many.
const CHUNK: usize = 64;
/// Chunks, at most.
const CHUNKS: usize = 128;

static SLOTS: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS];

/// What one process has of a connection beside the cell.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// As a sender: memory for what the receiver says.
    pub(crate) control: Option<Segment>,
    /// As a sender: the ring.
    pub(crate) ring: Option<Remote>,
    /// As a receiver: the own ring.
    pub(crate) own_ring: Option<Registration>,
    /// As a receiver: the sender's memory for what this end says.
    pub(crate) own_control: Option<Remote>,
}

impl Parts {
    /// Ends them, in bounded time.
    fn end(self) {
        if let Some(ring) = self.ring {
            process::close_import(ring, false);
        }
        if let Some(control) = self.own_control {
            process::close_import(control, true);
        }
    }
}

/// The parts of one process, and what is looked at without their lock.
#[derive(Debug, Default)]
struct Own {
    process: u32,
    /// The first word of `Parts::control`.
    ready: AtomicPtr<u64>,
    parts: Mutex<Parts>,
}

/// A connection in this process's memory. A child has a copy of it.
#[derive(Default)]
struct Slot {
    state: AtomicU32,
    descriptors: AtomicU32,
    /// Operations under way, and others that look at it.
    operations: AtomicU32,
    /// In a child this may be its parent's, whose locks may never be free again, and whose board is not the child's.
    own: AtomicPtr<Own>,
    /// The memory of the ring that is read, if it is mapped in this process.
    ring: AtomicPtr<Shared>,
    /// This process has become another user's since.
    left: AtomicBool,
}

/// States of a slot. Zeros are free ones.
mod state {
    pub(super) const FREE: u32 = 0;
    pub(super) const TAKEN: u32 = 1;
    /// In between, in one thread.
    pub(super) const CHANGING: u32 = 2;
    /// Of a connection that this process has closed, and perhaps no other.
    pub(super) const CLOSED: u32 = 3;
}

struct Chunk {
    /// Shared with children.
    cells: NonNull<Cell>,
    /// The memory that has them.
    memory: *mut [u8],
    /// The process that has made it, which alone takes slots of it; 0 if none does.
    maker: AtomicU32,
    slots: [Slot; CHUNK],
}

pub(crate) struct Connection {
    slot: &'static Slot,
    cell: &'static Cell,
}

impl Connection {
    fn of(number: u32) -> Option<Connection> {
        let number = number.checked_sub(1)? as usize;
        let chunk = NonNull::new(SLOTS.get(number / CHUNK)?.load(Ordering::Acquire))?;
        // SAFETY: chunks are never freed.
        let chunk: &'static Chunk = unsafe { chunk.as_ref() };
        let slot = &chunk.slots[number % CHUNK];
        slot.operations.fetch_add(1, Ordering::SeqCst);
        // SAFETY: there are `CHUNK` cells, which are never unmapped.
        let cell = unsafe { chunk.cells.add(number % CHUNK).as_ref() };
        Some(Connection { slot, cell })
    }

    /// That of a descriptor.
    pub(crate) fn of_descriptor(fd: c_int) -> Option<Connection> {
        let entry = entry(fd)?;
        if process::is_unknown_child() {
            begin_as_child();
        }
        loop {
            let number = entry.load(Ordering::SeqCst);
            let connection = Connection::of(number)?;
            // Else it has been closed meanwhile, and may be another one's.
            if entry.load(Ordering::SeqCst) == number {
                return Some(connection);
            }
        }
    }

    /// Whether a descriptor is its still: the number may be another file's, which was opened past the functions that
    /// are replaced, or behind a close past those. That is left alone from now on.
    pub(crate) fn is_of_descriptor(&self, fd: c_int) -> bool {
        let is_same = kernel::socket_inode(fd) == Some(self.socket.load(Ordering::Relaxed));
        if !is_same {
            closed(fd);
        }
        is_same
    }

    /// What this process has of it, if it has anything yet.
    fn own(&self) -> Option<&'static Own> {
        // SAFETY: never freed before the slot is used again, which no use of it outlives.
        let own = unsafe { self.slot.own.load(Ordering::Acquire).as_ref() };
        own.filter(|own| own.process == process::id())
    }

    /// Its parts in this process.
    pub(crate) fn parts(&self) -> MutexGuard<'static, Parts> {
        let own = self.own().unwrap_or_else(|| {
            let known = self.slot.own.load(Ordering::Acquire);
            let new = Box::into_raw(Box::new(Own { process: process::id(), ..Own::default() }));
            // Its parent's is left as it is.
            if self.slot.own.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
            // SAFETY: as in `own`; another thread of this process has set it if this one has not.
            unsafe { &*self.slot.own.load(Ordering::Acquire) }
        });
        own.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiver's first word, if this process has exported memory for it: the size of its ring.
    pub(crate) fn ready(&self) -> u64 {
        let word = self.own().map_or(std::ptr::null_mut(), |own| own.ready.load(Ordering::Acquire));
        if word.is_null() {
            return 0;
        }
        // SAFETY: mapped as long as the connection has it; aligned; others write it as a whole.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(word) }.load(Ordering::Acquire)
    }

    /// What `ready` looks at from now on. The caller has `parts`.
    pub(crate) fn look_at(&self, control: &Segment) {
        if let Some(own) = self.own() {
            own.ready.store(control.as_ptr().cast(), Ordering::Release);
        }
    }

    /// The memory of the ring that is read, if it is mapped in this process.
    pub(crate) fn ring(&self) -> Option<*mut [u8]> {
        self.slot.ring().map(Shared::memory)
    }

    /// The state of the direction that is read. Waits for other threads, for a bounded time.
    pub(crate) fn lock_input(&self) -> Result<Locked<'_, Input>, Broken> {
        self.cell.input.lock().and_then(|locked| if self.has_left() { Err(Broken::Left) } else { Ok(locked) })
    }

    /// The state of the direction that is written, likewise.
    pub(crate) fn lock_output(&self) -> Result<Locked<'_, Output>, Broken> {
        self.cell.output.lock().and_then(|locked| if self.has_left() { Err(Broken::Left) } else { Ok(locked) })
    }

    /// Whether this process has nothing to do with the connection's state any more: it has become another user's.
    fn has_left(&self) -> bool {
        self.slot.left.load(Ordering::SeqCst)
    }

    /// Whether the connection is to stay raw.
    pub(crate) fn is_refused(&self) -> bool {
        self.cell.is_refused() || self.has_left()
    }

    /// The memory for the ring, which is made if there is none yet: in this process and in children that it will have.
    /// `None` if there is no memory.
    pub(crate) fn ring_memory(&self) -> Option<*mut [u8]> {
        if self.slot.ring().is_none() {
            let made = Box::into_raw(Box::new(Shared::new(Use::Ring, ring_bytes())?));
            let none = std::ptr::null_mut();
            match self.slot.ring.compare_exchange(none, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as in `Slot::ring`.
                Ok(_) => self.cell.ring.store(unsafe { &*made }.inode(), Ordering::Release),
                // Another thread was faster, and forks.
                // SAFETY: no other thread has seen it.
                Err(_) => drop(unsafe { Box::from_raw(made) }),
            }
        }
        self.slot.ring().map(Shared::memory)
    }

    /// Says how much was sent which way, if the sending direction became framed.
    fn tell(&self) {
        if self.output.phase() != phase::FRAMED {
            return;
        }
        if let Ok(output) = self.lock_output() {
            let (ring, connection) = (output.by_ring, output.by_connection);
            say(format_args!("a connection has ended: {ring} bytes through memory, {connection} not"));
        }
    }
}

impl Deref for Connection {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        self.cell
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.slot.operations.fetch_sub(1, Ordering::SeqCst) == 1
            && self.slot.descriptors.load(Ordering::SeqCst) == 0
            && self.slot.enters(state::TAKEN, state::CHANGING)
        {
            let _signals = signals::wait();
            self.tell();
            let own = self.slot.own.swap(std::ptr::null_mut(), Ordering::AcqRel);
            // SAFETY: made by a box, and no thread uses it any more.
            if let Some(own) = NonNull::new(own).filter(|own| unsafe { own.as_ref() }.process == process::id()) {
                // SAFETY: as above.
                let own = unsafe { Box::from_raw(own.as_ptr()) };
                own.parts.into_inner().unwrap_or_else(PoisonError::into_inner).end();
            }
            // Behind its registration's end.
            let ring = self.slot.ring.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !ring.is_null() {
                // SAFETY: made by a box, and no thread uses it any more.
                drop(unsafe { Box::from_raw(ring) });
            }
            self.slot.state.store(state::CLOSED, Ordering::SeqCst);
        }
    }
}

impl Slot {
    /// The memory of the ring that is read.
    fn ring(&self) -> Option<&'static Shared> {
        // SAFETY: never freed before the slot is used again, which no use of it outlives.
        unsafe { self.ring.load(Ordering::Acquire).as_ref() }
    }

    /// Whether it was in the state `from`, and is in `to` now.
    fn enters(&self, from: u32, to: u32) -> bool {
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

/// The beginning of memory with cells: what a program checks that finds it, and how many chunks were used.
#[repr(C)]
struct Head {
    this: [u64; 3],
    chunks: AtomicU64,
}

impl Head {
    /// "tgcells2", the size of a cell, their number.
    const THIS: [u64; 3] = [u64::from_le_bytes(*b"tgcells2"), size_of::<Cell>() as u64, (CHUNKS * CHUNK) as u64];
    /// Where cells begin: a page.
    const SIZE: usize = 4096;
    /// Bytes of the whole memory, most of which are never touched.
    const WHOLE: usize = Head::SIZE + CHUNKS * CHUNK * size_of::<Cell>();
}

/// The cells of a chunk.
fn cells_of(memory: &Shared, at: usize) -> NonNull<Cell> {
    let offset = Head::SIZE + at * CHUNK * size_of::<Cell>();
    // SAFETY: inside, as `Head::WHOLE` says, and mapped for good.
    unsafe { NonNull::new_unchecked(memory.memory().cast::<u8>().add(offset).cast()) }
}

impl Chunk {
    fn new(maker: u32, memory: &Shared, at: usize) -> Box<Chunk> {
        // Zeros are valid cells, which are begun before they are used.
        let (cells, memory, maker) = (cells_of(memory, at), memory.memory(), AtomicU32::new(maker));
        Box::new(Chunk { cells, memory, maker, slots: std::array::from_fn(|_| Slot::default()) })
    }

    fn is_of(&self, process: u32) -> bool {
        self.maker.load(Ordering::Relaxed) == process
    }

    fn cell(&self, place: usize) -> &Cell {
        // SAFETY: there are `CHUNK` cells, which are never unmapped.
        unsafe { self.cells.add(place).as_ref() }
    }

    /// Takes a slot for a socket: its place in the chunk.
    fn take(&self, socket: u64) -> Option<usize> {
        (0..CHUNK).find(|place| {
            let slot = &self.slots[*place];
            if !slot.enters(state::FREE, state::CHANGING) {
                return false;
            }
            self.cell(*place).begin(socket, settings().after);
            slot.descriptors.store(1, Ordering::SeqCst);
            slot.state.store(state::TAKEN, Ordering::SeqCst);
            true
        })
    }

    /// How many slots are of connections that have been closed here.
    fn closed(&self) -> usize {
        self.slots.iter().filter(|slot| slot.state.load(Ordering::SeqCst) == state::CLOSED).count()
    }

    /// Frees slots of connections that no process has any more.
    fn sweep(&self, open: &HashSet<u64>) {
        for (place, slot) in self.slots.iter().enumerate() {
            if slot.enters(state::CLOSED, state::CHANGING) {
                let is_open = open.contains(&self.cell(place).socket.load(Ordering::Relaxed));
                slot.state.store(if is_open { state::CLOSED } else { state::FREE }, Ordering::SeqCst);
            }
        }
    }
}

/// The chunks that there are.
fn chunks() -> impl Iterator<Item = (usize, &'static Chunk)> {
    // SAFETY: chunks are never freed.
    SLOTS.iter().map_while(|entry| unsafe { entry.load(Ordering::Acquire).as_ref() }).enumerate()
}

/// Adds a chunk, made for its place. `None` if there are too many.
fn add(make: impl Fn(usize) -> Option<Box<Chunk>>) -> Option<usize> {
    for (at, entry) in SLOTS.iter().enumerate() {
        if !entry.load(Ordering::Acquire).is_null() {
            continue;
        }
        let made = Box::into_raw(make(at)?);
        if entry.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return Some(at);
        }
        // SAFETY: no other thread has seen it.
        drop(unsafe { Box::from_raw(made) });
    }
    None
}

/// Inodes of the sockets of TCP that some process has, by the system's tables.
fn open_sockets() -> Option<HashSet<u64>> {
    let mut all = std::fs::read_to_string("/proc/net/tcp").ok()?;
    all.push_str(&std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default());
    // The tenth field; the first line of each table has words.
    Some(all.lines().filter_map(|line| line.split_ascii_whitespace().nth(9)?.parse().ok()).collect())
}

/// Takes a slot for a socket's connection with one descriptor: its number plus one. `None` if there are too many.
fn take(socket: u64) -> Option<u32> {
    let maker = process::id();
    let own = || chunks().filter(|(_, chunk)| chunk.is_of(maker));
    let free = || {
        own().find_map(|(at, chunk)| {
            let place = chunk.take(socket)?;
            // Else the process has become another user's meanwhile.
            u32::try_from(at * CHUNK + place + 1).ok().filter(|_| chunk.is_of(maker))
        })
    };
    if let Some(number) = free() {
        return Some(number);
    }
    // To look costs as much as many connections do.
    if own().map(|(_, chunk)| chunk.closed()).sum::<usize>() * 2 >= own().count().max(1) * CHUNK {
        if let Some(open) = open_sockets() {
            own().for_each(|(_, chunk)| chunk.sweep(&open));
        }
        if let Some(number) = free() {
            return Some(number);
        }
    }
    let memory = process::cells(Head::WHOLE)?;
    let at = add(|at| Some(Chunk::new(maker, memory, at)))?;
    if !process::cells(Head::WHOLE).is_some_and(|now| std::ptr::eq(now, memory)) {
        // `leave` looks the other way round.
        chunks().filter(|(place, _)| *place == at).for_each(|(_, chunk)| chunk.maker.store(0, Ordering::SeqCst));
        return None;
    }
    let head = memory.memory().cast::<Head>();
    // SAFETY: at its beginning; other threads may write the same.
    unsafe { head.cast::<[u64; 3]>().write_volatile(Head::THIS) };
    // SAFETY: as above, an atomic number.
    unsafe { &(*head).chunks }.fetch_max(at as u64 + 1, Ordering::SeqCst);
    free()
}

/// Looks after connections of which another program's memory has the state, and which it has left to this one: `memory`
/// has cells, and stays mapped if there are any, `sockets` are this program's sockets by their inodes, and `ring` finds
/// a ring by that of its file. Returns how many there are.
pub(crate) fn adopt(memory: &Shared, sockets: &[(u64, c_int)], mut ring: impl FnMut(u64) -> Option<Shared>) -> usize {
    let head = memory.memory().cast::<Head>();
    // SAFETY: as long, checked first; it was written before the memory had a cell.
    if memory.memory().len() != Head::WHOLE || unsafe { head.cast::<[u64; 3]>().read_volatile() } != Head::THIS {
        return 0;
    }
    // SAFETY: as above, an atomic number.
    let used = unsafe { &(*head).chunks }.load(Ordering::SeqCst).min(CHUNKS as u64);
    let mut adopted = 0;
    for at in 0..used as usize {
        // No thread takes slots of it.
        let chunk = Chunk::new(0, memory, at);
        let mut known = Vec::new();
        for (place, slot) in chunk.slots.iter().enumerate() {
            let cell = chunk.cell(place);
            let inode = cell.socket.load(Ordering::Acquire);
            let fds = sockets.iter().filter(|(socket, fd)| *socket == inode && !is_tracked(*fd));
            let fds: Vec<c_int> = fds.map(|(_, fd)| *fd).collect();
            if fds.is_empty() {
                continue;
            }
            match ring(cell.ring.load(Ordering::Acquire)) {
                Some(ring) => slot.ring.store(Box::into_raw(Box::new(ring)), Ordering::Release),
                // The program that was there before may have the connection, too.
                None => cell.set_bare(),
            }
            slot.descriptors.store(fds.len() as u32, Ordering::SeqCst);
            slot.state.store(state::TAKEN, Ordering::SeqCst);
            known.push((place, fds));
        }
        if known.is_empty() {
            continue;
        }
        let chunk = AtomicPtr::new(Box::into_raw(chunk));
        let made = |_| NonNull::new(chunk.swap(std::ptr::null_mut(), Ordering::AcqRel));
        // SAFETY: made by a box above, and no other thread has it.
        let Some(number) = add(|at| Some(unsafe { Box::from_raw(made(at)?.as_ptr()) })) else { continue };
        adopted += known.len();
        for (place, fds) in known {
            for fd in fds.into_iter().filter_map(entry) {
                fd.store((number * CHUNK + place + 1) as u32, Ordering::SeqCst);
            }
        }
    }
    adopted
}

/// Before a fork: makes memory for the rings of connections that may become framed, for parent and child. It has no
/// pages until it is used.
pub(crate) fn reserve_rings() {
    // Most processes that fork have no connections.
    if chunks().next().is_none() {
        return;
    }
    let neighbours = OnceCell::new();
    for fd in tracked() {
        let Some(connection) = Connection::of_descriptor(fd) else { continue };
        let raw = connection.input.phase() == phase::RAW && !connection.is_refused() && !connection.is_bare();
        if raw && connection.ring().is_none() {
            let neighbours: &Option<Neighbours> = neighbours.get_or_init(Neighbours::read);
            if neighbours.as_ref().is_some_and(|neighbours| neighbours.node_of(fd).is_some()) {
                connection.ring_memory();
            }
        }
    }
}

/// To be called in a child, before all else. It has no board yet. What is read of connections that have no ring stays
/// raw, for the parent as well.
pub(crate) fn begin_as_child() {
    process::begin_as_child();
    for (_, chunk) in chunks() {
        for (place, slot) in chunk.slots.iter().enumerate() {
            if slot.state.load(Ordering::SeqCst) == state::TAKEN && slot.ring().is_none() {
                chunk.cell(place).set_bare();
            }
        }
    }
}

/// This process has become another user's: it leaves the state that it has in common with processes of the user before
/// to those, and neither reads nor writes it any more. Connections of which no direction is framed, or may become so,
/// stay raw, in all processes that have them. The others are ended in this process, by another socket in their place.
pub(crate) fn leave() {
    let mut ended = 0;
    for fd in tracked() {
        let Some(connection) = Connection::of_descriptor(fd) else { continue };
        let _signals = signals::wait();
        // No thread is amid a read or a write that changes the state. A lock that is broken keeps none from leaving.
        let locks = (connection.cell.input.lock(), connection.cell.output.lock());
        connection.refused.store(1, Ordering::SeqCst);
        connection.slot.left.store(true, Ordering::SeqCst);
        if is_framed(fd) {
            kernel::disconnect(fd);
            ended += 1;
        }
        drop(locks);
        closed(fd);
    }
    // Connections whose descriptors have been closed may be in use by another thread still.
    for (_, chunk) in chunks() {
        chunk.maker.store(0, Ordering::SeqCst);
        chunk.slots.iter().for_each(|slot| slot.left.store(true, Ordering::SeqCst));
        kernel::leave(chunk.memory);
    }
    for fd in owned() {
        disown(fd);
        kernel::close(fd);
    }
    if ended > 0 {
        say(format_args!("{ended} descriptors of connections are ended: this process has become another user's"));
    }
}

/// Descriptors of connections of which a direction is framed, or may become so at any time.
pub(crate) fn framed() -> impl Iterator<Item = c_int> {
    tracked().filter(|fd| is_framed(*fd))
}

/// Descriptors of connections of which a direction has become framed in this process: it has a window for it.
pub(crate) fn framed_here() -> Vec<c_int> {
    let has_window = |fd: &c_int| {
        let connection = Connection::of_descriptor(*fd).filter(|connection| connection.own().is_some());
        connection.filter(|connection| connection.is_of_descriptor(*fd)).is_some_and(|connection| {
            let _signals = signals::wait();
            let parts = connection.parts();
            parts.ring.is_some() || parts.own_control.is_some()
        })
    };
    tracked().filter(has_window).collect()
}

/// Whether a direction of the descriptor's connection is framed, or may become so at any time: a receiver that has a
/// ring does not decide that any more.
fn is_framed(fd: c_int) -> bool {
    Connection::of_descriptor(fd).is_some_and(|connection| {
        let (input, output) = (connection.input.phase(), connection.output.phase());
        !matches!(input, phase::RAW | phase::LEFT) || matches!(output, phase::CHANGING | phase::FRAMED)
    })
}

/// A new descriptor, of something else than a connection; what had its number has been closed.
pub fn opened(fd: c_int) {
    if is_tracked(fd) {
        closed(fd);
    } else {
        // It has been closed past us.
        disown(fd);
    }
}

/// A new connection of TCP, by `connect` or `accept`: it is looked after from its first byte on.
pub fn tracked_from(fd: c_int) {
    opened(fd);
    // The standard streams are for other programs, too, and for libc's buffers.
    if fd <= 2 || !process::is_this() {
        return;
    }
    let Some(entry) = entry(fd) else { return };
    let _signals = signals::wait();
    let Some(number) = kernel::socket_inode(fd).and_then(take) else { return };
    entry.store(number, Ordering::SeqCst);
}

/// The descriptor has been closed, or will be.
pub fn closed(fd: c_int) {
    // A child of vfork closes what is its parent's in memory.
    if !is_tracked(fd) || !process::is_this() {
        return;
    }
    let Some(entry) = entry(fd) else { return };
    let number = entry.swap(0, Ordering::SeqCst);
    if let Some(connection) = Connection::of(number) {
        connection.slot.descriptors.fetch_sub(1, Ordering::SeqCst);
    }
}

/// `new` is a second descriptor of what `old` is.
pub fn duplicated(old: c_int, new: c_int) {
    if old == new || !process::is_this() {
        return;
    }
    opened(new);
    let (Some(connection), Some(from), Some(to)) = (Connection::of_descriptor(old), entry(old), entry(new)) else {
        return;
    };
    connection.slot.descriptors.fetch_add(1, Ordering::SeqCst);
    to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
}

/// A descriptor of this process's whose connection is that of the socket `fd`, if there is one.
pub fn same_as(fd: c_int) -> Option<c_int> {
    let inode = kernel::socket_inode(fd)?;
    let is_same =
        |own: &c_int| Connection::of_descriptor(*own).is_some_and(|own| own.socket.load(Ordering::Relaxed) == inode);
    tracked().filter(|own| *own != fd).find(is_same)
}

/// The descriptor may be something else now, put there past the functions that are replaced.
pub fn revalidate(fd: c_int) {
    Connection::of_descriptor(fd).into_iter().for_each(|connection| _ = connection.is_of_descriptor(fd));
}

/// Leaves the descriptor's connection as it is, if neither direction is framed. False if not: too late.
pub fn refuse(fd: c_int) -> bool {
    let Some(connection) = Connection::of_descriptor(fd) else { return true };
    connection.refused.store(1, Ordering::SeqCst);
    !is_framed(fd)
}

/// Leaves all connections as they are of which no direction is framed; how many others there are.
pub(crate) fn refuse_all() -> usize {
    tracked().filter(|fd| !refuse(*fd)).count()
}

/// An option of the descriptor's socket as the program knows it, if the kernel's value is ours.
pub fn option_of(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let connection = Connection::of_descriptor(fd)?;
    let known = connection.option(level, name)?.load(Ordering::Relaxed);
    if known != 0 && !connection.is_of_descriptor(fd) {
        return None;
    }
    // One more than the value.
    c_int::try_from(known).ok()?.checked_sub(1).filter(|value| *value >= 0)
}

/// Sets an option as the program knows it, if the kernel's value is ours. False if the kernel's is to be set.
pub fn set_option_of(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    let Some(connection) = Connection::of_descriptor(fd) else { return false };
    let Some(option) = connection.option(level, name) else { return false };
    if option.load(Ordering::Relaxed) == 0 || !connection.is_of_descriptor(fd) {
        return false;
    }
    let value = u32::try_from(value).unwrap_or(0);
    let value = match (level, name) {
        // The kernel doubles it.
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => value.saturating_mul(2).clamp(4608, i32::MAX as u32 - 1),
        _ => u32::from(value != 0),
    };
    let change = |old| if old == 0 { None } else { Some(value + 1) };
    option.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
}

#[cfg(test)]
mod tests;
