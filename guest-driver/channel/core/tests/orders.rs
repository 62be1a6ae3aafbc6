// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each release, acquire and fence is for, under all orders in which weakly ordered processors may show the
//! accesses (loom). The ends are the real ones; their memory has the orders of the real one, or one of them less.

use crate::memory::{read_words, words};
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;
use telegraphos_channel_core::{
    ASLEEP, Announce, Bug, CONSUMED, END, End, Far, Layout, Look, Near, Progress, RECORDS, RING, ROOM, WORD,
};

/// Orders of the accesses of memory.
#[derive(Clone, Copy)]
struct Orders {
    load: Ordering,
    store: Ordering,
}

const SOUND: Orders = Orders { load: Ordering::Acquire, store: Ordering::Release };
const CAPACITY: u64 = 64;

/// The words of one end that there are, and its wake-ups.
struct Words {
    words: [AtomicU64; 3 + (CAPACITY / WORD) as usize],
    orders: Orders,
    wakes: Mutex<u32>,
    rung: Condvar,
}

impl Words {
    fn new(orders: Orders) -> Words {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Words { words, orders, wakes: Mutex::new(0), rung: Condvar::new() }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[match at {
            CONSUMED => 0,
            ASLEEP => 1,
            END => 2,
            at => 3 + ((at - RING) / WORD) as usize,
        }]
    }

    fn wake(&self) {
        *self.wakes.lock().unwrap() += 1;
        self.rung.notify_all();
    }

    /// Loom reports a thread that waits for ever.
    fn sleep(&self) {
        let mut wakes = self.wakes.lock().unwrap();
        while *wakes == 0 {
            wakes = self.rung.wait(wakes).unwrap();
        }
        *wakes = 0;
    }
}

impl Near for &Words {
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(self.orders.load)
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        read_words(at, to, |at| self.word(at).load(Ordering::Relaxed));
    }
}

impl Far for &Words {
    fn store(&mut self, at: u64, word: u64) {
        self.word(at).store(word, self.orders.store);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (word, n) in words(bytes).zip(0..) {
            self.word(at + WORD * n).store(word, Ordering::Relaxed);
        }
    }

    fn fence(&mut self) {
        fence(Ordering::SeqCst);
    }
}

struct Side {
    end: End,
    near: &'static Words,
    far: &'static Words,
}

impl Side {
    fn after(&self, progress: Progress) {
        if progress == Progress::Wake {
            self.far.wake();
        }
    }

    /// Sleeps unless `done` after it has said so: what `done` is then.
    fn sleep<T>(&mut self, what: u64, mut done: impl FnMut(&mut Side) -> Option<T>) -> Option<T> {
        self.end.begin_sleep(&mut self.far, what);
        let found = done(self);
        if found.is_none() {
            self.near.sleep();
        }
        self.end.end_sleep(&mut self.far);
        found
    }

    fn try_put(&mut self, bytes: &[u8]) -> Option<()> {
        let progress = self.end.put(&self.near, &mut self.far, 1, &[bytes]).unwrap()?;
        self.after(progress);
        Some(())
    }

    fn send(&mut self, records: u64) {
        for n in 1..=records {
            let bytes = n.to_le_bytes();
            while self.try_put(&bytes).or_else(|| self.sleep(ROOM, |side| side.try_put(&bytes))).is_none() {}
        }
        let progress = self.end.end(&self.near, &mut self.far);
        self.after(progress);
    }

    fn look(&mut self) -> Option<Look> {
        let look = self.end.look(&self.near);
        Some(look.unwrap_or_else(|e| panic!("not all of what was sent was there: {e}")))
            .filter(|look| *look != Look::Empty)
    }

    fn receive(&mut self, records: u64) {
        let mut taken = 0;
        loop {
            match self.look().or_else(|| self.sleep(RECORDS, Side::look)) {
                None | Some(Look::Empty) => {}
                Some(Look::Ended) => break,
                Some(Look::Record(record)) => {
                    let mut bytes = [0; 8];
                    assert_eq!(record.length, bytes.len());
                    let progress = self.end.take(&self.near, &mut self.far, &mut bytes);
                    self.after(progress);
                    taken += 1;
                    assert_eq!(u64::from_le_bytes(bytes), taken, "not all of what was sent was there");
                }
            }
        }
        assert_eq!(taken, records);
    }
}

fn explore(orders: Orders, bug: Option<Bug>, records: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        // Leaked: where loom finds a deadlock it unwinds, and what threads share cannot be dropped then.
        let memory: [&'static Words; 2] = std::array::from_fn(|_| &*Box::leak(Box::new(Words::new(orders))));
        let layout = Layout::new(CAPACITY).unwrap();
        let side = |who: usize| Side {
            end: End::new(layout, layout, Announce::Look, true).with_bug(bug),
            near: memory[who],
            far: memory[1 - who],
        };
        let (mut sender, mut receiver) = (side(0), side(1));
        let thread = thread::spawn(move || sender.send(records));
        receiver.receive(records);
        thread.join().unwrap();
    });
}

telegraphos_testkit::models! {
    fn records_are_whole_and_no_wake_up_is_lost() => explore(SOUND, None, 2);
    fn a_sender_that_waits_for_room_is_woken() => explore(SOUND, None, 4);
    fn a_head_that_is_not_released_shows_half_a_record() ["not all of what was sent was there"] =>
        explore(Orders { store: Ordering::Relaxed, ..SOUND }, None, 2);
    fn a_head_that_is_not_acquired_shows_half_a_record() ["not all of what was sent was there"] =>
        explore(Orders { load: Ordering::Relaxed, ..SOUND }, None, 2);
    fn a_waker_without_a_fence_is_found() ["deadlock"] => explore(SOUND, Some(Bug::WakerWithoutFence), 2);
    fn a_sleeper_without_a_fence_is_found() ["deadlock"] => explore(SOUND, Some(Bug::SleeperWithoutFence), 2);
}
