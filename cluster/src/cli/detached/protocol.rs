// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a detached cluster and the commands that use it say to each other, over a Unix socket in the cluster's private
//! directory: one line of JSON each way and, of a command in a guest, frames until it has ended.

use crate::command::Stream;
use crate::{Error, Result, interrupt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use telegraphos_agent::{ByteBuf, Decoder, Exit, Message, Terminal};

/// The name of the socket.
pub(super) const SOCKET: &str = "cluster.control";
/// The file with the [`Status`] of a cluster when it came up.
pub(super) const STATE: &str = "state.json";
/// What the process of a detached cluster prints after it was detached.
pub(super) const LOG: &str = "cluster.log";

/// Bytes of a request, and of the answer.
pub(super) const MAX_REQUEST: usize = 16 << 10;
pub(super) const MAX_ANSWER: usize = 1 << 20;
/// How long one waits for the line of the other: on a busy machine a guest takes seconds to start a command.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a command's standard input that are under way to the cluster.
pub(super) const WINDOW: usize = 256 << 10;
/// Bytes of one piece of input or output, at most.
pub(super) const PIECE: usize = telegraphos_agent::MAX_DATA;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Request {
    Status,
    /// Ends the cluster.
    Down,
    /// Runs a command; frames follow, of which the first is [`ToCluster::Run`].
    Exec {
        node: String,
        user: String,
    },
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub(super) enum Answer {
    Status(Status),
    /// The process of the cluster ends.
    Ending {
        pid: u32,
    },
    Started,
    Refused {
        code: u8,
        why: String,
    },
}

/// A cluster that is up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Status {
    pub(super) cluster: String,
    /// Of the process to which the cluster belongs.
    pub(super) pid: u32,
    /// Since all guests were up.
    pub(super) up_seconds: u64,
    pub(super) accelerator: String,
    pub(super) directory: PathBuf,
    pub(super) logs: PathBuf,
    /// The control socket of the fabric, for `telegraphos ctl` and `top`.
    pub(super) fabric: PathBuf,
    pub(super) nodes: Vec<NodeStatus>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeStatus {
    pub(super) node: usize,
    /// Its own, or `nodeN`.
    pub(super) name: String,
    pub(super) kernel: String,
    /// Times it has booted.
    pub(super) boots: u64,
    /// The socket of its console.
    pub(super) console: PathBuf,
}

/// What a cluster that ended by itself leaves ([`crate::rundir::RECORD`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ended {
    pub(super) code: u8,
    pub(super) why: String,
}

impl Ended {
    pub(super) fn of(error: &Error) -> Ended {
        Ended { code: error.exit_code(), why: error.to_string() }
    }

    /// The same with the beginning of the reason, so that it fits a frame.
    pub(super) fn short(&self) -> Ended {
        let mut end = self.why.len().min(8 << 10);
        while !self.why.is_char_boundary(end) {
            end -= 1;
        }
        Ended { code: self.code, why: self.why[..end].into() }
    }
}

/// From the command that started one in a guest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ToCluster {
    /// The command.
    Run {
        /// The program and its arguments, which need be no text.
        argv: Vec<ByteBuf>,
        /// It gets a terminal of this size.
        terminal: Option<Terminal>,
    },
    /// Its terminal has this size from now on.
    Resize(Terminal),
    /// At most [`PIECE`] bytes, and [`WINDOW`] that were not `Taken`.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    CloseStdin,
    Signal(i32),
}

/// To the command that started one in a guest.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FromCluster {
    Output(Stream, #[serde(with = "serde_bytes")] Vec<u8>),
    /// So many bytes of standard input have gone to the guest.
    Taken(u32),
    Exited(Exit),
    /// The last one: the command cannot be followed to its end.
    Failed(Ended),
}

impl Message for ToCluster {
    const DIRECTION: u8 = 3;
}

impl Message for FromCluster {
    const DIRECTION: u8 = 4;
}

/// Writes a line. The other end may not read: waits at most [`PATIENCE`] for it.
pub(super) fn write_line(mut stream: &UnixStream, line: &impl Serialize) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&text)
}

