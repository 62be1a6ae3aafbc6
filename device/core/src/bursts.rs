// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bursts whose stores the responder performs one by one, as requests of their own with the burst's tag: they concern a
//! replicated page, or one of them will be refused. Counts what has become of them, for the one reply to the burst.
//!
//! Bounded by the credits of the requests: a burst is here until its last store is answered. Only the first request of
//! a node is taken apart, so the stores themselves are one burst's for each node at most. A node that uses a tag twice
//! gets wrong answers to its own bursts.

use std::collections::BTreeMap;
use telegraphos_wire::{Body, NodeId, Packet, Status};

/// The node that sent a burst, its tag, and the incarnation of the node.
type Key = (NodeId, u32, u64);

/// A burst of which stores are not answered.
#[derive(Clone, Debug, Hash)]
struct Open {
    /// Stores that are not answered.
    left: usize,
    performed: u16,
    /// Why the first of those that were not performed was refused.
    refused: Option<Status>,
}

/// See the module documentation.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Bursts {
    open: BTreeMap<Key, Open>,
}

fn key(packet: &Packet) -> Key {
    (packet.src, packet.tag, packet.incarnation)
}

impl Bursts {
    /// Returns whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The stores of this burst, so many, are performed one by one from now on.
    pub(crate) fn begin(&mut self, packet: &Packet, stores: usize) {
        self.open.insert(key(packet), Open { left: stores, performed: 0, refused: None });
    }

    /// The answer to a request: `body`, unless it is a store of a burst. To its last store it is the answer to the
    /// burst, and to an earlier one nothing; if `early`, the first one answers for all (a deliberate bug).
    pub(crate) fn answer(&mut self, packet: &Packet, body: Body, early: bool) -> Option<Body> {
        let Body::WriteAck { status } = body else { return Some(body) };
        let Some(open) = self.open.get_mut(&key(packet)) else { return Some(body) };
        open.left = open.left.saturating_sub(1);
        if status.is_ok() {
            open.performed += 1;
        } else {
            open.refused.get_or_insert(status);
        }
        if open.left > 0 && !early {
            return None;
        }
        let Open { performed, refused, .. } = *open;
        self.open.remove(&key(packet));
        Some(match refused {
            None => body,
            Some(status) => Body::BurstRefused { status, performed },
        })
    }

    /// The requests of a node are dropped.
    pub(crate) fn forget(&mut self, node: NodeId) {
        self.open.retain(|(of, ..), _| *of != node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::{ImportEpoch, RemoteAddr};

    fn store(tag: u32, incarnation: u64) -> Packet {
        let at = RemoteAddr { page: 0, offset: 0, generation: 1 };
        let body = Body::Write { at, context: 0, epoch: ImportEpoch::default(), size: 8, data: 0 };
        Packet { src: 1, dst: 2, tag, incarnation, target: 0, body }
    }

    #[test]
    fn the_last_store_answers_for_all() {
        let mut bursts = Bursts::default();
        let ack = |status| Body::WriteAck { status };
        for (statuses, expected) in [
            ([Status::Ok; 3], ack(Status::Ok)),
            ([Status::Ok, Status::Bounds, Status::Cut], Body::BurstRefused { status: Status::Bounds, performed: 1 }),
            ([Status::Busy, Status::Ok, Status::Ok], Body::BurstRefused { status: Status::Busy, performed: 2 }),
        ] {
            bursts.begin(&store(7, 5), 3);
            // Neither another request, nor one of another life, nor another kind of answer.
            for other in [store(8, 5), store(7, 6)] {
                assert_eq!(bursts.answer(&other, ack(Status::Ok), false), Some(ack(Status::Ok)));
            }
            let copied = Body::CopyAck { status: Status::Ok };
            assert_eq!(bursts.answer(&store(7, 5), copied.clone(), false), Some(copied));
            let answers: Vec<_> =
                statuses.iter().map(|status| bursts.answer(&store(7, 5), ack(*status), false)).collect();
            assert_eq!(answers, [None, None, Some(expected)]);
            assert!(bursts.is_empty());
        }
        bursts.begin(&store(7, 5), 3);
        bursts.forget(1);
        assert!(bursts.is_empty());
    }
}
