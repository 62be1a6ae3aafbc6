// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dequeue algorithm (s0, SPEC items 10 to 12), over a [`Memory`] whose every call is one access.
//!
//! ```text
//!   state:   neither BUSY nor FULL -> BUSY | owner              enter (E11)
//!   arena:   next of A, next of B, ... the oldest buffer        follow
//!            its word 0 and word 1: empty?                      unlink it, look again (E4); or nothing there
//!            buffer[head]                                       hand the value over
//!            word 1 = next head                                 taken
//!   state:   clear BUSY and owner, look at what it was          leave: clear, then check (E10)
//! ```
//!
//! Nothing here is unsafe, waits, or remembers anything between two calls, and equal answers of the memory lead to
//! equal accesses. So a model checker runs this very code access by access: it replays the answers recorded so far,
//! performs the next access, and ends the pass with [`Memory::Stop`].
//!
//! Nothing read from the arena is believed: other processes may write there too. A header must be sound
//! ([`Shape::header`]), a link must lead to one of the queue's buffers, and a chain has at most `1 + quota` of them.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use telegraphos_wire::queue::{
    BUSY, DEAD, FULL, HEAD_WORD, HELD, HeaderWord, NEXT_WORD, OWNER_SHIFT, Shape, TAIL_WORD,
};

/// Memory that consumers, board and driver share. Each call is one access, and one step of a model.
///
/// ```
/// use std::convert::Infallible;
/// use std::ops::ControlFlow;
/// use telegraphos::queue::dequeue::{Dequeue, Found, Memory, Pass};
/// use telegraphos_wire::queue::Shape;
///
/// /// A queue's memory as a model has it.
/// struct Model { arena: [u64; 8], state: u64 }
///
/// impl Memory for Model {
///     type Stop = Infallible;
///     fn load(&mut self, word: u32) -> Result<u64, Infallible> {
///         Ok(self.arena[word as usize])
///     }
///     fn store(&mut self, word: u32, value: u64) -> Result<(), Infallible> {
///         self.arena[word as usize] = value;
///         Ok(())
///     }
///     fn state(&mut self) -> Result<u64, Infallible> {
///         Ok(self.state)
///     }
///     fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, Infallible> {
///         let before = self.state;
///         if before != expected {
///             return Ok(Err(before));
///         }
///         self.state = new;
///         Ok(Ok(before))
///     }
///     fn leave(&mut self, mask: u64) -> Result<u64, Infallible> {
///         let before = self.state;
///         self.state &= mask;
///         Ok(before)
///     }
/// }
///
/// // One element: the tail is behind it, the head at it.
/// let mut model = Model { arena: [8 << 16 | 4, 8 << 16 | 3, 0, 42, 0, 0, 0, 0], state: 0 };
/// let dequeue = Dequeue::new(Shape::new(8, 4).unwrap(), 0, 1);
/// let mut taken = Vec::new();
/// let Ok(pass) = dequeue.pass(&mut model, |element| {
///     taken.push(element);
///     ControlFlow::Continue(())
/// });
/// assert_eq!(pass, Pass::Left { found: Ok(Found::Took { count: 1 }), call: false });
/// assert_eq!((taken, model.arena[1]), (vec![42], 8 << 16 | 4));
/// ```
pub trait Memory {
    /// Ends a pass in its middle, for a model's scheduler; [`Infallible`](std::convert::Infallible) for real memory.
    type Stop;

    /// Loads a word of the arena (acquire). Words count from the first buffer's word 0, in the queue's word width.
    fn load(&mut self, word: u32) -> Result<u64, Self::Stop>;

    /// Stores a word of the arena (release).
    fn store(&mut self, word: u32, value: u64) -> Result<(), Self::Stop>;

    /// Loads the control page's `state` (acquire).
    fn state(&mut self) -> Result<u64, Self::Stop>;

    /// Compare-and-swap of `state` (acquire), which fails only if it is not `expected`: `Ok` and `Err` hold the word
    /// before.
    fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, Self::Stop>;

