// SPDX-License-Identifier: MIT OR Apache-2.0
//! Acknowledgements that are due: the shell's turn in which a request was performed is not over.
//!
//! ```text
//!   performed ──► add ──┬─ the same node and block of tags: one more tag ─┐
//!                       └─ otherwise: that node's earlier ones leave      ├─► end of the turn ──► WriteAcks, or WriteAck
//!   another reply to the node ──► its earlier ones leave ─────────────────┘                       for a single one
//! ```
//!
//! So the stores, blocks and elements of one node that are performed in one turn are acknowledged by one packet, and
//! all replies to a node still leave in the order in which its requests were performed. Refusals and replies with a
//! value are never held back, nor is anything for which the papers count messages: stores to replicated pages.

use telegraphos_wire::{Body, NodeId, Packet, Status, Tags};

/// Nodes that can have acknowledgements due at the same time; with one more the oldest leave. Bounds the search.
const NODES: usize = 64;

/// What is due to a node.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Due {
    node: NodeId,
    /// The incarnation of the node that sent the requests.
    incarnation: u64,
    /// The tag of the first of them.
    first: u32,
    /// There are others.
    several: bool,
    /// All, of one block.
    tags: Tags,
}

impl Due {
    /// The packet of `node` that acknowledges all.
    pub(crate) fn packet(self, node: NodeId) -> Packet {
        let Due { node: dst, incarnation, first: tag, several, tags } = self;
        let body = if several { Body::WriteAcks { tags } } else { Body::WriteAck { status: Status::Ok } };
        Packet { src: node, dst, tag, incarnation, target: 0, body }
    }

    /// Adds a tag that may not have been performed: a deliberate bug.
    #[cfg(feature = "bugs")]
    pub(crate) fn add_next(mut self) -> Due {
        let last = self.tags.within(self.first).last().unwrap_or(self.first);
        if Tags::block(last + 1) == Tags::block(last) {
            self.tags.insert(last + 1);
            self.several = true;
        }
        self
    }
}

/// See the module documentation.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct DueAcknowledgements {
    /// At most one entry for each node, in the order of their first requests.
    pub(crate) due: Vec<Due>,
}

impl DueAcknowledgements {
    /// Returns whether nothing is due.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// A request of another node has been performed. Returns what must be sent now to make room.
    pub(crate) fn add(&mut self, request: &Packet) -> Option<Due> {
        let Packet { src: node, tag, incarnation, .. } = *request;
        let fresh = Due { node, incarnation, first: tag, several: false, tags: Tags::of(tag) };
        if let Some(due) = self.due.iter_mut().find(|due| due.node == node) {
            if due.incarnation == incarnation && Tags::block(due.first) == Tags::block(tag) {
                due.several = true;
                due.tags.insert(tag);
                return None;
            }
            return Some(std::mem::replace(due, fresh));
        }
        let oldest = (self.due.len() == NODES).then(|| self.due.remove(0));
        self.due.push(fresh);
        oldest
    }

    /// Takes what is due to a node.
    pub(crate) fn take(&mut self, node: NodeId) -> Option<Due> {
        let at = self.due.iter().position(|due| due.node == node)?;
        Some(self.due.remove(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::{ImportEpoch, RemoteAddr};

    fn write(src: NodeId, tag: u32, incarnation: u64) -> Packet {
        let at = RemoteAddr { page: 0, offset: 0, generation: 1 };
        let body = Body::Write { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: 0 };
        Packet { src, dst: 9, tag, incarnation, target: 0, body }
    }

    fn tags(due: Option<Due>) -> Option<(NodeId, Vec<u32>)> {
        let packet = due?.packet(9);
        let tags = match packet.body {
            Body::WriteAcks { tags } => tags.within(packet.tag).collect(),
            Body::WriteAck { status: Status::Ok } => vec![packet.tag],
            other => panic!("{other:?}"),
        };
        Some((packet.dst, tags))
    }

    #[test]
    fn another_block_or_incarnation_takes_another_packet() {
        let mut due = DueAcknowledgements::default();
        assert!((0..3).all(|n| due.add(&write(1, 255 - n, 7)).is_none()));
        assert!(due.add(&write(2, 0, 7)).is_none());
        assert_eq!(tags(due.add(&write(1, 256, 7))), Some((1, vec![253, 254, 255])));
        assert_eq!(tags(due.add(&write(1, 257, 8))), Some((1, vec![256])));
        assert_eq!(tags(due.take(1)), Some((1, vec![257])));
        assert_eq!(tags(due.take(1)), None);
        assert_eq!(due.due.drain(..).map(|due| tags(Some(due))).collect::<Vec<_>>(), [Some((2, vec![0]))]);
        assert!(due.is_empty());
    }

    #[test]
    fn the_oldest_make_room() {
        let mut due = DueAcknowledgements::default();
        let nodes = NODES as NodeId;
        assert!((0..nodes).all(|node| due.add(&write(node, 5, 7)).is_none()));
        assert!((0..nodes).all(|node| due.add(&write(node, 6, 7)).is_none()));
        assert_eq!(tags(due.add(&write(nodes, 5, 7))), Some((0, vec![5, 6])));
        assert_eq!((due.due.len(), tags(due.take(0))), (NODES, None));
    }
}
