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

mod capturing;
mod config;
mod connection;
mod control;
mod doorway;
mod faults;
mod report;
mod rings;
mod serving;
mod sessions;
#[cfg(test)]
mod tests;
mod trunks;
mod turns;
mod unpaid;
mod views;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use capturing::Capturing;
pub(crate) use config::system;
use log::{debug, info};
use rustix::io::Errno;
use telegraphos_fabric_core::{Action, Attached, Diagnostic, Event, Part, PortId, Switch};
use telegraphos_link::Door;
use telegraphos_link::limit::Limiter;
use telegraphos_link::listener::Listener;
use telegraphos_service::shutdown::ShutdownHandle;
use telegraphos_topology::{SwitchId, Topology};
use telegraphos_transport::faults::{Faults, Schedule};
use telegraphos_transport::{Acceptor, Transport};
use telegraphos_wire::link::{Frame, incarnation_at};
use telegraphos_wire::{MAX_BLOCK, NodeId, STREAM_BLOCK, WindowLayout};

use crate::control::{ControlServer, Limits};
use crate::metrics::MetricsServer;

pub use config::{Config, FabricError};
use connection::{Connection, OUT_ROOM, Place, Role};
use control::Commands;
use doorway::Doorway;
use rings::Rings;
use sessions::Sessions;
use trunks::{TrunkEnd, Trunks};
use turns::Turns;
use unpaid::Unpaid;
use watch::{Ready, Source, Watch};

/// Microseconds between two [`Event::Tick`] while there is something to do: what the switches' rates go by.
const TICK: u64 = 100_000;

/// One switch of this process.
#[derive(Debug)]
struct Hosted {
    id: SwitchId,
    /// Empty if it is alone.
    name: String,
    switch: Switch,
}

