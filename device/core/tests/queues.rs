// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues at the board: layout, overflow, order, receive credits, refusals, arm (SPEC items 1-8, E1,
//! E5-E8, E12).

use crate::common::queues::Owner;
use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, STATUS_PAGES, grant_clear, import_ack, import_clear, import_pages, node_up,
    queue_resume, small, withdraw,
};
use telegraphos_device_core::{Bar, Bug, Event, HibConfig, Notice};
use telegraphos_wire::admin::{self, Command, QueueCommand};
use telegraphos_wire::context::QueueArm;
use telegraphos_wire::queue::{HEAD_WORD, TAIL_WORD};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Aperture, AtomicOp, Body, ImportEpoch, RemoteAddr, Rights, Status, UNIT, context, event};

/// Window slot of the import of the queue, and its number.
const SLOT: u32 = 8;
const IMPORT: u16 = 40;

fn cluster(seed: u64, bug: Option<Bug>, adjust: impl Fn(&mut HibConfig)) -> Cluster {
    let mut c = Cluster::new(3, seed, |config| {
        small(bug)(config);
        config.hold = 4;
        adjust(config);
    });
    c.share(2, ALL);
    c
}

/// A queue at node 1, imported by all.
fn with_queue(seed: u64, bug: Option<Bug>, words: u32, width: u32) -> (Cluster, Owner) {
    let mut c = cluster(seed, bug, |_| {});
    let owner = Owner::new(&mut c, 1, 4, "queue", words, width);
    for id in 0..3 {
        c.import(id, 1, "queue", IMPORT, SLOT);
    }
    (c, owner)
}

#[test]
fn e5_elements_fill_the_buffer_wrap_and_leave_the_header_alone() {
    for (words, width) in [(8, 4), (8, 8), (64, 4), (64, 8)] {
        let (mut c, mut owner) = with_queue(1, None, words, width);
        c.poke(1, 4, 2, width as u8, 0x1234);
        let mut expected = 0;
        for value in 0..u64::from(words) * 5 {
            c.enqueue(0, 1, SLOT, width, value);
            c.settle();
            // One behind, two behind, three behind: the indices wrap at every distance.
            while value - expected >= 3 {
                assert_eq!(owner.pop(&mut c), Some(expected));
                expected += 1;
            }
        }
        assert_eq!(owner.drain(&mut c), (expected..u64::from(words) * 5).collect::<Vec<_>>());
        assert_eq!(c.peek(1, 4, 2, width as u8), 0x1234, "next belongs to the CPU");
        assert_eq!(c.hib(1).counters().elements, u64::from(words) * 5);
        assert_eq!(c.hib(0).counters().enqueues, u64::from(words) * 5);
    }
}

#[test]
fn e1_element_size_minus_3_of_an_undrained_buffer_overflows_it_and_none_before() {
    for (words, width) in [(8u32, 4), (16, 8), (1 << 14, 4), (1 << 13, 8)] {
        let (mut c, mut owner) = with_queue(1, None, words, width);
        let last = u64::from(words) - 3;
        for value in 1..last {
            c.enqueue(0, 1, SLOT, width, value);
            c.settle();
        }
        assert!(!owner.is_stopped(&c), "{words}: one earlier");
        assert_eq!(c.hib(1).counters().overflows, 0);
        c.enqueue(0, 1, SLOT, width, last);
        c.settle();
        assert!(owner.is_stopped(&c), "{words}: not later");
        let (tail, head) = (owner.header(&c, TAIL_WORD), owner.header(&c, HEAD_WORD));
        assert_eq!(tail.advanced(), head, "the last element is pending at tail, uncommitted");
        let stopped = (event::QUEUE, 0, 4 << 32 | event::QUEUE_OVERFLOW);
        assert_eq!(c.events(1, 60).iter().filter(|e| **e == stopped).count(), 1);
        // It is stored at index 3, and the queue resumes.
        owner.handle(&mut c);
        c.settle();
        assert!(owner.resumed(&c) && !owner.is_stopped(&c));
        assert_eq!((owner.header(&c, TAIL_WORD).index, c.peek(1, 4, 3, width as u8)), (4, last));
        assert_eq!(owner.drain(&mut c), (1..=last).collect::<Vec<_>>());
    }
}

