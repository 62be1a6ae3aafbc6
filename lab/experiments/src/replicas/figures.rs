// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured of replicated pages, and the statistics of it.

use std::collections::BTreeMap;

/// The homes and what copies their multicasts: the switch, or the board itself.
pub(super) const HOMES: [(usize, &str); 2] = [(0, "switch"), (1, "board")];

/// What is measured of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Figure {
    Posted,
    Own,
    Last,
    Quiet,
    Stream,
}

pub(super) const FIGURES: [(Figure, &str); 5] = [
    (Figure::Quiet, "a store until it is quiet: every copy has it and has said so"),
    (Figure::Last, "a store until the last copy's memory shows it (ordinary: until it is there)"),
    (Figure::Own, "a store until the writer's own memory shows it, best of 5 (ordinary: until it is there)"),
    (Figure::Stream, "one of 64 stores to a word in one go, until all are quiet"),
    (Figure::Posted, "a store as the processor sees it: posted, best of 16"),
];

/// Nanoseconds.
pub(super) type Sample = BTreeMap<Figure, f64>;

/// What stores, and to which page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub(super) at_home: bool,
    /// Index into [`HOMES`].
    pub(super) home: usize,
    pub(super) copies: usize,
}

impl Case {
    pub(super) fn name(self) -> String {
        format!("{}, {}", if self.at_home { "home" } else { "copy" }, HOMES[self.home].1)
    }
}

/// A median, and what a quarter is below and above.
pub(crate) type Quartiles = [f64; 3];

/// Median and quartiles; all 0 for no values.
pub(crate) fn quartiles(mut values: Vec<f64>) -> Quartiles {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| values.get(((values.len().max(1) - 1) as f64 * part).round() as usize).copied().unwrap_or(0.0);
    [at(0.5), at(0.25), at(0.75)]
}

/// At least three significant digits, two of them or fewer behind the point.
pub(crate) fn short(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// The median, 0 for no values.
pub(super) fn median(values: Vec<f64>) -> f64 {
    quartiles(values)[0]
}

/// The least value. For what is done soon: afterwards the boards compete for the same processor.
pub(super) fn best(values: Vec<f64>) -> f64 {
    values.into_iter().fold(f64::MAX, f64::min)
}

/// All measurements: of each round one value.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) ordinary: Vec<Sample>,
    pub(super) cases: BTreeMap<Case, Vec<Sample>>,
    /// By counters and words of a burst.
    pub(super) bursts: BTreeMap<(u16, u64), Vec<Burst>>,
}

impl Figures {
    /// Microseconds, and the ratio to an ordinary store in the same round.
    pub(super) fn of(&self, case: Case, figure: Figure) -> Option<(Quartiles, Quartiles)> {
        let samples = self.cases.get(&case)?;
        let times: Vec<f64> = samples.iter().filter_map(|s| Some(s.get(&figure)? / 1e3)).collect();
        let pairs = samples.iter().zip(&self.ordinary);
        let ratios: Vec<f64> = pairs.filter_map(|(s, o)| Some(s.get(&figure)? / o.get(&figure)?)).collect();
        (!times.is_empty()).then(|| (quartiles(times), quartiles(ratios)))
    }

    /// The bursts of so many words at the copy with so many counters.
    pub(super) fn bursts_of(&self, counters: u16, words: u64) -> &[Burst] {
        self.bursts.get(&(counters, words)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn series(&self) -> Vec<Vec<Case>> {
        let cases: Vec<Case> = self.cases.keys().copied().collect();
        let series = cases.chunk_by(|a, b| (a.at_home, a.home) == (b.at_home, b.home));
        series.rev().map(<[Case]>::to_vec).collect()
    }
}

/// Stores to different words at a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burst {
    /// Stalls of 100 stores that the client sends in one go.
    pub(super) at_once: f64,
    /// Of 100 that it sends one after the other, as QEMU does.
    pub(super) one_by_one: f64,
    /// Nanoseconds for each store of those in one go, until all are quiet.
    pub(super) time: f64,
}

/// Packets for one update on each kind of link, as counted; all exact.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packets {
    pub(super) case: Case,
    /// Reflected stores on the home's link, out.
    pub(super) home_out: f64,
    /// Acknowledgements of copies on it, in.
    pub(super) home_in: f64,
    /// Reflected stores on the busiest copy's link, in.
    pub(super) copy_in: f64,
    /// Everything on the writer's link, both ways.
    pub(super) writer: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_what_is_there() {
        assert_eq!(quartiles(vec![5.0, 1.0, 3.0, 2.0, 4.0]), [3.0, 2.0, 4.0]);
        assert_eq!(quartiles(vec![7.0]), [7.0; 3]);
        assert_eq!(quartiles(Vec::new()), [0.0; 3]);
    }
}
