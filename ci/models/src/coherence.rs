// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: what every interleaving gives, and what the papers' weaker modes and deliberate bugs give (SPEC I1
//! to I7).
//!
//! Sizes are given as nodes, words, and stores by each node, the home included; "to each" means by each node to each
//! word. Reduced models omit indistinguishable interleavings (`copies/reduce.rs`, `copies/symmetry.rs`); their outcomes
//! are compared with those of the models that explore every step, where those are small enough.
//!
//! | Nodes, words, stores each | Stores in all | Explored | States | When |
//! |---|---|---|---|---|
//! | 3, 1, 1 | 3 | every step | 14 078 | always |
//! | 2, 1, 2 and 2, 2, 1 to each | 4 | every step | 10 857, 10 860 | always |
//! | 3, 1, 2, the home none | 4 | every step | 442 550 | always |
//! | 2, 1, 3 | 6 | every step | 1.8 million | `TELEGRAPHOS_SCALE=full` |
//! | 4, 1, 1 | 4 | every step | 11.3 million | `TELEGRAPHOS_SCALE=full` |
//! | 3, 1, 3 | 9 | reduced | 3.2 million | always |
//! | 3, any of 2, 2 | 6 | reduced, 40 choices of words | 0.6 million | always |
//! | 3, 2 in turn, 3 | 9 | reduced | 1.5 million | always |
//! | 4, any of 2, 1 | 4 | reduced, 8 choices of words | 8655 | always |
//! | 4, 2, 1 to each | 8 | reduced | 2.5 million | always |
//! | 4, 2 in turn, 2 | 8 | reduced | 1.8 million | `TELEGRAPHOS_SCALE=full` |
//! | 3, 2, 2 to each, and larger | 12 and more | random walks | | 4000 walks, or a million |
//!
//! Three more stores by three nodes are about a hundred times the states (364, 45 810 and 6.4 million for one, two and
//! three each by the first reduction), so that twelve are infeasible. The number of states of a symmetric model varies
//! slightly between runs, because the representative that is explored first is random.

use crate::copies::{
    CopiesModel, END, Explored, I1, I2, I3, I4, I5, I6, I7, Names, Op, Outcome, Setup, Steps, Until, Walks, Word,
    explore, rename,
};
use std::collections::BTreeSet;
use std::time::Instant;
use telegraphos_device_core::Bug;
use telegraphos_testkit::{Scale, rounds};
use telegraphos_wire::{NodeId, admin};

const X: Word = Word { page: 0, index: 0 };
/// Another word of the same page; a word of another page.
const X1: Word = Word { page: 0, index: 1 };
const Y: Word = Word { page: 1, index: 0 };

fn setup(homes: Vec<NodeId>, programs: Vec<Vec<Op>>) -> Setup {
    Setup {
        mode: admin::COUNTERS,
        homes,
        programs,
        counters: 4,
        granule: 8,
        bug: None,
        stalled_reads: false,
        weak: Vec::new(),
        steps: Steps::Every,
        symmetric: false,
        unordered: false,
    }
}

/// Each of `nodes` nodes stores `each` unique values to each of `words` words; the home is node 0.
fn stores(nodes: u64, words: u32, each: u64) -> Setup {
    let program = |node: u64| {
        let values = (1..=each).map(move |n| node * 100 + n);
        values.flat_map(|value| {
            (0..words).map(move |index| Op::Store(Word { page: 0, index }, value + 10 * u64::from(index)))
        })
    };
    setup(vec![0], (0..nodes).map(|node| program(node).collect()).collect())
}

/// Each of `nodes` nodes stores `each` values in all, to two words in turn; the home begins with the other one.
fn stores_in_turn(nodes: usize, each: usize) -> Setup {
    let choice = |node: usize| (0..each).map(|n| (n + usize::from(node == 0)) % 2).collect();
    stores_to(&(0..nodes).map(choice).collect::<Vec<_>>())
}

