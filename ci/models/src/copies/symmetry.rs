// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nodes with equal programs are equal up to renaming.
//!
//! A renaming of the nodes under which all homes keep their names, and each program becomes that of the node's new
//! name, gives each state an image: for each node its image as another, and for each packet. Of a state and all its
//! images, exploring one suffices. Values contain the name of their writer: `100 * node + anything`.
//!
//! That boards behave independently of names is verified, not assumed. The image of a node's state is found by applying
//! the same history, renamed, to the other node; and each computed step is compared with its image: it must have the
//! same state, packets, faults, values in memory and next steps. So a renaming is shown to be an automorphism of the
//! explored states during the exploration.

use super::reduce::own_steps;
use super::{CopiesModel, Node, Op, Setup, State, Tables, WIRE_SHIFT, Word};
use std::collections::BTreeMap;
use telegraphos_wire::{Body, NodeId, Packet};

/// The new name of each node.
pub(crate) type Names = Vec<NodeId>;

/// An image that is not computed yet.
pub(super) const UNKNOWN: u32 = u32::MAX;

/// All renamings but the one that changes nothing.
pub(super) fn renamings(setup: &Setup) -> Vec<Names> {
    let n = setup.programs.len() as NodeId;
    let mut all: Vec<Names> = vec![Vec::new()];
    for _ in 0..n {
        all = all
            .into_iter()
            .flat_map(|names| {
                let free: Vec<NodeId> = (0..n).filter(|id| !names.contains(id)).collect();
                free.into_iter().map(move |id| [&names[..], &[id]].concat())
            })
            .collect();
    }
    let keeps = |names: &Names| {
        let homes = setup.homes.iter().all(|home| names[usize::from(*home)] == *home);
        let same = |(program, name): (&Vec<Op>, &NodeId)| {
            let renamed: Vec<Op> = program.iter().map(|op| rename_op(names, *op)).collect();
            renamed == setup.programs[usize::from(*name)]
        };
        homes && setup.programs.iter().zip(names).all(same) && names.iter().zip(0..).any(|(name, id)| *name != id)
    };
    all.retain(keeps);
    all
}

fn rename_op(names: &Names, op: Op) -> Op {
    match op {
        Op::Store(word, value) => Op::Store(word, rename(names, value)),
        Op::Wide(word, count, value) => Op::Wide(word, count, rename(names, value)),
        other => other,
    }
}

pub(crate) fn rename(names: &Names, value: u64) -> u64 {
    match names.get((value / 100) as usize) {
        Some(name) if value > 0 => u64::from(*name) * 100 + value % 100,
        _ => value,
    }
}

fn rename_packet(names: &Names, packet: &Packet) -> Packet {
    let name = |id: NodeId| names[usize::from(id)];
    let body = match packet.body.clone() {
        Body::Update { at, context, epoch, size, data } => {
            Body::Update { at, context, epoch, size, data: rename(names, data) }
        }
        Body::Reflected { at, size, data, writer } => {
            Body::Reflected { at, size, data: rename(names, data), writer: name(writer) }
        }
        other => other,
    };
    Packet { src: name(packet.src), dst: name(packet.dst), body, ..packet.clone() }
}

fn renamed_had(names: &Names, node: &Node) -> BTreeMap<Word, Vec<u64>> {
    let renamed = |values: &Vec<u64>| values.iter().map(|value| rename(names, *value)).collect();
    node.had.iter().map(|(word, values)| (*word, renamed(values))).collect()
}

impl CopiesModel {
    /// The image of a node's state.
    fn image(&self, which: usize, node: u32) -> u32 {
        let tables = self.known();
        let found = tables.images[node as usize][which];
        if found != UNKNOWN {
            return found;
        }
        let (before, code) = tables.origins[node as usize];
        drop(tables);
        let (image, _) = self.step(self.image(which, before), self.image_of_code(which, code));
        let mut tables = self.learn();
        self.compare(which, &tables, node, image);
        tables.images[node as usize][which] = image;
        image
    }

    fn image_of_code(&self, which: usize, code: u32) -> u32 {
        if code >> WIRE_SHIFT == 0 {
            return code;
        }
        let tables = self.known();
        let packet = code & ((1 << WIRE_SHIFT) - 1);
        let found = tables.packet_images[packet as usize][which];
        if found != UNKNOWN {
            return found;
        }
        let image = rename_packet(&self.renamings[which], &tables.packets[packet as usize]);
        drop(tables);
        let mut tables = self.learn();
        let image = tables.number_of_packet(image, self.renamings.len());
        tables.packet_images[packet as usize][which] = image;
        image
    }

    /// Checks that all observable parts of a node's state are equal in its image.
    fn compare(&self, which: usize, tables: &Tables, node: u32, image: u32) {
        let (node, image) = (tables.node(node), tables.node(image));
        let names = &self.renamings[which];
        let pages = 0..self.setup.homes.len() as u32;
        let same = renamed_had(names, node) == image.had
            && node.faults.keys().eq(image.faults.keys())
            && node.read.iter().map(|value| rename(names, *value)).eq(image.read.iter().copied())
            && own_steps(&self.setup, node) == own_steps(&self.setup, image)
            && node.steps().eq(image.steps())
            && node.is_idle(&self.setup) == image.is_idle(&self.setup)
            && node.pending_counters() == image.pending_counters()
            && pages.clone().all(|page| node.taken(page) == image.taken(page))
            && pages.clone().all(|page| node.stored(page) == image.stored(page));
        assert!(same, "under the names {names:?}, {image:?} is not what {node:?} is");
    }

    /// Compares a step that has been computed with its images.
    pub(super) fn compare_step(&self, node: u32, code: u32, next: u32, sent: &[u32]) {
        for which in 0..self.renamings.len() {
            let (found, found_sent) = self.step(self.image(which, node), self.image_of_code(which, code));
            assert!(found == self.image(which, next), "a node's step is not that of its image");
            let mut expected: Vec<u32> = sent.iter().map(|word| self.image_of_code(which, *word)).collect();
            let mut found_sent = found_sent.to_vec();
            // Stable: packets of one wire stay in order.
            expected.sort_by_key(|word| word >> WIRE_SHIFT);
            found_sent.sort_by_key(|word| word >> WIRE_SHIFT);
            assert!(expected == found_sent, "a node does not send what its image sends");
        }
    }

    /// The least of a state and its images.
    pub(super) fn representative(&self, state: State) -> State {
        if self.renamings.is_empty() {
            return state;
        }
        let mut least = state.clone();
        let mut image = State(vec![0; state.0.len()]);
        let (nodes, wires) = state.0.split_at(self.n());
        for (which, names) in self.renamings.iter().enumerate() {
            let tables = self.known();
            for (node, name) in nodes.iter().zip(names) {
                image.0[usize::from(*name)] = tables.images[*node as usize][which];
            }
            for (word, place) in wires.iter().zip(self.n()..) {
                image.0[place] = tables.packet_images[(word & ((1 << WIRE_SHIFT) - 1)) as usize][which];
            }
            drop(tables);
            if image.0.contains(&UNKNOWN) {
                // Another thread is still computing it.
                for (node, name) in nodes.iter().zip(names) {
                    image.0[usize::from(*name)] = self.image(which, *node);
                }
                for (word, place) in wires.iter().zip(self.n()..) {
                    image.0[place] = self.image_of_code(which, *word);
                }
            }
            image.0[self.n()..].sort_by_key(|word| word >> WIRE_SHIFT);
            if image.0 < least.0 {
                least.0.copy_from_slice(&image.0);
            }
        }
        least
    }
}
