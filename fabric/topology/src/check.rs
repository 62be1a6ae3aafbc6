// SPDX-License-Identifier: MIT OR Apache-2.0
//! The proof that a topology keeps its promises, from nothing but its routes.
//!
//! Each pair of switches is looked at once, also in the largest topology: of each is kept the first trunk of its route
//! (32 MB for 4096 switches), and of the dependencies one bit each.
//!
//! - A step depends only on where the packet is and where it goes (graphs give it a layer by its source, but no other
//!   trunk), so the routes to one switch are a tree if no walk towards it comes back to itself; with that every *end*
//!   of a route is a route.
//! - Let `m` be the first switch after `d` on the way from `d` to `s`. If, for all `s` and `d`, the step at `s` towards
//!   `d` is that towards `m` (or, where `m` is `s`, the same trunk), then every way back is the way there and every
//!   part of a route is a route. By induction on the length of the way `d..s`: the way from `m` to `s` is shorter, so
//!   its way back is the same, `s n .. m`. The first step from `s` towards `d` is also `n`; the first from `d` towards
//!   `n` is also `m` (the condition for `d` and `s` exchanged), so the way `d..n` is `d m .. n`, one shorter than
//!   `d..s`, and its way back is `n .. m d`. Together: `s n .. m d`. Conversely it holds wherever ways back and parts
//!   are right, so that nothing right is refused.
//! - One channel waits for the next on some route. Where the layer of a step depends on the place and the destination
//!   only, these pairs are the first two steps of some route; else (graphs) each route is walked.

use crate::dependencies::Dependencies;
use crate::error::{Channel, CheckError};
use crate::{Hop, SwitchId, Topology, TrunkId};

/// What [`Topology::check`] found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckReport {
    pub switches: u16,
    pub trunks: u32,
    pub nodes: u32,
    /// Trunks of the longest route.
    pub diameter: u32,
    /// Trunks of the routes between all ordered pairs of different switches, together.
    pub hops: u64,
    /// Layers that the routes use.
    pub layers: u8,
    /// Channels (one direction of a trunk in one layer) that some route uses.
    pub channels: usize,
    /// Pairs of channels of which a packet in the first can wait for the second.
    pub dependencies: usize,
}

impl CheckReport {
    /// Trunks of a route between two different switches, on average.
    pub fn mean_distance(&self) -> f64 {
        let pairs = u64::from(self.switches) * u64::from(self.switches.saturating_sub(1));
        if pairs == 0 { 0.0 } else { self.hops as f64 / pairs as f64 }
    }
}

impl Topology {
    /// Proves the promises of the crate's introduction from the routes, or says which one is broken. Takes about a
    /// second for 4096 switches (optimised).
    pub fn check(&self) -> Result<CheckReport, CheckError> {
        let mut dependencies = Dependencies::new(self);
        let mut toward = Toward { topology: self, trunks: Vec::new() };
        let mut diameter = 0;
        let mut hops = 0;
        for destination in 0..self.switches() {
            let steps: Vec<_> = (0..self.switches()).map(|at| self.hop(at, at, destination)).collect();
            toward.trunks.extend(steps.iter().map(|hop| hop.map_or(NONE, |hop| hop.trunk)));
            for distance in toward.distances(destination)? {
                diameter = diameter.max(distance);
                hops += u64::from(distance);
            }
            if !self.layers_by_pair() {
                for source in 0..self.switches() {
                    let route =
                        [source, toward.after(source, destination)].map(|at| Some((at, steps[usize::from(at)]?)));
                    self.add(route.into_iter().flatten(), &mut dependencies, &toward, (source, destination))?;
                }
            }
        }
        toward.check_pairs()?;
        if self.layers_by_pair() {
            for (source, destination) in (0..self.switches()).flat_map(|s| (0..self.switches()).map(move |d| (s, d))) {
                let route = toward.stops(source, destination).into_iter();
                let route = route.filter_map(|at| Some((at, self.hop(at, source, destination)?)));
                self.add(route, &mut dependencies, &toward, (source, destination))?;
            }
        }
        if let Some(cycle) = dependencies.cycle() {
            let named = |channel| {
                let (from, to, layer) = dependencies.ends(channel);
                Channel { from: self.name(from), to: self.name(to), layer }
            };
            return Err(CheckError::Cycle(cycle.into_iter().map(named).collect()));
        }
        Ok(CheckReport {
            switches: self.switches(),
            trunks: self.trunks().len() as u32,
            nodes: self.nodes(),
            diameter,
            hops,
            layers: self.layers(),
            channels: dependencies.channels(),
            dependencies: dependencies.count(),
        })
    }

