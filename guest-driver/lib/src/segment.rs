// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exported memory: memory of this node that other nodes may access.

use crate::access::Word;
use crate::access_policy::{
    AccessPolicy, FULL, READ_WRITE, Secret, access_options, mode_digits, name_bytes, of_connection,
};
use crate::backoff::Backoff;
use crate::bounds::check;
use crate::context::Context;
use crate::error::{Error, Object, Result};
use crate::handle::Handle;
use crate::local::AsImport;
use crate::node::Node;
use crate::remote::{ImportBuilder, Remote};
use crate::sys::{self, Mapping};
use crate::word_wait::Watchable;
use rustix::io::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use telegraphos_wire::{Rights, uapi};

/// How to export a segment; made by [`Node::export`](crate::Node::export).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let ring = node
///     .export("ring", 64 << 10)
///     .mode(0o604) // other users may load and copy from it
///     .nodes(&[node.id(), 3]) // of node 3 and this one
///     .secret(*b"0123456789abcdef")
///     .create()?;
/// assert_eq!(ring.size(), 64 << 10);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is exported before create()"]
pub struct ExportBuilder {
    context: Arc<Context>,
    name: String,
    size: u64,
    owner: Rights,
    others: Rights,
    access: AccessPolicy,
    group: Option<String>,
    connection: Option<RawFd>,
}

impl Node {
    /// Exports `size` bytes of new, zeroed memory under `name`.
    pub fn export(&self, name: &str, size: u64) -> ExportBuilder {
        ExportBuilder {
            context: self.context.clone(),
            name: name.into(),
            size,
            owner: FULL,
            others: Rights::default(),
            access: AccessPolicy::default(),
            group: None,
            connection: None,
        }
    }
}

impl ExportBuilder {
    access_options! {
        self.access;
        /// Access rights, as the mode of a file: `0o600` (the default) admits processes of the exporter's user id, on
        /// any node; `0o604` lets others load and copy from it; `0o602` store and copy to it; `0o606` allows everyone
        /// all that, and atomics. There are no groups: that digit is 0, or the same as the last.
        mode;
        /// A secret that importers must present; zeros mean none.
        secret;
        /// Admits only these nodes, below 256; without it, every node is admitted. This node must be among them for
        /// [`Segment::remote`], and so for copies.
        nodes;
    }

    /// Rights of processes of the same user id, instead of a mode; [`FULL`](crate::FULL) by default.
    pub fn owner(mut self, rights: Rights) -> Self {
        self.owner = rights;
        self
    }

    /// Rights of all other processes, instead of a mode.
    pub fn others(mut self, rights: Rights) -> Self {
        self.others = rights;
        self
    }

    /// Places the segment in the memory of a trust group, by its name: nodes of the group access it directly, at the
    /// speed of memory, and all others as any segment. Fails unless this node is in that group
    /// ([`Node::trust_group`](crate::Node::trust_group)).
    ///
    /// Within the group rights hold for processes, not for kernels, and an importer learns within some seconds that the
    /// segment is gone. Direct accesses pass earlier stores of other imports that go through the board: where the order
    /// matters between imports, [`quiet`](crate::Node::quiet) comes between.
    pub fn direct(mut self, group: &str) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The segment belongs to the TCP connection of this descriptor, which must be open still when it is created: its
    /// name is up to eight small letters, and only holders of the other end of the connection find it there
    /// ([`ImportBuilder::connection`](crate::ImportBuilder::connection)).
    pub fn connection(mut self, socket: RawFd) -> Self {
        self.connection = Some(socket);
        self
    }

    /// The request to the driver. Fails for arguments that no driver would accept.
    fn request(&self) -> Result<uapi::Export> {
        let (owner, others) = match self.access.mode {
            Some(mode) => rights_of_mode(mode)?,
            None => (self.owner, self.others),
        };
        if self.size == 0 {
            return Err(Error::argument("the size of a segment", 0, "1 byte to the window size per node"));
        }
        let (flags, connection) = of_connection(self.connection);
        Ok(uapi::Export {
            flags,
            connection,
            name: name_bytes(&self.name)?,
            secret: self.access.secret,
            length: self.size,
            nodes: self.access.node_set()?,
            rights_owner: owner.0,
            rights_others: others.0,
            group: self.group.as_deref().map(group_bytes).transpose()?.unwrap_or([0; 64]),
            ..uapi::Export::default()
        })
    }

