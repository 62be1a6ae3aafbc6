// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of ours that other nodes may reach.

use crate::access::Word;
use crate::access_policy::{AccessPolicy, mode_digits};
use crate::error::{Error, Object, Result, name_bytes};
use crate::node::{Inner, Node};
use crate::remote::Remote;
use crate::sys::{self, Mapping};
use crate::{FULL, READ_WRITE, Rights, Secret};
use std::sync::{Arc, OnceLock};
use telegraphos_wire::{NodeId, uapi};

/// How to export a segment; made by [`Node::export`].
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
    inner: Arc<Inner>,
    name: String,
    size: u64,
    owner: Rights,
    others: Rights,
    access: AccessPolicy,
}

impl ExportBuilder {
    pub(crate) fn new(node: &Node, name: &str, size: u64) -> ExportBuilder {
        ExportBuilder {
            inner: node.inner.clone(),
            name: name.into(),
            size,
            owner: FULL,
            others: Rights::default(),
            access: AccessPolicy::default(),
        }
    }

    /// Who may do what, as for a file: `0o600` (the default) admits processes of the exporter's user id, on any node;
    /// `0o604` lets others load and copy from it; `0o602` store and copy to it; `0o606` lets everybody do all that, and
    /// atomics. There are no groups: that digit is 0, or the same as the last.
    pub fn mode(mut self, mode: u32) -> Self {
        self.access.mode = Some(mode);
        self
    }

    /// Rights of processes of the same user id, instead of a mode; [`FULL`] unless told otherwise.
    pub fn owner(mut self, rights: Rights) -> Self {
        self.owner = rights;
        self
    }

    /// Rights of all other processes, instead of a mode.
    pub fn others(mut self, rights: Rights) -> Self {
        self.others = rights;
        self
    }

    /// A secret that importers must present; zeros mean none.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.access.secret = secret;
        self
    }

    /// Admits only these nodes, below 256; without it, every node is admitted. This node must be among them for
    /// [`Segment::remote`], and so for copies.
    pub fn nodes(mut self, nodes: &[NodeId]) -> Self {
        self.access.nodes = Some(nodes.to_vec());
        self
    }

    /// All of [`mode`](Self::mode), [`secret`](Self::secret) and [`nodes`](Self::nodes).
    pub(crate) fn access(mut self, access: AccessPolicy) -> Self {
        self.access = access;
        self
    }

    /// The request to the driver.
    fn request(&self) -> Result<uapi::Export> {
        let (owner, others) = match self.access.mode {
            Some(mode) => rights_of_mode(mode)?,
            None => (self.owner, self.others),
        };
        if self.size == 0 {
            return Err(Error::Argument {
                what: "the size of a segment",
                value: "0".into(),
                expected: "1 byte to the window size per node".into(),
            });
        }
        Ok(uapi::Export {
            name: name_bytes(&self.name)?,
            secret: self.access.secret,
            length: self.size,
            nodes: self.access.node_set()?,
            rights_owner: owner.0,
            rights_others: others.0,
            ..uapi::Export::default()
        })
    }

    /// Allocates the memory, exports it, and maps it into this process.
    pub fn create(self) -> Result<Segment> {
        let mut request = self.request()?;
        let size = usize::try_from(self.size).map_err(|_| Error::Argument {
            what: "the size of a segment",
            value: self.size.to_string(),
            expected: "what fits this process's address space".into(),
        })?;
        sys::export(self.inner.fd(), &mut request).map_err(|errno| Error::Export {
            name: self.name.clone(),
            size: self.size,
            errno,
        })?;
        // From here on it is withdrawn if anything fails.
        let mut segment = Segment {
            rights: Rights(request.rights_owner),
            inner: self.inner,
            name: self.name,
            handle: request.handle,
            size: self.size,
            secret: self.access.secret,
            mapping: None,
            own: OnceLock::new(),
        };
        let mapping = Mapping::new(segment.inner.fd(), request.offset, size, READ_WRITE)
            .map_err(|errno| Error::Os { what: format!("mapping {}", segment.what()), errno })?;
        segment.mapping = Some(mapping);
        Ok(segment)
    }
}

