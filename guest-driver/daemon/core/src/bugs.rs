// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the checks must find; `tests/bugs.rs` names the check of each.

/// Deliberate bugs behind the `bugs` feature: for each statement one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Bug {
    /// Told once: a registration outlives the death that it was for.
    TellAgain,
    /// Told once: the death of a node is not the death of its tasks.
    ForgetTasksOfNode,
    /// Masters: tasks of a node that has died continue to run.
    KeepOrphans,
    /// Masters: a task that starts after its master has gone continues to run.
    KeepLateStarts,
    /// Masters: a task that ignores the first signal continues to run.
    NoSecondSignal,
    /// Partitions: nodes outside are chosen as well.
    IgnorePartition,
    /// Placement: the most loaded nodes come first.
    MostLoaded,
    /// Partitions: the version that came last wins.
    LastComeWins,
    /// Alive: what a dead incarnation says still counts.
    HearTheDead,
    /// Alive: a node that does not take a letter at once is dead.
    FullIsDead,
    /// Shares: the letters of one user use up those of all.
    OneUserTakesAll,
    /// Letters: one that is sent again counts again.
    TakeTwice,
}
