// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of another node, mapped into this process.

use crate::access::Word;
use crate::error::{Error, Object, Result, name_bytes, status_of};
use crate::node::{Inner, Node};
use crate::quiet::{Destination, Scope};
use crate::segment::check;
use crate::sys::{self, Mapping};
use crate::{FULL, READ_WRITE, Secret};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use telegraphos_wire::{NodeId, Rights, Status, uapi};

/// How to import a segment; made by [`Node::import`].
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let ring = node.import(3, "ring").secret(*b"0123456789abcdef").read_only().open()?;
/// assert!(ring.put64(0, 1).is_err(), "only loads were asked for");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is imported before open()"]
pub struct ImportBuilder {
    inner: Arc<Inner>,
    object: Object,
    node: NodeId,
    name: String,
    rights: Rights,
    secret: Secret,
}

impl ImportBuilder {
    pub(crate) fn new(node: &Node, object: Object, id: NodeId, name: &str) -> ImportBuilder {
        ImportBuilder { inner: node.inner.clone(), object, node: id, name: name.into(), rights: FULL, secret: [0; 16] }
    }

    /// The rights wanted, all of which must be granted; [`FULL`] unless told otherwise.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Asks for loads only; a store then is SIGSEGV.
    pub fn read_only(self) -> Self {
        self.rights(Rights::READ)
    }

    /// The segment's secret.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// Asks the other node's board, and maps the segment. The exporting process need not be awake.
    pub fn open(self) -> Result<Remote> {
        if self.rights.contains(Rights::ENQUEUE) {
            return Err(Error::Argument {
                what: "the right to enqueue",
                value: format!("asked for with segment {:?}", self.name),
                expected: "queues to be imported by Queue::import, segments for other rights".into(),
            });
        }
        let (mut remote, answer) = self.ask()?;
        if remote.rights.0 & READ_WRITE.0 != 0 {
            remote.mapping = Some(remote.map(answer.offset, remote.size, remote.rights)?);
        }
        Ok(remote)
    }

    /// Asks the other node's board: the import, not mapped, and what the driver says of it.
    pub(crate) fn ask(self) -> Result<(Remote, uapi::Import)> {
        let mut request = uapi::Import {
            name: name_bytes(&self.name)?,
            secret: self.secret,
            node: u32::from(self.node),
            rights: self.rights.0.into(),
            ..uapi::Import::default()
        };
        sys::import(self.inner.fd(), &mut request).map_err(|errno| {
            let status = match request.status {
                0 => status_of(errno),
                status => Some(Status::from_u16(status as u16)),
            };
            Error::Import { object: self.object, name: self.name.clone(), node: u32::from(self.node), status, errno }
        })?;
        // From here on it is closed if anything fails.
        let remote = Remote {
            inner: self.inner,
            node: self.node,
            label: self.object.of(&self.name, self.node).into(),
            name: self.name,
            handle: request.handle,
            size: request.length,
            rights: self.rights,
            mapping: None,
            arguments: OnceLock::new(),
            sound_at: AtomicU64::new(0),
            borrowed: false,
        };
        if remote.writes() {
            remote.inner.destinations.enter(remote.destination());
        }
        Ok((remote, request))
    }
}

/// What has become of an import.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let ring = node.import(3, "ring").open()?;
/// let state = ring.state()?;
/// if state.dead {
///     println!("{:?}: it is to be imported again", state.error);
/// } else if state.cut {
///     ring.acknowledge()?; // the lost stores stay lost
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Stores outrun the network: the next one waits in a page fault until there is room.
    pub congested: bool,
    /// A store was lost, and later ones are dropped until [`Remote::acknowledge`].
    pub cut: bool,
    /// Gone for good: touching it is SIGBUS. Import it again.
    pub dead: bool,
    /// The first error since it was last acknowledged.
    pub error: Option<Status>,
}

/// A segment of another node, imported; closed on drop, which waits for its outstanding stores.
///
/// [`put`](Remote::put) is one store instruction and returns before the other node has the value, usually much before.
/// [`get`](Remote::get) is one load instruction and waits for the value, behind all earlier puts to that node. A load
/// that cannot be served returns all ones in bounded time, with the error latched: see [`state`](Remote::state).
/// Touching an import that is dead raises SIGBUS, see the crate's documentation.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let ring = node.import(3, "ring").open()?;
/// ring.put_slice(64, &[1u64, 2, 3])?; // the data ...
/// ring.put(0, 1u32)?; // ... then the flag: node 3 sees them in this order
/// let answer: u32 = ring.get(4)?;
/// ring.quiet()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Remote {
    pub(crate) inner: Arc<Inner>,
    node: NodeId,
    name: String,
    /// What to call it.
    pub(crate) label: Arc<str>,
    handle: u32,
    size: u64,
    rights: Rights,
    /// The window; `None` if it may neither be loaded from nor stored to.
    mapping: Option<Mapping>,
    /// The same addresses in the argument aperture, from the first launch on.
    arguments: OnceLock<Mapping>,
    /// The count of the context's errors at which this import was found without one.
    sound_at: AtomicU64,
    /// The import is a replicated segment's window, and ends with that.
    borrowed: bool,
}

