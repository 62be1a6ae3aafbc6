// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's answers as text.

use super::super::top::table::{Column, Table};
use super::super::top::text::{bytes, duration, ranges};
use std::fmt::Write;
use telegraphos_fabric::control::snapshot::{FaultsView, Snapshot, Status, TopologyView, class_name};
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
    let mut columns = vec![Column::left("LINK"), Column::left("CLASS")];
    let numbers = [
        "FROM PKT", "BYTES", "WAITING", "MAX", "STALLS", "DROPPED", "TO PKT", "BYTES", "WAITING", "MAX", "STALLS",
        "DROPPED",
    ];
    columns.extend(numbers.map(Column::right));
    let mut table = Table::new(columns);
    let links = snapshot.ports.iter().map(|p| (Target::Node(p.node).to_string(), &p.classes));
    let trunks = snapshot.trunks.iter().map(|t| (format!("trunk:{} at switch {}", t.name, t.switch), &t.classes));
    for (name, classes) in links.chain(trunks) {
        for (class, flows) in classes.iter().filter(|(_, f)| **f != Default::default()) {
            let mut row = vec![name.clone(), class_name(class).to_owned()];
            for f in [flows.received, flows.sent] {
                let fields = [f.packets, f.bytes, f.depth, f.depth_max, f.stalls, f.dropped];
                row.extend(fields.map(|n| n.to_string()));
            }
            table.row(row);
        }
    }
    let t = snapshot.totals;
    let mut out = format!(
        "{} joined, {} refused, {} thrown out, {} requests to absent nodes answered\n\n",
        t.joined, t.refused, t.violations, t.answered
    );
    out += &table.text();
    if !snapshot.trunks.is_empty() {
        let mut table = Table::new(vec![
            Column::left("TRUNK"),
            Column::left("VIA"),
            Column::left("STATE"),
            Column::right("RTT"),
            Column::right("RESENT"),
            Column::right("RESETS"),
        ]);
        for t in &snapshot.trunks {
            table.row(vec![
                format!("{} at switch {}", t.name, t.switch),
                t.transport.clone(),
                if t.up { "up" } else { "DOWN" }.into(),
                t.rtt_us.map_or("-".into(), duration),
                t.retransmissions.to_string(),
                t.resets.to_string(),
            ]);
        }
        out.push('\n');
        out += &table.text();
    }
    if !snapshot.pairs.is_empty() {
        let mut table = Table::new(vec![Column::left("PAIR"), Column::right("PACKETS"), Column::right("BYTES")]);
        for pair in &snapshot.pairs {
            let total = pair.classes.total();
            let name = format!("{} -> {}", pair.source, pair.destination);
            table.row(vec![name, total.packets.to_string(), total.bytes.to_string()]);
        }
        let rest = snapshot.other_pairs.total();
        table.row(vec!["all others".into(), rest.packets.to_string(), rest.bytes.to_string()]);
        out.push('\n');
        out += &table.text();
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
