// SPDX-License-Identifier: MIT OR Apache-2.0
//! I11: what each release and acquire of a dequeue is for, under all orders in which weakly ordered processors may show
//! the accesses (loom).
//!
//! The dequeue is the real one, with the orders that real memory has ([`Orders::SOUND`]). The board is a few lines: it
//! alone stores word 0 and data. Header words are atomics; data words are plain cells, of which loom reports an access
//! that no release and acquire orders with another's. Each order that is dropped in turn is found.

use super::dequeue::{Dequeue, Found, Memory, Orders, Pass};
use super::passes::{Counter, Passes};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use std::convert::Infallible;
use std::ops::ControlFlow;
use telegraphos_wire::queue::{HeaderWord, OWNER_SHIFT, Shape};

const WORDS: u32 = 8;
const FIRST: usize = 3;

/// Orders of the board's accesses: it commits a tail after its element, and looks at the head before it reuses a place.
#[derive(Clone, Copy)]
struct BoardOrders {
    commit: Ordering,
    look: Ordering,
}

const BOARD: BoardOrders = BoardOrders { commit: Ordering::Release, look: Ordering::Acquire };

/// The control word and one buffer.
struct Queue {
    state: AtomicU64,
    header: [AtomicU32; FIRST],
    data: [UnsafeCell<u32>; WORDS as usize - FIRST],
}

// SAFETY: that accesses to `data` exclude each other is what loom checks here.
unsafe impl Sync for Queue {}
// SAFETY: as above.
unsafe impl Send for Queue {}

fn shape() -> Shape {
    Shape::new(WORDS, 4).unwrap()
}

fn header(index: u16) -> HeaderWord {
    let mut header = shape().empty();
    while header.index != index {
        header = header.advanced();
    }
    header
}

impl Queue {
    /// With the elements from `head` to `tail`, each of its place's number.
    fn new(head: u16, tail: u16) -> Arc<Queue> {
        Arc::new(Queue {
            state: AtomicU64::new(0),
            header: [header(tail).encode(), header(head).encode(), 0].map(AtomicU32::new),
            data: std::array::from_fn(|place| UnsafeCell::new((place + FIRST) as u32)),
        })
    }

    /// The board performs an element (SPEC item 8): the element, then the head, then the tail.
    fn append(&self, orders: BoardOrders, value: u32) {
        let tail = shape().header(self.header[0].load(Ordering::Relaxed).into()).unwrap();
        self.data[usize::from(tail.index) - FIRST].with_mut(|place| {
            // SAFETY: see `Sync`.
            unsafe { *place = value }
        });
        let next = tail.advanced();
        while self.header[1].load(orders.look) == next.encode() {
            thread::yield_now();
        }
        self.header[0].store(next.encode(), orders.commit);
    }
}

/// A consumer's view, with its orders.
struct View<'a> {
    queue: &'a Queue,
    orders: Orders,
}

impl Memory for View<'_> {
    type Stop = Infallible;

    fn load(&mut self, word: u32) -> Result<u64, Infallible> {
        Ok(match (word as usize).checked_sub(FIRST) {
            // SAFETY: see `Sync`.
            Some(place) => self.queue.data[place].with(|place| unsafe { *place }),
            None => self.queue.header[word as usize].load(self.orders.load),
        }
        .into())
    }

    fn store(&mut self, word: u32, value: u64) -> Result<(), Infallible> {
        self.queue.header[word as usize].store(value as u32, self.orders.store);
        Ok(())
    }

    fn state(&mut self) -> Result<u64, Infallible> {
        Ok(self.queue.state.load(self.orders.state))
    }

    fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, Infallible> {
        Ok(self.queue.state.compare_exchange(expected, new, self.orders.enter, Ordering::Relaxed))
    }

    fn leave(&mut self, mask: u64) -> Result<u64, Infallible> {
        Ok(self.queue.state.fetch_and(mask, self.orders.leave))
    }
}

impl Counter for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// Takes one element if there is one and no other consumer is inside.
fn take(queue: &Queue, owner: u32, orders: Orders) -> Option<u32> {
    let mut taken = None;
    let pass = Dequeue::new(shape(), 1, owner).pass(&mut View { queue, orders }, |value| {
        taken = Some(value as u32);
        ControlFlow::Break(())
    });
    match pass {
        Ok(Pass::Left { found: Ok(Found::Took { .. }), .. }) => {}
        Ok(Pass::Left { found: Ok(Found::Empty { .. }), .. } | Pass::Busy) => assert_eq!(taken, None),
        other => panic!("{other:?}"),
    }
    taken
}

