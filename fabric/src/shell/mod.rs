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
//! that got frames one send. What is left goes on in the next round. A connection's output buffer holds at most
//! [`connection::OUT_ROOM`] frames: the switch is told how many more fit and keeps the rest under its own bounds, so a
//! HIB that does not read costs neither memory nor anybody else's time. With nothing to do the loop sleeps; it wakes a
//! few times per `silence` to ask who has been quiet.

mod capturing;
mod config;
mod connection;
mod control;
mod doorway;
mod faults;
mod lives;
mod report;
#[cfg(test)]
mod tests;
mod trunks;
mod turns;
mod unpaid;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use capturing::Capturing;
use config::system;
use fabric_topology::{SwitchId, Topology};
use log::{debug, info};
use rustix::io::Errno;
use switch_core::{Action, Attached, Event, Notice, Part, PortId, Switch};
use telegraphos_link::limit::Limiter;
use telegraphos_link::listener::Listener;
use telegraphos_transport::faults::{Faults, Schedule};
use telegraphos_transport::{Acceptor, Received, Transport};
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::{Frame, incarnation_at};

use crate::control::{ControlServer, Limits};
use crate::metrics::MetricsServer;

pub use config::{Config, FabricError};
use connection::{Connection, OUT_ROOM, Role};
use control::Commands;
use doorway::Doorway;
use lives::Lives;
use trunks::{TrunkEnd, Trunks};
use turns::{Flow, Turns};
use unpaid::Unpaid;
pub use watch::ShutdownHandle;
use watch::{Events, Ready, Source, Watch};

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
    /// Who may come in by it.
    doorway: Doorway,
    /// By port.
    connections: Vec<Option<Connection>>,
    turns: Turns,
    /// By port: when its transport has something to do without any event.
    timed: BTreeMap<PortId, u64>,
    /// Work of the turn that goes on, so far.
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
    /// Asks `control`, so it goes after that.
    _metrics: Option<MetricsServer>,
    unpaid: Unpaid,
    commands: Commands,
    lives: Lives,
    /// Rounds of the loop.
    wakeups: u64,
    limiter: Limiter,
    faults: Faults,
    schedule: Schedule,
    capturing: Option<Capturing>,
    started: Instant,
    /// Microseconds since `started`, as of this round.
    now: u64,
    /// When the switches are told the time next.
    tick: Option<u64>,
    /// When they were told last.
    ticked: u64,
}

