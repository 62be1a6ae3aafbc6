// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench`: what operations cost, beside what others offer in the same guests.
//!
//! ```text
//!   alone      what boards and switch take by themselves, in one thread, before anything boots
//!   mod        boots the guests with the peers, once for each way to wait, and has `tg-bench` measure in them
//!   peers      the other devices, and the process that serves them
//!   catalog    every figure that must come of it, and the targets
//!   pictures   all figures, and the copies, as charts
//!   result     a figure, its statistics, the file of --json
//!   table      figures and comparisons as Markdown
//! ```
//!
//! `tg-bench` measures everything in turn, round by round, the peers and what the host measures included; so ratios are
//! of values that are a second apart at most.

mod alone;
mod catalog;
pub(crate) mod peers;
mod pictures;
mod result;
mod table;

use crate::plot::{self, Chart, Line};
use catalog::{Samples, Target, Waiting};
use peers::Peers;
use result::{Measure, spread};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telegraphos_agent::Figure;
use telegraphos_cluster::cli::{Context, measure, print};
use telegraphos_cluster::{Cluster, Error, Net, Processes, ProgressMode, Result, User, prepare, sleep};
use telegraphos_device::direct::TrustGroup;

/// What the command line chooses.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) rounds: Option<u32>,
    pub(super) quick: bool,
    pub(super) json: Option<PathBuf>,
    pub(super) compare: Option<PathBuf>,
    pub(super) picture: Option<PathBuf>,
}

/// What is measured how often.
struct Plan {
    rounds: u32,
    idle: Duration,
    /// Of `tg-bench`.
    arguments: Vec<&'static str>,
}

impl Plan {
    fn of(options: &Options) -> Plan {
        let (rounds, idle, arguments) = match options.quick {
            true => (8, Duration::from_secs(2), vec!["--stream", "2000", "--pings", "10", "--few-copies"]),
            false => (40, Duration::from_secs(5), vec![]),
        };
        Plan { rounds: options.rounds.unwrap_or(rounds), idle, arguments }
    }
}

/// The figure of [`idle`].
const IDLE: &str = "idle";
/// The figure of [`start_of_many`].
const START_OF_MANY: &str = "start_16";

/// How long boards poll where they poll: longer than anything that is waited for.
const SPIN_US: &str = "200";

/// Takes in one line of `tg-bench`; whether it was a result.
fn read(line: &str, samples: &mut Samples) -> bool {
    match Figure::parse(line) {
        Some(Figure::Round { round, ns }) => _ = samples.rounds.insert(round, ns),
        Some(Figure::Mark { op, why }) => samples.marks.entry(op).or_default().push(why),
        _ => return false,
    }
    true
}

