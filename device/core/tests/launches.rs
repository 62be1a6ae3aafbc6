// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits of launches: turns, accounts and congestion of contexts; and the launch whose last access is a load.

use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, LaunchStep, context_close, context_open, copy_steps, copying, fetch_steps,
    grant_clear, import_ack, key_of, status_page,
};
use telegraphos_device_core::{
    BLOCK_BYTES, BLOCKS, Bar, Bug, Event, HibConfig, Notice, STATUS_WORDS, Step, TURN_BYTES,
};
use telegraphos_wire::context::{self, Argument};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{AtomicOp, MAX_BLOCK, Rights, STREAM_BLOCK, Status, UNIT, WindowLayout, event};

/// Pages that each node exports.
const PAGES: u32 = 12;

/// Two boards, each with all pages of both imported by contexts 0 (imports 0 and 1) and 1 (imports 2 and 3).
fn pair(seed: u64, bug: Option<Bug>, adjust: impl Fn(&mut HibConfig)) -> Cluster {
    let mut c = Cluster::new(2, seed, |config| {
        config.bug = bug;
        config.window = WindowLayout::new(3, 21).unwrap();
        adjust(config);
    });
    for id in 0..2 {
        c.export(id, "seg", 0, PAGES, ALL);
    }
    for id in 0..2u16 {
        c.open_context(id, 1);
        for context in 0..2 {
            for other in 0..2 {
                c.import_into(id, context, other, "seg", 2 * context + other, u32::from(context) * PAGES);
            }
        }
    }
    c.settle();
    for id in 0..2 {
        c.take_events(id);
    }
    c
}

/// An address in the segment of a node, through the import of a context.
fn at(c: &Cluster, context: u16, node: u16, offset: u64) -> u64 {
    c.address(node, u32::from(context) * PAGES, offset)
}

/// A copy from one location to another, each a node and an offset.
fn start_copy(c: &mut Cluster, context: u16, slot: u8, cookie: u64, to: (u16, u64), from: (u16, u64), length: u64) {
    let (to, from) = (at(c, context, to.0, to.1), at(c, context, from.0, from.1));
    c.launch(0, context, slot, copy_steps(copying(cookie), to, from, length));
}

/// The check must pass without a bug and fail with this one, with an error that contains this text.
fn finds(bug: Bug, says: &str, check: impl Fn(u64, Option<Bug>) -> Result<(), String>) {
    common::sees(bug, says, 0..20, check);
}

#[test]
fn i14_no_context_is_named_by_the_number_of_another() {
    for (contexts, last) in [(512, 255), (256, 255), (64, 63)] {
        let mut c = Cluster::new(1, 1, |config| config.contexts = contexts);
        assert_eq!(c.hib(0).register(Register::Contexts), u64::from(last) + 1);
        for (context, status) in [(last, Status::Ok), (last + 1, Status::Invalid), (last + 2, Status::Invalid)] {
            let address = status_page(context) & 0xf_f000;
            let open = context_open(context, address, 5);
            assert_eq!(c.admin(0, open).status, status as u32, "context {context} of {contexts}");
        }
    }
}

// ---- turns ----

fn a_turn_starts_few_blocks(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = pair(seed, bug, |_| {});
    let length = 6 * UNIT;
    for n in 0..length {
        c.nodes[0].ram[(EXPORTS + n) as usize] = (n * 7 + n / 251 + seed) as u8;
    }
    let (to, from) = (at(&c, 0, 0, length), at(&c, 0, 0, 0));
    let mut most = 0;
    // Four copies of the whole segment, launched one after the other, as a server gets them from one receive.
    for slot in 0..4u8 {
        let launch = copying(9);
        for step in copy_steps(launch, to, from, length) {
            let LaunchStep::Register(register, data) = step else {
                c.launch_step(0, 0, slot, step);
                continue;
            };
            let offset = context::REGISTERS + u64::from(slot) * context::STRIDE + register;
            // All in one turn.
            most += c.at_once(0, Event::Write { bar: Bar::Contexts, offset, size: 8, data });
        }
    }
    let mut turns = 0;
    while c.asks_for_a_turn(0) {
        // Between turns all other work is served.
        c.store(0, at(&c, 1, 1, 0), 8, turns);
        turns += 1;
        most = most.max(c.at_once(0, Event::Continue));
    }
    let blocks = TURN_BYTES / MAX_BLOCK as u64;
    if most as u64 > blocks {
        return Err(format!("{most} blocks in one turn"));
    }
    c.settle();
    let ram = &c.nodes[0].ram;
    let (from, to) = (EXPORTS as usize, (EXPORTS + length) as usize);
    assert_eq!(ram[from..from + length as usize], ram[to..to + length as usize]);
    assert_eq!((0..4).map(|slot| c.done(0, 0, slot)).collect::<Vec<_>>(), [(0, 9); 4]);
    assert_eq!(c.hib(0).copying(0), 0);
    // The event of the launch may start some as well.
    let whole = 4 * length / MAX_BLOCK as u64;
    assert!(turns >= whole / blocks - 1, "{turns} turns for {whole} blocks, {most} in one");
    Ok(())
}

