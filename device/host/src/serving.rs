// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one thread of a host serves: some boards and memory devices, and the fabric if no other thread does.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use log::error;
use rustix::io::Errno;
use telegraphos_device::direct::{MEMORY_PLACES, MemoryServer};
use telegraphos_device::{HibServer, PLACES, ServeError};
use telegraphos_fabric::Rounds;
use telegraphos_service::logging;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::spin::Spin;
use telegraphos_service::wait::{Places, Readiness, WaitSet, Watched};

use crate::HostError;

/// How often in one turn what has crossed between boards and fabric is taken further before the sockets are looked at
/// again. A load needs two: to the other board and back.
const PASSES: u32 = 8;

/// How many boards of the process still run, and why others do not.
#[derive(Debug)]
pub(crate) struct Running {
    boards: AtomicUsize,
    /// Of the first that has failed.
    failure: Mutex<Option<HostError>>,
    /// Ends the process's service, with the last board.
    stop: ShutdownHandle,
}

impl Running {
    pub(crate) fn new(boards: usize, stop: ShutdownHandle) -> Running {
        Running { boards: AtomicUsize::new(boards), failure: Mutex::new(None), stop }
    }

    /// The failure of the first board that has failed, once.
    pub(crate) fn failure(&self) -> Option<HostError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A board, or its memory device, has ended.
    fn ended(&self, error: HostError, is_board: bool) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        if is_board && self.boards.fetch_sub(1, Ordering::Relaxed) == 1 {
            error!("no board is left");
            self.stop.shut_down();
        }
    }
}

/// Runs a turn of something that is dropped if it panics. Nothing else sees what it has left unfinished: what boards
/// share with each other and with the fabric is atomic, or is behind locks under which nothing panics.
fn alone<T>(node: u16, turn: impl FnOnce() -> Result<T, ServeError>) -> Result<T, HostError> {
    match catch_unwind(AssertUnwindSafe(turn)) {
        Ok(turned) => turned.map_err(|source| HostError::Board { node, source }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let why = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned();
            Err(HostError::Panic { node, why })
        }
    }
}

/// A server of a node, as long as it runs.
#[derive(Debug)]
struct Member<S> {
    node: u16,
    /// `None` after it has ended.
    server: Option<S>,
    running: Arc<Running>,
}

impl<S> Member<S> {
    fn is(&self, what: impl FnOnce(&S) -> bool) -> bool {
        self.server.as_ref().is_some_and(what)
    }

    /// A turn, in the log as its node's. If it fails, the server, which is `what`, ends.
    fn turn(&mut self, what: &str, is_board: bool, turn: impl FnOnce(&mut S) -> Result<(), ServeError>) {
        let Some(server) = &mut self.server else { return };
        logging::of_node(Some(self.node));
        if let Err(failure) = alone(self.node, || turn(server)) {
            error!("{failure}; {what} has ended");
            let server = self.server.take();
            // It may be half of what it was: also its end may panic.
            let removed = alone(self.node, || {
                drop(server);
                Ok(())
            });
            if removed.is_err() && is_board {
                error!("{what} of node {} could not be removed whole", self.node);
            }
            self.running.ended(failure, is_board);
        }
        logging::of_node(None);
    }
}

/// A board, and how long it polls.
#[derive(Debug)]
pub(crate) struct Board {
    member: Member<HibServer>,
    /// Microseconds to poll before sleep.
    spin: u64,
    #[cfg(test)]
    panics: bool,
}

impl Board {
    pub(crate) fn new(node: u16, spin: u64, server: HibServer, running: Arc<Running>) -> Board {
        Board {
            member: Member { node, server: Some(server), running },
            spin,
            #[cfg(test)]
            panics: false,
        }
    }

    fn turn(&mut self, found: [Readiness; PLACES], copies: bool) {
        #[cfg(test)]
        let panics = self.panics;
        self.member.turn("the board", true, |server| {
            #[cfg(test)]
            assert!(!panics, "a deliberate fault");
            server.turn(found, copies).map(drop)
        });
    }
}

