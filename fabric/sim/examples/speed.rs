// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the simulator is: `speed NODES TOPOLOGY [WORKLOAD [SEED]]` prints packets per second of wall time, for profiles.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use fabric_topology::Topology;
use std::sync::Arc;
use std::time::Instant;
use telegraphos_sim::{Simulation, Workload};

fn main() {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().map_or(64, |n| n.parse().unwrap());
    let flag = args.next().unwrap_or_else(|| "star".into());
    let text = args.next().map_or(String::new(), |path| std::fs::read_to_string(path).unwrap());
    let seed = args.next().map_or(1, |n| n.parse().unwrap());
    let topology = Arc::new(Topology::parse_flag(&flag, nodes).unwrap());
    let mut simulation = Simulation::new(Workload::parse(&text).unwrap(), topology, &flag, seed).unwrap();
    let start = Instant::now();
    simulation.set_up().unwrap();
    let ready = start.elapsed();
    let start = Instant::now();
    simulation.operate().unwrap();
    let took = start.elapsed();
    let report = simulation.report();
    println!("{report}");
    let rate = report.packets.delivered as f64 / took.as_secs_f64();
    println!("set-up {ready:?}; operations {took:?}: {rate:.0} packets a second, {} calls", simulation.calls());
    report.check().unwrap();
}
