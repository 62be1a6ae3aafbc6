// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos ctl`: queries a running fabric and sets its faults.

mod show;

use self::show::show;
use super::terminal::readable;
use super::{control, print, usage, written};
use crate::{Error, Result};
use clap::{Args, Subcommand, ValueEnum};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;
use telegraphos_fabric::control::protocol::SLOW;
use telegraphos_fabric::control::target::{Unknown, parse_time};
use telegraphos_fabric::control::{FaultSpec, Request, Response, Target};

pub(super) const EXAMPLES: &str = "Examples:
  telegraphos ctl status
  telegraphos ctl --control /tmp/fabric.control statistics --json
  telegraphos ctl faults set trunk:s0-s1 latency=5ms jitter=1ms loss=2%
  telegraphos ctl faults clear all
  telegraphos ctl link node:3 down
  telegraphos ctl partition '0,1|2,3'         switches 0 and 1 are cut off from 2 and 3
  telegraphos ctl heal
  telegraphos ctl slow 3 16kB/s               node 3 takes 16 000 bytes per second
  telegraphos ctl crash 3                     and `restore 3`
  telegraphos ctl capture start links.pcapng --on links
  telegraphos ctl log warn,telegraphos_fabric=debug

LINK is all, links, trunks, node:N (or N) or trunk:NAME (or NAME, such as s0-s1 or 0-1).

Exit codes: 0 done; 1 the fabric refused it; 2 wrong usage; 3 there is no such fabric, or it did not answer.";

#[derive(Debug, Args)]
pub(super) struct CtlArgs {
    /// The fabric's control socket [default: that of the one cluster that runs here]
    #[arg(long, global = true, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Prints the answer as it comes: one line of JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The state of the fabric in short
    Status,
    /// Everything that is counted
    Statistics,
    /// Everything that is counted, again and again, as lines of JSON
    Watch {
        /// Time between two lines, from 50ms
        #[arg(long, default_value = "1s", value_name = "TIME", value_parser = parse_time)]
        every: u64,
    },
    /// Switches, nodes and trunks
    Topology,
    /// What is made to go wrong; sets or ends faults
    Faults {
        #[command(subcommand)]
        command: Option<FaultsCommand>,
    },
    /// Takes links or trunks down, or lets them up
    Link {
        /// Which
        #[arg(value_name = "LINK", value_parser = target)]
        on: Target,
        /// What they are to be
        state: LinkState,
    },
    /// Cuts groups of switches off from each other
    Partition {
        /// Groups with | between them, switches with commas: '0,1|2'
        #[arg(value_parser = groups)]
        // Written so, it is one argument for clap.
        groups: std::vec::Vec<Vec<String>>,
    },
    /// Ends the partition
    Heal,
    /// Makes a node slow to take what is sent to it
    Slow {
        /// The node
        node: u16,
        /// Bytes per second, such as 64kB/s, or off [default: 64kB/s]
        #[arg(value_parser = speed)]
        // Written so, clap takes the inner one as a value: none is as fast as ever.
        bytes: Option<std::option::Option<u64>>,
    },
    /// Cuts a node off and keeps it out
    Crash {
        /// The node
        node: u16,
    },
    /// Lets a crashed node in again
    Restore {
        /// The node
        node: u16,
    },
    /// Begins or ends writing packets to a pcapng file
    Capture {
        #[command(subcommand)]
        command: CaptureCommand,
    },
    /// Changes what the fabric logs
    Log {
        /// off, error, warn, info, debug, trace, or TARGET=LEVEL with commas
        level: String,
    },
}

