// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that processes share, and that a program started by `exec` finds again: files in memory, whose descriptors
//! stay open.

use crate::descriptors::{HIGH, disown, own, owned};
use crate::kernel;
use crate::settings::settings;
use libc::c_int;
use std::ffi::{CStr, CString};
use std::path::Path;

/// Of a ring's memory: its first word says where frames begin, plus one. The ring follows.
pub(crate) const RING: usize = 4096;

/// What the memory is for: part of its file's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Cells,
    Ring,
}

impl Use {
    const ALL: [Use; 2] = [Use::Cells, Use::Ring];

    fn name(self) -> &'static CStr {
        match self {
            Use::Cells => c"telegraphos-sockets:cells",
            Use::Ring => c"telegraphos-sockets:ring",
        }
    }

    /// What a file is for, by what `/proc/self/fd` says of it.
    pub(crate) fn of(link: &Path) -> Option<Use> {
        let link = link.to_str()?;
        Use::ALL.into_iter().find(|of| of.name().to_str().is_ok_and(|name| link == format!("/memfd:{name} (deleted)")))
    }
}

/// Bytes of a ring's memory.
pub(crate) fn ring_bytes() -> usize {
    RING + settings().ring() as usize
}

/// Memory in common, mapped.
#[derive(Debug)]
pub(crate) struct Shared {
    memory: *mut [u8],
    /// -1 if no descriptor could be kept: then no other program finds it.
    file: c_int,
}

// SAFETY: it is mapped memory; the code of each access says how.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Zeros. `None` if there is no memory.
    pub(crate) fn new(of: Use, bytes: usize) -> Option<Shared> {
        // Low numbers are the program's; there may be none left above.
        let (file, kept) = match kernel::memory_file(of.name(), bytes, HIGH) {
            Some(file) => (file, own(file)),
            None => (kernel::memory_file(of.name(), bytes, 0)?, false),
        };
        let memory = kernel::map_shared(file, bytes);
        if kept && memory.is_some() {
            return memory.map(|memory| Shared { memory, file });
        }
        disown(file);
        kernel::close(file);
        memory.map(|memory| Shared { memory, file: -1 })
    }

    /// What another program has left to this one under a descriptor, if it is what it should be: the file of a program
    /// of this user's, which does not shrink.
    pub(crate) fn found(file: c_int) -> Option<Shared> {
        let status = kernel::status(file)?;
        let bytes = usize::try_from(status.st_size).ok().filter(|bytes| *bytes > 0)?;
        if status.st_uid != user() || !kernel::does_not_shrink(file) || !own(file) {
            return None;
        }
        let memory = kernel::map_shared(file, bytes);
        if memory.is_none() {
            disown(file);
        }
        Some(Shared { memory: memory?, file })
    }

    pub(crate) fn memory(&self) -> *mut [u8] {
        self.memory
    }

    /// The number of its inode; 0 if no other program can find it.
    pub(crate) fn inode(&self) -> u64 {
        kernel::status(self.file).map_or(0, |status| status.st_ino)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        kernel::unmap(self.memory);
        // Else the program has closed it, past us, and it may be another file.
        if disown(self.file) {
            kernel::close(self.file);
        }
    }
}

/// The user whose files are believed.
pub(crate) fn user() -> libc::uid_t {
    // SAFETY: no memory is passed.
    unsafe { libc::geteuid() }
}

/// Memory files that a program inherits which is started with all descriptors closed but these: where they are in this
/// process, and under which path they can be opened.
pub fn inherited() -> Vec<(c_int, CString)> {
    let files = owned();
    let path = |fd: &c_int| CString::new(format!("/proc/{}/fd/{fd}", std::process::id())).ok();
    files.filter_map(|fd| Some((fd, path(&fd)?))).collect()
}
