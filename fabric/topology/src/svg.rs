// SPDX-License-Identifier: MIT OR Apache-2.0
//! A drawing of a topology as SVG: meshes and toruses as a grid, trees level by level, graphs on a circle.

use std::fmt::Write;

use crate::topology::Routing;
use crate::{Plan, SwitchId};

/// Sizes in pixels.
const BOX_HEIGHT: f64 = 36.0;
const MARGIN: f64 = 20.0;
/// Width of a character of 12 pixels, roughly.
const CHARACTER: f64 = 6.8;
/// Boxes of one process have one colour. Colours repeat only in drawings that are too large to read.
const COLOURS: [&str; 8] = ["#dbe9f6", "#fde5c8", "#dff0d8", "#f6dbe9", "#e8e0f5", "#fff6bf", "#d5f0ef", "#e6e6e6"];

type Point = (f64, f64);

impl Plan {
    /// The topology as SVG: always the same text for the same topology.
    pub fn svg(&self) -> String {
        let t = &self.topology;
        let label = |switch| (t.name(switch), self.nodes_label(switch));
        let longest = (0..t.switches()).map(label).map(|(name, nodes)| name.len().max(nodes.len())).max();
        let width = (longest.unwrap_or(0) as f64 * CHARACTER + 16.0).max(56.0).round();
        let centres = self.centres(width);
        let extent = |of: fn(&Point) -> f64| centres.iter().map(of).fold(0.0, f64::max);
        let legend = if self.processes().len() > 1 { 24.0 * self.processes().len() as f64 } else { 0.0 };
        let right = extent(|p| p.0) + width / 2.0 + MARGIN;
        let bottom = extent(|p| p.1) + BOX_HEIGHT / 2.0 + MARGIN;
        // Writing to a String cannot fail.
        let mut out = String::new();
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right:.0} {:.0}\" font-family=\"sans-serif\" \
             font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>",
            bottom + legend
        );
        let addresses = self.draw_trunks(&mut out, &centres, width);
        for switch in 0..t.switches() {
            let (x, y) = centres[usize::from(switch)];
            let (name, nodes) = label(switch);
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.0}\" height=\"{BOX_HEIGHT:.0}\" rx=\"6\" fill=\"{}\" stroke=\"#333333\"/>",
                x - width / 2.0,
                y - BOX_HEIGHT / 2.0,
                colour(self.process_index(switch))
            );
            let first = if nodes.is_empty() { y + 4.0 } else { y - 3.0 };
            let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{first:.1}\" font-weight=\"bold\">{}</text>", escaped(&name));
            if !nodes.is_empty() {
                let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{:.1}\">{}</text>", y + 12.0, escaped(&nodes));
            }
        }
        out.push_str(&addresses);
        if self.processes().len() > 1 {
            for (index, process) in self.processes().iter().enumerate() {
                let y = bottom + 24.0 * index as f64;
                let _ = writeln!(
                    out,
                    "<rect x=\"{MARGIN:.0}\" y=\"{y:.1}\" width=\"16\" height=\"16\" fill=\"{}\" stroke=\"#333333\"/>\n\
                     <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"start\">process {}</text>",
                    colour(index),
                    MARGIN + 24.0,
                    y + 12.0,
                    escaped(process)
                );
            }
        }
        out.push_str("</svg>\n");
        out
    }

    /// Draws the trunks and returns the texts that come above everything else.
    fn draw_trunks(&self, out: &mut String, centres: &[Point], width: f64) -> String {
        let mut labels = String::new();
        out.push_str("<g stroke=\"#555555\" stroke-width=\"1.5\" stroke-linejoin=\"round\" fill=\"none\">\n");
        for (id, trunk) in (0..).zip(self.topology.trunks()) {
            let (from, to) = (centres[usize::from(trunk.a)], centres[usize::from(trunk.b)]);
            let address = self.address(id);
            let dashes = if address.is_some() { " stroke-dasharray=\"6 4\"" } else { "" };
            let _ = match self.detour(trunk.a, trunk.b, from, to, width) {
                None => writeln!(out, "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\"{dashes}/>", from.0, from.1, to.0, to.1),
                Some(path) => writeln!(out, "<path d=\"{path}\" stroke=\"#999999\"{dashes}/>"),
            };
            if let Some(address) = address {
                // Nearer to the listener: in the middle of a circle, trunks cross.
                let (near, far) = if address.listener == trunk.a { (from, to) } else { (to, from) };
                let _ = writeln!(
                    labels,
                    "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\" stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\">{}</text>",
                    near.0 + (far.0 - near.0) * 0.4,
                    near.1 + (far.1 - near.1) * 0.4 - 4.0,
                    escaped(&address.at)
                );
            }
        }
        out.push_str("</g>\n");
        labels
    }

    /// The line of a wrap-around trunk: beside the other trunks of its row or column, around the boxes.
    fn detour(&self, a: SwitchId, b: SwitchId, from: Point, to: Point, width: f64) -> Option<String> {
        const BESIDE: f64 = 12.0;
        let Routing::Grid(grid) = &self.topology.routing else { return None };
        let ((ax, ay), (bx, by)) = (grid.place(a), grid.place(b));
        if ax.abs_diff(bx) > 1 {
            let (left, right) = (from.0 + width / 4.0, to.0 - width / 4.0);
            let y = from.1 - BOX_HEIGHT / 2.0 - BESIDE;
            Some(format!("M{left:.1} {:.1}V{y:.1}H{right:.1}V{:.1}", from.1, to.1))
        } else if ay.abs_diff(by) > 1 {
            let (upper, lower) = (from.1 + BOX_HEIGHT / 4.0, to.1 - BOX_HEIGHT / 4.0);
            let x = from.0 - width / 2.0 - BESIDE;
            Some(format!("M{:.1} {upper:.1}H{x:.1}V{lower:.1}H{:.1}", from.0, to.0))
        } else {
            None
        }
    }

    /// The middle of the box of each switch, if boxes are so wide.
    fn centres(&self, width: f64) -> Vec<Point> {
        let t = &self.topology;
        let left = MARGIN + width / 2.0;
        let top = MARGIN + BOX_HEIGHT / 2.0;
        match &t.routing {
            Routing::Star => vec![(left, top)],
            Routing::Grid(grid) => (0..t.switches())
                .map(|switch| {
                    let (x, y) = grid.place(switch);
                    (left + f64::from(x) * (width + 44.0), top + f64::from(y) * (BOX_HEIGHT + 44.0))
                })
                .collect(),
            Routing::Tree(tree) => {
                let mut centres = vec![(0.0, 0.0); t.switches().into()];
                // From the last switch on: those below a switch have their places before it.
                for switch in (0..t.switches()).rev() {
                    let y = top + f64::from(tree.level(switch)) * (BOX_HEIGHT + 60.0);
                    let x = match tree.below(switch) {
                        Some((first, last)) => (centres[usize::from(first)].0 + centres[usize::from(last)].0) / 2.0,
                        None => left + f64::from(switch - tree.first_leaf()) * (width + 16.0),
                    };
                    centres[usize::from(switch)] = (x, y);
                }
                centres
            }
            Routing::Graph(_) => {
                let count = f64::from(t.switches());
                // Neighbours on the circle are as far apart as the text between them is long.
                let addresses = (0..).zip(t.trunks()).filter_map(|(id, _)| self.address(id));
                let text = addresses.map(|address| address.at.chars().count()).max().unwrap_or(0);
                let apart = width + (text as f64 * CHARACTER * 10.0 / 12.0).max(24.0);
                let radius = if count < 2.0 { 0.0 } else { (count * apart / std::f64::consts::TAU).max(apart / 2.0) };
                let turn = |switch: SwitchId| std::f64::consts::TAU * f64::from(switch) / count;
                (0..t.switches())
                    .map(|switch| {
                        (left + radius * (1.0 + turn(switch).sin()), top + radius * (1.0 - turn(switch).cos()))
                    })
                    .collect()
            }
        }
    }
}

fn colour(process: usize) -> &'static str {
    COLOURS[process % COLOURS.len()]
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
