// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the driver, past the library.

use crate::cli::{Failure, Outcome};
use std::fs::File;
use std::os::fd::AsRawFd;
use telegraphos_wire::uapi::{self, Ioctl};

pub const BOARD: &str = "/dev/telegraphos0";
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// The largest errno that programs have. The kernel uses larger ones inside.
const LAST_ERRNO: i32 = 133;

/// 0, or the errno of a call.
pub type Answer = Result<(), i32>;

pub fn open() -> Outcome<File> {
    let file = File::options().read(true).write(true).open(BOARD);
    file.map_err(|e| Failure::Refused(format!("{BOARD}: {e}; is a HIB attached and telegraphos.ko loaded?")))
}

/// The ioctl of a name.
pub fn of(name: &str) -> Outcome<&'static Ioctl> {
    let found = uapi::IOCTLS.iter().find(|ioctl| ioctl.name == name);
    found.ok_or_else(|| Failure::Check(format!("there is no {name}")))
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A call with any request number and any address.
///
/// # Safety
/// What the kernel may write at the address are bytes to which no reference exists.
pub unsafe fn raw(file: &File, request: u32, at: *mut u8) -> Answer {
    // SAFETY: the caller's.
    match unsafe { libc::ioctl(file.as_raw_fd(), request as _, at) } {
        -1 => Err(errno()),
        _ => Ok(()),
    }
}

/// A call with the size of these bytes; what the driver writes back is in them.
pub fn sized(file: &File, ioctl: &Ioctl, bytes: &mut [u8]) -> Answer {
    let request = uapi::request(ioctl.direction, ioctl.number, bytes.len());
    // SAFETY: the request number says how long they are.
    unsafe { raw(file, request, bytes.as_mut_ptr()) }
}

/// The name of an answer, which must be one that programs can have.
pub fn known(what: impl std::fmt::Display, answer: Answer) -> Outcome<Answer> {
    match answer {
        Err(number) if !(1..=LAST_ERRNO).contains(&number) => {
            Err(Failure::Check(format!("{what}: errno {number}: expected one of 1 to {LAST_ERRNO}")))
        }
        answer => Ok(answer),
    }
}

/// Any answer that programs can have.
pub fn sane(what: impl std::fmt::Display, answer: Answer) -> Outcome<()> {
    known(what, answer).map(drop)
}

/// An answer that must be one of these; 0 is success.
pub fn expect(what: impl std::fmt::Display, answer: Answer, expected: &[i32]) -> Outcome<()> {
    let found = answer.err().unwrap_or(0);
    if expected.contains(&found) {
        return Ok(());
    }
    Err(Failure::Check(format!("{what}: errno {found}: expected one of {expected:?}")))
}

/// The answer to a call that prepares something, which is refused only where the board or the kernel has nothing left.
pub fn granted(what: impl std::fmt::Display, answer: Answer) -> Outcome<()> {
    answer.map(drop).map_err(|errno| Failure::Refused(format!("{what}: errno {errno}: expected success")))
}

/// Memory of this process at an address of its own, with a page behind it that is not there.
pub struct Pages {
    at: *mut u8,
    length: usize,
}

// SAFETY: it is an address; each access is a caller's.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Zeroed pages.
    pub fn new(count: usize) -> Outcome<Pages> {
        Pages::mapped(count, libc::MAP_PRIVATE)
    }

    /// Zeroed pages of a file in memory, which `MADV_REMOVE` takes out of it.
    pub fn shared(count: usize) -> Outcome<Pages> {
        Pages::mapped(count, libc::MAP_SHARED)
    }

    fn mapped(count: usize, sharing: libc::c_int) -> Outcome<Pages> {
        let length = (count + 1) * PAGE;
        let flags = sharing | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(Failure::Refused(format!("{length} bytes of memory: {}", std::io::Error::last_os_error())));
        }
        let pages = Pages { at: at.cast(), length };
        pages.protect(count, 1, libc::PROT_NONE)?;
        Ok(pages)
    }

    /// Changes what may be done with some of the pages.
    pub fn protect(&self, first: usize, count: usize, protection: libc::c_int) -> Outcome<()> {
        assert!((first + count) * PAGE <= self.length, "pages of the mapping");
        // SAFETY: pages of this mapping, to whose bytes no reference exists.
        match unsafe { libc::mprotect(self.at.add(first * PAGE).cast(), count * PAGE, protection) } {
            0 => Ok(()),
            _ => Err(Failure::Refused(format!("mprotect: {}", std::io::Error::last_os_error()))),
        }
    }

    /// The address of a byte, the page behind the last included.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.length, "a byte of the mapping");
        // SAFETY: within the mapping, or its end.
        unsafe { self.at.add(offset) }
    }

    /// Puts bytes there, as far as there are pages.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        let there = bytes.len().min(self.length - PAGE - offset);
        // SAFETY: within the pages that are there, which nothing else uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), there) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`. Where it cannot go it stays.
        unsafe { libc::munmap(self.at.cast(), self.length) };
    }
}
