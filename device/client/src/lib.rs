// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client of a board: the vfio-user side of QEMU and the board's side of a guest's kernel, in miniature. Tests and
//! benchmarks drive real boards with it, without a virtual machine.
//!
//! [`Client`] speaks vfio-user. [`Guest`] does what the driver does: it shares memory, programs the board, and issues
//! admin commands. The board is a process, or a thread of this one.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use telegraphos_device_core::{Step, StepResult};
use telegraphos_wire::admin::{self, Command, Completion, QueueCommand, ReplicaCommand};
use telegraphos_wire::context::{Argument, Launch, Operation};
use telegraphos_wire::packet::AtomicOp;
use telegraphos_wire::queue::{FIRST, HeaderWord, Shape};
use telegraphos_wire::regs::{self, Register};
use telegraphos_wire::{Aperture, NodeId, Rights, Status, UNIT, WindowLayout, context, event};

use telegraphos_device::memory::GuestMemory;
use telegraphos_device::vfio::message::{
    Access, DmaMap, HEADER_LEN, Header, IrqSet, MAX_MESSAGE, command, dma_map, flag, irq_set,
};

/// Time limit for every operation of a board. Generous, since machines may be loaded and a working board never reaches
/// it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// vfio-user region of BAR4, the window.
pub const WINDOW: u32 = 4;
const REGISTERS: u32 = 0;
const CONTEXTS: u32 = 2;
const CONFIG: u32 = 7;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A system call on the socket failed.
    #[error("{what}: {source}")]
    Io { what: &'static str, source: io::Error },
    /// The board's process closed the connection.
    #[error("the board closed the connection")]
    Closed,
    /// The board sent something other than the expected reply.
    #[error("the board answered message {expected} with {found:?}")]
    Reply {
        /// Id of the message that was sent.
        expected: u16,
        /// Header of what was received.
        found: Header,
    },
    /// The board refused a message.
    #[error("the board refused {what}: {}", Errno::from_raw_os_error(*errno))]
    Refused {
        what: &'static str,
        /// errno of the reply.
        errno: i32,
    },
    /// An operation exceeded [`PATIENCE`].
    #[error("{what} did not happen within {:.0} s", PATIENCE.as_secs_f64())]
    Late { what: &'static str },
    #[error("admin command {opcode} failed: {status}")]
    Failed {
        opcode: u32,
        /// Status of the completion.
        status: Status,
    },
    /// A store was not performed.
    #[error("stores are not quiet: {status}")]
    Store {
        /// The status that `quiet` reported.
        status: Status,
    },
    /// An address outside the guest's memory.
    #[error("{address:#x} is outside the guest's memory")]
    Address { address: u64 },
}

type Result<T, E = ClientError> = std::result::Result<T, E>;

/// Wraps the error of a system call, for `map_err`.
fn failed<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ClientError {
    move |source| ClientError::Io { what, source: source.into() }
}

/// Calls `f` until it returns a value, for at most [`PATIENCE`].
pub fn wait_for<T>(what: &'static str, mut f: impl FnMut() -> Option<T>) -> Result<T> {
    /// Shorter waits yield only, so that latencies are not measured in sleeps; longer ones sleep, to leave the
    /// processor free.
    const SHORT: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        if let Some(value) = f() {
            return Ok(value);
        }
        match begun.elapsed() {
            waited if waited < SHORT => std::thread::yield_now(),
            waited if waited < PATIENCE => std::thread::sleep(Duration::from_micros(200)),
            _ => return Err(ClientError::Late { what }),
        }
    }
}

/// The same for what may fail.
fn wait_until<T>(what: &'static str, mut f: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    wait_for(what, || f().transpose())?
}

/// A reply: its header and its body.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The header, [`HEADER_LEN`] bytes of the message.
    pub header: Header,
    /// The bytes that follow the header.
    pub body: Vec<u8>,
}

