// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same board behind the server loop of the crate `vfio_user`, for conformance tests and for comparison of speed.
//!
//! The crate's loop is synchronous, so there are two threads around one board and a lock: the crate's, which blocks in
//! a load until it is answered, and one for the fabric and the clock. Limits that come from the crate: a client that
//! breaks the protocol can end its connection or make the loop panic (caught here), errors reach the client without
//! errno, each message costs a system call, and the crate's thread ends only with the process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use telegraphos_device::fabric_link::{Arrival, FabricLink};
use telegraphos_device::vfio::message::{DmaMap, DmaUnmap, IrqSet};
use telegraphos_device::vfio::server::{IRQ_INDEXES, REGIONS, spread};
use telegraphos_device::vfio::{Answer, Backend, Refused, Token};
use telegraphos_device::{Board, Clock, Config};
use telegraphos_device_core::Event;
use telegraphos_link::limit::Limiter;
use telegraphos_service::wait::{Readiness, WaitSet};
use telegraphos_wire::link::Frame;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

/// The place that the link leaves free.
const WAKE: u32 = 0;

struct State {
    board: Board,
    link: FabricLink,
    limiter: Limiter,
    frames: Vec<Frame>,
    answered: Vec<(Token, u64)>,
    next_token: Token,
}

struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    /// Wakes the fabric's thread: there is an earlier deadline, something to send, or an end.
    wake: OwnedFd,
    clock: Clock,
    stop: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `f` on the board and sends the frames that result.
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let now = self.clock.now();
        state.board.tick(now);
        let result = f(&mut state);
        let State { board, link, limiter, frames, answered, .. } = &mut *state;
        board.end_turn(frames);
        if link.send(now, frames.drain(..), limiter) {
            board.feed(Event::LinkDown);
        }
        answered.extend(board.take_completed());
        self.answered.notify_all();
        result
    }

    fn wake(&self) {
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).unwrap();
    }

    /// The fabric's thread: link and clock, until `stop` is set.
    fn serve_fabric(&self) {
        let set = WaitSet::new().unwrap();
        // The link has the place of its own.
        let places = set.places(0);
        let wake = places.watch(WAKE, &self.wake, Readiness::READ).unwrap();
        while !self.stop.load(Ordering::Acquire) {
            let timeout = {
                let state = self.lock();
                let now = self.clock.now();
                let link = state.link.deadline().map(|at| at.saturating_sub(now));
                [state.board.wait(now), link].into_iter().flatten().min()
            };
            let mut link_ready = Readiness::NONE;
            set.wait(timeout, |place, ready| match place as u32 {
                WAKE => _ = rustix::io::read(*wake, &mut [0; 8]).unwrap(),
                _ => link_ready = ready,
            })
            .unwrap();
            self.with(|State { board, link, .. }| {
                let now = self.clock.now();
                link.timer(now, &places);
                board.turn();
                if link_ready.read || link_ready.ended {
                    let arrive = |arrival| match arrival {
                        Arrival::Event(event) => board.feed(event),
                        // Not opened, so it is not used.
                        Arrival::Ring(_) => {}
                    };
                    link.receive(now, arrive).unwrap();
                }
                if link_ready.write && link.flush(now) || link.watch(now) {
                    board.feed(Event::LinkDown);
                }
            });
        }
    }
}

/// The board as the crate sees it.
struct Adapter(Arc<Shared>);

fn failed(refused: Refused) -> std::io::Error {
    refused.errno.into()
}