    /// Allocates the memory, exports it, and maps it into this process.
    pub fn create(self) -> Result<Segment> {
        let mut request = self.request()?;
        usize::try_from(self.size).map_err(|_| {
            Error::argument("the size of a segment", self.size, "what fits this process's address space")
        })?;
        sys::export(self.context.device.fd(), &mut request).map_err(|errno| match (errno, &self.group) {
            (Errno::XDEV, Some(group)) => Error::Outside {
                name: self.name.clone(),
                group: group.clone(),
                own: self.context.trust_group().unwrap_or_default(),
            },
            (errno, _) => Error::Export { name: self.name.clone(), size: self.size, errno },
        })?;
        let label = Object::Segment.of(&self.name, self.context.id);
        // From here on it is withdrawn if anything fails.
        let handle = Handle::new(self.context, request.handle, label, Some((sys::unexport, "withdrawing")));
        Ok(Segment {
            own: OnceLock::new(),
            mapping: handle.map(request.offset, self.size, READ_WRITE)?,
            name: self.name,
            size: self.size,
            rights: Rights(request.rights_owner),
            secret: self.access.secret,
            watchable: Watchable::of(request.page),
            handle,
        })
    }
}

/// The name of a trust group as the driver takes it.
fn group_bytes(name: &str) -> Result<[u8; 64]> {
    name_bytes(name).map_err(|_| {
        let value = format!("\"{}\"", name.escape_default());
        Error::argument("the name of a trust group", value, "1 to 63 printable ASCII characters")
    })
}

/// Rights of the owner and of others.
pub(crate) fn rights_of_mode(mode: u32) -> Result<(Rights, Rights)> {
    let rights = |digit: u32| {
        match digit & 6 {
            0 => Rights::default(),
            4 => Rights(Rights::READ.0 | Rights::DMA.0),
            2 => Rights(Rights::WRITE.0 | Rights::DMA.0),
            // An atomic both loads and stores.
            _ => FULL,
        }
    };
    let (owner, others) = mode_digits("the mode of a segment", mode)?;
    Ok((rights(owner), rights(others)))
}

/// Memory of this node that other nodes may load from and store to; withdrawn on drop.
///
/// The memory is ordinary cached memory. Other nodes change it at any time, so it is accessed by atomic loads and
/// stores.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let ring = node.export("ring", 64 << 10).create()?;
/// while ring.load::<u64>(0)? == 0 {
///     // another node has not stored to its first word yet
///     std::hint::spin_loop();
/// }
/// ring.store(8, 1u64)?;
/// ring.close()?; // no other node can reach it any more
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Segment {
    /// Its import on this node, made at the first use. Closed before the memory is withdrawn.
    own: OnceLock<Box<Remote>>,
    /// Unmapped before the memory is withdrawn.
    mapping: Mapping,
    name: String,
    size: u64,
    /// The rights of processes of this user.
    rights: Rights,
    secret: Secret,
    watchable: Watchable,
    handle: Handle,
}

impl Segment {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The driver's handle.
    pub fn handle(&self) -> u32 {
        self.handle.number
    }

