// SPDX-License-Identifier: MIT OR Apache-2.0
//! One process for a host: its boards and the fabric that joins them, served by one thread, or by several.
//!
//! ```text
//!   QEMU ═ HibServer ─┐
//!   QEMU ═ HibServer ─┼─ Host: one wait ─ Rounds (the fabric) ═ HIBs and fabrics of other processes
//!   QEMU ═ HibServer ─┘
//! ```
//!
//! A packet from one guest to another crosses three servers. In processes of their own, each crossing hands over from
//! one thread to another, which costs more than everything else (docs/architecture.md, "Processes"); here the servers
//! take turns, and a packet is on its way without a wake-up. Between board and fabric frames are handed over
//! in memory (`telegraphos_link::MemoryLink`), and between two boards by a ring that the fabric hands out
//! (`telegraphos_link::ring_end`), so that a packet, and the answer to it, usually cross within the turn in which the
//! guest's message was read. Boards and fabric are those of the separate processes, with the same settings,
//! log, control, metrics, captures and faults.
//!
//! Nodes that trust each other can have memory in common, which their guests access without any server
//! (`telegraphos_device::direct`): each of them has a memory device as well, whose server takes turns with the others.
//!
//! With many processors boards can have threads of their own, beside the fabric's ([`Threads`]): then links and rings
//! are between two threads, which wake each other. That adds the hand-overs again which one thread saves (four of them
//! for a load from another node instead of two, though without sockets), so it is of use where what all boards have to
//! do is more than one thread does, or where each loop has a processor on which it can poll.
//!
//! Turns are short, so that no guest can keep the others waiting: a board's turn takes 200 us at most, and the fabric's
//! rounds are bounded, too. What a process has once (mappings, addresses) is divided among the boards
//! (`telegraphos_device::memory::Budget`).
//!
//! A board ends alone if the fabric refuses it, if a system call that it needs fails, or if its code panics: its QEMU
//! sees the end of the connection, as if the board's own process had ended, its node is down, and the others continue.
//! The process ends with the last of its boards, or with the fabric, and then with the first failure as its own. Only
//! separate processes isolate what ends a process: memory that runs out, a fault of the processor (SIGSEGV, SIGBUS), an
//! abort, and a loop without end.

mod cli;
mod serving;

pub use cli::{cli_main, command_line};

use std::sync::Arc;

use rustix::io::Errno;
use telegraphos_device::direct::MemoryServer;
use telegraphos_device::memory::Budget;
use telegraphos_device::{HibServer, ServeError};
use telegraphos_fabric::{Fabric, FabricError, Rounds};

use telegraphos_service::settings::Given;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::spin;

use serving::{Board, Loop, Running};

/// The most boards of one process: their turns add up to what one of them waits for.
pub const MAX_BOARDS: usize = 64;

/// Why a host process ended.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("the board of node {node}: {source}")]
    Board { node: u16, source: ServeError },
    /// The code of a board, or of its memory device, has panicked.
    #[error("the board of node {node} has panicked: {why}")]
    Panic { node: u16, why: String },
    /// There is no memory for a trust group.
    #[error(transparent)]
    Memory(ServeError),
    /// More boards than [`MAX_BOARDS`].
    #[error("{0} boards in one process, expected at most {MAX_BOARDS}; start the others as processes of their own")]
    TooMany(usize),
    #[error("cannot wait for the connections: {0}")]
    Wait(Errno),
}

/// How many threads serve a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(try_from = "Given")]
pub enum Threads {
    /// One, unless there are processors for all guests, all boards and the fabric: then one for each board, and the
    /// fabric's.
    #[default]
    Auto,
    /// So many: the fabric's alone, or that and others among which the boards are divided.
    Fixed(usize),
}

impl Threads {
    /// How many, for so many boards on so many processors: 1, or at least 2 and at most one more than boards.
    pub fn count(self, boards: usize, processors: usize) -> usize {
        match self {
            Threads::Fixed(count) => count.clamp(1, boards + 1),
            Threads::Auto if boards > 1 && processors > 2 * boards => boards + 1,
            Threads::Auto => 1,
        }
    }
}

impl TryFrom<Given> for Threads {
    type Error = String;

    fn try_from(given: Given) -> Result<Threads, String> {
        given.parse()
    }
}

impl std::fmt::Display for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Threads::Auto => f.write_str("auto"),
            Threads::Fixed(count) => count.fmt(f),
        }
    }
}

impl std::str::FromStr for Threads {
    type Err = String;

    fn from_str(text: &str) -> Result<Threads, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Threads::Auto),
            Ok(count @ 1..) => Ok(Threads::Fixed(count)),
            _ => Err("expected auto, or a number of threads from 1 on".to_owned()),
        }
    }
}

/// How a host is served.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// By how many threads ([`Threads::count`]).
    pub threads: usize,
    /// Microseconds to poll before sleep for boards whose configuration does not say so.
    pub spin: u64,
}

