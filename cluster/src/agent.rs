// SPDX-License-Identifier: MIT OR Apache-2.0
//! The harness's end of a guest's agent line: one reader thread per guest hands each message to its command.

use crate::stopwatch::Stopwatch;
use crate::{Error, Result, lock};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_agent::{Decoder, ToGuest, ToHost, encode};

/// Messages of one command that may be queued. Beyond, the line is not read, and the guest waits.
const WAITING: usize = 4096;

/// Errors of a kernel that wait to be asked for.
const ERRORS: usize = 64;

/// After so long without a byte, a message behind an unfinished frame counts: a reset has cut that frame off.
const SILENCE: Duration = Duration::from_secs(1);

/// One guest's line. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Line(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    node: usize,
    socket: UnixStream,
    /// Held while one frame is written whole. Apart from `state`: an agent whose output is not read reads no input, so
    /// the reader must proceed while a writer waits.
    turn: Mutex<()>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What the agent has said when it came up last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boot {
    /// Boots of the guest whose agent has announced that it is ready.
    pub(crate) count: u64,
    /// Differs from boot to boot.
    id: String,
    /// `uname -r`.
    pub(crate) release: String,
    /// The guest's own.
    pub(crate) uptime: Duration,
    /// The guest's board could be used.
    pub(crate) board: bool,
}

#[derive(Debug, Default)]
struct State {
    boot: Boot,
    closed: bool,
    next_id: u32,
    /// Since the agent was heard last; none before the first time.
    heard: Option<Stopwatch>,
    /// When the last `Ping` was sent.
    pinged: Option<Instant>,
    /// The reader waits for a command's owner here to take its output, and so hears nothing.
    delivers: bool,
    /// What the kernel has reported and has not been asked for.
    errors: VecDeque<String>,
    /// The record of the last of them.
    reported: Option<u64>,
    commands: HashMap<u32, SyncSender<ToHost>>,
}

impl Line {
    /// Takes over the line's socket and starts its reader.
    pub(crate) fn open(node: usize, socket: UnixStream) -> Result<Line> {
        let spawn = |source| Error::Spawn { what: format!("the reader of node {node}'s agent line"), source };
        let reader = socket.try_clone().map_err(spawn)?;
        reader.set_read_timeout(Some(SILENCE)).map_err(spawn)?;
        let shared =
            Arc::new(Shared { node, socket, turn: Mutex::default(), state: Mutex::default(), changed: Condvar::new() });
        let line = Line(Arc::clone(&shared));
        std::thread::Builder::new()
            .name(format!("agent {node}"))
            .spawn(move || {
                shared.read(reader);
                shared.change("the guest's agent line was closed: QEMU has ended", |state| state.closed = true);
            })
            .map_err(spawn)?;
        Ok(line)
    }

    /// Ends the line; commands on it fail.
    pub(crate) fn close(&self) {
        // Fails if the other end is already gone.
        let _ = self.0.socket.shutdown(Shutdown::Both);
    }

    pub(crate) fn boot(&self) -> Boot {
        self.0.state().boot.clone()
    }

    /// Whether nothing has been heard from the agent for `limit`, although it is up and was pinged. To be called
    /// several times within the limit, and within a second: time in which it is not called does not count.
    pub(crate) fn is_silent(&self, limit: Duration) -> bool {
        let (silent, due) = {
            let mut state = self.0.state();
            let away = state.delivers || state.closed;
            let Some(silent) = state.heard.as_mut().filter(|_| !away).map(Stopwatch::elapsed) else { return false };
            let due = state.pinged.is_none_or(|pinged| pinged.elapsed() > limit / 4);
            if due {
                state.pinged = Some(Instant::now());
            }
            (silent, due)
        };
        // Another writer that waits for the agent is no reason to wait here, too.
        if let Some(_turn) = due.then(|| self.0.turn.try_lock().ok()).flatten() {
            if let Ok(frame) = encode(&ToGuest::Ping { nonce: 0 }) {
                // A line that has ended is noticed by its reader.
                let _ = (&self.0.socket).write_all(&frame);
            }
        }
        silent > limit
    }

    /// Whether the agent has been heard.
    pub(crate) fn is_up(&self) -> bool {
        self.0.state().heard.is_some()
    }

    /// The next error that the kernel has reported: the first line of it.
    pub(crate) fn kernel_error(&self) -> Option<String> {
        self.0.state().errors.pop_front()
    }

    /// Waits at most `limit` for the guest to have booted more than `boots` times; whether it has.
    pub(crate) fn wait_for_boot(&self, boots: u64, limit: Duration) -> bool {
        let state = self.0.state();
        let waiting = |s: &mut State| s.boot.count <= boots && !s.closed;
        let (state, _) =
            self.0.changed.wait_timeout_while(state, limit, waiting).unwrap_or_else(PoisonError::into_inner);
        state.boot.count > boots
    }

