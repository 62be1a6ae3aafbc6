// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos` as a process.
//!
//! | File | What it shows |
//! |---|---|
//! | `ctl` | `telegraphos ctl` and `telegraphos top`, against a fabric process |
//! | `detached` | the commands for detached clusters where there is none to use |
//! | `doctor` | what `telegraphos doctor` says, and what it does not |
//! | `replay` | `telegraphos replay` as a user runs it |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod ctl;
mod detached;
mod doctor;
mod replay;

use std::process::Command;
use telegraphos_testkit::Ended;

fn telegraphos() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telegraphos"));
    command.env_remove("RUST_LOG").stdin(std::process::Stdio::null());
    command
}

/// Exit code, output and errors.
fn ran(command: &mut Command) -> (Option<i32>, String, String) {
    let ended = Ended::of(command);
    (ended.code(), ended.stdout, ended.stderr)
}
