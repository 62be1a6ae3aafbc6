// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations of buffers that threads have sent long messages from, or received them in, for when they use the
//! buffers again: registering takes longer than most messages do.
//!
//! The driver ends a registration when its memory is unmapped, remapped or discarded, which is asked for here before
//! each use; what is unmapped later is not reached any more either.

use crate::request::Buffer;
use crate::shared::Shared;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use telegraphos::Registration;
use telegraphos_msg_core::Place;

/// Bytes of one buffer, and of all of them. Those of longer ones are registered for each message: users have little
/// memory that they may lock, and it takes a smaller part of the time there.
const MOST: u64 = 512 << 10;
const ALL: u64 = 1 << 20;

/// What is locked is pages.
const PAGE: u64 = 4096;

#[derive(Debug)]
struct Entry {
    address: u64,
    length: u64,
    /// Where others' boards find it, if they may read it.
    place: Option<Place>,
    registration: Arc<Registration>,
}

impl Entry {
    /// Bytes of its pages.
    fn locks(&self) -> u64 {
        (self.address % PAGE + self.length).next_multiple_of(PAGE)
    }
}

/// That used last is behind.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<VecDeque<Entry>>);

impl Cache {
    /// The registration of a buffer: one that others may read, or one that only this board accesses.
    fn find(&self, buffer: Buffer, readable: bool) -> Option<(Arc<Registration>, Option<Place>)> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, length) = buffer.range();
        let is_it =
            |entry: &Entry| entry.address == address && entry.length >= length && entry.place.is_some() == readable;
        let entry = entries.iter().position(is_it).and_then(|n| entries.remove(n))?;
        if !entry.registration.is_alive().unwrap_or(false) {
            drop(entries);
            // It takes a while to end it.
            drop(entry);
            return None;
        }
        let found = (entry.registration.clone(), entry.place);
        entries.push_back(entry);
        Some(found)
    }

    fn keep(&self, buffer: Buffer, registration: &Arc<Registration>, place: Option<Place>) {
        let (address, length) = buffer.range();
        if length > MOST {
            return;
        }
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push_back(Entry { address, length, place, registration: registration.clone() });
        let mut ended = Vec::new();
        while entries.iter().map(Entry::locks).sum::<u64>() > ALL {
            ended.extend(entries.pop_front());
        }
        drop(entries);
        drop(ended);
    }

    /// Where others' boards find a buffer that a long message is sent from, and its registration.
    ///
    /// # Safety
    /// As for [`telegraphos::Node::register`], until the buffer is given back to the system.
    pub(crate) unsafe fn readable(&self, shared: &Shared, buffer: Buffer) -> crate::Result<(Arc<Registration>, Place)> {
        if let Some((registration, Some(place))) = self.find(buffer, true) {
            return Ok((registration, place));
        }
        // SAFETY: the caller's.
        let (registration, place) = unsafe { shared.register_readable(buffer) }?;
        self.keep(buffer, &registration, Some(place));
        Ok((registration, place))
    }

    /// The registration of a buffer that this board fetches a long message into.
    ///
    /// # Safety
    /// As above.
    pub(crate) unsafe fn private(&self, shared: &Shared, buffer: Buffer) -> crate::Result<Arc<Registration>> {
        if let Some((registration, _)) = self.find(buffer, false) {
            return Ok(registration);
        }
        // SAFETY: the caller's.
        let registration = unsafe { shared.register_private(buffer) }?;
        self.keep(buffer, &registration, None);
        Ok(registration)
    }
}
