// SPDX-License-Identifier: MIT OR Apache-2.0
//! Of each deliberate bug: the check that must find it.

telegraphos_testkit::bug_table! {
    bugs of telegraphos_daemon_core::Bug;
    TellAgain => "random", "notified twice";
    ForgetTasksOfNode => "random", "never notified";
    KeepOrphans => "random", "master is dead";
    KeepLateStarts => "random", "master is dead";
    NoSecondSignal => "random", "master is dead";
    IgnorePartition => "random", "outside its partition";
    MostLoaded => "random", "not the least loaded";
    LastComeWins => "random", "have other partitions";
    HearTheDead => "random", "declared dead";
    FullIsDead => "random", "was not silent";
    OneUserTakesAll => "random", "refused within its share";
    TakeTwice => "random", "master is dead";
}
