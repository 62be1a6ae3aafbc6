// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations of buffers that threads have sent long messages from, or received them in, for when they use the
//! buffers again: registering takes longer than most messages do. Memory stays pinned by them; others reach it only
//! while a message is under way ([`crate::grant`]).
//!
//! The driver ends a registration when its memory is unmapped, remapped or discarded, which is asked for here before
//! each use; what is unmapped later is not reached any more either.

use crate::grant::Readable;
use crate::request::Buffer;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use telegraphos::Registration;
use telegraphos_msg_core::Process;

/// Bytes of one buffer, and of all of them. Those of longer ones are registered for each message: users have little
/// memory that they may lock, and it takes a smaller part of the time there.
const MOST: u64 = 512 << 10;
const ALL: u64 = 1 << 20;

/// What is locked is pages.
const PAGE: u64 = 4096;

/// What a buffer is registered for.
#[derive(Clone, Debug)]
enum Kept {
    /// One other process reads it, while messages to it are under way.
    Readable(Arc<Readable>),
    /// Only this board accesses it.
    Private(Arc<Registration>),
}

impl Kept {
    fn is_usable(&self) -> bool {
        match self {
            Kept::Readable(readable) => readable.is_usable(),
            Kept::Private(registration) => registration.is_alive().unwrap_or(false),
        }
    }

    fn reader(&self) -> Option<Process> {
        match self {
            Kept::Readable(readable) => Some(readable.reader),
            Kept::Private(_) => None,
        }
    }
}

#[derive(Debug)]
struct Entry {
    address: u64,
    length: u64,
    kept: Kept,
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
    /// What is kept of a buffer for one other process, or for this board alone.
    fn find(&self, buffer: Buffer, reader: Option<Process>) -> Option<Kept> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, length) = buffer.range();
        let is_it = |entry: &Entry| entry.address == address && entry.length >= length && entry.kept.reader() == reader;
        let entry = entries.iter().position(is_it).and_then(|n| entries.remove(n))?;
        if !entry.kept.is_usable() {
            drop(entries);
            // It takes a while to end it.
            drop(entry);
            return None;
        }
        let found = entry.kept.clone();
        entries.push_back(entry);
        Some(found)
    }

    fn keep(&self, buffer: Buffer, kept: Kept) {
        let (address, length) = buffer.range();
        if length > MOST {
            return;
        }
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.push_back(Entry { address, length, kept });
        let mut ended = Vec::new();
        while entries.iter().map(Entry::locks).sum::<u64>() > ALL {
            ended.extend(entries.pop_front());
        }
        drop(entries);
        drop(ended);
    }

    /// What lets another process read a buffer.
    pub(crate) fn readable(&self, buffer: Buffer, reader: Process) -> Option<Arc<Readable>> {
        match self.find(buffer, Some(reader)) {
            Some(Kept::Readable(readable)) => Some(readable),
            _ => None,
        }
    }

    pub(crate) fn keep_readable(&self, buffer: Buffer, readable: Arc<Readable>) {
        self.keep(buffer, Kept::Readable(readable));
    }

    /// The registration of a buffer for this board alone.
    pub(crate) fn private(&self, buffer: Buffer) -> Option<Arc<Registration>> {
        match self.find(buffer, None) {
            Some(Kept::Private(registration)) => Some(registration),
            _ => None,
        }
    }

    pub(crate) fn keep_private(&self, buffer: Buffer, registration: Arc<Registration>) {
        self.keep(buffer, Kept::Private(registration));
    }
}
