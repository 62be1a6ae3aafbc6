// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registrations of buffers that threads have sent long messages from, or received them in, for when they use the
//! buffers again: registering takes longer than most messages do. Memory stays pinned by them; others reach it only
//! while a message is under way ([`crate::grant`]).
//!
//! The driver ends a registration when its memory is unmapped, remapped or discarded, which is asked for here before
//! each use; what is unmapped later is not reached any more either.

use crate::grant::Readable;
use crate::link::lock;
use crate::request::Buffer;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use telegraphos::{Recent, Registration};
use telegraphos_msg_core::Process;

/// Bytes of one buffer, and of all of them. Those of longer ones are registered for each message: users have little
/// memory that they may lock, and it takes a smaller part of the time there.
const MOST: u64 = 512 << 10;
const ALL: u64 = 1 << 20;

/// What is locked is pages.
pub(crate) const PAGE: u64 = 4096;

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

/// By the buffer.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Recent<Range<u64>, Kept>>);

impl Cache {
    /// What is kept of a buffer for one other process, or for this board alone.
    fn find(&self, buffer: Buffer, reader: Option<Process>) -> Option<Kept> {
        let mut entries = lock(&self.0);
        let (address, length) = buffer.range();
        let is_it =
            |at: &Range<u64>, kept: &Kept| at.start == address && at.end - address >= length && kept.reader() == reader;
        let (at, kept) = entries.take(is_it)?;
        if !kept.is_usable() {
            drop(entries);
            // It takes a while to end it.
            drop(kept);
            return None;
        }
        entries.insert(at, kept.clone());
        Some(kept)
    }

    fn keep(&self, buffer: Buffer, kept: Kept) {
        let (address, length) = buffer.range();
        if length > MOST {
            return;
        }
        let mut entries = lock(&self.0);
        entries.insert(address..address + length, kept);
        // Of whole pages.
        let locks = |at: &Range<u64>| at.end.next_multiple_of(PAGE) - at.start / PAGE * PAGE;
        let mut ended = Vec::new();
        while entries.iter().map(|(at, _)| locks(at)).sum::<u64>() > ALL {
            ended.extend(entries.evict());
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
