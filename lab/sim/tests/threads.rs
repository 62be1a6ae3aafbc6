// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report does not depend on the number of threads, nor on the order in which cells make their calls.

use std::sync::Arc;
use telegraphos_sim::{Bugs, Report, Simulation, Workload};
use telegraphos_testkit::{Rng, seeds};
use telegraphos_topology::Topology;

/// A run in so many threads, which run at the same time whenever they can: the report, and the number of calls.
fn run(text: &str, nodes: u32, flag: &str, seed: u64, threads: usize) -> (Report, u64) {
    let topology = Arc::new(Topology::parse_flag(flag, nodes).unwrap());
    let simulation = Simulation::new(Workload::parse(text).unwrap(), topology, flag, seed).unwrap();
    let mut simulation = simulation.threads(threads).unwrap().eagerly();
    simulation.set_up().unwrap_or_else(|e| panic!("{flag}, seed {seed}, {threads} threads: {e}"));
    simulation.operate().unwrap_or_else(|e| panic!("{flag}, seed {seed}, {threads} threads: {e}"));
    simulation.audit().unwrap_or_else(|e| panic!("{flag}, seed {seed}, {threads} threads: {e}"));
    (simulation.report(), simulation.calls())
}

const OPERATIONS: &str = "{ store = 10, load = 3, atomic = 3, enqueue = 4, multicast = 2, put = 1, get = 1 }";

/// A workload of this seed, with faults or without.
fn workload(rng: &mut Rng, nodes: u64, trunk: [u16; 2], faults: bool) -> String {
    let load = match rng.below(3) {
        0 => format!("operations = {}, outstanding = {}", 5 + rng.below(30), 1 + rng.below(8)),
        1 => format!("duration = '{}us', rate = {}, burst = 3", 100 + rng.below(300), 50_000 + rng.below(200_000)),
        _ => format!("operations = 20, outstanding = 4, think = '{}us'", rng.below(30)),
    };
    let load = if faults { format!("duration = '{}us', outstanding = 4", 300 + rng.below(300)) } else { load };
    let mut text = format!(
        "pattern = {{ kind = 'uniform', partners = 4 }}
        operations = {OPERATIONS}
        sizes = {{ copy = 5000 }}
        queue = {{ words = 16, consume = '1us' }}
        load = {{ {load} }}
        "
    );
    if faults {
        let (node, other, [a, b]) = (rng.below(nodes), rng.below(nodes), trunk);
        let at = 50 + rng.below(100);
        text += &format!(
            "switch = {{ silence = '100us' }}
            fault = [
                {{ at = '{at}us', kind = 'crash', node = {node} }},
                {{ at = '{}us', kind = 'hang', node = {other}, lasts = '180us' }},
                {{ at = '{}us', kind = 'trunk-down', trunk = [{a}, {b}] }},
                {{ at = '{}us', kind = 'trunk-up', trunk = [{a}, {b}] }},
                {{ at = '{}us', kind = 'rejoin', node = {node} }},
            ]
            ",
            at + 20,
            at + 40,
            at + 110,
            at + 150
        );
    }
    text
}

const FLAGS: [(&str, [u16; 2]); 4] =
    [("tree:3x2", [0, 2]), ("mesh:5x1", [2, 3]), ("torus:4x4", [0, 12]), ("torus:5x6", [3, 8])];

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    for seed in seeds(3, 300) {
        for (flag, trunk) in FLAGS {
            for faults in [false, true] {
                let mut rng = Rng::new(seed);
                // Of an odd number a last node may have no page.
                let nodes = 6 + 2 * rng.below(20);
                let text = workload(&mut rng, nodes, trunk, faults);
                let one = run(&text, nodes as u32, flag, seed, 1);
                let shown = (one.0.to_string(), serde_json::to_string(&one.0).unwrap());
                for threads in 2..=4 {
                    let other = run(&text, nodes as u32, flag, seed, threads);
                    let same = (other.0.to_string(), serde_json::to_string(&other.0).unwrap()) == shown;
                    assert!(same, "{flag}, {nodes} nodes, seed {seed}, {threads} threads:\n{}\n{text}", other.0);
                    assert_eq!(one.1, other.1, "calls: {flag}, {nodes} nodes, seed {seed}, {threads} threads");
                }
            }
        }
    }
}