    /// Atomic *and* of `state` (acquire and release): the word before.
    fn leave(&mut self, mask: u64) -> Result<u64, Self::Stop>;
}

/// In which order the processor shows each access to others (SPEC I11). Real memory has [`Orders::SOUND`]; that each is
/// needed, tests show.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use telegraphos::queue::dequeue::Orders;
///
/// // A wrong variant, for a test that shows what it loses.
/// let wrong = Orders { store: Ordering::Relaxed, ..Orders::SOUND };
/// assert_ne!(wrong, Orders::SOUND);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orders {
    /// Of [`Memory::load`]: what the board stored before a tail is seen behind it.
    pub load: Ordering,
    /// Of [`Memory::store`]: an element is read before the head that gives its place back is seen.
    pub store: Ordering,
    /// Of [`Memory::state`].
    pub state: Ordering,
    /// Of [`Memory::enter`], when it succeeds: what the last one inside did is seen.
    pub enter: Ordering,
    /// Of [`Memory::leave`].
    pub leave: Ordering,
}

impl Orders {
    /// Acquire for loads, release for stores.
    pub const SOUND: Orders = Orders {
        load: Ordering::Acquire,
        store: Ordering::Release,
        state: Ordering::Acquire,
        enter: Ordering::Acquire,
        leave: Ordering::AcqRel,
    };
}

/// How entering the dequeue section ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// Inside: nobody else takes elements, and the driver leaves the buffers alone, until [`Dequeue::leave`].
    Entered,
    /// Somebody else is inside: wait a little, and try again.
    Busy,
    /// An overflow is not handled yet: call the driver (TG_IOCTL_QUEUE_SERVICE), and try again.
    Full,
    /// The queue is broken or gone.
    Dead,
}

/// What a look into the queue found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Elements, which have been handed over and taken.
    Took {
        /// How many, at least 1.
        count: usize,
    },
    /// No element.
    Empty {
        /// Word 0 of the first buffer as it was then, for the arm.
        seen: u32,
    },
}

/// How a pass through the dequeue section ended. [`Memory`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Not inside, see [`Entry::Busy`].
    Busy,
    /// Not inside, see [`Entry::Full`].
    Full,
    /// Not inside, see [`Entry::Dead`].
    Dead,
    /// Inside, and out again.
    Left {
        /// What it found. When the arena is not sound, the elements handed over before have been taken.
        found: Result<Found, Broken>,
        /// Whether the driver must be called now (TG_IOCTL_QUEUE_SERVICE).
        call: bool,
    },
}

/// A word of the arena that cannot be right.
///
/// ```
/// use telegraphos::queue::dequeue::{Broken, Fault};
/// use telegraphos_wire::queue::Shape;
///
/// let broken = Broken { word: 2, value: 5, fault: Fault::Link, shape: Shape::new(8, 4).unwrap(), quota: 2 };
/// assert_eq!(broken.to_string(), "word 2 (next of buffer 0) is 0x5: expected 0 or a multiple of 8 up to 16");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Broken {
    /// Its index in the arena.
    pub word: u32,
    /// What it holds.
    pub value: u64,
    /// What is wrong with it.
    pub fault: Fault,
    /// Of the queue.
    pub shape: Shape,
    /// Of the queue.
    pub quota: u32,
}

/// What is wrong with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A header word: not this queue's size, or its index lies outside 3 to size - 1 (SPEC I11).
    Header,
    /// A link that leads to no linked buffer.
    Link,
    /// A link behind as many buffers as the queue has: they form a ring.
    Ring,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = u32::from(self.shape.words());
        let name = match u64::from(self.word % words) {
            TAIL_WORD => "size and tail",
            HEAD_WORD => "size and head",
            _ => "next",
        };
        write!(f, "word {} ({name} of buffer {}) is {:#x}: expected ", self.word, self.word / words, self.value)?;
        match self.fault {
            Fault::Header => write!(f, "{words:#x} << 16 | an index from 3 to {}", words - 1),
            Fault::Link => write!(f, "0 or a multiple of {words} up to {}", words * self.quota),
            Fault::Ring => write!(f, "0, since {} buffers have come before", 1 + self.quota),
        }
    }
}

