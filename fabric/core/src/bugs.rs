// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deliberate bugs, behind the feature `bugs`: this file and what stands behind its macro `bug!` or the feature itself
//! is all there is of them. A product build compiles neither their names nor their branches.
//!
//! The bug of a switch is set in its configuration. While the switch handles an event, it is in a thread-local, so that
//! the parts of the switch need no parameter that only bugs use.

use std::cell::Cell;
use std::collections::VecDeque;

use telegraphos_wire::NodeId;

use crate::channel::Channel;

/// For each invariant a bug that makes its check fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// I8: the newest packet of a queue leaves first.
    LifoLane,
    /// Loss: a packet that would have to wait is dropped, its credit returned.
    DropWhenBlocked,
    /// Credits: packets are sent to a receiver that gave no credit.
    IgnoreReceiverCredit,
    /// Credits: the credit of a packet to a node that left is never returned.
    LeakCredit,
    /// Credits: they are returned only when all have been used.
    StrandCredit,
    /// Credits: a sender without credit is tolerated.
    AcceptWithoutCredit,
    /// Back-pressure: frames are handed out to a port without room.
    IgnoreRoom,
    /// Absent nodes: requests to them vanish.
    SwallowUnanswered,
    /// Life cycle: a node that comes back gets the incarnation it had.
    ReuseIncarnation,
    /// Life cycle: the NodeUp of a reset overtakes what was sent before it.
    ResetOvertakes,
    /// Life cycle: what a node sent is delivered after the NodeDown for it.
    DeliverAfterDown,
    /// Life cycle: no NodeDown is sent for a node that left.
    ForgetDown,
    /// Fairness: the lowest node goes first.
    LowestFirst,
    /// Priority: requests go before replies.
    RequestsFirst,
    /// Replies: credits are returned before replies, so that a slow reader gathers replies without bound.
    CreditsFirst,
    /// Replies: no limit.
    UnlimitedReplies,
    /// Joining: a refusal says the values the wrong way round.
    SwapRefusal,
    /// Protection: a forged source is accepted.
    AcceptForgedSource,
    /// Accounts: a packet may carry a longer block than its port may send.
    AcceptLongBlock,
    /// Multicast: its first member gets two copies.
    DuplicateMulticast,
    /// Multicast: the last member of a group of several gets none.
    SkipMember,
    /// Multicast, I8: a copy goes before what its sender sent before it.
    MulticastOvertakes,
    /// Multicast, credits: its credit is returned when the first copy has left.
    ReleaseEarly,
    /// Multicast: absent members are not answered for.
    ForgetAbsentMember,
    /// Multicast: a member is sent what was addressed to another incarnation of it.
    AnyLife,
    /// Multicast, life cycle: groups survive the reset of their node.
    KeepGroups,
    /// Groups: there may be any number.
    UnlimitedGroups,
    /// Groups: members of an ended group stay on the account.
    LeakMemberships,
    /// Life cycle: a node may join and be reset as often as it likes.
    UnlimitedPresence,
    /// Life cycle: the rate counts each connection of a node separately.
    ForgetPresence,
    /// Credits: any offer of a node is accepted.
    AcceptAnyOffer,
    /// Life cycle: a node is reset to any greater incarnation.
    AcceptAnyIncarnation,
    /// Life cycle: only 32 bits of the base of incarnations are used.
    ShortIncarnation,
    /// Replies: those without a request are bounded for each receiver, not for all together.
    UnaskedPerReceiver,
    /// Replies: an acknowledgement of several requests leaves the others unanswered.
    CountOneAnswer,
    /// Trunks, I8: the Reach of a node overtakes what it sent before.
    ReachOvertakes,
    /// Trunks, life cycle: a switch does not forward a NodeDown.
    KeepDownLocal,
    /// Trunks, life cycle: a session is not counted, so that packets from before a cut are taken for new ones.
    ForgetSession,
    /// Trunks: the credit of what a broken trunk held is never returned.
    LeakTrunkCredit,
    /// Trunks: packets of all layers share the credits and queues of layer 0.
    OneLayer,
    /// Trunks, multicast: one packet for each member crosses the trunk, to all members.
    SendAllToEach,
    /// Trunks, I13: replies keep the credit of their trunk until their node reads them.
    RepliesHoldTrunk,
    /// Trunks, life cycle: a switch that starts again counts the joins of its trunks from 0.
    ForgetEpochs,
    /// Trunks, life cycle: of two connections that were greeted with the same epoch both are joined, one after the
    /// other.
    JoinStale,
    /// Trunks, E12: elements have the credits and queues of loads and stores.
    MixClasses,
    /// Trunks, protection: a packet that is not on its route disconnects the switch that forwarded it, which cannot
    /// check that.
    BlameMessenger,
    /// A trunk has no more time than the node beyond it that keeps the credits.
    BlameTrunk,
    /// Neither silence nor kept credits are detected.
    Patient,
    /// A switch that was stopped itself counts that time as its neighbours' silence.
    Unforgiving,
}