/// Each node stores unique values to the words that are chosen for it.
fn stores_to(choices: &[Vec<usize>]) -> Setup {
    let program = |(node, words): (usize, &Vec<usize>)| {
        let store = |(n, index): (usize, &usize)| {
            Op::Store(Word { page: 0, index: *index as u32 }, (node * 100 + n + 1) as u64)
        };
        words.iter().enumerate().map(store).collect()
    };
    setup(vec![0], choices.iter().enumerate().map(program).collect())
}

/// All programs of `each` stores to any of two words by each of `nodes` nodes, up to renaming of copies.
fn any_stores(nodes: usize, each: usize) -> Vec<Setup> {
    let mut words: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..each {
        words = words.iter().flat_map(|words| [0, 1].map(|word| [&words[..], &[word]].concat())).collect();
    }
    let mut choices: Vec<Vec<Vec<usize>>> = words.iter().map(|of_home| vec![of_home.clone()]).collect();
    for node in 1..nodes {
        let with_next = |choice: &Vec<Vec<usize>>| {
            // Copies in ascending order of what they store.
            let ascending = |words: &&Vec<usize>| node == 1 || choice.last() <= Some(*words);
            let more = words.iter().filter(ascending).map(|words| [&choice[..], std::slice::from_ref(words)].concat());
            more.collect::<Vec<_>>()
        };
        choices = choices.iter().flat_map(with_next).collect();
    }
    choices.iter().map(|choice| stores_to(choice)).collect()
}

/// Stores of 1, 2, 4 and 8 bytes to one word, `each` by each of three nodes.
fn mixed_sizes(each: usize) -> Setup {
    let byte = |index| Word { page: 0, index };
    let programs = [
        [Op::Wide(X, 8, 1), Op::Store(byte(1), 2)],
        [Op::Store(X, 101), Op::Wide(X, 4, 102)],
        [Op::Wide(X, 2, 201), Op::Wide(X, 8, 202)],
    ];
    let programs = programs.map(|program| program[..each].to_vec());
    Setup { granule: 1, counters: 1, ..setup(vec![0], programs.into()) }
}

fn with(setup: Setup, bug: Bug) -> Setup {
    Setup { bug: Some(bug), ..setup }
}

fn reduced(setup: Setup) -> Setup {
    Setup { steps: Steps::Reduced, ..setup }
}

fn symmetric(setup: Setup) -> Setup {
    Setup { symmetric: true, ..setup }
}

/// No interleaving is wrong.
fn holds(name: &str, setup: Setup) -> Explored {
    let explored = explore(name, CopiesModel::new(setup), Until::AnyFault);
    if let Some((property, lines)) = explored.faults.iter().next() {
        panic!("{name}, against {property:?}:\n  {}", lines.join("\n  "));
    }
    assert!(!explored.reads.is_empty(), "{name} has no end");
    explored
}

/// A shortest counterexample to a property.
fn fails(name: &str, setup: Setup, property: &'static str) -> Vec<String> {
    let mut explored = explore(name, CopiesModel::new(setup), Until::Shortest(property));
    let lines = explored.faults.remove(property);
    let lines = lines.unwrap_or_else(|| panic!("{name}: nothing is seen to be against {property:?}"));
    println!("against {property:?}:\n  {}\n", lines.join("\n  "));
    lines
}

// ---- I1 to I5, exhaustively ----

/// Every step separately: programs, posted stores, memory, each packet, acknowledgements.
#[test]
fn i1_i2_i3_i4_i5_every_step_of_small_programs() {
    holds("3 nodes, 1 word, 1 store each", stores(3, 1, 1));
    holds("2 nodes, 1 word, 2 stores each", stores(2, 1, 2));
    holds("2 nodes, 2 words, 1 store to each by each", stores(2, 2, 1));
    holds("the same with one counter", Setup { counters: 1, ..stores(2, 2, 1) });
    let mut copies = stores(3, 1, 2);
    copies.programs[0].clear();
    holds("3 nodes, 1 word, 2 stores by each copy", symmetric(copies));
    if Scale::from_env() == Scale::Full {
        holds("3 nodes, 2 words, 1 store to one of them each", symmetric(stores_in_turn(3, 1)));
        holds("2 nodes, 1 word, 3 stores each", stores(2, 1, 3));
        holds("4 nodes, 1 word, 1 store each", symmetric(stores(4, 1, 1)));
    }
}

