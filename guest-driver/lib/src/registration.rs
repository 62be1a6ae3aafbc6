// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered memory: memory that the process had before, as an end of copies and for other nodes.

use crate::access_policy::{AccessPolicy, FULL, access_options, name_bytes, of_connection};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::local::AsImport;
use crate::node::Node;
use crate::operation::set_gate;
use crate::remote::Remote;
use crate::segment::rights_of_mode;
use crate::sys;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use telegraphos_wire::{NodeId, Rights, uapi};

/// How to register memory; made by [`Node::register`].
#[derive(Debug)]
#[must_use = "nothing is registered before create()"]
pub struct RegisterBuilder {
    context: Arc<Context>,
    memory: *mut [u8],
    name: Option<String>,
    connection: Option<RawFd>,
    gated: bool,
    access: AccessPolicy,
}

impl Node {
    /// Registers memory of this process, of any alignment and length up to 16 GiB: for copies from it and to it,
    /// without a copy into a [`Segment`](crate::Segment) before, and under a [name](RegisterBuilder::name) for other
    /// nodes.
    ///
    /// It is writable, and anonymous, of huge pages, or of a file in memory. Its pages are pinned, and count towards
    /// RLIMIT_MEMLOCK, until the registration is dropped. A child of the process gets copies of them by `fork`, and the
    /// process keeps them. When memory is unmapped under a registration, or discarded, accesses to it fail, and never
    /// reach other memory: see [`Registration::is_alive`].
    ///
    /// ```no_run
    /// # fn main() -> telegraphos::Result<()> {
    /// # let node = telegraphos::Node::open()?;
    /// let remote = node.import(3, "ring").open()?;
    /// let mut data = vec![7u8; 1 << 20];
    /// // SAFETY: nothing else accesses `data` before the registration is dropped.
    /// let registration = unsafe { node.register(data.as_mut_slice()) }.create()?;
    /// remote.put_block(3, &registration, 17, 60_000)?; // from byte 17 of it
    /// # Ok(()) }
    /// ```
    ///
    /// # Safety
    /// As long as the registration exists, copies to it, and other nodes if it has a name, change the memory at any
    /// time: meanwhile the program has no reference to bytes that may change, and accesses those by atomic loads and
    /// stores. It drops the registration before it uses the memory for something else.
    pub unsafe fn register(&self, memory: *mut [u8]) -> RegisterBuilder {
        let access = AccessPolicy::default();
        RegisterBuilder { context: self.context.clone(), memory, name: None, connection: None, gated: false, access }
    }
}

impl RegisterBuilder {
    /// Exports the memory under this name: other nodes import it as any segment ([`Node::import`]). Words of it are
    /// accessed by loads, stores and atomics if it begins at a multiple of their size. An import that is longer than
    /// the window of its node is for copies and atomics only.
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Importers, to whom it has a name, reach the memory only while its gate is open to their node
    /// ([`Registration::open_gate`]), which it is not at first. So memory can stay registered between two uses, which
    /// takes longer than most of these, and no other node reaches it meanwhile.
    pub fn gated(mut self) -> Self {
        self.gated = true;
        self
    }

    /// The name is of what belongs to the TCP connection of this descriptor, as for
    /// [`ExportBuilder::connection`](crate::ExportBuilder::connection).
    pub fn connection(mut self, socket: RawFd) -> Self {
        self.connection = Some(socket);
        self
    }

    access_options! {
        self.access;
        /// Access rights of importers, as for [`ExportBuilder::mode`](crate::ExportBuilder::mode). This process has
        /// those of its own user, too, and all of them without a name.
        mode;
        /// A secret that importers must present; zeros mean none.
        secret;
        /// Admits only these nodes, below 256; without it, every node is admitted. This node is admitted always.
        nodes;
    }

