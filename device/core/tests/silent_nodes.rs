// SPDX-License-Identifier: MIT OR Apache-2.0
//! A node that is up and leaves requests unanswered: stores, copies and atomics to it, and the closing of its imports,
//! end within the limit; what it does later changes nothing.

use crate::common::replicas::{Ideal, OWN, replicated, store};
use crate::common::{
    self, ALL, Cluster, Driver, EXPORTS, atomic_steps, copy_steps, copying, grant_clear, import_ack, import_clear,
    import_pages, is_remote_store, operating, replica_clear,
};
use telegraphos_device_core::{Action, Bar, Bug, Event, HibConfig, Notice, RingEvent, Step};
use telegraphos_wire::admin;
use telegraphos_wire::queue::Shape;
use telegraphos_wire::{AtomicOp, Body, Class, MAX_BLOCK, Packet, Status, UNIT, event};

/// The limit in these tests, in microseconds.
const LIMIT: u64 = 4000;

fn limited(bug: Option<Bug>) -> impl Fn(&mut HibConfig) {
    move |config| (config.bug, config.answer_limit, config.outstanding) = (bug, LIMIT, 4)
}

/// Three boards; node 0 has imported the first page of each as import = node, its own included.
fn three(seed: u64, bug: Option<Bug>) -> Cluster {
    let mut c = Cluster::new(3, seed, limited(bug));
    for id in 0..3 {
        c.export(id, "seg", 0, 1, ALL);
        c.make_queue(id, "queue", 4, Shape::new(8, 8).unwrap());
    }
    for id in 0..3 {
        c.import(0, id, "seg", id, 0);
    }
    c
}

/// Lets so many quarters of the limit pass at a node, from the time `now` on.
fn quarters(c: &mut Cluster, id: u16, now: &mut u64, count: u64) {
    for _ in 0..count {
        *now += LIMIT / 4;
        c.event(id, Event::Tick { now: *now });
        c.settle();
    }
}

/// Node 1 performs nothing from now on, and so answers nothing.
fn hang(c: &mut Cluster) {
    c.store(0, c.address(1, 0, UNIT - 8), 8, 1);
    c.hold_next(1, is_remote_store);
}

fn is_dead(c: &Cluster, import: u16) -> bool {
    let state = c.hib(0).import_state(import);
    state & event::IMPORT_CUT != 0 && state >> 16 == Status::Timeout as u64
}

/// A close of the silent node's import, within two limits.
fn closes(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let (mut c, mut now) = (three(seed, bug), 0);
    hang(&mut c);
    for n in 0..20 {
        c.store(0, c.address(1, 0, 8 * n), 8, n);
    }
    c.start_quiet(0, 0, 1, 5);
    let slot = c.post(0, import_clear(1));
    let seq = c.last_command(0);
    quarters(&mut c, 0, &mut now, 3);
    assert_ne!(c.completion(0, slot).seq, seq, "its time is not over");
    quarters(&mut c, 0, &mut now, 5);
    let completion = c.completion(0, slot);
    if completion.seq != seq {
        return Err("the close waits for a silent node".to_owned());
    }
    assert_eq!((completion.status, c.quiet_word(0, 0)), (0, (Status::Timeout as u16, 5)));
    assert_eq!(c.hib(0).counters().silent_nodes, 1);
    assert!(c.nodes[0].notices.contains(&Notice::SilentNode { node: 1 }));
    assert_eq!((c.hib(0).waiting(), c.hib(0).deadline()), (0, None));
    // The other node is reached as before.
    c.store(0, c.address(2, 0, 0), 8, 7);
    assert_eq!((c.quiet(0, 2, 6), c.ram_u64(2, EXPORTS)), (0, 7));
    Ok(())
}

#[test]
fn i7_e19_the_close_of_a_silent_nodes_import_ends() {
    common::sees(Bug::AwaitAnswers, "the close waits for a silent node", 0..10, closes);
}

