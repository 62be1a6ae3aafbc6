// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every interleaving of threads that take the lock, of which one may end with it, by loom; and words that no thread
//! writes.

use super::*;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// The word, with sleepers that only a wake-up ends while the holder is alive: so a lost one is a deadlock.
struct Model {
    word: AtomicU64,
    /// Wake-ups so far.
    wakes: Mutex<u32>,
    woken: Condvar,
    /// Threads that have ended with the lock, by bit.
    ended: AtomicU32,
    inside: AtomicBool,
}

impl Word for Model {
    fn load(&self) -> u64 {
        self.word.load(Ordering::SeqCst)
    }

    fn replace(&self, from: u64, to: u64) -> bool {
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    fn sleep(&self, word: u64) -> Slept {
        let wakes = self.wakes.lock().unwrap();
        // As the kernel does: compared under its own lock.
        if self.load() != word {
            return Slept::Woken;
        }
        if !self.is_alive(Owner::of(word)) {
            return Slept::Out;
        }
        drop(self.woken.wait(wakes).unwrap());
        Slept::Woken
    }

    fn wake(&self, all: bool) {
        let mut wakes = self.wakes.lock().unwrap();
        *wakes += 1;
        drop(wakes);
        if all { self.woken.notify_all() } else { self.woken.notify_one() }
    }

    fn is_alive(&self, owner: Owner) -> bool {
        self.ended.load(Ordering::SeqCst) & 1 << owner.thread() == 0
    }
}

impl Model {
    /// The kernel ends a thread: in the model it also ends the sleep of the others, which ends by itself otherwise.
    fn end(&self, thread: u32) {
        self.ended.fetch_or(1 << thread, Ordering::SeqCst);
        self.wake(true);
    }
}

/// Takes the lock, and ends with it or not. Whether it had it.
fn enter(model: &Model, thread: u32, ends: bool) -> bool {
    let own = Owner::new(thread, 7);
    if lock(model, own).is_err() {
        return false;
    }
    assert!(!model.inside.swap(true, Ordering::SeqCst), "two threads have the lock");
    if ends {
        model.end(thread);
        return true;
    }
    model.inside.store(false, Ordering::SeqCst);
    unlock(model, own);
    true
}

fn explore(threads: u32, ends: Option<u32>) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let model: &'static Model = Box::leak(Box::new(Model {
            word: AtomicU64::new(FREE),
            wakes: Mutex::new(0),
            woken: Condvar::new(),
            ended: AtomicU32::new(0),
            inside: AtomicBool::new(false),
        }));
        let others: Vec<_> = (2..=threads).map(|n| thread::spawn(move || enter(model, n, ends == Some(n)))).collect();
        let mut had = vec![enter(model, 1, false)];
        had.extend(others.into_iter().map(|thread| thread.join().unwrap()));
        let word = model.load();
        match ends {
            None => assert!(had.iter().all(|had| *had) && word == FREE, "{had:?} {word:#x}"),
            // The one that ended had it; afterwards no thread has it, and it is known to be broken once one has looked.
            Some(n) => {
                assert!(had[n as usize - 1]);
                assert_eq!(lock(model, Owner::new(9, 7)), Err(Broken::Ended));
            }
        }
    });
}

#[test]
fn one_thread_has_the_lock_and_no_wake_up_is_lost() {
    explore(3, None);
}

#[test]
fn a_lock_whose_holder_has_ended_is_broken_for_all() {
    explore(2, Some(2));
    explore(3, Some(2));
}

/// A word that a hostile process writes between any two looks at it.
struct Hostile(std::cell::Cell<u64>, std::cell::RefCell<telegraphos_testkit::Rng>, std::cell::Cell<u64>);

impl Hostile {
    fn change(&self) {
        let mut random = self.1.borrow_mut();
        let own = Owner::new(5, 7).0;
        self.0.set(match random.below(8_u32) {
            0 => FREE,
            1 => BROKEN,
            2 => own,
            3 => own | WAITERS,
            4 => u64::from(random.below(1000_u32)),
            5 => random.below(u64::MAX),
            _ => return,
        });
    }
}

impl Word for Hostile {
    fn load(&self) -> u64 {
        self.change();
        self.2.set(self.2.get() + 1);
        self.0.get()
    }

    fn replace(&self, from: u64, to: u64) -> bool {
        self.change();
        let is = self.0.get() == from;
        if is {
            self.0.set(to);
        }
        is
    }

    fn sleep(&self, _: u64) -> Slept {
        if self.1.borrow_mut().percent(50) { Slept::Out } else { Slept::Woken }
    }

    fn wake(&self, _: bool) {}

    fn is_alive(&self, _: Owner) -> bool {
        self.1.borrow_mut().percent(90)
    }
}

#[test]
fn whatever_is_written_to_the_word_a_wait_ends() {
    telegraphos_testkit::over_seeds(3000, 300_000, |seed| {
        let random = telegraphos_testkit::Rng::new(seed);
        let word = Hostile(std::cell::Cell::new(0), std::cell::RefCell::new(random), std::cell::Cell::new(0));
        let own = Owner::new(5, 7);
        let taken = lock(&word, own).is_ok();
        if taken {
            unlock(&word, own);
        }
        let looks = word.2.get();
        if looks > u64::from(BUDGET) { Err(format!("{looks} looks")) } else { Ok(()) }
    });
}

#[test]
fn a_holder_that_lives_is_waited_for_so_often_and_no_longer() {
    struct Held(std::cell::Cell<u32>);
    impl Word for Held {
        fn load(&self) -> u64 {
            Owner::new(3, 1).0 | WAITERS
        }
        fn replace(&self, _: u64, _: u64) -> bool {
            false
        }
        fn sleep(&self, _: u64) -> Slept {
            self.0.set(self.0.get() + 1);
            Slept::Out
        }
        fn wake(&self, _: bool) {}
        fn is_alive(&self, _: Owner) -> bool {
            true
        }
    }
    let held = Held(std::cell::Cell::new(0));
    assert_eq!(lock(&held, Owner::new(5, 7)), Err(Broken::Stuck));
    assert_eq!(held.0.get(), BUDGET.div_ceil(STEP + 1));
}
