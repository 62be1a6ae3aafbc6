// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a direction that takes records.

#[cfg(feature = "bugs")]
use crate::bugs::Bugs;
use crate::bugs::has_bug;
use crate::error::Violation;
use crate::layout::{CONSUMED, END, Head, Layout, WORD, padded};
use crate::memory::{Far, Near};

/// The next record, which is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// What the layer above distinguishes.
    pub kind: u8,
    /// Its bytes.
    pub length: usize,
}

/// What there is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// A record.
    Record(Record),
    /// Nothing yet.
    Empty,
    /// Nothing ever: the other end has ended the direction, and all its records were taken.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Receiver {
    layout: Layout,
    /// Bytes of all records that were taken.
    taken: u64,
    /// Those of them that were reported.
    reported: u64,
    records: u64,
    /// The next record, once it was found: its head is loaded once.
    next: Option<Record>,
    has_ended: bool,
    #[cfg(feature = "bugs")]
    pub(crate) bug: Bugs,
}

impl Receiver {
    pub(crate) fn new(layout: Layout) -> Receiver {
        Receiver {
            layout,
            taken: 0,
            reported: 0,
            records: 0,
            next: None,
            has_ended: false,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    fn next_head(&self) -> u64 {
        self.layout.at(self.taken)
    }

    /// The words that are 0 until there is something to take; none when nothing is waited for any more.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = u64> + use<> {
        let is_open = !self.has_ended && self.next.is_none();
        [self.next_head(), END].into_iter().filter(move |_| is_open)
    }

    pub(crate) fn look(&mut self, near: &impl Near) -> Result<Look, Violation> {
        if let Some(record) = self.next {
            return Ok(Look::Record(record));
        }
        if self.has_ended {
            return Ok(Look::Ended);
        }
        let mut word = near.load(self.next_head());
        if word == 0 {
            let end = near.load(END);
            if end == 0 {
                return Ok(Look::Empty);
            }
            let found = end - 1;
            if found == self.taken {
                self.has_ended = true;
                return Ok(Look::Ended);
            }
            // All heads were stored before the end.
            word = near.load(self.next_head());
            if word == 0 || found < self.taken {
                return Err(Violation::End { found, taken: self.taken });
            }
        }
        let head = Head::decode(word);
        let expected = self.records & ((1 << Head::NUMBER_BITS) - 1);
        let (length, max) = (u64::from(head.length), self.layout.max_record());
        if !has_bug!(self, BelieveHead) {
            if length > max {
                return Err(Violation::Length { length, max });
            }
            if head.number != expected || head.kind == 0 {
                return Err(Violation::Sequence { found: head.number, expected });
            }
        }
        let record = Record { kind: head.kind, length: length as usize };
        self.next = Some(record);
        Ok(Look::Record(record))
    }

    /// Takes the record that [`Receiver::look`] has found, of which as many bytes as fit come into `to`. Whether a
    /// credit was returned.
    pub(crate) fn take(&mut self, near: &impl Near, far: &mut impl Far, to: &mut [u8]) -> bool {
        let Some(record) = self.next.take() else { return false };
        let position = self.taken + WORD;
        let length = record.length.min(to.len());
        let (first, second) = to[..length].split_at_mut(length.min(self.layout.run(position) as usize));
        near.read(self.layout.at(position), first);
        if !second.is_empty() {
            near.read(self.layout.at(position + first.len() as u64), second);
        }
        self.taken = position + padded(record.length as u64);
        self.records += 1;
        let is_due = self.taken - self.reported >= self.layout.capacity() / 4 && !has_bug!(self, KeepCredits);
        if is_due {
            far.store(CONSUMED, self.taken);
            self.reported = self.taken;
        }
        is_due
    }
}
