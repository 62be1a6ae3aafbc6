// SPDX-License-Identifier: MIT OR Apache-2.0
//! Clusters with a replicated page, at several networks.

use super::{Cluster, Driver, EXPORTS, replica_invalid, replica_set, small, status_page};
use telegraphos_device_core::{Bug, Event, HibConfig};
use telegraphos_fabric_core::Bug as SwitchBug;
use telegraphos_wire::admin::{self, Command, ReplicaCommand};
use telegraphos_wire::{Rights, Status, UNIT, context, event};

pub(crate) const RIGHTS: Rights = Rights(7);
/// Import of the node's own page, and its window slot.
pub(crate) const OWN: u16 = 10;

/// The network that carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Net {
    /// An ideal network: a packet of the home for each copy.
    Ideal,
    /// The real switch, which copies multicasts; optionally with a deliberate bug.
    FanOut(Option<SwitchBug>),
    /// The real switch, and a packet of the home for each copy.
    OneByOne,
}
pub(crate) use Net::{FanOut, Ideal, OneByOne};

pub(crate) const NETS: [Net; 3] = [Ideal, FanOut(None), OneByOne];

pub(crate) fn cluster(net: Net, n: u16, seed: u64, bug: Option<Bug>, adjust: impl Fn(&mut HibConfig)) -> Cluster {
    let adjust = |config: &mut HibConfig| {
        small(bug)(config);
        config.fanout_by_switch = matches!(net, FanOut(_));
        adjust(config);
    };
    let mut c = match net {
        Ideal => Cluster::new(n, seed, adjust),
        FanOut(bug) => Cluster::over_switch(n, seed, |switch| switch.bug = bug, adjust),
        OneByOne => Cluster::switched(n, seed, adjust),
    };
    for id in 0..n {
        c.export(id, "page", 0, 1, RIGHTS);
        import_own(&mut c, id);
    }
    c
}

/// Word of the status page that counts the stores of that import taken.
const TAKEN: u32 = 7;

/// The address of that word, and its value.
pub(crate) fn taken_word() -> u64 {
    status_page(0) + context::TAKEN_OFFSET + 8 * u64::from(TAKEN)
}

pub(crate) fn taken(c: &Cluster, id: u16) -> u64 {
    c.ram_u64(id, taken_word())
}

pub(crate) fn import_own(c: &mut Cluster, id: u16) {
    let set = Command { taken: 1 + TAKEN, ..c.import_command(id, id, "page", OWN, OWN.into()) };
    c.ok(id, set);
}

pub(crate) fn set(c: &mut Cluster, id: u16, home: u16, mode: u32) -> ReplicaCommand {
    set_page(c, id, home, "page", 0, mode)
}

/// The command that makes `page` of a node the home, or a copy of the home, of that name.
pub(crate) fn set_page(c: &mut Cluster, id: u16, home: u16, name: &str, page: u32, mode: u32) -> ReplicaCommand {
    let found = c.lookup(id, home, name);
    replica_set(page, mode, home, found.index, found.generation)
}

pub(crate) fn join(c: &mut Cluster, id: u16, home: u16, mode: u32) -> Status {
    let command = set(c, id, home, mode);
    c.status(id, command)
}

/// The same of several, which must succeed.
pub(crate) fn join_all(c: &mut Cluster, ids: impl IntoIterator<Item = u16>, home: u16, mode: u32) {
    ids.into_iter().for_each(|id| assert_eq!(join(c, id, home, mode), Status::Ok));
}

/// Node 0 is the home of a page that all others copy; in mode naive, every node is a copy of every other.
pub(crate) fn replicated(
    net: Net,
    n: u16,
    seed: u64,
    mode: u32,
    bug: Option<Bug>,
    adjust: impl Fn(&mut HibConfig),
) -> Cluster {
    let mut c = cluster(net, n, seed, bug, adjust);
    for id in 0..n {
        let home = if mode == admin::NAIVE { id } else { 0 };
        assert_eq!(join(&mut c, id, home, mode), Status::Ok);
    }
    if mode == admin::NAIVE {
        for (id, other) in (0..n).flat_map(|id| (0..n).map(move |other| (id, other))).filter(|(id, other)| id != other)
        {
            assert_eq!(join(&mut c, id, other, mode), Status::Ok);
        }
    }
    for node in &mut c.nodes {
        node.history.clear();
    }
    c
}

pub(crate) fn store(c: &mut Cluster, id: u16, offset: u64, size: u32, value: u64) {
    c.store(id, c.address(id, OWN.into(), offset), size, value);
}

pub(crate) fn word(c: &Cluster, id: u16, offset: u64) -> u64 {
    c.ram_u64(id, EXPORTS + offset)
}

pub(crate) fn history(c: &Cluster, id: u16, offset: u64) -> Vec<u64> {
    c.nodes[usize::from(id)].history.iter().filter(|h| h.1 == EXPORTS + offset).map(|h| h.2).collect()
}

pub(crate) fn copies_are_equal(c: &Cluster) -> Result<(), String> {
    let page = |id: usize| c.pages(id as u16, 0, 1);
    for id in 1..c.nodes.len() {
        if let Some(at) = (0..UNIT as usize).find(|at| page(0)[*at] != page(id)[*at]) {
            return Err(format!("I2: byte {at:#x} is {} at node 0 and {} at node {id}", page(0)[at], page(id)[at]));
        }
        let pending = c.nodes[id].hib.pending_counters();
        if pending != 0 {
            return Err(format!("I2: {pending} counters of node {id} are not 0"));
        }
    }
    Ok(())
}

pub(crate) fn go(c: &mut Cluster, net: Net, node: u16) {
    if net != Ideal {
        return c.disconnect(node);
    }
    for id in (0..4).filter(|id| *id != node) {
        c.event(id, Event::NodeDown { node });
    }
    c.lose_packets_of(node);
}

/// The driver of a node unmaps its invalid pages. Returns how many those are.
pub(crate) fn unmap(c: &mut Cluster, id: u16) -> usize {
    let invalid = |e: &(u16, u16, u64)| e.0 == event::REPLICA && e.2 & event::REPLICA_INVALID != 0;
    let pages: Vec<u32> = c.take_events(id).into_iter().filter(invalid).map(|e| (e.2 >> 32) as u32).collect();
    pages.iter().for_each(|page| _ = c.post(id, replica_invalid(*page)));
    pages.len()
}

/// An event of the node's ring says that its copy is an orphan.
pub(crate) fn is_orphaned(c: &Cluster, id: u16) -> bool {
    c.events(id, 64).iter().any(|e| e.0 == event::REPLICA && e.2 & event::REPLICA_ORPHANED != 0)
}

pub(crate) fn is_subsequence(of: &[u64], part: &[u64]) -> bool {
    let mut of = of.iter();
    part.iter().all(|value| of.any(|other| other == value))
}

/// [`finds`](super::finds) over as many seeds as the slowest of these needs.
pub(crate) fn finds(what: impl std::fmt::Debug, check: &str, run: impl Fn(u64) -> Result<(), String>) {
    super::finds(what, check, 0..4000, run);
}
