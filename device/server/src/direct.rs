// SPDX-License-Identifier: MIT OR Apache-2.0
//! The direct aperture: memory that the virtual machines of a trust group load from and store to without any board.
//!
//! ```text
//!   GroupMemory   one file: a slice for each member
//!     ├─ Member ── Board          reaches its own slice at direct::ADDRESS, for what is trapped: atomics, copies, ...
//!     └─ Member ── MemoryServer   a second PCI device of the same machine, whose BAR2 is the whole file, mapped by QEMU
//! ```
//!
//! The user who starts the process names a *trust group* and its nodes; by default there is none. Each member's
//! virtual machine gets a *memory device* beside its board. It is a device of its own with a socket of its own, because
//! a region that QEMU may map ends posted writes for the whole device, and the board lives by them. It lists the
//! members and where their slices lie (`telegraphos_wire::direct`); all else is agreed among the members' drivers, in
//! the slices themselves.
//!
//! **Within a group grants do not hold**: a member's kernel can access every slice at any time, and read and write what
//! another one does not export. The group is a statement that its kernels trust each other. Other virtual machines,
//! and this process, are as safe from a member as from any other guest: the file cannot be resized (it is sealed), this
//! process accesses it by atomic operations only, and believes nothing that it finds there.
//!
//! When a virtual machine has gone, its slice is emptied: its memory goes back to the host, and what its driver had
//! noted there, as exporter or as importer, is void for the others.
//!
//! Whenever a member has to look at the memory again, since another one has withdrawn something or has gone, or since
//! accesses are to be observed from now on or no longer, its board posts an event (`Change`). That is for speed: no
//! safety of others depends on what a guest does about it.

use std::hash::{BuildHasher, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use log::{debug, info, warn};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::Errno;
use serde::Deserialize;
use telegraphos_device_core::{Step, StepResult};
use telegraphos_link::bell::Bell;
use telegraphos_link::limit::Limiter;
use telegraphos_link::listener::Listener;
use telegraphos_service::wait::{Places, Readiness, Watched};
use telegraphos_wire::direct::{BAR_MEMORY as MEMORY, BAR_REGISTERS as REGISTERS};
use telegraphos_wire::{NodeId, direct};

use crate::clock::Clock;
use crate::config_space::{self, Builder, ConfigSpace};
use crate::error::{ServeError, system};
use crate::guard::Guard;
use crate::memory::GuestMemory;
use crate::vfio::message::{DmaMap, DmaUnmap, IrqSet};
use crate::vfio::server::{CONFIG_REGION, spread};
use crate::vfio::{Answer, Backend, Connection, Filled, Refused, Session, Token, hang_up};

/// The largest BAR2 of a memory device, in bytes: a processor with 40 address bits has room for it.
pub const MAX_MEMORY: u64 = 64 << 30;
const MIB: u64 = 1 << 20;
/// Bytes of a slice that are emptied in one turn of the loop. The kernel takes about 100 us for each MiB that was used,
/// and all boards of the process wait meanwhile.
const EMPTIED: u64 = MIB;

/// Nodes that trust each other, and the memory that they have in common. On the command line `NAME=NODES:MIB`, such as
/// `lab=0,2-3:64`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrustGroup {
    /// Its name, 1 to 63 printable ASCII characters.
    pub name: String,
    /// Its nodes, up to [`direct::MAX_MEMBERS`].
    pub nodes: Vec<NodeId>,
    /// Memory of each node in MiB. It is taken from the host as it is used.
    pub size_mib: u64,
}

/// Why a trust group cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text is not one.
    #[error("{0:?} is not a trust group: expected NAME=NODES:MIB, such as lab=0,2-3:64")]
    Syntax(String),
    /// A value is out of range.
    #[error("trust group {group:?}: {what}")]
    Refused {
        /// The name of the group.
        group: String,
        /// What is wrong, and what was expected.
        what: String,
    },
}

impl FromStr for TrustGroup {
    type Err = TrustError;

