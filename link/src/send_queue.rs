// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that wait for a stream socket which is never waited for.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::net::{self, SendFlags};

/// Bytes on their way into a socket, in order.
#[derive(Debug, Default)]
pub struct SendQueue {
    bytes: Vec<u8>,
    sent: usize,
}

impl SendQueue {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where to append what is to be sent; only what was appended since the last flush may be changed.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// One send (more only while the kernel takes part of it), which does not wait. True when nothing is left.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while !self.is_empty() {
            match net::send(socket, &self.bytes[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Moving the rest costs no more than sending it did: only when at least half has gone.
                    if self.sent >= self.bytes.len() / 2 {
                        self.bytes.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }
}
