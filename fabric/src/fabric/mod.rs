// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell around the switches of one process: a listener for HIBs, one connection per HIB and per trunk, one epoll loop.
//!
//! ```text
//!   HIBs ═ Listener ─► Connection ─┐              ┌─ Connection ═ trunk ═ another process
//!                       Connection ─┼─ Switch ─────┤
//!   HIBs ═════════════► Connection ─┼─ Switch ─────┴─ Connection ═ trunk between two switches here
//! ```
//!
//! One round of the loop: for each connection with input one receive of up to 64 KiB, its frames through its switch;
//! then for each connection that got frames one send. A connection's output buffer holds at most [`connection::OUT_ROOM`] frames: the
//! switch is told how many more fit and keeps the rest under its own bounds, so a HIB that does not read costs neither
//! memory nor anybody else's time. With nothing to do the loop sleeps; it wakes a few times per `silence` to ask who has been quiet.

mod capturing;
mod config;
mod connection;
mod control;
mod faults;
mod lives;
mod report;
mod trunks;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use fabric_topology::{SwitchId, Topology};
use log::{debug, info};
use switch_core::{Action, Event, Notice, Part, PortId, Switch};
use telegraphos_transport::faults::{Faults, Schedule};
use telegraphos_transport::listener::Listener;
use telegraphos_transport::{Acceptor, Received, Transport, UnixTransport};
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::Frame;

use crate::control::{ControlServer, Limits};
use crate::limit::Limiter;
use crate::metrics::MetricsServer;
use capturing::Capturing;
use config::system;
pub use config::{Config, FabricError};
use connection::{Connection, OUT_ROOM, Role};
use control::Commands;
use lives::Lives;
use trunks::{TrunkEnd, Trunks};
pub use watch::ShutdownHandle;
use watch::{Events, Ready, Source, Watch};

