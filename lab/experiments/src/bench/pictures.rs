// SPDX-License-Identifier: MIT OR Apache-2.0
//! All figures of a run as charts: those with targets beside them, and all times.

use super::catalog::{self, Target};
use super::result::Measure;
use super::table::digits;
use crate::plot::{Dot, Dots};
use std::collections::BTreeMap;

/// Numbers of colours.
const OURS: usize = 1;
const MISSED: usize = 2;
const MET: usize = 3;
const OF_PEERS: usize = 7;

/// Figures with targets, as multiples of the worst that meets the target: what is right of 1 misses it. The spread is
/// that of the figure, also where its ratio to another is what has the target.
pub(super) fn targets(list: &[Measure], targets: &BTreeMap<String, Target>) -> Dots<'static> {
    let dot = |m: &Measure| {
        let target = targets.get(&m.measure)?;
        let (value, median) = (m.ratio.or(m.median)?, m.median?);
        let times = |end: f64| target.times(if median == 0.0 { value } else { value * end / median });
        let name = format!("{} {}, wanted {target}", m.measure, digits(value));
        dot(name, target.times(value), [times(m.p10?), times(m.p90?)], if target.met(value) { MET } else { MISSED })
    };
    Dots {
        title: "Figures with targets",
        x_title: "times the target; the lines hold eight of ten rounds",
        rows: list.iter().filter_map(dot).collect(),
        bound: Some(1.0),
    }
}

/// All times, those of peers in another colour.
pub(super) fn times(list: &[Measure]) -> Dots<'static> {
    let dot = |m: &Measure| {
        let median = m.median?;
        let colour = if catalog::is_of_peer(&m.measure) { OF_PEERS } else { OURS };
        dot(format!("{} {}", m.measure, digits(median)), median, [m.p10?, m.p90?], colour)
    };
    Dots {
        title: "Times (peers in grey)",
        x_title: "us; the lines hold eight of ten rounds",
        rows: list.iter().filter(|m| m.unit == "us").filter_map(dot).collect(),
        bound: None,
    }
}

/// Nothing of what no axis can show.
fn dot(name: String, value: f64, [one, other]: [f64; 2], colour: usize) -> Option<Dot> {
    let shown = [value, one, other].iter().all(|number| number.is_finite());
    shown.then(|| Dot { name, value, spread: (one.min(other), one.max(other)), colour })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_target_is_shown_as_its_multiple() {
        let ratio = |name: &str, values: &[f64]| {
            let measure = Measure::of(name, "x", values);
            let median = measure.median;
            measure.against("other", median)
        };
        let list = [
            ratio("load", &[1.0, 2.0, 3.0]),
            ratio("put", &[2.0]),
            ratio("free", &[2.0]),
            Measure::of("idle", "%", &[0.0]),
            Measure::of("gone", "x", &[]),
        ];
        let bounds = [("load", 4.0), ("idle", 0.5), ("gone", 1.0)].map(|(n, t)| (n.to_owned(), Target::AtMost(t)));
        let mut bounds: BTreeMap<_, _> = bounds.into();
        bounds.insert("put".into(), Target::AtLeast(4.0));
        let rows = targets(&list, &bounds).rows;
        let wanted = [
            Dot { name: "load 2.00, wanted <= 4".into(), value: 0.5, spread: (0.3, 0.7), colour: MET },
            Dot { name: "put 2.00, wanted >= 4".into(), value: 2.0, spread: (2.0, 2.0), colour: MISSED },
            Dot { name: "idle 0.000, wanted <= 0.5".into(), value: 0.0, spread: (0.0, 0.0), colour: MET },
        ];
        assert_eq!(
            rows.iter().map(|row| &row.name).collect::<Vec<_>>(),
            wanted.iter().map(|row| &row.name).collect::<Vec<_>>()
        );
        for (row, wanted) in rows.iter().zip(&wanted) {
            assert!((row.value - wanted.value).abs() < 1e-9 && row.colour == wanted.colour, "{row:?}");
            assert!((row.spread.0 - wanted.spread.0).abs() < 1e-9, "{row:?}");
            assert!((row.spread.1 - wanted.spread.1).abs() < 1e-9, "{row:?}");
        }
    }

    #[test]
    fn times_are_shown_with_their_spread() {
        let list = [
            Measure::of("load_local", "us", &[1.0, 2.0, 3.0]),
            Measure::of("udp_roundtrip", "us", &[300.0]),
            Measure::of("start", "s", &[6.0]),
            Measure::of("gone", "us", &[]),
        ];
        let rows = times(&list).rows;
        assert_eq!(rows.iter().map(|row| row.colour).collect::<Vec<_>>(), [OURS, OF_PEERS]);
        assert_eq!(rows[0], Dot { name: "load_local 2.00".into(), value: 2.0, spread: (1.2, 2.8), colour: OURS });
    }
}
