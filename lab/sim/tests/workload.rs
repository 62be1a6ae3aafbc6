// SPDX-License-Identifier: MIT OR Apache-2.0
//! Workload files: what they may say, and what is said about those that are wrong.

use telegraphos_sim::units::{MICROSECOND, NANOSECOND};
use telegraphos_sim::{Pattern, Workload};
use telegraphos_testkit::{Rng, over_seeds};

#[test]
fn an_empty_file_is_a_workload() {
    let workload = Workload::parse("").unwrap();
    workload.check(2).unwrap();
    assert_eq!((workload.operations.store, workload.pattern), (1, Pattern::Uniform { partners: 16 }));
}

#[test]
fn everything_can_be_said() {
    let text = "
        pattern = { kind = 'hot-spot', target = 3, percent = 30, partners = 4 }
        operations = { store = 1, load = 2, atomic = 3, enqueue = 4, multicast = 5, put = 6, get = 7 }
        sizes = { word = 4, copy = 100 }
        load = { outstanding = 2, think = '1us', rate = 1000, burst = 3, operations = 9, duration = '2ms' }
        queue = { words = 64, consume = '10ns', hold = 4 }
        replicas = { group = 3 }
        board = { outstanding = 5, credits = 6 }
        switch = { credits = 7, room = 8, silence = '50us' }
        [costs]
        link-latency = '1ns'
        link-bandwidth = '8Gbit/s'
        trunk-latency = '2ns'
        trunk-bandwidth = '16Gbit/s'
        switch-crossing = '3ns'
        board = '4ns'
        memory = '5ns'
        processor = '6ns'
        interrupt = '7ns'
        retry = '8ns'
        [[fault]]
        at = '1ms'
        kind = 'trunk-down'
        trunk = [0, 1]
    ";
    let workload = Workload::parse(text).unwrap();
    workload.check(8).unwrap();
    assert_eq!(workload.operations.parts(), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(
        (workload.load.think, workload.costs.memory, workload.costs.trunk_bandwidth),
        (MICROSECOND, 5 * NANOSECOND, 500)
    );
}

/// Text, number of nodes, and what the message names.
const WRONG: &[(&str, u32, &[&str])] = &[
    ("patern = 1", 4, &["patern", "expected one of"]),
    ("pattern = { kind = 'star' }", 4, &["star", "all-to-one"]),
    ("pattern = { kind = 'ring', target = 1 }", 4, &["target"]),
    ("load = { think = 5 }", 4, &["think", "5"]),
    ("load = { think = '5 weeks' }", 4, &["5 weeks", "ps, ns, us, ms and s"]),
    ("costs = { link-bandwidth = '10' }", 4, &["\"10\"", "Gbit/s"]),
    ("", 1, &["nodes is 1", "2 to 4096"]),
    ("", 4097, &["nodes is 4097"]),
    ("sizes = { word = 3 }", 4, &["sizes.word is 3", "1, 2, 4 or 8"]),
    ("sizes = { copy = 30000 }", 4, &["sizes.copy is 30000", "24576"]),
    ("load = { outstanding = 65 }\noperations = { atomic = 1 }", 4, &["load.outstanding is 65", "64"]),
    ("load = { burst = 4 }", 4, &["load.burst is 4", "load.rate"]),
    ("queue = { words = 100 }", 4, &["queue.words is 100", "power of two"]),
    ("pattern = { kind = 'transpose' }", 15, &["transpose", "square", "15"]),
    ("pattern = { kind = 'all-to-one', target = 9 }", 4, &["pattern.target is 9", "below 4"]),
    ("pattern = { kind = 'neighbour', width = 3 }", 16, &["pattern.width is 3", "divisor", "16"]),
    ("pattern = { kind = 'uniform', partners = 0 }", 4, &["pattern.partners is 0"]),
    ("fault = [{ at = '1us', kind = 'crash' }]", 4, &["node of fault 1 (crash) is missing"]),
    ("fault = [{ at = '1us', kind = 'crash', node = 4 }]", 4, &["node of fault 1 (crash) is 4", "below 4"]),
    ("fault = [{ at = '1us', kind = 'hang', node = 1 }]", 4, &["lasts of fault 1 (hang) is missing"]),
    ("fault = [{ at = '1us', kind = 'trunk-up', node = 1 }]", 4, &["trunk of fault 1 (trunk-up) is missing"]),
    ("fault = [{ at = '1us', kind = 'burn', node = 1 }]", 4, &["burn", "trunk-down"]),
    ("costs = { processor = '0ns' }", 4, &["costs.processor is 0 ns", "at least 1 ns"]),
    ("switch = { silence = '1us' }", 4, &["switch.silence is 1000 ns", "40 us"]),
];

#[test]
fn what_is_wrong_is_named_with_what_was_expected() {
    for (text, nodes, parts) in WRONG {
        let error = match Workload::parse(text) {
            Err(e) => e.to_string(),
            Ok(workload) => workload.check(*nodes).err().unwrap_or_else(|| panic!("{text:?} is accepted")).to_string(),
        };
        for part in *parts {
            assert!(error.contains(part), "{text:?}: {error}\nsays nothing of {part:?}");
        }
    }
}

/// Workloads as they are shipped, with bytes that are changed, left out, or twice there.
#[test]
fn no_text_makes_it_panic() {
    let shipped = [include_bytes!("../workloads/mixed.toml").as_slice(), include_bytes!("../workloads/faults.toml")];
    let mut accepted = 0;
    let seeds = over_seeds(4_000, 400_000, |seed| -> Result<(), String> {
        let mut random = Rng::new(seed);
        let mut text = shipped[random.below(2usize)].to_vec();
        for _ in 0..=random.below(4u32) {
            let at = random.below(text.len());
            match random.below(3u32) {
                0 => text[at] = b"09azAZ.-'\"[]{}=,\n "[random.below(18usize)],
                1 => drop(text.remove(at)),
                _ => text.insert(at, text[at]),
            }
        }
        let Ok(text) = std::str::from_utf8(&text) else { return Ok(()) };
        if let Ok(workload) = Workload::parse(text) {
            accepted += 1;
            for nodes in [2, 5, 64, 4096] {
                let _ = workload.check(nodes);
            }
        }
        Ok(())
    });
    assert!(seeds.is_none_or(|seeds| accepted > seeds / 20), "only {accepted} of {seeds:?} texts were workloads");
}
