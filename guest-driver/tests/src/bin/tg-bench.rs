// SPDX-License-Identifier: MIT OR Apache-2.0
//! What stores and loads cost, as ratios to a device inside QEMU.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::{FULL, LaunchStyle, Node, Remote, Segment};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_guest_tests::peers::{Participants, Peers};
use telegraphos_guest_tests::raw;
use telegraphos_guest_tests::stats::Summary;
use telegraphos_guest_tests::testdev::Testdev;

const USAGE: &str = "\
tg-bench: measures stores and loads, as ratios to a device inside QEMU (pci-testdev) in the same guest

Usage: tg-bench [options]      (on every node at the same time; the lowest measures, the others serve)

  --nodes N            wait for nodes 0 to N-1 [every node that is in the cluster now]
  --rounds N           rounds; in each, everything is measured in turn [40]
  --stream N           stores in a stream [1000]
  --no-baseline        without pci-testdev, and so without ratios
  --copies N           rounds of block copies, 64 bytes to 16 MiB; 0 leaves them out [7]
  --patience SECONDS   how long to wait for the others [180]

The measuring node needs root (the device's resource file) and QEMU's `-device pci-testdev`.
It prints, with medians and the tenths below and above:
  {\"bench\":{\"op\":\"store\",\"ns\":{\"median\":...,\"low\":...,\"high\":...},\"rounds\":...}}     one operation
  {\"ratio\":{\"op\":\"store\",\"to\":...,\"x\":{...}}}      to the same access of pci-testdev, round by round
  {\"copy\":{\"op\":\"put\",\"size\":...,\"ns\":{...},\"rounds\":...}}   one block copy
The op of a copy: put, get, or loads (a loop of trapped loads instead).
op: store and load are single accesses with pauses; stream-issue and stream-arrived are per store of a stream, until the
last store returned and until quiet; stream-10000 and batch-100 are per store of 10 000, in a row or in batches of 100 with quiet in
between, until the last store (of the batch) returned, as ratios to store; self-store and self-load are to this node's own memory by way of the board;
quiet is one with nothing outstanding; store8 and load8 move one byte, as those of pci-testdev do. launch-context,
launch-load, launch-special and launch-plain are one fetch-and-add from launch to result in each style, as ratios to launch-plain.
Exit codes: 0 done, 2 usage, 3 board, driver, device or peer refused.

Example: telegraphos bench
";

struct Options {
    participants: Participants,
    rounds: usize,
    stream: u64,
    copies: usize,
    baseline: bool,
    patience: Duration,
}

fn main() -> ExitCode {
    cli::main("tg-bench", USAGE, run)
}

fn run(parser: lexopt::Parser) -> Outcome<()> {
    let mut options = Options {
        participants: Participants::Present,
        rounds: 40,
        stream: 1000,
        copies: 7,
        baseline: true,
        patience: Duration::from_secs(180),
    };
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(option) => match option.as_str() {
                "nodes" => options.participants = Participants::Count(line.number("--nodes")?),
                "rounds" => options.rounds = line.number("--rounds")?,
                "stream" => options.stream = line.number("--stream")?,
                "copies" => options.copies = line.number("--copies")?,
                "no-baseline" => options.baseline = false,
                "patience" => options.patience = line.seconds("--patience")?,
                _ => return Err(cli::unknown(&option)),
            },
            Word::Value(value) => return Err(Failure::Usage(format!("{value:?} is not expected"))),
        }
    }
    let node = Node::open()?;
    let segment = node.export("bench-data", DATA).owner(FULL).others(FULL).create()?;
    let peers = Peers::connect(&node, "bench-control", options.participants, options.patience)?;
    peers.barrier(1)?;
    let measures = peers.all.first() == Some(&peers.me());
    let result = if measures { measure(&options, &peers, &segment) } else { Ok(()) };
    // Nodes that only serve wait without a limit.
    let deadline = Instant::now() + Duration::from_secs(3600);
    if measures {
        peers.arrive(2)?;
    } else {
        while peers.at(peers.all[0])? < 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    result
}

/// The operations, in the order of a round.
const OPS: [&str; 17] = [
    "testdev-store",
    "testdev-load",
    "store",
    "store8",
    "stream-issue",
    "stream-arrived",
    "stream-10000",
    "batch-100",
    "load",
    "load8",
    "self-store",
    "self-load",
    "quiet",
    "launch-context",
    "launch-load",
    "launch-special",
    "launch-plain",
];

/// Place of "store" among them.
const SINGLE_STORE: usize = 2;
/// Stores of each of the two regimes of SPEC item 29, and of one batch.
const REGIME: u64 = 10_000;
const BATCH: u64 = 100;

/// Bytes of the segment: the longest copy.
const DATA: u64 = 16 << 20;
/// The longest copy that is also tried as a loop of loads.
const LOADS: u64 = 4 << 10;

fn measure(options: &Options, peers: &Peers, segment: &Segment) -> Outcome<()> {
    let testdev = if options.baseline { Some(Testdev::open()?) } else { None };
    let node = &peers.node;
    telegraphos_guest_tests::peers::import_patiently(node, peers.right(), "bench-data", options.patience)?.close()?;
    let remote = node.import(peers.right(), "bench-data").rights(FULL).open()?;
    let own = node.import(node.id(), segment.name()).rights(FULL).open()?;
    let mut samples: Vec<[f64; OPS.len()]> = Vec::new();
    for round in 0..=options.rounds {
        let sample = one_round(options, node, testdev.as_ref(), &remote, &own)?;
        // The first one pays for page faults.
        if round > 0 {
            samples.push(sample);
        }
    }
    for (index, op) in OPS.iter().enumerate() {
        let values: Vec<f64> = samples.iter().map(|s| s[index]).filter(|v| v.is_finite()).collect();
        if let Some(Summary { median, low, high }) = Summary::of(&values) {
            let ns = [median, low, high].into();
            print_figure(&Figure::Bench { op: (*op).into(), ns, rounds: values.len() });
        }
    }
    for (index, op) in OPS.iter().enumerate().skip(2) {
        let base = match *op {
            op if op.starts_with("launch") => OPS.len() - 1,
            "stream-10000" | "batch-100" => SINGLE_STORE,
            op => usize::from(op.contains("load")),
        };
        let values: Vec<f64> = samples.iter().map(|s| s[index] / s[base]).filter(|v| v.is_finite()).collect();
        if let Some(Summary { median, low, high }) = Summary::of(&values) {
            print_figure(&Figure::Ratio { op: (*op).into(), to: OPS[base].into(), x: [median, low, high].into() });
        }
    }
    copies(options, &remote, segment)
}

/// Copies of every size both ways, and up to [`LOADS`] bytes as loads one by one; all in turn, round by round.
fn copies(options: &Options, remote: &Remote, segment: &Segment) -> Outcome<()> {
    let sizes: Vec<u64> = (6..=24).step_by(2).map(|bits| 1 << bits).collect();
    let mut samples = vec![[const { Vec::new() }; 3]; sizes.len()];
    for round in 0..=options.copies {
        if options.copies == 0 {
            break;
        }
        for (size, samples) in sizes.iter().zip(&mut samples) {
            // The first round pays for page faults; short copies are repeated, since one alone is mostly a wake-up.
            let count = (64 << 10 >> size.ilog2()).clamp(1, 16);
            let begun = Instant::now();
            for _ in 0..count {
                remote.put_block(0, segment, 0, *size)?;
            }
            let put = nanoseconds(begun, count);
            let begun = Instant::now();
            for _ in 0..count {
                remote.get_block(0, segment, 0, *size)?;
            }
            let get = nanoseconds(begun, count);
            let begun = Instant::now();
            if *size <= LOADS {
                for at in (0..*size).step_by(8) {
                    // SAFETY: the offset is aligned and within the segment.
                    unsafe { raw::load::<u64>(remote.as_ptr(), at) };
                }
            }
            let loads = if *size <= LOADS { nanoseconds(begun, 1) } else { f64::NAN };
            if round > 0 {
                for (samples, value) in samples.iter_mut().zip([put, get, loads]) {
                    samples.push(value);
                }
            }
        }
    }
    for (size, samples) in sizes.iter().zip(samples) {
        for (op, values) in ["put", "get", "loads"].into_iter().zip(samples) {
            let values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
            if let Some(Summary { median, low, high }) = Summary::of(&values) {
                let ns = [median, low, high].into();
                print_figure(&Figure::Copy { op: op.into(), size: *size, ns, rounds: values.len() });
            }
        }
    }
    Ok(())
}

fn print_figure(figure: &Figure) {
    println!("{}", figure.line());
}

fn nanoseconds(begun: Instant, count: u64) -> f64 {
    begun.elapsed().as_nanos() as f64 / count as f64
}

fn one_round(
    options: &Options,
    node: &Node,
    testdev: Option<&Testdev>,
    remote: &Remote,
    own: &Remote,
) -> Outcome<[f64; OPS.len()]> {
    const SINGLE: u64 = 20;
    let batch = |count: u64, access: &mut dyn FnMut(u64)| {
        let begun = Instant::now();
        (0..count).for_each(access);
        nanoseconds(begun, count)
    };
    let (mut test_store, mut test_load) = (f64::NAN, f64::NAN);
    if let Some(testdev) = testdev {
        // SAFETY: the byte lies in the mapped BAR.
        test_store = batch(500, &mut |i| unsafe { raw::store::<u8>(testdev.at(), Testdev::IDLE as u64, i) });
        // SAFETY: as above.
        test_load = batch(500, &mut |_| unsafe {
            raw::load::<u8>(testdev.at(), Testdev::IDLE as u64);
        });
    }
    // One at a time, each with an idle road before it; waiting for quiet is not counted.
    let single = |remote: &Remote, store: &dyn Fn(u64)| -> Outcome<f64> {
        let mut total = 0.0;
        for index in 0..SINGLE {
            let begun = Instant::now();
            store(index);
            total += nanoseconds(begun, 1);
            remote.quiet()?;
        }
        Ok(total / SINGLE as f64)
    };
    let (window, home) = (remote.as_ptr(), own.as_ptr());
    // SAFETY: offsets are aligned and below 64 KiB, which both segments have.
    let store = single(remote, &|i| unsafe { raw::store::<u64>(window, i * 8, i) })?;
    // SAFETY: as above.
    let store8 = single(remote, &|i| unsafe { raw::store::<u8>(window, i, i) })?;
    // SAFETY: as above.
    let self_store = single(own, &|i| unsafe { raw::store::<u64>(home, i * 8, i) })?;
    let begun = Instant::now();
    for index in 0..options.stream {
        // SAFETY: as above.
        unsafe { raw::store::<u64>(window, index % 8192 * 8, index) };
    }
    let issue = nanoseconds(begun, options.stream.max(1));
    remote.quiet()?;
    let arrived = nanoseconds(begun, options.stream.max(1));
    // The network is quiet before each batch, which is not counted.
    let regime = |batch: u64| -> Outcome<f64> {
        let mut total = 0.0;
        for first in (0..REGIME).step_by(batch as usize) {
            let begun = Instant::now();
            for index in first..first + batch {
                // SAFETY: as above.
                unsafe { raw::store::<u64>(window, index % 8192 * 8, index) };
            }
            total += nanoseconds(begun, 1);
            remote.quiet()?;
        }
        Ok(total / REGIME as f64)
    };
    let (stream_10000, batch_100) = (regime(REGIME)?, regime(BATCH)?);
    // SAFETY: as above.
    let load = batch(SINGLE, &mut |i| unsafe {
        raw::load::<u64>(window, i * 8);
    });
    // SAFETY: as above.
    let load8 = batch(SINGLE, &mut |i| unsafe {
        raw::load::<u8>(window, i);
    });
    // SAFETY: as above.
    let self_load = batch(SINGLE, &mut |i| unsafe {
        raw::load::<u64>(home, i * 8);
    });
    let begun = Instant::now();
    for _ in 0..SINGLE {
        remote.quiet()?;
    }
    let quiet = nanoseconds(begun, SINGLE);
    let launch = |style| -> Outcome<f64> {
        node.set_launch_style(style);
        let begun = Instant::now();
        for _ in 0..SINGLE {
            remote.fetch_add::<u64>(128, 1)?;
        }
        let each = nanoseconds(begun, SINGLE);
        node.set_launch_style(LaunchStyle::default());
        Ok(each)
    };
    let launches = [
        launch(LaunchStyle::Context)?,
        launch(LaunchStyle::Load)?,
        launch(LaunchStyle::Special)?,
        launch(LaunchStyle::Plain)?,
    ];
    let accesses = [
        test_store,
        test_load,
        store,
        store8,
        issue,
        arrived,
        stream_10000,
        batch_100,
        load,
        load8,
        self_store,
        self_load,
        quiet,
    ];
    let mut all = [0.0; OPS.len()];
    all[..accesses.len()].copy_from_slice(&accesses);
    all[accesses.len()..].copy_from_slice(&launches);
    Ok(all)
}
