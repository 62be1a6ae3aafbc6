// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boards that have joined a fabric and become home and copies of each other's pages, by the commands of a driver.

use super::Setup;
use telegraphos_device_core::{Event, Hib};
use telegraphos_testkit::world::commands::{context_open, grant_set, import_pages, replica_set};
use telegraphos_testkit::world::{ADMIN, Cluster, Driver, EXPORTS, STATUS_PAGES};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{NodeId, Rights, STREAM_BLOCK, UNIT, WindowLayout};

const INCARNATION: u64 = 1;

/// The boards of a model, in the order of their nodes: every page has a copy at every node.
pub(super) fn boards(setup: &Setup) -> Vec<Hib> {
    let n = setup.programs.len() as u16;
    let pages = setup.homes.len() as u32;
    let mut c = Cluster::power_on(n, 0, |config| {
        config.window = WindowLayout::new(if n > 4 { 3 } else { 2 }, 18).expect("nodes of 256 KiB");
        config.contexts = 1;
        config.imports = 4;
        config.export_pages = pages;
        config.counters = 0;
        config.credits = [64; 4];
        config.outstanding = 64;
        config.pending_writes = setup.counters;
        // One packet for each copy: the ideal network has no groups.
        config.fanout_by_switch = false;
        config.bug = setup.bug;
    });
    for id in 0..n {
        c.join(id, INCARNATION, STREAM_BLOCK as u32);
        c.event(id, Event::BusMaster(true));
        c.register(id, Register::AdminBase, ADMIN);
        c.ok(id, context_open(0, STATUS_PAGES, 0));
    }
    // Every node exports every page; the homes' are joined.
    let mut generations = vec![Vec::new(); usize::from(n)];
    for id in 0..n {
        for page in 0..pages {
            let grant = grant_set(page, 1, EXPORTS + u64::from(page) * UNIT, Rights(7));
            let generation = c.ok(id, grant).generation;
            generations[usize::from(id)].push(generation);
            let import = import_pages(page as u16, id, page, (page, 1), generation, Rights(7));
            c.ok(id, Command { taken: 1 + page, ..import });
        }
    }
    let mut become_copy = |id: NodeId, page: u32, home: NodeId| {
        let generation = generations[usize::from(home)][page as usize];
        c.ok(id, replica_set(page, setup.mode, home, page, generation));
        c.settle();
    };
    for page in 0..pages {
        let home = setup.homes[page as usize];
        let others = |of: NodeId| (0..n).filter(move |id| *id != of);
        if setup.mode == admin::NAIVE {
            (0..n).for_each(|id| become_copy(id, page, id));
            (0..n).for_each(|id| others(id).for_each(|other| become_copy(id, page, other)));
        } else {
            become_copy(home, page, home);
            others(home).for_each(|id| become_copy(id, page, home));
        }
    }
    c.nodes.into_iter().map(|node| node.hib).collect()
}
