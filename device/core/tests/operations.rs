// SPDX-License-Identifier: MIT OR Apache-2.0
//! Atomics, copies and how they are launched; page access counters.

use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, LaunchStep, Rng, atomic_steps, context_close, context_open, copy_steps,
    copying, grant_clear, import_ack, import_clear, import_pages, import_quiet, key_of, of_three, operating,
};
use telegraphos_device_core::{Bar, Bug, Event, KEY_ATTEMPTS, Launching, MAX_COPY, Step};
use telegraphos_wire::admin::{self, CounterCommand, LaunchCommand};
use telegraphos_wire::context::{self, Argument, Launch, Operation};
use telegraphos_wire::regs::{self, Register};
use telegraphos_wire::{AtomicOp, MAX_BLOCK, Rights, STREAM_BLOCK, Status, UNIT, event};

fn three(seed: u64, bug: Option<Bug>) -> Cluster {
    of_three(seed, ALL, bug)
}

/// The same, every other time with rings, as in one process.
fn within(seed: u64) -> Cluster {
    let mut c = three(seed, None);
    if seed % 2 == 1 {
        c.use_rings(false);
    }
    c
}

fn fill(c: &mut Cluster, id: u16, offset: u64, bytes: impl IntoIterator<Item = u8>) {
    for (n, byte) in bytes.into_iter().enumerate() {
        c.nodes[usize::from(id)].ram[(EXPORTS + offset) as usize + n] = byte;
    }
}

fn bytes(c: &Cluster, id: u16, offset: u64, length: usize) -> Vec<u8> {
    let at = (EXPORTS + offset) as usize;
    c.nodes[usize::from(id)].ram[at..at + length].to_vec()
}

#[test]
fn atomics_of_both_widths_give_the_previous_value_also_on_the_own_node() {
    let mut c = three(1, None);
    for dst in [1, 0] {
        let (word, half) = (c.address(dst, 0, 64), c.address(dst, 1, 4));
        c.store(0, word, 8, 40);
        assert_eq!(c.atomic(0, AtomicOp::Add, 8, word, 2, 0), (Status::Ok, 40));
        assert_eq!(c.atomic(0, AtomicOp::Swap, 8, word, u64::MAX, 0), (Status::Ok, 42));
        assert_eq!(c.atomic(0, AtomicOp::Add, 8, word, 1, 0), (Status::Ok, u64::MAX));
        assert_eq!(c.atomic(0, AtomicOp::CompareSwap, 8, word, 7, 1), (Status::Ok, 0), "not equal");
        assert_eq!(c.atomic(0, AtomicOp::CompareSwap, 8, word, 7, 0), (Status::Ok, 0), "equal");
        assert_eq!(c.load(0, word, 8), 7);
        // The upper half of a word: the low address bits travel in LENGTH.
        assert_eq!(c.atomic(0, AtomicOp::Swap, 4, half, 0xffff_ffff, 0), (Status::Ok, 0));
        assert_eq!(c.atomic(0, AtomicOp::Add, 4, half, 3, 0), (Status::Ok, 0xffff_ffff));
        assert_eq!(c.load(0, half, 4), 2, "wraps in 32 bits");
        assert_eq!(c.load(0, half - 4, 4), 0, "and leaves the lower half alone");
    }
    assert_eq!(c.hib(0).counters().atomics, 14);
}

