// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of each request: the reference for the checks of all nodes.
//!
//! An *era* of a node and a peer lasts from a `NodeUp` of the peer to the next notification of it. A request is sent in
//! an era of its sender (about the receiver) and performed in an era of its receiver (about the sender), each in a life
//! of the node. What is performed in one era was sent in one era, and the other way round; otherwise a packet would
//! have come from before a cut, a restart or a reset to a node that had been notified of it.

use std::collections::BTreeMap;

use telegraphos_wire::{Class, NodeId, Status};

use crate::common::{Failure, fail};

/// A node's incarnation, and how often it had been notified of the peer.
pub(crate) type Era = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Open,
    Answered(Status),
    /// Its sender was notified that the receiver is down.
    Down,
    Over,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    from: NodeId,
    pub(crate) class: Class,
    pub(crate) era: Era,
    /// Among the unicasts of this class to this receiver in this era.
    number: u32,
    pub(crate) multicast: bool,
    delivered: bool,
    /// The receiver's reply, and its ordinal among its replies to the sender.
    reply: Option<(Status, u32)>,
    pub(crate) state: State,
}

impl Entry {
    /// Performed and answered.
    pub(crate) fn done(&self) -> bool {
        self.state == State::Answered(Status::Ok) && self.reply.is_some_and(|(status, _)| status == Status::Ok)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    from: NodeId,
    pub(crate) to: NodeId,
}

#[derive(Default)]
pub(crate) struct Ledger {
    entries: BTreeMap<(u32, NodeId), Entry>,
    sent: BTreeMap<(Pair, Class, Era), u32>,
    performed: BTreeMap<(Pair, Class, Era), u32>,
    /// The last tag that arrived.
    last: BTreeMap<(Pair, Class), u32>,
    /// Eras of the senders, and of the receivers, that belong together.
    matched: BTreeMap<(Pair, Era), Era>,
    matching: BTreeMap<(Pair, Era), Era>,
    replies: BTreeMap<Pair, u32>,
    replied: BTreeMap<Pair, u32>,
    /// Outcomes, to show that the schedules reach them.
    pub(crate) tally: BTreeMap<&'static str, u64>,
}

impl Ledger {
    pub(crate) fn entry(&self, tag: u32, to: NodeId) -> Entry {
        self.entries[&(tag, to)].clone()
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    pub(crate) fn sent(&mut self, tag: u32, from: NodeId, to: NodeId, class: Class, era: Era, multicast: bool) {
        let next = self.sent.entry((Pair { from, to }, class, era)).or_default();
        let number = *next;
        *next += u32::from(!multicast);
        let entry = Entry { from, class, era, number, multicast, delivered: false, reply: None, state: State::Open };
        self.entries.insert((tag, to), entry);
    }

    /// A request has reached its receiver.
    pub(crate) fn delivered(&mut self, tag: u32, from: NodeId, to: NodeId, class: Class) -> Result<(), Failure> {
        let Some(entry) = self.entries.get_mut(&(tag, to)).filter(|e| (e.from, e.class) == (from, class)) else {
            return fail("exactly_once", format!("node {to} got {class:?} {tag}, which {from} has not sent to it"));
        };
        if std::mem::replace(&mut entry.delivered, true) {
            return fail("exactly_once", format!("node {to} got {tag} twice: {entry:x?}"));
        }
        let last = self.last.entry((Pair { from, to }, class)).or_default();
        if *last >= tag {
            return fail("i8_per_pair_fifo", format!("node {to} got {tag} after {last}: {entry:x?}"));
        }
        *last = tag;
        Ok(())
    }

    /// It is performed, in this era of its receiver.
    pub(crate) fn performed(&mut self, tag: u32, to: NodeId, era: Era) -> Result<(), Failure> {
        self.count("performed");
        let entry = &self.entries[&(tag, to)];
        let pair = Pair { from: entry.from, to };
        // Copies of a multicast are for the members at the time when they leave the last switch; a node and itself do
        // not lose each other.
        if entry.multicast || entry.from == to {
            return Ok(());
        }
        let receivers = *self.matched.entry((pair, entry.era)).or_insert(era);
        let senders = *self.matching.entry((pair, era)).or_insert(entry.era);
        if receivers != era || senders != entry.era {
            let what =
                format!("performed in {era:x?}, as was {senders:x?}; its own in {receivers:x?}: {tag} {entry:x?}");
            return fail("old_packets_never_reach", what);
        }
        let performed = self.performed.entry((pair, entry.class, entry.era)).or_default();
        if *performed != entry.number {
            let what = format!("{tag} is number {}, {performed} before it are performed: {entry:x?}", entry.number);
            return fail("none_passes_a_lost_one", what);
        }
        *performed += 1;
        Ok(())
    }

    /// Its receiver has answered it.
    pub(crate) fn replied(&mut self, tag: u32, to: NodeId, status: Status) {
        let Some(entry) = self.entries.get_mut(&(tag, to)) else { return };
        let number = self.replies.entry(Pair { from: to, to: entry.from }).or_default();
        *number += 1;
        entry.reply = Some((status, *number));
    }

    /// The answer has reached the incarnation of its sender that it is meant for. Returns whether it is pending there.
    pub(crate) fn answered(&mut self, tag: u32, from: NodeId, to: NodeId, status: Status) -> Result<(), Failure> {
        let Some(entry) = self.entries.get_mut(&(tag, to)).filter(|e| e.from == from) else {
            return fail("answered_once", format!("node {from} got an answer of {to} to nothing, {tag}"));
        };
        match entry.reply {
            // The switch answers for an unreachable node and does not send to it then.
            None if status == Status::NodeDown && !entry.delivered => {}
            Some((said, number)) if said == status => {
                let last = self.replied.entry(Pair { from: to, to: from }).or_default();
                if *last >= number {
                    return fail("i8_per_pair_fifo", format!("node {from}: reply {number} of {to} after {last}"));
                }
                *last = number;
            }
            said => return fail("answered_truly", format!("{to} said {said:?}, {from} got {status:?}: {entry:x?}")),
        }
        match entry.state {
            State::Open => entry.state = State::Answered(status),
            State::Answered(_) => return fail("answered_once", format!("node {from} got two answers: {entry:x?}")),
            // It was notified that the receiver is down, and has dropped the tag.
            State::Down | State::Over => return Ok(()),
        }
        self.count(match status {
            Status::Ok => "answered",
            Status::NodeDown => "answered for",
            _ => "refused",
        });
        Ok(())
    }

    pub(crate) fn ended(&mut self, tag: u32, to: NodeId, state: State) {
        if let Some(entry) = self.entries.get_mut(&(tag, to)) {
            entry.state = state;
        }
        self.count(if state == State::Down { "notified down" } else { "over" });
    }
}
