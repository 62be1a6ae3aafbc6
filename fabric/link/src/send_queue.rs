// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes that wait for a stream socket which is never waited for, and descriptors that go with some of them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{self, SendFlags};

use crate::descriptors;

/// Bytes on their way into a socket, in order.
#[derive(Debug, Default)]
pub struct SendQueue {
    bytes: Vec<u8>,
    sent: usize,
    /// Pairs of descriptors, each with the index in `bytes` of the byte that they go with.
    attached: VecDeque<(usize, [OwnedFd; 2])>,
}

impl SendQueue {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where to append what is to be sent; only what was appended since the last flush may be changed.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// These descriptors go with the byte that is appended next. The socket must be a Unix stream.
    pub fn attach(&mut self, fds: [OwnedFd; 2]) {
        self.attached.push_back((self.bytes.len(), fds));
    }

    /// One send (more only while the kernel takes part of it, and before descriptors), which does not wait. True when
    /// nothing is left.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<bool, Errno> {
        while !self.is_empty() {
            let due = self.attached.front().filter(|(at, _)| *at <= self.sent);
            let next = self.attached.iter().map(|(at, _)| *at).find(|at| *at > self.sent);
            let bytes = &self.bytes[self.sent..next.map_or(self.bytes.len(), |at| at.min(self.bytes.len()))];
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = match due {
                Some((_, [one, other])) => descriptors::send(socket, bytes, &[one.as_fd(), other.as_fd()], flags),
                None => net::send(socket, bytes, flags),
            };
            match sent {
                Ok(n) => {
                    if due.is_some() {
                        self.attached.pop_front();
                    }
                    self.sent += n;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // Moving the rest costs no more than sending it did: only when at least half has gone.
                    if self.sent >= self.bytes.len() / 2 {
                        self.bytes.drain(..self.sent);
                        self.attached.iter_mut().for_each(|(at, _)| *at -= self.sent);
                        self.sent = 0;
                    }
                    return Ok(false);
                }
                Err(e) => return Err(e),
            }
        }
        // Those that go with a byte that is still to come.
        self.attached.iter_mut().for_each(|(at, _)| *at -= self.sent);
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }
}
