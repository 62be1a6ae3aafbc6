// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench`: what stores, loads and an idle board cost.
//!
//! `tg-bench` measures in the guests; this side adds what only the host sees: the processor time and memory of the HIBs.

use super::{Context, run, written};
use crate::{Cluster, Error, OutputLine, ProgressMode, Result, User, sleep};
use std::io::Write;
use std::time::Duration;

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

/// Takes in one line of `tg-bench`; whether it was a result.
fn read(line: &str, rows: &mut Vec<Row>) -> bool {
    let field = |name: &str| line.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='));
    let three = |first: &str| -> Option<[f64; 3]> {
        Some([field(first)?.parse().ok()?, field("low")?.parse().ok()?, field("high")?.parse().ok()?])
    };
    let Some(op) = field("op") else { return false };
    match line.split_whitespace().next() {
        Some("BENCH") => {
            let Some(ns) = three("ns") else { return false };
            rows.push(Row { op: op.to_owned(), ns, ratio: None });
            true
        }
        Some("RATIO") => {
            let ratio = three("x");
            if let Some(row) = rows.iter_mut().find(|row| row.op == op) {
                row.ratio = ratio;
            }
            ratio.is_some()
        }
        _ => false,
    }
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

pub(super) fn bench(context: Context, rounds: u32) -> Result<u8> {
    if context.settings.nodes.is_some_and(|nodes| nodes < 2) {
        return Err(Error::Usage("nodes is 1: a store needs another node to go to; expected at least 2".into()));
    }
    let cluster = context.boot(|node| node.test_device = true)?;
    let quiet = context.progress == ProgressMode::Silent;
    let tell = |text: &str| {
        if !quiet {
            eprintln!("{text}");
        }
    };
    tell(&format!("Watching the idle boards for {} s ...", IDLE.as_secs()));
    let idle = idle(&cluster)?;
    tell(&format!("Measuring, {rounds} rounds of every operation in turn ..."));
    let mut rows = Vec::new();
    let argv = ["tg-bench", "--rounds", &rounds.to_string()].map(str::to_owned);
    let code = run::everywhere(cluster.guests(), User::Root, None, &argv, &mut |node, line| {
        match line {
            OutputLine::Stdout(text) if read(&text, &mut rows) => {}
            OutputLine::Stdout(text) | OutputLine::Stderr(text) => eprintln!("[{node}] {text}"),
        }
        Ok(())
    })?;
    if code == 0 && rows.is_empty() {
        return Err(Error::Command { node: 0, command: "tg-bench".into(), why: "it printed no results".into() });
    }
    let mut out = String::new();
    let title = format!("{:<16} {:>13}  {:<22}{:>9}  to pci-testdev", "operation", "median", "(tenths)", "ratio");
    out += &format!("{title}\n{}\n", "-".repeat(title.len()));
    for row in &rows {
        out += &format!("{}\n", row.line());
    }
    out += &format!("\nidle for {} s:\n", IDLE.as_secs());
    for (guest, spent) in cluster.guests().iter().zip(idle) {
        let memory = guest.hib_memory().map_or(0, |m| m.own());
        out +=
            &format!("HIB {}: {} ms of processor; {memory} KiB beyond guest memory\n", guest.node(), spent.as_millis());
    }
    out += &format!("\n{}", cluster.manifest());
    written(std::io::stdout().write_all(out.as_bytes()))?;
    Ok(code)
}

/// The processor time each HIB takes while nothing happens.
fn idle(cluster: &Cluster) -> Result<Vec<Duration>> {
    let used = || cluster.guests().iter().map(|g| g.hib_cpu_time().unwrap_or_default()).collect::<Vec<_>>();
    let before = used();
    sleep(IDLE)?;
    Ok(used().into_iter().zip(before).map(|(after, before)| after.saturating_sub(before)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_shown() {
        let mut rows = Vec::new();
        assert!(read("BENCH op=load ns=85000 low=80000 high=99000 rounds=40", &mut rows));
        assert!(read("RATIO op=load x=21.50 low=20.00 high=30.25 to=testdev-load", &mut rows));
        assert!(!read("tg-bench: something else", &mut rows) && !read("BENCH op=load ns=many low=1 high=2", &mut rows));
        assert_eq!(rows, [Row { op: "load".into(), ns: [85e3, 80e3, 99e3], ratio: Some([21.5, 20.0, 30.25]) }]);
        assert_eq!(rows[0].line(), "load                  85.00 us  (80.00 to 99.00)          21.50  (20.00 to 30.25)");
    }
}
