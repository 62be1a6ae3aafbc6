// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server of one board: one thread, one poll loop, around one core.
//!
//! ```text
//!   listener ─┐                                  ┌─ guest memory (mapped)
//!   client  ──┼─ wait ─ Session ─ Board ─ Hib ───┼─ event descriptors
//!   fabric  ──┤                                  └─ frames to the fabric, and to other boards of this host
//!   rings   ──┤
//!   direct  ──┤
//!   shutdown ─┘
//! ```
//!
//! Each turn of the loop passes the time to the core, serves one batch of each readable connection, and then sends all
//! output, with one send per connection, and one packet for all acknowledgements to a node. Only the wait blocks;
//! without work or deadline it blocks indefinitely. A turn is short whatever the guest does: guest messages are served
//! for at most 200 us, and only a few blocks of copies are moved.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use log::{debug, info};
use telegraphos_device_core::{Event, HibConfig};
use telegraphos_link::Door;
use telegraphos_link::listener::Listener;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::spin::Spin;
use telegraphos_service::wait::{Places, Readiness, WaitSet, Watched};
use telegraphos_wire::link::Frame;

use crate::board::Board;
use crate::clock::Clock;
use crate::direct::{Change, Member};
use crate::error::{ServeError, system};
use crate::fabric_link::{self, Arrival, FabricLink};
use crate::guard::Guard;
use crate::intake::Intake;
use crate::memory::Budget;
use crate::rings;
use crate::vfio::{Connection, Filled, Refused, Session, hang_up};

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the socket to create for QEMU.
    pub socket: PathBuf,
    /// Path of the fabric's socket.
    pub fabric: PathBuf,
    /// Sizes and limits of the board.
    pub hib: HibConfig,
    /// Microseconds to poll for work before sleeping, at the cost of a busy processor; 0 sleeps at once. `None` leaves
    /// it to the caller that runs the loop: a server alone sleeps at once.
    pub spin: Option<u64>,
    /// Limit on mapped guest memory, in bytes.
    pub dma_limit: u64,
    /// The node's part in a trust group, if it is in one.
    pub direct: Option<Member>,
}

/// Places of a board's descriptors in a [`WaitSet`], and how many there are.
const SHUTDOWN: u32 = 0;
const LISTENER: u32 = 1;
const CLIENT: u32 = 2;
const LINK: u32 = fabric_link::PLACE;
const RINGS: u32 = rings::PLACE;
const DIRECT: u32 = 5;
/// Places of one board in a [`WaitSet`].
pub const PLACES: usize = 6;

/// Microseconds per turn of the loop for messages of the guest. This bounds how long packets from the fabric wait.
const TURN: u64 = 200;
/// Messages between two readings of the clock.
const CLOCK_EVERY: u32 = 16;

/// The server of one board.
#[derive(Debug)]
pub struct HibServer {
    listener: Watched<Listener>,
    link: FabricLink,
    board: Board,
    session: Session,
    client: Option<Client>,
    guard: Option<Arc<Guard>>,
    shutdown: Watched<ShutdownHandle>,
    /// `None` if it is in no trust group.
    change: Option<Watched<Change>>,
    places: Places,
    clock: Clock,
    spin: Option<u64>,
    intake: Intake,
    /// Intake has been paused since the client's socket was last dry.
    paused: bool,
    /// Buffer, kept to reuse its allocation.
    frames: Vec<Frame>,
}

#[derive(Debug)]
struct Client {
    connection: Watched<Connection>,
    /// The input buffer holds whole messages, because the output is full or the turn was over.
    unread: bool,
}

/// What a wait has found.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    shutdown: bool,
    listener: bool,
    client_in: bool,
    /// The client has closed its end; the input may still hold its last messages.
    client_hung_up: bool,
    link_in: bool,
    link_out: bool,
}

impl HibServer {
    /// Binds the socket. QEMU may connect from here on; it is served by [`HibServer::run`].
    pub fn bind(config: Config) -> Result<HibServer, ServeError> {
        HibServer::bind_with(config, ShutdownHandle::new().map_err(system("cannot create an event descriptor"))?, None)
    }