impl Reply {
    /// The errno of an error reply.
    pub fn errno(&self) -> Option<i32> {
        (self.header.flags & flag::ERROR != 0).then_some(self.header.error as i32)
    }

    /// `Err` for an error reply to `what`.
    pub fn ok(self, what: &'static str) -> Result<Reply> {
        match self.errno() {
            Some(errno) => Err(ClientError::Refused { what, errno }),
            None => Ok(self),
        }
    }
}

/// A vfio-user client that also sends invalid messages, for tests.
#[derive(Debug)]
pub struct Client {
    /// The connection to the board.
    pub stream: UnixStream,
    id: u16,
}

impl Drop for Client {
    /// Ends the connection, and does not only close it: a program that another thread starts has it open, too, until
    /// its `exec`, and meanwhile the board would take no other client.
    fn drop(&mut self) {
        // It fails where the board has ended it already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }
}

impl AsMut<Client> for Client {
    fn as_mut(&mut self) -> &mut Client {
        self
    }
}

impl Client {
    /// Connects without a handshake.
    pub fn connect(path: &Path) -> Result<Client> {
        let stream = UnixStream::connect(path).map_err(failed("cannot connect to the board"))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed("cannot set a timeout"))?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed("cannot set a timeout"))?;
        Ok(Client { stream, id: 100 })
    }

    /// Connects and performs the handshake (VERSION).
    pub fn new(path: &Path) -> Result<Client> {
        let mut client = Client::connect(path)?;
        client.version(br#"{"capabilities":{"max_msg_fds":16,"write_multiple":true}}"#)?.ok("the introduction")?;
        Ok(client)
    }

    /// Sends VERSION with these capabilities, JSON without the final NUL.
    pub fn version(&mut self, json: &[u8]) -> Result<Reply> {
        let mut body = vec![0; 4];
        body.extend_from_slice(json);
        body.push(0);
        self.call_with(command::VERSION, &body, &[])
    }

    /// Encodes the next message.
    pub fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.id = self.id.wrapping_add(1);
        let size = (HEADER_LEN + body.len()) as u32;
        let header = Header { id: self.id, command, size, flags, error: 0 };
        let mut bytes = bytemuck::bytes_of(&header).to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    /// Sends bytes with descriptors; returns how many bytes the socket took.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(Errno::TOOBIG);
        }
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    /// Sends a message with descriptors, and waits for its reply.
    pub fn call_with(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Reply> {
        let bytes = self.message(command, 0, body);
        let expected = self.id;
        let sent = self.send(&bytes, fds).map_err(failed("cannot send to the board"))?;
        // The descriptors were sent with the first byte.
        self.stream.write_all(&bytes[sent..]).map_err(failed("cannot send to the board"))?;
        let reply = self.reply()?.ok_or(ClientError::Closed)?;
        if (reply.header.id, reply.header.command) != (expected, command) {
            return Err(ClientError::Reply { expected, found: reply.header });
        }
        Ok(reply)
    }

    /// Sends a message that requests no reply.
    pub fn post(&mut self, command: u16, body: &[u8]) -> Result<()> {
        let bytes = self.message(command, flag::NO_REPLY, body);
        self.stream.write_all(&bytes).map_err(failed("cannot send to the board"))
    }

    /// Receives the next reply; `None` at the end of the stream.
    pub fn reply(&mut self) -> Result<Option<Reply>> {
        let mut bytes = [0; HEADER_LEN];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            // This includes a reset of the connection, on which QEMU aborts.
            Err(e) => return Err(failed("no reply")(e)),
        }
        let header: Header = bytemuck::pod_read_unaligned(&bytes);
        let size = (header.size as usize).checked_sub(HEADER_LEN).filter(|size| *size <= MAX_MESSAGE);
        let Some(size) = size.filter(|_| header.flags & flag::TYPE == flag::REPLY) else {
            return Err(ClientError::Reply { expected: self.id, found: header });
        };
        let mut body = vec![0; size];
        self.stream.read_exact(&mut body).map_err(failed("no reply"))?;
        Ok(Some(Reply { header, body }))
    }

    /// Loads from a region; an error reply is not an error here.
    pub fn read_raw(&mut self, region: u32, offset: u64, count: u32) -> Result<Reply> {
        self.call_with(command::REGION_READ, bytemuck::bytes_of(&Access { offset, region, count }), &[])
    }

    /// Loads `count` bytes, at most 8.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<u64> {
        let reply = self.read_raw(region, offset, count)?.ok("a load")?;
        let found = reply.header;
        let mut bytes = [0; 8];
        match (reply.body.get(size_of::<Access>()..), bytes.get_mut(..count as usize)) {
            (Some(from), Some(to)) if from.len() == to.len() => to.copy_from_slice(from),
            _ => return Err(ClientError::Reply { expected: self.id, found }),
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Encodes the body of a REGION_WRITE.
    pub fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut body = bytemuck::bytes_of(&Access { offset, region, count: data.len() as u32 }).to_vec();
        body.extend_from_slice(data);
        body
    }

    /// Stores to a region and waits for the reply.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        let body = Client::write_body(region, offset, data);
        self.call_with(command::REGION_WRITE, &body, &[])?.ok("a store").map(drop)
    }

    /// Posts a store, as QEMU does for a guest.
    pub fn store(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<()> {
        self.post(command::REGION_WRITE, &Client::write_body(region, offset, data))
    }

    /// Posts stores of 8 bytes with one send, like a processor that is faster than the board.
    pub fn store_all(&mut self, region: u32, stores: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let mut bytes = Vec::new();
        for (offset, value) in stores {
            let body = Client::write_body(region, offset, &value.to_le_bytes());
            bytes.extend(self.message(command::REGION_WRITE, flag::NO_REPLY, &body));
        }
        self.stream.write_all(&bytes).map_err(failed("cannot send to the board"))
    }

    /// Shares guest memory (DMA_MAP).
    pub fn map(&mut self, map: DmaMap, fd: Option<&OwnedFd>) -> Result<Reply> {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.call_with(command::DMA_MAP, bytemuck::bytes_of(&map), &fds)
    }

    /// Attaches event descriptors to interrupts (DEVICE_SET_IRQS).
    pub fn set_irqs(&mut self, set: IrqSet, fds: &[BorrowedFd<'_>]) -> Result<Reply> {
        self.call_with(command::DEVICE_SET_IRQS, bytemuck::bytes_of(&set), fds)
    }

    /// Loads a register.
    pub fn register(&mut self, register: Register) -> Result<u64> {
        self.read(REGISTERS, register.offset(), register.size().into())
    }

    /// Posts a store to a register.
    pub fn set_register(&mut self, register: Register, value: u64) -> Result<()> {
        let bytes = value.to_le_bytes();
        self.store(REGISTERS, register.offset(), &bytes[..usize::from(register.size()).min(8)])
    }
}

/// DMA address of a [`Guest`]'s memory.
pub const RAM: u64 = 0x10_0000;
/// Bytes of a [`Guest`]'s memory: room for an export as long as a copy can be.
pub const RAM_SIZE: u64 = 20 << 20;
/// DMA address of its event queue.
pub const EVENTS: u64 = RAM;
/// Entries of the event queue.
pub const EVENT_ENTRIES: u32 = 64;
const ADMIN: u64 = RAM + 0x1_0000;
const ADMIN_SLOTS: u32 = 8;
const STATUS_PAGES: u64 = RAM + 0x2_0000;
/// DMA address from which on memory is free for exports.
pub const MEMORY: u64 = RAM + 0x10_0000;

/// Makes an anonymous file of `size` bytes, as QEMU's `memory-backend-memfd` does.
pub fn memfd(size: u64) -> Result<OwnedFd> {
    let failed = failed("cannot make a file for guest memory");
    let fd = rustix::fs::memfd_create("guest-ram", rustix::fs::MemfdFlags::CLOEXEC).map_err(&failed)?;
    rustix::fs::ftruncate(&fd, size).map_err(&failed)?;
    Ok(fd)
}

/// A guest's kernel as its board sees it: guest memory and one process (context 0). `C` is a [`Client`] or a wrapper of
/// one.
#[derive(Debug)]
pub struct Guest<C = Client> {
    /// The connection to the board.
    pub client: C,
    /// Guest memory, [`RAM_SIZE`] bytes from [`RAM`] on.
    pub ram: OwnedFd,
    /// Event descriptor of the board's interrupt.
    pub irq: OwnedFd,
    memory: GuestMemory,
    seq: u32,
    cookie: u64,
    events: u32,
}

/// A notification queue of 8-byte words on a [`Guest`], with one buffer. A full buffer is emptied at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// What senders import, with [`Rights::ENQUEUE`].
    pub pages: Pages,
    address: u64,
    head: HeaderWord,
}

