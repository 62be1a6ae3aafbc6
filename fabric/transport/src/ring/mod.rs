// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared-memory rings between processes of one host: bytes are transferred without a system call while the other side
//! is awake.
//!
//! The connection is set up over a Unix stream socket. The acceptor creates the memory (one ring for each direction,
//! sealed against shrinking) and sends its descriptor with the greeting. After that the socket carries *wake-ups*,
//! single bytes, and its end is the end of the connection, so that the death of a process is noticed. Wake-ups are sent
//! over the socket, not through eventfds, because the flags of a shared descriptor are shared too: a peer that made an
//! eventfd blocking could block a write of this process for ever.
//!
//! `protocol.rs` defines when a wake-up is sent, and shows that none is missing. This file counts them: each time one
//! of this side's two flags was cleared, exactly one byte is expected, and no more than expected are ever read. So the
//! socket stays readable as long as `receive` has not returned `Nothing`, and a peer that sends unexpected wake-ups is
//! disconnected instead of keeping this side awake.

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
/// Bytes of the words of one direction. Words written by different sides are in different pairs of cache lines.
const WORDS: usize = 256;
/// Connections skipped in one call because their peers have gone before the greeting.
const GONE: usize = 16;
/// Capacities that are accepted.
const CAPACITIES: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 20;

/// The rings, which the greeting sets up.
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
        // The acceptor initialises both consumers as asleep: the first bytes wake.
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

/// What was found in the socket.
enum Socket {
    /// Nothing new.
    Quiet,
    /// A wake-up that was not there before.
    Wake,
    Ended,
}

impl RingTransport {
    /// Connects to the acceptor at `path`, without waiting for its greeting.
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
            due: 0,
            last: None,
            counted: TransportStatistics::default(),
        }
    }

    /// Creates the rings and sends the greeting.
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

    /// Reads the greeting, if it has arrived. False if the peer has gone before.
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

    fn send_wake(&mut self) {
        self.counted.wakes += 1;
        // Fails if the peer has gone, which `receive` reports. An honest peer never has more than a few unread.
        let _ = net::send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Reads the expected wake-ups from the socket, and detects its end.
    fn listen(&mut self) -> io::Result<Socket> {
        let Some(rings) = &mut self.rings else { return Ok(Socket::Quiet) };
        self.due = self.due.saturating_add(rings.woken());
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
            match net::recv(&self.socket, &mut buffer[..take], flags) {
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

    /// Moves staged bytes into the ring, as far as they fit.
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

    fn receive(&mut self, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        if self.rings.is_none() {
            if self.last.is_some() || !self.greeted()? {
                self.last = Some(0);
                return Ok(Received::End);
            }
            self.unstage()?;
        }
        // At most: bytes, or a wake-up and then bytes, or the end and then bytes.
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
                self.due = self.due.saturating_add(rings.woken());
                if self.spin > 0 && !rings.consumer.armed && now.saturating_sub(self.active) < self.spin {
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
                    self.send_wake();
                }
                return Ok(Received::Bytes(n));
            }
            match self.listen()? {
                Socket::Quiet => return Ok(Received::Nothing),
                Socket::Ended => {
                    let Some(rings) = &self.rings else { return Ok(Received::End) };
                    self.last = Some(rings.consumer.available(&rings.incoming())?);
                }
                Socket::Wake => {
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
            // Dropped: `receive` reports the end.
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
            self.send_wake();
        }
        Ok(!self.short && self.staged.is_empty())
    }

    fn statistics(&self) -> TransportStatistics {
        self.counted
    }
}

/// Accepts connections, each with a pair of rings.
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

    fn accept(&mut self, _now: u64) -> io::Result<Option<Box<dyn Transport>>> {
        for _ in 0..GONE {
            let Some(socket) = self.listener.accept()? else { return Ok(None) };
            match RingTransport::greet(socket, &self.options) {
                Ok(made) => return Ok(Some(Box::new(made))),
                // The peer has gone before the greeting.
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