impl std::error::Error for Broken {}

/// Why a look into the queue ends early.
enum Halt<S> {
    Stop(S),
    Broken(Broken),
}

/// How to take elements out of one queue. [`Memory`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dequeue {
    shape: Shape,
    quota: u32,
    owner: u32,
    #[cfg(feature = "literal")]
    literal: Literal,
}

/// What the papers say in so many words, and how it fails: for models that show it, never for use.
#[cfg(feature = "literal")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Literal {
    /// The readings of the specification: nothing fails.
    #[default]
    Sound,
    /// Without the word that keeps dequeue and overflow handling apart (SPEC item 11).
    Unprotected,
    /// On leaving, look for FULL first and clear BUSY then: the wrong order of E10.
    CheckThenClear,
}

impl Dequeue {
    /// For a queue of buffers of that shape, of which at most `quota` are linked, by the process of that owner number.
    pub fn new(shape: Shape, quota: u32, owner: u32) -> Dequeue {
        Dequeue {
            shape,
            quota,
            owner,
            #[cfg(feature = "literal")]
            literal: Literal::Sound,
        }
    }

    /// The same, done wrong.
    #[cfg(feature = "literal")]
    pub fn literally(self, literal: Literal) -> Dequeue {
        Dequeue { literal, ..self }
    }

