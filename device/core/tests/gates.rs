// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gates of ranges: memory that stays granted is reached by one node, for so long as its process says.

use crate::common::{self, ALL, Cluster, Driver, EXPORTS, grant_clear, import_ack, import_pages, of_three, publish};
use telegraphos_device_core::{Bug, Step};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::context::{self, Launch, NumberedArgument, Operation};
use telegraphos_wire::range::{self, Run};
use telegraphos_wire::{Status, UNIT};

/// The import of the range by its own context, and that by its name, of each node.
const OWN: u16 = 10;
const NAMED: u16 = 11;
/// Where the test places lists for the board, and where the range lies.
const LIST: u64 = 0x8_0000;
const MEMORY: u64 = EXPORTS + 8 * UNIT;
const LENGTH: u64 = 66_000;
const NUMBER: u32 = 7;

/// Three boards with a range behind a gate at node 0.
struct World {
    c: Cluster,
    generation: u64,
}

impl World {
    /// With a range that may be opened to these nodes.
    fn new(seed: u64, bug: Option<Bug>, nodes: u64) -> World {
        let mut c = of_three(seed, ALL, bug);
        c.open_context(0, 1);
        let run = Run { address: MEMORY, length: LENGTH };
        c.nodes[0].ram[LIST as usize..][..size_of::<Run>()].copy_from_slice(bytemuck::bytes_of(&run));
        c.nodes[0].ram[MEMORY as usize..(MEMORY + LENGTH) as usize].fill(0x11);
        let page = range::first_page(NUMBER);
        let grant = Command {
            opcode: admin::GRANT_GATED,
            index: page,
            count: 1,
            page: 1,
            address: LIST,
            rights: ALL.0,
            nodes: [nodes, 0, 0, 0],
            ..Command::default()
        };
        let granted = c.ok(0, grant);
        c.ok(0, Command { rights_others: 0, ..publish("memory", page, LENGTH, granted.generation, ALL) });
        let mut world = World { c, generation: granted.generation };
        assert_eq!(world.import(0, 0, OWN, granted.generation), Status::Ok);
        world
    }

    fn import(&mut self, id: u16, context: u16, import: u16, generation: u64) -> Status {
        let set = Command {
            length: LENGTH,
            context,
            ..import_pages(import, 0, 0, (range::first_page(NUMBER), 0), generation, ALL)
        };
        self.c.status(id, set)
    }

    /// Context 0 of node 0 opens the gate, or closes it, in slot 0.
    fn launch_gate(&mut self, import: u16, node: u64, length: u64) -> u64 {
        let cookie = self.c.cookie();
        self.c.numbered(0, 0, NumberedArgument { slot: 0, which: 0, import, offset: 0 });
        let launch = Launch { operation: Operation::Gate, notify: false, cookie }.encode();
        for (register, data) in [(context::OPERAND, node), (context::LENGTH, length), (context::LAUNCH, launch)] {
            self.c.slot_register(0, 0, 0, register, data);
        }
        cookie
    }

    fn gate(&mut self, node: u64, length: u64) -> Status {
        let cookie = self.launch_gate(OWN, node, length);
        self.c.finish(0, 0, 0, cookie).0
    }

    /// Context 0 of a node starts to copy from an import of the range to its own export page, in slot 1.
    fn launch_get(&mut self, id: u16, import: u16, offset: u64, length: u64) -> u64 {
        let cookie = self.c.cookie();
        self.c.launch_numbered(id, 1, cookie, [(id, 0), (import, offset)], length);
        cookie
    }

    /// What comes of such a copy. The import's error, if it has one, is acknowledged.
    fn get(&mut self, id: u16, import: u16, offset: u64, length: u64) -> Status {
        let cookie = self.launch_get(id, import, offset, length);
        let (status, _) = self.c.finish(id, 0, 1, cookie);
        self.c.ok(id, import_ack(import));
        status
    }
}

fn a_closed_gate_admits_no_node(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(seed, bug, 0b111);
    assert_eq!(world.c.lookup(1, 0, "memory").status, Status::NoSegment as u32, "it is closed at first");
    let named = world.generation + 1;
    for id in 0..3 {
        assert_eq!(world.import(id, 0, NAMED, named), Status::Ok);
    }
    for node in 0..3 {
        assert_eq!(world.gate(node, 5000), Status::Ok);
        for id in 0..3 {
            let found = world.c.lookup(id, 0, "memory");
            let wanted = if u64::from(id) == node { Status::Ok } else { Status::NoSegment };
            assert_eq!(found.status, wanted as u32, "node {id} looks it up while it is open to {node}");
            if found.status == 0 {
                assert_eq!((found.generation, found.length), (named, LENGTH));
            }
            let wanted = if u64::from(id) == node { Status::Ok } else { Status::NotGranted };
            let got = world.get(id, NAMED, 100, 4900);
            if got != wanted {
                return Err(format!("node {id} copies while it is open to {node}: {got:?}"));
            }
            assert_eq!(world.get(0, OWN, 0, LENGTH), Status::Ok, "the memory is its process's");
        }
        assert_eq!(world.get(node as u16, NAMED, 4999, 2), Status::Bounds, "only so many bytes");
        assert_eq!(world.gate((node + 1) % 3, 1), Status::Busy);
        assert_eq!(world.gate(node, LENGTH), Status::Ok, "to the same node");
        assert_eq!(world.get(node as u16, NAMED, 0, LENGTH), Status::Ok);
        assert_eq!(world.gate(0, 0), Status::Ok);
        for id in 0..3 {
            let got = world.get(id, NAMED, 0, 8);
            if got != Status::NotGranted {
                return Err(format!("node {id} copies after it was closed: {got:?}"));
            }
        }
        assert_eq!(world.get(0, OWN, 0, LENGTH), Status::Ok);
    }
    Ok(())
}