macro_rules! sized {
    ($( $put:ident, $get:ident, $type:ty; )*) => { $(
        #[doc = concat!("Stores a `", stringify!($type), "` with one instruction; see [`put`](Remote::put).")]
        #[inline]
        pub fn $put(&self, offset: u64, value: $type) -> Result<()> {
            self.put(offset, value)
        }

        #[doc = concat!("Loads a `", stringify!($type), "` with one instruction; see [`get`](Remote::get).")]
        #[inline]
        pub fn $get(&self, offset: u64) -> Result<$type> {
            self.get(offset)
        }
    )* };
}

impl Remote {
    /// The node it belongs to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What it was imported for.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The driver's handle, which is the number of the import.
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Where the window lies in this process, for programs that load and store themselves: naturally aligned words of
    /// 1, 2, 4 or 8 bytes, by scalar instructions, never by `memcpy`. Valid until the import is dropped. NULL if it was
    /// imported neither for loads nor for stores.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), Mapping::at)
    }

    pub(crate) fn what(&self) -> String {
        self.label.to_string()
    }

    /// For tests of what does not reach the board.
    #[cfg(test)]
    pub(crate) fn without_board(inner: &Arc<Inner>, handle: u32, node: NodeId, rights: Rights) -> Remote {
        let remote = Remote {
            inner: inner.clone(),
            node,
            name: "x".into(),
            label: Object::Segment.of("x", node).into(),
            handle,
            size: 4000,
            rights,
            mapping: Some(Mapping::anonymous(4096)),
            arguments: OnceLock::new(),
            sound_at: AtomicU64::new(0),
            borrowed: false,
        };
        remote.arguments.set(Mapping::anonymous(4096)).unwrap();
        remote
    }

    /// The window of a replicated segment on this node, which closes the import.
    pub(crate) fn of_replicated(
        inner: &Arc<Inner>,
        name: &str,
        label: Arc<str>,
        handle: u32,
        size: u64,
        rights: Rights,
        window: Mapping,
    ) -> Remote {
        Remote {
            inner: inner.clone(),
            node: inner.id,
            name: name.into(),
            label,
            handle,
            size,
            rights,
            mapping: Some(window),
            arguments: OnceLock::new(),
            sound_at: AtomicU64::new(0),
            borrowed: true,
        }
    }

    /// Where the argument aperture would be.
    #[cfg(test)]
    pub(crate) fn set_arguments(&self) {
        self.arguments.set(Mapping::anonymous(4096)).unwrap();
    }

    fn destination(&self) -> Destination {
        match self.rights.contains(Rights::ENQUEUE) {
            true => Destination::Queue(self.handle),
            false => Destination::Segments(self.node),
        }
    }

    fn writes(&self) -> bool {
        self.rights.0 & !Rights::READ.0 != 0
    }

    /// Maps that many bytes of it from an offset of the device.
    pub(crate) fn map(&self, offset: u64, size: u64, rights: Rights) -> Result<Mapping> {
        let failed = |errno| Error::Os { what: format!("mapping {}", self.label), errno };
        let size = usize::try_from(size).map_err(|_| failed(Errno::OVERFLOW))?;
        Mapping::new(self.inner.fd(), offset, size, rights).map_err(failed)
    }

    /// Where the argument aperture of this import lies.
    pub(crate) fn arguments(&self) -> Result<*mut u8> {
        if let Some(mapping) = self.arguments.get() {
            return Ok(mapping.at());
        }
        let mapping = self.map(uapi::mmap_offset(uapi::MMAP_ARGUMENT, self.handle), self.size, Rights::WRITE)?;
        // Of two threads one has been faster, and the other's mapping goes away again.
        Ok(self.arguments.get_or_init(|| mapping).at())
    }

    #[inline(always)]
    fn words<T: Word>(&self, offset: u64, count: usize, right: Rights) -> Result<*mut T> {
        check::<T>(offset, count as u64, self.size, || self.what())?;
        if !self.rights.contains(right) {
            let right = if right == Rights::READ { "load" } else { "store" };
            let remedy = match self.borrowed {
                true => "Replicated::store counts what load waits for",
                false => "import it with that right",
            };
            return Err(self.lacks(right, remedy));
        }
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    #[cold]
    pub(crate) fn lacks(&self, right: &'static str, remedy: &'static str) -> Error {
        Error::Right { what: self.what(), right, remedy }
    }

    /// Stores `value` at `offset` with one instruction. It arrives after all that this thread put there before.
    #[inline]
    pub fn put<T: Word>(&self, offset: u64, value: T) -> Result<()> {
        let at = self.words::<T>(offset, 1, Rights::WRITE)?;
        // SAFETY: `words` checked bounds and alignment, and that the mapping is writable.
        unsafe { T::window_store(at, value) };
        Ok(())
    }

    /// Loads the word at `offset` with one instruction.
    #[inline]
    pub fn get<T: Word>(&self, offset: u64) -> Result<T> {
        let at = self.words::<T>(offset, 1, Rights::READ)?;
        // SAFETY: `words` checked bounds and alignment, and that the mapping is readable.
        Ok(unsafe { T::window_load(at) })
    }

    sized! {
        put8, get8, u8;
        put16, get16, u16;
        put32, get32, u32;
        put64, get64, u64;
    }

    /// Stores `values` from `offset` on, in order, one instruction each. Every word moves at once, the whole does not.
    pub fn put_slice<T: Word>(&self, offset: u64, values: &[T]) -> Result<()> {
        let at = self.words::<T>(offset, values.len(), Rights::WRITE)?;
        for (index, value) in values.iter().enumerate() {
            // SAFETY: `words` checked all of them.
            unsafe { T::window_store(at.wrapping_add(index), *value) };
        }
        Ok(())
    }

    /// Loads words from `offset` on, in order, one instruction each. Every word moves at once, the whole does not.
    pub fn get_slice<T: Word>(&self, offset: u64, values: &mut [T]) -> Result<()> {
        let at = self.words::<T>(offset, values.len(), Rights::READ)?;
        for (index, value) in values.iter_mut().enumerate() {
            // SAFETY: `words` checked all of them.
            *value = unsafe { T::window_load(at.wrapping_add(index)) };
        }
        Ok(())
    }

    /// Returns when every earlier store to this import, and every atomic and copy that names it, has been performed at
    /// its destination and acknowledged (SPEC E19).
    ///
    /// Fails with [`Error::Failed`] while an error is latched: something was lost.
    pub fn quiet(&self) -> Result<()> {
        self.inner.quiet(Scope::Import(self.handle, &|| self.what()), None)
    }

    /// [`Remote::quiet`] that gives up after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.inner.quiet(Scope::Import(self.handle, &|| self.what()), Some(timeout))
    }

    /// What has become of it.
    pub fn state(&self) -> Result<State> {
        self.inner.import_state(self.handle, &|| self.what())
    }

    /// Fails if an error is latched. A look at memory, as long as no import of the context has had one since the last
    /// call.
    pub(crate) fn sound(&self) -> Result<()> {
        // Each error that an import has while it has none raises the count.
        let errors = self.inner.slots.errors();
        if errors != self.sound_at.load(Ordering::Relaxed) {
            let State { cut, dead, error, .. } = self.state()?;
            if cut || dead || error.is_some() {
                return Err(Error::Failed { what: self.what(), status: error.unwrap_or(Status::Cut) });
            }
            self.sound_at.store(errors, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Clears the latched error and goes on after a cut. The lost stores stay lost.
    pub fn acknowledge(&self) -> Result<()> {
        let mut handle = uapi::Handle { handle: self.handle, ..Default::default() };
        sys::acknowledge(self.inner.fd(), &mut handle)
            .map_err(|errno| self.inner.error(&format!("acknowledging {}", self.what()), errno))
    }

    /// Closes the import after its outstanding stores. Dropping does the same, without telling of errors.
    pub fn close(mut self) -> Result<()> {
        self.shut()
    }

    /// Takes its mappings away.
    pub(crate) fn unmap(&mut self) {
        self.mapping = None;
        self.arguments.take();
    }

    fn shut(&mut self) -> Result<()> {
        self.unmap();
        if self.handle == u32::MAX || self.borrowed {
            return Ok(());
        }
        let destination = self.destination();
        let mut handle = uapi::Handle { handle: std::mem::replace(&mut self.handle, u32::MAX), ..Default::default() };
        let closed = sys::unimport(self.inner.fd(), &mut handle);
        if self.writes() {
            self.inner.destinations.leave(destination);
        }
        closed.map_err(|errno| self.inner.error(&format!("closing {}", self.what()), errno))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        match self.shut() {
            // The board has gone, and the import with it.
            Ok(()) | Err(Error::Gone { .. }) => {}
            Err(error) => log::warn!("{error}"),
        }
    }
}

impl Inner {
    pub(crate) fn import_state(&self, handle: u32, what: &dyn Fn() -> String) -> Result<State> {
        let mut state = uapi::ImportState { handle, ..uapi::ImportState::default() };
        sys::state(self.fd(), &mut state)
            .map_err(|errno| self.error(&format!("asking for the state of {}", what()), errno))?;
        let has = |bit: u64| u64::from(state.state) & bit != 0;
        Ok(State {
            congested: has(uapi::STATE_CONGESTED),
            cut: has(uapi::STATE_CUT),
            dead: has(uapi::STATE_DEAD),
            error: Some(Status::from_u16(state.status as u16)).filter(|s| !s.is_ok()),
        })
    }
}