    /// Adds the channels of some steps of a route, each of which can wait for the next.
    fn add(
        &self,
        steps: impl Iterator<Item = (SwitchId, Hop)>,
        dependencies: &mut Dependencies<'_>,
        toward: &Toward<'_>,
        (source, destination): (SwitchId, SwitchId),
    ) -> Result<(), CheckError> {
        let mut before = None;
        for (at, hop) in steps {
            if hop.layer >= self.layers() {
                let route = toward.named(&toward.stops(source, destination));
                return Err(CheckError::Layer { route, layer: hop.layer, layers: self.layers() });
            }
            let channel = dependencies.channel(at, hop);
            dependencies.used(channel);
            if let Some(before) = before {
                dependencies.add(before, channel);
            }
            before = Some(channel);
        }
        Ok(())
    }
}

/// No trunk: that from a switch to itself.
const NONE: TrunkId = TrunkId::MAX;

/// The first trunk of every route.
struct Toward<'a> {
    topology: &'a Topology,
    /// Destination by destination, for each switch.
    trunks: Vec<TrunkId>,
}

impl Toward<'_> {
    fn trunk(&self, at: SwitchId, destination: SwitchId) -> TrunkId {
        self.trunks[usize::from(destination) * usize::from(self.topology.switches()) + usize::from(at)]
    }

    /// The next switch; `at` itself at the destination.
    fn after(&self, at: SwitchId, destination: SwitchId) -> SwitchId {
        self.topology.other_end(self.trunk(at, destination), at)
    }

    /// The trunks from each switch to `destination`, if all routes there arrive.
    fn distances(&self, destination: SwitchId) -> Result<Vec<u32>, CheckError> {
        const UNKNOWN: u32 = u32::MAX;
        let switches = self.topology.switches();
        let mut distance = vec![UNKNOWN; switches.into()];
        distance[usize::from(destination)] = 0;
        let mut path = Vec::new();
        for source in 0..switches {
            let mut at = source;
            while distance[usize::from(at)] == UNKNOWN {
                path.push(at);
                let next = self.after(at, destination);
                // A longer walk than there are switches goes in circles.
                if next == at || path.len() > usize::from(switches) {
                    let destination = self.topology.name(destination);
                    return Err(CheckError::Lost { route: self.named(&path), destination });
                }
                at = next;
            }
            let mut reached = distance[usize::from(at)];
            for at in path.drain(..).rev() {
                reached += 1;
                distance[usize::from(at)] = reached;
            }
        }
        Ok(distance)
    }

    /// The condition of the module's introduction. All routes arrive.
    fn check_pairs(&self) -> Result<(), CheckError> {
        // The table is read by row and by column: in strips, the second is as fast as the first.
        const STRIP: u16 = 32;
        let switches = self.topology.switches();
        for first in (0..switches).step_by(STRIP.into()) {
            for source in 0..switches {
                for destination in first..(first + STRIP).min(switches) {
                    if source != destination {
                        self.check_pair(source, destination)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check_pair(&self, source: SwitchId, destination: SwitchId) -> Result<(), CheckError> {
        let back = self.trunk(destination, source);
        let there = self.trunk(source, destination);
        let stop = self.topology.other_end(back, destination);
        let expected = if stop == source { back } else { self.trunk(source, stop) };
        if there == expected {
            return Ok(());
        }
        // If this pair's two routes are alike, those to the stop before the destination are not.
        let there = self.stops(source, destination);
        let alike = there.iter().eq(self.stops(destination, source).iter().rev());
        let end = if alike { stop } else { destination };
        let (there, back) = (self.stops(source, end), self.stops(end, source));
        Err(CheckError::Asymmetric { there: self.named(&there), back: self.named(&back) })
    }

    /// The switches of a route that arrives.
    fn stops(&self, source: SwitchId, destination: SwitchId) -> Vec<SwitchId> {
        let mut stops = vec![source];
        let mut at = source;
        while at != destination {
            at = self.after(at, destination);
            stops.push(at);
        }
        stops
    }

    fn named(&self, stops: &[SwitchId]) -> Vec<String> {
        stops.iter().map(|stop| self.topology.name(*stop)).collect()
    }
}
