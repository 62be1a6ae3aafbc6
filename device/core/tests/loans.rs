// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between boards of one process: the near end's memory is lent to the other board, to be read by a put and to
//! be filled by a get, and taken back before another owner may have it.

use crate::common::{self, ALL, Cluster, Driver, EXPORTS, copy_steps, copying, grant_clear, of_three};
use telegraphos_device_core::{Bug, Event, Step};
use telegraphos_wire::{MAX_BLOCK, STREAM_BLOCK, Status, UNIT};

/// What is copied.
const PUBLIC: u8 = 0x11;
/// What its memory holds afterwards.
const SECRET: u8 = 0xee;

/// Three nodes as in one process, or in three, with rings.
fn three(seed: u64, bug: Option<Bug>, lends: bool) -> Cluster {
    let mut c = of_three(seed * 2 + u64::from(lends), ALL, bug);
    assert_eq!(c.block, if lends { MAX_BLOCK } else { STREAM_BLOCK });
    c.use_rings(false);
    page(&mut c, 0).fill(PUBLIC);
    c
}

/// The first page of a node.
fn page(c: &mut Cluster, node: u16) -> &mut [u8] {
    c.pages_mut(node, 0, 1)
}

/// Node 0 launches a copy of a page, as operation 1 of slot `slot`.
fn launch(c: &mut Cluster, slot: u8, to: u64, from: u64, length: u64) {
    c.launch(0, 0, slot, copy_steps(copying(1), to, from, length));
}

/// The same of its first page to that of node 1.
fn put(c: &mut Cluster) {
    let (to, from) = (c.address(1, 0, 0), c.address(0, 0, 0));
    launch(c, 0, to, from, UNIT);
}

/// How the memory of node 0 stops being what it lent.
#[derive(Clone, Copy, Debug)]
enum End {
    Revoked,
    BusMasterOff,
    Reset,
    /// The other node counts as down: of a get, its program knows that it has failed.
    NodeDown,
}

/// Lets it happen. The next owner of the memory of node 0 has it then.
fn end_loans(c: &mut Cluster, end: End) {
    match end {
        End::Revoked => _ = c.ok(0, grant_clear(0, 1)),
        End::BusMasterOff => c.event(0, Event::BusMaster(false)),
        End::Reset => c.reset(0),
        End::NodeDown => c.event(0, Event::NodeDown { node: 1 }),
    }
    if c.steps(0) > 0 {
        // A shell answers when no step is in flight.
        c.settle();
    }
}

/// Whatever of a put, or of a get, is under way when the memory is no longer lent: nothing of what is there afterwards
/// arrives, and nothing is written to it.
fn nothing_happens_behind_the_end(seed: u64, bug: Option<Bug>, end: End, get: bool) -> Result<(), String> {
    let mut c = three(seed, bug, true);
    if get {
        page(&mut c, 1).fill(PUBLIC);
        let (to, from) = (c.address(0, 0, 0), c.address(1, 0, 0));
        launch(&mut c, 0, to, from, UNIT);
    } else {
        put(&mut c);
    }
    c.some_steps(12);
    // The other node is slow.
    c.hold(1, |step| match step {
        Step::LoadBlock { .. } => get,
        Step::StoreBlock { .. } => !get,
        _ => false,
    });
    end_loans(&mut c, end);
    let lent = c.nodes[0].loans.outstanding();
    if lent > 0 && bug.is_none() {
        return Err(format!("{lent} blocks are still lent"));
    }
    page(&mut c, 0).fill(SECRET);
    c.proceed();
    let (node, wrong, to) = if get { (0, false, " to") } else { (1, true, "") };
    match page(&mut c, node).iter().position(|byte| (*byte == SECRET) == wrong) {
        Some(at) => Err(format!("byte {at} of the next owner of the memory was copied{to}")),
        None => Ok(()),
    }
}

