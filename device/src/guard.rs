// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tiny second process that hangs up on QEMU properly if this one is killed.
//!
//! Linux resets a Unix socket that is closed with unread messages in it, and QEMU (11.1) aborts, with the guest in it,
//! when the socket of a vfio-user device is reset; of one that just ends it takes note and goes on. A killed process
//! cannot read what is left. So the guard holds a copy of the connection's descriptor, sleeps until this process is
//! gone, and hangs up as [`hang_up`] does.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::unistd::{ForkResult, fork};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use crate::vfio::hang_up;

/// The line to the guard; it acts when this is dropped, or closed by the end of the process.
#[derive(Debug)]
pub struct Guard {
    line: OwnedFd,
    pid: nix::unistd::Pid,
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// Of the system; [`Errno::BUSY`] if this process has more than one thread: only a process with one can be copied.
    pub fn start() -> Result<Guard, Errno> {
        if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
            return Err(Errno::BUSY);
        }
        let (line, theirs) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: this process has one thread, so the copy finds no lock taken by a thread that it lacks.
        match unsafe { fork() }.map_err(|e| Errno::from_raw_os_error(e as i32))? {
            ForkResult::Parent { child } => Ok(Guard { line, pid: child }),
            ForkResult::Child => {
                drop(line);
                stand_by(&theirs);
                std::process::exit(0)
            }
        }
    }

    /// Has the guard watch over this connection instead of the one before.
    pub fn watch(&self, connection: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [connection];
        if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::NOBUFS);
        }
        // It reads at once, so there is room; never wait for it all the same.
        net::sendmsg(&self.line, &[IoSlice::new(&[1])], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // That ends it, also while the descriptor is still open.
        let _ = net::shutdown(&self.line, net::Shutdown::Both);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

/// The life of the guard.
fn stand_by(line: &OwnedFd) {
    // A name for `ps`, a process group that Ctrl-C does not reach, and nobody's output kept open.
    let _ = rustix::thread::set_name(c"hib-guard");
    let _ = rustix::process::setpgid(None, None);
    if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let mut connection: Option<OwnedFd> = None;
    loop {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match net::recvmsg(line, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) if received.bytes > 0 => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        // The one before has been hung up by its owner.
                        connection = fds.last().or(connection.take());
                    }
                }
            }
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    if let Some(connection) = connection {
        hang_up(connection.as_fd());
    }
}