    fn from_str(text: &str) -> Result<TrustGroup, TrustError> {
        let syntax = || TrustError::Syntax(text.to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(syntax)?;
        let (list, size) = rest.rsplit_once(':').ok_or_else(syntax)?;
        let mut nodes = Vec::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<NodeId>().map_err(|_| syntax());
            let (first, last) = (number(first)?, number(last)?);
            if u64::from(last.saturating_sub(first)) >= direct::MAX_MEMBERS || last < first {
                return Err(syntax());
            }
            nodes.extend(first..=last);
        }
        let size_mib = size.parse().map_err(|_| syntax())?;
        Ok(TrustGroup { name: name.to_owned(), nodes, size_mib })
    }
}

impl std::fmt::Display for TrustGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let nodes: Vec<String> = self.nodes.iter().map(NodeId::to_string).collect();
        write!(f, "{}={}:{}", self.name, nodes.join(","), self.size_mib)
    }
}

impl TrustGroup {
    fn refused<T>(&self, what: String) -> Result<T, TrustError> {
        Err(TrustError::Refused { group: self.name.clone(), what })
    }

    /// Bytes of a slice.
    fn slice(&self) -> u64 {
        self.size_mib.saturating_mul(MIB)
    }

    /// Bytes of BAR2: a power of two, as QEMU needs it.
    fn size(&self) -> u64 {
        self.slice().saturating_mul(self.nodes.len() as u64).checked_next_power_of_two().unwrap_or(u64::MAX)
    }