/// Rights of the owner and of others.
fn rights_of_mode(mode: u32) -> Result<(Rights, Rights)> {
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

/// Memory of this node that others may load from and store to; withdrawn on drop.
///
/// The memory is ordinary cached memory. Others change it at any time, so it is accessed by atomic loads and stores.
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
/// ring.close()?; // no other node reaches it any more
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Segment {
    inner: Arc<Inner>,
    name: String,
    handle: u32,
    size: u64,
    /// What processes of this user may do with it.
    rights: Rights,
    secret: Secret,
    /// `None` only while it is made and while it is dropped.
    mapping: Option<Mapping>,
    /// Its import on this node, from the first use on.
    own: OnceLock<Box<Remote>>,
}

impl Segment {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The driver's handle.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Where the memory lies in this process, for programs that access it themselves: by atomic accesses, since others
    /// change it meanwhile. Valid until the segment is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), Mapping::at)
    }

    fn what(&self) -> String {
        Object::Segment.of(&self.name, self.inner.id)
    }

    /// This segment as an import of its own node, made at the first call and kept: what copies are given as our side,
    /// and what the owner's processes use for atomics, which the processor's own are not atomic with. It has the rights
    /// that the segment offers to this user ([`FULL`] but for what [`ExportBuilder::mode`] or [`ExportBuilder::owner`]
    /// leave out), and needs the segment to admit this node.
    pub fn remote(&self) -> Result<&Remote> {
        if let Some(remote) = self.own.get() {
            return Ok(remote);
        }
        let node = Node { inner: self.inner.clone() };
        let import = node.import(self.inner.id, &self.name).rights(Rights(self.rights.0 & FULL.0)).secret(self.secret);
        let remote = Box::new(import.open()?);
        // Of two threads one has been faster, and the other's import is closed again.
        Ok(self.own.get_or_init(|| remote))
    }

    #[inline]
    fn word<T: Word>(&self, offset: u64) -> Result<*mut T> {
        check::<T>(offset, 1, self.size, || self.what())?;
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    /// The word at `offset`, with acquire ordering: what the storing node stored before it is visible too.
    #[inline]
    pub fn load<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.word::<T>(offset)?;
        // SAFETY: `word` checked bounds and alignment; all who access the memory do so word by word, atomically.
        Ok(unsafe { T::load_acquire(at) })
    }

    /// Stores a word at `offset`, with release ordering.
    #[inline]
    pub fn store<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        let at = self.word::<T>(offset)?;
        // SAFETY: as in `load`.
        unsafe { T::store_release(at, value) };
        Ok(())
    }

    /// Withdraws the name and the memory; returns when no other node can reach it any more. Dropping does the same,
    /// without telling of errors.
    pub fn close(mut self) -> Result<()> {
        self.withdraw()
    }

    fn withdraw(&mut self) -> Result<()> {
        self.own.take();
        self.mapping = None;
        if self.handle == u32::MAX {
            return Ok(());
        }
        let mut handle = uapi::Handle { handle: std::mem::replace(&mut self.handle, u32::MAX), ..Default::default() };
        sys::unexport(self.inner.fd(), &mut handle)
            .map_err(|errno| self.inner.error(&format!("withdrawing {}", self.what()), errno))
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        match self.withdraw() {
            // The board has gone, and the segment with it.
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}

/// Checks that `count` words from `offset` are aligned and lie within `size` bytes.
#[inline(always)]
pub(crate) fn check<T: Word>(offset: u64, count: u64, size: u64, what: impl Fn() -> String) -> Result<()> {
    let length = count.checked_mul(T::SIZE as u64);
    let inside = length.and_then(|l| offset.checked_add(l)).is_some_and(|end| end <= size);
    if !inside {
        return Err(Error::Bounds { what: what(), offset, length: length.unwrap_or(u64::MAX), size });
    }
    if offset % T::SIZE as u64 != 0 {
        return Err(Error::Misaligned { what: what(), offset, width: T::SIZE });
    }
    Ok(())
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

    #[test]
    fn accesses_are_checked() {
        let what = || "it".to_owned();
        assert!(check::<u64>(0, 1, 8, what).is_ok());
        assert!(check::<u8>(7, 1, 8, what).is_ok());
        assert!(check::<u64>(8, 0, 8, what).is_ok());
        assert!(matches!(check::<u64>(1, 1, 16, what), Err(Error::Misaligned { width: 8, .. })));
        assert!(matches!(check::<u16>(8, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u32>(6, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u64>(u64::MAX - 7, 1, 8, what), Err(Error::Bounds { .. })));
        assert!(matches!(check::<u64>(0, u64::MAX, 8, what), Err(Error::Bounds { .. })));
    }
}
