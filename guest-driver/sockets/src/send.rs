// SPDX-License-Identifier: MIT OR Apache-2.0
//! In place of sendmsg(2) and its relatives.

use crate::answers;
use crate::board::{Board, Fault};
use crate::cell::{Busy, Output, phase};
use crate::kernel::{self, AGAIN, Errno, Outcome, part};
use crate::lock::Broken;
use crate::memory::RING;
use crate::process::board;
use crate::settings::{say, settings};
use crate::signals;
use crate::table::{Connection, Parts};
use crate::upgrade::{self, READ, broken, not_locked};
use libc::{c_int, iovec};
use smallvec::SmallVec;
use std::sync::MutexGuard;
use std::time::Duration;
use telegraphos_sockets_core::{Failure, HEAD, Piece, Record, Room, Violation, Writing, write};

/// What is left of a write goes into the ring from so many bytes on: below, the connection is as fast.
const LEAST: u64 = 8 << 10;
/// How often, and how long, a sender that may wait waits for room in the ring before the connection takes the bytes.
const WAITS: u32 = 20;
const WAIT: Duration = Duration::from_micros(100);
/// How often a sender looks at a phase that changes.
const LOOKS: u32 = 1000;
/// What is sent of a file at once.
const FILE: usize = 256 << 10;

/// Writes `parts` to a descriptor, as sendmsg(2) with these flags. `raw` is the system's own function, which is called
/// if the direction is raw.
///
/// # Safety
///
/// `parts` are memory that may be read.
pub unsafe fn send(fd: c_int, parts: &[iovec], flags: c_int, raw: impl FnOnce() -> Outcome) -> Outcome {
    let Some(connection) = Connection::of_descriptor(fd) else { return raw() };
    upgrade::frame(fd, &connection);
    let sender = Sender { fd, connection: &connection, parts, flags: flags & !libc::MSG_ZEROCOPY };
    // Each phase is entered once: to look more often makes sense only while another thread changes it.
    for _ in 0..LOOKS {
        if let Some(busy) = connection.output.begin_raw(&[phase::RAW, phase::OFFERED]) {
            let outcome = raw();
            if flags & libc::MSG_OOB != 0 {
                // Out-of-band bytes can make the counts differ: the connection does not become framed.
                connection.refused.store(1, std::sync::atomic::Ordering::SeqCst);
            }
            sent_raw(fd, &connection, busy, &outcome);
            return outcome;
        }
        if connection.output.phase() == phase::LEFT || flags & libc::MSG_OOB != 0 || !connection.is_of_descriptor(fd) {
            return raw();
        }
        if let Some(outcome) = sender.send() {
            return outcome;
        }
    }
    not_locked(fd, Broken::State)
}

/// A raw system call has ended: counts what it has sent, and notifies the other end if that is enough.
fn sent_raw(fd: c_int, connection: &Connection, busy: Busy<'_, Output>, outcome: &Outcome) {
    if let Ok(bytes) = outcome {
        connection.output.count(*bytes);
        drop(busy);
        upgrade::offer(fd, connection);
    }
}

/// Writes from a file, as sendfile(2): `at` is the offset to begin at, which is moved; without it the file's place is.
/// `None` if the connection is not looked after.
pub fn send_file(fd: c_int, file: c_int, mut at: Option<&mut i64>, count: usize) -> Option<Outcome> {
    let connection = Connection::of_descriptor(fd)?;
    let mut bytes = Vec::new();
    let mut done = 0;
    while done < count {
        // Not all at once: the direction may become framed in between.
        let wanted = (count - done).min(FILE);
        upgrade::frame(fd, &connection);
        let outcome = if let Some(busy) = connection.output.begin_raw(&[phase::RAW, phase::OFFERED]) {
            let outcome = kernel::send_file(fd, file, at.as_deref_mut(), wanted);
            sent_raw(fd, &connection, busy, &outcome);
            outcome
        } else if connection.output.phase() == phase::LEFT || !connection.is_of_descriptor(fd) {
            kernel::send_file(fd, file, at.as_deref_mut(), wanted)
        } else {
            bytes.resize(wanted.max(bytes.len()), 0);
            send_read(fd, file, at.as_deref_mut(), &mut bytes[..wanted])
        };
        match outcome {
            Ok(sent) => done += sent,
            Err(_) if done > 0 => break,
            Err(errno) => return Some(Err(errno)),
        }
        if outcome != Ok(wanted) {
            break;
        }
    }
    Some(Ok(done))
}