/// The fabric: bound and listening, not yet running.
#[derive(Debug)]
pub struct Fabric {
    config: Config,
    switches: Vec<Hosted>,
    watch: Watch,
    stop: ShutdownHandle,
    listener: Listener,
    /// Admission of its connections.
    doorway: Doorway,
    connections: Vec<Option<Connection>>,
    turns: Turns,
    /// By port: when its transport has something to do without any event.
    timed: BTreeMap<PortId, u64>,
    /// Where HIBs of this process hand in the ends of their links.
    door: Door,
    /// The ports of these, which no descriptor reports where they share the fabric's thread.
    in_memory: Vec<PortId>,
    /// Buffer, kept to reuse its allocation.
    attentive: Vec<(PortId, bool)>,
    /// Work of the current turn so far.
    work: i64,
    trunks: Vec<TrunkEnd>,
    /// Where other processes call for trunks.
    acceptors: Vec<Box<dyn Acceptor>>,
    /// By acceptor: not watched until then, since it failed.
    resting: Vec<Option<u64>>,
    accepted: u64,
    /// Connections to flush.
    touched: VecDeque<PortId>,
    actions: Vec<Action>,
    control: Option<ControlServer>,
    /// A client of `control`, so it is dropped after it.
    _metrics: Option<MetricsServer>,
    unpaid: Unpaid,
    commands: Commands,
    sessions: Sessions,
    /// Rounds of the loop.
    wakeups: u64,
    limiter: Limiter,
    faults: Faults,
    schedule: Schedule,
    capturing: Option<Capturing>,
    /// How often faults were placed, or a capture has begun or ended.
    observations: u64,
    rings: Rings,
    started: Instant,
    /// Microseconds since `started`, as of this round.
    now: u64,
    /// When the next [`Event::Tick`] is due.
    tick: Option<u64>,
    /// When the last one was sent.
    ticked: u64,
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
        let switches = host(&config, topology.as_ref())?;
        let faults = Faults::new(config.seed);
        let schedule = std::mem::take(&mut config.schedule);
        let Trunks { ends: trunks, acceptors } = Trunks::of(&config, &switches, &faults)?;
        let watch = Watch::new(&stop)?;
        // First, so that a client that finds the socket for HIBs finds the others, too. But if both are taken, the
        // error names that for HIBs.
        let served = control::serve(&config);
        let listener = Listener::bind(&config.listen, "--listen")?;
        let (control, metrics) = served?;
        if let Some(control) = &control {
            watch.add(control.fd(), Source::Control).map_err(system("watch a descriptor"))?;
        }
        watch.add(listener.fd(), Source::Listener).map_err(system("watch a descriptor"))?;
        let door = Door::new().map_err(system("create an event descriptor"))?;
        watch.add(door.fd(), Source::Door).map_err(system("watch a descriptor"))?;
        info!("listening at {} for up to {} nodes", listener.path().display(), config.nodes);
        let tick = config.shortest_limit().map(|_| 0);
        let rings = Rings::new(config.rings as usize);
        let mut fabric = Fabric {
            doorway: Doorway::new(config.accept_rate),
            config,
            switches,
            watch,
            stop,
            listener,
            connections: Vec::new(),
            turns: Turns::default(),
            timed: BTreeMap::new(),
            door,
            in_memory: Vec::new(),
            attentive: Vec::new(),
            work: 0,
            trunks,
            resting: vec![None; acceptors.len()],
            acceptors,
            accepted: 0,
            touched: VecDeque::new(),
            actions: Vec::new(),
            control,
            _metrics: metrics,
            unpaid: Unpaid::new(),
            commands: Commands::default(),
            sessions: Sessions::default(),
            wakeups: 0,
            limiter: Limiter::default(),
            faults,
            schedule,
            capturing: None,
            observations: 0,
            rings,
            started: Instant::now(),
            now: 0,
            tick,
            ticked: 0,
        };
        fabric.watch_trunks()?;
        fabric.name_links();
        for (name, plan) in std::mem::take(&mut fabric.config.faults) {
            fabric.set_faults(&name, plan)?;
        }
        if let Some(options) = fabric.config.capture.take() {
            fabric.start_capture(options).map_err(Box::new)?;
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

    /// Microseconds until there is something to do without any event; `None` if never.
    fn timeout(&self) -> Option<u64> {
        match self.is_busy() {
            false => self.deadline().map(|at| at.saturating_sub(self.clock())),
            true => Some(0),
        }
    }

    /// Whether there is something to do at once.
    fn is_busy(&self) -> bool {
        !self.turns.is_empty()
            || !self.touched.is_empty()
            || self.door.is_knocked()
            || self.attention().next().is_some()
    }

    /// The links in memory with something to do, and whether their HIBs have gone.
    fn attention(&self) -> impl Iterator<Item = (PortId, bool)> + '_ {
        self.in_memory.iter().filter_map(|port| {
            let connection = self.connections.get(*port as usize)?.as_ref()?;
            connection.attention().map(|ended| (*port, ended))
        })
    }

