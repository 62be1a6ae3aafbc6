// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of runs: they are what the format says, and say what the report says.

use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use telegraphos_sim::{Report, Simulation, Workload};
use telegraphos_topology::Topology;

/// A file in memory, of limited size.
#[derive(Clone, Default)]
struct File(Arc<Mutex<Vec<u8>>>, usize);

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = self.0.lock().unwrap();
        if file.len() + bytes.len() > self.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const MIXED: &str = "
    pattern = { kind = 'uniform', partners = 5 }
    operations = { store = 10, load = 3, atomic = 3, enqueue = 4, put = 1, get = 1 }
    load = { operations = 30, outstanding = 6 }
";

const WITH_MULTICASTS: &str = "
    pattern = { kind = 'uniform', partners = 5 }
    operations = { store = 3, multicast = 3 }
    load = { operations = 30, outstanding = 6 }
";

/// A run with a trace of at most so many bytes.
fn traced(text: &str, flag: &str, limit: usize) -> (Report, io::Result<String>) {
    let topology = Arc::new(Topology::parse_flag(flag, 18).unwrap());
    let mut simulation = Simulation::new(Workload::parse(text).unwrap(), topology, flag, 5).unwrap();
    let file = File(Arc::default(), limit);
    simulation.set_up().unwrap();
    simulation.trace(Box::new(file.clone()));
    simulation.operate().unwrap();
    let ended = simulation.end_trace();
    let bytes = std::mem::take(&mut *file.0.lock().unwrap());
    (simulation.report(), ended.map(|()| String::from_utf8(bytes).unwrap()))
}

fn untraced(text: &str, flag: &str) -> Report {
    let topology = Arc::new(Topology::parse_flag(flag, 18).unwrap());
    Simulation::new(Workload::parse(text).unwrap(), topology, flag, 5).unwrap().run().unwrap()
}

/// Picoseconds of a number with six decimals.
fn time(value: &Value) -> u64 {
    let text = value.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    whole.parse::<u64>().unwrap() * 1_000_000 + format!("{decimals:0<6}").parse::<u64>().unwrap()
}

fn of<'a>(events: &'a [Value], phase: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == phase)
}

#[test]
fn a_trace_has_each_packet_on_each_link_and_each_operation() {
    for (text, flag) in [(MIXED, "star"), (MIXED, "torus:4x4"), (WITH_MULTICASTS, "tree:3x2")] {
        let (report, trace) = traced(text, flag, usize::MAX);
        assert_eq!(report, untraced(text, flag), "{flag}");
        let trace: Value = serde_json::from_str(&trace.unwrap()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap().as_slice();

        // What is on one link is not there at the same time.
        let mut tracks: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
        for event in of(events, "X") {
            let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
            tracks.entry(track).or_default().push((time(&event["ts"]), time(&event["dur"])));
            assert!(event["args"]["bytes"].as_u64().unwrap() >= 72, "{event}");
        }
        assert_eq!(tracks.values().map(Vec::len).sum::<usize>() as u64, report.packets.hops, "{flag}");
        for slices in tracks.values() {
            assert!(slices.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{flag}: {slices:?}");
        }
        let names =
            |process: u64| of(events, "M").filter(|e| e["name"] == "thread_name" && e["pid"] == process).count() as u32;
        assert_eq!((names(1), names(2), names(3)), (18, 18, 18));
        assert_eq!(names(4) as usize, report.trunks.len());

        // Each flow begins, continues, and ends before the next of the same name.
        let mut open: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut begun, mut ended) = (0, 0);
        for event in events.iter().filter(|event| event["cat"] == "flow") {
            let (id, at) = (event["id"].as_str().unwrap(), time(&event["ts"]));
            let before = match event["ph"].as_str().unwrap() {
                "s" => {
                    begun += 1;
                    assert_eq!(open.insert(id, at), None, "{flag}: {event}");
                    continue;
                }
                "t" => open.insert(id, at),
                _ => {
                    ended += 1;
                    open.remove(id)
                }
            };
            assert!(before.is_some_and(|before| before < at), "{flag}: {event} after {before:?}");
        }
        assert!(open.is_empty(), "{flag}: {open:?}");
        assert_eq!(begun, ended);
        if text == MIXED {
            assert_eq!((begun, ended), (report.packets.sent, report.packets.delivered), "{flag}");
        }

        for o in &report.operations {
            let ends = of(events, "e").filter(|event| event["name"] == o.operation);
            assert_eq!(ends.count() as u64, o.completed + o.failed, "{flag}: {}", o.operation);
            let begins = of(events, "b").filter(|event| event["name"] == o.operation);
            assert_eq!(begins.count() as u64, o.completed + o.failed, "{flag}: {}", o.operation);
        }
    }
}

#[test]
fn the_same_run_gives_the_same_trace_byte_for_byte() {
    let trace = || traced(MIXED, "mesh:3x2", usize::MAX).1.unwrap();
    assert_eq!(trace(), trace());
}

#[test]
fn a_trace_that_cannot_be_written_fails_and_changes_no_report() {
    for limit in [0, 10_000] {
        let (report, trace) = traced(MIXED, "star", limit);
        assert_eq!(trace.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(report, untraced(MIXED, "star"));
    }
}
