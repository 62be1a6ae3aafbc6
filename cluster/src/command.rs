// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command in a guest: described, started through the guest's agent line, read line by line.

use crate::agent::Line;
use crate::node_name::NodeLabel;
use crate::{Error, Result, interrupt};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use telegraphos_agent::{BULK, Exit, MAX_DATA, Run, Terminal, ToGuest, ToHost, bounded, words};

/// How long an agent may take to start a command, and what is no limit.
const START: Duration = Duration::from_secs(30);
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The user that runs a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum User {
    /// The ordinary user `tg` (uid 1000), member of the device's group.
    #[default]
    Tg,
    Root,
}

impl User {
    fn ids(self) -> (u32, u32) {
        match self {
            User::Tg => (1000, 1000),
            User::Root => (0, 0),
        }
    }
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            User::Tg => "tg",
            User::Root => "root",
        })
    }
}

impl std::str::FromStr for User {
    type Err = String;
    fn from_str(name: &str) -> Result<User, String> {
        match name {
            "tg" => Ok(User::Tg),
            "root" => Ok(User::Root),
            _ => Err(format!("the guests know no user {name:?}; expected tg or root")),
        }
    }
}

/// A command for a guest, to be run or spawned.
#[derive(Clone, Debug)]
pub struct GuestCommand {
    line: Result<Line, String>,
    node: NodeLabel,
    argv: Vec<OsString>,
    user: User,
    terminal: Option<Terminal>,
    input: Vec<u8>,
    keep_input: bool,
    /// A carriage return ends a line, too.
    returns: bool,
    limit: Duration,
    /// How long the agent may take to start it.
    start: Duration,
}

/// How a command in a guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(Exit);

impl Status {
    pub(crate) fn of(exit: Exit) -> Status {
        Status(exit)
    }

    /// Whether it returned 0.
    pub fn success(self) -> bool {
        self.0 == Exit::Code(0)
    }

    /// Its exit code as a shell would give it: 128 + n if signal n ended it.
    pub fn code(self) -> u8 {
        match self.0 {
            Exit::Code(code) => code as u8,
            Exit::Signal(signal) => 128 + (signal as u8 & 0x7f),
        }
    }

