// SPDX-License-Identifier: MIT OR Apache-2.0
//! The listening socket of a server and its file: mode 0600 from its first moment, a stale one replaced, a live one
//! refused, removed at the end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why there is no socket. `option` is the command line's option that named it.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("another process is listening at {}: stop it, or choose another {option}", path.display())]
    Live { path: PathBuf, option: &'static str },
    /// Something else is in the way.
    #[error("{} exists and is not a socket: remove it, or choose another {option}", path.display())]
    NotASocket { path: PathBuf, option: &'static str },
    /// The directory is missing or not to be written.
    #[error(
        "cannot listen at {}: its directory {} {why}, or choose another {option}",
        path.display(),
        directory.display()
    )]
    Directory {
        path: PathBuf,
        directory: PathBuf,
        /// What is wrong with it, and what to do.
        why: &'static str,
        option: &'static str,
    },
    #[error("cannot listen at {}: {errno}; choose another {option}{}", path.display(), hint(*errno))]
    Io { path: PathBuf, option: &'static str, errno: Errno },
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NAMETOOLONG => ", of at most 107 bytes",
        _ => "",
    }
}

/// A listening Unix socket, non-blocking. Dropping it removes its file.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the socket's file: another file at the path is not removed.
    identity: (u64, u64),
}

fn socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// Excludes other servers that start or end in the same directory, until dropped. A file system without locks does
/// without.
fn lock(directory: &Path) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let _ = rustix::fs::flock(&fd, FlockOperation::LockExclusive);
    Ok(fd)
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

impl Listener {
    /// Listens at `path`, which the command line's `option` names.
    pub fn bind(path: &Path, option: &'static str) -> Result<Listener, ListenError> {
        Listener::bind_kind(path, option, SocketType::STREAM)
    }

    /// The same for datagrams: there are no connections to accept.
    pub fn bind_datagram(path: &Path, option: &'static str) -> Result<Listener, ListenError> {
        Listener::bind_kind(path, option, SocketType::DGRAM)
    }

    fn bind_kind(path: &Path, option: &'static str, kind: SocketType) -> Result<Listener, ListenError> {
        let directory = directory_of(path);
        let failed = |errno| {
            let of_directory =
                |why| ListenError::Directory { path: path.to_owned(), directory: directory.to_owned(), why, option };
            match errno {
                Errno::NOENT => of_directory("does not exist: create it"),
                Errno::NOTDIR => of_directory("is not a directory: name one"),
                Errno::ACCESS | Errno::PERM => of_directory("is not writable for this user: change its mode"),
                Errno::ROFS => of_directory("is on a read-only file system: remount it"),
                errno => ListenError::Io { path: path.to_owned(), option, errno },
            }
        };
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let _lock = match lock(directory) {
            Ok(lock) => Some(lock),
            // Writable and searchable but not readable: it cannot be locked, and need not be.
            Err(Errno::ACCESS) => None,
            Err(e) => return Err(failed(e)),
        };
        let fd = socket(kind).map_err(failed)?;
        // The file gets the mode that the socket has when it is bound, so there is no moment with another.
        rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match net::bind(&fd, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &address, option, kind)?;
                net::bind(&fd, &address).map_err(failed)?;
            }
            Err(e) => return Err(failed(e)),
        }
        let identity = identity(path).map_err(failed)?;
        let listener = Listener { fd, path: path.to_owned(), identity };
        if kind == SocketType::STREAM {
            net::listen(&listener.fd, BACKLOG).map_err(failed)?;
        }
        Ok(listener)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next connection, if one waits.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        loop {
            match net::accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(fd) => return Ok(Some(fd)),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _lock = lock(directory_of(&self.path));
        if identity(&self.path) == Ok(self.identity) {
            // If it is gone already, so much the better.
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Removes a stale socket.
fn remove_stale(
    path: &Path,
    address: &SocketAddrUnix,
    option: &'static str,
    kind: SocketType,
) -> Result<(), ListenError> {
    let failed = |errno| ListenError::Io { path: path.to_owned(), option, errno };
    let stat = rustix::fs::lstat(path).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket { path: path.to_owned(), option });
    }
    match net::connect(&socket(kind).map_err(failed)?, address) {
        Err(Errno::CONNREFUSED) => {
            log::info!("replacing the stale socket {}", path.display());
            rustix::fs::unlink(path).map_err(failed)
        }
        // Its backlog may be full, or it is of another type: a process listens regardless.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(ListenError::Live { path: path.to_owned(), option }),
        Err(e) => Err(failed(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

    #[test]
    fn the_file_is_private_and_goes_with_the_listener() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = Listener::bind(&path, "--listen").unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        // Bound and closed, as a killed process leaves it.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let stale = std::fs::metadata(&path).unwrap().ino();
        let first = Listener::bind(&path, "--listen").unwrap();
        assert!(matches!(Listener::bind(&path, "--listen"), Err(ListenError::Live { .. })));
        assert!(path.exists(), "refusing does not remove: {stale}");
        // Another file at the path since then stays.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "other").unwrap();
        drop(first);
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
        assert!(matches!(Listener::bind(&path, "--listen"), Err(ListenError::NotASocket { .. })));
    }

    #[test]
    fn a_bad_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Listener::bind(&dir.path().join("no/s"), "--listen").unwrap_err().to_string();
        assert!(missing.contains("/no does not exist: create it"), "{missing}");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let file = Listener::bind(&dir.path().join("file/s"), "--listen").unwrap_err().to_string();
        assert!(file.contains("/file is not a directory"), "{file}");
        let long = Listener::bind(&dir.path().join("x".repeat(120)), "--listen").unwrap_err().to_string();
        assert!(long.contains("at most 107 bytes"), "{long}");
    }

    #[test]
    fn an_unwritable_directory_is_named() {
        // Modes do not restrict root; /proc is writable to no user.
        if rustix::process::geteuid().is_root() {
            let error = Listener::bind(Path::new("/proc/telegraphos"), "--listen").unwrap_err();
            assert!(error.to_string().contains("/proc"), "{error}");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
        let error = Listener::bind(&dir.path().join("s"), "--listen").unwrap_err().to_string();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(error.contains("is not writable for this user"), "{error}");
    }
}
