// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos sim`: a cluster in virtual time (`docs/simulator.md`), and what simulating costs.

mod cost;

use clap::Args;
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use telegraphos_cluster::cli::{print, usage};
use telegraphos_cluster::{Error, Result};
use telegraphos_sim::units::parse_time;
use telegraphos_sim::{Report, Simulation, Workload};
use telegraphos_topology::Topology;

#[derive(Debug, Args)]
pub(super) struct SimArgs {
    /// Nodes, 2 to 4096
    #[arg(long, default_value_t = 64)]
    nodes: u32,
    /// Shape of the fabric: star, tree:ARITYxDEPTH, mesh:WxH or torus:WxH
    #[arg(long, default_value = "star", value_name = "SHAPE")]
    topology: String,
    /// TOML file of operations, costs and faults [default: stores to 16 partners each]
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Everything that is drawn at random follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Operations are issued for so long, as in 5ms; the workload's `duration` otherwise
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<u64>,
    /// Writes the packets of all links and all operations into this file, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Threads that run parts of the cluster at the same time, if it has several switches; the report is the same for
    /// any number
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Prints the report as JSON
    #[arg(long)]
    json: bool,
    /// Measures what simulating costs instead, from 16 nodes up to --nodes
    #[arg(long, conflicts_with_all = ["json", "workload", "topology", "duration", "threads", "measure", "trace"])]
    cost: bool,
    /// With --cost: draws it into this SVG file
    #[arg(long, value_name = "FILE", requires = "cost")]
    plot: Option<PathBuf>,
    /// Prints what this run has cost instead of its report
    #[arg(long, hide = true)]
    measure: bool,
}

pub(super) fn sim(args: &SimArgs, quiet: bool) -> Result<u8> {
    if args.cost {
        return cost::cost(args.nodes, args.seed, args.plot.as_deref());
    }
    let mut workload = match &args.workload {
        Some(path) => read(path)?,
        None => Workload::parse("").map_err(usage)?,
    };
    workload.load.duration = args.duration.or(workload.load.duration);
    let (report, spent) = run(workload, args).map_err(|e| match (e, &args.workload) {
        (Error::Usage(text), Some(path)) => Error::Usage(format!("{}: {text}", path.display())),
        (e, _) => e,
    })?;
    if !quiet && !args.measure {
        eprintln!("{}", spent.show(&report));
    }
    let text = match (args.measure, args.json) {
        (true, _) => serde_json::to_string(&cost::Cost::of(&report, &spent)?).map_err(usage)? + "\n",
        (false, true) => serde_json::to_string_pretty(&report).map_err(usage)? + "\n",
        (false, false) => report.to_string(),
    };
    print(&text)?;
    match report.check() {
        Ok(()) => Ok(0),
        Err(e) => {
            eprintln!("telegraphos: {e}");
            Ok(1)
        }
    }
}

fn read(path: &Path) -> Result<Workload> {
    let text = std::fs::read_to_string(path).map_err(Error::io("cannot read the workload", path))?;
    Workload::parse(&text).map_err(|e| Error::Usage(format!("{}: {e}", path.display())))
}

/// Time that a run has taken: of the processor, and for the operations of the world. Reports must not depend on it.
#[derive(Clone, Copy, Debug)]
struct Spent {
    set_up: Duration,
    operations: Duration,
    processor: Duration,
}

impl Spent {
    fn show(&self, report: &Report) -> String {
        let (packets, hops) = (report.packets.delivered, report.packets.hops);
        let each = |count: u64, time: Duration| (count as f64 / time.as_secs_f64().max(1e-9)).round();
        format!(
            "set up in {:.2} s; {packets} packets ({hops} hops) in {:.2} s, of the processor {:.2} s: {} packets a second, {} of \
             processor time",
            self.set_up.as_secs_f64(),
            self.operations.as_secs_f64(),
            self.processor.as_secs_f64(),
            each(packets, self.operations),
            each(packets, self.processor),
        )
    }
}

fn run(workload: Workload, args: &SimArgs) -> Result<(Report, Spent)> {
    let flag = &args.topology;
    let topology = Topology::parse_flag(flag, args.nodes).map_err(usage)?;
    let before = processor_time();
    let simulation = Simulation::new(workload, Arc::new(topology), flag, args.seed).map_err(usage)?;
    let mut simulation = simulation.threads(args.threads.into()).map_err(usage)?;
    // Before the set-up, which may take minutes.
    let trace = args.trace.as_deref();
    let file = trace.map(|path| File::create(path).map_err(Error::io("cannot write the trace", path))).transpose()?;
    simulation.set_up().map_err(usage)?;
    let set_up = processor_time() - before;
    if let Some(file) = file {
        simulation.trace(Box::new(BufWriter::new(file)));
    }
    let (start, before) = (Instant::now(), processor_time());
    let operated = simulation.operate();
    if let Some(path) = trace {
        simulation.end_trace().map_err(Error::io("cannot write the trace", path))?;
    }
    operated.map_err(usage)?;
    let spent = Spent { set_up, operations: start.elapsed(), processor: processor_time() - before };
    Ok((simulation.report(), spent))
}

/// What this process has used of processors.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::ffi::OsStr;

    #[derive(Debug, Parser)]
    struct Parsed {
        #[command(flatten)]
        sim: SimArgs,
    }

    #[test]
    fn the_report_is_the_same_for_any_number_of_threads() {
        let report = |threads: &str| {
            let args = ["sim", "--nodes", "9", "--topology", "torus:3x3", &format!("--threads={threads}")];
            let args = Parsed::try_parse_from(args).map_err(|e| e.to_string())?;
            let mut workload = Workload::parse("").unwrap();
            workload.load.operations = 20;
            super::run(workload, &args.sim).map(|(report, _)| report).map_err(|e| e.to_string())
        };
        assert_eq!(report("3").unwrap(), report("1").unwrap());
        for none in ["0", "257", "-1", "two"] {
            assert!(report(none).unwrap_err().contains("--threads"), "{none}");
        }
    }

    #[test]
    fn a_trace_is_written_or_its_file_is_named() {
        let run = |path: &Path| {
            let mut workload = Workload::parse("").unwrap();
            workload.load.operations = 2;
            let args = ["sim", "--nodes", "4", "--trace"].map(OsStr::new);
            let args = Parsed::try_parse_from(args.into_iter().chain([path.as_os_str()])).unwrap();
            super::run(workload, &args.sim).map_err(|e| e.to_string())
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        run(&path).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(trace["traceEvents"].as_array().unwrap().len() > 16);
        for path in [folder.path().join("none/run.json"), folder.path().to_owned(), "/dev/full".into()] {
            let text = run(&path).unwrap_err();
            assert!(text.contains("cannot write the trace") && text.contains(&*path.to_string_lossy()), "{text}");
        }
    }
}
