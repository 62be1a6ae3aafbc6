// SPDX-License-Identifier: MIT OR Apache-2.0
//! Models over the real code: stateright with the real board, the library's real dequeue and the driver's real
//! copy-and-link.
//!
//! | File | Contents |
//! |---|---|
//! | `queue.rs` | a notification queue: states, steps, properties |
//! | `queue/` | its size, its driver, its consumers, printed counterexamples |
//! | `board.rs` | the receiver's board in it |
//! | `consumer.rs` | a consumer's pass through the dequeue section, access by access |
//! | `buffers.rs`, `handler.rs` | the driver's C code: copy and link, and its mutual exclusion with the dequeue |
//! | `division.rs` | the driver's C code that divides slots and tables among processes, against `telegraphos-accounts` |
//! | `memory.rs` | the words in memory, and their names |
//! | `progress.rs` | whether a good end is reachable from each state |
//! | `traces.rs` | the C code alone, on long random traces, against a list |
//! | `copies.rs`, `copies/` | replicated pages: boards, programs, memory and network |
//! | `coherence.rs` | their properties, and the faults that break them |
//! | `rings.rs` | stores whose path changes from the fabric to a ring and back |
//!
//! The tests in this file check small queues in all interleavings: buffers of 8 words, which hold 4 elements, of which
//! the second or third to arrive overflows, and longer runs of the same model in random order. Each wrong reading of
//! the papers, and each deliberate bug of the board, yields a counterexample; the correct one in its place yields none.
//!
//! ```text
//! cargo test -p telegraphos-models --test models -- --nocapture          # sizes and times, and all counterexamples
//! TELEGRAPHOS_SCALE=full cargo test --release -p telegraphos-models --test models -- --nocapture every reductions random
//! ```
//!
//! A counterexample is a shortest one; each line has the consecutive steps of one party:
//!
//! ```text
//! board: a5 arrives, A.tail is 7, A[7] = a5, A.head is 3, stops
//! worker: sets FULL, state was 0, copies and links: A -> B
//! ```
//!
//! A is the first buffer, B and C are linked ones, `A.tail`, `A.head` and `A.next` their header words, `A[7]` a data
//! word. Elements are called by their sender and their number: `a5` is the fifth of the first sender. "is" is a load,
//! "=" a store. Flags are those of the control page's `state`, with the owner number of the BUSY consumer.
#![allow(clippy::expect_used, clippy::panic, reason = "what models are made of runs in tests alone")]

mod board;
mod buffers;
mod coherence;
mod consumer;
mod copies;
mod digest;
mod division;
mod handler;
mod memory;
mod progress;
mod queue;
mod rings;
mod traces;

use buffers::Reading;
use consumer::Most;
use handler::Variant;
use queue::{ASLEEP, Counting, I9, I10, I12, QueueModel, STOPPED, Setup, Sight};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::time::Instant;
use telegraphos::queue::dequeue::Literal;
use telegraphos_device_core::Bug;
use telegraphos_testkit::{Scale, rounds};

