// SPDX-License-Identifier: MIT OR Apache-2.0
//! The terminal at standard input, and waits for what can be read.

use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::termios::{self, OptionalActions, Termios};
use std::io::{self, Stdin};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use telegraphos_agent::Terminal;

/// Waits until one of these can be read, a signal comes, or the time is over; which of them can be read.
pub fn readable<const N: usize>(fds: [BorrowedFd<'_>; N], time: Duration) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&time)) {
        Ok(_) | Err(Errno::INTR) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(e) => Err(e.into()),
    }
}

/// The size of a terminal, if it has one.
pub(super) fn size_of(terminal: impl AsFd) -> Option<Terminal> {
    let size = termios::tcgetwinsize(terminal).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0)?;
    Some(Terminal { rows: size.ws_row, columns: size.ws_col })
}

/// The terminal with other settings; it has those of before again when this is dropped.
pub(super) struct Changed {
    terminal: Stdin,
    before: Termios,
}

impl Changed {
    pub(super) fn by(change: impl FnOnce(&mut Termios)) -> Result<Changed> {
        let terminal = io::stdin();
        let failed = |e: Errno| Error::io("cannot set", "the terminal")(e.into());
        let before = termios::tcgetattr(&terminal).map_err(failed)?;
        let mut after = before.clone();
        change(&mut after);
        termios::tcsetattr(&terminal, OptionalActions::Now, &after).map_err(failed)?;
        Ok(Changed { terminal, before })
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = termios::tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}
