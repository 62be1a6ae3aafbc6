// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the server tests: a running server, and the library's client and guest; every error panics.
#![allow(dead_code, unreachable_pub)]

pub mod crate_server;
pub mod linked;

use std::ops::{Deref, DerefMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use telegraphos_device::vfio::message::{DmaMap, IrqSet};
use telegraphos_device::{ServeError, Settings};
use telegraphos_device_client::{self as client, Client, EVENT_ENTRIES, EVENTS, Pages};
#[allow(unused_imports, reason = "allocations.rs and the examples use some")]
pub use telegraphos_device_client::{PATIENCE, RAM, RAM_SIZE, Reply, window};
use telegraphos_testkit::eventually;
use telegraphos_wire::admin::{self, Command, Completion};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{Rights, Status, event};

pub const RW: u16 = Rights::READ.0 | Rights::WRITE.0;
/// Guest address of the exported memory.
pub const MEMORY: u64 = RAM + 0x10_0000;

/// The board of node 0 without a fabric, with its socket in a directory of its own.
pub struct Server {
    node: linked::Node,
    _dir: tempfile::TempDir,
}

impl Server {
    pub fn start() -> Server {
        Server::with(Settings::default())
    }

    /// With the test's settings.
    pub fn with(settings: Settings) -> Server {
        let dir = tempfile::tempdir().unwrap();
        Server { node: linked::Node::start(dir.path(), 0, settings), _dir: dir }
    }

    pub fn socket(&self) -> PathBuf {
        self.node.socket.clone()
    }

    /// Stops it and returns its result.
    pub fn stop(self) -> Result<(), ServeError> {
        self.node.stop()
    }
}

/// The library's client; every error fails the test.
pub struct RawClient(Client);

impl Deref for RawClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0
    }
}

impl DerefMut for RawClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

impl AsMut<Client> for RawClient {
    fn as_mut(&mut self) -> &mut Client {
        &mut self.0
    }
}

impl RawClient {
    /// Connected, without version negotiation.
    pub fn connect(path: &Path) -> RawClient {
        RawClient(Client::connect(path).unwrap())
    }

    pub fn new(path: &Path) -> RawClient {
        RawClient(Client::new(path).unwrap())
    }

    pub fn version(&mut self, json: &[u8]) -> Reply {
        self.0.version(json).unwrap()
    }

    pub fn call(&mut self, command: u16, body: &[u8]) -> Reply {
        self.call_with(command, body, &[])
    }

    pub fn call_with(&mut self, command: u16, body: &[u8], fds: &[BorrowedFd<'_>]) -> Reply {
        self.0.call_with(command, body, fds).unwrap()
    }

    pub fn post(&mut self, command: u16, body: &[u8]) {
        self.0.post(command, body).unwrap();
    }

    /// The next reply; `None` at the end of the stream.
    pub fn reply(&mut self) -> Option<Reply> {
        self.0.reply().unwrap()
    }

    pub fn read_raw(&mut self, region: u32, offset: u64, count: u32) -> Reply {
        self.0.read_raw(region, offset, count).unwrap()
    }

    /// Loads up to 8 bytes.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> u64 {
        self.0.read(region, offset, count).unwrap_or_else(|e| panic!("read of {count} at {offset:#x} of {region}: {e}"))
    }

    pub fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
        Client::write_body(region, offset, data)
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.0.write(region, offset, data).unwrap();
    }

    /// A posted write, as QEMU sends a guest's store.
    pub fn store(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.0.store(region, offset, data).unwrap();
    }

    pub fn map(&mut self, map: DmaMap, fd: Option<&OwnedFd>) -> Reply {
        self.0.map(map, fd).unwrap()
    }

    pub fn set_irqs(&mut self, set: IrqSet, fds: &[BorrowedFd<'_>]) -> Reply {
        self.0.set_irqs(set, fds).unwrap()
    }

    pub fn register(&mut self, register: Register) -> u64 {
        self.0.register(register).unwrap()
    }

    pub fn set_register(&mut self, register: Register, value: u64) {
        self.0.set_register(register, value).unwrap();
    }
}

