// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which channel can wait for which: the channel-dependency graph of all routes.
//!
//! A channel leads to one switch and can wait only for channels that leave it, so the dependencies of a channel are one
//! row of bits, (trunk of that switch) x (layer). That is 2 MB for the largest regular topology and 33 MB for the
//! largest graph.

use std::collections::VecDeque;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::DiGraph;

use crate::{Hop, SwitchId, Topology, TrunkId};

/// Cycles are looked for from so many channels: from all of a small topology.
const STARTS: usize = 1024;

pub(crate) struct Dependencies<'a> {
    topology: &'a Topology,
    layers: usize,
    /// For each direction of each trunk, its place among the trunks of the switch where it begins.
    place: Vec<u16>,
    /// Where the row of each channel begins in `bits`; one more than there are channels.
    rows: Vec<usize>,
    bits: Vec<u64>,
    used: Vec<bool>,
}

impl<'a> Dependencies<'a> {
    /// All channels of a topology, without dependencies.
    pub(crate) fn new(topology: &'a Topology) -> Dependencies<'a> {
        let layers = usize::from(topology.layers());
        let directions = 2 * topology.trunks().len();
        let mut place = vec![0; directions];
        for switch in 0..topology.switches() {
            for (nth, &trunk) in (0..).zip(topology.trunks_of(switch)) {
                place[direction(topology, trunk, switch)] = nth;
            }
        }
        let mut rows = vec![0];
        let mut end = 0;
        for trunk in topology.trunks() {
            for to in [trunk.b, trunk.a] {
                for _ in 0..layers {
                    end += topology.trunks_of(to).len() * layers;
                    rows.push(end);
                }
            }
        }
        let channels = directions * layers;
        Dependencies { topology, layers, place, rows, bits: vec![0; end.div_ceil(64)], used: vec![false; channels] }
    }

    /// The channel of a hop from `at`.
    pub(crate) fn channel(&self, at: SwitchId, hop: Hop) -> usize {
        direction(self.topology, hop.trunk, at) * self.layers + usize::from(hop.layer)
    }

    /// Where a channel begins and ends, and its layer.
    pub(crate) fn ends(&self, channel: usize) -> (SwitchId, SwitchId, u8) {
        let (direction, layer) = (channel / self.layers, channel % self.layers);
        let trunk = self.topology.trunks()[direction / 2];
        // Below MAX_LAYERS.
        let layer = layer as u8;
        if direction % 2 == 0 { (trunk.a, trunk.b, layer) } else { (trunk.b, trunk.a, layer) }
    }

    /// A route uses this channel.
    pub(crate) fn used(&mut self, channel: usize) {
        self.used[channel] = true;
    }

    /// What is in `channel` can wait for room in `on`, which begins where it ends.
    pub(crate) fn add(&mut self, channel: usize, on: usize) {
        let bit = self.rows[channel] + usize::from(self.place[on / self.layers]) * self.layers + on % self.layers;
        self.bits[bit / 64] |= 1 << (bit % 64);
    }

    /// The channels that `channel` can wait for.
    fn waits(&self, channel: usize) -> impl Iterator<Item = usize> + '_ {
        let (_, at, _) = self.ends(channel);
        let row = self.rows[channel]..self.rows[channel + 1];
        let trunks = self.topology.trunks_of(at);
        row.clone().filter(|bit| self.bits[bit / 64] >> (bit % 64) & 1 == 1).map(move |bit| {
            let nth = bit - row.start;
            direction(self.topology, trunks[nth / self.layers], at) * self.layers + nth % self.layers
        })
    }

    /// Channels that some route uses.
    pub(crate) fn channels(&self) -> usize {
        self.used.iter().filter(|used| **used).count()
    }

    /// Pairs of channels of which one can wait for the other.
    pub(crate) fn count(&self) -> usize {
        self.bits.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The shortest cycle, or one of the shortest; among very many channels, of those through some of them.
    pub(crate) fn cycle(&self) -> Option<Vec<usize>> {
        let channels = 0..self.used.len();
        let pairs = channels.flat_map(|channel| self.waits(channel).map(move |on| (channel as u32, on as u32)));
        let components = kosaraju_scc(&DiGraph::<(), ()>::from_edges(pairs));
        // No channel waits for itself: those in a cycle are those with others in their component.
        let mut starts: Vec<usize> = components
            .iter()
            .filter(|component| component.len() > 1)
            .flatten()
            .map(|channel| channel.index())
            .collect();
        starts.sort_unstable();
        let mut left = vec![false; self.used.len()];
        starts.iter().for_each(|channel| left[*channel] = true);
        let mut best: Option<Vec<usize>> = None;
        // Channels of one ring have neighbouring numbers: with a stride, each large region gets its share.
        for start in starts.iter().step_by(starts.len().div_ceil(STARTS).max(1)) {
            let most = best.as_ref().map_or(usize::MAX, |cycle| cycle.len() - 1);
            if let Some(shorter) = self.cycle_through(*start, &left, most) {
                best = Some(shorter);
            }
        }
        best
    }

    /// The shortest cycle through one channel by channels that are `left`, if it is of at most `most` channels.
    fn cycle_through(&self, start: usize, left: &[bool], most: usize) -> Option<Vec<usize>> {
        let mut from = vec![usize::MAX; left.len()];
        let mut queue = VecDeque::from([(start, 1)]);
        while let Some((channel, length)) = queue.pop_front() {
            if length > most {
                return None;
            }
            for next in self.waits(channel).filter(|next| left[*next]) {
                if next == start {
                    let mut cycle = vec![channel];
                    while let Some(last) = cycle.last().copied().filter(|last| *last != start) {
                        cycle.push(from[last]);
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if from[next] == usize::MAX {
                    from[next] = channel;
                    queue.push_back((next, length + 1));
                }
            }
        }
        None
    }
}

/// One direction of a trunk: twice its number, and one more away from its second end.
fn direction(topology: &Topology, trunk: TrunkId, from: SwitchId) -> usize {
    2 * usize::from(trunk) + usize::from(topology.trunks()[usize::from(trunk)].b == from)
}
