// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of the server share: a running server, a client that can also misbehave, and a guest driver in miniature.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use telegraphos_device::vfio::message::{Access, DmaMap, HEADER_LEN, Header, IrqSet, command, flag};
use telegraphos_device::{Config, HibServer, ServeError, Settings, ShutdownHandle};
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Status, context, event};

/// Long enough for a loaded machine; nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A server in a thread of its own, with its socket in a directory of its own.
pub struct Server {
    pub dir: tempfile::TempDir,
    stop: ShutdownHandle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Server {
    pub fn start() -> Server {
        Server::with(Settings::default())
    }

    /// With settings of the test's own; socket, node and fabric have defaults here.
    pub fn with(settings: Settings) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir, settings);
        let mut server = HibServer::bind(config).unwrap();
        let stop = server.shutdown_handle();
        let thread = std::thread::spawn(move || server.run());
        Server { dir, stop, thread: Some(thread) }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("hib.sock")
    }

    /// Stops it and says how it ended.
    pub fn stop(mut self) -> Result<(), ServeError> {
        self.stop.shutdown();
        self.thread.take().unwrap().join().expect("the server panicked")
    }

    /// Waits until it ends by itself.
    pub fn ended(mut self) -> Result<(), ServeError> {
        self.thread.take().unwrap().join().expect("the server panicked")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.shutdown();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the server panicked").unwrap();
            }
        }
    }
}

pub fn config(dir: &tempfile::TempDir, settings: Settings) -> Config {
    let defaults = Settings {
        socket: Some(dir.path().join("hib.sock")),
        node: Some(0),
        fabric: Some(dir.path().join("no-fabric.sock")),
        ..Settings::default()
    };
    settings.over(defaults).config().unwrap()
}

/// A client that sends what it is told, sensible or not.
pub struct RawClient {
    pub stream: UnixStream,
    next_id: u16,
}

/// A reply: its header and what follows.
#[derive(Debug)]
pub struct Reply {
    pub header: Header,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn errno(&self) -> Option<i32> {
        (self.header.flags & flag::ERROR != 0).then_some(self.header.error as i32)
    }
}

impl RawClient {
    /// Connected, but not introduced.
    pub fn connect(path: &Path) -> RawClient {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        RawClient { stream, next_id: 100 }
    }

    pub fn new(path: &Path) -> RawClient {
        let mut client = RawClient::connect(path);
        let reply = client.version(br#"{"capabilities":{"max_msg_fds":16,"write_multiple":true}}"#);
        assert_eq!(reply.errno(), None, "{reply:?}");
        client
    }

    pub fn version(&mut self, json: &[u8]) -> Reply {
        let mut body = vec![0; 4];
        body.extend_from_slice(json);
        body.push(0);
        self.call(command::VERSION, &body)
    }

    pub fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.next_id = self.next_id.wrapping_add(1);
        let size = (HEADER_LEN + body.len()) as u32;
        let header = Header { id: self.next_id, command, size, flags, error: 0 };
        let mut bytes = bytemuck::bytes_of(&header).to_vec();
        bytes.extend_from_slice(body);
        bytes
    }

    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        }
        rustix::net::sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
    }

    pub fn call(&mut self, command: u16, body: &[u8]) -> Reply {
        self.call_with(command, body, &[])
    }

    pub fn call_with(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        let bytes = self.message(command, 0, body);
        assert_eq!(self.send(&bytes, fds).unwrap(), bytes.len());
        let id = self.next_id;
        let reply = self.reply().expect("the server closed the connection");
        assert_eq!((reply.header.id, reply.header.command), (id, command));
        reply
    }

    pub fn post(&mut self, command: u16, body: &[u8]) {
        let bytes = self.message(command, flag::NO_REPLY, body);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next reply; `None` at the end of the stream.
    pub fn reply(&mut self) -> Option<Reply> {
        let mut bytes = [0; HEADER_LEN];
        match self.stream.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return None,
            // A reset above all: QEMU would abort.
            Err(e) => panic!("no reply: {e}"),
        }
        let header: Header = bytemuck::pod_read_unaligned(&bytes);
        assert_eq!(header.flags & flag::TYPE, flag::REPLY);
        let mut body = vec![0; header.size as usize - HEADER_LEN];
        self.stream.read_exact(&mut body).unwrap();
        Some(Reply { header, body })
    }

    pub fn read_raw(&mut self, region: u32, offset: u64, count: u32) -> Reply {
        self.call(command::REGION_READ, bytemuck::bytes_of(&Access { offset, region, count }))
    }

    /// Loads up to 8 bytes.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> u64 {
        let reply = self.read_raw(region, offset, count);
        assert_eq!(reply.errno(), None, "read of {count} at {offset:#x} of {region}");
        let mut bytes = [0; 8];
        bytes[..count as usize].copy_from_slice(&reply.body[16..]);
        u64::from_le_bytes(bytes)
    }

    pub fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
        let mut body = bytemuck::bytes_of(&Access { offset, region, count: data.len() as u32 }).to_vec();
        body.extend_from_slice(data);
        body
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let reply = self.call(command::REGION_WRITE, &Self::write_body(region, offset, data));
        assert_eq!(reply.errno(), None);
    }

    /// A posted write, as QEMU sends a guest's store.
    pub fn store(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.post(command::REGION_WRITE, &Self::write_body(region, offset, data));
    }

    pub fn map(&mut self, map: DmaMap, fd: Option<&OwnedFd>) -> Reply {
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.call_with(command::DMA_MAP, bytemuck::bytes_of(&map), &fds)
    }

    pub fn set_irqs(&mut self, set: IrqSet, fds: &[BorrowedFd<'_>]) -> Reply {
        self.call_with(command::DEVICE_SET_IRQS, bytemuck::bytes_of(&set), fds)
    }

    pub fn register(&mut self, register: Register) -> u64 {
        self.read(0, register.offset(), register.size().into())
    }

    pub fn set_register(&mut self, register: Register, value: u64) {
        let bytes = value.to_le_bytes();
        self.store(0, register.offset(), &bytes[..register.size().into()]);
    }
}

