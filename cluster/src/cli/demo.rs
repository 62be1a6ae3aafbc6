// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos demo`: two guests' processes store into and load from each other's memory.
//!
//! The processes compare the values and measure; this side shows their results.

use super::{Context, run, written};
use crate::{Error, Guest, ProgressMode, Result};
use std::io::Write;
use std::time::Duration;
use telegraphos_agent::Figure;

/// How long one side may continue after the other has failed: it would wait long for it.
const GRACE: Duration = Duration::from_secs(20);

fn title(op: &str) -> String {
    match op {
        "store-last-words" => "store, last words of pages".into(),
        "store-run" => "store, 64 bit, long run".into(),
        op => match op.find(|c: char| c.is_ascii_digit()) {
            Some(at) => format!("{}, {} bit", &op[..at], &op[at..]),
            None => op.into(),
        },
    }
}

/// The row of the table for a line of `tg-demo`, and whether all words are right; nothing if it is no result.
fn row(line: &str) -> Option<(String, bool)> {
    let Figure::Checked { from, to, op, count, ns_per_op, ok } = Figure::parse(line)? else { return None };
    let each = ns_per_op as f64 / 1e3;
    let result = if ok { "all words right" } else { "WRONG" };
    let way = format!("{from} -> {to}");
    Some((format!("{way:<8} {:<28} {count:>7} {each:>12.2} us   {result}", title(&op)), ok))
}

pub(super) fn demo(context: Context, corrupt: bool) -> Result<u8> {
    if let Some(nodes) = context.settings.nodes.filter(|n| *n != 2) {
        return Err(Error::Usage(format!(
            "nodes is {nodes}: the demo is one of 2; for more see `telegraphos run --help`"
        )));
    }
    let cluster = context.boot(|_| ())?;
    let mut out = std::io::stdout();
    if context.progress != ProgressMode::Silent {
        written(writeln!(
            out,
            "Two virtual machines on stock QEMU; in each a process of an ordinary user runs tg-demo.\n\
             Live, with the way the data goes:"
        ))?;
    }
    let mut rows = Vec::new();
    let mut all_right = true;
    let mut mismatches = Vec::new();
    let command = |guest: &Guest| {
        let (role, peer) = if guest.node() == 0 { ("A", "1") } else { ("B", "0") };
        let mut argv = vec!["tg-demo", "--role", role, "--peer", peer];
        if corrupt && role == "B" {
            argv.push("--inject-corruption");
        }
        guest.argv(&argv)
    };
    let code = run::everywhere(cluster.guests(), command, None, Some(GRACE), &mut |node, line| {
        if let Some((row, right)) = row(line.text()) {
            written(writeln!(out, "  {row}"))?;
            rows.push(row);
            all_right &= right;
            return Ok(());
        }
        if line.text().starts_with("MISMATCH ") {
            mismatches.push(line.text().to_owned());
        }
        written(writeln!(std::io::stderr(), "  [{node}] {}", line.text()))
    })?;
    let title = format!("{:<8} {:<28} {:>7} {:>15}   result", "nodes", "operation", "count", "time per op");
    written(writeln!(out, "\n{title}\n{}", "-".repeat(title.len() + 9)))?;
    for row in &rows {
        written(writeln!(out, "{row}"))?;
    }
    written(write!(out, "\n{}", cluster.manifest()))?;
    if code == 0 && (rows.is_empty() || !all_right) {
        eprintln!("telegraphos: both sides are content, but the results are not: {} rows", rows.len());
        return Ok(1);
    }
    if code != 0 {
        eprintln!("telegraphos: the demo failed: {} wrong words reported", mismatches.len());
        for line in &mismatches {
            eprintln!("  {line}");
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_shown() {
        let line = r#"{"checked":{"from":0,"to":1,"op":"store64","count":1024,"ns_per_op":640,"ok":true}}"#;
        let expected = "0 -> 1   store, 64 bit                   1024         0.64 us   all words right";
        assert_eq!(row(line), Some((expected.into(), true)));
        assert_eq!(row(&line.replace("1024", "\"x\"")), None);
        assert_eq!(row("INFO node=0"), None);
        let (text, right) = row(&line.replace("true", "false")).unwrap();
        assert!(!right && text.ends_with("WRONG"));
    }
}
