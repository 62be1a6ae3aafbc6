// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos run`: one command in every guest, all output as it comes, until a process, a kernel or a guest ends or
//! hangs under it.

use super::{Context, written};
use crate::report::{Files, Recorder};
use crate::{Cluster, Error, Guest, GuestCommand, OutputLine, Result, Status, User, joined, lock};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_millis(100);
/// A command in a guest that fails because the guest did may fail so long before the reason is found.
const REASON: Duration = Duration::from_secs(2);

/// What is run, how, and what is written about it.
pub(super) struct Program<'a> {
    pub(super) argv: &'a [String],
    pub(super) user: User,
    pub(super) lab: bool,
    pub(super) limit: Option<Duration>,
    pub(super) reports: Files,
}

/// Boots and runs; the first exit code that is not 0. The reports are written however that ends.
pub(super) fn run(context: Context, program: &Program<'_>) -> Result<u8> {
    program.reports.check()?;
    let mut recorder = Recorder::new(context.settings.node_names(), program.argv);
    let result = run_recorded(context, program, &mut recorder);
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

fn run_recorded(context: Context, program: &Program<'_>, recorder: &mut Recorder) -> Result<u8> {
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
    watched(&cluster, || everywhere(cluster.guests(), command, program.limit, None, &mut show))
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
/// `limit`. With `grace`, the others are killed so long after one has failed, or at once if it was not followed to its
/// end.
pub(super) fn everywhere(
    guests: &[Guest],
    command: impl Fn(&Guest) -> GuestCommand + Sync,
    limit: Option<Duration>,
    grace: Option<Duration>,
    show: &mut (dyn FnMut(usize, Event<'_>) -> Result<()> + Send),
) -> Result<u8> {
    let show = Mutex::new(show);
    // The exit code of the first to fail, and when the others end.
    let first: Mutex<Option<(u8, Option<Instant>)>> = Mutex::new(None);
    // None of a command that another's end has ended.
    let follow = |guest: &Guest| -> Result<Option<Status>> {
        let begun = Instant::now();
        let mut running = command(guest).spawn()?;
        // Dropped before its end, it is killed.
        while lock(&first).and_then(|(_, end)| end).is_none_or(|end| Instant::now() < end) {
            if let Some(line) = running.next_line(Duration::from_millis(200))? {
                (*lock(&show))(guest.node(), Event::Line(line))?;
            } else if let Some(status) = running.ended() {
                return Ok(Some(status));
            } else if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
                return Err(running.late(limit, String::new()));
            }
        }
        Ok(None)
    };
    std::thread::scope(|scope| {
        let thread = |guest| {
            let (first, follow, show) = (&first, &follow, &show);
            scope.spawn(move || {
                let Some(result) = follow(guest).transpose() else { return Ok(()) };
                let (code, grace) = match &result {
                    Ok(status) => (status.code(), grace),
                    Err(e) => (e.exit_code(), grace.map(|_| Duration::ZERO)),
                };
                if code != 0 {
                    lock(first).get_or_insert((code, grace.map(|grace| Instant::now() + grace)));
                }
                let shown = (*lock(show))(guest.node(), Event::End(&result));
                result.and(shown)
            })
        };
        let threads: Vec<_> = guests.iter().map(thread).collect();
        threads.into_iter().try_for_each(joined)
    })?;
    Ok(lock(&first).map_or(0, |(code, _)| code))
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
    let code = everywhere(guests, command, None, None, &mut |node, event| {
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
