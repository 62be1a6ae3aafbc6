// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two boards and a switch in one thread, without sockets, which perform one operation again and again.
//!
//! Between the boards packets pass the switch as bytes, which is what separate processes do, or a ring within the
//! process ([`Way`]), as in the host process of `telegraphos up`, `run`, `demo` and `bench`.
//!
//! The test beside this crate counts the instructions of each operation (`src/main.rs`), and `telegraphos bench`
//! measures how long they take on its machine. The same arguments execute the same instructions: time is a number that
//! each turn increases, and nothing is random.
// As in an example, what fails panics.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![forbid(unsafe_code)]

mod board;
mod cluster;
mod ring;

pub use cluster::{Cluster, Sizes, Way};

use cluster::{QUEUE, REPLICATED, SEGMENT};
use telegraphos_device_core::{Bar, Event};
use telegraphos_testkit::world::{Driver, Memory, key_of};
use telegraphos_wire::context::{self, Argument, Launch, NumberedArgument, Operation, WordArm};
use telegraphos_wire::{Aperture, AtomicOp, UNIT};

/// Words of the segment and the replicated page that operations go to, one after the other.
const WORDS: u64 = 1024;
/// The slot of the context that atomics use.
const SLOT: u8 = 1;
/// Stores that are posted together.
const STREAM: u64 = 32;

/// What can be performed. The names with [`BY_RING`] are the same operations by the other way.
pub const OPERATIONS: [&str; 21] = [
    "store-own",
    "store",
    "stores",
    "load-own",
    "load",
    "fetch-add",
    "enqueue",
    "reflected",
    "copy-4k",
    "copy-1m",
    "frame",
    "message",
    "store-ring",
    "stores-ring",
    "load-ring",
    "fetch-add-ring",
    "enqueue-ring",
    "copy-4k-ring",
    "copy-1m-ring",
    "frame-ring",
    "message-ring",
];

/// The end of the name of an operation that passes a ring.
const BY_RING: &str = "-ring";

/// An operation's name without its way, and that.
fn apart(operation: &str) -> (&str, Way) {
    operation.strip_suffix(BY_RING).map_or((operation, Way::Switch), |name| (name, Way::Ring))
}

/// What is between the boards of the cluster that is to perform an operation.
pub fn way(operation: &str) -> Way {
    apart(operation).1
}

/// How often [`perform`] performs an operation if it is to do so `count` times: copies of 1 MiB, which take long under
/// callgrind, 64 times less often.
pub fn rounds(operation: &str, count: u64) -> u64 {
    if apart(operation).0 == "copy-1m" { count.div_ceil(64) } else { count }
}

/// The instructions that an operation may take, by `budgets.toml`; `None` if it has no budget.
pub fn budget(operation: &str) -> Option<f64> {
    let table: toml::Table = include_str!("../budgets.toml").parse().expect("the table of this crate");
    table.get("instructions")?.get(operation)?.as_integer().map(|budget| budget as f64)
}

/// An address of the window at the first board.
fn window(cluster: &Cluster, aperture: Aperture, node: u16, slot: u32, word: u64) -> u64 {
    cluster.window(aperture, node, u64::from(slot) * UNIT + 8 * (word % WORDS))
}

fn store(cluster: &mut Cluster, offset: u64, data: u64) {
    cluster.guest(0, [Event::Write { bar: Bar::Window, offset, size: 8, data }]);
}

fn load(cluster: &mut Cluster, bar: Bar, offset: u64, before: impl IntoIterator<Item = Event>) -> u64 {
    let read = Event::Read { token: 1, bar, offset, size: 8 };
    cluster.guest(0, before.into_iter().chain([read]));
    cluster.boards[0].loaded.take().expect("the load is complete")
}