    /// One pass through the dequeue section: enter, hand over what `with` wants, leave.
    ///
    /// `with` is given each element before word 1 says that it is taken: a consumer that is killed has either not taken
    /// its element, or has had it handed over. It breaks when it wants no more; the element it broke at is taken, too.
    pub fn pass<M: Memory>(
        &self,
        memory: &mut M,
        mut with: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Pass, M::Stop> {
        match self.enter(memory)? {
            Entry::Entered => {}
            Entry::Busy => return Ok(Pass::Busy),
            Entry::Full => return Ok(Pass::Full),
            Entry::Dead => return Ok(Pass::Dead),
        }
        let mut freed = false;
        let found = match self.take(memory, &mut freed, &mut with) {
            Ok(found) => Ok(found),
            Err(Halt::Broken(broken)) => Err(broken),
            Err(Halt::Stop(stop)) => return Err(stop),
        };
        let call = self.leave(memory, freed)?;
        Ok(Pass::Left { found, call })
    }

    /// From neither BUSY nor FULL to BUSY, with the owner number (E11). HELD stays: emptying buffers is what ends it.
    pub fn enter<M: Memory>(&self, memory: &mut M) -> Result<Entry, M::Stop> {
        #[cfg(feature = "literal")]
        if self.literal == Literal::Unprotected {
            return Ok(Entry::Entered);
        }
        let mut seen = memory.state()?;
        loop {
            // BUSY before FULL: who is inside calls the driver when it leaves.
            match seen {
                _ if seen & DEAD != 0 => return Ok(Entry::Dead),
                _ if seen & BUSY != 0 => return Ok(Entry::Busy),
                _ if seen & FULL != 0 => return Ok(Entry::Full),
                _ => {}
            }
            let new = seen & FLAGS | BUSY | u64::from(self.owner) << OWNER_SHIFT;
            match memory.enter(seen, new)? {
                Ok(_) => return Ok(Entry::Entered),
                // Somebody has changed it: each turn of this loop is somebody's success.
                Err(now) => seen = now,
            }
        }
    }

    /// Clears BUSY and the owner number, and looks at the word that this returned (clear, then check: E10): whether the
    /// driver must be called. It must if an overflow has come meanwhile, and, while senders are held back, if a buffer
    /// was freed.
    pub fn leave<M: Memory>(&self, memory: &mut M, freed: bool) -> Result<bool, M::Stop> {
        let must = |word: u64| word & FULL != 0 || (word & HELD != 0 && freed);
        #[cfg(feature = "literal")]
        match self.literal {
            Literal::Sound => {}
            Literal::Unprotected => return Ok(false),
            Literal::CheckThenClear => {
                let word = memory.state()?;
                memory.leave(FLAGS & !BUSY)?;
                return Ok(must(word));
            }
        }
        Ok(must(memory.leave(FLAGS & !BUSY)?))
    }

    fn broken<T, S>(&self, word: u32, value: u64, fault: Fault) -> Result<T, Halt<S>> {
        Err(Halt::Broken(Broken { word, value, fault, shape: self.shape, quota: self.quota }))
    }

    fn header<M: Memory>(&self, memory: &mut M, word: u32) -> Result<HeaderWord, Halt<M::Stop>> {
        let value = memory.load(word).map_err(Halt::Stop)?;
        self.shape.header(value).map_or_else(|| self.broken(word, value, Fault::Header), Ok)
    }

    /// The oldest buffer, and the one whose `next` leads to it; `None` for the first buffer.
    fn oldest<M: Memory>(&self, memory: &mut M) -> Result<(u32, Option<u32>), Halt<M::Stop>> {
        let words = u64::from(self.shape.words());
        let (mut at, mut before, mut linked) = (0, None, 0);
        loop {
            let word = at + NEXT_WORD as u32;
            let next = memory.load(word).map_err(Halt::Stop)?;
            if next == 0 {
                return Ok((at, before));
            }
            if next % words != 0 || next / words > u64::from(self.quota) {
                return self.broken(word, next, Fault::Link);
            }
            if linked == self.quota {
                return self.broken(word, next, Fault::Ring);
            }
            linked += 1;
            // Checked just now: an index of the arena, which has at most 1025 buffers of 2^14 words.
            (at, before) = (next as u32, Some(at));
        }
    }

    /// Hands elements over, oldest first, until `with` breaks or there is none.
    fn take<M: Memory>(
        &self,
        memory: &mut M,
        freed: &mut bool,
        with: &mut impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Found, Halt<M::Stop>> {
        let mut count = 0;
        let mut unlinked = 0;
        loop {
            let (at, before) = self.oldest(memory)?;
            let tail = self.header(memory, at + TAIL_WORD as u32)?;
            let mut head = self.header(memory, at + HEAD_WORD as u32)?;
            while head != tail {
                let value = memory.load(at + u32::from(head.index)).map_err(Halt::Stop)?;
                let more = with(value);
                head = head.advanced();
                memory.store(at + HEAD_WORD as u32, head.encode().into()).map_err(Halt::Stop)?;
                count += 1;
                if more.is_break() {
                    if let (Some(before), true) = (before, head == tail) {
                        self.unlink(memory, before, freed)?;
                    }
                    return Ok(Found::Took { count });
                }
            }
            match before {
                // Nobody fills a linked buffer any more, so an empty one stays empty.
                Some(before) => {
                    // More than there are: somebody links them anew behind our back.
                    if unlinked == self.quota {
                        return self.broken(before + NEXT_WORD as u32, at.into(), Fault::Ring);
                    }
                    unlinked += 1;
                    self.unlink(memory, before, freed)?;
                }
                None if count > 0 => return Ok(Found::Took { count }),
                None => return Ok(Found::Empty { seen: tail.encode() }),
            }
        }
    }

    /// Takes the buffer behind `before` out of the chain. The driver learns of it when it next handles an overflow.
    fn unlink<M: Memory>(&self, memory: &mut M, before: u32, freed: &mut bool) -> Result<(), Halt<M::Stop>> {
        memory.store(before + NEXT_WORD as u32, 0).map_err(Halt::Stop)?;
        *freed = true;
        Ok(())
    }
}

/// All of `state` but the owner number.
const FLAGS: u64 = (1 << OWNER_SHIFT) - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::convert::Infallible;

    const OWNER: u32 = 7;

    /// A queue with its board and driver, in a few lines each; nothing of it runs by itself.
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

        /// The driver is told that the board has stopped, or called (E2, E3, E11).
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

        /// A pass that wants `most` elements, with what it asks of the driver.
        fn pop(&mut self, most: usize) -> (Result<Found, Broken>, Vec<u64>) {
            let mut values = vec![];
            let pass = self.dequeue().pass(self, |value| {
                values.push(value);
                if values.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            match pass {
                Ok(Pass::Left { found, call }) => {
                    assert_eq!(self.state & BUSY, 0);
                    assert_eq!(self.state >> OWNER_SHIFT, 0);
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
        /// Whatever the order of elements, overflows, pops and deaths: nothing is lost or reordered; only a consumer
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
                        let (found, values) = bench.pop(most);
                        match found.unwrap() {
                            Found::Took { count } => prop_assert_eq!(count, values.len()),
                            Found::Empty { seen } => prop_assert_eq!(u64::from(seen), bench.arena[0]),
                        }
                        got.extend(values);
                    }
                    Act::Pop(_) => prop_assert_eq!(bench.clone().dequeue().enter(&mut bench), Ok(Entry::Full)),
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
                            // Handed over and not taken: at most the last. It comes again.
                            if let Some(last) = values.last() {
                                let mut after = bench.clone();
                                after.state &= FLAGS & !BUSY;
                                let (_, next) = after.pop(1);
                                if next.first() == Some(last) {
                                    values.pop();
                                }
                            }
                        }
                        got.extend(values);
                        // The kernel clears a BUSY that was left, and handles what waits.
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
                    prop_assert_eq!(bench.state, state);
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
        assert_eq!(
            broken(10, 8),
            error("word 10 (next of buffer 1) is 0x8: expected 0, since 4 buffers have come before")
        );
        assert_eq!(broken(10, 17), error("word 10 (next of buffer 1) is 0x11: expected 0 or a multiple of 8 up to 24"));
        assert_eq!(broken(2, 32), error("word 2 (next of buffer 0) is 0x20: expected 0 or a multiple of 8 up to 24"));
        assert_eq!(
            broken(2, 1 << 32 | 8),
            error("word 2 (next of buffer 0) is 0x100000008: expected 0 or a multiple of 8 up to 24")
        );
        let header = "expected 0x8 << 16 | an index from 3 to 7";
        assert_eq!(
            broken(24, 8 << 16 | 8),
            error(&format!("word 24 (size and tail of buffer 3) is 0x80008: {header}"))
        );
        assert_eq!(
            broken(25, 8 << 16 | 2),
            error(&format!("word 25 (size and head of buffer 3) is 0x80002: {header}"))
        );
        assert_eq!(
            broken(24, 16 << 16 | 3),
            error(&format!("word 24 (size and tail of buffer 3) is 0x100003: {header}"))
        );
        assert_eq!(broken(26, 0), Ok(Found::Took { count: 1 }));
    }

    #[test]
    fn e11_others_inside_and_overflows_are_told_apart() {
        let mut bench = Bench::new(8, 4, 1);
        for (state, entry) in [
            (0, Entry::Entered),
            (HELD, Entry::Entered),
            (BUSY | 9 << OWNER_SHIFT, Entry::Busy),
            (BUSY | FULL, Entry::Busy),
            (FULL, Entry::Full),
            (DEAD | BUSY | FULL, Entry::Dead),
        ] {
            bench.state = state;
            assert_eq!(bench.dequeue().enter(&mut bench), Ok(entry), "{state:#x}");
            if entry == Entry::Entered {
                assert_eq!(bench.state, state | BUSY | u64::from(OWNER) << OWNER_SHIFT);
                bench.state |= FULL;
                assert_eq!(bench.dequeue().leave(&mut bench, false), Ok(true));
                assert_eq!(bench.state, state | FULL);
            } else {
                assert_eq!(bench.state, state);
            }
        }
    }

    /// An overflow that comes at any point of a pass waits for its end, is told to it, and loses nothing.
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
            Some((got, memory.bench.state))
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
}