/// A turn of a memory device, if it has something to do.
fn turn_memory(memory: &mut Member<MemoryServer>, found: [Readiness; MEMORY_PLACES]) {
    if found.iter().any(|ready| ready.any()) || memory.is(|server| server.timeout() == Some(0)) {
        memory.turn("its memory device", false, |server| {
            server.turn(found);
            Ok(())
        });
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
    memories: Vec<Member<MemoryServer>>,
    set: WaitSet,
    /// Readable when the fabric has something to do; without one, when the loop is to end.
    _head: Watched<OwnedFd>,
    /// What the last wait has found, by place: those of each board, then of each memory device, then that of the head.
    found: Vec<Readiness>,
    /// The board whose copies had the last slice.
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
        running: &Arc<Running>,
        spin: u64,
    ) -> Result<Loop, HostError> {
        let ready = rustix::io::dup(fabric.fd());
        let of = |server: MemoryServer| Member { node: server.node(), server: Some(server), running: running.clone() };
        let memories = memories.into_iter().map(of).collect();
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
        mut memories: Vec<Member<MemoryServer>>,
        head: Result<OwnedFd, Errno>,
        spin: u64,
    ) -> Result<Loop, HostError> {
        let set = WaitSet::new().map_err(HostError::Wait)?;
        let mut places = Giver { set: &set, given: 0 };
        for Board { member: Member { node, server, .. }, .. } in &mut boards {
            let (failed, places) = (|source| HostError::Board { node: *node, source }, places.next(PLACES));
            server.as_mut().map_or(Ok(()), |server| server.wait_at(places)).map_err(failed)?;
        }
        for Member { server, .. } in &mut memories {
            let places = places.next(MEMORY_PLACES);
            server.as_mut().map_or(Ok(()), |server| server.wait_at(places)).map_err(HostError::Memory)?;
        }
        let head = head.and_then(|head| places.next(1).watch(0, head, Readiness::READ)).map_err(HostError::Wait)?;
        let found = vec![Readiness::NONE; places.given];
        Ok(Loop { fabric, boards, memories, set, _head: head, found, copied: 0, observed: 0, spin })
    }

    /// Serves until the fabric is shut down or fails, or this loop is stopped.
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
            if found.iter().any(|ready| ready.any()) || board.member.is(HibServer::is_due) {
                board.turn(found, false);
            }
        }
        for (memory, found) in self.memories.iter_mut().zip(memories.chunks_exact_mut(MEMORY_PLACES)) {
            turn_memory(memory, take(found));
        }
        let [head] = take(head);
        let Some(fabric) = &mut self.fabric else {
            self.copy();
            return Ok(head.any());
        };
        if head.any() && fabric.round(Some(0))? {
            return Ok(true);
        }
        for _ in 0..PASSES {
            let mut crossed = fabric.pass();
            for board in self.boards.iter_mut().filter(|board| board.member.is(HibServer::needs_attention)) {
                crossed = true;
                board.turn(Default::default(), false);
            }
            if !crossed {
                break;
            }
        }
        if self.observed != fabric.observations() {
            self.observe();
        }
        self.copy();
        Ok(false)
    }

    /// Continues the copies of one board, if any board has some: one in each turn of the loop, so that everything is
    /// served between two slices of copies, whosever they are.
    fn copy(&mut self) {
        let boards = self.boards.len();
        let mut following = (1..=boards).map(|n| (self.copied + n) % boards);
        if let Some(at) = following.find(|at| self.boards[*at].member.is(HibServer::has_copies)) {
            self.copied = at;
            self.boards[at].turn(Default::default(), true);
        }
    }

    /// Faults and captures have changed: tells the guests whether they are to see what members of a group access.
    fn observe(&mut self) {
        let Some(fabric) = &self.fabric else { return };
        self.observed = fabric.observations();
        for server in self.memories.iter().filter_map(|memory| memory.server.as_ref()) {
            let group = server.memory();
            group.observe(fabric.observes(&group.group().nodes));
        }
    }

    /// Until there is something to do.
    fn wait(&mut self, spin: &mut Spin) -> Result<(), HostError> {
        let Loop { fabric, boards, memories, set, found, .. } = self;
        // Microseconds until a turn is needed without an event; `None` if never.
        let timeout = || {
            let boards = boards.iter().filter_map(|board| board.member.server.as_ref()?.timeout());
            let memories = memories.iter().filter_map(|memory| memory.server.as_ref()?.timeout());
            boards.chain(memories).chain(fabric.as_ref().and_then(Rounds::timeout)).min()
        };
        spin.wait(timeout, |timeout| set.wait(timeout, |place, ready| found[place as usize] = ready))
            .map_err(HostError::Wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use telegraphos_device::Settings;
    use telegraphos_fabric::{Config, Fabric};

    #[test]
    fn a_panic_is_the_end_of_what_has_panicked_and_is_named() {
        let named = |result: Result<(), HostError>| result.unwrap_err().to_string();
        assert_eq!(named(alone(3, || panic!("index {}", 7))), "the board of node 3 has panicked: index 7");
        assert_eq!(named(alone(3, || panic!("plain"))), "the board of node 3 has panicked: plain");
        assert_eq!(named(alone(3, || std::panic::panic_any(7))), "the board of node 3 has panicked: without a message");
        assert!(alone(3, || Ok(())).is_ok());
    }

    /// What a connection to a board sees within some turns: `None` as long as nothing.
    fn end_of(stream: &mut UnixStream) -> Option<usize> {
        stream.read(&mut [0; 16]).ok()
    }

    #[test]
    fn a_board_that_panics_ends_alone_and_the_last_one_ends_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let fabric = Fabric::bind(Config::new(dir.path().join("fabric.sock"))).unwrap();
        let running = Arc::new(Running::new(2, fabric.shutdown_handle()));
        let socket = |node| dir.path().join(format!("hib{node}.sock"));
        let fabric = Rounds::new(fabric);
        let board = |node| {
            let settings = Settings {
                socket: Some(socket(node)),
                node: Some(node),
                fabric: Some(dir.path().join("fabric.sock")),
                ..Settings::default()
            };
            let mut server = HibServer::bind(settings.config().unwrap()).unwrap();
            server.join_by(fabric.door(), false);
            Board::new(node, 0, server, running.clone())
        };
        let boards = vec![board(0), board(1)];
        let mut all = Loop::of_fabric(fabric, boards, Vec::new(), &running, 0).unwrap();
        let mut guests: Vec<UnixStream> = [0, 1].map(|node| UnixStream::connect(socket(node)).unwrap()).into();
        guests.iter().for_each(|guest| guest.set_nonblocking(true).unwrap());
        // Without a sleep: nothing else wakes it.
        let turns = |all: &mut Loop| {
            (0..20).any(|_| {
                let Loop { set, found, .. } = all;
                set.wait(Some(0), |place, ready| found[place as usize] = ready).unwrap();
                all.boards.iter_mut().for_each(|board| board.turn(Default::default(), false));
                all.turn().unwrap()
            })
        };
        assert!(!turns(&mut all));
        assert!(guests.iter_mut().all(|guest| end_of(guest).is_none()), "both are served");
        all.boards[0].panics = true;
        assert!(!turns(&mut all), "the process continues");
        assert_eq!(end_of(&mut guests[0]), Some(0), "its guest sees the end of the stream");
        assert_eq!(end_of(&mut guests[1]), None, "the other one is served");
        assert!(all.boards[0].member.server.is_none() && all.boards[1].member.server.is_some());
        all.boards[1].panics = true;
        assert!(turns(&mut all), "no board is left");
        let text = running.failure().unwrap().to_string();
        assert_eq!(text, "the board of node 0 has panicked: a deliberate fault");
    }
}