/// Reads from a file, and writes that.
fn send_read(fd: c_int, file: c_int, at: Option<&mut i64>, bytes: &mut [u8]) -> Outcome {
    let read = kernel::read_file(file, at.as_deref().copied(), bytes)?;
    let parts = [part(&bytes[..read])];
    // SAFETY: `bytes` is valid.
    let outcome = unsafe { send(fd, &parts, 0, || kernel::send(fd, &mut parts.clone(), 0)) };
    let sent = outcome.unwrap_or(0);
    match at {
        Some(at) => *at += sent as i64,
        None => kernel::seek_back(file, read - sent),
    }
    outcome
}

struct Sender<'a> {
    fd: c_int,
    connection: &'a Connection,
    parts: &'a [iovec],
    flags: c_int,
}

/// The connection and the ring, for the core.
struct Sink<'a> {
    sender: &'a Sender<'a>,
    parts: MutexGuard<'static, Parts>,
    /// What has been written before.
    done: usize,
    waits: u32,
    /// Bytes that have been announced as records.
    by_ring: u64,
    /// Bytes of the record that is to be announced.
    record: u64,
}

impl Sender<'_> {
    /// `None` if the direction was to become framed, and has not.
    fn send(&self) -> Option<Outcome> {
        let length: usize = self.parts.iter().map(|part| part.iov_len).sum();
        let mut done = 0;
        let waits = self.flags & libc::MSG_DONTWAIT == 0 && !kernel::is_nonblocking(self.fd);
        while done < length {
            let signals = signals::wait();
            let mut output = match self.connection.lock_output() {
                Ok(output) => output,
                Err(why) => return Some(not_locked(self.fd, why)),
            };
            match self.connection.output.phase() {
                phase::FRAMED => {}
                // What has been written of this is framed.
                phase::RAW | phase::OFFERED | phase::LEFT if done == 0 => return None,
                // Under the lock no process changes it.
                _ => return Some(not_locked(self.fd, Broken::State)),
            }
            let parts = self.connection.parts();
            let ring = parts.ring.as_ref().filter(|ring| RING as u64 + output.outgoing.size() <= ring.size());
            let least = if ring.is_some() { LEAST } else { u64::MAX };
            let mut sink =
                Sink { sender: self, parts, done, waits: if waits { WAITS } else { 0 }, by_ring: 0, record: 0 };
            let outcome = write(&mut output.outgoing, &mut sink, (length - done) as u64, least);
            let by_ring = sink.by_ring;
            output.by_ring = output.by_ring.wrapping_add(by_ring);
            let rest = outcome.as_ref().map_or(0, |written| written.saturating_sub(by_ring));
            output.by_connection = output.by_connection.wrapping_add(rest);
            drop((sink, output, signals));
            let failed = match outcome {
                Ok(written) => {
                    done += written as usize;
                    AGAIN
                }
                Err(Failure::Connection(errno)) => errno,
                // What the receiver has read is in the board's memory.
                Err(Failure::Violation(Violation::Head { .. })) if board().is_none_or(Board::is_gone) => {
                    self.without_ring();
                    continue;
                }
                Err(Failure::Violation(violation)) => return Some(broken(self.fd, &violation.to_string())),
            };
            if done == length {
                break;
            }
            let failed = if failed == AGAIN && waits {
                match kernel::wait_writable(self.fd) {
                    Ok(_) => continue,
                    Err(errno) => errno,
                }
            } else {
                failed
            };
            return Some(if done > 0 { Ok(done) } else { Err(failed) });
        }
        Some(Ok(done))
    }

    /// The connection takes all bytes from now on.
    fn without_ring(&self) {
        let _signals = signals::wait();
        if let Ok(mut output) = self.connection.lock_output() {
            output.outgoing.forget_ring();
            self.connection.parts().ring = None;
        }
    }

    /// The memory of `length` bytes from `offset` on.
    fn slices(&self, mut offset: usize, mut length: usize, mut each: impl FnMut(iovec)) {
        for part in self.parts {
            if offset >= part.iov_len {
                offset -= part.iov_len;
                continue;
            }
            let here = (part.iov_len - offset).min(length);
            if here == 0 {
                break;
            }
            // Inside the part.
            each(iovec { iov_base: part.iov_base.wrapping_byte_add(offset), iov_len: here });
            (offset, length) = (0, length - here);
        }
    }
}

