// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos run`: one command in every guest, all output as it comes.

use super::{Context, written};
use crate::{Guest, OutputLine, Result, Status, User};
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Boots and runs; the first exit code that is not 0.
pub(super) fn run(context: Context, user: User, lab: bool, limit: Option<Duration>, argv: &[String]) -> Result<u8> {
    let cluster = context.boot(|node| node.lab = lab)?;
    if context.progress != crate::ProgressMode::Silent {
        eprint!("{}", cluster.manifest());
    }
    everywhere(cluster.guests(), user, limit, argv, &mut |node, line| {
        written(match line {
            OutputLine::Stdout(text) => writeln!(std::io::stdout(), "[{node}] {text}"),
            OutputLine::Stderr(text) => writeln!(std::io::stderr(), "[{node}] {text}"),
        })
    })
}

/// Runs a command in all these guests at once; the exit code of the first to fail, or 0.
pub(super) fn everywhere(
    guests: &[Guest],
    user: User,
    limit: Option<Duration>,
    argv: &[String],
    show: &mut (dyn FnMut(usize, OutputLine) -> Result<()> + Send),
) -> Result<u8> {
    let show = Mutex::new(show);
    let first = Mutex::new(None);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = guests
            .iter()
            .map(|guest| {
                let (show, first) = (&show, &first);
                scope.spawn(move || {
                    let show = |line| {
                        let mut show = show.lock().unwrap_or_else(PoisonError::into_inner);
                        (*show)(guest.node(), line)
                    };
                    let result = follow(guest, user, limit, argv, show);
                    let code = match &result {
                        Ok(status) => status.code(),
                        Err(e) => e.exit_code(),
                    };
                    if code != 0 {
                        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(code);
                    }
                    result
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => drop(result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    })?;
    Ok(first.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(0))
}

fn follow(
    guest: &Guest,
    user: User,
    limit: Option<Duration>,
    argv: &[String],
    mut show: impl FnMut(OutputLine) -> Result<()>,
) -> Result<Status> {
    let begun = Instant::now();
    let mut running = guest.argv(argv).user(user).spawn()?;
    loop {
        if let Some(line) = running.next_line(Duration::from_millis(500))? {
            show(line)?;
        } else if let Some(status) = running.ended() {
            return Ok(status);
        } else if limit.is_some_and(|limit| begun.elapsed() > limit) {
            // The error names the limit; dropping it kills it.
            return Ok(running.wait_for(Duration::ZERO)?.status);
        }
    }
}