#[test]
fn fetch_and_increments_of_all_nodes_give_each_number_once() {
    for seed in 0..50 {
        let mut c = three(seed, None);
        let word = c.address(2, 0, 8);
        let mut seen = Vec::new();
        for _ in 0..20 {
            for id in 0..3 {
                c.launch(id, 0, 5, atomic_steps(operating(AtomicOp::Add, 8, 1), 1, 0, word));
            }
            for id in 0..3 {
                let (status, value) = c.finish(id, 0, 5, 1);
                assert_eq!(status, Status::Ok);
                seen.push(value);
                // So that the next one can be distinguished from it.
                c.start_quiet(id, 5, u64::from(id), 2);
                let _ = c.finish(id, 0, 5, 2);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..60).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn i8_an_atomic_follows_the_stores_before_it() {
    for seed in 0..50 {
        let mut c = three(seed, None);
        let word = c.address(1, 0, 0);
        for i in 0..20 {
            c.store(0, word, 8, i);
        }
        assert_eq!(c.atomic(0, AtomicOp::Swap, 8, word, 99, 0), (Status::Ok, 19), "seed {seed}");
    }
}

#[test]
fn atomics_that_cannot_be_are_refused_with_their_reason() {
    let mut c = three(1, None);
    c.export(1, "plain", 4, 1, Rights(3));
    c.import(0, 1, "plain", 9, 4);
    let (word, plain) = (c.address(1, 0, 0), c.address(1, 4, 0));
    assert_eq!(c.atomic(0, AtomicOp::Add, 8, word + 4, 1, 0).0, Status::BadSize, "unaligned");
    assert_eq!(c.atomic(0, AtomicOp::Add, 4, word + 2, 1, 0).0, Status::BadSize);
    assert_eq!(c.atomic(0, AtomicOp::Add, 8, plain, 1, 0).0, Status::Rights, "at the issuer");
    // Without its argument.
    c.slot_register(0, 0, 3, context::LAUNCH, operating(AtomicOp::Add, 8, 70).encode());
    assert_eq!(c.finish(0, 0, 3, 70).0, Status::Argument);
    // Unknown operation: no completion, but latched.
    c.slot_register(0, 0, 3, context::LAUNCH, 9 << 56 | 71);
    assert_eq!(c.error(0), Status::Invalid);
    assert_eq!(c.load(0, word, 8), 0, "nothing of it was performed");
}

#[test]
fn rights_of_atomics_and_copies_are_checked_at_the_receiver_too() {
    let mut c = three(1, None);
    let generation = c.export(1, "plain", 4, 1, Rights(3));
    // A driver that requests more than was granted.
    c.ok(0, import_pages(9, 1, 4, (4, 1), generation, ALL));
    let (plain, own) = (c.address(1, 4, 0), c.address(0, 0, 0));
    let refused = c.hib(1).counters().refused;
    assert_eq!(c.atomic(0, AtomicOp::Add, 8, plain, 1, 0), (Status::Rights, u64::MAX));
    assert_eq!(c.copy(0, plain, own, 100), Status::Rights);
    assert_eq!(c.copy(0, own, plain, 100), Status::Rights);
    assert_eq!(c.hib(1).counters().refused - refused, 3, "and counted there");
    assert_eq!(c.quiet(0, 9, 3), Status::Rights as u16, "and latched here");
}

#[test]
fn copies_of_any_size_and_alignment_arrive_whole() {
    let mut rng = Rng::new(7);
    for seed in 0..60 {
        let mut c = within(seed);
        let span = 2 * UNIT;
        let length = match seed % 4 {
            0 => 1 + rng.next() % 16,
            1 => 1 + rng.next() % 200,
            2 => MAX_BLOCK as u64 - 8 + rng.next() % 16,
            _ => 1 + rng.next() % (span - 64),
        };
        let (to, from) = (rng.next() % (span - length), rng.next() % (span - length));
        // Put, get, and within the own node where the ranges do not overlap.
        let (src, dst) = [(0, 1), (1, 0), (0, 2)][rng.below(3)];
        let data: Vec<u8> = (0..length).map(|_| rng.next() as u8).collect();
        fill(&mut c, src, from, data.iter().copied());
        let before = bytes(&c, dst, 0, span as usize);
        let (to_address, from_address) = (c.address(dst, 0, to), c.address(src, 0, from));
        assert_eq!(c.copy(0, to_address, from_address, length), Status::Ok, "seed {seed}");
        let mut wanted = before;
        wanted[to as usize..(to + length) as usize].copy_from_slice(&data);
        assert_eq!(
            bytes(&c, dst, 0, span as usize),
            wanted,
            "seed {seed}: {length} bytes {src}+{from:#x} -> {dst}+{to:#x}"
        );
    }
}

#[test]
fn copies_that_cannot_be_are_refused_with_their_reason() {
    let mut c = three(1, None);
    let (own, one, two) = (c.address(0, 0, 0), c.address(1, 0, 0), c.address(2, 0, 0));
    for (to, from, length, wanted) in [
        (one, own, 0, Status::Length),
        (one, own, MAX_COPY + 1, Status::Length),
        (one, own, (1 << 48) - 1, Status::Length),
        (one, own, 2 * UNIT + 1, Status::Bounds),
        (one + 1, own, 2 * UNIT, Status::Bounds),
        (one, two, 8, Status::NotLocal),
        (own, own + 8, 9, Status::Overlap),
        (own + 8, own, 9, Status::Overlap),
        (own, own, 1, Status::Overlap),
        (own, own + 8, 8, Status::Ok),
        (one, own, 2 * UNIT, Status::Ok),
    ] {
        assert_eq!(c.copy(0, to, from, length), wanted, "{length} bytes {from:#x} -> {to:#x}");
    }
    // A context whose completion cannot be written: the board reports it and continues.
    c.ok(0, context_open(7, 1 << 40, 5));
    c.slot_register(0, 7, 0, context::LAUNCH, operating(AtomicOp::Add, 8, 70).encode());
    c.settle();
    assert_eq!(c.hib(0).register(Register::ErrorAddress), 1 << 40);
    assert_eq!(c.atomic(0, AtomicOp::Add, 8, one, 1, 0).0, Status::Ok);
}

#[test]
fn many_copies_at_once_share_a_destination_in_turns() {
    let mut c = three(5, None);
    fill(&mut c, 0, 0, (0..2 * UNIT).map(|n| (n * 7 + 3) as u8));
    let (to, from) = (c.address(1, 0, 0), c.address(0, 0, 0));
    // Disjoint pieces, so that every one of them can be checked.
    let piece = UNIT / 16;
    for slot in 0..32u8 {
        let at = u64::from(slot) * piece;
        c.launch(0, 0, slot, copy_steps(copying(u64::from(slot) + 1), to + at, from + at, piece));
    }
    for slot in 0..32u8 {
        assert_eq!(c.finish(0, 0, slot, u64::from(slot) + 1).0, Status::Ok);
    }
    assert_eq!(bytes(&c, 1, 0, 2 * UNIT as usize), bytes(&c, 0, 0, 2 * UNIT as usize));
}

#[test]
fn i7_quiet_covers_atomics_and_copies() {
    for seed in 0..100 {
        let check = |bug| {
            let mut c = three(seed, bug);
            fill(&mut c, 0, 0, (0..40_000).map(|n| n as u8));
            let (to, from, word) = (c.address(1, 0, 3), c.address(0, 0, 0), c.address(1, 1, UNIT - 8));
            let copy = copying(1);
            c.launch(0, 0, 1, copy_steps(copy, to, from, 40_000));
            c.launch(0, 0, 2, atomic_steps(operating(AtomicOp::Add, 8, 2), 5, 0, word));
            // Stores that finish before the copy must not be mistaken for it.
            for _ in 0..20 {
                c.store(0, word - 8, 8, 1);
            }
            assert_eq!(c.quiet(0, 1, 9), 0);
            bytes(&c, 1, 3, 40_000) == bytes(&c, 0, 0, 40_000) && c.ram_u64(1, EXPORTS + 2 * UNIT - 8) == 5
        };
        assert!(check(None), "seed {seed}");
        let blind = check(Some(Bug::QuietIgnoresOutstanding));
        assert!(!blind, "that the data is there after quiet does not show QuietIgnoresOutstanding, seed {seed}");
    }
}

#[test]
fn arm_loses_no_wake_up() {
    for seed in 0..100 {
        let mut c = three(seed, None);
        c.launch(0, 0, 4, atomic_steps(operating(AtomicOp::Add, 8, 77), 1, 0, c.address(1, 0, 0)));
        // The waiter arms at any moment: before the operation is done, or after.
        c.some_steps(40);
        let context_events = |c: &Cluster| c.events(0, 64).iter().filter(|e| e.0 == event::CONTEXT).count();
        let before = context_events(&c);
        c.write(0, Bar::Contexts, context::ARM + 8 * 4, 77);
        c.settle();
        assert_eq!(context_events(&c) - before, 1, "seed {seed}");
        assert_eq!(c.done(0, 0, 4), (0, 77));
    }
}

#[test]
fn a_notifying_operation_posts_its_event_after_its_result() {
    let mut c = three(2, None);
    let word = c.address(1, 0, 0);
    let launch = Launch { operation: Operation::Atomic { op: AtomicOp::Add, size: 8 }, notify: true, cookie: 5 };
    c.launch(0, 0, 4, atomic_steps(launch, 1, 0, word));
    while !c.events(0, 64).iter().any(|e| e.0 == event::CONTEXT) {
        assert!(c.step(), "the event never comes");
    }
    assert_eq!(c.done(0, 0, 4), (0, 5));
}

// ---- protection of the launch (I14) ----

/// Two processes on one node launch at the same time, preempted between any two stores; each result must come from one
/// process's arguments alone.
fn interleaved(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let mut c = three(seed, bug);
    c.open_context(0, 1);
    c.import_into(0, 1, 1, "seg", 20, 8);
    let (mine, theirs) = (c.address(1, 0, 0), c.address(1, 8, 64));
    let mut launches: Vec<(u16, Vec<LaunchStep>)> = vec![
        (0, atomic_steps(operating(AtomicOp::Add, 8, 1), 3, 0, mine)),
        (1, atomic_steps(operating(AtomicOp::Add, 8, 1), 50, 0, theirs)),
    ];
    for (_, steps) in &mut launches {
        steps.reverse();
    }
    while launches.iter().any(|(_, steps)| !steps.is_empty()) {
        let at = c.rng.below(2);
        let (context, steps) = &mut launches[at];
        let context = *context;
        if let Some(step) = steps.pop() {
            // The same slot in both contexts.
            c.launch_step(0, context, 6, step);
        }
        // A third process has only the numbers, and the key of its own context: it targets the slot of process 0.
        if c.rng.below(3) == 0 {
            let argument = Argument { context: 0, slot: 6, which: 0, key: key_of(if bug.is_some() { 0 } else { 1 }) };
            c.argument_at(0, theirs, argument);
        }
    }
    c.settle();
    let found = (c.ram_u64(1, EXPORTS), c.ram_u64(1, EXPORTS + 64));
    if found == (3, 50) { Ok(()) } else { Err(format!("I14: the words are {found:?}: expected 3 and 50")) }
}

#[test]
fn i14_arguments_come_from_one_process_under_any_preemption() {
    common::sees(Bug::ForeignContext, "I14: the words are", 0..500, interleaved);
}

#[test]
fn i14_a_wrong_key_has_no_effect_is_counted_and_in_the_end_kills_the_import() {
    let mut c = three(1, None);
    c.open_context(0, 1);
    c.import_into(0, 1, 1, "seg", 20, 8);
    let (mine, theirs) = (c.address(1, 0, 0), c.address(1, 8, 0));
    c.argument(0, 0, 6, 0, mine);
    for (n, key) in (0..KEY_ATTEMPTS).zip(100..) {
        assert_eq!(c.hib(0).counters().bad_keys, u64::from(n));
        c.argument_at(0, theirs, Argument { context: 0, slot: 6, which: 0, key });
    }
    // The guesser's import is dead; the victim's argument is the one that it has passed itself.
    assert_eq!(c.load(0, theirs, 8), u64::MAX);
    c.slot_register(0, 0, 6, context::OPERAND, 9);
    c.slot_register(0, 0, 6, context::LAUNCH, operating(AtomicOp::Add, 8, 33).encode());
    assert_eq!(c.finish(0, 0, 6, 33).0, Status::Ok);
    assert_eq!(c.ram_u64(1, EXPORTS), 9);
    assert!(c.hib(0).counters().bad_keys >= u64::from(KEY_ATTEMPTS));
    c.settle();
    let state = c.events(0, 64).into_iter().rfind(|e| e.0 == event::IMPORT_STATE && e.1 == 20).unwrap();
    assert_eq!((state.2 >> 16) as u16, Status::BadKey as u16);
}

#[test]
fn an_argument_does_not_outlive_its_import() {
    let mut c = three(1, None);
    c.argument(0, 0, 6, 0, c.address(1, 0, 0));
    c.ok(0, import_clear(1));
    c.import(0, 1, "seg", 1, 0);
    c.slot_register(0, 0, 6, context::LAUNCH, operating(AtomicOp::Add, 8, 33).encode());
    assert_eq!(c.finish(0, 0, 6, 33).0, Status::Argument, "the new import has the same number");
}

#[test]
fn a_busy_slot_takes_no_second_launch() {
    let mut c = three(1, None);
    let word = c.address(1, 0, 0);
    for cookie in [1, 2] {
        c.launch(0, 0, 6, atomic_steps(operating(AtomicOp::Add, 8, cookie), 1, 0, word));
    }
    assert_eq!(c.error(0), Status::Busy);
    assert_eq!(c.finish(0, 0, 6, 2).0, Status::Busy, "the second one is refused");
    c.settle();
    assert_eq!((c.done(0, 0, 6), c.ram_u64(1, EXPORTS)), ((0, 1), 1), "the first one continues");
    // Also in special mode, which it ends.
    c.launch(0, 0, 6, atomic_steps(operating(AtomicOp::Add, 8, 3), 1, 0, word));
    c.register(0, Register::Special, regs::SPECIAL_ENTER | 6);
    c.store(0, word, 8, 7);
    c.slot_register(0, 0, 6, context::LAUNCH, operating(AtomicOp::Add, 8, 4).encode());
    assert_eq!(c.hib(0).register(Register::Special), 0);
    assert_eq!(c.finish(0, 0, 6, 4).0, Status::Busy);
    assert_eq!(c.finish(0, 0, 6, 3), (Status::Ok, 1));
}

// ---- the other launch styles ----

/// Two processes of node 0 pass the two halves of a launch each, preempted in between. The system writes PROCESS at
/// every switch, or omits it. Returns whether bytes were copied that no process requested.
fn preempted(launching: Launching, system_helps: bool) -> bool {
    let mut c = Cluster::new(2, 1, |config| config.launching = launching);
    for id in 0..2 {
        c.export(id, "seg", 0, 2, ALL);
    }
    c.open_context(0, 1);
    for context in 0..2u16 {
        c.import_into(0, context, 0, "seg", 10 + context, u32::from(context) * 2);
        c.import_into(0, context, 1, "seg", 20 + context, u32::from(context) * 2);
    }
    fill(&mut c, 0, 0, [1; 8]);
    fill(&mut c, 0, UNIT, [2; 8]);
    // Process 0 copies its word to offset 0 of node 1, process 1 its own to the second page.
    let place = |c: &Cluster, context: u16, node: u16| c.address(node, u32::from(context) * 2 + u32::from(context), 0);
    let switch = |c: &mut Cluster, context: u16| {
        if system_helps {
            c.register(0, Register::Process, u64::from(context));
        }
    };
    let (to, from) = ([place(&c, 0, 1), place(&c, 1, 1)], [place(&c, 0, 0), place(&c, 1, 0)]);
    let argument = |which| Argument { context: 0, slot: 63, which, key: 0 };
    match launching {
        Launching::CommandPages => {
            let first = |c: &mut Cluster, context: usize| {
                let offset = c.argument_address(to[context]);
                c.store(0, offset, 8, 8);
            };
            let second = |c: &mut Cluster, context: usize| -> u64 {
                let offset = c.argument_address(from[context]);
                c.load(0, offset, 8)
            };
            switch(&mut c, 0);
            first(&mut c, 0);
            switch(&mut c, 1);
            // Process 1 passes only its second half: its first one was before process 0 ran.
            let started = second(&mut c, 1);
            // The status says that nothing was started, so it starts again, as in the SHRIMP protocol.
            if started == 0 {
                first(&mut c, 1);
                assert_eq!(second(&mut c, 1), 1);
            }
            switch(&mut c, 0);
            c.settle();
            if second(&mut c, 0) == 0 {
                first(&mut c, 0);
                assert_eq!(second(&mut c, 0), 1);
            }
        }
        _ => {
            let steps = |c: &mut Cluster, context: u16, which: u8| {
                let address = if which == 0 { to } else { from }[usize::from(context)];
                c.argument_at(0, address, argument(which));
            };
            switch(&mut c, 0);
            steps(&mut c, 0, 0);
            switch(&mut c, 1);
            steps(&mut c, 1, 0);
            steps(&mut c, 1, 1);
            switch(&mut c, 0);
            steps(&mut c, 0, 1);
            for context in 0..2 {
                c.slot_register(0, context, 63, context::LENGTH, 8);
                let launch = copying(1);
                c.slot_register(0, context, 63, context::LAUNCH, launch.encode());
            }
        }
    }
    c.settle();
    (bytes(&c, 1, 0, 8), bytes(&c, 1, UNIT, 8)) == (vec![1; 8], vec![2; 8])
}

#[test]
fn command_pages_and_process_registers_need_the_system_at_every_switch() {
    for launching in [Launching::CommandPages, Launching::ProcessRegister] {
        assert!(preempted(launching, true), "{launching:?}: right while the system helps");
        assert!(!preempted(launching, false), "{launching:?}: arguments mix on a system that does not know of it");
    }
}

/// The kinds of instructions of a launch: each access to the board is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// A posted store of the process.
    Store,
    /// A load of the process, for which it waits.
    Load,
    /// A store of the system, once for each launch.
    Launch,
    /// A store of the system, once for each context switch.
    Switch,
}

/// The launch of a copy of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Contexts,
    Special,
    CommandPages,
    ProcessRegister,
}

/// Launches a copy after a context switch, optionally without one of the accesses. Returns the accesses, and whether
/// the copy was made.
fn accesses(style: Style, left_out: Option<usize>) -> (Vec<By>, bool) {
    let launching = match style {
        Style::Contexts | Style::Special => Launching::Keys,
        Style::CommandPages => Launching::CommandPages,
        Style::ProcessRegister => Launching::ProcessRegister,
    };
    let mut c = Cluster::new(2, 1, |config| config.launching = launching);
    for id in 0..2 {
        c.export(id, "seg", 0, 2, ALL);
    }
    c.import_into(0, 0, 0, "seg", 10, 0);
    c.import_into(0, 0, 1, "seg", 20, 0);
    fill(&mut c, 0, 0, [7; 8]);
    let (to, from) = (c.address(1, 0, 0), c.address(0, 0, 0));
    // Another process ran last.
    c.register(0, Register::Process, 1);
    let copy = copying(1);
    type Access = Box<dyn Fn(&mut Cluster)>;
    let registers = || -> Vec<(By, Access)> {
        vec![
            (By::Store, Box::new(|c| c.slot_register(0, 0, 6, context::LENGTH, 8))),
            (By::Store, Box::new(move |c| c.slot_register(0, 0, 6, context::LAUNCH, copy.encode()))),
        ]
    };
    let argument = |which, key| Argument { context: 0, slot: 6, which, key };
    let switch = || -> (By, Access) { (By::Switch, Box::new(|c| c.register(0, Register::Process, 0))) };
    let pass = |which, key| -> (By, Access) {
        let address = if which == 0 { to } else { from };
        (By::Store, Box::new(move |c| c.argument_at(0, address, argument(which, key))))
    };
    let mut all: Vec<(By, Access)> = Vec::new();
    match style {
        Style::Contexts => {
            all.extend([pass(0, key_of(0)), pass(1, key_of(0))]);
            all.extend(registers());
        }
        Style::Special => {
            all.push((By::Launch, Box::new(|c| c.register(0, Register::Special, regs::SPECIAL_ENTER | 6))));
            for address in [to, from] {
                all.push((By::Store, Box::new(move |c| c.store(0, address, 8, 0))));
            }
            all.extend(registers());
        }
        Style::CommandPages => {
            let (first, second) = (c.argument_address(to), c.argument_address(from));
            all.push(switch());
            all.push((By::Store, Box::new(move |c| c.store(0, first, 8, 8))));
            all.push((
                By::Load,
                Box::new(move |c| {
                    c.load(0, second, 8);
                }),
            ));
        }
        Style::ProcessRegister => {
            all.extend([switch(), pass(0, 0), pass(1, 0)]);
            all.extend(registers());
        }
    }
    for (number, (_, access)) in all.iter().enumerate() {
        if Some(number) != left_out {
            access(&mut c);
        }
    }
    c.settle();
    (all.iter().map(|(by, _)| *by).collect(), bytes(&c, 1, 0, 8) == [7; 8])
}

/// SPEC item 21, the table in docs/operations.md: the number of accesses to the board for one copy, by process and
/// system; none can be omitted.
#[test]
fn item21_what_each_launch_style_costs_in_accesses() {
    use By::{Launch, Load, Store, Switch};
    for (style, expected) in [
        (Style::Contexts, &[Store, Store, Store, Store][..]),
        (Style::Special, &[Launch, Store, Store, Store, Store]),
        (Style::CommandPages, &[Switch, Store, Load]),
        (Style::ProcessRegister, &[Switch, Store, Store, Store, Store]),
    ] {
        let (all, copied) = accesses(style, None);
        assert_eq!((&all[..], copied), (expected, true), "{style:?}");
        for (left_out, by) in all.iter().enumerate() {
            // No command is incomplete here: `preempted`, where two processes launch, shows the purpose of the write at
            // the switch.
            let needed = !(style == Style::CommandPages && *by == Switch);
            assert_eq!(accesses(style, Some(left_out)).1, !needed, "{style:?} without access {left_out}");
        }
    }
}

/// SPEC item 29: each of 10 000 stores is one request, with a quiet after each, after batches of 100 or at the end. It
/// is one acknowledgement with a quiet after each; otherwise several share one, so that a store in a batch takes less
/// than a single one, and never more.
#[test]
fn item29_ten_thousand_stores_take_no_more_packets_in_batches_of_100_than_one_by_one() {
    let packets = |batch: u64| {
        let mut c = three(1, None);
        let sent = |c: &Cluster| [c.nodes[0].sent, c.nodes[1].sent];
        let before = sent(&c);
        for n in 1..=10_000u64 {
            c.store(0, c.address(1, 0, 8 * (n % 1000)), 8, n);
            if n % batch == 0 {
                assert_eq!(c.quiet(0, 1, n), 0);
            }
        }
        for n in 9_001..=10_000u64 {
            assert_eq!(c.ram_u64(1, EXPORTS + 8 * (n % 1000)), n);
        }
        let [requests, replies] = sent(&c);
        (requests - before[0], replies - before[1])
    };
    assert_eq!(packets(1), (10_000, 10_000));
    for batch in [100, 10_000] {
        let (requests, replies) = packets(batch);
        assert!(requests == 10_000 && (1..9000).contains(&replies), "batches of {batch}: {requests}, {replies}");
    }
}

#[test]
fn special_mode_performs_no_access_and_leaves_nothing_behind() {
    let mut c = three(1, None);
    let (word, other) = (c.address(1, 0, 0), c.address(1, 0, 8));
    c.store(0, word, 8, 5);
    c.settle();
    let sent = c.packets;
    let enter = regs::SPECIAL_ENTER | 6;
    c.register(0, Register::Special, enter);
    assert_eq!(c.hib(0).register(Register::Special), enter);
    c.store(0, word, 8, 1234);
    c.settle();
    assert_eq!(c.packets, sent, "no remote access in special mode");
    c.slot_register(0, 0, 6, context::OPERAND, 1);
    c.slot_register(0, 0, 6, context::LAUNCH, operating(AtomicOp::Add, 8, 33).encode());
    assert_eq!(c.finish(0, 0, 6, 33), (Status::Ok, 5));
    assert_eq!(c.hib(0).register(Register::Special), 0, "the launch ends it");
    assert_eq!(c.load(0, word, 8), 6);

    // A process that is killed in special mode: the driver leaves the mode, and nothing remains.
    c.register(0, Register::Special, enter);
    assert_eq!(c.load(0, other, 8), 0, "a load is an argument too");
    c.register(0, Register::Special, 0);
    c.slot_register(0, 0, 6, context::LAUNCH, operating(AtomicOp::Add, 8, 34).encode());
    assert_eq!(c.finish(0, 0, 6, 34).0, Status::Argument);
    c.store(0, other, 8, 7);
    assert_eq!(c.load(0, other, 8), 7, "stores are stores again");
}

#[test]
fn the_kernel_launches_whole_operations() {
    let mut c = three(1, None);
    fill(&mut c, 0, 0, 0..100);
    let launch = |operation: u16| LaunchCommand { opcode: admin::LAUNCH, target: 1, operation, ..Default::default() };
    let add = LaunchCommand { target_offset: 8, operand: 5, ..launch(u16::from(context::ADD) | 1 << 8) };
    for before in [0, 5] {
        let done = c.admin(0, add);
        assert_eq!((done.status, done.length), (0, before));
    }
    let copy = LaunchCommand { source: 0, target_offset: UNIT - 50, length: 100, ..launch(u16::from(context::COPY)) };
    c.ok(0, copy);
    assert_eq!(bytes(&c, 1, UNIT - 50, 100), bytes(&c, 0, 0, 100));
    let refused = |c: &mut Cluster, command: LaunchCommand| c.admin(0, command).status;
    assert_eq!(refused(&mut c, LaunchCommand { length: 0, ..copy }), Status::Length as u32);
    assert_eq!(refused(&mut c, LaunchCommand { target: 99, ..copy }), Status::Argument as u32);
    assert_eq!(refused(&mut c, LaunchCommand { context: 3, ..copy }), Status::Argument as u32);
    assert_eq!(refused(&mut c, LaunchCommand { operation: 99, ..copy }), Status::Invalid as u32);
}

// ---- ends ----

#[test]
fn what_is_outstanding_ends_with_its_node_its_link_or_its_grant() {
    for seed in 0..60u64 {
        let mut c = three(seed, None);
        let (to, from, word) = (c.address(1, 0, 0), c.address(0, 0, 0), c.address(1, 1, 0));
        for slot in 0..8u8 {
            let get = slot % 2 == 1;
            let launch = copying(u64::from(slot) + 1);
            let (to, from) = if get { (from, to) } else { (to, from) };
            c.launch(0, 0, slot, copy_steps(launch, to, from, 2 * UNIT));
        }
        c.launch(0, 0, 8, atomic_steps(operating(AtomicOp::Add, 8, 9), 1, 0, word));
        c.some_steps(200);
        match seed % 4 {
            0 => c.event(0, Event::NodeDown { node: 1 }),
            1 => c.event(0, Event::LinkDown),
            2 => {
                c.ok(1, grant_clear(0, 2));
            }
            // The near end is revoked.
            _ => {
                c.ok(0, grant_clear(0, 2));
            }
        }
        c.settle();
        for slot in 0..9u8 {
            assert_eq!(c.done(0, 0, slot).1, u64::from(slot) + 1, "seed {seed}: slot {slot} has ended");
        }
        // Closing completes at once.
        for import in [0, 1] {
            assert_eq!(c.status(0, import_clear(import)), Status::Ok, "seed {seed}");
        }
        c.settle();
        assert!(c.hib(0).is_quiescent());
    }
}

#[test]
fn a_failure_is_latched_on_the_import_it_concerns() {
    for (gone, get) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut c = three(1, None);
        c.ok(gone, grant_clear(0, 2));
        let (own, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        let (to, from) = if get { (own, far) } else { (far, own) };
        assert_eq!(c.copy(0, to, from, 100), Status::NotGranted);
        for import in [0, 1] {
            let wanted = if import == u64::from(gone) { Status::NotGranted as u16 } else { 0 };
            assert_eq!(c.quiet(0, import, 70 + import), wanted, "import {import}, {gone} gone, get {get}");
        }
    }
}

/// A quiet of one import waits for the operations that use it; a failed one is reported for the other import as well,
/// and regardless of acknowledgements meanwhile.
#[test]
fn i7_e19_a_failed_operation_belongs_to_each_quiet_that_waits_for_it() {
    let check = |bug: Option<Bug>| {
        let mut failed = 0;
        for (scope, copy) in [(0, true), (1, true), (1, false), (context::QUIET_ALL, true)] {
            let mut c = three(1, bug);
            // A second copy of the same imports is held, so that the quiet waits.
            let (own, far, other) = (c.address(0, 0, 0), c.address(1, 0, 0), c.address(1, 1, 0));
            let steps = if copy {
                let launch = copying(1);
                copy_steps(launch, far, own, 100)
            } else {
                atomic_steps(operating(AtomicOp::Add, 8, 1), 1, 0, far)
            };
            c.ok(1, grant_clear(0, 1));
            for step in steps {
                c.launch_step(0, 0, 2, step);
            }
            c.launch(0, 0, 3, copy_steps(copying(2), other, own, 64));
            c.start_quiet(0, 5, scope, 44);
            c.hold_next(0, |step| matches!(step, Step::LoadBlock { length: 64, .. }));
            c.settle();
            assert_eq!(c.done(0, 0, 2), (Status::NotGranted as u16, 1));
            assert_ne!(c.quiet_word(0, 5).1, 44, "scope {scope}: the quiet waits");
            c.ok(0, import_ack(1));
            c.proceed();
            failed += u32::from(c.quiet_word(0, 5) == (Status::NotGranted as u16, 44));
            assert_eq!(c.quiet(0, scope, 45), 0, "scope {scope}: what is acknowledged");
        }
        failed
    };
    assert_eq!(check(None), 4);
    assert_eq!(check(Some(Bug::QuietReadsPresentError)), 0, "the check is blind");
}

#[test]
fn a_peer_that_answers_more_or_less_than_was_asked_for_is_refused() {
    use telegraphos_wire::{Body, Packet};
    let longer = |packet: &mut Packet| {
        if let Body::BlockReply { data, .. } = &mut packet.body {
            *data = vec![0xee; data.len() + 8].into();
        }
    };
    let shorter = |packet: &mut Packet| {
        if let Body::BlockReply { data, .. } = &mut packet.body {
            *data = vec![0xee; data.len() - 1].into();
        }
    };
    for tamper in [longer as fn(&mut Packet), shorter] {
        let mut c = three(1, None);
        c.tamper = Some(tamper);
        let (own, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        assert_eq!(c.copy(0, own, far, 100), Status::Invalid);
        assert!(bytes(&c, 0, 0, 200).iter().all(|byte| *byte == 0), "nothing was stored");
    }
}

#[test]
fn revocation_of_the_near_end_completes_only_when_nothing_is_in_flight() {
    for seed in 0..60 {
        let mut c = within(seed);
        let (own, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        c.launch(0, 0, 0, copy_steps(copying(1), own, far, 2 * UNIT));
        c.some_steps(100);
        c.ok(0, grant_clear(0, 2));
        let blocks = c.nodes[0].blocks.len();
        c.settle();
        assert_eq!(c.nodes[0].blocks.len(), blocks, "seed {seed}: a block landed after the revocation had completed");
    }
}

/// Three nodes, the first of which has launched a put of a page to the second, as context 0's operation 1.
fn with_a_put(seed: u64) -> Cluster {
    let mut c = three(seed, None);
    let (own, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
    c.launch(0, 0, 0, copy_steps(copying(1), far, own, UNIT));
    fill(&mut c, 0, 0, (0..UNIT).map(|n| (n * 3) as u8));
    c
}

#[test]
fn closing_an_import_waits_for_its_operations() {
    for seed in 0..60 {
        let mut c = with_a_put(seed);
        for import in [1, 0] {
            c.ok(0, import_clear(import));
            assert_eq!(bytes(&c, 1, 0, UNIT as usize), bytes(&c, 0, 0, UNIT as usize), "seed {seed}");
        }
        let context = context_close(0);
        assert_eq!(c.status(0, context), Status::Busy, "import 2 is open");
        c.ok(0, import_clear(2));
        c.ok(0, context);
        // The page belongs to the kernel again: all pending words have been written.
        assert_eq!(c.done(0, 0, 0), (0, 1), "seed {seed}");
        let at = common::status_page(0) as usize;
        c.nodes[0].ram[at..at + 4096].fill(0xaa);
        c.settle();
        assert!(c.nodes[0].ram[at..at + 4096].iter().all(|b| *b == 0xaa), "seed {seed}");
    }
}

/// IMPORT_QUIET completes behind everything that the import has begun, and the import stays open. It waits for nothing
/// where there is nothing, and for no import that is not open.
#[test]
fn an_import_becomes_quiet_for_the_driver() {
    for seed in 0..60 {
        let mut c = with_a_put(seed);
        for _ in 0..2 {
            assert_eq!(c.status(0, import_quiet(1)), Status::Ok, "seed {seed}");
            assert_eq!(bytes(&c, 1, 0, UNIT as usize), bytes(&c, 0, 0, UNIT as usize), "seed {seed}");
        }
        assert_eq!(c.status(0, import_quiet(77)), Status::Invalid);
        c.ok(0, import_clear(1));
    }
}

#[test]
fn a_reset_forgets_operations_and_stores_nothing_afterwards() {
    for seed in 0..60 {
        let mut c = within(seed);
        let (own, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        for (slot, (to, from)) in [(own, far), (far, own)].into_iter().enumerate() {
            let launch = Launch { operation: Operation::Copy, notify: true, cookie: 1 };
            c.launch(0, 0, slot as u8, copy_steps(launch, to, from, 2 * UNIT));
        }
        c.some_steps(100);
        c.reset(0);
        let blocks = c.nodes[0].blocks.len();
        c.nodes[0].ram.fill(0);
        c.settle();
        assert_eq!(c.nodes[0].blocks.len(), blocks, "seed {seed}");
        assert!(c.nodes[0].ram.iter().all(|b| *b == 0), "seed {seed}: something was stored after the reset");
    }
}

// ---- page access counters (I15) ----

fn counter(c: &mut Cluster, index: u32, page: u32, reads: u64, writes: u64) -> u32 {
    let set = CounterCommand { opcode: admin::COUNTER_SET, index, node: 1, page, reads, writes, ..Default::default() };
    c.admin(0, set).status
}

fn left(c: &mut Cluster, index: u32) -> (u64, u64) {
    let get = CounterCommand { opcode: admin::COUNTER_GET, index, ..Default::default() };
    let done = c.admin(0, get);
    assert_eq!(done.status, 0);
    (done.generation, done.length)
}

#[test]
fn i15_counters_count_down_and_tell_once() {
    let mut c = three(1, None);
    assert_eq!(counter(&mut c, 3, 1, 2, 3), 0);
    assert_eq!(counter(&mut c, 4, 1, 0, 1000), 0);
    let (watched, other, own) = (c.address(1, 1, 0), c.address(1, 0, 0), c.address(0, 0, 0));
    let fired = |c: &Cluster| -> Vec<(u16, u64)> {
        c.events(0, 64).into_iter().filter(|e| e.0 == event::COUNTER).map(|e| (e.1, e.2)).collect()
    };
    let _ = (c.load(0, other, 8), c.store(0, other, 8, 1), c.store(0, own, 8, 1));
    let _ = c.load(0, watched, 8);
    c.store(0, watched, 8, 1);
    c.store(0, watched, 1, 1);
    c.settle();
    assert_eq!((left(&mut c, 3), fired(&c)), ((1, 1), vec![]));
    let _ = c.load(0, watched, 8);
    c.settle();
    assert_eq!((left(&mut c, 3), fired(&c)), ((0, 1), vec![(3, event::COUNTER_READS)]));
    assert_eq!(c.atomic(0, AtomicOp::Add, 8, watched, 1, 0).0, Status::Ok);
    for _ in 0..10 {
        let _ = c.load(0, watched, 8);
        c.store(0, watched, 8, 1);
    }
    c.settle();
    let both = vec![(3, event::COUNTER_READS), (3, event::COUNTER_WRITES)];
    assert_eq!((left(&mut c, 3), fired(&c)), ((0, 0), both), "at zero they stay, silently");
    assert_eq!(left(&mut c, 4), (0, 1000 - 13), "a second pair on the same page counts for itself");
    // A block of a copy is one access.
    for _ in 0..2 {
        assert_eq!(c.copy(0, watched, own, STREAM_BLOCK as u64), Status::Ok);
    }
    assert_eq!(left(&mut c, 4), (0, 1000 - 15));
    // Disarmed: no longer present.
    assert_eq!(counter(&mut c, 4, 1, 0, 0), 0);
    let get = CounterCommand { opcode: admin::COUNTER_GET, index: 4, ..Default::default() };
    assert_eq!(c.status(0, get), Status::Invalid);
    assert_eq!(counter(&mut c, 1 << 20, 1, 1, 1), Status::Invalid as u32);
}
