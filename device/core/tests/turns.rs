// SPDX-License-Identifier: MIT OR Apache-2.0
//! How boards of one process share its loop when some of them copy, in exact numbers: slices of copies between which
//! all boards are served, blocks and packets. The loop here is that of `device/host/src/serving.rs`: it serves
//! everything, then continues the copies of one board.

use crate::common::{self, ALL, Cluster, Driver, EXPORTS, copy_steps, copying};
use std::collections::BTreeMap;
use telegraphos_device_core::{BLOCK_BYTES, Bug, MAX_COPY, SHORT_BLOCK, TURN_BYTES};
use telegraphos_wire::{MAX_BLOCK, UNIT, WindowLayout};

const NODES: u16 = 4;
/// Pages that each node exports: the longest copy, and some for all else.
const PAGES: u32 = (MAX_COPY / UNIT) as u32 + 8;
/// Where the others are, in each segment.
const REST: u64 = MAX_COPY;
const BLOCK: u64 = MAX_BLOCK as u64;

/// The loop, and what it has done.
struct Host {
    c: Cluster,
    /// The node whose copies had the last slice.
    last: u16,
    /// Slices of copies, by node.
    slices: [u64; NODES as usize],
}

impl Host {
    /// Boards of one process, which all export their memory to all; contexts 0 and 1 of each import it.
    fn new(bug: Option<Bug>) -> Host {
        // An odd seed: linked in memory.
        let mut c = Cluster::new(NODES, 1, |config| {
            config.bug = bug;
            config.window = WindowLayout::new(3, 26).unwrap();
        });
        for id in 0..NODES {
            c.nodes[usize::from(id)].ram.resize((EXPORTS + u64::from(PAGES) * UNIT) as usize, 0);
            c.export(id, "seg", 0, PAGES, ALL);
        }
        for id in 0..NODES {
            c.open_context(id, 1);
            for context in 0..2 {
                for other in 0..NODES {
                    c.import_into(id, context, other, "seg", NODES * context + other, u32::from(context) * PAGES);
                }
            }
        }
        c.settle();
        c.use_rings(false);
        c.packets = 0;
        Host { c, last: 0, slices: [0; NODES as usize] }
    }

    fn at(&self, context: u16, (node, offset): (u16, u64)) -> u64 {
        self.c.address(node, u32::from(context) * PAGES, offset)
    }

    /// Launches a copy of a node, context and slot between locations, each a node and an offset.
    fn copy(&mut self, by: (u16, u16, u8), cookie: u64, to: (u16, u64), from: (u16, u64), length: u64) {
        let (id, context, slot) = by;
        let launch = copying(cookie);
        self.c.launch(id, context, slot, copy_steps(launch, self.at(context, to), self.at(context, from), length));
    }

    fn moved(&self) -> Vec<u64> {
        self.c.nodes.iter().map(|node| node.moved).collect()
    }

    /// No node has moved more than a slice may since then.
    fn check(&self, before: &[u64]) -> Result<(), String> {
        for (id, (now, before)) in self.moved().iter().zip(before).enumerate() {
            let moved = now - before;
            // The last block may begin with the last byte of the budget.
            if moved >= TURN_BYTES + BLOCK {
                return Err(format!("node {id} moved {moved} bytes in one slice"));
            }
        }
        Ok(())
    }

    /// A turn of the loop. False if no copy waits for another one.
    fn turn(&mut self) -> Result<bool, String> {
        let before = self.moved();
        self.c.serve_all();
        self.check(&before)?;
        let before = self.moved();
        let Some(id) = self.c.copy_slice(self.last) else { return Ok(false) };
        self.last = id;
        self.slices[usize::from(id)] += 1;
        self.check(&before)?;
        Ok(true)
    }
}

#[test]
fn a_copy_of_16_mib_takes_so_many_slices_and_packets() {
    let (blocks, slice) = (MAX_COPY / BLOCK, TURN_BYTES / BLOCK);
    // A slice is as long as what may be under way, so node 1 copies a slice of it each time: the first without asking.
    // Node 0 asks when it has lent so much that its own budget for that is used up.
    assert_eq!(BLOCK_BYTES, TURN_BYTES);
    let (moving, lending) = (blocks / slice - 1, blocks * SHORT_BLOCK / TURN_BYTES - 1);
    for (get, to, from) in [(false, (1, 0), (0, 0)), (true, (0, 0), (1, 0))] {
        let mut host = Host::new(None);
        for (n, byte) in host.c.nodes[usize::from(from.0)].ram.iter_mut().enumerate().skip(EXPORTS as usize) {
            *byte = (n * 7 + n / 251) as u8;
        }
        host.copy((0, 0, 0), 9, to, from, MAX_COPY);
        let mut turns = 1;
        while host.turn().unwrap() {
            turns += 1;
        }
        assert_eq!(host.c.done(0, 0, 0), (0, 9), "get {get}");
        let range = EXPORTS as usize..(EXPORTS + MAX_COPY) as usize;
        assert!(host.c.nodes[0].ram[range.clone()] == host.c.nodes[1].ram[range], "get {get}");
        assert_eq!((turns, host.slices), (1 + moving + lending, [lending, moving, 0, 0]), "get {get}");
        assert_eq!(host.c.nodes[usize::from(to.0)].blocks.len() as u64, blocks, "get {get}");
        // A request for each block, and at most an answer. Each byte is moved once, by the node that is asked.
        assert!((blocks + 1..=2 * blocks).contains(&host.c.packets), "get {get}: {} packets", host.c.packets);
        assert_eq!(host.moved(), [0, MAX_COPY, 0, 0], "get {get}");
    }
}

