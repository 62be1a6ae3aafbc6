// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the whole-system tests in `parts/`.
//!
//! - [`Suite`] runs named parts, a [`Group`] of them one after the other, prints the time of each, and continues after
//!   a failure.
//! - [`plan`] reads the lists of names that must not become shorter.
//! - [`lspci`] makes the listing of a board comparable.
#![forbid(unsafe_code)]

pub mod lspci;
mod suite;

pub use suite::{Group, Suite};

/// The lines of a plan file, in order, duplicates included; `#` begins a comment.
pub fn plan(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned)
}

#[test]
fn a_plan_has_comments() {
    assert_eq!(plan("# all\na # first\n\n b\n").collect::<Vec<_>>(), ["a", "b"]);
}
