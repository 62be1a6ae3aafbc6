// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run as a drawing: a panel for each part, with the three nodes, the ways of the data, and the lines of the table.

use super::Part;
use super::row::{Row, grouped, short};
use std::fmt::Write;

/// Width and height of a panel, and of what is above all panels.
const PANEL: (f64, f64) = (350.0, 290.0);
const TOP: f64 = 64.0;
const MARGIN: f64 = 16.0;
const COLUMNS: usize = 3;
/// Half the width of a node's box, and half its height.
const NODE: (f64, f64) = (38.0, 17.0);
/// How far the two arrows between two nodes are from the line between.
const BESIDE: f64 = 5.0;
/// Where the nodes are in a panel.
const PLACES: [(f64, f64); 3] = [(75.0, 65.0), (275.0, 65.0), (175.0, 150.0)];
/// Distinct also for colour-blind readers, as the mark is.
const RIGHT: &str = "#007a5e";
const WRONG: &str = "#c0392b";

/// The text of an SVG file.
pub(super) fn draw(rows: &[Row], footer: &str) -> String {
    let mut parts: Vec<Part> = rows.iter().map(|row| row.part).collect();
    parts.dedup();
    let lines = parts.len().div_ceil(COLUMNS);
    let (width, height) = (MARGIN + COLUMNS as f64 * (PANEL.0 + MARGIN), TOP + lines as f64 * (PANEL.1 + MARGIN));
    // Writing to a String cannot fail.
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" \
         markerWidth=\"7\" markerHeight=\"7\" orient=\"auto-start-reverse\"><path d=\"M0 0L8 4L0 8z\" fill=\"#335577\"/></marker></defs>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
    );
    let colour = if rows.iter().all(|row| row.ok) { RIGHT } else { WRONG };
    text(
        &mut out,
        (MARGIN, 28.0),
        "font-size=\"18\" font-weight=\"bold\"",
        "Telegraphos: three virtual machines store into each other's memory",
    );
    text(&mut out, (MARGIN, 50.0), &format!("fill=\"{colour}\""), footer);
    for (number, part) in parts.into_iter().enumerate() {
        let x = MARGIN + (number % COLUMNS) as f64 * (PANEL.0 + MARGIN);
        let y = TOP + (number / COLUMNS) as f64 * (PANEL.1 + MARGIN);
        let _ = writeln!(out, "<g transform=\"translate({x:.0} {y:.0})\">");
        panel(&mut out, part, rows);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

fn panel(out: &mut String, part: Part, rows: &[Row]) {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.part == part).collect();
    let _ = writeln!(
        out,
        "<rect width=\"{:.0}\" height=\"{:.0}\" rx=\"8\" fill=\"#f7f9fb\" stroke=\"#c4ccd4\"/>",
        PANEL.0, PANEL.1
    );
    text(out, (14.0, 24.0), "font-size=\"14\" font-weight=\"bold\"", part.title());
    let mut ways: Vec<(u16, u16)> = rows.iter().flat_map(|row| row.ways.iter().copied()).collect();
    ways.sort_unstable();
    ways.dedup();
    for (from, to) in &ways {
        if let (Some(from), Some(to)) = (PLACES.get(usize::from(*from)), PLACES.get(usize::from(*to))) {
            arrow(out, *from, *to);
        }
    }
    for (node, (x, y)) in PLACES.iter().enumerate() {
        let _ = writeln!(
            out,
            "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"6\" fill=\"#dbe9f6\" stroke=\"#335577\"/>",
            x - NODE.0,
            y - NODE.1,
            2.0 * NODE.0,
            2.0 * NODE.1
        );
        text(out, (*x, y + 4.0), "text-anchor=\"middle\"", &format!("node {node}"));
    }
    let mut y = 190.0;
    for row in rows {
        let (mark, colour) = if row.ok { ("\u{2713}", RIGHT) } else { ("\u{2717}", WRONG) };
        text(out, (14.0, y), "font-weight=\"bold\"", &format!("{} {}", row.what, row.way));
        let took = if row.took == "-" { String::new() } else { format!(", {} at the board", row.took) };
        text(out, (14.0, y + 16.0), "", &format!("{} in {} each{took}", grouped(row.count), short(row.time)));
        text(out, (14.0, y + 32.0), &format!("fill=\"{colour}\""), &format!("{mark} {}", row.check));
        y += 54.0;
    }
}

fn text(out: &mut String, (x, y): (f64, f64), style: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.0}\" y=\"{y:.0}\" {style}>{text}</text>");
}

/// From the edge of one node's box to that of another, or from a box back to itself. What goes the other way is beside
/// it.
fn arrow(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    const LINE: &str = "fill=\"none\" stroke=\"#335577\" stroke-width=\"1.6\" marker-end=\"url(#head)\"";
    let ((x, y), (dx, dy)) = (from, (to.0 - from.0, to.1 - from.1));
    let length = dx.hypot(dy);
    if length == 0.0 {
        let (left, right, top) = (x - 16.0, x + 16.0, y + NODE.1);
        let _ = writeln!(
            out,
            "<path d=\"M{left:.1} {top:.1}C{left:.1} {:.1} {right:.1} {:.1} {right:.1} {:.1}\" {LINE}/>",
            top + 30.0,
            top + 30.0,
            top + 2.0
        );
        return;
    }
    let unit = (dx / length, dy / length);
    let shift = (-unit.1 * BESIDE, unit.0 * BESIDE);
    // As far as the box around the centre of a line reaches in a direction along it, and a little more.
    let reach = |(ux, uy): (f64, f64)| {
        let along = |half: f64, shift: f64, unit: f64| (half - shift * unit.signum()) / unit.abs();
        along(NODE.0, shift.0, ux).min(along(NODE.1, shift.1, uy)) + 3.0
    };
    let at = |distance: f64| (x + unit.0 * distance + shift.0, y + unit.1 * distance + shift.1);
    let (begin, end) = (at(reach(unit)), at(length - reach((-unit.0, -unit.1))));
    let _ = writeln!(out, "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" {LINE}/>", begin.0, begin.1, end.0, end.1);
}

#[cfg(test)]
mod tests {
    use super::super::row::sample;
    use super::*;

    #[test]
    fn a_picture_has_a_panel_for_each_part() {
        let mut back = sample(Part::Store, true);
        (back.ways, back.way) = (vec![(1, 0)], "1 -> 0");
        let svg = draw(&[sample(Part::Store, true), back, sample(Part::Load, false)], "2 < 3 checks");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        for part in [
            "Remote stores",
            "Remote loads",
            "store, 8 to 64 bit 1 -&gt; 0",
            "35 424 in 0.81 us each, 1 store at the board",
            "2 &lt; 3 checks",
        ] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!((svg.matches("<g ").count(), svg.matches("marker-end").count()), (2, 3));
        assert_eq!((svg.matches('\u{2713}').count(), svg.matches('\u{2717}').count()), (2, 1));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