/// A short copy that is launched again whenever it has ended.
struct Short {
    what: &'static str,
    id: u16,
    /// Its context is the number of the slot modulo 2.
    slot: u8,
    to: (u16, u64),
    from: (u16, u64),
    /// Slices, of whatever board, that it may wait for.
    most: u64,
    /// Copies so far, and the turn in which the last one was launched.
    count: u64,
    begun: u64,
    waits: bool,
}

const fn short(what: &'static str, id: u16, slot: u8, to: (u16, u64), from: (u16, u64), most: u64) -> Short {
    Short { what, id, slot, to, from, most, count: 0, begun: 0, waits: false }
}

/// All boards have a slice.
const ROUND: u64 = NODES as u64;

/// Two long copies to one node, and amid them short ones and single accesses of all nodes. Each has so many slices to
/// wait for, at most. Returns the most that each has waited for.
fn waits_are_bounded_by_turns(bug: Option<Bug>) -> Result<BTreeMap<String, u64>, String> {
    let mut host = Host::new(bug);
    for id in [0, 3] {
        host.copy((id, 0, 0), 9, (1, 0), (id, 0), MAX_COPY);
    }
    // What is under way for the same pair of nodes comes first: two slices of node 1, since two copies share them.
    let mut shorts = [
        short("a put beside a long one of another context", 0, 1, (1, REST), (0, REST), 2 * ROUND),
        short("a put of a third node to the same one", 2, 2, (1, REST + UNIT), (2, REST), ROUND),
        // It waits for that put as well.
        short("a get from there", 2, 3, (2, REST + UNIT), (1, REST), 2 * ROUND),
        short("a put to one that sends", 2, 4, (0, REST + UNIT), (2, REST), ROUND),
        short("a put of the one that receives", 1, 1, (2, REST + 2 * UNIT), (1, REST), ROUND),
        short("a copy within a node", 2, 5, (2, REST + 3 * UNIT), (2, REST), ROUND),
    ];
    let mut worst = BTreeMap::new();
    let mut waited = |what: &str, turns: u64, most: u64| {
        let worst = worst.entry(what.to_string()).or_insert(0);
        *worst = turns.max(*worst);
        if turns > most { Err(format!("{what} waits for {turns} slices, and {most} are its turn")) } else { Ok(()) }
    };
    let pairs = || (0..NODES).flat_map(|id| (0..NODES).filter(move |other| *other != id).map(move |other| (id, other)));
    let word = |id: u16| REST + 4 * UNIT + 8 * u64::from(id);
    // Node, other node, token, the turn in which it began.
    let mut loads: Vec<(u16, u16, u64, u64)> = Vec::new();
    let mut turn = 0;
    while [0, 3].map(|id| host.c.done(id, 0, 0).1) != [9; 2] {
        turn += 1;
        for short in &mut shorts {
            let context = u16::from(short.slot % 2);
            short.waits &= host.c.done(short.id, context, short.slot) != (0, short.count);
            if !short.waits {
                (short.waits, short.begun, short.count) = (true, turn, short.count + 1);
                host.copy((short.id, context, short.slot), short.count, short.to, short.from, 8192);
            }
        }
        // A store of each node to each other one, and a load.
        for (id, other) in pairs() {
            let to = host.at(0, (other, word(id)));
            host.c.store(id, to, 8, turn);
            if !loads.iter().any(|load| (load.0, load.1) == (id, other)) {
                loads.push((id, other, host.c.start_load(id, to, 8), turn));
            }
        }
        host.turn()?;
        for short in &shorts {
            let done = host.c.done(short.id, u16::from(short.slot % 2), short.slot) == (0, short.count);
            waited(short.what, turn - short.begun + u64::from(!done), short.most)?;
        }
        // Where no blocks go, no access waits for any.
        let most = |id: u16, other: u16| if other == 1 || (id, other) == (1, 2) { ROUND } else { 0 };
        for (id, other) in pairs() {
            let landed = host.c.ram_u64(other, EXPORTS + word(id));
            waited(&format!("a store of node {id} to node {other}"), turn - landed, most(id, other))?;
        }
        loads.retain(|(id, _, token, _)| host.c.nodes[usize::from(*id)].reads.remove(token).is_none());
        for (id, other, _, begun) in &loads {
            let most = if *other == 1 { 2 * ROUND } else { ROUND };
            waited(&format!("a load of node {id} from node {other}"), turn - begun + 1, most)?;
        }
    }
    // All proceeded at the same time: none of them waited for the end of the long ones.
    for short in &shorts {
        let least = turn / (short.most + 1);
        assert!(short.count >= least, "{}: {} times, at least {least} in {turn} turns", short.what, short.count);
    }
    Ok(worst)
}

#[test]
fn copies_and_single_accesses_wait_for_few_slices_of_each_other() {
    let worst = waits_are_bounded_by_turns(None).unwrap();
    // It is not for lack of others that none had to wait.
    assert!(worst.values().filter(|slices| **slices > 0).count() >= 8, "{worst:?}");
    let check = |_| waits_are_bounded_by_turns(Some(Bug::ForgetClaims)).map(|_| ());
    common::finds(Bug::ForgetClaims, "are its turn", 0..1, check);
    let check = |_| waits_are_bounded_by_turns(Some(Bug::CopyAtOnce)).map(|_| ());
    common::finds(Bug::CopyAtOnce, "bytes in one slice", 0..1, check);
}
