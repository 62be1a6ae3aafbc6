// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared-memory rings between processes of one host: a batch of bytes crosses without a system call while the other
//! side is awake.
//!
//! A Unix stream socket is the meeting place. The acceptor makes the memory (one ring for each direction, sealed
//! against shrinking) and sends its descriptor with the greeting; after that the socket carries *bells*, single bytes
//! that wake, and its end is the end of the connection, which is how the death of a process is noticed. Bells go
//! through the socket and not through eventfds because a descriptor shared with the peer has its flags shared too: a
//! peer that made an eventfd blocking could stop us in a write for ever.
//!
//! `protocol.rs` says when a bell is rung, and shows that none is missing. Here they are counted: each time one of our
//! two flags was cleared, exactly one byte is due, and no more than what is due is ever read. So the socket stays
//! readable as long as `receive` has not said `Nothing`, and a peer that rings without being asked is thrown out
//! instead of keeping us awake.

mod memory;
mod protocol;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU32;

use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use telegraphos_link::listener::Listener;

use self::memory::Memory;
use self::protocol::{Side, Violation, Words};
use crate::unix::connect_stream;
use crate::{Acceptor, OpenError, Options, Received, Transport, TransportStatistics, scheme};

/// First bytes of the greeting; the digit is the version of all that is described here.
const MAGIC: [u8; 8] = *b"tg-ring1";
/// Bytes of the greeting: [`MAGIC`] and the `u32` capacity of each ring.
const GREETING: usize = 12;
/// Bytes before the rings: the words, and the rest of a page.
const HEAD: usize = 4096;
/// Bytes of the words of one direction. What different sides write is in different cache lines, and in different pairs
/// of them.
const WORDS: usize = 256;
/// Connections that have gone before they were greeted, passed over in one call.
const GONE: usize = 16;
/// Capacities that are accepted.
const CAPACITIES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;

/// What the greeting brings.
#[derive(Debug)]
struct Rings {
    memory: Memory,
    /// The direction we produce: 0 or 1.
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
        // Born asleep, as the acceptor wrote into the memory: the first bytes ring.
        Rings { memory, out, producer: Side::new(capacity, false), consumer: Side::new(capacity, true) }
    }

    fn outgoing(&self) -> Words<'_, AtomicU32> {
        words(&self.memory, self.out)
    }

    fn incoming(&self) -> Words<'_, AtomicU32> {
        words(&self.memory, 1 - self.out)
    }

    /// Puts in what fits; how much that was.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Violation> {
        let words = words(&self.memory, self.out);
        let n = bytes.len().min(self.producer.room(&words)? as usize);
        let at = self.producer.position();
        let capacity = self.producer.capacity() as usize;
        let (first, second) = bytes[..n].split_at(n.min(capacity - at));
        let data = HEAD + self.out * capacity;
        self.memory.write(data + at, first);
        self.memory.write(data, second);
        if n > 0 {
            self.producer.put(&words, n as u32);
        }
        Ok(n)
    }

    /// Takes out what is there, of `there` bytes; how much, and whether the producer is to be woken.
    fn take(&mut self, there: u32, buffer: &mut [u8]) -> (usize, bool) {
        let n = buffer.len().min(there as usize);
        let at = self.consumer.position();
        let capacity = self.consumer.capacity() as usize;
        let (first, second) = buffer[..n].split_at_mut(n.min(capacity - at));
        let data = HEAD + (1 - self.out) * capacity;
        self.memory.read(data + at, first);
        self.memory.read(data, second);
        let words = words(&self.memory, 1 - self.out);
        (n, self.consumer.take(&words, n as u32, there - n as u32))
    }

    /// How many of our flags the peer has cleared since they were set.
    fn woken(&mut self) -> u32 {
        let (out, into) = (words(&self.memory, self.out), words(&self.memory, 1 - self.out));
        u32::from(self.producer.woken(out.wanting)) + u32::from(self.consumer.woken(into.asleep))
    }
}

/// One end of a pair of rings.
#[derive(Debug)]
pub struct RingTransport {
    socket: OwnedFd,
    /// None before the greeting.
    rings: Option<Rings>,
    /// Sent before the greeting, or not yet moved to the ring.
    staged: Vec<u8>,
    /// Bytes that may be staged.
    limit: usize,
    /// Microseconds to look for bytes before going to sleep.
    spin: u64,
    /// When there were bytes last.
    active: u64,
    /// Put in since the last flush.
    dirty: bool,
    /// The last send was cut short, and its caller does not know of room yet.
    short: bool,
    /// Bells that were rung, or are about to be, and not taken out of the socket.
    bells: u32,
    /// Bytes left in the ring when the peer had gone.
    last: Option<u32>,
    counted: TransportStatistics,
}