impl Writing for Sink<'_> {
    type Error = Errno;

    fn send(&mut self, pieces: &[Piece], offset: u64) -> Result<u64, Errno> {
        let codes: SmallVec<[u8; 16]> = pieces.iter().map(|piece| piece.code.unwrap_or(0)).collect();
        let mut parts: SmallVec<[iovec; 64]> = SmallVec::new();
        let mut at = self.done + offset as usize;
        for (piece, code) in pieces.iter().zip(&codes) {
            if piece.code.is_some() {
                parts.push(part(std::slice::from_ref(code)));
            }
            self.sender.slices(at, piece.length as usize, |slice| parts.push(slice));
            at += piece.length as usize;
        }
        // UIO_MAXIOV
        parts.truncate(1024);
        let sent = kernel::send(self.sender.fd, &mut parts, self.sender.flags | libc::MSG_DONTWAIT)?;
        Ok(sent as u64)
    }

    fn announce(&mut self, code: u8) -> Result<(), Errno> {
        let flags = self.sender.flags | libc::MSG_DONTWAIT;
        kernel::send(self.sender.fd, &mut [part(&[code])], flags)?;
        self.by_ring += self.record;
        Ok(())
    }

    fn head(&mut self) -> u64 {
        // A word of a page that is there.
        self.parts.control.as_ref().and_then(|control| control.load::<u64>(READ).ok()).unwrap_or(0)
    }

    fn most(&self) -> u64 {
        settings().record()
    }

    fn record(&mut self, room: Room, offset: u64, length: u64) -> Record {
        let (Some(board), Some(ring)) = (board(), &self.parts.ring) else { return Record::Gone };
        let head = HEAD as usize;
        let copied = board.copy(ring, RING as u64 + room.offset, head + length as usize, |bytes| {
            bytes[..head].copy_from_slice(&length.to_le_bytes());
            let mut at = head;
            self.sender.slices(self.done + offset as usize, length as usize, |slice| {
                // SAFETY: the caller of `send` promises that it may be read.
                let from = unsafe { std::slice::from_raw_parts(slice.iov_base.cast::<u8>(), slice.iov_len) };
                bytes[at..at + from.len()].copy_from_slice(from);
                at += from.len();
            });
        });
        match copied {
            Ok(()) => {
                self.record = length;
                Record::Written
            }
            Err(Fault::Busy) => Record::Busy,
            Err(fault) => {
                say(format_args!("descriptor {}: without the ring from now on: {fault}", self.sender.fd));
                answers::suspect(self.sender.fd, &fault);
                // A record that is under way is never announced, and lies where no other one is: nothing is written to
                // the ring any more.
                if let Some(ring) = self.parts.ring.take() {
                    board.close(ring, false);
                }
                Record::Gone
            }
        }
    }

    fn wait_for_room(&mut self) -> bool {
        let waits = self.waits > 0;
        if waits {
            self.waits -= 1;
            std::thread::sleep(WAIT);
        }
        waits
    }
}
