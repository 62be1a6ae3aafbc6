// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every interleaving and every weak-memory outcome of one producer and one consumer, by loom.

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

impl Word for loom::sync::atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }

    fn swap(&self, value: u32, order: Ordering) -> u32 {
        Self::swap(self, value, order)
    }

    fn fence(order: Ordering) {
        loom::sync::atomic::fence(order);
    }
}

#[derive(Debug)]
struct Shared {
    words: [loom::sync::atomic::AtomicU32; 4],
    /// Wake-ups not yet seen: of the consumer, of the producer. Loom reports a thread that waits for ever.
    wakes: Mutex<[u32; 2]>,
    rung: Condvar,
}

impl Shared {
    fn words(&self) -> Words<'_, loom::sync::atomic::AtomicU32> {
        let [tail, head, asleep, wanting] = &self.words;
        Words { tail, head, asleep, wanting }
    }

    fn ring(&self, side: usize) {
        self.wakes.lock().unwrap()[side] += 1;
        self.rung.notify_all();
    }

    fn wait(&self, side: usize) {
        let mut wakes = self.wakes.lock().unwrap();
        while wakes[side] == 0 {
            wakes = self.rung.wait(wakes).unwrap();
        }
        wakes[side] = 0;
    }
}

const CAPACITY: u32 = 2;

fn produce(shared: &Shared, mut side: Side, bytes: u32) {
    let words = shared.words();
    for _ in 0..bytes {
        while side.room(&words).unwrap() == 0 {
            side.want(&words);
            if side.room(&words).unwrap() == 0 {
                shared.wait(1);
                side.woken(words.wanting);
            }
        }
        side.put(&words, 1);
        if side.wake_consumer(&words) {
            shared.ring(0);
        }
    }
}

fn consume(shared: &Shared, mut side: Side, bytes: u32) {
    let words = shared.words();
    let mut got = 0;
    while got < bytes {
        let mut there = side.available(&words).unwrap();
        if there == 0 {
            side.woken(words.asleep);
            there = side.sleep(&words).unwrap();
        }
        if there == 0 {
            shared.wait(0);
            side.woken(words.asleep);
            continue;
        }
        got += 1;
        if side.take(&words, 1, there - 1) {
            shared.ring(1);
        }
    }
}

fn explore(bug: Option<Bug>, bytes: u32) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let word = |value| loom::sync::atomic::AtomicU32::new(value);
        // The consumer is born asleep.
        let words = [word(0), word(0), word(1), word(0)];
        // Leaked: where loom finds a deadlock it unwinds, and its `Arc` cannot be dropped then.
        let shared: &'static Shared =
            Box::leak(Box::new(Shared { words, wakes: Mutex::new([0; 2]), rung: Condvar::new() }));
        let side = |armed| Side { bug, ..Side::new(CAPACITY, armed) };
        let (producer, consumer) = (side(false), side(true));
        let thread = thread::spawn(move || produce(shared, producer, bytes));
        consume(shared, consumer, bytes);
        thread.join().unwrap();
    });
}

#[test]
fn no_wake_up_is_lost() {
    explore(None, 4);
}

fn deadlocks(bug: Bug) {
    let result = std::panic::catch_unwind(|| explore(Some(bug), 4));
    assert!(result.is_err(), "{bug:?} was not found");
}

#[test]
fn a_consumer_that_sleeps_without_a_second_look_is_found() {
    deadlocks(Bug::SleepsAtOnce);
}

#[test]
fn missing_fences_are_found() {
    deadlocks(Bug::NoFence);
}

#[test]
fn impossible_indices_are_refused() {
    let ring = |index: u32, bug| {
        let words = [index, index, 0, 0].map(AtomicU32::new);
        let [tail, head, asleep, wanting] = &words;
        let words = Words { tail, head, asleep, wanting };
        let side = Side { bug, ..Side::new(16, false) };
        (side.available(&words), side.room(&words))
    };
    for index in [17, 18, 1 << 16, 1 << 31, u32::MAX - 16] {
        assert_eq!(ring(index, None).0, Err(Violation));
        assert!(ring(index, Some(Bug::AcceptAnyIndex)).0.unwrap() > 16, "accepting it would read beyond the ring");
    }
    assert_eq!(ring(16, None).0, Ok(16));
    // The peer took out more than was put in.
    assert_eq!(ring(1, None).1, Err(Violation));
    assert_eq!(ring(0u32.wrapping_sub(16), None).1, Ok(0));
}

#[test]
fn indices_wrap() {
    let words = [0, 0, 0, 0].map(AtomicU32::new);
    let [tail, head, asleep, wanting] = &words;
    let words = Words { tail, head, asleep, wanting };
    let start = u32::MAX - 2;
    tail.store(start, Ordering::Relaxed);
    head.store(start, Ordering::Relaxed);
    let mut producer = Side { own: start, ..Side::new(8, false) };
    let mut consumer = Side { own: start, ..Side::new(8, false) };
    producer.put(&words, 8);
    assert_eq!((producer.room(&words), consumer.available(&words)), (Ok(0), Ok(8)));
    producer.want(&words);
    assert!(!consumer.take(&words, 3, 5) && consumer.take(&words, 1, 4), "woken at half");
    assert_eq!((producer.room(&words), consumer.available(&words)), (Ok(4), Ok(4)));
    assert_eq!(consumer.position(), ((start.wrapping_add(4)) & 7) as usize);
}
