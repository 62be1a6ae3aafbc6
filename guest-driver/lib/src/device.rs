// SPDX-License-Identifier: MIT OR Apache-2.0
//! The open device file: its system calls, with the errors that they give.

use crate::error::{Error, Result, status_of};
use crate::sys::{self, Mapping};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;
use telegraphos_wire::{Rights, uapi};

/// An open `/dev/telegraphosN`.
#[derive(Debug)]
pub(crate) struct Device {
    /// Where it was opened, for messages.
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
    /// How often a sleeping thread checks that the board is still there, and for events that another process has read.
    pub(crate) check_every: Duration,
}

impl Device {
    /// Its descriptor, for system calls.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The error of a system call on the device that was to do `action`.
    pub(crate) fn error(&self, action: &str, errno: Errno) -> Error {
        match errno {
            Errno::NODEV => self.gone(),
            errno => Error::Os { what: format!("{}: {action}", self.path.display()), errno },
        }
    }

    /// [`Error::Gone`] of this device.
    pub(crate) fn gone(&self) -> Error {
        Error::Gone { path: self.path.clone() }
    }

    /// As [`Device::error`], but with the board's reason if the errno stands for one.
    pub(crate) fn refusal(&self, action: String, errno: Errno) -> Error {
        match status_of(errno) {
            Some(status) => Error::Failed { what: action, status },
            None => self.error(&action, errno),
        }
    }

    /// Makes a system call that has only the driver's errors; `action` names it in them.
    pub(crate) fn call<T>(
        &self,
        ioctl: impl FnOnce(BorrowedFd<'_>, T) -> rustix::io::Result<()>,
        argument: T,
        action: impl FnOnce() -> String,
    ) -> Result<()> {
        ioctl(self.fd(), argument).map_err(|errno| self.error(&action(), errno))
    }

    /// What the driver says of board and context now.
    pub(crate) fn info(&self, action: &str) -> Result<uapi::Info> {
        let mut info = uapi::Info::default();
        self.call(sys::info, &mut info, || action.into())?;
        Ok(info)
    }

    /// Fails if the board is gone. A board that is there answers every request, also about a dead or closed import.
    pub(crate) fn check(&self) -> Result<()> {
        self.info("waiting for the board").map(|_| ())
    }

    /// Maps `size` bytes of the device from `offset`, for what `rights` allow; `what` names them in errors.
    pub(crate) fn map(&self, offset: u64, size: u64, rights: Rights, what: &str) -> Result<Mapping> {
        let failed = |errno| Error::Os { what: format!("mapping {what}"), errno };
        let size = usize::try_from(size).map_err(|_| failed(Errno::OVERFLOW))?;
        Mapping::new(self.fd(), offset, size, rights).map_err(failed)
    }

    /// `/dev/null` in place of a board, for tests of what does not reach it.
    #[cfg(test)]
    pub(crate) fn without_board() -> Device {
        let null = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap();
        // An hour: tests show that no thread sleeps that should not.
        Device { path: "/dev/null".into(), fd: null.into(), check_every: Duration::from_secs(3600) }
    }
}
