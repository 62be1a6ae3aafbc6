// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell around the switches of one process: a listener for HIBs, one connection per HIB and per trunk, one epoll
//! loop.
//!
//! ```text
//!   HIBs ═ Listener ─► Connection ─┐              ┌─ Connection ═ trunk ═ another process
//!                       Connection ─┼─ Switch ─────┤
//!   HIBs ═════════════► Connection ─┼─ Switch ─────┴─ Connection ═ trunk between two switches here
//! ```
//!
//! One round of the loop: each connection with input gets one turn of bounded work (`turns.rs`): a receive of up to 64
//! KiB, its frames through its switch as far as the turn goes; a few connections are accepted; then for each connection
//! that got frames one send. The rest continues in the next round. A connection's output buffer holds at most
//! [`connection::OUT_ROOM`] frames: the switch gets the free room and keeps the rest under its own bounds, so a HIB
//! that does not read costs neither memory nor other connections' time. Without work the loop sleeps; it wakes a few
//! times per `silence` to probe quiet ports. HIBs that the same thread serves hand their ends in at a door: what they
//! send is found by asking, before each round, not by a descriptor.
//!
//! Each part has its state and does its work with [`Ports`], which has the connections, the time and the log, and with
//! the parts that its methods are given: [`Switches`], [`Doorway`] (connections of HIBs before their hello),
//! [`Trunks`], [`Rings`], [`Faults`] (and captures), [`Unpaid`], [`Sessions`] (history), [`Commands`]. [`Fabric`] is
//! what runs them: it alone lets a switch handle an event, since what follows may concern any of them.

mod capturing;
mod config;
mod connection;
mod control;
mod doorway;
mod faults;
mod names;
mod ports;
mod report;
mod rings;
mod serving;
mod sessions;
mod switches;
#[cfg(test)]
mod tests;
mod trunks;
mod turns;
mod unpaid;
mod views;
mod watch;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

pub(crate) use config::system;
use log::{debug, info};
use rustix::io::Errno;
use telegraphos_fabric_core::{Action, Diagnostic, Event, PortId};
use telegraphos_link::Door;
use telegraphos_link::listener::Listener;
use telegraphos_service::logging;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_service::wait::WaitSet;
use telegraphos_transport::faults::{FaultPlan, UnknownLink};
use telegraphos_wire::link::Frame;
use telegraphos_wire::{NodeId, WindowLayout};

use crate::control::protocol::VERSION;
use crate::control::snapshot::{Process, Snapshot, Status, Totals};
use crate::control::{ControlServer, Request, Response};
use crate::metrics::MetricsServer;

pub use config::{Config, FabricError};
use connection::{OUT_ROOM, Place, Role};
use control::{Commands, Reach};
use doorway::Doorway;
use faults::Faults;
use ports::Ports;
use rings::Rings;
use sessions::Sessions;
use switches::Switches;
use trunks::Trunks;
use unpaid::Unpaid;
use watch::{READ, Ready, Source};

/// Microseconds between two [`Event::Tick`] while there is something to do: what the switches' rates go by.
const TICK: u64 = 100_000;

/// The fabric: bound and listening, not yet running.
#[derive(Debug)]
pub struct Fabric {
    config: Config,
    stop: ShutdownHandle,
    doorway: Doorway,
    ports: Ports,
    switches: Switches,
    trunks: Trunks,
    rings: Rings,
    faults: Faults,
    unpaid: Unpaid,
    sessions: Sessions,
    commands: Commands,
    control: Option<ControlServer>,
    /// A client of `control`, so it is dropped after it.
    _metrics: Option<MetricsServer>,
    /// Rounds of the loop.
    wakeups: u64,
    /// When the next [`Event::Tick`] is due.
    tick: Option<u64>,
    /// When the last one was sent.
    ticked: u64,
    /// Buffers, kept to reuse their allocations.
    actions: Vec<Action>,
    attentive: Vec<(PortId, bool)>,
}

impl Fabric {
    /// Creates the sockets and listens.
    pub fn bind(config: Config) -> Result<Fabric, FabricError> {
        Fabric::bind_with(config, ShutdownHandle::new().map_err(system("create an event descriptor"))?)
    }

