// SPDX-License-Identifier: MIT OR Apache-2.0
//! One peer of a shared datagram socket, as if a socket were connected to it.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use crate::{Datagrams, lock};

/// Datagrams of one peer that wait to be processed, at most: more than are read from a socket at once.
const INBOX: usize = 256;

/// A datagram socket that sends to many peers. No call blocks.
pub trait SharedSocket: Send + Sync + Debug {
    /// The address of a peer.
    type Address: Send + Debug;

    /// The descriptor to poll for readable.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Sends one datagram; false if the socket has no room now. An unreachable peer is a loss, not an error.
    fn send_to(&self, to: &Self::Address, bytes: &[u8]) -> io::Result<bool>;
}

/// Datagrams of one peer that were read from a shared socket and not processed yet. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Inbox {
    /// Adds a datagram; it is lost if too many wait.
    pub fn put(&self, datagram: Vec<u8>) {
        let mut waiting = lock(&self.0);
        if waiting.len() < INBOX {
            waiting.push_back(datagram);
        }
    }
}

/// What one peer of a shared socket sends and receives.
#[derive(Debug)]
pub struct Branch<S: SharedSocket> {
    socket: Arc<S>,
    peer: S::Address,
    inbox: Inbox,
    longest: usize,
    full: bool,
}

impl<S: SharedSocket> Branch<S> {
    /// The datagrams of `peer`, of at most `longest` bytes, and the inbox for those that are read from the socket.
    pub fn new(socket: Arc<S>, peer: S::Address, longest: usize) -> (Branch<S>, Inbox) {
        let inbox = Inbox::default();
        (Branch { socket, peer, inbox: inbox.clone(), longest, full: false }, inbox)
    }
}

impl<S: SharedSocket> Datagrams for Branch<S> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.fd()
    }

    fn wants_write(&self) -> bool {
        self.full
    }

    fn max_len(&self) -> usize {
        self.longest
    }

    fn send(&mut self, _now: u64, bytes: &[u8]) -> io::Result<bool> {
        let sent = self.socket.send_to(&self.peer, bytes)?;
        self.full = !sent;
        Ok(sent)
    }

    fn receive(&mut self, _now: u64, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let next = lock(&self.inbox.0).pop_front();
        Ok(next.map(|bytes| copy(&bytes, buffer)))
    }

    fn flush(&mut self, _now: u64) -> io::Result<()> {
        self.full = false;
        Ok(())
    }
}

/// Copies as much of `from` as fits and returns how many bytes that was.
pub(crate) fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    len
}
