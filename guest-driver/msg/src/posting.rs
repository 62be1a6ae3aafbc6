// SPDX-License-Identifier: MIT OR Apache-2.0
//! How words get into another process's inbox: by stores, or by a copy from registered memory, whichever has been
//! cheaper. Where each store traps into the machine's emulator, a copy is cheaper from some twenty words on; where
//! stores go to memory, hardly ever.

use std::time::{Duration, Instant};
use telegraphos::{Node, Registration, Remote};

/// Fewer words are always stored.
const FEW: usize = 16;
/// Of so many posts, one goes the other way, so that a change is found out.
const TRY: u32 = 64;
/// The weight of the last value in a mean.
const WEIGHT: f64 = 0.25;

/// What the two ways have taken, in nanoseconds.
#[derive(Debug)]
struct Costs {
    /// A store of a word.
    store: f64,
    copy: f64,
    posts: u32,
}

impl Costs {
    /// Whether so many words are copied.
    fn copies(&mut self, words: usize) -> bool {
        if words < FEW {
            return false;
        }
        self.posts = self.posts.wrapping_add(1);
        let cheaper = words as f64 * self.store > self.copy;
        cheaper != (self.posts % TRY == 0)
    }

    fn note(&mut self, copied: bool, words: usize, took: Duration) {
        let took = took.as_nanos() as f64;
        let (mean, value) = if copied { (&mut self.copy, took) } else { (&mut self.store, took / words as f64) };
        *mean += (value - *mean) * WEIGHT;
    }
}

/// Words on their way into an inbox. One thread at a time has it.
#[derive(Debug)]
pub(crate) struct Posting {
    /// Closed before the words are freed.
    registration: Option<Registration>,
    /// It never grows, so they stay where they are.
    words: Vec<u64>,
    costs: Costs,
}

impl Posting {
    /// Room for that many words.
    pub(crate) fn new(most: usize) -> Posting {
        let costs = Costs { store: 1e3, copy: 5e4, posts: 0 };
        Posting { registration: None, words: Vec::with_capacity(most), costs }
    }

    /// The words, of which there are none now, to be filled in. No more than there is room for.
    pub(crate) fn words(&mut self) -> &mut Vec<u64> {
        self.words.clear();
        &mut self.words
    }

    /// Puts the words at a place of an inbox. They are there before what is enqueued next.
    pub(crate) fn put(&mut self, node: &Node, inbox: &Remote, at: u64) -> telegraphos::Result<()> {
        let count = self.words.len();
        if count < FEW {
            return inbox.put_slice(at, &self.words);
        }
        let copies = self.costs.copies(count) && self.is_registered(node);
        let begun = Instant::now();
        match &self.registration {
            Some(own) if copies => inbox.put_block(at, own, 0, 8 * count as u64)?,
            _ => inbox.put_slice(at, &self.words)?,
        }
        self.costs.note(copies, count, begun.elapsed());
        Ok(())
    }

    /// Registers the memory of the words, if that is possible.
    fn is_registered(&mut self, node: &Node) -> bool {
        if self.registration.is_none() && self.costs.copy.is_finite() {
            let room =
                std::ptr::slice_from_raw_parts_mut(self.words.as_mut_ptr().cast::<u8>(), 8 * self.words.capacity());
            // SAFETY: the words stay where they are until the registration is closed, and only this board reads them.
            match unsafe { node.register(room) }.create() {
                Ok(registration) => self.registration = Some(registration),
                Err(error) => {
                    log::debug!("messages are stored, not copied: {error}");
                    self.costs.copy = f64::INFINITY;
                }
            }
        }
        self.registration.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of posts that were copied, of 100.
    fn copied(costs: &mut Costs, words: usize, store: u64, copy: u64) -> u32 {
        let mut copied = 0;
        for _ in 0..100 {
            let copies = costs.copies(words);
            copied += u32::from(copies);
            costs.note(copies, words, Duration::from_nanos(if copies { copy } else { store * words as u64 }));
        }
        copied
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_tried() {
        let mut costs = Costs { store: 1e3, copy: 5e4, posts: 0 };
        assert_eq!(copied(&mut costs, FEW - 1, 10_000, 1), 0, "few words are stored");
        // Stores that trap.
        copied(&mut costs, 512, 8_000, 200_000);
        assert!(copied(&mut costs, 512, 8_000, 200_000) >= 98);
        // Stores to memory, from now on.
        for _ in 0..20 {
            copied(&mut costs, 512, 2, 200_000);
        }
        assert!(copied(&mut costs, 512, 2, 200_000) <= 2);
        // And back.
        for _ in 0..20 {
            copied(&mut costs, 512, 8_000, 200_000);
        }
        assert!(copied(&mut costs, 512, 8_000, 200_000) >= 98);
    }
}