#[test]
fn copies_within_a_node_move_in_turns_between_which_others_are_served() {
    finds(Bug::CopyAtOnce, "blocks in one turn", a_turn_starts_few_blocks);
}

#[test]
fn blocks_are_as_long_as_the_link_to_the_node_allows() {
    for (seed, between) in [(0, STREAM_BLOCK), (1, MAX_BLOCK)] {
        let mut c = pair(seed, None, |_| {});
        let n = UNIT + 100;
        // To itself, to the other node, and from it: the second page begins a block of its own.
        let copies = [((0, 2 * UNIT), (0, 0), MAX_BLOCK), ((1, 0), (0, 0), between), ((0, 0), (1, 0), between)];
        for (cookie, (to, from, longest)) in (9..).zip(copies) {
            c.nodes.iter_mut().for_each(|node| node.blocks.clear());
            start_copy(&mut c, 0, 0, cookie, to, from, n);
            c.finish(0, 0, 0, cookie);
            let lengths: Vec<usize> = c.nodes[usize::from(to.0)].blocks.iter().map(|(_, length)| *length).collect();
            let whole = UNIT as usize / longest;
            assert_eq!(lengths.iter().filter(|length| **length == longest).count(), whole, "{to:?} {from:?}");
            assert_eq!((lengths.len(), lengths.iter().sum::<usize>()), (whole + 1, n as usize), "{to:?} {from:?}");
        }
    }
}

/// Blocks are fragments of a pipeline between hosts: as many are in flight as may be, from the first on until no more
/// are left to start, whatever the order in which the answers come.
#[test]
fn blocks_to_another_host_fill_their_share_of_the_window() {
    for (seed, put) in [(0, true), (2, false), (4, true), (6, false)] {
        // An even seed: over streams.
        let mut c = pair(seed, None, |_| {});
        assert_eq!(c.block, STREAM_BLOCK);
        let blocks = u64::from(PAGES) * UNIT / STREAM_BLOCK as u64;
        let (near, far) = ((0, 0), (1, 0));
        let (to, from) = if put { (far, near) } else { (near, far) };
        c.hanging = vec![1];
        start_copy(&mut c, 0, 0, 9, to, from, blocks * STREAM_BLOCK as u64);
        let mut most = 0;
        for done in 0..blocks {
            c.settle();
            let in_flight = c.requests_between(0, 1) as u64;
            assert_eq!(in_flight, u64::from(BLOCKS).min(blocks - done), "{done} of {blocks} are done, put: {put}");
            most = most.max(in_flight * STREAM_BLOCK as u64);
            c.deliver_one(0, 1);
        }
        c.release();
        c.finish(0, 0, 0, 9);
        assert_eq!(most, BLOCK_BYTES.min(u64::from(BLOCKS) * STREAM_BLOCK as u64));
    }
}

fn contexts_take_turns(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = pair(seed, bug, |_| {});
    let piece = 2 * UNIT;
    // Context 0 has forty copies for node 1, context 1 one of the same length.
    for slot in 0..40u8 {
        start_copy(&mut c, 0, slot, 9, (1, 0), (0, 0), piece);
    }
    start_copy(&mut c, 1, 0, 5, (1, 4 * UNIT), (0, 4 * UNIT), piece);
    let before = c.nodes[1].blocks.len();
    c.finish(0, 1, 0, 5);
    let blocks = (c.nodes[1].blocks.len() - before) as u64;
    // As many blocks of the other, and those in flight.
    let fair = 2 * piece / STREAM_BLOCK as u64 + 2 * u64::from(BLOCKS);
    if blocks > fair { Err(format!("{blocks} blocks, and {fair} are a fair share")) } else { Ok(()) }
}

