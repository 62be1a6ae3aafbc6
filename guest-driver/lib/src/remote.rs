// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of another node, mapped into this process.

use crate::access::{Instructions, Word};
use crate::access_policy::{FULL, READ_WRITE, Secret, name_bytes, of_connection};
use crate::bounds::check;
use crate::context::Context;
use crate::destination::Destination;
use crate::error::{Error, Object, Result, latched, status_of};
use crate::handle::Handle;
use crate::quiet::Scope;
use crate::sys::{self, Mapping};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use telegraphos_wire::{NodeId, Rights, Status, uapi};

/// How to import a segment; made by [`Node::import`](crate::Node::import).
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// let ring = node.import(3, "ring").secret(*b"0123456789abcdef").read_only().open()?;
/// assert!(ring.put64(0, 1).is_err(), "only loads were requested");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is imported before open()"]
pub struct ImportBuilder {
    context: Arc<Context>,
    object: Object,
    node: NodeId,
    name: String,
    rights: Rights,
    secret: Secret,
    soft: bool,
    connection: Option<RawFd>,
}

impl ImportBuilder {
    /// An import of the object of that kind and name that node `node` has published.
    pub(crate) fn new(context: &Arc<Context>, object: Object, node: NodeId, name: &str) -> ImportBuilder {
        ImportBuilder {
            context: context.clone(),
            object,
            node,
            name: name.into(),
            rights: FULL,
            secret: [0; 16],
            soft: false,
            connection: None,
        }
    }

    /// The requested rights, all of which must be granted; [`FULL`](crate::FULL) by default.
    pub fn rights(mut self, rights: Rights) -> Self {
        self.rights = rights;
        self
    }

    /// Requests loads only; a store then raises SIGSEGV.
    pub fn read_only(self) -> Self {
        self.rights(Rights::READ)
    }

    /// The segment's secret.
    pub fn secret(mut self, secret: Secret) -> Self {
        self.secret = secret;
        self
    }

    /// An import that raises no SIGBUS when its owner is gone: stores then reach no node, loads return anything, and
    /// launches fail. An access that has waited for room for 5 seconds ends the import. The program reads
    /// [`Remote::state`], or [`Remote::quiet`] fails. For programs that survive the death of their peers; the signal
    /// notifies other programs wherever they do not check.
    pub fn soft(mut self) -> Self {
        self.soft = true;
        self
    }

    /// The name is of what the other end of this TCP connection has exported by its own descriptor
    /// ([`ExportBuilder::connection`](crate::ExportBuilder::connection)).
    pub fn connection(mut self, socket: RawFd) -> Self {
        self.connection = Some(socket);
        self
    }

    /// Requests the import from the other node's board, and maps the segment. The exporting process need not run. Fails
    /// with [`Error::Import`].
    pub fn open(self) -> Result<Remote> {
        if self.rights.contains(Rights::ENQUEUE) {
            return Err(Error::argument(
                "the right to enqueue",
                format!("requested of segment {:?}", self.name),
                "queues to be imported by Queue::import, segments for other rights",
            ));
        }
        let (mut remote, answer) = self.import()?;
        remote.window = answer.offset != 0;
        if remote.window && remote.rights.0 & READ_WRITE.0 != 0 {
            remote.mapping = Some(remote.handle.map(answer.offset, remote.size, remote.rights)?);
        }
        Ok(remote)
    }

    /// Requests the import from the other node's board: the import, not mapped, and the driver's description of it.
    pub(crate) fn import(self) -> Result<(Remote, uapi::Import)> {
        let (flags, connection) = of_connection(self.connection);
        let mut request = uapi::Import {
            connection,
            name: name_bytes(&self.name)?,
            secret: self.secret,
            node: u32::from(self.node),
            rights: self.rights.0.into(),
            flags: flags | if self.soft { uapi::IMPORT_SOFT as u32 } else { 0 },
            ..uapi::Import::default()
        };
        sys::import(self.context.device.fd(), &mut request).map_err(|errno| {
            let status = latched(request.status).or_else(|| status_of(errno));
            Error::Import { object: self.object, name: self.name.clone(), node: u32::from(self.node), status, errno }
        })?;
        let label = self.object.of(&self.name, self.node);
        // From here on it is closed if anything fails.
        let mut handle = Handle::new(self.context, request.handle, label, Some((sys::unimport, "closing")));
        if self.rights.contains(Rights::ENQUEUE) {
            handle.enter(Destination::Queue(request.handle));
        } else if self.rights.0 & !Rights::READ.0 != 0 {
            handle.enter(Destination::Segments(self.node));
        }
        Ok((Remote::new(handle, self.node, &self.name, request.length, self.rights, None), request))
    }
}

