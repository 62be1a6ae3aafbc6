// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench`: what stores, loads, operations and an idle board cost.
//!
//! `tg-bench` measures in the guests; this side adds what only the host sees: the processor time and memory of the
//! HIBs, and what a plain `memcpy` into memory shared between two processes would take here.

use super::plot::{self, Chart, Line};
use super::replicas::quartiles;
use super::{Context, print, run};
use crate::{Cluster, Error, ProgressMode, Result, User, sleep};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telegraphos_agent::Figure;

/// How long the idle boards are watched.
const IDLE: Duration = Duration::from_secs(5);

/// One operation's figures, as `tg-bench` prints them.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    op: String,
    /// Nanoseconds: median, lower and upper tenth.
    ns: [f64; 3],
    /// To the same access of `pci-testdev`: median, lower and upper tenth.
    ratio: Option<[f64; 3]>,
}

/// Everything `tg-bench` has printed.
#[derive(Clone, Debug, Default, PartialEq)]
struct Figures {
    rows: Vec<Row>,
    /// Nanoseconds of a block copy: median, lower and upper tenth, by bytes and operation.
    copies: BTreeMap<u64, BTreeMap<String, [f64; 3]>>,
}

/// Takes in one line of `tg-bench`; whether it was a result.
fn read(line: &str, figures: &mut Figures) -> bool {
    match Figure::parse(line) {
        Some(Figure::Bench { op, ns, .. }) => figures.rows.push(Row { op, ns: ns.values(), ratio: None }),
        Some(Figure::Ratio { op, x, .. }) => {
            if let Some(row) = figures.rows.iter_mut().find(|row| row.op == op) {
                row.ratio = Some(x.values());
            }
        }
        Some(Figure::Copy { op, size, ns, .. }) => _ = figures.copies.entry(size).or_default().insert(op, ns.values()),
        _ => return false,
    }
    true
}

/// Nanoseconds for one `memcpy` of so many bytes into memory that another process could have mapped: the median.
fn memcpy(size: u64) -> std::io::Result<f64> {
    use rustix::fs::MemfdFlags;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let length = usize::try_from(size).unwrap_or(usize::MAX);
    let source = vec![0x5a_u8; length];
    let file = rustix::fs::memfd_create("telegraphos-bench", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, size)?;
    // SAFETY: a new mapping at an address of the kernel's choice; the file is private to this process, and never
    // shrinks.
    let target =
        unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)? };
    let count = (1 << 24 >> size.max(1).ilog2()).clamp(1, 1 << 12);
    let sample = |_| {
        let begun = Instant::now();
        for _ in 0..count {
            // SAFETY: both are `length` bytes and do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.cast::<u8>(), length) };
            std::hint::black_box(target);
        }
        begun.elapsed().as_nanos() as f64 / f64::from(count)
    };
    let [median, ..] = quartiles((0..9).map(sample).collect());
    // SAFETY: mapped above, not used any more.
    unsafe { munmap(target, length)? };
    Ok(median)
}

impl Row {
    fn line(&self) -> String {
        let [ns, low, high] = self.ns.map(|ns| ns / 1e3);
        let ratio = self.ratio.map(|[x, low, high]| format!("{x:>9.2}  ({low:.2} to {high:.2})"));
        format!(
            "{:<16} {ns:>10.2} us  {:<22}{}",
            self.op,
            format!("({low:.2} to {high:.2})"),
            ratio.unwrap_or_default()
        )
        .trim_end()
        .to_owned()
    }
}

pub(super) fn bench(context: Context, rounds: u32, picture: Option<PathBuf>) -> Result<u8> {
    if context.settings.nodes.is_some_and(|nodes| nodes < 2) {
        return Err(Error::Usage("nodes is 1: a store needs another node to go to; expected at least 2".into()));
    }
    let cluster = context.boot(|node| (node.test_device, node.lab) = (true, true))?;
    let quiet = context.progress == ProgressMode::Silent;
    let say = |text: &str| {
        if !quiet {
            eprintln!("{text}");
        }
    };
    say(&format!("Watching the idle boards for {} s ...", IDLE.as_secs()));
    let idle = idle(&cluster)?;
    say(&format!("Measuring, {rounds} rounds of every operation in turn ..."));
    let mut figures = Figures::default();
    let take = |text: &str| read(text, &mut figures);
    let code = run::measure(cluster.guests(), User::Root, "tg-bench", rounds, quiet, take)?;
    let mut out = String::new();
    let title = format!(
        "{:<16} {:>13}  {:<22}{:>9}  to pci-testdev (launches: to launch-plain; 10 000 stores: to store)",
        "operation", "median", "(tenths)", "ratio"
    );
    out += &format!("{title}\n{}\n", "-".repeat(title.len()));
    for row in &figures.rows {
        out += &format!("{}\n", row.line());
    }
    out += &copies(&figures.copies, picture)?;
    out += &format!("\nidle for {} s:\n", IDLE.as_secs());
    for ((name, _, memory), spent) in cluster.servers().into_iter().zip(idle) {
        out += &format!("{name}: {} ms of processor; {} KiB beyond guest memory\n", spent.as_millis(), memory.own());
    }
    out += &format!("\n{}", cluster.manifest());
    print(&out)?;
    Ok(code)
}

