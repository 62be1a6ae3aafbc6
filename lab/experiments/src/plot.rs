// SPDX-License-Identifier: MIT OR Apache-2.0
//! Line charts on two logarithmic axes, and figures with their spreads on one, as SVG: a table of their values goes to
//! the script `plot.py`, which draws them.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use telegraphos_cluster::{Error, Result};

const SCRIPT: &str = include_str!("plot.py");
/// The columns of its table.
const COLUMNS: &str = "number,kind,chart,x title,y title,name,colour,x,value,low,high,bound\n";

pub(super) struct Line {
    name: String,
    /// (x, y), both greater than 0.
    pub(super) points: Vec<(f64, f64)>,
    /// Of each point, from where to where the measurements lie; of no point if it is not known. Not drawn from 0.
    pub(super) spread: Vec<(f64, f64)>,
}

impl Line {
    /// A curve without points.
    pub(super) fn new(name: &str) -> Line {
        Line { name: name.to_owned(), points: Vec::new(), spread: Vec::new() }
    }

    pub(super) fn through(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Line {
        Line { points: points.collect(), ..Line::new(name) }
    }

    /// Medians, and what a part of the values is below and above.
    pub(super) fn of_spreads(name: &str, spreads: impl Iterator<Item = (f64, [f64; 3])>) -> Line {
        let spreads = spreads.map(|(x, [median, low, high])| ((x, median), (low, high)));
        let (points, spread) = spreads.unzip();
        Line { points, spread, ..Line::new(name) }
    }
}

/// Curves in one frame. Those without points are left out, but keep their colour, so that several charts can share
/// them.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) y_title: &'a str,
    pub(super) lines: Vec<Line>,
}

/// Figures below each other, each a point on one logarithmic axis with a line for its spread.
pub(super) struct Dots<'a> {
    pub(super) title: &'a str,
    pub(super) x_title: &'a str,
    pub(super) rows: Vec<Dot>,
    /// Where a line divides good from bad.
    pub(super) bound: Option<f64>,
}

/// A figure. Values that are not greater than 0 are at the end of the axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Dot {
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) spread: (f64, f64),
    /// The number of its colour.
    pub(super) colour: usize,
}

/// Writes charts, one below the other, into an SVG file; the line of the report that names the file.
pub(super) fn write(path: &Path, charts: &[Chart<'_>]) -> Result<String> {
    write_all(path, &[], charts)
}

pub(super) fn write_all(path: &Path, dots: &[Dots<'_>], charts: &[Chart<'_>]) -> Result<String> {
    let failed = || Error::io("cannot write the plot", path);
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(path).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let spawned = python.spawn();
    let mut child = spawned.map_err(|source| Error::Spawn { what: "python3, which draws the plot,".into(), source })?;
    // It reads all of it before it writes anything, and says itself why if it does not.
    let given = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(table(dots, charts).as_bytes()));
    let output = child.wait_with_output().map_err(failed())?;
    if !output.status.success() {
        return Err(failed()(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())));
    }
    given.map_err(failed())?;
    Ok(format!("plotted in {}\n", path.display()))
}

/// The values, one a line; of a chart without any its titles.
fn table(dots: &[Dots<'_>], charts: &[Chart<'_>]) -> String {
    let mut out = COLUMNS.to_owned();
    let mut row = |cells: [&dyn Display; 12]| {
        let quoted = cells.map(|cell| format!("\"{}\"", cell.to_string().replace('"', "\"\"")));
        out += &(quoted.join(",") + "\n");
    };
    let none = &"";
    for (number, Dots { title, x_title, rows, bound }) in dots.iter().enumerate() {
        let bound: &dyn Display = bound.as_ref().map_or(none, |bound| bound);
        if rows.is_empty() {
            row([&number, &"dot", title, x_title, none, none, none, none, none, none, none, bound]);
        }
        for Dot { name, value, spread: (low, high), colour } in rows {
            row([&number, &"dot", title, x_title, none, name, colour, none, value, low, high, bound]);
        }
    }
    for (number, Chart { title, x_title, y_title, lines }) in (dots.len()..).zip(charts) {
        if lines.iter().all(|line| line.points.is_empty()) {
            row([&number, &"curve", title, x_title, y_title, none, none, none, none, none, none, none]);
        }
        for (colour, line) in lines.iter().enumerate() {
            for (at, (x, y)) in line.points.iter().enumerate() {
                let (low, high): (&dyn Display, &dyn Display) = match line.spread.get(at) {
                    Some((low, high)) => (low, high),
                    None => (none, none),
                };
                row([&number, &"curve", title, x_title, y_title, &line.name, &colour, x, y, low, high, none]);
            }
        }
    }
    out
}

