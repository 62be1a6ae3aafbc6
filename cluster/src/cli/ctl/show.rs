// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's answers as text.

use super::super::top::table::Side::{Left, Right};
use super::super::top::table::{Column, Table};
use super::super::top::text::{bytes, duration, ranges};
use std::fmt::Write;
use telegraphos_fabric::control::snapshot::{
    FaultsView, Flows, Snapshot, Status, TopologyView, Traffic, TrunkEnd, class_name,
};
use telegraphos_fabric::control::{Done, Response, Target};

/// An answer as lines for a reader.
pub(super) fn show(response: &Response) -> String {
    match response {
        Response::Status(status) => show_status(status),
        Response::Statistics(snapshot) => show_statistics(snapshot),
        Response::Topology(topology) => show_topology(topology),
        Response::Faults(faults) => show_faults(faults),
        Response::Done(Done { changed, note }) => match note.as_str() {
            "" => format!("done ({changed})\n"),
            note => format!("done ({changed}): {note}\n"),
        },
        Response::Error(e) => format!("{e}\n"),
    }
}

fn show_status(status: &Status) -> String {
    let Status { process, nodes, present, switches, trunks, trunks_up, capture, log, .. } = status;
    let capture = match capture {
        Some(c) => {
            let links = if c.links.is_empty() { "everything".to_owned() } else { c.links.join(", ") };
            format!("{} of {links}: {} records, {} lost", c.file, c.records, c.lost)
        }
        None => "none".into(),
    };
    let which = if present.is_empty() { String::new() } else { format!(": {}", ranges(present)) };
    format!(
        "fabric    {} in process {}, up {}\n\
         listening {}\n\
         nodes     {} of {nodes} present{which}\n\
         switches  {}\n\
         trunks    {trunks_up} of {trunks} up\n\
         memory    {}, {} of processor, {} wake-ups\n\
         capture   {capture}\n\
         log       {log}\n",
        process.version,
        process.pid,
        duration(process.uptime_us),
        process.listen,
        present.len(),
        ranges(switches),
        bytes(process.memory),
        duration(process.cpu_us),
        process.wakeups,
    )
}

fn show_statistics(snapshot: &Snapshot) -> String {
    let links = snapshot.ports.iter().map(|p| (Target::Node(p.node).to_string(), &p.classes));
    let trunks = snapshot.trunks.iter().map(|t| (format!("trunk:{} at switch {}", t.name, t.switch), &t.classes));
    let mut rows: Vec<(String, &str, Flows)> = Vec::new();
    for (name, classes) in links.chain(trunks) {
        let used = classes.iter().filter(|(_, flows)| **flows != Flows::default());
        rows.extend(used.map(|(class, flows)| (name.clone(), class_name(class), *flows)));
    }
    let columns: [Column<(String, &str, Flows)>; 14] = [
        ("LINK", Left, 0, |(name, ..)| name.clone()),
        ("CLASS", Left, 0, |(_, class, _)| (*class).to_owned()),
        ("FROM PKT", Right, 0, |(.., flows)| flows.received.packets.to_string()),
        ("BYTES", Right, 0, |(.., flows)| flows.received.bytes.to_string()),
        ("WAITING", Right, 0, |(.., flows)| flows.received.depth.to_string()),
        ("MAX", Right, 0, |(.., flows)| flows.received.depth_max.to_string()),
        ("STALLS", Right, 0, |(.., flows)| flows.received.stalls.to_string()),
        ("DROPPED", Right, 0, |(.., flows)| flows.received.dropped.to_string()),
        ("TO PKT", Right, 0, |(.., flows)| flows.sent.packets.to_string()),
        ("BYTES", Right, 0, |(.., flows)| flows.sent.bytes.to_string()),
        ("WAITING", Right, 0, |(.., flows)| flows.sent.depth.to_string()),
        ("MAX", Right, 0, |(.., flows)| flows.sent.depth_max.to_string()),
        ("STALLS", Right, 0, |(.., flows)| flows.sent.stalls.to_string()),
        ("DROPPED", Right, 0, |(.., flows)| flows.sent.dropped.to_string()),
    ];
    let t = snapshot.totals;
    let mut out = format!(
        "{} joined, {} refused, {} disconnected, {} requests to absent nodes answered\n\n",
        t.joined, t.refused, t.violations, t.answered
    );
    out += &Table::new(&rows, &columns).text();
    if !snapshot.trunks.is_empty() {
        let columns: [Column<TrunkEnd>; 6] = [
            ("TRUNK", Left, 0, |t| format!("{} at switch {}", t.name, t.switch)),
            ("VIA", Left, 0, |t| t.transport.clone()),
            ("STATE", Left, 0, |t| if t.up { "up" } else { "DOWN" }.into()),
            ("RTT", Right, 0, |t| t.rtt_us.map_or("-".into(), duration)),
            ("RESENT", Right, 0, |t| t.retransmissions.to_string()),
            ("RESETS", Right, 0, |t| t.resets.to_string()),
        ];
        out.push('\n');
        out += &Table::new(&snapshot.trunks, &columns).text();
    }
    if !snapshot.pairs.is_empty() {
        let pairs = snapshot.pairs.iter().map(|p| (format!("{} -> {}", p.source, p.destination), p.classes.total()));
        let rows: Vec<_> = pairs.chain([("all others".to_owned(), snapshot.other_pairs.total())]).collect();
        let columns: [Column<(String, Traffic)>; 3] = [
            ("PAIR", Left, 0, |(name, _)| name.clone()),
            ("PACKETS", Right, 0, |(_, total)| total.packets.to_string()),
            ("BYTES", Right, 0, |(_, total)| total.bytes.to_string()),
        ];
        out.push('\n');
        out += &Table::new(&rows, &columns).text();
    }
    out
}

