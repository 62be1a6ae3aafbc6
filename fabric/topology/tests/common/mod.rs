// SPDX-License-Identifier: MIT OR Apache-2.0
//! The promises of a topology, checked the slow way: every route is walked. Nothing here is shared with
//! [`Topology::check`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use telegraphos_testkit::{Rng, over_seeds};
use telegraphos_topology::{SwitchId, Topology, TrunkId};

/// A channel: a trunk, the end it leads to, a layer.
pub(crate) type Channel = (TrunkId, SwitchId, u8);
/// A step of a route: from which switch, by which channel.
pub(crate) type Step = (SwitchId, Channel);

/// The route, or what is wrong with it.
pub(crate) fn route(t: &Topology, source: SwitchId, destination: SwitchId) -> Result<Vec<Step>, String> {
    let mut at = source;
    let mut steps = Vec::new();
    let mut seen = BTreeSet::from([source]);
    while let Some(hop) = t.hop(at, source, destination) {
        let next = t.other_end(hop.trunk, at);
        if next == at || !t.trunks_of(at).contains(&hop.trunk) {
            return Err(format!("{source}->{destination}: trunk {} is not at {at}", hop.trunk));
        }
        if hop.layer >= t.layers() {
            return Err(format!("{source}->{destination}: layer {} of {}", hop.layer, t.layers()));
        }
        steps.push((at, (hop.trunk, next, hop.layer)));
        if !seen.insert(next) {
            return Err(format!("{source}->{destination}: {next} twice"));
        }
        at = next;
    }
    if at == destination { Ok(steps) } else { Err(format!("{source}->{destination}: ends at {at}")) }
}

fn trunks(route: &[Step]) -> Vec<TrunkId> {
    route.iter().map(|(_, (trunk, _, _))| *trunk).collect()
}

/// Fewest trunks from one switch to each.
pub(crate) fn distances(t: &Topology, source: SwitchId) -> Vec<Option<usize>> {
    let mut distance = vec![None; t.switches().into()];
    distance[usize::from(source)] = Some(0);
    let mut queue = VecDeque::from([source]);
    while let Some(at) = queue.pop_front() {
        for trunk in t.trunks_of(at) {
            let next = t.other_end(*trunk, at);
            if distance[usize::from(next)].is_none() {
                distance[usize::from(next)] = distance[usize::from(at)].map(|d| d + 1);
                queue.push_back(next);
            }
        }
    }
    distance
}

/// What all routes add up to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) diameter: usize,
    pub(crate) hops: usize,
    pub(crate) channels: usize,
    pub(crate) dependencies: usize,
}

/// Walks every route and checks: as short as can be, the same trunks back, each part a route, the tree of each source,
/// layers in range, no cycle of channels.
pub(crate) fn promises(t: &Topology) -> Result<Totals, String> {
    let switches = t.switches();
    let mut waits: BTreeMap<Channel, BTreeSet<Channel>> = BTreeMap::new();
    let mut totals = Totals { diameter: 0, hops: 0, channels: 0, dependencies: 0 };
    for source in 0..switches {
        let distance = distances(t, source);
        let mut tree = BTreeSet::new();
        for destination in 0..switches {
            let there = route(t, source, destination)?;
            if Some(there.len()) != distance[usize::from(destination)] {
                return Err(format!("{source}->{destination}: {} trunks, not {distance:?}", there.len()));
            }
            totals.diameter = totals.diameter.max(there.len());
            totals.hops += there.len();
            let mut back = trunks(&route(t, destination, source)?);
            back.reverse();
            if back != trunks(&there) {
                return Err(format!("{source}->{destination}: the way back is another"));
            }
            let mut stops = vec![source];
            stops.extend(there.iter().map(|(_, (_, next, _))| *next));
            for i in 0..stops.len() {
                for j in i..stops.len() {
                    if trunks(&route(t, stops[i], stops[j])?) != trunks(&there)[i..j] {
                        return Err(format!("{source}->{destination}: {}->{} is not a part", stops[i], stops[j]));
                    }
                }
            }
            if there.last().map(|(_, (trunk, _, _))| *trunk) != t.arrival(destination, source) {
                return Err(format!("{source}->{destination}: arrives otherwise"));
            }
            tree.extend(there.iter().map(|(from, (trunk, _, _))| (*from, *trunk)));
            for (_, channel) in &there {
                waits.entry(*channel).or_default();
            }
            for pair in there.windows(2) {
                waits.entry(pair[0].1).or_default().insert(pair[1].1);
            }
        }
        let children: BTreeSet<_> =
            (0..switches).flat_map(|at| t.children(at, source).map(move |trunk| (at, trunk))).collect();
        if children != tree {
            return Err(format!("{source}: children are not the union of its routes"));
        }
    }
    totals.channels = waits.len();
    totals.dependencies = waits.values().map(BTreeSet::len).sum();
    // Take away what waits for nothing, again and again.
    while let Some(free) = waits.iter().find(|(_, on)| on.is_empty()).map(|(channel, _)| *channel) {
        waits.remove(&free);
        for on in waits.values_mut() {
            on.remove(&free);
        }
    }
    if waits.is_empty() { Ok(totals) } else { Err(format!("a cycle among {waits:?}")) }
}

/// Runs `check` for so many seeds ([`over_seeds`]).
pub(crate) fn seeds(ci: u64, full: u64, check: impl Fn(&mut Rng) -> Result<(), String>) -> Option<u64> {
    over_seeds(ci, full, |seed| check(&mut Rng::new(seed)))
}

/// Names for so many switches.
pub(crate) fn names(switches: usize) -> Vec<String> {
    (0..switches).map(|i| format!("s{i}")).collect()
}

/// Trunks of a random connected graph: a random tree, and up to `more` others, in random order and direction.
pub(crate) fn random_trunks(numbers: &mut Rng, switches: usize, more: usize) -> Vec<(SwitchId, SwitchId)> {
    let mut trunks = BTreeSet::new();
    for i in 1..switches {
        trunks.insert((numbers.below(i), i));
    }
    for _ in 0..more {
        let (p, q) = (numbers.below(switches), numbers.below(switches));
        if p != q {
            trunks.insert((p.min(q), p.max(q)));
        }
    }
    let mut mixed: Vec<_> = trunks.into_iter().map(|(p, q)| (p as SwitchId, q as SwitchId)).collect();
    for i in (1..mixed.len()).rev() {
        mixed.swap(i, numbers.below(i + 1));
        if numbers.below(2) == 0 {
            mixed[i] = (mixed[i].1, mixed[i].0);
        }
    }
    mixed
}
