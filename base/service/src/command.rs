// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the command of every server does alike: usage errors, the log, exit codes.

use std::ffi::OsString;
use std::fmt::Display;
use std::process::ExitCode;

use clap::Parser;
use log::{error, warn};

use crate::allocator;
use crate::logging::{self, LogFormat};

/// Exit code of a wrong command line or configuration file (also clap's).
const USAGE: u8 = 2;

/// Parses a command line, the program's name first; or prints help, version or what is wrong, and gives the exit code.
pub fn parse<C: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<C, ExitCode> {
    C::try_parse_from(args).map_err(|e| {
        // Help and version are no errors: clap chooses their stream and exit code.
        let _ = e.print();
        ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(USAGE))
    })
}

/// Says why the settings or arguments of `program` are refused; the exit code.
pub fn usage(program: &str, e: &impl Display) -> ExitCode {
    eprintln!("{program}: {e}\nTry {program} --help.");
    ExitCode::from(USAGE)
}

/// Starts a server: its log, `node`'s if it is one node's, by default from the level `info` on, and as text (see
/// [`logging::start`]), and its [allocator].
pub fn start(filter: Option<&str>, format: Option<LogFormat>, node: Option<u16>) {
    allocator::return_large_blocks();
    logging::start(filter, format.unwrap_or_default(), node);
}

/// Notifies the service manager that started this process (systemd, `Type=notify`), if one did, that its sockets take
/// connections.
pub fn ready() {
    if let Err(e) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        warn!("cannot notify the service manager at $NOTIFY_SOCKET: {e}");
    }
}

/// Logs the error that ended a server, if one did; the exit code.
pub fn exit_code(served: Result<(), impl Display>) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            error!("{e}");
            ExitCode::FAILURE
        }
    }
}
