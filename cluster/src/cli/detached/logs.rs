// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos logs`: the logs of a detached cluster, also of one that has ended by itself. They are read where they
//! are, so that a reader costs the cluster nothing.

use super::super::written;
use super::LogsArgs;
use super::protocol::{LOG, STATE, Status};
use crate::nodes::number;
use crate::{Error, Result, interrupt, rundir};
use std::fs::{self, File};
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;
use telegraphos_service::logging::printable;

/// How often a log that is followed is looked at.
const EVERY: Duration = Duration::from_millis(200);
/// Of a log, so much is read at once; a longer line is shown in parts.
const PIECE: usize = 64 << 10;

/// Which log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Of {
    /// The guest's console
    Console,
    /// QEMU
    Qemu,
    /// The host interface board, if it has a process of its own
    Hib,
    /// The fabric, or the process that it shares with all boards
    Fabric,
    /// The process of the cluster
    Cluster,
}

pub(in super::super) fn logs(args: &LogsArgs) -> Result<u8> {
    let directory = args.which.directory()?;
    let state = directory.join(STATE);
    let text = fs::read(&state).map_err(|_| {
        Error::NoFabric(format!("cluster {} is not up: {} is not there", args.which.cluster, state.display()))
    })?;
    let status: Status =
        serde_json::from_slice(&text).map_err(|e| Error::Usage(format!("{}: {e}", state.display())))?;
    let mut logs = chosen(args.of, args.node.as_deref(), &status)?;
    loop {
        // First, so that what is written before the end is read after it.
        let runs = rundir::is_owned(&directory);
        for log in &mut logs {
            log.show(!(args.follow && runs), std::io::stdout().is_terminal(), &mut std::io::stdout())?;
        }
        if !args.follow || !runs {
            return Ok(0);
        }
        interrupt::sleep(EVERY)?;
    }
}

/// The logs to be shown. Those of several nodes have the node's number before each line.
fn chosen(of: Of, node: Option<&str>, status: &Status) -> Result<Vec<Log>> {
    let kind = match of {
        Of::Console => "console",
        Of::Qemu => "qemu",
        Of::Hib => "hib",
        Of::Cluster => return Ok(vec![Log::new(status.directory.join(LOG), String::new())]),
        Of::Fabric => {
            let path = ["host", "fabric"].map(|name| status.logs.join(format!("{name}.log")));
            let path = path.into_iter().find(|path| path.exists());
            let none = || Error::Usage(format!("there is no log of the fabric in {}", status.logs.display()));
            return Ok(vec![Log::new(path.ok_or_else(none)?, String::new())]);
        }
    };
    let names: Vec<String> = status.nodes.iter().map(|node| node.name.clone()).collect();
    let wanted: Vec<usize> = match node {
        None => (0..names.len()).collect(),
        Some(node) => vec![number(node, &names).map_err(Error::Usage)?],
    };
    let one = wanted.len() == 1;
    let log = |n: usize| {
        let prefix = if one { String::new() } else { format!("[{n}] ") };
        Log::new(status.logs.join(format!("{kind}.{n}.log")), prefix)
    };
    Ok(wanted.into_iter().map(log).collect())
}

struct Log {
    path: PathBuf,
    prefix: String,
    at: u64,
}

impl Log {
    fn new(path: PathBuf, prefix: String) -> Log {
        Log { path, prefix, at: 0 }
    }

    /// Writes what is new: whole lines, at its `end` all. A log that is not there is empty. What the guest has written
    /// is not to control a `terminal`.
    fn show(&mut self, end: bool, terminal: bool, out: &mut impl Write) -> Result<()> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        let reading = || Error::io("cannot read", &self.path);
        file.seek(SeekFrom::Start(self.at)).map_err(reading())?;
        let mut bytes = vec![0; PIECE];
        let mut kept = 0;
        loop {
            let n = file.read(&mut bytes[kept..]).map_err(reading())?;
            let have = kept + n;
            let whole = match bytes[..have].iter().rposition(|byte| *byte == b'\n') {
                Some(last) => last + 1,
                None if have == PIECE || (end && n == 0) => have,
                None => 0,
            };
            let text = String::from_utf8_lossy(&bytes[..whole]).replace('\r', "");
            for line in text.lines() {
                let line = if terminal { printable(line, &['\t']) } else { line.into() };
                written(writeln!(out, "{}{line}", self.prefix))?;
            }
            self.at += whole as u64;
            bytes.copy_within(whole..have, 0);
            kept = have - whole;
            if n == 0 && (kept == 0 || !end) {
                return written(out.flush());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn a_log_is_shown_in_whole_lines_and_at_its_end_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("console.1.log");
        let mut log = Log::new(path.clone(), "[1] ".into());
        let append = |text: &str| {
            OpenOptions::new().create(true).append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let mut show = |end| {
            let mut out = Vec::new();
            log.show(end, false, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(show(false), "", "it is not there yet");
        append("one\r\ntw");
        assert_eq!(show(false), "[1] one\n");
        assert_eq!(show(false), "");
        append("o\nthree");
        assert_eq!(show(false), "[1] two\n");
        assert_eq!(show(true), "[1] three\n");
        // More than a piece, and a line that is longer than one.
        append(&format!("{}\n{}\nend\n", "short\n".repeat(PIECE / 3), "x".repeat(PIECE + 5)));
        let text = show(false);
        assert!(text.ends_with("[1] xxxxx\n[1] end\n"), "{}", text.len());
        assert_eq!(text.matches("[1] short\n").count(), PIECE / 3);
        append("\x1b]0;title\x07\x1b[2Jgone\n");
        let mut shown = [Vec::new(), Vec::new()];
        for (terminal, shown) in [false, true].into_iter().zip(&mut shown) {
            Log { at: log.at, path: path.clone(), prefix: String::new() }.show(true, terminal, shown).unwrap();
        }
        assert_eq!(shown[0], b"\x1b]0;title\x07\x1b[2Jgone\n", "a file has the bytes as they are");
        assert_eq!(shown[1], b"\\u{1b}]0;title\\u{7}\\u{1b}[2Jgone\n");
    }

    #[test]
    fn logs_are_chosen_by_node() {
        let nodes = (0..3).map(|node| super::super::protocol::NodeStatus {
            node,
            name: format!("node{node}"),
            kernel: String::new(),
            boots: 1,
            console: PathBuf::new(),
        });
        let status = Status {
            cluster: "a".into(),
            pid: 1,
            up_seconds: 0,
            accelerator: String::new(),
            directory: "/run/x".into(),
            logs: "/logs".into(),
            fabric: PathBuf::new(),
            nodes: nodes.collect(),
        };
        let of = |of, node| -> Vec<(String, String)> {
            let logs = chosen(of, node, &status).unwrap();
            logs.into_iter().map(|log| (log.path.display().to_string(), log.prefix)).collect()
        };
        assert_eq!(of(Of::Console, None)[2], ("/logs/console.2.log".into(), "[2] ".into()));
        assert_eq!(of(Of::Qemu, Some("1")), [("/logs/qemu.1.log".to_owned(), String::new())]);
        assert_eq!(of(Of::Hib, Some("node0")), [("/logs/hib.0.log".to_owned(), String::new())]);
        assert_eq!(of(Of::Cluster, None), [("/run/x/cluster.log".to_owned(), String::new())]);
        let text = chosen(Of::Console, Some("3"), &status).map(drop).unwrap_err().to_string();
        assert!(text.contains("no node \"3\"; expected a number from 0 to 2"), "{text}");
    }
}
