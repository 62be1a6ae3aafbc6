// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a direction that puts records.

#[cfg(feature = "bugs")]
use crate::bugs::Bugs;
use crate::bugs::has_bug;
use crate::error::{PutError, Violation};
use crate::layout::{CONSUMED, END, Head, Layout, WORD, padded};
use crate::memory::{Far, Near};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sender {
    layout: Layout,
    /// Bytes of all records so far, with their heads.
    sent: u64,
    /// Bytes of them that the other end has taken, as last reported and checked.
    consumed: u64,
    records: u64,
    ended: bool,
    #[cfg(feature = "bugs")]
    pub(crate) bug: Bugs,
}

impl Sender {
    pub(crate) fn new(layout: Layout) -> Sender {
        Sender {
            layout,
            sent: 0,
            consumed: 0,
            records: 0,
            ended: false,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }

    pub(crate) fn max_record(&self) -> u64 {
        self.layout.max_record()
    }

    /// What the word of credits is while nothing new is reported.
    pub(crate) fn consumed(&self) -> u64 {
        self.consumed
    }

    /// Whether there is room for a record of so many bytes.
    fn has_room(&mut self, near: &impl Near, length: u64) -> Result<bool, Violation> {
        // The head, the bytes, and the 0 behind them.
        let need = WORD + padded(length) + WORD;
        let fits = |consumed: u64| self.sent - consumed + need <= self.layout.capacity();
        if fits(self.consumed) || has_bug!(self, IgnoreCredits) {
            return Ok(true);
        }
        let found = near.load(CONSUMED);
        let is_sound = (self.consumed..=self.sent).contains(&found) && found % WORD == 0;
        if !is_sound && !has_bug!(self, BelieveCredit) {
            return Err(Violation::Credit { found, least: self.consumed, most: self.sent });
        }
        self.consumed = found;
        Ok(fits(found))
    }

    /// Puts a record of these parts, one behind the other: whether there was room. All parts but the last have a
    /// multiple of 8 bytes.
    pub(crate) fn put(
        &mut self,
        near: &impl Near,
        far: &mut impl Far,
        kind: u8,
        parts: &[&[u8]],
    ) -> Result<bool, PutError> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        let (_, before) = parts.split_last().unwrap_or((&&[][..], &[]));
        if length > self.layout.max_record() {
            return Err(PutError::TooLong { length, max: self.layout.max_record() });
        }
        if let Some(part) = before.iter().find(|part| part.len() as u64 % WORD != 0) {
            return Err(PutError::Ragged { length: part.len() as u64 });
        }
        if kind == 0 {
            return Err(PutError::Kind);
        }
        if self.ended {
            return Err(PutError::Ended);
        }
        if !self.has_room(near, length)? {
            return Ok(false);
        }
        // At most half of a ring, which 32 bits count.
        let head = Head { length: length as u32, kind, number: self.records };
        if has_bug!(self, HeadFirst) {
            far.store(self.layout.at(self.sent), head.encode());
        }
        let mut position = self.sent + WORD;
        for part in parts {
            let (first, second) = part.split_at(part.len().min(self.layout.run(position) as usize));
            far.write(self.layout.at(position), first);
            if !second.is_empty() {
                far.write(self.layout.at(position + first.len() as u64), second);
            }
            position += padded(part.len() as u64);
        }
        if !has_bug!(self, KeepOldWord) {
            far.write(self.layout.at(position), &[0; WORD as usize]);
        }
        far.store(self.layout.at(self.sent), head.encode());
        self.sent = position;
        self.records += 1;
        Ok(true)
    }

    /// Ends this direction: no record follows.
    pub(crate) fn end(&mut self, far: &mut impl Far) {
        self.ended = true;
        far.store(END, self.sent + 1);
    }
}
