// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `tgd`, `tg-spawn` and `tg-task` share: how they end.

use crate::Error;
use std::process::ExitCode;

/// Why a program ends early.
#[derive(Debug)]
pub enum Failure {
    /// It was started wrongly.
    Usage(String),
    /// It could not do what it was asked for.
    Failed(String),
}

impl From<lexopt::Error> for Failure {
    fn from(error: lexopt::Error) -> Failure {
        Failure::Usage(error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Failed(error.to_string())
    }
}

/// Runs a program: says why it fails, and ends with `failed` then, or with 2 after a wrong use.
pub fn run(name: &str, failed: u8, main: impl FnOnce() -> Result<ExitCode, Failure>) -> ExitCode {
    match main() {
        Ok(code) => code,
        Err(Failure::Usage(why)) => {
            eprintln!("{name}: {why}; see {name} --help");
            ExitCode::from(2)
        }
        Err(Failure::Failed(why)) => {
            eprintln!("{name}: {why}");
            ExitCode::from(failed)
        }
    }
}
