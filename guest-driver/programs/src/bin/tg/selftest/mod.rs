// SPDX-License-Identifier: MIT OR Apache-2.0
//! The product's statements, checked from inside the guests, as KTAP.
//!
//! The same program runs on every node at the same time. All nodes go through the same list in the same order and keep
//! step by barriers made of remote stores ([`telegraphos_guest_tests::peers`]). In each test a node is everything at
//! once: it stores to its neighbour on the right, checks what its neighbour on the left has stored, and judges for
//! itself.

mod actions;
mod atomics;
mod context;
mod control;
mod copies;
mod counters;
mod data;
mod direct;
mod idle;
mod inspect;
mod interrupts;
mod launches;
mod life;
mod limits;
mod memory;
mod order;
mod protection;
mod queue_actions;
mod queue_consumers;
mod queue_faults;
mod queues;
mod registration_faults;
mod registrations;
mod replica_actions;
mod replica_faults;
mod replica_homes;
mod replica_members;
mod replicas;
mod syncs;
mod trouble;

use context::{Context, Stop, Verdict};
use std::time::Duration;
use telegraphos::Node;
use telegraphos::ReplicaMode::{Counters, Invalidate};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::peers::{Participants, Peers};

pub(crate) const USAGE: &str = "\
tg-selftest: checks the product from inside the guests and reports as KTAP

Usage: tg-selftest [options]      (on every node at the same time)

  --nodes N             wait for nodes 0 to N-1 [every node that is in the cluster now]
  --seconds S           length of the tests that run for a time [2]
  --patience SECONDS    how long to wait for the others [180]
  --only TEXT           run only tests with TEXT in their names; the same on every node
  --list                print the plan and end

TELEGRAPHOS_REGISTRATIONS=N in the environment makes N registrations where there are 300.
Rows that need several user ids are checked when root runs it, rows that compare with what the kernel does when
telegraphos_lab.ko is loaded; else they are reported as SKIP.
Exit codes: 0 all passed, 1 a test failed, 2 usage, 3 no board, no driver, or a peer stayed away.

Examples:
  telegraphos run --nodes 4 --lab -- tg-selftest
  telegraphos run --nodes 2 --user root -- tg-selftest --only protection/
";

