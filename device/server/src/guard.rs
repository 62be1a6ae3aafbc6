// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small second process that closes the connection to QEMU without a reset if this process is killed. The
//! command starts it; `shell` hands it each client's connection.
//!
//! Linux resets a Unix socket that is closed with unread data in it. QEMU (11.1) aborts, with its guest, when the
//! socket of a vfio-user device is reset; it tolerates an ordinary end of the stream. A killed process cannot read what
//! is left. Therefore the guard holds a copy of the connection's descriptor, sleeps until this process has ended, and
//! then closes the connection with [`hang_up`].
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::unistd::{ForkResult, fork};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use telegraphos_link::descriptors;
use telegraphos_wire::NodeId;

use crate::vfio::hang_up;

/// The guard process and the socket to it. The guard acts when this is dropped or the process ends.
#[derive(Debug)]
pub struct Guard {
    socket: OwnedFd,
    pid: nix::unistd::Pid,
}

impl Guard {
    /// Starts the guard.
    ///
    /// # Errors
    /// Of the system calls; [`Errno::BUSY`] if this process has more than one thread, since `fork` copies only one.
    pub fn start() -> Result<Guard, Errno> {
        if std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) != 1 {
            return Err(Errno::BUSY);
        }
        let (socket, remote) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // SAFETY: this process has one thread, so no lock is held by a thread that the copy lacks.
        match unsafe { fork() }.map_err(|e| Errno::from_raw_os_error(e as i32))? {
            ForkResult::Parent { child } => Ok(Guard { socket, pid: child }),
            ForkResult::Child => {
                drop(socket);
                run_guard(&remote);
                std::process::exit(0)
            }
        }
    }

    /// Makes the guard watch this connection of a node's board instead of the board's previous one.
    pub fn watch(&self, node: NodeId, connection: BorrowedFd<'_>) -> Result<(), Errno> {
        self.watch_as(u32::from(node), connection)
    }

    /// The same for a connection of a node's memory device.
    pub fn watch_memory(&self, node: NodeId, connection: BorrowedFd<'_>) -> Result<(), Errno> {
        self.watch_as(1 << 16 | u32::from(node), connection)
    }

    fn watch_as(&self, device: u32, connection: BorrowedFd<'_>) -> Result<(), Errno> {
        // The guard reads at once, so there is room; do not block if it hangs.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        descriptors::send(self.socket.as_fd(), &device.to_ne_bytes(), &[connection], flags)?;
        Ok(())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // This ends the guard even if a copy of the descriptor is still open elsewhere.
        let _ = net::shutdown(&self.socket, net::Shutdown::Both);
        let _ = nix::sys::wait::waitpid(self.pid, None);
    }
}

/// The guard process: waits for the end of the other one, then hangs up.
fn run_guard(socket: &OwnedFd) {
    // A name for `ps`, its own process group so that Ctrl-C does not reach it, and no copy of the parent's standard
    // streams, which would keep pipes open.
    let _ = rustix::thread::set_name(c"hib-guard");
    let _ = rustix::process::setpgid(None, None);
    if let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let mut connections: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    loop {
        let mut device = [0; size_of::<u32>()];
        match descriptors::receive(socket.as_fd(), &mut device, RecvFlags::empty()) {
            // The device's previous connection has been hung up by the server.
            Ok((1.., fds)) => {
                let last = fds.into_iter().flatten().next_back();
                connections.extend(last.map(|fd| (u32::from_ne_bytes(device), fd)));
            }
            _ => break,
        }
    }
    for connection in connections.values() {
        hang_up(connection.as_fd());
    }
}