    /// Where the memory lies in this process, for programs that make accesses of their own: atomic ones, since other
    /// nodes change it meanwhile. Valid until the segment is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.at()
    }

    /// This segment as an import of its own node, made at the first call and kept: the local side of copies, and what
    /// the owner's processes use for atomics, because the processor's atomic instructions are not atomic with the
    /// board's. It has the rights that the segment offers to this user ([`FULL`](crate::FULL) without those that
    /// [`ExportBuilder::mode`] or [`ExportBuilder::owner`] leave out). Fails if the segment does not admit this node.
    pub fn remote(&self) -> Result<&Remote> {
        if let Some(remote) = self.own.get() {
            return Ok(remote);
        }
        let context = &self.handle.context;
        let import = ImportBuilder::new(context, Object::Segment, context.id, &self.name);
        let remote = Box::new(import.rights(Rights(self.rights.0 & FULL.0)).secret(self.secret).open()?);
        // If two threads make it at once, one import is kept, and the other is closed.
        Ok(self.own.get_or_init(|| remote))
    }

    #[inline]
    fn word<T: Word>(&self, offset: u64) -> Result<*mut T> {
        check::<T>(offset, 1, self.size, || self.handle.label.to_string())?;
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    /// The word at `offset`, with acquire ordering: what the storing node stored before it is visible too.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.word::<T>(offset)?;
        // SAFETY: `word` checked bounds and alignment; all accesses to the memory are atomic, word by word.
        Ok(unsafe { T::load_acquire(at) })
    }

    /// Loads bytes from `offset` on, a multiple of 8, by words of 64 bits, each of which moves at once.
    /// They need no order: a [`load`](Segment::load) of the word that announces them came before.
    #[inline]
    pub fn load_bytes(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        check::<u64>(offset, bytes.len().div_ceil(8) as u64, self.size, || self.handle.label.to_string())?;
        // It lies within the mapping, so it fits an address.
        let at = self.as_ptr().wrapping_add(offset as usize).cast::<u64>();
        // SAFETY: `check` checked bounds and alignment of all words; all accesses to the memory are atomic, by words.
        let load = |index| unsafe { AtomicU64::from_ptr(at.wrapping_add(index)) }.load(Ordering::Relaxed).to_ne_bytes();
        for (chunk, index) in bytes.chunks_mut(8).zip(0..) {
            match chunk.first_chunk_mut() {
                Some(word) => *word = load(index),
                None => chunk.copy_from_slice(&load(index)[..chunk.len()]),
            }
        }
        Ok(())
    }

    /// Stores a word at `offset`, with release ordering.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        let at = self.word::<T>(offset)?;
        // SAFETY: as in `load`.
        unsafe { T::store_release(at, value) };
        Ok(())
    }

    /// Reads the word at `offset`, and requests an event when it is another one: see [`Watchable::arm`].
    pub(crate) fn arm_word(&self, offset: u64) -> Result<bool> {
        let value = self.load(offset)?;
        Ok(self.watchable.arm(&self.handle.context, offset, value))
    }

    /// Sleeps until a board has changed one of these words, each of which had this value when the caller last looked:
    /// true if one has another value at the return, false after `limit`. Offsets are multiples of 8. A word that has
    /// changed before is noticed at once; a store into a [direct](ExportBuilder::direct) segment that passes no board
    /// is not, and then this sleeps for a millisecond at most. It may return early, as when an event of the context is
    /// for something else. Fails when the board is gone.
    pub fn wait_change(&self, words: &[(u64, u64)], limit: Duration) -> Result<bool> {
        let Context { completions, device, .. } = &*self.handle.context;
        let has_changed = || -> Result<bool> {
            for (offset, seen) in words {
                if self.load::<u64>(*offset)? != *seen {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        // Before the words are armed: an event that another thread takes is noticed.
        let epoch = completions.epoch();
        for (offset, _) in words {
            check::<u64>(*offset, 1, self.size, || self.handle.label.to_string())?;
        }
        let arm = |(offset, seen): &(u64, u64)| self.watchable.arm(&self.handle.context, *offset, *seen);
        if !(completions.is_private(device) && words.iter().all(arm)) {
            std::thread::sleep(limit.min(Duration::from_millis(1)));
        } else if !has_changed()? {
            completions.wait(device, &Backoff::new(Some(limit)), || completions.epoch() != epoch)?;
        }
        has_changed()
    }

    /// Withdraws the name and the memory; returns when no other node can reach it any more. Dropping does the same, and
    /// only logs errors.
    pub fn close(self) -> Result<()> {
        let Segment { own, mapping, handle, .. } = self;
        drop((own, mapping));
        handle.close()
    }
}

impl AsImport for Segment {
    fn local(&self) -> Result<&Remote> {
        self.remote()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_mean_rights() {
        let none = Rights::default();
        let (read, write) = (Rights(Rights::READ.0 | Rights::DMA.0), Rights(Rights::WRITE.0 | Rights::DMA.0));
        assert_eq!(rights_of_mode(0o600).unwrap(), (FULL, none));
        assert_eq!(rights_of_mode(0o604).unwrap(), (FULL, read));
        assert_eq!(rights_of_mode(0o666).unwrap(), (FULL, FULL));
        assert_eq!(rights_of_mode(0o402).unwrap(), (read, write));
        for bad in [0o700, 0o640, 0o1600, 0o601, u32::MAX] {
            let error = rights_of_mode(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:#o}")) && error.contains("expected"), "{error}");
        }
    }
}
