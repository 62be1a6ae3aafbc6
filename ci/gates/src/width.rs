// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comments and prose keep to the width of `.editorconfig`. `cargo fmt` handles code.

use crate::workspace::{files, text_of};

/// The number in `.editorconfig` for Rust and Markdown.
fn width(config: &str) -> usize {
    let section = config.split_once("[*.{rs,md}]").expect("a section for rs and md").1;
    let number = section.split_once("max_line_length = ").expect("a max_line_length").1;
    number.lines().next().and_then(|number| number.parse().ok()).expect("max_line_length is a number")
}

/// The part of a line that must keep to the width: comment or prose, none of code.
fn prose(line: &str, rust: bool) -> Option<&str> {
    let line = line.trim_start();
    if !rust {
        return Some(line);
    }
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).or_else(|| line.strip_prefix("//"))?;
    Some(text.trim_start())
}

/// The lines of a text that are wider than that and could be broken: not tables, headings, link targets, fenced blocks,
/// or single words.
fn too_wide(text: &str, rust: bool, width: usize) -> Vec<usize> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        let Some(prose) = prose(line, rust) else {
            fenced = false;
            continue;
        };
        fenced ^= prose.starts_with("```");
        let breaks = line.chars().take(width).collect::<String>();
        let breaks = breaks.trim_start_matches(|c: char| c.is_whitespace() || "/!-*".contains(c));
        let markup = prose.starts_with(['|', '#']) || prose.starts_with('[') && !prose.contains("](");
        if !fenced && !markup && line.chars().count() > width && breaks.contains(' ') {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn comments_and_prose_keep_to_the_width() {
    let width = width(&text_of(".editorconfig"));
    let mut wide = Vec::new();
    for name in files(&["*.rs", "*.md"], 300) {
        let text = text_of(&name);
        // Generated from the packets, one table for each.
        if name != "docs/packets.md" {
            let lines = too_wide(&text, name.ends_with(".rs"), width);
            wide.extend(lines.into_iter().map(|line| format!("{name}:{line}")));
        }
    }
    assert!(wide.is_empty(), "wider than {width} characters: break these lines\n{}", wide.join("\n"));
}

#[test]
fn what_is_too_wide_is_seen() {
    let long = "a word ".repeat(20);
    assert_eq!(too_wide(&format!("short\n{long}\n"), false, 120), [2]);
    assert_eq!(too_wide(&format!("    /// {long}\n    let x = \"{long}\";\n"), true, 120), [1]);
    let unbroken = format!("| {long}\n```text\n{long}\n```\n{}\n", "w".repeat(200));
    assert_eq!(too_wide(&unbroken, false, 120), [0; 0]);
}
