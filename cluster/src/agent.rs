// SPDX-License-Identifier: MIT OR Apache-2.0
//! The harness's end of what leads to a guest's agent, the line and the port: a reader thread of each hands each
//! message to its command.

use crate::stopwatch::Stopwatch;
use crate::{Error, Result, lock};
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use telegraphos_agent::{BULK, Decoder, SERIAL_WINDOW, STDIN_WINDOW, ToGuest, ToHost, encode};

/// Messages of one command that may be queued. Beyond, the line is not read, and the guest waits.
const WAITING: usize = 1024;

/// Errors of a kernel that wait to be asked for.
const ERRORS: usize = 64;

/// After so long without a byte, a message behind an unfinished frame counts: a reset has cut that frame off.
const SILENCE: Duration = Duration::from_secs(1);

/// The agent says within this time whether there is a port; a long command is sent on the line then.
const PORT_APPEARS: Duration = Duration::from_secs(4);

/// One guest's line. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Line(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    node: usize,
    /// The line's end.
    socket: UnixStream,
    /// Where QEMU listens for the port's end.
    listener: Option<PathBuf>,
    /// Held while one message is written whole. Apart from `state`: an agent whose output is not read reads no input,
    /// so the reader must proceed while a writer waits.
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

/// Where the conversation is.
#[derive(Debug, Default)]
enum Port {
    /// On the line. The port's end is held, so that what the agent will say there has a receiver.
    Unused(Arc<UnixStream>),
    /// The agent has been asked to use it, and looks for it.
    Asked(Arc<UnixStream>),
    /// The agent speaks on it; this end has not yet.
    Offered(Arc<UnixStream>),
    Used(Arc<UnixStream>),
    /// On the line; there is no port, or no way to its end.
    #[default]
    None,
}

impl Port {
    fn socket(&self) -> Option<&Arc<UnixStream>> {
        match self {
            Port::Unused(socket) | Port::Asked(socket) | Port::Offered(socket) | Port::Used(socket) => Some(socket),
            Port::None => None,
        }
    }
}

