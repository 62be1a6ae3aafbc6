// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos run`: one command in every guest, all output as it comes.

use super::{Context, watch, written};
use crate::{Error, Guest, GuestCommand, OutputLine, Result, User, lock};
use std::io::Write;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Boots and runs; the first exit code that is not 0.
pub(super) fn run(context: Context, user: User, lab: bool, limit: Option<Duration>, argv: &[String]) -> Result<u8> {
    let cluster = context.boot(|node| node.lab = lab)?;
    if context.progress != crate::ProgressMode::Silent {
        eprint!("{}", cluster.manifest());
    }
    let command = |guest: &Guest| guest.argv(argv).user(user);
    let mut show = |node, line| {
        written(match line {
            OutputLine::Stdout(text) => writeln!(std::io::stdout(), "[{node}] {text}"),
            OutputLine::Stderr(text) => writeln!(std::io::stderr(), "[{node}] {text}"),
        })
    };
    watch::watched(&cluster, || everywhere(cluster.guests(), command, limit, None, &mut show))
}

/// Runs `command` in all these guests at once; the exit code of the first to fail, or 0. A command is killed after
/// `limit`. With `grace`, the others are killed so long after one has failed, or at once if it was not followed to its
/// end.
pub(super) fn everywhere(
    guests: &[Guest],
    command: impl Fn(&Guest) -> GuestCommand + Sync,
    limit: Option<Duration>,
    grace: Option<Duration>,
    show: &mut (dyn FnMut(usize, OutputLine) -> Result<()> + Send),
) -> Result<u8> {
    let show = Mutex::new(show);
    // The exit code of the first to fail, and when the others end.
    let first: Mutex<Option<(u8, Option<Instant>)>> = Mutex::new(None);
    let follow = |guest: &Guest| -> Result<u8> {
        let begun = Instant::now();
        let mut running = command(guest).spawn()?;
        // Dropped before its end, it is killed.
        while lock(&first).and_then(|(_, end)| end).is_none_or(|end| Instant::now() < end) {
            if let Some(line) = running.next_line(Duration::from_millis(200))? {
                (*lock(&show))(guest.node(), line)?;
            } else if let Some(status) = running.ended() {
                return Ok(status.code());
            } else if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
                return Err(running.late(limit, String::new()));
            }
        }
        Ok(0)
    };
    std::thread::scope(|scope| {
        let thread = |guest| {
            let (first, follow) = (&first, &follow);
            scope.spawn(move || {
                let result = follow(guest);
                let (code, grace) = match &result {
                    Ok(code) => (*code, grace),
                    Err(e) => (e.exit_code(), grace.map(|_| Duration::ZERO)),
                };
                if code != 0 {
                    lock(first).get_or_insert((code, grace.map(|grace| Instant::now() + grace)));
                }
                result
            })
        };
        let threads: Vec<_> = guests.iter().map(thread).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result.map(drop),
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(lock(&first).map_or(0, |(code, _)| code))
}

/// Runs a program that measures, in all these guests. `read` takes in its results; all other lines are shown on stderr,
/// without those that begin a round if `quiet`. The exit code.
pub(super) fn measure(
    guests: &[Guest],
    user: User,
    program: &str,
    rounds: u32,
    arguments: &[&str],
    quiet: bool,
    mut read: impl FnMut(&str) -> bool + Send,
) -> Result<u8> {
    let rounds = rounds.to_string();
    let mut results = false;
    let command = |guest: &Guest| guest.argv(&[&[program, "--rounds", &rounds], arguments].concat()).user(user);
    let code = everywhere(guests, command, None, None, &mut |node, line| {
        match line {
            OutputLine::Stdout(text) if read(&text) => results = true,
            OutputLine::Stdout(text) if text.starts_with("ROUND") && quiet => {}
            OutputLine::Stdout(text) | OutputLine::Stderr(text) => eprintln!("[{node}] {text}"),
        }
        Ok(())
    })?;
    if code == 0 && !results {
        return Err(Error::Command { node: 0, command: program.into(), why: "it printed no results".into() });
    }
    Ok(code)
}
