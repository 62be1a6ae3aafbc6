// SPDX-License-Identifier: MIT OR Apache-2.0
//! In place of recvmsg(2) and its relatives.

use crate::cell::{Input, Locked, phase};
use crate::kernel::{self, AGAIN, Errno, Outcome, part_mut};
use crate::lock::Broken;
use crate::memory::RING;
use crate::signals;
use crate::table::Connection;
use crate::upgrade::{self, READ, broken, not_locked};
use libc::{c_int, iovec};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use telegraphos_sockets_core::{Failure, Incoming, Reading, peek, read};

/// Most bytes that a look ahead sees of the connection.
const LOOK: usize = 256 << 10;
/// How often a look ahead that waits for more looks again.
const TICK: Duration = Duration::from_millis(1);
/// What is passed to the kernel as it is: not data of the stream.
const OTHERS: c_int = libc::MSG_ERRQUEUE | libc::MSG_OOB;

/// Reads from a descriptor into `parts`, as recvmsg(2) with these flags. `raw` is the system's own function, which is
/// called if the direction is raw.
///
/// # Safety
///
/// `parts` are memory that may be written.
pub unsafe fn receive(fd: c_int, parts: &[iovec], flags: c_int, raw: impl FnOnce() -> Outcome) -> Outcome {
    let Some(connection) = Connection::of_descriptor(fd) else { return raw() };
    if flags & OTHERS != 0 {
        return raw();
    }
    if let Some(busy) = connection.input.begin_raw(&[phase::RAW]) {
        let outcome = raw();
        if let Ok(bytes @ 1..) = outcome.map(|bytes| if flags & libc::MSG_PEEK == 0 { bytes } else { 0 }) {
            connection.input.count(bytes);
            drop(busy);
            upgrade::accept(fd, &connection);
        }
        return outcome;
    }
    if connection.input.phase() == phase::LEFT || !connection.is_of_descriptor(fd) {
        return raw();
    }
    let mut receiver = Receiver { fd, connection: &connection, flags, got: 0 };
    // SAFETY: as promised.
    let buffers = parts.iter().map(|part| unsafe { buffer(part) });
    let outcome = receiver.fill(buffers);
    if connection.input.phase() == phase::LEFT && outcome == Err(AGAIN) && receiver.got == 0 {
        return raw();
    }
    outcome
}

/// The memory of a part.
///
/// # Safety
///
/// It may be written.
unsafe fn buffer<'a>(part: &iovec) -> &'a mut [u8] {
    if part.iov_len == 0 {
        return &mut [];
    }
    // SAFETY: as promised.
    unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast(), part.iov_len) }
}

/// How many bytes a read would find now, as FIONREAD says. `None` if the kernel knows.
pub fn available(fd: c_int) -> Option<Outcome> {
    let connection = Connection::of_descriptor(fd)?;
    if connection.input.phase() != phase::FRAMED || !connection.is_of_descriptor(fd) {
        return None;
    }
    let mut bytes = vec![0; LOOK];
    let mut receiver = Receiver { fd, connection: &connection, flags: libc::MSG_PEEK | libc::MSG_DONTWAIT, got: 0 };
    match receiver.fill(std::iter::once(bytes.as_mut_slice())) {
        Err(AGAIN) => Some(Ok(0)),
        outcome => Some(outcome),
    }
}

struct Receiver<'a> {
    fd: c_int,
    connection: &'a Connection,
    flags: c_int,
    got: usize,
}

/// The connection and the ring, for the core.
struct Source<'a> {
    fd: c_int,
    connection: &'a Connection,
    memory: Ring,
}

/// The memory of a ring that is mapped in this process, or none.
#[derive(Clone, Copy)]
struct Ring(*mut [u8]);

impl Ring {
    /// Bytes of the ring itself.
    fn size(self) -> u64 {
        self.0.len().saturating_sub(RING) as u64
    }