/// The bug of the switch at work, and its credits of each class.
type On = (Option<Bug>, [u32; 4]);

thread_local! {
    static ON: Cell<On> = const { Cell::new((None, [0; 4])) };
}

/// Until it is dropped, [`has`] is about the bug of this switch.
pub(crate) struct Guard(On);

impl Drop for Guard {
    fn drop(&mut self) {
        ON.set(self.0);
    }
}

/// Begins the work of a switch with this bug and these credits of each class.
pub(crate) fn turn_on(bug: Option<Bug>, credits: [u32; 4]) -> Guard {
    Guard(ON.replace((bug, credits)))
}

/// Whether the switch at work has the bug; see `bug!`.
pub(crate) fn has(bug: Bug) -> bool {
    ON.get().0 == Some(bug)
}

/// The members that a multicast is sent to.
pub(crate) fn members(mut members: Vec<NodeId>) -> Vec<NodeId> {
    if bug!(DuplicateMulticast) {
        members.extend(members.first().copied());
    }
    if bug!(SkipMember) && members.len() > 1 {
        members.pop();
    }
    members
}

/// The packets of a multicast that leave by trunks: by port and layer, those that they are for.
pub(crate) fn trunk_copies<T: Copy>(beyond: impl IntoIterator<Item = (T, Vec<NodeId>)>) -> Vec<(T, Vec<NodeId>)> {
    let copies = |all: &Vec<NodeId>| if bug!(SendAllToEach) { all.len() } else { 1 };
    beyond.into_iter().flat_map(|(to, all)| vec![(to, all.clone()); copies(&all)]).collect()
}

pub(crate) fn base(base: u64) -> u64 {
    if bug!(ShortIncarnation) { base & u64::from(u32::MAX) } else { base }
}

/// Whether the mark of a node goes before what the node sent to this neighbour, a node or a trunk.
pub(crate) fn mark_overtakes(to_trunk: bool) -> bool {
    if to_trunk { bug!(ReachOvertakes) } else { bug!(ResetOvertakes) }
}

/// Whether all credits of a channel that the switch gives are owed.
pub(crate) fn all_owed(owed: u32, channel: Channel) -> bool {
    owed == ON.get().1[channel.class() as usize]
}

/// Brings the sender to the front that goes next.
pub(crate) fn reorder_turns(turns: &mut VecDeque<NodeId>) {
    if bug!(LowestFirst) {
        turns.make_contiguous().sort_unstable();
    }
}

/// Brings the packet to the front that leaves next.
pub(crate) fn reorder_queue<T>(queue: &mut VecDeque<T>) {
    if bug!(LifoLane) && !queue.is_empty() {
        queue.rotate_right(1);
    }
}

/// The last packet of a queue was just added; it is, or is not, a copy of a multicast.
pub(crate) fn pushed<T>(queue: &mut VecDeque<T>, is_copy: bool) {
    if bug!(MulticastOvertakes) && is_copy {
        queue.rotate_right(1);
    }
}