struct Test {
    name: &'static str,
    run: fn(&mut Context<'_>) -> Verdict,
}

macro_rules! plan {
    ($( $name:literal => $run:expr, )*) => { &[ $( Test { name: $name, run: $run }, )* ] };
}

/// The plan. Ids are those of docs/spec.md.
const PLAN: &[Test] = plan! {
    "remote-write/every-size-at-every-aligned-offset" => data::write_all_sizes,
    "remote-write/last-words-of-pages-and-segment" => data::write_last_words,
    "remote-write/100000-random-words" => data::write_many,
    "remote-write/returns-before-the-destination-sees-it" => data::write_is_posted,
    "remote-write/misaligned-store-arrives-in-pieces" => data::write_misaligned,
    "remote-read/every-size-at-every-aligned-offset" => data::read_all_sizes,
    "remote-read/returns-own-earlier-stores" => data::read_own_writes,
    "remote-read/four-threads" => data::read_threads,
    "self-addressed/stores-and-loads" => data::self_addressed,
    "all-pairs/stores-both-ways-at-once" => data::all_pairs,
    "all-pairs/loads-in-tight-loops-all-progress" => data::cross_loads,
    "i8-fifo/one-word-in-program-order" => order::sequence,
    "i8-fifo/data-before-flag" => order::data_before_flag,
    "i8-fifo/across-words-and-pages" => order::across_words,
    "e19-quiet/third-node-sees-data-after-flag" => |context| order::third_node(context, |_, remote| remote.quiet()),
    "i7-quiet/whole-context" => |context| order::third_node(context, |node, _| node.quiet()),
    "quiet/eighty-threads-at-once" => order::quiet_threads,
    "quiet/impatient-caller-may-call-again" => order::quiet_timeout,
    "protection/unmapped-page-is-sigsegv" => protection::unmapped,
    "protection/read-only-import-store-is-sigsegv" => protection::read_only_store,
    "protection/read-only-import-stays-read-only" => protection::read_only_mapping,
    "protection/mmap-beyond-the-segment-is-refused" => protection::mmap_beyond,
    "protection/handles-are-useless-in-other-files" => protection::foreign_handles,
    "protection/context-and-status-pages" => protection::own_pages,
    "protection/load-without-right-is-all-ones" => protection::load_without_right,
    "protection/load-past-the-end-is-all-ones" => protection::load_past_end,
    "protection/store-past-the-end-cuts-until-acknowledged" => protection::store_past_end,
    "protection/right-not-offered-is-eacces" => protection::right_not_offered,
    "protection/other-user-ids" => protection::other_users,
    "protection/ordinary-user-in-group-works" => protection::ordinary_user,
    "protection/user-outside-group-is-eacces" => protection::outsider,
    "control/missing-name-is-enoent" => control::missing_name,
    "control/absent-node-is-ehostunreach" => control::absent_node,
    "control/node-id-out-of-range-is-einval" => control::node_out_of_range,
    "control/duplicate-name-is-eexist" => control::duplicate_name,
    "control/secret" => control::secret,
    "control/only-listed-nodes" => control::listed_nodes,
    "control/names-and-sizes-at-their-limits" => control::limits,
    "control/name-is-free-again-after-unexport" => control::name_reuse,
    "control/nonsense-is-refused" => control::nonsense,
    "control/sizes-and-flags-of-ioctls" => control::sizes_and_flags,
    "inspect/debugfs-has-what-there-is" => inspect::debugfs,
    "inspect/tracepoints-say-what-happens" => inspect::tracepoints,
    "revoke/unexport-ends-the-import" => life::unexport,
    "revoke/death-of-the-exporter-ends-the-import" => life::exporter_dies,
    "revoke/soft-imports-raise-no-signal" => life::soft,
    "revoke/soft-imports-end-if-the-owner-takes-nothing" => life::soft_and_full,
    "revoke/old-generation-never-reaches-a-new-export" => life::old_generation,
    "revoke/error-wakes-poll" => life::error_wakes_poll,
    "life/fork-child-has-no-window" => life::fork_child,
    "life/two-processes-at-once" => life::two_processes,
    "life/new-segments-are-zeroed" => life::zeroed,
    "life/300-cycles-leak-nothing" => life::cycles,
    "limits/300-imports" => limits::many_imports,
    "limits/locked-memory" => limits::locked_memory,
    "limits/locked-memory-of-processes-that-are-gone" => limits::locked_memory_of_forked,
    "limits/a-greedy-process-leaves-others-their-share" => limits::greedy_process,
    "limits/64-units-in-one-segment" => limits::many_units,
    "atomics/every-form-returns-the-previous-value" => atomics::previous_values,
    "atomics/4-bytes-leave-their-neighbours-alone" => atomics::neighbours_stay,
    "atomics/linearise-with-stores-and-loads" => atomics::against_stores_and_loads,
    "atomics/1000-fetch-incs-of-each-of-4-processes-per-node" => atomics::fetch_inc_by_processes,
    "atomics/compare-swap-loses-no-increment" => atomics::compare_swap_loses_nothing,
    "atomics/swap-passes-every-value-on" => atomics::swap_passes_on,
    "atomics/without-the-right-are-refused" => atomics::without_right,
    "atomics/unaligned-are-refused" => atomics::unaligned,
    "copy/get-of-odd-sizes-and-alignments" => copies::get_shapes,
    "copy/put-of-odd-sizes-and-alignments" => copies::put_shapes,
    "copy/within-this-node" => copies::local_shapes,
    "copy/the-longest" => copies::longest,
    "copy/refusals" => copies::refusals,
    "copy/150-at-once" => copies::outstanding,
    "copy/returns-before-the-data-lands" => copies::returns_before,
    "copy/event-wakes-sleepers" => copies::event_wakes,
    "copy/death-of-the-exporter-is-an-error" => copies::exporter_dies,
    "register/anonymous-memory" => registrations::anonymous,
    "register/files-in-memory" => registrations::files,
    "register/huge-pages" => registrations::huge_pages,
    "register/by-name-it-is-a-segment" => registrations::by_name,
    "register/a-gate-is-open-to-one-node" => registrations::gated,
    "register/several-lists-of-runs" => registrations::several_lists,
    "register/longer-than-the-window" => registrations::longer_than_the_window,
    "register/debugfs-shows-them" => registrations::shown,
    "register/memory-that-goes-ends-in-an-error" => registration_faults::unmapped,
    "register/holes-in-files" => registration_faults::punched,
    "register/a-file-is-truncated" => registration_faults::truncated,
    "register/unmapped-in-the-middle-of-copies" => registration_faults::unmapped_amid_copies,
    "register/advice-leaves-it-alive" => registration_faults::advised,
    "register/read-only-under-a-writable-export" => registration_faults::protected,
    "register/fork-leaves-it-to-the-parent" => registrations::forked,
    "register/killed-in-the-middle-of-copies" => registrations::killed,
    "register/locked-memory" => registrations::locked_memory,
    "register/refusals" => registrations::refusals,
    "register/300-cycles-leave-nothing-pinned" => registrations::cycles,
    "register/cache-follows-the-address-space" => registrations::cache,
    "e19-quiet/covers-atomics-and-copies" => copies::quiet_covers,
    "fence/orders-across-nodes" => copies::fence_orders,
    "launch/three-styles-agree" => atomics::styles_agree,
    "launch/wrong-keys-have-no-effect-and-end-the-import" => launches::wrong_keys,
    "launch/foreign-contexts-have-no-effect" => launches::foreign_context,
    "launch/arguments-are-good-for-one-launch" => launches::stale_arguments,
    "launch/i14-interleaved-at-every-step" => launches::interleaved,
    "launch/the-last-access-is-a-load" => launches::by_load,
    "launch/a-flood-leaves-other-processes-served" => launches::flood,
    "launch/80-threads-at-once" => launches::threads,
    "launch/killed-processes-leave-no-context-taken" => launches::killed,
    "launch/special-mode-leaves-the-board-clean" => launches::special_is_clean,
    "launch/nonsense-is-refused" => launches::nonsense,
    "sync/locks-exclude" => syncs::locks,
    "item27-sync/a-lock-is-a-fence-for-what-came-before" => syncs::lock_is_a_fence,
    "sync/try-and-wait-for-a-lock" => syncs::try_lock,
    "sync/barriers-hold" => syncs::barriers,
    "sync/an-impatient-participant-may-call-again" => syncs::barrier_timeout,
    "counters/one-event-at-access-n" => counters::alarm,
    "counters/reads-and-writes-apart" => counters::kinds_apart,
    "counters/0-never-fires" => counters::zero_never,
    "counters/foreign-pages-are-refused" => counters::foreign,
    "counters/all-of-them" => counters::all_of_them,
    "queue/one-store-is-one-element" => queues::one_store,
    "i11-queue/layout-in-memory" => queues::layout,
    "i9-queue/elements-of-one-sender-in-order" => queues::one_sender,
    "i9-queue/many-senders-each-in-order" => queues::many_senders,
    "i8-queue/a-pointer-implies-the-message" => queues::put_notify,
    "i10-queue/overflow-loses-nothing" => queues::overflow,
    "queue/element-16381-overflows-not-one-earlier-or-later" => queues::overflow_point,
    "queue/limit-event-comes-before-senders-are-held" => queues::limit_event,
    "queue/used-up-quota-holds-senders-without-loss" => queues::held,
    "e12-queue/others-continue-while-one-is-stopped" => queues::others_continue,
    "e20-queue/quiet-covers-elements" => queues::quiet_covers,
    "queue/wait-loses-no-wake-up" => queue_consumers::wait_wakes,
    "queue/several-threads-wait" => queue_consumers::wait_threads,
    "queue/wait-times-out" => queue_consumers::wait_times_out,
    "queue/poll-wakes" => queue_consumers::poll_wakes,
    "interrupt/wakes-a-sleeper-itself" => interrupts::way_to_a_sleeper,
    "interrupt/leaves-more-events-than-it-handles-to-its-thread" => interrupts::more_than_one_interrupt_handles,
    "i9-queue/one-by-one-in-batches-and-in-the-kernel" => queue_consumers::ways_agree,
    "i10-queue/threads-take-every-element-once" => queue_consumers::threads,
    "i10-queue/consumers-killed-at-random" => queue_consumers::killed_at_random,
    "e13-queue/killed-while-busy" => queue_consumers::killed_while_busy,
    "e13-queue/held-too-long-is-evicted" => queue_consumers::evicted,
    "e14-queue/stores-beside-the-base-are-refused" => queue_faults::only_the_base,
    "e14-queue/no-mapping-but-for-enqueue" => queue_faults::mappings,
    "queue/rights-secret-and-nodes" => queue_faults::who_may,
    "queue/other-user-ids" => queue_faults::other_users,
    "i11-queue/corrupt-header-harms-its-owner-alone" => queue_faults::corrupt_header,
    "i11-queue/corrupt-header-while-senders-are-held" => queue_faults::corrupt_while_held,
    "queue/next-to-itself-or-nowhere" => queue_faults::corrupt_next,
    "queue/destroyed-with-elements-in-flight" => |context| queue_faults::ends(context, false),
    "queue/owner-killed-with-elements-in-flight" => |context| queue_faults::ends(context, true),
    "queue/nonsense-is-refused" => queue_faults::nonsense,
    "queue/hold-slots-used-up-and-free-again" => queue_faults::hold_slots,
    "queue/closing-imports-of-a-full-queue-delays-no-others" => queue_faults::closing_delays_no_others,
    "queue/scribbled-state-harms-that-queue-alone" => queue_faults::scribbled_state,
    "queue/locked-memory" => queue_faults::locked_memory,
    "queue/300-cycles-leak-nothing" => queue_faults::cycles,
    "replica/stores-of-every-node-reach-every-copy" => |context| replicas::reaches_all(context, Counters),
    "replica/segments-of-several-pages" => replicas::pages,
    "i4-e22b-replica/a-load-finds-the-own-store" => replicas::own_store,
    "i4-i5-replica/no-older-store-comes-back" => |context| replicas::nothing_comes_back(context, Counters),
    "e18-replica/mixed-sizes-converge" => replicas::mixed_sizes,
    "e20-replica/atomics-of-all-nodes-are-exact" => |context| replicas::atomics(context, Counters),
    "i6-i7-replica/quiet-covers-every-copy" => |context| replicas::message_passing(context, Counters),
    "e22b-replica/one-pointer-with-both-trapped" => replicas::one_pointer,
    "sync/locks-in-replicated-segments" => replicas::locks,
    "idle/a-late-barrier-is-slept-through" => idle::barriers,
    "idle/a-lock-that-is-held-for-long-is-slept-through" => idle::locks,
    "idle/both-ends-of-a-broadcast-sleep" => idle::broadcasts,
    "replica/copied-when-read-much" => replicas::copied_when_used,
    "replica-invalidate/stores-of-every-node-reach-every-copy" => |context| replicas::reaches_all(context, Invalidate),
    "i4-i5-replica-invalidate/no-older-store-comes-back" => |context| replicas::nothing_comes_back(context, Invalidate),
    "e20-replica-invalidate/atomics-of-all-nodes-are-exact" => |context| replicas::atomics(context, Invalidate),
    "i6-i7-replica-invalidate/quiet-covers-every-copy" => |context| replicas::message_passing(context, Invalidate),
    "replica/home-moves-while-all-store" => replica_homes::moves,
    "replica/joins-follow-the-home" => replica_homes::joins_follow,
    "replica/a-home-that-cannot-move" => replica_homes::refusals,
    "replica/an-import-of-the-home-reaches-every-copy" => replicas::plain_import,
    "i4-replica/threads-of-one-process" => replicas::threads,
    "e20-replica/joining-while-others-store-misses-nothing" => replica_members::join_while_others_store,
    "replica/leave-and-join-again" => replica_members::leave_and_join_again,
    "replica/home-killed-and-adopted-by-a-survivor" => |context| replica_members::home_goes(context, true),
    "replica/home-leaves-and-a-survivor-adopts" => |context| replica_members::home_goes(context, false),
    "replica/adopting-under-a-name-that-is-taken" => replica_members::adopted_name_taken,
    "replica/copies-killed-while-others-store" => replica_members::copy_killed,
    "replica/owner-without-counters-converges" => replica_members::owner_mode,
    "replica/naive-members-of-all-nodes" => replica_members::naive_members,
    "replica/50-cycles-leak-nothing" => replica_members::cycles,
    "replica/copies-are-read-only" => replica_faults::read_only,
    "replica/mappings-beyond-it-are-refused" => replica_faults::mappings,
    "replica/joins-that-cannot-be" => replica_faults::bad_joins,
    "replica/rights-secret-and-nodes" => replica_faults::who_may,
    "replica/other-user-ids" => replica_faults::other_users,
    "replica/a-second-home-is-refused" => replica_faults::second_home,
    "replica/words-beyond-the-end" => replica_faults::bounds,
    "replica/nonsense-is-refused" => replica_faults::nonsense,
    "replica/locked-memory" => replica_faults::locked_memory,
    "direct/stores-and-loads-are-the-owners-memory" => direct::stores_and_loads,
    "direct/polled-both-ways" => direct::polled,
    "direct/atomics-and-copies-through-the-boards" => direct::through_the_boards,
    "direct/counted-pages-are-trapped" => direct::counted,
    "direct/a-counter-that-stays-armed-ends-with-its-import" => direct::counter_ends_with_its_import,
    "direct/between-direct-and-trapped-nothing-comes-late" => direct::back_and_forth,
    "direct/rights-hold-for-processes" => direct::rights,
    "direct/withdrawn-segments-end-their-imports" => direct::withdrawn,
    "direct/withdrawal-is-an-event" => direct::withdrawal_is_an_event,
    "direct/huge-pages-are-mapped-at-once" => direct::huge_pages,
    "direct/the-memory-device-is-unbound-and-bound" => direct::unbound,
    "direct/memory-is-zeroed-and-used-again" => direct::cycles,
    "direct/replicated-pages-never-are" => direct::replicated,
    "direct/outside-the-group-is-refused" => direct::outside,
};

struct Options {
    participants: Participants,
    seconds: Duration,
    patience: Duration,
    only: Option<String>,
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "--child") {
        return actions::run(&arguments.filter_map(|a| a.into_string().ok()).collect::<Vec<_>>());
    }
    let mut options = Options {
        participants: Participants::Present,
        seconds: Duration::from_secs(2),
        patience: Duration::from_secs(180),
        only: None,
    };
    while let Some(name) = line.next_option()? {
        match name.as_str() {
            "nodes" => options.participants = Participants::Count(line.number("--nodes")?),
            "seconds" => options.seconds = line.seconds("--seconds")?,
            "patience" => options.patience = line.seconds("--patience")?,
            "only" => options.only = Some(line.text()?),
            "list" => {
                PLAN.iter().for_each(|test| println!("{}", test.name));
                return Ok(());
            }
            _ => return Err(cli::unknown(&name)),
        }
    }
    line.only([])?;
    let chosen = |test: &&Test| options.only.as_ref().is_none_or(|part| test.name.contains(part.as_str()));
    let plan: Vec<&Test> = PLAN.iter().filter(chosen).collect();
    cli::must(!plan.is_empty(), Failure::Usage, || {
        "--only leaves no test; `tg-selftest --list` prints their names".into()
    })?;
    println!("KTAP version 1\n1..{}", plan.len());
    context::explain_sigbus();
    let passed = run_plan(&plan, &options).inspect_err(|failure| println!("Bail out! {failure}"))?;
    if passed { Ok(()) } else { Err(Failure::Code(1)) }
}

