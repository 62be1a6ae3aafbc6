// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos up` and `telegraphos console`: a terminal at a guest's console.

use super::terminal::{Changed, readable, size_of};
use super::{Context, detached, written};
use crate::{Error, Result, interrupt};
use rustix::termios::Termios;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use telegraphos_agent::Terminal;

const ESCAPE: u8 = 0x1d;
/// A guest takes the size of its console within this time.
const FIT: Duration = Duration::from_secs(2);

/// Boots machines with shells and serves their consoles until a signal ends it.
pub(super) fn up(context: Context) -> Result<u8> {
    let cluster = context.boot(|node| node.shell = true)?;
    let mut out = std::io::stdout();
    written(write!(out, "{}", cluster.manifest()))?;
    for guest in cluster.guests() {
        let socket = guest.console_socket();
        written(writeln!(out, "node {}: telegraphos console {}", guest.label(), socket.display()))?;
    }
    if !std::io::stdin().is_terminal() {
        written(writeln!(out, "Up. Ctrl-C (or SIGTERM) ends everything."))?;
        loop {
            interrupt::sleep(Duration::from_millis(200))?;
            cluster.check()?;
        }
    }
    written(writeln!(
        out,
        "Ctrl-] and a digit: that node's console; Ctrl-] n: the next one; Ctrl-] q: end everything."
    ))?;
    let sockets: Vec<PathBuf> = cluster.guests().iter().map(|g| g.console_socket()).collect();
    let mut node = 0;
    loop {
        eprintln!("--- node {node} (Enter shows the prompt)");
        let guest = &cluster.guests()[node];
        let run = |words: &[&str]| match guest.argv(words).as_root().limit(FIT).run() {
            Ok(_) => Ok(()),
            Err(e) => Err(e.to_string()),
        };
        let fit = |size| fit(size, run);
        match attach(&sockets[node], &|| cluster.check(), &fit)? {
            Left::Quit => return Ok(0),
            Left::Next => node = (node + 1) % sockets.len(),
            Left::To(other) if other < sockets.len() => node = other,
            Left::To(other) => eprintln!("--- there is no node {other}: expected 0 to {}", sockets.len() - 1),
        }
    }
}

/// Tells a guest how large the terminal at its console is: a serial line has no size, and without one editors and
/// pagers take 24 lines of 80 characters.
fn fit(size: Terminal, run: impl Fn(&[&str]) -> Result<(), String>) {
    let (rows, columns) = (size.rows.to_string(), size.columns.to_string());
    // A guest that is not up yet, or has no stty, has a console nevertheless.
    if let Err(why) = run(&["stty", "-F", "/dev/ttyS0", "rows", &rows, "cols", &columns]) {
        log::debug!("the size of the console: {why}");
    }
}

/// One console, from another terminal.
pub(super) fn attach_one(socket: &Path) -> Result<u8> {
    if !std::io::stdin().is_terminal() {
        return Err(Error::Usage("`telegraphos console` needs a terminal; in scripts use `telegraphos run`".into()));
    }
    eprintln!("--- Ctrl-] q leaves the console (Enter shows the prompt)");
    let fit = |size| fit(size, |words| detached::run_at(socket, words));
    while !matches!(attach(socket, &|| Ok(()), &fit)?, Left::Quit) {
        eprintln!("--- only one console here; Ctrl-] q leaves it");
    }
    Ok(0)
}

/// How the user left a console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Quit,
    Next,
    To(usize),
}

/// What typed bytes mean: some go to the guest, a command may end the stay.
#[derive(Debug, Default)]
struct Keys {
    escaped: bool,
}

impl Keys {
    fn take(&mut self, typed: &[u8]) -> (Vec<u8>, Option<Left>) {
        let mut out = Vec::new();
        for byte in typed {
            if !std::mem::take(&mut self.escaped) {
                if *byte == ESCAPE {
                    self.escaped = true;
                } else {
                    out.push(*byte);
                }
                continue;
            }
            match byte {
                b'q' => return (out, Some(Left::Quit)),
                b'n' => return (out, Some(Left::Next)),
                b'0'..=b'9' => return (out, Some(Left::To(usize::from(byte - b'0')))),
                // Twice means the key itself.
                &ESCAPE => out.push(ESCAPE),
                _ => {}
            }
        }
        (out, None)
    }
}

fn attach(socket: &Path, check: &dyn Fn() -> Result<()>, fit: &dyn Fn(Terminal)) -> Result<Left> {
    let fail = |what| Error::io(what, socket);
    let mut line = UnixStream::connect(socket).map_err(fail("cannot connect to the console"))?;
    line.set_write_timeout(Some(Duration::from_secs(5))).map_err(fail("cannot use the console"))?;
    let raw = Changed::by(Termios::make_raw)?;
    let left = converse(&mut line, &fail, check, fit);
    drop(raw);
    eprintln!();
    left
}

/// Passes on what is typed and what the guest writes, until the user leaves. `fail` names the console in errors.
fn converse<F: FnOnce(std::io::Error) -> Error>(
    line: &mut UnixStream,
    fail: &dyn Fn(&'static str) -> F,
    check: &dyn Fn() -> Result<()>,
    fit: &dyn Fn(Terminal),
) -> Result<Left> {
    let stdin = std::io::stdin();
    let mut size = None;
    let mut keys = Keys::default();
    let mut bytes = [0; 4096];
    loop {
        check()?;
        interrupt::check()?;
        let now = size_of(&stdin);
        if now != size {
            size = now;
            now.into_iter().for_each(fit);
        }
        let fds = [stdin.as_fd(), line.as_fd()];
        let ready = readable(fds, Duration::from_millis(200)).map_err(fail("cannot wait for the console"))?;
        if ready[0] {
            let n = rustix::io::read(&stdin, &mut bytes).map_err(|e| fail("cannot read keys for")(e.into()))?;
            if n == 0 {
                return Ok(Left::Quit);
            }
            let (out, left) = keys.take(&bytes[..n]);
            line.write_all(&out).map_err(fail("cannot write to the console"))?;
            if let Some(left) = left {
                return Ok(left);
            }
        }
        if ready[1] {
            let n = line.read(&mut bytes).map_err(fail("cannot read the console"))?;
            if n == 0 {
                let closed = std::io::ErrorKind::UnexpectedEof.into();
                return Err(fail("the virtual machine has closed its console")(closed));
            }
            let mut out = std::io::stdout();
            written(out.write_all(&bytes[..n]).and_then(|()| out.flush()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_reach_the_guest_unless_escaped() {
        let mut keys = Keys::default();
        assert_eq!(keys.take(b"ls\x03\n"), (b"ls\x03\n".to_vec(), None));
        assert_eq!(keys.take(b"a\x1d"), (b"a".to_vec(), None));
        assert_eq!(keys.take(b"3b"), (b"".to_vec(), Some(Left::To(3))));
        assert_eq!(keys.take(b"\x1d\x1dx"), (b"\x1dx".to_vec(), None));
        assert_eq!(keys.take(b"x\x1dq"), (b"x".to_vec(), Some(Left::Quit)));
        assert_eq!(keys.take(b"\x1dn"), (b"".to_vec(), Some(Left::Next)));
        assert_eq!(keys.take(b"\x1dz1"), (b"1".to_vec(), None));
    }
}