/// What every register should say of a healthy board.
pub fn assert_healthy(path: &Path) {
    let mut client = RawClient::new(path);
    assert_eq!(client.register(Register::Magic), telegraphos_wire::regs::MAGIC);
}

/// Calls `f` until it gives something.
pub fn wait_for<T>(what: &str, mut f: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    for tries in 0u32.. {
        if let Some(value) = f() {
            return value;
        }
        assert!(Instant::now() < until, "{what} did not happen");
        // What takes a few microseconds is not measured in sleeps, what takes longer does not keep a processor busy.
        if tries < 2000 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    unreachable!()
}

pub fn memfd(size: u64) -> OwnedFd {
    let fd = rustix::fs::memfd_create("guest-ram", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

/// Guest physical address at which the test's guest RAM starts.
pub const RAM: u64 = 0x10_0000;
/// Its size.
pub const RAM_SIZE: u64 = 4 << 20;
const EVENTS: u64 = RAM;
const EVENT_ENTRIES: u32 = 64;
const ADMIN: u64 = RAM + 0x1_0000;
const STATUS_PAGES: u64 = RAM + 0x2_0000;

/// What a guest kernel does with the board, in miniature: over the real socket, with a memfd as RAM.
pub struct Guest {
    pub client: RawClient,
    pub ram: OwnedFd,
    pub irq: OwnedFd,
    seq: u32,
    cookie: u64,
}

impl Guest {
    /// Connects, shares RAM, enables MSI and bus mastering, programs event queue and admin slots.
    pub fn boot(path: &Path) -> Guest {
        let mut client = RawClient::new(path);
        let ram = memfd(RAM_SIZE);
        let map = DmaMap { argsz: 32, flags: 3, offset: 0, address: RAM, size: RAM_SIZE };
        assert_eq!(client.map(map, Some(&ram)).errno(), None);
        let irq = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let set = IrqSet { argsz: 20, flags: 0x24, index: 1, start: 0, count: 1 };
        assert_eq!(client.set_irqs(set, &[irq.as_fd()]).errno(), None);
        let mut guest = Guest { client, ram, irq, seq: 0, cookie: 0 };
        guest.program();
        guest
    }

    /// What the driver does at probe, also after a reset.
    pub fn program(&mut self) {
        let client = &mut self.client;
        client.write(7, 4, &6u16.to_le_bytes());
        client.set_register(Register::EventBase, EVENTS);
        client.set_register(Register::EventSize, EVENT_ENTRIES.into());
        client.set_register(Register::AdminBase, ADMIN);
        client.set_register(Register::Control, telegraphos_wire::regs::CONTROL_IRQ_ENABLE);
    }

    pub fn peek<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        assert_eq!(rustix::io::pread(&self.ram, &mut bytes, address - RAM).unwrap(), N);
        bytes
    }

    pub fn peek64(&self, address: u64) -> u64 {
        u64::from_le_bytes(self.peek(address))
    }

    pub fn poke(&self, address: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.ram, bytes, address - RAM).unwrap(), bytes.len());
    }

    /// Performs an admin command and waits for its completion.
    pub fn admin(&mut self, command: Command) -> Completion {
        self.seq += 1;
        let seq = self.seq;
        let slot = u64::from(seq) % 8;
        let at = ADMIN + slot * admin::BLOCK_SIZE as u64;
        self.poke(at, bytemuck::bytes_of(&Command { seq, ..command }));
        self.client.set_register(Register::AdminDoorbell, slot);
        let word = at + admin::COMPLETION_OFFSET as u64;
        wait_for("the completion of an admin command", || (self.peek64(word) as u32 == seq).then_some(()));
        let completion: Completion = bytemuck::pod_read_unaligned(&self.peek::<64>(word));
        completion
    }

    pub fn admin_ok(&mut self, command: Command) -> Completion {
        let completion = self.admin(command);
        assert_eq!(completion.status, Status::Ok as u32, "{}", Status::from_u16(completion.status as u16));
        completion
    }

    /// Opens context `n`.
    pub fn open_context(&mut self, n: u16) {
        let address = STATUS_PAGES + u64::from(n) * context::STATUS_SIZE;
        self.admin_ok(Command { opcode: admin::CONTEXT_OPEN, context: n, address, ..Command::default() });
    }

    /// Grants `pages` export pages at DMA address `address` to everybody and publishes them.
    pub fn export(&mut self, name: &str, index: u32, pages: u32, address: u64, rights: u16) -> u64 {
        let length = u64::from(pages) << 16;
        let granted = self.admin_ok(Command {
            opcode: admin::GRANT_SET,
            index,
            count: pages,
            address,
            length,
            rights,
            nodes: [u64::MAX; 4],
            ..Command::default()
        });
        self.admin_ok(Command {
            opcode: admin::SEGMENT_PUBLISH,
            index,
            count: pages,
            length,
            generation: granted.generation,
            rights_owner: rights,
            rights_others: rights,
            name: named(name),
            ..Command::default()
        });
        granted.generation
    }

    /// Looks `name` up at `node`.
    pub fn lookup(&mut self, node: u16, name: &str, rights: u16) -> Completion {
        self.admin(Command { opcode: admin::LOOKUP, node, name: named(name), rights, ..Command::default() })
    }

    /// Imports what a lookup found: import and first window slot are both `import`.
    pub fn import(&mut self, import: u16, node: u16, found: &Completion, rights: u16) {
        self.admin_ok(Command {
            opcode: admin::IMPORT_SET,
            node,
            context: 0,
            import,
            rights,
            index: u32::from(import),
            count: found.count,
            page: found.index,
            generation: found.generation,
            length: found.length,
            ..Command::default()
        });
    }

    /// The events posted so far (the tests stay below the size of the ring).
    pub fn events(&self) -> Vec<event::Entry> {
        let ring: [u8; 16 * EVENT_ENTRIES as usize] = self.peek(EVENTS);
        let entries = ring.chunks_exact(16).map(bytemuck::pod_read_unaligned::<event::Entry>);
        entries.zip(1u32..).take_while(|(entry, seq)| entry.seq == *seq).map(|(entry, _)| entry).collect()
    }

    /// Waits until every store of context 0 has been performed; returns the status.
    pub fn quiet(&mut self) -> Status {
        self.cookie += 1;
        let cookie = self.cookie;
        self.client.store(2, context::QUIET, &(context::QUIET_ALL << 48 | cookie).to_le_bytes());
        let word = wait_for("quiet", || {
            let word = self.peek64(STATUS_PAGES);
            (word & ((1 << 48) - 1) == cookie).then_some(word)
        });
        Status::from_u16((word >> 48) as u16)
    }
}

pub fn named(name: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

/// The window address of `offset` bytes into slot `slot` of `node`, with the default layout.
pub fn window(node: u16, slot: u16, offset: u64) -> u64 {
    (u64::from(node) << 26) + (u64::from(slot) << 16) + offset
}
