// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-fabric`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use telegraphos_service::settings::{SettingsError, read};
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::{command, signals};

use crate::check;
use crate::settings::Settings;
use crate::shell::{Config, Fabric, FabricError, system};

#[derive(Debug, Parser)]
#[command(
    name = "telegraphos-fabric",
    version,
    about = "The switch between the host interface boards of one host",
    after_help = "\
Examples:
  telegraphos-fabric --listen /tmp/fabric.sock
  telegraphos-fabric --listen /tmp/fabric.sock --nodes 4 --log debug
  telegraphos-fabric --config fabric.toml
      The file has the same names: listen = \"/tmp/fabric.sock\", nodes = 4, ... The command line wins.
  telegraphos-fabric --check torus:4x4 --nodes 32
  telegraphos-fabric --check topology.toml --draw topology.svg
  telegraphos-fabric keys new-cluster keys && telegraphos-fabric keys new-process keys host-a
      A certificate authority for a cluster, and a certificate for one of its processes.

Exit codes: 0 stopped by SIGINT or SIGTERM, 1 error, 2 wrong usage or configuration."
)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
    /// Read settings from a TOML file with the same names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Check a topology, print a report and end: a TOML file, or star, tree:4x2, mesh:4x4, torus:4x4
    #[arg(long, value_name = "FILE|TOPOLOGY")]
    check: Option<String>,
    /// Write a drawing of the checked topology: FILE.svg, or FILE.dot for Graphviz
    #[arg(long, value_name = "FILE", requires = "check")]
    draw: Option<PathBuf>,
    #[cfg(feature = "quic")]
    #[command(subcommand)]
    command: Option<Command>,
}

#[cfg(feature = "quic")]
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make certificates and keys for trunks between hosts
    #[command(subcommand)]
    Keys(crate::keys::Keys),
}

impl Settings {
    /// Puts these settings, which the command line `args` of `C` has given, over those of a file, if there is one.
    pub fn complete<C: CommandFactory>(
        &mut self,
        file: Option<&Path>,
        args: Vec<OsString>,
    ) -> Result<(), SettingsError> {
        if let Some(file) = file {
            *self = read(file)?;
            // Parsed before without an error.
            let matches = C::command().get_matches_from(args);
            self.update_from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        }
        Ok(())
    }
}

/// The command line, for manual pages and the completion of shells.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command: `args` starts with the program's name. Returns after a signal or an error.
pub fn cli_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut cli: Cli = match command::parse(args.clone()) {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    #[cfg(feature = "quic")]
    if let Some(Command::Keys(keys)) = &cli.command {
        command::start(None, None, None);
        return command::exit_code(keys.run());
    }
    if let Some(from) = &cli.check {
        return match check::run(from, cli.settings.nodes, cli.draw.as_deref()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) if e.is_failure => {
                eprintln!("telegraphos-fabric: {e}");
                ExitCode::FAILURE
            }
            Err(e) => command::usage("telegraphos-fabric", &e),
        };
    }
    let completed = cli.settings.complete::<Cli>(cli.config.as_deref(), args);
    let config = match completed.and_then(|()| cli.settings.config()) {
        Ok(config) => config,
        Err(e) => return command::usage("telegraphos-fabric", &e),
    };
    command::start(cli.settings.log.as_deref(), cli.settings.log_format, None);
    command::exit_code(serve(config))
}

fn serve(config: Config) -> Result<(), FabricError> {
    // Signals first: there is no moment in which one would leave the socket behind.
    let stop = ShutdownHandle::new().map_err(system("create an event descriptor"))?;
    let handle = stop.clone();
    signals::on_stop(move || handle.shut_down()).map_err(|e| FabricError::Signals(e.to_string()))?;
    let fabric = Fabric::bind_with(config, stop)?;
    command::ready();
    fabric.run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use telegraphos_wire::WindowLayout;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fabric.toml");
        let text = "listen = \"/a\"\nnodes = 3\nnode-bits = 5\ncredits = 7\nreply-limit = 9\nfault = [\"a=down\"]\n\
                    capture-link = [\"node:1\", \"node:2\"]\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let args = ["fabric", "--listen", "/b", "--nodes", "4", "--capture-link", "node:3", "--config", file];
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let mut cli = Cli::try_parse_from(&args).unwrap();
        cli.settings.complete::<Cli>(cli.config.as_deref(), args).unwrap();
        assert_eq!(
            (cli.settings.fault.as_slice(), cli.settings.capture_link.as_slice()),
            (&["a=down".to_owned()][..], &["node:3".to_owned()][..])
        );
        cli.settings.fault.clear();
        let config = cli.settings.config().unwrap();
        assert_eq!(config.listen, Path::new("/b"));
        assert_eq!((config.nodes, config.credits, config.reply_limit), (4, 7, Some(9)));
        assert_eq!(config.window, Some(WindowLayout { node_bits: 5, offset_bits: 26 }));
    }
}