fn violation(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the other end of the rings {what}: dropping the connection"))
}

impl From<Violation> for io::Error {
    fn from(_: Violation) -> io::Error {
        violation("wrote an index that cannot be")
    }
}

/// What the socket had.
enum Socket {
    /// Nothing that concerns us.
    Quiet,
    /// A bell that was not there before.
    Bell,
    Ended,
}

impl RingTransport {
    /// Connects to the acceptor at `path`.
    pub fn connect(path: &Path, options: &Options) -> Result<RingTransport, OpenError> {
        let socket = connect_stream(path, scheme::RING)?;
        Ok(RingTransport::new(socket, None, options))
    }

    fn new(socket: OwnedFd, rings: Option<Rings>, options: &Options) -> RingTransport {
        RingTransport {
            socket,
            rings,
            staged: Vec::new(),
            limit: capacity(options) as usize,
            spin: options.spin,
            active: 0,
            dirty: false,
            short: false,
            bells: 0,
            last: None,
            counted: TransportStatistics::default(),
        }
    }

    /// Makes the rings and greets the peer.
    fn greet(socket: OwnedFd, options: &Options) -> io::Result<RingTransport> {
        let capacity = capacity(options);
        let (memory, fd) = Memory::create(length(capacity))?;
        for direction in 0..2 {
            words(&memory, direction).asleep.store(1, std::sync::atomic::Ordering::Release);
        }
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(&MAGIC);
        greeting[8..].copy_from_slice(&capacity.to_le_bytes());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [fd.as_fd()];
        // There is space for it.
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // A new socket takes it whole.
        net::sendmsg(&socket, &[IoSlice::new(&greeting)], &mut ancillary, flags)?;
        Ok(RingTransport::new(socket, Some(Rings::new(memory, capacity, 0)), options))
    }

    /// Reads the greeting, if it is there. False if the peer has gone before.
    fn greeted(&mut self) -> io::Result<bool> {
        let mut greeting = [0; GREETING];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let got = loop {
            match net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut greeting)], &mut ancillary, flags) {
                Ok(message) => break message.bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(true),
                Err(Errno::CONNRESET) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        };
        if got == 0 {
            return Ok(false);
        }
        let fd = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let capacity = u32::from_le_bytes([greeting[8], greeting[9], greeting[10], greeting[11]]);
        let no_rings = || violation("does not speak of rings (is it another transport, or another version?)");
        let fd = fd.filter(|_| got == GREETING && greeting[..8] == MAGIC).ok_or_else(no_rings)?;
        if !CAPACITIES.contains(&capacity) || !capacity.is_power_of_two() {
            return Err(violation(&format!("offers rings of {capacity} bytes")));
        }
        let memory = Memory::open(fd.as_fd(), length(capacity))?;
        self.rings = Some(Rings::new(memory, capacity, 1));
        Ok(true)
    }

    fn ring_bell(&mut self) {
        self.counted.wakes += 1;
        // A peer that has gone needs none, and is told by `receive`. An honest one never has more than a few unread.
        let _ = net::send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the bells out of the socket that are due, and looks for its end.
    fn listen(&mut self) -> io::Result<Socket> {
        let Some(rings) = &mut self.rings else { return Ok(Socket::Quiet) };
        self.bells = self.bells.saturating_add(rings.woken());
        // Whoever waits for room must be kept awake until told of it.
        if self.short && rings.producer.room(&rings.outgoing())? > 0 {
            return Ok(Socket::Quiet);
        }
        let mut buffer = [0; 8];
        let due = self.bells.min(8) as usize;
        let (take, flags) = match due {
            0 => (buffer.len(), RecvFlags::DONTWAIT | RecvFlags::PEEK),
            due => (due, RecvFlags::DONTWAIT),
        };
        let got = loop {
            match net::recv(&self.socket, &mut buffer[..take], flags) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => return Ok(Socket::Ended),
                Ok((_, n)) => break n as u32,
                Err(Errno::INTR) => {}
                // What is due is on its way.
                Err(Errno::AGAIN) => return Ok(Socket::Quiet),
                Err(e) => return Err(e.into()),
            }
        };
        if due > 0 {
            self.bells -= got;
            return Ok(Socket::Quiet);
        }
        // Bells that were rung since we looked at the flags; they stay for the next time.
        self.bells = rings.woken();
        if got > self.bells {
            return Err(violation("rang without being asked"));
        }
        Ok(Socket::Bell)
    }

    /// Moves what is staged into the ring, as far as it fits.
    fn unstage(&mut self) -> io::Result<()> {
        if let (Some(rings), false) = (&mut self.rings, self.staged.is_empty()) {
            let n = rings.put(&self.staged)?;
            self.staged.drain(..n);
            self.dirty |= n > 0;
        }
        Ok(())
    }
}

