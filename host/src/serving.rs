// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one thread of a host serves: some boards and memory devices, and the fabric if no other thread does.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use telegraphos_device::direct::{MEMORY_PLACES, MemoryServer};
use telegraphos_device::{HibServer, PLACES};
use telegraphos_fabric::Rounds;
use telegraphos_service::logging;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::spin::Spin;
use telegraphos_service::wait::{Places, Readiness, WaitSet, Watched};

use crate::HostError;

/// How often in one turn what has crossed between boards and fabric is taken further before the sockets are looked at
/// again. A load needs two: to the other board and back.
const PASSES: u32 = 8;

/// A board, its node, and how long it polls.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) node: u16,
    /// Microseconds to poll before sleep.
    pub(crate) spin: u64,
    pub(crate) server: HibServer,
}

impl Board {
    /// A turn, in the log as its node's.
    fn turn(&mut self, found: [Readiness; PLACES], copies: bool) -> Result<(), HostError> {
        logging::of_node(Some(self.node));
        let turned = self.server.turn(found, copies);
        logging::of_node(None);
        turned.map(|_| ()).map_err(|source| HostError::Board { node: self.node, source })
    }
}

/// What was found at some places, once.
fn take<const N: usize>(found: &mut [Readiness]) -> [Readiness; N] {
    std::array::from_fn(|place| found.get_mut(place).map(std::mem::take).unwrap_or_default())
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Loop {
    /// `None` if another thread serves it.
    fabric: Option<Rounds>,
    boards: Vec<Board>,
    memories: Vec<MemoryServer>,
    set: WaitSet,
    /// Readable when the fabric has something to do; without one, when the loop is to end.
    _head: Watched<OwnedFd>,
    /// What the last wait has found, by place: those of each board, then of each memory device, then that of the head.
    found: Vec<Readiness>,
    /// The board whose copies went on last.
    copied: usize,
    /// [`Rounds::observations`] of which the groups know.
    observed: u64,
    /// Microseconds to poll before sleep.
    spin: u64,
}

/// Gives places in a set, one after the other.
struct Giver<'a> {
    set: &'a WaitSet,
    given: usize,
}

impl Giver<'_> {
    fn next(&mut self, count: usize) -> Places {
        let places = self.set.places(self.given as u32);
        self.given += count;
        places
    }
}

impl Loop {
    /// A loop with the fabric. It polls for at most `spin` microseconds.
    pub(crate) fn of_fabric(
        fabric: Rounds,
        boards: Vec<Board>,
        memories: Vec<MemoryServer>,
        spin: u64,
    ) -> Result<Loop, HostError> {
        let ready = rustix::io::dup(fabric.fd());
        let mut all = Loop::new(Some(fabric), boards, memories, ready, spin)?;
        all.observe();
        Ok(all)
    }

    /// A loop of boards whose fabric another thread serves.
    pub(crate) fn of_boards(boards: Vec<Board>, stop: &ShutdownHandle) -> Result<Loop, HostError> {
        // As long as the board that wants it longest.
        let spin = boards.iter().map(|board| board.spin).max().unwrap_or(0);
        Loop::new(None, boards, Vec::new(), rustix::io::dup(stop), spin)
    }

    fn new(
        fabric: Option<Rounds>,
        mut boards: Vec<Board>,
        mut memories: Vec<MemoryServer>,
        head: Result<OwnedFd, Errno>,
        spin: u64,
    ) -> Result<Loop, HostError> {
        let set = WaitSet::new().map_err(HostError::Wait)?;
        let mut places = Giver { set: &set, given: 0 };
        for Board { node, server, .. } in &mut boards {
            let failed = |source| HostError::Board { node: *node, source };
            server.wait_at(places.next(PLACES)).map_err(failed)?;
        }
        for memory in &mut memories {
            memory.wait_at(places.next(MEMORY_PLACES)).map_err(HostError::Memory)?;
        }
        let head = head.and_then(|head| places.next(1).watch(0, head, Readiness::READ)).map_err(HostError::Wait)?;
        let found = vec![Readiness::NONE; places.given];
        Ok(Loop { fabric, boards, memories, set, _head: head, found, copied: 0, observed: 0, spin })
    }

    /// Serves until the fabric is shut down, or this loop is stopped, or the first failure.
    pub(crate) fn run(&mut self) -> Result<(), HostError> {
        let mut spin = Spin::new(self.spin);
        loop {
            self.wait(&mut spin)?;
            if self.turn()? {
                return Ok(());
            }
        }
    }

    /// Each board with something to do takes a turn, and the fabric one round; what crosses between them by that is
    /// taken further. True if this was the last turn.
    fn turn(&mut self) -> Result<bool, HostError> {
        let (boards, rest) = self.found.split_at_mut(PLACES * self.boards.len());
        let (memories, head) = rest.split_at_mut(MEMORY_PLACES * self.memories.len());
        for (board, found) in self.boards.iter_mut().zip(boards.chunks_exact_mut(PLACES)) {
            let found: [Readiness; PLACES] = take(found);
            if found.iter().any(|ready| ready.any()) || board.server.is_due() {
                board.turn(found, false)?;
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
        let [head] = take(head);
        let Some(fabric) = &mut self.fabric else {
            self.copy()?;
            return Ok(head.any());
        };
        if head.any() && fabric.round(Some(0))? {
            return Ok(true);
        }
        for _ in 0..PASSES {
            let mut crossed = fabric.pass();
            for board in self.boards.iter_mut().filter(|board| board.server.needs_attention()) {
                crossed = true;
                board.turn(Default::default(), false)?;
            }
            if !crossed {
                break;
            }
        }
        if self.observed != fabric.observations() {
            self.observe();
        }
        self.copy()?;
        Ok(false)
    }

    /// The copies of one board go on, if any board has some: one in each turn of the loop, so that everything is served
    /// between two slices of copies, whosever they are.
    fn copy(&mut self) -> Result<(), HostError> {
        let boards = self.boards.len();
        let mut following = (1..=boards).map(|n| (self.copied + n) % boards);
        if let Some(at) = following.find(|at| self.boards[*at].server.has_copies()) {
            self.copied = at;
            self.boards[at].turn(Default::default(), true)?;
        }
        Ok(())
    }

    /// Faults and captures have changed: tells the guests whether they are to see what members of a group access.
    fn observe(&mut self) {
        let Some(fabric) = &self.fabric else { return };
        self.observed = fabric.observations();
        for memory in &self.memories {
            let group = memory.memory();
            group.observe(fabric.observes(&group.group().nodes));
        }
    }

    /// Until there is something to do.
    fn wait(&mut self, spin: &mut Spin) -> Result<(), HostError> {
        let Loop { fabric, boards, memories, set, found, .. } = self;
        // Microseconds until a turn is needed without an event; `None` if never.
        let timeout = || {
            let boards = boards.iter().filter_map(|board| board.server.timeout());
            let memories = memories.iter().filter_map(MemoryServer::timeout);
            boards.chain(memories).chain(fabric.as_ref().and_then(Rounds::timeout)).min()
        };
        spin.wait(timeout, |timeout| set.wait(timeout, |place, ready| found[place as usize] = ready))
            .map_err(HostError::Wait)
    }
}
