// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing to a framed direction, for any holder of the connection and the ring.

use crate::{Failure, Frame, Outgoing, Piece, Room, Violation};

/// The connection and the ring that a direction is written to. Data is named by its offset in what the program writes.
pub trait Writing {
    /// Why the connection cannot be written, such as that it is full.
    type Error;

    /// Gives pieces to the kernel, whose data begins at `offset`. Returns how many bytes it has taken, codes included,
    /// at least one.
    fn send(&mut self, pieces: &[Piece], offset: u64) -> Result<u64, Self::Error>;

    /// Gives the code of a record to the kernel.
    fn announce(&mut self, code: u8) -> Result<(), Self::Error>;

    /// Up to where the receiver has read the ring, as it says.
    fn head(&mut self) -> u64;

    /// The longest record that it can write.
    fn most(&self) -> u64;

    /// Writes a record of `length` bytes to the ring, its word first, and returns when it is there. It waits for no
    /// other party without a bound.
    fn record(&mut self, room: Room, offset: u64, length: u64) -> Record;

    /// The ring is full: waits a little until it may not be. False if the connection shall take the bytes instead.
    fn wait_for_room(&mut self) -> bool;
}

/// What has become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// It is in the ring.
    Written,
    /// Nothing of it is, and no other record can be written now: the connection takes the bytes.
    Busy,
    /// The ring is not written any more. Some of the record may be there, or come later.
    Gone,
}

/// Writes `length` bytes: where at least `least` are left to the ring, as long as it has room, else to the connection.
/// Returns how many the connection took, which may be fewer. Fails only where none have been written.
pub fn write<C: Writing>(
    outgoing: &mut Outgoing,
    connection: &mut C,
    length: u64,
    least: u64,
) -> Result<u64, Failure<C::Error>> {
    let mut written = 0;
    while written < length {
        match step(outgoing, connection, written, length - written, least) {
            Ok(0) => break,
            Ok(bytes) => written += bytes,
            Err(_) if written > 0 => break,
            Err(failure) => return Err(failure),
        }
    }
    Ok(written)
}

/// Writes some of `left` bytes, from `offset` on.
fn step<C: Writing>(
    outgoing: &mut Outgoing,
    connection: &mut C,
    offset: u64,
    left: u64,
    least: u64,
) -> Result<u64, Failure<C::Error>> {
    if left >= least {
        if let Some(written) = by_ring(outgoing, connection, offset, left, least)? {
            return Ok(written);
        }
    }
    let pieces = outgoing.pieces(left);
    let taken = connection.send(&pieces, offset)?;
    Ok(outgoing.accepted(&pieces, taken))
}

/// Writes a record of the first of `left` bytes, if the ring has room for `least`, or will have soon. Returns how many.
fn by_ring<C: Writing>(
    outgoing: &mut Outgoing,
    connection: &mut C,
    offset: u64,
    left: u64,
    least: u64,
) -> Result<Option<u64>, Failure<C::Error>> {
    let room = loop {
        match outgoing.room(connection.head(), least).map_err(Failure::Violation)? {
            Some(room) => break room,
            None if outgoing.has_ring() && outgoing.may_begin() && connection.wait_for_room() => {}
            None => return Ok(None),
        }
    };
    let length = left.min(room.length).min(connection.most());
    match connection.record(room, offset, length) {
        Record::Written => {}
        Record::Busy => return Ok(None),
        Record::Gone => {
            outgoing.forget_ring();
            return Ok(None);
        }
    }
    connection.announce(Frame::Record.code())?;
    outgoing.recorded(room, length);
    Ok(Some(length))
}

impl<E> Failure<E> {
    /// The violation, if it is one.
    pub fn violation(&self) -> Option<Violation> {
        match self {
            Failure::Violation(violation) => Some(*violation),
            Failure::Connection(_) => None,
        }
    }
}
