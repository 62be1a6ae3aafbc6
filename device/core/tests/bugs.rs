// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

#![allow(clippy::panic, reason = "a test may")]

use hib_core::Bug;

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
    QuietIgnoresOutstanding => "board", "is missing after quiet";
    QuietReadsPresentError => "board", "the quiet that waited for a lost store says";
    ServeOutOfOrder => "board", "performed [";
    IgnoreGeneration => "board", "the new owner's memory was written";
    DropWhenFull => "board", "stores are missing";
    PassLostStore => "board", "a store passed a lost one";
    ShareAllCredits => "shares", "reached the healthy node";
    ForgetRefusal => "losses", "says";
    ForgetCause => "board", "was never told";
    KeepGrantsOnReset => "board", "an old store landed in a rebooted guest";
    SplitAtomic => "operations_simulation", "was reported twice";
    CounterRepeats => "operations_simulation", "told";
    ForeignContext => "operations", "I14: the words are";
    TailBeforeData => "queues", "counts an element that is not there";
    NeverStop => "queues", "of sender";
    ForgetPending => "queues", "of sender";
    EnqueuePassesRequests => "queues", "came before its message";
    ArmBlindly => "queues", "the consumer sleeps";
    ArmByTail => "queues", "the consumer sleeps";
    IgnoreCounters => "replicas", "I1";
    AcknowledgeEarly => "replicas", "I7";
    AcknowledgeReflected => "replicas_simulation/main", "I7: byte";
    KeepCounters => "replicas_simulation/main", "counters of node";
    TakenEarly => "replicas_simulation/main", "E22b";
    CountWords => "replicas_simulation/main", "I7: byte";
    ReuseTags => "replicas", "a store was sent to [1] alone";
    StaleGroup => "replicas", "I2: byte";
    ChargeNextLink => "replicas", "it returned more credits";
    ServeWhileMoving => "replica_moves", "I2: byte";
    AcknowledgeMissed => "replicas", "I7";
    AcknowledgeMapped => "replica_invalidation", "quiet is done, and node";
    ForgetWork => "replicas", "command Command";
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