impl<'a> Chart<'a> {
    pub(super) fn new(title: &'a str, x_title: &'a str, y_title: &'a str, lines: Vec<Line>) -> Chart<'a> {
        Chart { title, x_title, y_title, lines }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_its_axes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        let mut line = Line::new("put");
        line.points = vec![(64.0, 3.5), (1024.0, 50.0), (16_777_216.0, 700.0)];
        line.spread = vec![(0.0, 4.0), (40.0, 60.0)];
        let empty = || Chart { title: "Nothing", x_title: "", y_title: "", lines: Vec::new() };
        let lines = vec![Line::new("none"), line];
        let chart = Chart { title: "Copies", x_title: "bytes", y_title: "MB/s", lines };
        let report = write(&path, &[chart, empty()]).unwrap();
        assert_eq!(report, format!("plotted in {}\n", path.display()));
        let svg = std::fs::read_to_string(&path).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for text in ["put", "Copies", "MB/s", "bytes", "Nothing", "1000", "16M"] {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text} is not in {svg}");
        }
        assert!(!svg.contains("\nnone\n"));
        let error = write(&dir.path().join("no/plot.svg"), &[empty()]).unwrap_err().to_string();
        assert!(error.contains("cannot write the plot") && error.contains("no/plot.svg"), "{error}");
    }

    #[test]
    fn figures_have_their_names_beside_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        let row = |name: &str, value| Dot { name: name.into(), value, spread: (value / 2.0, value * 2.0), colour: 1 };
        let rows = vec![row("store 3.00", 3.0), row("load 40.0", 40.0)];
        let dots = Dots { title: "All", x_title: "us", rows, bound: Some(1.0) };
        let none = Dots { title: "None", x_title: "", rows: Vec::new(), bound: None };
        // Twice what is around figures, two of them, and a chart.
        let height = 90 * 2 + 16 * 2 + 440;
        write_all(&path, &[dots, none], &[Chart::new("Copies", "", "", Vec::new())]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["store 3.00", "load 40.0", "All", "None", "Copies", "us", "100"] {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text} is not in {svg}");
        }
        assert!(svg.contains(&format!("height=\"{height}\"")), "{svg}");
    }

    #[test]
    fn an_axis_holds_all_values_above_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plot.svg");
        let labels = |dots: &[Dots<'_>], charts: &[Chart<'_>], there: &[&str], beyond: &[&str]| {
            write_all(&path, dots, charts).unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            let has = |label: &&str| svg.contains(&format!(">\n{label}\n<"));
            assert!(there.iter().all(has) && !beyond.iter().any(has), "{there:?} and not {beyond:?}: {svg}");
        };
        let dot = Dot { name: "all".into(), value: 0.02, spread: (0.0, 700.0), colour: 0 };
        let dots = Dots { title: "", x_title: "", rows: vec![dot], bound: None };
        labels(&[dots], &[], &["0.01", "0.1", "1", "10", "100", "1000"], &["0.001", "10000"]);
        let chart = |points: &[(f64, f64)]| Chart::new("", "", "", vec![Line::through("a", points.iter().copied())]);
        labels(&[], &[chart(&[(4.0, 300.0)])], &["4", "8", "100", "1000"], &["2", "16", "10", "10000"]);
        labels(&[], &[chart(&[])], &["1", "2", "10"], &["0.5", "4", "100"]);
    }
}