#[test]
fn a_gate_admits_one_node_for_so_many_bytes_while_it_is_open() {
    a_closed_gate_admits_no_node(1, None).unwrap();
    a_closed_gate_admits_no_node(2, None).unwrap();
    let check = "node 1 copies while it is open to 0";
    common::finds(Bug::GateAlwaysOpen, check, 0..2, |seed| {
        a_closed_gate_admits_no_node(seed, Some(Bug::GateAlwaysOpen))
    });
}

#[test]
fn a_gate_is_its_own_contexts_to_open() {
    let mut world = World::new(3, None, 0b011);
    let named = world.generation + 1;
    assert_eq!(world.gate(2, 8), Status::Rights, "it is not granted to node 2");
    assert_eq!(world.gate(70_000, 8), Status::BadNode);
    assert_eq!(world.gate(1, LENGTH + 1), Status::Bounds);
    // Imports of the same context that are not the range's own, and one of another context.
    assert_eq!(world.import(0, 0, NAMED, named), Status::Ok);
    assert_eq!(world.import(0, 1, 12, world.generation), Status::Ok);
    for (import, wanted) in
        [(NAMED, Status::NotGranted), (0, Status::Invalid), (1, Status::NotLocal), (12, Status::Argument)]
    {
        let cookie = world.launch_gate(import, 1, 8);
        let ended = world.c.finish(0, 0, 0, cookie).0;
        assert_eq!(ended, wanted, "by import {import}");
    }
    // The driver gives no process this import: the range belongs to another context regardless.
    let cookie = world.c.cookie();
    world.c.numbered(0, 1, NumberedArgument { slot: 0, which: 0, import: 12, offset: 0 });
    let launch = Launch { operation: Operation::Gate, notify: false, cookie }.encode();
    for (register, data) in [(context::OPERAND, 1), (context::LENGTH, 8), (context::LAUNCH, launch)] {
        world.c.slot_register(0, 1, 0, register, data);
    }
    assert_eq!(world.c.finish(0, 1, 0, cookie).0, Status::NotGranted);
    assert_eq!(world.c.lookup(1, 0, "memory").status, Status::NoSegment as u32, "nothing has opened it");
}

/// Node 1 copies while the gate is closed, and then the memory gets other bytes.
fn a_gate_is_closed_when_nothing_is_in_flight(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut world = World::new(seed, bug, 0b010);
    let named = world.generation + 1;
    assert_eq!(world.import(1, 0, NAMED, named), Status::Ok);
    assert_eq!(world.gate(1, LENGTH), Status::Ok);
    let copy = world.launch_get(1, NAMED, 0, LENGTH);
    world.c.some_steps(80);
    let cookie = world.launch_gate(OWN, 0, 0);
    let blocks = world.c.hold(0, |step| matches!(step, Step::LoadBlock { .. } | Step::Pieces { .. }));
    if blocks > 0 && seed % 2 == 0 {
        world.c.settle();
        if world.c.done(0, 0, 0).1 == cookie {
            return Err(format!("the gate is closed with {blocks} blocks in flight"));
        }
    }
    world.c.release();
    assert_eq!(world.c.finish(0, 0, 0, cookie), (Status::Ok, 0));
    world.c.nodes[0].ram[MEMORY as usize..(MEMORY + LENGTH) as usize].fill(0xee);
    world.c.settle();
    if world.c.pages(1, 0, 2).contains(&0xee) {
        return Err("what was written behind the closed gate was copied".into());
    }
    let (status, ended) = world.c.done(1, 0, 1);
    assert_eq!(ended, copy, "the copy ends");
    assert!([Status::Ok, Status::NotGranted].contains(&Status::from_u16(status)), "{status}");
    Ok(())
}

#[test]
fn a_gate_that_is_closed_has_no_access_in_flight() {
    let check = "the gate is closed with";
    common::sees(Bug::CloseGateAtOnce, check, 0..200, a_gate_is_closed_when_nothing_is_in_flight);
}

/// A range that is revoked, and a board that is reset, while a gate is being closed: the operation ends, or goes with
/// its context, and nothing is left that a later range could be opened by.
#[test]
fn a_range_that_goes_takes_its_gate_along() {
    let mut world = World::new(5, None, 0b010);
    let named = world.generation + 1;
    assert_eq!(world.import(1, 0, NAMED, named), Status::Ok);
    assert_eq!(world.gate(1, LENGTH), Status::Ok);
    world.launch_get(1, NAMED, 0, LENGTH);
    world.c.hold_next(0, |step| matches!(step, Step::LoadBlock { .. } | Step::Pieces { .. }));
    let cookie = world.launch_gate(OWN, 0, 0);
    let slot = world.c.post(0, grant_clear(range::first_page(NUMBER), 1));
    world.c.settle();
    assert_ne!(world.c.done(0, 0, 0).1, cookie);
    assert_ne!(world.c.completion(0, slot).seq, world.c.last_command(0));
    world.c.release();
    assert_eq!(world.c.finish(0, 0, 0, cookie).0, Status::Ok);
    world.c.settle();
    assert_eq!(world.c.completion(0, slot).seq, world.c.last_command(0));
    assert_eq!(world.gate(1, 8), Status::NotGranted, "there is no range");
}
