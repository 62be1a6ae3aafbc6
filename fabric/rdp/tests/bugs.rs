// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

#![allow(clippy::panic, reason = "a test may")]

use rdp_core::Bug;

/// Which check must find each bug: the file whose test has it, and by which words its failure is known. A bug without a row does not compile.
macro_rules! checks {
    ($($bug:ident => $file:literal, $says:literal;)*) => {
        /// Every bug there is.
        const ALL: &[Bug] = &[$(Bug::$bug),*];

        fn check_of(bug: Bug) -> (&'static str, &'static str, &'static str) {
            match bug {
                $(Bug::$bug => (stringify!($bug), concat!($file, ".rs"), $says),)*
            }
        }
    };
}

checks! {
    NoChecksum => "faults", "stream";
    AcceptOutOfOrder => "faults", "stream";
    AcknowledgeUndelivered => "faults", "stream";
    DeliverDuplicates => "faults", "stream";
    NoWrap => "faults", "liveness";
    IgnoreWindow => "faults", "window";
    NoCapacityCheck => "faults", "room";
    NoPause => "rules", "sent > 8";
    ForgetRoom => "rules", "waited > 100 * DELAY";
    IgnoreConnectionId => "faults", "stream";
    KeepReplaced => "faults", "told";
    ReplaceUnconfirmed => "faults", "cause";
    NoReset => "faults", "told";
    NoTimer => "faults", "liveness";
    IgnoreNack => "rules", "timeouts > 0";
    EndlessPatience => "rules", "State::Established";
    NoKeepAlive => "rules", "End::Silent";
    FinishOvertakes => "faults", "end";
}

/// The named file has the bug, and close by the words of the check that its test expects.
#[test]
fn each_deliberate_bug_has_a_test_that_names_its_check() {
    for bug in ALL {
        let (name, file, says) = check_of(*bug);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines: Vec<&str> = text.lines().collect();
        let named = lines.iter().enumerate().any(|(at, line)| {
            let rest = line.split_once(&format!("Bug::{name}")).map(|(_, rest)| rest);
            let whole = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()));
            whole && lines[at.saturating_sub(3)..lines.len().min(at + 4)].iter().any(|near| near.contains(says))
        });
        assert!(named, "{file} has no test near Bug::{name} that expects {says:?}");
    }
}
