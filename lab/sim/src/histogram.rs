// SPDX-License-Identifier: MIT OR Apache-2.0
//! Durations by their size: exact least and greatest, percentiles to 1/64.

use crate::units::Time;

/// Buckets of each power of two.
const PARTS: u32 = 6;

/// A log-linear histogram of durations in picoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    pub(crate) count: u64,
    sum: u128,
    pub(crate) least: Time,
    pub(crate) greatest: Time,
}

fn bucket(value: Time) -> usize {
    let bits = 64 - value.leading_zeros();
    match bits.checked_sub(PARTS + 1) {
        None => value as usize,
        Some(shift) => ((shift as usize + 1) << PARTS) + ((value >> shift) as usize & ((1 << PARTS) - 1)),
    }
}

/// The least value of a bucket.
fn floor(bucket: usize) -> Time {
    match (bucket >> PARTS).checked_sub(1) {
        None => bucket as Time,
        Some(shift) => ((1 << PARTS) + (bucket as Time & ((1 << PARTS) - 1))) << shift,
    }
}

impl Histogram {
    /// Counts a duration.
    pub(crate) fn add(&mut self, value: Time) {
        let at = bucket(value);
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, 0);
        }
        self.buckets[at] += 1;
        self.least = if self.count == 0 { value } else { self.least.min(value) };
        self.greatest = self.greatest.max(value);
        self.count += 1;
        self.sum += u128::from(value);
    }

    /// Counts what another has counted.
    pub(crate) fn add_all(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(all, one)| *all += one);
        self.least = if self.count == 0 { other.least } else { self.least.min(other.least) };
        self.greatest = self.greatest.max(other.greatest);
        self.count += other.count;
        self.sum += other.sum;
    }

    pub(crate) fn mean(&self) -> Time {
        (self.sum / u128::from(self.count.max(1))) as Time
    }

    /// The value that `percent` of all are not above, less at most 1/64 of it.
    pub(crate) fn percentile(&self, percent: u64) -> Time {
        let rank = (u128::from(self.count) * u128::from(percent)).div_ceil(100) as u64;
        let mut seen = 0;
        for (at, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank && *count > 0 {
                return floor(at).clamp(self.least, self.greatest);
            }
        }
        self.greatest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_64th() {
        let mut h = Histogram::default();
        for value in 1..=100_000 {
            h.add(value * 7);
        }
        for percent in [1, 50, 90, 99, 100] {
            let exact = percent * 7_000;
            let found = h.percentile(percent);
            assert!(found <= exact && exact - found <= exact / 64, "{percent}: {found}, expected {exact}");
        }
        assert_eq!((h.least, h.greatest, h.count, h.mean()), (7, 700_000, 100_000, 350_003));
    }

    #[test]
    fn buckets_are_in_order_and_know_their_least_value() {
        let values = (0..64).flat_map(|bits| (0..3).map(move |n| (1u64 << bits) + n * ((1 << bits) / 3)));
        for value in values.chain([u64::MAX, 0]) {
            let at = bucket(value);
            assert!(floor(at) <= value && bucket(floor(at)) == at, "{value}");
            assert!(value < 64 || value - floor(at) <= value / 64, "{value}");
        }
    }
}
