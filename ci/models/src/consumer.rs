// SPDX-License-Identifier: MIT OR Apache-2.0
//! A consumer's look from outside, and, unless that shows an empty queue, its pass through the dequeue section: the
//! library's real [`Dequeue::look`] and [`Dequeue::pass`], one access at a time.
//!
//! Between two accesses the model keeps only the earlier results of memory accesses. Each step runs the pass from its
//! beginning, replays these results, performs the next access on the shared memory, and ends the pass with
//! [`Memory::Stop`].

use super::memory::{Arena, WORDS, Word};
use std::cell::Cell;
use std::fmt;
use std::ops::ControlFlow;
use telegraphos::queue::dequeue::{Dequeue, Found, Memory, Pass};
use telegraphos_wire::queue::{BUSY, FULL, HEAD_WORD, HELD, NEXT_WORD, OWNER_SHIFT};

/// How many elements a pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Most {
    /// One: `try_pop`.
    One,
    /// All: `pop_batch` with sufficient room.
    All,
}

/// Stands in the answers for those of a look that was not sufficient: the pass after it does not depend on them.
const LOOKED: u64 = u64::MAX;

/// Whether a consumer with these answers is in a pass, not only looking from outside.
pub(crate) fn is_in_pass(answers: &[u64]) -> bool {
    answers.len() > 1 && answers[0] == LOOKED
}

/// An access, for people and for the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load { word: u32, value: u32 },
    Store { word: u32, value: u32 },
    State { value: u64 },
    Enter { before: u64, entered: bool },
    Leave { before: u64 },
}

impl Access {
    /// Whether a consumer may make this access to the arena (I11): it stores heads, and links to older buffers.
    pub(crate) fn is_allowed(&self) -> bool {
        match self {
            Access::Store { word, .. } => matches!(u64::from(word % WORDS), HEAD_WORD | NEXT_WORD),
            _ => true,
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Access::Load { word, value } => write!(f, "{} is {}", Word(word), Word::show(word, value)),
            Access::Store { word, value } => write!(f, "{} = {}", Word(word), Word::show(word, value)),
            Access::State { value } => write!(f, "state is {}", Flags(value)),
            Access::Enter { entered: true, .. } => write!(f, "enters"),
            Access::Enter { before, .. } => write!(f, "does not enter, state is {}", Flags(before)),
            Access::Leave { before } => write!(f, "leaves, state was {}", Flags(before)),
        }
    }
}

/// The control page's `state`, readable.
pub(crate) struct Flags(pub(crate) u64);

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Vec::new();
        if self.0 & BUSY != 0 {
            names.push(format!("BUSY({})", self.0 >> OWNER_SHIFT));
        }
        for (bit, name) in [(FULL, "FULL"), (HELD, "HELD")] {
            if self.0 & bit != 0 {
                names.push(name.into());
            }
        }
        write!(f, "{}", if names.is_empty() { "0".into() } else { names.join("|") })
    }
}

/// The effects of one step of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stepped {
    pub(crate) access: Access,
    /// The element returned to the caller after it.
    pub(crate) handed: Option<u32>,
    /// How the pass ended, if it has.
    pub(crate) pass: Option<Pass>,
}

/// The memory of a pass: replays earlier results, performs one access, and then stops.
struct Replay<'a> {
    answers: &'a mut Vec<u64>,
    next: usize,
    arena: &'a mut Arena,
    state: &'a mut u64,
    access: &'a Cell<Option<Access>>,
    two_words: bool,
}

impl Replay<'_> {
    /// The result of the next access, from `perform` if the access is new.
    fn answer(&mut self, perform: impl FnOnce(&mut Arena, &mut u64) -> (u64, Access)) -> Result<u64, ()> {
        if let Some(answer) = self.answers.get(self.next) {
            self.next += 1;
            return Ok(*answer);
        }
        if self.access.get().is_some() {
            return Err(());
        }
        let (answer, access) = perform(self.arena, self.state);
        self.access.set(Some(access));
        self.answers.push(answer);
        self.next += 1;
        Ok(answer)
    }
}

impl Memory for Replay<'_> {
    type Stop = ();

    fn load(&mut self, word: u32) -> Result<u64, ()> {
        self.answer(|arena, _| {
            let value = arena.0[word as usize];
            (value.into(), Access::Load { word, value })
        })
    }

    fn store(&mut self, word: u32, value: u64) -> Result<(), ()> {
        self.answer(|arena, _| {
            arena.0[word as usize] = value as u32;
            (0, Access::Store { word, value: value as u32 })
        })?;
        Ok(())
    }

    fn state(&mut self) -> Result<u64, ()> {
        if self.two_words {
            // A consumer does not check before entering; on leaving it checks only the flag.
            return Ok(0);
        }
        self.answer(|_, state| (*state, Access::State { value: *state }))
    }

    fn enter(&mut self, expected: u64, new: u64) -> Result<Result<u64, u64>, ()> {
        let two_words = self.two_words;
        let before = self.answer(|_, state| {
            let before = *state;
            if two_words {
                *state = before & FULL | new;
                return (expected, Access::Enter { before, entered: true });
            }
            if before == expected {
                *state = new;
            }
            (before, Access::Enter { before, entered: before == expected })
        })?;
        Ok(if before == expected { Ok(before) } else { Err(before) })
    }

    fn leave(&mut self, mask: u64) -> Result<u64, ()> {
        let before = self.answer(|_, state| {
            let before = *state;
            *state &= mask;
            (before, Access::Leave { before })
        })?;
        if self.two_words { self.answer(|_, state| (*state, Access::State { value: *state })) } else { Ok(before) }
    }
}

/// Performs the next access of a pass. `two_words`: BUSY and FULL are not one word.
pub(crate) fn step(
    dequeue: &Dequeue,
    (most, two_words): (Most, bool),
    answers: &mut Vec<u64>,
    arena: &mut Arena,
    state: &mut u64,
) -> Stepped {
    let access = Cell::new(None);
    let mut handed = None;
    let looked = answers.first() == Some(&LOOKED);
    let mut memory = Replay { answers, next: usize::from(looked), arena, state, access: &access, two_words };
    let pass = if looked {
        dequeue.pass(&mut memory, |value| {
            // Not the first time, unless this step's access loaded it.
            if access.get().is_some() {
                handed = Some(value as u32);
            }
            match most {
                Most::One => ControlFlow::Break(()),
                Most::All => ControlFlow::Continue(()),
            }
        })
    } else {
        dequeue.look(&mut memory).and_then(|seen| match seen {
            Some(seen) => Ok(Pass::Left { found: Ok(Found::Empty { seen }), call: false }),
            None => {
                *memory.answers = vec![LOOKED];
                Err(())
            }
        })
    };
    let access = access.get().expect("a pass ends with an access");
    Stepped { access, handed, pass: pass.ok() }
}
