// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ranges: memory in scattered runs that is granted, copied, revoked and accounted for.

use crate::common::{self, ALL, Cluster, Driver, EXPORTS, grant_clear, import_pages, of_three, publish};
use telegraphos_device_core::{Bug, Step};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::range::{self, Run};
use telegraphos_wire::{Status, UNIT};

/// The import of the range, by whom it is granted and by node 0.
const OWN: u16 = 10;
/// Where the test places lists for the board.
const LIST: u64 = 0x8_0000;
/// Where the runs lie: behind the exported pages.
const MEMORY: u64 = EXPORTS + 8 * UNIT;
/// The range that is used.
const NUMBER: u32 = 7;

/// Grants the next `runs` of `total` of a range.
fn grant(c: &mut Cluster, node: u16, number: u32, runs: &[Run], total: u32, generation: u64) -> Completion {
    let bytes: Vec<u8> = runs.iter().flat_map(|run| bytemuck::bytes_of(run).to_vec()).collect();
    let at = LIST as usize;
    c.nodes[usize::from(node)].ram[at..at + bytes.len()].copy_from_slice(&bytes);
    c.admin(node, command(number, runs.len() as u32, total, generation))
}

fn command(number: u32, count: u32, total: u32, generation: u64) -> Command {
    Command {
        opcode: admin::GRANT_RANGE,
        index: range::first_page(number),
        count,
        page: total,
        address: LIST,
        generation,
        rights: ALL.0,
        nodes: [u64::MAX; 4],
        ..Command::default()
    }
}

/// Imports a range of `node` without a window.
fn import(c: &mut Cluster, id: u16, node: u16, number: u32, generation: u64, length: u64, import: u16) -> Status {
    let page = range::first_page(number);
    let set = Command { length, ..import_pages(import, node, 0, (page, 0), generation, ALL) };
    c.status(id, set)
}

/// Runs of odd ends in scattered pages, of at least `length` bytes; backwards, so that none is adjacent to the next.
fn scattered(length: u64, seed: u64) -> Vec<Run> {
    let pages = length.div_ceil(4096) + 1;
    let (head, mut runs, mut rest) = (1 + seed * 7 % 4095, Vec::new(), length);
    for page in 0..pages {
        let address = MEMORY + (pages - page) * 8192;
        let (address, most) = if page == 0 { (address + head, 4096 - head) } else { (address, 4096) };
        let length = rest.min(most);
        rest -= length;
        if length > 0 {
            runs.push(Run { address, length });
        }
    }
    runs
}

/// The bytes of a range's memory.
fn bytes(c: &Cluster, node: u16, runs: &[Run]) -> Vec<u8> {
    let ram = &c.nodes[usize::from(node)].ram;
    runs.iter().flat_map(|run| &ram[run.address as usize..(run.address + run.length) as usize]).copied().collect()
}

fn fill(c: &mut Cluster, node: u16, runs: &[Run], data: &[u8]) {
    let mut rest = data;
    for run in runs {
        let (now, later) = rest.split_at(run.length as usize);
        c.nodes[usize::from(node)].ram[run.address as usize..(run.address + run.length) as usize].copy_from_slice(now);
        rest = later;
    }
}

/// Context 0 of node 0 launches a copy in a slot; both ends are named by number.
fn launch(c: &mut Cluster, slot: u8, to: (u16, u64), from: (u16, u64), length: u64) {
    c.launch_numbered(0, slot, 1, [to, from], length);
}

/// Status and cookie of a slot.
fn done(c: &Cluster, slot: u8) -> (Status, u64) {
    let (status, cookie) = c.done(0, 0, slot);
    (Status::from_u16(status), cookie)
}

/// Three boards with a range at node 0, imported by itself; with rings, as in one process or in three.
fn boards(seed: u64, bug: Option<Bug>, length: u64) -> (Cluster, Vec<Run>) {
    let mut c = of_three(seed, ALL, bug);
    c.use_rings(false);
    let runs = scattered(length, seed);
    let granted = grant(&mut c, 0, NUMBER, &runs, runs.len() as u32, 0);
    assert_eq!(granted.status, 0);
    assert_eq!(import(&mut c, 0, 0, NUMBER, granted.generation, length, OWN), Status::Ok);
    (c, runs)
}