/// All distinguishable interleavings: `copies/reduce.rs` explains the reductions, and
/// [`reductions_leave_nothing_out`] shows that they change no outcome.
#[test]
fn i1_i2_i3_i4_i5_every_interleaving_of_larger_programs() {
    let check = |name: &str, setup: Setup| holds(name, symmetric(reduced(setup)));
    check("3 nodes, 1 word, 2 stores each", stores(3, 1, 2));
    check("4 nodes, 1 word, 1 store each", stores(4, 1, 1));
    check("3 nodes, 2 words in turn, 3 stores each", stores_in_turn(3, 3));
    if Scale::from_env() == Scale::Full {
        check("3 nodes, 1 word, 3 stores each", stores(3, 1, 3));
        check("4 nodes, 2 words, 1 store to each by each", stores(4, 2, 1));
        check("4 nodes, 2 words in turn, 2 stores each", stores_in_turn(4, 2));
    }
}

/// The same of programs that choose the word of each store.
#[test]
fn i1_i2_i3_i4_i5_every_interleaving_of_every_choice_of_words() {
    // With one counter, stores to the other word wait.
    for (nodes, each, counters) in [(3, 2, 4), (3, 2, 1), (4, 1, 4)] {
        let begun = Instant::now();
        let all = any_stores(nodes, each);
        let programs = all.len();
        let states: usize =
            all.into_iter().map(|setup| holds("", symmetric(reduced(Setup { counters, ..setup }))).states).sum();
        let about = format!("{nodes} nodes, any of 2 words, {each} each, {counters} counters");
        println!("{about}: {programs} choices, {states} states, {:.1} s", begun.elapsed().as_secs_f32());
    }
}

/// All outcomes that these represent.
fn renamed(outcomes: &BTreeSet<Outcome>, renamings: &[Names]) -> BTreeSet<Outcome> {
    let mut all = outcomes.clone();
    for outcome in outcomes {
        for names in renamings {
            let rename_all = |values: &Vec<u64>| values.iter().map(|value| rename(names, *value)).collect::<Vec<_>>();
            let mut image = outcome.clone();
            for ((reads, had), name) in outcome.iter().zip(names) {
                let had = had.iter().map(|(word, values)| (*word, rename_all(values))).collect();
                image[usize::from(*name)] = (rename_all(reads), had);
            }
            all.insert(image);
        }
    }
    all
}

/// A model has the same outcomes with and without the reductions: all values of all words at all nodes, all that is
/// read, all faults.
fn agree(name: &str, setup: Setup) {
    let run = |about: &str, setup: Setup| {
        let explored = explore(&format!("{name}{about}"), CopiesModel::with_outcomes(setup), Until::End);
        (explored.outcomes, explored.faults.into_keys().collect::<Vec<_>>())
    };
    let (outcomes, faults) = run("", setup.clone());
    assert!(!outcomes.is_empty(), "{name} has no end");
    let (less, less_faults) = run(", reduced", reduced(setup.clone()));
    assert!(less == outcomes, "{name}: {:?}", less.symmetric_difference(&outcomes).next());
    assert_eq!(less_faults, faults, "{name}");
    let names = CopiesModel::new(symmetric(setup.clone())).renamings;
    if !names.is_empty() {
        let (least, least_faults) = run(", reduced, symmetric", symmetric(reduced(setup)));
        let all = renamed(&least, &names);
        assert!(all == outcomes, "{name}: {:?}", all.symmetric_difference(&outcomes).next());
        assert_eq!(least_faults, faults, "{name}");
    }
    println!("  the same {} outcomes, against {faults:?}", outcomes.len());
}

