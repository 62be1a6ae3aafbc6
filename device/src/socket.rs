// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket: mode 0600 from its first moment, a stale file replaced, a live one refused, removed at the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process serves there.
    #[error("another process is serving at {}: stop it, or choose another --socket", .0.display())]
    Live(PathBuf),
    /// Something else is in the way.
    #[error("{} exists and is not a socket: remove it, or choose another --socket", .0.display())]
    NotASocket(PathBuf),
    /// The system refuses.
    #[error("cannot create the socket {}: {errno}; {hint}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The reason.
        errno: Errno,
        /// What to do.
        hint: &'static str,
    },
}

/// A listening Unix stream socket, non-blocking, that removes its file when dropped.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of our file: what others have put there since is theirs.
    identity: (u64, u64),
}

fn io(path: &Path, errno: Errno) -> BindError {
    let hint = match errno {
        Errno::NOENT => "its directory does not exist: create it, or choose another --socket",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => "its directory is not writable: choose another --socket",
        Errno::NOTDIR => "part of its path is not a directory",
        Errno::NAMETOOLONG => "a Unix socket path has at most 107 bytes: choose a shorter one",
        _ => "choose another --socket",
    };
    BindError::Io { path: path.to_owned(), errno, hint }
}

fn stream() -> Result<OwnedFd, Errno> {
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

impl Listener {
    /// Listens at `path`.
    pub fn bind(path: &Path) -> Result<Listener, BindError> {
        let failed = |errno| io(path, errno);
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let fd = stream().map_err(failed)?;
        // The file gets the mode the socket has when it is bound.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match net::bind(&fd, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &address)?;
                net::bind(&fd, &address).map_err(failed)?;
            }
            Err(e) => return Err(failed(e)),
        }
        let identity = identity(path).map_err(failed)?;
        let listener = Listener { fd, path: path.to_owned(), identity };
        net::listen(&listener.fd, 8).map_err(failed)?;
        Ok(listener)
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, if one waits.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if identity(&self.path) == Ok(self.identity) {
            // If it is gone already, so much the better.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), BindError> {
    let failed = |errno| io(path, errno);
    let stat = rustix::fs::lstat(path).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(BindError::NotASocket(path.to_owned()));
    }
    match net::connect(&stream().map_err(failed)?, address) {
        Err(Errno::CONNREFUSED) => {
            log::info!("{} was left behind by a process that has ended: replaced", path.display());
            rustix::fs::unlink(path).map_err(failed)
        }
        // Connected, or its queue of connections is full.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::Live(path.to_owned())),
        Err(e) => Err(failed(e)),
    }
}