    /// The same with a handle made before.
    pub fn bind_with(mut config: Config, stop: ShutdownHandle) -> Result<Fabric, FabricError> {
        let topology = config.plan.as_ref().map(|plan| Arc::new(plan.topology.clone()));
        if topology.as_ref().is_some_and(|topology| !topology.trunks().is_empty()) {
            // The switches cannot agree on that of the first node to join.
            config.window = config.window.or_else(|| Some(WindowLayout::default()));
        }
        let switches = Switches::of(&config, topology.as_ref())?;
        let faults = Faults::new(config.seed, std::mem::take(&mut config.schedule));
        let trunks = Trunks::of(&config, &switches, &faults.links)?;
        let ports = Ports::new(WaitSet::new().map_err(system("create an epoll set"))?);
        let watched = system("watch a descriptor");
        ports.watch.add(&stop, Source::Stop.place(), READ).map_err(&watched)?;
        // First, so that a client that finds the socket for HIBs finds the others, too. But if both are taken, the
        // error names that for HIBs.
        let served = control::serve(&config);
        let listener = Listener::bind(&config.listen, "--listen")?;
        let (control, metrics) = served?;
        if let Some(control) = &control {
            ports.watch.add(control.fd(), Source::Control.place(), READ).map_err(&watched)?;
        }
        let door = Door::new().map_err(system("create an event descriptor"))?;
        let doorway = Doorway::new(config.accept_rate, listener, door);
        doorway.watch(&ports).map_err(&watched)?;
        info!("listening at {} for up to {} nodes", doorway.listener.path().display(), config.nodes);
        let mut fabric = Fabric {
            tick: config.shortest_limit().map(|_| 0),
            rings: Rings::new(config.rings as usize),
            config,
            stop,
            ports,
            switches,
            doorway,
            trunks,
            faults,
            unpaid: Unpaid::new(),
            sessions: Sessions::default(),
            commands: Commands::default(),
            control,
            _metrics: metrics,
            wakeups: 0,
            ticked: 0,
            actions: Vec::new(),
            attentive: Vec::new(),
        };
        fabric.trunks.watch(&fabric.ports)?;
        // All are known, so that faults can be set by name.
        for (name, ..) in fabric.trunks.named(&fabric.switches) {
            fabric.faults.links.link(&name);
        }
        for (name, plan) in std::mem::take(&mut fabric.config.faults) {
            fabric.set_faults(&name, plan)?;
        }
        if let Some(options) = fabric.config.capture.take() {
            let Fabric { ports, switches, trunks, faults, .. } = &mut fabric;
            faults.start_capture(options, ports, switches, trunks, false).map_err(Box::new)?;
        }
        Ok(fabric)
    }

