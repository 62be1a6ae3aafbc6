// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random runs of the same model, for sizes that are too large to explore.

use super::node::{Local, Node};
use super::{END, I1, I2, Next, Setup, fault_at_rest, node_actions, start};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_testkit::Rng;
use telegraphos_wire::{NodeId, Packet};

/// The initial state, shared by many runs.
pub(crate) struct Walks<'a> {
    setup: &'a Setup,
    nodes: Vec<Node>,
}

impl Walks<'_> {
    pub(crate) fn new(setup: &Setup) -> Walks<'_> {
        let boards = start::boards(setup).into_iter().zip(0..);
        Walks { setup, nodes: boards.map(|(hib, id)| Node::new(setup, id, hib)).collect() }
    }

    /// Makes all steps of a run in an order that depends on the seed. Returns their number, or the fault. With every
    /// other seed one of the nodes or of the kinds of steps is slow.
    pub(crate) fn walk(&self, seed: u64) -> Result<usize, String> {
        let mut random = Rng::new(seed);
        let mut below = |n: usize| random.below(n);
        let mut nodes = self.nodes.clone();
        let mut wires: BTreeMap<(NodeId, NodeId, u8), VecDeque<Packet>> = BTreeMap::new();
        let slow = below(2 * (nodes.len() + 3));
        let is_slow = |next: &Next| match *next {
            Next::Run(id) | Next::Arrive(id) => slow == usize::from(id),
            Next::Perform(..) => slow == self.nodes.len(),
            Next::Deliver(_, dst, class, _) => {
                slow == self.nodes.len() + usize::from(class) || slow == usize::from(dst)
            }
        };
        let mut taken = 0;
        loop {
            let mut actions = Vec::new();
            for (id, node) in nodes.iter().enumerate() {
                node_actions(self.setup, id as NodeId, node, &mut actions);
            }
            for ((src, dst, class), queue) in &wires {
                let places = if self.setup.unordered { queue.len() as u8 } else { 1 };
                actions.extend((0..places).map(|place| Next::Deliver(*src, *dst, *class, place)));
            }
            if actions.is_empty() {
                break;
            }
            let mut action = actions[below(actions.len())];
            for _ in 0..4 {
                if is_slow(&action) {
                    action = actions[below(actions.len())];
                }
            }
            let (id, event) = match action {
                Next::Run(id) => (id, Local::Run),
                Next::Arrive(id) => (id, Local::Arrive),
                Next::Perform(id, step) => (id, Local::Perform(step.into())),
                Next::Deliver(src, dst, class, place) => {
                    let wire = (src, dst, class);
                    let queue = wires.get_mut(&wire);
                    let Some(packet) = queue.and_then(|queue| queue.remove(place.into())) else { continue };
                    wires.retain(|_, queue| !queue.is_empty());
                    (dst, Local::Take(packet))
                }
            };
            let mut sent = Vec::new();
            let node = &mut nodes[usize::from(id)];
            node.happens(self.setup, event, &mut sent);
            taken += 1;
            if let Some((property, fault)) = node.faults.iter().next() {
                return Err(format!("{property}: {fault}"));
            }
            for packet in sent {
                wires.entry((packet.src, packet.dst, packet.class() as u8)).or_default().push_back(packet);
            }
        }
        if !nodes.iter().all(|node| node.is_idle(self.setup)) {
            return Err(format!("{}: nothing can happen any more", END));
        }
        let all: Vec<&Node> = nodes.iter().collect();
        for property in [I1, I2] {
            if let Some(fault) = fault_at_rest(self.setup, &all, property) {
                return Err(format!("{property}: {fault}"));
            }
        }
        Ok(taken)
    }
}
