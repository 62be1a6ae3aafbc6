// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos up -d`, and the commands that use a cluster which runs so: `status`, `logs`, `exec`, `cp`, `down`.

mod client;
mod copy;
mod exec;
mod logs;
mod protocol;
mod serve;
mod unpack;

pub(super) use self::client::{down, exec, run_at, status};
pub(super) use self::copy::cp;
pub(super) use self::logs::logs;
pub(super) use self::serve::up;

use self::protocol::{Answer, Ended, MAX_ANSWER, Request, SOCKET, read_line, write_line};
use crate::rundir::{self, ClusterName, RECORD};
use crate::{Error, Result, Settings, User, interrupt, launch};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of a cluster without another.
pub(super) const DEFAULT: &str = "default";
/// What the process of a cluster writes to the command that has started it when all guests are up.
const UP: &[u8] = b"u";

/// Which detached cluster.
#[derive(Debug, Args)]
pub(super) struct Which {
    /// Its name, that of `telegraphos up -d --cluster NAME`
    #[arg(long, value_name = "NAME", default_value = DEFAULT)]
    cluster: ClusterName,
    /// Where its private directory was made [default: $XDG_RUNTIME_DIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

/// `telegraphos exec`.
#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    /// The node, by its number or name
    node: String,
    /// The user that runs it in the guest: tg or root
    #[arg(long, default_value = "tg")]
    user: User,
    /// Gives the command a terminal of its own, as large as this one, which gets each key
    #[arg(long, short)]
    tty: bool,
    #[command(flatten)]
    pub(super) which: Which,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    argv: Vec<OsString>,
}

/// `telegraphos status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Prints one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) which: Which,
}

/// `telegraphos logs`.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The node, by its number or name [default: all]
    node: Option<String>,
    /// Follows them until the cluster ends
    #[arg(long, short)]
    follow: bool,
    /// Which log
    #[arg(long, value_enum, default_value_t = logs::Of::Console)]
    of: logs::Of,
    #[command(flatten)]
    pub(super) which: Which,
}

/// `telegraphos cp`.
#[derive(Debug, Args)]
pub(super) struct CpArgs {
    /// Copies a directory with all that is in it
    #[arg(long, short)]
    recursive: bool,
    /// Of a guest, so many GiB are copied at most
    #[arg(long, default_value_t = 64, value_name = "N")]
    limit_gib: u64,
    /// A file of this machine, or NODE:PATH, one of a guest
    from: OsString,
    /// Where to: a file or a directory, here or in a guest
    to: OsString,
    /// The user that reads or writes it in the guest: tg or root
    #[arg(long, default_value = "tg")]
    user: User,
    #[command(flatten)]
    pub(super) which: Which,
}

fn nodes(count: usize) -> String {
    if count == 1 { "1 node".into() } else { format!("{count} nodes") }
}

