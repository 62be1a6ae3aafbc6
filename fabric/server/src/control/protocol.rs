// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control protocol: one line of JSON is a request, one line its answer (`docs/control.md`).

use serde::{Deserialize, Serialize};
use telegraphos_wire::NodeId;

use super::snapshot::{FaultsView, Snapshot, Status, TopologyView};
use super::target::{FaultSpec, Target, is_name};

/// The version spoken; a request may say it as `"v"`.
pub const VERSION: u32 = 1;
/// Bytes of the longest request, without its newline.
pub const MAX_REQUEST: usize = 16 << 10;
/// The least time between two answers of a watch, in milliseconds.
pub const MIN_WATCH_MS: u64 = 50;
/// The most.
pub const MAX_WATCH_MS: u64 = 3_600_000;
/// Groups of a partition, at most.
pub const MAX_GROUPS: usize = 256;
/// Default of `slow`: bytes per second.
pub const SLOW: u64 = 64_000;

/// A query or command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The state of the process in short: [`Response::Status`].
    Status {},
    /// Everything counted: [`Response::Statistics`].
    Statistics {},
    /// [`Response::Statistics`] now and again and again, until the connection ends or a watch with 0 comes.
    Watch {
        /// Milliseconds between two, from [`MIN_WATCH_MS`]; 0 ends the watch.
        every_ms: u64,
    },
    /// Switches and trunks: [`Response::Topology`].
    Topology {},
    /// What is made to go wrong: [`Response::Faults`].
    Faults {},
    /// Sets all faults of links or trunks, in place of those before.
    SetFaults {
        on: Target,
        /// What they are to be.
        faults: FaultSpec,
    },
    /// Ends the faults of links or trunks.
    ClearFaults { on: Target },
    /// Takes links or trunks down, or lets them up.
    Link {
        on: Target,
        /// Whether they may be up.
        up: bool,
    },
    /// Cuts groups of switches off from each other: trunks between two groups go down. Ends an earlier partition.
    Partition {
        /// Switches by number or name; those in no group keep all their trunks.
        groups: Vec<Vec<String>>,
    },
    /// Ends the partition.
    Heal {},
    /// Makes a node slow to take what is sent to it.
    Slow {
        node: NodeId,
        /// Bytes per second; none: as fast as ever.
        bytes_per_second: Option<u64>,
    },
    /// Cuts a node off and keeps it out, as if it had crashed.
    Crash { node: NodeId },
    /// Lets a crashed node in again.
    Restore { node: NodeId },
    /// Begins to write packets to a file; ends an earlier capture.
    CaptureStart {
        /// A new file, as the fabric process sees it.
        file: String,
        on: Target,
    },
    /// Ends the capture.
    CaptureStop {},
    /// Changes what is logged.
    Log {
        /// A level, or a filter of the crate env_logger.
        level: String,
    },
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// It was not done, and why.
    Error(ErrorAnswer),
    /// It was done.
    Done(Done),
    /// To [`Request::Status`].
    Status(Status),
    /// To [`Request::Statistics`] and [`Request::Watch`].
    Statistics(Snapshot),
    /// To [`Request::Topology`].
    Topology(TopologyView),
    /// To [`Request::Faults`].
    Faults(FaultsView),
}

/// What a command has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Links, trunks or nodes that it was about.
    pub changed: u32,
    /// What else is to be known; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Done {
    /// So many were changed.
    pub fn changed(count: usize) -> Done {
        Done { changed: u32::try_from(count).unwrap_or(u32::MAX), note: String::new() }
    }
}

/// What kind of error it is, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// The line is no request.
    Malformed,
    /// The version is not spoken here.
    Version,
    /// A value is out of range, or what it names does not exist.
    Refused,
    /// Too many connections.
    Busy,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(deny_unknown_fields)]
#[error("{text}")]
pub struct ErrorAnswer {
    pub kind: ErrorKind,
    /// What is wrong, with the value and what was expected.
    pub text: String,
}

impl ErrorAnswer {
    /// An error of that kind.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> ErrorAnswer {
        ErrorAnswer { kind, text: text.into() }
    }

    pub fn refused(text: impl Into<String>) -> ErrorAnswer {
        ErrorAnswer::new(ErrorKind::Refused, text)
    }
}

/// The beginning of a line that is no request, for a message.
fn excerpt(line: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(&line[..line.len().min(MOST)]);
    let more = if line.len() > MOST { "..." } else { "" };
    format!("{text:?}{more}")
}

impl Request {
    /// Reads a line, without its newline. All values are checked that can be without knowing the fabric.
    pub fn parse(line: &[u8]) -> Result<Request, ErrorAnswer> {
        let malformed = |why: String| {
            let text =
                format!("{} is no request: {why}; expected an object such as {{\"do\":\"status\"}}", excerpt(line));
            ErrorAnswer::new(ErrorKind::Malformed, text)
        };
        if line.len() > MAX_REQUEST {
            return Err(malformed(format!("it has more than {MAX_REQUEST} bytes")));
        }
        let mut object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(line).map_err(|e| malformed(e.to_string()))?;
        if let Some(version) = object.remove("v") {
            if version != VERSION {
                let text = format!("protocol version \"v\" is {version}: expected {VERSION}");
                return Err(ErrorAnswer::new(ErrorKind::Version, text));
            }
        }
        let request: Request = serde_json::from_value(object.into()).map_err(|e| malformed(e.to_string()))?;
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), ErrorAnswer> {
        let refuse = |text: String| Err(ErrorAnswer::refused(text));
        match self {
            Request::Watch { every_ms } if *every_ms != 0 && !(MIN_WATCH_MS..=MAX_WATCH_MS).contains(every_ms) => {
                refuse(format!(
                    "every_ms is {every_ms}: expected {MIN_WATCH_MS} to {MAX_WATCH_MS}, or 0 to end the watch"
                ))
            }
            Request::Slow { bytes_per_second: Some(0), .. } => {
                refuse("bytes_per_second is 0: expected at least 1, or null for as fast as ever; see crash".into())
            }
            Request::Partition { groups } => {
                if !(2..=MAX_GROUPS).contains(&groups.len()) {
                    return refuse(format!("groups has {} members: expected 2 to {MAX_GROUPS}", groups.len()));
                }
                let mut seen = std::collections::BTreeSet::new();
                for group in groups {
                    if group.is_empty() {
                        return refuse("a group is empty: expected switches in each".into());
                    }
                    for name in group {
                        if !is_name(name) {
                            return refuse(format!(
                                "{name:?} is no switch: expected a number or a name of the topology"
                            ));
                        }
                        if !seen.insert(name) {
                            return refuse(format!("switch {name} is in two places: expected each in one group"));
                        }
                    }
                }
                Ok(())
            }
            Request::CaptureStart { file, .. } if !file.starts_with('/') => {
                refuse(format!("file is {file:?}: expected an absolute path"))
            }
            _ => Ok(()),
        }
    }

    /// As a line, with its newline.
    pub fn line(&self) -> String {
        line(self)
    }
}

impl Response {
    /// As a line, with its newline.
    pub fn line(&self) -> String {
        line(self)
    }
}

fn line(value: &impl Serialize) -> String {
    // Only maps with keys that are no text could fail, and there are none.
    let mut line = serde_json::to_string(value)
        .unwrap_or_else(|e| format!(r#"{{"error":{{"kind":"refused","text":"cannot be written: {e}"}}}}"#));
    line.push('\n');
    line
}