    /// What ends [`Fabric::run`].
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.stop.clone()
    }

    /// Serves until shut down; then the socket's file is removed and every connection ends.
    pub fn run(self) -> Result<(), FabricError> {
        let mut rounds = Rounds::new(self);
        while !rounds.round(None)? {}
        Ok(())
    }

    // ---- rounds ----

    /// Microseconds until there is something to do without any event; `None` if never.
    fn timeout(&self) -> Option<u64> {
        match self.ports.is_busy() || self.doorway.door.is_knocked() {
            false => self.deadline().map(|at| at.saturating_sub(self.ports.clock())),
            true => Some(0),
        }
    }

    /// When there is something to do without any event.
    fn deadline(&self) -> Option<u64> {
        let transports = self.ports.timed.values().copied();
        let resting = self.doorway.closed_until.into_iter().chain(self.unpaid.deadline());
        let control = self.control.as_ref().and_then(ControlServer::deadline);
        let scheduled = self.faults.schedule.deadline();
        transports.chain(self.trunks.deadline()).chain(resting).chain(self.tick).chain(scheduled).chain(control).min()
    }

    /// One round of the loop for what is ready. True if it was shut down.
    fn round(&mut self, ready: &[Ready]) -> bool {
        self.ports.now = self.ports.clock();
        self.wakeups += 1;
        let (mut accept, mut control) = (false, false);
        for ready in ready {
            match ready.source {
                Source::Stop => {
                    info!("shutting down");
                    self.faults.stop_capture(self.ports.now);
                    report::log_statistics(&self.switches);
                    return true;
                }
                Source::Listener => accept = true,
                // Each round looks there.
                Source::Door => {}
                Source::Control => control = true,
                Source::Acceptor(index) => self.trunks.accept(&mut self.ports, index as usize),
                Source::Port(port) => self.ports.ready(port, ready.ended),
            }
        }
        self.doorway.enter(&mut self.ports);
        // What lies in memory costs no call to find.
        let mut attention = std::mem::take(&mut self.attentive);
        attention.extend(self.ports.attention());
        attention.drain(..).for_each(|(port, ended)| self.ports.ready(port, ended));
        self.attentive = attention;
        self.timers();
        self.take_turns();
        if accept {
            self.accept();
        }
        self.serve_control(control);
        self.rings.tend(&mut self.ports, &mut self.switches, &mut self.faults);
        self.flush();
        if let Some(capturing) = &mut self.faults.capturing {
            capturing.tend();
        }
        false
    }

    fn timers(&mut self) {
        let now = self.ports.now;
        self.faults.run_schedule(now);
        self.place_faults();
        self.ports.timers();
        self.end_rests();
        self.open_trunks();
        self.doorway.open(&mut self.ports);
        let due = self.tick.is_some_and(|at| at <= now);
        if due {
            self.tick = self.config.shortest_limit().map(|limit| now + (limit / 4).max(1000));
        }
        if due || now >= self.ticked.saturating_add(TICK) {
            self.ticked = now;
            for switch in 0..self.switches.0.len() {
                self.event(switch, Event::Tick { now });
            }
        }
        if due {
            self.switches.trunks().for_each(|port| trunks::probe(&mut self.ports, port));
        }
    }

    /// Sends what each connection has queued; connections that get more by it follow in the next round.
    fn flush(&mut self) {
        for _ in 0..self.ports.touched.len() {
            let Some(port) = self.ports.touched.pop_front() else { return };
            let now = self.ports.now;
            let Some(connection) = self.ports.get_mut(port) else { continue };
            connection.touched = false;
            let flushed = connection.flush(now);
            if connection.closing {
                self.end(port);
                continue;
            }
            match flushed {
                Err(e) => {
                    debug!("port {port}: {e}");
                    // What was received before the end is still processed.
                    connection.broken = true;
                    self.ports.ready(port, true);
                }
                Ok(more) => {
                    let writable = connection.transport.wants_write();
                    let deadline = connection.transport.deadline();
                    let (switch, role, free) = (connection.switch, connection.role, connection.room());
                    if std::mem::replace(&mut connection.watched, writable) != writable {
                        if let Err(e) = self.ports.rewatch(port) {
                            self.end_unwatched(port, e);
                            continue;
                        }
                    }
                    match deadline {
                        Some(at) => _ = self.ports.timed.insert(port, at),
                        None if self.ports.timed.is_empty() => {}
                        None => _ = self.ports.timed.remove(&port),
                    }
                    // When it is worth it; when nothing waits for the transport any more it always is.
                    if free >= OUT_ROOM / 2 && !matches!(role, Role::Unidentified | Role::Caller(_)) {
                        self.event(switch, Event::PortRoom { port, frames: free as u32 });
                    }
                    if more {
                        self.ports.touch(port);
                    }
                }
            }
        }
    }

    // ---- connections ----

    /// Forgets a connection.
    fn end(&mut self, port: PortId) {
        let Some(connection) = self.ports.take(port) else { return };
        let place = connection.place();
        if let Role::Trunk(index) = place.role {
            self.sessions.transport_ended(index, connection.transport.statistics());
        }
        // Closing the descriptor takes it out of the set.
        drop(connection);
        self.vacate(port, place);
    }

    fn end_unwatched(&mut self, port: PortId, e: Errno) {
        self.ports.complain_of(port, format_args!("port {port} cannot be watched: {e}; it is ended"));
        self.end(port);
    }

    /// Releases what a connection that has ended held in this process, and reports the end to its switch.
    fn vacate(&mut self, port: PortId, place: Place) {
        self.ports.forget(port, &place);
        let Place { switch, role, .. } = place;
        if let Some(process) = place.process {
            self.doorway.left(process, place.unidentified);
        }
        if !matches!(role, Role::Unidentified | Role::Caller(_)) {
            self.event(switch, Event::PortClosed { port });
        }
        if let Role::Trunk(index) = role {
            self.trunks.ended(index, port, self.ports.now);
        }
    }

    // ---- faults ----

    /// Changes what is wrong with a link or trunk.
    fn set_faults(&mut self, name: &str, plan: FaultPlan) -> Result<(), UnknownLink> {
        self.faults.set(name, plan)?;
        self.place_faults();
        Ok(())
    }

    /// If faults were set, gives the links that are to have some a place for them.
    fn place_faults(&mut self) {
        if !std::mem::take(&mut self.faults.unplaced) {
            return;
        }
        self.faults.changes += 1;
        // The withdrawal of rings goes before the faults.
        self.rings.tend(&mut self.ports, &mut self.switches, &mut self.faults);
        // What they held back may be due at another time, or at once.
        self.ports.touch_all();
        for (port, node) in self.switches.nodes().collect::<Vec<_>>() {
            self.place_faults_of(port, node);
        }
    }

    /// The same for one link.
    fn place_faults_of(&mut self, port: PortId, node: NodeId) {
        if let Some(place) = self.faults.place(&mut self.ports, port, node) {
            self.vacate(port, place);
        }
    }

    // ---- the switches ----

    fn event(&mut self, switch: usize, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        if let Some(hosted) = self.switches.0.get_mut(switch) {
            let now = self.ports.now;
            if let Some(capturing) = &mut self.faults.capturing {
                capturing.event(hosted.id, &event, now);
            }
            hosted.switch.handle(event, &mut actions);
            if let Some(capturing) = &mut self.faults.capturing {
                capturing.actions(hosted.id, &actions, now);
            }
        }
        for action in actions.drain(..) {
            match action {
                Action::Send(port, frame) => self.send(port, frame),
                Action::Close(port) => self.ports.close(port),
                Action::Diagnostic(diagnostic) => self.diagnostic(switch, &diagnostic),
            }
        }
        self.actions = actions;
    }

    /// Queues a frame of a switch.
    fn send(&mut self, port: PortId, frame: Frame) {
        self.ports.work += turns::FRAME;
        self.rings.notified(port, &frame);
        let now = self.ports.now;
        if let Some(connection) = self.ports.get_mut(port) {
            if matches!(frame, Frame::Probe) {
                connection.probed(now);
            }
            let welcome = matches!(frame, Frame::Welcome { .. });
            let bytes = connection.queue(frame);
            self.ports.work += (bytes / turns::BYTES) as i64;
            if welcome {
                self.identified(port);
            }
        }
        self.ports.touch(port);
    }

    /// The node of a connection has joined.
    fn identified(&mut self, port: PortId) {
        if let Some(process) = self.ports.identified(port, Role::Link) {
            self.doorway.identified(process);
        }
    }

    fn diagnostic(&mut self, switch: usize, diagnostic: &Diagnostic) {
        match *diagnostic {
            Diagnostic::Joined { port, node, .. } => {
                if let Some(connection) = self.ports.get_mut(port) {
                    connection.node = Some(node);
                }
                self.rings.joined(&self.ports, port, node);
                self.place_faults_of(port, node);
            }
            Diagnostic::Left { node, .. } => self.rings.left(node),
            Diagnostic::TrunkUp { port, .. } => trunks::probe(&mut self.ports, port),
            _ => {}
        }
        let now = self.ports.now;
        self.sessions.diagnostic(switch, diagnostic, now);
        let name = self.switches.0.get(switch).map_or("", |hosted| hosted.name.as_str());
        self.ports.log.diagnostic(now, name, diagnostic);
    }

    // ---- the control socket ----

    /// Serves the control socket, if it is ready or its deadline has passed.
    fn serve_control(&mut self, ready: bool) {
        let now = self.ports.now;
        let due = self.control.as_ref().and_then(ControlServer::deadline).is_some_and(|at| at <= now);
        if !ready && !due {
            return;
        }
        if let Some(mut control) = self.control.take() {
            control.ready(now, &mut |request| self.perform(request));
            self.control = Some(control);
        }
    }

    /// Answers a query, or performs a command. Errors name the value and what was expected.
    fn perform(&mut self, request: &Request) -> Result<Response, String> {
        let Fabric { config, switches, ports, trunks, faults, commands, wakeups, .. } = &mut *self;
        let reach = Reach { config, switches, ports, trunks, faults, late: *wakeups > 0 };
        if let Some(done) = commands.perform(request, reach)? {
            self.place_faults();
            return Ok(Response::Done(done));
        }
        Ok(match request {
            Request::Status {} => Response::Status(self.status()),
            Request::Topology {} => Response::Topology(views::topology(&self.config, &self.switches)),
            Request::Faults {} => Response::Faults(views::faults(&self.faults, &self.trunks, &self.commands)),
            _ => {
                self.rings.count(&mut self.switches);
                Response::Statistics(self.snapshot())
            }
        })
    }

    fn process(&self) -> Process {
        Process::measure(self.ports.started, self.doorway.listener.path().display().to_string(), self.wakeups)
    }

    fn status(&self) -> Status {
        let trunks_up = self.trunks.ends.iter().filter(|end| self.sessions.trunk(end.switch, end.trunk).up).count();
        Status {
            protocol: VERSION,
            process: self.process(),
            nodes: self.config.nodes,
            present: self.sessions.nodes.iter().filter(|(_, session)| session.up).map(|(node, _)| *node).collect(),
            switches: self.switches.0.iter().map(|hosted| hosted.id).collect(),
            trunks: self.trunks.ends.len() as u32,
            trunks_up: trunks_up as u32,
            capture: self.faults.capturing.as_ref().map(views::capture),
            log: logging::filter(),
        }
    }

    /// Every counter of this process.
    fn snapshot(&self) -> Snapshot {
        let Fabric { ports, switches, trunks, faults, sessions, commands, .. } = self;
        let mut totals = Totals {
            unidentified: self.doorway.ended,
            rests: self.unpaid.rests,
            rings: self.rings.pairs.in_use() as u64,
            rings_lost: self.rings.lost,
            ring_packets: self.rings.packets,
            callers: views::callers(trunks),
            ..Totals::default()
        };
        let nodes = views::nodes(switches, sessions, commands, faults, &mut totals);
        let end = |index| views::trunk_end(trunks, index, switches, sessions, ports, faults);
        let (pairs, other_pairs) = views::pairs(switches);
        Snapshot {
            process: self.process(),
            nodes: self.config.nodes,
            totals,
            ports: nodes,
            trunks: (0..trunks.ends.len()).map(end).collect(),
            pairs,
            other_pairs,
        }
    }
}