fn nothing_happens(ends: &[End], get: bool, says: &str) {
    for end in ends {
        println!("{end:?}");
        common::sees(Bug::KeepLoans, says, 0..60, |seed, bug| nothing_happens_behind_the_end(seed, bug, *end, get));
    }
}

#[test]
fn nothing_is_read_of_memory_that_is_no_longer_lent() {
    nothing_happens(&[End::Revoked, End::BusMasterOff, End::Reset], false, "the next owner of the memory was copied");
}

#[test]
fn nothing_is_written_to_memory_that_is_no_longer_lent() {
    let ends = [End::Revoked, End::BusMasterOff, End::Reset, End::NodeDown];
    nothing_happens(&ends, true, "the next owner of the memory was copied to");
}

#[test]
fn what_was_taken_back_arrives_as_it_was() {
    let mut c = three(3, None, true);
    put(&mut c);
    c.hold_next(1, |step| matches!(step, Step::StoreBlock { .. }));
    c.settle();
    assert!(c.nodes[0].loans.outstanding() > 0, "the receiver has not copied yet");
    assert_eq!(c.status(0, grant_clear(0, 1)), Status::Ok, "the revocation does not wait for the receiver");
    assert_eq!(c.nodes[0].loans.outstanding(), 0);
    page(&mut c, 0).fill(SECRET);
    c.proceed();
    assert_eq!(c.done(0, 0, 0), (0, 1), "all blocks were sent before");
    assert!(page(&mut c, 1).iter().all(|byte| *byte == PUBLIC));
}

#[test]
fn a_block_that_is_lent_behind_the_revocation_is_not_sent() {
    let mut c = three(3, None, true);
    // The step is requested before the revocation, and performed after it.
    put(&mut c);
    c.hold_next(0, |step| matches!(step, Step::LoadBlock { .. }));
    c.settle();
    let slot = c.post(0, grant_clear(0, 1));
    c.settle();
    c.proceed();
    let seq = c.last_command(0);
    assert_eq!((c.completion(0, slot).seq, c.completion(0, slot).status), (seq, 0));
    assert_eq!(c.nodes[0].loans.outstanding(), 0);
    assert_eq!(c.done(0, 0, 0), (Status::NotGranted as u16, 1));
}

#[test]
fn memory_is_lent_within_a_process_alone() {
    // A get is performed at the owner in its turn: a store that follows it does not change what it reads.
    for (lends, get) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut c = three(4, None, lends);
        page(&mut c, 1)[..8].fill(7);
        let (near, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        let (to, from) = if get { (near, far) } else { (far, near) };
        launch(&mut c, 0, to, from, UNIT);
        if get {
            // A shell performs the step of the launch before it takes the next store.
            while c.steps(0) > 0 {
                assert!(c.step());
            }
            c.store(0, far, 8, u64::MAX);
        }
        c.settle();
        assert_eq!(c.done(0, 0, 0), (0, 1));
        let count = c.nodes.iter().map(|node| node.loans.count).sum::<usize>();
        assert_eq!(count > 0, lends, "{count} blocks were lent: in one process {lends}, get {get}");
        let arrived = if get { page(&mut c, 0)[..8] == [7; 8] } else { page(&mut c, 1).iter().all(|b| *b == PUBLIC) };
        assert!(arrived, "in one process {lends}, get {get}");
    }
}

#[test]
fn within_a_node_a_copy_is_lent_and_without_a_ring_no_other() {
    let mut c = of_three(3, ALL, None);
    page(&mut c, 0).fill(PUBLIC);
    put(&mut c);
    c.settle();
    assert_eq!((c.done(0, 0, 0), c.nodes[0].loans.count), ((0, 1), 0));
    assert!(page(&mut c, 1).iter().all(|byte| *byte == PUBLIC));
    let (to, from) = (c.address(0, 1, 0), c.address(0, 0, 0));
    launch(&mut c, 1, to, from, UNIT);
    c.settle();
    assert_eq!((c.done(0, 0, 1), c.nodes[0].loans.count), ((0, 1), 1));
    assert!(c.pages(0, 1, 1).iter().all(|byte| *byte == PUBLIC));
}

