// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process for a host: its boards and the fabric that joins them, served by one thread.
//!
//! ```text
//!   QEMU ═ HibServer ─┐
//!   QEMU ═ HibServer ─┼─ Host: one wait ─ Rounds (the fabric) ═ HIBs and fabrics of other processes
//!   QEMU ═ HibServer ─┘
//! ```
//!
//! A packet from one guest to another crosses three servers. In processes of their own, each crossing hands over from
//! one thread to another, which costs more than everything else (docs/architecture.md, "Processes"); here the servers
//! take turns, and a packet is on its way without anybody being woken. Between board and fabric frames are handed over
//! in memory (`telegraphos_link::MemoryLink`), so that a packet, and the answer to it, usually cross within the turn in
//! which the guest's message was read. Boards and fabric are those of the separate processes, with the same settings,
//! log, control, metrics, captures and faults.
//!
//! Nodes that trust each other can have memory in common, which their guests access without any server
//! (`telegraphos_device::direct`): each of them has a memory device as well, whose server takes turns with the others.
//!
//! What is given up is the isolation of separate processes: a fault of one server ends all. Turns are short, so that no
//! guest can keep the others waiting: a board's turn takes 200 us at most, and the fabric's rounds are bounded, too.

mod cli;

pub use cli::cli_main;

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use telegraphos_device::direct::{MEMORY_PLACES, MemoryServer};
use telegraphos_device::{HibServer, PLACES, ServeError};
use telegraphos_fabric::{Fabric, FabricError, Rounds};
use telegraphos_service::logging;
use telegraphos_service::spin::Spin;
use telegraphos_service::wait::{Readiness, WaitSet, Watched};

/// The most boards of one process: their turns add up to what one of them waits for.
pub const MAX_BOARDS: usize = 64;

/// Why a host process ended.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The fabric failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A board failed.
    #[error("the board of node {node}: {source}")]
    Board {
        /// Its node.
        node: u16,
        /// The reason.
        source: ServeError,
    },
    /// There is no memory for a trust group.
    #[error(transparent)]
    Memory(ServeError),
    /// More boards than [`MAX_BOARDS`].
    #[error("{0} boards in one process, expected at most {MAX_BOARDS}; start the others as processes of their own")]
    TooMany(usize),
    /// The wait failed.
    #[error("cannot wait for the connections: {0}")]
    Wait(Errno),
}

/// How often in one turn of the host what has crossed between boards and fabric is taken further before the sockets are
/// looked at again. A load needs two: to the other board and back.
const PASSES: u32 = 8;

/// A board and its node.
#[derive(Debug)]
struct Board {
    node: u16,
    server: HibServer,
}

impl Board {
    /// A turn, in the log as its node's.
    fn turn(&mut self, found: [Readiness; PLACES]) -> Result<(), HostError> {
        logging::of_node(Some(self.node));
        let turned = self.server.turn(found);
        logging::of_node(None);
        turned.map(|_| ()).map_err(|source| HostError::Board { node: self.node, source })
    }
}

/// What was found at some places, once.
fn take<const N: usize>(found: &mut [Readiness]) -> [Readiness; N] {
    std::array::from_fn(|place| found.get_mut(place).map(std::mem::take).unwrap_or_default())
}

/// The boards and the fabric of one process; see the crate's documentation.
#[allow(missing_debug_implementations, reason = "the fabric's rounds have none")]
pub struct Host {
    fabric: Rounds,
    boards: Vec<Board>,
    memories: Vec<MemoryServer>,
    set: WaitSet,
    /// What the last wait has found, by place: those of each board, then of each memory device, then the fabric's one.
    found: Vec<Readiness>,
    /// Readable when the fabric has something to do.
    _fabric: Watched<OwnedFd>,
    /// [`Rounds::observations`] of which the groups know.
    observed: u64,
}

impl Host {
    /// A bound fabric, and bound boards with their nodes.
    pub fn new(fabric: Fabric, boards: Vec<(u16, HibServer)>) -> Result<Host, HostError> {
        Host::with_memories(fabric, boards, Vec::new())
    }