#[test]
fn a_context_with_many_copies_takes_turns_with_one_that_has_one() {
    finds(Bug::TurnsByOperation, "are a fair share", contexts_take_turns);
}

// ---- accounts and congestion ----

fn states(c: &mut Cluster, context: u16) -> Vec<u64> {
    let events = c.take_events(0);
    events.into_iter().filter(|e| (e.0, e.1) == (event::CONTEXT_STATE, context)).map(|e| e.2).collect()
}

fn unfinished_copies_are_bounded(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = pair(seed, bug, |config| {
        config.copies_congest_at = 4 * UNIT;
        config.copies_clear_at = 2 * UNIT;
        config.copies_limit = 6 * UNIT;
    });
    let launch = |c: &mut Cluster, context: u16, slot: u8| {
        start_copy(c, context, slot, 7, (1, u64::from(slot % 8) * UNIT), (0, 0), UNIT);
    };
    // Blocks wait for their turn: no copy ends.
    for slot in 0..4 {
        assert_eq!(c.hib(0).context_state(0), 0, "slot {slot}");
        launch(&mut c, 0, slot);
    }
    if c.hib(0).context_state(0) != event::CONTEXT_CONGESTED {
        return Err("four copies, and the context is not congested".into());
    }
    // Below the limit none is lost; beyond it each fails with a reason.
    for slot in 4..8 {
        launch(&mut c, 0, slot);
    }
    assert_eq!(c.hib(0).copying(0), 6 * UNIT);
    // Another context is not affected.
    launch(&mut c, 1, 0);
    assert_eq!(c.hib(0).context_state(1), 0);
    let ended: Vec<_> = (0..8).map(|slot| c.finish(0, 0, slot, 7).0).collect();
    assert_eq!(ended[..6], [Status::Ok; 6]);
    assert_eq!(ended[6..], [Status::NoSpace; 2]);
    assert_eq!(c.finish(0, 1, 0, 7).0, Status::Ok);
    c.settle();
    assert_eq!(c.error(0), Status::NoSpace);
    assert_eq!((c.hib(0).copying(0), c.hib(0).copying(1)), (0, 0));
    assert_eq!(c.hib(0).register(Register::StatusBits) & telegraphos_wire::regs::STATUS_CONGESTED, 0);
    match states(&mut c, 0).as_slice() {
        // Events carry the state at the time they are posted: the first may arrive when the congestion is over.
        [.., 0] => Ok(()),
        other => Err(format!("the end is not reported: {other:?}")),
    }
}

#[test]
fn unfinished_copies_of_a_context_congest_it_and_beyond_its_limit_fail() {
    finds(Bug::UnboundedCopies, "the context is not congested", unfinished_copies_are_bounded);
    finds(Bug::ForgetContextClear, "the end is not reported", unfinished_copies_are_bounded);
}

#[test]
fn a_context_that_outruns_the_board_is_stopped_and_another_is_not() {
    let mut c = pair(3, None, |config| config.intake_limit = 256);
    let store = |c: &mut Cluster, context: u64| {
        let offset = context * UNIT + context::REGISTERS + context::OPERAND;
        c.write(0, Bar::Contexts, offset, 1);
    };
    for n in 0..300 {
        store(&mut c, 1);
        if n % 50 == 0 {
            store(&mut c, 0);
        }
    }
    c.settle();
    assert_eq!((states(&mut c, 1).as_slice(), c.hib(0).context_state(0)), ([1].as_slice(), 0));
    let congested = Notice::ContextCongested { context: 1, on: true };
    assert_eq!(c.nodes[0].notices.iter().filter(|notice| **notice == congested).count(), 1);
    c.event(0, Event::IntakeDry);
    c.settle();
    assert_eq!((states(&mut c, 1).as_slice(), c.hib(0).context_state(1)), ([0].as_slice(), 0));
    // Closing a congested context leaves no congestion for the next one under its number.
    c.open_context(0, 2);
    for _ in 0..300 {
        store(&mut c, 2);
    }
    assert_eq!(c.hib(0).context_state(2), 1);
    c.ok(0, context_close(2));
    c.settle();
    assert_eq!(c.hib(0).context_state(2), 0);
    assert_eq!(states(&mut c, 2).last(), Some(&0));
}

