// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that do one thing which may end them: the same program again, with `--child`.
//!
//! A child says lines on its standard output and waits for lines on its standard input. Each has an open file of the
//! board of its own; what it does there affects no other process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A user id and a group id.
pub type Ids = (u32, u32);

/// This program again, by the name that it was started by.
pub fn again() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(std::env::args_os().next().unwrap_or_default());
    command
}

/// A running child; killed on drop.
pub struct Child {
    process: Process,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    unread: Vec<u8>,
    what: String,
    patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Code(i32),
    Signal(i32),
}

impl End {
    pub const WELL: End = End::Code(0);
    pub const KILLED: End = End::Signal(libc::SIGKILL);
    pub const SEGV: End = End::Signal(libc::SIGSEGV);
    pub const BUS: End = End::Signal(libc::SIGBUS);
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Code(code) => write!(f, "exit code {code}"),
            &End::SEGV => write!(f, "SIGSEGV"),
            &End::BUS => write!(f, "SIGBUS"),
            End::Signal(number) => write!(f, "signal {number}"),
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> End {
        match status.signal() {
            Some(number) => End::Signal(number),
            None => End::Code(status.code().unwrap_or(-1)),
        }
    }
}

impl Child {
    /// Starts this program again as `--child ARGS`, under other ids if it may.
    pub fn start(args: &[&str], ids: Option<Ids>, patience: Duration) -> Result<Child, String> {
        let what = format!("child `{}`", args.join(" "));
        let mut command = again();
        command.arg("--child").args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some((uid, gid)) = ids {
            // As root this leaves all other groups, too.
            command.gid(gid).uid(uid);
        }
        let mut process = command.spawn().map_err(|e| format!("{what} does not start: {e}"))?;
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().ok_or_else(|| format!("{what} has no output"))?;
        Ok(Child { process, stdin, stdout, unread: Vec::new(), what, patience })
    }

    /// The next line it says; `None` when it has ended.
    pub fn line(&mut self) -> Result<Option<String>, String> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
                let line = self.unread.drain(..=end).collect::<Vec<_>>();
                return Ok(Some(String::from_utf8_lossy(&line).trim_end().to_owned()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("{} said nothing for {:?}", self.what, self.patience));
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.stdout, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(format!("{}: {e}", self.what)),
            }
            let mut chunk = [0; 4096];
            match self.stdout.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(n) => self.unread.extend_from_slice(&chunk[..n]),
                Err(e) => return Err(format!("{}: {e}", self.what)),
            }
        }
    }

    /// The next line, if it has said one already.
    pub fn line_now(&mut self) -> Result<Option<String>, String> {
        if !self.unread.contains(&b'\n') {
            let mut fds = [PollFd::new(&self.stdout, PollFlags::IN)];
            let there = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
            if !matches!(there, Ok(1..)) {
                return Ok(None);
            }
        }
        self.line()
    }

    /// The next line must be this one.
    pub fn expect(&mut self, expected: &str) -> Result<(), String> {
        match self.line()? {
            Some(line) if line == expected => Ok(()),
            Some(line) => Err(format!("{} said {line:?}: expected {expected:?}", self.what)),
            None => {
                let end = self.end()?;
                Err(format!("{} ended with {end}: expected {expected:?}", self.what))
            }
        }
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its end, if it has come, whatever it still says.
    pub fn ended(&mut self) -> Result<Option<End>, String> {
        self.process.try_wait().map(|end| end.map(End::from)).map_err(|e| format!("{}: {e}", self.what))
    }

    /// Lets it continue: sends the line `go` that it waits for.
    pub fn go(&mut self) -> Result<(), String> {
        let stdin = self.stdin.as_mut().ok_or_else(|| format!("{} has no input", self.what))?;
        stdin.write_all(b"go\n").map_err(|e| format!("{} does not listen: {e}", self.what))
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) -> Result<(), String> {
        self.process.kill().map_err(|e| format!("{}: {e}", self.what))
    }

    /// Waits for its end, whatever it still says.
    pub fn end(&mut self) -> Result<End, String> {
        self.stdin = None;
        while self.line()?.is_some() {}
        self.process.wait().map(End::from).map_err(|e| format!("{}: {e}", self.what))
    }

    /// It must end like this.
    pub fn must_end(&mut self, expected: End) -> Result<(), String> {
        match self.end()? {
            end if end == expected => Ok(()),
            end => Err(format!("{} ended with {end}: expected {expected}", self.what)),
        }
    }

    /// Kills it, and waits for that end.
    pub fn must_be_killed(&mut self) -> Result<(), String> {
        self.kill()?;
        self.must_end(End::KILLED)
    }

    /// Lets it continue, until it ends like this.
    pub fn must_go_to(&mut self, expected: End) -> Result<(), String> {
        self.go()?;
        self.must_end(expected)
    }

    /// It must say this, and end well.
    pub fn must_end_saying(&mut self, expected: &str) -> Result<(), String> {
        self.expect(expected)?;
        self.must_end(End::WELL)
    }

    /// Its next line, and its end.
    pub fn last(&mut self) -> Result<(Option<String>, End), String> {
        Ok((self.line()?, self.end()?))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: says a line.
pub fn say(line: impl std::fmt::Display) {
    // Without a parent no output is read.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// In a child: waits for the parent's word; false if there is no parent any more.
pub fn wait_for_go() -> bool {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).is_ok_and(|n| n > 0)
}