/// Granted pages of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    pub node: NodeId,
    /// First export page.
    pub page: u32,
    /// Number of pages.
    pub count: u32,
    /// Length of the segment in bytes.
    pub length: u64,
    /// Generation of the grant.
    pub generation: u64,
}

impl<C: AsMut<Client>> Guest<C> {
    /// Shares memory, attaches the MSI vector, and programs the board.
    pub fn boot(mut client: C) -> Result<Guest<C>> {
        let ram = memfd(RAM_SIZE)?;
        let flags = dma_map::READ | dma_map::WRITE;
        let map = DmaMap { argsz: size_of::<DmaMap>() as u32, flags, offset: 0, address: RAM, size: RAM_SIZE };
        client.as_mut().map(map, Some(&ram))?.ok("guest memory")?;
        let mut memory = GuestMemory::default();
        let seen = ram.try_clone().map_err(failed("cannot map guest memory"))?;
        memory.map(&map, Some(seen)).map_err(|refused| failed("cannot map guest memory")(refused.errno))?;
        let irq =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .map_err(failed("cannot make an event descriptor"))?;
        let flags = irq_set::DATA_EVENTFD | irq_set::ACTION_TRIGGER;
        let set = IrqSet { argsz: size_of::<IrqSet>() as u32, flags, index: 1, start: 0, count: 1 };
        client.as_mut().set_irqs(set, &[irq.as_fd()])?.ok("an interrupt")?;
        let mut guest = Guest { client, ram, irq, memory, seq: 0, cookie: 0, events: 0 };
        guest.program()?;
        Ok(guest)
    }