#[test]
fn reductions_leave_nothing_out() {
    agree("3 nodes, 1 word, 1 store each", stores(3, 1, 1));
    agree("2 nodes, 1 word, 2 stores each", stores(2, 1, 2));
    agree("2 nodes, 2 words, 1 store to each by each", stores(2, 2, 1));
    agree("the same with one counter", Setup { counters: 1, ..stores(2, 2, 1) });
    agree("stores of several sizes", mixed_sizes(1));
    let mut copies = stores(3, 1, 2);
    copies.programs[0].clear();
    agree("3 nodes, 1 word, 2 stores by each copy", copies);
    let copies = Setup { counters: 1, ..stores_to(&[vec![], vec![0, 1], vec![1, 0]]) };
    agree("3 nodes, 2 words, 2 stores by each copy, one counter", copies);
    // Wrong models also have the same faults.
    agree("owner mode", Setup { mode: admin::OWNER, ..stores(2, 1, 2) });
    for bug in [Bug::IgnoreCounters, Bug::KeepCounters, Bug::TakenEarly] {
        agree(&format!("{bug:?}"), with(stores(3, 1, 1), bug));
    }
    agree("IgnoreCounters, 2 stores each", with(stores(2, 1, 2), Bug::IgnoreCounters));
    // Loads, and two homes.
    for litmus in [Litmus::MESSAGE_PASSING, Litmus::STORE_BUFFERING, Litmus::WRC] {
        for homes in [[0, 0], [0, 1], [1, 0], [2, 1]] {
            if litmus.name != Litmus::WRC.name || Scale::from_env() == Scale::Full {
                agree(&format!("{}, homes {homes:?}", litmus.name), litmus.setup(3, homes, Y, false));
            }
        }
    }
    agree("WRC, homes [0, 1]", Litmus::WRC.setup(3, [0, 1], Y, false));
    if Scale::from_env() == Scale::Full {
        agree("IRIW, homes [0, 1]", Litmus::IRIW.setup(4, [0, 1], Y, false));
        agree("4 nodes, 1 word, 1 store each", stores(4, 1, 1));
        agree("2 nodes, 1 word, 3 stores each", stores(2, 1, 3));
        agree("3 nodes, 2 words, 1 store to one of them each", stores_in_turn(3, 1));
    }
}

/// Sizes that are too large to explore; a failure names its seed.
#[test]
fn i1_i2_i3_i4_i5_random_walks_of_larger_programs() {
    let sizes = [
        ("3 nodes, 2 words, 2 stores to each by each", stores(3, 2, 2)),
        ("3 nodes, 1 word, 8 stores each", stores(3, 1, 8)),
        ("4 nodes, 4 words, 2 stores to each by each, 2 counters", Setup { counters: 2, ..stores(4, 4, 2) }),
        ("stores of several sizes, 2 each", mixed_sizes(2)),
    ];
    for (name, setup) in sizes {
        let begun = Instant::now();
        let runs = Walks::new(&setup);
        let walk = |seed| runs.walk(seed).unwrap_or_else(|fault| panic!("{name}, seed {seed}: {fault}"));
        let mut walks = rounds(1_000, 250_000);
        let steps: usize = walks.by_ref().map(walk).sum();
        let walks = walks.done();
        println!("{name}: {walks} walks, {steps} steps, {:.1} s", begun.elapsed().as_secs_f32());
    }
    let broken = with(stores(3, 1, 8), Bug::IgnoreCounters);
    let runs = Walks::new(&broken);
    assert!((0..100).any(|seed| runs.walk(seed).is_err()), "walks see nothing");
}

// ---- each invariant can fail ----

#[test]
fn i1_i2_ignored_counters() {
    fails("ignored counters", with(stores(2, 1, 1), Bug::IgnoreCounters), I1);
    fails("ignored counters", with(stores(2, 1, 1), Bug::IgnoreCounters), I2);
}

#[test]
fn i3_counters_that_are_never_free() {
    fails("kept counters", with(stores(2, 1, 1), Bug::KeepCounters), I3);
    // The outcome at rest: no node stores any more.
    let copy = setup(vec![0], vec![vec![], vec![Op::Store(X, 101), Op::Store(X1, 102)]]);
    fails("kept counters, one", with(Setup { counters: 1, ..copy.clone() }, Bug::KeepCounters), END);
    holds("one counter", Setup { counters: 1, ..copy });
}