    /// The signal that ended it.
    pub fn signal(self) -> Option<i32> {
        match self.0 {
            Exit::Signal(signal) => Some(signal),
            Exit::Code(_) => None,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Exit::Code(code) => write!(f, "exit code {code}"),
            Exit::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Bytes of a command in a message.
const SHOWN: usize = 300;

/// A command as its user has typed it, nearly.
pub(crate) fn typed(argv: &[OsString]) -> String {
    argv.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The same for a message, or its beginning.
fn shown(argv: &[OsString]) -> String {
    let text = typed(argv);
    match bounded(&text, SHOWN) {
        whole if whole == text => text,
        beginning => format!("{beginning}..."),
    }
}

#[derive(Clone, Debug)]
pub struct Output {
    pub status: Status,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

/// One line a command wrote, without its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputLine {
    Stdout(String),
    Stderr(String),
}

impl OutputLine {
    /// The line, wherever it was written.
    pub fn text(&self) -> &str {
        match self {
            OutputLine::Stdout(text) | OutputLine::Stderr(text) => text,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl GuestCommand {
    pub(crate) fn new(node: NodeLabel, line: Result<Line, String>, argv: Vec<OsString>) -> GuestCommand {
        let (user, input, limit) = (User::default(), Vec::new(), Duration::from_secs(120));
        let (terminal, keep_input, returns, start) = (None, false, false, START);
        GuestCommand { line, node, argv, user, terminal, input, keep_input, returns, limit, start }
    }

    /// As root; without this as `tg`.
    pub fn as_root(self) -> GuestCommand {
        self.user(User::Root)
    }

    /// The user that runs it.
    pub fn user(mut self, user: User) -> GuestCommand {
        self.user = user;
        self
    }

    /// Its standard input; without this empty.
    pub fn input(mut self, bytes: impl Into<Vec<u8>>) -> GuestCommand {
        self.input = bytes.into();
        self
    }

    /// Its standard input stays open for [`Running::write`].
    pub fn keep_input_open(mut self) -> GuestCommand {
        self.keep_input = true;
        self
    }

    /// A carriage return ends a line of its output, too, as in what shows its progress.
    pub(crate) fn with_returns(mut self) -> GuestCommand {
        self.returns = true;
        self
    }

    /// It has a terminal of this size, with which both its outputs are one.
    pub(crate) fn terminal(mut self, terminal: Option<Terminal>) -> GuestCommand {
        self.terminal = terminal;
        self
    }

    /// How long [`GuestCommand::run`] waits; 120 s without this.
    pub fn limit(mut self, limit: Duration) -> GuestCommand {
        self.limit = limit;
        self
    }

    /// The agent may take as long as it wants to start it.
    pub(crate) fn patient(mut self) -> GuestCommand {
        self.start = FOREVER;
        self
    }

    pub fn spawn(self) -> Result<Running> {
        let text = shown(&self.argv);
        let fail = |why| Error::Command { node: self.node.clone(), command: text.clone(), why };
        let line = self.line.map_err(fail)?;
        let (uid, gid) = self.user.ids();
        let (argv, terminal) = (words(self.argv), self.terminal);
        // A program at a terminal asks which kind it is.
        let kind = terminal.and_then(|_| std::env::var("TERM").ok());
        let env = kind.into_iter().map(|kind| ("TERM".to_owned(), kind)).collect();
        let run = |id| ToGuest::Run(Run { id, uid, gid, argv, env, cwd: None, terminal });
        let (id, messages) = line.start(run).map_err(fail)?;
        let mut running = Running {
            node: self.node.clone(),
            command: text.clone(),
            line,
            id,
            messages,
            pid: 0,
            input: self.input.into(),
            in_flight: 0,
            input_closed: self.keep_input,
            partial: Default::default(),
            returns: self.returns,
            after_return: Default::default(),
            ready: Default::default(),
            ended: None,
        };
        running.feed()?;
        match running.next_message(Instant::now() + self.start)? {
            Some(ToHost::Started { pid, .. }) => running.pid = pid,
            Some(ToHost::Error { text: why, .. }) => return Err(running.fail(why)),
            Some(ToHost::NotStarted { code, text: why, .. }) => {
                // There is nothing to kill.
                running.ended = Some(Exit::Code(code.into()));
                let (node, command) = (running.node.clone(), running.command.clone());
                return Err(Error::NotStarted { node, command, why, code });
            }
            Some(other) => return Err(running.fail(format!("the agent answered {other:?}"))),
            None => return Err(running.fail("the guest's agent does not answer within 30 s".into())),
        }
        Ok(running)
    }

    /// The same; waits for a line of which `wanted` is true.
    pub fn spawn_until(self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<Running> {
        let mut running = self.spawn()?;
        running.wait_for_line(limit, wanted)?;
        Ok(running)
    }

    /// Runs it to its end and returns what it wrote.
    pub fn run(self) -> Result<Output> {
        let limit = self.limit;
        self.spawn()?.wait_for(limit)
    }

    /// Runs it and returns its standard output. An exit code other than 0 is an error.
    pub fn check(self) -> Result<String> {
        let limit = self.limit;
        Ok(self.spawn()?.check(limit)?.stdout)
    }
}

/// A command that runs in a guest. Killed when dropped before its end. While its output is neither taken nor the
/// command dropped, the guest's other commands may be held up behind it.
#[derive(Debug)]
pub struct Running {
    node: NodeLabel,
    command: String,
    line: Line,
    id: u32,
    messages: Receiver<ToHost>,
    pid: u32,
    /// What is still to be sent.
    input: VecDeque<u8>,
    /// Sent, and not yet taken by the guest.
    in_flight: usize,
    /// Closed, or not to be closed.
    input_closed: bool,
    /// Beginnings of lines: standard output, standard error.
    partial: [Vec<u8>; 2],
    /// A carriage return ends a line, too.
    returns: bool,
    /// Such a line was the last.
    after_return: [bool; 2],
    ready: VecDeque<OutputLine>,
    ended: Option<Exit>,
}

impl Running {
    fn fail(&self, why: String) -> Error {
        Error::Command { node: self.node.clone(), command: self.command.clone(), why }
    }

    /// The error of a command that is not done after `limit`; `output` is empty, or what it wrote.
    pub(crate) fn late(&self, limit: Duration, output: String) -> Error {
        Error::Late { node: self.node.clone(), command: self.command.clone(), limit, output }
    }

    /// Sends more standard input to a command started with [`GuestCommand::keep_input_open`].
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.write_bytes(text.as_bytes())
    }

    /// The same with bytes, which need be no text.
    pub(crate) fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.input.extend(bytes);
        self.feed()
    }

    /// Ends its standard input behind all that was written.
    pub(crate) fn close_input(&mut self) -> Result<()> {
        self.input_closed = false;
        self.feed()
    }

    /// Its terminal has this size from now on.
    pub(crate) fn resize(&mut self, terminal: Terminal) -> Result<()> {
        self.line.send(&ToGuest::Resize { id: self.id, terminal }).map_err(|e| self.fail(e))
    }

    /// Bytes of its standard input that the guest has not taken yet.
    pub(crate) fn input_waiting(&self) -> usize {
        self.input.len()
    }

    /// Its process id in the guest.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The next message, or nothing at `end`.
    fn next_message(&mut self, end: Instant) -> Result<Option<ToHost>> {
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left.min(Duration::from_millis(50))) {
                Ok(message) => return Ok(Some(message)),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(self.fail("the guest was restarted or QEMU has ended".into()));
                }
            }
        }
    }

    /// Sends as much input as the agent takes.
    fn feed(&mut self) -> Result<()> {
        if self.input.len() > BULK {
            self.line.expect_bulk();
        }
        while !self.input.is_empty() {
            let window = self.line.window().saturating_sub(self.in_flight);
            let n = self.input.len().min(MAX_DATA).min(window);
            if n == 0 {
                return Ok(());
            }
            let bytes = self.input.drain(..n).collect();
            self.line.send(&ToGuest::Stdin { id: self.id, bytes }).map_err(|e| self.fail(e))?;
            self.in_flight += n;
        }
        if !self.input_closed {
            self.input_closed = true;
            self.line.send(&ToGuest::CloseStdin { id: self.id }).map_err(|e| self.fail(e))?;
        }
        Ok(())
    }

    fn split(&mut self, stream: usize, bytes: &[u8]) {
        let line = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            if stream == 0 { OutputLine::Stdout(text) } else { OutputLine::Stderr(text) }
        };
        let (partial, after_return) = (&mut self.partial[stream], &mut self.after_return[stream]);
        let returns = self.returns;
        for piece in bytes.split_inclusive(|b| *b == b'\n' || returns && *b == b'\r') {
            // A return with a newline behind it is one end.
            if std::mem::take(after_return) && piece == b"\n" {
                continue;
            }
            partial.extend_from_slice(piece);
            if let Some(whole) = partial.strip_suffix(b"\n") {
                self.ready.push_back(line(whole));
                partial.clear();
            } else if let Some(whole) = partial.strip_suffix(b"\r").filter(|_| returns) {
                if !whole.is_empty() {
                    self.ready.push_back(line(whole));
                    *after_return = true;
                }
                partial.clear();
            }
        }
    }

    /// What it has written since its last line, of a command that is followed no more.
    pub(crate) fn rest(&mut self) -> Vec<OutputLine> {
        for stream in 0..2 {
            if !self.partial[stream].is_empty() {
                self.split(stream, b"\n");
            }
        }
        self.ready.drain(..).collect()
    }

    /// The next line it writes; nothing if it has ended, or wrote none before `end`. [`Running::ended`] says which.
    fn line_before(&mut self, end: Instant) -> Result<Option<OutputLine>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Ok(Some(line));
            }
            match self.bytes_before(end)? {
                Some((stream, bytes)) => self.split(stream as usize, &bytes),
                None if self.ended.is_some() => {
                    self.ready = self.rest().into();
                    if self.ready.is_empty() {
                        return Ok(None);
                    }
                }
                None => return Ok(None),
            }
        }
    }

    /// The next bytes it writes; nothing if it has ended, or wrote none before `end`. [`Running::ended`] says which.
    fn bytes_before(&mut self, end: Instant) -> Result<Option<(Stream, Vec<u8>)>> {
        loop {
            if self.ended.is_some() {
                return Ok(None);
            }
            match self.next_message(end)? {
                None => return Ok(None),
                Some(ToHost::Hello { .. } | ToHost::Kernel { .. } | ToHost::Pong { .. } | ToHost::OnPort) => {}
                Some(ToHost::NoPort | ToHost::Started { .. }) => {}
                Some(ToHost::StdinTaken { bytes, .. }) => {
                    self.in_flight = self.in_flight.saturating_sub(bytes as usize);
                    self.feed()?;
                }
                Some(ToHost::Stdout { bytes, .. }) => return Ok(Some((Stream::Stdout, bytes))),
                Some(ToHost::Stderr { bytes, .. }) => return Ok(Some((Stream::Stderr, bytes))),
                Some(ToHost::Error { text: why, .. } | ToHost::NotStarted { text: why, .. }) => {
                    // Nothing can be killed any more.
                    self.ended = Some(Exit::Signal(9));
                    return Err(self.fail(why));
                }
                Some(ToHost::Exited { exit, .. }) => self.ended = Some(exit),
            }
        }
    }

    /// The next bytes it writes, as it has written them; nothing if it has ended or writes none within `limit`. Not to
    /// be mixed with lines.
    pub(crate) fn next_bytes(&mut self, limit: Duration) -> Result<Option<(Stream, Vec<u8>)>> {
        self.bytes_before(Instant::now() + limit)
    }

    /// The next line it writes; nothing if it has ended or writes none within `limit`.
    pub fn next_line(&mut self, limit: Duration) -> Result<Option<OutputLine>> {
        self.line_before(Instant::now() + limit)
    }

    /// Reads until a line of which `wanted` is true. The command's end or the limit is an error.
    pub fn wait_for_line(&mut self, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + limit;
        let mut seen: Vec<String> = Vec::new();
        while let Some(line) = self.line_before(end)? {
            if wanted(line.text()) {
                return Ok(line.text().to_owned());
            }
            seen.push(line.text().to_owned());
        }
        let last = seen[seen.len().saturating_sub(10)..].join("\n");
        Err(match self.ended {
            Some(exit) => {
                self.fail(format!("ended ({}) before the line waited for; last lines:\n{last}", Status(exit)))
            }
            None => self.fail(format!("the line waited for did not come in {limit:?}; last lines:\n{last}")),
        })
    }

    /// How it ended, if [`Running::next_line`] has reached its end.
    pub fn ended(&self) -> Option<Status> {
        self.ended.map(Status)
    }

    /// The same as the guest says it.
    pub(crate) fn exit(&self) -> Option<Exit> {
        self.ended
    }

    /// Sends a signal to it and its children.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.line.send(&ToGuest::Signal { id: self.id, signal }).map_err(|e| self.fail(e))
    }

    /// Waits for its end, and returns what it wrote since the last line taken. Kills it after `limit`.
    pub fn wait_for(mut self, limit: Duration) -> Result<Output> {
        let end = Instant::now() + limit;
        let (mut stdout, mut stderr) = (String::new(), String::new());
        while let Some(line) = self.line_before(end)? {
            let (to, text) = match &line {
                OutputLine::Stdout(text) => (&mut stdout, text),
                OutputLine::Stderr(text) => (&mut stderr, text),
            };
            to.push_str(text);
            to.push('\n');
        }
        match self.ended {
            Some(exit) => Ok(Output { status: Status(exit), stdout, stderr }),
            None => Err(self.late(limit, format!("; it wrote:\n{stdout}{stderr}"))),
        }
    }

    /// The same. An exit code other than 0 is an error.
    pub fn check(self, limit: Duration) -> Result<Output> {
        let (node, command) = (self.node.clone(), self.command.clone());
        let output = self.wait_for(limit)?;
        if output.status.success() {
            return Ok(output);
        }
        let (status, output) = (output.status.to_string(), output.stdout + &output.stderr);
        Err(Error::Failed { node, command, status, output })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.is_none() {
            // The agent or the whole guest may be gone; then there is nothing to kill.
            let _ = self.line.send(&ToGuest::Signal { id: self.id, signal: 9 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::{Peer, line};
    use std::io::Write;
    use telegraphos_agent::{SERIAL_WINDOW, encode};

    fn send(peer: &mut Peer, messages: &[ToHost]) {
        messages.iter().for_each(|message| peer.send(message));
    }

    /// Answers the next `Run` with these messages.
    fn answer(mut agent: Peer, messages: Vec<ToHost>) -> std::thread::JoinHandle<Peer> {
        std::thread::spawn(move || {
            while !matches!(agent.next(), ToGuest::Run(_)) {}
            send(&mut agent, &messages);
            agent
        })
    }

    fn command(line: &Line, text: &str) -> GuestCommand {
        GuestCommand::new(7.into(), Ok(line.clone()), text.split(' ').map(Into::into).collect())
    }

    #[test]
    fn output_comes_in_lines_and_ends_with_the_status() {
        let (line, agent) = line(7);
        let agent = answer(
            agent,
            vec![
                ToHost::Started { id: 1, pid: 99 },
                ToHost::Stdout { id: 1, bytes: b"on".to_vec() },
                ToHost::Stderr { id: 1, bytes: b"warn\n".to_vec() },
                ToHost::Stdout { id: 1, bytes: b"e\ntwo\nrest".to_vec() },
                ToHost::Exited { id: 1, exit: Exit::Code(3) },
            ],
        );
        let mut running = command(&line, "x").spawn().unwrap();
        assert_eq!(running.pid(), 99);
        assert_eq!(running.next_line(Duration::from_secs(5)).unwrap(), Some(OutputLine::Stderr("warn".into())));
        assert_eq!(running.wait_for_line(Duration::from_secs(5), |l| l == "two").unwrap(), "two");
        let output = running.wait_for(Duration::from_secs(5)).unwrap();
        assert_eq!((output.stdout.as_str(), output.status.code()), ("rest\n", 3));
        agent.join().unwrap();
    }

    #[test]
    fn progress_comes_at_once_and_last_words_are_kept() {
        let (line, agent) = line(7);
        let out = |text: &str| ToHost::Stdout { id: 1, bytes: text.as_bytes().to_vec() };
        let said = [out("\r10%\r2"), out("0%\r"), out("\ndone\r\n\nplain\r"), out("test 7: ")];
        let agent = answer(agent, [vec![ToHost::Started { id: 1, pid: 1 }], said.to_vec()].concat());
        let mut running = command(&line, "x").with_returns().spawn().unwrap();
        for wanted in ["10%", "20%", "done", "", "plain"] {
            let text = running.next_line(Duration::from_secs(5)).unwrap();
            assert_eq!(text, Some(OutputLine::Stdout(wanted.into())));
        }
        // The guest dies.
        drop(agent.join().unwrap());
        assert!(running.next_line(Duration::from_secs(5)).is_err());
        assert_eq!(running.rest(), [OutputLine::Stdout("test 7: ".into())]);
        assert_eq!(running.rest(), []);
    }

    #[test]
    fn a_command_that_does_not_begin_has_the_code_of_shells() {
        let (line, agent) = line(7);
        let text = "cannot run \"nosuch\": No such file or directory (os error 2)".to_owned();
        let agent = answer(agent, vec![ToHost::NotStarted { id: 1, code: 127, text }]);
        let error = command(&line, "nosuch").spawn().unwrap_err();
        assert_eq!((error.exit_code(), error.node()), (127, Some(7)));
        assert!(error.to_string().starts_with("node 7: nosuch: cannot run \"nosuch\": No such file"), "{error}");
        agent.join().unwrap();
    }

    #[test]
    fn input_keeps_to_the_agents_window() {
        let (line, agent) = line(7);
        let agent = answer(agent, vec![ToHost::Started { id: 1, pid: 1 }]);
        let data: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
        let running = command(&line, "cat").input(data.clone()).spawn().unwrap();
        let waiter = std::thread::spawn(move || running.wait_for(Duration::from_secs(20)));
        let mut agent = agent.join().unwrap();
        let (mut got, mut open) = (Vec::new(), SERIAL_WINDOW as usize);
        loop {
            match agent.next() {
                ToGuest::Stdin { bytes, .. } => {
                    open = open.checked_sub(bytes.len()).expect("window exceeded");
                    got.extend(bytes);
                    if open < 5000 {
                        send(&mut agent, &[ToHost::StdinTaken { id: 1, bytes: SERIAL_WINDOW - open as u32 }]);
                        open = SERIAL_WINDOW as usize;
                    }
                }
                ToGuest::CloseStdin { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        send(&mut agent, &[ToHost::Exited { id: 1, exit: Exit::Signal(9) }]);
        assert_eq!(waiter.join().unwrap().unwrap().status.code(), 137);
        assert_eq!(got, data);
    }

    #[test]
    fn commands_of_an_earlier_boot_fail() {
        let (line, mut agent) = line(7);
        let hello =
            |boot: &str| [ToHost::Hello { release: "6.12".into(), uptime_ms: 4000, board: true, boot: boot.into() }];
        send(&mut agent, &hello("first"));
        assert!(line.wait_for_boot(0, Duration::from_secs(5)));
        let agent = answer(agent, vec![ToHost::Started { id: 1, pid: 1 }]);
        let running = command(&line, "sleep 9").spawn().unwrap();
        let mut agent = agent.join().unwrap();
        send(&mut agent, &hello("second"));
        let text = running.wait_for(Duration::from_secs(5)).unwrap_err().to_string();
        assert!(text.contains("node 7: sleep 9: the guest was restarted"), "{text}");
        assert_eq!((line.boot().count, line.boot().release.as_str()), (2, "6.12"));
        // Another agent in the same boot.
        let agent = answer(agent, vec![ToHost::Started { id: 2, pid: 1 }]);
        let running = command(&line, "sleep 9").spawn().unwrap();
        send(&mut agent.join().unwrap(), &hello("second"));
        let text = running.wait_for(Duration::from_secs(5)).unwrap_err().to_string();
        assert!(text.contains("the guest's agent has ended and was started again"), "{text}");
        assert_eq!(line.boot().count, 2);
    }

    /// A reset within a long frame: nothing follows the greeting, and yet it counts.
    #[test]
    fn a_boot_behind_half_a_frame_is_seen() {
        let (line, mut agent) = line(7);
        let long = encode(&ToHost::Stdout { id: 1, bytes: vec![b'x'; MAX_DATA] }).unwrap();
        agent.socket.write_all(&long[..1000]).unwrap();
        send(&mut agent, &[ToHost::Hello { release: "6.12".into(), uptime_ms: 4000, board: true, boot: "1".into() }]);
        assert!(line.wait_for_boot(0, Duration::from_secs(20)));
    }

    #[test]
    fn a_dead_line_fails_at_once() {
        let (line, agent) = line(7);
        drop(agent);
        assert!(!line.wait_for_boot(0, Duration::from_secs(5)));
        let text = command(&line, "true").run().unwrap_err().to_string();
        assert!(text.contains("node 7: true: ") && text.contains("line"), "{text}");
    }

    #[test]
    fn a_late_command_is_killed_and_named() {
        let (line, agent) = line(7);
        let agent = answer(agent, vec![ToHost::Started { id: 1, pid: 1 }]);
        let text = command(&line, "hang").limit(Duration::from_millis(50)).run().unwrap_err().to_string();
        assert!(text.contains("hang: did not end within 50ms"), "{text}");
        let mut agent = agent.join().unwrap();
        while agent.next::<ToGuest>() != (ToGuest::Signal { id: 1, signal: 9 }) {}
    }
}