/// Starts a process for a cluster with the arguments of this command, and waits until all guests are up.
pub(super) fn start(arguments: &[OsString]) -> Result<u8> {
    let spawn = |source| Error::Spawn { what: "the process of the cluster".into(), source };
    let (mut ours, theirs) = UnixStream::pair().map_err(spawn)?;
    ours.set_read_timeout(Some(Duration::from_millis(100))).map_err(spawn)?;
    let mut command = launch::role("__up");
    command.args(arguments.iter().skip(1)).stdin(OwnedFd::from(theirs));
    crate::process::inherit_nothing();
    let mut child = command.spawn().map_err(spawn)?;
    // It has the other end for itself.
    drop(command);
    let mut told = false;
    loop {
        if interrupt::interrupted() && !told {
            told = true;
            // It fails only if the child has been waited for.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        }
        match ours.read(&mut [0]) {
            Ok(1..) if !told => return Ok(0),
            Ok(1..) => {}
            Ok(0) => break,
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let status = child.wait().map_err(spawn)?;
    match (status.code(), status.signal()) {
        _ if told => Err(Error::Interrupted),
        // It has said why.
        (Some(code), _) => Ok(code as u8),
        (None, signal) => {
            let how = signal.map_or_else(String::new, |signal| format!(" (signal {signal})"));
            Err(Error::ended("the process of the cluster", format!("killed{how}"), "before it was up", String::new()))
        }
    }
}

/// What there is of a cluster.
enum Found {
    Running(UnixStream),
    /// It has ended by itself.
    Ended(Ended),
    Killed,
}

impl Which {
    /// Takes the directory of the file of `--config` unless one is named.
    pub(super) fn complete(&mut self, base: &Settings) {
        if self.run_dir.is_none() {
            self.run_dir.clone_from(&base.run_dir);
        }
    }

    fn parents(&self) -> Vec<PathBuf> {
        self.run_dir.clone().map_or_else(rundir::usual_parents, |dir| vec![dir])
    }

    fn directory(&self) -> Result<PathBuf> {
        let name = &self.cluster;
        rundir::find_named(&self.parents(), name).ok_or_else(|| {
            let others = match &rundir::names(&self.parents())[..] {
                [] => String::new(),
                names => format!("; there is --cluster {}", names.join(", --cluster ")),
            };
            Error::NoFabric(format!(
                "no cluster {name} runs: start it with `telegraphos up -d{}`{others}",
                self.option()
            ))
        })
    }

    /// The option that names it, if it needs one.
    fn option(&self) -> String {
        let name = self.cluster.to_string();
        if name == DEFAULT { String::new() } else { format!(" --cluster {name}") }
    }

    fn find(&self, directory: &Path) -> Result<Found> {
        let path = directory.join(SOCKET);
        match UnixStream::connect(&path) {
            Ok(stream) => return Ok(Found::Running(stream)),
            Err(e) if e.kind() == ErrorKind::ConnectionRefused || e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("cannot connect to the cluster at", &path)(e)),
        }
        if rundir::is_owned(directory) {
            let name = &self.cluster;
            return Err(Error::NoFabric(format!("cluster {name} is not up: it boots or ends; try again")));
        }
        let record = directory.join(RECORD);
        let Ok(text) = fs::read(&record) else { return Ok(Found::Killed) };
        Ok(Found::Ended(
            serde_json::from_slice(&text)
                .unwrap_or_else(|e| Ended { code: 3, why: format!("{} says nothing: {e}", record.display()) }),
        ))
    }

    /// A connection to it; an error that says how it has ended.
    fn connect(&self) -> Result<UnixStream> {
        match self.find(&self.directory()?)? {
            Found::Running(stream) => Ok(stream),
            Found::Ended(ended) => Err(self.has_ended(ended)),
            Found::Killed => Err(self.was_killed()),
        }
    }

    fn has_ended(&self, Ended { code, why }: Ended) -> Error {
        let (name, option) = (&self.cluster, self.option());
        let again =
            format!("\nits logs stay until `telegraphos down{option}`, or the next `telegraphos up -d{option}`");
        Error::Cluster { code, why: format!("cluster {name} has ended: {why}{again}") }
    }

    fn was_killed(&self) -> Error {
        let (name, option) = (&self.cluster, self.option());
        Error::NoFabric(format!(
            "cluster {name} was killed, and nothing of it runs; `telegraphos down{option}` removes what it has left, \
             `telegraphos up -d{option}` starts it anew"
        ))
    }

    /// Asks it, and what came behind the answer. A refusal is an error.
    fn ask(&self, stream: &UnixStream, request: &Request) -> Result<(Answer, Vec<u8>)> {
        self.ask_with(stream, request, &[])
    }

    /// The same with these bytes behind the request.
    fn ask_with(&self, stream: &UnixStream, request: &Request, behind: &[u8]) -> Result<(Answer, Vec<u8>)> {
        match ask(stream, request, behind) {
            Ok((Answer::Refused { code, why }, _)) => Err(Error::Cluster { code, why }),
            Ok(answered) => Ok(answered),
            Err(_) if interrupt::interrupted() => Err(Error::Interrupted),
            Err(why) => Err(Error::NoFabric(format!("cluster {} does not answer: {why}", self.cluster))),
        }
    }
}

/// Asks a cluster; its answer, and what came behind it. Why there is none, in words.
fn ask(mut stream: &UnixStream, request: &Request, behind: &[u8]) -> Result<(Answer, Vec<u8>), String> {
    let written = write_line(stream, request).and_then(|()| stream.write_all(behind));
    // A refusal comes before the end of what is written.
    read_line(stream, MAX_ANSWER).map_err(|why| written.map_or_else(|e| e.to_string(), |()| why))
}