impl Serving {
    /// What suits so many boards on this machine.
    pub fn suitable(threads: Threads, boards: usize) -> Serving {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.count(boards, processors);
        // Each guest has one virtual processor at least.
        Serving { threads, spin: spin::suitable(boards + threads, processors) }
    }
}

/// The boards and the fabric of one process; see the crate's documentation.
#[derive(Debug)]
pub struct Host {
    fabric: Loop,
    /// Of boards, each with what ends it.
    others: Vec<(Loop, ShutdownHandle)>,
    /// Ends the fabric's.
    stop: ShutdownHandle,
    running: Arc<Running>,
}

impl Host {
    /// A bound fabric, and bound boards with their nodes, for one thread, which sleeps when there is nothing to do.
    pub fn new(fabric: Fabric, boards: Vec<(u16, HibServer)>) -> Result<Host, HostError> {
        Host::with(fabric, boards, Vec::new(), Serving { threads: 1, spin: 0 })
    }

    /// The same with the memory devices of nodes that are in a trust group.
    pub fn with(
        fabric: Fabric,
        boards: Vec<(u16, HibServer)>,
        memories: Vec<MemoryServer>,
        serving: Serving,
    ) -> Result<Host, HostError> {
        if boards.len() > MAX_BOARDS {
            return Err(HostError::TooMany(boards.len()));
        }
        let Serving { threads, spin } = serving;
        // As long as the board that wants it longest.
        let longest = boards.iter().map(|(_, server)| server.spin().unwrap_or(spin)).max().unwrap_or(0);
        let (stop, fabric) = (fabric.shutdown_handle(), Rounds::new(fabric));
        let others = threads.saturating_sub(1).min(boards.len());
        let (budget, running) = (Budget::of_process(boards.len()), Arc::new(Running::new(boards.len(), stop.clone())));
        let mut divided: Vec<Vec<Board>> = (0..others.max(1)).map(|_| Vec::new()).collect();
        for (at, (node, mut server)) in boards.into_iter().enumerate() {
            server.join_by(fabric.door(), others > 0);
            server.share(&budget);
            let spin = server.spin().unwrap_or(spin);
            divided[at % others.max(1)].push(Board::new(node, spin, server, running.clone()));
        }
        let of_fabric = if others == 0 { divided.pop().unwrap_or_default() } else { Vec::new() };
        let apart = |boards| {
            let stop = ShutdownHandle::new().map_err(HostError::Wait)?;
            Ok::<_, HostError>((Loop::of_boards(boards, &stop)?, stop))
        };
        let others = divided.into_iter().map(apart).collect::<Result<_, _>>()?;
        Ok(Host { fabric: Loop::of_fabric(fabric, of_fabric, memories, &running, longest)?, others, stop, running })
    }

    /// Serves until the fabric is shut down ([`Fabric::shutdown_handle`]) or has failed, or until no board is left.
    ///
    /// # Errors
    /// Of the first board that has failed, also if the others continued; else of the fabric.
    pub fn run(&mut self) -> Result<(), HostError> {
        let Host { fabric, others, stop, running } = self;
        let stops: Vec<ShutdownHandle> = others.iter().map(|(_, stop)| stop.clone()).collect();
        std::thread::scope(|scope| {
            let boards: Vec<_> = others
                .iter_mut()
                .map(|(boards, _)| {
                    let stop = stop.clone();
                    scope.spawn(move || {
                        // Also if it panics.
                        let _stops = Finally(|| stop.shut_down());
                        boards.run()
                    })
                })
                .collect();
            let served = fabric.run();
            stops.iter().for_each(ShutdownHandle::shut_down);
            let ended = boards.into_iter().map(|thread| match thread.join() {
                Ok(ended) => ended,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            let ended = ended.collect::<Result<(), _>>();
            running.failure().map_or(Ok(()), Err).and(ended).and(served)
        })
    }
}

/// Does something at the end of a scope.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boards_get_threads_where_there_are_processors() {
        let auto = |boards, processors| Threads::Auto.count(boards, processors);
        assert_eq!([auto(2, 2), auto(2, 4), auto(2, 5), auto(16, 32), auto(16, 33)], [1, 1, 3, 1, 17]);
        assert_eq!([auto(0, 64), auto(1, 64)], [1, 1], "no other thread to hand anything to");
        let fixed = |count, boards| Threads::Fixed(count).count(boards, 1);
        assert_eq!([fixed(1, 4), fixed(3, 4), fixed(9, 4), fixed(9, 0)], [1, 3, 5, 1]);
        assert_eq!("auto".parse(), Ok(Threads::Auto));
        assert_eq!("3".parse(), Ok(Threads::Fixed(3)));
        assert_eq!([Threads::Auto, Threads::Fixed(3)].map(|threads| threads.to_string()), ["auto", "3"]);
        for bad in ["0", "", "-1", "many"] {
            assert!(bad.parse::<Threads>().unwrap_err().contains("expected auto"), "{bad}");
        }
    }
}
