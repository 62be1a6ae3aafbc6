// SPDX-License-Identifier: MIT OR Apache-2.0
//! The operations, the same whatever is between the boards.

use crate::cluster::{BLOCKS, Nodes, QUEUE, REPLICATED, REPLICATED_AT, SEGMENT, SEGMENT_AT};
use crate::memory::GuestMemory;
use crate::{OPERATIONS, rounds};
use telegraphos_device_core::{Bar, Event};
use telegraphos_testkit::world::{Driver, key_of};
use telegraphos_wire::context::{self, Argument, Launch, NumberedArgument, Operation, WordArm};
use telegraphos_wire::{Aperture, AtomicOp, UNIT};

/// Words of the segment and the replicated page that operations go to, one after the other.
const WORDS: u64 = 1024;
/// The slot of the context that atomics use.
const SLOT: u8 = 1;
/// Stores that are posted together.
const STREAM: u64 = 32;

/// Words of a frame of the network device that it sends by stores, its record included: 128 bytes.
const FRAME: u64 = 16;
/// Words of a message in a slot: 8 with a header of 2.
const MESSAGE: u64 = 10;

impl<M: GuestMemory> Nodes<M> {
    /// An address of the window at the first board.
    fn address(&self, aperture: Aperture, node: u16, slot: u32, word: u64) -> u64 {
        self.window(aperture, node, u64::from(slot) * UNIT + 8 * (word % WORDS))
    }

    fn store(&mut self, offset: u64, data: u64) {
        self.guest(0, [Event::Write { bar: Bar::Window, offset, size: 8, data }]);
    }

    fn load(&mut self, bar: Bar, offset: u64, before: impl IntoIterator<Item = Event>) -> u64 {
        let read = Event::Read { token: 1, bar, offset, size: 8 };
        self.guest(0, before.into_iter().chain([read]));
        self.boards[0].loaded.take().expect("the load is complete")
    }

    /// An atomic by a load of FETCH, as the library launches it.
    fn fetch_add(&mut self, context: u16, operand: u64) -> u64 {
        let remote = self.boards[1].node;
        let argument = Argument { context: context as u8, slot: SLOT, which: 0, key: key_of(context) };
        let page = u64::from(context) * UNIT;
        let registers = page + context::REGISTERS + u64::from(SLOT) * context::STRIDE;
        let before = [
            (Bar::Window, self.address(Aperture::Argument, remote, SEGMENT, 0), argument.encode()),
            (Bar::Contexts, registers + context::OPERAND, operand),
            (Bar::Contexts, registers + context::LENGTH, (AtomicOp::Add as u64) << 56),
        ];
        let before = before.map(|(bar, offset, data)| Event::Write { bar, offset, size: 8, data });
        self.load(Bar::Contexts, page + context::FETCH + 8 * u64::from(SLOT), before)
    }

    /// Launches a put of the first bytes of the first board's memory to the last one, as the library does with the
    /// numbers of imports, and awaits its end.
    fn put(&mut self, context: u16, length: u64, cookie: u64) {
        let page = u64::from(context) * UNIT;
        let registers = page + context::REGISTERS + u64::from(SLOT) * context::STRIDE;
        let argument = |(which, import): (u8, u16)| {
            (page + context::ARGUMENT, NumberedArgument { slot: SLOT, which, import, offset: 0 }.encode())
        };
        let [from, to] = BLOCKS;
        let launch = Launch { operation: Operation::Copy, notify: false, cookie };
        let stores = [
            argument((0, to)),
            argument((1, from)),
            (registers + context::LENGTH, length),
            (registers + context::LAUNCH, launch.encode()),
        ];
        let write = |(offset, data)| Event::Write { bar: Bar::Contexts, offset, size: 8, data };
        self.guest(0, stores.map(write));
        let done = self.status_page(context) + 8 * u64::from(SLOT);
        assert_eq!(self.boards[0].memory.word(done, 8), Some(cookie), "the copy is done, and right");
    }

    /// Stores of words to adjacent places of the other board's segment, from this word on.
    fn words(&self, node: u16, first: u64, count: u64, data: u64) -> impl Iterator<Item = Event> + use<M> {
        let start = self.address(Aperture::Plain, node, SEGMENT, first);
        (0..count).map(move |n| Event::Write { bar: Bar::Window, offset: start + 8 * n, size: 8, data })
    }