    /// One round of the loop for what is ready. True if it was shut down.
    fn round(&mut self, ready: &[Ready]) -> bool {
        self.now = self.clock();
        self.wakeups += 1;
        let (mut accept, mut control) = (false, false);
        for ready in ready {
            match ready.source {
                Source::Stop => {
                    info!("shutting down");
                    self.stop_capture();
                    self.log_statistics();
                    return true;
                }
                Source::Listener => accept = true,
                // Each round looks there.
                Source::Door => {}
                Source::Control => control = true,
                Source::Acceptor(index) => self.accept_trunk(index as usize),
                Source::Port(port) => self.ready(port, ready.ended),
            }
        }
        self.enter();
        // What lies in memory costs no call to find.
        let mut attention = std::mem::take(&mut self.attentive);
        attention.extend(self.attention());
        attention.drain(..).for_each(|(port, ended)| self.ready(port, ended));
        self.attentive = attention;
        self.timers();
        self.take_turns();
        if accept {
            self.accept();
        }
        self.control(control);
        self.tend_rings();
        self.flush();
        self.tend_capture();
        false
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When there is something to do without any event.
    fn deadline(&self) -> Option<u64> {
        let transports = self.timed.values().copied();
        let trunks = self.trunks.iter().filter_map(|end| end.retry);
        let acceptors = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        let resting =
            self.resting.iter().flatten().copied().chain(self.doorway.closed_until).chain(self.unpaid.deadline());
        let control = self.control.as_ref().and_then(ControlServer::deadline);
        let scheduled = self.schedule.deadline();
        let all = transports.chain(trunks).chain(acceptors).chain(resting);
        all.chain(self.tick).chain(scheduled).chain(control).min()
    }

    fn timers(&mut self) {
        self.run_schedule();
        let now = self.now;
        let due: Vec<PortId> = self.timed.iter().filter(|(_, at)| **at <= now).map(|(port, _)| *port).collect();
        due.into_iter().for_each(|port| self.ready(port, false));
        self.end_rests();
        self.open_trunks();
        if self.doorway.closed_until.is_some_and(|at| at <= now) {
            self.open_doorway();
        }
        let due = self.tick.is_some_and(|at| at <= now);
        if due {
            self.tick = self.config.shortest_limit().map(|limit| now + (limit / 4).max(1000));
        }
        if due || now >= self.ticked.saturating_add(TICK) {
            self.ticked = now;
            for switch in 0..self.switches.len() {
                self.event(switch, Event::Tick { now });
            }
        }
        if due {
            self.probe_trunks();
        }
    }

    /// A port's connection, if it is open.
    fn connection(&mut self, port: PortId) -> Option<&mut Connection> {
        self.connections.get_mut(port as usize)?.as_mut()
    }

    // ---- connections ----

    /// The port of a node that has joined.
    fn port_of(&self, node: NodeId) -> Option<PortId> {
        let mut open = self.switches.iter().flat_map(|hosted| hosted.switch.open_ports());
        open.find(|(attached, ..)| *attached == Attached::Node(node)).map(|(_, port, _)| port)
    }

    /// A new connection gets a port. If it cannot be watched it is ended, and nothing else.
    fn connect(&mut self, transport: Box<dyn Transport>, switch: usize, role: Role) -> Result<PortId, Errno> {
        let port = match self.connections.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        self.watch.add(transport.fd(), Source::Port(port as u32))?;
        self.accepted += 1;
        self.connections[port] = Some(Connection::new(transport, switch, role, self.accepted));
        self.touch(port as PortId);
        Ok(port as PortId)
    }

    /// Forgets a connection.
    fn end(&mut self, port: PortId) {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::take) else { return };
        let place = connection.place();
        if let Role::Trunk(index) = place.role {
            self.sessions.transport_ended(index, connection.transport.statistics());
        }
        // Closing the descriptor takes it out of the epoll set.
        drop(connection);
        self.vacate(port, place);
    }

    /// Releases what a connection that has ended held in this process, and reports the end to its switch.
    fn vacate(&mut self, port: PortId, place: Place) {
        let Place { switch, role, .. } = place;
        self.timed.remove(&port);
        self.in_memory.retain(|other| *other != port);
        if place.queued {
            let of = |queue: &mut VecDeque<PortId>| queue.retain(|queued| *queued != port);
            of(if role.is_identified() { &mut self.turns.identified } else { &mut self.turns.unidentified });
        }
        if let Some(process) = place.process {
            self.doorway.left(process, place.unidentified);
        }
        if !matches!(role, Role::Unidentified | Role::Caller(_)) {
            self.event(switch, Event::PortClosed { port });
        }
        if let Role::Trunk(index) = role {
            self.trunk_ended(index, port);
        }
    }

    // ---- turns ----

