// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of any memory, with a cache of registrations behind them.

use crate::error::{Error, Result};
use crate::node::Node;
use crate::operation::MAX_COPY;
use crate::recent::Recent;
use crate::registration::Registration;
use crate::remote::Remote;
use rustix::io::Errno;
use std::ops::Range;

/// Memory is registered in whole pages: neighbours in a page are hits, too.
const PAGE: u64 = 4096;

/// Something for ranges of memory, of which none overlap.
type Ranges<T> = Recent<Range<u64>, T>;

/// The entry that contains a range, which is the one used last then.
fn find<'a, T>(ranges: &'a mut Ranges<T>, range: &Range<u64>) -> Option<&'a (Range<u64>, T)> {
    ranges.find(|kept, _| kept.start <= range.start && range.end <= kept.end)
}

/// Removes those that overlap a range or touch it, and returns the range that contains it and them.
fn take_overlapping<T>(ranges: &mut Ranges<T>, range: &Range<u64>) -> (Range<u64>, Vec<T>) {
    let (mut all, mut taken) = (range.clone(), Vec::new());
    while let Some((kept, what)) = ranges.take(|kept, _| kept.start <= all.end && all.start <= kept.end) {
        all = all.start.min(kept.start)..all.end.max(kept.end);
        taken.push(what);
    }
    (all, taken)
}

fn bytes<T>(ranges: &Ranges<T>) -> u64 {
    ranges.iter().map(|(range, _)| range.end - range.start).sum()
}

/// Copies from and to any memory of the process. It is registered at the first use, and stays registered for the next
/// ones, until the cache is full: then the registration goes that was not used for longest.
///
/// The cache notices that memory was unmapped, remapped or discarded, and registers what is there now. Memory that
/// was freed, but not given back to the kernel, stays registered: that is what makes the next use of it cheap.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let remote = node.import(3, "ring").open()?;
/// let mut cache = telegraphos::RegistrationCache::new(&node, 64 << 20);
/// let data = vec![7u8; 100_001];
/// cache.put(&remote, 5, &data)?; // registers it
/// cache.put(&remote, 5, &data[1000..2000])?; // a hit
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RegistrationCache<'a> {
    node: &'a Node,
    ranges: Ranges<Registration>,
    most_bytes: u64,
    /// The count of notifications when the registrations were last found alive.
    sound_at: u64,
    hits: u64,
    misses: u64,
}

impl<'a> RegistrationCache<'a> {
    /// Registrations that a cache holds at most, whatever their size.
    pub const MOST: usize = 128;

