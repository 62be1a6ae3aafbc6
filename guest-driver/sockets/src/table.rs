// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors and their connections, without locks: programs use descriptors in signal handlers, too.
//!
//! Slots of connections are never freed, but used again when no descriptor has them and nobody uses them.

use crate::cell::{Cell, phase};
use crate::kernel::{map_shared, unmap};
use crate::process;
use crate::settings::{say, settings};
use libc::c_int;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use telegraphos::{Registration, Remote, Segment};

/// Descriptors from this number on are not looked after.
const DESCRIPTORS: usize = 1 << 16;
/// Slots are made in chunks of so many.
const CHUNK: usize = 64;
/// Chunks, at most.
const CHUNKS: usize = 128;

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
    taken: AtomicU32,
    /// Descriptors.
    descriptors: AtomicU32,
    /// Operations under way, and others that look at it.
    operations: AtomicU32,
    /// In a child this may be its parent's, whose locks may never be free again, and whose board is not the child's.
    own: AtomicPtr<Own>,
    /// Where the memory of the ring is that is read, if it is mapped in this process.
    ring: AtomicUsize,
    /// Its bytes.
    ring_size: AtomicUsize,
}

struct Chunk {
    /// Shared with children.
    cells: NonNull<Cell>,
    /// The process that has made it, which alone takes slots of it.
    maker: u32,
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
        let chunk = NonNull::new(SLOTS[number / CHUNK].load(Ordering::Acquire))?;
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

    /// Where the memory of the ring is that is read, if it is mapped in this process.
    pub(crate) fn ring(&self) -> Option<usize> {
        Some(self.slot.ring.load(Ordering::Acquire)).filter(|address| *address != 0)
    }

    /// The ring's memory is there, in this process and in children that it will have.
    pub(crate) fn set_ring(&self, memory: *mut [u8]) {
        self.slot.ring_size.store(memory.len(), Ordering::Release);
        self.slot.ring.store(memory.cast::<u8>() as usize, Ordering::Release);
    }

    /// Says how much was sent which way, if the sending direction became framed.
    fn tell(&self) {
        if self.output.phase() != phase::FRAMED {
            return;
        }
        if let Ok(output) = self.output.lock() {
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
            && self.slot.taken.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            self.tell();
            let own = self.slot.own.swap(std::ptr::null_mut(), Ordering::AcqRel);
            // SAFETY: made by a box, and nobody uses it any more.
            if let Some(own) = NonNull::new(own).filter(|own| unsafe { own.as_ref() }.process == process::id()) {
                // SAFETY: as above.
                drop(unsafe { Box::from_raw(own.as_ptr()) });
            }
            // Behind its registration's end.
            let address = self.slot.ring.swap(0, Ordering::AcqRel) as *mut u8;
            if !address.is_null() {
                unmap(std::ptr::slice_from_raw_parts_mut(address, self.slot.ring_size.load(Ordering::Acquire)));
            }
            self.cell.users.fetch_sub(1, Ordering::SeqCst);
            self.slot.taken.store(0, Ordering::SeqCst);
        }
    }
}

impl Chunk {
    fn new(maker: u32) -> Option<NonNull<Chunk>> {
        // Zeros are valid cells, which are begun before they are used.
        let cells = NonNull::new(map_shared(CHUNK * size_of::<Cell>())?.cast())?;
        let chunk = Chunk { cells, maker, slots: std::array::from_fn(|_| Slot::default()) };
        NonNull::new(Box::into_raw(Box::new(chunk)))
    }

    /// Takes a slot: its place in the chunk.
    fn take(&self) -> Option<usize> {
        (0..CHUNK).find(|place| {
            let slot = &self.slots[*place];
            if slot.taken.compare_exchange(0, 3, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                return false;
            }
            // SAFETY: as in `Connection::of`.
            let cell = unsafe { self.cells.add(*place).as_ref() };
            let free = cell.users.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok();
            if free && cell.begin(settings().after) {
                slot.descriptors.store(1, Ordering::SeqCst);
                slot.taken.store(1, Ordering::SeqCst);
                return true;
            }
            if free {
                cell.users.store(0, Ordering::SeqCst);
            }
            slot.taken.store(0, Ordering::SeqCst);
            false
        })
    }
}

/// Takes a slot for a connection with one descriptor: its number plus one. `None` if there are too many.
fn take() -> Option<u32> {
    let maker = process::id();
    for (at, entry) in SLOTS.iter().enumerate() {
        let mut chunk = entry.load(Ordering::Acquire);
        if chunk.is_null() {
            let made = Chunk::new(maker)?.as_ptr();
            chunk = match entry.compare_exchange(std::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(other) => {
                    // SAFETY: nobody has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    other
                }
            };
        }
        // SAFETY: chunks are never freed.
        let chunk = unsafe { &*chunk };
        if let Some(place) = Some(chunk).filter(|chunk| chunk.maker == maker).and_then(Chunk::take) {
            return u32::try_from(at * CHUNK + place + 1).ok();
        }
    }
    None
}

fn entry(fd: c_int) -> Option<&'static AtomicU32> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether the descriptor's connection is looked after.
pub fn is_tracked(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Ordering::Relaxed) != 0)
}

/// Whether a direction of the descriptor's connection is framed, or may become so at any time.
pub fn is_framed(fd: c_int) -> bool {
    let is = |side| side != phase::RAW && side != phase::LEFT;
    Connection::of_descriptor(fd).is_some_and(|c| is(c.input.phase()) || is(c.output.phase()))
}

/// A new descriptor, of something else than a connection; what had its number has been closed.
pub fn opened(fd: c_int) {
    if is_tracked(fd) {
        closed(fd);
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
    let Some(number) = take() else { return };
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

/// Leaves the descriptor's connection as it is, if both directions are raw. False if not: too late.
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

/// A child will have all connections, too.
pub(crate) fn before_fork() {
    for number in 1..=(CHUNKS * CHUNK) as u32 {
        if SLOTS[(number as usize - 1) / CHUNK].load(Ordering::Acquire).is_null() {
            break;
        }
        let connection = Connection::of(number);
        if let Some(open) = connection.filter(|open| open.slot.descriptors.load(Ordering::SeqCst) > 0) {
            open.users.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::part;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, IntoRawFd};

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
        process::settle();
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
        assert_eq!(in_use.users.load(Ordering::SeqCst), 1);
        drop(in_use);
        // SAFETY: nobody else has it.
        assert_eq!(unsafe { &*first }.users.load(Ordering::SeqCst), 0);
        opened(three.as_raw_fd());
        assert!(!is_tracked(three.as_raw_fd()));
    }

    #[test]
    fn bytes_are_counted_and_a_connection_that_is_not_over_a_board_is_left() {
        process::settle();
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
    }
}
