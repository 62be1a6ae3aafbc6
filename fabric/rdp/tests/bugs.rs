// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_rdp_core::Bug;
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
    KeepReplaced => "faults", "notified";
    ReplaceUnconfirmed => "faults", "cause";
    NoReset => "faults", "notified";
    NoTimer => "faults", "liveness";
    IgnoreNack => "rules", "timeouts > 0";
    EndlessPatience => "rules", "State::Established";
    NoKeepAlive => "rules", "End::Silent";
    FinishOvertakes => "faults", "end";
}
