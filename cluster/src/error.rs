// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong outside the guests, each with what to do next.

use crate::node_name::NodeLabel;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a cluster could not be made or used. The text names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// QEMU, kernel, driver or guest programs could not be had.
    #[error(transparent)]
    Images(telegraphos_images::Error),
    #[error("{what} {}: {source}{remedy}", path.display())]
    Io {
        /// What was tried ("cannot write").
        what: &'static str,
        path: PathBuf,
        source: io::Error,
        /// Empty, or "; " and what to do.
        remedy: &'static str,
    },
    /// A wrong option, argument or configuration.
    #[error("{0}")]
    Usage(String),
    /// A process of the cluster could not be started.
    #[error("cannot start {what}: {source}")]
    Spawn { what: String, source: io::Error },
    /// A process of the cluster ended although it is needed.
    #[error("{what} ended ({status}) {during}{tail}")]
    Ended {
        what: String,
        /// Its node, if it is of one.
        node: Option<usize>,
        status: String,
        /// What the harness was doing.
        during: String,
        /// The ends of the logs.
        tail: String,
    },
    /// Something did not happen in time.
    #[error("{what} did not happen within {:.0} s; {remedy}{tail}", limit.as_secs_f64())]
    TimedOut {
        what: String,
        /// Its node, if it is of one.
        node: Option<usize>,
        limit: Duration,
        remedy: &'static str,
        /// The ends of the logs.
        tail: String,
    },
    /// A command in a guest could not be started or followed to its end.
    #[error("node {node}: {command}: {why}")]
    Command { node: NodeLabel, command: String, why: String },
    /// A guest has no such program, or cannot execute it.
    #[error("node {node}: {command}: {why}")]
    NotStarted {
        node: NodeLabel,
        command: String,
        why: String,
        /// As shells say it: 127 or 126.
        code: u8,
    },
    /// A command in a guest did not end in time, and was killed.
    #[error("node {node}: {command}: did not end within {limit:?}{output}")]
    Late {
        node: NodeLabel,
        command: String,
        limit: Duration,
        /// Empty, or what it wrote.
        output: String,
    },
    /// A guest's kernel has panicked, or the guest has hung.
    #[error("node {node}: {what}{tail}")]
    Dead {
        node: NodeLabel,
        /// What happened, with the kernel's words.
        what: String,
        /// The stack and the last lines of the console.
        tail: String,
    },
    /// A command in a guest said no.
    #[error("node {node}: {command} failed ({status}):\n{output}")]
    Failed { node: NodeLabel, command: String, status: String, output: String },
    /// A request of a board's test client failed.
    #[error("node {node}'s board: {source}{tail}")]
    Board {
        node: NodeLabel,
        source: telegraphos_device_client::ClientError,
        /// The end of its log.
        tail: String,
    },
    /// QEMU refused a QMP command.
    #[error("node {node}: QMP {command}: {why}")]
    Qmp { node: NodeLabel, command: String, why: String },
    /// A detached cluster has refused something, or has ended.
    #[error("{why}")]
    Cluster { code: u8, why: String },
    /// There is no fabric or cluster to talk to.
    #[error("{0}")]
    NoFabric(String),
    /// A fabric did not answer, or refused.
    #[error(transparent)]
    Control(#[from] telegraphos_fabric::control::ClientError),
    #[error("interrupted")]
    Interrupted,
    /// Nothing reads standard output any more.
    #[error("standard output is closed")]
    OutputClosed,
}

impl From<telegraphos_images::Error> for Error {
    fn from(e: telegraphos_images::Error) -> Error {
        match e {
            telegraphos_images::Error::Interrupted => Error::Interrupted,
            telegraphos_images::Error::Usage(text) => Error::Usage(text),
            e => Error::Images(e),
        }
    }
}

impl Error {
    /// The exit code in place of 1, 2 and 3 where those of commands in guests are passed on: that of `env`, `timeout`
    /// and container engines for what is their own fault.
    pub(crate) const BESIDE_COMMANDS: u8 = 125;

    pub fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { what, path, source, remedy: "" }
    }

    pub fn ended(what: impl Into<String>, status: impl ToString, during: impl Into<String>, tail: String) -> Error {
        Error::Ended { what: what.into(), node: None, status: status.to_string(), during: during.into(), tail }
    }

    /// The same, of a process of this node.
    pub(crate) fn of_node(mut self, of: usize) -> Error {
        if let Error::Ended { node, .. } | Error::TimedOut { node, .. } = &mut self {
            *node = Some(of);
        }
        self
    }

    /// The node that it is about, if it is about one.
    pub(crate) fn node(&self) -> Option<usize> {
        match self {
            Error::Command { node, .. }
            | Error::NotStarted { node, .. }
            | Error::Late { node, .. }
            | Error::Dead { node, .. }
            | Error::Failed { node, .. }
            | Error::Board { node, .. }
            | Error::Qmp { node, .. } => Some(node.number),
            Error::TimedOut { node, .. } | Error::Ended { node, .. } => *node,
            _ => None,
        }
    }

    /// The command's exit code for this error (see `telegraphos --help`).
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 2,
            Error::Cluster { code, .. } | Error::NotStarted { code, .. } => *code,
            Error::Late { .. } | Error::TimedOut { .. } => 124,
            Error::Dead { .. } => 254,
            Error::Interrupted => 130,
            // As a shell has it of a command that SIGPIPE has ended.
            Error::OutputClosed => 141,
            Error::Failed { .. } | Error::Command { .. } => 1,
            Error::Control(telegraphos_fabric::control::ClientError::Refused(_)) => 1,
            _ => 3,
        }
    }
}