    /// Pins the memory and shows it to the board.
    pub fn create(self) -> Result<Registration> {
        let (address, length) = (self.memory.cast::<u8>() as u64, self.memory.len() as u64);
        let (flags, connection) = of_connection(self.connection);
        let mut request = uapi::Register { address, length, flags, connection, ..uapi::Register::default() };
        if self.gated {
            request.flags |= uapi::REGISTER_GATED as u32;
        }
        // Before it is registered: what is counted from then on may be its.
        let sound_at = AtomicU64::new(self.context.slots.revoked());
        let mut rights = FULL;
        if let Some(name) = &self.name {
            let (owner, others) = rights_of_mode(self.access.mode())?;
            rights = Rights(owner.0 | others.0);
            request.name = name_bytes(name)?;
            (request.secret, request.nodes) = (self.access.secret, self.access.node_set()?);
            (request.rights_owner, request.rights_others) = (owner.0, others.0);
        }
        sys::register(self.context.device.fd(), &mut request).map_err(|errno| Error::Register {
            address,
            length,
            fault: Some(request.fault).filter(|fault| *fault != 0),
            errno,
        })?;
        let node = self.context.id;
        let context = self.context;
        let label = match &self.name {
            Some(name) => format!("registration {name:?} of node {node}"),
            None => format!("the registration of {length} bytes at {address:#x}"),
        };
        // From here on it is ended if anything fails.
        let handle = Handle::new(context.clone(), request.handle, label.as_str(), Some((sys::unregister, "ending")));
        let import = Handle::new(context, request.import, label.as_str(), None);
        let name = self.name.as_deref().unwrap_or_default();
        let own = Remote::windowless(import, node, name, length, rights);
        Ok(Registration { own, handle, address, length, runs: request.runs, sound_at })
    }
}

/// Memory of this process that is registered; ended on drop. See [`Node::register`].
#[derive(Debug)]
pub struct Registration {
    /// It as an import of this node, which ends with it.
    own: Remote,
    handle: Handle,
    address: u64,
    length: u64,
    runs: u32,
    /// The context's count of notifications when it was last found alive.
    sound_at: AtomicU64,
}

impl Registration {
    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn size(&self) -> u64 {
        self.length
    }

    /// Entries that it takes of the board's table: one for each part that is adjacent in the guest's memory.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// It as an import of this node, for copies and atomics. Offsets count from its first byte.
    pub fn remote(&self) -> &Remote {
        &self.own
    }

    /// Whether it still is the memory at its address: false after that was unmapped, remapped or discarded. Then copies
    /// of it fail, and its pages are no longer pinned. A system call if memory of any registration of this node may
    /// have been since the last one, else a load.
    pub fn is_alive(&self) -> Result<bool> {
        let revoked = self.handle.context.slots.revoked();
        if revoked == self.sound_at.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let mut state = uapi::RegistrationState { handle: self.handle.number, ..uapi::RegistrationState::default() };
        self.handle.call(sys::registration_state, &mut state, "asking for the state of")?;
        if state.dead == 0 {
            self.sound_at.store(revoked, Ordering::Relaxed);
        }
        Ok(state.dead == 0)
    }

    /// Opens the [gate](RegisterBuilder::gated) to importers of a node, one of those that the registration
    /// [admits](RegisterBuilder::nodes), for the first `length` bytes. Fails with [`Status::Busy`](crate::Status::Busy)
    /// while it is open to another node. No system call: a launch, as an atomic is.
    pub fn open_gate(&self, node: NodeId, length: u64) -> Result<()> {
        if length == 0 || length > self.length {
            return Err(Error::argument(
                "the bytes that a gate is opened for",
                length,
                format!("1 to {}", self.length),
            ));
        }
        set_gate(&self.own, node, length)
    }

    /// Closes the gate; returns when no access through it is in flight, and none is performed any more. Importers keep
    /// their imports, by which they reach the memory when the gate is opened to their node again.
    pub fn close_gate(&self) -> Result<()> {
        set_gate(&self.own, self.own.node(), 0)
    }

    /// Ends the registration; returns when nothing can reach the memory by it. Dropping does the same, and only logs
    /// errors.
    pub fn close(self) -> Result<()> {
        let Registration { own, handle, .. } = self;
        drop(own);
        handle.close()
    }
}

impl AsImport for Registration {
    fn local(&self) -> Result<&Remote> {
        Ok(self.remote())
    }
}
