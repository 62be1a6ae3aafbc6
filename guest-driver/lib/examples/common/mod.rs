// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all examples share: the command line, exit codes, and patience with nodes that come later. Their `main` and
//! `USAGE` are visible, since in guests they are parts of one program (`guest-driver/programs/src/bin/tg`).

use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::{Error, Status};

/// How long the others may take to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Why an example ends early.
pub(crate) enum Failure {
    /// What arrived is not what was sent: exit code 1.
    Wrong(String),
    /// The board, the driver or another node refused: exit code 3.
    Refused(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Refused(error)
    }
}

/// Runs an example that takes `N` numbers, of which those missing have these defaults.
pub(crate) fn main<const N: usize>(
    usage: &str,
    defaults: [Option<u64>; N],
    run: impl FnOnce([u64; N]) -> Result<(), Failure>,
) -> ExitCode {
    let name = std::env::args().next().unwrap_or_default();
    let name = name.rsplit('/').next().unwrap_or_default();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|a| a == "-h" || a == "--help") {
        print!("{usage}");
        return ExitCode::SUCCESS;
    }
    let mut numbers = defaults;
    for (index, text) in arguments.iter().enumerate() {
        match (numbers.get_mut(index), text.parse()) {
            (Some(place), Ok(number)) => *place = Some(number),
            _ => {
                eprintln!("{name}: {text:?} is not expected; `{name} --help` shows more");
                return ExitCode::from(2);
            }
        }
    }
    if numbers.contains(&None) {
        eprintln!("{name}: a number is missing; `{name} --help` shows more");
        return ExitCode::from(2);
    }
    match run(numbers.map(Option::unwrap_or_default)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Wrong(text)) => {
            eprintln!("{name}: {text}");
            ExitCode::from(1)
        }
        Err(Failure::Refused(error)) => {
            eprintln!("{name}: {error}");
            ExitCode::from(3)
        }
    }
}

/// Imports something once its owner has come.
pub(crate) fn patiently<T>(import: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match import() {
            Err(error)
                if matches!(error.status(), Some(Status::NoSegment | Status::NodeDown | Status::LinkDown))
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}