pub(super) fn bench(mut context: Context, options: &Options) -> Result<u8> {
    if context.settings.nodes.is_some_and(|nodes| nodes < 2) {
        return Err(Error::Usage("nodes is 1: a store needs another node to go to; expected at least 2".into()));
    }
    // Before anything slow.
    let earlier = options.compare.as_deref().map(result::read).transpose()?;
    options.json.as_deref().map(result::writable).transpose()?;
    let processes = *context.settings.processes.get_or_insert(Processes::One);
    if processes == Processes::One && context.settings.trust.is_empty() {
        context.settings.trust.push(TrustGroup { name: "bench".into(), nodes: vec![0, 1], size_mib: 16 });
    }
    // The program says so where there is none.
    context.settings.net.get_or_insert(Net::Nodes);
    let plan = Plan::of(options);
    let modes = match context.settings.hib.iter().find(|(name, _)| name == "spin-us") {
        None => vec![Waiting::Blocked, Waiting::Spinning],
        Some((_, us)) if us == "0" => vec![Waiting::Blocked],
        Some(_) => vec![Waiting::Spinning],
    };
    // While the machine has nothing else to do.
    let mut more = alone::figures(plan.rounds);
    let (mut samples, mut code, mut manifest) = (BTreeMap::new(), 0, String::new());
    if !options.quick {
        more.push(start_of_many(&context)?);
    }
    for waiting in &modes {
        if modes.len() > 1 {
            let us = if *waiting == Waiting::Spinning { SPIN_US } else { "0" };
            context.settings.hib.retain(|(name, _)| name != "spin-us");
            context.settings.hib.push(("spin-us".into(), us.into()));
        }
        let mut found = Samples { wanted: plan.rounds, ..Samples::default() };
        let ended = match one_boot(&context, &plan, *waiting, *waiting == modes[0], &mut more, &mut found) {
            Ok((ended, versions)) => {
                manifest = versions;
                ended
            }
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            // What was measured until then is a result, with a mark.
            Err(e) => {
                eprintln!("telegraphos: {e}");
                found.marks.entry(String::new()).or_default().push("the guests did not finish".into());
                e.exit_code()
            }
        };
        samples.insert(*waiting, found);
        code = if code == 0 { ended } else { code };
    }
    let (mut list, mut targets) = catalog::figures(&samples, processes);
    list.append(&mut more);
    for waiting in modes {
        targets.insert(waiting.figure(IDLE), Target::AtMost(0.1));
    }
    targets.insert(START_OF_MANY.into(), Target::AtMost(20.0));
    let mut out = table::markdown(&list, &targets);
    if let (Some(picture), Some(samples)) = (&options.picture, samples.values().next()) {
        let chart = Chart::new("Block copies", "bytes", "MB/s", copies(samples));
        let dots = [pictures::targets(&list, &targets), pictures::times(&list)];
        out += &format!("\n{}", plot::write_all(picture, &dots, &[chart])?);
    }
    if let Some(earlier) = earlier {
        out += &format!("\n{}", table::comparison(&earlier, &list));
    }
    out += &format!("\n{manifest}");
    if let Some(path) = &options.json {
        result::write(path, &list)?;
    }
    print(&out)?;
    Ok(code)
}

/// Boots the guests with all peers and measures; the exit code of `tg-bench`, and the versions of all. `samples` takes
/// the values, as they come.
/// `more` takes the figures that no guest can know, most of them in the first boot.
fn one_boot(
    context: &Context,
    plan: &Plan,
    waiting: Waiting,
    first: bool,
    more: &mut Vec<Measure>,
    samples: &mut Samples,
) -> Result<(u8, String)> {
    let quiet = context.progress == ProgressMode::Silent;
    let say = |text: &str| {
        if !quiet {
            eprintln!("{text}");
        }
    };
    let mut peers = Peers::start(context.settings.run_dir.as_deref())?;
    // Nothing is built or fetched while the start is timed.
    prepare(&context.settings, context.progress)?;
    let begun = Instant::now();
    let mut builder = Cluster::builder()
        .settings(context.settings.clone())
        .progress(context.progress)
        .each(|node| (node.test_device, node.lab) = (true, true));
    for node in 0..2 {
        builder = builder.node(node, |options| options.qemu_options.extend(peers.qemu_options(node)));
    }
    let cluster = builder.boot()?;
    let start = begun.elapsed();
    say(&format!("Watching the idle boards for {} s ...", plan.idle.as_secs()));
    let spent = idle(&cluster, plan.idle)?;
    let percent = 100.0 * spent.as_secs_f64() / plan.idle.as_secs_f64();
    more.push(Measure::of(&waiting.figure(IDLE), "% of a processor", &[percent]));
    if first {
        let memory: u64 = cluster.servers().iter().map(|(_, _, memory)| memory.own()).sum();
        more.push(Measure::of("servers_memory", "KiB", &[memory as f64]));
        // What its machine takes besides the files that all machines share.
        let memory = cluster.node(1).qemu_memory().map(|memory| (memory.anonymous + memory.shared) as f64);
        more.push(Measure::of("guest_memory", "KiB", memory.as_slice()));
        more.push(Measure::of("start", "s", &[start.as_secs_f64()]));
    }
    say(&format!("Measuring, {} rounds of everything in turn ...", plan.rounds));
    let take = |text: &str| read(text, samples);
    let code = measure(cluster.guests(), User::Root, "tg-bench", plan.rounds, &plan.arguments, quiet, take)?;
    peers.check()?;
    Ok((code, cluster.manifest().to_string()))
}

