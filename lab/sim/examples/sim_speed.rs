// SPDX-License-Identifier: MIT OR Apache-2.0
//! How fast the simulator is: `sim_speed [NODES [TOPOLOGY [WORKLOAD [SEED [THREADS]]]]]` prints its report and what it
//! took, for profiles.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

use std::sync::Arc;
use std::time::Instant;
use telegraphos_sim::{Simulation, Workload};
use telegraphos_topology::Topology;

/// Nanoseconds that the threads of this process have had a processor, and KiB of memory that it has used at most.
fn used() -> (u64, u64) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let times = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("schedstat")).unwrap());
    let time = times.map(|times| times.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    (time, peak.trim().trim_end_matches(" kB").parse().unwrap())
}

fn main() {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().map_or(64, |n| n.parse().unwrap());
    let flag = args.next().unwrap_or_else(|| "star".into());
    let text = args.next().map_or(String::new(), |path| std::fs::read_to_string(path).unwrap());
    let seed = args.next().map_or(1, |n| n.parse().unwrap());
    let threads = args.next().map_or(1, |n| n.parse().unwrap());
    let topology = Arc::new(Topology::parse_flag(&flag, nodes).unwrap());
    let simulation = Simulation::new(Workload::parse(&text).unwrap(), topology, &flag, seed).unwrap();
    let mut simulation = simulation.threads(threads).unwrap();
    simulation.set_up().unwrap();
    let (start, set_up) = (Instant::now(), used().0);
    simulation.operate().unwrap();
    let (took, (processor, peak)) = (start.elapsed(), used());
    let report = simulation.report();
    println!("{report}");
    let (packets, hops) = (report.packets.delivered, report.packets.hops);
    println!(
        "{nodes} {flag}: set-up {:.2} s; {packets} packets, {hops} hops in {:.2} s of processor time ({:.2} s): {} packets a second; {} \
         MiB; {} calls",
        set_up as f64 / 1e9,
        (processor - set_up) as f64 / 1e9,
        took.as_secs_f64(),
        packets * 1_000_000_000 / (processor - set_up),
        peak / 1024,
        simulation.calls(),
    );
    report.check().unwrap();
}
