// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos demo`: what three guests' processes do to each other's memory, each step counted, checked and timed.
//!
//! The guests' processes (`tg-demo`) make the steps and check them; this side says when, reads the counters of the
//! boards before and after, and shows the results.

mod picture;
mod play;
mod row;

use super::{Context, written};
use crate::{Error, ProgressMode, Result};
use row::{Row, Style};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telegraphos_images::Programs;

/// Nodes of the demonstration.
const NODES: usize = 3;

/// A part of the demonstration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Part {
    Store,
    Load,
    Atomic,
    Queue,
    Replicas,
    Leave,
}

impl Part {
    fn title(self) -> &'static str {
        match self {
            Part::Store => "Remote stores",
            Part::Load => "Remote loads",
            Part::Atomic => "Atomics",
            Part::Queue => "A notification queue",
            Part::Replicas => "A replicated page",
            Part::Leave => "A node leaves and comes back",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// Lines for logs: no colour, and progress as lines
    #[arg(long)]
    plain: bool,
    /// Draws the run into this SVG file: nodes, arrows, counts, costs, checks
    #[arg(long, value_name = "FILE.svg", value_parser = svg)]
    picture: Option<PathBuf>,
    /// Flips a bit of one delivered word; the check must find it
    #[arg(long)]
    inject_corruption: bool,
    /// Makes the deliberate fault that a part's check must find
    #[arg(long = "break", value_name = "PART", value_enum, value_delimiter = ',', hide = true)]
    broken: Vec<Part>,
}

fn svg(text: &str) -> std::result::Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the picture is an SVG: expected a name that ends in .svg".into()),
    }
}

pub(super) fn demo(mut context: Context, mut options: Options) -> Result<u8> {
    if let Some(nodes) = context.settings.nodes.filter(|n| *n != NODES) {
        return Err(Error::Usage(format!(
            "nodes is {nodes}: the demo is one of {NODES}; for others see `telegraphos run --help`"
        )));
    }
    context.settings.nodes = Some(NODES);
    // The first command of many: what it does not use is not built.
    context.settings.programs = Programs::Demo;
    if options.plain && context.progress != ProgressMode::Silent {
        context.progress = ProgressMode::Plain;
    }
    if options.inject_corruption {
        options.broken.push(Part::Store);
    }
    let style = Style::of(options.plain, std::io::stdout().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let cluster = context.boot(|_| ())?;
    let booted = cluster.guests().iter().map(|guest| guest.greeting().1).max().unwrap_or_default();
    let begun = Instant::now();
    let mut out = std::io::stdout();
    written(write!(out, "{}", style.header(&cluster.manifest().parts, cluster.uses_kvm())))?;
    let mut rows: Vec<Row> = Vec::new();
    play::play(&cluster, &options.broken, &mut |row| {
        written(writeln!(out, "{}", style.row(&row)))?;
        rows.push(row);
        Ok(())
    })?;
    let footer = footer(&rows, booted, begun.elapsed());
    written(writeln!(out, "{}", style.verdict(rows.iter().all(|row| row.ok), &footer)))?;
    if let Some(path) = &options.picture {
        std::fs::write(path, picture::draw(&rows, &footer)).map_err(Error::io("cannot write the picture", path))?;
        written(writeln!(out, "drawn in {}", path.display()))?;
    }
    Ok(u8::from(rows.is_empty() || !rows.iter().all(|row| row.ok)))
}

fn footer(rows: &[Row], booted: Duration, run: Duration) -> String {
    let wrong = rows.iter().filter(|row| !row.ok).count();
    let checks = match wrong {
        0 => format!("All {} checks passed", rows.len()),
        _ => format!("{wrong} of {} checks FAILED", rows.len()),
    };
    let (boot, run) = (booted.as_secs_f64(), run.as_secs_f64());
    format!("{checks}: {boot:.1} s for three kernels to boot at once, {run:.1} s for the rest.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_counts_checks() {
        let (second, row) = (Duration::from_secs(1), row::sample(Part::Store, true));
        let text = footer(&[row.clone(), row.clone()], second * 5, second * 4);
        assert_eq!(text, "All 2 checks passed: 5.0 s for three kernels to boot at once, 4.0 s for the rest.");
        let wrong = row::sample(Part::Load, false);
        assert!(footer(&[row, wrong], second, second).starts_with("1 of 2 checks FAILED: "));
    }

    #[test]
    fn a_picture_is_an_svg() {
        assert_eq!(svg("a/run.SVG"), Ok("a/run.SVG".into()));
        assert!(svg("run.png").unwrap_err().contains(".svg"));
    }
}
