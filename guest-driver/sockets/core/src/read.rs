// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading from a framed direction, for any holder of the connection and the ring.

use crate::{Failure, Frame, Incoming, Next, Violation};

/// The connection and the ring that a direction is read from.
pub trait Reading {
    /// Why the connection cannot be read, such as that it is empty.
    type Error;

    /// Copies what the connection has next, without consuming it: the first byte to `code`, the others to `bytes`.
    /// Returns how many, `code` included; 0 at the end of the connection.
    fn peek(&mut self, code: &mut u8, bytes: &mut [u8]) -> Result<usize, Self::Error>;

    /// Consumes bytes that have been peeked at.
    fn consume(&mut self, bytes: usize) -> Result<(), Self::Error>;

    /// Consumes what the connection has next, at most `bytes.len()` bytes. Returns how many; 0 at its end.
    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, Self::Error>;

    /// Copies from the ring; the range is inside.
    fn ring(&mut self, offset: u64, bytes: &mut [u8]);

    /// The sender may write the ring again up to this position.
    fn returned(&mut self, head: u64);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Bytes.
    pub bytes: usize,
    /// The connection is raw behind them.
    pub raw: bool,
}

/// Reads at most `buffer.len()` bytes, at least one: as many as there are, as the kernel does, since programs take a
/// short read for a sign that nothing is left. 0 bytes at the connection's end, or where it becomes raw. Fails only
/// where nothing has been read.
pub fn read<C: Reading>(
    incoming: &mut Incoming,
    connection: &mut C,
    buffer: &mut [u8],
) -> Result<Read, Failure<C::Error>> {
    let mut got = 0;
    while got < buffer.len() {
        match step(incoming, connection, &mut buffer[got..]) {
            Ok(Step::Read(bytes)) => got += bytes,
            Ok(Step::Last(bytes)) => {
                got += bytes;
                break;
            }
            Ok(Step::Raw(bytes)) => return Ok(Read { bytes: got + bytes, raw: true }),
            Err(_) if got > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(Read { bytes: got, raw: false })
}

enum Step {
    /// There may be more.
    Read(usize),
    /// There is no more.
    Last(usize),
    /// It is raw from here on.
    Raw(usize),
}

/// Reads from one place; `buffer` is not empty.
fn step<C: Reading>(incoming: &mut Incoming, connection: &mut C, buffer: &mut [u8]) -> Result<Step, Failure<C::Error>> {
    if incoming.left() > 0 {
        let (offset, left) = incoming.record();
        // At most `buffer.len()`.
        let bytes = left.min(buffer.len() as u64) as usize;
        connection.ring(offset, &mut buffer[..bytes]);
        let head = incoming.head();
        if incoming.took(bytes as u64) {
            connection.consume(1)?;
        }
        if incoming.head() != head {
            connection.returned(incoming.head());
        }
        return Ok(Step::Read(bytes));
    }
    if !incoming.wants_code() {
        let wanted = incoming.within().min(buffer.len() as u64) as usize;
        let bytes = connection.take(&mut buffer[..wanted])?;
        incoming.took_within(bytes as u64);
        return Ok(if bytes < wanted { Step::Last(bytes) } else { Step::Read(bytes) });
    }
    let mut code = 0;
    let found = connection.peek(&mut code, buffer)?;
    let Some(behind) = found.checked_sub(1) else { return Ok(Step::Last(0)) };
    let unframed = incoming.unframe(Some(code), &mut buffer[..behind]).map_err(Failure::Violation)?;
    if unframed.consumed > 0 {
        connection.consume(unframed.consumed)?;
        incoming.consumed(&unframed);
    }
    let data = unframed.data;
    match unframed.next {
        Next::Record => {
            let mut word = [0; 8];
            connection.ring(incoming.record_offset().map_err(Failure::Violation)?, &mut word);
            incoming.begin_record(u64::from_le_bytes(word)).map_err(Failure::Violation)?;
            Ok(Step::Read(data))
        }
        Next::Raw => {
            connection.consume(1)?;
            Ok(Step::Raw(data))
        }
        // A code without its data: that is under way.
        Next::Connection if data == 0 || behind == buffer.len() => Ok(Step::Read(data)),
        Next::Connection => Ok(Step::Last(data)),
    }
}

/// Copies at most `buffer.len()` bytes of what would be read, without consuming anything, as far as `bytes` reach, the
/// first bytes of the connection. Returns how many.
pub fn peek(
    incoming: &Incoming,
    bytes: &[u8],
    mut ring: impl FnMut(u64, &mut [u8]),
    buffer: &mut [u8],
) -> Result<usize, Violation> {
    let (mut incoming, mut got, mut bytes) = (*incoming, 0, bytes);
    while got < buffer.len() {
        let room = (buffer.len() - got) as u64;
        if incoming.left() > 0 {
            let (offset, left) = incoming.record();
            let here = left.min(room) as usize;
            ring(offset, &mut buffer[got..got + here]);
            got += here;
            if incoming.took(here as u64) {
                // Its code.
                bytes = bytes.get(1..).unwrap_or_default();
            }
        } else if !incoming.wants_code() {
            let here = incoming.within().min(room).min(bytes.len() as u64) as usize;
            let (data, behind) = bytes.split_at(here);
            buffer[got..got + here].copy_from_slice(data);
            (got, bytes) = (got + here, behind);
            incoming.took_within(here as u64);
            if here == 0 {
                break;
            }
        } else {
            let Some((code, behind)) = bytes.split_first() else { break };
            match Frame::decode(*code)? {
                Frame::Raw => break,
                Frame::Record => {
                    let mut word = [0; 8];
                    ring(incoming.record_offset()?, &mut word);
                    incoming.begin_record(u64::from_le_bytes(word))?;
                }
                Frame::Bytes(length) => {
                    incoming.begin_frame(length);
                    bytes = behind;
                }
            }
        }
    }
    Ok(got)
}
