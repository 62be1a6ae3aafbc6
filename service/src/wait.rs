// SPDX-License-Identifier: MIT OR Apache-2.0
//! The wait of a server's loop.

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

/// Waits until one of the descriptors is ready, for at most `timeout` microseconds if given. Returns early without one
/// at a signal.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<u64>) -> Result<(), Errno> {
    let timeout =
        timeout.map(|us| Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000) as i64 * 1000 });
    match rustix::event::poll(fds, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
