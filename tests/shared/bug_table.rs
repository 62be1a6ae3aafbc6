// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug of a core: the check that must find it. Each core's `tests/bugs.rs` is such a table.

#![allow(clippy::panic, reason = "a test may")]

/// Makes the test from the table: `bugs of BUG; NAME => FILE, WORDS; ...`, where FILE (in the crate's `tests`, without `.rs`) has the test that switches the
/// bug on, and WORDS are those by which the check's failure is known. A bug without a row does not compile.
macro_rules! checks {
    (bugs of $bugs:ty; $($bug:ident => $file:literal, $says:literal;)*) => {
        /// Every bug there is, with its name, file, and words.
        const CHECKS: &[($bugs, &str, &str, &str)] =
            &[$((<$bugs>::$bug, stringify!($bug), concat!($file, ".rs"), $says)),*];

        #[test]
        fn each_deliberate_bug_has_a_test_that_names_its_check() {
            for (bug, name, file, says) in CHECKS {
                match bug {
                    $(<$bugs>::$bug => {})*
                }
                let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
                bug_table::has_check(&tests.join(file), name, says);
            }
        }
    };
}

/// Panics unless the file has the bug, and some lines from it the words of the check that its test expects.
pub(crate) fn has_check(file: &std::path::Path, bug: &str, says: &str) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let lines: Vec<&str> = text.lines().collect();
    let named = lines.iter().enumerate().any(|(at, line)| {
        let rest = line.split_once(&format!("Bug::{bug}")).map(|(_, rest)| rest);
        let whole = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
        whole && lines[at.saturating_sub(3)..lines.len().min(at + 7)].iter().any(|near| near.contains(says))
    });
    assert!(named, "{} has no test near Bug::{bug} that expects {says:?}", file.display());
}
