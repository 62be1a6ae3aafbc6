// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings between the boards of a [`Cluster`]: with a real switch the fabric's policy ([`RingPairs`]), and streams of
//! frames, each with the loan beside it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::driver::Driver;
use super::{Choice, Cluster, pull, push};
use telegraphos_device_core::{Event, Loan, RingAction, RingEvent};
use telegraphos_fabric_core::rings::{RingChange, RingPairs};
use telegraphos_wire::STREAM_BLOCK;
use telegraphos_wire::link::Frame;

/// One direction of a ring: what was written stays until the other end takes it, or closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    pub from: u16,
    pub to: u16,
    /// The incarnations of the lower and of the higher node.
    pub of: [u64; 2],
}

pub struct Rings {
    pub pairs: RingPairs,
    /// By node and peer: the ring that it has open.
    open: BTreeMap<(u16, u16), [u64; 2]>,
    /// Ends that have not arrived at their node: node, peer, ring.
    coming: BTreeSet<(u16, u16, [u64; 2])>,
    ways: BTreeMap<Way, VecDeque<(Frame, Option<Loan>)>>,
    /// Nodes that something looks at, so that nothing may pass beside the switch.
    pub observed: BTreeSet<u16>,
    /// Packets that passed by rings.
    pub packets: u64,
    /// Something begins and ends to look at nodes at any time.
    pub(super) restless: bool,
    /// Pairs of which both ends have left a withdrawn ring.
    pub withdrawn: u64,
    /// Ends that cannot be opened: node, peer.
    pub unable: BTreeSet<(u16, u16)>,
}

const CREDITS: u32 = 6;

impl Cluster {
    /// From now on the switch's process offers rings, which lend where boards are [as if](Cluster::block) in one
    /// process. `restless`: and withdraws some at any time, for a while. Over the ideal network, all boards get rings
    /// to all others once and for all.
    pub fn use_rings(&mut self, restless: bool) {
        let mut pairs = RingPairs::new(16);
        let count = self.nodes.len() as u16;
        for (node, of) in (0..count).flat_map(|node| (0..count).map(move |of| (node, of))) {
            pairs.notified(node, of, self.nodes[usize::from(of)].hib.incarnation(), true);
        }
        self.rings = Some(Rings {
            pairs,
            open: BTreeMap::new(),
            coming: BTreeSet::new(),
            ways: BTreeMap::new(),
            observed: BTreeSet::new(),
            packets: 0,
            restless,
            withdrawn: 0,
            unable: BTreeSet::new(),
        });
        if self.fabric.is_some() {
            self.tend_rings();
        } else {
            assert!(!restless, "nothing withdraws rings beside the ideal network");
            let pairs = (0..count).flat_map(|node| (0..count).map(move |peer| (node, peer)));
            for (id, node) in pairs.filter(|(id, node)| id != node) {
                let [own, incarnation] = [id, node].map(|id| self.hib(id).incarnation());
                let frame = Frame::Ring { node, incarnation, own, bytes: 4096, credits: CREDITS, side: 0 };
                self.open_ring(id, &frame);
                assert!(self.has_ring(id, node), "node {id} has not opened its ring to {node}");
            }
        }
        self.settle();
    }

    /// What these nodes exchange must pass the switch, or need not any more.
    pub fn observe(&mut self, nodes: &[u16]) {
        if let Some(rings) = &mut self.rings {
            rings.observed = nodes.iter().copied().collect();
            rings.pairs.reconsider();
        }
        self.tend_rings();
    }

    /// Whether a node has a ring to another one open.
    pub fn has_ring(&self, id: u16, peer: u16) -> bool {
        self.rings.as_ref().is_some_and(|rings| rings.open.contains_key(&(id, peer)))
    }

    pub(super) fn tend_rings(&mut self) {
        let (Some(rings), Some(fabric)) = (&mut self.rings, &mut self.fabric) else { return };
        let (switch, observed, block) = (&fabric.switch, &rings.observed, self.block as u32);
        let mut frames = Vec::new();
        while let Some(change) = rings.pairs.next(|node| switch.incarnation(node), |node| !observed.contains(&node)) {
            let (RingChange::Offer { nodes, incarnations }
            | RingChange::Restore { nodes, incarnations }
            | RingChange::Use { nodes, incarnations, .. }) = change;
            for side in 0..2 {
                let (to, node) = (nodes[side], nodes[1 - side]);
                let (own, incarnation) = (incarnations[side], incarnations[1 - side]);
                frames.push((
                    to,
                    match change {
                        RingChange::Offer { .. } => {
                            rings.coming.insert((to, node, incarnations));
                            Frame::Ring { node, incarnation, own, bytes: 4096, credits: CREDITS, side: side as u8 }
                        }
                        RingChange::Restore { .. } => Frame::NodeUp { node, incarnation, block },
                        RingChange::Use { on, .. } => Frame::RingUse { node, incarnation, on },
                    },
                ));
            }
        }
        for (to, frame) in frames {
            push(&mut fabric.down[usize::from(to)], frame, Choice::Down(to), &mut self.ready);
        }
    }