/// The expected register values of a healthy board.
pub fn assert_healthy(path: &Path) {
    let mut client = RawClient::new(path);
    assert_eq!(client.register(Register::Magic), telegraphos_wire::regs::MAGIC);
}

pub fn memfd(size: u64) -> OwnedFd {
    client::memfd(size).unwrap()
}

/// The library's guest; every error fails the test.
pub struct Guest(client::Guest<RawClient>);

impl Deref for Guest {
    type Target = client::Guest<RawClient>;

    fn deref(&self) -> &client::Guest<RawClient> {
        &self.0
    }
}

impl DerefMut for Guest {
    fn deref_mut(&mut self) -> &mut client::Guest<RawClient> {
        &mut self.0
    }
}

impl Guest {
    /// Connects, shares RAM, enables MSI and bus mastering, programs event queue and admin slots.
    pub fn boot(path: &Path) -> Guest {
        Guest(client::Guest::boot(RawClient::new(path)).unwrap())
    }

    /// The driver's probe, also after a reset.
    pub fn program(&mut self) {
        self.0.program().unwrap();
    }

    pub fn peek<const N: usize>(&self, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.read(address, &mut bytes).unwrap();
        bytes
    }

    pub fn peek64(&self, address: u64) -> u64 {
        self.0.load64(address).unwrap()
    }

    pub fn poke(&self, address: u64, bytes: &[u8]) {
        self.0.write(address, bytes).unwrap();
    }

    /// Performs an admin command and waits for its completion.
    pub fn admin(&mut self, command: Command) -> Completion {
        self.0.admin(command).unwrap()
    }

    pub fn admin_ok(&mut self, command: Command) -> Completion {
        self.0.admin_ok(command).unwrap()
    }

    /// Opens context `n`.
    pub fn open_context(&mut self, n: u16) {
        self.0.open_context(n).unwrap();
    }

    /// Grants `pages` export pages at DMA address `address` to all nodes and publishes them.
    pub fn export(&mut self, name: &str, index: u32, pages: u32, address: u64, rights: u16) -> u64 {
        let length = u64::from(pages) << 16;
        let granted = self.0.grant(0, index, pages, address, Rights(rights)).unwrap();
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

    /// Asks until the segment is there: its node may be joining still.
    pub fn find(&mut self, node: u16, name: &str, rights: u16) -> Completion {
        eventually("the segment", || {
            Some(self.lookup(node, name, rights)).filter(|found| found.status == Status::Ok as u32)
        })
    }

    /// Imports a segment once it is there: import and first window slot are both `import`.
    pub fn reach(&mut self, import: u16, node: u16, name: &str, rights: u16) -> Completion {
        let found = self.find(node, name, rights);
        self.import(import, node, &found, rights);
        found
    }

    /// Imports the result of a lookup: import and first window slot are both `import`.
    pub fn import(&mut self, import: u16, node: u16, found: &Completion, rights: u16) {
        let Completion { index: page, count, length, generation, .. } = *found;
        let pages = Pages { node, page, count, length, generation };
        self.0.import(import, &pages, Rights(rights)).unwrap();
    }

    /// The events posted so far (the tests stay below the size of the ring).
    pub fn events(&self) -> Vec<event::Entry> {
        let ring: [u8; 16 * EVENT_ENTRIES as usize] = self.peek(EVENTS);
        let entries = ring.chunks_exact(16).map(bytemuck::pod_read_unaligned::<event::Entry>);
        entries.zip(1u32..).take_while(|(entry, seq)| entry.seq == *seq).map(|(entry, _)| entry).collect()
    }

    /// Waits until every store of context 0 has been performed; returns the status.
    pub fn quiet(&mut self) -> Status {
        self.0.quiet().unwrap()
    }
}

pub fn named(name: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}