    /// Starts the command that `run` makes for an id. Its messages come through the receiver until `Exited`, `Error` or
    /// the end of the line.
    pub(crate) fn start(&self, run: impl FnOnce(u32) -> ToGuest) -> Result<(u32, Receiver<ToHost>), String> {
        let (sender, receiver) = sync_channel(WAITING);
        let id = {
            let mut state = self.0.state();
            if state.closed {
                return Err("the guest's agent line is closed".into());
            }
            state.next_id += 1;
            let id = state.next_id;
            state.commands.insert(id, sender);
            id
        };
        if let Err(e) = self.send(&run(id)) {
            self.0.state().commands.remove(&id);
            return Err(e);
        }
        Ok((id, receiver))
    }

    /// Sends one message; blocks while the agent does not read.
    pub(crate) fn send(&self, message: &ToGuest) -> Result<(), String> {
        let frame = encode(message).map_err(|e| e.to_string())?;
        let _turn = lock(&self.0.turn);
        (&self.0.socket).write_all(&frame).map_err(|e| format!("the guest's agent line: {e}"))
    }
}

impl State {
    /// The kernel has failed; an agent that was started again says it once more.
    fn report(&mut self, sequence: u64, text: String) {
        if self.reported.is_some_and(|last| sequence <= last) {
            return;
        }
        self.reported = Some(sequence);
        if self.errors.len() < ERRORS {
            self.errors.push_back(text);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn read(&self, mut reader: UnixStream) {
        let mut decoder = Decoder::default();
        let mut bytes = [0; 16 * 1024];
        loop {
            match reader.read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => decoder.push(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    decoder.next_behind().into_iter().for_each(|m| self.take(m))
                }
                Err(e) => {
                    log::debug!("node {}: agent line: {e}", self.node);
                    return;
                }
            }
            while let Some(message) = decoder.next() {
                self.take(message);
            }
        }
    }

    /// Hands a message to its command.
    fn take(&self, message: ToHost) {
        self.state().heard = Some(Stopwatch::start());
        let (id, last) = match message {
            ToHost::Hello { release, uptime_ms, board, boot } => {
                let again = !boot.is_empty() && self.state().boot.id == boot;
                let why =
                    if again { "the guest's agent has ended and was started again" } else { "the guest was restarted" };
                return self.change(why, |state| {
                    let count = state.boot.count + u64::from(!again);
                    state.boot = Boot { count, id: boot, release, uptime: Duration::from_millis(uptime_ms), board };
                    if !again {
                        state.reported = None;
                    }
                });
            }
            ToHost::Kernel { sequence, text } => return self.state().report(sequence, text),
            ToHost::Pong { .. } => return,
            ToHost::Started { id, .. }
            | ToHost::Stdout { id, .. }
            | ToHost::Stderr { id, .. }
            | ToHost::StdinTaken { id, .. } => (id, false),
            ToHost::Exited { id, .. } | ToHost::NotStarted { id, .. } | ToHost::Error { id, .. } => (id, true),
        };
        let sender = {
            let mut state = self.state();
            if last { state.commands.remove(&id) } else { state.commands.get(&id).cloned() }
        };
        // Without the lock: it may wait for the receiver, which may also have gone.
        if let Some(sender) = sender {
            self.state().delivers = true;
            let _ = sender.send(message);
            let mut state = self.state();
            state.delivers = false;
            state.heard = Some(Stopwatch::start());
        }
    }

    /// Changes the state in a way that ends all commands, for this reason.
    fn change(&self, why: &str, change: impl FnOnce(&mut State)) {
        let commands = {
            let mut state = self.state();
            change(&mut state);
            std::mem::take(&mut state.commands)
        };
        self.changed.notify_all();
        for (id, sender) in commands {
            // A full channel keeps its messages; its receiver then finds the channel closed.
            let _ = sender.try_send(ToHost::Error { id, text: why.into() });
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use telegraphos_agent::Message;

    const LIMIT: Duration = Duration::from_secs(20);

    /// One end of a stream of messages.
    pub(crate) struct Peer {
        pub(crate) socket: UnixStream,
        decoder: Decoder,
    }

    impl Peer {
        pub(crate) fn new(socket: UnixStream) -> Peer {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            Peer { socket, decoder: Decoder::default() }
        }

        pub(crate) fn send(&mut self, message: &impl Message) {
            self.socket.write_all(&encode(message).unwrap()).unwrap();
        }

        pub(crate) fn next<M: Message>(&mut self) -> M {
            let mut bytes = [0; 4096];
            loop {
                if let Some(message) = self.decoder.next() {
                    return message;
                }
                let n = self.socket.read(&mut bytes).unwrap();
                assert!(n > 0, "the other end is closed");
                self.decoder.push(&bytes[..n]);
            }
        }

        /// The id of the next command, which now runs.
        pub(crate) fn started(&mut self) -> u32 {
            loop {
                if let ToGuest::Run { id, .. } = self.next() {
                    self.send(&ToHost::Started { id, pid: 1 });
                    return id;
                }
            }
        }

        pub(crate) fn signal(&mut self) -> i32 {
            loop {
                if let ToGuest::Signal { signal, .. } = self.next() {
                    return signal;
                }
            }
        }
    }

    /// The line to an agent, and the agent's end of it.
    pub(crate) fn line(node: usize) -> (Line, Peer) {
        let (here, there) = UnixStream::pair().unwrap();
        (Line::open(node, here).unwrap(), Peer::new(there))
    }
}