/// Three senders into a queue of 8 words; the schedule decides when the consumer and the handler run.
fn three_senders(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    const EACH: u64 = 25;
    let (mut c, mut owner) = with_queue(seed, bug, 8, 4);
    let mut sent = [0u64; 3];
    let mut out = Vec::new();
    c.nodes[1].history.clear();
    for _ in 0..20_000 {
        match c.rng.below(12) {
            sender @ 0..=2 if sent[sender] < EACH => {
                c.enqueue(sender as u16, 1, SLOT, 4, (sender as u64 + 1) << 16 | sent[sender]);
                sent[sender] += 1;
            }
            3 if owner.is_stopped(&c) && owner.resumed(&c) => owner.handle(&mut c),
            // Between a resume and its answer the driver lets no consumer in.
            4 if owner.resumed(&c) && !owner.is_stopped(&c) => out.extend(owner.pop(&mut c)),
            _ => {
                if !c.step() && sent == [EACH; 3] {
                    break;
                }
            }
        }
    }
    out.extend(owner.drain(&mut c));
    for sender in 0..3u64 {
        let of_it: Vec<u64> = out.iter().filter(|v| **v >> 16 == sender + 1).map(|v| v & 0xffff).collect();
        if of_it != (0..EACH).collect::<Vec<_>>() {
            return Err(format!("of sender {sender} came {of_it:?}"));
        }
    }
    if out.len() as u64 != 3 * EACH {
        return Err(format!("{} elements came out: {out:x?}", out.len()));
    }
    for (_, address, value) in &c.nodes[1].history {
        let word = (address - EXPORTS - 4 * UNIT) / 4;
        if !(word == TAIL_WORD || (3..8).contains(&word)) {
            return Err(format!("the board stored {value:#x} to word {word}"));
        }
    }
    Ok(())
}

fn finds(check: impl Fn(u64, Option<Bug>) -> Result<(), String>, bug: Bug, says: &str) {
    common::finds(bug, says, 0..400, |seed| check(seed, Some(bug)));
}

#[test]
fn i9_i10_i11_elements_of_three_senders_come_out_once_and_in_order() {
    common::over_seeds(200, 20_000, |seed| three_senders(seed, None));
    finds(three_senders, Bug::NeverStop, "of sender");
    finds(three_senders, Bug::ForgetPending, "of sender");
}

/// The tail that commits an element is never stored before the element.
fn data_before_tail(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, owner) = with_queue(seed, bug, 8, 8);
    c.enqueue(0, 1, SLOT, 8, 77);
    for _ in 0..1000 {
        if owner.header(&c, TAIL_WORD).index == 4 && c.peek(1, 4, 3, 8) != 77 {
            return Err("word 0 counts an element that is not there".into());
        }
        if !c.step() {
            break;
        }
    }
    Ok(())
}

#[test]
fn i10_an_element_is_there_before_the_tail_that_commits_it() {
    common::over_seeds(50, 1000, |seed| data_before_tail(seed, None));
    finds(data_before_tail, Bug::TailBeforeData, "counts an element that is not there");
}

/// A consumer that sees the element also sees its sender's earlier stores, in any class.
fn message_before_element(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, owner) = with_queue(seed, bug, 64, 8);
    let sender = [0, 1, 2][(seed % 3) as usize];
    let (word, other) = (c.address(1, 0, 64), c.address(1, 1, 8));
    for round in 1..=20u64 {
        c.store(sender, word, 8, round);
        let token = c.start_load(sender, other, 8);
        c.store(sender, other, 8, round);
        c.enqueue(sender, 1, SLOT, 8, round);
        let steps = c.rng.below(6);
        for _ in 0..steps {
            c.step();
            let taken = u64::from(owner.header(&c, TAIL_WORD).index) - 3;
            let (first, second) = (c.peek(1, 0, 8, 8), c.peek(1, 1, 1, 8));
            if first < taken || second < taken {
                return Err(format!("element {taken} of node {sender} came before its message ({first}, {second})"));
            }
        }
        c.answer(sender, token);
    }
    c.settle();
    let tail = owner.header(&c, TAIL_WORD).index;
    if tail == 23 { Ok(()) } else { Err(format!("20 elements were sent, and the tail is {tail}")) }
}

#[test]
fn i8_an_element_comes_after_all_earlier_requests_of_its_node() {
    common::over_seeds(200, 10_000, |seed| message_before_element(seed, None));
    finds(message_before_element, Bug::EnqueuePassesRequests, "came before its message");
}

