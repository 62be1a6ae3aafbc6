// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs that the checks must find; `tests/bugs.rs` names the check of each.

/// Deliberate bugs behind the `bugs` feature: for each statement one that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "bugs"), expect(unreachable_pub, reason = "exported with the feature only"))]
pub enum Bug {
    /// I16: damaged datagrams are accepted.
    NoChecksum,
    /// I16, order: any segment is accepted as the next.
    AcceptOutOfOrder,
    /// I16, loss: a segment without room is acknowledged and dropped.
    AcknowledgeUndelivered,
    /// I16, once: a duplicate segment is delivered again.
    DeliverDuplicates,
    /// I16, loss: numbers are compared as if they did not wrap.
    NoWrap,
    /// I16, window: the sender does not count segments in flight.
    IgnoreWindow,
    /// Room: the receiver accepts more than it has room for.
    NoCapacityCheck,
    /// Room: the sender does not pause after a capacity NACK.
    NoPause,
    /// Room: the receiver does not announce room.
    ForgetRoom,
    /// Restart: datagrams are accepted whatever ids they carry.
    IgnoreConnectionId,
    /// Restart: a connection continues after its peer has established a new one.
    KeepReplaced,
    /// Restart: an Open ends its peer's connection before it is confirmed.
    ReplaceUnconfirmed,
    /// Restart: datagrams of unknown connections get no answer.
    NoReset,
    /// Liveness: nothing is sent again.
    NoTimer,
    /// Liveness: a sequence NACK is ignored.
    IgnoreNack,
    /// Silence: it does not end a connection.
    EndlessPatience,
    /// Silence: no probes are sent on an idle connection.
    NoKeepAlive,
    /// End: it is reported when its datagram arrives, even if bytes before it are missing.
    FinishOvertakes,
}