#[derive(Debug, Subcommand)]
enum FaultsCommand {
    /// What is made to go wrong
    List,
    /// Sets all faults of links or trunks, in place of those before
    Set {
        /// Which
        #[arg(value_name = "LINK", value_parser = target)]
        on: Target,
        /// loss=5%, corrupt=1%, duplicate=1%, reorder=1%, latency=2ms, jitter=500us, rate=10MB/s, down, only=send,
        /// only=receive
        #[arg(required = true, value_name = "FAULT")]
        faults: Vec<String>,
    },
    /// Ends the faults of links or trunks
    Clear {
        /// Which
        #[arg(value_name = "LINK", value_parser = target)]
        on: Target,
    },
}

#[derive(Debug, Subcommand)]
enum CaptureCommand {
    /// Begins to write packets to a new file; ends an earlier capture
    Start {
        /// The file, on the machine of the fabric
        file: PathBuf,
        /// Which links and trunks
        #[arg(long, value_name = "LINK", value_parser = target, default_value = "all")]
        on: Target,
    },
    /// Ends the capture
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LinkState {
    Down,
    Up,
}

/// A link, also without what a number or a name cannot be mistaken for.
fn target(text: &str) -> std::result::Result<Target, String> {
    let plain = !text.contains(':') && !["all", "links", "trunks"].contains(&text);
    let full = match text.parse::<u16>() {
        Ok(_) => format!("node:{text}"),
        Err(_) if plain && text.contains('-') => format!("trunk:{text}"),
        Err(_) => text.to_owned(),
    };
    full.parse().map_err(|e: Unknown| e.to_string())
}

fn groups(text: &str) -> std::result::Result<Vec<Vec<String>>, String> {
    let groups: Vec<Vec<String>> =
        text.split('|').map(|group| group.split(',').map(|s| s.trim().to_owned()).collect()).collect();
    if groups.len() < 2 || groups.iter().flatten().any(String::is_empty) {
        return Err(format!("{text:?} is no partition: expected switches such as '0,1|2,3'"));
    }
    Ok(groups)
}

/// Bytes per second; none for as fast as ever.
fn speed(text: &str) -> std::result::Result<Option<u64>, String> {
    match text {
        "off" => Ok(None),
        text => match format!("rate={text}").parse::<FaultSpec>() {
            Ok(FaultSpec(plan)) => Ok(plan.rate),
            Err(e) => Err(format!("{e}, or off")),
        },
    }
}

/// The request of a command. A file's path is made absolute, for the fabric has another directory.
fn request(command: Command) -> Result<Request> {
    Ok(match command {
        Command::Status => Request::Status {},
        Command::Statistics => Request::Statistics {},
        Command::Watch { every } => Request::Watch { every_ms: every.div_ceil(1000) },
        Command::Topology => Request::Topology {},
        Command::Faults { command: None | Some(FaultsCommand::List) } => Request::Faults {},
        Command::Faults { command: Some(FaultsCommand::Set { on, faults }) } => {
            let faults = faults.join(" ").parse::<FaultSpec>().map_err(usage)?;
            Request::SetFaults { on, faults }
        }
        Command::Faults { command: Some(FaultsCommand::Clear { on }) } => Request::ClearFaults { on },
        Command::Link { on, state } => Request::Link { on, up: state == LinkState::Up },
        Command::Partition { groups } => Request::Partition { groups },
        Command::Heal => Request::Heal {},
        Command::Slow { node, bytes } => Request::Slow { node, bytes_per_second: bytes.unwrap_or(Some(SLOW)) },
        Command::Crash { node } => Request::Crash { node },
        Command::Restore { node } => Request::Restore { node },
        Command::Capture { command: CaptureCommand::Stop } => Request::CaptureStop {},
        Command::Capture { command: CaptureCommand::Start { file, on } } => {
            let file = std::path::absolute(&file).map_err(Error::io("cannot find", &file))?;
            match file.to_str() {
                Some(file) => Request::CaptureStart { file: file.to_owned(), on },
                None => return Err(Error::Usage(format!("{} is not UTF-8: choose another name", file.display()))),
            }
        }
        Command::Log { level } => Request::Log { level },
    })
}

pub(super) fn ctl(args: CtlArgs) -> Result<u8> {
    let request = request(args.command)?;
    let mut client = control::connect(args.control.as_deref())?;
    let mut out = std::io::stdout();
    if let Request::Watch { .. } = request {
        let mut line = client.request(&request)?.line();
        loop {
            written(out.write_all(line.as_bytes()).and_then(|()| out.flush()))?;
            line = next(&mut client)?.line();
        }
    }
    let response = client.request(&request)?;
    print(&if args.json { response.line() } else { show(&response) })?;
    Ok(0)
}

/// The next answer of a watch, however long it takes, unless a signal comes.
fn next(client: &mut telegraphos_fabric::control::ControlClient) -> Result<Response> {
    loop {
        crate::check_interrupt()?;
        let wait = readable([client.stream().as_fd()], Duration::from_millis(200));
        if wait.map_err(Error::io("cannot wait for", "the fabric"))? == [true] {
            return Ok(client.next_answer()?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: CtlArgs,
    }

    fn parse(line: &str) -> std::result::Result<Request, String> {
        let words = std::iter::once("ctl").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|e| e.to_string())?;
        request(line.args.command).map_err(|e| e.to_string())
    }

    #[test]
    fn the_words_of_each_command_are_its_request() {
        let node = 3;
        let loss: FaultSpec = "loss=2% latency=5ms".parse().unwrap();
        for (line, request) in [
            ("status", Request::Status {}),
            ("faults", Request::Faults {}),
            ("faults list --json", Request::Faults {}),
            (
                "faults set 0-1 latency=5ms loss=2%",
                Request::SetFaults { on: Target::Trunk("0-1".into()), faults: loss },
            ),
            ("faults clear all", Request::ClearFaults { on: Target::All }),
            ("link 3 down", Request::Link { on: Target::Node(3), up: false }),
            ("link trunk:spine up", Request::Link { on: Target::Trunk("spine".into()), up: true }),
            ("partition 0,1|2", Request::Partition { groups: vec![vec!["0".into(), "1".into()], vec!["2".into()]] }),
            ("slow 3", Request::Slow { node, bytes_per_second: Some(64_000) }),
            ("slow 3 16kB/s", Request::Slow { node, bytes_per_second: Some(16_000) }),
            ("slow 3 off", Request::Slow { node, bytes_per_second: None }),
            ("crash 3 --control /x", Request::Crash { node }),
            ("capture start /tmp/a --on links", Request::CaptureStart { file: "/tmp/a".into(), on: Target::Links }),
            ("capture stop", Request::CaptureStop {}),
            ("watch --every 250ms", Request::Watch { every_ms: 250 }),
            ("log debug", Request::Log { level: "debug".into() }),
        ] {
            assert_eq!(parse(line).as_ref(), Ok(&request), "{line}");
        }
        // Its directory is that of the command, not of the fabric.
        let Request::CaptureStart { file, .. } = parse("capture start a.pcapng").unwrap() else { panic!() };
        assert!(file.starts_with('/') && file.ends_with("/a.pcapng"), "{file}");
    }

    #[test]
    fn wrong_words_are_named_with_what_was_expected() {
        for (line, parts) in [
            ("link 3 sideways", ["sideways", "down, up"]),
            ("link spine down", ["\"spine\"", "trunk:NAME"]),
            ("partition 0,1", ["0,1", "'0,1|2,3'"]),
            ("partition 0||1", ["0||1", "expected"]),
            ("faults set all loss=2", ["loss=2", "from 0% to 100%"]),
            ("slow 3 fast", ["rate=fast", "or off"]),
            ("crash many", ["many", "invalid digit"]),
            ("watch --every 1", ["\"1\" is no time", "ms"]),
        ] {
            let error = parse(line).unwrap_err();
            assert!(parts.iter().all(|p| error.contains(p)), "{line}: {error}");
        }
    }
}