/// Reads a line of at most `most` bytes, and what came behind it. Why not, in words for the other end.
pub(super) fn read_line<T: DeserializeOwned>(stream: &UnixStream, most: usize) -> Result<(T, Vec<u8>), String> {
    stream.set_read_timeout(Some(Duration::from_millis(100))).map_err(|e| e.to_string())?;
    let mut line = Vec::new();
    read_whole(stream, "line", |bytes| {
        line.extend_from_slice(bytes);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n').filter(|end| *end <= most) {
            let rest = line.split_off(end + 1);
            return Some(serde_json::from_slice(&line).map(|line| (line, rest)).map_err(|e| e.to_string()));
        }
        (line.len() > most).then(|| Err(format!("a line has more than {most} bytes")))
    })
}

/// Reads the first frame, of which the decoder may have a part. Why not, in words for the other end.
pub(super) fn read_frame(stream: &UnixStream, decoder: &mut Decoder) -> Result<ToCluster, String> {
    read_whole(stream, "frame", |bytes| {
        decoder.push(bytes);
        decoder.next().map(Ok)
    })
}

/// Reads until `whole`, which is given what has come, has a result: first with no bytes, for what was there before. The
/// stream has a read timeout, so that [`PATIENCE`] and Ctrl-C end the wait.
fn read_whole<T>(
    mut stream: &UnixStream,
    what: &str,
    mut whole: impl FnMut(&[u8]) -> Option<Result<T, String>>,
) -> Result<T, String> {
    let begun = Instant::now();
    let mut bytes = [0; PIECE];
    let mut come = 0;
    loop {
        if let Some(result) = whole(&bytes[..come]) {
            return result;
        }
        if begun.elapsed() > PATIENCE || interrupt::interrupted() {
            return Err(format!("no whole {what} came in {PATIENCE:?}"));
        }
        come = match stream.read(&mut bytes) {
            Ok(0) => return Err(format!("the connection was closed before a whole {what} had come")),
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock || e.kind() == std::io::ErrorKind::Interrupted => 0,
            Err(e) => return Err(e.to_string()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use telegraphos_agent::{encode, words};

    #[test]
    fn lines_are_read_with_what_is_behind_them_and_bounded() {
        let (here, there) = UnixStream::pair().unwrap();
        let request = || Request::Exec { node: "0".into(), user: "t\ng".into() };
        write_line(&there, &request()).unwrap();
        // More than the buffers of the connection.
        let mut long: Vec<_> = (0..40_000).map(|n| n.to_string().into()).collect();
        long.push(OsStr::from_bytes(b"\xff\xfe").to_owned());
        let long = ToCluster::Run { argv: words(long), terminal: Some(Terminal { rows: 24, columns: 80 }) };
        let frames = encode(&long).unwrap();
        let writer = std::thread::spawn(move || (&there).write_all(&frames).map(|()| there));
        let (found, rest) = read_line::<Request>(&here, MAX_REQUEST).unwrap();
        assert_eq!(found, request());
        let mut decoder = Decoder::default();
        decoder.push(&rest);
        assert_eq!(read_frame(&here, &mut decoder), Ok(long));
        drop(writer.join().unwrap());
        assert!(read_frame(&here, &mut decoder).unwrap_err().contains("closed"));
        let refused = |bytes: &[u8]| {
            let (here, there) = UnixStream::pair().unwrap();
            (&there).write_all(bytes).unwrap();
            drop(there);
            read_line::<Request>(&here, 100).unwrap_err()
        };
        assert!(refused(b"{\"do\":\"fly\"}\n").contains("unknown variant"));
        assert!(refused(b"{\"do\":\"exec\",\"node\":\"0\"}\n").contains("missing field"));
        assert!(refused(&[b'x'; 101]).contains("more than 100 bytes"));
        assert!(refused(b"{\"do\"").contains("closed"));
    }

    #[test]
    fn the_longest_frames_fit() {
        let ended = Ended { code: 3, why: "ä".repeat(20_000) }.short();
        assert!(ended.why.len() <= 8 << 10 && ended.why.starts_with("ä"));
        let frames = [
            encode(&FromCluster::Failed(ended)).unwrap(),
            encode(&FromCluster::Output(Stream::Stderr, vec![255; PIECE])).unwrap(),
        ];
        let mut decoder = Decoder::default();
        frames.iter().for_each(|frame| decoder.push(frame));
        assert!(matches!(decoder.next(), Some(FromCluster::Failed(_))));
        assert!(matches!(decoder.next(), Some(FromCluster::Output(Stream::Stderr, bytes)) if bytes.len() == PIECE));
        assert!(encode(&ToCluster::Stdin(vec![0; PIECE])).is_ok());
    }
}
