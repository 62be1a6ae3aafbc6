// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared-memory rings between two processes of one host: bytes are transferred without a system call while the other
//! side is awake. Between fabric processes they carry trunks, between boards what passes beside the fabric.
//!
//! A ring consists of memory (one direction for each side, sealed against shrinking), and a stream socket, whose end is
//! the end of the connection, so that the death of a process is noticed. The socket carries *wake-ups*, single bytes.
//! Wake-ups are sent over the socket, not through eventfds, because the flags of a shared descriptor are shared too: a
//! peer that made an eventfd blocking could block a write of this process for ever.
//!
//! `protocol.rs` defines when a wake-up is sent, and shows that none is missing. This file counts them: each time one
//! of this side's two flags was cleared, exactly one byte is expected, and no more than expected are ever read. So the
//! socket stays readable as long as `receive` has not returned `Nothing`, and a peer that sends unexpected wake-ups is
//! disconnected instead of keeping this side awake.

mod memory;
mod protocol;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use self::memory::Memory;
use self::protocol::{Side, Violation, Words};

/// Bytes before the rings: the words, and the rest of a page.
const HEAD: usize = 4096;
/// Bytes of the words of one direction. Words written by different sides are in different pairs of cache lines.
const WORDS: usize = 256;
/// Capacities that are accepted, in bytes of one direction; powers of two.
pub const CAPACITIES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;

/// What one [`Ring::receive`] brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// So many bytes, at least one; there may be more.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
    /// The peer has gone, and every byte of it that was there was returned. All later calls return this.
    End,
}

#[derive(Debug)]
struct Rings {
    memory: Memory,
    /// The direction in which this side produces: 0 or 1.
    out: usize,
    producer: Side,
    consumer: Side,
}

/// Words of direction `direction`.
fn words(memory: &Memory, direction: usize) -> Words<'_, AtomicU32> {
    let at = direction * WORDS;
    Words {
        tail: memory.word(at),
        wanting: memory.word(at + 4),
        head: memory.word(at + 128),
        asleep: memory.word(at + 132),
    }
}

fn length(capacity: u32) -> usize {
    HEAD + 2 * capacity as usize
}

impl Rings {
    fn new(memory: Memory, capacity: u32, out: usize) -> Rings {
        // The creator initialises both consumers as asleep: the first bytes wake.
        Rings { memory, out, producer: Side::new(capacity, false), consumer: Side::new(capacity, true) }
    }

    fn outgoing(&self) -> Words<'_, AtomicU32> {
        words(&self.memory, self.out)
    }

    fn incoming(&self) -> Words<'_, AtomicU32> {
        words(&self.memory, 1 - self.out)
    }

    /// Writes as many bytes as fit and returns how many.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let words = words(&self.memory, self.out);
        let n = bytes.len().min(self.producer.room(&words)? as usize);
        let at = self.producer.position();
        let capacity = self.producer.capacity as usize;
        let (first, second) = bytes[..n].split_at(n.min(capacity - at));
        let data = HEAD + self.out * capacity;
        self.memory.write(data + at, first);
        self.memory.write(data, second);
        if n > 0 {
            self.producer.put(&words, n as u32);
        }
        Ok(n)
    }

    /// Reads bytes, of the `there` available; returns how many, and whether the producer must be woken.
    fn take(&mut self, there: u32, buffer: &mut [u8]) -> (usize, bool) {
        let n = buffer.len().min(there as usize);
        let at = self.consumer.position();
        let capacity = self.consumer.capacity as usize;
        let (first, second) = buffer[..n].split_at_mut(n.min(capacity - at));
        let data = HEAD + (1 - self.out) * capacity;
        self.memory.read(data + at, first);
        self.memory.read(data, second);
        let words = words(&self.memory, 1 - self.out);
        (n, self.consumer.take(&words, n as u32, there - n as u32))
    }

    /// How many of this side's flags the peer has cleared since they were set.
    fn woken(&mut self) -> u32 {
        let (out, into) = (words(&self.memory, self.out), words(&self.memory, 1 - self.out));
        u32::from(self.producer.woken(out.wanting)) + u32::from(self.consumer.woken(into.asleep))
    }
}

