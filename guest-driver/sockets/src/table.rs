// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors and their connections, without locks: programs use descriptors in signal handlers, too.
//!
//! Slots of connections are never freed, but used again when no descriptor has them and no process has the socket: a
//! child, or a program that was started with it, may know it by its state long after this process has closed it.

use crate::cell::{Cell, Input, Locked, Output, phase};
use crate::lock::Broken;
use crate::memory::{Shared, Use};
use crate::peer::Neighbours;
use crate::settings::{say, settings};
use crate::upgrade::ring_bytes;
use crate::{kernel, process, signals};
use libc::c_int;
use std::cell::OnceCell;
use std::collections::HashSet;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telegraphos::{Registration, Remote, Segment};

/// Descriptors from this number on are not looked after.
const DESCRIPTORS: usize = 1 << 16;
/// Slots are made in chunks of so many.
const CHUNK: usize = 64;
/// Chunks, at most.
const CHUNKS: usize = 128;

/// In place of a slot: a file of ours.
const OWN: u32 = u32::MAX;

/// Slots by descriptor: their number plus one, 0 for none.
static TABLE: [AtomicU32; DESCRIPTORS] = [const { AtomicU32::new(0) }; DESCRIPTORS];
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
    /// Descriptors.
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

/// A connection in use.
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
        let entry = TABLE.get(usize::try_from(fd).ok()?)?;
        loop {
            let number = entry.load(Ordering::SeqCst);
            let connection = Connection::of(number)?;
            // Else it has been closed meanwhile, and may be another one's.
            if entry.load(Ordering::SeqCst) == number {
                return Some(connection);
            }
        }
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
                // SAFETY: nobody has seen it.
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
                // SAFETY: nobody has seen it.
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
            // SAFETY: made by a box, and nobody uses it any more.
            if let Some(own) = NonNull::new(own).filter(|own| unsafe { own.as_ref() }.process == process::id()) {
                // SAFETY: as above.
                let own = unsafe { Box::from_raw(own.as_ptr()) };
                own.parts.into_inner().unwrap_or_else(PoisonError::into_inner).end();
            }
            // Behind its registration's end.
            let ring = self.slot.ring.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !ring.is_null() {
                // SAFETY: made by a box, and nobody uses it any more.
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
        // SAFETY: nobody has seen it.
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
        // Nobody takes slots of it.
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
        // SAFETY: made by a box above, and nobody else has it.
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

/// In a child after a fork: what is read of connections that have no ring stays raw, for the parent as well.
pub(crate) fn note_bare() {
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

fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether the descriptor's connection is looked after.
pub fn is_tracked(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| !matches!(entry.load(Ordering::Relaxed), 0 | OWN))
}

/// Descriptors whose connections are looked after.
fn tracked() -> impl Iterator<Item = c_int> {
    (0..DESCRIPTORS as c_int).filter(|fd| is_tracked(*fd))
}

/// Whether it is a file of ours.
pub(crate) fn is_own(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) == OWN)
}

/// A file is ours from now on. False if that cannot be noted.
pub(crate) fn own(fd: c_int) -> bool {
    entry(fd).map(|entry| entry.store(OWN, Ordering::SeqCst)).is_some()
}

/// A file is not ours any more. False if it was not.
pub(crate) fn disown(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.compare_exchange(OWN, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok())
}

/// Files of ours.
pub(crate) fn owned() -> impl Iterator<Item = c_int> {
    (0..DESCRIPTORS as c_int).filter(|fd| is_own(*fd))
}

/// Descriptors of connections of which a direction is framed, or may become so at any time.
pub(crate) fn framed() -> impl Iterator<Item = c_int> {
    tracked().filter(|fd| is_framed(*fd))
}

