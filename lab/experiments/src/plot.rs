// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain line charts on two logarithmic axes, and figures with their spreads on one, as SVG.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::io;
use std::path::Path;
use telegraphos_cluster::{Error, Result};

pub(super) struct Line {
    name: String,
    /// (x, y), both greater than 0.
    pub(super) points: Vec<(f64, f64)>,
    /// (x, from, to): how far apart the measurements lie. Not drawn where `from` is 0.
    pub(super) spread: Vec<(f64, f64, f64)>,
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
        let spreads = spreads.map(|(x, [median, low, high])| ((x, median), (x, low, high)));
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

/// Width and height of a chart, and the width of its frame; the rest is for the names of the curves.
const SIZE: (u32, u32) = (760, 440);
const FRAME: u32 = 640;
/// Width of the names of figures, height of one, and height of all that is around them.
const NAMES: u32 = 360;
const ROW: u32 = 16;
const AROUND: u32 = 90;
/// Height of a label.
const LABEL: i32 = 14;
/// Distinct also for colour-blind readers.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(119, 119, 119),
    RGBColor(136, 34, 85),
    RGBColor(102, 102, 51),
];

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;

/// Writes charts, one below the other, into an SVG file; the line of the report that names the file.
pub(super) fn write(path: &Path, charts: &[Chart<'_>]) -> Result<String> {
    write_all(path, &[], charts)
}

pub(super) fn write_all(path: &Path, dots: &[Dots<'_>], charts: &[Chart<'_>]) -> Result<String> {
    let draw = || -> Drawn {
        let height = dots.iter().map(Dots::height).sum::<u32>() + SIZE.1 * charts.len() as u32;
        let page = SVGBackend::new(path, (SIZE.0, height)).into_drawing_area();
        page.fill(&WHITE)?;
        let mut rest = page.clone();
        for dots in dots {
            let (area, below) = rest.split_vertically(dots.height());
            dots.draw(&area)?;
            rest = below;
        }
        for chart in charts {
            let (area, below) = rest.split_vertically(SIZE.1);
            chart.draw(&area)?;
            rest = below;
        }
        Ok(page.present()?)
    };
    draw().map_err(|e| Error::io("cannot write the plot", path)(io::Error::other(e.to_string())))?;
    Ok(format!("plotted in {}\n", path.display()))
}

impl<'a> Chart<'a> {
    pub(super) fn new(title: &'a str, x_title: &'a str, y_title: &'a str, lines: Vec<Line>) -> Chart<'a> {
        Chart { title, x_title, y_title, lines }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let spread = self.lines.iter().flat_map(|line| &line.spread);
        let spread = spread.flat_map(|(x, low, high)| [(*x, *low), (*x, *high)]);
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied()).chain(spread.clone());
        let (frame, names) = area.split_horizontally(FRAME);
        let mut chart = ChartBuilder::on(&frame)
            .caption(self.title, ("sans-serif", 15))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                range(2.0, points().map(|(x, _)| x)).log_scale().base(2.0),
                range(10.0, points().map(|(_, y)| y)).log_scale(),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x_title)
            .y_desc(self.y_title)
            .x_label_formatter(&|x| binary(*x))
            .y_label_formatter(&|y| format!("{y}"))
            .draw()?;
        for (index, line) in self.lines.iter().enumerate().filter(|(_, line)| !line.points.is_empty()) {
            let colour = COLOURS[index % COLOURS.len()];
            // The first is the baseline, and lies under the others; dashes show which curve lies under another.
            let style = colour.stroke_width(if index == 0 { 3 } else { 2 });
            let points = line.points.iter().copied();
            if index % 2 == 0 {
                chart.draw_series(LineSeries::new(points.clone(), style))?;
            } else {
                chart.draw_series(DashedLineSeries::new(points.clone(), 8, 4, style))?;
            }
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
            let bars = line.spread.iter().filter(|(_, low, _)| *low > 0.0);
            chart.draw_series(bars.map(|(x, low, high)| PathElement::new([(*x, *low), (*x, *high)], colour)))?;
            let text = ("sans-serif", 12).into_font().color(&colour).pos(Pos::new(HPos::Left, VPos::Center));
            names.draw(&Text::new(line.name.as_str(), (0, 40 + index as i32 * LABEL), text))?;
        }
        Ok(())
    }
}

impl Dots<'_> {
    fn height(&self) -> u32 {
        AROUND + ROW * self.rows.len() as u32
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Drawn {
        let values = self.rows.iter().flat_map(|row| [row.value, row.spread.0, row.spread.1]).chain(self.bound);
        let (range, rows) = (range(10.0, values), self.rows.len().max(1) as f64);
        let from = range.start;
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 15))
            .margin(10)
            .margin_left(NAMES)
            .x_label_area_size(40)
            .build_cartesian_2d(range.log_scale(), 0.0..rows)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x_title)
            .x_label_formatter(&|x| format!("{x}"))
            .draw()?;
        if let Some(bound) = self.bound {
            chart.draw_series([PathElement::new([(bound, 0.0), (bound, rows)], BLACK)])?;
        }
        for (index, row) in self.rows.iter().enumerate() {
            let (y, colour) = (rows - index as f64 - 0.5, COLOURS[row.colour % COLOURS.len()]);
            let spread = [row.spread.0, row.spread.1].map(|x| (x.max(from), y));
            chart.draw_series([PathElement::new(spread, colour.stroke_width(2))])?;
            chart.draw_series([Circle::new((row.value.max(from), y), 3, colour.filled())])?;
            let text = ("sans-serif", 12).into_font().color(&colour).pos(Pos::new(HPos::Right, VPos::Center));
            chart.draw_series([EmptyElement::at((from, y)) + Text::new(row.name.clone(), (-6, 0), text)])?;
        }
        Ok(())
    }
}

/// The range of the values above 0, widened to powers of `base`.
fn range(base: f64, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
    let logs = values.filter(|v| *v > 0.0).map(|v| v.log(base));
    let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let (low, high) = if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil()) };
    base.powf(low)..base.powf(high.max(low + 1.0))
}

/// A power of two with its binary prefix.
fn binary(value: f64) -> String {
    match value {
        v if v >= 1_048_576.0 => format!("{}M", v / 1_048_576.0),
        v if v >= 1024.0 => format!("{}K", v / 1024.0),
        v => v.to_string(),
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
        line.spread = vec![(64.0, 0.0, 4.0), (1024.0, 40.0, 60.0)];
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
        let height = AROUND * 2 + ROW * 2 + SIZE.1;
        write_all(&path, &[dots, none], &[Chart::new("Copies", "", "", Vec::new())]).unwrap();
        let svg = std::fs::read_to_string(&path).unwrap();
        for text in ["store 3.00", "load 40.0", "All", "None", "Copies", "us", "100"] {
            assert!(svg.contains(&format!(">\n{text}\n<")), "{text} is not in {svg}");
        }
        assert!(svg.contains(&format!("height=\"{height}\"")), "{svg}");
    }

    #[test]
    fn an_axis_holds_all_values_above_zero() {
        assert_eq!(range(10.0, [0.0, 0.02, 700.0].into_iter()), 0.01..1000.0);
        assert_eq!(range(2.0, [4.0].into_iter()), 4.0..8.0);
        assert_eq!(range(2.0, [].into_iter()), 1.0..2.0);
    }
}
