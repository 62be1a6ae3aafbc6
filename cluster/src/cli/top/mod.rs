// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos top`: a live table of a running fabric.
//!
//! `view` makes lines of two snapshots, `table` and `text` help it, `screen` shows them.

mod screen;
pub(super) mod table;
pub(super) mod text;
mod view;

use super::{control, print};
use crate::{Error, Result, interrupt};
use clap::Args;
use screen::Screen;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use telegraphos_fabric::control::target::parse_time;
use telegraphos_fabric::control::{ControlClient, Request, Response, Snapshot};
use view::{Line, Style, View};

pub(super) const EXAMPLES: &str = "Examples:
  telegraphos top                                  the one cluster that runs here
  telegraphos top --control /tmp/fabric.control --interval 200ms
  telegraphos top --once | grep DOWN

Keys: q or Ctrl-C leaves.

Exit codes: 0; 2 wrong usage; 3 there is no such fabric; 130 left by Ctrl-C.";

/// The least time between two tables.
const LEAST: Duration = Duration::from_millis(50);
/// A change of the terminal's size or a signal is noticed within this.
const SLICE: Duration = Duration::from_millis(100);
/// Columns of a table that goes to no terminal, unless `COLUMNS` says otherwise.
const WIDE: usize = 200;

#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// The fabric's control socket [default: that of the one cluster that runs here]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Time over which rates are taken, from 50ms; with --once, 0s: since the start
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = interval)]
    interval: Duration,
    /// One table and no more; as where the output is no terminal
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> std::result::Result<Duration, String> {
    let time = Duration::from_micros(parse_time(text).map_err(|e| e.to_string())?);
    if time.is_zero() || (LEAST..=Duration::from_secs(3600)).contains(&time) {
        return Ok(time);
    }
    Err(format!("{text} is out of range: expected 50ms to 3600s, or 0s with --once"))
}

pub(super) fn top(args: TopArgs) -> Result<u8> {
    let terminal = std::io::stdout().is_terminal();
    if args.once || !terminal {
        return once(&args, terminal);
    }
    if args.interval.is_zero() {
        return Err(Error::Usage("--interval is 0s: expected at least 50ms, or --once with it".into()));
    }
    let socket = control::socket(args.control.as_deref())?;
    live(&socket, args.interval)
}

fn ask(client: &mut ControlClient) -> Result<Snapshot> {
    match client.request(&Request::Statistics {})? {
        Response::Statistics(snapshot) => Ok(snapshot),
        other => {
            let text = format!("expected statistics, not {}", other.line().trim_end());
            Err(telegraphos_fabric::control::ClientError::Answer(text).into())
        }
    }
}

fn once(args: &TopArgs, terminal: bool) -> Result<u8> {
    let mut client = control::connect(args.control.as_deref())?;
    let mut before = None;
    if !args.interval.is_zero() {
        before = Some(ask(&mut client)?);
        interrupt::sleep(args.interval)?;
    }
    let now = ask(&mut client)?;
    let columns = std::env::var("COLUMNS").ok().and_then(|c| c.parse().ok());
    let width = if terminal { screen::size().0 } else { columns.unwrap_or(WIDE) };
    let lines = View::new(before.as_ref(), &now).lines(width, usize::MAX);
    let text: String = lines.iter().map(|line| format!("{}\n", line.text)).collect();
    print(&text)?;
    Ok(0)
}

fn live(socket: &Path, interval: Duration) -> Result<u8> {
    // What is wrong at the beginning is an error of the command; later on it may pass.
    let mut client = Some(ControlClient::connect(socket)?);
    let mut now = client.as_mut().map(ask).transpose()?;
    let mut before: Option<Snapshot> = None;
    let mut trouble: Option<String> = None;
    let screen = Screen::enter()?;
    loop {
        let mut shown = None;
        let due = Instant::now() + interval;
        loop {
            interrupt::check()?;
            let size = screen::size();
            if shown != Some(size) {
                screen.show(&page(before.as_ref(), now.as_ref(), trouble.as_deref(), size))?;
                shown = Some(size);
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if screen.quit_within(left.min(SLICE))? {
                return Ok(0);
            }
        }
        let answer = match &mut client {
            Some(client) => ask(client),
            None => ControlClient::connect(socket).map_err(Error::from).and_then(|new| ask(client.insert(new))),
        };
        match answer {
            Ok(next) => {
                before = now.replace(next);
                trouble = None;
            }
            Err(e) => {
                client = None;
                trouble = Some(e.to_string());
            }
        }
    }
}

/// The lines that fit on the screen; an error is above the last table.
fn page(
    before: Option<&Snapshot>,
    now: Option<&Snapshot>,
    trouble: Option<&str>,
    (width, height): (usize, usize),
) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(trouble) = trouble {
        let text = format!("{trouble}; trying again");
        lines.push(Line { style: Style::Bad, text: table::cut(&text, width).to_owned() });
    }
    if let Some(now) = now {
        lines.extend(View::new(before, now).lines(width, height.saturating_sub(lines.len())));
    }
    lines
}

#[cfg(test)]
mod tests;
