// SPDX-License-Identifier: MIT OR Apache-2.0

use crate::input::Input;
use std::cell::Cell;
use telegraphos_channel_core::{Announce, End, Far, Layout, Look, Near, PutError, RECORDS, ROOM, WORD};

/// Bytes of both rings.
const RING_BYTES: u64 = 256;
/// Steps of one input.
const STEPS: usize = 500;
/// Loads of a call beyond the words of a record.
const LOADS: u64 = 8;

/// An end of a channel whose other end stores anything at any time. A step is a byte that says what happens, and what
/// that takes (little-endian):
///
/// | Byte modulo 4 | What happens | Takes |
/// |---|---|---|
/// | 0 | the other end stores a word | the place (1), the word (8) |
/// | 1 | a record is put | how many bytes (1) |
/// | 2 | this end looks, and takes the record; the other end stores a word in between | the place (1), the word (8) |
/// | 3 | this end sleeps, and wakes | |
///
/// The first byte says how this end learns of the other's sleep. Nothing outside the memory is loaded or stored, and
/// each call is bounded.
pub fn channel(data: &[u8]) {
    let mut input = Input(data);
    let Ok(layout) = Layout::new(RING_BYTES) else { return };
    let announce = [Announce::Look, Announce::Always, Announce::Armed][usize::from(input.u8()) % 3];
    let mut end = End::new(layout, layout, announce, true);
    let (near, mut far) = (Memory::of(layout), Memory::of(layout));
    let bytes = [7; 256];
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let before = near.loads.get();
        let mut words = 0;
        match input.u8() % 4 {
            0 => near.lie(&mut input),
            1 => match end.put(&near, &mut far, 1, &[&bytes[..usize::from(input.u8())]]) {
                Err(PutError::TooLong { length, max }) => assert!(length > max),
                Err(PutError::Violation(_)) => return,
                put => assert!(put.is_ok(), "{put:?}"),
            },
            2 => match end.look(&near) {
                Err(_) => return,
                Ok(Look::Empty | Look::Ended) => {}
                Ok(Look::Record(record)) => {
                    assert!(record.length as u64 <= layout.max_record(), "a record of {} bytes", record.length);
                    near.lie(&mut input);
                    _ = end.take(&near, &mut far, &mut vec![0; record.length]);
                    words = record.length as u64 / WORD + 1;
                }
            },
            _ => {
                end.begin_sleep(&mut far, RECORDS | ROOM);
                assert!(end.waits_for(RECORDS | ROOM).count() <= 3);
                end.end_sleep(&mut far);
            }
        }
        let loads = near.loads.get() - before;
        assert!(loads <= LOADS + words, "{loads} loads for {words} words");
    }
}

/// The memory of an end.
struct Memory {
    words: Vec<Cell<u64>>,
    loads: Cell<u64>,
}

impl Memory {
    fn of(layout: Layout) -> Memory {
        Memory { words: vec![Cell::new(0); (layout.size() / WORD) as usize], loads: Cell::new(0) }
    }

    fn word(&self, at: u64) -> &Cell<u64> {
        assert!(at % WORD == 0, "word {at} is misaligned");
        &self.words[(at / WORD) as usize]
    }

    fn lie(&self, input: &mut Input<'_>) {
        let at = usize::from(input.u8()) % self.words.len();
        self.words[at].set(input.u64());
    }
}

impl Near for Memory {
    fn load(&self, at: u64) -> u64 {
        self.loads.set(self.loads.get() + 1);
        self.word(at).get()
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        for (chunk, n) in to.chunks_mut(8).zip(0..) {
            chunk.copy_from_slice(&self.load(at + WORD * n).to_le_bytes()[..chunk.len()]);
        }
    }
}

impl Far for Memory {
    fn store(&mut self, at: u64, word: u64) {
        self.word(at).set(word);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(at % WORD == 0, "bytes at {at}, which is misaligned");
        for (n, byte) in bytes.chunks(8).zip(0..).map(|(chunk, n)| (n, chunk[0])) {
            self.word(at + WORD * n).set(byte.into());
        }
    }

    fn fence(&mut self) {}
}