    /// A frame of the network device, as the module exchanges it: the receiver, which sleeps, watches the tail; the
    /// sender stores the frame and then the tail; the receiver is woken, and stores to the sender how far it has read.
    fn frame(&mut self, number: u64) {
        let [own, remote] = [0, 1].map(|board| self.boards[board].node);
        // Both are in one page here, so that the tail is a word behind all frames.
        let seen = self.boards[1].memory.word(SEGMENT_AT + 8 * WORDS, 8).expect("the tail");
        let (offset, data) = WordArm { page: 0, word: WORDS as u16, seen: WordArm::fold(seen) }.encode();
        self.guest(1, [Event::Write { bar: Bar::Contexts, offset, size: 8, data }]);
        let at = number * FRAME % WORDS;
        let frame = self.words(remote, at, FRAME, number);
        let tail = self.window(Aperture::Plain, remote, u64::from(SEGMENT) * UNIT + 8 * WORDS);
        let tail = Event::Write { bar: Bar::Window, offset: tail, size: 8, data: seen + FRAME };
        self.guest(0, frame.chain([tail]));
        assert_eq!(self.take_events(remote).len(), 1, "the receiver is woken");
        let head = self.words(own, at, 1, seen + FRAME);
        self.guest(1, head);
    }

    /// See [`perform`](crate::perform).
    pub(crate) fn perform(&mut self, operation: &str, count: u64, context: u16) {
        let [own, remote] = [0, 1].map(|board| self.boards[board].node);
        let last = count - 1;
        let at = |word: u64| SEGMENT_AT + 8 * (word % WORDS);
        match operation {
            "store-own" | "store" => {
                let (board, node) = if operation == "store" { (1, remote) } else { (0, own) };
                for n in 0..count {
                    let offset = self.address(Aperture::Plain, node, SEGMENT, n);
                    self.store(offset, n);
                }
                assert_eq!(self.boards[board].memory.word(at(last), 8), Some(last));
            }
            "stores" => {
                for first in (0..count).step_by(STREAM as usize) {
                    let stores: Vec<Event> = (first..count.min(first + STREAM))
                        .map(|n| {
                            let offset = self.address(Aperture::Plain, remote, SEGMENT, n);
                            Event::Write { bar: Bar::Window, offset, size: 8, data: n }
                        })
                        .collect();
                    self.guest(0, stores);
                }
                assert_eq!(self.boards[1].memory.word(at(last), 8), Some(last));
            }
            "load-own" | "load" => {
                let (board, node) = if operation == "load" { (1, remote) } else { (0, own) };
                for word in 0..WORDS {
                    self.boards[board].memory.set_word(at(word), 8, word);
                }
                for n in 0..count {
                    let offset = self.address(Aperture::Plain, node, SEGMENT, n);
                    assert_eq!(self.load(Bar::Window, offset, []), n % WORDS);
                }
            }
            "fetch-add" => {
                self.boards[1].memory.set_word(at(0), 8, 0);
                for n in 0..count {
                    assert_eq!(self.fetch_add(context, 1), n);
                }
            }
            "enqueue" => {
                for n in 0..count {
                    let offset = self.window(Aperture::Enqueue, remote, u64::from(QUEUE) * UNIT);
                    self.store(offset, n);
                    assert_eq!(self.take_element(), Some(n));
                }
            }
            "reflected" => {
                for n in 0..count {
                    let offset = self.address(Aperture::Plain, own, REPLICATED, n);
                    self.store(offset, n);
                }
                let at = REPLICATED_AT + 8 * (last % WORDS);
                for board in &self.boards {
                    assert_eq!(board.memory.word(at, 8), Some(last));
                }
            }
            "copy-4k" | "copy-1m" => {
                let length = if operation == "copy-4k" { 4096 } else { 1 << 20 };
                let at = self.blocks_at + length - 8;
                self.boards[0].memory.set_word(at, 8, count);
                let rounds = rounds(operation, count);
                (0..rounds).for_each(|n| self.put(context, length, n + 1));
                assert_eq!(self.boards[1].memory.word(at, 8), Some(count));
            }
            "frame" => {
                (0..count).for_each(|n| self.frame(n));
                let at = at(last * FRAME + FRAME - 1);
                assert_eq!(self.boards[1].memory.word(at, 8), Some(last));
            }
            "message" => {
                for n in 0..count {
                    let element = self.window(Aperture::Enqueue, remote, u64::from(QUEUE) * UNIT);
                    let element = Event::Write { bar: Bar::Window, offset: element, size: 8, data: n };
                    let message = self.words(remote, 16 * n % WORDS, MESSAGE, n);
                    self.guest(0, message.chain([element]));
                    assert_eq!(self.take_element(), Some(n));
                }
                assert_eq!(self.boards[1].memory.word(at(16 * last), 8), Some(last));
            }
            other => panic!("there is no operation {other:?}: expected one of {OPERATIONS:?}"),
        }
    }
}
