// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of the driver, past the library.

use crate::cli::{Failure, Outcome};
use crate::mapping::Mapping;
use rustix::mm::MapFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use telegraphos_wire::uapi::{self, Direction, Ioctl};

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
pub unsafe fn raw(file: impl AsFd, request: u32, at: *mut u8) -> Answer {
    // SAFETY: the caller's.
    match unsafe { libc::ioctl(file.as_fd().as_raw_fd(), request as _, at) } {
        -1 => Err(errno()),
        _ => Ok(()),
    }
}

/// A call with the size of these bytes; what the driver writes back is in them.
pub fn sized(file: impl AsFd, ioctl: &Ioctl, bytes: &mut [u8]) -> Answer {
    numbered(file, ioctl.number, bytes)
}

/// The same of a number that an ioctl may have or not.
pub fn numbered(file: impl AsFd, number: u8, bytes: &mut [u8]) -> Answer {
    let known = uapi::IOCTLS.iter().find(|ioctl| ioctl.number == number);
    let request = uapi::request(known.map_or(Direction::InOut, |ioctl| ioctl.direction), number, bytes.len());
    // SAFETY: the request number says how long they are.
    unsafe { raw(file, request, bytes.as_mut_ptr()) }
}

/// A call with a structure of the interface, whose size is filled in.
pub fn structure<T: bytemuck::Pod>(file: impl AsFd, number: u8, argument: &mut T) -> Answer {
    let bytes = bytemuck::bytes_of_mut(argument);
    let size = bytes.len() as u32;
    bytes[..4].copy_from_slice(&size.to_ne_bytes());
    numbered(file, number, bytes)
}

/// A name as structures have it.
pub fn name(text: &str) -> [u8; 64] {
    let mut name = [0; 64];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
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
pub struct Pages(Mapping);

impl Pages {
    /// Zeroed pages.
    pub fn new(count: usize) -> Outcome<Pages> {
        Pages::mapped(count, MapFlags::PRIVATE)
    }

    /// Zeroed pages of a file in memory, which `MADV_REMOVE` takes out of it.
    pub fn shared(count: usize) -> Outcome<Pages> {
        Pages::mapped(count, MapFlags::SHARED)
    }

    fn mapped(count: usize, sharing: MapFlags) -> Outcome<Pages> {
        let length = (count + 1) * PAGE;
        let mapping = Mapping::anonymous(length, sharing);
        let pages = Pages(mapping.map_err(|e| Failure::Refused(format!("{length} bytes of memory: {e}")))?);
        pages.protect(count, 1, libc::PROT_NONE)?;
        Ok(pages)
    }

    /// Changes what may be done with some of the pages.
    pub fn protect(&self, first: usize, count: usize, protection: libc::c_int) -> Outcome<()> {
        // SAFETY: pages of this mapping, to whose bytes no reference exists.
        match unsafe { libc::mprotect(self.0.range(first * PAGE, count * PAGE).cast(), count * PAGE, protection) } {
            0 => Ok(()),
            _ => Err(Failure::Refused(format!("mprotect: {}", std::io::Error::last_os_error()))),
        }
    }

    /// The address of a byte, the page behind the last included.
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.0.range(offset, 0).cast()
    }

    /// Puts bytes there, as far as there are pages.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        let there = bytes.len().min(self.0.length() - PAGE - offset);
        // SAFETY: within the pages that are there, which nothing else uses.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset), there) };
    }
}
