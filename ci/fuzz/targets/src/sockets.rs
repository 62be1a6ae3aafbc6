// SPDX-License-Identifier: MIT OR Apache-2.0

use crate::input::Input;
use telegraphos_sockets_core::{
    HEAD, Incoming, Outgoing, Piece, Reading, Record, Room, SMALLEST, Writing, peek, read, write,
};

/// Bytes of the ring.
const SIZE: u64 = SMALLEST;
/// Bytes of one read or write, at most.
const MOST: usize = 10_000;
/// Steps of one input.
const STEPS: usize = 500;

/// A connection whose other end says anything, and its ring. A step is a byte that says what happens, and what that
/// takes (little-endian):
///
/// | Byte modulo 4 | What happens | Takes |
/// |---|---|---|
/// | 0 | bytes arrive | how many (2), these |
/// | 1 | the other end writes the ring | the place (2), a word (8) |
/// | 2 | bytes are looked at, and read | how many (2) |
/// | 3 | bytes are written; the bits above say what becomes of their records | how many (2), up to where the ring has been read (8), how many the kernel takes (2) |
///
/// What is looked at is what is read then, and nothing outside the ring is read or written.
pub fn sockets(data: &[u8]) {
    let mut input = Input(data);
    let (Some(mut incoming), Some(mut outgoing)) = (Incoming::new(SIZE), Outgoing::new(SIZE)) else { return };
    let mut end = End { came: Vec::new(), ring: vec![0; SIZE as usize] };
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        match step & 3 {
            0 => {
                let count = input.u16().into();
                end.came.extend(input.bytes(count));
            }
            1 => {
                let at = usize::from(input.u16()) % (SIZE as usize / 8) * 8;
                end.ring[at..at + 8].copy_from_slice(&input.u64().to_le_bytes());
            }
            2 => {
                let wanted = 1 + usize::from(input.u16()) % MOST;
                if !end.reads(&mut incoming, wanted) {
                    return;
                }
            }
            _ => {
                let (length, head, takes) = (u64::from(input.u16()) % MOST as u64, input.u64(), input.u16().into());
                let record = match step >> 2 & 3 {
                    2 => Record::Busy,
                    3 => Record::Gone,
                    _ => Record::Written,
                };
                let mut sink = Sink { length, head, takes, record };
                match write(&mut outgoing, &mut sink, length, 100) {
                    Ok(written) => assert!(written <= length, "{written} bytes of {length} are written"),
                    Err(telegraphos_sockets_core::Failure::Connection(())) => {}
                    Err(telegraphos_sockets_core::Failure::Violation(_)) => return,
                }
            }
        }
    }
}

struct End {
    came: Vec<u8>,
    ring: Vec<u8>,
}

impl End {
    /// Whether the other end has kept the rules.
    fn reads(&mut self, incoming: &mut Incoming, wanted: usize) -> bool {
        let (mut looked, mut buffer) = (vec![0; wanted], vec![0; wanted]);
        let ring = &self.ring;
        let there = peek(incoming, &self.came, |offset, bytes| copy(ring, offset, bytes), &mut looked);
        match read(incoming, self, &mut buffer) {
            Ok(got) => {
                assert!(got.bytes <= wanted);
                // A rule that is broken behind what was read is found by looking already.
                if let Ok(there) = there {
                    assert_eq!(looked[..there], buffer[..got.bytes], "what was looked at is not what was read");
                }
                !got.raw
            }
            // The connection is never in error.
            Err(_) => {
                assert!(there.is_err(), "{there:?} bytes were looked at and cannot be read");
                false
            }
        }
    }
}

fn copy(ring: &[u8], offset: u64, bytes: &mut [u8]) {
    let there = ring.get(offset as usize..offset as usize + bytes.len());
    assert!(there.is_some(), "{} bytes at {offset} of a ring of {SIZE}", bytes.len());
    bytes.copy_from_slice(there.unwrap_or_default());
}

impl Reading for End {
    type Error = ();

    fn peek(&mut self, code: &mut u8, bytes: &mut [u8]) -> Result<usize, ()> {
        let Some((first, rest)) = self.came.split_first() else { return Ok(0) };
        *code = *first;
        let count = bytes.len().min(rest.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        Ok(1 + count)
    }

    fn consume(&mut self, bytes: usize) -> Result<(), ()> {
        assert!(bytes <= self.came.len(), "consumes {bytes} bytes of {}", self.came.len());
        self.came.drain(..bytes);
        Ok(())
    }

    fn take(&mut self, bytes: &mut [u8]) -> Result<usize, ()> {
        let count = bytes.len().min(self.came.len());
        bytes[..count].copy_from_slice(&self.came[..count]);
        self.consume(count)?;
        Ok(count)
    }

    fn ring(&mut self, offset: u64, bytes: &mut [u8]) {
        copy(&self.ring, offset, bytes);
    }

    fn returned(&mut self, _head: u64) {}
}

struct Sink {
    /// Bytes of the write.
    length: u64,
    head: u64,
    /// Bytes that the kernel takes.
    takes: u64,
    /// What becomes of its records.
    record: Record,
}

impl Writing for Sink {
    type Error = ();

    fn send(&mut self, pieces: &[Piece], offset: u64) -> Result<u64, ()> {
        let data: u64 = pieces.iter().map(|piece| piece.length).sum();
        assert!(offset + data <= self.length, "{data} bytes at {offset} of {}", self.length);
        let taken = (data + pieces.iter().filter(|piece| piece.code.is_some()).count() as u64).min(self.takes);
        self.takes -= taken;
        if taken == 0 { Err(()) } else { Ok(taken) }
    }

    fn announce(&mut self, _code: u8) -> Result<(), ()> {
        self.takes = self.takes.checked_sub(1).ok_or(())?;
        Ok(())
    }

    fn head(&mut self) -> u64 {
        self.head
    }

    fn most(&self) -> u64 {
        1 << 20
    }

    fn record(&mut self, room: Room, offset: u64, length: u64) -> Record {
        assert!(length <= room.length && room.offset + HEAD + length <= SIZE, "{length} bytes in {room:?}");
        assert!(offset + length <= self.length, "{length} bytes at {offset} of {}", self.length);
        self.record
    }

    fn wait_for_room(&mut self) -> bool {
        false
    }
}
