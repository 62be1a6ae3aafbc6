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

/// An element or field in debug output, and how many others it is in.
struct Line<'a> {
    depth: usize,
    text: &'a str,
}

/// The lines of what `{:#?}` writes, of what `{:?}` writes in a third of the time. Commas stay out.
fn lines(text: &str) -> Vec<Line<'_>> {
    let (mut lines, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, byte) in text.bytes().enumerate() {
        let end = match byte {
            b'{' | b'[' | b'(' => at + 1,
            b'}' | b']' | b')' | b',' => at,
            _ => continue,
        };
        let line = text[begin..end].trim();
        if !line.is_empty() {
            lines.push(Line { depth, text: line });
        }
        begin = at + 1;
        match byte {
            b'{' | b'[' | b'(' => depth += 1,
            b',' => {}
            _ => {
                depth -= 1;
                lines.push(Line { depth, text: &text[at..at + 1] });
            }
        }
    }
    lines
}

/// The board's state without the ignored fields, and without tables that are allocated at their first use and contain
/// only zeros.
fn state<'a>(hib: &Hib, lines: &[Line<'a>]) -> Vec<&'a str> {
    let mut state = Vec::new();
    // Inside an ignored field: its depth, and the only content that is left out.
    let mut left_out: Option<(usize, Option<&str>)> = None;
    for Line { depth, text } in lines {
        if let Some((until, content)) = left_out {
            if *depth > until {
                if content.is_some_and(|content| content != *text) {
                    state.push(*text);
                }
                continue;
            }
            left_out = None;
            if text.starts_with([']', '}', ')']) {
                continue;
            }
        }
        let name = text.split(':').next().unwrap_or("");
        let credits = name == "credits" && hib.config().credits[0] > CREDITS_AT_ONCE;
        if COUNTS.contains(&name) || credits || name == "slots" {
            left_out = text.ends_with(['[', '{', '(']).then_some((*depth, (name == "slots").then_some("0")));
        } else {
            state.push(*text);
        }
    }
    state
}

/// Whether nothing by a ring is unanswered: what the rings' debug output says of it.
fn rings_at_rest(lines: &[Line<'_>]) -> bool {
    let mut rings = lines.iter().skip_while(|line| !line.text.starts_with("rings: Rings"));
    let outer = rings.next().map_or(0, |line| line.depth);
    let mut inside = rings.take_while(|line| line.depth > outer).peekable();
    while let Some(line) = inside.next() {
        let rests = match line.text.split(':').next() {
            Some("in_flight") => line.text == "in_flight: 0",
            Some("requests") => line.text == "requests: [" && inside.peek().is_some_and(|next| next.text == "]"),
            _ => true,
        };
        if !rests {
            return false;
        }
    }
    true
}

/// Compares all boards with new ones.
pub(crate) fn check(world: &mut World, seed: u64) -> Result<(), String> {
    let mut fresh = boards(seed, None, None);
    for node in 0..NODES {
        fresh.take_events(node);
    }
    give_back(&mut fresh);
    for (id, (used, new)) in world.cluster.nodes.iter().zip(&fresh.nodes).enumerate() {
        let [used_text, new_text] = [used, new].map(|node| format!("{:?}", node.hib));
        let used_lines = lines(&used_text);
        if !rings_at_rest(&used_lines) {
            return Err(format!("node {id} has something unanswered at a ring: {:#?}", used.hib));
        }
        let (used, new) = (state(&used.hib, &used_lines), state(&new.hib, &lines(&new_text)));
        if let Some(at) = (0..used.len().max(new.len())).find(|at| used.get(*at) != new.get(*at)) {
            let part =
                |lines: &[&str]| lines[at.saturating_sub(6).min(lines.len())..(at + 6).min(lines.len())].join(" ");
            return Err(format!("node {id} has left something: «{}» instead of «{}»", part(&used), part(&new)));
        }
    }
    Ok(())
}