#[test]
fn arguments_stop_the_import_that_they_come_through() {
    let mut c = pair(3, None, |config| config.intake_limit = 256);
    let address = at(&c, 0, 1, 0);
    for _ in 0..256 {
        c.argument(0, 0, 6, 0, address);
    }
    assert_eq!(c.hib(0).import_state(1) & event::IMPORT_CONGESTED, event::IMPORT_CONGESTED);
    assert_eq!(c.hib(0).import_state(3) & event::IMPORT_CONGESTED, 0);
}

fn status_words_are_bounded(_: u64, bug: Option<Bug>) -> Result<(), String> {
    const ROUNDS: u64 = 100;
    let mut c = pair(1, bug, |_| {});
    c.event(0, Event::BusMaster(false));
    let mut cookie = 1;
    for _ in 0..ROUNDS {
        for slot in 0..context::SLOT_COUNT {
            // Launches without arguments, and quiets that need not wait.
            let launch = copying(cookie);
            c.slot_register(0, 0, slot as u8, context::LAUNCH, launch.encode());
            c.start_quiet(0, slot, context::QUIET_ALL, cookie + 1);
            cookie += 2;
        }
    }
    assert_eq!(c.steps(0), 0, "the board keeps away from memory");
    let refused = c.hib(0).register(Register::ErrorCount);
    // The other context's account is not affected.
    c.start_quiet(0, 128 + 3, context::QUIET_ALL, 3);
    let offset = UNIT + context::QUIET;
    c.write(0, Bar::Contexts, offset, context::QUIET_ALL << 48 | 77);
    c.event(0, Event::BusMaster(true));
    let words = c.steps(0) as u64;
    c.settle();
    if words > STATUS_WORDS + 3 {
        return Err(format!("{words} words waited"));
    }
    assert_eq!(refused, 2 * ROUNDS * context::SLOT_COUNT - STATUS_WORDS);
    assert_eq!(c.error(0), Status::NoSpace);
    assert_eq!(c.done(0, 1, 0), (0, 77));
    assert_eq!((c.hib(0).status_words(0), c.hib(0).status_words(1)), (0, 0));
    // The board continues as before.
    assert_eq!(c.quiet(0, context::QUIET_ALL, cookie), 0);
    Ok(())
}

#[test]
fn status_words_that_wait_for_bus_mastering_are_bounded() {
    finds(Bug::UnboundedStatusWords, "words waited", status_words_are_bounded);
}

#[test]
fn i7_quiets_that_wait_are_bounded_and_a_slot_waits_for_its_last() {
    let mut c = pair(1, None, |_| {});
    c.store(0, at(&c, 0, 1, 0), 8, 1);
    c.hold_next(1, |step| matches!(step, Step::Store { .. }));
    // A copy is in flight, too.
    start_copy(&mut c, 0, 63, 7, (1, UNIT), (0, 0), UNIT);
    for n in 0..200_000u64 {
        c.start_quiet(0, n % 63, context::QUIET_ALL, 1 + n);
    }
    assert_eq!(c.hib(0).status_words(0), 64, "63 quiets and the copy");
    assert_eq!(c.hib(0).register(Register::ErrorCount), 0, "a quiet in the place of another is no error");
    c.settle();
    assert!((0..63).all(|slot| c.done(0, 0, slot).1 == 0), "none of them is done");
    c.proceed();
    for slot in 0..63u8 {
        // Only the last one of each slot completes; the earlier ones write nothing.
        let last = (0..200_000u64).rev().find(|n| n % 63 == u64::from(slot)).unwrap();
        assert_eq!(c.done(0, 0, slot), (0, 1 + last));
    }
    assert_eq!((c.done(0, 0, 63), c.hib(0).status_words(0)), ((0, 7), 0));
}