/// Checks that no interleaving is wrong, and that these sights occur. Returns the number of states.
fn holds(setup: Setup, sights: &[Sight]) -> usize {
    let begun = Instant::now();
    let about = setup.to_string();
    let model = QueueModel::new(setup);
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join();
    let model = checker.model();
    println!("{about}: {} states in {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f64());
    if let Some((property, path)) = checker.discoveries().into_iter().next() {
        panic!("{about}\nviolates {property:?}:\n  {}", model.describe(path.into_vec()).join("\n  "));
    }
    assert!(model.ends() > 0, "nothing ever came to an end");
    for sight in sights {
        assert!(model.has_seen(*sight), "{about}: {sight:?} was never met");
    }
    checker.unique_state_count()
}

/// Finds the shortest counterexample to one of these properties, and prints it. The correct variant must have none.
fn fails(wrong: Setup, right: Setup, properties: &[&'static str]) -> Vec<String> {
    holds(right, &[]);
    let begun = Instant::now();
    let about = wrong.to_string();
    let wanted = HasDiscoveries::AnyOf(properties.iter().copied().collect::<BTreeSet<_>>());
    let checker = QueueModel::new(wrong).checker().finish_when(wanted).spawn_bfs().join();
    let mut found = checker.discoveries();
    let Some((property, path)) = properties.iter().find_map(|property| found.remove_entry(property)) else {
        panic!("{about}: no interleaving of {} shows it", checker.unique_state_count());
    };
    let lines = checker.model().describe(path.into_vec());
    println!("{about}: {} states in {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f64());
    println!("against {property:?}:\n  {}\n", lines.join("\n  "));
    lines
}

const SMALL: Setup = Setup::SMALL;

/// The fifth element arrives, and the consumer takes one.
const ONE_OF_FIVE: Setup = Setup { fill: 4, elements: [1, 0], takes: Some(1), ..SMALL };

/// One consumer, which takes one element at a time or all available ones, or stops after some; overflows with room, and
/// with the quota used up.
#[test]
fn i9_i10_i11_i12_every_interleaving_of_small_queues() {
    use Sight::{Busy, Caller, Freed, Held, Woken, Worker};
    holds(Setup { fill: 3, elements: [2, 2], ..SMALL }, &[Worker, Caller, Busy, Woken]);
    holds(Setup { fill: 8, elements: [2, 1], ..SMALL }, &[Worker, Caller, Busy, Held]);
    holds(Setup { quota: 2, fill: 8, elements: [3, 2], gone: 2, ..SMALL }, &[Worker, Caller, Busy, Held, Freed]);
    holds(Setup { fill: 3, elements: [2, 2], most: Most::All, hold: 1, ..SMALL }, &[Worker, Caller, Busy]);
    holds(Setup { fill: 8, elements: [2, 2], takes: Some(6), ..SMALL }, &[Worker, Caller, Busy, Held, Freed]);
    if Scale::from_env() == Scale::Full {
        holds(Setup { fill: 3, elements: [4, 4], ..SMALL }, &[Worker, Caller, Busy, Held, Freed]);
        holds(Setup { fill: 8, elements: [4, 4], ..SMALL }, &[Worker, Caller, Busy, Held, Freed]);
        holds(Setup { quota: 2, fill: 8, elements: [4, 3], most: Most::All, ..SMALL }, &[Busy, Held, Freed]);
        holds(Setup { fill: 3, elements: [3, 3], most: Most::All, hold: 1, ..SMALL }, &[Worker, Caller, Busy]);
    }
}

/// A consumer is killed at any access, and another one continues in its place.
#[test]
fn i9_i10_i11_i12_every_interleaving_with_a_killed_consumer() {
    use Sight::{Again, Busy, Caller, Held, Killed, KilledInDriver, Worker};
    let full = Scale::from_env() == Scale::Full;
    let one = Setup { kills: 1, ..SMALL };
    holds(Setup { fill: 3, elements: [2, 1], ..one.clone() }, &[Worker, Caller, Busy, Killed, Again, KilledInDriver]);
    holds(Setup { fill: 8, elements: [1, 1], ..one.clone() }, &[Busy, Held, Killed, Again]);
    holds(
        Setup { fill: 4, elements: [1, 1], kills: 2, most: Most::All, ..SMALL },
        &[Busy, Killed, Again, KilledInDriver],
    );
    if full {
        holds(Setup { fill: 8, elements: [2, 1], ..one.clone() }, &[Worker, Caller, Busy, Held, Killed, Again]);
        holds(Setup { fill: 3, elements: [3, 3], ..one.clone() }, &[Busy, Killed, Again]);
        holds(Setup { quota: 2, fill: 8, elements: [3, 2], ..one }, &[Busy, Held, Killed, Again]);
        holds(Setup { fill: 8, elements: [2, 2], kills: 3, ..SMALL }, &[Busy, Held, Killed, Again]);
    }
}

/// Two consumers; one of them is killed for good.
#[test]
fn i9_i10_i11_i12_every_interleaving_of_two_consumers() {
    use Sight::{Again, Busy, Caller, Held, Killed, KilledInDriver, Spin, Woken, WokenEarly, Worker};
    let two = Setup { consumers: 2, ..SMALL };
    let one_left = Setup { kills: 1, restarts: false, ..two.clone() };
    holds(Setup { fill: 8, elements: [1, 0], ..two.clone() }, &[Worker, Caller, Busy, Held, Spin]);
    holds(Setup { fill: 4, elements: [1, 0], most: Most::All, ..one_left.clone() }, &[Busy, Killed, Again]);
    if Scale::from_env() == Scale::Full {
        holds(Setup { fill: 3, elements: [1, 1], ..two.clone() }, &[Worker, Caller, Busy, Spin, Woken, WokenEarly]);
        holds(Setup { fill: 3, elements: [2, 1], ..two.clone() }, &[Worker, Caller, Busy, Spin]);
        holds(Setup { fill: 8, elements: [2, 1], ..two }, &[Worker, Caller, Busy, Held, Spin]);
        holds(Setup { fill: 4, elements: [1, 0], ..one_left.clone() }, &[Busy, Killed, Again, KilledInDriver]);
        holds(Setup { fill: 8, elements: [1, 0], most: Most::All, ..one_left.clone() }, &[Busy, Held, Killed, Again]);
        holds(Setup { fill: 4, elements: [1, 1], ..one_left.clone() }, &[Busy, Killed, Again, KilledInDriver]);
        holds(Setup { fill: 8, elements: [1, 1], ..one_left }, &[Busy, Held, Killed, Again]);
    }
}

/// Consumers that arm the queue for several elements, and sleep without another arm while they have a wake-up left.
#[test]
fn i10_every_interleaving_of_consumers_that_arm_for_several() {
    use Sight::{Again, Caller, Held, Killed, SleptUnarmed, Spin, Woken, WokenEarly, Worker};
    let full = Scale::from_env() == Scale::Full;
    let two = Setup { wakes: 2, ..SMALL };
    let pair = Setup { consumers: 2, ..two.clone() };
    holds(Setup { elements: [3, 2], ..two.clone() }, &[SleptUnarmed, Woken, WokenEarly]);
    holds(Setup { wakes: 3, fill: 3, elements: [2, 1], ..two.clone() }, &[SleptUnarmed, Worker, Caller]);
    holds(Setup { fill: 3, elements: [2, 1], kills: 1, ..two.clone() }, &[SleptUnarmed, Killed, Again]);
    holds(Setup { elements: [1, 1], hold: 1, ..pair.clone() }, &[SleptUnarmed, Woken, Spin]);
    if full {
        holds(Setup { elements: [2, 1], ..pair.clone() }, &[SleptUnarmed, Woken, Spin]);
        holds(Setup { wakes: 3, fill: 3, elements: [3, 2], ..two.clone() }, &[SleptUnarmed, Worker, Caller]);
        holds(Setup { fill: 8, elements: [3, 3], ..two }, &[SleptUnarmed, Held]);
        holds(Setup { elements: [3, 1], kills: 1, restarts: false, ..pair }, &[SleptUnarmed, Killed, Again]);
    }
}

/// A consumer is inside for longer than the driver waits: it loses its mapping, and the overflow is handled.
#[test]
fn e13_every_interleaving_with_a_consumer_that_is_busy_for_too_long() {
    use Sight::{Again, Busy, Evicted, Held, Uncalled};
    let slow = Setup { bounds: 1, ..SMALL };
    holds(Setup { fill: 3, elements: [2, 1], ..slow.clone() }, &[Busy, Again, Evicted]);
    holds(Setup { fill: 8, elements: [2, 1], bounds: 2, most: Most::All, ..SMALL }, &[Busy, Again, Held, Evicted]);
    if Scale::from_env() == Scale::Full {
        holds(Setup { consumers: 2, fill: 4, elements: [1, 0], ..slow }, &[Busy, Again, Evicted]);
    }
    // It also compensates for a consumer that leaves and should call the driver, but does not.
    holds(Setup { literal: Literal::CheckThenClear, bounds: 2, ..ONE_OF_FIVE }, &[Busy, Evicted, Uncalled]);
}

/// A consumer that polls repeatedly while the worker does not run may delay the end, but never makes it unreachable.
#[test]
fn i12_from_every_state_all_elements_can_still_be_taken() {
    let check = |setup: Setup| {
        // Both have visited the same states.
        let states = holds(setup.clone(), &[]);
        match progress::always_possible(&QueueModel::new(setup.clone())) {
            Ok(found) => assert_eq!(found, states, "{setup}"),
            Err(path) => panic!("{setup}: no good end can be reached after\n  {}", path.join("\n  ")),
        }
    };
    check(Setup { fill: 8, elements: [1, 1], kills: 1, ..SMALL });
    check(Setup { consumers: 2, fill: 4, elements: [1, 0], ..SMALL });
    if Scale::from_env() == Scale::Full {
        check(Setup { fill: 3, elements: [2, 2], kills: 1, ..SMALL });
        check(Setup { consumers: 2, fill: 8, elements: [1, 0], kills: 1, restarts: false, ..SMALL });
    }
    let wrong = Setup { literal: Literal::CheckThenClear, ..ONE_OF_FIVE };
    assert!(progress::always_possible(&QueueModel::new(wrong)).is_err(), "the check is blind");
}

#[test]
fn i9_i10_i11_i12_random_walks_of_larger_queues() {
    let begun = Instant::now();
    let (mut walks, mut steps) = (0, 0);
    for (quota, consumers, most) in [(1, 1, Most::One), (2, 2, Most::One), (2, 2, Most::All)] {
        let setup = Setup { quota, consumers, most, elements: [20, 20], hold: 4, kills: 3, bounds: 2, ..SMALL };
        let model = QueueModel::new(setup.clone());
        for seed in rounds(400, 40_000) {
            walks += 1;
            steps += progress::walk(&model, seed)
                .unwrap_or_else(|story| panic!("{setup}, seed {seed}:\n  {}", story.join("\n  ")));
        }
        use Sight::{Again, Busy, Caller, Freed, Held, Killed, Woken, Worker};
        for sight in [Again, Busy, Caller, Freed, Held, Killed, Woken, Worker] {
            assert!(model.has_seen(sight), "{setup}: {sight:?} was never met");
        }
    }
    println!("{walks} walks, {steps} steps in {:.1} s", begun.elapsed().as_secs_f64());
}

// ---- what the papers' words, and mistakes, lead to ----

/// SPEC item 11: a dequeue without mutual exclusion with overflow handling.
#[test]
fn e11_dequeue_without_the_word_loses() {
    let right = Setup { fill: 4, elements: [1, 0], ..SMALL };
    fails(Setup { literal: Literal::Unprotected, ..right.clone() }, right.clone(), &[I9, I10]);
    fails(Setup { literal: Literal::Unprotected, ..right.clone() }, right, &[I12]);
}

/// SPEC item 12 with a handler on another processor: BUSY and FULL as two words.
#[test]
fn e11_two_words_do_not_keep_handler_and_dequeue_apart() {
    let right = Setup { fill: 4, elements: [1, 0], ..SMALL };
    let two_words = |right: &Setup| Setup { handler: Variant::TwoWords, ..right.clone() };
    fails(two_words(&right), right, &[I9, I10]);
    fails(two_words(&ONE_OF_FIVE), ONE_OF_FIVE, &[STOPPED]);
}

/// The handler is the driver's, `queue_handler.c`. Each of its orders is there for a reason.
#[test]
fn i12_a_handler_that_is_blind_to_busy_overlaps_a_dequeue() {
    let right = Setup { fill: 4, elements: [1, 0], ..SMALL };
    fails(Setup { handler: Variant::Blind, ..right.clone() }, right, &[I12]);
}

/// A consumer that leaves after FULL was cleared and before HELD is set does not call the driver.
#[test]
fn i12_a_handler_that_clears_full_before_it_sets_held_leaves_the_board_stopped() {
    let right = Setup { consumers: 2, fill: 8, elements: [1, 0], takes: Some(5), ..SMALL };
    let wrong = Setup { handler: Variant::HeldLate, ..right.clone() };
    holds(right.clone(), &[]);
    assert!(progress::always_possible(&QueueModel::new(right)).is_ok(), "the right order fails");
    assert!(progress::always_possible(&QueueModel::new(wrong)).is_err(), "the check is blind to the wrong order");
}

/// A caller that is killed between copy and resume leaves the rest to the worker, which must not copy again.
#[test]
fn i12_a_handler_that_forgets_its_copy_handles_an_overflow_twice() {
    let right = Setup { quota: 2, fill: 4, elements: [1, 0], kills: 1, ..SMALL };
    fails(Setup { handler: Variant::ForgetsCopy, ..right.clone() }, right, &[I12]);
}

#[test]
fn e10_check_then_clear_leaves_the_board_stopped() {
    fails(Setup { literal: Literal::CheckThenClear, ..ONE_OF_FIVE }, ONE_OF_FIVE, &[STOPPED]);
}

#[test]
fn e2_literal_copy_loses() {
    let right = Setup { fill: 4, elements: [1, 1], ..SMALL };
    fails(Setup { reading: Reading::LiteralCopy, ..right.clone() }, right, &[I9, I10]);
}

#[test]
fn e3_append_at_end_reorders() {
    let right = Setup { quota: 2, fill: 8, elements: [1, 0], ..SMALL };
    fails(Setup { reading: Reading::AppendAtEnd, ..right.clone() }, right, &[I9]);
}

#[test]
fn i10_tail_before_data_delivers_nothing() {
    let right = Setup { elements: [1, 0], ..SMALL };
    fails(Setup { bug: Some(Bug::TailBeforeData), ..right.clone() }, right, &[I10]);
}

/// Resuming without handling the overflow.
#[test]
fn i10_a_board_that_never_stops_loses() {
    let right = Setup { fill: 4, elements: [1, 0], ..SMALL };
    fails(Setup { bug: Some(Bug::NeverStop), ..right.clone() }, right.clone(), &[I9, I10, ASLEEP]);
}

#[test]
fn e2_a_board_that_forgets_its_pending_element_loses_it() {
    let right = Setup { fill: 4, elements: [2, 0], ..SMALL };
    fails(Setup { bug: Some(Bug::ForgetPending), ..right.clone() }, right, &[I9, I10]);
}

/// A consumer that believes in a wake-up that an element of its own has used up, or one of another consumer.
#[test]
fn who_counts_its_wake_ups_wrongly_sleeps_for_ever() {
    let right = Setup { elements: [2, 0], ..SMALL };
    fails(Setup { counting: Counting::Uncounted, ..right.clone() }, right, &[ASLEEP]);
    let right = Setup { consumers: 2, kills: 1, restarts: false, elements: [2, 0], hold: 1, ..SMALL };
    fails(Setup { counting: Counting::Unshared, ..right.clone() }, right, &[ASLEEP]);
}

/// An arm that is accepted without checking the queue.
#[test]
fn a_blind_arm_sleeps_for_ever() {
    let right = Setup { elements: [1, 0], ..SMALL };
    fails(Setup { bug: Some(Bug::ArmBlindly), ..right.clone() }, right, &[ASLEEP]);
}

/// An arm that compares only the tail: an overflow resets it to 4.
#[test]
fn an_arm_by_tail_alone_sleeps_for_ever() {
    let right = Setup { gone: 1, elements: [5, 0], hold: 3, ..SMALL };
    fails(Setup { bug: Some(Bug::ArmByTail), ..right.clone() }, right, &[ASLEEP]);
}

/// Stores keep their order while their ring is opened, withdrawn, offered again and withdrawn.
#[test]
fn i8_every_interleaving_of_stores_and_a_ring_that_comes_and_goes() {
    rings::holds(3, &[false, true]);
    if Scale::from_env() == Scale::Full {
        rings::holds(4, &[false, true, false]);
    }
    rings::fails(3, &[false], Bug::LeaveRingAtOnce);
}