fn pattern(length: u64, seed: u64) -> Vec<u8> {
    (0..length).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

/// Puts and gets of any alignment and length between scattered memory and a page of another node.
fn copies_arrive(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    const LENGTH: u64 = 70_001;
    let (mut c, runs) = boards(seed, bug, LENGTH);
    let data = pattern(LENGTH, seed);
    fill(&mut c, 0, &runs, &data);
    let (at, to) = (c.rng.below(5000) as u64, c.rng.below(9000) as u64);
    let length = 1 + c.rng.below(60_000) as u64;
    launch(&mut c, 0, (1, to), (OWN, at), length);
    c.settle();
    if done(&c, 0) != (Status::Ok, 1) {
        return Err(format!("the put ended with {:?}", done(&c, 0)));
    }
    let place = (EXPORTS + to) as usize;
    let wanted = &data[at as usize..(at + length) as usize];
    if c.nodes[1].ram[place..place + length as usize] != *wanted {
        return Err("a put has copied other bytes".into());
    }
    // Back to another place of the range; the rest of it stays as it was.
    let back = c.rng.below(9000) as u64;
    launch(&mut c, 1, (OWN, back), (1, to), length);
    c.settle();
    let mut all = data.clone();
    all[back as usize..(back + length) as usize].copy_from_slice(wanted);
    if bytes(&c, 0, &runs) != all {
        return Err("a get has changed other bytes".into());
    }
    // The memory between the runs belongs to others.
    let between = |n: u64| MEMORY + n * 8192 + 4096;
    let touched = (0..runs.len() as u64)
        .map(between)
        .any(|at| c.nodes[0].ram[at as usize..at as usize + 4096].iter().any(|byte| *byte != 0));
    if touched { Err("memory between the runs was changed".into()) } else { Ok(()) }
}

#[test]
fn copies_of_scattered_memory_arrive_at_any_alignment() {
    common::sees(Bug::IgnoreRunEnd, "a put has copied other bytes", 0..100, copies_arrive);
}

/// Another node imports the range with a window: words by loads, stores and atomics.
#[test]
fn words_of_a_range_are_accessed_by_a_window() {
    let mut c = of_three(3, ALL, None);
    let runs = [Run { address: MEMORY + 4096 - 16, length: 16 }, Run { address: MEMORY + 8192, length: 4096 }];
    let granted = grant(&mut c, 1, 0, &runs, 2, 0);
    let publish = Command { rights_others: 0, ..publish("range", range::first_page(0), 4112, granted.generation, ALL) };
    assert_eq!(c.status(1, Command { length: 4113, ..publish }), Status::NotGranted);
    c.ok(1, publish);
    c.import(0, 1, "range", OWN, 4);
    let address = c.address(1, 4, 8);
    c.store(0, address, 8, 0x1234);
    c.store(0, c.address(1, 4, 16), 4, 0x77);
    assert_eq!(c.quiet(0, OWN.into(), 1), 0);
    assert_eq!((c.ram_u64(1, MEMORY + 4088), c.ram_u64(1, MEMORY + 8192)), (0x1234, 0x77));
    assert_eq!(c.load(0, address, 8), 0x1234);
    c.store(0, c.address(1, 4, 4112), 8, 1);
    assert_eq!(c.quiet(0, OWN.into(), 2), Status::Bounds as u16);
}

#[test]
fn words_that_are_not_aligned_in_memory_are_refused() {
    let mut c = of_three(4, ALL, None);
    let runs = [Run { address: MEMORY + 4, length: 4092 }];
    let granted = grant(&mut c, 1, 0, &runs, 1, 0);
    c.ok(0, Command { length: 4092, ..import_pages(OWN, 1, 4, (range::first_page(0), 1), granted.generation, ALL) });
    let address = c.address(1, 4, 0);
    c.store(0, address, 4, 5);
    assert_eq!((c.quiet(0, OWN.into(), 1), c.ram_u64(1, MEMORY)), (0, 5 << 32));
    c.store(0, address, 8, 6);
    assert_eq!(c.quiet(0, OWN.into(), 2), Status::BadSize as u16);
}

/// Whatever of a copy is under way when a range is revoked: when the revocation is complete, nothing accesses it.
#[test]
fn nothing_accesses_a_range_after_its_revocation() {
    for seed in 0..200 {
        let (mut c, runs) = boards(seed, None, 66_000);
        let (to, from) = if seed % 2 == 0 { ((1, 0), (OWN, 0)) } else { ((OWN, 0), (1, 0)) };
        fill(&mut c, 0, &runs, &vec![0x11; 66_000]);
        c.pages_mut(1, 0, 2).fill(0x11);
        launch(&mut c, 0, to, from, 66_000);
        c.some_steps(60);
        c.hold(1, |step| matches!(step, Step::StoreBlock { .. } | Step::LoadBlock { .. }));
        c.ok(0, grant_clear(range::first_page(NUMBER), 1));
        assert_eq!(c.nodes[0].loans.outstanding(), 0, "seed {seed}: it is still lent");
        fill(&mut c, 0, &runs, &vec![0xee; 66_000]);
        c.proceed();
        let other = c.pages(1, 0, 2);
        assert!(!other.contains(&0xee), "seed {seed}: the next owner's bytes were copied");
        assert!(bytes(&c, 0, &runs).iter().all(|b| *b == 0xee), "seed {seed}: the next owner's bytes were changed");
        let (status, cookie) = done(&c, 0);
        assert_eq!(cookie, 1, "seed {seed}: the copy ends");
        assert!(matches!(status, Status::Ok | Status::NotGranted), "seed {seed}: {status:?}");
        // The number is free again, and the old import is not of the new range.
        let granted = grant(&mut c, 0, NUMBER, &runs, runs.len() as u32, 0);
        assert_eq!(granted.status, 0);
        launch(&mut c, 2, to, from, 8);
        c.settle();
        assert_eq!(done(&c, 2), (Status::Stale, 1), "seed {seed}");
    }
}

/// Pages of 4 KiB of node 0's memory, behind the exported ones, that are of ranges or free.
const PAGES: u64 = 48;
/// The bytes of a free page.
const FREE: u8 = 0xee;
/// The bytes of all others.
const USED: u8 = 0x11;
/// Numbers of ranges that the test uses.
const NUMBERS: u32 = 5;

/// A range that is granted.
struct Granted {
    /// Its runs, of pages by number.
    pages: Vec<u64>,
    /// Bytes of the first page before it.
    head: u64,
    length: u64,
    import: u16,
}

/// Ranges that come and go while copies of them are under way, against the owner of each page.
struct Owners {
    c: Cluster,
    ranges: std::collections::BTreeMap<u32, Granted>,
    free: Vec<u64>,
    imports: u16,
}

impl Owners {
    fn new(seed: u64, bug: Option<Bug>) -> Owners {
        let mut c = of_three(seed, ALL, bug);
        c.use_rings(false);
        let all = MEMORY as usize..(MEMORY + PAGES * 4096) as usize;
        c.nodes[0].ram[all].fill(FREE);
        c.pages_mut(1, 0, 2).fill(USED);
        Owners { c, ranges: std::collections::BTreeMap::new(), free: (0..PAGES).collect(), imports: OWN }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.c.rng.below(limit as usize) as u64
    }

    fn fill(&mut self, page: u64, from: u64, byte: u8) {
        let at = (MEMORY + page * 4096) as usize;
        self.c.nodes[0].ram[at + from as usize..at + 4096].fill(byte);
    }

    /// Grants a range of free pages, in one to three lists, and imports it.
    fn grant(&mut self, number: u32) {
        let count = (2 + self.below(10)).min(self.free.len() as u64);
        if self.ranges.contains_key(&number) || count < 2 {
            return;
        }
        let mut pages = Vec::new();
        for _ in 0..count {
            let at = self.below(self.free.len() as u64) as usize;
            pages.push(self.free.swap_remove(at));
        }
        let head = self.below(4096);
        let runs: Vec<Run> = pages
            .iter()
            .enumerate()
            .map(|(n, page)| {
                let head = if n == 0 { head } else { 0 };
                Run { address: MEMORY + page * 4096 + head, length: 4096 - head }
            })
            .collect();
        for (n, page) in pages.iter().enumerate() {
            self.fill(*page, if n == 0 { head } else { 0 }, USED);
        }
        let (lists, mut generation) = (runs.len().div_ceil(1 + self.below(3) as usize), 0);
        for list in runs.chunks(lists) {
            let done = grant(&mut self.c, 0, number, list, runs.len() as u32, generation);
            assert_eq!(done.status, 0);
            generation = done.generation;
        }
        self.imports += 1;
        let length = count * 4096 - head;
        assert_eq!(import(&mut self.c, 0, 0, number, generation, length, self.imports), Status::Ok);
        self.ranges.insert(number, Granted { pages, head, length, import: self.imports });
    }

    /// Begins a copy between a range and node 1's memory, or another range.
    fn copy(&mut self, slot: u8) {
        let ends: Vec<(u16, u64)> = self.ranges.values().map(|range| (range.import, range.length)).collect();
        if ends.is_empty() {
            return;
        }
        let range = ends[self.below(ends.len() as u64) as usize];
        let other = if self.below(3) == 0 { ends[self.below(ends.len() as u64) as usize] } else { (1, 2 * UNIT) };
        if other.0 == range.0 {
            return;
        }
        let length = 1 + self.below(range.1.min(other.1));
        let (here, there) = (self.below(range.1 - length + 1), self.below(other.1 - length + 1));
        let (to, from) = ((range.0, here), (other.0, there));
        let (to, from) = if self.below(2) == 0 { (to, from) } else { (from, to) };
        launch(&mut self.c, slot, to, from, length);
    }

    /// Revokes a range, of whose copies any board may be in the middle: their steps are as slow as the memory likes.
    /// When the board says that it is done, the pages are others'.
    fn revoke(&mut self, number: u32) {
        let Some(range) = self.ranges.remove(&number) else { return };
        let block = |step: &Step| {
            matches!(step.clone().apart().0, Step::StoreBlock { .. } | Step::LoadBlock { .. } | Step::Lend { .. })
        };
        let clear = grant_clear(range::first_page(number), 1);
        let slow = self.below(4) as u16;
        self.c.hold(slow % 2, block);
        let slot = self.c.post(0, clear);
        let completed = |c: &Cluster| c.completion(0, slot).seq == c.last_command(0);
        while !completed(&self.c) {
            self.c.hold(slow % 2, block);
            if !self.c.step() || slow > 1 {
                self.c.release();
                self.c.step();
            }
        }
        assert_eq!(self.c.completion(0, slot).status, 0);
        for page in range.pages {
            self.fill(page, 0, FREE);
            self.free.push(page);
        }
    }

    fn check(&self) -> Result<(), String> {
        let page = |page: u64| &self.c.nodes[0].ram[(MEMORY + page * 4096) as usize..][..4096];
        if let Some(changed) = self.free.iter().find(|number| page(**number).iter().any(|byte| *byte != FREE)) {
            return Err(format!("page {changed}, which is no range's, was changed"));
        }
        for range in self.ranges.values() {
            for (n, number) in range.pages.iter().enumerate() {
                let (before, own) = page(*number).split_at(if n == 0 { range.head as usize } else { 0 });
                if before.iter().any(|byte| *byte != FREE) {
                    return Err(format!("page {number} was changed before the first byte of its range"));
                }
                if own.contains(&FREE) {
                    return Err(format!("bytes that are no range's were copied to page {number}"));
                }
            }
        }
        let there = self.c.pages(1, 0, 2);
        if there.contains(&FREE) { Err("bytes that are no range's were copied to node 1".into()) } else { Ok(()) }
    }
}

/// Ranges are granted, copied and revoked in any order: no copy reads or changes a page that is not of its range.
fn pages_have_their_owners(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut owners = Owners::new(seed, bug);
    for _ in 0..80 {
        let number = owners.below(NUMBERS.into()) as u32;
        match owners.below(8) {
            0 | 1 => owners.grant(number),
            2 => owners.revoke(number),
            3 => owners.c.release(),
            4 => {
                let slot = owners.below(64) as u8;
                owners.copy(slot);
            }
            _ => {
                for _ in 0..owners.below(40) {
                    owners.c.step();
                }
            }
        }
        owners.check()?;
    }
    owners.c.proceed();
    owners.check()
}

#[test]
fn no_copy_touches_a_page_that_is_not_of_its_range() {
    for seed in 0..300 {
        pages_have_their_owners(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    for (bug, check) in [
        (Bug::ClearRangeAtOnce, "which is no range's, was changed"),
        (Bug::RecallFirstRun, "bytes that are no range's"),
    ] {
        common::finds(bug, check, 0..300, |seed| pages_have_their_owners(seed, Some(bug)));
    }
}

#[test]
fn bad_lists_and_numbers_are_refused() {
    let mut c = of_three(5, ALL, None);
    let run = Run { address: MEMORY, length: 8192 };
    let status = |done: Completion| Status::from_u16(done.status as u16);
    for (number, count, total) in [(0, 0, 1), (0, 2, 1), (0, range::LIST as u32 + 1, 9999), (range::COUNT as u32, 1, 1)]
    {
        assert_eq!(status(c.admin(0, command(number, count, total, 0))), Status::Invalid);
    }
    let odd = Command { index: range::first_page(0) + 1, ..command(0, 1, 1, 0) };
    assert_eq!(status(c.admin(0, odd)), Status::Invalid);
    assert_eq!(status(grant(&mut c, 0, 0, &[run], 1, 99)), Status::Stale, "there is nothing to continue");
    let granted = grant(&mut c, 0, 0, &[run], 3, 0);
    assert_eq!(status(granted), Status::Ok);
    assert_eq!(status(grant(&mut c, 0, 0, &[run], 3, 0)), Status::Busy);
    assert_eq!(status(grant(&mut c, 0, 0, &[run], 3, granted.generation + 1)), Status::Stale);
    let short = Run { address: MEMORY, length: 100 };
    assert_eq!(status(grant(&mut c, 0, 0, &[short], 3, granted.generation)), Status::Invalid, "not the last");
    assert_eq!(status(grant(&mut c, 0, 0, &[run], 3, granted.generation)), Status::Ok);
    assert_eq!(status(grant(&mut c, 0, 0, &[short], 3, granted.generation)), Status::Ok);
    assert_eq!(status(grant(&mut c, 0, 0, &[run], 3, granted.generation)), Status::Invalid, "it is complete");
    // A list that cannot be read.
    assert_eq!(status(c.admin(0, Command { address: 1 << 40, ..command(1, 1, 1, 0) })), Status::MemoryFault);
    // An import of another context, and one that does not exist, are no arguments.
    for import in [OWN, 999] {
        launch(&mut c, 0, (import, 0), (import, 0), 8);
        c.settle();
        assert_eq!(done(&c, 0), (Status::Argument, 1));
    }
}

/// A context gets its share of the runs whatever the others hold, and no more than half.
fn runs_are_shared(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = Cluster::new(1, seed, |config| {
        config.bug = bug;
        config.contexts = 4;
        config.runs = 64;
    });
    let status = |done: Completion| Status::from_u16(done.status as u16);
    let mut of =
        |context: u16, number: u32, total: u32| status(c.admin(0, Command { context, ..command(number, 1, total, 0) }));
    c_list(&mut of, bug)
}

fn c_list(of: &mut impl FnMut(u16, u32, u32) -> Status, bug: Option<Bug>) -> Result<(), String> {
    if of(0, 0, 33) != Status::NoSpace {
        return Err("a context has more than half of the runs".into());
    }
    assert_eq!(bug, None);
    // The list of zeros is refused, but what was charged stays so until the range is cleared.
    assert_eq!(of(0, 0, 32), Status::Invalid);
    assert_eq!(of(0, 1, 1), Status::NoSpace);
    assert_eq!(of(1, 2, 16), Status::Invalid);
    for context in 2..4 {
        assert_eq!(of(context, 10 + u32::from(context), 8), Status::Invalid, "its guarantee");
    }
    assert_eq!(of(1, 3, 1), Status::NoSpace);
    Ok(())
}

#[test]
fn a_context_cannot_use_up_the_runs_of_others() {
    runs_are_shared(1, None).unwrap();
    let check = |seed| runs_are_shared(seed, Some(Bug::UnboundedRuns));
    common::finds(Bug::UnboundedRuns, "more than half of the runs", 0..2, check);
}
