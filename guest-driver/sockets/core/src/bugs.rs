// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the checks must find; `tests/bugs.rs` names the check of each.

/// Deliberate bugs behind the `bugs` feature: for each statement one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// The rest of a frame of which the kernel has taken a part is forgotten.
    ForgetOwed,
    /// The sender writes where the receiver has not read yet.
    IgnoreHead,
    /// A record is returned when some of it has been read, not all.
    ReturnEarly,
    /// The receiver does not go to the ring's start where the sender does.
    ReadOn,
    /// The byte of a record is consumed while some of the record is unread, so that the kernel shows nothing to read.
    ConsumeEarly,
    /// The receiver takes the bytes of a second frame for data of the first.
    MissFrame,
}
