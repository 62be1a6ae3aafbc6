// SPDX-License-Identifier: MIT OR Apache-2.0
//! The outputs of tasks, which come to their master (s3 §6.4): the master listens before it spawns, the address goes
//! with the request, and a task has its streams from before its first instruction.

use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use telegraphos_accounts::{Shares, Slots};
use telegraphos_daemon_core::{Logger, TaskId};

/// Streams that have the key, at most: two of each task that one client may have.
const STREAMS: usize = 2 * 512;
/// Streams that have not said the key, by their address. One more of an address that has so many, or when there are so
/// many in all, ends the oldest of those that have most; the daemon tries one of a task's again.
const UNIDENTIFIED: Shares = Shares { capacity: 64, spenders: 1, guaranteed: 0, limit: 16 };
/// Within this a stream says the key, and then whose it is.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a line that is kept whole, at most.
const LINE: usize = 64 << 10;

/// Whole lines of a task's, or a part of a longer one.
#[derive(Debug)]
pub struct Piece<'a> {
    pub task: TaskId,
    /// 1 for its standard output, 2 for its standard error.
    pub stream: u8,
    pub bytes: &'a [u8],
}

#[derive(Debug)]
struct Streams {
    /// By number: those that have not said the key.
    unidentified: Slots<IpAddr, u64>,
    sockets: BTreeMap<u64, Arc<TcpStream>>,
    /// Those that have.
    open: usize,
    ended: BTreeSet<(TaskId, u8)>,
}

impl Streams {
    /// A stream has come; false if it cannot be had.
    fn admit(&mut self, number: u64, stream: &Arc<TcpStream>) -> bool {
        let Ok(address) = stream.peer_addr() else { return false };
        let Ok(displaced) = self.unidentified.take(address.ip(), number) else { return false };
        if let Some(socket) = displaced.and_then(|displaced| self.sockets.remove(&displaced)) {
            // Its thread ends by that.
            _ = socket.shutdown(Shutdown::Both);
        }
        self.sockets.insert(number, stream.clone());
        true
    }

    /// A stream has said the key, or will not; false if it has made room for others.
    fn leave(&mut self, number: u64) -> bool {
        self.sockets.remove(&number);
        self.unidentified.give(number)
    }
}

#[derive(Debug)]
struct Shared {
    streams: Mutex<Streams>,
    changed: Condvar,
}

