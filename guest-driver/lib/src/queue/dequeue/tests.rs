// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the dequeue on a model of the queue.

use super::*;
use proptest::prelude::*;
use std::convert::Infallible;

const OWNER: u32 = 7;

/// A queue with small models of its board and driver, which run only when called.
#[derive(Clone)]
struct Bench {
    shape: Shape,
    quota: u32,
    arena: Vec<u64>,
    state: u64,
    /// The element that has stopped the board.
    pending: Option<u64>,
    /// The driver's list: linked buffers, the newest first.
    linked: Vec<u32>,
    /// Accesses a consumer may still make.
    budget: u32,
}

impl Bench {
    fn new(words: u32, width: u32, quota: u32) -> Bench {
        let shape = Shape::new(words, width).unwrap();
        let mut arena = vec![0; (words * (1 + quota)) as usize];
        arena[..2].fill(shape.empty().encode().into());
        Bench { shape, quota, arena, state: 0, pending: None, linked: vec![], budget: u32::MAX }
    }

    fn dequeue(&self) -> Dequeue {
        Dequeue::new(self.shape, self.quota, OWNER)
    }

    fn header(&self, word: u32) -> HeaderWord {
        self.shape.header(self.arena[word as usize]).unwrap()
    }

    /// The board performs an element (SPEC item 8, E1).
    fn commit(&mut self, value: u64) {
        assert_eq!(self.pending, None, "the board is stopped");
        let (tail, head) = (self.header(0), self.header(1));
        if tail.advanced() == head {
            self.pending = Some(value);
            return;
        }
        self.arena[usize::from(tail.index)] = value;
        self.arena[0] = tail.advanced().encode().into();
    }

    /// The driver's handler, for an interrupt of the stopped board or a call (E2, E3, E11).
    fn handle(&mut self) {
        let Some(pending) = self.pending else { return };
        self.state = self.state & !HELD | FULL;
        if self.state & BUSY != 0 {
            return;
        }
        let words = u32::from(self.shape.words());
        while let Some(oldest) = self.linked.last() {
            let at = oldest * words;
            if self.header(at) != self.header(at + 1) {
                break;
            }
            self.linked.pop();
        }
        let free = (1..=self.quota).find(|buffer| !self.linked.contains(buffer));
        let Some(free) = free else {
            self.state = self.state & !FULL | HELD;
            return;
        };
        self.linked.insert(0, free);
        self.arena.copy_within(..words as usize, (free * words) as usize);
        let mut at = 0;
        for next in &self.linked {
            self.arena[(at + 2) as usize] = u64::from(next * words);
            at = next * words;
        }
        self.arena[(at + 2) as usize] = 0;
        let start = self.shape.empty();
        self.arena[3] = pending;
        self.arena[1] = start.encode().into();
        self.arena[0] = start.advanced().encode().into();
        self.pending = None;
        self.state &= !(FULL | HELD);
    }