#[test]
fn i7_quiets_of_many_imports_are_done_each_in_its_turn() {
    // Stores to two nodes, with a quiet behind each: none completes before its stores, and all complete in the end.
    for seed in 0..200 {
        let mut c = pair(seed, None, |config| config.outstanding = 4);
        for n in 0..60u64 {
            let (node, offset) = (c.rng.below(2) as u16, 8 * n);
            c.store(0, at(&c, 0, node, offset), 8, 1 + n);
            if n % 7 == 3 {
                start_copy(&mut c, 0, 60 + (n / 7 % 4) as u8, n, (1, UNIT + 8 * n), (0, 4 * UNIT), 20_000);
            }
            let scope = [context::QUIET_ALL, u64::from(node)][c.rng.below(2)];
            c.start_quiet(0, n % 60, scope, 1 + n);
            c.some_steps(4);
            let performed = |c: &Cluster, n: u64| (0..2).any(|id| c.ram_u64(id, EXPORTS + 8 * n) == 1 + n);
            for m in 0..=n {
                assert!(c.done(0, 0, m as u8).1 == 0 || performed(&c, m), "seed {seed}: quiet {m} was early");
            }
        }
        c.settle();
        for n in 0..60u8 {
            assert_eq!(c.done(0, 0, n), (0, 1 + u64::from(n)), "seed {seed}");
        }
    }
}

#[test]
fn a_context_and_a_reset_leave_nothing_on_the_accounts() {
    let mut c = pair(1, None, |_| {});
    let hold = |c: &mut Cluster| {
        c.start_quiet(0, 9, context::QUIET_ALL, 5);
        start_copy(c, 0, 1, 7, (1, 0), (0, 0), UNIT);
        c.start_quiet(0, 8, context::QUIET_ALL, 6);
    };
    hold(&mut c);
    assert!(c.hib(0).status_words(0) >= 2 && c.hib(0).copying(0) == UNIT);
    c.event(0, Event::Reset);
    assert_eq!((c.hib(0).status_words(0), c.hib(0).copying(0)), (0, 0));
}

// ---- the launch whose last access is a load (s1) ----

#[test]
fn a_load_performs_the_atomic_and_returns_its_result() {
    for seed in 0..20 {
        let mut c = pair(seed, None, |_| {});
        for node in [1, 0] {
            let (word, half) = (at(&c, 0, node, 64), at(&c, 0, node, UNIT + 4));
            c.store(0, word, 8, 40);
            assert_eq!(c.fetch(0, AtomicOp::Add, 8, word, 2, 0), 40, "behind the store before it");
            assert_eq!(c.fetch(0, AtomicOp::Swap, 8, word, u64::MAX, 0), 42);
            assert_eq!(c.fetch(0, AtomicOp::Add, 8, word, 1, 0), u64::MAX, "a value like any other");
            assert_eq!(c.fetch(0, AtomicOp::CompareSwap, 8, word, 7, 1), 0, "not equal");
            assert_eq!(c.fetch(0, AtomicOp::CompareSwap, 8, word, 7, 0), 0, "equal");
            assert_eq!(c.load(0, word, 8), 7);
            assert_eq!(c.fetch(0, AtomicOp::Swap, 4, half, 0xffff_ffff, 0), 0);
            assert_eq!(c.fetch(0, AtomicOp::Add, 4, half, 3, 0), 0xffff_ffff);
            assert_eq!(c.load(0, half - 4, 8), 2 << 32, "the upper half, which wraps by itself");
        }
        c.settle();
        // No status word is written, no error counted.
        assert_eq!(c.done(0, 0, 1), (0, 0));
        assert_eq!(c.ram_u64(0, status_page(0) + context::ERRORS_OFFSET), 0);
        assert_eq!(c.hib(0).counters().atomics, 14);
    }
}