impl Shared {
    /// Whether a stream says the key in time, and is one of those that there may be; it is answered then.
    fn identify(&self, number: u64, mut stream: &TcpStream, logger: Logger) -> bool {
        let key = read_within(stream, HEAD);
        let is_ours = key.is_some_and(|key| logger.is_key(&key));
        let taken = {
            let mut streams = self.streams();
            let taken = streams.leave(number) && is_ours && streams.open < STREAMS;
            streams.open += usize::from(taken);
            taken
        };
        if !taken {
            _ = stream.shutdown(Shutdown::Both);
            return false;
        }
        // One that is not there any more ends as it is read.
        _ = stream.write_all(&[Logger::TAKEN]);
        true
    }

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
    /// task waits; when it fails, the stream is closed, and the task gets an error as from a pipe without a reader.
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
        let streams = Streams {
            unidentified: Slots::new(UNIDENTIFIED),
            sockets: BTreeMap::new(),
            open: 0,
            ended: BTreeSet::new(),
        };
        let shared = Arc::new(Shared { streams: Mutex::new(streams), changed: Condvar::new() });
        let (sink, streams) = (Arc::new(sink), shared.clone());
        let accept = move || {
            for (number, stream) in (0..).zip(listener.incoming()) {
                // Whatever has befallen a connection, others may come; out of descriptors, not at once.
                let Ok(stream) = stream.map(Arc::new) else {
                    thread::sleep(Duration::from_millis(10));
                    continue;
                };
                if !streams.streams().admit(number, &stream) {
                    continue;
                }
                let (sink, own) = (sink.clone(), streams.clone());
                let read = move || {
                    if !own.identify(number, &stream, logger) {
                        return;
                    }
                    let ended = read(&stream, &*sink);
                    let mut streams = own.streams();
                    streams.open -= 1;
                    streams.ended.extend(ended);
                    own.changed.notify_all();
                };
                if thread::Builder::new().name("output".into()).spawn(read).is_err() {
                    streams.streams().leave(number);
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
    /// behind may continue to write.
    pub fn wait(&self, tasks: &[TaskId], time: Duration) {
        let end = Instant::now() + time;
        let mut streams = self.shared.streams();
        while tasks.iter().any(|task| [1, 2].iter().any(|stream| !streams.ended.contains(&(*task, *stream)))) {
            let Some(left) = end.checked_duration_since(Instant::now()) else { return };
            streams = self.shared.changed.wait_timeout(streams, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The next bytes of a stream, if they all come within this time.
fn read_within<const N: usize>(mut stream: &TcpStream, time: Duration) -> Option<[u8; N]> {
    let end = Instant::now() + time;
    let (mut bytes, mut count) = ([0; N], 0);
    while count < N {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut bytes[count..]) {
            Ok(0) => return None,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    stream.set_read_timeout(None).ok()?;
    Some(bytes)
}

/// Reads a stream that has said the key to its end; whose it was.
fn read(mut stream: &TcpStream, sink: &dyn Fn(Piece<'_>) -> io::Result<()>) -> Option<(TaskId, u8)> {
    let (task, number) = Logger::read_head(read_within(stream, HEAD)?)?;
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

    fn strange(logger: Logger) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, logger.port)).unwrap()
    }

    /// A stream that has said the key; whether it is taken.
    fn keyed(logger: Logger, key: [u8; 16]) -> (TcpStream, bool) {
        let mut stream = strange(logger);
        _ = stream.write_all(&key);
        let taken = read_within::<1>(&stream, Duration::from_secs(60));
        (stream, taken == Some([Logger::TAKEN]))
    }

    fn connected(logger: Logger, task: TaskId, number: u8) -> TcpStream {
        let (mut stream, taken) = keyed(logger, logger.key);
        assert!(taken);
        stream.write_all(&Logger::head(task, number)).unwrap();
        stream
    }

    #[test]
    fn streams_that_say_nothing_make_room_for_those_of_tasks() {
        let (to, from) = mpsc::channel();
        let outputs = Outputs::listen(move |piece| to.send(piece.bytes.len()).map_err(io::Error::other)).unwrap();
        let logger = outputs.logger();
        // Those that are held have no end of their own for ten seconds.
        let held: Vec<TcpStream> = (0..300).map(|_| strange(logger)).collect();
        let task = TaskId { node: 0, pid: 1 };
        for number in [1, 2] {
            let mut stream = connected(logger, task, number);
            stream.write_all(b"line\n").unwrap();
            assert_eq!(from.recv().unwrap(), 5);
        }
        let streams = outputs.shared.streams();
        assert!(streams.unidentified.len() <= 16 && streams.sockets.len() == streams.unidentified.len());
        drop(streams);
        // The oldest of them are ended, the last are not.
        let mut first = &held[0];
        assert!(!matches!(first.read(&mut [0]), Ok(1..)));
        let last = &held[299];
        last.set_nonblocking(true).unwrap();
        let mut last = last;
        assert_eq!(last.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    }

    #[test]
    fn streams_with_a_lie_or_a_part_of_a_head_are_no_tasks() {
        let (to, from) = mpsc::channel();
        let outputs = Outputs::listen(move |piece| to.send(piece.task).map_err(io::Error::other)).unwrap();
        let logger = outputs.logger();
        let mut other = logger.key;
        other[15] ^= 1;
        assert!(!keyed(logger, other).1 && !keyed(logger, [0; 16]).1);
        // A part of the key, and its end; the key, and no head, a part of one, and one of no stream.
        _ = strange(logger).write_all(&logger.key[..15]);
        let task = TaskId { node: 3, pid: 5 };
        for head in [&[][..], &Logger::head(task, 1)[..6], &Logger::head(task, 0), &Logger::head(task, 3)] {
            let (mut stream, taken) = keyed(logger, logger.key);
            assert!(taken);
            stream.write_all(head).unwrap();
            _ = stream.write_all(if head.len() == Logger::HEAD { b"lie\n" } else { b"" });
        }
        let mut stream = connected(logger, task, 1);
        stream.write_all(b"line\n").unwrap();
        drop(stream);
        assert_eq!(from.recv().unwrap(), task);
        outputs.wait(&[task], Duration::ZERO);
        assert!(from.try_recv().is_err());
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
        let mut streams = [1, 2].map(|number| connected(logger, task, number));
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
        let mut stream = connected(logger, TaskId { node: 0, pid: 1 }, 1);
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
