// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same board behind the crate `vfio_user` (`--server crate`), for comparison and conformance tests.
//!
//! The crate's loop is synchronous, so there are two threads around one board and a lock: the crate's, which waits in a
//! load until it is answered, and one for the fabric and the clock, which meanwhile serves what other nodes ask. Limits
//! that come from the crate: a client that breaks the protocol can end its connection or make its loop panic (caught
//! here), errors reach the client without errno, messages are served one system call each, at most one descriptor per
//! message is announced, and a connected client can only be left by ending the process.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hib_core::Event;
use log::{error, info, warn};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::io::Errno;
use telegraphos_link::listener::Listener;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::board::{Board, Clock};
use crate::fabric_link::FabricLink;
use crate::shell::{Config, ServeError, ShutdownHandle};
use crate::vfio::message::{self, DmaMap, DmaUnmap, IrqSet};
use crate::vfio::server::{CONFIG_REGION, IRQ_INDEXES, REGIONS, spread};
use crate::vfio::{Answer, Backend, Refused, Token};

/// How often a waiting load looks whether it was forgotten; it is woken when it is answered.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct State {
    board: Board,
    link: FabricLink,
    frames: Vec<telegraphos_wire::link::Frame>,
    answered: Vec<(Token, u64)>,
    next_token: Token,
    introduced: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    /// Wakes the fabric's thread: there is an earlier deadline or something to send.
    wake: OwnedFd,
    clock: Clock,
    stop: ShutdownHandle,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the crate cannot happen while the lock is held: it is not held in its code.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the board, and sends what comes of it.
    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.lock();
        let now = self.clock.now();
        state.board.tick(now);
        let result = f(&mut state);
        self.settle(&mut state, now);
        result
    }

    fn settle(&self, state: &mut State, now: u64) {
        let State { board, link, frames, answered, .. } = state;
        board.swap_frames(frames);
        if link.send(now, frames.drain(..), &mut board.limiter) {
            board.feed(Event::LinkDown);
        }
        let before = answered.len();
        answered.extend(board.take_completed());
        if answered.len() > before {
            self.answered.notify_all();
        }
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// The board as the crate sees it.
struct Adapter(Arc<Shared>);

fn failed(refused: Refused) -> std::io::Error {
    warn!("a message of the client was refused: {}", refused.why);
    refused.errno.into()
}

impl ServerBackend for Adapter {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), std::io::Error> {
        let shared = &self.0;
        let (token, answer) = shared.with(|state| {
            state.introduced = true;
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
                let (_, value) = state.answered.swap_remove(at);
                spread(value, data);
                return Ok(());
            }
            state = match shared.answered.wait_timeout(state, PATIENCE) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
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
        self.0.with(|state| {
            state.introduced = true;
            state.board.reset();
        });
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
    let inside = len > 0 && len <= message::MAX_DATA && offset.checked_add(len as u64).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// The server of one board, with the crate's loop.
#[derive(Debug)]
pub struct CrateServer {
    listener: Listener,
    shared: Arc<Shared>,
    socket: PathBuf,
}

impl CrateServer {
    /// Binds the socket.
    pub fn bind(config: Config) -> Result<CrateServer, ServeError> {
        CrateServer::bind_with(config, ShutdownHandle::new()?)
    }

    /// As [`CrateServer::bind`], but stopped by a handle that exists already.
    pub fn bind_with(config: Config, stop: ShutdownHandle) -> Result<CrateServer, ServeError> {
        let Config { socket, fabric, hib, dma_limit, .. } = config;
        let listener = Listener::bind(&socket, "--socket")?;
        let link = FabricLink::new(&fabric, hib.node, hib.window, hib.offered());
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(ServeError::system("cannot create an event descriptor"))?;
        let state = State {
            board: Board::new(hib, dma_limit),
            link,
            frames: Vec::new(),
            answered: Vec::new(),
            next_token: 0,
            introduced: false,
        };
        let shared = Shared { state: Mutex::new(state), answered: Condvar::new(), wake, clock: Clock::start(), stop };
        Ok(CrateServer { listener, shared: Arc::new(shared), socket })
    }

    /// Something to stop the server with.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.shared.stop.clone()
    }

    /// Serves until told to stop. The crate's thread is left behind when this returns: end the process then.
    pub fn run(&self) -> Result<(), ServeError> {
        let system = ServeError::system("cannot hand the socket to the crate's server");
        let fd = self.listener.fd().try_clone_to_owned().map_err(|_| system(Errno::MFILE))?;
        // The crate expects to wait in accept.
        rustix::io::ioctl_fionbio(fd.as_fd(), false).map_err(&system)?;
        let server = Server::from_owned_fd(fd, true, irqs(&self.shared), regions(&self.shared));
        let shared = self.shared.clone();
        let ended = Arc::new(AtomicBool::new(false));
        let flag = ended.clone();
        std::thread::Builder::new()
            .name("vfio-user crate".into())
            .spawn(move || {
                serve(&server, &shared);
                flag.store(true, Ordering::Release);
                shared.stop.shutdown();
            })
            .map_err(|_| system(Errno::AGAIN))?;
        let result = self.fabric();
        if ended.load(Ordering::Acquire) {
            error!("the crate's server at {} cannot accept connections any more", self.socket.display());
            return Err(system(Errno::IO));
        }
        result
    }

    /// The fabric's thread: link, clock, shutdown.
    fn fabric(&self) -> Result<(), ServeError> {
        let shared = &self.shared;
        loop {
            let (timeout, link) = {
                let state = shared.lock();
                let now = shared.clock.now();
                let link = state.link.deadline().map(|at| at.saturating_sub(now));
                let timeout = [state.board.wait(now), link].into_iter().flatten().min();
                let link = state.link.fd().map(|(fd, writable)| (fd.try_clone_to_owned(), writable));
                (timeout, link)
            };
            let link = match link {
                Some((fd, writable)) => {
                    Some((fd.map_err(|_| ServeError::system("cannot watch the link")(Errno::MFILE))?, writable))
                }
                None => None,
            };
            let mut fds = vec![
                PollFd::from_borrowed_fd(shared.stop.fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(shared.wake.as_fd(), PollFlags::IN),
            ];
            if let Some((fd, writable)) = &link {
                let flags = if *writable { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                fds.push(PollFd::from_borrowed_fd(fd.as_fd(), flags));
            }
            let timeout =
                timeout.map(|us| Timespec { tv_sec: (us / 1_000_000) as i64, tv_nsec: (us % 1_000_000) as i64 * 1000 });
            match rustix::event::poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(ServeError::System { what: "cannot wait for the link", errno }),
            }
            if fds[0].revents().contains(PollFlags::IN) {
                info!("stopped");
                return Ok(());
            }
            if fds[1].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
            }
            let events = fds.get(2).map_or(PollFlags::empty(), PollFd::revents);
            shared.with(|state| {
                let now = shared.clock.now();
                let State { board, link, .. } = state;
                link.timer(now);
                board.turn();
                if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    link.receive(now, |event| board.feed(event))?;
                }
                if events.contains(PollFlags::OUT) && link.flush(now) {
                    board.feed(Event::LinkDown);
                }
                Ok::<_, ServeError>(())
            })?;
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
            debug_assert!(index != CONFIG_REGION || size > 0);
            let mut region = ServerRegion { region_info: Default::default(), sparse_areas: Vec::new(), mmap_fd: None };
            region.region_info.argsz = size_of_val(&region.region_info) as u32;
            region.region_info.index = index;
            region.region_info.flags = if size > 0 { 1 | 2 } else { 0 };
            region.region_info.size = size;
            region
        })
        .collect()
}

/// Serves one client after the other, whatever the crate's loop does.
fn serve(server: &Server, shared: &Arc<Shared>) {
    let mut failures = 0;
    while failures < 10 {
        let mut adapter = Adapter(shared.clone());
        let ended = std::panic::catch_unwind(AssertUnwindSafe(|| server.run(&mut adapter)));
        match ended {
            Ok(Ok(())) => failures = 0,
            // A listener that fails at once, again and again, will not come back.
            Ok(Err(vfio_user::Error::SocketAccept(e))) => {
                error!("accepting a connection failed: {e}");
                failures += 1;
            }
            Ok(Err(e)) => warn!("the client's connection ended: {e}"),
            Err(_) => warn!("the crate's server panicked over what the client sent; its connection is closed"),
        }
        shared.with(|state| {
            if std::mem::take(&mut state.introduced) {
                info!("QEMU has gone; ready for the next one");
            }
            state.board.client_gone();
            state.answered.clear();
        });
    }
}