#[test]
fn i4_e22b_stores_counted_as_taken_before_they_are_in_memory() {
    let reader = setup(vec![0], vec![vec![], vec![Op::Store(X, 2), Op::Load(X)]]);
    fails("taken early", with(reader.clone(), Bug::TakenEarly), I4);
    fails("taken early", Setup { weak: vec![(1, vec![0])], ..with(reader, Bug::TakenEarly) }, I6);
}

#[test]
fn i4_i5_owner_mode_w2_w3_reads_2() {
    let two = setup(vec![0], vec![vec![], vec![Op::Store(X, 2), Op::Store(X, 3), Op::Load(X)]]);
    let owner = Setup { mode: admin::OWNER, weak: vec![(1, vec![2])], ..two.clone() };
    fails("owner", owner.clone(), I4);
    fails("owner", owner.clone(), I5);
    fails("owner", owner, I6);
    holds("counters", Setup { weak: vec![(1, vec![2])], ..two });
}

/// s1, the first design: a node that is not the owner sends its store to the owner and applies it when it returns.
/// After M = 1 it reads M = 0.
fn m_1_then_m() -> Setup {
    let programs = vec![vec![], vec![Op::Store(X, 101), Op::Load(X)], vec![Op::Store(X, 201)]];
    Setup { mode: admin::OWNER, bug: Some(Bug::NoLocalUpdate), ..setup(vec![0], programs) }
}

#[test]
fn i4_owner_without_local_update_reads_0_after_m_1() {
    let alone = Setup { programs: vec![vec![], vec![Op::Store(X, 1), Op::Load(X)]], ..m_1_then_m() };
    fails("owner, no local update", alone.clone(), I4);
    fails("owner, no local update", Setup { weak: vec![(1, vec![0])], ..alone.clone() }, I6);
    holds("the same with counters", Setup { mode: admin::COUNTERS, weak: vec![(1, vec![0])], bug: None, ..alone });
}

/// s1: "One solution (with non-trivial performance cost) is to stall the read operation issued by P until the update
/// M=1 comes back from the owner". Right; what it costs is counted in `replica_variants.rs` of the core.
#[test]
fn i1_i2_i4_i5_reads_stalled_while_a_write_is_pending() {
    let stalled = |setup: Setup| Setup { stalled_reads: true, ..setup };
    let read = |explored: Explored| explored.reads.iter().map(|read| read[1].clone()).collect::<BTreeSet<_>>();
    let alone = Setup { programs: vec![vec![], vec![Op::Store(X, 1), Op::Load(X)]], ..m_1_then_m() };
    assert_eq!(read(holds("M = 1, M, reads stalled", stalled(alone))), BTreeSet::from([vec![1]]));
    let both = read(holds("with another writer", stalled(m_1_then_m())));
    assert_eq!(both, BTreeSet::from([vec![101], vec![201]]));
    let twice = vec![Op::Store(X, 2), Op::Store(X, 3), Op::Load(X), Op::Load(X)];
    let twice = Setup { programs: vec![vec![], twice], ..m_1_then_m() };
    assert_eq!(read(holds("W2, W3, R, R", stalled(twice))), BTreeSet::from([vec![3, 3]]));
    let readers = vec![vec![Op::Load(X), Op::Load(X)], vec![Op::Store(X, 101), Op::Load(X)], vec![Op::Store(X, 201)]];
    holds("and a reader at the owner", stalled(Setup { programs: readers, ..m_1_then_m() }));
}

/// A critical section: which node, and which word it stores to.
type Section = (usize, u32);

