// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the checks must find; `tests/bugs.rs` names the check of each.

/// Deliberate bugs behind the `bugs` feature: for each statement one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Bug {
    /// I17: a matched request is transferred again when its thread receives once more.
    TransferTwice,
    /// I17: a request that is withdrawn is dropped although its transfer has begun.
    WithdrawMatched,
    /// I18: the next piece of a message begins where the last one did.
    RepeatPiece,
    /// I18: each fragment is put at the beginning of the message.
    ForgetOffset,
    /// I18: a slot is returned before its bytes are taken.
    ReturnEarly,
    /// I18: the slots of a message for no thread are not returned.
    KeepRefused,
    /// Order: a receive for anything gets the message that arrived last.
    NewestFirst,
    /// Order: a receive for exactly one sender precedes an older one for anything.
    ExactFirst,
    /// Slots: the sender writes to one that has not been returned.
    IgnoreSlots,
    /// End: sends to a process that has gone are never completed.
    ForgetSends,
    /// Routes: a process is sent paths that it is on itself.
    OwnPath,
    /// Routes: what a neighbour has told is kept when it has left.
    KeepRoutes,
    /// Sessions: a frame that is missing is not noticed.
    CountNoFrames,
    /// Sessions: what cannot be passed on is dropped, and no process is notified.
    DropSilently,
}
