// SPDX-License-Identifier: MIT OR Apache-2.0
//! A plain line chart on two logarithmic axes, as SVG.

use std::fmt::Write;

/// One curve.
pub(super) struct Line {
    name: String,
    /// (x, y), both greater than 0.
    pub(super) points: Vec<(f64, f64)>,
}

impl Line {
    pub(super) fn new(name: &str) -> Line {
        Line { name: name.to_owned(), points: Vec::new() }
    }
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Distinct also for those who do not tell red from green.
const COLOURS: [&str; 6] = ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"];

/// The chart. Lines without points are left out.
pub(super) fn log_log(title: &str, x_title: &str, y_title: &str, lines: &[Line]) -> String {
    let points = || lines.iter().flat_map(|line| &line.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil().max(low.floor() + 1.0)) }
    };
    // Powers of two across, of ten upwards.
    let (x0, x1) = range(&mut points().map(|(x, _)| x.log2()));
    let (y0, y1) = range(&mut points().map(|(_, y)| y.log10()));
    let across = |x: f64| LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let up = |y: f64| HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"24\" \
         font-size=\"15\">{title}</text>\n"
    );
    // Writing to a string cannot fail.
    let mut text = |x: f64, y: f64, anchor: &str, what: &str| {
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
    };
    text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0, "middle", x_title);
    text(LEFT - 8.0, TOP - 10.0, "end", y_title);
    let (mut x, mut grid) = (x0, String::new());
    while x <= x1 {
        text(across(x), HEIGHT - BOTTOM + 18.0, "middle", &bytes(x));
        let _ = writeln!(grid, "<path d=\"M{0:.1} {TOP}V{1:.1}\"/>", across(x), HEIGHT - BOTTOM);
        x += 2.0;
    }
    let mut y = y0;
    while y <= y1 {
        text(LEFT - 8.0, up(y) + 4.0, "end", &format!("{}", 10f64.powf(y)));
        let _ = writeln!(grid, "<path d=\"M{LEFT} {0:.1}H{1:.1}\"/>", up(y), WIDTH - RIGHT);
        y += 1.0;
    }
    let _ = writeln!(svg, "<g stroke=\"#dddddd\">\n{grid}</g>");
    let mut labels: Vec<f64> = Vec::new();
    for (line, colour) in lines.iter().filter(|line| !line.points.is_empty()).zip(COLOURS.iter().cycle()) {
        let place = |(x, y): &(f64, f64)| (across(x.log2()), up(y.log10()));
        let path: Vec<String> = line.points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for (x, y) in line.points.iter().map(place) {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
        if let Some((x, y)) = line.points.last().map(place) {
            // Below those that are there already.
            let (x, mut y) = (x + 8.0, y + 4.0);
            while labels.iter().any(|label| (label - y).abs() < 14.0) {
                y += 1.0;
            }
            labels.push(y);
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", line.name);
        }
    }
    svg += "</svg>\n";
    svg
}

/// 2 to the `exponent` bytes, as people write it.
fn bytes(exponent: f64) -> String {
    let (value, unit) = match exponent {
        e if e >= 20.0 => (e - 20.0, "M"),
        e if e >= 10.0 => (e - 10.0, "K"),
        e => (e, ""),
    };
    format!("{}{unit}", value.exp2())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_lines_and_stays_within_its_frame() {
        let mut line = Line::new("put");
        line.points = vec![(64.0, 3.5), (1024.0, 50.0), (16_777_216.0, 700.0)];
        let svg = log_log("Copies", "bytes", "MB/s", &[Line::new("none"), line]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">put<") && !svg.contains(">none<") && svg.contains(">16M<") && svg.contains(">1000<"));
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
        }
        assert!(log_log("", "", "", &[]).contains("</svg>"), "without a point");
    }
}