#[test]
fn i8_requests_and_elements_keep_step_after_flaps_and_resets() {
    for seed in 0..60 {
        let (mut c, _) = with_queue(seed, None, 64, 8);
        c.store(0, c.address(1, 0, 0), 8, 1);
        c.enqueue(0, 1, SLOT, 8, 1);
        c.enqueue(1, 1, SLOT, 8, 1);
        c.some_steps(8);
        // The sender is reset; or every node loses the fabric; or this node joins again under a higher incarnation.
        let credits = [8; 4];
        match seed % 3 {
            0 => {
                c.event(0, Event::Reset);
                c.settle();
                c.start(0);
                let incarnation = c.hib(0).incarnation();
                c.event(1, node_up(0, incarnation));
            }
            1 => {
                for id in 0..3 {
                    c.event(id, Event::LinkDown);
                }
                c.lose_packets();
                for id in 0..3 {
                    c.event(id, Event::LinkUp { incarnation: 0x1000, nodes: 3, credits });
                    for node in 0..3 {
                        c.event(id, node_up(node, 0x1000));
                    }
                }
            }
            _ => {
                c.event(1, Event::LinkDown);
                c.event(0, Event::NodeDown { node: 1 });
                c.lose_packets();
                c.event(1, Event::LinkUp { incarnation: 0x2000, nodes: 3, credits });
                for node in [0, 2] {
                    c.event(1, node_up(node, 0x1000));
                }
                c.event(0, Event::LinkUp { incarnation: 0x1000, nodes: 3, credits });
                c.event(0, node_up(1, 0x2000));
            }
        }
        c.settle();
        // New imports work, and so does the node's import of itself, which never failed.
        for id in [0, 1] {
            c.import(id, 1, "queue", 60, 10);
            c.import(id, 1, "seg", 61, 12);
            for round in 1..=5 {
                c.store(id, c.address(1, 12, 16), 8, round);
                c.enqueue(id, 1, 10, 8, 1000 + round);
            }
            c.settle();
            assert_eq!(c.latched(id, 60), Status::Ok, "seed {seed}");
            assert_eq!(c.quiet(id, 60, 5 + u64::from(id)), 0, "seed {seed}: node {id}");
        }
    }
}

