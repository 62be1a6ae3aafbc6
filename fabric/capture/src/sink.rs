// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes bytes to a file from a separate thread, so that a slow disk does not delay the caller.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::pcapng;

/// Bytes that wait at most, besides as many that are being written.
const CAPACITY: usize = 16 << 20;
/// Bytes that are worth a write of their own.
const CHUNK: usize = 64 << 10;
/// How long fewer may wait.
const INTERVAL: Duration = Duration::from_millis(100);
/// How long closing may take: the reader of a pipe may have stopped reading.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Failure {
    /// Bytes that are in the file.
    pub(crate) offset: u64,
    pub(crate) source: io::Error,
}

/// What became of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// They will be written.
    Taken,
    /// There was no room for them.
    Full,
    /// Nothing can be written any more.
    Failed,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    closing: bool,
    done: bool,
    failed: bool,
    failure: Option<Failure>,
    written: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What it protects is whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file that is written in the background. Only whole blocks are given to it.
#[derive(Debug)]
pub(crate) struct Sink {
    shared: Arc<Shared>,
    capacity: usize,
}

impl Sink {
    /// Opens (or empties) `path`, mode 0600: a capture holds what the guests' memory holds. If it must be `new`, one
    /// that exists is an error.
    pub(crate) fn open(path: &Path, new: bool) -> io::Result<Sink> {
        Sink::with_capacity(path, new, CAPACITY)
    }

    fn with_capacity(path: &Path, new: bool, capacity: usize) -> io::Result<Sink> {
        // A named pipe without a reader is refused instead of waited for; a reader is waited for later, by the thread.
        let nonblocking = rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .create_new(new)
            .truncate(!new)
            .mode(0o600)
            .custom_flags(nonblocking.bits() as i32)
            .open(path)?;
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags.difference(nonblocking))?;
        let shared = Arc::new(Shared::default());
        let (writer, path) = (Arc::clone(&shared), path.to_owned());
        std::thread::Builder::new().name("capture".into()).spawn(move || write(&writer, file, path))?;
        Ok(Sink { shared, capacity })
    }

    /// Takes these bytes, if there is room and the file can still be written.
    pub(crate) fn push(&self, bytes: &[u8]) -> Pushed {
        let mut state = self.shared.lock();
        if state.failed || state.done {
            return Pushed::Failed;
        }
        let before = state.waiting.len();
        if before + bytes.len() > self.capacity {
            return Pushed::Full;
        }
        state.waiting.extend_from_slice(bytes);
        if before == 0 || before < CHUNK && state.waiting.len() >= CHUNK {
            self.shared.wake.notify_one();
        }
        Pushed::Taken
    }

    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.shared.lock().failure.take()
    }

    /// Bytes in the file.
    pub(crate) fn written(&self) -> u64 {
        self.shared.lock().written
    }

    /// Writes what waits, and ends. False if that takes too long.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.shared.lock();
        state.closing = true;
        self.shared.wake.notify_one();
        let result = self.shared.done.wait_timeout_while(state, PATIENCE, |state| !state.done);
        state = result.unwrap_or_else(PoisonError::into_inner).0;
        state.done
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.wake.notify_one();
    }
}

fn write(shared: &Shared, mut file: File, path: PathBuf) {
    // Beyond `ulimit -f` a write must fail, not end the process.
    let mut beyond = nix::sys::signal::SigSet::empty();
    beyond.add(nix::sys::signal::Signal::SIGXFSZ);
    if let Err(e) = beyond.thread_block() {
        log::warn!("cannot block SIGXFSZ while writing the capture {}: {e}", path.display());
    }
    let mut bytes = Vec::new();
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && !state.closing {
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.waiting.len() < CHUNK && !state.closing {
            let more = |state: &mut State| state.waiting.len() < CHUNK && !state.closing;
            let result = shared.wake.wait_timeout_while(state, INTERVAL, more);
            state = result.unwrap_or_else(PoisonError::into_inner).0;
        }
        bytes.clear();
        std::mem::swap(&mut bytes, &mut state.waiting);
        let offset = state.written;
        drop(state);
        if bytes.is_empty() {
            break;
        }
        let (written, result) = write_all(&mut file, &bytes);
        if let Err(source) = result {
            let mut there = written;
            if file.metadata().is_ok_and(|m| m.file_type().is_file()) {
                // Half a block at the end would look like a damaged file.
                there = pcapng::whole_blocks(&bytes[..written]);
                let _ = file.set_len(offset + there as u64);
            }
            let mut state = shared.lock();
            state.written = offset + there as u64;
            state.failed = true;
            state.failure = Some(Failure { offset: state.written, source });
            break;
        }
        shared.lock().written += written as u64;
    }
    let mut state = shared.lock();
    state.done = true;
    state.waiting = Vec::new();
    shared.done.notify_all();
}

/// How many were written, and how it ended.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < bytes.len() {
        match file.write(&bytes[written..]) {
            Ok(0) => return (written, Err(io::ErrorKind::WriteZero.into())),
            Ok(n) => written += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return (written, Err(e)),
        }
    }
    (written, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A pipe whose reader does not read: the buffer fills, is never more than full, and pushing never waits.
    #[test]
    fn a_file_that_is_too_slow_fills_the_buffer_and_blocks_no_push() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix_mkfifo(&path);
        let mut reader = OpenOptions::new().read(true).custom_flags(0o4000).open(&path).unwrap();
        let sink = Sink::with_capacity(&path, false, 1 << 20).unwrap();
        let mut block = Vec::new();
        pcapng::interface(&mut block, &"x".repeat(1000), "", 0);
        let taken = (0..10_000).filter(|_| sink.push(&block) == Pushed::Taken).count();
        // One buffer that waits, one that is being written, of which the pipe has some.
        let most = 2 * (1 << 20) / block.len() + (64 << 10) / block.len() + 2;
        assert!(taken <= most && taken >= (1 << 20) / block.len(), "{taken}, at most {most}");
        assert!(sink.shared.lock().waiting.len() <= 1 << 20);
        // The reader closes the pipe: the thread gets an error, which is reported once.
        let mut some = [0; 4096];
        let _ = reader.read(&mut some);
        drop(reader);
        assert!(sink.close());
        assert_eq!(sink.take_failure().unwrap().source.kind(), io::ErrorKind::BrokenPipe);
        assert!(sink.take_failure().is_none());
        assert_eq!(sink.push(&block), Pushed::Failed);
    }

    fn nix_mkfifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn a_pipe_without_a_reader_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        nix_mkfifo(&path);
        assert_eq!(Sink::open(&path, false).unwrap_err().raw_os_error(), Some(6));
    }

    #[test]
    fn what_was_given_is_in_the_file_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let sink = Sink::open(&path, true).unwrap();
        let mut all = Vec::new();
        for number in 0..5000 {
            let mut block = Vec::new();
            pcapng::interface(&mut block, &number.to_string(), "", 0);
            assert_eq!(sink.push(&block), Pushed::Taken);
            all.extend(block);
        }
        assert!(sink.close());
        assert_eq!(std::fs::read(&path).unwrap(), all);
        assert_eq!(sink.written(), all.len() as u64);
        assert_eq!(Sink::open(&path, true).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).unwrap(), all);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