    /// A pass that takes at most `most` elements, with the driver call that it requires.
    fn pop(&mut self, most: usize) -> (Result<Found, Broken>, Vec<u64>) {
        let mut values = vec![];
        let pass = self.dequeue().pass(self, |value| {
            values.push(value);
            if values.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        match pass {
            Ok(Pass::Left { found, call }) => {
                assert_eq!(self.state & BUSY, 0);
                assert_eq!(self.state >> OWNER_SHIFT, u64::from(OWNER));
                if call {
                    self.handle();
                }
                (found, values)
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Bench {
    fn step(&mut self) -> Result<(), ()> {
        self.budget = self.budget.checked_sub(1).ok_or(())?;
        Ok(())
    }
}

impl Memory for Bench {
    /// The budget is used up.
    type Stop = ();

    fn load(&mut self, word: u32) -> Result<u64, ()> {
        self.step()?;
        Ok(self.arena[word as usize])
    }

    fn store(&mut self, word: u32, value: u64) -> Result<(), ()> {
        self.step()?;
        self.arena[word as usize] = value;
        Ok(())
    }

    fn state(&mut self) -> Result<u64, ()> {
        self.step()?;
        Ok(self.state)
    }

    fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, ()> {
        self.step()?;
        let before = self.state;
        if before != expected {
            return Ok(Err(before));
        }
        self.state = new;
        Ok(Ok(before))
    }

    fn leave(&mut self, mask: u64) -> Result<u64, ()> {
        self.step()?;
        let before = self.state;
        self.state &= mask;
        Ok(before)
    }
}

#[derive(Clone, Debug)]
enum Act {
    Enqueue(u8),
    Pop(usize),
    /// The consumer is killed after so many accesses, and the kernel clears its BUSY.
    Kill(usize, u32),
    Handle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..12u8).prop_map(Act::Enqueue),
        3 => (1..12usize).prop_map(Act::Pop),
        1 => (1..6usize, 0..40u32).prop_map(|(most, steps)| Act::Kill(most, steps)),
        2 => Just(Act::Handle),
    ];
    prop::collection::vec(act, 1..200)
}

proptest! {
    /// In any order of elements, overflows, pops and deaths: nothing is lost or reordered; only a consumer
    /// killed between seeing an element and taking it leaves it to be seen again.
    #[test]
    fn i9_i10_fifo_without_loss(words in 3..6u32, wide: bool, quota in 1..4u32, acts in acts()) {
        let mut bench = Bench::new(1 << words, if wide { 8 } else { 4 }, quota);
        let (mut sent, mut waiting, mut got) = (0u64, std::collections::VecDeque::new(), vec![]);
        for act in acts.into_iter().chain([Act::Handle, Act::Pop(usize::MAX)]) {
            match act {
                Act::Enqueue(count) => {
                    for _ in 0..count {
                        sent += 1;
                        waiting.push_back(sent);
                    }
                }
                Act::Handle => bench.handle(),
                Act::Pop(most) if bench.state & FULL == 0 => {
                    let looked = bench.clone().dequeue().look(&mut bench).unwrap();
                    let (found, values) = bench.pop(most);
                    match found.unwrap() {
                        Found::Took { count } => {
                            prop_assert_eq!((count, looked), (values.len(), None));
                        }
                        Found::Empty { seen } => {
                            prop_assert_eq!(u64::from(seen), bench.arena[0]);
                            prop_assert!(looked.is_none_or(|looked| looked == seen), "{:?}", looked);
                            // It is the one that was inside last.
                            let again = bench.clone().dequeue().look(&mut bench).unwrap();
                            prop_assert_eq!(again, Some(seen).filter(|_| bench.state & FLAGS == 0));
                        }
                    }
                    got.extend(values);
                }
                Act::Pop(_) => prop_assert_eq!(bench.clone().dequeue().enter(&mut bench), Ok(Some(Pass::Full))),
                Act::Kill(most, steps) => {
                    bench.budget = steps;
                    let mut values = vec![];
                    let dequeue = bench.dequeue();
                    let pass = dequeue.pass(&mut bench, |value| {
                        values.push(value);
                        if values.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                    });
                    bench.budget = u32::MAX;
                    if pass.is_err() {
                        // Passed on and not taken: at most the last, which comes again.
                        if let Some(last) = values.last() {
                            let mut after = bench.clone();
                            after.state &= !BUSY;
                            let (_, next) = after.pop(1);
                            if next.first() == Some(last) {
                                values.pop();
                            }
                        }
                    }
                    got.extend(values);
                    // The kernel clears a BUSY that was left, and the driver handles a waiting overflow.
                    bench.state &= FLAGS & !BUSY;
                    bench.handle();
                }
            }
            while bench.pending.is_none() && !waiting.is_empty() {
                bench.commit(waiting.pop_front().unwrap());
            }
            prop_assert!(got.iter().copied().eq(1..=got.len() as u64), "{:?}", got);
        }
        // To the end.
        while got.len() < sent as usize {
            bench.handle();
            let (found, values) = bench.pop(usize::MAX);
            prop_assert!(matches!(found, Ok(Found::Took { .. })), "{:?}, {} of {}", found, got.len(), sent);
            got.extend(values);
            while bench.pending.is_none() && !waiting.is_empty() {
                bench.commit(waiting.pop_front().unwrap());
            }
        }
        prop_assert!(got.into_iter().eq(1..=sent));
        prop_assert!(bench.pop(1).1.is_empty());
    }

    /// An arena full of anything gives errors or values, never a panic or an endless loop, and BUSY is left.
    #[test]
    fn anything_in_the_arena_is_survived(
        quota in 1..5u32, seed in prop::collection::vec((any::<u64>(), 0..8u8), 40), state in 0..16u64
    ) {
        let mut bench = Bench::new(8, 8, quota);
        for (word, (value, kind)) in bench.arena.iter_mut().zip(seed) {
            *word = match kind {
                0 => value,
                1 => value & 0xff,
                2 | 3 => value % 6 * 8,
                _ => 8 << 16 | (3 + value % 5),
            };
        }
        bench.state = state;
        bench.budget = 10_000;
        let dequeue = bench.dequeue();
        let mut values = 0;
        let pass = dequeue.pass(&mut bench, |_| { values += 1; ControlFlow::Continue(()) });
        match pass.unwrap() {
            Pass::Dead => prop_assert!(state & DEAD != 0),
            Pass::Busy => prop_assert!(state & BUSY != 0),
            Pass::Full => prop_assert!(state & FULL != 0),
            Pass::Left { found, .. } => {
                prop_assert_eq!(bench.state, state | u64::from(OWNER) << OWNER_SHIFT);
                match found {
                    Ok(Found::Took { count }) => prop_assert_eq!(count, values),
                    Ok(Found::Empty { .. }) => prop_assert_eq!(values, 0),
                    Err(broken) => {
                        let text = broken.to_string();
                        prop_assert!(text.contains("expected"), "{}", text);
                    }
                }
            }
        }
    }
}

#[test]
fn i10_quota_used_up_holds_senders_and_the_freed_buffer_calls() {
    let mut bench = Bench::new(8, 4, 1);
    let capacity = u64::from(bench.shape.capacity());
    for value in 0..2 * capacity {
        bench.commit(value);
        bench.handle();
    }
    bench.commit(2 * capacity);
    bench.handle();
    assert_eq!(bench.state, HELD);
    for value in 0..capacity {
        assert_eq!(bench.pop(1).1, [value]);
        // The last of them has emptied the linked buffer.
        assert_eq!(bench.pending.is_some(), value < capacity - 1);
    }
    assert_eq!(bench.pop(usize::MAX).1, (capacity..=2 * capacity).collect::<Vec<_>>());
    assert_eq!(bench.pop(1).0, Ok(Found::Empty { seen: bench.arena[0] as u32 }));
}

#[test]
fn wrong_words_are_named() {
    let broken = |word: u32, value: u64| {
        let mut bench = Bench::new(8, 4, 3);
        // Three linked buffers, the oldest empty.
        for buffer in 1..=3u32 {
            let at = (8 * buffer) as usize;
            bench.arena[at] = (8 << 16) | 4;
            bench.arena[at + 1] = (8 << 16) | 3;
            bench.arena[at - 6] = at as u64;
        }
        bench.arena[25] = (8 << 16) | 4;
        bench.arena[word as usize] = value;
        bench.pop(1).0.map_err(|broken| broken.to_string())
    };
    let error = |text: &str| Err(text.to_owned());
    // `next` to itself, to nowhere, and in a ring.
    assert_eq!(
        broken(26, 24),
        error("word 26 (next of buffer 3) is 0x18: expected 0, since 4 buffers have come before")
    );
    assert_eq!(broken(10, 8), error("word 10 (next of buffer 1) is 0x8: expected 0, since 4 buffers have come before"));
    assert_eq!(broken(10, 17), error("word 10 (next of buffer 1) is 0x11: expected 0 or a multiple of 8 up to 24"));
    assert_eq!(broken(2, 32), error("word 2 (next of buffer 0) is 0x20: expected 0 or a multiple of 8 up to 24"));
    assert_eq!(
        broken(2, 1 << 32 | 8),
        error("word 2 (next of buffer 0) is 0x100000008: expected 0 or a multiple of 8 up to 24")
    );
    let header = "expected 0x8 << 16 | an index from 3 to 7";
    assert_eq!(broken(24, 8 << 16 | 8), error(&format!("word 24 (size and tail of buffer 3) is 0x80008: {header}")));
    assert_eq!(broken(25, 8 << 16 | 2), error(&format!("word 25 (size and head of buffer 3) is 0x80002: {header}")));
    assert_eq!(broken(24, 16 << 16 | 3), error(&format!("word 24 (size and tail of buffer 3) is 0x100003: {header}")));
    assert_eq!(broken(26, 0), Ok(Found::Took { count: 1 }));
}

#[test]
fn e11_others_inside_and_overflows_are_distinguished() {
    let mut bench = Bench::new(8, 4, 1);
    for (state, entry) in [
        (0, None),
        (HELD, None),
        (BUSY | 9 << OWNER_SHIFT, Some(Pass::Busy)),
        (BUSY | FULL, Some(Pass::Busy)),
        (FULL, Some(Pass::Full)),
        (DEAD | BUSY | FULL, Some(Pass::Dead)),
    ] {
        bench.state = state;
        assert_eq!(bench.dequeue().enter(&mut bench), Ok(entry), "{state:#x}");
        if entry.is_none() {
            assert_eq!(bench.state, state | BUSY | u64::from(OWNER) << OWNER_SHIFT);
            bench.state |= FULL;
            assert_eq!(bench.dequeue().leave(&mut bench, false), Ok(true));
            assert_eq!(bench.state, state | FULL | u64::from(OWNER) << OWNER_SHIFT);
        } else {
            assert_eq!(bench.state, state);
        }
    }
}

/// An overflow that comes at any point of a pass waits for its end, is reported to it, and loses nothing.
#[test]
fn i12_overflow_amid_a_pass_waits_for_its_end() {
    /// The driver's interrupt comes before access number `at`.
    struct Interrupted {
        bench: Bench,
        at: u32,
    }
    macro_rules! forward {
        ($( $name:ident($($argument:ident: $type:ty),*) -> $result:ty; )*) => {
            impl Memory for Interrupted {
                type Stop = Infallible;
                $( fn $name(&mut self, $($argument: $type),*) -> Result<$result, Infallible> {
                    if self.at == 0 {
                        self.bench.handle();
                    }
                    self.at = self.at.wrapping_sub(1);
                    Ok(self.bench.$name($($argument),*).unwrap())
                } )*
            }
        };
    }
    forward! {
        load(word: u32) -> u64;
        store(word: u32, value: u64) -> ();
        state() -> u64;
        enter(expected: u64, new: u64) -> Result<u64, u64>;
        leave(mask: u64) -> u64;
    }
    let run = |dequeue: Dequeue, at: u32| {
        let mut bench = Bench::new(8, 4, 2);
        (0..5).for_each(|value| bench.commit(value));
        assert!(bench.pending.is_some());
        let mut memory = Interrupted { bench, at };
        let mut got = vec![];
        let mut passes = 0;
        while got.len() < 5 && passes < 20 {
            passes += 1;
            match dequeue.pass(&mut memory, |value| {
                got.push(value);
                ControlFlow::Break(())
            }) {
                Ok(Pass::Left { found: Ok(_), call }) if !call => {}
                Ok(Pass::Left { found: Ok(_), .. } | Pass::Full) => memory.bench.handle(),
                _ => return None,
            }
        }
        Some((got, memory.bench.state & FLAGS))
    };
    let dequeue = Bench::new(8, 4, 2).dequeue();
    for at in 0..60 {
        assert_eq!(run(dequeue, at), Some(((0..5).collect(), 0)), "interrupt at access {at}");
    }
    #[cfg(feature = "literal")]
    {
        let all = |literal| (0..8).map(|at| run(dequeue.literally(literal), at)).collect::<Vec<_>>();
        let right = Some(((0..5).collect::<Vec<u64>>(), 0));
        assert!(all(Literal::Sound).iter().all(|found| *found == right));
        assert!(all(Literal::Unprotected).iter().any(|found| *found != right), "SPEC item 11");
    }
}
