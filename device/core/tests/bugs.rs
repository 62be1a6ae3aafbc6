// SPDX-License-Identifier: MIT OR Apache-2.0
//! For each deliberate bug, the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_device_core::Bug;
    AcceptAnyHolds => "holds_and_names", "100)";
    UnsharedHolds => "holds_and_names", "(32, 0)";
    EndlessNames => "holds_and_names", "100)";
    TellOfSegments => "holds_and_names", "probed";
    FillAtOnce => "silent_members", "all credits of the class are gone";
    ServeResigned => "silent_members", "E20: acknowledged, and the copies have";
    KeepSilentCopies => "silent_members", "the silent copy is waited for";
    ForwardsShareWindow => "silent_members", "held up by one page's silent copy";
    KeepSilentHomes => "silent_members", "the join of a home that sends nothing";
    NoLocalUpdate => "replica_variants", "P reads M = 0 after M = 1";
    CopyAtOnce => "launches", "blocks in one turn";
    TurnsByOperation => "launches", "are a fair share";
    UnboundedCopies => "launches", "the context is not congested";
    ForgetContextClear => "launches", "the end is not reported";
    UnboundedStatusWords => "launches", "words waited";
    FetchWithoutLimit => "launches", "not answered at the limit";
    FetchKeepsArguments => "launches", "I14: the words are";
    ShareWholeReserve => "shares", "(true, true)";
    SilentForEver => "shares", "silent_loads, 1";
    QuietIgnoresOutstanding => "board", "is missing after quiet";
    QuietReadsPresentError => "board", "the quiet that waited for a lost store says";
    ServeOutOfOrder => "board", "performed [";
    IgnoreGeneration => "board", "the new owner's memory was written";
    DropWhenFull => "board", "stores are missing";
    PassLostStore => "board", "a store passed a lost one";
    ShareAllCredits => "shares", "reached the healthy node";
    ForgetRefusal => "losses", "says";
    ForgetCause => "board", "was never reported";
    ForgetIndex => "events", "the driver sleeps";
    KeepGrantsOnReset => "board", "an old store landed in a rebooted guest";
    SplitAtomic => "operations_simulation", "was reported twice";
    CounterRepeats => "operations_simulation", "fired";
    ForeignContext => "operations", "I14: the words are";
    TailBeforeData => "queues", "counts an element that is not there";
    NeverStop => "queues", "of sender";
    ForgetPending => "queues", "of sender";
    EnqueuePassesRequests => "queues", "came before its message";
    ArmBlindly => "queues", "the consumer sleeps";
    ArmByTail => "queues", "the consumer sleeps";
    WakeOnce => "queues", "the consumer sleeps";
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
