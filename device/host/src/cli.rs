// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-host`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{CommandFactory, Parser};
use telegraphos_device::cli::{configuration, start_guard};
use telegraphos_device::direct::{GroupMemory, MemoryServer, TrustGroup, memory_socket};
use telegraphos_device::{Attachment, HibServer, Starter};
use telegraphos_fabric::{Fabric, FabricError};
use telegraphos_service::settings::SettingsError;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::spin::warn_of_few_processors;
use telegraphos_service::{command, signals};

use crate::{Host, HostError, MAX_BOARDS, Serving, Threads};

/// The name of the program, in usage errors.
const PROGRAM: &str = "telegraphos-host";
/// What separates the options of the boards.
const SEPARATOR: &str = "--";

#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version,
    about = "The boards of a host's virtual machines and the switch between them, in one process",
    override_usage = "telegraphos-host [OPTIONS] -- [OPTIONS OF telegraphos-hib] [-- ...]",
    after_help = "\
Examples:
  telegraphos-host --listen /tmp/fabric.sock -- --socket /tmp/hib0.sock --node 0 -- --socket /tmp/hib1.sock --node 1
      Prints for each node the options with which QEMU (10.1.1 or newer) gets its board, or, with --print among the
      board's options, what libvirt or virtme-ng need. HIBs of other processes may
      join at /tmp/fabric.sock as with telegraphos-fabric, which has the same options.

  telegraphos-host --config fabric.toml -- --config node0.toml -- --config node1.toml
      The files are those of telegraphos-fabric and of telegraphos-hib; `fabric` is not needed for a board.

  telegraphos-host --listen /tmp/fabric.sock --trust lab=0-1:64 -- --socket /tmp/hib0.sock --node 0 -- --socket ...
      The guests of nodes 0 and 1 have 64 MiB each in common. The memory device listens at /tmp/hib0.sock.memory.

Exit codes: 0 stopped by SIGINT or SIGTERM, 1 error, 2 wrong usage or configuration."
)]
struct Cli {
    #[command(flatten)]
    fabric: telegraphos_fabric::Settings,
    /// Read the fabric's settings from a TOML file with the same names
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Nodes of this process that trust each other, as NAME=NODES:MIB (lab=0,2-3:64): each gets a memory device with
    /// that much memory, which all of them access directly, whatever they grant each other. May be given several times
    #[arg(long, value_name = "GROUP")]
    trust: Vec<TrustGroup>,
    /// Threads that serve: one for all, or one for the fabric and others among which the boards are divided. `auto` is
    /// one for each board where there is a processor for each of them, for each guest and for the fabric, and else one
    /// for all
    #[arg(long, value_name = "N", default_value = "auto")]
    threads: Threads,
    /// The options of each board, as telegraphos-hib has them; `--` stands between two boards
    #[arg(last = true, value_name = "OPTIONS OF A BOARD")]
    boards: Vec<OsString>,
}

/// All configurations of a process.
struct Configs {
    fabric: telegraphos_fabric::Config,
    /// With what starts the machine of each.
    boards: Vec<(telegraphos_device::Config, Starter)>,
    trust: Vec<TrustGroup>,
    threads: Threads,
}

/// The command line, for manual pages and the completion of shells.
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command: `args` starts with the program's name. Returns at a shutdown request or an error.
pub fn cli_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    configure(args.into_iter().collect()).map_or_else(|code| code, |configs| command::exit_code(serve(configs)))
}

/// Starts the log and says what to serve, or the exit code where that is wrong.
fn configure(args: Vec<OsString>) -> Result<Configs, ExitCode> {
    let usage = |e: SettingsError| command::usage(PROGRAM, &e);
    let mut cli: Cli = command::parse(args.clone())?;
    cli.fabric.complete::<Cli>(cli.config.as_deref(), args).map_err(usage)?;
    let fabric = cli.fabric.config().map_err(usage)?;
    let groups: Vec<&[OsString]> = cli.boards.split(|arg| arg == SEPARATOR).filter(|group| !group.is_empty()).collect();
    if groups.len() > MAX_BOARDS {
        return Err(command::usage(PROGRAM, &HostError::TooMany(groups.len())));
    }
    let mut boards = Vec::new();
    let mut nodes = BTreeSet::new();
    for group in groups {
        let named = [OsStr::new("telegraphos-hib"), OsStr::new("--fabric"), fabric.listen.as_os_str()];
        let board = configuration(named.into_iter().chain(group.iter().map(OsString::as_os_str)).map(OsStr::to_owned))?;
        let node = board.0.hib.node;
        if !nodes.insert(node) {
            let why = format!("{node} is given to two boards; expected a number of its own for each");
            return Err(usage(SettingsError::refused("--node", why)));
        }
        boards.push(board);
    }
    TrustGroup::check_all(&cli.trust).map_err(|e| usage(SettingsError::refused("--trust", e)))?;
    for group in &cli.trust {
        if let Some(node) = group.nodes.iter().find(|node| !nodes.contains(node)) {
            let why = format!("trust group {:?}: node {node} has no board in this process", group.name);
            return Err(usage(SettingsError::refused("--trust", why)));
        }
    }
    command::start(cli.fabric.log.as_deref(), cli.fabric.log_format, None);
    Ok(Configs { fabric, boards, trust: cli.trust, threads: cli.threads })
}