/// One end of a ring.
#[derive(Debug)]
pub struct Ring {
    socket: Arc<OwnedFd>,
    rings: Rings,
    /// Microseconds to poll for bytes before sleeping.
    spin: u64,
    /// When bytes were last received.
    active: u64,
    /// Bytes were written since the last flush.
    dirty: bool,
    /// The last send took less than offered, and its caller has not seen room since.
    short: bool,
    /// Wake-ups that the peer has sent, or is about to send, and that were not read.
    due: u32,
    /// Bytes left in the ring when the peer had gone.
    last: Option<u32>,
    wakes: u64,
}

/// An error of kind `InvalidData` about the other end.
pub fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other end of the rings {what}: dropping the connection"))
}

impl From<Violation> for io::Error {
    fn from(_: Violation) -> io::Error {
        violation("wrote an index that cannot be")
    }
}

/// Whether a direction may have so many bytes.
fn check(capacity: u32) -> io::Result<()> {
    if CAPACITIES.contains(&capacity) && capacity.is_power_of_two() {
        return Ok(());
    }
    Err(violation(&format!("offers rings of {capacity} bytes")))
}

/// New memory for a ring of so many bytes in each direction.
fn create(capacity: u32) -> io::Result<(Memory, OwnedFd)> {
    check(capacity)?;
    let (memory, fd) = Memory::create(length(capacity))?;
    for direction in 0..2 {
        words(&memory, direction).asleep.store(1, std::sync::atomic::Ordering::Release);
    }
    Ok((memory, fd))
}

/// What was found in the socket.
enum Socket {
    Quiet,
    /// A wake-up that was not there before.
    Wake,
    Ended,
}

impl Ring {
    /// Creates a ring whose wake-ups pass by this connected stream socket. This is side 0; the other side
    /// [opens](Ring::open) the memory that is returned.
    pub fn create(socket: impl Into<Arc<OwnedFd>>, capacity: u32, spin: u64) -> io::Result<(Ring, OwnedFd)> {
        let (memory, fd) = create(capacity)?;
        Ok((Ring::new(socket.into(), Rings::new(memory, capacity, 0), spin), fd))
    }

    /// Opens the given side, 0 or 1, of a ring that another process has created. Fails if the memory could go away, or
    /// is not that of such a ring.
    pub fn open(
        socket: impl Into<Arc<OwnedFd>>,
        memory: BorrowedFd<'_>,
        capacity: u32,
        side: u8,
        spin: u64,
    ) -> io::Result<Ring> {
        check(capacity)?;
        let memory = Memory::open(memory, length(capacity))?;
        Ok(Ring::new(socket.into(), Rings::new(memory, capacity, usize::from(side & 1)), spin))
    }

    /// A ring for two other processes: the socket of each side, and the memory, for [`Ring::open`].
    pub fn for_others(capacity: u32) -> io::Result<([OwnedFd; 2], OwnedFd)> {
        let (_, memory) = create(capacity)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (low, high) = net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok(([low, high], memory))
    }

    fn new(socket: Arc<OwnedFd>, rings: Rings, spin: u64) -> Ring {
        let (active, dirty, short, due, last, wakes) = (0, false, false, 0, None, 0);
        Ring { socket, rings, spin, active, dirty, short, due, last, wakes }
    }

    /// The descriptor to poll for readable: then there are bytes, room, or the end.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Wake-ups that were sent.
    pub fn wakes(&self) -> u64 {
        self.wakes
    }

