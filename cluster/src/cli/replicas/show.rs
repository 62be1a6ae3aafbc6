// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables and pictures of the measurements.

use super::super::plot::{Chart, Line};
use super::figures::{Burst, Case, FIGURES, Figure, Figures, HOMES, Packets, Quartiles, median, quartiles, short};
use super::measure::{CACHES, WORDS};

/// The number of counters that others are compared with.
const MOST: u16 = CACHES[CACHES.len() - 1].1;

/// One line of a table.
fn row(name: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("{cell:>17}")).collect();
    format!("{name:<13}{cells}\n")
}

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
    type Field = fn(&Packets) -> f64;
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
            let cells = WORDS.iter().map(|words| {
                let of = |counters| figures.bursts.get(&(counters, *words)).map_or(&[][..], Vec::as_slice);
                show(of(counters), of(MOST))
            });
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
    let ratios = |figure: Figure| -> Vec<Line> {
        let one = |cases: &Vec<Case>| {
            let mut line = Line::new(&cases[0].name());
            for case in cases {
                let Some((_, [median, low, high])) = figures.of(*case, figure) else { continue };
                line.points.push((case.copies as f64, median));
                line.spread.push((case.copies as f64, low, high));
            }
            line
        };
        series.iter().map(one).collect()
    };
    let counted = || -> Vec<Line> {
        let mut lines = Vec::new();
        for (home, (_, name)) in HOMES.iter().enumerate() {
            let mut line = Line::new(&format!("sent, {name}"));
            let of = packets.iter().filter(|p| p.case.home == home && p.case.at_home);
            line.points = of.map(|p| (p.case.copies as f64, p.home_out)).collect();
            lines.push(line);
        }
        let mut acks = Line::new("acks");
        let of = packets.iter().filter(|p| p.case.home == 0 && p.case.at_home);
        acks.points = of.map(|p| (p.case.copies as f64, p.home_in)).collect();
        lines.push(acks);
        lines
    };
    let stalls = |which: fn(&Burst) -> f64| -> Vec<Line> {
        let one = |(_, counters): &(usize, u16)| {
            let mut line = Line::new(&format!("{counters} counters"));
            for words in WORDS {
                let bursts = figures.bursts.get(&(*counters, words)).map_or(&[][..], Vec::as_slice);
                let [stalls, low, high] = quartiles(bursts.iter().map(which).collect());
                // A logarithm has no place for none.
                if stalls > 0.0 {
                    line.points.push((words as f64, stalls));
                    line.spread.push((words as f64, low, high));
                }
            }
            line
        };
        CACHES.iter().map(one).collect()
    };
    let x_title = "copies";
    [
        Chart {
            title: "A store until every copy has it and has said so, to an ordinary one",
            x_title,
            y_title: "ratio",
            lines: ratios(Figure::Quiet),
        },
        Chart {
            title: "A store until the last copy shows it, to an ordinary one",
            x_title,
            y_title: "ratio",
            lines: ratios(Figure::Last),
        },
        Chart {
            title: "One of 64 stores in one go, until all are quiet, to an ordinary one",
            x_title,
            y_title: "ratio",
            lines: ratios(Figure::Stream),
        },
        Chart { title: "Packets for one update on the home's link", x_title, y_title: "packets", lines: counted() },
        Chart {
            title: "Stalls of 100 stores to different words, in one go, at a copy",
            x_title: "words",
            y_title: "stalls",
            lines: stalls(|burst| burst.at_once),
        },
        Chart {
            title: "Stalls of 100 stores to different words, one after the other, at a copy",
            x_title: "words",
            y_title: "stalls",
            lines: stalls(|burst| burst.one_by_one),
        },
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
