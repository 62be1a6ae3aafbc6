// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that belongs to messages while they are under way.

use crate::grant::Readable;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use telegraphos::Registration;
use telegraphos_msg_core::Process;

/// Memory for messages, which [handles](crate::Handle) hold and give back. It derefs to its bytes.
///
/// For the first long message that is sent from it, or received in it, its bytes are registered, which takes a while,
/// and stay so until it is dropped, or is sent to another process. That process's node can read them while the handle
/// of a message to it has them, and no longer.
#[derive(Debug, Default)]
pub struct Memory {
    /// For this process. Both are closed before the bytes are freed.
    of: Option<Process>,
    /// That the process may read which it was sent to last.
    pub(crate) readable: Option<Arc<Readable>>,
    /// That only this board accesses.
    pub(crate) private: Option<Arc<Registration>>,
    bytes: Vec<u8>,
}

impl Memory {
    /// Its registrations are those of this process from now on.
    pub(crate) fn belong_to(&mut self, process: Process) {
        if self.of.replace(process) != Some(process) {
            (self.readable, self.private) = (None, None);
        }
    }

    /// Its bytes, which are not registered any more.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Memory {
        Memory { bytes, ..Memory::default() }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