#[test]
fn a_load_that_cannot_perform_is_answered_with_all_ones_and_counted() {
    let mut c = pair(1, None, |_| {});
    c.export(1, "plain", PAGES, 1, Rights(3));
    c.import(0, 1, "plain", 9, 2 * PAGES);
    let (word, plain) = (at(&c, 0, 1, 0), c.address(1, 2 * PAGES, 0));
    let mut errors = 0;
    let mut check = |c: &mut Cluster, data: u64, size: u32, import: Option<u16>, status: Status| {
        errors += 1;
        c.settle();
        assert_eq!(data, if size == 4 { 0xffff_ffff } else { u64::MAX }, "{status:?}");
        assert_eq!(c.ram_u64(0, status_page(0) + context::ERRORS_OFFSET), errors, "{status:?}");
        match import {
            Some(import) => {
                assert_eq!(c.latched(0, import), status, "{status:?}");
                c.ok(0, import_ack(import));
            }
            None => assert_eq!(c.error(0), status, "{status:?}"),
        }
        c.register(0, Register::ErrorAck, 1);
    };
    let bare = |c: &mut Cluster, slot: u8, size: u32| {
        let token = c.start_fetch(0, 0, slot, size);
        c.finish_load(0, token)
    };
    // Without any access before; without an argument.
    let data = bare(&mut c, 3, 8);
    check(&mut c, data, 8, None, Status::Invalid);
    c.slot_register(0, 0, 3, context::LENGTH, (AtomicOp::Add as u64) << 56);
    let data = bare(&mut c, 3, 8);
    check(&mut c, data, 8, None, Status::Argument);
    // With a wrong key: the argument is refused.
    let key = key_of(0) + 1;
    c.argument_at(0, word, Argument { context: 0, slot: 3, which: 0, key });
    c.register(0, Register::ErrorAck, 1);
    c.slot_register(0, 0, 3, context::LENGTH, (AtomicOp::Add as u64) << 56);
    let data = bare(&mut c, 3, 8);
    check(&mut c, data, 8, None, Status::Argument);
    // A copy, and no operation at all.
    for op in [context::COPY, 0, 200] {
        c.argument(0, 0, 3, 0, word);
        c.argument(0, 0, 3, 1, word);
        c.slot_register(0, 0, 3, context::LENGTH, u64::from(op) << 56 | 8);
        let data = bare(&mut c, 3, 8);
        check(&mut c, data, 8, Some(1), Status::Invalid);
    }
    // Not aligned to the size of the load; without the right.
    let data = c.fetch(0, AtomicOp::Add, 8, word + 4, 1, 0);
    check(&mut c, data, 8, Some(1), Status::BadSize);
    let data = c.fetch(0, AtomicOp::Add, 4, word + 2, 1, 0);
    check(&mut c, data, 4, Some(1), Status::BadSize);
    let data = c.fetch(0, AtomicOp::Add, 8, plain, 1, 0);
    check(&mut c, data, 8, Some(9), Status::Rights);
    // Sizes that no atomic has keep the arguments: nothing was launched.
    c.launch(0, 0, 1, fetch_steps(AtomicOp::Add, 1, 0, word));
    for size in [1, 2] {
        let token = c.start_fetch(0, 0, 1, size);
        assert_eq!(c.finish_load(0, token), (1 << (8 * size)) - 1);
        assert_eq!(c.error(0), Status::BadSize);
        c.register(0, Register::ErrorAck, 1);
    }
    assert_eq!(c.load(0, word, 8), 0, "nothing of all that was performed");
    assert_eq!(bare(&mut c, 1, 8), 0);
    assert_eq!(c.load(0, word, 8), 1);
    // A context that is not open; and the rest of the page reads as zero.
    let token = c.start_fetch(0, 9, 1, 8);
    assert_eq!(c.finish_load(0, token), u64::MAX);
    c.event(0, Event::Read { token: 1 << 40, bar: Bar::Contexts, offset: context::REGISTERS, size: 8 });
    assert_eq!(c.finish_load(0, 1 << 40), 0);
}

#[test]
fn a_latched_error_refuses_what_a_load_would_perform() {
    let mut c = pair(1, None, |_| {});
    c.ok(1, grant_clear(7, 1));
    let (gone, word) = (at(&c, 0, 1, 7 * UNIT), at(&c, 0, 1, 0));
    assert_eq!(c.load(0, gone, 8), u64::MAX);
    assert_eq!(c.fetch(0, AtomicOp::Add, 8, word, 1, 0), u64::MAX);
    c.settle();
    assert_eq!(c.ram_u64(1, EXPORTS), 0);
    c.ok(0, import_ack(1));
    assert_eq!(c.fetch(0, AtomicOp::Add, 8, word, 1, 0), 0);
}

