// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_fabric_core::Bug;
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
    AcceptForgedSource => "invariants", "forged_source";
    AcceptLongBlock => "invariants", "long_block";
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
    AcceptAnyOffer => "accounts", "replies_to_itself";
    UnaskedPerReceiver => "accounts", "unasked_replies";
    CountOneAnswer => "accounts", "several_are_answered";
    AcceptAnyIncarnation => "accounts", "incarnations_are_left";
    ShortIncarnation => "accounts", "incarnations_grow";
    ReachOvertakes => "network/mod", "life_order";
    KeepDownLocal => "network/mod", "presence_told";
    ForgetSession => "network/mod", "incarnation_is_new";
    LeakTrunkCredit => "network/cuts", "credits_conserved";
    OneLayer => "network/traffic", "i13_no_deadlock";
    SendAllToEach => "network/mod", "one_packet_per_trunk";
    RepliesHoldTrunk => "network/traffic", "i13_a_non_reader_stops_no_other";
    ForgetEpochs => "network/cuts", "incarnation_is_new";
    JoinStale => "network/cuts", "incarnation_is_new";
    MixClasses => "network/traffic", "e12_loads_continue";
    BlameMessenger => "network/hostile", "only trunk 1 to switch 1 has lied";
    BlameTrunk => "network/silence", "Attached::Trunk";
    Patient => "network/silence", "silence_is_noticed";
    Unforgiving => "network/silence", "the_stopped_do_not_judge";
}
