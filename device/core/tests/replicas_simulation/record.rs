// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of each page's home, the values of each copy, and checks of them.
//!
//! A store to a word has a unique number among all stores to that word of that page, and each of its bytes contains it.
//! So each byte of a copy identifies its store, for any sizes of the stores, and none may return.

use std::collections::BTreeSet;
use std::ops::Range;

/// Offsets of the words that programs use: neighbours, and both sides of the borders of blocks.
pub(crate) const WORDS: [u32; 8] = [0, 8, 8184, 8192, 16, 40_000, 65_520, 65_528];
/// The last of them is only incremented, by atomics.
pub(crate) const COUNTED: usize = 7;
/// Bytes of the others.
pub(crate) const LANES: usize = 8 * COUNTED;
/// Stores to one word of one page: a failed load returns 255 in each byte.
const MOST: u8 = 250;

/// The one of [`WORDS`] with the byte at this offset.
pub(crate) fn word_at(offset: u64) -> Option<usize> {
    WORDS.iter().position(|word| u64::from(*word) == offset & !7)
}

pub(crate) fn offset_of(lane: usize) -> u64 {
    u64::from(WORDS[lane / 8]) + (lane % 8) as u64
}

/// The bytes of an access of this size.
pub(crate) fn lanes_at(offset: u64, size: u8) -> Option<Range<usize>> {
    let first = word_at(offset).filter(|word| *word != COUNTED)? * 8 + (offset & 7) as usize;
    Some(first..first + usize::from(size))
}

fn place_in(values: &[u8], value: u8) -> Option<usize> {
    values.iter().position(|v| *v == value)
}

/// The node that orders the stores to a page.
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

/// A replicated page, as ordered by its successive homes.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// `None` if it has crashed or resigned.
    pub(crate) home: Option<Home>,
    /// It is resigning.
    pub(crate) resigning: bool,
    /// The survivor that is becoming the next home.
    pub(crate) adopter: Option<usize>,
    /// How often reported stores may have been lost, because no node that had them remains.
    pub(crate) losses: u32,
    /// How often the copies' paths to the home were cut.
    pub(crate) shakes: u32,
    /// The values of each byte.
    order: Vec<Vec<u8>>,
    /// The index up to which all copies must have them, since a quiet or an atomic has reported success.
    reported: Vec<usize>,
    used: [u8; COUNTED],
    /// Values returned by fetch-and-add.
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

    /// The next number for a store to a word, if any remain: none that its bytes have had. They may be left of another
    /// page, where this one has restarted with what a node had.
    pub(crate) fn number(&mut self, word: usize) -> Option<u8> {
        let had = &self.order[8 * word..8 * word + 8];
        let number = (self.used[word] + 1..=MOST).find(|number| !had.iter().any(|values| values.contains(number)))?;
        self.used[word] = number;
        Some(number)
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

    /// A store has been reported to be at all copies: its position in the order.
    pub(crate) fn report(&mut self, lane: usize, number: u8) -> Result<(), String> {
        let place = place_in(&self.order[lane], number);
        let place = place.ok_or_else(|| format!("I7: {number} is reported and the home had {:?}", self.order[lane]))?;
        self.reported[lane] = self.reported[lane].max(place);
        Ok(())
    }

    /// All reported values are in this session of the copy.
    pub(crate) fn has_reported(&self, life: &Life) -> Result<(), String> {
        for lane in 0..LANES {
            let Some(value) = life.had[lane].last() else { continue };
            // The node's own store that the home has not ordered yet will follow everything else.
            let stale = place_in(&self.order[lane], *value).is_some_and(|place| place < self.reported[lane]);
            if stale {
                let reported = self.order[lane][self.reported[lane]];
                return Err(format!("I7: byte {:#x} is {value}, {reported} is reported", offset_of(lane)));
            }
        }
        Ok(())
    }

    /// A survivor becomes the home: the order continues from its values.
    pub(crate) fn adopted(&mut self, life: &Life) -> Result<(), String> {
        self.has_reported(life)?;
        for lane in 0..LANES {
            let had = &life.had[lane];
            let known = had.iter().rposition(|value| self.order[lane].contains(value)).ok_or("it was never filled")?;
            let place = place_in(&self.order[lane], had[known]).unwrap_or(0);
            // The node's own store that no home has ordered follows the reported ones, which its counter has masked
            // (SPEC item 26).
            self.order[lane].truncate(place.max(self.reported[lane]) + 1);
            self.order[lane].extend(&had[known + 1..]);
        }
        Ok(())
    }

    /// No node with all values remains: the order restarts with these bytes.
    pub(crate) fn lost(&mut self, byte: impl Fn(usize) -> u8) {
        self.losses += 1;
        self.added.clear();
        for lane in 0..LANES {
            self.order[lane] = vec![byte(lane)];
            self.reported[lane] = 0;
        }
    }
}

/// The values of a copy since it joined.
#[derive(Clone, Debug)]
pub(crate) struct Life {
    /// The values of each byte, from its fill on.
    had: Vec<Vec<u8>>,
    counted: Option<u64>,
    /// Stores of its own processor; also those of earlier sessions, which may be delayed.
    own: BTreeSet<(usize, u8)>,
}

impl Life {
    pub(crate) fn new() -> Life {
        Life { had: vec![Vec::new(); LANES], counted: None, own: BTreeSet::new() }
    }

    /// It joins again.
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

    /// A byte has been filled. No processor can have seen earlier values.
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

    /// I1, and with unique values I5 and I4: its values are a subsequence of the home's order; other values are its own
    /// stores that were lost with its home, or are still in flight.
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