/// Of a mesh of one row each switch is a partition, so each hop crosses from one thread to another.
#[test]
fn every_hop_may_cross_threads() {
    let text = "pattern = { kind = 'uniform', partners = 9 }\nload = { operations = 200, outstanding = 8 }";
    let one = run(text, 10, "mesh:10x1", 3, 1);
    for threads in [2, 5, 10, 64] {
        assert_eq!(run(text, 10, "mesh:10x1", 3, threads), one, "{threads} threads");
    }
}

/// A run in windows, or in the order of time, as a trace needs it.
fn in_order(ordered: bool, text: &str, nodes: u32, flag: &str, seed: u64, bugs: Bugs) -> Report {
    let topology = Arc::new(Topology::parse_flag(flag, nodes).unwrap());
    let workload = Workload::parse(text).unwrap();
    let mut simulation = Simulation::with_bugs(workload, topology, flag, seed, bugs).unwrap();
    simulation.set_up().unwrap_or_else(|e| panic!("{flag}, seed {seed}: {e}"));
    if ordered {
        simulation.trace(Box::new(std::io::sink()));
    }
    simulation.operate().unwrap_or_else(|e| panic!("{flag}, seed {seed}, ordered: {ordered}: {e}"));
    simulation.report()
}

#[test]
fn windows_give_the_same_bytes_as_the_order_of_time() {
    // Around a star nodes are cells of their own, also where they are the leaves of a tree.
    let flags = [("star", [0, 0]), ("tree:2x2", [0, 1])].into_iter().chain(FLAGS);
    for seed in seeds(2, 200) {
        for (flag, trunk) in flags.clone() {
            for faults in [false, true] {
                let mut rng = Rng::new(seed);
                let nodes = 20 + 2 * rng.below(20);
                let mut text = workload(&mut rng, nodes, trunk, faults);
                if flag == "star" {
                    text = text.lines().filter(|line| !line.contains("trunk")).collect::<Vec<_>>().join("\n");
                }
                let run = |ordered| in_order(ordered, &text, nodes as u32, flag, seed, Bugs::default()).to_string();
                assert_eq!(run(false), run(true), "{flag}, {nodes} nodes, seed {seed}\n{text}");
            }
        }
    }
}

/// A board that breaks the protocol is disconnected at any moment, not only at a tick: what it had been sent before,
/// and had not received, is lost, in whatever order the two make their calls.
#[test]
fn a_link_that_is_closed_within_a_window_loses_the_same_frames() {
    // The board gets packets that it has given no credits for, and returns these regardless.
    let bugs = Bugs { switch: Some(telegraphos_fabric_core::Bug::IgnoreReceiverCredit), ..Bugs::default() };
    let text = "
        pattern = { kind = 'all-to-one', target = 2 }
        operations = { store = 3, load = 1, atomic = 1 }
        load = { duration = '100us', outstanding = 8 }
        board = { credits = 32 }
    ";
    let mut disconnected = 0;
    for seed in seeds(3, 200) {
        let run = |ordered| in_order(ordered, text, 24, "star", seed, bugs);
        let (windows, time) = (run(false), run(true));
        assert_eq!(windows.to_string(), time.to_string(), "seed {seed}");
        disconnected += windows.disconnected;
    }
    assert!(disconnected > 0, "no link was closed within a window");
}

#[test]
fn a_fabric_of_one_switch_has_one_thread() {
    let text = "load = { operations = 20 }";
    assert_eq!(run(text, 20, "star", 1, 4), run(text, 20, "star", 1, 1));
}