    /// An empty cache, which keeps up to `most_bytes` of memory registered.
    pub fn new(node: &'a Node, most_bytes: u64) -> RegistrationCache<'a> {
        let sound_at = node.context.slots.revoked();
        RegistrationCache { node, ranges: Ranges::default(), most_bytes, sound_at, hits: 0, misses: 0 }
    }

    /// Copies found their memory registered so often.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Copies had to register memory so often.
    pub fn misses(&self) -> u64 {
        self.misses
    }

    /// Number of registrations.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Copies `data`, of any alignment and length, to `offset` of an import, and returns when it is there. The memory
    /// must be writable, which constants are not.
    pub fn put(&mut self, to: &Remote, offset: u64, data: &[u8]) -> Result<()> {
        self.copy(data.as_ptr() as u64, data.len() as u64, |registration, at, done, length| {
            to.put_block(offset + done, registration, at, length)
        })
    }

    /// Copies to `into`, of any alignment and length, from `offset` of an import, and returns when it is there.
    pub fn get(&mut self, from: &Remote, offset: u64, into: &mut [u8]) -> Result<()> {
        self.copy(into.as_mut_ptr() as u64, into.len() as u64, |registration, at, done, length| {
            from.get_block(offset + done, registration, at, length)
        })
    }

    /// Ends all registrations.
    pub fn clear(&mut self) {
        self.ranges = Ranges::default();
    }

    fn copy(
        &mut self,
        address: u64,
        length: u64,
        copy: impl Fn(&Registration, u64, u64, u64) -> Result<()>,
    ) -> Result<()> {
        if length == 0 {
            return Ok(());
        }
        self.drop_dead()?;
        let range = address / PAGE * PAGE..(address + length).next_multiple_of(PAGE);
        if find(&mut self.ranges, &range).is_some() {
            self.hits += 1;
        } else {
            self.misses += 1;
            self.register(&range)?;
        }
        let missing = || Error::Register { address, length, fault: None, errno: Errno::FAULT };
        let (kept, registration) = find(&mut self.ranges, &range).ok_or_else(missing)?;
        let mut done = 0;
        while done < length {
            let now = (length - done).min(MAX_COPY);
            copy(registration, address - kept.start + done, done, now)?;
            done += now;
        }
        Ok(())
    }

    /// Drops the registrations whose memory has gone. A load from memory if none may have.
    fn drop_dead(&mut self) -> Result<()> {
        let revoked = self.node.context.slots.revoked();
        if revoked == self.sound_at {
            return Ok(());
        }
        let mut failed = Ok(());
        self.ranges.retain(|registration| match registration.is_alive() {
            Ok(alive) => alive,
            Err(error) => {
                failed = Err(error);
                true
            }
        });
        failed?;
        self.sound_at = revoked;
        Ok(())
    }

    /// Registers a range, together with those that it overlaps if that is possible.
    fn register(&mut self, range: &Range<u64>) -> Result<()> {
        let (all, overlapping) = take_overlapping(&mut self.ranges, range);
        // First, because they count towards the limits.
        drop(overlapping);
        let (mut wanted, size) = (all, range.end - range.start);
        if wanted.end - wanted.start > self.most_bytes.max(size) {
            wanted = range.clone();
        }
        loop {
            let length = wanted.end - wanted.start;
            while self.len() >= Self::MOST || (!self.is_empty() && bytes(&self.ranges) + length > self.most_bytes) {
                drop(self.ranges.evict());
            }
            let memory = std::ptr::slice_from_raw_parts_mut(wanted.start as *mut u8, length as usize);
            // SAFETY: without a name only this process's copies change it: those of this cache, to memory that their
            // caller has borrowed for that. It is no other's while it is mapped, and dead afterwards.
            match unsafe { self.node.register(memory) }.create() {
                Ok(registration) => {
                    self.ranges.insert(wanted, registration);
                    return Ok(());
                }
                Err(Error::Register { errno: Errno::NOMEM | Errno::NOSPC, .. }) if !self.is_empty() => {
                    drop(self.ranges.evict());
                }
                // What lay between, or beside it, may have gone.
                Err(_) if wanted != *range => wanted = range.clone(),
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_testkit::Rng;

    /// Against a list of all pages: what is found contains the range, and nothing is lost by merging.
    #[test]
    fn ranges_contain_what_was_inserted_and_do_not_overlap() {
        let mut rng = Rng::new(7);
        let mut random = |below: u64| rng.below(below);
        let (mut ranges, mut model, mut used) = (Ranges::default(), vec![false; 400], Vec::new());
        for round in 0..5000 {
            let start = random(380);
            let range = start..start + 1 + random(20);
            let covered = model[range.start as usize..range.end as usize].iter().all(|page| *page);
            let found = find(&mut ranges, &range).cloned();
            assert_eq!(found.is_some(), covered, "round {round}: {range:?} {ranges:?}");
            let (all, end) = found.unwrap_or_else(|| {
                let (all, taken) = take_overlapping(&mut ranges, &range);
                used.retain(|end| !taken.contains(end));
                model[all.start as usize..all.end as usize].fill(true);
                ranges.insert(all.clone(), all.end);
                (all.clone(), all.end)
            });
            assert!(all.start <= range.start && range.end <= end);
            used.retain(|other| *other != end);
            used.push(end);
            let mut ends: Vec<(u64, u64)> = ranges.iter().map(|(range, end)| (range.start, *end)).collect();
            ends.sort_unstable();
            assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "they are merged: {ends:?}");
            assert_eq!(bytes(&ranges), model.iter().filter(|page| **page).count() as u64);
            if random(4) == 0 {
                let (evicted, end) = ranges.evict().expect("one was used");
                assert_eq!(end, used.remove(0), "the one not used for longest");
                model[evicted.start as usize..end as usize].fill(false);
            }
        }
    }
}