fn check(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// An element that is seen is whole.
fn publication(orders: Orders, board: BoardOrders) {
    check(move || {
        let queue = Queue::new(5, 5);
        let consumer = thread::spawn({
            let queue = queue.clone();
            move || [take(&queue, 1, orders), take(&queue, 1, orders)]
        });
        queue.append(board, 77);
        let taken = consumer.join().unwrap();
        assert!(taken.iter().flatten().all(|value| *value == 77), "{taken:?} was taken");
    });
}

/// A place is not used again before its element has been read.
fn reuse(orders: Orders, board: BoardOrders) {
    check(move || {
        let queue = Queue::new(3, 7);
        let consumer = thread::spawn({
            let queue = queue.clone();
            move || [take(&queue, 1, orders), take(&queue, 1, orders)]
        });
        queue.append(board, 77);
        // Where the consumer has read the first.
        queue.append(board, 78);
        assert_eq!(consumer.join().unwrap(), [Some(3), Some(4)]);
    });
}

/// Two consumers never take the same element.
fn exclusion(orders: Orders) {
    check(move || {
        let queue = Queue::new(3, 5);
        let other = thread::spawn({
            let queue = queue.clone();
            move || take(&queue, 1, orders)
        });
        let mine = take(&queue, 2, orders);
        let other = other.join().unwrap();
        assert!(mine.is_none() || mine != other, "{mine:?} was taken twice");
        assert!(mine.or(other) == Some(3) || other == Some(3), "{mine:?} and {other:?} were taken");
    });
}

/// A queue that is never empty, since an element comes before each one that is taken, is not taken for empty by a look
/// of owner 1, which was inside last. The taker is `owner`; with `counted`, it counts its passes.
fn looking(orders: Orders, owner: u32, counted: bool) {
    check(move || {
        let queue = Queue::new(3, 4);
        queue.state.store(1 << OWNER_SHIFT, Ordering::Relaxed);
        let passes = Arc::new(Passes(AtomicU64::new(0)));
        let look = move |queue: &Queue, passes: &Passes<AtomicU64>| {
            let Ok(seen) = passes.between(|| Dequeue::new(shape(), 1, 1).look(&mut View { queue, orders }));
            seen
        };
        let looker = thread::spawn({
            let (queue, passes) = (queue.clone(), passes.clone());
            move || look(&queue, &passes)
        });
        queue.append(BOARD, 77);
        let passing = counted.then(|| passes.begin());
        assert_eq!(take(&queue, owner, orders), Some(3));
        drop(passing);
        assert_eq!(looker.join().unwrap(), None, "it was never empty");
        assert_eq!(take(&queue, 1, orders), Some(77));
        assert_eq!(look(&queue, &passes), Some(header(5).encode()), "it is empty");
    });
}

telegraphos_testkit::models! {
    fn i10_a_look_from_outside_never_misses_an_element() => {
        looking(Orders::SOUND, 2, false);
        looking(Orders::SOUND, 1, true);
    };
    fn i10_a_look_that_does_not_acquire_misses_what_another_process_does() ["it was never empty"] =>
        looking(Orders { load: Ordering::Relaxed, ..Orders::SOUND }, 2, false);
    fn i10_a_look_amid_an_uncounted_pass_of_its_process_misses_an_element() ["it was never empty"] =>
        looking(Orders::SOUND, 1, false);
    fn i11_an_element_that_is_seen_is_whole() => publication(Orders::SOUND, BOARD);
    fn i11_a_consumer_that_does_not_acquire_the_tail_reads_half_an_element() ["Causality violation"] =>
        publication(Orders { load: Ordering::Relaxed, ..Orders::SOUND }, BOARD);
    fn i11_a_board_that_does_not_release_the_tail_shows_half_an_element() ["Causality violation"] =>
        publication(Orders::SOUND, BoardOrders { commit: Ordering::Relaxed, ..BOARD });
    fn i11_a_place_is_used_again_after_its_element_was_read() => reuse(Orders::SOUND, BOARD);
    fn i11_a_consumer_that_does_not_release_the_head_reads_what_came_later() ["Causality violation"] =>
        reuse(Orders { store: Ordering::Relaxed, ..Orders::SOUND }, BOARD);
    fn i11_a_board_that_does_not_acquire_the_head_overwrites_what_is_read() ["Causality violation"] =>
        reuse(Orders::SOUND, BoardOrders { look: Ordering::Relaxed, ..BOARD });
    fn i11_consumers_exclude_each_other() => exclusion(Orders::SOUND);
    // A load of the head that acquires does not make up for it: what it reads may be old.
    fn i11_a_consumer_that_does_not_acquire_on_entering_takes_an_element_twice() ["taken"] =>
        exclusion(Orders { enter: Ordering::Relaxed, state: Ordering::Relaxed, ..Orders::SOUND });
    fn i11_a_consumer_that_does_not_release_on_leaving_lets_another_take_its_element() ["taken"] =>
        exclusion(Orders { leave: Ordering::Relaxed, ..Orders::SOUND });
}