    /// The same with the memory devices of nodes that are in a trust group.
    pub fn with_memories(
        fabric: Fabric,
        boards: Vec<(u16, HibServer)>,
        memories: Vec<MemoryServer>,
    ) -> Result<Host, HostError> {
        if boards.len() > MAX_BOARDS {
            return Err(HostError::TooMany(boards.len()));
        }
        let (fabric, set) = (Rounds::new(fabric), WaitSet::new().map_err(HostError::Wait)?);
        let mut boards: Vec<_> = boards.into_iter().map(|(node, server)| Board { node, server }).collect();
        let mut memories = memories;
        let mut places = 0;
        let mut next = |count: usize| {
            let base = places;
            places += count;
            set.places(base as u32)
        };
        for Board { node, server } in &mut boards {
            server.join_by(fabric.door());
            let failed = |source| HostError::Board { node: *node, source };
            server.wait_at(next(PLACES)).map_err(failed)?;
        }
        for memory in &mut memories {
            memory.wait_at(next(MEMORY_PLACES)).map_err(HostError::Memory)?;
        }
        let ready = rustix::io::dup(fabric.fd()).map_err(HostError::Wait)?;
        let ready = next(1).watch(0, ready, Readiness::READ).map_err(HostError::Wait)?;
        let found = vec![Readiness::NONE; places];
        let mut host = Host { fabric, boards, memories, set, found, _fabric: ready, observed: 0 };
        host.observe();
        Ok(host)
    }

    /// Serves until the fabric is shut down ([`Fabric::shutdown_handle`]), or the first failure.
    pub fn run(&mut self) -> Result<(), HostError> {
        // As long as the board that wants it longest.
        let mut spin = Spin::new(self.boards.iter().map(|board| board.server.spin()).max().unwrap_or(0));
        loop {
            self.wait(&mut spin)?;
            if self.turn()? {
                return Ok(());
            }
        }
    }

    /// Each board with something to do takes a turn, and the fabric one round; what crosses between them by that is
    /// taken further. True if the fabric was shut down.
    fn turn(&mut self) -> Result<bool, HostError> {
        let (boards, rest) = self.found.split_at_mut(PLACES * self.boards.len());
        let (memories, fabric) = rest.split_at_mut(MEMORY_PLACES * self.memories.len());
        for (board, found) in self.boards.iter_mut().zip(boards.chunks_exact_mut(PLACES)) {
            let found: [Readiness; PLACES] = take(found);
            if found.iter().any(|ready| ready.any()) || board.server.timeout() == Some(0) {
                board.turn(found)?;
            }
        }
        for (memory, found) in self.memories.iter_mut().zip(memories.chunks_exact_mut(MEMORY_PLACES)) {
            let found: [Readiness; MEMORY_PLACES] = take(found);
            if found.iter().any(|ready| ready.any()) || memory.timeout() == Some(0) {
                logging::of_node(Some(memory.node()));
                memory.turn(found);
                logging::of_node(None);
            }
        }
        if std::mem::take(&mut fabric[0]).any() && self.fabric.round(Some(0))? {
            return Ok(true);
        }
        for _ in 0..PASSES {
            let mut crossed = self.fabric.pass();
            for board in self.boards.iter_mut().filter(|board| board.server.needs_attention()) {
                crossed = true;
                board.turn(Default::default())?;
            }
            if !crossed {
                break;
            }
        }
        if self.observed != self.fabric.observations() {
            self.observe();
        }
        Ok(false)
    }

    /// Faults and captures have changed: tells the guests whether they are to see what members of a group access.
    fn observe(&mut self) {
        self.observed = self.fabric.observations();
        for memory in &self.memories {
            let group = memory.memory();
            group.observe(self.fabric.observes(&group.group().nodes));
        }
    }

    /// Until there is something to do.
    fn wait(&mut self, spin: &mut Spin) -> Result<(), HostError> {
        let Host { fabric, boards, memories, set, found, .. } = self;
        // Microseconds until a turn is needed without an event; `None` if never.
        let timeout = || {
            let boards = boards.iter().filter_map(|board| board.server.timeout());
            let memories = memories.iter().filter_map(MemoryServer::timeout);
            boards.chain(memories).chain(fabric.timeout()).min()
        };
        spin.wait(timeout, |timeout| set.wait(timeout, |place, ready| found[place as usize] = ready))
            .map_err(HostError::Wait)
    }
}
