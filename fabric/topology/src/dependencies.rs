// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which channel can wait for which: the channel-dependency graph of all routes.
//!
//! A channel leads to one switch and can wait only for channels that leave it, so the dependencies of a channel are one
//! row of bits, (trunk of that switch) x (layer). That is 2 MB for the largest regular topology and 33 MB for the
//! largest graph.

use std::collections::VecDeque;

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
        // What is left when channels without predecessors or without successors are removed until there are none of
        // either kind.
        let mut left = self.remaining(&vec![true; self.used.len()], false);
        left = self.remaining(&left, true);
        let starts: Vec<usize> = (0..left.len()).filter(|channel| left[*channel]).collect();
        let mut best: Option<Vec<usize>> = None;
        // Channels of one ring have neighbouring numbers: with a stride, each large region gets its share.
        for start in starts.iter().step_by(starts.len().div_ceil(STARTS).max(1)) {
            let most = best.as_ref().map_or(usize::MAX, |cycle| cycle.len() - 1);
            if let Some(shorter) = self.cycle_through(*start, &left, most) {
                best = Some(shorter);
            }
        }
        // The stride may have met only channels between two cycles; from any of them a walk comes round in one.
        best.or_else(|| starts.first().and_then(|start| self.walk(*start, &left)))
    }

    /// Takes away, from the channels `left`, those that no other one of them waits for; `backward`: those that wait for
    /// none.
    fn remaining(&self, left: &[bool], backward: bool) -> Vec<bool> {
        let mut left = left.to_vec();
        let mut degree = vec![0u32; left.len()];
        // For `backward` the rows are needed by column.
        let mut waiting: Vec<Vec<u32>> = if backward { vec![Vec::new(); left.len()] } else { Vec::new() };
        for channel in 0..left.len() {
            for on in self.waits(channel).filter(|on| left[channel] && left[*on]) {
                if backward {
                    degree[channel] += 1;
                    waiting[on].push(channel as u32);
                } else {
                    degree[on] += 1;
                }
            }
        }
        let mut free: Vec<usize> = (0..left.len()).filter(|channel| left[*channel] && degree[*channel] == 0).collect();
        while let Some(channel) = free.pop() {
            left[channel] = false;
            let release = |next: usize| {
                if left[next] {
                    degree[next] -= 1;
                    if degree[next] == 0 {
                        free.push(next);
                    }
                }
            };
            if backward {
                waiting[channel].iter().map(|next| *next as usize).for_each(release);
            } else {
                self.waits(channel).for_each(release);
            }
        }
        left
    }

    /// The shortest cycle through one channel, if it is of at most `most` channels.
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

    /// Some cycle, by walking on until a channel comes again: each one left waits for one that is left.
    fn walk(&self, start: usize, left: &[bool]) -> Option<Vec<usize>> {
        let mut place = vec![usize::MAX; left.len()];
        let mut path = Vec::new();
        let mut at = start;
        while place[at] == usize::MAX {
            place[at] = path.len();
            path.push(at);
            at = self.waits(at).find(|next| left[*next])?;
        }
        Some(path.split_off(place[at]))
    }
}

/// One direction of a trunk: twice its number, and one more away from its second end.
fn direction(topology: &Topology, trunk: TrunkId, from: SwitchId) -> usize {
    2 * usize::from(trunk) + usize::from(topology.trunks()[usize::from(trunk)].b == from)
}
