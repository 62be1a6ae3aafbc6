// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which pairs of boards of one host have a ring between them. Pure: the shell makes the rings, and sends the frames.
//!
//! A pair gets a ring when each of the two was notified of the present incarnation of the other, and a new one with
//! each new incarnation of either. A ring is withdrawn while something must see what passes between the two (faults, a
//! capture), and offered again afterwards. A ring that one of its ends has lost is not replaced before one of the
//! two has a new incarnation.

use std::collections::{BTreeMap, BTreeSet};

use telegraphos_wire::NodeId;

/// Two nodes, the lower first.
type Pair = [NodeId; 2];

/// What is to be done about a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingChange {
    /// Both get an end of a new ring.
    Offer {
        /// The nodes, the lower first.
        nodes: [NodeId; 2],
        incarnations: [u64; 2],
    },
    /// The two count each other as down since one of them has lost their ring, and one has a new incarnation now:
    /// both are notified that the other is up. Before an offer.
    Restore {
        /// The nodes, the lower first.
        nodes: [NodeId; 2],
        incarnations: [u64; 2],
    },
    /// Both are notified that their ring is withdrawn, or offered again.
    Use {
        /// The nodes, the lower first.
        nodes: [NodeId; 2],
        incarnations: [u64; 2],
        /// Whether it is used from now on.
        on: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Ring {
    incarnations: [u64; 2],
    on: bool,
    /// By end: it uses the ring, or may still do so.
    used: [bool; 2],
    /// One end has given it up.
    lost: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// By node of the pair: the incarnation of the other one that it was notified of.
    notified: [Option<u64>; 2],
    ring: Option<Ring>,
    /// It counts for its nodes.
    counted: bool,
}

#[derive(Clone, Debug)]
pub struct RingPairs {
    /// Counted pairs of one node, at most.
    most: usize,
    pairs: BTreeMap<Pair, Entry>,
    /// By node: its counted pairs.
    counts: BTreeMap<NodeId, usize>,
    /// Pairs that something may have changed for.
    changed: BTreeSet<Pair>,
}

/// The pair of two nodes, and the place of the first one in it.
fn pair(node: NodeId, peer: NodeId) -> (Pair, usize) {
    if node < peer { ([node, peer], 0) } else { ([peer, node], 1) }
}

impl RingPairs {
    /// No pairs. A node is in at most so many that are counted; further ones have no ring.
    pub fn new(most: usize) -> RingPairs {
        RingPairs { most, pairs: BTreeMap::new(), counts: BTreeMap::new(), changed: BTreeSet::new() }
    }

    /// A node was notified of the incarnation of another one. Both can have rings; `counted`: that takes something of
    /// which each node has so much and no more.
    pub fn notified(&mut self, node: NodeId, of: NodeId, incarnation: u64, counted: bool) {
        let (pair, place) = pair(node, of);
        if node == of {
            return;
        }
        if counted && !self.pairs.contains_key(&pair) {
            let held = |node: &NodeId| self.counts.get(node).copied().unwrap_or(0);
            if pair.iter().any(|node| held(node) >= self.most) {
                return;
            }
            pair.iter().for_each(|node| *self.counts.entry(*node).or_default() += 1);
        }
        let new = Entry { counted, ..Entry::default() };
        self.pairs.entry(pair).or_insert(new).notified[place] = Some(incarnation);
        self.changed.insert(pair);
    }

    /// A node has left: its pairs end. The two are notified of each other again when it is back.
    pub fn left(&mut self, node: NodeId) {
        let pairs: Vec<Pair> = self.pairs.keys().filter(|pair| pair.contains(&node)).copied().collect();
        for pair in pairs {
            let counted = self.pairs.remove(&pair).is_some_and(|entry| entry.counted);
            self.changed.remove(&pair);
            for node in pair.into_iter().filter(|_| counted) {
                if let Some(count) = self.counts.get_mut(&node) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&node);
                    }
                }
            }
        }
    }

    /// What may be sent beside the switch has changed for any node.
    pub fn reconsider(&mut self) {
        self.changed.extend(self.pairs.keys());
    }

    /// The next change that is due. `current` is the incarnation of a node that is up, `may` whether what it sends and
    /// receives may pass beside the switch.
    pub fn next(
        &mut self,
        current: impl Fn(NodeId) -> Option<u64>,
        may: impl Fn(NodeId) -> bool,
    ) -> Option<RingChange> {
        while let Some(nodes) = self.changed.pop_first() {
            let Some(entry) = self.pairs.get_mut(&nodes) else { continue };
            let [Some(low), Some(high)] = nodes.map(&current) else { continue };
            let incarnations = [low, high];
            if entry.notified != [Some(high), Some(low)] {
                continue;
            }
            let on = nodes.into_iter().all(&may);
            match &mut entry.ring {
                Some(ring) if ring.incarnations == incarnations => {
                    if ring.on != on && !ring.lost {
                        ring.on = on;
                        if on {
                            ring.used = [true; 2];
                        }
                        return Some(RingChange::Use { nodes, incarnations, on });
                    }
                }
                ring if ring.is_some_and(|ring| ring.lost) => {
                    *ring = None;
                    self.changed.insert(nodes);
                    return Some(RingChange::Restore { nodes, incarnations });
                }
                ring => {
                    *ring = on.then_some(Ring { incarnations, on, used: [true; 2], lost: false });
                    if on {
                        return Some(RingChange::Offer { nodes, incarnations });
                    }
                }
            }
        }
        None
    }

    /// The ring of this node to this incarnation of a peer, and the node's place at it.
    fn ring_to(&mut self, node: NodeId, peer: NodeId, incarnation: u64) -> Option<(&mut Ring, usize)> {
        let (pair, place) = pair(node, peer);
        let ring = self.pairs.get_mut(&pair)?.ring.as_mut()?;
        (ring.incarnations[1 - place] == incarnation && !ring.lost).then_some((ring, place))
    }

    /// A node reports that it sends no more requests by a ring. Returns whether nothing new passes beside the switch
    /// between the two any more.
    pub fn unused(&mut self, node: NodeId, peer: NodeId, incarnation: u64) -> bool {
        let Some((ring, place)) = self.ring_to(node, peer, incarnation).filter(|(ring, _)| !ring.on) else {
            return false;
        };
        let before = ring.used;
        ring.used[place] = false;
        before != ring.used && ring.used == [false; 2]
    }

    /// A node reports that it has lost the ring to this incarnation of a peer. Returns the node's own incarnation,
    /// by which the peer knows the ring, if there was one.
    pub fn lost(&mut self, node: NodeId, peer: NodeId, incarnation: u64) -> Option<u64> {
        let (ring, place) = self.ring_to(node, peer, incarnation)?;
        ring.lost = true;
        Some(ring.incarnations[place])
    }

    /// Rings that are in use, or may still be, although they are withdrawn.
    pub fn in_use(&self) -> usize {
        self.pairs.values().filter_map(|entry| entry.ring).filter(|ring| !ring.lost && ring.used != [false; 2]).count()
    }

    /// Rings that are withdrawn, and may still be used by one of their ends.
    pub fn leaving(&self) -> usize {
        let rings = self.pairs.values().filter_map(|entry| entry.ring);
        rings.filter(|ring| !ring.lost && !ring.on && ring.used != [false; 2]).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn up(pairs: &mut RingPairs) -> Option<RingChange> {
        pairs.next(|node| Some(100 + u64::from(node)), |_| true)
    }

    fn both(pairs: &mut RingPairs, a: NodeId, b: NodeId) {
        pairs.notified(a, b, 100 + u64::from(b), true);
        pairs.notified(b, a, 100 + u64::from(a), true);
    }

    #[test]
    fn a_ring_is_offered_when_both_know_each_other() {
        let mut pairs = RingPairs::new(8);
        pairs.notified(2, 1, 101, true);
        pairs.notified(2, 2, 102, true);
        assert_eq!(up(&mut pairs), None);
        pairs.notified(1, 2, 99, true);
        assert_eq!(up(&mut pairs), None, "an earlier incarnation");
        pairs.notified(1, 2, 102, true);
        assert_eq!(up(&mut pairs), Some(RingChange::Offer { nodes: [1, 2], incarnations: [101, 102] }));
        pairs.notified(1, 2, 102, true);
        assert_eq!(up(&mut pairs), None, "once");
        pairs.notified(1, 2, 110, true);
        let current = |node| Some(if node == 2 { 110 } else { 101 });
        let next = pairs.next(current, |_| true);
        assert_eq!(next, Some(RingChange::Offer { nodes: [1, 2], incarnations: [101, 110] }));
        pairs.left(1);
        pairs.notified(1, 2, 110, true);
        assert_eq!((pairs.next(current, |_| true), pairs.in_use()), (None, 0));
    }

    #[test]
    fn a_node_has_so_many_and_no_more() {
        let mut pairs = RingPairs::new(2);
        (1..5).for_each(|peer| both(&mut pairs, 0, peer));
        both(&mut pairs, 3, 4);
        assert_eq!(std::iter::from_fn(|| up(&mut pairs)).count(), 3);
        pairs.left(1);
        both(&mut pairs, 0, 3);
        assert_eq!(std::iter::from_fn(|| up(&mut pairs)).count(), 1);
        let mut none = RingPairs::new(0);
        both(&mut none, 0, 1);
        assert_eq!(up(&mut none), None);
        for _ in 0..2 {
            none.notified(0, 1, 101, false);
            none.notified(1, 0, 100, false);
            assert!(up(&mut none).is_some(), "it is not counted");
            none.left(1);
        }
    }

    #[test]
    fn a_ring_is_withdrawn_and_offered_again() {
        let mut pairs = RingPairs::new(8);
        both(&mut pairs, 0, 1);
        assert!(up(&mut pairs).is_some());
        pairs.reconsider();
        let of = |on| Some(RingChange::Use { nodes: [0, 1], incarnations: [100, 101], on });
        let observed = |pairs: &mut RingPairs| pairs.next(|node| Some(100 + u64::from(node)), |node| node != 1);
        assert_eq!(observed(&mut pairs), of(false));
        assert_eq!((pairs.leaving(), pairs.unused(0, 1, 101), pairs.leaving()), (1, false, 1));
        assert!(!pairs.unused(1, 0, 99) && pairs.unused(1, 0, 100) && !pairs.unused(1, 0, 100));
        assert_eq!((pairs.in_use(), pairs.leaving()), (0, 0));
        pairs.reconsider();
        assert_eq!((observed(&mut pairs), up(&mut pairs)), (None, None));
        pairs.reconsider();
        assert_eq!((up(&mut pairs), pairs.in_use()), (of(true), 1));
        assert!(!pairs.unused(0, 1, 101), "it is offered");
    }

    #[test]
    fn a_pair_that_is_observed_gets_its_ring_later() {
        let mut pairs = RingPairs::new(8);
        both(&mut pairs, 0, 1);
        assert_eq!(pairs.next(|node| Some(100 + u64::from(node)), |_| false), None);
        pairs.reconsider();
        assert!(matches!(up(&mut pairs), Some(RingChange::Offer { .. })));
    }

    #[test]
    fn a_ring_that_is_lost_is_not_replaced_at_once() {
        let mut pairs = RingPairs::new(8);
        both(&mut pairs, 0, 1);
        assert!(up(&mut pairs).is_some());
        assert_eq!((pairs.lost(1, 0, 7), pairs.lost(1, 0, 100), pairs.lost(0, 1, 101)), (None, Some(101), None));
        pairs.reconsider();
        both(&mut pairs, 0, 1);
        assert_eq!((up(&mut pairs), pairs.in_use()), (None, 0));
        pairs.notified(0, 1, 111, true);
        let mut next = || pairs.next(|node| Some(if node == 1 { 111 } else { 100 }), |_| true);
        assert_eq!(next(), Some(RingChange::Restore { nodes: [0, 1], incarnations: [100, 111] }));
        assert_eq!(next(), Some(RingChange::Offer { nodes: [0, 1], incarnations: [100, 111] }));
        assert_eq!(next(), None);
    }
}