/// Sections one after the other: each waits for the flag of the one before, stores, fences, reads both words, and sets
/// its own flag. Between two stores to a word there is always synchronisation.
fn sections(all: &[Section], fence: bool) -> (Setup, Vec<Vec<u64>>) {
    let mut programs = vec![Vec::new(); 3];
    let (mut reads, mut now) = (vec![Vec::new(); 3], [0; 2]);
    for (n, (node, index)) in all.iter().enumerate() {
        let value = (node * 100 + n + 1) as u64;
        let flag = |n: usize| Word { page: 1, index: n as u32 };
        let program = &mut programs[*node];
        if let Some((before, _)) = n.checked_sub(1).map(|n| all[n]) {
            program.push(Op::Await(flag(n - 1), (before * 100 + 50 + n) as u64));
        }
        program.push(Op::Store(Word { page: 0, index: *index }, value));
        program.extend(fence.then_some(Op::Fence));
        now[*index as usize] = value;
        for index in 0..2 {
            program.push(Op::Load(Word { page: 0, index }));
            reads[*node].push(now[index as usize]);
        }
        program.push(Op::Store(flag(n), (node * 100 + 51 + n) as u64));
        program.extend(fence.then_some(Op::Fence));
    }
    (setup(vec![0, 1], programs), reads)
}

/// s1: "Parallel applications that have at least one synchronization operation between two concurrent writes will run
/// on top of Telegraphos I without a problem", that is in mode owner, without counters: every program of two critical
/// sections (at full scale three), by any of three nodes, the owner or copies, to any of two words.
#[test]
fn i4_i6_programs_with_synchronisation_between_writes_need_no_counters() {
    let begun = Instant::now();
    let (mut states, mut programs, mut stale) = (0, 0, 0);
    let count = if Scale::from_env() == Scale::Full { 3 } else { 2 };
    let all = (0..6usize.pow(count)).map(|n| {
        (0..count).map(|place| n / 6usize.pow(place) % 6).map(|m| (m % 3, (m / 3) as u32)).collect::<Vec<_>>()
    });
    // The words are alike: the first section takes the first.
    for section in all.filter(|section| section[0].1 == 0) {
        let (program, expected) = sections(&section, true);
        for mode in [admin::OWNER, admin::COUNTERS] {
            let explored = explore_quietly(Setup { mode, ..program.clone() });
            assert_eq!(explored.reads, BTreeSet::from([expected.clone()]), "{section:?}, mode {mode}");
            states += explored.states;
            programs += 1;
        }
        // Without fences the flags are no synchronisation: homes differ.
        let (program, expected) = sections(&section, false);
        let explored = explore("", CopiesModel::new(Setup { mode: admin::OWNER, ..program }), Until::End);
        stale += usize::from(explored.reads != BTreeSet::from([expected]) || !explored.faults.is_empty());
    }
    println!(
        "{programs} programs, {states} states, {:.1} s; without fences {stale} go wrong",
        begun.elapsed().as_secs_f32()
    );
    assert!(10 * stale > programs, "the check is blind: {stale} of {programs}");
}

#[test]
fn naive_multicast_diverges() {
    fails("naive", Setup { mode: admin::NAIVE, ..stores(2, 1, 1) }, I2);
}

#[test]
fn a_network_out_of_order_breaks_it() {
    fails("unordered", Setup { unordered: true, ..stores(2, 1, 2) }, I2);
}

#[test]
fn i7_fences_that_do_not_wait_for_all_copies() {
    let writer = setup(vec![0], vec![vec![], vec![Op::Store(X, 1), Op::Fence], vec![]]);
    holds("fence", writer.clone());
    for bug in [Bug::QuietIgnoresOutstanding, Bug::AcknowledgeEarly, Bug::AcknowledgeReflected] {
        fails(&format!("{bug:?}"), with(writer.clone(), bug), I7);
    }
}

/// E19: a fence that completes when the writer's own store has returned. The reader has y before x.
#[test]
fn e19_own_reflection_fence_breaks_message_passing() {
    // x and y have homes at the nodes 0 and 1; node 2 writes, or the home of y does.
    for (name, nodes, homes, writer, reader) in
        [("a copy writes", 4, [0, 1], 2, 3), ("the home of y writes", 3, [0, 1], 1, 2)]
    {
        let mut programs = vec![Vec::new(); nodes];
        programs[writer] = vec![Op::Store(X, 1), Op::Fence, Op::Store(Y, 1)];
        programs[reader] = vec![Op::Load(Y), Op::Load(X)];
        let right = Setup { weak: vec![(reader as NodeId, vec![1, 0])], ..setup(homes.into(), programs) };
        holds(&format!("all copies have acknowledged, {name}"), right.clone());
        fails(&format!("own reflection, {name}"), with(right, Bug::AcknowledgeReflected), I6);
    }
}