/// A fabric in the thread that serves it, round by round: alone ([`Fabric::run`]), or beside other work.
#[derive(Debug)]
pub struct Rounds {
    fabric: Fabric,
    ready: Vec<Ready>,
}

impl Rounds {
    /// Of this fabric; nothing is served yet.
    pub fn new(fabric: Fabric) -> Rounds {
        Rounds { fabric, ready: Vec::new() }
    }

    /// Readable when a round has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fabric.ports.watch.as_fd()
    }

    /// Microseconds until a round is needed although [`Rounds::fd`] is not readable; `None` if never.
    pub fn timeout(&self) -> Option<u64> {
        self.fabric.timeout()
    }

    /// A number that changes with the answer of [`Rounds::observes`].
    pub fn observations(&self) -> u64 {
        self.fabric.faults.changes
    }

    /// Whether what these nodes send each other must pass their links now: one of those has faults, or all is captured.
    pub fn observes(&self, nodes: &[NodeId]) -> bool {
        self.fabric.faults.observes(nodes)
    }

    /// Where HIBs of the same process join without a socket.
    pub fn door(&self) -> Door {
        self.fabric.doorway.door.clone()
    }

    /// One round without a look at the descriptors, if it is due. True if it was.
    pub fn pass(&mut self) -> bool {
        let due = self.timeout() == Some(0);
        if due {
            // Only a descriptor can shut it down.
            self.fabric.round(&[]);
        }
        due
    }

    /// Waits until there is something to do, for at most `limit` microseconds if given, and does one round of it. True
    /// if the fabric was shut down: then no further round may be done.
    pub fn round(&mut self, limit: Option<u64>) -> Result<bool, FabricError> {
        let limit = limit.into_iter().chain(self.fabric.timeout()).min();
        self.ready.clear();
        let ready = |place, found| self.ready.push(Ready::at(place, found));
        self.fabric.ports.watch.wait(limit, ready).map_err(system("wait for events"))?;
        Ok(self.fabric.round(&self.ready))
    }
}