fn a_fetch_ends_in_time(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = pair(seed, bug, |_| {});
    let word = at(&c, 0, 1, 0);
    let limit = c.hib(0).config().load_limit;
    c.launch(0, 0, 1, fetch_steps(AtomicOp::Add, 5, 0, word));
    let token = c.start_fetch(0, 0, 1, 8);
    c.hold_next(1, |step| matches!(step, Step::Atomic { .. }));
    c.settle();
    assert_eq!(c.hib(0).deadline(), Some(limit));
    c.event(0, Event::Tick { now: limit - 1 });
    assert!(!c.nodes[0].reads.contains_key(&token));
    c.event(0, Event::Tick { now: limit });
    match c.answer(0, token) {
        Some(data) => assert_eq!(data, u64::MAX),
        None => return Err("not answered at the limit".into()),
    }
    assert!(c.hib(0).deadline() > Some(limit), "only the age of the request counts on");
    assert_eq!(c.latched(0, 1), Status::Timeout);
    // I7: the atomic may still be performed, so quiet waits for it. Its slot is free.
    c.start_quiet(0, 9, context::QUIET_ALL, 44);
    c.settle();
    assert_ne!(c.done(0, 0, 9).1, 44);
    c.ok(0, import_ack(1));
    c.launch(0, 0, 1, fetch_steps(AtomicOp::Add, 6, 0, word));
    let token = c.start_fetch(0, 0, 1, 8);
    c.settle();
    assert_eq!(c.hib(0).status_words(0), 3);
    c.release();
    assert_eq!(c.finish_load(0, token), 5, "behind the one before it");
    c.settle();
    assert_eq!((c.done(0, 0, 9).1, c.ram_u64(1, EXPORTS)), (44, 11));
    assert_eq!(c.hib(0).status_words(0), 0);
    Ok(())
}

#[test]
fn i7_a_fetch_is_answered_within_the_limit_and_quiet_waits_for_what_it_launched() {
    finds(Bug::FetchWithoutLimit, "not answered at the limit", a_fetch_ends_in_time);
}

#[test]
fn a_reset_answers_a_fetch() {
    let mut c = pair(1, None, |_| {});
    c.launch(0, 0, 1, fetch_steps(AtomicOp::Add, 5, 0, at(&c, 0, 1, 0)));
    let token = c.start_fetch(0, 0, 1, 4);
    c.event(0, Event::Reset);
    assert_eq!(c.answer(0, token), Some(0xffff_ffff));
    assert_eq!(c.hib(0).deadline(), None);
    c.settle();
}

/// Two processes launch by loads, preempted between any two accesses, in the same slots of their contexts.
fn interleaved(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = pair(seed, bug, |_| {});
    let mut programs: Vec<(u16, Vec<LaunchStep>)> = (0..2u16)
        .map(|context| {
            let address = at(&c, context, 1, 64 * u64::from(context));
            let mut steps = fetch_steps(AtomicOp::Add, 3 + 47 * u64::from(context), 0, address);
            steps.reverse();
            (context, steps)
        })
        .collect();
    let mut tokens = Vec::new();
    while !programs.is_empty() {
        let n = c.rng.below(programs.len());
        let (context, steps) = &mut programs[n];
        match steps.pop() {
            Some(step) => c.launch_step(0, *context, 6, step),
            None => {
                tokens.push(c.start_fetch(0, *context, 6, 8));
                programs.remove(n);
            }
        }
        c.some_steps(3);
    }
    for token in tokens {
        assert_eq!(c.finish_load(0, token), 0);
    }
    c.settle();
    // Consumed arguments cannot be launched again.
    for context in 0..2 {
        let token = c.start_fetch(0, context, 6, 8);
        c.finish_load(0, token);
    }
    c.settle();
    let found = (c.ram_u64(1, EXPORTS), c.ram_u64(1, EXPORTS + 64));
    if found == (3, 50) { Ok(()) } else { Err(format!("I14: the words are {found:?}: expected 3 and 50")) }
}

#[test]
fn i14_what_a_load_launches_comes_from_one_process_and_once() {
    finds(Bug::FetchKeepsArguments, "I14: the words are", interleaved);
}
