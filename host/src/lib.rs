// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process for a host: its boards and the fabric that joins them, served by one thread.
//!
//! ```text
//!   QEMU ═ HibServer ─┐
//!   QEMU ═ HibServer ─┼─ Host: one poll ─ Rounds (the fabric) ═ HIBs and fabrics of other processes
//!   QEMU ═ HibServer ─┘
//! ```
//!
//! A packet from one guest to another crosses three servers. In processes of their own, each crossing hands over from
//! one thread to another, which costs more than everything else (docs/architecture.md, "Processes"); here the servers
//! take turns, and a packet is on its way without anybody being woken. Boards and fabric are those of the separate
//! processes, with the same settings, sockets, log, control, metrics, captures and faults.
//!
//! What is given up is the isolation of separate processes: a fault of one server ends all. Turns are short, so that no
//! guest can keep the others waiting: a board's turn takes 200 us at most, and the fabric's rounds are bounded, too.

mod cli;

pub use cli::cli_main;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use telegraphos_device::{HibServer, ServeError};
use telegraphos_fabric::{Fabric, FabricError, Rounds};
use telegraphos_service::{logging, wait};

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
    /// More boards than [`MAX_BOARDS`].
    #[error("{0} boards in one process, expected at most {MAX_BOARDS}; start the others as processes of their own")]
    TooMany(usize),
    /// The wait failed.
    #[error("cannot wait for the connections: {0}")]
    Wait(Errno),
}

/// A board and its node.
#[derive(Debug)]
struct Board {
    node: u16,
    server: HibServer,
}

/// The boards and the fabric of one process; see the crate's documentation.
#[allow(missing_debug_implementations, reason = "the fabric's rounds have none")]
pub struct Host {
    fabric: Rounds,
    boards: Vec<Board>,
    /// How long to poll for work before sleeping: as long as the board that wants it longest.
    spin: Duration,
}

impl Host {
    /// A bound fabric, and bound boards with their nodes.
    pub fn new(fabric: Fabric, boards: Vec<(u16, HibServer)>) -> Result<Host, HostError> {
        if boards.len() > MAX_BOARDS {
            return Err(HostError::TooMany(boards.len()));
        }
        let spin = boards.iter().map(|(_, server)| server.spin()).max().map_or(Duration::ZERO, Duration::from_micros);
        let boards = boards.into_iter().map(|(node, server)| Board { node, server }).collect();
        Ok(Host { fabric: Rounds::new(fabric), boards, spin })
    }

    /// Serves until the fabric is shut down ([`Fabric::shutdown_handle`]), or the first failure.
    pub fn run(&mut self) -> Result<(), HostError> {
        while !self.turn()? {}
        Ok(())
    }

    /// Waits until there is something to do; then each board with something to do takes a turn, and the fabric one
    /// round. True if the fabric was shut down.
    fn turn(&mut self) -> Result<bool, HostError> {
        let found = self.wait()?;
        let (boards, fabric) = found.split_at(found.len() - 1);
        let mut served = !fabric[0].is_empty();
        for (board, found) in self.boards.iter_mut().zip(boards.chunks_exact(4)) {
            let found = [found[0], found[1], found[2], found[3]];
            let due = found.iter().any(|events| !events.is_empty()) || board.server.timeout() == Some(0);
            if due {
                served = true;
                logging::of_node(Some(board.node));
                let turned = board.server.turn(found);
                logging::of_node(None);
                turned.map_err(|source| HostError::Board { node: board.node, source })?;
            }
        }
        // What the boards have sent crosses the switch in the same turn.
        let due = served || self.fabric.timeout() == Some(0);
        Ok(due && self.fabric.round(Some(0))?)
    }

    /// Events of each board's four descriptors, then of the fabric's one.
    fn wait(&self) -> Result<Vec<PollFlags>, HostError> {
        let begun = Instant::now();
        while begun.elapsed() < self.spin {
            let found = self.poll(Some(0))?;
            if self.timeout() == Some(0) || found.iter().any(|events| !events.is_empty()) {
                return Ok(found);
            }
            std::hint::spin_loop();
        }
        self.poll(self.timeout())
    }

    /// Microseconds until a turn is needed without an event; `None` if never.
    fn timeout(&self) -> Option<u64> {
        let boards = self.boards.iter().filter_map(|board| board.server.timeout());
        boards.chain(self.fabric.timeout()).min()
    }

    /// One poll of everything, for at most `timeout` microseconds.
    fn poll(&self, timeout: Option<u64>) -> Result<Vec<PollFlags>, HostError> {
        let mut fds: Vec<PollFd<'_>> = self.boards.iter().flat_map(|board| board.server.interests()).collect();
        let fabric = self.fabric.fd();
        fds.push(PollFd::from_borrowed_fd(fabric.as_fd(), PollFlags::IN));
        wait::poll(&mut fds, timeout).map_err(HostError::Wait)?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }
}
