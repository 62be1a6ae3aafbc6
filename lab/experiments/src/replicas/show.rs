// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and pictures of the measurements.

use super::figures::{Burst, Case, FIGURES, Figure, Figures, HOMES, Packets, Quartiles, median, quartiles, short};
use super::measure::{CACHES, WORDS};
use crate::plot::{Chart, Line};

/// The number of counters that others are compared with.
const MOST: u16 = CACHES[CACHES.len() - 1].1;

/// One line of a table.
fn row(name: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("{cell:>17}")).collect();
    format!("{name:<13}{cells}\n")
}

type Field = fn(&Packets) -> f64;

/// Shows bursts at a copy, beside those with most counters.
type ShowBursts<'a> = dyn Fn(&[Burst], &[Burst]) -> String + 'a;

pub(super) fn tables(figures: &Figures, packets: &[Packets]) -> String {
    let mut out = String::new();
    let series = figures.series();
    let columns = || series.first().into_iter().flatten().map(|case| case.copies);
    for (figure, title) in FIGURES {
        let ordinary = quartiles(figures.ordinary.iter().filter_map(|s| Some(s.get(&figure)? / 1e3)).collect());
        let [base, low, high] = ordinary.map(short);
        out += &format!("{title}: median us, ratio to an ordinary store ({base} us; quartiles {low}-{high})\n");
        out += &row("copies", columns().map(|copies| copies.to_string()));
        let cells = |show: &dyn Fn(Quartiles, Quartiles) -> String| -> String {
            let one = |cases: &Vec<Case>| {
                let cell = |case: &Case| figures.of(*case, figure).map_or("-".into(), |(us, x)| show(us, x));
                row(&cases[0].name(), cases.iter().map(cell))
            };
            series.iter().map(one).collect()
        };
        out += &cells(&|us, x| format!("{} {:>6}x", short(us[0]), short(x[0])));
        out += "  ratio: a quarter below, a quarter above\n";
        out += &cells(&|_, x| format!("{}-{}", short(x[1]), short(x[2])));
        out += "\n";
    }
    out += "packets for one update, counted on the links\n";
    out += &row("copies", columns().map(|copies| copies.to_string()));
    let fields: [(&str, Field); 4] = [
        ("home, out", |p| p.home_out),
        ("home, acks", |p| p.home_in),
        ("a copy, in", |p| p.copy_in),
        ("writer, all", |p| p.writer),
    ];
    for cases in &series {
        out += &format!("  store at: {} sends the copies\n", cases[0].name());
        for (name, field) in fields {
            let of =
                |case: &Case| packets.iter().find(|p| p.case == *case).map_or("-".into(), |p| field(p).to_string());
            out += &row(name, cases.iter().map(of));
        }
    }
    let bursts = |title: &str, show: &ShowBursts<'_>| {
        let mut out = format!("\n{title}\n{}", row("words", WORDS.iter().map(u64::to_string)));
        for (_, counters) in CACHES {
            let cells =
                WORDS.iter().map(|words| show(figures.bursts_of(counters, *words), figures.bursts_of(MOST, *words)));
            out += &row(&format!("{counters} counters"), cells);
        }
        out
    };
    let stalls = |bursts: &[Burst], which: fn(&Burst) -> f64| {
        let [stalls, low, high] = quartiles(bursts.iter().map(which).collect()).map(short);
        if low == high { stalls } else { format!("{stalls} {low}-{high}") }
    };
    out +=
        &bursts("stalls of 100 stores, each to another word, in one go, at a copy: median, quartiles", &|bursts, _| {
            stalls(bursts, |burst| burst.at_once)
        });
    out += &bursts("the same, one store after the other", &|bursts, _| stalls(bursts, |burst| burst.one_by_one));
    out += &bursts("us for each of the stores in one go until all are quiet, ratio to 32 counters", &|bursts, most| {
        let us = median(bursts.iter().map(|burst| burst.time / 1e3).collect());
        let ratio = median(bursts.iter().zip(most).map(|(burst, most)| burst.time / most.time).collect());
        format!("{} {:>6}x", short(us), short(ratio))
    });
    out + "\n"
}

