// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal while `telegraphos top` has it.

use super::view::{Line, Style};
use crate::cli::written;
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The other screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Columns and lines of the terminal at standard output, or what most have.
pub(super) fn size() -> (usize, usize) {
    match termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// The terminal as it was before is restored when this is dropped.
pub(super) struct Screen {
    /// Keys are not echoed and are read at once; Ctrl-C is still a signal.
    before: Option<Termios>,
}

impl Screen {
    pub(super) fn enter() -> Result<Screen> {
        let stdin = std::io::stdin();
        let mut before = None;
        if stdin.is_terminal() {
            let failed = |e: rustix::io::Errno| Error::io("cannot set", "the terminal")(e.into());
            let was = termios::tcgetattr(&stdin).map_err(failed)?;
            let mut quiet = was.clone();
            quiet.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            termios::tcsetattr(&stdin, OptionalActions::Now, &quiet).map_err(failed)?;
            before = Some(was);
        }
        let screen = Screen { before };
        let mut out = std::io::stdout();
        written(out.write_all(ENTER.as_bytes()).and_then(|()| out.flush()))?;
        Ok(screen)
    }

    /// Shows these lines and nothing else.
    pub(super) fn show(&self, lines: &[Line]) -> Result<()> {
        let mut text = String::from("\x1b[H");
        for (i, line) in lines.iter().enumerate() {
            // No line end after the last: it would scroll.
            let end = if i + 1 < lines.len() { "\r\n" } else { "" };
            let (on, off) = match line.style {
                Style::Plain => ("", ""),
                Style::Title => ("\x1b[7m", "\x1b[0m"),
                Style::Bad => ("\x1b[1;31m", "\x1b[0m"),
            };
            text += &format!("{on}{}{off}\x1b[K{end}", line.text);
        }
        text += "\x1b[J";
        let mut out = std::io::stdout();
        written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
    }

    /// Waits for a key that ends it, at most so long; whether it came.
    pub(super) fn quit_within(&self, time: Duration) -> Result<bool> {
        if self.before.is_none() {
            crate::sleep(time)?;
            return Ok(false);
        }
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let wait = Timespec::try_from(time).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match rustix::event::poll(&mut fds, Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(e) => return Err(Error::io("cannot wait for", "a key")(e.into())),
        }
        let mut keys = [0; 64];
        match rustix::io::read(&stdin, &mut keys) {
            Ok(0) => Ok(true),
            Ok(n) => Ok(keys[..n].contains(&b'q')),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(false),
            Err(e) => Err(Error::io("cannot read", "keys")(e.into())),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let mut out = std::io::stdout();
        let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        if let Some(before) = &self.before {
            let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}
