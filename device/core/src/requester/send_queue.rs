// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queues of imports of notification queues, so that a full queue delays no other queue and no other traffic
//! (SPEC items 2, 3, 7, 13; E12; `docs/queues.md`).
//!
//! An element is sent when all requests that were accepted for its node before it have been sent, and its import has a
//! receive credit left. The packet carries the number of requests sent, and the receiver performs the element after
//! those (SPEC I8).

use super::imports::{Import, Imports};
use super::peers::Peer;
use crate::keyed::{Key, Keyed};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_wire::{ImportEpoch, NodeId, RemoteAddr};

/// An accepted element that is not sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WaitingElement {
    /// Number of requests that were accepted for its node before it.
    pub(super) behind: u64,
    pub(super) at: RemoteAddr,
    pub(super) size: u8,
    pub(super) data: u64,
}

/// The elements of one import of a queue. A send queue outlives its import: closing an import does not wait for the
/// receiver, and accepted elements are still sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SendQueue {
    pub(super) node: NodeId,
    pub(super) context: u16,
    pub(super) queue: RemoteAddr,
    /// The import; `None` when it is closed.
    pub(super) import: Option<u16>,
    /// The epoch of its elements.
    pub(super) epoch: ImportEpoch,
    /// Receive credits of the import; `None` while the import is being opened.
    pub(super) receive_credits: Option<u32>,
    /// Elements in flight.
    pub(super) unacknowledged: u32,
    pub(super) waiting: VecDeque<WaitingElement>,
    /// It is among the send queues that get turns ([`Peer::enqueuers`]).
    pub(super) has_turn: bool,
}

/// The send queues of the board.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct SendQueues {
    pub(super) table: Keyed<SendQueue>,
    /// Queues (node, page, generation) to which a return of receive credits is in flight. True if another return must
    /// follow.
    pub(super) credit_returns: BTreeMap<(NodeId, u32, u64), bool>,
}

impl SendQueues {
    /// The send queue of an import; `None` if it is not the import of a queue.
    pub(super) fn of(&mut self, import: &Import) -> Option<&mut SendQueue> {
        self.table.get_mut(import.send_queue?)
    }

    /// Returns whether an import waits for its receive credits.
    pub(super) fn is_opening(&self, import: &Import) -> bool {
        let send_queue = import.send_queue.and_then(|key| self.table.get(key));
        send_queue.is_some_and(|send_queue| send_queue.receive_credits.is_none())
    }

    /// Drops the waiting elements of an import and returns their number.
    pub(super) fn drop_waiting(&mut self, import: &Import) -> u32 {
        self.of(import).map_or(0, |send_queue| std::mem::take(&mut send_queue.waiting).len() as u32)
    }

    /// Appends an element to the send queue of its import. Returns false if it has none.
    pub(super) fn accept(&mut self, import: &Import, peer: &mut Peer, at: RemoteAddr, size: u8, data: u64) -> bool {
        let Some(key) = import.send_queue else { return false };
        let Some(send_queue) = self.table.get_mut(key) else { return false };
        if !std::mem::replace(&mut send_queue.has_turn, true) {
            peer.enqueuers.push_back(key);
        }
        send_queue.waiting.push_back(WaitingElement { behind: peer.accepted, at, size, data });
        true
    }

    /// The next send queue to a peer, in round-robin order, whose first element can be sent.
    pub(super) fn next(&mut self, peer: &mut Peer) -> Option<Key> {
        let mut blocked = 0;
        while blocked < peer.enqueuers.len() {
            let key = peer.enqueuers.pop_front()?;
            let Some(send_queue) = self.table.get_mut(key) else { continue };
            let Some(behind) = send_queue.waiting.front().map(|waiting| waiting.behind) else {
                send_queue.has_turn = false;
                continue;
            };
            let room = send_queue.receive_credits.is_some_and(|credits| send_queue.unacknowledged < credits);
            peer.enqueuers.push_back(key);
            if room && peer.has_sent(behind) {
                return Some(key);
            }
            blocked += 1;
        }
        None
    }

    /// Takes a send queue that has no import and no elements.
    pub(super) fn take_ended(&mut self, key: Key) -> Option<SendQueue> {
        let send_queue = self.table.get(key)?;
        let done = send_queue.import.is_none() && send_queue.waiting.is_empty() && send_queue.unacknowledged == 0;
        if done { self.table.remove(key) } else { None }
    }

    /// Takes the send queues of closed imports to a node.
    pub(super) fn take_closed(&mut self, node: NodeId) -> Vec<SendQueue> {
        let ends = |send_queue: &SendQueue| send_queue.node == node && send_queue.import.is_none();
        let ended: Vec<Key> = self.table.iter().filter(|(_, s)| ends(s)).map(|(key, _)| key).collect();
        ended.into_iter().filter_map(|key| self.table.remove(key)).collect()
    }

    /// Number of send queues of this node to the queue at `at`, of open and closed imports.
    pub(super) fn count_to(&self, imports: &Imports, node: NodeId, at: &RemoteAddr) -> u32 {
        let dead = |send_queue: &SendQueue| {
            let import = send_queue.import.and_then(|number| imports.get(number));
            import.is_some_and(|import| import.dead)
        };
        let all = self.table.iter().map(|(_, send_queue)| send_queue);
        all.filter(|send_queue| send_queue.node == node && send_queue.queue == *at && !dead(send_queue)).count() as u32
    }
}