    /// Does what the driver does at probe: enables bus mastering, sets up event queue and admin slots. To be called
    /// again after a reset.
    pub fn program(&mut self) -> Result<()> {
        self.events = 0;
        self.write(EVENTS, &[0; size_of::<event::Entry>() * EVENT_ENTRIES as usize])?;
        let client = self.client.as_mut();
        client.write(CONFIG, 4, &6u16.to_le_bytes())?;
        client.set_register(Register::EventBase, EVENTS)?;
        client.set_register(Register::EventSize, EVENT_ENTRIES.into())?;
        client.set_register(Register::AdminBase, ADMIN)?;
        client.set_register(Register::Control, regs::CONTROL_IRQ_ENABLE)
    }

    /// Waits until the link to the fabric is up.
    pub fn join(&mut self) -> Result<()> {
        let client = self.client.as_mut();
        wait_until("joining of the fabric", || {
            Ok((client.register(Register::StatusBits)? & regs::STATUS_LINK_UP != 0).then_some(()))
        })
    }

    /// The 8 bytes at an aligned DMA address, read with one load, as the guest's processor does.
    pub fn load64(&self, address: u64) -> Result<u64> {
        match self.memory.perform(&Step::Load { address, size: 8 }) {
            StepResult::Loaded(value) => Ok(value),
            _ => Err(ClientError::Address { address }),
        }
    }