/// An atomic by a load of FETCH, as the library launches it.
fn fetch_add(cluster: &mut Cluster, context: u16, operand: u64) -> u64 {
    let remote = cluster.boards[1].node;
    let argument = Argument { context: context as u8, slot: SLOT, which: 0, key: key_of(context) };
    let page = u64::from(context) * UNIT;
    let registers = page + context::REGISTERS + u64::from(SLOT) * context::STRIDE;
    let before = [
        (Bar::Window, window(cluster, Aperture::Argument, remote, SEGMENT, 0), argument.encode()),
        (Bar::Contexts, registers + context::OPERAND, operand),
        (Bar::Contexts, registers + context::LENGTH, (AtomicOp::Add as u64) << 56),
    ];
    let before = before.map(|(bar, offset, data)| Event::Write { bar, offset, size: 8, data });
    load(cluster, Bar::Contexts, page + context::FETCH + 8 * u64::from(SLOT), before)
}

/// Launches a put of the first bytes of the first board's memory to the last one, as the library does with the numbers
/// of imports, and awaits its end.
fn put(cluster: &mut Cluster, context: u16, length: u64, cookie: u64) {
    let page = u64::from(context) * UNIT;
    let registers = page + context::REGISTERS + u64::from(SLOT) * context::STRIDE;
    let argument = |(which, import): (u8, u16)| {
        (page + context::ARGUMENT, NumberedArgument { slot: SLOT, which, import, offset: 0 }.encode())
    };
    let [from, to] = cluster::BLOCKS;
    let launch = Launch { operation: Operation::Copy, notify: false, cookie };
    let stores = [
        argument((0, to)),
        argument((1, from)),
        (registers + context::LENGTH, length),
        (registers + context::LAUNCH, launch.encode()),
    ];
    let write = |(offset, data)| Event::Write { bar: Bar::Contexts, offset, size: 8, data };
    cluster.guest(0, stores.map(write));
    let done = cluster.status_page(context) + 8 * u64::from(SLOT);
    assert_eq!(cluster.boards[0].memory.word(done, 8), Some(cookie), "the copy is done, and right");
}

/// Stores of words to adjacent places of the other board's segment, from this word on.
fn words(cluster: &Cluster, node: u16, first: u64, count: u64, data: u64) -> impl Iterator<Item = Event> + use<> {
    let start = window(cluster, Aperture::Plain, node, SEGMENT, first);
    (0..count).map(move |n| Event::Write { bar: Bar::Window, offset: start + 8 * n, size: 8, data })
}

/// Words of a frame of the network device that it sends by stores, its record included: 128 bytes.
const FRAME: u64 = 16;
/// Words of a message in a slot: 8 with a header of 2.
const MESSAGE: u64 = 10;

/// A frame of the network device, as the module exchanges it: the receiver, which sleeps, watches the tail; the sender
/// stores the frame and then the tail; the receiver is woken, and stores to the sender how far it has read.
fn frame(cluster: &mut Cluster, number: u64) {
    let [own, remote] = [0, 1].map(|board| cluster.boards[board].node);
    // Both are in one page here, so that the tail is a word behind all frames.
    let seen = cluster.boards[1].memory.word(cluster::SEGMENT_AT + 8 * WORDS, 8).expect("the tail");
    let (offset, data) = WordArm { page: 0, word: WORDS as u16, seen: WordArm::fold(seen) }.encode();
    cluster.guest(1, [Event::Write { bar: Bar::Contexts, offset, size: 8, data }]);
    let at = number * FRAME % WORDS;
    let frame = words(cluster, remote, at, FRAME, number);
    let tail = cluster.window(Aperture::Plain, remote, u64::from(SEGMENT) * UNIT + 8 * WORDS);
    let tail = Event::Write { bar: Bar::Window, offset: tail, size: 8, data: seen + FRAME };
    cluster.guest(0, frame.chain([tail]));
    assert_eq!(cluster.take_events(remote).len(), 1, "the receiver is woken");
    let head = words(cluster, own, at, 1, seen + FRAME);
    cluster.guest(1, head);
}

