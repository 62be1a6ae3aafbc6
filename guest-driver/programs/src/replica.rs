// SPDX-License-Identifier: MIT OR Apache-2.0
//! Common parts of programs about replicated segments: values with writer and number, and what a word's values must
//! look like to a reader.

use crate::patience::{ABSENT, admitted};
use std::time::Duration;
use telegraphos::{Error, JoinBuilder, ReplicaMode, Replicated};

/// Bytes of a replicated page.
pub const PAGE: u64 = 64 << 10;
/// Writers there may be; a value names one of them.
pub const WRITERS: u64 = 1 << 12;

/// The value that a writer stores as its number so and so, from 1 on. No other writer stores it, and this one stores it
/// once.
pub fn value(writer: u64, number: u64) -> u64 {
    (writer % WRITERS + 1) << 48 | number & 0xffff_ffff_ffff
}

/// Writer and number; `None` of what a word holds before it is stored to.
pub fn parse(value: u64) -> Option<(u64, u64)> {
    let writer = (value >> 48).checked_sub(1)?;
    Some((writer, value & 0xffff_ffff_ffff))
}

/// A mode by its name.
pub fn mode(name: &str) -> Result<ReplicaMode, String> {
    let found = ReplicaMode::ALL.into_iter().find(|mode| format!("{mode:?}").eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("mode {name:?}: expected counters, invalidate, owner or naive"))
}

/// Joins a segment that may not be there yet.
pub fn join_patiently(join: JoinBuilder, patience: Duration) -> Result<Replicated, Error> {
    admitted(patience, ABSENT, || join.clone().open())
}

/// What one reader has seen of one word. All copies of a word take values in the home's order, which has the stores of
/// each writer in his own (SPEC I1): so of each writer, numbers only grow, and no value comes back (SPEC I5).
#[derive(Clone, Debug)]
pub struct History {
    last: u64,
    latest: Vec<u64>,
    /// Values, each counted when it came.
    pub changes: u64,
    /// Values that were there before, and came back after others: x, y, x.
    pub again: u64,
    /// Values older than one of the same writer that was there before, the former ones included.
    pub older: u64,
}

impl History {
    /// Of a word that writers 0 to `writers - 1` store to.
    pub fn new(writers: u64) -> History {
        History { last: 0, latest: vec![0; writers as usize], changes: 0, again: 0, older: 0 }
    }

    /// The word is `value` now.
    pub fn look(&mut self, value: u64) -> Result<(), String> {
        if value == self.last {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.last, value);
        let foreign = || format!("a word was {before:#x}, then {value:#x}, which no node stored");
        let (writer, number) = parse(value).ok_or_else(foreign)?;
        let latest = self.latest.get_mut(writer as usize).ok_or_else(foreign)?;
        self.changes += 1;
        if number <= *latest {
            self.older += 1;
            self.again += u64::from(number == *latest);
        }
        *latest = number.max(*latest);
        Ok(())
    }
}

/// A word of `size` (1, 2, 4, 8) bytes is stored.
pub fn store(segment: &Replicated, offset: u64, size: usize, value: u64) -> Result<(), Error> {
    match size {
        1 => segment.store(offset, value as u8),
        2 => segment.store(offset, value as u16),
        4 => segment.store(offset, value as u32),
        _ => segment.store(offset, value),
    }
}

/// A word of `size` (1, 2, 4, 8) bytes of this node's copy.
pub fn load(segment: &Replicated, offset: u64, size: usize) -> Result<u64, Error> {
    Ok(match size {
        1 => segment.load::<u8>(offset)?.into(),
        2 => segment.load::<u16>(offset)?.into(),
        4 => segment.load::<u32>(offset)?.into(),
        _ => segment.load(offset)?,
    })
}

/// A checksum of this node's copy.
pub fn digest(segment: &Replicated) -> Result<u64, Error> {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for at in (0..segment.size()).step_by(8) {
        let mut word = [0u8; 8];
        let bytes = (segment.size() - at).min(8) as usize;
        segment.load_slice(at, &mut word[..bytes])?;
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_say_who_stored_them() {
        for (writer, number) in [(0, 1), (5, 1 << 40), (WRITERS - 1, 2)] {
            assert_eq!(parse(value(writer, number)), Some((writer, number)));
        }
        assert_eq!(parse(0), None);
    }

    fn seen(values: &[(u64, u64)]) -> (u64, u64, u64) {
        let mut history = History::new(2);
        for (writer, number) in values {
            history.look(value(*writer, *number)).unwrap();
        }
        (history.changes, history.again, history.older)
    }

    #[test]
    fn a_history_tells_what_comes_back() {
        assert_eq!(seen(&[(0, 1), (0, 1), (1, 1), (0, 2), (1, 7)]), (4, 0, 0));
        // x, y, x.
        assert_eq!(seen(&[(0, 1), (1, 1), (0, 1)]), (3, 1, 1));
        // One's own older store.
        assert_eq!(seen(&[(0, 3), (0, 2), (0, 3)]), (3, 1, 2));
        let mut history = History::new(2);
        assert!(history.look(value(2, 1)).is_err() && history.look(5).is_err());
    }
}
