// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which process is at the other end of a Unix stream.
#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// The process that connected, by its id as the kernel says (`SO_PEERCRED`); 0 where it cannot be seen from here, or is
/// not known.
pub(crate) fn process(stream: BorrowedFd<'_>) -> u32 {
    let mut credentials = MaybeUninit::<libc::ucred>::zeroed();
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, for it is borrowed; the kernel writes at most `length` bytes, which is the size
    // of `credentials`.
    let result = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            credentials.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return 0;
    }
    // SAFETY: all its fields are integers, and it was zeroed before the kernel wrote to it.
    let credentials = unsafe { credentials.assume_init() };
    u32::try_from(credentials.pid).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_process_at_the_other_end_is_known() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(process(near.as_fd()), std::process::id());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(process(file.as_fd()), 0);
    }
}