/// E18: the effect of one counter for all bytes of a word.
#[test]
fn e18_stores_of_all_sizes_to_one_word_converge() {
    holds("stores of 8, 1 and 2 bytes, one counter", mixed_sizes(1));
    holds("2 stores each, of 1 to 8 bytes, one counter", reduced(mixed_sizes(2)));
    let byte = |index| Word { page: 0, index };
    let two = setup(vec![0], vec![vec![Op::Store(byte(1), 1)], vec![Op::Store(byte(0), 101)]]);
    let two = Setup { granule: 1, counters: 1, ..two };
    fails("a counter for each word", with(two.clone(), Bug::CountWords), I2);
    holds("a count for each byte", two);
}

/// The program's own store is in memory when `load` reads; a raw load may precede the store's departure from QEMU.
#[test]
fn i4_a_load_waits_for_the_own_stores_and_a_raw_one_does_not() {
    let after = |load: Op| setup(vec![0], vec![vec![], vec![Op::Store(X, 2), load]]);
    let read = |explored: Explored| explored.reads.iter().map(|read| read[1][0]).collect::<BTreeSet<_>>();
    assert_eq!(read(holds("load", after(Op::Load(X)))), BTreeSet::from([2]));
    assert_eq!(read(holds("raw", after(Op::Raw(X)))), BTreeSet::from([0, 2]), "E22b: why there is a load");
    fails("raw", Setup { weak: vec![(1, vec![0])], ..after(Op::Raw(X)) }, I6);
}

// ---- I6 ----

/// A litmus test: what each node does with two words, and what it would be weak to read.
#[derive(Clone, Copy)]
struct Litmus {
    name: &'static str,
    programs: &'static [&'static [Does]],
    weak: &'static [(NodeId, &'static [u64])],
}

/// A store of 1, a load, or a place for a fence; of the first or the second word.
#[derive(Clone, Copy, PartialEq)]
enum Does {
    W0,
    W1,
    R0,
    R1,
    F,
}
use Does::{F, R0, R1, W0, W1};

impl Litmus {
    const MESSAGE_PASSING: Litmus =
        Litmus { name: "message passing", programs: &[&[W0, F, W1], &[R1, R0]], weak: &[(1, &[1, 0])] };
    const STORE_BUFFERING: Litmus =
        Litmus { name: "store buffering", programs: &[&[W0, F, R1], &[W1, F, R0]], weak: &[(0, &[0]), (1, &[0])] };
    const IRIW: Litmus = Litmus {
        name: "IRIW",
        programs: &[&[W0], &[W1], &[R0, F, R1], &[R1, F, R0]],
        weak: &[(2, &[1, 0]), (3, &[1, 0])],
    };
    const WRC: Litmus =
        Litmus { name: "WRC", programs: &[&[W0], &[R0, F, W1], &[R1, R0]], weak: &[(1, &[1]), (2, &[1, 0])] };

    /// `nodes` nodes, of which those without a program have copies only; the second word is this one.
    fn setup(&self, nodes: usize, homes: [NodeId; 2], second: Word, fence: bool) -> Setup {
        let does = |node: usize, does: Does| match does {
            W0 => Op::Store(X, 1 + node as u64 * 100),
            W1 => Op::Store(second, 1 + node as u64 * 100),
            R0 => Op::Load(X),
            R1 => Op::Load(second),
            F => Op::Fence,
        };
        let program = |node: usize| {
            let all = self.programs.get(node).copied().unwrap_or_default().iter().copied();
            all.filter(|op| fence || *op != F).map(|op| does(node, op)).collect()
        };
        let homes = if second.page == 0 { vec![homes[0]] } else { homes.into() };
        setup(homes, (0..nodes).map(program).collect())
    }

