// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a long message is sent from: pinned for longer than the message, and readable by the receiving process's
//! node while the message is under way.
//!
//! Registering memory takes longer than most messages do, so a registration is kept for the next one. It is behind a
//! gate of the board's ([`telegraphos::RegisterBuilder::gated`]), which a [`Grant`] has opened: to one node, for the
//! bytes of the message, to be read. A registration is for one process, which alone has its name: another process
//! of that node has no import of it, however many messages went from the same memory to both.

use crate::error::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use telegraphos::{NodeId, Registration};
use telegraphos_msg_core::{Place, Process};

#[derive(Debug, Default)]
struct Open {
    /// Messages under way.
    messages: u32,
    /// Bytes that the gate is open for.
    length: u64,
    /// The gate could not be closed: the memory or the board has gone. It is used for no further message.
    failed: bool,
}

/// Memory that one other process reads while a message to it is under way.
#[derive(Debug)]
pub(crate) struct Readable {
    pub(crate) registration: Arc<Registration>,
    /// Where the other process's board finds it.
    pub(crate) place: Place,
    pub(crate) reader: Process,
    /// The board of the reader.
    node: NodeId,
    open: Mutex<Open>,
}

impl Readable {
    pub(crate) fn new(registration: Registration, place: Place, reader: Process, node: NodeId) -> Arc<Readable> {
        Arc::new(Readable { registration: Arc::new(registration), place, reader, node, open: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is the memory at its address, which the gate can be opened for.
    pub(crate) fn is_usable(&self) -> bool {
        !self.lock().failed && self.registration.is_alive().unwrap_or(false)
    }

    /// Opens the gate for a message from the first bytes of the memory. Messages from the same memory share it, as long
    /// as the longest of them needs.
    pub(crate) fn grant(self: &Arc<Readable>, length: u64) -> Result<Grant> {
        let mut open = self.lock();
        if open.messages == 0 || length > open.length {
            self.registration.open_gate(self.node, length)?;
            open.length = length;
        }
        open.messages += 1;
        Ok(Grant(self.clone()))
    }
}

/// What a message under way lets its receiver's node read. When this is dropped, that has ended, unless another message
/// from the same memory to the same process is under way.
#[derive(Debug)]
pub(crate) struct Grant(Arc<Readable>);

impl Grant {
    /// The registration, for this process's own copies.
    pub(crate) fn registration(&self) -> &Arc<Registration> {
        &self.0.registration
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut open = self.0.lock();
        open.messages -= 1;
        if open.messages > 0 {
            return;
        }
        open.length = 0;
        // It fails if there is no grant left to end: the memory has gone, or the board.
        if let Err(error) = self.0.registration.close_gate() {
            open.failed = true;
            log::debug!("memory that was sent to {} is not used again: {error}", self.0.reader);
        }
    }
}

/// Where a long message comes from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) place: Place,
    /// `None` if the receiving process is reached by streams, which ask for the bytes.
    pub(crate) grant: Option<Grant>,
}