/// All that is under way ends with TIMEOUT; the import can only be closed.
#[test]
fn i7_everything_to_a_silent_node_ends_with_timeout() {
    for seed in 0..10 {
        let (mut c, mut now) = (three(seed, None), 0);
        hang(&mut c);
        let (near, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
        let copy = copying(1);
        for (slot, [to, from]) in [[far, near], [near, far]].into_iter().enumerate() {
            c.launch(0, 0, slot as u8, copy_steps(copy, to, from, UNIT));
        }
        c.launch(0, 0, 2, atomic_steps(operating(AtomicOp::Add, 8, 1), 1, 0, far));
        c.settle();
        assert!(!is_dead(&c, 1));
        quarters(&mut c, 0, &mut now, 5);
        for slot in 0..3 {
            assert_eq!(c.done(0, 0, slot), (Status::Timeout as u16, 1), "seed {seed}, slot {slot}");
        }
        assert!(is_dead(&c, 1) && !is_dead(&c, 0) && !is_dead(&c, 2));
        assert_eq!(c.status(0, import_ack(1)), Status::Timeout);
        c.ok(0, import_clear(1));
    }
}

/// Answers that come when nothing waits for them are no answers to what was sent since.
#[test]
fn i7_late_answers_concern_nothing_that_came_after() {
    for seed in 0..40 {
        let (mut c, mut now) = (three(seed, None), 0);
        hang(&mut c);
        // One is in flight, and refused in the end.
        c.store(0, c.address(1, 0, 0), 8, 9);
        c.settle();
        quarters(&mut c, 0, &mut now, 5);
        c.ok(0, import_clear(1));
        // The same numbers, for another page.
        let (slot, seq) = (c.post(1, grant_clear(0, 1)), c.last_command(1));
        let generation = c.export(1, "next", 1, 1, ALL);
        assert!(generation > 0);
        c.ok(0, import_pages(1, 1, 0, (1, 1), generation, ALL));
        c.store(0, c.address(1, 0, 0), 8, 3);
        c.settle();
        assert_eq!(c.hib(0).import_progress(1), Some((1, 0)));
        c.proceed();
        assert_eq!(c.completion(1, slot).seq, seq);
        assert_eq!(c.hib(0).import_progress(1), Some((1, 1)));
        assert_eq!((c.quiet(0, 1, 5), c.ram_u64(1, EXPORTS + UNIT)), (0, 3), "seed {seed}");
        quarters(&mut c, 0, &mut now, 10);
        assert!(!is_dead(&c, 1), "it answers again");
        assert_eq!(c.hib(0).counters().silent_nodes, 1);
    }
}

/// Memory that was lent for a put or a get is its process's again when that has ended.
fn nothing_is_copied_afterwards(seed: u64, bug: Option<Bug>, get: bool) -> Result<(), String> {
    // Boards of one process lend by their rings.
    let (mut c, mut now) = (three(2 * seed + 1, bug), 0);
    assert_eq!(c.block, MAX_BLOCK);
    c.use_rings(false);
    c.pages_mut(0, 0, 1).fill(0x11);
    c.pages_mut(1, 0, 1).fill(0x22);
    let (near, far) = (c.address(0, 0, 0), c.address(1, 0, 0));
    let [to, from] = if get { [near, far] } else { [far, near] };
    c.launch(0, 0, 0, copy_steps(copying(1), to, from, UNIT));
    c.some_steps(30);
    c.hanging = vec![1];
    c.hold(1, |step| matches!(step, Step::LoadBlock { .. } | Step::StoreBlock { .. }));
    c.settle();
    quarters(&mut c, 0, &mut now, 5);
    if c.done(0, 0, 0) == (0, 1) {
        return Ok(()); // It was done before.
    }
    assert_eq!(c.done(0, 0, 0), (Status::Timeout as u16, 1));
    let lent = c.nodes[0].loans.outstanding();
    // The process continues to use its memory.
    c.pages_mut(0, 0, 1).fill(0xee);
    c.proceed();
    if c.pages(0, 0, 1).iter().any(|byte| *byte != 0xee) {
        return Err("a late answer was stored".to_owned());
    }
    if lent > 0 || c.pages(1, 0, 1).contains(&0xee) {
        return Err(format!("{lent} blocks were still lent when the process used its memory again"));
    }
    Ok(())
}

#[test]
fn memory_of_a_copy_that_has_timed_out_is_not_touched() {
    for get in [false, true] {
        for seed in 0..60 {
            nothing_is_copied_afterwards(seed, None, get).unwrap_or_else(|e| panic!("get {get}, seed {seed}: {e}"));
        }
    }
    common::finds(Bug::KeepLoansOfPuts, "blocks were still lent", 0..60, |seed| {
        nothing_is_copied_afterwards(seed, Some(Bug::KeepLoansOfPuts), false)
    });
}

/// A full queue holds elements for as long as its reader takes; nothing else of its node is affected.
#[test]
fn elements_that_a_full_queue_holds_have_no_limit() {
    let (mut c, mut now) = (three(1, None), 0);
    c.import(0, 1, "queue", 7, 4);
    for n in 0..40 {
        c.enqueue(0, 1, 4, 8, 1 + n);
    }
    c.settle();
    assert!(c.hib(0).elements_under_way(7) > 0);
    quarters(&mut c, 0, &mut now, 100);
    assert_eq!(c.hib(0).counters().silent_nodes, 0);
    c.store(0, c.address(1, 0, 0), 8, 7);
    assert_eq!((c.quiet(0, 1, 5), c.ram_u64(1, EXPORTS)), (0, 7));
}

/// A node that answers each request within the limit is not silent, however long there is always one unanswered.
#[test]
fn a_slow_node_with_a_backlog_is_not_silent() {
    let (mut c, mut now) = (three(1, None), 0);
    c.store_words(0, 1, 0..200);
    c.hold_next(1, is_remote_store);
    c.settle();
    // Two answers in each quarter of the limit, and four on their way: each takes half of it. What is not sent has no
    // age.
    for n in 0..40 {
        quarters(&mut c, 0, &mut now, 1);
        for _ in 0..2 {
            let performed = c.nodes[1].performed.len();
            c.release();
            while c.nodes[1].performed.len() == performed {
                assert!(c.step());
            }
            c.hold_next(1, is_remote_store);
            c.settle();
        }
        assert_eq!(c.hib(0).counters().silent_nodes, 0, "after {n} quarters");
    }
    assert!(c.hib(0).waiting() > 0);
}

/// A board that was not scheduled for long, or a host that slept, finds the answers that have come meanwhile.
#[test]
fn time_in_which_the_board_does_not_run_is_not_counted() {
    let mut c = three(1, None);
    hang(&mut c);
    c.settle();
    c.event(0, Event::Tick { now: 1000 * LIMIT });
    c.proceed();
    assert_eq!((c.quiet(0, 1, 5), c.hib(0).counters().silent_nodes), (0, 0));
}

/// However often imports of a silent node are opened again, it gets no more requests than its window has places, until
/// it answers or leaves.
fn places(bug: Option<Bug>) -> usize {
    let (mut c, mut now) = (three(2, bug), 0);
    let set = c.import_command(0, 1, "seg", 1, 0);
    c.ok(0, import_clear(1));
    c.hanging = vec![1];
    for n in 0..10 {
        c.ok(0, set);
        c.store(0, c.address(1, 0, 8 * n), 8, 1);
        c.settle();
        quarters(&mut c, 0, &mut now, 6);
        assert!(is_dead(&c, 1) || n >= 4);
        c.ok(0, import_clear(1));
    }
    let count = c.requests_between(0, 1);
    c.proceed();
    c.ok(0, set);
    c.store(0, c.address(1, 0, 0), 8, 7);
    assert_eq!((c.quiet(0, 1, 5), c.ram_u64(1, EXPORTS)), (0, 7), "it is a node like others when it has answered");
    count
}

#[test]
fn a_silent_node_gets_no_more_than_a_window_of_requests() {
    assert_eq!(places(None), 4);
    assert_eq!(places(Some(Bug::ForgetAbandoned)), 10, "the check is blind to Bug::ForgetAbandoned");
}

/// A home that orders stores of a copy no more: the copy is an orphan, and can be closed.
#[test]
fn e20_a_copy_whose_home_answers_no_store_is_an_orphan() {
    for seed in 0..10 {
        let mut now = 0;
        let mut c = replicated(Ideal, 2, seed, admin::OWNER, None, limited(None));
        store(&mut c, 1, 0, 8, 1);
        c.hold_next(0, is_remote_store);
        let (slot, seq) = (c.post(1, replica_clear(0)), c.last_command(1));
        quarters(&mut c, 1, &mut now, 5);
        assert_eq!(c.hib(1).counters().silent_nodes, 1, "seed {seed}");
        assert_eq!(c.hib(1).home_of(0), None, "seed {seed}");
        assert_eq!(c.quiet(1, OWN.into(), 5), Status::Timeout as u16, "seed {seed}");
        // What follows is a request of its own, with a limit of its own.
        now += c.hib(1).config().replica_limit;
        c.event(1, Event::Tick { now });
        c.settle();
        assert_eq!(c.completion(1, slot).seq, seq, "seed {seed}");
    }
}

/// The other end of a ring answers everything and returns no room for more: what waits for room ends, too.
#[test]
fn stores_that_wait_for_room_in_a_ring_end() {
    let (mut c, mut now) = (three(2, None), 0);
    c.settle();
    let (address, credits, mut sent) = (c.address(1, 0, 0), 2, 0);
    let hib = &mut c.nodes[0].hib;
    let mut out = Vec::new();
    let ring = |what| Event::Ring { peer: 1, what };
    hib.handle(ring(RingEvent::Up { incarnation: 0x1000, own: 0x1000, credits, lends: false }), &mut out);
    hib.handle(ring(RingEvent::Alive), &mut out);
    for data in 0..5 {
        hib.handle(Event::Write { bar: Bar::Window, offset: address, size: 8, data }, &mut out);
        for action in std::mem::take(&mut out) {
            let Action::RingSend(packet) = action else { continue };
            sent += 1;
            let body = Body::WriteAck { status: Status::Ok };
            let answer = Packet { src: 1, dst: 0, incarnation: 0x1000, body, ..packet };
            hib.handle(Event::RingPacket { packet: answer, loan: None }, &mut out);
        }
    }
    assert_eq!((sent, hib.import_progress(1)), (2, Some((5, 2))));
    for _ in 0..5 {
        now += LIMIT / 4;
        hib.handle(Event::Tick { now }, &mut out);
    }
    assert_eq!((hib.import_progress(1), hib.waiting()), (Some((2, 2)), 0));
    assert_eq!(hib.import_state(1) >> 16, Status::Timeout as u64);
    assert_eq!(hib.deadline(), None);
    // Room that comes in time does not count.
    hib.handle(ring(RingEvent::Credit { class: Class::Request, count: 2 }), &mut out);
    assert_eq!(hib.deadline(), None);
}
