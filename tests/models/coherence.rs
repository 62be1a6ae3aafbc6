// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: what every interleaving gives, and what the papers' weaker modes give (SPEC I1 to I6).

use crate::copies::{CopiesModel, Op, Setup, Word, fault};
use hib_core::Bug;
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::time::Instant;
use telegraphos_tests::Scale;
use telegraphos_wire::{NodeId, admin};

const X: Word = Word { page: 0, index: 0 };

fn setup(homes: Vec<NodeId>, programs: Vec<Vec<Op>>) -> Setup {
    Setup { mode: admin::COUNTERS, homes, programs, counters: 4, bug: None, fine: true, unordered: false }
}

/// `each` stores of unique values to each of `words` words by each of `nodes` nodes; the home is node 0.
fn stores(nodes: u64, words: u32, each: u64) -> Setup {
    let program = |node: u64| {
        let values = (1..=each).map(move |n| node * 100 + n);
        values.flat_map(|value| {
            (0..words).map(move |index| Op::Store(Word { page: 0, index }, value + 10 * u64::from(index)))
        })
    };
    setup(vec![0], (0..nodes).map(|node| program(node).collect()).collect())
}

/// Explores all of it; the first fault, with the way to it.
fn explore(name: &str, setup: Setup) -> (Option<Vec<String>>, BTreeSet<Vec<Vec<u64>>>) {
    let begun = Instant::now();
    let checker =
        CopiesModel::new(setup).checker().threads(2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    println!("{name}: {} states, {:.1} s", checker.unique_state_count(), begun.elapsed().as_secs_f32());
    let model = checker.model();
    let outcomes = model.outcomes.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let path = checker.discovery("I1 to I5").map(|path| {
        let mut last = None;
        let steps = path.into_vec().into_iter().flat_map(|(state, action)| {
            last = fault(&model.setup, &state);
            action.map(|action| action.to_string())
        });
        let mut lines: Vec<String> = steps.collect();
        lines.extend(last);
        lines
    });
    (path, outcomes)
}

fn holds(name: &str, setup: Setup) -> BTreeSet<Vec<Vec<u64>>> {
    let (fault, outcomes) = explore(name, setup);
    assert!(fault.is_none(), "{name}:\n{}", fault.unwrap_or_default().join("\n"));
    assert!(!outcomes.is_empty(), "{name} has no end");
    outcomes
}

fn fails(name: &str, setup: Setup) {
    let (fault, _) = explore(name, setup);
    let fault = fault.unwrap_or_else(|| panic!("{name} is not seen to fail"));
    println!("  {}", fault.join("\n  "));
}

#[test]
fn i1_i2_i3_i4_i5_every_interleaving_of_small_programs() {
    holds("3 nodes, 1 word, 1 store each", stores(3, 1, 1));
    holds("2 nodes, 1 word, 2 stores each", stores(2, 1, 2));
    holds("2 nodes, 2 words, 1 store each", stores(2, 2, 1));
    let mut one = stores(2, 2, 1);
    one.counters = 1;
    holds("the same with one counter", one);
    // The writers are copies; each step of memory and each answer at once, so that more stores fit.
    let coarse = |nodes, words, each| Setup { fine: false, ..stores(nodes, words, each) };
    holds("coarse: 2 nodes, 1 word, 3 stores each", coarse(2, 1, 3));
    holds("coarse: 3 nodes, 1 word, 1 store each", coarse(3, 1, 1));
    holds("coarse: 4 nodes, 1 word, 1 store each", coarse(4, 1, 1));
    holds("coarse: 2 nodes, 2 words, 2 stores each", coarse(2, 2, 2));
    if Scale::from_env() == Scale::Full {
        holds("coarse: 3 nodes, 1 word, 2 stores each", coarse(3, 1, 2));
        holds("3 nodes, 2 writers, 1 word, 2 stores each", {
            let mut two = stores(3, 1, 2);
            two.programs[0].clear();
            two
        });
    }
}

#[test]
fn naive_multicast_diverges() {
    fails("naive", Setup { mode: admin::NAIVE, ..stores(2, 1, 1) });
}

#[test]
fn without_counters_w2_w3_reads_2() {
    let two = vec![vec![], vec![Op::Store(X, 2), Op::Store(X, 3)]];
    fails("owner", Setup { mode: admin::OWNER, ..setup(vec![0], two.clone()) });
    holds("counters", setup(vec![0], two));
}

#[test]
fn i5_ignored_counters_are_seen() {
    fails("ignored counters", Setup { bug: Some(Bug::IgnoreCounters), ..stores(2, 1, 2) });
}

#[test]
fn a_network_out_of_order_breaks_it() {
    fails("unordered", Setup { unordered: true, ..stores(2, 1, 2) });
}

/// One's own store is in memory when `load` reads; a raw load may come before the store has left QEMU.
#[test]
fn i4_a_load_waits_for_the_own_stores_and_a_raw_one_does_not() {
    let after = |load: Op| setup(vec![0], vec![vec![], vec![Op::Store(X, 2), load]]);
    let read = |outcomes: BTreeSet<Vec<Vec<u64>>>| outcomes.iter().map(|read| read[1][0]).collect::<BTreeSet<_>>();
    assert_eq!(read(holds("load", after(Op::Load(X)))), BTreeSet::from([2]));
    assert_eq!(read(holds("raw", after(Op::Raw(X)))), BTreeSet::from([0, 2]), "E22b: why there is a load");
}

/// The litmus table, cell by cell: whether the weak outcome is seen.
#[test]
fn i6_litmus_table() {
    let words = |different: bool| (X, if different { Word { page: 1, index: 0 } } else { Word { page: 0, index: 1 } });
    let homes = |different: bool| if different { vec![0, 1] } else { vec![0] };
    // Nodes 1 and 2 run the programs where two do: with homes 0 and 1, one of them is a home.
    let table: [(&str, bool, bool, bool); 6] = [
        ("message passing", false, false, false),
        ("message passing", true, false, true),
        ("message passing", true, true, false),
        ("store buffering", false, false, true),
        ("store buffering", true, false, true),
        ("store buffering", true, true, false),
    ];
    for (name, different, fence, allowed) in table {
        let (x, y) = words(different);
        let fenced = |first: Op, second: Op| if fence { vec![first, Op::Fence, second] } else { vec![first, second] };
        let (programs, weak): (_, fn(&[Vec<u64>]) -> bool) = match name {
            "message passing" => {
                let writer = fenced(Op::Store(x, 1), Op::Store(y, 1));
                (vec![vec![], writer, vec![Op::Load(y), Op::Load(x)]], |read| read[2] == [1, 0])
            }
            _ => {
                let (one, two) = (fenced(Op::Store(x, 1), Op::Load(y)), fenced(Op::Store(y, 1), Op::Load(x)));
                (vec![vec![], one, two], |read| read[1] == [0] && read[2] == [0])
            }
        };
        let title = format!(
            "{name}, {}{}",
            if different { "two homes" } else { "one home" },
            if fence { ", fence" } else { "" }
        );
        let outcomes = holds(&title, setup(homes(different), programs));
        let seen = outcomes.iter().any(|read| weak(read));
        println!("  {}", if seen { "allowed" } else { "forbidden" });
        assert_eq!(seen, allowed, "{title}: {outcomes:?}");
    }
}