impl Fabric {
    /// Creates the sockets and listens.
    pub fn bind(config: Config) -> Result<Fabric, FabricError> {
        Fabric::bind_with(config, ShutdownHandle::new()?)
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
        // First: whoever has seen the socket for HIBs finds the others, too. But if both are taken, that for HIBs is
        // what is named.
        let served = control::serve(&config);
        let listener = Listener::bind(&config.listen, "--listen")?;
        let (control, metrics) = served?;
        if let Some(control) = &control {
            watch.add(control.fd(), Source::Control).map_err(system("watch a descriptor"))?;
        }
        watch.add(listener.fd(), Source::Listener).map_err(system("watch a descriptor"))?;
        info!("listening at {} for up to {} nodes", listener.path().display(), config.nodes);
        let tick = config.shortest_limit().map(|_| 0);
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
            lives: Lives::default(),
            wakeups: 0,
            limiter: Limiter::default(),
            faults,
            schedule,
            capturing: None,
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
    pub fn run(mut self) -> Result<(), FabricError> {
        let mut events = Events::new();
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            ready.clear();
            let limit = match self.turns.is_empty() && self.touched.is_empty() {
                true => self.deadline().map(|at| at.saturating_sub(self.clock())),
                false => Some(0),
            };
            self.watch.wait(limit, &mut events, &mut ready)?;
            self.now = self.clock();
            self.wakeups += 1;
            let (mut accept, mut control) = (false, false);
            for ready in &ready {
                match ready.source {
                    Source::Stop => {
                        info!("shutting down");
                        self.stop_capture();
                        self.log_statistics();
                        return Ok(());
                    }
                    Source::Listener => accept = true,
                    Source::Control => control = true,
                    Source::Acceptor(index) => self.accept_trunk(index as usize),
                    Source::Port(port) => self.ready(port, ready.ended),
                }
            }
            self.timers();
            self.take_turns();
            if accept {
                self.accept();
            }
            self.control(control);
            self.flush();
            self.tend_capture();
        }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When there is something to do without any event.
    fn deadline(&self) -> Option<u64> {
        let transports = self.timed.values().copied();
        let trunks = self.trunks.iter().filter_map(TrunkEnd::deadline);
        let acceptors = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        let resting =
            self.resting.iter().flatten().copied().chain(self.doorway.closed_until()).chain(self.unpaid.deadline());
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
        if self.doorway.closed_until().is_some_and(|at| at <= now) {
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

    fn connection(&mut self, port: PortId) -> Option<&mut Connection> {
        self.connections.get_mut(port as usize)?.as_mut()
    }

    // ---- connections ----

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
        let (switch, role) = (connection.switch, connection.role);
        self.timed.remove(&port);
        if connection.queued {
            let of = |queue: &mut VecDeque<PortId>| queue.retain(|queued| *queued != port);
            of(if role.is_identified() { &mut self.turns.identified } else { &mut self.turns.unidentified });
        }
        if let Some(process) = connection.process {
            self.doorway.left(process, connection.unidentified);
        }
        if let Role::Trunk(index) = role {
            self.lives.transport_ended(index, connection.transport.statistics());
        }
        // Closing the descriptor takes it out of the epoll set.
        drop(connection);
        if !matches!(role, Role::Stranger | Role::Caller(_)) {
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

    /// One round of turns.
    fn take_turns(&mut self) {
        let mut idle = true;
        for _ in 0..self.turns.identified.len() {
            let Some(port) = self.turns.identified.pop_front() else { break };
            let Some(connection) = self.connection(port) else { continue };
            if !connection.flow.begin() {
                self.turns.identified.push_back(port);
                continue;
            }
            idle = false;
            let flow = connection.flow;
            let (flow, more) = self.turn(port, flow);
            if let Some(connection) = self.connection(port) {
                connection.flow = flow;
                connection.queued = more;
                if more {
                    self.turns.identified.push_back(port);
                }
            }
        }
        if !self.turns.unidentified.is_empty() && self.turns.common.begin() {
            idle = false;
            for _ in 0..self.turns.unidentified.len() {
                if !self.turns.common.may_go_on() {
                    break;
                }
                let Some(port) = self.turns.unidentified.pop_front() else { break };
                let flow = self.turns.common;
                let (flow, more) = self.turn(port, flow);
                self.turns.common = flow;
                let Some(connection) = self.connection(port) else { continue };
                // It may have said meanwhile whose it is.
                connection.queued = false;
                let ended = connection.ended;
                if more {
                    self.ready(port, ended);
                }
            }
        }
        if idle && !self.turns.is_empty() {
            let mut waiting = self.turns.identified.clone();
            waiting.make_contiguous().sort_unstable();
            let connections = self.connections.iter_mut().enumerate();
            let flows = connections.filter(|(port, _)| waiting.binary_search(&(*port as PortId)).is_ok());
            let flows = flows.filter_map(|(_, connection)| Some(&mut connection.as_mut()?.flow));
            let common = Some(&mut self.turns.common).filter(|_| !self.turns.unidentified.is_empty());
            turns::relieve(flows.chain(common));
        }
    }

    /// The frames that a connection has sent, as far as its turn goes: one receive; after a hang-up as many as the
    /// transport still holds, so that the end is seen. Says what is left of the flow, and whether there is more to do
    /// at once.
    fn turn(&mut self, port: PortId, mut flow: Flow) -> (Flow, bool) {
        let mut received = false;
        loop {
            loop {
                let Some(connection) = self.connection(port) else { return (flow, false) };
                if connection.closing || connection.rests() {
                    return (flow, false);
                }
                if !flow.may_go_on() {
                    return (flow, connection.ended || !connection.unread().is_empty());
                }
                let next = connection.next();
                self.work = turns::FRAME;
                match next {
                    Ok(Some(frame)) => {
                        if self.must_wait(port, &frame) {
                            flow.spend(turns::CALL);
                            if let Some(connection) = self.connection(port) {
                                connection.put_back(frame);
                            }
                            return (flow, true);
                        }
                        if self.must_rest(port, &frame) {
                            if let Some(connection) = self.connection(port) {
                                connection.put_back(frame);
                            }
                            return (flow, false);
                        }
                        if self.kept_out(port, &frame) {
                            return (flow, false);
                        }
                        if matches!(frame, Frame::Group { .. }) {
                            self.work += turns::GROUP;
                        }
                        let now = self.now;
                        if let (Frame::Alive, Some(connection)) = (&frame, self.connection(port)) {
                            connection.alive(now);
                        }
                        let switch = self.introduce(port, Some(&frame));
                        self.event(switch, Event::Frame { port, frame });
                    }
                    Ok(None) => break,
                    Err(e) => self.malformed(port, &e),
                }
                flow.spend(self.work);
            }
            let now = self.now;
            let Some(connection) = self.connection(port) else { return (flow, false) };
            if received && !connection.ended {
                return (flow, false);
            }
            if connection.is_full() {
                // What was no more than a hello could be is no hello.
                self.malformed(port, &"its first frame is longer than a hello");
                continue;
            }
            flow.spend(turns::CALL);
            received = true;
            match connection.fill(now) {
                Ok(Received::Bytes(bytes)) => flow.spend((bytes / turns::BYTES) as i64),
                // What is broken has nothing more to say.
                Ok(Received::Nothing) if !connection.broken => return (flow, false),
                Ok(Received::Nothing | Received::End) => {
                    self.end(port);
                    return (flow, false);
                }
                Err(e) => {
                    debug!("port {port}: {e}");
                    self.end(port);
                    return (flow, false);
                }
            }
        }
    }

    fn malformed(&mut self, port: PortId, what: &dyn std::fmt::Display) {
        self.complain_of(port, format_args!("port {port}: {what}"));
        let switch = self.introduce(port, None);
        self.record_malformed(switch, port);
        self.event(switch, Event::Malformed { port });
    }

    /// Whether a hello must wait until the connection that its node had before has been read to its end: a HIB that
    /// comes back finds its place free.
    fn must_wait(&mut self, port: PortId, frame: &Frame) -> bool {
        let Frame::Hello { node, .. } = frame else { return false };
        if self.connection(port).is_none_or(|connection| connection.role != Role::Stranger) {
            return false;
        }
        let old = {
            let mut open = self.switches.iter().flat_map(|hosted| hosted.switch.open_ports());
            open.find(|(attached, ..)| *attached == Attached::Node(*node)).map(|(_, port, _)| port)
        };
        let Some(old) = old.filter(|old| *old != port) else { return false };
        let Some(connection) = self.connection(old) else { return false };
        if !connection.ended && !watch::hung_up(connection.transport.fd()) {
            return false;
        }
        self.ready(old, true);
        true
    }

    fn record_malformed(&mut self, switch: usize, port: PortId) {
        let Some(Capturing { recorder, .. }) = &mut self.capturing else { return };
        let connection = self.connections.get(port as usize).and_then(Option::as_ref);
        if let (Some(connection), Some(hosted)) = (connection, self.switches.get(switch)) {
            recorder.malformed(hosted.id, port, connection.unread(), self.now);
        }
    }

    /// The switch of a connection. Whose it is, is known by its first frame: that of a HIB names its node, that of
    /// another switch the trunk. Whoever names nothing that is here is refused by the first switch, or at the first
    /// trunk, that it might have meant.
    fn introduce(&mut self, port: PortId, frame: Option<&Frame>) -> usize {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return 0 };
        match connection.role {
            Role::Stranger => {
                let home = match (frame, &self.config.plan) {
                    (Some(Frame::Hello { node, .. }), Some(plan)) => plan.topology.switch_of(*node),
                    _ => None,
                };
                let switch = self.switches.iter().position(|hosted| Some(hosted.id) == home).unwrap_or(0);
                (connection.switch, connection.role) = (switch, Role::Joining);
                self.event(switch, Event::PortOpened { port, room: OUT_ROOM as u32 });
                switch
            }
            Role::Caller(acceptor) => self.meet(port, acceptor, frame),
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

    /// Hands on what each connection has to send; those that get more by it follow in the next round.
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
                    // What it sent before its end still counts.
                    connection.broken = true;
                    self.ready(port, true);
                }
                Ok(more) => {
                    let wants = connection.transport.wants_write();
                    if connection.watched != wants {
                        connection.watched = wants;
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
                    if free >= OUT_ROOM / 2 && !matches!(role, Role::Stranger | Role::Caller(_)) {
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
                    let now = self.now;
                    if let Some(connection) = self.connection(port) {
                        let bytes = connection.queue(&frame);
                        if matches!(frame, Frame::Probe) {
                            connection.probed(now);
                        }
                        self.work += (bytes / turns::BYTES) as i64;
                        if matches!(frame, Frame::Welcome { .. }) {
                            self.identified(port, Role::Link);
                        }
                    }
                    self.touch(port);
                }
                Action::Close(port) => {
                    if let Some(connection) = self.connection(port) {
                        connection.closing = true;
                    }
                    self.touch(port);
                }
                Action::Notice(notice) => self.notice(switch, &notice),
            }
        }
        self.actions = actions;
    }

    fn notice(&mut self, switch: usize, notice: &Notice) {
        match *notice {
            Notice::Joined { port, node, .. } => {
                if let Some(connection) = self.connection(port) {
                    connection.node = Some(node);
                }
                self.place_faults_of(port, node);
            }
            Notice::TrunkUp { port, .. } => self.probe_trunk(port),
            _ => {}
        }
        let name = self.switches.get(switch).map_or("", |hosted| hosted.name.as_str()).to_owned();
        self.lives.notice(switch, notice, self.now);
        self.log_notice(&name, notice);
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

/// So that a restarted fabric gives no incarnation again.
fn base_incarnation() -> u64 {
    incarnation_at(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}