/// How long 16 virtual machines without peers take until the boards of all can be used.
fn start_of_many(context: &Context) -> Result<Measure> {
    prepare(&context.settings, context.progress)?;
    let begun = Instant::now();
    let cluster = Cluster::builder().settings(context.settings.clone()).nodes(16).progress(context.progress).boot()?;
    let took = begun.elapsed();
    drop(cluster);
    Ok(Measure::of(START_OF_MANY, "s", &[took.as_secs_f64()]))
}

/// The throughput of block copies by bytes.
fn copies(samples: &Samples) -> Vec<Line> {
    let mut lines: Vec<Line> = ["memcpy", "put", "get", "loads"].map(Line::new).into();
    let mut by_op: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (op, ns) in samples.rounds.values().flatten() {
        by_op.entry(op).or_default().push(*ns);
    }
    let mut points: Vec<(usize, f64, f64)> = Vec::new();
    for (op, values) in by_op {
        let op = op.strip_prefix("host_").unwrap_or(op);
        let Some((kind, label)) = op.rsplit_once('_') else { continue };
        let line = ["memcpy", "put", "get", "loads"].iter().position(|name| *name == kind);
        if let (Some(line), Some(bytes), Some([ns, ..])) = (line, bytes_of(label), spread(&values)) {
            points.push((line, bytes, bytes / ns * 1e3));
        }
    }
    points.sort_by(|a, b| a.1.total_cmp(&b.1));
    points.into_iter().for_each(|(line, bytes, rate)| lines[line].points.push((bytes, rate)));
    lines
}

/// `4k` and `16m` as numbers.
fn bytes_of(label: &str) -> Option<f64> {
    let (digits, factor) = match label.strip_suffix('k') {
        Some(digits) => (digits, 1024.0),
        None => label.strip_suffix('m').map_or((label, 1.0), |digits| (digits, 1024.0 * 1024.0)),
    };
    digits.parse::<u32>().ok().map(|number| f64::from(number) * factor)
}

/// The processor time that the HIBs take while nothing happens.
fn idle(cluster: &Cluster, time: Duration) -> Result<Duration> {
    let used = || cluster.servers().into_iter().map(|(_, used, _)| used).sum::<Duration>();
    let before = used();
    sleep(time)?;
    Ok(used().saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let mut samples = Samples::default();
        for line in [
            r#"{"round":{"round":1,"ns":{"load_local":85000.0,"put_4k":9000.0,"put_16m":16777.216,"host_memcpy_4k":400.0}}}"#,
            r#"{"mark":{"op":"udp_roundtrip","why":"no cable"}}"#,
        ] {
            assert!(read(line, &mut samples), "{line}");
        }
        for bad in ["tg-bench: something else", r#"{"round":{"round":1}}"#, r#"{"lost":{"method":"flag"}}"#] {
            assert!(!read(bad, &mut samples), "{bad}");
        }
        assert_eq!(samples.rounds[&1]["load_local"], 85e3);
        assert_eq!(samples.marks["udp_roundtrip"], ["no cable"]);
        let lines = copies(&samples);
        assert_eq!(lines[1].points[1], (f64::from(16 << 20), 1e6));
        assert_eq!(lines.iter().map(|line| line.points.len()).collect::<Vec<_>>(), [1, 2, 0, 0]);
        assert_eq!((bytes_of("64"), bytes_of("1k"), bytes_of("add")), (Some(64.0), Some(1024.0), None));
    }
}