/// What the charts of `--plot` show.
pub(super) fn charts(figures: &Figures, packets: &[Packets]) -> [Chart<'static>; 6] {
    let series = figures.series();
    let ratios = |title, figure| {
        let line = |cases: &Vec<Case>| {
            let of = |case: &Case| Some((case.copies as f64, figures.of(*case, figure)?.1));
            Line::of_spreads(&cases[0].name(), cases.iter().filter_map(of))
        };
        Chart::new(title, "copies", "ratio", series.iter().map(line).collect())
    };
    let counted = |name: &str, home: usize, field: Field| {
        let of = packets.iter().filter(|p| p.case.home == home && p.case.at_home);
        Line::through(name, of.map(|p| (p.case.copies as f64, field(p))))
    };
    let sent =
        HOMES.iter().enumerate().map(|(home, (_, name))| counted(&format!("sent, {name}"), home, |p| p.home_out));
    let counted = sent.chain([counted("acks", 0, |p| p.home_in)]).collect();
    let stalls = |title, which: fn(&Burst) -> f64| {
        let line = |(_, counters): &(usize, u16)| {
            let of = |words: &u64| {
                let bursts = figures.bursts_of(*counters, *words);
                (*words as f64, quartiles(bursts.iter().map(which).collect()))
            };
            // A logarithm has no place for none.
            let some = WORDS.iter().map(of).filter(|(_, [stalls, ..])| *stalls > 0.0);
            Line::of_spreads(&format!("{counters} counters"), some)
        };
        Chart::new(title, "words", "stalls", CACHES.iter().map(line).collect())
    };
    [
        ratios("A store until every copy has it and has said so, to an ordinary one", Figure::Quiet),
        ratios("A store until the last copy shows it, to an ordinary one", Figure::Last),
        ratios("One of 64 stores in one go, until all are quiet, to an ordinary one", Figure::Stream),
        Chart::new("Packets for one update on the home's link", "copies", "packets", counted),
        stalls("Stalls of 100 stores to different words, in one go, at a copy", |burst| burst.at_once),
        stalls("Stalls of 100 stores to different words, one after the other, at a copy", |burst| burst.one_by_one),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::figures::Sample;
    use super::*;

    #[test]
    fn figures_are_shown_as_ratios() {
        let mut figures = Figures::default();
        let case = Case { at_home: true, home: 1, copies: 4 };
        for round in [1.0, 2.0, 3.0] {
            let sample = |ns: f64| FIGURES.iter().map(|(figure, _)| (*figure, ns * round)).collect::<Sample>();
            figures.ordinary.push(sample(1000.0));
            figures.cases.entry(case).or_default().push(sample(2500.0));
        }
        let burst = |at_once, time| Burst { at_once, one_by_one: 0.5, time };
        figures.bursts.insert((4, 8), vec![burst(25.0, 3000.0), burst(27.0, 3000.0)]);
        figures.bursts.insert((32, 8), vec![burst(0.0, 1500.0); 2]);
        let packets = [Packets { case, home_out: 4.0, home_in: 4.0, copy_in: 1.0, writer: 0.5 }];
        let out = tables(&figures, &packets);
        let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["home,", "board", "5.00", "2.50x"]), "{out}");
        assert!(rows.contains(&vec!["home,", "out", "4"]) && rows.contains(&vec!["writer,", "all", "0.5"]), "{out}");
        assert!(out.contains("27.0 25.0-27.0") && out.contains("2.00x"), "{out}");
        let charts = charts(&figures, &packets);
        assert!(charts.iter().any(|chart| chart.lines.iter().any(|line| line.points == [(4.0, 2.5)])));
    }
}
