// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos run`: one command in every guest, all output as it comes, until a process, a kernel or a guest ends or
//! hangs under it.

use super::input::{self, Feed, Wanted};
use super::{Context, written};
use crate::command::Running;
use crate::report::{Files, Recorder};
use crate::stopwatch::Stopwatch;
use crate::{Cluster, Error, Guest, GuestCommand, OutputLine, Result, Status, User, joined, lock};
use std::ffi::OsString;
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the cluster, and what a command does, is looked at.
const EVERY: Duration = Duration::from_millis(100);
/// How often the same is done while there is standard input.
const INPUT: Duration = Duration::from_millis(20);
/// ... and while it comes.
const BUSY: Duration = Duration::from_millis(1);
/// A command in a guest that fails because the guest did may fail so long before the reason is found.
const REASON: Duration = Duration::from_secs(2);

/// What is run, how, and what is written about it.
pub(super) struct Program<'a> {
    pub(super) argv: &'a [OsString],
    pub(super) user: User,
    pub(super) lab: bool,
    pub(super) limit: Option<Duration>,
    pub(super) stdin: Option<Wanted>,
    pub(super) reports: Files,
}

/// Refuses what cannot be run, whatever is booted.
pub(super) fn check(context: &Context, program: &Program<'_>) -> Result<()> {
    program.reports.check()?;
    input::receivers(program.stdin.as_ref(), &context.settings.node_names()).map(drop)
}

/// Of wrong usage, with `--bisect`, and of what could not be tested.
pub(super) const BISECT_USAGE: u8 = 255;
pub(super) const BISECT_SKIP: u8 = 125;

/// What `git bisect run` understands. It takes 1 to 124, 126 and 127 for a bad revision, 125 for one that cannot be
/// tested, and ends at anything else: so a kernel's fault is 1, and ours is 125.
pub(super) fn bisected(result: &Result<u8>) -> u8 {
    match result {
        // A command that knows this code means it.
        Ok(code @ (0 | BISECT_SKIP)) => *code,
        Ok(_) => 1,
        // The kernel's, also where its boot has not come to its end.
        Err(Error::Dead { .. } | Error::Late { .. } | Error::TimedOut { node: Some(_), .. } | Error::Failed { .. }) => {
            1
        }
        Err(Error::Interrupted) => 130,
        Err(_) => BISECT_SKIP,
    }
}

/// Boots and runs what [`check`] has not refused; the first exit code that is not 0. The reports are written however
/// that ends.
pub(super) fn run(context: Context, program: &Program<'_>) -> Result<u8> {
    let names = context.settings.node_names();
    let mut recorder = Recorder::new(names.clone(), program.argv);
    let result = run_recorded(context, program, &names, &mut recorder);
    let written = program.reports.write(recorder, &result);
    match (result, written) {
        (result, Ok(())) => result,
        (Ok(0), Err(e)) => Err(e),
        (result, Err(e)) => {
            super::complain(&e);
            result
        }
    }
}

fn run_recorded(context: Context, program: &Program<'_>, names: &[String], recorder: &mut Recorder) -> Result<u8> {
    let cluster = context.boot(|node| node.lab = program.lab)?;
    if context.progress != crate::ProgressMode::Silent {
        eprint!("{}", cluster.manifest());
    }
    let command = |guest: &Guest| guest.argv(program.argv).user(program.user);
    let labels: Vec<String> = cluster.guests().iter().map(|guest| guest.label().short()).collect();
    recorder.begin(cluster.guests().iter().map(|guest| guest.greeting().0));
    let mut show = |node, event: Event<'_>| {
        let line = match event {
            Event::Line(line) => line,
            Event::End(result) => {
                recorder.ended(node, result);
                return Ok(());
            }
        };
        if program.reports.wanted() {
            recorder.line(node, &line);
        }
        let node = &labels[node];
        written(match line {
            OutputLine::Stdout(text) if !program.reports.take_stdout() => {
                writeln!(std::io::stdout(), "[{node}] {text}")
            }
            OutputLine::Stdout(text) | OutputLine::Stderr(text) => writeln!(std::io::stderr(), "[{node}] {text}"),
        })
    };
    // Data may have come while the guests booted.
    let feeds = input::feeds(&input::receivers(program.stdin.as_ref(), names)?)?;
    watched(&cluster, || everywhere(cluster.guests(), command, program.limit, feeds, &mut show))
}

/// Raises the flag also when the work panics.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does `work` with the cluster. If a part of the cluster ends meanwhile, all guests are ended, so that `work` ends,
/// and the error says what it was.
fn watched<T>(cluster: &Cluster, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            loop {
                if let Err(e) = cluster.check_strictly() {
                    cluster.guests().iter().for_each(Guest::kill_qemu);
                    return Err(e);
                }
                if done.load(Ordering::Acquire) {
                    return Ok(());
                }
                std::thread::sleep(EVERY);
            }
        });
        let raise = Raise(&done);
        let result = work();
        if matches!(result, Err(Error::Command { .. })) {
            let begun = Instant::now();
            while !watcher.is_finished() && begun.elapsed() < REASON {
                std::thread::sleep(EVERY / 5);
            }
        }
        drop(raise);
        joined(watcher).and(result)
    })
}

