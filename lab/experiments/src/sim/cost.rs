// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos sim --cost`: time and memory for a simulated packet as the cluster grows. Each size is a process of its
//! own, so that its memory is its own.

use super::Spent;
use crate::plot::{self, Chart, Line};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use telegraphos_cluster::cli::print;
use telegraphos_cluster::{Error, Result};
use telegraphos_sim::Report;

/// Operations of all nodes together, at each size: two packets each.
const OPERATIONS: u32 = 500_000;
/// Sizes: squares, so that they fill a torus.
const SIZES: [u32; 9] = [16, 64, 144, 256, 576, 1024, 1600, 2304, 4096];

const TITLE: &str =
    "topology        nodes  set up s     wall s   packets/s ns/packet CPU  ns/hop CPU  bytes/packet     KiB/node\n";

/// What one run has cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Cost {
    nodes: u32,
    topology: String,
    packets: u64,
    hops: u64,
    /// Seconds; of the processor but for `wall`, which is the same on an idle machine.
    set_up: f64,
    wall: f64,
    processor: f64,
    /// Bytes of memory, at most.
    memory: u64,
}

impl Cost {
    pub(super) fn of(report: &Report, spent: &Spent) -> Result<Cost> {
        Ok(Cost {
            nodes: report.nodes,
            topology: report.topology.clone(),
            packets: report.packets.delivered,
            hops: report.packets.hops,
            set_up: spent.set_up.as_secs_f64(),
            wall: spent.operations.as_secs_f64(),
            processor: spent.processor.as_secs_f64(),
            memory: peak_memory()?,
        })
    }

    fn per_packet(&self, value: f64) -> f64 {
        value / self.packets.max(1) as f64
    }
}

/// Bytes that this process has had in memory, at most.
fn peak_memory() -> Result<u64> {
    let path = Path::new("/proc/self/status");
    let status = std::fs::read_to_string(path).map_err(Error::io("cannot read", path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    Ok(kib.unwrap_or(0) * 1024)
}

pub(super) fn cost(most: u32, seed: u64, picture: Option<&Path>) -> Result<u8> {
    let sizes: Vec<u32> = SIZES.into_iter().filter(|nodes| *nodes <= most).collect();
    if sizes.is_empty() {
        return Err(Error::Usage(format!("nodes is {most}: expected at least {} with --cost", SIZES[0])));
    }
    let mut series = Vec::new();
    print(TITLE)?;
    for name in ["star", "torus"] {
        let mut costs = Vec::new();
        for nodes in &sizes {
            let topology = if name == "torus" { torus(*nodes) } else { name.to_owned() };
            let cost = measure(*nodes, &topology, seed)?;
            let line = format!(
                "{:<14}{nodes:>7}{:>10.2}{:>11.2}{:>12.0}{:>14.0}{:>12.0}{:>14.0}{:>13.0}\n",
                cost.topology,
                cost.set_up,
                cost.wall,
                1.0 / cost.per_packet(cost.wall).max(1e-12),
                cost.per_packet(cost.processor) * 1e9,
                cost.processor / cost.hops.max(1) as f64 * 1e9,
                cost.per_packet(cost.memory as f64),
                cost.memory as f64 / f64::from(*nodes) / 1024.0,
            );
            print(&line)?;
            costs.push(cost);
        }
        series.push((name, costs));
    }
    if let Some(path) = picture {
        print(&plot::write(path, &charts(&series))?)?;
    }
    Ok(0)
}

/// A square of switches with a node each.
fn torus(nodes: u32) -> String {
    let side = nodes.isqrt();
    format!("torus:{side}x{side}")
}

fn measure(nodes: u32, topology: &str, seed: u64) -> Result<Cost> {
    let program = std::env::current_exe().map_err(Error::io("cannot find", Path::new("this program")))?;
    let workload = tempfile::NamedTempFile::new().map_err(Error::io("cannot write", &std::env::temp_dir()))?;
    let text = format!("load = {{ outstanding = 8, operations = {} }}\n", OPERATIONS / nodes);
    std::fs::write(workload.path(), text).map_err(Error::io("cannot write", workload.path()))?;
    let output = Command::new(program)
        .args(["--quiet", "sim", "--measure", "--nodes", &nodes.to_string(), "--topology", topology])
        .args(["--seed", &seed.to_string(), "--workload"])
        .arg(workload.path())
        .output()
        .map_err(|source| Error::Spawn { what: "a simulation".into(), source })?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let tail = format!("\n{}", String::from_utf8_lossy(&output.stderr));
        Error::ended(format!("the simulation of {nodes} nodes"), output.status, "before it printed its cost", tail)
    })
}

fn charts(series: &[(&str, Vec<Cost>)]) -> [Chart<'static>; 5] {
    let lines = |value: fn(&Cost) -> f64| -> Vec<Line> {
        let points = |costs: &[Cost]| -> Vec<_> { costs.iter().map(|c| (f64::from(c.nodes), value(c))).collect() };
        series.iter().map(|(name, costs)| Line::through(name, points(costs).into_iter())).collect()
    };
    let chart = |title: &'static str, y_title: &'static str, value| Chart::new(title, "nodes", y_title, lines(value));
    [
        chart("Processor time for a packet", "ns", |cost| cost.per_packet(cost.processor) * 1e9),
        chart("Processor time for a hop of a packet", "ns", |cost| cost.processor / cost.hops.max(1) as f64 * 1e9),
        chart("Memory, for each of a million packets", "bytes", |cost| cost.per_packet(cost.memory as f64)),
        chart("Memory, for each node", "KiB", |cost| cost.memory as f64 / f64::from(cost.nodes) / 1024.0),
        chart("Processor time of the set-up", "s", |cost| cost.set_up.max(1e-3)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fill_their_torus() {
        for nodes in SIZES {
            assert_eq!(nodes.isqrt().pow(2), nodes);
        }
        assert_eq!(torus(1024), "torus:32x32");
    }

    #[test]
    fn memory_is_measured() {
        assert!(peak_memory().unwrap() > 1 << 20);
    }
}