impl ServerBackend for Adapter {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), std::io::Error> {
        let shared = &self.0;
        let (token, answer) = shared.with(|state| {
            check(&state.board, region, offset, data.len())?;
            let token = state.next_token;
            state.next_token += 1;
            Ok::<_, std::io::Error>((token, state.board.read(token, region, offset, data)))
        })?;
        if answer == Answer::Now {
            return Ok(());
        }
        shared.wake();
        let mut state = shared.lock();
        loop {
            if let Some(at) = state.answered.iter().position(|(t, _)| *t == token) {
                spread(state.answered.swap_remove(at).1, data);
                return Ok(());
            }
            state = shared.answered.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.0.with(|state| {
            check(&state.board, region, offset, data.len())?;
            state.board.write(region, offset, data);
            // The crate does not say whether more is queued, so the socket counts as dry after each message.
            state.board.feed(Event::IntakeDry);
            Ok::<_, std::io::Error>(())
        })?;
        self.0.wake();
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> Result<(), std::io::Error> {
        let map = DmaMap { argsz: size_of::<DmaMap>() as u32, flags: flags.bits(), offset, address, size };
        self.0.with(|state| state.board.dma_map(map, fd.map(OwnedFd::from))).map_err(failed)
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> Result<(), std::io::Error> {
        let unmap = DmaUnmap { argsz: size_of::<DmaUnmap>() as u32, flags: flags.bits(), address, size };
        self.0.with(|state| state.board.dma_unmap(unmap)).map(drop).map_err(failed)
    }

    fn reset(&mut self) -> Result<(), std::io::Error> {
        self.0.with(|state| state.board.reset());
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> Result<(), std::io::Error> {
        let set = IrqSet { argsz: size_of::<IrqSet>() as u32, flags, index, start, count };
        let fds = fds.into_iter().map(OwnedFd::from).collect();
        self.0.with(|state| state.board.set_irqs(set, &[], fds)).map_err(failed)
    }
}

fn check(board: &Board, region: u32, offset: u64, len: usize) -> Result<(), std::io::Error> {
    let size = if region < REGIONS { board.region_size(region) } else { 0 };
    let inside = len > 0 && offset.checked_add(len as u64).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The server of one board, with the crate's loop. Its link ends when it is dropped.
pub struct CrateServer {
    pub socket: PathBuf,
    shared: Arc<Shared>,
    fabric: Option<JoinHandle<()>>,
}

impl CrateServer {
    /// Serves in threads of its own.
    pub fn start(config: Config) -> CrateServer {
        let Config { socket, fabric, hib, dma_limit, .. } = config;
        let listener = UnixListener::bind(&socket).unwrap();
        let state = State {
            link: FabricLink::new(&fabric, hib.node, hib.window, hib.offered()),
            board: Board::new(hib, dma_limit),
            limiter: Limiter::default(),
            frames: Vec::new(),
            answered: Vec::new(),
            next_token: 0,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            answered: Condvar::new(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap(),
            clock: Clock::start(),
            stop: AtomicBool::new(false),
        });
        let server = Server::from_owned_fd(listener.into(), true, irqs(&shared), regions(&shared));
        let served = shared.clone();
        std::thread::spawn(move || serve(&server, &served));
        let served = shared.clone();
        let fabric = std::thread::spawn(move || served.serve_fabric());
        CrateServer { socket, shared, fabric: Some(fabric) }
    }
}

impl Drop for CrateServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(fabric) = self.fabric.take() {
            let ended = fabric.join();
            if !std::thread::panicking() {
                ended.expect("the thread of the fabric panicked");
            }
        }
    }
}

fn irqs(shared: &Shared) -> Vec<IrqInfo> {
    let state = shared.lock();
    (0..IRQ_INDEXES).map(|index| IrqInfo { index, flags: 1, count: state.board.vectors(index) }).collect()
}

fn regions(shared: &Shared) -> Vec<ServerRegion> {
    let state = shared.lock();
    (0..REGIONS)
        .map(|index| {
            let size = state.board.region_size(index);
            let mut region = ServerRegion { region_info: Default::default(), sparse_areas: Vec::new(), mmap_fd: None };
            region.region_info.argsz = size_of_val(&region.region_info) as u32;
            region.region_info.index = index;
            region.region_info.flags = if size > 0 { 1 | 2 } else { 0 };
            region.region_info.size = size;
            region
        })
        .collect()
}

/// Serves one client after the other, also when the crate's loop fails or panics.
fn serve(server: &Server, shared: &Arc<Shared>) {
    loop {
        let mut adapter = Adapter(shared.clone());
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| server.run(&mut adapter)));
        if let Ok(Err(vfio_user::Error::SocketAccept(e))) = ended {
            panic!("accepting a connection failed: {e}");
        }
        shared.with(|state| {
            state.board.client_gone();
            state.answered.clear();
        });
    }
}