/// The capacity that `options` ask for.
fn capacity(options: &Options) -> u32 {
    let bytes = options.buffer.clamp(*CAPACITIES.start() as usize, *CAPACITIES.end() as usize);
    // At most the upper end, which is a power of two itself.
    bytes.next_power_of_two() as u32
}

impl Transport for RingTransport {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wants_write(&self) -> bool {
        // Room is told by a bell.
        false
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        if self.rings.is_none() {
            if self.last.is_some() || !self.greeted()? {
                self.last = Some(0);
                return Ok(Received::End);
            }
            self.unstage()?;
        }
        // At most: bytes, or a bell and then bytes, or the end and then bytes.
        loop {
            let Some(rings) = &mut self.rings else { return Ok(Received::Nothing) };
            let mut there = match self.last {
                // No more than there were: a peer that has hung up can still write.
                Some(last) => rings.consumer.available(&rings.incoming())?.min(last),
                None => rings.consumer.available(&rings.incoming())?,
            };
            if there == 0 && self.last.is_some() {
                return Ok(Received::End);
            }
            if there == 0 {
                self.bells = self.bells.saturating_add(rings.woken());
                if self.spin > 0 && !rings.consumer.is_armed() && now.saturating_sub(self.active) < self.spin {
                    return Ok(Received::Nothing);
                }
                let words = words(&rings.memory, 1 - rings.out);
                there = rings.consumer.sleep(&words)?;
            }
            if there > 0 {
                let (n, wake) = rings.take(there, buffer);
                self.active = now;
                self.counted.received_bytes += n as u64;
                if let Some(last) = &mut self.last {
                    *last -= n as u32;
                }
                if wake {
                    self.ring_bell();
                }
                return Ok(Received::Bytes(n));
            }
            match self.listen()? {
                Socket::Quiet => return Ok(Received::Nothing),
                Socket::Ended => {
                    let Some(rings) = &self.rings else { return Ok(Received::End) };
                    self.last = Some(rings.consumer.available(&rings.incoming())?);
                }
                Socket::Bell => {
                    let Some(rings) = &self.rings else { return Ok(Received::Nothing) };
                    if rings.consumer.available(&rings.incoming())? == 0 {
                        return Ok(Received::Nothing);
                    }
                }
            }
        }
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.last.is_some() {
            // Nobody will read it; `receive` tells.
            return Ok(bytes.len());
        }
        self.unstage()?;
        let taken = match &mut self.rings {
            Some(rings) if self.staged.is_empty() => {
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
                taken
            }
            _ => {
                let taken = bytes.len().min(self.limit.saturating_sub(self.staged.len()));
                self.staged.extend_from_slice(&bytes[..taken]);
                taken
            }
        };
        self.short = taken < bytes.len();
        self.counted.sent_bytes += taken as u64;
        Ok(taken)
    }

    fn flush(&mut self, _now: u64) -> io::Result<bool> {
        if self.last.is_some() {
            self.staged = Vec::new();
            return Ok(true);
        }
        self.unstage()?;
        let Some(rings) = &mut self.rings else { return Ok(self.staged.is_empty()) };
        let full = rings.producer.room(&rings.outgoing())? == 0;
        if !self.staged.is_empty() {
            let words = words(&rings.memory, rings.out);
            rings.producer.want(&words);
        }
        self.short &= full;
        let wake = self.dirty && rings.producer.wake_consumer(&rings.outgoing());
        self.dirty = false;
        if wake {
            self.ring_bell();
        }
        Ok(!self.short && self.staged.is_empty())
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

/// Gives each that connects a pair of rings.
#[derive(Debug)]
pub struct RingAcceptor {
    listener: Listener,
    options: Options,
}

impl RingAcceptor {
    /// Listens at `path`.
    pub fn bind(path: &Path, options: &Options) -> Result<RingAcceptor, OpenError> {
        Ok(RingAcceptor { listener: Listener::bind(path, options.named)?, options: options.clone() })
    }
}

impl Acceptor for RingAcceptor {
    fn fd(&self) -> BorrowedFd<'_> {
        self.listener.fd()
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn accept(&mut self, _now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        for _ in 0..GONE {
            let Some(socket) = self.listener.accept()? else { return Ok(None) };
            match RingTransport::greet(socket, &self.options) {
                Ok(made) => return Ok(Some(Box::new(made))),
                // It went away before it was greeted.
                Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
