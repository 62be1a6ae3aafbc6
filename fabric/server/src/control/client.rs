// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's end of the control socket: sends a request and waits for the answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::protocol::{Done, ErrorAnswer, Request, Response};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the longest answer: the statistics of 4096 nodes with all counters large take about a fifth.
const MAX_ANSWER: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens there.
    #[error("cannot connect to the control socket {}: {source}{hint}", path.display())]
    Connect { path: PathBuf, source: io::Error, hint: &'static str },
    /// The connection ended, or the answer did not come in time.
    #[error("the fabric did not answer: {0}")]
    Io(#[from] io::Error),
    /// The answer is none.
    #[error("the fabric's answer is not understood (is it of another version?): {0}")]
    Answer(String),
    #[error(transparent)]
    Refused(#[from] ErrorAnswer),
}

/// A connection to a fabric.
#[derive(Debug)]
pub struct ControlClient {
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects to the fabric whose control socket is at `path`.
    pub fn connect(path: &Path) -> Result<ControlClient, ClientError> {
        let failed = |source: io::Error| {
            let hint = match source.kind() {
                io::ErrorKind::NotFound => "; is the fabric running, and was it started with that --control?",
                io::ErrorKind::ConnectionRefused => "; the fabric that made it has ended",
                io::ErrorKind::PermissionDenied => "; run as the user who runs the fabric: the socket has mode 0600",
                _ => "",
            };
            ClientError::Connect { path: path.to_owned(), source, hint }
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        ControlClient::over(stream).map_err(failed)
    }

    /// A client over a connected stream.
    pub fn over(stream: UnixStream) -> io::Result<ControlClient> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(ControlClient { stream: BufReader::new(stream) })
    }

    /// The stream, to be polled: readable when an answer of a watch has begun to come.
    pub fn stream(&self) -> &UnixStream {
        self.stream.get_ref()
    }

    /// Sends a request and waits for the answer; an error answer is [`ClientError::Refused`].
    pub fn request(&mut self, request: &Request) -> Result<Response, ClientError> {
        self.stream.get_mut().write_all(request.line().as_bytes())?;
        self.next_answer()
    }

    /// The next answer of a watch.
    pub fn next_answer(&mut self) -> Result<Response, ClientError> {
        match serde_json::from_str(&self.line()?) {
            Ok(Response::Error(e)) => Err(e.into()),
            Ok(response) => Ok(response),
            Err(e) => Err(ClientError::Answer(e.to_string())),
        }
    }

    /// Sends a command; an answer that is not [`Response::Done`] is an error.
    pub fn command(&mut self, request: &Request) -> Result<Done, ClientError> {
        match self.request(request)? {
            Response::Done(done) => Ok(done),
            other => Err(ClientError::Answer(format!("expected done, not {other:?}"))),
        }
    }

    fn line(&mut self) -> Result<String, ClientError> {
        let mut line = String::new();
        (&mut self.stream).take(MAX_ANSWER).read_line(&mut line)?;
        match line.pop() {
            Some('\n') => Ok(line),
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection").into()),
            Some(_) => Err(ClientError::Answer("it has no end".into())),
        }
    }
}
