// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-hib`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use log::{error, warn};
use telegraphos_service::command;
use telegraphos_service::settings::SettingsError;
use telegraphos_service::shutdown::ShutdownHandle;

use crate::attach::{Attachment, Starter};
use crate::error::{ServeError, system};
use crate::guard::Guard;
use crate::settings::Settings;
use crate::shell::{Config, HibServer};

#[derive(Debug, Parser)]
#[command(
    name = "telegraphos-hib",
    version,
    about = "The host interface board of one virtual machine: a PCI device for QEMU, a node for the fabric",
    after_help = "\
Examples:
  telegraphos-fabric --listen /tmp/fabric.sock &
  telegraphos-hib --socket /tmp/hib0.sock --node 0 --fabric /tmp/fabric.sock
      Prints the options with which QEMU (10.1.1 or newer) gets the board; with --print libvirt or --print virtme-ng
      what those need.

  telegraphos-hib --config node0.toml --log debug
      The file has the same names: socket = \"/tmp/hib0.sock\", node = 0, ... The command line wins.

Exit codes: 0 stopped by SIGINT or SIGTERM, 1 error, 2 wrong usage or configuration."
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file with the same names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The command line, for manual pages and the completion of shells.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command: `args` starts with the program's name. Returns at a shutdown request or an error.
pub fn cli_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    configure(args).map_or_else(|code| code, |(config, starter)| command::exit_code(serve(config, starter)))
}

/// Starts the log and says how to serve, or the exit code where that is wrong.
fn configure(args: impl IntoIterator<Item = OsString>) -> Result<(Config, Starter), ExitCode> {
    let usage = |e| command::usage("telegraphos-hib", &e);
    let settings = load(command::parse(args)?).map_err(usage)?;
    command::start(settings.log.as_deref(), settings.log_format, settings.node);
    checked(&settings).map_err(usage)
}

fn serve(config: Config, starter: Starter) -> Result<(), ServeError> {
    // Before any thread is started.
    let guard = start_guard();
    let stop = ShutdownHandle::new().map_err(system("cannot create an event descriptor"))?;
    stop_on_signals(stop.clone())?;
    let attachment = Attachment::new(&config, starter);
    let spin = config.spin.unwrap_or(0);
    telegraphos_service::spin::warn_of_few_processors(spin, 3, "the board, its guest and the fabric");
    let mut server = HibServer::bind_with(config, stop, guard)?;
    attachment.print();
    command::ready();
    server.run()
}

/// Starts a guard, or logs why there is none. To be called before any thread is started.
pub fn start_guard() -> Option<Arc<Guard>> {
    Guard::start()
        .inspect_err(|e| warn!("if this process is killed, QEMU may abort: cannot start a guard: {e}"))
        .ok()
        .map(Arc::new)
}

/// The configuration of a board, and what starts its machine, from options of `telegraphos-hib` after the program's
/// name, for another program that serves boards; or what is wrong, printed, and the exit code. Options of the log are
/// refused: it is that program's.
pub fn configuration(args: impl IntoIterator<Item = OsString>) -> Result<(Config, Starter), ExitCode> {
    let usage = |e| command::usage("telegraphos-hib", &e);
    let settings = load(command::parse(args)?).map_err(usage)?;
    if settings.log.is_some() || settings.log_format.is_some() {
        let why = "boards of one process have one log: give these options before the first `--`";
        return Err(usage(SettingsError::refused("--log and --log-format", why)));
    }
    checked(&settings).map_err(usage)
}

fn checked(settings: &Settings) -> Result<(Config, Starter), SettingsError> {
    Ok((settings.config()?, settings.print.unwrap_or_default()))
}

fn load(cli: Cli) -> Result<Settings, SettingsError> {
    Ok(match &cli.config {
        Some(file) => cli.settings.over(Settings::from_file(file)?),
        None => cli.settings,
    })
}

fn stop_on_signals(handle: ShutdownHandle) -> Result<(), ServeError> {
    telegraphos_service::signals::on_stop(move || handle.shut_down()).map_err(|e| {
        error!("{e}");
        ServeError::System { what: "cannot handle SIGINT and SIGTERM", errno: rustix::io::Errno::INVAL }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