/// The state of an import.
///
/// ```no_run
/// # fn main() -> telegraphos::Result<()> {
/// # let node = telegraphos::Node::open()?;
/// # let ring = node.import(3, "ring").open()?;
/// let state = ring.state()?;
/// if state.dead {
///     println!("{:?}: import it again", state.error);
/// } else if state.cut {
///     ring.acknowledge()?; // the lost stores stay lost
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Stores are faster than the network: the next one waits in a page fault until there is room.
    pub congested: bool,
    /// A store was lost, and later ones are dropped until [`Remote::acknowledge`].
    pub cut: bool,
    /// Gone for good: touching it raises SIGBUS, unless it is soft. Import it again.
    pub dead: bool,
    /// Loads and stores are the owner's memory itself: see [`ExportBuilder::direct`](crate::ExportBuilder::direct). It
    /// ends while page access counters count them.
    pub direct: bool,
    /// The first error since it was last acknowledged.
    pub error: Option<Status>,
}

/// A segment of another node, imported; closed on drop, which waits for its outstanding stores.
///
/// [`put`](Remote::put) is one store instruction and returns before the other node has the value, usually long before.
/// [`get`](Remote::get) is one load instruction and waits for the value, behind all earlier puts to that node. A load
/// that cannot be served returns all ones in bounded time, with the error latched: see [`state`](Remote::state).
/// Touching an import that is dead raises SIGBUS, see the crate's documentation, unless it is
/// [soft](ImportBuilder::soft).
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
    /// The window; `None` without the rights to load and to store. Unmapped before the import is closed.
    mapping: Option<Mapping>,
    /// The same addresses in the argument aperture, from the first launch on. Unmapped before the import is closed.
    arguments: OnceLock<Mapping>,
    /// Whether it has addresses in the window.
    window: bool,
    node: NodeId,
    name: String,
    size: u64,
    rights: Rights,
    /// The context's count of errors when this import was last found without one.
    sound_at: AtomicU64,
    /// Of the window of a replicated segment, one that does not end the import: leaving the segment does.
    pub(crate) handle: Handle,
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
    /// The import of that handle, with its window if there is one.
    pub(crate) fn new(
        handle: Handle,
        node: NodeId,
        name: &str,
        size: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Remote {
        let (arguments, sound_at) = (OnceLock::new(), AtomicU64::new(0));
        Remote { mapping, arguments, window: true, node, name: name.into(), size, rights, sound_at, handle }
    }

    /// An import without a window.
    pub(crate) fn windowless(handle: Handle, node: NodeId, name: &str, size: u64, rights: Rights) -> Remote {
        Remote { window: false, ..Remote::new(handle, node, name, size, rights, None) }
    }

    /// Whether it has a window: an import that is longer than the window of its node has none, and is for copies and
    /// atomics only; nor has that of a [`Registration`](crate::Registration).
    pub fn has_window(&self) -> bool {
        self.window
    }

    /// The node it belongs to.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The rights it was imported with.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// The driver's handle, which is the number of the import.
    pub fn handle(&self) -> u32 {
        self.handle.number
    }

    /// Where the window lies in this process, for programs that make loads and stores of their own: naturally aligned
    /// words of 1, 2, 4 or 8 bytes, by scalar instructions, never by `memcpy`. Valid until the import is dropped. NULL
    /// if it was imported neither for loads nor for stores, or has no window.
    pub fn as_ptr(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), Mapping::at)
    }

    /// Its name in messages.
    pub(crate) fn what(&self) -> String {
        self.handle.label.to_string()
    }

    /// For tests of what does not reach the board.
    #[cfg(test)]
    pub(crate) fn without_board(context: &Arc<Context>, handle: u32, node: NodeId, rights: Rights) -> Remote {
        let handle =
            Handle::new(context.clone(), handle, Object::Segment.of("x", node), Some((sys::unimport, "closing")));
        let remote = Remote::new(handle, node, "x", 4000, rights, Some(Mapping::anonymous(4096)));
        remote.set_arguments();
        remote
    }

    /// Memory in place of the argument aperture.
    #[cfg(test)]
    pub(crate) fn set_arguments(&self) {
        self.arguments.set(Mapping::anonymous(4096)).unwrap();
    }

    /// The first byte of this import's argument aperture, which is mapped at the first call.
    pub(crate) fn arguments(&self) -> Result<*mut u8> {
        if let Some(mapping) = self.arguments.get() {
            return Ok(mapping.at());
        }
        let offset = uapi::mmap_offset(uapi::MMAP_ARGUMENT, self.handle());
        let mapping = self.handle.map(offset, self.size, Rights::WRITE)?;
        // If two threads map it at once, one mapping is kept, and the other is unmapped.
        Ok(self.arguments.get_or_init(|| mapping).at())
    }

    #[inline(always)]
    fn words<T: Word>(&self, offset: u64, count: usize, right: Rights) -> Result<*mut T> {
        check::<T>(offset, count as u64, self.size, || self.what())?;
        if !self.rights.contains(right) {
            let right = if right == Rights::READ { "load" } else { "store" };
            let remedy = match self.handle.ends() {
                true => "import it with that right",
                false => "Replicated::store counts what load waits for",
            };
            return Err(self.lacks(right, remedy));
        }
        if self.mapping.is_none() {
            let right = "be accessed by loads and stores";
            return Err(self.lacks(right, "it has no window, being longer than that of its node: copy instead"));
        }
        // `offset` lies within the mapping, so it fits an address.
        Ok(self.as_ptr().wrapping_add(offset as usize).cast())
    }

    /// [`Error::Right`] of this import.
    #[cold]
    pub(crate) fn lacks(&self, right: &'static str, remedy: &'static str) -> Error {
        Error::Right { what: self.what(), right, remedy }
    }

    /// Stores `value` at `offset` with one instruction. It arrives after all earlier puts of this thread to that node.
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

    /// Stores bytes from `offset` on, a multiple of 8, in order, as words of 64 bits, one instruction each. Behind the
    /// last byte the last word has zeros: it must lie in the import as a whole. Every word moves at once, the whole
    /// does not.
    #[inline]
    pub fn put_bytes(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.words::<u64>(offset, bytes.len().div_ceil(8), Rights::WRITE)?;
        let (mut rest, mut index) = (bytes, 0);
        while let Some((word, behind)) = rest.split_first_chunk() {
            // SAFETY: `words` checked all of them.
            unsafe { u64::window_store(at.wrapping_add(index), u64::from_ne_bytes(*word)) };
            (rest, index) = (behind, index + 1);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            // SAFETY: as above: the last word.
            unsafe { u64::window_store(at.wrapping_add(index), u64::from_ne_bytes(word)) };
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
        self.quiet_within(None)
    }

    /// [`Remote::quiet`] that fails after `timeout` with [`Error::Pending`]; it may be called again.
    pub fn quiet_timeout(&self, timeout: Duration) -> Result<()> {
        self.quiet_within(Some(timeout))
    }

    /// [`Remote::quiet`] with a limit, or without (`None`).
    pub(crate) fn quiet_within(&self, limit: Option<Duration>) -> Result<()> {
        self.handle.context.quiet(Scope::Import(self.handle(), &self.handle.label), limit)
    }

    /// Its state. A system call.
    pub fn state(&self) -> Result<State> {
        let mut state = uapi::ImportState { handle: self.handle(), ..uapi::ImportState::default() };
        self.handle.call(sys::state, &mut state, "asking for the state of")?;
        let has = |bit: u64| u64::from(state.state) & bit != 0;
        Ok(State {
            congested: has(uapi::STATE_CONGESTED),
            cut: has(uapi::STATE_CUT),
            dead: has(uapi::STATE_DEAD),
            direct: has(uapi::STATE_DIRECT),
            error: latched(state.status),
        })
    }

    /// Fails with [`Error::Failed`] if an error is latched, or the import is dead. A load from memory, as long as no
    /// import of the context has had an error since the last call; else a system call.
    pub fn check_sound(&self) -> Result<()> {
        // The count rises with the first error of each import, and with the first after it was acknowledged.
        let errors = self.handle.context.slots.errors();
        if errors != self.sound_at.load(Ordering::Relaxed) {
            let State { cut, dead, error, .. } = self.state()?;
            if cut || dead || error.is_some() {
                return Err(Error::Failed { what: self.what(), status: error.unwrap_or(Status::Cut) });
            }
            self.sound_at.store(errors, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Clears the latched error and accepts stores again after a cut. The lost stores stay lost.
    pub fn acknowledge(&self) -> Result<()> {
        self.handle.call(sys::acknowledge, &mut sys::handle(self.handle()), "acknowledging")
    }

    /// Closes the import after its outstanding stores. Dropping does the same, and only logs errors.
    pub fn close(self) -> Result<()> {
        let Remote { mapping, arguments, handle, .. } = self;
        drop((mapping, arguments));
        handle.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_policy::READ_WRITE;

    #[test]
    fn bytes_are_stored_in_order_and_the_last_word_as_a_whole() {
        let remote = Remote::without_board(&Arc::new(Context::without_board()), 4, 3, READ_WRITE);
        for length in 0..=24_usize {
            remote.put_slice(0, &[u64::MAX; 5]).unwrap();
            let bytes: Vec<u8> = (1..=length as u8).collect();
            remote.put_bytes(8, &bytes).unwrap();
            let mut words = [0; 5];
            remote.get_slice::<u64>(0, &mut words).unwrap();
            let found: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let mut expected = [[255; 8].to_vec(), bytes].concat();
            expected.resize(8 + length.next_multiple_of(8), 0);
            expected.resize(40, 255);
            assert_eq!(found, expected, "{length} bytes");
        }
        assert!(matches!(remote.put_bytes(3992, &[0; 9]), Err(Error::Bounds { .. })));
        assert!(matches!(remote.put_bytes(4, &[0; 8]), Err(Error::Misaligned { .. })));
    }
}
