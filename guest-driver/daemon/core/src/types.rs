// SPDX-License-Identifier: MIT OR Apache-2.0
//! What daemons and their clients talk about.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A daemon between its start and its end, or until it was declared dead: 1 to 2^24 - 1, since it shares a word with
/// the load.
pub type Incarnation = u32;

/// Bits of an [`Incarnation`].
pub const INCARNATION_BITS: u32 = 24;

/// The load of one process that always runs.
pub const LOAD_ONE: u32 = 256;

/// A process of the cluster: the logical number of its node, and its process id there (s3 §6.2). Written `NODE.PID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TaskId {
    pub node: u16,
    pub pid: u32,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.pid)
    }
}

impl FromStr for TaskId {
    type Err = String;

    fn from_str(text: &str) -> Result<TaskId, String> {
        let parsed = text.split_once('.').and_then(|(node, pid)| Some((node.parse().ok()?, pid.parse().ok()?)));
        match parsed {
            Some((node, pid)) if (1..=i32::MAX as u32).contains(&pid) => Ok(TaskId { node, pid }),
            _ => Err(format!("the task {text:?}: expected NODE.PID, such as 2.345 (see tg-task list)")),
        }
    }
}

/// The user that a process belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

impl User {
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// It returned this code.
    Code(u8),
    Signal(u8),
    /// Its node has died, or no other node can reach it.
    NodeLost,
    /// It is not there, and how it ended is not known any more, or never was.
    Unknown,
}

impl Exit {
    /// What a program that waited for it ends with: its code, 128 and its signal, or 125 if neither is known.
    pub fn code(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128_u8.saturating_add(signal),
            Exit::NodeLost | Exit::Unknown => 125,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
            Exit::NodeLost => write!(f, "node lost"),
            Exit::Unknown => write!(f, "gone, exit code unknown"),
        }
    }
}

/// Where the output of a task goes: the logger of its master, on the master's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logger {
    /// TCP port on the master's node.
    pub port: u16,
    /// What a stream to this master begins with, which answers with [`Logger::TAKEN`].
    pub key: [u8; 16],
}

impl Logger {
    /// What a master answers to its key. A stream that ends before has made room for others, and is tried again.
    pub const TAKEN: u8 = 1;
    /// Bytes of [`Logger::head`].
    pub const HEAD: usize = 7;

    /// What a stream of a task begins with behind the key: its node and process id, least byte first; 1 for its
    /// standard output, 2 for its standard error.
    pub fn head(task: TaskId, stream: u8) -> [u8; Logger::HEAD] {
        let ([n0, n1], [p0, p1, p2, p3]) = (task.node.to_le_bytes(), task.pid.to_le_bytes());
        [n0, n1, p0, p1, p2, p3, stream]
    }

    /// The task and the stream of a head; `None` if it is none.
    pub fn read_head(head: [u8; Logger::HEAD]) -> Option<(TaskId, u8)> {
        let [n0, n1, p0, p1, p2, p3, stream] = head;
        let task = TaskId { node: u16::from_le_bytes([n0, n1]), pid: u32::from_le_bytes([p0, p1, p2, p3]) };
        (1..=2).contains(&stream).then_some((task, stream))
    }

    /// Whether that is the key of this master.
    pub fn is_key(&self, key: &[u8; 16]) -> bool {
        // Every byte is compared: the time does not say how many were right.
        key.iter().zip(&self.key).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments; the program is looked up in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// Its whole environment, to which the daemon adds nothing.
    pub env: Vec<(String, String)>,
    pub dir: String,
    /// Where its output goes; to `/dev/null` without.
    pub logger: Option<Logger>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    Node(u16),
    /// On the least loaded nodes, one after the other.
    LeastLoaded,
}

/// What a client can register for: it is notified of the death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Watched {
    /// A task, or a client of a daemon.
    Task(TaskId),
    Node(u16),
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Watched::Task(task) => task.fmt(f),
            Watched::Node(node) => write!(f, "node {node}"),
        }
    }
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{text}")]
pub struct Refusal {
    /// The errno of Linux that fits, as that of the local system call would be.
    pub errno: i32,
    /// What, its value, and what was expected.
    pub text: String,
}

impl Refusal {
    /// No such process.
    pub const ESRCH: i32 = 3;
    /// Not permitted.
    pub const EPERM: i32 = 1;
    /// No such file, or no such partition.
    pub const ENOENT: i32 = 2;
    /// A limit.
    pub const EAGAIN: i32 = 11;
    pub const EINVAL: i32 = 22;
    /// The node is not there.
    pub const EHOSTUNREACH: i32 = 113;

    /// Bytes of the text, at most.
    pub const MAX_TEXT: usize = 1024;

    /// With an errno. Of a text that is too long, as one with a program's name can be, the beginning and the end are
    /// kept.
    pub fn new(errno: i32, text: impl Into<String>) -> Refusal {
        let text = text.into();
        if text.len() <= Refusal::MAX_TEXT {
            return Refusal { errno, text };
        }
        let half = Refusal::MAX_TEXT / 2 - 8;
        let from = (text.len() - half..).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        let to = (0..=half).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        let text = format!("{} ... {}", text.get(..to).unwrap_or_default(), text.get(from..).unwrap_or_default());
        Refusal { errno, text }
    }
}

/// A task in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInfo {
    pub task: TaskId,
    /// The client that spawned it.
    pub master: TaskId,
    /// User id that it runs as.
    pub uid: u32,
    /// The beginning of the program's name, at most 32 characters.
    pub program: String,
}

/// A node in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    pub node: u16,
    pub alive: bool,
    /// Its load, in units of 1/[`LOAD_ONE`].
    pub load: u32,
    /// The incarnation of its daemon.
    pub incarnation: Incarnation,
}

/// A subset of the nodes. Of two of one name the one with the greater version and writer counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    pub name: String,
    /// How often it has been changed.
    pub version: u64,
    /// The node on which it was changed last.
    pub writer: u16,
    /// Its nodes; none if it has been deleted.
    pub nodes: BTreeSet<u16>,
}
