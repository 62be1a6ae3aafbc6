// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole runs: the same each time, nothing lost or doubled, known answers, fairness, and what faults do.

use std::sync::Arc;
use telegraphos_sim::units::{NANOSECOND, Time};
use telegraphos_sim::{Bugs, Report, Simulation, SimulationError, Workload};
use telegraphos_testkit::seeds;
use telegraphos_topology::Topology;

fn simulation(text: &str, nodes: u32, flag: &str, seed: u64, bugs: Bugs) -> Simulation {
    let workload = Workload::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let topology = Arc::new(Topology::parse_flag(flag, nodes).unwrap());
    Simulation::with_bugs(workload, topology, flag, seed, bugs).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs it, and looks at everything when it is at rest.
fn audited(text: &str, nodes: u32, flag: &str, seed: u64, bugs: Bugs) -> Result<Report, String> {
    let mut simulation = simulation(text, nodes, flag, seed, bugs);
    let run = |simulation: &mut Simulation| -> Result<(), SimulationError> {
        simulation.set_up()?;
        simulation.operate()
    };
    run(&mut simulation).map_err(|e| e.to_string())?;
    simulation.audit()?;
    Ok(simulation.report())
}

fn run(text: &str, nodes: u32, flag: &str, seed: u64) -> Report {
    audited(text, nodes, flag, seed, Bugs::default()).unwrap_or_else(|e| panic!("{flag}, seed {seed}: {e}"))
}

const MIXED: &str = "
    pattern = { kind = 'uniform', partners = 5 }
    operations = { store = 10, load = 3, atomic = 3, enqueue = 4, multicast = 3, put = 1, get = 1 }
    sizes = { copy = 9000 }
    queue = { words = 16, consume = '1us' }
    load = { operations = 60, outstanding = 6 }
";

const FLAGS: [&str; 4] = ["star", "tree:3x2", "mesh:3x2", "torus:4x4"];

const FAULTS: &str = "
    pattern = { kind = 'uniform', partners = 4 }
    operations = { store = 6, load = 2, atomic = 2, enqueue = 3, put = 1 }
    load = { duration = '600us', outstanding = 4 }
    switch = { silence = '100us' }
    fault = [
        { at = '100us', kind = 'crash', node = 1 },
        { at = '150us', kind = 'hang', node = 2, lasts = '180us' },
        { at = '250us', kind = 'rejoin', node = 1 },
    ]
";

#[test]
fn the_same_seed_gives_the_same_report_byte_for_byte() {
    for flag in FLAGS {
        for text in [MIXED, FAULTS] {
            let shown = |seed| {
                let report = run(text, 18, flag, seed);
                (report.to_string(), serde_json::to_string(&report).unwrap())
            };
            let first = shown(7);
            assert_eq!(first, shown(7), "{flag}");
            assert_ne!(first, shown(8), "{flag}");
        }
    }
}

#[test]
fn every_operation_ends_once_and_has_its_effect_once() {
    for flag in FLAGS {
        for seed in seeds(4, 200) {
            let report = run(MIXED, 18, flag, seed);
            let issued: u64 = report.operations.iter().map(|o| o.issued).sum();
            assert_eq!((issued, report.operations.len()), (18 * 60, 7), "{flag}, seed {seed}");
        }
    }
}

#[test]
fn queues_overflow_and_lose_nothing() {
    let text = "
        pattern = { kind = 'all-to-one' }
        operations = { enqueue = 1 }
        queue = { words = 8, consume = '3us' }
        load = { operations = 50, outstanding = 8 }
    ";
    let report = run(text, 9, "star", 1);
    assert!(report.overflows > 10, "{report}");
    assert_eq!(report.elements, 8 * 50);
}

/// One store over a chain of switches: everything it passes, there and back.
#[test]
fn a_store_takes_the_sum_of_what_it_passes() {
    let text = "
        pattern = { kind = 'all-to-one', target = 0 }
        operations = { store = 1 }
        load = { operations = 10, outstanding = 1 }
        costs = { link-latency = '300ns', trunk-latency = '700ns', switch-crossing = '90ns', board = '110ns', memory = '60ns',
                  link-bandwidth = '8Gbit/s', trunk-bandwidth = '80Gbit/s' }
    ";
    for (flag, trunks) in [("star", 0), ("mesh:2x1", 1), ("mesh:4x1", 2), ("mesh:10x1", 5)] {
        let report = run(text, 2, flag, 3);
        // A write and its acknowledgement have 72 bytes with the head of the frame, 4 more on a trunk.
        let links: Time = 72 + 300 + 90 + 72 + 300 + 110;
        let trunk = 700 + 90;
        let expected = (2 * (links + trunks * trunk) + 60) * NANOSECOND + 2 * trunks * 7_600;
        let latency = &report.operations[0].latency;
        assert_eq!((latency.min, latency.max), (expected, expected), "{flag}");
        assert_eq!(report.packets.hops, 20 * (2 + trunks), "{flag}");
        assert_eq!(report.packets.per_operation_milli, 2000);
    }
}

#[test]
fn a_load_waits_for_its_value_and_a_copy_for_all_blocks() {
    let of = |operation: &str, more: &str| {
        let text = format!(
            "pattern = {{ kind = 'all-to-one' }}\noperations = {{ {operation} = 1 }}\nload = {{ operations = 5, outstanding = 1 }}\n{more}"
        );
        run(&text, 2, "star", 1).operations[0].latency.clone()
    };
    let (store, load) = (of("store", ""), of("load", ""));
    assert_eq!(store, load);
    // 4096 bytes more on two links.
    let (short, long) = (of("put", "sizes = { copy = 1 }"), of("put", "sizes = { copy = 4097 }"));
    assert_eq!(long.min - short.min, 2 * 4096 * 320);
}

#[test]
fn all_to_one_is_fair_within_a_tenth() {
    let text = "
        pattern = { kind = 'all-to-one', target = 5 }
        operations = { store = 1 }
        load = { operations = 400, outstanding = 24 }
        costs = { link-bandwidth = '1Gbit/s', trunk-bandwidth = '2Gbit/s' }
    ";
    let least_share = |flag, seed, bugs| {
        let report = audited(text, 24, flag, seed, bugs)?;
        let shares = report.classes.iter().find(|c| c.class == "request").and_then(|c| c.fairness.clone()).unwrap();
        assert_eq!(shares.nodes, 23);
        if shares.min * 10 < shares.max * 9 { Err(format!("{flag}, seed {seed}: {shares:?}")) } else { Ok(()) }
    };
    for flag in ["star", "tree:2x2", "mesh:4x2", "torus:3x3"] {
        for seed in seeds(2, 50) {
            least_share(flag, seed, Bugs::default()).unwrap();
        }
    }
    let bugs = Bugs { switch: Some(telegraphos_fabric_core::Bug::LowestFirst), ..Bugs::default() };
    least_share("star", 1, bugs).unwrap_err();
}

#[test]
fn a_run_shows_lost_and_reordered_packets() {
    let board = |bug| Bugs { board: Some(bug), switch: None };
    let switch = |bug| Bugs { board: None, switch: Some(bug) };
    let text = "
        pattern = { kind = 'all-to-one' }
        operations = { store = 1 }
        load = { operations = 200, outstanding = 48 }
        costs = { link-bandwidth = '1Gbit/s', memory = '20us' }
    ";
    audited(text, 12, "star", 1, Bugs::default()).unwrap();
    for bugs in [
        board(telegraphos_device_core::Bug::ServeOutOfOrder),
        switch(telegraphos_fabric_core::Bug::LifoLane),
        switch(telegraphos_fabric_core::Bug::DropWhenBlocked),
    ] {
        let found = audited(text, 12, "star", 1, bugs).err();
        println!("{bugs:?}: {}", found.unwrap_or_else(|| panic!("{bugs:?} is not found")));
    }
}

#[test]
fn i8_nothing_is_lost_or_reordered_across_switches() {
    for flag in ["mesh:4x4", "torus:4x4", "tree:2x3"] {
        for seed in seeds(2, 100) {
            let text = "
                pattern = { kind = 'uniform', partners = 3 }
                operations = { store = 3, enqueue = 1 }
                load = { operations = 200, outstanding = 24 }
                costs = { trunk-bandwidth = '1Gbit/s' }
                switch = { credits = 4, room = 2 }
                board = { credits = 4 }
            ";
            let report = run(text, 32, flag, seed);
            assert!(
                report.classes.iter().any(|c| c.credit_stalls > 0),
                "{flag}, seed {seed}: no packet waited for a credit"
            );
        }
    }
}

#[test]
fn peers_of_a_node_that_crashes_or_hangs_complete_with_errors() {
    for flag in FLAGS {
        for seed in seeds(3, 100) {
            let report = run(FAULTS, 18, flag, seed);
            let sum = |of: fn(&telegraphos_sim::OperationReport) -> u64| report.operations.iter().map(of).sum::<u64>();
            assert_eq!((report.faults, report.disconnected), ([3, 3], 1), "{flag}, seed {seed}");
            assert!(
                sum(|o| o.failed) > 4 && sum(|o| o.aborted) > 0 && sum(|o| o.refused) > 0,
                "{flag}, seed {seed}: {report}"
            );
            assert!(sum(|o| o.completed) > 1000, "{flag}, seed {seed}: {report}");
        }
    }
    // A switch that notices no silence disconnects no node.
    let patient = Bugs { switch: Some(telegraphos_fabric_core::Bug::Patient), ..Bugs::default() };
    assert_eq!(audited(FAULTS, 18, "star", 0, patient).unwrap().disconnected, 0);
}

#[test]
fn nodes_that_come_back_are_used_again() {
    let text = "
        pattern = { kind = 'ring' }
        operations = { store = 1, enqueue = 1, load = 1 }
        load = { duration = '1ms', outstanding = 2 }
        fault = [{ at = '200us', kind = 'crash', node = 2 }, { at = '400us', kind = 'rejoin', node = 2 }]
    ";
    let with = run(text, 4, "star", 1);
    let without = run(text.split("fault =").next().unwrap(), 4, "star", 1);
    let of = |report: &Report, node: u16| report.hottest_pairs.iter().find(|p| p.from == node).unwrap().operations;
    for node in [1, 2] {
        let share = of(&with, node) as f64 / of(&without, node) as f64;
        assert!((0.6..0.95).contains(&share), "node {node} did {share} of what it does without the crash:\n{with}");
    }
}

#[test]
fn a_broken_trunk_cuts_two_halves_apart_until_it_is_joined() {
    let text = "
        pattern = { kind = 'uniform', partners = 7 }
        operations = { store = 4, load = 1, enqueue = 1 }
        load = { duration = '1ms', outstanding = 4 }
        fault = [
            { at = '200us', kind = 'trunk-down', trunk = [0, 1] },
            { at = '400us', kind = 'trunk-up', trunk = [0, 1] },
        ]
    ";
    for seed in seeds(4, 200) {
        let report = run(text, 8, "mesh:2x1", seed);
        let sum = |of: fn(&telegraphos_sim::OperationReport) -> u64| report.operations.iter().map(of).sum::<u64>();
        assert!(sum(|o| o.failed) > 0 && sum(|o| o.refused) > 0 && report.packets.lost > 0, "seed {seed}: {report}");
        // What crossed afterwards: more than before.
        let crossed: u64 = report.trunks.iter().map(|t| t.packets).sum();
        let before = run(&text.replace("1ms", "200us"), 8, "mesh:2x1", seed);
        let crossed_before: u64 = before.trunks.iter().map(|t| t.packets).sum();
        assert!(crossed > 2 * crossed_before, "seed {seed}: {crossed}, before {crossed_before}");
    }
}

#[test]
fn an_open_loop_offers_its_rate() {
    let text = "
        pattern = { kind = 'permutation' }
        operations = { store = 1 }
        load = { rate = 100_000, burst = 4, duration = '10ms', outstanding = 64 }
    ";
    let report = run(text, 16, "star", 1);
    let offered = 16 * 1000;
    let issued = report.operations[0].issued;
    assert!(issued.abs_diff(offered) < offered / 20, "{issued} of {offered}");
}

#[test]
fn a_thousand_nodes_on_a_torus() {
    let text = "
        pattern = { kind = 'uniform', partners = 2 }
        operations = { store = 5, load = 1 }
        load = { operations = 4 }
    ";
    let report = run(text, 1024, "torus:32x32", 1);
    assert_eq!(report.operations.iter().map(|o| o.completed).sum::<u64>(), 4096);
    // Half of the longest way on average, in both directions: 16 trunks, and the two links.
    let hops = report.packets.hops as f64 / report.packets.delivered as f64;
    assert!((16.0..20.0).contains(&hops), "{hops}");
}

#[test]
fn the_examples_are_workloads() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let mut workload = Workload::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        workload.load.operations = workload.load.operations.min(20);
        workload.load.duration = workload.load.duration.map(|duration| duration.min(1_500_000_000));
        let topology = Arc::new(Topology::parse_flag("torus:2x2", 16).unwrap());
        let report = Simulation::new(workload, topology, "torus:2x2", 1).unwrap().run().unwrap();
        report.check().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        count += 1;
    }
    assert!(count >= 6, "{count} examples");
}
