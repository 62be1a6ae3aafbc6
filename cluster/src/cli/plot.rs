// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain line charts on two logarithmic axes, as SVG.

use std::fmt::Write;

/// One curve.
pub(super) struct Line {
    name: String,
    /// (x, y), both greater than 0.
    pub(super) points: Vec<(f64, f64)>,
    /// (x, from, to): how far apart the measurements lie.
    pub(super) spread: Vec<(f64, f64, f64)>,
}

impl Line {
    pub(super) fn new(name: &str) -> Line {
        Line { name: name.to_owned(), points: Vec::new(), spread: Vec::new() }
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

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 60.0;
/// Distinct also for those who do not tell red from green.
const COLOURS: [&str; 10] =
    ["#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777", "#882255", "#666633"];
/// So that a line shows which lies under another.
const DASHES: [&str; 5] = ["none", "8 4", "3 3", "12 3 3 3", "5 8"];
/// Height of a label.
const LABEL: f64 = 14.0;

/// Charts, one below the other.
pub(super) fn page(charts: &[Chart<'_>]) -> String {
    let height = HEIGHT * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, one) in charts.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<g transform=\"translate(0 {})\">\n{}</g>", HEIGHT * index as f64, chart(one));
    }
    svg + "</svg>\n"
}

fn chart(chart: &Chart<'_>) -> String {
    let Chart { title, x_title, y_title, lines } = chart;
    let points = || {
        let spread = |line: &Line| line.spread.iter().flat_map(|(x, low, high)| [(*x, *low), (*x, *high)]).collect();
        let all = lines.iter().flat_map(move |line| [line.points.clone(), spread(line)].concat());
        all.filter(|(x, y)| *x > 0.0 && *y > 0.0)
    };
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        if low > high { (0.0, 1.0) } else { (low.floor(), high.ceil().max(low.floor() + 1.0)) }
    };
    // Powers of two across, of ten upwards.
    let (x0, x1) = range(&mut points().map(|(x, _)| x.log2()));
    let (y0, y1) = range(&mut points().map(|(_, y)| y.log10()));
    let across = |x: f64| LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let up = |y: f64| HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let mut svg = format!("<text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{title}</text>\n");
    // Writing to a string cannot fail.
    let mut text = |x: f64, y: f64, anchor: &str, what: &str| {
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
    };
    text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 16.0, "middle", x_title);
    text(LEFT - 8.0, TOP - 10.0, "end", y_title);
    let step = if x1 - x0 > 7.0 { 2.0 } else { 1.0 };
    let (mut x, mut grid) = (x0, String::new());
    while x <= x1 {
        text(across(x), HEIGHT - BOTTOM + 18.0, "middle", &bytes(x));
        let _ = writeln!(grid, "<path d=\"M{0:.1} {TOP}V{1:.1}\"/>", across(x), HEIGHT - BOTTOM);
        x += step;
    }
    let mut y = y0;
    while y <= y1 {
        text(LEFT - 8.0, up(y) + 4.0, "end", &decimal(y));
        let _ = writeln!(grid, "<path d=\"M{LEFT} {0:.1}H{1:.1}\"/>", up(y), WIDTH - RIGHT);
        y += 1.0;
    }
    let _ = writeln!(svg, "<g stroke=\"#dddddd\">\n{grid}</g>");
    let mut labels: Vec<f64> = Vec::new();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.points.is_empty()) {
        let (colour, dashes) = (COLOURS[index % COLOURS.len()], DASHES[index % DASHES.len()]);
        // The first is the yardstick, and lies under the others.
        let width = if index == 0 { 3.0 } else { 1.8 };
        let place = |(x, y): &(f64, f64)| (across(x.log2()), up(y.log10()));
        let path: Vec<String> = line.points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\" \
             points=\"{}\"/>",
            path.join(" ")
        );
        for (x, low, high) in line.spread.iter().filter(|(_, low, _)| *low > 0.0) {
            let (x, low, high) = (across(x.log2()), up(low.log10()), up(high.log10()));
            let _ = writeln!(svg, "<path stroke=\"{colour}\" d=\"M{x:.1} {low:.1}V{high:.1}\"/>");
        }
        for (x, y) in line.points.iter().map(place) {
            let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"/>");
        }
        if let Some((x, y)) = line.points.last().map(place) {
            let y = free(y + 4.0, &labels);
            labels.push(y);
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{}</text>", x + 8.0, line.name);
        }
    }
    svg
}

/// The height nearest to `wanted` at which a label covers no other, within the frame if there is room.
fn free(wanted: f64, labels: &[f64]) -> f64 {
    let steps = (0..=(HEIGHT - TOP - BOTTOM) as i32).flat_map(|step| [f64::from(step), -f64::from(step)]);
    let clear = |y: &f64| labels.iter().all(|label| (label - y).abs() >= LABEL);
    let within = |y: &f64| (TOP..=HEIGHT - BOTTOM + 4.0).contains(y);
    steps.map(|step| wanted + step).find(|y| clear(y) && within(y)).unwrap_or(wanted)
}

/// 10 to the `exponent`, without the noise of binary fractions.
fn decimal(exponent: f64) -> String {
    format!("{:.*}", (-exponent).max(0.0) as usize, 10f64.powf(exponent))
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
        let lines = vec![Line::new("none"), line];
        let svg = page(&[Chart { title: "Copies", x_title: "bytes", y_title: "MB/s", lines }]);
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">put<") && !svg.contains(">none<") && svg.contains(">16M<") && svg.contains(">1000<"));
        let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        for point in points.split(' ') {
            let (x, y) = point.split_once(',').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y), "{point}");
        }
        assert!(page(&[]).contains("</svg>"), "without a chart");
        let empty = || Chart { title: "", x_title: "", y_title: "", lines: Vec::new() };
        let two = page(&[empty(), empty()]);
        assert!(two.contains("translate(0 440)") && two.contains("0 0 760 880"), "without a point: {two}");
    }

    /// Ten lines that end in one point have ten labels, none over another.
    #[test]
    fn labels_do_not_cover_each_other() {
        let mut labels = Vec::new();
        for _ in 0..10 {
            labels.push(free(HEIGHT - BOTTOM - 5.0, &labels));
        }
        labels.sort_by(f64::total_cmp);
        assert!(labels.windows(2).all(|pair| pair[1] - pair[0] >= LABEL), "{labels:?}");
        assert!(labels[0] >= TOP && labels[9] <= HEIGHT, "{labels:?}");
        assert_eq!([-3.0, -1.0, 0.0, 6.0].map(decimal), ["0.001", "0.1", "1", "1000000"]);
    }
}