    fn copy(self, offset: u64, bytes: &mut [u8]) {
        // A state of another size is refused, so this is never true.
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.size()) {
            return bytes.fill(0);
        }
        let from = self.0.cast::<u8>().wrapping_add(RING + offset as usize);
        // SAFETY: inside the ring, which is mapped in this process. What is announced is not written any more; a sender
        // that lies changes bytes that are its own.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// From which byte on there are frames, plus one; 0 as long as there are none.
    fn begins(self) -> u64 {
        if self.0.len() < RING {
            return 0;
        }
        // SAFETY: the first word of the ring's memory, which is mapped; others write it as a whole.
        unsafe { AtomicU64::from_ptr(self.0.cast()) }.load(Ordering::Acquire)
    }
}

impl Reading for Source<'_> {
    type Error = Errno;

    fn peek(&mut self, code: &mut u8, bytes: &mut [u8]) -> Result<usize, Errno> {
        let mut parts = [part_mut(std::slice::from_mut(code)), part_mut(bytes)];
        kernel::receive(self.fd, &mut parts, libc::MSG_PEEK | libc::MSG_DONTWAIT)
    }

    fn consume(&mut self, bytes: usize) -> Result<(), Errno> {
        let mut left = bytes;
        while left > 0 {
            match kernel::discard(self.fd, left)? {
                0 => return Err(Errno(libc::ECONNRESET)),
                bytes => left -= bytes,
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, Errno> {
        kernel::receive(self.fd, &mut [part_mut(bytes)], libc::MSG_DONTWAIT)
    }

    fn ring(&mut self, offset: u64, bytes: &mut [u8]) {
        self.memory.copy(offset, bytes);
    }

    fn returned(&mut self, head: u64) {
        // A child notifies no sender: the ring remains full then, and the connection takes the bytes.
        if let Some(control) = &self.connection.parts().own_control {
            // Soft: it fails if the sender is gone.
            let _ = control.put(READ, head);
        }
    }
}

impl Receiver<'_> {
    /// Fills buffers, as many bytes as there are; waits for the first one, or for all with MSG_WAITALL.
    fn fill<'b>(&mut self, buffers: impl Iterator<Item = &'b mut [u8]>) -> Outcome {
        let mut scratch = Vec::new();
        for buffer in buffers {
            let mut rest: &mut [u8] = buffer;
            if self.flags & libc::MSG_TRUNC != 0 {
                // Bytes are dropped.
                scratch.resize(rest.len().min(LOOK), 0);
                rest = &mut scratch;
            }
            while !rest.is_empty() {
                let wait = self.got == 0 || self.flags & libc::MSG_WAITALL != 0;
                let bytes = match self.once(rest, wait).and_then(|bytes| self.look_for_all(rest, bytes)) {
                    Ok(0) => return Ok(self.got),
                    Ok(bytes) => bytes,
                    Err(errno) => return if self.got > 0 { Ok(self.got) } else { Err(errno) },
                };
                self.got += bytes;
                if self.flags & libc::MSG_PEEK != 0 {
                    // The next bytes would be the same.
                    return Ok(self.got);
                }
                let full = bytes == rest.len();
                rest = &mut rest[bytes..];
                if !full && self.flags & libc::MSG_WAITALL == 0 && self.connection.input.phase() == phase::FRAMED {
                    return Ok(self.got);
                }
            }
        }
        Ok(self.got)
    }

    /// Of a look ahead with MSG_WAITALL: waits until all is there, or nothing more comes. What is there makes the
    /// descriptor readable, so that nothing but time can be waited for.
    fn look_for_all(&self, buffer: &mut [u8], mut seen: usize) -> Outcome {
        const ALL: c_int = libc::MSG_PEEK | libc::MSG_WAITALL;
        let waits = self.flags & (ALL | libc::MSG_DONTWAIT) == ALL && !kernel::is_nonblocking(self.fd);
        // No look sees more.
        let wanted = buffer.len().min(LOOK / 2);
        while waits && seen > 0 && seen < wanted && !kernel::has_ended(self.fd) {
            if kernel::pause(TICK).is_err() {
                break;
            }
            seen = self.once(buffer, false)?;
        }
        Ok(seen)
    }

    /// Reads at least one byte; 0 at the end.
    fn once(&self, buffer: &mut [u8], wait: bool) -> Outcome {
        loop {
            let signals = signals::wait();
            let mut input = match self.connection.lock_input() {
                Ok(input) => input,
                Err(why) => return not_locked(self.fd, why),
            };
            let phase = self.connection.input.phase();
            let none = Ring(std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut::<u8>(), 0));
            let ring = self.connection.ring().map_or(none, Ring);
            match phase {
                phase::OFFERED | phase::FRAMED if ring.size() == 0 => {
                    return broken(self.fd, "its ring is another process's");
                }
                phase::FRAMED if input.incoming.size() > ring.size() => return not_locked(self.fd, Broken::State),
                phase::RAW | phase::OFFERED | phase::FRAMED | phase::LEFT => {}
                // Under the lock no process changes it.
                _ => return not_locked(self.fd, Broken::State),
            }
            let outcome = match phase {
                phase::OFFERED => self.look(&mut input, ring, buffer),
                phase::FRAMED if self.flags & libc::MSG_PEEK != 0 => self.peek(&input, ring, buffer),
                phase::FRAMED => self.read(&mut input, ring, buffer),
                // It was to become framed, and has not.
                _ => kernel::receive(self.fd, &mut [part_mut(buffer)], self.flags | libc::MSG_DONTWAIT).inspect(
                    |bytes| {
                        if self.flags & libc::MSG_PEEK == 0 {
                            self.connection.input.count(*bytes);
                        }
                    },
                ),
            };
            drop((input, signals));
            let asked = self.flags & libc::MSG_DONTWAIT != 0;
            if outcome != Err(AGAIN) || asked || !wait || kernel::is_nonblocking(self.fd) {
                return outcome;
            }
            kernel::wait_readable(self.fd)?;
        }
    }

    /// Reads what is raw still, and finds out whether frames begin.
    fn look(&self, input: &mut Locked<'_, Input>, memory: Ring, buffer: &mut [u8]) -> Outcome {
        let source = &mut Source { fd: self.fd, connection: self.connection, memory };
        let found = kernel::receive(self.fd, &mut [part_mut(buffer)], libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
        // Behind the bytes: the word was there before the first frame was sent.
        let begins = memory.begins();
        let received = self.connection.input.bytes();
        let raw = match begins.checked_sub(1) {
            None => found,
            Some(begins) => match begins.checked_sub(received) {
                None => return broken(self.fd, &format!("frames from byte {begins} on, after {received} bytes")),
                Some(0) => {
                    self.connection.input.enter(phase::FRAMED);
                    return if self.flags & libc::MSG_PEEK != 0 {
                        self.peek(input, memory, buffer)
                    } else {
                        self.read(input, memory, buffer)
                    };
                }
                Some(raw) => found.min(usize::try_from(raw).unwrap_or(found)),
            },
        };
        if self.flags & libc::MSG_PEEK == 0 {
            source.consume(raw)?;
            self.connection.input.count(raw);
        }
        Ok(raw)
    }

    fn read(&self, input: &mut Locked<'_, Input>, memory: Ring, buffer: &mut [u8]) -> Outcome {
        let mut source = Source { fd: self.fd, connection: self.connection, memory };
        match read(&mut input.incoming, &mut source, buffer) {
            Ok(read) if read.raw => {
                self.connection.input.enter(phase::LEFT);
                if read.bytes == 0 { Err(AGAIN) } else { Ok(read.bytes) }
            }
            Ok(read) => Ok(read.bytes),
            Err(Failure::Connection(errno)) => Err(errno),
            Err(Failure::Violation(violation)) => broken(self.fd, &violation.to_string()),
        }
    }

    fn peek(&self, input: &Locked<'_, Input>, memory: Ring, buffer: &mut [u8]) -> Outcome {
        // Each frame has one byte of data at least.
        let mut bytes = vec![0; LOOK.min(2 * buffer.len() + 1)];
        let found = kernel::receive(self.fd, &mut [part_mut(&mut bytes)], libc::MSG_PEEK | libc::MSG_DONTWAIT)?;
        let incoming: &Incoming = &input.incoming;
        match peek(incoming, &bytes[..found], |offset, to| memory.copy(offset, to), buffer) {
            // A code without its data.
            Ok(0) if found > 0 => Err(AGAIN),
            Ok(seen) => Ok(seen),
            Err(violation) => broken(self.fd, &violation.to_string()),
        }
    }
}
