// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal while `telegraphos top` has it.

use super::view::{Line, Style};
use crate::cli::terminal::{Changed, readable};
use crate::cli::written;
use crate::{Error, Result};
use rustix::termios::{self, LocalModes};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
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
    keys: Option<Changed>,
}

impl Screen {
    pub(super) fn enter() -> Result<Screen> {
        let quiet = || Changed::by(|modes| modes.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO));
        let screen = Screen { keys: std::io::stdin().is_terminal().then(quiet).transpose()? };
        put(ENTER)?;
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
        put(&text)
    }

    /// Waits for a key that ends it, at most so long; whether it came.
    pub(super) fn quit_within(&self, time: Duration) -> Result<bool> {
        if self.keys.is_none() {
            crate::sleep(time)?;
            return Ok(false);
        }
        let stdin = std::io::stdin();
        if readable([stdin.as_fd()], time).map_err(Error::io("cannot wait for", "a key"))? == [false] {
            return Ok(false);
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
        let _ = put(LEAVE);
    }
}

fn put(text: &str) -> Result<()> {
    let mut out = std::io::stdout();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}