/// Descriptors of connections of which a direction has become framed in this process: it has a window for it.
pub(crate) fn framed_here() -> Vec<c_int> {
    let has_window = |fd: &c_int| {
        Connection::of_descriptor(*fd).filter(|connection| connection.own().is_some()).is_some_and(|connection| {
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
    let is_other = Connection::of_descriptor(fd)
        .is_some_and(|connection| kernel::socket_inode(fd) != Some(connection.socket.load(Ordering::Relaxed)));
    if is_other {
        closed(fd);
    }
}

/// Leaves the descriptor's connection as it is, if neither direction is framed. False if not: too late.
pub fn refuse(fd: c_int) -> bool {
    let Some(connection) = Connection::of_descriptor(fd) else { return true };
    connection.refused.store(1, Ordering::SeqCst);
    !is_framed(fd)
}

/// An option of the descriptor's socket as the program knows it, if the kernel's value is ours.
pub fn option_of(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let connection = Connection::of_descriptor(fd)?;
    let known = connection.option(level, name)?.load(Ordering::Relaxed);
    // One more than the value.
    c_int::try_from(known).ok()?.checked_sub(1).filter(|value| *value >= 0)
}

/// Sets an option as the program knows it, if the kernel's value is ours. False if the kernel is to be told.
pub fn set_option_of(fd: c_int, level: c_int, name: c_int, value: c_int) -> bool {
    let Some(connection) = Connection::of_descriptor(fd) else { return false };
    let Some(option) = connection.option(level, name) else { return false };
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
mod tests {
    use super::*;
    use crate::kernel::part;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, IntoRawFd};

    /// Once, as in a program.
    fn settle() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(process::settle);
    }

    /// Both ends of a connection, looked after. Nothing else in this process closes descriptors by our functions.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (two, _) = listener.accept().unwrap();
        for end in [&one, &two] {
            tracked_from(end.as_raw_fd());
        }
        (one, two)
    }

    #[test]
    fn a_connection_is_its_last_descriptors() {
        settle();
        let (one, _two) = pair();
        let fd = one.as_raw_fd();
        let copy = one.try_clone().unwrap().into_raw_fd();
        duplicated(fd, copy);
        let cell = |fd| std::ptr::from_ref(Connection::of_descriptor(fd).unwrap().cell);
        let first = cell(fd);
        assert_eq!(first, cell(copy));
        closed(fd);
        assert!(!is_tracked(fd) && is_tracked(copy));
        // Still in use: another one is another cell.
        let in_use = Connection::of_descriptor(copy).unwrap();
        closed(copy);
        let (three, _four) = pair();
        assert_ne!(cell(three.as_raw_fd()), first);
        let slot = in_use.slot;
        assert_eq!(slot.state.load(Ordering::SeqCst), state::TAKEN);
        drop(in_use);
        assert_eq!(slot.state.load(Ordering::SeqCst), state::CLOSED);
        opened(three.as_raw_fd());
        assert!(!is_tracked(three.as_raw_fd()));
    }

    #[test]
    fn slots_are_used_again_when_no_process_has_the_connection() {
        settle();
        let (kept, _other) = pair();
        let number = entry(kept.as_raw_fd()).unwrap().load(Ordering::SeqCst);
        // Closed here, but open: a child may have it.
        closed(kept.as_raw_fd());
        for _ in 0..6 * CHUNK {
            let (one, two) = pair();
            for end in [one, two] {
                assert_ne!(entry(end.as_raw_fd()).unwrap().load(Ordering::SeqCst), number);
                closed(end.as_raw_fd());
            }
        }
        let all = chunks().filter(|(_, chunk)| chunk.is_of(process::id())).count();
        assert!(all <= 6, "{all} chunks for 12 times as many connections as one has");
    }

    #[test]
    fn a_program_that_is_started_finds_its_connections() {
        settle();
        let (one, two) = pair();
        let known = Connection::of_descriptor(one.as_raw_fd()).unwrap();
        known.output.count(7);
        let memory = known.ring_memory().unwrap();
        assert_eq!((memory.len(), known.ring_memory()), (ring_bytes(), Some(memory)), "made once");
        let inode_of = |fd| kernel::status(fd).map_or(0, |status| status.st_ino);
        let inode = known.cell.ring.load(Ordering::SeqCst);
        let file = owned().find(|fd| inode_of(*fd) == inode).unwrap();
        // As if a program began here with copies of these descriptors, and another one.
        let copies = [&one, &one, &two].map(|end| end.try_clone().unwrap().into_raw_fd());
        let other = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into_raw_fd();
        // Of tests that run at the same time.
        copies.into_iter().chain([other]).for_each(opened);
        let sockets = [copies[0], copies[1], other].map(|fd| (kernel::socket_inode(fd).unwrap(), fd));
        let memory = process::cells(Head::WHOLE).unwrap();
        let find = |wanted: u64| (wanted == inode).then(|| Shared::found(file)).flatten();
        assert_eq!(adopt(memory, &sockets, find), 1);
        assert!(is_tracked(copies[0]) && is_tracked(copies[1]) && !is_tracked(copies[2]) && !is_tracked(other));
        let found = Connection::of_descriptor(copies[1]).unwrap();
        assert_eq!((found.output.bytes(), found.slot.descriptors.load(Ordering::SeqCst)), (7, 2));
        assert!(found.ring().is_some_and(|at| Some(at) != known.ring()), "mapped once more");
        assert!(!found.is_bare());
        // They are one connection.
        found.output.count(1);
        assert_eq!(known.output.bytes(), 8);
        // Nothing is adopted twice, nor from other memory.
        assert_eq!(adopt(memory, &sockets, |_| None), 0);
        // Without its ring, a program has what is read raw.
        closed(copies[1]);
        assert_eq!(adopt(memory, &sockets[1..2], |_| None), 1);
        assert!(known.is_bare());
        let other = Shared::new(Use::Cells, Head::WHOLE).unwrap();
        closed(copies[0]);
        assert_eq!(adopt(&other, &sockets, |_| None), 0, "zeros");
        assert_eq!(adopt(&Shared::new(Use::Cells, 4096).unwrap(), &sockets, |_| None), 0, "short");
        let file = tempfile::tempfile().unwrap();
        file.set_len(Head::WHOLE as u64).unwrap();
        assert!(Shared::found(file.as_raw_fd()).is_none(), "a file that may shrink");
        assert!(!is_own(file.as_raw_fd()));
    }

    #[test]
    fn bytes_are_counted_and_a_connection_that_is_not_over_a_board_is_left() {
        settle();
        let (mut one, two) = pair();
        let (to, from) = (one.as_raw_fd(), two.as_raw_fd());
        let data = vec![7; settings().after as usize];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Past us: not counted.
                one.write_all(b"x").unwrap();
                let mut left = &data[..];
                while !left.is_empty() {
                    let raw = || crate::kernel::send(to, &mut [part(left)], 0);
                    // SAFETY: `left` is valid.
                    left = &left[unsafe { crate::send(to, &[part(left)], 0, raw) }.unwrap()..];
                }
            });
            let mut got = 0;
            while got < data.len() + 1 {
                let mut buffer = vec![0; 10_000];
                let parts = [crate::kernel::part_mut(&mut buffer)];
                // SAFETY: `buffer` is valid.
                got +=
                    unsafe { crate::receive(from, &parts, 0, || crate::kernel::receive(from, &mut parts.clone(), 0)) }
                        .unwrap();
            }
        });
        let (sent, received) = (Connection::of_descriptor(to).unwrap(), Connection::of_descriptor(from).unwrap());
        assert_eq!((sent.output.bytes(), received.input.bytes()), (settings().after, settings().after + 1));
        assert_eq!((sent.output.phase(), received.input.phase()), (phase::LEFT, phase::LEFT));
        assert_eq!((sent.input.phase(), received.output.phase()), (phase::RAW, phase::RAW));
        assert!(!is_framed(to) && refuse(to));
        // What a sender has offered it need not do; what a receiver has, the sender decides.
        received.output.enter(phase::OFFERED);
        assert!(!received.is_refused() && refuse(from) && received.is_refused());
        sent.input.enter(phase::OFFERED);
        assert!(is_framed(to) && !refuse(to));
    }

    /// A child of this process, which runs `child` and ends with what that returns.
    fn child(child: impl FnOnce() -> i32) -> libc::pid_t {
        // SAFETY: the child runs only what is below, and ends without what this process does at its end.
        match unsafe { libc::fork() } {
            0 => {
                let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
                // SAFETY: as above.
                unsafe { libc::_exit(code) }
            }
            pid => pid,
        }
    }

    /// The exit code of a child; -1 if it was killed.
    fn code(child: libc::pid_t) -> i32 {
        let mut status = 0;
        // SAFETY: a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
    }

    fn connection(end: &TcpStream) -> Connection {
        Connection::of_descriptor(end.as_raw_fd()).unwrap()
    }

    /// Both directions between the two ends are framed, without a ring that is written.
    fn frame(ends: [&TcpStream; 2]) {
        for end in ends.map(connection) {
            end.ring_memory().unwrap();
            end.input.enter(phase::FRAMED);
            end.output.enter(phase::FRAMED);
        }
    }

    fn send_bytes(end: &TcpStream, bytes: &[u8]) -> kernel::Outcome {
        let (fd, flags) = (end.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: valid bytes.
        unsafe { crate::send(fd, &[part(bytes)], flags, || kernel::send(fd, &mut [part(bytes)], flags)) }
    }

    fn receive_bytes(end: &TcpStream, bytes: &mut [u8], flags: c_int) -> kernel::Outcome {
        let (fd, parts) = (end.as_raw_fd(), [kernel::part_mut(bytes)]);
        // SAFETY: valid bytes.
        unsafe { crate::receive(fd, &parts, flags, || kernel::receive(fd, &mut parts.clone(), flags)) }
    }

    #[test]
    fn what_processes_share_has_no_address() {
        settle();
        let (one, two) = pair();
        frame([&one, &two]);
        send_bytes(&one, b"abc").unwrap();
        let ends = [&one, &two].map(connection);
        let _locked = ends.each_ref().map(|end| (end.lock_input().unwrap(), end.lock_output().unwrap()));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let ranges: Vec<(u64, u64)> = maps
            .lines()
            .filter_map(|line| line.split(' ').next()?.split_once('-'))
            .map(|(from, to)| (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap()))
            .collect();
        for end in &ends {
            let words = std::ptr::from_ref(end.cell).cast::<u64>();
            for at in 0..size_of::<Cell>() / 8 {
                // SAFETY: of the cell.
                let word = unsafe { words.add(at).read_volatile() };
                let is_address = ranges.iter().any(|(from, to)| (*from..*to).contains(&word));
                assert!(!is_address, "word {at} of a cell, {word:#x}, is an address of this process's");
            }
        }
    }

    #[test]
    fn a_lock_is_another_processs_until_it_lets_go_or_ends() {
        settle();
        let (one, two) = pair();
        frame([&one, &two]);
        // With the lock, this process makes another one, which waits for it.
        let end = connection(&one);
        let locked = end.lock_output().unwrap();
        let waiter = child(|| i32::from(connection(&one).lock_output().is_err()));
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(locked);
        assert_eq!(code(waiter), 0);
        assert_eq!(send_bytes(&one, b"abc"), Ok(3));
        // One ends with it: what is known of that direction is not believed any more, and the connection is ended.
        let dies = child(|| {
            let end = connection(&one);
            std::mem::forget(end.lock_output());
            // SAFETY: this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) }
        });
        assert_eq!(code(dies), -1);
        assert_eq!(connection(&one).lock_output().err(), Some(Broken::Ended));
        assert_eq!(send_bytes(&one, b"abc"), Err(kernel::Errno(libc::ECONNRESET)));
        let mut got = [0; 9];
        assert_eq!((receive_bytes(&two, &mut got, 0), &got[..3]), (Ok(3), &b"abc"[..]));
        assert_eq!(receive_bytes(&two, &mut got, 0), Ok(0));
        // Others are as before.
        let (three, four) = pair();
        frame([&three, &four]);
        assert_eq!(send_bytes(&three, b"def"), Ok(3));
        assert_eq!((receive_bytes(&four, &mut got, 0), &got[..3]), (Ok(3), &b"def"[..]));
    }

    /// A process that has the same memory writes what it likes there, all the time. This one gets errors, or other
    /// bytes; it does not end, nor wait for ever.
    #[test]
    fn whatever_another_process_writes_there_this_one_goes_on() {
        settle();
        let rounds = telegraphos_testkit::scale(20, 10_000);
        let seed = telegraphos_testkit::seed_or(1);
        let mut errors = 0;
        for round in 0..rounds {
            let (one, two) = pair();
            frame([&one, &two]);
            let cells: Vec<usize> = [&one, &two].map(|end| std::ptr::from_ref(connection(end).cell) as usize).to_vec();
            let words = size_of::<Cell>() / 8;
            let mut random = telegraphos_testkit::Rng::new(seed.wrapping_add(round) << 8);
            let mut scribble = move |count: u32| {
                for _ in 0..count {
                    let at = (cells[random.below(2_usize)] + 8 * random.below(words)) as *mut u64;
                    let value = match random.below(6_u32) {
                        0 => random.below(6_u64),
                        1 => 1 << random.below(64_u32),
                        2 => u64::MAX - random.below(3_u64),
                        3 => (ring_bytes() - 4096) as u64,
                        4 => random.below(1 << 20),
                        _ => random.below(u64::MAX),
                    };
                    // SAFETY: a word of a cell, which is never unmapped.
                    unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Relaxed);
                }
            };
            // Most rounds once, before: the others race.
            let writer = (round % 5 == 0).then(|| {
                let mut scribble = scribble.clone();
                child(move || {
                    loop {
                        scribble(1);
                    }
                })
            });
            let mut got = vec![0; 5000];
            for _ in 0..4 {
                if writer.is_none() {
                    scribble(1 + round as u32 % 40);
                }
                let fd = one.as_raw_fd();
                let outcomes = [
                    send_bytes(&one, &[7; 3000]),
                    receive_bytes(&two, &mut got, libc::MSG_DONTWAIT),
                    send_bytes(&two, &[8; 100]),
                    receive_bytes(&one, &mut got, libc::MSG_DONTWAIT | libc::MSG_PEEK),
                    crate::available(fd).unwrap_or(Ok(0)),
                ];
                errors += outcomes.iter().filter(|outcome| outcome.is_err()).count();
                option_of(fd, libc::SOL_SOCKET, libc::SO_SNDBUF);
                set_option_of(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 5);
                let copy = one.try_clone().unwrap().into_raw_fd();
                duplicated(fd, copy);
                refuse(copy);
                closed(copy);
                kernel::close(copy);
            }
            if let Some(writer) = writer {
                // SAFETY: a child of this process.
                unsafe { libc::kill(writer, libc::SIGKILL) };
                assert_eq!(code(writer), -1);
            }
            [one, two].iter().for_each(|end| closed(end.as_raw_fd()));
        }
        assert!(errors > 0);
    }

    /// In a child, since a process leaves as a whole.
    #[test]
    fn a_process_of_another_user_leaves_what_it_shared_and_connections_stay_right_or_end() {
        settle();
        let (raw, far_raw) = pair();
        let (framed, far) = pair();
        frame([&framed, &far]);
        let cells = [&raw, &framed].map(|end| std::ptr::from_ref(connection(end).cell).cast_mut());
        let left = child(|| {
            process::leave(kernel::users()[1]);
            // Not in common any more.
            for cell in cells {
                // SAFETY: mapped still, as zeros.
                unsafe {
                    cell.cast::<[u64; size_of::<Cell>() / 8]>().write_volatile([u64::MAX; size_of::<Cell>() / 8])
                };
            }
            assert!(!is_tracked(raw.as_raw_fd()) && !is_tracked(framed.as_raw_fd()));
            assert_eq!(owned().count(), 0);
            assert_eq!(send_bytes(&raw, b"raw"), Ok(3));
            let mut got = [0; 9];
            assert_eq!(receive_bytes(&framed, &mut got, libc::MSG_DONTWAIT), Err(kernel::Errno(libc::ENOTCONN)));
            assert!(send_bytes(&framed, b"framed").is_err());
            // New ones are looked after, in memory of its own.
            let (new, other) = pair();
            frame([&new, &other]);
            assert_eq!(send_bytes(&new, b"new"), Ok(3));
            assert_eq!(receive_bytes(&other, &mut got, 0), Ok(3));
            0
        });
        assert_eq!(code(left), 0);
        // The others have theirs.
        assert!(connection(&raw).is_refused() && connection(&framed).is_refused());
        let mut got = [0; 9];
        assert_eq!((receive_bytes(&far_raw, &mut got, 0), &got[..3]), (Ok(3), &b"raw"[..]));
        assert_eq!(send_bytes(&framed, b"abc"), Ok(3));
        assert_eq!((receive_bytes(&far, &mut got, 0), &got[..3]), (Ok(3), &b"abc"[..]));
    }
}