    /// Reads guest memory.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<()> {
        match address.checked_sub(RAM).map(|offset| rustix::io::pread(&self.ram, &mut *bytes, offset)) {
            Some(Ok(n)) if n == bytes.len() => Ok(()),
            _ => Err(ClientError::Address { address }),
        }
    }

    /// Writes guest memory.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        let end = address.checked_add(bytes.len() as u64).filter(|end| *end <= RAM + RAM_SIZE);
        let written = end.and(address.checked_sub(RAM)).map(|offset| rustix::io::pwrite(&self.ram, bytes, offset));
        match written {
            Some(Ok(n)) if n == bytes.len() => Ok(()),
            _ => Err(ClientError::Address { address }),
        }
    }

    /// Issues an admin command and waits for its completion, of whatever status.
    pub fn admin(&mut self, command: Command) -> Result<Completion> {
        self.seq += 1;
        let seq = self.seq;
        let slot = u64::from(seq % ADMIN_SLOTS);
        let at = ADMIN + slot * admin::BLOCK_SIZE as u64;
        self.write(at, bytemuck::bytes_of(&Command { seq, ..command }))?;
        self.client.as_mut().set_register(Register::AdminDoorbell, slot)?;
        let word = at + admin::COMPLETION_OFFSET as u64;
        wait_until("the completion of an admin command", || Ok((self.load64(word)? as u32 == seq).then_some(())))?;
        let mut bytes = [0; size_of::<Completion>()];
        self.read(word, &mut bytes)?;
        Ok(bytemuck::pod_read_unaligned(&bytes))
    }

    /// Issues an admin command; `Err` if its status is not `Ok`.
    pub fn admin_ok(&mut self, command: Command) -> Result<Completion> {
        let completion = self.admin(command)?;
        match Status::from_u16(completion.status as u16) {
            Status::Ok => Ok(completion),
            status => Err(ClientError::Failed { opcode: command.opcode, status }),
        }
    }

    /// Opens context `n`.
    pub fn open_context(&mut self, n: u16) -> Result<()> {
        let address = STATUS_PAGES + u64::from(n) * context::STATUS_SIZE;
        let open = Command { opcode: admin::CONTEXT_OPEN, context: n, address, ..Command::default() };
        self.admin_ok(open).map(drop)
    }

    /// Grants `count` export pages from `page` on, backed by memory at DMA address `address`, to every node.
    pub fn grant(&mut self, node: NodeId, page: u32, count: u32, address: u64, rights: Rights) -> Result<Pages> {
        let length = u64::from(count) * UNIT;
        let granted = self.admin_ok(Command {
            opcode: admin::GRANT_SET,
            index: page,
            count,
            address,
            length,
            rights: rights.0,
            nodes: [u64::MAX; 4],
            ..Command::default()
        })?;
        Ok(Pages { node, page, count, length, generation: granted.generation })
    }

    /// Imports pages for context 0. Import number and first window slot are both `import`.
    pub fn import(&mut self, import: u16, pages: &Pages, rights: Rights) -> Result<()> {
        self.admin_ok(Command {
            opcode: admin::IMPORT_SET,
            node: pages.node,
            context: 0,
            import,
            rights: rights.0,
            index: u32::from(import),
            count: pages.count,
            page: pages.page,
            generation: pages.generation,
            length: pages.length,
            ..Command::default()
        })
        .map(drop)
    }

    /// Makes export page `page` of this node a copy of `home`, or the home if `home` is this page. Retries while the
    /// home's node is not up.
    pub fn replicate(&mut self, page: u32, mode: u32, home: &Pages) -> Result<()> {
        let set = ReplicaCommand {
            opcode: admin::REPLICA_SET,
            page,
            mode,
            node: home.node.into(),
            home_page: home.page,
            home_generation: home.generation,
            ..ReplicaCommand::default()
        };
        wait_until("joining of a home page", || match self.admin_ok(set.into()) {
            Err(ClientError::Failed { status: Status::NodeDown, .. }) => Ok(None),
            done => done.map(|_| Some(())),
        })
    }

    /// Closes an import. The command completes when none of its requests is outstanding.
    pub fn close_import(&mut self, import: u16) -> Result<()> {
        self.admin_ok(Command { opcode: admin::IMPORT_CLEAR, import, ..Command::default() }).map(drop)
    }

    /// Waits until every store of context 0 has been performed; returns the status.
    pub fn quiet(&mut self) -> Result<Status> {
        let cookie = self.begin_quiet()?;
        wait_until("quiet", || self.done(0, cookie))
    }

    /// Starts a `quiet` of context 0; [`Guest::done`] of slot 0 reports its completion. Returns the cookie.
    pub fn begin_quiet(&mut self) -> Result<u64> {
        self.cookie += 1;
        let word = context::QUIET_ALL << context::COOKIE_BITS | self.cookie;
        self.client.as_mut().store(CONTEXTS, context::QUIET, &word.to_le_bytes())?;
        Ok(self.cookie)
    }

    /// The status of the operation with this cookie in a slot of context 0; `None` while it is in progress.
    pub fn done(&self, slot: u8, cookie: u64) -> Result<Option<Status>> {
        let word = self.load64(STATUS_PAGES + 8 * u64::from(slot))?;
        let matches = word & ((1 << context::COOKIE_BITS) - 1) == cookie;
        Ok(matches.then(|| Status::from_u16((word >> context::COOKIE_BITS) as u16)))
    }

    /// Launches a fetch-and-add on the 8-byte word at `offset` in window slot `window_slot` of `node`, in slot `slot`
    /// (1 to 63; 0 is for [`Guest::quiet`]) of context 0. Returns the cookie for [`Guest::done`]; [`Guest::previous`]
    /// then gives the old value.
    pub fn begin_add(&mut self, slot: u8, node: NodeId, window_slot: u16, offset: u64, operand: u64) -> Result<u64> {
        let operation = Operation::Atomic { op: AtomicOp::Add, size: 8 };
        self.launch(slot, operation, &[(node, window_slot, offset)], (context::OPERAND, operand))
    }

    /// Launches a copy of `length` bytes to the first place from the second, each a node, a window slot and an offset
    /// in it that is a multiple of 8, in slot `slot` of context 0. Returns the cookie for [`Guest::done`].
    pub fn begin_copy(&mut self, slot: u8, places: [(NodeId, u16, u64); 2], length: u64) -> Result<u64> {
        self.launch(slot, Operation::Copy, &places, (context::LENGTH, length))
    }

    /// Launches an operation in a slot of context 0, with these places as arguments and one register besides.
    fn launch(
        &mut self,
        slot: u8,
        operation: Operation,
        places: &[(NodeId, u16, u64)],
        (register, value): (u64, u64),
    ) -> Result<u64> {
        self.cookie += 1;
        let cookie = self.cookie;
        let launch = Launch { operation, notify: false, cookie };
        let registers = context::REGISTERS + context::STRIDE * u64::from(slot);
        let client = self.client.as_mut();
        for (which, (node, window_slot, offset)) in (0..).zip(places) {
            let argument = Argument { context: 0, slot, which, key: 0 }.encode();
            client.store(
                WINDOW,
                aperture(Aperture::Argument, *node, *window_slot, *offset),
                &argument.to_le_bytes(),
            )?;
        }
        client.store(CONTEXTS, registers + register, &value.to_le_bytes())?;
        client.store(CONTEXTS, registers + context::LAUNCH, &launch.encode().to_le_bytes())?;
        Ok(cookie)
    }

    /// The value of the word before the slot's last atomic.
    pub fn previous(&self, slot: u8) -> Result<u64> {
        self.load64(STATUS_PAGES + context::VALUE_OFFSET + 8 * u64::from(slot))
    }

    /// The events since the last call; frees their entries.
    pub fn events(&mut self) -> Result<Vec<event::Entry>> {
        let mut events = Vec::new();
        loop {
            let at = EVENTS + size_of::<event::Entry>() as u64 * u64::from(self.events % EVENT_ENTRIES);
            // The board writes the word with the sequence number last.
            let number = (self.load64(at + 8)? >> 32) as u32;
            if number != self.events.wrapping_add(1) {
                break;
            }
            let mut bytes = [0; size_of::<event::Entry>()];
            self.read(at, &mut bytes)?;
            events.push(bytemuck::pod_read_unaligned(&bytes));
            self.events = number;
        }
        if !events.is_empty() {
            let consumed = self.events;
            self.client.as_mut().set_register(Register::EventConsumer, consumed.into())?;
        }
        Ok(events)
    }

    /// Makes export page `page` a queue with a buffer of `words` 8-byte words at DMA address `address`, for every node.
    pub fn queue(&mut self, node: NodeId, page: u32, words: u16, address: u64) -> Result<Queue> {
        let invalid = ClientError::Failed { opcode: admin::QUEUE_SET, status: Status::Invalid };
        let shape = Shape::new(words.into(), 8).ok_or(invalid)?;
        let head = shape.empty();
        for word in [0, 1] {
            self.write(address + 8 * word, &u64::from(head.encode()).to_le_bytes())?;
        }
        let set = QueueCommand {
            opcode: admin::QUEUE_SET,
            page,
            words: words.into(),
            width: 8,
            address,
            nodes: [u64::MAX; 4],
            ..QueueCommand::default()
        };
        let generation = self.admin_ok(set.into())?.generation;
        Ok(Queue { pages: Pages { node, page, count: 1, length: shape.bytes(), generation }, address, head })
    }

    /// Appends all elements of a queue to `elements`, oldest first, and frees their words. Call [`Guest::events`]
    /// first: `overflowed` says whether one of them reported the queue as full; then the queue is resumed.
    pub fn dequeue(&mut self, queue: &mut Queue, overflowed: bool, elements: &mut Vec<u64>) -> Result<()> {
        let word = self.load64(queue.address)?;
        let broken = ClientError::Failed { opcode: admin::QUEUE_SET, status: Status::QueueHeader };
        let tail = HeaderWord::decode(word as u32).filter(|tail| tail.size == queue.head.size).ok_or(broken)?;
        if queue.head == tail && !overflowed {
            return Ok(());
        }
        while queue.head != tail {
            elements.push(self.load64(queue.address + 8 * u64::from(queue.head.index))?);
            queue.head = queue.head.advanced();
        }
        if overflowed {
            // The board puts the elements that it holds at the first index.
            queue.head.index = FIRST;
        }
        let store = Step::Store { address: queue.address + 8, size: 8, data: queue.head.encode().into() };
        if !matches!(self.memory.perform(&store), StepResult::Stored) {
            return Err(ClientError::Address { address: queue.address });
        }
        if overflowed {
            let resume = Command { opcode: admin::QUEUE_RESUME, index: queue.pages.page, ..Command::default() };
            self.admin_ok(resume)?;
        }
        Ok(())
    }
}

/// Offset of a window address in an aperture of BAR4, with the default layout.
fn aperture(aperture: Aperture, node: NodeId, slot: u16, offset: u64) -> u64 {
    let layout = WindowLayout::default();
    ((aperture as u64) << (layout.offset_bits + layout.node_bits)) + window(node, slot, offset)
}

/// Offset in the window for elements of the queue behind slot `slot` of `node`.
pub fn enqueue_window(node: NodeId, slot: u16) -> u64 {
    aperture(Aperture::Enqueue, node, slot, 0)
}

/// Offset in the window of byte `offset` of slot `slot` of `node`, with the default layout.
pub fn window(node: NodeId, slot: u16, offset: u64) -> u64 {
    (u64::from(node) << WindowLayout::default().offset_bits) + u64::from(slot) * UNIT + offset
}
