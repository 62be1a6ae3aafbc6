// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outputs of tasks, which come to their master (s3 §6.4): the master listens before it spawns, the address goes
//! with the request, and a task has its streams from before its first instruction.

use crate::error::{Error, Result};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use telegraphos_daemon_core::{Logger, TaskId};

/// Streams at once, at most: two of each task that one client may have, and some that come from elsewhere.
const STREAMS: usize = 2 * 512 + 32;
/// Within this a stream says whose it is.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a line that is kept whole, at most.
const LINE: usize = 64 << 10;

/// Whole lines of a task's, or a part of a longer one.
#[derive(Debug)]
pub struct Piece<'a> {
    /// The task.
    pub task: TaskId,
    /// 1 for its standard output, 2 for its standard error.
    pub stream: u8,
    /// What it has written.
    pub bytes: &'a [u8],
}

#[derive(Debug, Default)]
struct Streams {
    open: usize,
    ended: BTreeSet<(TaskId, u8)>,
}

#[derive(Debug, Default)]
struct Shared {
    streams: Mutex<Streams>,
    changed: Condvar,
}

impl Shared {
    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the outputs of tasks, as long as the process lives.
#[derive(Debug)]
pub struct Outputs {
    logger: Logger,
    shared: Arc<Shared>,
}

impl Outputs {
    /// Listens for outputs, and gives them to `sink`, by one thread for each stream. While that does not return, the
    /// task waits; when it fails, the stream is closed, and the task is told as by a pipe that nobody reads.
    ///
    /// # Errors
    ///
    /// [`Error::Listen`].
    pub fn listen(sink: impl Fn(Piece<'_>) -> io::Result<()> + Send + Sync + 'static) -> Result<Outputs> {
        let listen = || -> io::Result<(TcpListener, Logger)> {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let mut key = [0; 16];
            rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())?;
            let logger = Logger { port: listener.local_addr()?.port(), key };
            Ok((listener, logger))
        };
        let (listener, logger) = listen().map_err(Error::Listen)?;
        let shared = Arc::new(Shared::default());
        let (sink, streams) = (Arc::new(sink), shared.clone());
        let accept = move || {
            for stream in listener.incoming() {
                // Whatever has befallen a connection, others may come; out of descriptors, not at once.
                let Ok(stream) = stream else {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                if streams.streams().open >= STREAMS {
                    continue;
                }
                streams.streams().open += 1;
                let (sink, own) = (sink.clone(), streams.clone());
                let read = move || {
                    let ended = read(stream, logger, &*sink);
                    let mut streams = own.streams();
                    streams.open -= 1;
                    streams.ended.extend(ended);
                    own.changed.notify_all();
                };
                if thread::Builder::new().name("output".into()).spawn(read).is_err() {
                    streams.streams().open -= 1;
                }
            }
        };
        thread::Builder::new().name("outputs".into()).spawn(accept).map_err(Error::Listen)?;
        Ok(Outputs { logger, shared })
    }

    /// What a [`Job`](crate::Job) is given.
    pub fn logger(&self) -> Logger {
        self.logger
    }

    /// Waits until all that these tasks have written is with the sink, for at most this time: what they have left
    /// behind may go on writing.
    pub fn wait(&self, tasks: &[TaskId], time: Duration) {
        let end = Instant::now() + time;
        let mut streams = self.shared.streams();
        while tasks.iter().any(|task| [1, 2].iter().any(|stream| !streams.ended.contains(&(*task, *stream)))) {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return };
            streams = self.shared.changed.wait_timeout(streams, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Reads a stream to its end; whose it was.
fn read(mut stream: TcpStream, logger: Logger, sink: &dyn Fn(Piece<'_>) -> io::Result<()>) -> Option<(TaskId, u8)> {
    let mut head = [0; Logger::HEAD];
    stream.set_read_timeout(Some(HEAD)).ok()?;
    stream.read_exact(&mut head).ok()?;
    let (task, number) = logger.read_head(&head)?;
    stream.set_read_timeout(None).ok()?;
    let mut pending = Vec::new();
    let mut bytes = [0; 16 << 10];
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        pending.extend_from_slice(&bytes[..count]);
        let whole = match pending.iter().rposition(|byte| *byte == b'\n') {
            _ if count == 0 || pending.len() >= LINE => pending.len(),
            Some(at) => at + 1,
            None => 0,
        };
        let piece = Piece { task, stream: number, bytes: &pending[..whole] };
        if (whole > 0 && sink(piece).is_err()) || count == 0 {
            return Some((task, number));
        }
        pending.drain(..whole);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::io::Write;
    use std::sync::mpsc;

    fn connected(logger: Logger, head: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, logger.port)).unwrap();
        stream.write_all(head).unwrap();
        stream
    }

    #[test]
    fn whole_lines_come_and_only_from_tasks() {
        let (to, from) = mpsc::channel();
        let outputs = Outputs::listen(move |piece| {
            to.send((piece.task, piece.stream, piece.bytes.to_vec())).map_err(io::Error::other)
        })
        .unwrap();
        let logger = outputs.logger();
        let task = TaskId { node: 3, pid: 77 };
        let mut streams = [1, 2].map(|number| connected(logger, &logger.head(task, number)));
        // Others' are not read.
        let other = Logger { key: [0; 16], ..logger };
        let mut stranger = connected(logger, &other.head(task, 1));
        _ = stranger.write_all(b"lie\n");
        streams[0].write_all(b"one\ntw").unwrap();
        assert_eq!(from.recv().unwrap(), (task, 1, b"one\n".to_vec()));
        streams[0].write_all(b"o\nrest").unwrap();
        assert_eq!(from.recv().unwrap(), (task, 1, b"two\n".to_vec()));
        drop(streams);
        assert_eq!(from.recv().unwrap(), (task, 1, b"rest".to_vec()));
        outputs.wait(&[task], Duration::from_secs(20));
        assert!(outputs.shared.streams().ended.contains(&(task, 2)));
        assert!(from.try_recv().is_err());
    }

    #[test]
    fn a_line_without_end_comes_in_parts() {
        let (to, from) = mpsc::channel();
        let outputs = Outputs::listen(move |piece| to.send(piece.bytes.len()).map_err(io::Error::other)).unwrap();
        let logger = outputs.logger();
        let mut stream = connected(logger, &logger.head(TaskId { node: 0, pid: 1 }, 1));
        stream.write_all(&vec![b'x'; 3 * LINE]).unwrap();
        drop(stream);
        let mut total = 0;
        while total < 3 * LINE {
            let count = from.recv().unwrap();
            assert!(count <= LINE + (16 << 10), "{count}");
            total += count;
        }
        assert_eq!(total, 3 * LINE);
    }
}