fn show_topology(topology: &TopologyView) -> String {
    let mut out = format!("topology {}\n", topology.digest);
    for s in &topology.switches {
        let name = if s.name.is_empty() { String::new() } else { format!(" {}", s.name) };
        let here = if s.here { " (here)" } else { "" };
        let nodes = if s.nodes.is_empty() { "no nodes".to_owned() } else { format!("nodes {}", ranges(&s.nodes)) };
        let _ = writeln!(out, "switch {}{name}{here}: {nodes}", s.switch);
    }
    for t in &topology.trunks {
        let _ = writeln!(out, "trunk {}: switches {} and {}", t.name, t.a, t.b);
    }
    out
}

fn show_faults(view: &FaultsView) -> String {
    let mut out = String::new();
    for f in &view.faults {
        let faults = if f.faults.is_none() { "no faults".to_owned() } else { f.faults.to_string() };
        let down = if f.down { "kept down, " } else { "" };
        let _ = writeln!(out, "{}: {down}{faults}", f.on);
    }
    if !view.partition.is_empty() {
        let groups: Vec<String> = view.partition.iter().map(|g| ranges(g)).collect();
        let _ = writeln!(out, "partition: {}", groups.join(" | "));
    }
    if !view.crashed.is_empty() {
        let _ = writeln!(out, "crashed: nodes {}", ranges(&view.crashed));
    }
    if out.is_empty() { "nothing is made to go wrong\n".into() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_fabric::control::snapshot::{FaultView, Flow, Flows, PerClass, Port, Process};

    #[test]
    fn answers_are_shown_for_people() {
        let process = Process {
            version: "0.1.0".into(),
            pid: 7,
            listen: "/run/fabric".into(),
            uptime_us: 3_723_000_000,
            memory: 5 << 20,
            cpu_us: 1_500_000,
            wakeups: 12,
        };
        let status = Status {
            process,
            nodes: 64,
            present: vec![0, 1, 2, 5],
            switches: vec![0, 1],
            trunks: 2,
            trunks_up: 1,
            log: "info".into(),
            ..Status::default()
        };
        assert_eq!(
            show_status(&status),
            "fabric    0.1.0 in process 7, up 1h02m\nlistening /run/fabric\nnodes     4 of 64 present: 0-2, 5\n\
             switches  0, 1\ntrunks    1 of 2 up\nmemory    5.0 MiB, 1.5s of processor, 12 wake-ups\n\
             capture   none\nlog       info\n"
        );
        let view = FaultsView {
            faults: vec![FaultView { on: Target::Trunk("0-1".into()), faults: "loss=2%".parse().unwrap(), down: true }],
            partition: vec![vec![0, 1], vec![2]],
            crashed: vec![4],
        };
        assert_eq!(show_faults(&view), "trunk:0-1: kept down, loss=2%\npartition: 0, 1 | 2\ncrashed: nodes 4\n");
        assert_eq!(show_faults(&FaultsView::default()), "nothing is made to go wrong\n");
        let flow = Flow { packets: 3, bytes: 192, ..Flow::default() };
        let classes = PerClass { request: Flows { received: flow, sent: Flow::default() }, ..PerClass::default() };
        let snapshot = Snapshot { ports: vec![Port { node: 5, classes, ..Port::default() }], ..Snapshot::default() };
        let text = show_statistics(&snapshot);
        assert!(text.contains("node:5") && text.contains("request") && text.contains("192"), "{text}");
    }
}