#[test]
fn elements_of_a_node_to_itself_pass_before_and_after_it_joins_again() {
    for seed in 0..60 {
        let (mut c, mut owner) = with_queue(seed, None, 8, 8);
        let (before, after) = (c.rng.below(12_u64), 1 + c.rng.below(12_u64));
        (0..before).for_each(|value| c.enqueue(1, 1, SLOT, 8, value));
        c.some_steps(30);
        c.event(1, Event::LinkDown);
        c.event(1, Event::LinkUp { incarnation: 0x2000, nodes: 3, credits: [8; 4] });
        (before..before + after).for_each(|value| c.enqueue(1, 1, SLOT, 8, value));
        assert_eq!(owner.drain(&mut c), (0..before + after).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(c.latched(1, IMPORT), Status::Ok, "seed {seed}");
        // Their receive credits are still counted, and given back once.
        c.ok(1, import_clear(IMPORT));
        c.import(1, 1, "queue", IMPORT, SLOT);
    }
}

#[test]
fn e12_a_stopped_queue_holds_up_nothing_else() {
    let (mut c, mut owner) = with_queue(3, None, 8, 4);
    let mut other = Owner::new(&mut c, 1, 5, "other", 8, 4);
    c.import(0, 1, "other", 41, 9);
    for value in 0..40 {
        c.enqueue(0, 1, SLOT, 4, value);
        c.enqueue(2, 1, SLOT, 4, 100 + value);
    }
    c.settle();
    assert!(owner.is_stopped(&c));
    let word = c.address(1, 0, 0);
    for round in 0..50u64 {
        c.store(0, word, 8, round);
        assert_eq!(c.load(0, word, 8), round);
        assert_eq!(c.atomic(0, AtomicOp::Add, 8, word, 1, 0), (Status::Ok, round));
        assert_eq!(c.copy(0, c.address(1, 1, 0), c.address(0, 1, 0), 512), Status::Ok);
        c.enqueue(0, 1, 9, 4, round);
        c.settle();
        assert_eq!(other.pop(&mut c), Some(round), "the other queue continues");
        // Also in the other direction, crosswise.
        assert_eq!(c.load(1, c.address(0, 0, 0), 8), 0);
    }
    assert!(owner.is_stopped(&c));
    assert_eq!(c.hib(1).counters().overflows, 1);
    let all = owner.drain(&mut c);
    assert_eq!(all.iter().filter(|v| **v < 100).copied().collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
    assert_eq!(all.iter().filter(|v| **v >= 100).copied().collect::<Vec<_>>(), (100..140).collect::<Vec<_>>());
}

#[test]
fn senders_of_a_full_queue_become_congested_and_none_fails() {
    let mut c = cluster(4, None, |config| {
        config.congest_at = 16;
        config.clear_at = 4;
    });
    let mut owner = Owner::new(&mut c, 1, 4, "queue", 8, 4);
    c.import(0, 1, "queue", IMPORT, SLOT);
    for value in 0..60 {
        c.enqueue(0, 1, SLOT, 4, value);
    }
    c.settle();
    let waiting = c.hib(0).import_state(IMPORT);
    assert_eq!(waiting & (event::IMPORT_CONGESTED | event::IMPORT_CUT), event::IMPORT_CONGESTED);
    // 4 in the buffer, 1 pending, and at most `hold` in flight: the rest was never sent.
    assert_eq!(c.hib(0).elements_under_way(IMPORT), 4);
    assert_eq!(c.hib(0).import_state(0), 0, "other imports do not notice");
    assert_eq!(owner.drain(&mut c), (0..60).collect::<Vec<_>>());
    assert_eq!(c.hib(0).import_state(IMPORT), 0);
}

#[test]
fn e20_quiet_covers_elements() {
    let (mut c, mut owner) = with_queue(5, None, 8, 4);
    for value in 0..5 {
        c.enqueue(0, 1, SLOT, 4, value);
    }
    c.start_quiet(0, 3, u64::from(IMPORT), 9);
    c.settle();
    assert_eq!(c.quiet_word(0, 3), (0, 0), "the fifth is pending");
    owner.handle(&mut c);
    c.settle();
    assert_eq!(c.quiet_word(0, 3), (0, 9));
}

#[test]
fn accesses_that_are_no_enqueue_are_refused_with_their_reason() {
    let base = |c: &Cluster, aperture, offset| c.aperture(aperture, 1, SLOT, offset);
    let try_store = |aperture, offset, size, at_sender: Status| {
        let (mut c, mut owner) = with_queue(6, None, 64, 4);
        c.enqueue(0, 1, SLOT, 4, 1);
        let offset = base(&c, aperture, offset);
        c.store(0, offset, size, 0xdead_beef);
        c.settle();
        assert_eq!(c.latched(0, IMPORT), at_sender, "{aperture:?} {offset:#x} {size}");
        assert_eq!(owner.drain(&mut c), [1]);
        let refused = c.hib(1).counters().refused;
        assert_eq!(c.hib(2).import_state(IMPORT), 0);
        refused
    };
    // At the receiver: another address than the base (head, next, an entry), another width.
    for offset in [4, 8, 12, 252] {
        assert_eq!(try_store(Aperture::Enqueue, offset, 4, Status::NotQueue), 1);
    }
    assert_eq!(try_store(Aperture::Enqueue, 0, 8, Status::NotQueue), 1);
    // At the sender: widths that no queue has, past the end, plain stores.
    assert_eq!(try_store(Aperture::Enqueue, 0, 2, Status::NotQueue), 0);
    assert_eq!(try_store(Aperture::Enqueue, 256, 4, Status::Bounds), 0);
    assert_eq!(try_store(Aperture::Plain, 0, 4, Status::Rights), 0);
    // A load from either aperture is all ones.
    let (mut c, _) = with_queue(6, None, 64, 4);
    for aperture in [Aperture::Enqueue, Aperture::Plain] {
        let address = base(&c, aperture, 0);
        assert_eq!(c.load(0, address, 4), 0xffff_ffff);
    }
    // An enqueue through an import of plain memory.
    c.store(0, c.aperture(Aperture::Enqueue, 1, 0, 0), 8, 1);
    assert_eq!(c.latched(0, 1), Status::Rights);
}

/// A packet of node 0 that its own board would never send.
fn forged(c: &mut Cluster, at: RemoteAddr, size: u8) -> Status {
    // As if each came through a separate import: behind a refused one of the same import they would all be refused.
    let epoch = ImportEpoch { import: 0, epoch: c.cookie() as u32 };
    let body = Body::Enqueue { at, context: 0, epoch, size, data: 9, after: 0 };
    c.nodes[1].notices.clear();
    c.forge(0, 1, 0xfff_0000, body);
    let refused = c.nodes[1].notices.iter().find_map(|n| match n {
        Notice::Refused { status, .. } => Some(*status),
        _ => None,
    });
    c.settle();
    refused.unwrap_or(Status::Ok)
}

#[test]
fn forged_enqueues_are_refused_at_the_receiver() {
    let (mut c, mut owner) = with_queue(7, None, 64, 4);
    let mut generation = 0;
    for candidate in 1..1u64 << 45 {
        let at = RemoteAddr { page: 4, offset: 0, generation: c.hib(1).incarnation() * (1 << 12) + candidate };
        if forged(&mut c, at, 4) == Status::Ok {
            generation = at.generation;
            break;
        }
        assert!(candidate < 100, "the queue's generation is not found");
    }
    assert_eq!(owner.drain(&mut c), [9]);
    let at = |page, offset| RemoteAddr { page, offset, generation };
    assert_eq!(forged(&mut c, at(0, 0), 4), Status::NotQueue, "a plain page");
    assert_eq!(forged(&mut c, at(9, 0), 4), Status::NotGranted, "a page without a grant, such as a linked buffer");
    assert_eq!(forged(&mut c, at(4, 4), 4), Status::NotQueue);
    assert_eq!(forged(&mut c, at(4, 0), 8), Status::NotQueue);
    assert_eq!(forged(&mut c, RemoteAddr { generation: generation + 1, ..at(4, 0) }, 4), Status::Stale);
    // More than was reserved: the buffer is full, one is pending, and no receive credit is left.
    c.enqueue(2, 1, SLOT, 4, 1);
    let statuses: Vec<Status> = (0..80).map(|_| forged(&mut c, at(4, 0), 4)).collect();
    assert_eq!(statuses.iter().filter(|s| **s == Status::NoHold).count(), 80 - 59 - 4, "{statuses:?}");
    // A node without an import has nothing reserved at all.
    let clear = import_clear(IMPORT);
    owner.drain(&mut c);
    c.ok(0, clear);
    c.settle();
    assert_eq!(forged(&mut c, at(4, 0), 4), Status::NoHold);
}

#[test]
fn a_receiver_that_scribbles_its_own_header_harms_only_itself() {
    let headers: [(u64, u64); 10] = [
        (TAIL_WORD, 0),
        (TAIL_WORD, 63 << 16 | 5),
        (TAIL_WORD, 64 << 16 | 2),
        (TAIL_WORD, 64 << 16 | 64),
        (TAIL_WORD, 128 << 16 | 5),
        (TAIL_WORD, u64::MAX),
        (HEAD_WORD, 64 << 16 | 65535),
        (HEAD_WORD, 64 << 16),
        (HEAD_WORD, 32 << 16 | 3),
        (HEAD_WORD, 1 << 40 | 64 << 16 | 3),
    ];
    for (word, value) in headers {
        let (mut c, _) = with_queue(8, None, 64, 8);
        let mut other = Owner::new(&mut c, 1, 5, "other", 8, 8);
        c.import(0, 1, "other", 41, 9);
        c.poke(1, 4, word, 8, value);
        for n in 0..6 {
            c.enqueue(0, 1, SLOT, 8, n);
            c.enqueue(2, 1, SLOT, 8, n);
            c.enqueue(0, 1, 9, 8, n);
        }
        let ram = c.nodes[1].ram.clone();
        c.settle();
        assert_eq!(other.drain(&mut c), (0..6).collect::<Vec<_>>(), "the other queue continues");
        for id in [0, 2] {
            assert_eq!(c.latched(id, IMPORT), Status::QueueHeader, "{word} {value:#x}");
        }
        assert_eq!(c.latched(0, 41), Status::Ok);
        // Memory outside its own buffer is unchanged.
        let buffer = (EXPORTS + 4 * UNIT) as usize..(EXPORTS + 4 * UNIT) as usize + 64 * 8;
        let same = |range: std::ops::Range<usize>| c.nodes[1].ram[range.clone()] == ram[range];
        assert!(same(EXPORTS as usize..buffer.start) && same(buffer.end..(EXPORTS + 5 * UNIT) as usize));
        let broken = 4 << 32 | u64::from(Status::QueueHeader as u16) << 16 | event::QUEUE_BROKEN;
        assert!(c.events(1, 60).contains(&(event::QUEUE, 0, broken)), "its owner is notified");
        assert!(c.nodes[1].notices.iter().any(|n| matches!(n, Notice::BrokenQueue { page: 4, .. })));
        // It stays broken, whatever its header contains later.
        for word in [0, 1] {
            c.poke(1, 4, word, 8, 64 << 16 | 3);
        }
        c.ok(2, import_ack(IMPORT));
        c.enqueue(2, 1, SLOT, 8, 1);
        c.settle();
        assert_eq!(c.latched(2, IMPORT), Status::QueueHeader);
    }
}

#[test]
fn what_is_held_when_a_queue_is_revoked_is_refused_and_nothing_touches_its_memory_after() {
    for seed in 0..200 {
        let (mut c, owner) = with_queue(seed, None, 8, 4);
        for value in 0..20 {
            c.enqueue(0, 1, SLOT, 4, value);
            c.enqueue(2, 1, SLOT, 4, value);
        }
        c.some_steps(120);
        c.ok(1, grant_clear(4, 1));
        let memory = c.nodes[1].ram[(EXPORTS + 4 * UNIT) as usize..][..32].to_vec();
        c.settle();
        assert_eq!(c.nodes[1].ram[(EXPORTS + 4 * UNIT) as usize..][..32], memory, "seed {seed}");
        for id in [0, 2] {
            let status = c.latched(id, IMPORT);
            assert!(matches!(status, Status::Stale | Status::NotGranted), "seed {seed}: node {id} reads {status:?}");
            assert_eq!(c.quiet(id, IMPORT.into(), 3), status as u16, "nothing is left outstanding");
        }
        // The page is free for another queue, which begins empty.
        c.admin(1, withdraw("queue"));
        let mut next = Owner::new(&mut c, 1, owner.page, "queue", 16, 8);
        assert_eq!(next.drain(&mut c), []);
    }
}

/// Elements in a queue's receive credits are answered after their link credits were returned. The switch disconnects a
/// node that sends more replies than there can be requests.
#[test]
fn the_switch_expects_the_answers_to_all_that_is_held() {
    for seed in 0..20 {
        let mut c = Cluster::switched(2, seed, |config| {
            config.credits = [4; 4];
            config.hold = 64;
            config.holds = 4096;
        });
        Owner::new(&mut c, 1, 4, "queue", 8, 4);
        for n in 0..8u16 {
            c.import(0, 1, "queue", n, n.into());
        }
        for value in 0..70 {
            for slot in 0..8 {
                c.enqueue(0, 1, slot, 4, value);
            }
        }
        c.settle();
        let under_way: u32 = (0..8).map(|n| c.hib(0).elements_under_way(n)).sum();
        assert_eq!(under_way, 512);
        // All of them are refused at once, to a node that does not read.
        c.listens(0, false);
        c.ok(1, grant_clear(4, 1));
        c.settle();
        c.listens(0, true);
        c.settle();
        for n in 0..8 {
            assert_eq!(c.hib(0).elements_under_way(n), 0);
            assert_eq!(c.latched(0, n), Status::Stale);
        }
    }
}

#[test]
fn a_revoked_queue_answers_a_resume_under_way() {
    for seed in 0..50 {
        let (mut c, mut owner) = with_queue(seed, None, 8, 4);
        for value in 0..6 {
            c.enqueue(0, 1, SLOT, 4, value);
        }
        c.settle();
        owner.handle(&mut c);
        c.some_steps(5);
        c.ok(1, grant_clear(4, 1));
        c.settle();
        // Every slot is free again and accepts a command.
        for _ in 0..admin::SLOTS * 2 {
            assert_eq!(c.status(1, queue_resume(4)), Status::Invalid);
        }
    }
}

#[test]
fn hold_slots_are_reserved_at_import_and_returned() {
    // 16 imports: one for each of 8 nodes, the others first come, first served; 4 for one node, 2 of them of one queue.
    let mut c = cluster(9, None, |config| config.holds = 64);
    Owner::new(&mut c, 1, 4, "queue", 8, 4);
    Owner::new(&mut c, 1, 5, "other", 8, 4);
    for id in [0, 2] {
        for (n, name) in ["queue", "other", "queue", "other"].into_iter().enumerate() {
            c.import(id, 1, name, 40 + n as u16, 4 + n as u32);
        }
    }
    for (n, name) in ["queue", "other", "other"].into_iter().enumerate() {
        c.import(1, 1, name, 40 + n as u16, 4 + n as u32);
    }
    let set = |c: &mut Cluster, id: u16| {
        assert_eq!(c.lookup(id, 1, "queue").width, 4);
        let set = c.import_command(id, 1, "queue", 50, 11);
        assert_eq!(set.rights, Rights::ENQUEUE.0);
        c.status(id, set)
    };
    assert_eq!(set(&mut c, 0), Status::NoHold);
    assert_eq!(set(&mut c, 1), Status::NoHold, "not for the own node either");
    // Closed: another fits. Number and window slot of the refused one are free, too.
    let close = |import| import_clear(import);
    c.ok(2, close(41));
    c.settle();
    assert_eq!(set(&mut c, 1), Status::Ok);
    assert_eq!(set(&mut c, 2), Status::NoHold);
    // The node that had them leaves.
    c.event(1, Event::NodeDown { node: 0 });
    c.import(2, 1, "other", 60, 12);
    // The queue is destroyed, and with it its reservations.
    c.ok(1, grant_clear(4, 1));
    Owner::new(&mut c, 1, 6, "third", 8, 4);
    c.import(2, 1, "third", 61, 13);
    c.import(2, 1, "third", 62, 14);
}

#[test]
fn a_closed_import_waits_for_no_receiver_and_its_elements_still_arrive() {
    for seed in 0..100 {
        let mut c = cluster(seed, None, |config| config.holds = 64);
        let mut owner = Owner::new(&mut c, 1, 4, "queue", 8, 4);
        let mut other = Owner::new(&mut c, 1, 5, "other", 8, 4);
        c.import(0, 1, "queue", IMPORT, SLOT);
        for value in 0..20 {
            c.enqueue(0, 1, SLOT, 4, value);
        }
        c.some_steps(200);
        assert_eq!(c.status(0, import_clear(IMPORT)), Status::Ok, "seed {seed}: it is closed without a consumer");
        // Number and slot are free for another import, whose elements are not confused with the earlier ones.
        c.import(0, 1, "other", IMPORT, SLOT);
        c.enqueue(0, 1, SLOT, 4, 100);
        c.settle();
        assert_eq!(other.drain(&mut c), [100]);
        assert_eq!(c.quiet(0, IMPORT.into(), 7), 0, "it has nothing under way");
        // The receive credits of the closed one are still in use: one of two imports of that queue remains possible.
        c.import(0, 1, "queue", 50, 11);
        let set = c.import_command(0, 1, "queue", 51, 12);
        assert_eq!(c.status(0, set), Status::NoHold);
        assert_eq!(owner.drain(&mut c), (0..20).collect::<Vec<_>>(), "seed {seed}");
        c.settle();
        assert_eq!(c.status(0, set), Status::Ok, "seed {seed}: they have been given back");
    }
}

#[test]
fn elements_of_a_closed_import_end_with_their_queue_or_node() {
    for seed in 0..60 {
        let (mut c, _) = with_queue(seed, None, 8, 4);
        for value in 0..20 {
            c.enqueue(0, 1, SLOT, 4, value);
        }
        c.settle();
        let clear = |import| import_clear(import);
        c.ok(0, clear(IMPORT));
        if seed % 2 == 0 {
            c.ok(1, grant_clear(4, 1));
        } else {
            c.event(0, Event::NodeDown { node: 1 });
            c.lose_packets();
        }
        c.settle();
        assert!(c.hib(0).counters().dropped > 0, "seed {seed}: they are counted");
        // They occupy nothing in the board's reserve: all of it is available.
        assert_eq!(c.hib(0).waiting(), 0, "seed {seed}");
    }
}

#[test]
fn queues_that_cannot_be_are_refused() {
    let mut c = cluster(10, None, |_| {});
    let good = QueueCommand {
        opcode: admin::QUEUE_SET,
        page: 4,
        words: 64,
        width: 4,
        address: EXPORTS + 4 * UNIT,
        nodes: [u64::MAX; 4],
        ..QueueCommand::default()
    };
    let bad = [
        QueueCommand { words: 4, ..good },
        QueueCommand { words: 48, ..good },
        QueueCommand { words: 1 << 15, ..good },
        QueueCommand { words: 1 << 14, width: 8, ..good },
        QueueCommand { width: 2, ..good },
        QueueCommand { page: 4096, ..good },
        QueueCommand { context: 7, ..good },
        QueueCommand { context: 1 << 16, ..good },
        QueueCommand { address: good.address + 64, ..good },
        QueueCommand { address: good.address + 4096, words: 1 << 14, ..good },
        QueueCommand { address: u64::MAX - 4095, words: 1 << 11, ..good },
    ];
    for command in bad {
        assert_eq!(c.status(1, command), Status::Invalid, "{command:?}");
    }
    assert_eq!(c.status(1, QueueCommand { page: 1, ..good }), Status::Busy, "a plain page");
    c.ok(1, good);
    assert_eq!(c.status(1, good), Status::Busy);
    // Not stopped, not a queue.
    for index in [4, 0, 9] {
        assert_eq!(c.status(1, queue_resume(index)), Status::Invalid);
    }
    // Rights cannot be mixed.
    let mixed =
        Command { length: 64, ..import_pages(50, 1, 11, (4, 1), 0, Rights(Rights::ENQUEUE.0 | Rights::WRITE.0)) };
    assert_eq!(c.status(0, mixed), Status::Invalid);
    // A plain segment has no receive credits.
    let found = c.lookup(0, 1, "seg");
    let plain = Command { page: found.index, generation: found.generation, rights: Rights::ENQUEUE.0, ..mixed };
    assert_eq!(c.status(0, plain), Status::NotQueue);
}

// ---- arm ----

fn arm(c: &mut Cluster, id: u16, context: u16, page: u32, seen: u32) {
    arm_for(c, id, context, QueueArm { count: 1, page, seen });
}

fn arm_for(c: &mut Cluster, id: u16, context: u16, arm: QueueArm) {
    let (offset, data) = (u64::from(context) * UNIT + context::QUEUE_ARM, arm.encode());
    c.write(id, Bar::Contexts, offset, data);
}

fn wakes(c: &Cluster, id: u16) -> usize {
    c.events(id, 64).iter().filter(|(kind, ..)| *kind == event::CONTEXT).count()
}

/// A consumer polls, finds nothing, arms at some later moment, and sleeps. Elements arrive meanwhile, and an overflow
/// with its handling may lie between poll and arm. A consumer that sleeps while the queue has elements sleeps forever.
fn sleeper_wakes(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, mut owner) = with_queue(seed, bug, 8, 4);
    // The tail must wrap to its earlier value.
    c.enqueue(0, 1, SLOT, 4, 1);
    c.settle();
    assert_eq!(owner.pop(&mut c), Some(1));
    let seen = owner.header(&c, TAIL_WORD).encode();
    let elements = [1, 5, 5 + 5][c.rng.below(3)];
    for value in 0..elements {
        c.enqueue(0, 1, SLOT, 4, value);
    }
    // Events between poll and arm.
    let mut rounds = c.rng.below(60);
    while rounds > 0 {
        rounds -= 1;
        c.step();
        if owner.is_stopped(&c) {
            owner.handle(&mut c);
        }
    }
    arm(&mut c, 1, 0, 4, seen);
    loop {
        c.settle();
        if !owner.is_stopped(&c) {
            break;
        }
        owner.handle(&mut c);
    }
    if wakes(&c, 1) == 0 {
        return Err(format!("{elements} elements are there, and the consumer sleeps"));
    }
    Ok(())
}

#[test]
fn no_wake_up_is_lost_between_look_and_arm() {
    common::over_seeds(500, 20_000, |seed| sleeper_wakes(seed, None));
    finds(sleeper_wakes, Bug::ArmBlindly, "the consumer sleeps");
    finds(sleeper_wakes, Bug::ArmByTail, "the consumer sleeps");
}

/// A consumer that arms for several elements, and sleeps without another arm until it has taken as many. It may be
/// woken for nothing, but never sleeps while the queue has elements.
fn sleeps_on(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, mut owner) = with_queue(seed, bug, 8, 4);
    let (mut left, mut value) = (0u16, 0);
    for round in 0..20 {
        c.take_events(1);
        loop {
            if owner.is_stopped(&c) {
                owner.handle(&mut c);
            }
            if owner.pop(&mut c).is_none() {
                break;
            }
            left = left.saturating_sub(1);
        }
        let seen = owner.header(&c, TAIL_WORD).encode();
        let mut send = |c: &mut Cluster, limit: usize| {
            for _ in 0..c.rng.below(limit) {
                c.enqueue(0, 1, SLOT, 4, value);
                value += 1;
            }
            c.some_steps(40);
        };
        send(&mut c, 4);
        if left == 0 {
            left = 1 + c.rng.below(4) as u16;
            arm_for(&mut c, 1, 0, QueueArm { count: left, page: 4, seen });
        }
        send(&mut c, [2, 2, 8][round % 3]);
        loop {
            c.settle();
            if !owner.is_stopped(&c) {
                break;
            }
            owner.handle(&mut c);
        }
        let woken = c.take_events(1).iter().any(|(kind, ..)| *kind == event::CONTEXT);
        if !woken && owner.header(&c, TAIL_WORD) != owner.header(&c, HEAD_WORD) {
            return Err(format!("round {round}: elements are there, and the consumer sleeps"));
        }
    }
    Ok(())
}

