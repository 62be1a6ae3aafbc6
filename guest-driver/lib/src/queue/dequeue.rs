// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dequeue algorithm (s0, SPEC items 10 to 12), over a [`Memory`] whose every call is one access.
//!
//! ```text
//!   state:   neither BUSY nor FULL -> BUSY | owner              enter (E11)
//!   arena:   next of A, next of B, ... the oldest buffer        follow
//!            its word 0 and word 1: empty?                      unlink it, look again (E4); or nothing there
//!            buffer[head]                                       pass the value on
//!            word 1 = next head                                 taken
//!   state:   clear BUSY, look at what it was                    leave: clear, then check (E10)
//! ```
//!
//! The owner number stays in `state` when its process leaves: it names the process that was inside last. That one may
//! look from outside, by loads alone ([`Dequeue::look`]), and polling an empty queue changes no memory:
//!
//! ```text
//!   arena:   word 0 of A, word 1 of A, next of A                equal, and 0: nothing there, if all three stood still
//!   state:   this owner and no flag                             no other process has been inside meanwhile
//! ```
//!
//! Nothing here is unsafe, waits, or keeps state between two calls, and equal answers of the memory lead to equal
//! accesses. So a model checker runs this very code access by access: it replays the answers recorded so far, performs
//! the next access, and ends the pass with [`Memory::Stop`].
//!
//! Every word read from the arena is checked, because other processes may write there too. A header must be sound
//! ([`Shape::header`]), a link must lead to one of the queue's buffers, and a chain has at most `1 + quota` of them.

mod broken;
mod memory;
#[cfg(test)]
mod tests;

pub use broken::{Broken, Fault};
pub use memory::{Memory, Orders};

use std::ops::ControlFlow;
use telegraphos_wire::queue::{
    BUSY, DEAD, FULL, HEAD_WORD, HELD, HeaderWord, NEXT_WORD, OWNER_SHIFT, Shape, TAIL_WORD,
};

/// The result of a pass that was inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Found {
    /// Elements, which have been passed on and taken.
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
    /// Another consumer is inside: wait a little, and try again.
    Busy,
    /// An overflow is not handled yet: call the driver (TG_IOCTL_QUEUE_SERVICE), and try again.
    Full,
    /// The queue is broken or gone.
    Dead,
    /// Entered and left.
    Left {
        /// Its result. When the arena is not sound, the elements passed on before have been taken.
        found: Result<Found, Broken>,
        /// Whether the driver must be called now (TG_IOCTL_QUEUE_SERVICE).
        call: bool,
    },
}

/// Why a pass ends early.
enum Halt<S> {
    Stop(S),
    Broken(Broken),
}

/// The dequeue algorithm for one queue. [`Memory`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dequeue {
    shape: Shape,
    quota: u32,
    owner: u32,
    #[cfg(feature = "literal")]
    literal: Literal,
}

/// Literal readings of the papers, which fail: for models that show it, never for use.
#[cfg(feature = "literal")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Literal {
    /// The readings of the specification: nothing fails.
    #[default]
    Sound,
    /// Without the word that keeps dequeue and overflow handling apart (SPEC item 11).
    Unprotected,
    /// On leaving, check FULL first and clear BUSY afterwards: the wrong order of E10.
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

    /// The same with a literal reading.
    #[cfg(feature = "literal")]
    pub fn literally(self, literal: Literal) -> Dequeue {
        Dequeue { literal, ..self }
    }

    /// Word 0 of the first buffer if the queue is empty, by four loads, without entering the dequeue section; `None` if
    /// it is not, or if only a pass can tell. Meanwhile no other thread of this process may be in a pass.
    ///
    /// It is exact. `state` is loaded last. It has no flag, and the owner number is this process's: no other consumer
    /// has been inside since its last pass, so word 1 is the same all the time, and word 0 was equal to it when it was
    /// loaded. An overflow may have been handled meanwhile; but the driver links the copy before it changes word 1 and
    /// before the board changes word 0, and only a consumer unlinks it: `next`, loaded after the two, shows it.
    pub fn look<M: Memory>(&self, memory: &mut M) -> Result<Option<u32>, M::Stop> {
        let tail = memory.load(TAIL_WORD as u32)?;
        if memory.load(HEAD_WORD as u32)? != tail || memory.load(NEXT_WORD as u32)? != 0 {
            return Ok(None);
        }
        let quiet = memory.state()? == u64::from(self.owner) << OWNER_SHIFT;
        // What is not sound is a pass's to report.
        Ok(self.shape.header(tail).filter(|_| quiet).map(HeaderWord::encode))
    }

    /// One pass through the dequeue section: enter, pass elements to `with` until it breaks, leave.
    ///
    /// `with` is given each element before word 1 says that it is taken: a consumer that is killed has either not taken
    /// its element, or has had it passed on. The element at which it breaks is taken, too.
    pub fn pass<M: Memory>(
        &self,
        memory: &mut M,
        mut with: impl FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Pass, M::Stop> {
        if let Some(outside) = self.enter(memory)? {
            return Ok(outside);
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
    /// `None` once inside: no other consumer takes elements, and the driver does not change the buffers, until
    /// [`Dequeue::leave`]. Otherwise why not.
    pub fn enter<M: Memory>(&self, memory: &mut M) -> Result<Option<Pass>, M::Stop> {
        #[cfg(feature = "literal")]
        if self.literal == Literal::Unprotected {
            return Ok(None);
        }
        let mut seen = memory.state()?;
        loop {
            // BUSY before FULL: the consumer inside calls the driver when it leaves.
            match seen {
                _ if seen & DEAD != 0 => return Ok(Some(Pass::Dead)),
                _ if seen & BUSY != 0 => return Ok(Some(Pass::Busy)),
                _ if seen & FULL != 0 => return Ok(Some(Pass::Full)),
                _ => {}
            }
            let new = seen & FLAGS | BUSY | u64::from(self.owner) << OWNER_SHIFT;
            match memory.enter(seen, new)? {
                Ok(_) => return Ok(None),
                // Another party has changed it: each turn of this loop is the success of one.
                Err(now) => seen = now,
            }
        }
    }

    /// Clears BUSY, and checks the word that this returned (clear, then check: E10): whether the driver must be called.
    /// The owner number stays, for [`Dequeue::look`]. The driver must be called after an overflow meanwhile, and, while
    /// senders are held back, when a buffer was freed.
    pub fn leave<M: Memory>(&self, memory: &mut M, freed: bool) -> Result<bool, M::Stop> {
        let must = |word: u64| word & FULL != 0 || (word & HELD != 0 && freed);
        #[cfg(feature = "literal")]
        match self.literal {
            Literal::Sound => {}
            Literal::Unprotected => return Ok(false),
            Literal::CheckThenClear => {
                let word = memory.state()?;
                memory.leave(!BUSY)?;
                return Ok(must(word));
            }
        }
        Ok(must(memory.leave(!BUSY)?))
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

    /// Passes elements on, oldest first, until `with` breaks or there is none.
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
                // Linked buffers are not filled any more, so an empty one stays empty.
                Some(before) => {
                    // More than the queue has: another process links them again meanwhile.
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

    /// Takes the buffer behind `before` out of the chain. The driver notices it when it next handles an overflow.
    fn unlink<M: Memory>(&self, memory: &mut M, before: u32, freed: &mut bool) -> Result<(), Halt<M::Stop>> {
        memory.store(before + NEXT_WORD as u32, 0).map_err(Halt::Stop)?;
        *freed = true;
        Ok(())
    }
}

/// All of `state` but the owner number.
const FLAGS: u64 = (1 << OWNER_SHIFT) - 1;