    /// Refuses groups that cannot be, each for itself and together: a node has one memory device.
    pub fn check_all(groups: &[TrustGroup]) -> Result<(), TrustError> {
        for (n, group) in groups.iter().enumerate() {
            group.check()?;
            for other in &groups[..n] {
                if other.name == group.name {
                    return group.refused("there are two of this name".into());
                }
                if let Some(node) = group.nodes.iter().find(|node| other.nodes.contains(node)) {
                    return group.refused(format!("node {node} is in group {:?} already", other.name));
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TrustError> {
        let printable = self.name.bytes().all(|b| (b' '..=b'~').contains(&b));
        if !printable || !(1..64).contains(&self.name.len()) {
            return self.refused("the name must be 1 to 63 printable ASCII characters".into());
        }
        if self.nodes.is_empty() || self.nodes.len() as u64 > direct::MAX_MEMBERS {
            return self.refused(format!("{} nodes, expected 1 to {}", self.nodes.len(), direct::MAX_MEMBERS));
        }
        if let Some(twice) = self.nodes.iter().enumerate().find(|(n, node)| self.nodes[..*n].contains(node)) {
            return self.refused(format!("node {} is listed twice", twice.1));
        }
        if self.size_mib == 0 || self.size() > MAX_MEMORY {
            let (most, nodes) = (MAX_MEMORY / MIB / self.nodes.len() as u64, self.nodes.len());
            return self.refused(format!("{} MiB per node, expected 1 to {most} for {nodes} nodes", self.size_mib));
        }
        Ok(())
    }
}

/// The memory of a trust group.
#[derive(Debug)]
pub struct GroupMemory {
    group: TrustGroup,
    /// As many bytes as BAR2 has.
    file: Arc<OwnedFd>,
    /// A bit for each member whose memory device has a guest.
    present: AtomicU64,
    /// Accesses are to go through the boards.
    observed: AtomicBool,
    /// Of each member, by place.
    changes: Vec<Change>,
}

/// Notifies a board, perhaps of another thread, that the memory of its trust group has changed. Readable until it is
/// taken.
#[derive(Clone, Debug)]
pub(crate) struct Change(Arc<Bell>);

impl Change {
    fn new() -> Result<Change, Errno> {
        Ok(Change(Arc::new(Bell::new()?)))
    }

    fn notify(&self) {
        self.0.raise();
    }

    /// Takes all notifications together. Those that come later are for the next time.
    pub(crate) fn take(&self) {
        self.0.clear();
    }
}

impl AsFd for Change {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }
}

impl GroupMemory {
    /// Makes the memory: a file that cannot be resized, all zeros, of which nothing is allocated yet.
    pub fn create(group: TrustGroup) -> Result<Arc<GroupMemory>, ServeError> {
        let changes = group.nodes.iter().map(|_| Change::new()).collect::<Result<_, _>>();
        let make = || {
            let name = format!("telegraphos-trust-{}", group.name);
            let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            rustix::fs::ftruncate(&file, group.size())?;
            rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        };
        let file = make().map_err(system("cannot make memory for a trust group"))?;
        Ok(Arc::new(GroupMemory {
            group,
            file: Arc::new(file),
            present: AtomicU64::new(0),
            observed: AtomicBool::new(false),
            changes: changes.map_err(system("cannot create an event descriptor"))?,
        }))
    }

    pub fn group(&self) -> &TrustGroup {
        &self.group
    }

    /// Whether what members access of each other is to go through the boards, where faults and captures see it. Their
    /// boards notify their drivers, if that is something else than before.
    pub fn observe(&self, observed: bool) {
        if self.observed.swap(observed, Ordering::Relaxed) != observed {
            self.changes.iter().for_each(Change::notify);
        }
    }

    /// The part of a node in it; `None` if it is not a member.
    pub fn member(self: &Arc<Self>, node: NodeId) -> Option<Member> {
        let place = self.group.nodes.iter().position(|member| *member == node)?;
        // Any number that no other board is likely to have.
        let mut hasher = std::hash::RandomState::new().build_hasher();
        hasher.write_u64(place as u64);
        Some(Member { memory: self.clone(), place, pair: hasher.finish() | 1 })
    }
}

/// The part of a node in its trust group. Its board and its memory device share one.
#[derive(Clone, Debug)]
pub struct Member {
    memory: Arc<GroupMemory>,
    place: usize,
    pair: u64,
}

impl Member {
    /// The number by which the driver finds out that board and memory device belong together. Not 0.
    pub fn pair(&self) -> u64 {
        self.pair
    }

    fn node(&self) -> NodeId {
        self.memory.group.nodes[self.place]
    }

    /// Where this node's slice begins in the file.
    fn offset(&self) -> u64 {
        self.place as u64 * self.memory.group.slice()
    }

    /// Makes this node's slice, and no other, reachable for its board.
    pub(crate) fn attach(&self, memory: &mut GuestMemory) -> Result<(), Errno> {
        let (offset, slice) = (self.offset(), self.memory.group.slice());
        memory.fix(direct::ADDRESS + offset, &self.memory.file, offset, slice)
    }

    /// What tells this node's board that the memory has changed.
    pub(crate) fn change(&self) -> Change {
        self.memory.changes[self.place].clone()
    }

    /// Notifies the boards of all others.
    fn notify_others(&self) {
        let others = self.memory.changes.iter().enumerate().filter(|(place, _)| *place != self.place);
        others.for_each(|(_, change)| change.notify());
    }

    fn set_present(&self, present: bool) {
        let bit = 1 << self.place;
        if present {
            self.memory.present.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.memory.present.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Empties a part of the slice: zeros, without memory behind them. Returns where the next part begins; `None` at
    /// the end of the slice.
    fn empty(&self, from: u64) -> Result<Option<u64>, Errno> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let slice = self.memory.group.slice();
        let part = EMPTIED.min(slice.saturating_sub(from));
        if part > 0 {
            rustix::fs::fallocate(&*self.memory.file, how, self.offset() + from, part)?;
        }
        let next = from + part;
        Ok((next < slice).then_some(next))
    }

    /// The 8 bytes of BAR0 at an offset that is a multiple of 8.
    fn registers(&self, offset: u64) -> u64 {
        let group = &self.memory.group;
        let halves = |low: u64, high: u64| low | high << 32;
        match offset {
            direct::MAGIC => direct::MAGIC_VALUE,
            direct::VERSION => halves(direct::VERSION_VALUE, u64::from(self.node())),
            direct::PAIR => self.pair,
            direct::SLICE_SIZE => group.slice(),
            direct::MEMBERS => halves(group.nodes.len() as u64, self.place as u64),
            direct::PRESENT => self.memory.present.load(Ordering::Relaxed),
            direct::OBSERVED => self.memory.observed.load(Ordering::Relaxed).into(),
            direct::NAME..0x80 => {
                let mut bytes = [0; 8];
                let from = (offset - direct::NAME) as usize;
                let rest = group.name.as_bytes().get(from..).unwrap_or(&[]);
                let count = rest.len().min(8);
                bytes[..count].copy_from_slice(&rest[..count]);
                u64::from_le_bytes(bytes)
            }
            direct::MEMBER_NODES..0x200 => {
                let first = ((offset - direct::MEMBER_NODES) / 4) as usize;
                let node = |n: usize| group.nodes.get(n).copied().map_or(0, u64::from);
                halves(node(first), node(first + 1))
            }
            _ => 0,
        }
    }
}

/// The memory device of a node: a PCI function without interrupts and DMA. What it has to say its board says.
#[derive(Debug)]
pub struct MemoryDevice {
    member: Member,
    config: ConfigSpace,
    /// The whole file, at 0: for accesses that QEMU does not make in its own mapping.
    memory: GuestMemory,
    /// The guest has written CHANGED, and the other members have not been notified.
    changed: bool,
    /// Where the part of the slice begins that a guest that has gone has left, and that is not empty yet.
    left: Option<u64>,
}

impl MemoryDevice {
    /// A device just powered on.
    pub fn new(member: Member) -> Result<MemoryDevice, Errno> {
        let size = member.memory.group.size();
        let mut memory = GuestMemory::default();
        memory.fix(0, &member.memory.file, 0, size)?;
        let space = Builder::memory_device().bar64(REGISTERS, direct::BAR0_SIZE, false).bar64(MEMORY, size, true);
        Ok(MemoryDevice { member, config: space.build(), memory, changed: false, left: None })
    }

    /// Notifies the other members if the guest has said that its slice has changed, however often.
    fn pass_on(&mut self) {
        if std::mem::take(&mut self.changed) {
            self.member.notify_others();
        }
    }

    /// After the client has disconnected. Its slice is emptied from here on, by [`MemoryDevice::empty`].
    fn client_gone(&mut self) {
        self.config.reset();
        self.member.set_present(false);
        self.left = Some(0);
    }

    /// Empties another part of what a guest has left, from the beginning, where its driver's notes for others are. The
    /// others are notified when nothing is left.
    fn empty(&mut self) {
        let Some(from) = self.left else { return };
        self.left = self.member.empty(from).unwrap_or_else(|e| {
            warn!("the memory of this node in trust group {:?} is not emptied: {e}", self.member.memory.group.name);
            None
        });
        if self.left.is_none() {
            self.changed = true;
            self.pass_on();
        }
    }
}

impl Backend for MemoryDevice {
    fn region_size(&self, region: u32) -> u64 {
        match region {
            REGISTERS => direct::BAR0_SIZE,
            MEMORY => self.member.memory.group.size(),
            CONFIG_REGION => config_space::SIZE as u64,
            _ => 0,
        }
    }

    fn region_file(&self, region: u32) -> Option<&Arc<OwnedFd>> {
        (region == MEMORY).then_some(&self.member.memory.file)
    }

    fn vectors(&self, _index: u32) -> u32 {
        0
    }

    fn read(&mut self, _token: Token, region: u32, offset: u64, data: &mut [u8]) -> Answer {
        let size = data.len();
        match region {
            REGISTERS if size <= 8 && offset % size.max(1) as u64 == 0 => {
                let word = self.member.registers(offset & !7);
                spread(word >> (8 * (offset % 8)), data);
            }
            MEMORY => {
                let step = Step::Load { address: offset, size: u8::try_from(size).unwrap_or(0) };
                match self.memory.perform(&step) {
                    StepResult::Loaded(value) => spread(value, data),
                    _ => data.fill(0xff),
                }
            }
            CONFIG_REGION if self.config.read(offset, data).is_ok() => {}
            _ => data.fill(0xff),
        }
        Answer::Now
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        match (region, u8::try_from(data.len())) {
            (MEMORY, Ok(size @ 1..=8)) => {
                let mut bytes = [0; 8];
                bytes[..data.len()].copy_from_slice(data);
                // What is not aligned does not come, and has no effect.
                self.memory.perform(&Step::Store { address: offset, size, data: u64::from_le_bytes(bytes) });
            }
            (REGISTERS, Ok(4)) if offset == direct::CHANGED => self.changed = true,
            // An error is an access beyond the end, which has been checked.
            (CONFIG_REGION, _) => drop(self.config.write(offset, data)),
            _ => {}
        }
    }

    fn dma_map(&mut self, _map: DmaMap, _fd: Option<OwnedFd>) -> Result<(), Refused> {
        // The device needs none of it.
        Ok(())
    }

    fn dma_unmap(&mut self, unmap: DmaUnmap) -> Result<u64, Refused> {
        Ok(unmap.size)
    }

    fn set_irqs(&mut self, set: IrqSet, _data: &[u8], _fds: Vec<OwnedFd>) -> Result<(), Refused> {
        if set.count == 0 {
            return Ok(());
        }
        Refused::invalid(format!("{} interrupts of index {}: the memory device has none", set.count, set.index))
    }

    fn reset(&mut self) {
        self.config.reset();
    }
}

/// The socket of the memory device beside that of the board.
pub fn memory_socket(board: &Path) -> PathBuf {
    let mut path = board.as_os_str().to_owned();
    path.push(".memory");
    path.into()
}

/// Places of its descriptors in a [`WaitSet`](telegraphos_service::wait::WaitSet), and how many there are.
const LISTENER: u32 = 0;
const CLIENT: u32 = 1;
/// Places of one memory device's server.
pub const MEMORY_PLACES: usize = 2;

/// Messages of one turn, at most.
const TURN: u32 = 64;

/// The server of one memory device. Its connection is idle once its guest has booted.
#[derive(Debug)]
pub struct MemoryServer {
    listener: Watched<Listener>,
    places: Places,
    device: MemoryDevice,
    session: Session,
    connection: Option<Watched<Connection>>,
    /// The input buffer may hold whole messages.
    unread: bool,
    guard: Option<Arc<Guard>>,
    limiter: Limiter,
    clock: Clock,
}

impl MemoryServer {
    /// Binds the socket. QEMU may connect from here on; it is served by [`MemoryServer::turn`]. The guard watches its
    /// connection.
    pub fn bind(socket: &Path, member: Member, guard: Option<Arc<Guard>>) -> Result<MemoryServer, ServeError> {
        let device = MemoryDevice::new(member).map_err(system("cannot map the memory of a trust group"))?;
        Ok(MemoryServer {
            listener: Watched::nowhere(Listener::bind(socket, "--socket")?, Readiness::READ),
            places: Places::default(),
            device,
            session: Session::new(),
            connection: None,
            unread: false,
            guard,
            limiter: Limiter::default(),
            clock: Clock::start(),
        })
    }

    /// The memory of its group.
    pub fn memory(&self) -> &Arc<GroupMemory> {
        &self.device.member.memory
    }

    /// The node whose memory device this is.
    pub fn node(&self) -> NodeId {
        self.device.member.node()
    }

    /// The caller of [`MemoryServer::turn`] waits for these places, [`MEMORY_PLACES`] of them. Before the first turn.
    pub fn wait_at(&mut self, places: Places) -> Result<(), ServeError> {
        self.listener.watch_at(&places, LISTENER).map_err(system("cannot wait for a socket"))?;
        self.places = places;
        Ok(())
    }

    /// 0 if a turn is needed without an event.
    pub fn timeout(&self) -> Option<u64> {
        if self.device.left.is_some() {
            return Some(0);
        }
        let room = self.connection.as_ref().is_some_and(|c| !c.output.is_full());
        (self.unread && room).then_some(0)
    }

    /// One turn, after a wait that found this at its places. Never blocks, and is short.
    pub fn turn(&mut self, found: [Readiness; MEMORY_PLACES]) {
        let [listener, client] = [LISTENER, CLIENT].map(|place| found[place as usize]);
        if self.device.left.is_some() {
            self.device.empty();
            // Nothing of it is left for the next guest, which waits in the backlog.
            return;
        }
        if self.connection.is_some() && (self.unread || client.any()) {
            if let Err(why) = self.serve(client.read || client.ended) {
                self.end(&why);
            }
        }
        if listener.read {
            self.accept();
        }
        let Some(connection) = &mut self.connection else { return };
        let until = connection.interest(true);
        if let Err(e) = connection.until(until) {
            self.end(&format!("its connection cannot be watched: {e}"));
        }
    }

    /// Receives once, serves some messages, and sends the replies. `Err` says why the connection is over.
    fn serve(&mut self, readable: bool) -> Result<(), String> {
        let now = self.clock.now();
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let mut closed = None;
        if readable && !self.unread {
            match connection.fill() {
                Ok(Filled::Empty | Filled::Bytes { .. }) => {}
                Ok(Filled::Closed) => closed = Some("it has closed the connection".to_owned()),
                Err(e) => closed = Some(format!("reading from it failed: {e}")),
            }
        }
        let Connection { input, output, .. } = &mut **connection;
        self.unread = false;
        for served in 0.. {
            if output.is_full() || served == TURN {
                self.unread = true;
                break;
            }
            let Some(message) = input.message().map_err(|desync| desync.to_string())? else { break };
            if let Err(Refused { why, errno }) = self.session.handle(message, &mut self.device, output) {
                limited!(self.limiter, "memory message", now => warn
                    "a message to the memory device was refused: {why} ({errno})");
            }
        }
        self.device.member.set_present(self.session.negotiated());
        // Once for all messages, and before the replies to them are sent.
        self.device.pass_on();
        connection.flush().map_err(|e| format!("its replies cannot be sent: {e}"))?;
        closed.map_or(Ok(()), Err)
    }

    fn accept(&mut self) {
        let now = self.clock.now();
        match self.listener.accept() {
            // As at the board: a connection without a completed handshake is replaced.
            Ok(Some(fd)) if !self.session.negotiated() => {
                self.session.end();
                self.connection = None;
                let connection = match self.places.watch(CLIENT, Connection::new(fd), Readiness::READ) {
                    Ok(connection) => connection,
                    Err(e) => return self.untaken(now, e),
                };
                let guarded = self.guard.as_ref().map(|guard| guard.watch_memory(self.node(), connection.as_fd()));
                if let Some(Err(e)) = guarded {
                    limited!(self.limiter, "memory guard", now => warn
                        "if this process is killed, QEMU may abort: the guard does not answer: {e}");
                }
                self.connection = Some(connection);
                self.unread = false;
            }
            Ok(Some(second)) => {
                hang_up(second.as_fd());
                limited!(self.limiter, "second client", now => warn
                    "a second connection to {} was closed: a memory device serves one QEMU at a time",
                    self.listener.path().display());
            }
            Ok(None) => {}
            Err(e) => self.untaken(now, e),
        }
    }

    fn untaken(&mut self, now: u64, e: Errno) {
        limited!(self.limiter, "accept", now => warn
            "a connection to {} could not be taken: {e}", self.listener.path().display());
    }

    /// Ends the session of a client whose connection is lost.
    fn end(&mut self, why: &str) {
        self.connection = None;
        self.unread = false;
        if self.session.negotiated() {
            info!("the memory device's QEMU has gone ({why})");
            self.device.client_gone();
        } else {
            debug!("a connection to the memory device ended before it began: {why}");
        }
        self.session.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(text: &str) -> TrustGroup {
        text.parse().unwrap()
    }

    #[test]
    fn groups_are_read_and_shown() {
        let lab = group("lab=0,2-4:64");
        assert_eq!((lab.name.as_str(), &lab.nodes[..], lab.size_mib), ("lab", &[0, 2, 3, 4][..], 64));
        assert_eq!(group(&lab.to_string()), lab);
        assert_eq!(lab.size(), 256 << 20);
        assert_eq!(group("x=0-2:64").size(), 256 << 20, "a power of two");
        for bad in ["", "lab", "lab=0", "lab=:64", "lab=0,:64", "lab=3-1:64", "lab=0-65535:1", "lab=0:x", "lab=70000:1"]
        {
            assert_eq!(bad.parse::<TrustGroup>(), Err(TrustError::Syntax(bad.to_owned())));
        }
    }

    #[test]
    fn groups_that_cannot_be_are_refused_by_name() {
        let refused = |texts: &[&str], part: &str| {
            let groups: Vec<_> = texts.iter().map(|text| group(text)).collect();
            let error = TrustGroup::check_all(&groups).unwrap_err().to_string();
            let name = &groups[groups.len() - 1].name;
            assert!(error.contains(&format!("trust group {name:?}")) && error.contains(part), "{error}");
        };
        refused(&["a=0:0"], "0 MiB");
        refused(&["a=0-3:16385"], "expected 1 to 16384 for 4 nodes");
        refused(&["a=0:18446744073709551615"], "expected 1 to 65536");
        refused(&["a=0,1,0:1"], "node 0 is listed twice");
        refused(&["a=0-63,64:1"], "65 nodes");
        refused(&["a=0:1", "b=1,0:1"], "node 0 is in group \"a\" already");
        refused(&["a=0:1", "a=1:1"], "two of this name");
        refused(&["=1:1"], "the name");
        TrustGroup::check_all(&[group("a=0,1:1"), group("b=2:65536")]).unwrap();
    }

    fn read(device: &mut MemoryDevice, region: u32, offset: u64, size: usize) -> u64 {
        let mut bytes = [0; 8];
        assert_eq!(device.read(0, region, offset, &mut bytes[..size]), Answer::Now);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn registers_describe_the_group() {
        let memory = GroupMemory::create(group("lab=5,3:2")).unwrap();
        assert!(memory.member(4).is_none());
        let mut device = MemoryDevice::new(memory.member(3).unwrap()).unwrap();
        let pair = device.member.pair();
        for (offset, size, value) in [
            (direct::MAGIC, 8, direct::MAGIC_VALUE),
            (direct::VERSION, 4, direct::VERSION_VALUE),
            (direct::NODE, 4, 3),
            (direct::PAIR, 8, pair),
            (direct::SLICE_SIZE, 8, 2 << 20),
            (direct::MEMBERS, 4, 2),
            (direct::PLACE, 4, 1),
            (direct::PRESENT, 8, 0),
            (direct::OBSERVED, 8, 0),
            (direct::NAME, 8, u64::from_le_bytes(*b"lab\0\0\0\0\0")),
            (direct::NAME + 8, 8, 0),
            (direct::MEMBER_NODES, 4, 5),
            (direct::MEMBER_NODES + 4, 4, 3),
            (direct::MEMBER_NODES + 8, 4, 0),
            (direct::MEMBER_NODES + 2, 4, 0xffff_ffff),
            (direct::BAR0_SIZE - 8, 8, 0),
        ] {
            assert_eq!(read(&mut device, REGISTERS, offset, size), value, "{offset:#x}");
        }
        assert_eq!(device.region_size(MEMORY), 4 << 20);
        assert_eq!(read(&mut device, CONFIG_REGION, 0, 4), 0x0002_7e1e);
    }

    #[test]
    fn all_members_see_the_same_bytes_and_a_board_its_own_slice() {
        let memory = GroupMemory::create(group("lab=0-1:1")).unwrap();
        let mut devices: Vec<_> =
            [0, 1].iter().map(|node| MemoryDevice::new(memory.member(*node).unwrap()).unwrap()).collect();
        devices[0].write(MEMORY, (1 << 20) + 8, &7u64.to_le_bytes());
        devices[0].write(MEMORY, (1 << 20) + 4, &[1; 3]);
        assert_eq!(read(&mut devices[1], MEMORY, (1 << 20) + 8, 8), 7);
        assert_eq!(read(&mut devices[1], MEMORY, (1 << 20) + 4, 4), 0, "no such store");
        let mut board = GuestMemory::default();
        devices[1].member.attach(&mut board).unwrap();
        let load = |at: u64| board.perform(&Step::Load { address: direct::ADDRESS + at, size: 8 });
        assert_eq!(load((1 << 20) + 8), StepResult::Loaded(7));
        assert!(matches!(load(8), StepResult::Failed(_)), "another's slice");
        assert!(matches!(load(2 << 20), StepResult::Failed(_)));
        // What is left of a guest that has gone: nothing, and nothing of others is touched.
        devices[0].write(MEMORY, 16, &[5; 8]);
        devices[1].client_gone();
        devices[1].empty();
        assert!(is_notified(&memory, 0), "of the end of the other one");
        assert_eq!(read(&mut devices[0], MEMORY, (1 << 20) + 8, 8), 0);
        assert_eq!(read(&mut devices[0], MEMORY, 16, 1), 5);
    }

    /// The other boards of the process take turns meanwhile, so what one turn empties is bounded.
    #[test]
    fn what_a_guest_has_left_is_emptied_a_part_in_each_turn() {
        const SLICE: u64 = 64 * MIB;
        let memory = GroupMemory::create(group("lab=0-1:64")).unwrap();
        let device = |node| MemoryDevice::new(memory.member(node).unwrap()).unwrap();
        let (mut one, mut two) = (device(0), device(1));
        for at in (0..2 * SLICE).step_by(4096) {
            one.write(MEMORY, at, &7u64.to_le_bytes());
        }
        let used = || rustix::fs::fstat(&*memory.file).unwrap().st_blocks as u64 * 512;
        assert_eq!(used(), 2 * SLICE, "each page is used");
        one.client_gone();
        assert_eq!((used(), is_notified(&memory, 1)), (2 * SLICE, false), "nothing at once");
        for turn in 1..=SLICE / EMPTIED {
            assert!(one.left.is_some(), "before turn {turn}");
            one.empty();
            assert_eq!(used(), 2 * SLICE - turn * EMPTIED, "after turn {turn}");
            assert_eq!(is_notified(&memory, 1), turn == SLICE / EMPTIED, "when it is empty, after turn {turn}");
        }
        assert_eq!(one.left, None);
        one.empty();
        assert_eq!(used(), SLICE);
        assert_eq!(read(&mut two, MEMORY, 0, 8), 0);
        assert_eq!((read(&mut two, MEMORY, SLICE, 8), read(&mut two, MEMORY, 2 * SLICE - 4096, 8)), (7, 7));
    }

    /// A guest that boots meanwhile gets no page of its predecessor.
    #[test]
    fn the_next_guest_is_served_when_nothing_of_the_last_one_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("memory");
        let memory = GroupMemory::create(group("lab=0:4")).unwrap();
        let mut server = MemoryServer::bind(&socket, memory.member(0).unwrap(), None).unwrap();
        let set = telegraphos_service::wait::WaitSet::new().unwrap();
        server.wait_at(set.places(0)).unwrap();
        server.device.client_gone();
        let _next = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let mut turns = 0;
        while server.connection.is_none() {
            assert_eq!(server.timeout(), (turns < 4).then_some(0), "turn {turns}");
            let mut found = [Readiness::NONE; MEMORY_PLACES];
            set.wait(Some(0), |place, ready| found[place as usize] = ready).unwrap();
            server.turn(found);
            turns += 1;
            assert!(turns <= 5, "the next guest is not served");
        }
        assert_eq!((turns, server.device.left), (5, None));
    }

    /// Whether the board of the member at this place has been notified since the last time.
    fn is_notified(memory: &GroupMemory, place: usize) -> bool {
        rustix::io::read(&memory.changes[place], &mut [0; 8][..]).is_ok()
    }

    #[test]
    fn changes_notify_the_members_that_must_look() {
        let memory = GroupMemory::create(group("lab=0-2:1")).unwrap();
        let mut device = MemoryDevice::new(memory.member(1).unwrap()).unwrap();
        let notified = || [0, 1, 2].map(|place| is_notified(&memory, place));
        // Only this register, as a whole.
        for (offset, size) in
            [(direct::CHANGED, 8), (direct::CHANGED, 2), (direct::CHANGED + 4, 4), (direct::PRESENT, 4)]
        {
            device.write(REGISTERS, offset, &[1; 8][..size]);
            device.pass_on();
            assert_eq!(notified(), [false; 3], "{offset:#x}, {size} bytes");
        }
        // All but the writer, and not before the turn ends; however often it was written.
        (0..1000).for_each(|_| device.write(REGISTERS, direct::CHANGED, &[0; 4]));
        assert_eq!(notified(), [false; 3]);
        device.pass_on();
        assert_eq!(notified(), [true, false, true]);
        device.pass_on();
        assert_eq!(notified(), [false; 3]);
        // All, if it is a change.
        for (observed, change) in [(false, false), (true, true), (true, false), (false, true)] {
            memory.observe(observed);
            assert_eq!(notified(), [change; 3]);
        }
        let member = memory.member(0).unwrap();
        memory.observe(true);
        member.change().take();
        assert_eq!(notified(), [false, true, true]);
        assert_eq!(read(&mut device, REGISTERS, direct::CHANGED, 4), 0);
    }

    #[test]
    fn the_file_cannot_be_resized() {
        let memory = GroupMemory::create(group("lab=0:1")).unwrap();
        assert_eq!(rustix::fs::ftruncate(&*memory.file, 4096), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(&*memory.file, 1 << 30), Err(Errno::PERM));
    }
}
