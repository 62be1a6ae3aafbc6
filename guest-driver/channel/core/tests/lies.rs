// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other end stores anything, anywhere, at any time: any load may find anything.

use crate::memory::{Changing, Words};
use std::cell::{Cell, RefCell};
use telegraphos_channel_core::{
    ASLEEP, Announce, Bug, CONSUMED, END, End, Head, Layout, Look, Near, PutError, RECORDS, RING, WORD,
};
use telegraphos_testkit::{Rng, finds, over_seeds, scale};

/// A word that a liar may find worth storing.
fn lie(rng: &mut Rng, layout: Layout, at: u64, word: u64, number: u64) -> u64 {
    let near = word.wrapping_add(rng.below(5_u64) * WORD).wrapping_sub(2 * WORD);
    match rng.below(8_u32) {
        0 => near,
        1 => rng.next(),
        2 => 1 << rng.below(64_u32),
        3 => rng.below(4 * layout.capacity()),
        // A head that is the next one, of any length.
        4 if at >= RING => {
            let length = rng.below(3 * layout.capacity()) as u32;
            Head { length, kind: 1 + rng.below(3_u8), number }.encode()
        }
        5 if at >= RING => Head { length: rng.below(layout.max_record() + 9) as u32, kind: 1, number }.encode(),
        6 if at == CONSUMED => rng.below(64_u64) * WORD,
        _ => word,
    }
}

/// Calls an end until the channel ends, or so many times: what is wrong about what it did.
fn run(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let layout = Layout::new(64 << rng.below(4_u32)).map_err(|e| e.to_string())?;
    let announce = [Announce::Look, Announce::Always, Announce::Armed][rng.below(3_usize)];
    let mut end = End::new(layout, layout, announce, true).with_bug(bug);
    let (mut liar, lies, taken) = (Rng::new(!seed), rng.below(100_u64), Cell::new(0));
    let change = |at, word| match liar.percent(lies) {
        true => lie(&mut liar, layout, at, word, taken.get()),
        false => word,
    };
    let near = Changing { words: Words::of(layout), change: RefCell::new(change), loads: Cell::new(0) };
    let mut far = Words::of(layout);
    let bytes = vec![5; layout.max_record() as usize];
    for _ in 0..200 {
        let before = near.loads.get();
        let mut moved = 0;
        let ended = match rng.below(4_u32) {
            0 => {
                let length = rng.below(bytes.len() + 1);
                match end.put(&near, &mut far, 1, &[&bytes[..length]]) {
                    Err(PutError::Violation(_)) => true,
                    Err(e) => return Err(format!("{length} bytes are refused: {e}")),
                    Ok(_) => false,
                }
            }
            1 | 2 => match end.look(&near) {
                Err(_) => true,
                Ok(Look::Record(record)) => {
                    let max = layout.max_record() as usize;
                    if record.length > max {
                        return Err(format!("a record of {} bytes, beyond {max}", record.length));
                    }
                    let mut to = vec![0; record.length];
                    _ = end.take(&near, &mut far, &mut to);
                    taken.set((taken.get() + 1) & 0xff_ffff);
                    moved = record.length as u64 / WORD + 1;
                    false
                }
                Ok(Look::Empty | Look::Ended) => false,
            },
            _ => {
                end.begin_sleep(&mut far, RECORDS);
                end.end_sleep(&mut far);
                false
            }
        };
        let loads = near.loads.get() - before;
        if loads > 8 + moved {
            return Err(format!("{loads} loads for {moved} words"));
        }
        if ended {
            return Ok(());
        }
    }
    Ok(())
}

#[test]
fn whatever_the_words_are_a_channel_ends_with_an_error_and_nothing_else() {
    over_seeds(20_000, 2_000_000, |seed| run(seed, None));
}

#[test]
fn what_is_believed_is_found() {
    let seeds = 0..scale(5000, 50_000);
    finds(Bug::BelieveHead, "beyond", seeds.clone(), |seed| run(seed, Some(Bug::BelieveHead)));
    finds(Bug::BelieveCredit, "overflow", seeds, |seed| run(seed, Some(Bug::BelieveCredit)));
}

/// A flag that says anything costs a wake-up for each record at most.
#[test]
fn a_word_of_sleep_that_says_anything_wakes_once_for_each() {
    let layout = Layout::new(64).unwrap();
    let mut end = End::new(layout, layout, Announce::Look, true);
    let (mut near, mut far) = (Words::of(layout), Words::of(layout));
    near.set(ASLEEP, u64::MAX);
    let mut wakes = 0;
    for _ in 0..2 {
        let progress = end.put(&near, &mut far, 1, &[b"x"]).unwrap();
        wakes += u32::from(progress == Some(telegraphos_channel_core::Progress::Wake));
    }
    assert_eq!(wakes, 1);
    assert_eq!((near.load(END), near.load(CONSUMED)), (0, 0));
}