#[test]
fn who_has_armed_for_several_elements_sleeps_without_another_arm() {
    common::over_seeds(500, 20_000, |seed| sleeps_on(seed, None));
    finds(sleeps_on, Bug::WakeOnce, "the consumer sleeps");
}

#[test]
fn an_armed_queue_tells_as_often_as_asked() {
    let (mut c, owner) = with_queue(12, None, 8, 4);
    let seen = owner.shape.empty().encode();
    arm_for(&mut c, 1, 0, QueueArm { count: 2, page: 4, seen });
    // A second one does not take wake-ups away.
    arm_for(&mut c, 1, 0, QueueArm { count: 1, page: 4, seen });
    c.settle();
    for (value, expected) in [1, 2, 2, 2].into_iter().enumerate() {
        c.enqueue(0, 1, SLOT, 4, value as u64);
        c.settle();
        assert_eq!(wakes(&c, 1), expected);
    }
}

#[test]
fn an_armed_queue_tells_once_and_only_its_context() {
    let (mut c, mut owner) = with_queue(11, None, 8, 4);
    c.open_context(1, 1);
    let empty = owner.shape.empty().encode();
    arm(&mut c, 1, 0, 4, empty);
    c.settle();
    assert_eq!(wakes(&c, 1), 0, "nothing has come");
    for value in 0..3 {
        c.enqueue(0, 1, SLOT, 4, value);
        c.settle();
    }
    assert_eq!(wakes(&c, 1), 1);
    let seen = owner.header(&c, TAIL_WORD).encode();
    arm(&mut c, 1, 0, 4, seen);
    c.settle();
    assert_eq!(wakes(&c, 1), 2, "it was not empty");
    assert_eq!(owner.drain(&mut c), [0, 1, 2]);
    // Pages of other contexts, and of no queue.
    for (context, page) in [(1, 4), (0, 0), (0, 99)] {
        c.register(1, Register::ErrorAck, 1);
        arm(&mut c, 1, context, page, empty);
        assert_eq!(c.error(1), Status::NotQueue);
    }
    // Revoked while a consumer sleeps.
    let seen = owner.header(&c, TAIL_WORD).encode();
    arm(&mut c, 1, 0, 4, seen);
    c.settle();
    let before = wakes(&c, 1);
    c.ok(1, grant_clear(4, 1));
    c.settle();
    assert_eq!(wakes(&c, 1), before + 1);
}

#[test]
fn a_reset_receiver_refuses_what_it_held() {
    for seed in 0..100 {
        let (mut c, _) = with_queue(seed, None, 8, 4);
        for value in 0..20 {
            c.enqueue(0, 1, SLOT, 4, value);
        }
        c.some_steps(100);
        c.event(1, Event::Reset);
        c.settle();
        assert_eq!(c.nodes[1].resets, 1);
        assert_eq!(c.latched(0, IMPORT), Status::Reset, "seed {seed}");
        assert_eq!(c.quiet(0, IMPORT.into(), 3), Status::Reset as u16);
        assert_eq!(c.ram_u64(0, STATUS_PAGES + context::ERRORS_OFFSET), 1);
    }
}
