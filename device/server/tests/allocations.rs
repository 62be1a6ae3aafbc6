// SPDX-License-Identifier: MIT OR Apache-2.0
//! The trapped path allocates no memory: a board's thread serves posted stores and loads, its own and another node's,
//! through its real loop and real sockets, and the allocator counts what it is asked for. Only a burst of stores is
//! memory of its own, at the board that sends it and at the one that receives it.

// A test fails by panicking, its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use support::linked::{Node, Switch};
use support::{Guest, MEMORY, RW, window};
use telegraphos_device::Settings;

thread_local! {
    /// This thread is a board's.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Calls that allocate, of the boards' threads.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Counting {
    fn count() {
        // Neither the cell nor the counter allocates, or has a destructor.
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: each call is passed on unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(ptr, layout, size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Buffers that more stores at once than ever before may double: of frames and bytes on their way, at both boards.
const GROWTH: u64 = 4;
/// Messages of each kind.
const MESSAGES: u64 = 1000;

/// A board whose thread is counted.
fn counted(dir: &Path, node: u16) -> (Node, Guest) {
    let board = Node::with(Node::config(dir, node, Settings::default()), || COUNTED.set(true));
    let guest = board.guest();
    (board, guest)
}

/// Stores that are each served before the next one.
fn alone(guest: &mut Guest, node: u16) {
    for n in 0..MESSAGES {
        guest.client.store(4, window(node, node, 8 * n), &n.to_le_bytes());
        assert_eq!(guest.client.read(4, window(node, node, 8 * n), 8), n);
    }
}

/// Stores one after the other, all served when this returns: a load passes no store.
fn stores(guest: &mut Guest, node: u16) {
    for n in 0..MESSAGES {
        guest.client.store(4, window(node, node, 8 * n), &n.to_le_bytes());
    }
    assert_eq!(guest.client.read(4, window(node, node, 8 * (MESSAGES - 1)), 8), MESSAGES - 1);
}

fn loads(guest: &mut Guest, node: u16) {
    for n in 0..MESSAGES {
        assert_eq!(guest.client.read(4, window(node, node, 8 * n), 8), n);
    }
}

/// Allocations of all boards for stores alone, stores in a stream, and loads, to this node.
fn counts(guest: &mut Guest, node: u16) -> [u64; 3] {
    let kinds: [fn(&mut Guest, u16); 3] = [alone, stores, loads];
    kinds.map(|kind| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        kind(guest, node);
        ALLOCATIONS.load(Ordering::Relaxed) - before
    })
}

#[test]
fn stores_and_loads_allocate_nothing() {
    for rings in [0, 8] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = telegraphos_fabric::Config::new(dir.path().join("fabric.sock"));
        config.rings = rings;
        let _switch = Switch::with(config);
        let (_a, mut a) = counted(dir.path(), 0);
        let (_b, mut b) = counted(dir.path(), 1);
        // With a third board there are several rings.
        let (_c, mut c) = counted(dir.path(), 2);
        a.export("a", 0, 1, MEMORY, RW);
        b.export("b", 0, 1, MEMORY, RW);
        for (node, name) in [(0, "a"), (1, "b")] {
            a.reach(node, node, name, RW);
            c.reach(node, node, name, RW);
        }
        // The first ones: buffers grow to the size that they need.
        for _ in 0..3 {
            for node in [0, 1] {
                counts(&mut a, node);
                counts(&mut c, node);
            }
        }
        assert!(ALLOCATIONS.load(Ordering::Relaxed) > 0, "boards are counted");
        assert_eq!(counts(&mut a, 0), [0; 3], "{rings} rings: of {MESSAGES} messages each to the own node");
        let [alone, stream, loads] = counts(&mut a, 1);
        assert_eq!((alone, loads), (0, 0), "{rings} rings: of {MESSAGES} messages each");
        // Two for a burst, which has two stores at least.
        let most = MESSAGES + GROWTH;
        assert!(stream <= most, "{rings} rings: {stream} allocations of {MESSAGES} stores");
        println!("{rings} rings: {stream} allocations of {MESSAGES} stores in a stream");
    }
}