    /// As [`HibServer::bind`], but stopped by an existing handle. A signal handler that removes the socket must be
    /// installed before the socket exists, and needs the handle. The guard watches each client's connection.
    pub fn bind_with(
        config: Config,
        shutdown: ShutdownHandle,
        guard: Option<Arc<Guard>>,
    ) -> Result<HibServer, ServeError> {
        let Config { socket, fabric, mut hib, spin, dma_limit, direct } = config;
        hib.direct_pair = direct.as_ref().map_or(0, Member::pair);
        let listener = Watched::nowhere(Listener::bind(&socket, "--socket")?, Readiness::READ);
        let shutdown = Watched::nowhere(shutdown, Readiness::READ);
        let link = FabricLink::new(&fabric, hib.node, hib.window, hib.offered());
        let mut board = Board::new(hib, dma_limit);
        if let Some(member) = &direct {
            board.attach(member).map_err(system("cannot map the memory of a trust group"))?;
        }
        Ok(HibServer {
            listener,
            link,
            board,
            session: Session::new(),
            client: None,
            guard,
            shutdown,
            change: direct.map(|member| Watched::nowhere(member.change(), Readiness::READ)),
            places: Places::default(),
            clock: Clock::start(),
            spin,
            intake: Intake::new(0, 0),
            paused: false,
            frames: Vec::new(),
        })
    }