#[derive(Debug, Default)]
struct State {
    boot: Boot,
    port: Port,
    /// Times the conversation has begun anew: what comes from the port of an earlier one is of no interest.
    beginnings: u64,
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
    /// Takes over the line's socket and starts its reader. The port's end is at `listener`.
    pub(crate) fn open(node: usize, socket: UnixStream, listener: Option<PathBuf>) -> Result<Line> {
        let spawn = |source| Error::Spawn { what: format!("the reader of node {node}'s agent line"), source };
        let reader = socket.try_clone().map_err(spawn)?;
        reader.set_read_timeout(Some(SILENCE)).map_err(spawn)?;
        let (turn, state, changed) = (Mutex::default(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { node, socket, listener, turn, state, changed });
        let line = Line(Arc::clone(&shared));
        std::thread::Builder::new()
            .name(format!("agent {node}"))
            .spawn(move || {
                shared.read(reader, None);
                shared.change("the guest's agent line was closed: QEMU has ended", |state| state.closed = true);
            })
            .map_err(spawn)?;
        Ok(line)
    }

    /// Ends the line; commands on it fail.
    pub(crate) fn close(&self) {
        // Each fails if its other end is already gone.
        let _ = self.0.socket.shutdown(Shutdown::Both);
        if let Some(port) = self.0.state().port.socket() {
            let _ = port.shutdown(Shutdown::Both);
        }
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
        if let Some(turn) = due.then(|| self.0.turn.try_lock().ok()).flatten() {
            // A line that has ended is noticed by its reader.
            let _ = frames(&ToGuest::Ping { nonce: 0 }).and_then(|ping| self.0.write(&turn, &ping));
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
        let run = run(id);
        if matches!(&run, ToGuest::Run(run) if run.argv.iter().map(|word| word.len()).sum::<usize>() > BULK) {
            self.expect_bulk();
            let looks = |state: &mut State| matches!(state.port, Port::Asked(_)) && !state.closed;
            drop(self.0.changed.wait_timeout_while(self.0.state(), PORT_APPEARS, looks));
        }
        if let Err(e) = self.send(&run) {
            self.0.state().commands.remove(&id);
            return Err(e);
        }
        Ok((id, receiver))
    }

    /// Sends one message; blocks while the agent does not read.
    pub(crate) fn send(&self, message: &ToGuest) -> Result<(), String> {
        let frames = frames(message)?;
        self.0.write(&lock(&self.0.turn), &frames)
    }

    /// Much is to be sent: the agent is asked to use the port, unless it has been.
    pub(crate) fn expect_bulk(&self) {
        {
            let mut state = self.0.state();
            let Port::Unused(socket) = &state.port else { return };
            state.port = Port::Asked(Arc::clone(socket));
        }
        // What fails here fails also for what is to be sent.
        let _ = self.send(&ToGuest::UsePort);
    }

    /// Bytes of one command's standard input that may be on the way.
    pub(crate) fn window(&self) -> usize {
        let fast = matches!(self.0.state().port, Port::Offered(_) | Port::Used(_));
        if fast { STDIN_WINDOW as usize } else { SERIAL_WINDOW as usize }
    }
}

/// The frames of a message.
fn frames(message: &ToGuest) -> Result<Vec<u8>, String> {
    encode(message).map_err(|e| e.to_string())
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

    /// Writes one message, of these frames, where the conversation is.
    fn write(&self, _turn: &MutexGuard<'_, ()>, message: &[u8]) -> Result<(), String> {
        let write = |mut to: &UnixStream, message: &[u8]| {
            to.write_all(message).map_err(|e| format!("the guest's agent line: {e}"))
        };
        let port = match &self.state().port {
            Port::Used(port) => Some((Arc::clone(port), false)),
            Port::Offered(port) => Some((Arc::clone(port), true)),
            _ => None,
        };
        let Some((port, first)) = port else { return write(&self.socket, message) };
        if first {
            write(&self.socket, &frames(&ToGuest::OnPort)?)?;
            let mut state = self.state();
            // Unless the agent has begun anew meanwhile.
            if matches!(&state.port, Port::Offered(now) if Arc::ptr_eq(now, &port)) {
                state.port = Port::Used(Arc::clone(&port));
            }
        }
        write(&port, message)
    }

    /// Takes the port's end, anew if the last conversation has used it: what is in it then is that conversation's.
    fn begin(&self) {
        let before = {
            let mut state = self.state();
            state.beginnings += 1;
            std::mem::take(&mut state.port)
        };
        let connect = |at: &PathBuf| UnixStream::connect(at).map(Arc::new).map_err(|e| log::debug!("{at:?}: {e}")).ok();
        let port = match before {
            Port::Unused(socket) => Some(socket),
            used => {
                // A writer that waits there waits no longer.
                used.socket().map(|socket| socket.shutdown(Shutdown::Both));
                self.listener.as_ref().and_then(connect)
            }
        };
        self.state().port = port.map_or(Port::None, Port::Unused);
    }

    /// The agent speaks on the port from now on; whether this end has it, and that is new.
    fn offered(self: &Arc<Shared>) -> bool {
        let (socket, beginning) = {
            let mut state = self.state();
            let (Port::Unused(socket) | Port::Asked(socket)) = &state.port else { return false };
            let socket = Arc::clone(socket);
            state.port = Port::Offered(Arc::clone(&socket));
            (socket, state.beginnings)
        };
        self.changed.notify_all();
        let Ok(reader) = socket.try_clone() else { return false };
        let shared = Arc::clone(self);
        let read = move || shared.read(reader, Some(beginning));
        std::thread::Builder::new().name(format!("agent port {}", self.node)).spawn(read).is_ok()
    }

    /// Reads the line, or the port since that beginning, until its end.
    fn read(self: &Arc<Shared>, mut reader: UnixStream, since: Option<u64>) {
        let mut decoder = Decoder::default();
        let mut bytes = [0; 64 * 1024];
        let take = |message| {
            if since.is_none_or(|beginning| self.state().beginnings == beginning) {
                self.take(message);
            }
        };
        loop {
            match reader.read(&mut bytes) {
                Ok(0) => return,
                Ok(n) => decoder.push(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => decoder.next_behind().into_iter().for_each(&take),
                Err(e) => {
                    log::debug!("node {}: agent line: {e}", self.node);
                    return;
                }
            }
            while let Some(message) = decoder.next() {
                take(message);
            }
        }
    }

    /// Hands a message to its command.
    fn take(self: &Arc<Shared>, message: ToHost) {
        self.state().heard = Some(Stopwatch::start());
        let (id, last) = match message {
            ToHost::Hello { release, uptime_ms, board, boot } => {
                let again = !boot.is_empty() && self.state().boot.id == boot;
                let why =
                    if again { "the guest's agent has ended and was started again" } else { "the guest was restarted" };
                self.begin();
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
            ToHost::OnPort => {
                if !self.offered() {
                    log::error!("node {}: the agent speaks on a port that nothing reads", self.node);
                    let _ = self.socket.shutdown(Shutdown::Both);
                }
                return;
            }
            ToHost::NoPort => {
                self.state().port = Port::None;
                self.changed.notify_all();
                return;
            }
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
    use telegraphos_agent::{Message, Run};

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
                if let ToGuest::Run(Run { id, .. }) = self.next() {
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

    /// The conversation moves to the port in both directions with nothing lost or out of order, and back to the line
    /// when the guest boots anew; what is in the port then is of no interest.
    #[test]
    fn much_data_goes_by_the_port_until_the_guest_boots_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        let line = Line::open(0, here, Some(path)).unwrap();
        let mut agent = Peer::new(there);
        let hello = |boot: &str| ToHost::Hello { release: "6".into(), uptime_ms: 1, board: true, boot: boot.into() };
        let run =
            |id| ToGuest::Run(Run { id, uid: 0, gid: 0, argv: Vec::new(), env: Vec::new(), cwd: None, terminal: None });
        agent.send(&hello("1"));
        let mut port = Peer::new(listener.accept().unwrap().0);
        assert!(line.wait_for_boot(0, LIMIT));
        let (id, messages) = line.start(run).unwrap();
        assert_eq!(agent.started(), id);
        assert!(matches!(messages.recv().unwrap(), ToHost::Started { .. }));
        assert_eq!(line.window(), SERIAL_WINDOW as usize);
        let input = |byte| ToGuest::Stdin { id, bytes: vec![byte] };
        line.send(&input(1)).unwrap();
        line.expect_bulk();
        line.expect_bulk();
        line.send(&input(2)).unwrap();
        assert_eq!((agent.next::<ToGuest>(), agent.next::<ToGuest>()), (input(1), ToGuest::UsePort));
        assert_eq!(agent.next::<ToGuest>(), input(2), "it is asked once");
        // What is on the port before the agent has said so is not heard before what is on the line.
        let output = |byte| ToHost::Stdout { id, bytes: vec![byte] };
        port.send(&output(2));
        agent.send(&output(1));
        agent.send(&ToHost::OnPort);
        assert_eq!((messages.recv().unwrap(), messages.recv().unwrap()), (output(1), output(2)));
        assert_eq!(line.window(), STDIN_WINDOW as usize);
        line.send(&input(3)).unwrap();
        line.send(&input(4)).unwrap();
        assert_eq!(agent.next::<ToGuest>(), ToGuest::OnPort);
        assert_eq!((port.next::<ToGuest>(), port.next::<ToGuest>()), (input(3), input(4)));

        agent.send(&hello("2"));
        assert!(matches!(messages.recv().unwrap(), ToHost::Error { text, .. } if text.contains("restarted")));
        let again = Peer::new(listener.accept().unwrap().0);
        assert!(line.wait_for_boot(1, LIMIT));
        let (id, messages) = line.start(run).unwrap();
        assert_eq!(agent.started(), id, "on the line");
        assert!(matches!(messages.recv().unwrap(), ToHost::Started { .. }));
        assert_eq!(port.socket.read(&mut [0]).unwrap(), 0, "closed");
        agent.send(&ToHost::NoPort);
        agent.send(&ToHost::Exited { id, exit: telegraphos_agent::Exit::Code(0) });
        assert!(matches!(messages.recv().unwrap(), ToHost::Exited { .. }));
        line.expect_bulk();
        line.send(&input(5)).unwrap();
        assert_eq!(agent.next::<ToGuest>(), input(5), "it is not asked for what it has not");
        drop(again);
    }

    /// The line to an agent, and the agent's end of it.
    pub(crate) fn line(node: usize) -> (Line, Peer) {
        let (here, there) = UnixStream::pair().unwrap();
        (Line::open(node, here, None).unwrap(), Peer::new(there))
    }
}
