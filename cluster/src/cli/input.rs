// SPDX-License-Identifier: MIT OR Apache-2.0
//! Standard input of this process, for commands in guests: none of it is dropped in silence.

use crate::command::Running;
use crate::nodes::number;
use crate::{Error, Result};
use rustix::fs::{FileType, SeekFrom};
use std::io::{IsTerminal, Read};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// Bytes that are read at once.
const PIECE: usize = 16 << 10;
/// Pieces that wait for one command; all others wait for it, too.
const PIECES: usize = 16;
/// Bytes that wait for the agent of a guest.
const AHEAD: usize = 256 << 10;

/// Which commands get standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    None,
    All,
    /// That of this node, by number or name.
    Of(String),
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        match text {
            "none" => Ok(Wanted::None),
            "all" => Ok(Wanted::All),
            "" => Err("expected none, all or a node".into()),
            node => Ok(Wanted::Of(node.to_owned())),
        }
    }
}

/// Which of these nodes get it.
///
/// # Errors
///
/// Wrong usage: there is no such node; or nothing is said, there are several nodes, and something waits to be read.
pub(super) fn receivers(wanted: Option<&Wanted>, names: &[String]) -> Result<Vec<bool>> {
    let stdin = std::io::stdin();
    decide(wanted, names, stdin.is_terminal(), || has_data(&stdin))
}

fn decide(wanted: Option<&Wanted>, names: &[String], terminal: bool, has_data: impl Fn() -> bool) -> Result<Vec<bool>> {
    let all = |gets| Ok(vec![gets; names.len()]);
    match wanted {
        Some(Wanted::None) => all(false),
        Some(Wanted::All) => all(true),
        Some(Wanted::Of(node)) => {
            let node = number(node, names).map_err(|why| Error::Usage(format!("--stdin: {why}")))?;
            Ok((0..names.len()).map(|other| other == node).collect())
        }
        // A command in the background that reads its terminal would be stopped.
        None if names.len() == 1 => all(!terminal),
        None if !terminal && has_data() => Err(Error::Usage(format!(
            "standard input has data, and {} nodes could get it: say --stdin all, --stdin NODE, or --stdin none (as \
             </dev/null, which a loop that reads its own input needs)",
            names.len()
        ))),
        None => all(false),
    }
}

/// Whether something can be read now, and is no end.
fn has_data(stdin: &std::io::Stdin) -> bool {
    let Ok(about) = rustix::fs::fstat(stdin) else { return false };
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => {
            rustix::fs::seek(stdin, SeekFrom::Current(0)).is_ok_and(|at| (at as i64) < about.st_size)
        }
        FileType::Fifo | FileType::Socket => rustix::io::ioctl_fionread(stdin).is_ok_and(|bytes| bytes > 0),
        _ => false,
    }
}

/// What one command gets of it.
pub(super) struct Feed {
    pieces: Receiver<Vec<u8>>,
    over: bool,
}

impl Feed {
    /// Hands on what has come, and its end; whether something had come.
    pub(super) fn turn(&mut self, running: &mut Running) -> Result<bool> {
        let mut some = running.input_waiting() > 0;
        while !self.over && running.input_waiting() < AHEAD {
            match self.pieces.try_recv() {
                Ok(bytes) => {
                    some = true;
                    running.write_bytes(&bytes)?;
                }
                Err(TryRecvError::Empty) => return Ok(some),
                Err(TryRecvError::Disconnected) => {
                    self.over = true;
                    running.close_input()?;
                }
            }
        }
        Ok(some)
    }
}

/// Reads standard input for these nodes; it is not read if there are none. The thread ends with this process.
pub(super) fn feeds(receivers: &[bool]) -> Result<Vec<Option<Feed>>> {
    feeds_of(receivers, std::io::stdin())
}

fn feeds_of(receivers: &[bool], from: impl Read + Send + 'static) -> Result<Vec<Option<Feed>>> {
    let (mut to, mut feeds) = (Vec::new(), Vec::new());
    for gets in receivers {
        feeds.push(gets.then(|| {
            let (sender, pieces) = sync_channel(PIECES);
            to.push(sender);
            Feed { pieces, over: false }
        }));
    }
    if !to.is_empty() {
        let spawn = std::thread::Builder::new().name("input".into()).spawn(move || read(from, to));
        spawn.map_err(|source| Error::Spawn { what: "the reader of standard input".into(), source })?;
    }
    Ok(feeds)
}

/// Until its end, or until no command wants more.
fn read(mut from: impl Read, mut to: Vec<SyncSender<Vec<u8>>>) {
    let mut bytes = vec![0; PIECE];
    while !to.is_empty() {
        match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(n) => to.retain(|sender| sender.send(bytes[..n].to_vec()).is_ok()),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => {
                log::warn!("standard input ends here for the commands in guests: {e}");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("node{n}")).collect()
    }

    #[test]
    fn who_gets_it_is_said_or_clear() {
        let decide = |wanted: Option<&str>, nodes, terminal, data| {
            let wanted = wanted.map(|text| text.parse::<Wanted>().unwrap());
            super::decide(wanted.as_ref(), &names(nodes), terminal, || data).map_err(|e| e.to_string())
        };
        assert_eq!(decide(None, 1, false, true), Ok(vec![true]));
        assert_eq!(decide(None, 1, false, false), Ok(vec![true]), "it may come later");
        assert_eq!(decide(None, 1, true, false), Ok(vec![false]));
        assert_eq!(decide(None, 2, false, false), Ok(vec![false, false]));
        assert_eq!(decide(None, 2, true, true), Ok(vec![false, false]));
        let why = decide(None, 2, false, true).unwrap_err();
        assert!(why.contains("2 nodes") && why.contains("--stdin none"), "{why}");
        assert_eq!(decide(Some("none"), 2, false, true), Ok(vec![false, false]));
        assert_eq!(decide(Some("all"), 2, true, true), Ok(vec![true, true]));
        assert_eq!(decide(Some("node1"), 3, false, true), Ok(vec![false, true, false]));
        let why = decide(Some("7"), 2, false, false).unwrap_err();
        assert!(why.contains("--stdin") && why.contains("\"7\""), "{why}");
        assert!("".parse::<Wanted>().is_err());
    }

    #[test]
    fn each_command_gets_all_of_it_and_one_that_has_ended_holds_up_none() {
        let data: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
        let mut feeds = feeds_of(&[true, false, true, true], std::io::Cursor::new(data.clone())).unwrap();
        drop(feeds.pop());
        assert!(feeds[1].is_none());
        let follow = |feed: Feed| std::thread::spawn(move || feed.pieces.iter().flatten().collect::<Vec<u8>>());
        let following: Vec<_> = feeds.into_iter().flatten().map(follow).collect();
        assert_eq!(following.len(), 2);
        following.into_iter().for_each(|thread| assert!(thread.join().unwrap() == data));
    }
}