/// What is new of a command in one guest.
pub(super) enum Event<'a> {
    Line(OutputLine),
    /// It has ended, or cannot be followed.
    End(&'a Result<Status>),
}

/// Runs `command` in all these guests at once; the exit code of the first to fail, or 0. A command is killed after
/// `limit`, and has what is in `feeds` of standard input, by the place of its guest.
pub(super) fn everywhere(
    guests: &[Guest],
    command: impl Fn(&Guest) -> GuestCommand + Sync,
    limit: Option<Duration>,
    mut feeds: Vec<Option<Feed>>,
    show: &mut (dyn FnMut(usize, Event<'_>) -> Result<()> + Send),
) -> Result<u8> {
    let show = Mutex::new(show);
    // The exit code of the first to fail.
    let first: Mutex<Option<u8>> = Mutex::new(None);
    let line = |guest: &Guest, line| (*lock(&show))(guest.node(), Event::Line(line));
    let follow = |guest: &Guest, running: &mut Running, mut feed: Option<Feed>| -> Result<Status> {
        let mut begun = Stopwatch::start();
        loop {
            let turn = match feed.as_mut().map(|feed| feed.turn(running)).transpose()? {
                Some(true) => BUSY,
                Some(false) => INPUT,
                None => EVERY,
            };
            if let Some(text) = running.next_line(turn)? {
                line(guest, text)?;
            } else if let Some(status) = running.ended() {
                return Ok(status);
            }
            if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
                return Err(running.late(limit, String::new()));
            }
        }
    };
    let run = |guest: &Guest, feed: Option<Feed>| -> Result<Status> {
        let command = command(guest);
        let mut running = if feed.is_some() { command.keep_input_open() } else { command }.with_returns().spawn()?;
        let result = follow(guest, &mut running, feed);
        // What was written last says most about a command that could not be followed.
        running.rest().into_iter().try_for_each(|text| line(guest, text))?;
        result
    };
    feeds.resize_with(guests.len(), || None);
    std::thread::scope(|scope| {
        let thread = |(guest, feed)| {
            let (first, run, show) = (&first, &run, &show);
            scope.spawn(move || {
                let result = run(guest, feed);
                let code = result.as_ref().map_or_else(Error::exit_code, |status| status.code());
                if code != 0 {
                    lock(first).get_or_insert(code);
                }
                let shown = (*lock(show))(guest.node(), Event::End(&result));
                result.and(shown)
            })
        };
        let threads: Vec<_> = guests.iter().zip(feeds).map(thread).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(lock(&first).unwrap_or(0))
}

/// Runs a program that measures, in all these guests. `read` takes in its results; all other lines are shown on stderr,
/// without those that begin a round if `quiet`. The exit code.
pub fn measure(
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
    let code = everywhere(guests, command, None, Vec::new(), &mut |node, event| {
        let Event::Line(line) = event else { return Ok(()) };
        match line {
            OutputLine::Stdout(text) if read(&text) => results = true,
            OutputLine::Stdout(text) if text.starts_with("ROUND") && quiet => {}
            OutputLine::Stdout(text) | OutputLine::Stderr(text) => eprintln!("[{node}] {text}"),
        }
        Ok(())
    })?;
    if code == 0 && !results {
        return Err(Error::Command { node: 0.into(), command: program.into(), why: "it printed no results".into() });
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_for_a_search_are_those_that_git_understands() {
        let node = || 0.into();
        let (what, tail) = (String::new, String::new);
        let dead = || Error::Dead { node: node(), what: what(), tail: tail() };
        let limit = Duration::ZERO;
        let late = Error::Late { node: node(), command: what(), limit, output: what() };
        let boot = Error::TimedOut { what: what(), node: Some(0), limit, remedy: "", tail: tail() };
        let ours = Error::TimedOut { what: what(), node: None, limit, remedy: "", tail: tail() };
        let missing = Error::NotStarted { node: node(), command: what(), why: what(), code: 127 };
        let usage = Error::Usage("there is no bzImage in ~/linux".into());
        for (result, code) in [
            (Ok(0), 0),
            (Ok(1), 1),
            (Ok(125), 125),
            (Ok(254), 1),
            (Err(dead()), 1),
            (Err(late), 1),
            (Err(boot), 1),
            (Err(ours), 125),
            (Err(missing), 125),
            (Err(usage), 125),
            (Err(Error::ended("QEMU", "exit code 1", "at its start", tail())), 125),
            (Err(Error::Interrupted), 130),
        ] {
            assert_eq!(bisected(&result), code, "{result:?}");
        }
    }
}