    /// Whether these reads are the weak ones: 1 is for any store.
    fn is_weak(&self, read: &[Vec<u64>]) -> bool {
        let same = |(node, weak): &(NodeId, &[u64])| {
            read[usize::from(*node)].iter().map(|value| u64::from(*value > 0)).eq(weak.iter().copied())
        };
        self.weak.iter().all(same)
    }

    /// The number of placements of the homes with the weak outcome, and of all placements. One node more than programs
    /// has copies, so that a home may be at any of the programs or at none.
    fn seen(&self, different: bool, fence: bool) -> (usize, usize) {
        let begun = Instant::now();
        let nodes = self.programs.len() as NodeId + 1;
        let places = (0..nodes).flat_map(|first| (0..nodes).map(move |second| [first, second]));
        let mut setups: Vec<Setup> = places
            .filter(|[first, second]| (first != second) == different)
            .map(|homes| self.setup(nodes.into(), homes, Y, fence))
            .collect();
        if !different {
            // One home of one page, and of two.
            setups.extend((0..nodes).map(|home| self.setup(nodes.into(), [home; 2], X1, fence)));
        }
        let (mut states, mut seen, all) = (0, 0, setups.len());
        for setup in setups {
            let setup = if fence { setup } else { reduced(setup) };
            let explored = explore_quietly(setup);
            states += explored.states;
            seen += usize::from(explored.reads.iter().any(|read| self.is_weak(read)));
        }
        let cell = format!(
            "{}, {}{}",
            self.name,
            if different { "two homes" } else { "one home" },
            if fence { ", fence" } else { "" }
        );
        let seconds = begun.elapsed().as_secs_f32();
        println!("{cell:32} seen in {seen:2} of {all:2} placements: {states} states, {seconds:.1} s");
        (seen, all)
    }
}

fn explore_quietly(setup: Setup) -> Explored {
    let explored = explore("", CopiesModel::new(setup), Until::AnyFault);
    assert!(explored.faults.is_empty(), "{:?}", explored.faults);
    assert!(!explored.reads.is_empty(), "no end");
    explored
}

/// The litmus table, cell by cell, for all placements of the homes.
#[test]
fn i6_litmus_table() {
    let (message, buffering) = (Litmus::MESSAGE_PASSING, Litmus::STORE_BUFFERING);
    assert_eq!(message.seen(false, false).0, 0);
    assert_ne!(message.seen(true, false).0, 0);
    assert_eq!(message.seen(true, true).0, 0);
    assert_ne!(buffering.seen(false, false).0, 0);
    assert_ne!(buffering.seen(true, false).0, 0);
    assert_eq!(buffering.seen(true, true).0, 0);
    assert_eq!(Litmus::IRIW.seen(false, false).0, 0);
    assert_ne!(Litmus::IRIW.seen(true, false).0, 0);
    assert_eq!(Litmus::WRC.seen(false, false).0, 0);
    assert_ne!(Litmus::WRC.seen(true, false).0, 0);
}

/// The allowed weak outcomes do occur. A fence has no effect for a node that only reads: it waits for the node's own
/// stores.
#[test]
fn i6_weak_outcomes_with_two_homes() {
    for litmus in [Litmus::MESSAGE_PASSING, Litmus::STORE_BUFFERING, Litmus::WRC] {
        weak(&litmus, [0, 1], false);
    }
    weak(&Litmus::WRC, [0, 1], true);
}

fn weak(litmus: &Litmus, homes: [NodeId; 2], fence: bool) {
    let setup = litmus.setup(litmus.programs.len(), homes, Y, fence);
    let explored = explore(litmus.name, CopiesModel::new(setup.clone()), Until::AnyFault);
    let Some(read) = explored.reads.iter().find(|read| litmus.is_weak(read)) else {
        panic!("{} with homes {homes:?}, fence {fence}: not seen", litmus.name);
    };
    let weak = litmus.weak.iter().map(|(node, _)| (*node, read[usize::from(*node)].clone())).collect();
    let about = if fence { ", with fences" } else { "" };
    fails(&format!("{}{about}", litmus.name), Setup { weak, ..setup }, I6);
}
