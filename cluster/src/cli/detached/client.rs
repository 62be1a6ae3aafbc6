// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos status`, `exec` and `down`: what one process asks a detached cluster.

use super::super::terminal::{Changed, readable, size_of};
use super::super::{print, written};
use super::protocol::{Answer, FromCluster, PIECE, Request, SOCKET, Status, ToCluster, WINDOW};
use super::{ExecArgs, Found, StatusArgs, Which};
use crate::command::Stream;
use crate::rundir::RECORD;
use crate::{Error, Result, User, interrupt};
use rustix::termios::Termios;
use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use telegraphos_agent::{Decoder, Exit, Terminal, encode, words};

/// How often a wait looks whether a signal has come.
const EVERY: Duration = Duration::from_millis(100);
/// A command that gets SIGINT has this time before it is killed.
const GRACE: Duration = Duration::from_secs(3);
/// A cluster that is to end has this time.
const END: Duration = Duration::from_secs(30);

/// Of a command that could not be followed because the connection ended.
const LOST: &str = "the cluster has closed the connection before the command's end";

pub(in super::super) fn status(args: &StatusArgs) -> Result<u8> {
    let stream = args.which.connect()?;
    let (Answer::Status(status), _) = args.which.ask(&stream, &Request::Status)? else {
        return Err(Error::NoFabric("the cluster's answer is none to a request for its status".into()));
    };
    if args.json {
        let text = serde_json::to_string(&status).map_err(|e| Error::Usage(e.to_string()))?;
        print(&(text + "\n"))?;
    } else {
        print(&table(&status))?;
    }
    Ok(0)
}

fn table(status: &Status) -> String {
    let Status { cluster, pid, up_seconds, accelerator, directory, logs, fabric, nodes } = status;
    let time = match up_seconds {
        0..=119 => format!("{up_seconds} s"),
        120..=7199 => format!("{} min", up_seconds / 60),
        _ => format!("{} h", up_seconds / 3600),
    };
    let mut text =
        format!("cluster {cluster}: up for {time}, {}, {accelerator}, process {pid}\n", super::nodes(nodes.len()));
    for node in nodes {
        let boots = if node.boots > 1 { format!(" ({} boots)", node.boots) } else { String::new() };
        let own = if node.name == format!("node{}", node.node) { String::new() } else { format!(" ({})", node.name) };
        text += &format!(
            "node {}{own}: Linux {}{boots}   telegraphos console {}\n",
            node.node,
            node.kernel,
            node.console.display()
        );
    }
    text += &format!("fabric: telegraphos top --control {}\n", fabric.display());
    if logs != directory {
        text += &format!("logs: {}\n", logs.display());
    }
    text
}

pub(in super::super) fn down(which: &Which) -> Result<u8> {
    let directory = which.directory()?;
    let stream = match which.find(&directory)? {
        Found::Running(stream) => stream,
        // What it has left is of no use.
        Found::Ended(_) | Found::Killed => {
            fs::remove_dir_all(&directory).map_err(Error::io("cannot remove", &directory))?;
            print(&format!("Cluster {} had ended; what it has left is removed.\n", which.cluster))?;
            return Ok(0);
        }
    };
    let (Answer::Ending { pid }, _) = which.ask(&stream, &Request::Down)? else {
        return Err(Error::NoFabric("the cluster's answer is none to a request for its end".into()));
    };
    let begun = Instant::now();
    // An accident at this very moment leaves a record.
    while directory.exists() && !directory.join(RECORD).exists() {
        interrupt::check()?;
        if begun.elapsed() > END {
            let what = format!("the end of cluster {}", which.cluster);
            let tail = format!(" (kill -9 {pid} ends it and all its processes)");
            return Err(Error::TimedOut { what, node: None, limit: END, remedy: "its process still runs", tail });
        }
        std::thread::sleep(EVERY / 5);
    }
    print(&format!("Cluster {} is down.\n", which.cluster))?;
    Ok(0)
}