fn serve(Configs { fabric, boards, trust, threads }: Configs) -> Result<(), HostError> {
    // Before any thread is started.
    let guard = start_guard();
    // Signals before sockets: there is no moment in which one would leave a socket behind.
    let stop = ShutdownHandle::new().map_err(HostError::Wait)?;
    let handle = stop.clone();
    signals::on_stop(move || handle.shut_down()).map_err(|e| FabricError::Signals(e.to_string()))?;
    let fabric = Fabric::bind_with(fabric, stop)?;
    let serving = Serving::suitable(threads, boards.len());
    let spin = boards.iter().map(|(config, _)| config.spin.unwrap_or(serving.spin)).max().unwrap_or(0);
    let what = match serving.threads {
        1 => format!("{} guests and the loop of their boards", boards.len()),
        loops => format!("{} guests and {loops} loops of their boards and the fabric", boards.len()),
    };
    warn_of_few_processors(spin, boards.len() + serving.threads, &what);
    let groups: Vec<Arc<GroupMemory>> =
        trust.into_iter().map(GroupMemory::create).collect::<Result<_, _>>().map_err(HostError::Memory)?;
    let (mut servers, mut memories) = (Vec::new(), Vec::new());
    for (mut config, starter) in boards {
        let node = config.hib.node;
        let mut attachment = Attachment::new(&config, starter);
        let failed = |source| HostError::Board { node, source };
        config.direct = groups.iter().find_map(|group| group.member(node));
        if let Some(member) = config.direct.clone() {
            let socket = memory_socket(&config.socket);
            attachment.add(&socket);
            memories.push(MemoryServer::bind(&socket, member, guard.clone()).map_err(failed)?);
        }
        // Boards end with the fabric: no caller has a handle of their own.
        let stop = ShutdownHandle::new().map_err(HostError::Wait)?;
        servers.push((node, HibServer::bind_with(config, stop, guard.clone()).map_err(failed)?));
        attachment.print();
    }
    let mut host = Host::with(fabric, servers, memories, serving)?;
    command::ready();
    host.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(args: &[&str]) -> Result<Configs, ExitCode> {
        configure(args.iter().map(OsString::from).collect())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_each_board_stand_behind_a_separator() {
        let line = ["x", "--listen", "/f", "--nodes", "4", "--", "--socket", "/a", "--node", "0"];
        let second = ["--", "--socket", "/b", "--node", "3", "--load-limit-ms", "7", "--print", "libvirt"];
        let configs = of(&[&line[..], &second].concat()).unwrap();
        assert_eq!((configs.fabric.nodes, configs.boards.len()), (4, 2));
        let (b, starter) = &configs.boards[1];
        assert_eq!((configs.boards[0].1, *starter), (Starter::Qemu, Starter::Libvirt));
        assert_eq!((b.fabric.to_str(), b.socket.to_str()), (Some("/f"), Some("/b")));
        assert_eq!((b.hib.node, b.hib.load_limit), (3, 7000));
        assert!(of(&line[..5]).unwrap().boards.is_empty());
    }

    #[test]
    fn what_cannot_be_is_a_usage_error() {
        let board = |node: &'static str| ["--", "--socket", "/a", "--node", node];
        let with = |boards: &[&[&'static str]]| of(&[&["x", "--listen", "/f"][..], &boards.concat()].concat());
        assert!(with(&[&board("1"), &board("1")]).is_err(), "a node twice");
        assert!(with(&[&["--", "--socket", "/a", "--node", "0", "--log", "debug"]]).is_err(), "two logs");
        assert!(with(&[&["--", "--socket", "/a"]]).is_err(), "no node");
        assert!(with(&[&["--", "--socket", "/a", "--node", "0", "--fabric", "/g"]]).is_err(), "another fabric");
        let trust = |group: &'static str| with(&[&["--trust", group], &board("1"), &board("2")]);
        assert_eq!(trust("lab=1-2:64").unwrap().trust[0].nodes, [1, 2]);
        assert!(trust("lab=1,3:64").is_err(), "node 3 is elsewhere");
        assert!(trust("lab=1,1:64").is_err(), "a member twice");
        assert!(trust("lab").is_err(), "no group");
        let many: Vec<String> = (0..=MAX_BOARDS).map(|node| node.to_string()).collect();
        let many: Vec<&str> = many.iter().flat_map(|node| ["--", "--socket", "/a", "--node", node]).collect();
        assert!(of(&[&["x", "--listen", "/f"][..], &many].concat()).is_err(), "too many");
    }
}