/// Two boards at a switch, as in one process. Node 0 puts to node 1, or gets from there, three pages, which wait with
/// their loans behind stores when the ring is withdrawn.
fn withdrawn(seed: u64, get: bool) -> Cluster {
    let mut c = Cluster::switched(2, 2 * seed + 1, common::small(None));
    assert_eq!(c.block, MAX_BLOCK);
    c.use_rings(false);
    c.share(4, ALL);
    c.pages_mut(u16::from(get), 0, 3).fill(PUBLIC);
    // What node 1 performs first takes long: the window of requests is full, and the blocks wait.
    (0..4).for_each(|n| c.store(0, c.address(1, 3, 8 * n), 8, n));
    c.hold_next(1, common::is_remote_store);
    c.settle();
    for n in 0..3 {
        let (near, far) = (c.address(0, n, 0), c.address(1, n, 0));
        let (to, from) = if get { (near, far) } else { (far, near) };
        launch(&mut c, n as u8, to, from, UNIT);
    }
    c.settle();
    assert_eq!(c.nodes[0].loans.outstanding(), 3, "all of them are lent");
    c.observe(&[1]);
    c.settle();
    c.proceed();
    c
}

#[test]
fn a_block_that_was_lent_and_finds_its_ring_withdrawn_goes_by_the_switch_with_its_bytes() {
    for (seed, get) in (0..10).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut c = withdrawn(seed, get);
        for slot in 0..3 {
            assert_eq!(c.done(0, 0, slot), (0, 1), "seed {seed}, get {get}");
        }
        assert_eq!(c.unlent, if get { 0 } else { 3 }, "seed {seed}");
        assert_eq!(c.nodes[0].loans.outstanding(), 0);
        let arrived = c.pages(u16::from(!get), 0, 3);
        assert!(arrived.iter().all(|byte| *byte == PUBLIC), "seed {seed}, get {get}");
        // Back by the ring, it lends again.
        let count = c.nodes[0].loans.count;
        c.observe(&[]);
        c.settle();
        let (to, from) = (c.address(1, 0, 0), c.address(0, 0, 0));
        launch(&mut c, 3, to, from, UNIT);
        c.settle();
        assert_eq!((c.done(0, 0, 3), c.nodes[0].loans.count), ((0, 1), count + 1));
    }
}

#[test]
fn copies_and_a_stream_of_stores_take_turns() {
    for seed in 0..20 {
        let mut c = three(seed, None, true);
        // Two long copies to one node, and stores to the same: the copies are longer than what may be under way at
        // once.
        let second = c.address(0, 1, 0);
        for slot in 0..8 {
            let (to, from) =
                if slot % 2 == 0 { (c.address(1, 0, 0), c.address(0, 0, 0)) } else { (c.address(1, 1, 0), second) };
            launch(&mut c, slot, to, from, UNIT - 8);
        }
        let (mut stores, mut blocks) = (0u64, Vec::new());
        let last = c.address(1, 1, UNIT - 8);
        while (0..8).any(|slot| c.done(0, 0, slot).1 != 1) {
            let before = c.nodes[1].blocks.len();
            stores += 1;
            c.store(0, last, 8, stores);
            while c.ram_u64(1, EXPORTS + 2 * UNIT - 8) != stores {
                assert!(c.step(), "seed {seed}: store {stores} does not arrive");
            }
            blocks.push(c.nodes[1].blocks.len() - before);
            if blocks.len() > 1000 {
                panic!("seed {seed}: the copies do not end: {blocks:?}");
            }
        }
        // A store waits for what was sent before it, which is bounded, and the copies continue meanwhile.
        let most = u64::from(telegraphos_device_core::BLOCKS);
        assert!(blocks.iter().all(|blocks| *blocks as u64 <= most), "seed {seed}: {blocks:?}");
        assert!(stores >= 1, "seed {seed}");
    }
}
