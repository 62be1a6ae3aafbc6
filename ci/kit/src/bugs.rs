// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug of a core: the check that must find it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;

use crate::seeds::caught;

/// Makes the test from the table: `bugs of BUG; NAME => FILE, WORDS; ...`, where FILE (in the crate's `tests`, without
/// `.rs`) has the test that switches the bug on, and WORDS are those by which the check's failure is known. A bug
/// without a row does not compile.
#[macro_export]
macro_rules! bug_table {
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
                $crate::has_check(&tests.join(file), name, says);
            }
        }
    };
}

/// Panics unless the file has the bug, and some lines from it the words of the check that its test expects.
pub fn has_check(file: &Path, bug: &str, says: &str) {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let lines: Vec<&str> = text.lines().collect();
    let named = lines.iter().enumerate().any(|(at, line)| {
        let rest = line.split_once(&format!("Bug::{bug}")).map(|(_, rest)| rest);
        let whole = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
        whole && lines[at.saturating_sub(3)..lines.len().min(at + 7)].iter().any(|near| near.contains(says))
    });
    assert!(named, "{} has no test near Bug::{bug} that expects {says:?}", file.display());
}

/// Runs what has a deliberate bug in it over these seeds until it fails the named check: until a failure, or a panic,
/// contains `check`. Panics if only other checks fail: then the named one no longer sees the bug.
pub fn finds(bug: impl Debug, check: &str, mut seeds: Range<u64>, run: impl Fn(u64) -> Result<(), String>) {
    let mut others = BTreeSet::new();
    let found = seeds.find_map(|seed| {
        let failure = caught(|| run(seed)).err()?;
        if failure.contains(check) {
            return Some(format!("seed {seed}: {failure}"));
        }
        others.insert(failure.chars().filter(|c| !c.is_ascii_digit()).take(60).collect::<String>());
        None
    });
    println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} is not found by {check:?}, only by {others:#?}")));
}

/// A test of each deliberate bug, that it is found: `bugs_are_found! { SEEDS, RUN; fn NAME() => BUG, WORDS; ... }`.
/// RUN gets a seed and the bug, and WORDS are those of the check.
#[macro_export]
macro_rules! bugs_are_found {
    ($seeds:expr, $run:expr; $(fn $name:ident() => $bug:expr, $says:literal;)*) => { $(
        #[test]
        fn $name() {
            let run = $run;
            $crate::finds($bug, $says, $seeds, |seed| run(seed, Some($bug)).map(drop));
        }
    )* };
}

/// A test of each model, of loom or another checker: `models! { fn NAME() [WORDS] => RUN; ... }`, where WORDS, if there
/// are any, are those of the panic that finds the model's mistake.
#[macro_export]
macro_rules! models {
    ($(fn $name:ident() $([$says:literal])? => $run:expr;)*) => { $(
        #[test]
        $(#[should_panic(expected = $says)])?
        fn $name() {
            $run
        }
    )* };
}

/// A struct of what a test counts over its seeds: [`over_seeds_on_all_processors`](crate::over_seeds_on_all_processors)
/// adds them up.
#[macro_export]
macro_rules! counts {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        $vis struct $name {
            $($(#[$doc])* $vis $field: u64,)*
        }

        impl $name {
            $vis fn add(&mut self, other: $name) {
                $(self.$field += other.$field;)*
            }

            /// That of which there was least.
            $vis fn least(self) -> u64 {
                [$(self.$field),*].into_iter().min().unwrap_or(0)
            }
        }
    };
}

/// A check that must pass over these seeds, and be the one that finds this bug.
pub fn sees<B: Copy + Debug>(
    bug: B,
    says: &str,
    seeds: Range<u64>,
    check: impl Fn(u64, Option<B>) -> Result<(), String>,
) {
    for seed in seeds.clone() {
        check(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    finds(bug, says, seeds, |seed| check(seed, Some(bug)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_check_must_find_it() {
        let run = |seed| match seed {
            0 => Ok(()),
            1 => Err("order: 2 before 1".into()),
            _ => panic!("lost one"),
        };
        finds("bug", "order", 0..2, run);
        finds("bug", "lost", 0..3, run);
        let said = caught(|| {
            finds("bug", "lost", 0..2, run);
            Ok(())
        });
        assert!(said.unwrap_err().contains("only by {\n    \"order:  before \",\n}"));
    }
}