/// The table of block copies, and their picture.
fn copies(copies: &BTreeMap<u64, BTreeMap<String, [f64; 3]>>, picture: Option<PathBuf>) -> Result<String> {
    if copies.is_empty() {
        return Ok(String::new());
    }
    let mut out = String::from("\n");
    let ops = ["put", "get", "loads"];
    out += &format!("{:>10} {:>13}", "bytes", "memcpy");
    for op in ops {
        out += &format!(" {:>13} {:>10}", op, "ratio");
    }
    out += "   median times; ratios to memcpy into memory shared with another process, on this host\n";
    let mut lines: Vec<Line> = ["memcpy"].iter().chain(&ops).map(|name| Line::new(name)).collect();
    for (size, by_op) in copies {
        let base = memcpy(*size).map_err(Error::io("cannot measure memcpy in", "shared memory"))?;
        let throughput = |ns: f64| *size as f64 / ns * 1e3;
        out += &format!("{size:>10} {:>10.3} us", base / 1e3);
        lines[0].points.push((*size as f64, throughput(base)));
        for (op, line) in ops.iter().zip(&mut lines[1..]) {
            match by_op.get(*op) {
                Some([ns, ..]) => {
                    out += &format!(" {:>10.2} us {:>10.2}", ns / 1e3, ns / base);
                    line.points.push((*size as f64, throughput(*ns)));
                }
                None => out += &format!(" {:>13} {:>10}", "-", "-"),
            }
        }
        out += "\n";
    }
    if let Some(path) = picture {
        out += &plot::write(&path, &[Chart::new("Block copies", "bytes", "MB/s", lines)])?;
    }
    Ok(out)
}

/// The processor time that each process of HIBs takes while nothing happens.
fn idle(cluster: &Cluster) -> Result<Vec<Duration>> {
    let used = || cluster.servers().into_iter().map(|(_, used, _)| used).collect::<Vec<_>>();
    let before = used();
    sleep(IDLE)?;
    Ok(used().into_iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_shown() {
        let mut figures = Figures::default();
        for line in [
            r#"{"bench":{"op":"load","ns":{"median":85000.0,"low":80000.0,"high":99000.0},"rounds":40}}"#,
            r#"{"ratio":{"op":"load","to":"testdev-load","x":{"median":21.5,"low":20.0,"high":30.25}}}"#,
            r#"{"copy":{"op":"put","size":64,"ns":{"median":9000.0,"low":8000.0,"high":10000.0},"rounds":7}}"#,
        ] {
            assert!(read(line, &mut figures), "{line}");
        }
        for bad in [
            "tg-bench: something else",
            r#"{"bench":{"op":"load","ns":{"median":"many","low":1.0,"high":2.0},"rounds":40}}"#,
            r#"{"copy":{"op":"put","ns":{"median":1.0,"low":1.0,"high":1.0},"rounds":7}}"#,
            r#"{"lost":{"method":"flag","senders":1,"sent":1,"lost":1}}"#,
        ] {
            assert!(!read(bad, &mut figures), "{bad}");
        }
        assert_eq!(figures.copies[&64]["put"], [9e3, 8e3, 1e4]);
        let rows = figures.rows;
        assert_eq!(rows, [Row { op: "load".into(), ns: [85e3, 80e3, 99e3], ratio: Some([21.5, 20.0, 30.25]) }]);
        assert_eq!(rows[0].line(), "load                  85.00 us  (80.00 to 99.00)          21.50  (20.00 to 30.25)");
    }
}
