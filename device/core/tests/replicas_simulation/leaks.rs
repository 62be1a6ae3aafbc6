// SPDX-License-Identifier: MIT OR Apache-2.0
//! No leaks: a board that has returned everything equals a new one.

use super::world::{NODES, World, boards, give_back};
use crate::common::Driver;
use telegraphos_device_core::Hib;

/// Fields to ignore, by name in the board's debug output: counts (incarnations, requests, numbers that are not reused);
/// state that is kept until its node's next incarnation; rings, of which there may be others; and deliberate
/// bugs.
const COUNTS: [&str; 18] = [
    "bug",
    "incarnation",
    "posted",
    "consumer",
    "accepted",
    "requests_sent",
    "tag_generation",
    "tag_epoch",
    "performed",
    "generation",
    "resets",
    "openings",
    "epochs",
    "refusals",
    "reserve",
    "next",
    "counters",
    "rings",
];

/// With more than two, the switch returns some only when more are used (its audit adds them up).
const CREDITS_AT_ONCE: u32 = 2;

/// The board's state, one line for each field or element, without the ignored fields, and without tables that are
/// allocated at their first use and contain only zeros.
fn state(hib: &Hib) -> Vec<String> {
    let text = format!("{hib:#?}");
    let mut lines = Vec::new();
    // Inside an ignored field: its indentation, and the only content that is kept.
    let mut left_out: Option<(usize, Option<&str>)> = None;
    for line in text.lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim_start());
        if let Some((until, content)) = left_out {
            if indent > until {
                if content.is_some_and(|content| content != line) {
                    lines.push(line.to_owned());
                }
                continue;
            }
            left_out = None;
            if line.starts_with([']', '}', ')']) {
                continue;
            }
        }
        let name = line.split(':').next().unwrap_or("");
        let credits = name == "credits" && hib.config().credits[0] > CREDITS_AT_ONCE;
        if COUNTS.contains(&name) || credits || name == "slots" {
            left_out = line.ends_with(['[', '{', '(']).then_some((indent, (name == "slots").then_some("0,")));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// Whether nothing by a ring is unanswered: what the rings' debug output says of it.
fn rings_at_rest(hib: &Hib) -> bool {
    let text = format!("{hib:#?}");
    let rings = text.lines().skip_while(|line| !line.trim_start().starts_with("rings: Rings"));
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut rings = rings.peekable();
    let outer = rings.peek().map_or(0, |line| depth(line));
    let inside = rings.skip(1).take_while(|line| depth(line) > outer);
    inside.map(str::trim).all(|line| match line.split(':').next() {
        Some("in_flight") => line == "in_flight: 0,",
        Some("requests") => line == "requests: [],",
        _ => true,
    })
}

/// Compares all boards with new ones.
pub(crate) fn check(world: &mut World, seed: u64) -> Result<(), String> {
    let mut fresh = boards(seed, None, None);
    for node in 0..NODES {
        fresh.take_events(node);
    }
    give_back(&mut fresh);
    for (id, (used, new)) in world.cluster.nodes.iter().zip(&fresh.nodes).enumerate() {
        if !rings_at_rest(&used.hib) {
            return Err(format!("node {id} has something unanswered at a ring: {:#?}", used.hib));
        }
        let (used, new) = (state(&used.hib), state(&new.hib));
        if let Some(at) = (0..used.len().max(new.len())).find(|at| used.get(*at) != new.get(*at)) {
            let part =
                |lines: &[String]| lines[at.saturating_sub(6).min(lines.len())..(at + 6).min(lines.len())].join(" ");
            return Err(format!("node {id} has left something: «{}» instead of «{}»", part(&used), part(&new)));
        }
    }
    Ok(())
}