    fn send_wake(&mut self) {
        self.wakes += 1;
        // Fails if the peer has gone, which `receive` reports. An honest peer never has more than a few unread.
        let _ = net::send(&*self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Reads the expected wake-ups from the socket, and detects its end. Expected are those that were counted before
    /// this side fell asleep: one that the peer sends because it has, for what came behind the last look, must stay in
    /// the socket, or this side would not look again.
    fn listen(&mut self) -> io::Result<Socket> {
        let rings = &mut self.rings;
        // A caller that waits for room stays awake until it has seen the room.
        if self.short && rings.producer.room(&rings.outgoing())? > 0 {
            return Ok(Socket::Quiet);
        }
        let mut buffer = [0; 8];
        let due = self.due.min(8) as usize;
        let (take, flags) = match due {
            0 => (buffer.len(), RecvFlags::DONTWAIT | RecvFlags::PEEK),
            due => (due, RecvFlags::DONTWAIT),
        };
        let got = loop {
            match net::recv(&*self.socket, &mut buffer[..take], flags) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Socket::Ended),
                Ok((_, n)) => break n as u32,
                Err(Errno::INTR) => {}
                // The expected bytes are in flight.
                Err(Errno::AGAIN) => return Ok(Socket::Quiet),
                Err(e) => return Err(e.into()),
            }
        };
        if due > 0 {
            self.due -= got;
            return Ok(Socket::Quiet);
        }
        // Wake-ups sent since the flags were read; they are left for the next call.
        self.due = rings.woken();
        if got > self.due {
            return Err(violation("sent a wake-up without being asked"));
        }
        Ok(Socket::Wake)
    }

    /// Takes out bytes that have arrived. `now` is microseconds of any monotonic clock.
    pub fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Taken> {
        // At most: bytes, or a wake-up and then bytes, or the end and then bytes.
        loop {
            let rings = &mut self.rings;
            let mut there = match self.last {
                // No more than there were: a peer that has hung up can still write.
                Some(last) => rings.consumer.available(&rings.incoming())?.min(last),
                None => rings.consumer.available(&rings.incoming())?,
            };
            if there == 0 && self.last.is_some() {
                return Ok(Taken::End);
            }
            if there == 0 {
                self.due = self.due.saturating_add(rings.woken());
                if self.spin > 0 && !rings.consumer.armed && now.saturating_sub(self.active) < self.spin {
                    return Ok(Taken::Nothing);
                }
                let words = words(&rings.memory, 1 - rings.out);
                there = rings.consumer.sleep(&words)?;
            }
            if there > 0 {
                let (n, wake) = rings.take(there, buffer);
                self.active = now;
                if let Some(last) = &mut self.last {
                    *last -= n as u32;
                }
                if wake {
                    self.send_wake();
                }
                return Ok(Taken::Bytes(n));
            }
            match self.listen()? {
                Socket::Quiet => return Ok(Taken::Nothing),
                Socket::Ended => {
                    self.last = Some(self.rings.consumer.available(&self.rings.incoming())?);
                }
                Socket::Wake => {
                    if self.rings.consumer.available(&self.rings.incoming())? == 0 {
                        return Ok(Taken::Nothing);
                    }
                }
            }
        }
    }

    /// Writes bytes: how many. The peer is woken by the next [`Ring::flush`]. If it has gone, they are dropped:
    /// `receive` reports the end.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.last.is_some() {
            return Ok(bytes.len());
        }
        let rings = &mut self.rings;
        let mut taken = rings.put(bytes)?;
        while taken < bytes.len() {
            let words = words(&rings.memory, rings.out);
            rings.producer.want(&words);
            match rings.put(&bytes[taken..])? {
                0 => break,
                n => taken += n,
            }
        }
        self.dirty |= taken > 0;
        self.short = taken < bytes.len();
        Ok(taken)
    }

    /// Wakes the peer for what was written. True if there is room for more, or nothing waits for room; false if the
    /// descriptor becomes readable when there is room.
    pub fn flush(&mut self) -> io::Result<bool> {
        if self.last.is_some() {
            return Ok(true);
        }
        let rings = &mut self.rings;
        let full = rings.producer.room(&rings.outgoing())? == 0;
        self.short &= full;
        let wake = self.dirty && rings.producer.wake_consumer(&rings.outgoing());
        self.dirty = false;
        if wake {
            self.send_wake();
        }
        Ok(!self.short)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