/// Performs one of [`OPERATIONS`] `count` times, at least once, and checks that the last one had its effect. Atomics
/// use the `context`. The test names this function to callgrind, which counts each call apart.
///
/// # Panics
/// The operation is unknown, has another [`way`] than the cluster, or has not had its effect.
#[inline(never)]
pub fn perform(cluster: &mut Cluster, operation: &str, count: u64, context: u16) {
    let [own, remote] = [0, 1].map(|board| cluster.boards[board].node);
    let (operation, way) = apart(operation);
    assert_eq!(way, cluster.way, "{operation}: the cluster has another way");
    let last = count - 1;
    let at = |word: u64| cluster::SEGMENT_AT + 8 * (word % WORDS);
    match operation {
        "store-own" | "store" => {
            let (board, node) = if operation == "store" { (1, remote) } else { (0, own) };
            for n in 0..count {
                let offset = window(cluster, Aperture::Plain, node, SEGMENT, n);
                store(cluster, offset, n);
            }
            assert_eq!(cluster.boards[board].memory.word(at(last), 8), Some(last));
        }
        "stores" => {
            for first in (0..count).step_by(STREAM as usize) {
                let stores: Vec<Event> = (first..count.min(first + STREAM))
                    .map(|n| {
                        let offset = window(cluster, Aperture::Plain, remote, SEGMENT, n);
                        Event::Write { bar: Bar::Window, offset, size: 8, data: n }
                    })
                    .collect();
                cluster.guest(0, stores);
            }
            assert_eq!(cluster.boards[1].memory.word(at(last), 8), Some(last));
        }
        "load-own" | "load" => {
            let (board, node) = if operation == "load" { (1, remote) } else { (0, own) };
            for word in 0..WORDS {
                cluster.boards[board].memory.set_word(at(word), 8, word);
            }
            for n in 0..count {
                let offset = window(cluster, Aperture::Plain, node, SEGMENT, n);
                assert_eq!(load(cluster, Bar::Window, offset, []), n % WORDS);
            }
        }
        "fetch-add" => {
            cluster.boards[1].memory.set_word(at(0), 8, 0);
            for n in 0..count {
                assert_eq!(fetch_add(cluster, context, 1), n);
            }
        }
        "enqueue" => {
            for n in 0..count {
                let offset = cluster.window(Aperture::Enqueue, remote, u64::from(QUEUE) * UNIT);
                store(cluster, offset, n);
                assert_eq!(cluster.take_element(), Some(n));
            }
        }
        "reflected" => {
            for n in 0..count {
                let offset = window(cluster, Aperture::Plain, own, REPLICATED, n);
                store(cluster, offset, n);
            }
            let at = cluster::REPLICATED_AT + 8 * (last % WORDS);
            for board in &cluster.boards {
                assert_eq!(board.memory.word(at, 8), Some(last));
            }
        }
        "copy-4k" | "copy-1m" => {
            let length = if operation == "copy-4k" { 4096 } else { 1 << 20 };
            let at = cluster.blocks_at + length - 8;
            cluster.boards[0].memory.set_word(at, 8, count);
            let rounds = rounds(operation, count);
            (0..rounds).for_each(|n| put(cluster, context, length, n + 1));
            assert_eq!(cluster.boards[1].memory.word(at, 8), Some(count));
        }
        "frame" => {
            (0..count).for_each(|n| frame(cluster, n));
            let at = at(last * FRAME + FRAME - 1);
            assert_eq!(cluster.boards[1].memory.word(at, 8), Some(last));
        }
        "message" => {
            for n in 0..count {
                let element = cluster.window(Aperture::Enqueue, remote, u64::from(QUEUE) * UNIT);
                let element = Event::Write { bar: Bar::Window, offset: element, size: 8, data: n };
                let message = words(cluster, remote, 16 * n % WORDS, MESSAGE, n);
                cluster.guest(0, message.chain([element]));
                assert_eq!(cluster.take_element(), Some(n));
            }
            assert_eq!(cluster.boards[1].memory.word(at(16 * last), 8), Some(last));
        }
        other => panic!("there is no operation {other:?}: expected one of {OPERATIONS:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_a_budget_and_its_effect() {
        let mut clusters = [Way::Switch, Way::Ring].map(|way| Cluster::with(Sizes::default(), way));
        for operation in OPERATIONS {
            assert!(budget(operation).is_some_and(|budget| budget > 0.0), "{operation}");
            perform(&mut clusters[way(operation) as usize], operation, 3, 0);
        }
        assert_eq!(budget("none"), None);
    }
}