/// Connections beyond one per node and trunk: joiners that are being refused or have not said hello.
const SPARE_CONNECTIONS: usize = 64;

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
    /// The listener is watched.
    accepting: bool,
    /// By port.
    connections: Vec<Option<Connection>>,
    trunks: Vec<TrunkEnd>,
    /// Where other processes call for trunks.
    acceptors: Vec<Box<dyn Acceptor>>,
    accepted: u64,
    limit: usize,
    /// Connections to flush.
    touched: VecDeque<PortId>,
    actions: Vec<Action>,
    control: Option<ControlServer>,
    /// Asks `control`, so it goes after that.
    _metrics: Option<MetricsServer>,
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
        // First: whoever has seen the socket for HIBs finds the others, too. But if both are taken, that for HIBs is what is named.
        let served = control::serve(&config);
        let listener = Listener::bind(&config.listen, "--listen")?;
        let (control, metrics) = served?;
        if let Some(control) = &control {
            watch.add(control.fd(), Source::Control)?;
        }
        watch.add(listener.fd(), Source::Listener)?;
        info!("listening at {} for up to {} nodes", listener.path().display(), config.nodes);
        let tick = config.shortest_limit().map(|_| 0);
        let mut fabric = Fabric {
            limit: config.nodes as usize + trunks.len() + SPARE_CONNECTIONS,
            config,
            switches,
            watch,
            stop,
            listener,
            accepting: true,
            connections: Vec::new(),
            trunks,
            acceptors,
            accepted: 0,
            touched: VecDeque::new(),
            actions: Vec::new(),
            control,
            _metrics: metrics,
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
            let limit = self.deadline().map(|at| at.saturating_sub(self.clock()));
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
                    Source::Acceptor(index) => self.accept_trunk(index as usize)?,
                    Source::Port(port) => self.ready(port, ready.ended)?,
                }
            }
            self.timers()?;
            // After the others: a HIB that comes back must find its old connection ended.
            if accept {
                self.accept()?;
            }
            self.control(control);
            self.flush()?;
            self.tend_capture();
        }
    }

    fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// When there is something to do without any event.
    fn deadline(&self) -> Option<u64> {
        let transports = self.connections.iter().flatten().filter_map(|c| c.transport.deadline());
        let trunks = self.trunks.iter().filter_map(TrunkEnd::deadline);
        let acceptors = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        let control = self.control.as_ref().and_then(ControlServer::deadline);
        let scheduled = self.schedule.deadline();
        transports.chain(trunks).chain(acceptors).chain(self.tick).chain(scheduled).chain(control).min()
    }

    fn timers(&mut self) -> Result<(), FabricError> {
        self.run_schedule();
        for port in 0..self.connections.len() as PortId {
            let now = self.now;
            if self.connection(port).is_some_and(|c| c.transport.deadline().is_some_and(|at| at <= now)) {
                self.ready(port, false)?;
            }
        }
        self.open_trunks()?;
        if self.tick.is_some_and(|at| at <= self.now) {
            self.tick = self.config.shortest_limit().map(|limit| self.now + (limit / 4).max(1000));
            for switch in 0..self.switches.len() {
                self.event(switch, Event::Tick { now: self.now });
            }
            self.probe_trunks();
        }
        Ok(())
    }

    fn connection(&mut self, port: PortId) -> Option<&mut Connection> {
        self.connections.get_mut(port as usize)?.as_mut()
    }

    // ---- connections ----

    fn accept(&mut self) -> Result<(), FabricError> {
        loop {
            let stream = match self.listener.accept() {
                Ok(Some(stream)) => stream,
                Ok(None) => return Ok(()),
                Err(e) if trunks::passes(e) => {
                    if self.connections.iter().all(Option::is_none) {
                        return Err(system("accept the first connection")(e));
                    }
                    self.complain(format_args!(
                        "cannot accept a connection: {e}; waiting until another ends (raise the limit: ulimit -n)"
                    ));
                    return self.watch_listener(false);
                }
                Err(e) => return Err(system("accept connections")(e)),
            };
            if self.connections.iter().flatten().count() >= self.limit {
                self.drop_oldest_stranger()?;
            }
            let transport = UnixTransport::from_stream(stream, &self.config.transport);
            let port = self.connect(Box::new(transport), 0, Role::Stranger)?;
            debug!("connection {} accepted as port {port}", self.accepted);
        }
    }

    /// A new connection gets a port.
    fn connect(&mut self, transport: Box<dyn Transport>, switch: usize, role: Role) -> Result<PortId, FabricError> {
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

    fn watch_listener(&mut self, on: bool) -> Result<(), FabricError> {
        if self.accepting != on {
            if on {
                self.watch.add(self.listener.fd(), Source::Listener)?;
            } else {
                self.watch.remove(self.listener.fd())?;
            }
            self.accepting = on;
        }
        Ok(())
    }

    /// Makes place for a connection; there are more places than nodes, so somebody there has not joined.
    fn drop_oldest_stranger(&mut self) -> Result<(), FabricError> {
        let strangers = self.connections.iter().enumerate().filter_map(|(port, c)| {
            let c = c.as_ref().filter(|c| matches!(c.role, Role::Stranger | Role::Joining | Role::Caller(_)))?;
            Some((c.number, port))
        });
        if let Some((number, port)) = strangers.min() {
            let limit = self.limit;
            self.complain(format_args!("{limit} connections: ending number {number}, which never said hello"));
            self.end(port as PortId)?;
        }
        Ok(())
    }

    /// Forgets a connection.
    fn end(&mut self, port: PortId) -> Result<(), FabricError> {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::take) else { return Ok(()) };
        let (switch, role) = (connection.switch, connection.role);
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
        self.watch_listener(true)
    }

    fn ready(&mut self, port: PortId, ended: bool) -> Result<(), FabricError> {
        self.touch(port);
        self.read(port, ended)
    }

    /// One receive; after a hang-up as many as the transport still holds, so that the end is seen at once.
    fn read(&mut self, port: PortId, ended: bool) -> Result<(), FabricError> {
        loop {
            let now = self.now;
            let Some(connection) = self.connection(port) else { return Ok(()) };
            if connection.closing {
                return Ok(());
            }
            match connection.fill(now) {
                Ok(Received::Nothing) => return Ok(()),
                Ok(Received::End) => return self.end(port),
                Ok(Received::Bytes(_)) => {}
                Err(e) => {
                    debug!("port {port}: {e}");
                    return self.end(port);
                }
            }
            loop {
                let Some(connection) = self.connection(port) else { return Ok(()) };
                if connection.closing {
                    return Ok(());
                }
                match connection.next() {
                    Ok(Some(frame)) => {
                        if self.kept_out(port, &frame) {
                            return Ok(());
                        }
                        if let (Frame::Alive, Some(connection)) = (&frame, self.connection(port)) {
                            connection.alive(now);
                        }
                        let switch = self.introduce(port, Some(&frame));
                        self.event(switch, Event::Frame { port, frame });
                    }
                    Ok(None) => break,
                    Err(e) => {
                        self.complain(format_args!("port {port}: {e}"));
                        let switch = self.introduce(port, None);
                        self.record_malformed(switch, port);
                        self.event(switch, Event::Malformed { port });
                    }
                }
            }
            if !ended {
                return Ok(());
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

    /// The switch of a connection. Whose it is, is known by its first frame: that of a HIB names its node, that of another switch the
    /// trunk. Whoever names nothing that is here is refused by the first switch, or at the first trunk, that it might have meant.
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
                self.touched.push_back(port);
            }
        }
    }

    /// Hands on what each connection has to send, again for those that get more by it.
    fn flush(&mut self) -> Result<(), FabricError> {
        while let Some(port) = self.touched.pop_front() {
            let now = self.now;
            let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { continue };
            connection.touched = false;
            let flushed = connection.flush(now);
            match flushed {
                _ if connection.closing => self.end(port)?,
                Err(e) => {
                    debug!("port {port}: {e}");
                    // What it sent before its end still counts.
                    self.read(port, true)?;
                    self.end(port)?;
                }
                Ok(()) => {
                    let wants = connection.transport.wants_write();
                    if connection.watched != wants {
                        connection.watched = wants;
                        self.watch.writable(connection.transport.fd(), Source::Port(port), wants)?;
                    }
                    let (switch, role, free) = (connection.switch, connection.role, connection.room());
                    // When it is worth it; when nothing waits for the transport any more it always is.
                    if free >= OUT_ROOM / 2 && !matches!(role, Role::Stranger | Role::Caller(_)) {
                        self.event(switch, Event::PortRoom { port, frames: free as u32 });
                    }
                }
            }
        }
        Ok(())
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
                    let now = self.now;
                    if let Some(connection) = self.connection(port) {
                        connection.queue(&frame);
                        match frame {
                            Frame::Welcome { .. } => connection.role = Role::Link,
                            Frame::Probe => connection.probed(now),
                            _ => {}
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
            Notice::Joined { port, node, .. } => self.place_faults_of(port, node),
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

/// So that a restarted fabric does not give an incarnation again: the first join number is the seconds of the clock, in
/// the lower half of the counter's range, which leaves at least 2^19 joins per node. (The seconds come round after six
/// days; a restart would have to meet the same one.)
fn base_incarnation() -> u32 {
    const COUNTER_BITS: u32 = 20;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    ((seconds % (1 << (COUNTER_BITS - 1))) as u32) << (32 - COUNTER_BITS)
}
