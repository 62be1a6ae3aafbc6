// SPDX-License-Identifier: MIT OR Apache-2.0
//! The owners of boards' device nodes in a guest: group `telegraphos`, as they come. For all other nodes the kernel's
//! own choice is right.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The group `telegraphos` of the guest's /etc/group.
pub const GROUP: u32 = 990;
const MODE: u32 = 0o660;

/// Whether a device node is that of a board.
fn is_board(name: &OsStr) -> bool {
    let digits = name.as_bytes().strip_prefix(b"telegraphos");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// A directory of device nodes, in which those of boards get their owner as they appear.
#[derive(Debug)]
pub struct Devices {
    at: PathBuf,
    changes: OwnedFd,
}

impl Devices {
    /// Watches a directory, and gives the boards' nodes that are in it already their owner.
    pub fn watch(at: &Path) -> io::Result<Devices> {
        let changes = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        // The kernel makes a node, and then sets its owner.
        inotify::add_watch(&changes, at, WatchFlags::CREATE | WatchFlags::ATTRIB | WatchFlags::ONLYDIR)?;
        let devices = Devices { at: at.into(), changes };
        for entry in std::fs::read_dir(at)?.flatten() {
            devices.own(&entry.file_name())?;
        }
        Ok(devices)
    }

    /// Looks at what has changed since the last call. Never blocks.
    pub fn look(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.changes, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    for entry in std::fs::read_dir(&self.at)?.flatten() {
                        self.own(&entry.file_name())?;
                    }
                }
                Ok(event) => {
                    if let Some(name) = event.file_name() {
                        self.own(OsStr::from_bytes(name.to_bytes()))?;
                    }
                }
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn own(&self, name: &OsStr) -> io::Result<()> {
        if !is_board(name) {
            return Ok(());
        }
        let path = self.at.join(name);
        let set = || -> io::Result<()> {
            // What is as it should be stays: each change is a reason to look again.
            let found = std::fs::symlink_metadata(&path)?;
            if found.gid() != GROUP {
                rustix::fs::chownat(CWD, &path, Some(Uid::ROOT), Some(Gid::from_raw(GROUP)), AtFlags::empty())?;
            }
            if found.mode() & 0o777 != MODE {
                rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(MODE), AtFlags::empty())?;
            }
            Ok(())
        };
        match set() {
            // Unplugged meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl AsFd for Devices {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_boards_are_owned() {
        for name in ["telegraphos0", "telegraphos12"] {
            assert!(is_board(OsStr::new(name)), "{name}");
        }
        for name in ["telegraphos", "telegraphos0a", "telegraphos-1", "xtelegraphos0", "null", ""] {
            assert!(!is_board(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn nodes_are_owned_when_they_appear_and_when_another_process_changes_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("telegraphos0"), "").unwrap();
        std::fs::write(dir.path().join("null"), "").unwrap();
        let mode = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
        let before = mode("null");
        if !rustix::process::geteuid().is_root() {
            assert!(Devices::watch(dir.path()).is_err(), "an owner can be given away by root only");
            return;
        }
        let devices = Devices::watch(dir.path()).unwrap();
        assert_eq!((mode("telegraphos0"), mode("null")), (MODE, before));
        std::fs::write(dir.path().join("telegraphos1"), "").unwrap();
        devices.look().unwrap();
        assert_eq!(mode("telegraphos1"), MODE);
        assert_eq!(std::fs::metadata(dir.path().join("telegraphos1")).unwrap().gid(), GROUP);
        rustix::fs::chmodat(CWD, dir.path().join("telegraphos1"), Mode::RUSR, AtFlags::empty()).unwrap();
        devices.look().unwrap();
        assert_eq!(mode("telegraphos1"), MODE);
        // Its own changes are no reason for more.
        devices.look().unwrap();
        devices.look().unwrap();
    }
}