    /// A connection has something to do: it gets a turn.
    fn ready(&mut self, port: PortId, ended: bool) {
        self.touch(port);
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return };
        connection.ended |= ended;
        if !connection.queued {
            connection.queued = true;
            if connection.role.is_identified() {
                // Before those that have more to do than their turns allow: it may be all that it has.
                self.turns.identified.push_front(port);
            } else {
                self.turns.unidentified.push_back(port);
            }
        }
    }

    fn record_malformed(&mut self, switch: usize, port: PortId) {
        let Some(Capturing { recorder, .. }) = &mut self.capturing else { return };
        let connection = self.connections.get(port as usize).and_then(Option::as_ref);
        if let (Some(connection), Some(hosted)) = (connection, self.switches.get(switch)) {
            recorder.malformed(hosted.id, port, connection.unread(), self.now);
        }
    }

    /// The switch of a connection. The first frame identifies it: that of a HIB names its node, that of another switch
    /// the trunk. A connection that names neither is refused by the first switch, or at the first trunk of its
    /// acceptor.
    fn introduce(&mut self, port: PortId, frame: Option<&Frame>) -> usize {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return 0 };
        match connection.role {
            Role::Unidentified => {
                let home = match (frame, &self.config.plan) {
                    (Some(Frame::Hello { node, .. }), Some(plan)) => plan.topology.switch_of(*node),
                    _ => None,
                };
                let switch = self.switches.iter().position(|hosted| Some(hosted.id) == home).unwrap_or(0);
                (connection.switch, connection.role) = (switch, Role::Joining);
                let block = if connection.is_in_memory() { MAX_BLOCK } else { STREAM_BLOCK } as u32;
                self.event(switch, Event::PortOpened { port, room: OUT_ROOM as u32, block });
                switch
            }
            Role::Caller(acceptor) => self.identify_trunk(port, acceptor, frame),
            Role::Joining | Role::Link | Role::Trunk(_) => connection.switch,
        }
    }

    fn touch(&mut self, port: PortId) {
        if let Some(connection) = self.connection(port) {
            if !connection.touched {
                connection.touched = true;
                self.work += turns::CALL;
                self.touched.push_back(port);
            }
        }
    }

    /// Ends a connection once its output was offered to it.
    fn close(&mut self, port: PortId) {
        if let Some(connection) = self.connection(port) {
            connection.closing = true;
        }
        self.touch(port);
    }

    /// Sends what each connection has queued; connections that get more by it follow in the next round.
    fn flush(&mut self) {
        for _ in 0..self.touched.len() {
            let Some(port) = self.touched.pop_front() else { return };
            let now = self.now;
            let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { continue };
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
                    self.ready(port, true);
                }
                Ok(more) => {
                    let writable = connection.transport.wants_write();
                    if connection.watched != writable {
                        connection.watched = writable;
                        let interest = connection.interest();
                        if let Err(e) = self.watch.interest(connection.transport.fd(), Source::Port(port), interest) {
                            self.complain_of(port, format_args!("port {port} cannot be watched: {e}; it is ended"));
                            self.end(port);
                            continue;
                        }
                    }
                    match connection.transport.deadline() {
                        Some(at) => _ = self.timed.insert(port, at),
                        None if self.timed.is_empty() => {}
                        None => _ = self.timed.remove(&port),
                    }
                    let (switch, role, free) = (connection.switch, connection.role, connection.room());
                    // When it is worth it; when nothing waits for the transport any more it always is.
                    if free >= OUT_ROOM / 2 && !matches!(role, Role::Unidentified | Role::Caller(_)) {
                        self.event(switch, Event::PortRoom { port, frames: free as u32 });
                    }
                    if more {
                        self.touch(port);
                    }
                }
            }
        }
    }

    // ---- the switches ----

    fn event(&mut self, switch: usize, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        if let Some(hosted) = self.switches.get_mut(switch) {
            if let Some(Capturing { recorder, .. }) = &mut self.capturing {
                // What was no frame is recorded with its bytes, where they are known.
                if !matches!(event, Event::Malformed { .. }) {
                    recorder.event(hosted.id, &event, self.now);
                }
            }
            hosted.switch.handle(event, &mut actions);
            if let Some(Capturing { recorder, .. }) = &mut self.capturing {
                actions.iter().for_each(|action| recorder.action(hosted.id, action, self.now));
            }
        }
        for action in actions.drain(..) {
            match action {
                Action::Send(port, frame) => {
                    self.work += turns::FRAME;
                    self.ring_notified(port, &frame);
                    let now = self.now;
                    if let Some(connection) = self.connection(port) {
                        if matches!(frame, Frame::Probe) {
                            connection.probed(now);
                        }
                        let welcome = matches!(frame, Frame::Welcome { .. });
                        let bytes = connection.queue(frame);
                        self.work += (bytes / turns::BYTES) as i64;
                        if welcome {
                            self.identified(port, Role::Link);
                        }
                    }
                    self.touch(port);
                }
                Action::Close(port) => self.close(port),
                Action::Diagnostic(diagnostic) => self.diagnostic(switch, &diagnostic),
            }
        }
        self.actions = actions;
    }

    fn diagnostic(&mut self, switch: usize, diagnostic: &Diagnostic) {
        match *diagnostic {
            Diagnostic::Joined { port, node, .. } => {
                if let Some(connection) = self.connection(port) {
                    connection.node = Some(node);
                }
                self.ring_node_joined(port, node);
                self.place_faults_of(port, node);
            }
            Diagnostic::Left { node, .. } => self.ring_node_left(node),
            Diagnostic::TrunkUp { port, .. } => self.probe_trunk(port),
            _ => {}
        }
        let name = self.switches.get(switch).map_or("", |hosted| hosted.name.as_str()).to_owned();
        self.sessions.diagnostic(switch, diagnostic, self.now);
        self.log_diagnostic(&name, diagnostic);
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
        self.fabric.watch.fd()
    }

    /// Microseconds until a round is needed although [`Rounds::fd`] is not readable; `None` if never.
    pub fn timeout(&self) -> Option<u64> {
        self.fabric.timeout()
    }

    /// A number that changes with the answer of [`Rounds::observes`].
    pub fn observations(&self) -> u64 {
        self.fabric.observations
    }

    /// Whether what these nodes send each other must pass their links now: one of those has faults, or all is captured.
    pub fn observes(&self, nodes: &[NodeId]) -> bool {
        self.fabric.observes(nodes)
    }

    /// Where HIBs of the same process join without a socket.
    pub fn door(&self) -> Door {
        self.fabric.door.clone()
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
        self.fabric.watch.wait(limit, &mut self.ready)?;
        Ok(self.fabric.round(&self.ready))
    }
}

/// The switches of this process.
fn host(config: &Config, topology: Option<&Arc<Topology>>) -> Result<Vec<Hosted>, FabricError> {
    let incarnation = base_incarnation();
    let hosted = |id: SwitchId, name: String, part: Option<Part>| {
        let mut config = config.switch();
        config.part = part;
        config.base_incarnation = incarnation;
        Ok(Hosted { id, name, switch: Switch::new(config)? })
    };
    let (Some(plan), Some(topology)) = (&config.plan, topology) else {
        return Ok(vec![hosted(0, String::new(), None)?]);
    };
    let process = match (&config.process, plan.processes()) {
        (Some(process), known) if known.contains(process) => process,
        (None, [only]) => only,
        (process, known) => {
            return Err(FabricError::Process { process: process.clone(), known: known.to_vec() });
        }
    };
    plan.switches_of(process)
        .map(|switch| hosted(switch, topology.name(switch), Some(Part { topology: topology.clone(), switch })))
        .collect()
}

/// From the time of day, so that a restarted fabric uses no incarnation twice.
fn base_incarnation() -> u64 {
    incarnation_at(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}
