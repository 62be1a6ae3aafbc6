// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

#![allow(clippy::panic, reason = "a test may")]

use switch_core::Bug;

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
    LifoLane => "invariants", "i8_per_pair_fifo";
    DropWhenBlocked => "invariants", "no_loss";
    IgnoreReceiverCredit => "invariants", "credits_never_negative";
    LeakCredit => "invariants", "no_stranded_credit";
    StrandCredit => "invariants", "credits_conserved";
    AcceptWithoutCredit => "invariants", "no_credit";
    IgnoreRoom => "invariants", "room_respected";
    SwallowUnanswered => "invariants", "absent_answered";
    ReuseIncarnation => "invariants", "incarnation_grows";
    ResetOvertakes => "invariants", "life_order";
    DeliverAfterDown => "invariants", "life_order";
    ForgetDown => "invariants", "presence_told";
    LowestFirst => "invariants", "round_robin";
    RequestsFirst => "invariants", "i13_replies_first";
    CreditsFirst => "invariants", "honest_nodes_stay";
    UnlimitedReplies => "invariants", "replies_bounded";
    SwapRefusal => "invariants", "refusal_values";
    BelieveSource => "invariants", "forged_source";
    DuplicateMulticast => "invariants", "i8_per_pair_fifo";
    SkipMember => "invariants", "no_loss";
    MulticastOvertakes => "invariants", "i8_per_pair_fifo";
    ReleaseEarly => "invariants", "credits_cover_packets";
    ForgetAbsentMember => "invariants", "absent_answered";
    AnyLife => "invariants", "i8_per_pair_fifo";
    KeepGroups => "invariants", "groups_end_with_a_life";
    UnlimitedGroups => "accounts", "groups_bounded";
    LeakMemberships => "accounts", "groups_allowed";
    UnlimitedPresence => "accounts", "resets_bounded";
    ForgetPresence => "accounts", "joins_bounded";
    BelieveOffer => "accounts", "replies_to_itself";
    UnaskedPerReceiver => "accounts", "unasked_replies";
    BelieveIncarnation => "accounts", "incarnations_are_left";
    ShortIncarnation => "accounts", "incarnations_grow";
    ReachOvertakes => "network/main", "life_order";
    KeepDownLocal => "network/main", "presence_told";
    ForgetSession => "network/main", "incarnation_is_new";
    LeakTrunkCredit => "network/cuts", "credits_conserved";
    OneLayer => "network/traffic", "i13_no_deadlock";
    SendAllToEach => "network/main", "one_packet_per_trunk";
    RepliesHoldTrunk => "network/traffic", "i13_a_non_reader_stops_nobody";
    ForgetEpochs => "network/cuts", "incarnation_is_new";
    JoinStale => "network/cuts", "incarnation_is_new";
    MixClasses => "network/traffic", "e12_loads_go_on";
    BlameMessenger => "network/hostile", "only trunk 1 to switch 1 has lied";
    BlameTrunk => "network/silence", "Attached::Trunk";
    Patient => "network/silence", "silence_is_noticed";
    Unforgiving => "network/silence", "the_stopped_do_not_judge";
}

/// The named file has the bug, and some lines from it the words of the check that its test expects.
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
            whole && lines[at.saturating_sub(3)..lines.len().min(at + 7)].iter().any(|near| near.contains(says))
        });
        assert!(named, "{file} has no test near Bug::{name} that expects {says:?}");
    }
}