fn run_plan(plan: &[&Test], options: &Options) -> Outcome<bool> {
    let node = Node::open()?;
    let peers = Peers::connect(&node, "selftest-control", options.participants, options.patience)?;
    println!("# node {} of {:?}, user id {}", peers.me(), peers.all, telegraphos_guest_tests::user::uid());
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (index, test) in plan.iter().enumerate() {
        let number = index + 1;
        let mut context = Context::new(&peers, index as u64, options.seconds, options.patience);
        let begun = std::time::Instant::now();
        context.begin()?;
        let verdict = (test.run)(&mut context);
        for note in context.notes() {
            println!("# {note}");
        }
        match verdict {
            Ok(()) => {
                passed += 1;
                println!("ok {number} {} # time={:.1?}", test.name, begun.elapsed());
            }
            Err(Stop::Skip(why)) => {
                skipped += 1;
                println!("ok {number} {} # SKIP {why}", test.name);
            }
            Err(Stop::Fail(why)) => {
                failed += 1;
                why.lines().for_each(|line| println!("# {line}"));
                println!("not ok {number} {}", test.name);
            }
            Err(Stop::Bail(why)) => return Err(why),
        }
        context.end()?;
    }
    println!("# Totals: pass:{passed} fail:{failed} skip:{skipped}");
    Ok(failed == 0)
}
