// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the home of each page has ordered, what each copy has had, and what must be true of them.
//!
//! A store to a word has a number that no other store to that word of that page ever has, and all its bytes hold it. So
//! each byte of a copy tells which store it is from, whatever the sizes of the stores, and none may come a second time.

use std::collections::BTreeSet;
use std::ops::Range;

/// Offsets of the words that programs use: neighbours, and both sides of the borders of blocks.
pub(crate) const WORDS: [u32; 8] = [0, 8, 8184, 8192, 16, 40_000, 65_520, 65_528];
/// The last of them is only counted up, by atomics.
pub(crate) const COUNTED: usize = 7;
/// Bytes of the others.
pub(crate) const LANES: usize = 8 * COUNTED;
/// Stores to one word of one page: a load that fails gives 255 in each byte.
const MOST: u8 = 250;

/// Which of [`WORDS`] holds the byte at this offset.
pub(crate) fn word_at(offset: u64) -> Option<usize> {
    WORDS.iter().position(|word| u64::from(*word) == offset & !7)
}

pub(crate) fn offset_of(lane: usize) -> u64 {
    u64::from(WORDS[lane / 8]) + (lane % 8) as u64
}

/// The bytes that an access of this size touches.
pub(crate) fn lanes_at(offset: u64, size: u8) -> Option<Range<usize>> {
    let first = word_at(offset).filter(|word| *word != COUNTED)? * 8 + (offset & 7) as usize;
    Some(first..first + usize::from(size))
}

fn place_in(values: &[u8], value: u8) -> Option<usize> {
    values.iter().position(|v| *v == value)
}

/// Who orders the stores to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) node: u16,
    pub(crate) slot: u32,
    pub(crate) generation: u64,
}

/// A store of a program.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) lanes: Range<usize>,
    pub(crate) number: u8,
    /// [`Page::losses`] at that time.
    pub(crate) losses: u32,
}

/// A replicated page, as its homes one after the other order it.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Nobody, if it has died or does not want to be it any more.
    pub(crate) home: Option<Home>,
    /// It is about to be no more.
    pub(crate) resigning: bool,
    /// The survivor that is about to be the next one.
    pub(crate) adopter: Option<usize>,
    /// How often what was reported may have been lost, because nobody who had it is left.
    pub(crate) losses: u32,
    /// How often the copies' ways to the home were cut.
    pub(crate) shakes: u32,
    /// The values of each byte.
    order: Vec<Vec<u8>>,
    /// Up to which of them all copies must have it, since a quiet or an atomic has reported success.
    reported: Vec<usize>,
    used: [u8; COUNTED],
    /// What fetch-and-add has returned.
    pub(crate) added: BTreeSet<u64>,
}

impl Page {
    pub(crate) fn new(home: Home) -> Page {
        Page {
            home: Some(home),
            resigning: false,
            adopter: None,
            losses: 0,
            shakes: 0,
            order: vec![vec![0]; LANES],
            reported: vec![0; LANES],
            used: [0; COUNTED],
            added: BTreeSet::new(),
        }
    }

    /// A number for a store to a word, while there are any.
    pub(crate) fn number(&mut self, word: usize) -> Option<u8> {
        if self.used[word] == MOST {
            return None;
        }
        self.used[word] += 1;
        Some(self.used[word])
    }

    /// The home has stored a byte.
    pub(crate) fn ordered(&mut self, lane: usize, value: u8) -> Result<(), String> {
        if self.latest(lane) == value {
            return Ok(()); // A compare-and-swap that has changed nothing.
        }
        if self.order[lane].contains(&value) {
            return Err(format!("I5: the home stores {value} again after {:?}", self.order[lane]));
        }
        self.order[lane].push(value);
        Ok(())
    }

    pub(crate) fn order(&self, lane: usize) -> &[u8] {
        &self.order[lane]
    }

    pub(crate) fn latest(&self, lane: usize) -> u8 {
        self.order[lane].last().copied().unwrap_or(0)
    }

    /// A store has been reported to be everywhere: where it is in the order.
    pub(crate) fn report(&mut self, lane: usize, number: u8) -> Result<(), String> {
        let place = place_in(&self.order[lane], number);
        let place = place.ok_or_else(|| format!("I7: {number} is reported and the home had {:?}", self.order[lane]))?;
        self.reported[lane] = self.reported[lane].max(place);
        Ok(())
    }