    /// A handle that stops this server.
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        ShutdownHandle::clone(&self.shutdown)
    }

    /// Microseconds to poll for work before sleeping, if that was configured.
    pub fn spin(&self) -> Option<u64> {
        self.spin
    }

    /// From now on the fabric is not that of the configuration, but the one behind this door, which the same thread
    /// serves, or another one if they are `apart`. For a server that has not taken a turn.
    pub fn join_by(&mut self, door: Door, apart: bool) {
        self.link.join_by(door, apart);
        if apart {
            self.board.rings.serve_apart();
        }
    }

    /// From now on this is one of several boards, which share what this process has. For a server that has not taken a
    /// turn.
    pub fn share(&mut self, budget: &Budget) {
        self.board.share(budget);
    }

    /// The caller of [`HibServer::turn`] waits for these places, [`PLACES`] of them. For a server that has not taken a
    /// turn.
    pub fn wait_at(&mut self, places: Places) -> Result<(), ServeError> {
        let unwatched = system("cannot wait for a socket");
        self.listener.watch_at(&places, LISTENER).map_err(&unwatched)?;
        self.shutdown.watch_at(&places, SHUTDOWN).map_err(&unwatched)?;
        self.change.as_mut().map_or(Ok(()), |change| change.watch_at(&places, DIRECT)).map_err(unwatched)?;
        self.places = places;
        Ok(())
    }

    /// Whether the fabric, or a board, of the same process has sent something: then a turn is due.
    pub fn needs_attention(&self) -> bool {
        self.link.needs_attention() || self.board.rings.needs_attention()
    }

    /// The board, for inspection.
    pub fn board(&self) -> &Board {
        &self.board
    }

    /// Serves one QEMU at a time, until a shutdown is requested or the fabric refuses the board.
    pub fn run(&mut self) -> Result<(), ServeError> {
        let unable = system("cannot wait for the connections");
        let set = WaitSet::new().map_err(&unable)?;
        self.wait_at(set.places(0))?;
        let mut spin = Spin::new(self.spin.unwrap_or(0));
        loop {
            // Until a connection is ready, a deadline is reached, or a shutdown is requested.
            let mut found = [Readiness::NONE; PLACES];
            let mut wait = |timeout| set.wait(timeout, |place, ready| found[place as usize] = ready);
            spin.wait(|| self.timeout(), |timeout| wait(timeout).map_err(&unable))?;
            if self.turn(found, true)? {
                return Ok(());
            }
        }
    }

    /// One turn of the loop, after a wait that found this at its places, at the latest after [`HibServer::timeout`].
    /// Never blocks, and is short whatever the guest does. It continues copies only if it is their turn as well:
    /// where several boards take turns, between two slices of any copies all of them are to be served. True if a
    /// shutdown was requested.
    pub fn turn(&mut self, found: [Readiness; PLACES], copies: bool) -> Result<bool, ServeError> {
        let ready = self.ready(found);
        if ready.shutdown {
            info!("stopped");
            return Ok(true);
        }
        let now = self.clock.now();
        self.board.tick(now);
        self.link.timer(now, &self.places);
        // Before the fabric says that their peers were reset: they have acknowledged what they performed until then.
        if found[RINGS as usize].read || self.board.rings.needs_attention() {
            self.board.serve_rings();
        }
        // The fabric comes before the guest: its credits and replies make room for the guest's stores.
        if ready.link_in {
            let board = &mut self.board;
            self.link.receive(now, |arrival| match arrival {
                Arrival::Event(event) => board.feed(event),
                Arrival::Ring(offer) => board.open_ring(offer, &self.places),
            })?;
        }
        if let (true, Some(change)) = (found[DIRECT as usize].read, &self.change) {
            // First: a change from here on is signalled again.
            change.take();
            self.board.feed(Event::DirectChanged);
        }
        if self.pause(now).is_some() && !ready.client_hung_up {
            self.begin_pause(now);
        } else if ready.client_in || self.has_unread() {
            self.serve_client(now, ready.client_in, !ready.client_hung_up);
        } else if self.intake.idle(now) {
            self.dry();
        }
        if copies {
            self.board.turn();
        }
        // While the last messages of a client that has hung up are served, a waiting connection stays in the
        // backlog; it is accepted once they are done.
        if ready.listener && !(ready.client_hung_up && self.client.is_some()) {
            self.accept();
        }
        self.send(now, ready.link_out);
        self.watch(now);
        Ok(false)
    }

    /// Has the connections watched for what this turn leaves to wait for.
    fn watch(&mut self, now: u64) {
        if self.link.watch(now) {
            self.board.feed(Event::LinkDown);
        }
        let pause = self.pause(now).is_some();
        let Some(client) = &mut self.client else { return };
        let until = client.connection.interest(!pause);
        if let Err(e) = client.connection.until(until) {
            self.end_client(&format!("its connection cannot be watched: {e}"));
        }
    }

    /// Sends the output of this turn, with one send per connection.
    fn send(&mut self, now: u64, link_writable: bool) {
        self.board.flush_rings();
        self.board.end_turn(&mut self.frames);
        if !self.frames.is_empty() || link_writable {
            let mut lost = self.link.send(now, self.frames.drain(..), &mut self.board.limiter);
            if link_writable {
                lost |= self.link.flush(now);
            }
            if lost {
                // This completes loads, but sends nothing since there is no link.
                self.board.feed(Event::LinkDown);
            }
        }
        if let Some(client) = &mut self.client {
            for (token, value) in self.board.take_completed() {
                self.session.complete(token, value, &mut client.connection.output);
            }
            if !client.connection.output.is_empty() {
                if let Err(e) = client.connection.flush() {
                    self.end_client(&format!("its replies cannot be sent: {e}"));
                }
            }
        } else {
            self.board.take_completed().for_each(drop);
        }
    }

    // ---- waiting ----

    /// Whether copies wait for their turn ([`HibServer::turn`]).
    pub fn has_copies(&self) -> bool {
        self.board.has_more()
    }

    /// Whether a turn is due without an event, also if it is not that of copies.
    pub fn is_due(&self) -> bool {
        self.deadline(self.clock.now()) == Some(0)
    }

    /// Microseconds until [`HibServer::turn`] must be called without an event; `None` if never.
    pub fn timeout(&self) -> Option<u64> {
        if self.has_copies() { Some(0) } else { self.deadline(self.clock.now()) }
    }

    /// The same without copies.
    fn deadline(&self, now: u64) -> Option<u64> {
        let pause = self.pause(now);
        if pause.is_none() && self.has_unread() || self.needs_attention() {
            return Some(0);
        }
        let dry = pause.or(self.intake.deadline()).map(|at| at.saturating_sub(now));
        let link = self.link.deadline().map(|at| at.saturating_sub(now));
        let core = self.board.hib().deadline().map(|at| at.saturating_sub(now));
        [core, link, dry].into_iter().flatten().min()
    }

    /// Until when the client's socket must be left unread; `None` if it may be read now.
    fn pause(&self, now: u64) -> Option<u64> {
        self.intake.pause(now, self.client.is_some() && self.board.hib().is_nearly_full())
    }

    /// Whether the input buffer holds whole messages and there is room for their replies.
    fn has_unread(&self) -> bool {
        self.client.as_ref().is_some_and(|c| c.unread && !c.connection.output.is_full())
    }

    /// Logs the begin of a pause.
    fn begin_pause(&mut self, now: u64) {
        if std::mem::replace(&mut self.paused, true) {
            return;
        }
        let waiting = self.board.hib().waiting();
        limited!(self.board.limiter, "intake", now => warn
            "the guest has posted more than the network takes: {waiting} stores wait, and no more are taken in \
             for a while");
    }

    /// The meaning of what a wait has found.
    fn ready(&self, found: [Readiness; PLACES]) -> Ready {
        let [shutdown, listener, client, link] = [SHUTDOWN, LISTENER, CLIENT, LINK].map(|place| found[place as usize]);
        Ready {
            shutdown: shutdown.read,
            listener: listener.read,
            client_in: client.read || client.ended,
            client_hung_up: client.ended,
            link_in: link.read || link.ended || self.link.needs_attention(),
            link_out: link.write,
        }
    }

    // ---- the client ----

    /// Accepts a connection to the socket, or closes it if a QEMU is being served.
    fn accept(&mut self) {
        let (now, path) = (self.board.now(), self.listener.path().display());
        match self.listener.accept() {
            // A connection without a completed handshake is replaced: it may be a mere probe connection.
            Ok(Some(fd)) if !self.session.negotiated() => {
                self.session.end();
                self.client = None;
                let connection = match self.places.watch(CLIENT, Connection::new(fd), Readiness::READ) {
                    Ok(connection) => connection,
                    Err(e) => {
                        limited!(self.board.limiter, "accept", now => warn
                            "a connection to {path} could not be taken: {e}");
                        return;
                    }
                };
                if let Some(Err(e)) = self.guard.as_ref().map(|guard| guard.watch(self.link.node(), connection.as_fd()))
                {
                    limited!(self.board.limiter, "guard", now => warn
                        "if this process is killed, QEMU may abort: the guard does not answer: {e}");
                }
                self.client = Some(Client { connection, unread: false });
                self.intake = Intake::new(self.clock.now(), self.board.hib().config().load_limit);
                debug!("a client has connected");
            }
            Ok(Some(second)) => {
                hang_up(second.as_fd());
                limited!(self.board.limiter, "second client", now => warn
                    "a second connection to {path} was closed: a board serves one QEMU at a time; give each VM a \
                     HIB of its own");
            }
            Ok(None) => {}
            Err(e) => {
                limited!(self.board.limiter, "accept", now => warn "a connection to {path} could not be taken: {e}");
            }
        }
    }

    /// Receives once, and serves all messages in the input as far as their replies have room and the turn lasts.
    fn serve_client(&mut self, now: u64, readable: bool, pauses: bool) {
        let Some(client) = &mut self.client else { return };
        let mut drained = false;
        let mut closed = None;
        if readable && !client.unread {
            match client.connection.fill() {
                Ok(Filled::Empty) => drained = true,
                Ok(Filled::Closed) => closed = Some("it has closed the connection".to_string()),
                Ok(Filled::Bytes { drained: d, lost_fds }) => {
                    drained = d;
                    if lost_fds {
                        limited!(self.board.limiter, "lost fds", now => warn
                            "file descriptors of the client were lost: it sent too many at once, or this process has \
                             too many open (ulimit -n)");
                    }
                }
                Err(e) => closed = Some(format!("reading from it failed: {e}")),
            }
        }
        let Connection { input, output, .. } = &mut *client.connection;
        client.unread = false;
        let was_negotiated = self.session.negotiated();
        let mut served = 0u32;
        loop {
            served += 1;
            // The input buffer may hold more stores than the reserve has room for.
            let paused = self.intake.pause(now, pauses && self.board.hib().is_nearly_full()).is_some();
            if paused || output.is_full() || (served % CLOCK_EVERY == 0 && self.clock.now() >= now + TURN) {
                client.unread = true;
                break;
            }
            match input.message() {
                Ok(Some(message)) => {
                    self.intake.message(now);
                    if let Err(Refused { why, errno }) = self.session.handle(message, &mut self.board, output) {
                        limited!(self.board.limiter, "message", now => warn
                            "a message of the client was refused: {why} ({errno})");
                    }
                    for (token, value) in self.board.take_completed() {
                        self.session.complete(token, value, output);
                    }
                }
                Ok(None) => break,
                Err(desync) => {
                    closed = Some(desync.to_string());
                    break;
                }
            }
        }
        self.board.pass_stores();
        let unread = client.unread;
        if !was_negotiated && self.session.negotiated() {
            info!("QEMU has connected");
        }
        if let Some(why) = closed {
            self.end_client(&why);
        } else if drained && !unread && self.intake.drained(now) {
            self.dry();
        }
    }

    /// The client's socket is known to be empty: intake is no longer paused.
    fn dry(&mut self) {
        self.paused = false;
        self.board.feed(Event::IntakeDry);
    }

    /// Ends the session of a client whose connection is lost.
    fn end_client(&mut self, why: &str) {
        self.client = None;
        // A connection without a completed handshake (a probe of this process, for example) was not QEMU, and has not
        // changed the board.
        if self.session.negotiated() {
            info!("QEMU has gone ({why}); ready for the next one");
            self.board.client_gone();
        } else {
            let now = self.board.now();
            limited!(self.board.limiter, "visitor", now => debug "a connection ended before it began: {why}");
        }
        self.session.end();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rustix::fs::MemfdFlags;
    use telegraphos_device_core::Bar;
    use telegraphos_link::MemoryLink;
    use telegraphos_link::ring_end::{RingEnd, Within};
    use telegraphos_wire::admin::{self, Command};
    use telegraphos_wire::regs::Register;
    use telegraphos_wire::{Aperture, Body, MAX_BLOCK, Packet, Rights, Status, UNIT, WindowAddress};

    use super::*;
    use crate::vfio::Backend;
    use crate::vfio::message::{DmaMap, dma_map};

    const OWN: u64 = 0x1000;
    const PEER: u64 = 0x2000;
    /// Admin slots and, behind them, a status page.
    const MEMORY: u64 = 1 << 20;
    const STATUS_PAGE: u64 = MEMORY / 2;

    /// The server of node 0, of whose process this test is the rest: the fabric, and node 1 at the other end of a ring.
    struct Host {
        server: HibServer,
        memory: std::os::fd::OwnedFd,
        fabric: MemoryLink,
        peer: Within,
        commands: u32,
        _dir: tempfile::TempDir,
    }

    impl Host {
        /// Both have joined, and node 0 has imported an export page of node 1 as import 0.
        fn start() -> Host {
            let dir = tempfile::tempdir().unwrap();
            let config = Config {
                socket: dir.path().join("hib.sock"),
                fabric: dir.path().join("fabric.sock"),
                hib: HibConfig::new(0),
                spin: None,
                dma_limit: MEMORY,
                direct: None,
            };
            let (mut server, door) = (HibServer::bind(config).unwrap(), Door::new().unwrap());
            server.join_by(door.clone(), false);
            turn(&mut server);
            let fabric = door.enter().pop().unwrap();
            let [near, peer] = Within::pair();
            fabric.send(Frame::Welcome { incarnation: OWN, nodes: 2, credits: [8; 4] }).unwrap();
            fabric.send(Frame::NodeUp { node: 1, incarnation: PEER, block: MAX_BLOCK as u32 }).unwrap();
            fabric.attach(near);
            let ring = Frame::Ring { node: 1, incarnation: PEER, own: OWN, bytes: 0, credits: 8, side: 0 };
            fabric.send(ring).unwrap();

            let memory = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&memory, MEMORY).unwrap();
            let flags = dma_map::READ | dma_map::WRITE;
            let map = DmaMap { argsz: 32, flags, offset: 0, address: 0, size: MEMORY };
            server.board.dma_map(map, Some(memory.try_clone().unwrap())).unwrap();
            server.board.feed(Event::BusMaster(true));
            let mut host = Host { server, memory, fabric, peer, commands: 0, _dir: dir };
            host.turn();
            assert_eq!(host.received(), [Frame::Probe]);
            host.send(Frame::Alive);
            host.turn();
            host.command(Command { opcode: admin::CONTEXT_OPEN, address: STATUS_PAGE, ..Command::default() });
            host.command(Command {
                opcode: admin::IMPORT_SET,
                node: 1,
                count: 1,
                generation: 1,
                length: UNIT,
                rights: Rights::WRITE.0,
                ..Command::default()
            });
            assert_eq!(host.server.board.hib().import_progress(0), Some((0, 0)));
            host
        }

        fn turn(&mut self) {
            turn(&mut self.server);
        }

        fn command(&mut self, command: Command) {
            self.commands += 1;
            let command = Command { seq: self.commands, ..command };
            let at = u64::from(self.commands) * admin::BLOCK_SIZE as u64;
            rustix::io::pwrite(&self.memory, bytemuck::bytes_of(&command), at).unwrap();
            let (register, size) = (Register::AdminDoorbell, Register::AdminDoorbell.size().into());
            let write = Event::Write { bar: Bar::Control, offset: register.offset(), size, data: self.commands.into() };
            self.server.board.feed(write);
        }

        /// Node 1 sends by the ring.
        fn send(&mut self, frame: Frame) {
            self.peer.send(frame, None);
            self.peer.flush().unwrap();
        }

        /// What node 1 has received by the ring.
        fn received(&mut self) -> Vec<Frame> {
            let mut frames = VecDeque::new();
            self.peer.receive(0, &mut frames).unwrap();
            frames.into_iter().map(|passing| passing.frame).collect()
        }
    }

    fn turn(server: &mut HibServer) {
        assert!(!server.turn([Readiness::NONE; PLACES], true).unwrap());
    }

    /// A board that is reset has acknowledged by its rings what it performed until then, and announces the reset by the
    /// fabric. Both may be there before the same turn of another board.
    #[test]
    fn acknowledgements_by_a_ring_come_before_the_reset_that_the_fabric_announces() {
        let mut host = Host::start();
        let address = WindowAddress { aperture: Aperture::Plain, node: 1, offset: 0 };
        let offset = host.server.board.hib().config().window.encode(address).unwrap();
        host.server.board.feed(Event::Write { bar: Bar::Window, offset, size: 8, data: 7 });
        host.turn();
        let received = host.received();
        let [Frame::Packet(Packet { tag, incarnation, body: Body::Write { .. }, .. })] = received[..] else {
            panic!("{received:?}")
        };
        let body = Body::WriteAck { status: Status::Ok };
        host.send(Frame::Packet(Packet { src: 1, dst: 0, tag, incarnation, target: 0, body }));
        host.fabric.send(Frame::NodeUp { node: 1, incarnation: PEER + 1, block: MAX_BLOCK as u32 }).unwrap();
        host.turn();
        let hib = host.server.board.hib();
        assert_eq!((hib.import_progress(0), hib.counters().dropped), (Some((1, 1)), 0), "the store was performed");
        assert_eq!(hib.import_state(0) >> 16, Status::Reset as u64, "the import is of the earlier incarnation");
    }
}