    pub(super) fn open_ring(&mut self, id: u16, frame: &Frame) {
        let Frame::Ring { node, incarnation, own, credits, .. } = *frame else { return };
        let of = if id < node { [own, incarnation] } else { [incarnation, own] };
        let accepts = self.nodes[usize::from(id)].hib.accepts_ring(node, incarnation, own);
        let Some(rings) = &mut self.rings else { return };
        rings.coming.remove(&(id, node, of));
        if accepts && !rings.unable.contains(&(id, node)) {
            rings.open.insert((id, node), of);
            let lends = self.rings_lend();
            self.event(id, Event::Ring { peer: node, what: RingEvent::Up { incarnation, own, credits, lends } });
        }
    }

    /// Rings carry loans, as those within a process.
    fn rings_lend(&self) -> bool {
        self.block > STREAM_BLOCK
    }

    pub(super) fn ring_send(&mut self, from: u16, to: u16, frame: Frame, loan: Option<Loan>) {
        let lends = self.rings_lend();
        let Some(rings) = &mut self.rings else { panic!("there are no rings") };
        let Some(of) = rings.open.get(&(from, to)).copied() else { panic!("node {from} has no ring to {to}") };
        assert!(loan.is_none() || lends, "{loan:?} beside {frame:?} leaves the process");
        rings.packets += u64::from(matches!(frame, Frame::Packet(_)));
        let way = Way { from, to, of };
        push(rings.ways.entry(way).or_default(), (frame, loan), Choice::Ring(way), &mut self.ready);
    }

    pub(super) fn ring_action(&mut self, id: u16, peer: u16, what: RingAction) {
        let of = self.rings.as_ref().and_then(|rings| rings.open.get(&(id, peer)).copied());
        let incarnation = of.map_or(0, |of| of[usize::from(id < peer)]);
        match what {
            RingAction::Credit { class, count } => self.ring_send(id, peer, Frame::Credit { class, count }, None),
            RingAction::Probe => self.ring_send(id, peer, Frame::Probe, None),
            RingAction::Unused { incarnation } => self.up(id, Frame::RingUse { node: peer, incarnation, on: false }),
            RingAction::Close(why) => {
                if let Some(rings) = &mut self.rings {
                    rings.open.remove(&(id, peer));
                }
                if why.is_some() {
                    self.up(id, Frame::RingLost { node: peer, incarnation });
                }
            }
        }
    }

    /// One frame of a ring arrives; it waits for an end that has not come, and is lost at one that is closed.
    pub(super) fn ring_step(&mut self, way: Way, at: usize) {
        let Some(rings) = &mut self.rings else { return };
        if rings.coming.contains(&(way.to, way.from, way.of)) {
            return;
        }
        let Some(queue) = rings.ways.get_mut(&way) else { return };
        let (frame, loan) = pull(queue, at, &mut self.ready);
        if rings.open.get(&(way.to, way.from)) != Some(&way.of) {
            return;
        }
        let peer = way.from;
        match frame {
            Frame::Packet(mut packet) => {
                if let Some(tamper) = self.tamper {
                    tamper(&mut packet);
                }
                assert_eq!(packet.src, peer);
                self.event(way.to, Event::RingPacket { packet, loan });
            }
            Frame::Credit { class, count } => {
                self.event(way.to, Event::Ring { peer, what: RingEvent::Credit { class, count } });
            }
            Frame::Probe => self.ring_send(way.to, peer, Frame::Alive, None),
            Frame::Alive => self.event(way.to, Event::Ring { peer, what: RingEvent::Alive }),
            other => panic!("{other:?} on a ring"),
        }
    }

    /// A node's process forgets its rings.
    pub(super) fn close_rings_of(&mut self, id: u16) {
        if let Some(rings) = &mut self.rings {
            rings.open.retain(|(node, _), _| *node != id);
        }
    }

    /// The same with the frames that are on the way to it, and the ends.
    pub(super) fn cut_rings_of(&mut self, id: u16) {
        if let Some(rings) = &mut self.rings {
            rings.pairs.left(id);
            rings.coming.retain(|(node, ..)| *node != id);
            // What it has written is there.
            rings.ways.retain(|way, _| way.to != id);
            self.ready.retain(|choice| !matches!(choice, Choice::Ring(way) if way.to == id));
        }
    }

    pub(super) fn ring_unused(&mut self, id: u16, node: u16, incarnation: u64) {
        if let Some(rings) = &mut self.rings {
            rings.withdrawn += u64::from(rings.pairs.unused(id, node, incarnation));
        }
    }

    pub(super) fn ring_lost(&mut self, id: u16, node: u16, incarnation: u64) {
        let own = self.rings.as_mut().and_then(|rings| rings.pairs.lost(id, node, incarnation));
        if let (Some(incarnation), Some(fabric)) = (own, &mut self.fabric) {
            let frame = Frame::RingLost { node: id, incarnation };
            push(&mut fabric.down[usize::from(node)], frame, Choice::Down(node), &mut self.ready);
        }
    }
}
