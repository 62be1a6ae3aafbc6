// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory whose pages come when the test says so: an access, of the kernel too, waits in a page fault until then.

use crate::mapping::Mapping;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, UserfaultfdFlags, userfaultfd};
use std::io::Error;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Bytes of a page.
pub const PAGE: usize = 4096;

// <linux/userfaultfd.h>
const API: u64 = 0xaa;
const IOCTL_API: u64 = 0xc018_aa3f;
const IOCTL_REGISTER: u64 = 0xc020_aa00;
const IOCTL_COPY: u64 = 0xc028_aa03;
const IOCTL_ZEROPAGE: u64 = 0xc020_aa04;
const IOCTL_WRITEPROTECT: u64 = 0xc018_aa06;
const FEATURE_WRITE_PROTECT: u64 = 1;
const PAGEFAULT: u8 = 0x12;
/// `struct uffd_msg`, and where the address is in that of a page fault.
const MESSAGE: usize = 32;
const ADDRESS: usize = 16;

/// Which accesses of a range of pages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Accesses {
    /// Those to pages that are not there.
    Missing = 1,
    /// Writes, once [`Faults::protect`] says so.
    Writes = 2,
}

/// The page faults of one range of pages. Root, or a system with `vm.unprivileged_userfaultfd`, since the kernel is to
/// wait for the pages, too.
#[derive(Debug)]
pub struct Faults {
    fd: OwnedFd,
    start: u64,
    length: u64,
}

impl Faults {
    /// Those of a range of this process, whole pages, which must outlive it.
    pub fn of(range: *mut [u8], accesses: Accesses) -> Result<Faults, Error> {
        // SAFETY: the descriptor serves that range alone; what waits is what the test has wait.
        let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK) }?;
        let faults = Faults { fd, start: range.cast::<u8>() as u64, length: range.len() as u64 };
        let features = if accesses == Accesses::Writes { FEATURE_WRITE_PROTECT } else { 0 };
        faults.control(IOCTL_API, &mut [API, features, 0])?;
        faults.control(IOCTL_REGISTER, &mut [faults.start, faults.length, accesses as u64, 0])?;
        Ok(faults)
    }

    fn control(&self, request: u64, words: &mut [u64]) -> Result<(), Error> {
        // SAFETY: the words are as long as the structure that the request says, and live until it returns.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
    }

    fn page(&self, page: usize) -> u64 {
        self.start + (page * PAGE) as u64
    }

    /// Writes wait from now on, or those that wait continue.
    pub fn protect(&self, writes_wait: bool) -> Result<(), Error> {
        self.control(IOCTL_WRITEPROTECT, &mut [self.start, self.length, writes_wait.into()])
    }

    /// A page, from 0, comes with zeros, and accesses that wait for it continue. It is no error if it is there.
    pub fn supply(&self, page: usize) -> Result<(), Error> {
        match self.control(IOCTL_ZEROPAGE, &mut [self.page(page), PAGE as u64, 0, 0]) {
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            result => result,
        }
    }

    /// A page, from 0, comes with these bytes.
    pub fn supply_with(&self, page: usize, bytes: &[u8; PAGE]) -> Result<(), Error> {
        self.control(IOCTL_COPY, &mut [self.page(page), bytes.as_ptr() as u64, PAGE as u64, 0, 0])
    }

    /// Whether an access waits, or begins to within a time.
    pub fn any(&self, patience: Duration) -> Result<bool, Error> {
        let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        Ok(poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&time))? != 0)
    }

    /// The page that an access waits for, if there is one within a time.
    pub fn awaited(&self, patience: Duration) -> Result<Option<usize>, Error> {
        if !self.any(patience)? {
            return Ok(None);
        }
        let mut message = [0; MESSAGE];
        let length = match rustix::io::read(&self.fd, &mut message) {
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            result => result?,
        };
        if length < MESSAGE || message[0] != PAGEFAULT {
            return Err(Error::other(format!("userfaultfd said {message:?}: expected a page fault")));
        }
        let address = u64::from_ne_bytes(std::array::from_fn(|n| message[ADDRESS + n]));
        Ok(Some((address - self.start) as usize / PAGE))
    }
}

/// A mapping of this process of which no page is there.
#[derive(Debug)]
pub struct Missing {
    mapping: Mapping,
    faults: Faults,
}

impl Missing {
    /// So many pages, none of them there.
    pub fn new(pages: usize) -> Result<Missing, Error> {
        let mapping = Mapping::anonymous(pages * PAGE, MapFlags::PRIVATE)?;
        let faults = Faults::of(mapping.range(0, mapping.length()), Accesses::Missing)?;
        Ok(Missing { mapping, faults })
    }

    /// All of it.
    pub fn range(&self) -> *mut [u8] {
        self.mapping.range(0, self.mapping.length())
    }

    /// Its page faults.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }
}