pub(in super::super) fn exec(args: &ExecArgs) -> Result<u8> {
    let stdin = std::io::stdin();
    let terminal = if args.tty { Some(of_terminal(&stdin)?) } else { None };
    let mut command = Command::start_with(&args.which, &args.node, args.user, &args.argv, terminal)?;
    // From here on each key is the guest's.
    let _raw = terminal.map(|_| Changed::by(Termios::make_raw)).transpose()?;
    command.input = Some(stdin.as_fd());
    let exit = command.follow(&mut |stream, bytes| {
        written(match stream {
            Stream::Stdout => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
            Stream::Stderr => std::io::stderr().write_all(bytes),
        })
    })?;
    Ok(crate::Status::of(exit).code())
}

/// The size of the terminal here, for one in a guest.
fn of_terminal(stdin: &std::io::Stdin) -> Result<Terminal> {
    if !stdin.is_terminal() {
        return Err(Error::Usage("--tty: standard input is no terminal; leave it out".into()));
    }
    Ok(size_of(stdin).unwrap_or(Terminal { rows: 0, columns: 0 }))
}

/// Runs a command as root in the guest whose console this socket is, if that is of a detached cluster.
pub(in super::super) fn run_at(console: &Path, words_of_it: &[&str]) -> Result<(), String> {
    let node = console.file_name().and_then(OsStr::to_str).and_then(|name| name.strip_prefix("console"));
    let node = node.ok_or("it is no console of a cluster")?.to_owned();
    let control = crate::directory_of(console).join(SOCKET);
    let stream = UnixStream::connect(&control).map_err(|e| format!("{}: {e}", control.display()))?;
    let run = ToCluster::Run { argv: words(words_of_it), terminal: None };
    let behind = encode(&run).map_err(|e| e.to_string())?;
    let request = Request::Exec { node, user: User::Root.to_string() };
    match super::ask(&stream, &request, &behind)? {
        (Answer::Started, rest) => {
            let mut command = Command::started(stream, &rest, None).map_err(|e| e.to_string())?;
            command.follow(&mut |_, _| Ok(())).map(drop).map_err(|e| e.to_string())
        }
        (other, _) => Err(format!("{other:?}")),
    }
}

/// What a command has done.
#[derive(Debug)]
pub(super) enum Event {
    Output(Stream, Vec<u8>),
    Exited(Exit),
}

/// The least that must arrive of a command that only writes. A guest that sends a byte now and then keeps no command of
/// the host for ever.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    /// Since then.
    bytes: usize,
    /// That may still come, on either output.
    left: u64,
}

impl Pace {
    /// Bytes in each period.
    const LEAST: usize = 4096;
    const PERIOD: Duration = Duration::from_secs(60);

    /// From now on, and so many bytes at most.
    pub(super) fn from(now: Instant, most: u64) -> Pace {
        Pace { since: now, bytes: 0, left: most }
    }

    /// Counts what has arrived. `Err` says that it is too little, or too much.
    fn check(&mut self, now: Instant, arrived: usize) -> std::result::Result<(), String> {
        let left = self.left.checked_sub(arrived as u64);
        self.left =
            left.ok_or("the guest has sent more than a copy of --limit-gib, or its error messages have no end")?;
        self.bytes += arrived;
        if self.bytes >= Pace::LEAST {
            *self = Pace::from(now, self.left);
            return Ok(());
        }
        if now.saturating_duration_since(self.since) <= Pace::PERIOD {
            return Ok(());
        }
        Err(format!(
            "the guest has sent {} bytes in {} s: expected {} at least (is it stopped, as by a debugger?)",
            self.bytes,
            Pace::PERIOD.as_secs(),
            Pace::LEAST
        ))
    }
}

/// A command in a guest of a detached cluster.
pub(super) struct Command<'a> {
    cluster: UnixStream,
    decoder: Decoder,
    /// Bytes of standard input that may be sent.
    window: usize,
    /// The size of its terminal, if it has one: that of the terminal at `input`.
    terminal: Option<Terminal>,
    /// Its standard input.
    pub(super) input: Option<BorrowedFd<'a>>,
    /// Its standard input has been closed.
    closed: bool,
    /// How slow it may be.
    pub(super) pace: Option<Pace>,
    told: Option<Instant>,
    killed: bool,
}

