// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program behind `telegraphos bench` and `telegraphos sim`: what the system costs, and what it would do at sizes
//! that no host has.
//!
//! | File | Contents |
//! |---|---|
//! | `bench/` | operations in guests, beside what others offer there |
//! | `notify.rs`, `replicas.rs`, `latency.rs` | the other three measurements of `bench` |
//! | `sim.rs` | clusters in virtual time, and what simulating costs |
//! | `plot.rs`, `plot.py` | charts of all of these |

mod bench;
mod latency;
mod notify;
mod plot;
mod replicas;
mod sim;

use clap::{Args, CommandFactory, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use telegraphos_cluster::cli::{Common, begin};
use telegraphos_cluster::{Result, Settings};

/// Measures and simulates: `telegraphos bench` and `telegraphos sim`.
#[derive(Debug, Parser)]
#[command(name = "telegraphos-lab", bin_name = "telegraphos", version, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measures what operations and an idle board cost, beside what others offer in the same guests
    #[command(after_help = "Examples:\n  telegraphos bench --quick\n  telegraphos bench --json now.json --compare \
                            before.json\n  telegraphos bench --plot copies.svg\n  telegraphos \
                            bench --notify --plot notify.svg\n  telegraphos bench --replicas --plot replicas.svg\n\nNode 0 measures, with node 1 \
                            at the other end: every operation, and every peer (ivshmem, virtio-net, \
                            bare\nvfio-user servers, memcpy), in turn, in each round; first with boards that sleep, then \
                            with boards that poll\nfirst, unless --hib spin-us says how. Compare ratios: times are those \
                            of this machine now. What could not be\nmeasured as it should has marks.\n\nWith --notify, up to \
                            16 processes on nodes 1 and up (of 4 by default) send to node 0, some minutes \
                            long.\n\nWith --replicas, 17 boards without machines and as many clients of this process; a minute or \
                            two. Fails if an update takes more packets on a link than it must.\n\nWith --latency, fabric processes and two nodes of \
                            this process, some seconds long.")]
    Bench(Box<BenchArgs>),
    /// Simulates a cluster of up to 4096 nodes in virtual time: latencies, throughput, fairness
    #[command(
        after_help = "Examples:\n  telegraphos sim\n  telegraphos sim --nodes 1024 --topology torus:32x32 --workload \
                            lab/sim/workloads/mixed.toml --seed 7\n  telegraphos sim --cost --nodes 4096 --plot \
                            sim-cost.svg\n\nThe same arguments give the same report, byte for byte; its cost is printed on \
                            stderr. The exit code is 1\nif an operation ended twice or never, or anything came out of order. \
                            docs/simulator.md has the workload file."
    )]
    Sim(sim::SimArgs),
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// Measures notification queues instead, against flags and queues in software, with 1 to 16 senders
    #[arg(long)]
    notify: bool,
    /// Measures replicated pages instead, with up to 16 copies, without virtual machines
    #[arg(long, conflicts_with = "notify")]
    replicas: bool,
    /// Measures what the fabric and its trunks add to a request instead, against raw sockets, without virtual
    /// machines
    #[arg(long, conflicts_with_all = ["notify", "replicas", "plot"])]
    latency: bool,
    /// Some three minutes at most: fewer rounds, shorter streams, fewer copies
    #[arg(long, conflicts_with_all = ["notify", "replicas", "latency"])]
    quick: bool,
    /// Writes all figures into this file: a list of {measure, unit, median, p10, p90, n, baseline, ratio, marks}
    #[arg(long, value_name = "FILE", conflicts_with_all = ["notify", "replicas", "latency"])]
    json: Option<PathBuf>,
    /// Shows what has changed since an earlier file of --json
    #[arg(long, value_name = "FILE", conflicts_with_all = ["notify", "replicas", "latency"])]
    compare: Option<PathBuf>,
    /// Rounds; in each, everything is measured in turn [default: 40; 8 with --notify or --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    rounds: Option<u32>,
    /// Draws the throughput of block copies, or what notifications or replicated pages cost, into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// The program's `main`.
pub fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|role| role == bench::peers::ROLE) {
        return bench::peers::serve(args);
    }
    telegraphos_cluster::reexecuted().unwrap_or_else(|| begin(std::env::args_os().collect(), execute))
}

/// The command `telegraphos` with those of this program, for manual pages and the completion of shells.
pub fn command_line() -> clap::Command {
    let own = Cli::command();
    own.get_subcommands().fold(telegraphos_cluster::cli::command_line(), |all, command| {
        all.mut_subcommand(command.get_name(), |_| command.clone())
    })
}

fn execute(cli: Cli) -> Result<u8> {
    let context = |settings: Settings| cli.common.context(settings);
    match cli.command {
        Command::Bench(args) => {
            let BenchArgs { notify, replicas, latency, quick, json, compare, rounds, plot, settings } = *args;
            let context = context(settings)?;
            match (notify, latency, replicas) {
                (true, ..) => notify::notify(context, rounds.unwrap_or(8), plot),
                (_, true, _) => latency::latency(context, rounds.unwrap_or(40)),
                (.., true) => replicas::replicas(context, rounds.unwrap_or(40), plot),
                _ => bench::bench(context, &bench::Options { rounds, quick, json, compare, picture: plot }),
            }
        }
        Command::Sim(args) => sim::sim(&args, cli.common.quiet),
    }
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
    command_line().debug_assert();
}