    /// All that has been reported is in the life of this copy.
    pub(crate) fn has_reported(&self, life: &Life) -> Result<(), String> {
        for lane in 0..LANES {
            let Some(value) = life.had[lane].last() else { continue };
            // A store of its own that the home has not ordered yet will come behind everything else.
            let late = place_in(&self.order[lane], *value).is_some_and(|place| place < self.reported[lane]);
            if late {
                let reported = self.order[lane][self.reported[lane]];
                return Err(format!("I7: byte {:#x} is {value}, {reported} is reported", offset_of(lane)));
            }
        }
        Ok(())
    }

    /// A survivor becomes the home: the order goes on from what it has.
    pub(crate) fn adopted(&mut self, life: &Life) -> Result<(), String> {
        self.has_reported(life)?;
        for lane in 0..LANES {
            let had = &life.had[lane];
            let known = had.iter().rposition(|value| self.order[lane].contains(value)).ok_or("it was never filled")?;
            let place = place_in(&self.order[lane], had[known]).unwrap_or(0);
            // A store of its own that no home has ordered comes behind what is reported, which its counter has kept out
            // (SPEC item 26).
            self.order[lane].truncate(place.max(self.reported[lane]) + 1);
            self.order[lane].extend(&had[known + 1..]);
        }
        Ok(())
    }

    /// Nobody is left who has all: the order begins anew with these bytes.
    pub(crate) fn lost(&mut self, byte: impl Fn(usize) -> u8) {
        self.losses += 1;
        self.added.clear();
        for lane in 0..LANES {
            self.order[lane] = vec![byte(lane)];
            self.reported[lane] = 0;
        }
    }
}

/// What a copy has had since it joined.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The values of each byte, from its fill on.
    had: Vec<Vec<u8>>,
    counted: Option<u64>,
    /// Stores of its own processor; also those of lives before, which may come late.
    own: BTreeSet<(usize, u8)>,
}

impl Life {
    pub(crate) fn new() -> Life {
        Life { had: vec![Vec::new(); LANES], counted: None, own: BTreeSet::new() }
    }

    /// It joins once more.
    pub(crate) fn begin(&mut self) {
        self.had.iter_mut().for_each(Vec::clear);
        self.counted = None;
    }

    pub(crate) fn issued(&mut self, store: &Stored) {
        self.own.extend(store.lanes.clone().map(|lane| (lane, store.number)));
    }

    pub(crate) fn had(&self, lane: usize) -> &[u8] {
        &self.had[lane]
    }

    /// A byte has been filled. What was stored before can have been seen by nobody.
    pub(crate) fn filled(&mut self, lane: usize, value: u8) {
        self.had[lane] = vec![value];
    }

    /// A byte has been stored.
    pub(crate) fn stored(&mut self, lane: usize, value: u8) -> Result<(), String> {
        let had = &mut self.had[lane];
        if had.last().is_none_or(|last| *last == value) {
            return Ok(());
        }
        if had.contains(&value) {
            return Err(format!("I5: byte {:#x} becomes {value} again after {had:?}", offset_of(lane)));
        }
        had.push(value);
        Ok(())
    }

    pub(crate) fn count_filled(&mut self, value: u64) {
        self.counted = Some(value);
    }

    pub(crate) fn count_stored(&mut self, value: u64) -> Result<(), String> {
        let Some(counted) = &mut self.counted else { return Ok(()) };
        if value <= *counted {
            return Err(format!("I1: what is only counted up goes from {counted} to {value}"));
        }
        *counted = value;
        Ok(())
    }

    /// I1, and with unique values I5 and I4: what it had is a part of the home's order; what else it had are stores of
    /// its own that were lost with its home, or are still on their way.
    pub(crate) fn follows(&self, page: &Page) -> Result<(), String> {
        for (lane, had) in self.had.iter().enumerate() {
            let mut last = None;
            for value in had {
                let place = place_in(page.order(lane), *value);
                let own = self.own.contains(&(lane, *value));
                if if place.is_some() { place <= last } else { !own } {
                    let order = page.order(lane);
                    return Err(format!("I1: byte {:#x} was {had:?}, the home's {order:?}", offset_of(lane)));
                }
                last = place.or(last);
            }
        }
        Ok(())
    }
}