impl Command<'_> {
    pub(super) fn start(which: &Which, node: &str, user: User, argv: &[impl AsRef<OsStr>]) -> Result<Self> {
        Command::start_with(which, node, user, argv, None)
    }

    /// The same with a terminal.
    fn start_with(
        which: &Which,
        node: &str,
        user: User,
        argv: &[impl AsRef<OsStr>],
        terminal: Option<Terminal>,
    ) -> Result<Self> {
        let stream = which.connect()?;
        let run = ToCluster::Run { argv: words(argv), terminal };
        let behind = encode(&run).map_err(|e| Error::Usage(format!("the command: {e}")))?;
        let request = Request::Exec { node: node.into(), user: user.to_string() };
        let (_, rest) = which.ask_with(&stream, &request, &behind)?;
        Command::started(stream, &rest, terminal)
    }

    /// One that the cluster has started; these bytes came behind its answer.
    fn started(stream: UnixStream, rest: &[u8], terminal: Option<Terminal>) -> Result<Self> {
        let mut decoder = Decoder::default();
        decoder.push(rest);
        // What the cluster does not take ends the command.
        stream.set_write_timeout(None).map_err(Error::io("cannot use", "the connection to the cluster"))?;
        Ok(Command {
            cluster: stream,
            decoder,
            window: WINDOW,
            terminal,
            input: None,
            closed: false,
            pace: None,
            told: None,
            killed: false,
        })
    }

    /// Feeds it and hands on what it writes, until its end. A signal for this process is one for the command.
    pub(super) fn follow(&mut self, show: &mut dyn FnMut(Stream, &[u8]) -> Result<()>) -> Result<Exit> {
        loop {
            match self.next()? {
                Event::Output(stream, bytes) => show(stream, &bytes)?,
                Event::Exited(exit) => return Ok(exit),
            }
        }
    }

    /// The same, step by step: feeds it until it has written something or has ended.
    pub(super) fn next(&mut self) -> Result<Event> {
        let lost = || Error::Cluster { code: 3, why: LOST.into() };
        if self.input.is_none() && !self.closed {
            self.closed = true;
            self.send(&ToCluster::CloseStdin)?;
        }
        let mut bytes = vec![0; 64 << 10];
        loop {
            while let Some(frame) = self.decoder.next() {
                match frame {
                    FromCluster::Output(stream, bytes) => return Ok(Event::Output(stream, bytes)),
                    FromCluster::Taken(bytes) => self.window += bytes as usize,
                    FromCluster::Exited(exit) => return Ok(Event::Exited(exit)),
                    FromCluster::Failed(ended) => return Err(Error::Cluster { code: ended.code, why: ended.why }),
                }
            }
            self.pass_on_signals()?;
            self.pass_on_size()?;
            let waiting = Error::io("cannot wait for", "the cluster");
            let fd = self.cluster.as_fd();
            let [output, input] = match self.input {
                Some(input) if self.window > 0 => readable([fd, input], EVERY).map_err(waiting)?,
                _ => {
                    let [output] = readable([fd], EVERY).map_err(waiting)?;
                    [output, false]
                }
            };
            if input {
                self.feed(&mut bytes)?;
            }
            let mut read = 0;
            if output {
                match (&self.cluster).read(&mut bytes) {
                    Ok(0) => return Err(lost()),
                    Ok(n) => {
                        self.decoder.push(&bytes[..n]);
                        read = n;
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Err(lost()),
                }
            }
            if let Some(pace) = &mut self.pace {
                pace.check(Instant::now(), read).map_err(|why| Error::Cluster { code: 1, why })?;
            }
        }
    }

    /// Sends a piece of standard input, or its end.
    fn feed(&mut self, bytes: &mut [u8]) -> Result<()> {
        let Some(input) = self.input else { return Ok(()) };
        let most = self.window.min(PIECE);
        let n = match rustix::io::read(input, &mut bytes[..most]) {
            Ok(n) => n,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return Ok(()),
            // As a background process reads no terminal.
            Err(_) => 0,
        };
        self.window -= n;
        if n > 0 {
            return self.send(&ToCluster::Stdin(bytes[..n].to_vec()));
        }
        self.input = None;
        self.closed = true;
        self.send(&ToCluster::CloseStdin)
    }

    /// The first signal is SIGINT for the command, which is killed if it does not end.
    fn pass_on_signals(&mut self) -> Result<()> {
        let due = interrupt::interrupted() && !self.killed;
        match self.told {
            None if due => {
                self.told = Some(Instant::now());
                self.send(&ToCluster::Signal(2))
            }
            Some(told) if due && told.elapsed() > GRACE => {
                self.killed = true;
                self.send(&ToCluster::Signal(9))
            }
            _ => Ok(()),
        }
    }

    fn pass_on_size(&mut self) -> Result<()> {
        let now = self.terminal.and(self.input).and_then(size_of);
        if now.is_none() || now == self.terminal {
            return Ok(());
        }
        self.terminal = now;
        now.into_iter().try_for_each(|now| self.send(&ToCluster::Resize(now)))
    }

    fn send(&self, frame: &ToCluster) -> Result<()> {
        let frame = encode(frame).map_err(|e| Error::Usage(e.to_string()))?;
        match (&self.cluster).write_all(&frame) {
            // Why is in what the cluster has written before.
            Err(e) if e.kind() == ErrorKind::BrokenPipe || e.kind() == ErrorKind::ConnectionReset => Ok(()),
            other => other.map_err(Error::io("cannot write to", "the cluster")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::protocol::NodeStatus;
    use super::*;

    #[test]
    fn a_status_is_a_table() {
        let node = |node, boots| NodeStatus {
            node,
            name: format!("node{node}"),
            kernel: "6.12".into(),
            boots,
            console: "/r/console".into(),
        };
        let mut status = Status {
            cluster: "lab".into(),
            pid: 7,
            up_seconds: 61,
            accelerator: "tcg".into(),
            directory: "/r".into(),
            logs: "/r".into(),
            fabric: "/r/fabric.control".into(),
            nodes: vec![node(0, 1), node(1, 3)],
        };
        let text = table(&status);
        assert!(text.starts_with("cluster lab: up for 61 s, 2 nodes, tcg, process 7\nnode 0: Linux 6.12   "), "{text}");
        assert!(text.contains("node 1: Linux 6.12 (3 boots)") && !text.contains("logs:"), "{text}");
        (status.up_seconds, status.logs) = (7200, "/logs".into());
        let text = table(&status);
        assert!(text.contains("up for 2 h") && text.ends_with("logs: /logs\n"), "{text}");
    }

    #[test]
    fn a_command_that_sends_next_to_nothing_is_not_waited_for() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut pace = Pace::from(begun, u64::MAX);
        assert!(pace.check(after(60), 4095).is_ok(), "it has a minute");
        assert!(pace.check(after(61), 1).is_ok(), "it has sent enough");
        assert!(pace.check(after(120), 0).is_ok() && pace.check(after(121), 4000).is_ok(), "a new minute");
        let why = pace.check(after(122), 95).unwrap_err();
        assert!(why.contains("4095 bytes in 60 s: expected 4096"), "{why}");
        // Nor is one without an end, whatever it sends.
        let mut pace = Pace::from(begun, 1_000_000);
        assert!((0..100).all(|n| pace.check(after(n), 10_000).is_ok()));
        assert!(pace.check(after(100), 1).unwrap_err().contains("--limit-gib"));
    }

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let code = |exit| crate::Status::of(exit).code();
        assert_eq!((code(Exit::Code(7)), code(Exit::Signal(2))), (7, 130));
    }
}
