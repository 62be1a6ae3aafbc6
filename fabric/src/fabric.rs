// SPDX-License-Identifier: MIT OR Apache-2.0
//! The shell around the switch: a listener, one connection per HIB, one epoll loop without a timer.
//!
//! One round of the loop: for each connection with input one receive of up to 64 KiB, its frames through the switch;
//! then for each connection that got frames one send. A connection's output buffer holds at most [`OUT_ROOM`] frames: the
//! switch is told how many more fit and keeps the rest under its own bounds, so a HIB that does not read costs neither
//! memory nor anybody else's time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use log::{Level, debug, info, log, warn};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use switch_core::{Action, ConfigError, Event, Notice, PortId, Statistics, Switch, SwitchConfig};
use telegraphos_wire::link::{DEFAULT_CREDITS, Frame, MAX_LEN};
use telegraphos_wire::{Class, WindowLayout};

use crate::limit::{Limiter, Suffix};
use crate::link::Input;
use crate::listener::{ListenError, Listener};
use crate::send_queue::SendQueue;

/// Frames of the largest size that one connection's output buffer holds: 2 MiB.
const OUT_ROOM: usize = (2 << 20) / MAX_LEN;
/// Connections beyond one per node: joiners that are being refused or have not said hello.
const SPARE_CONNECTIONS: usize = 64;

/// What a fabric needs to know. Start from [`Config::new`] and change fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Path of the socket to create.
    pub listen: PathBuf,
    /// Number of nodes, 1 to 4096 (64).
    pub nodes: u32,
    /// Packets of each class that one node may have in the switch (256).
    pub credits: u32,
    /// Window layout every HIB must have; `None`: that of the first to join.
    pub window: Option<WindowLayout>,
    /// See [`SwitchConfig::reply_limit`].
    pub reply_limit: Option<u32>,
}

impl Config {
    /// The defaults, listening at `listen`.
    pub fn new(listen: impl Into<PathBuf>) -> Config {
        Config {
            listen: listen.into(),
            nodes: WindowLayout::default().nodes(),
            credits: DEFAULT_CREDITS,
            window: None,
            reply_limit: None,
        }
    }
}

/// Why a fabric does not run.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The system refuses something the fabric cannot do without.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The reason.
        errno: Errno,
    },
    /// Signals cannot be caught.
    #[error("cannot catch SIGINT and SIGTERM: {0}")]
    Signals(String),
}

fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { what, errno }
}

/// Ends a running [`Fabric`] from another thread or a signal handler's thread.
#[derive(Clone, Debug)]
pub struct ShutdownHandle(Arc<OwnedFd>);

impl ShutdownHandle {
    /// A handle for a fabric to come ([`Fabric::bind_with`]), so that signals can be caught before there is a socket.
    pub fn new() -> Result<ShutdownHandle, FabricError> {
        let fd =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("create an event descriptor"))?;
        Ok(ShutdownHandle(Arc::new(fd)))
    }

    /// Makes [`Fabric::run`] return, now or when it is called.
    pub fn shut_down(&self) {
        // It fails only if it has been called 2^64 - 2 times, which shuts down just as well.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

#[derive(Debug)]
struct Connection {
    stream: OwnedFd,
    input: Input,
    output: SendQueue,
    /// The socket was full; nothing is sent until it is writable.
    blocked: bool,
    /// Epoll watches for writable.
    watched: bool,
    /// In the list of connections to flush.
    touched: bool,
    /// To be ended once its output was offered to the socket.
    closing: bool,
    joined: bool,
    /// Order of acceptance.
    number: u64,
}

/// The fabric: bound and listening, not yet running.
#[derive(Debug)]
pub struct Fabric {
    switch: Switch,
    epoll: OwnedFd,
    stop: ShutdownHandle,
    listener: Listener,
    /// The listener is in the epoll set.
    accepting: bool,
    /// By port.
    connections: Vec<Option<Connection>>,
    accepted: u64,
    limit: usize,
    /// Connections to flush.
    touched: VecDeque<PortId>,
    actions: Vec<Action>,
    limiter: Limiter,
    started: Instant,
}

/// What epoll watches on a connection that is not blocked.
const INTEREST: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);
/// Epoll data of what is no port.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

impl Fabric {
    /// Creates the socket and listens.
    pub fn bind(config: Config) -> Result<Fabric, FabricError> {
        Fabric::bind_with(config, ShutdownHandle::new()?)
    }

    /// The same with a handle made before.
    pub fn bind_with(config: Config, stop: ShutdownHandle) -> Result<Fabric, FabricError> {
        let mut switch = SwitchConfig::new(config.nodes);
        switch.window = config.window;
        switch.credits = [config.credits; 4];
        switch.reply_limit = config.reply_limit;
        switch.base_incarnation = base_incarnation();
        let switch = Switch::new(switch)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("create an epoll set"))?;
        let listener = Listener::bind(&config.listen, "--listen")?;
        let add = system("watch a descriptor");
        epoll::add(&epoll, &*stop.0, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN).map_err(&add)?;
        epoll::add(&epoll, listener.fd(), epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN).map_err(&add)?;
        info!("listening at {} for up to {} nodes", listener.path().display(), config.nodes);
        Ok(Fabric {
            switch,
            epoll,
            stop,
            listener,
            accepting: true,
            connections: Vec::new(),
            accepted: 0,
            limit: config.nodes as usize + SPARE_CONNECTIONS,
            touched: VecDeque::new(),
            actions: Vec::new(),
            limiter: Limiter::default(),
            started: Instant::now(),
        })
    }

    /// What ends [`Fabric::run`].
    pub fn shutdown_handle(&self) -> ShutdownHandle {
        self.stop.clone()
    }

    /// Serves until shut down; then the socket's file is removed and every connection ends.
    pub fn run(mut self) -> Result<(), FabricError> {
        let mut events = Vec::with_capacity(256);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(e) => return Err(system("wait for events")(e)),
            }
            let mut accept = false;
            for event in &events {
                match event.data.u64() {
                    STOP => {
                        info!("shutting down");
                        self.log_statistics();
                        return Ok(());
                    }
                    LISTENER => accept = true,
                    port => self.ready(port as PortId, event.flags)?,
                }
            }
            // After the others: a HIB that comes back must find its old connection ended.
            if accept {
                self.accept()?;
            }
            self.flush()?;
        }
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
                Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
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
            let port = match self.connections.iter().position(Option::is_none) {
                Some(free) => free,
                None => {
                    self.connections.push(None);
                    self.connections.len() - 1
                }
            };
            let data = epoll::EventData::new_u64(port as u64);
            epoll::add(&self.epoll, &stream, data, INTEREST).map_err(system("watch a connection"))?;
            self.accepted += 1;
            self.connections[port] = Some(Connection {
                stream,
                input: Input::new(),
                output: SendQueue::default(),
                blocked: false,
                watched: false,
                touched: false,
                closing: false,
                joined: false,
                number: self.accepted,
            });
            debug!("connection {} accepted as port {port}", self.accepted);
            self.event(Event::PortOpened { port: port as PortId, room: OUT_ROOM as u32 });
        }
    }

    fn watch_listener(&mut self, on: bool) -> Result<(), FabricError> {
        if self.accepting != on {
            let data = epoll::EventData::new_u64(LISTENER);
            if on {
                epoll::add(&self.epoll, self.listener.fd(), data, epoll::EventFlags::IN)
            } else {
                epoll::delete(&self.epoll, self.listener.fd())
            }
            .map_err(system("watch the listening socket"))?;
            self.accepting = on;
        }
        Ok(())
    }

    /// Makes place for a connection; there are more places than nodes, so somebody there has not joined.
    fn drop_oldest_stranger(&mut self) -> Result<(), FabricError> {
        let strangers = self.connections.iter().enumerate().filter_map(|(port, c)| {
            let c = c.as_ref().filter(|c| !c.joined)?;
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
        // Closing the descriptor takes it out of the epoll set.
        drop(connection);
        self.event(Event::PortClosed { port });
        self.watch_listener(true)
    }

    fn ready(&mut self, port: PortId, flags: epoll::EventFlags) -> Result<(), FabricError> {
        let hangup = flags.intersects(epoll::EventFlags::HUP | epoll::EventFlags::ERR | epoll::EventFlags::RDHUP);
        if flags.contains(epoll::EventFlags::OUT) {
            if let Some(connection) = self.connection(port) {
                connection.blocked = false;
                self.touch(port);
            }
        }
        if hangup || flags.contains(epoll::EventFlags::IN) {
            self.read(port, hangup)?;
        }
        Ok(())
    }

    /// One receive; after a hang-up as many as the socket still holds, so that the end is seen at once.
    fn read(&mut self, port: PortId, hangup: bool) -> Result<(), FabricError> {
        loop {
            let Some(connection) = self.connection(port) else { return Ok(()) };
            if connection.closing {
                return Ok(());
            }
            match connection.input.fill(connection.stream.as_fd()) {
                Ok(None) => return Ok(()),
                Ok(Some(0)) => return self.end(port),
                Ok(Some(_)) => {}
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
                match connection.input.next() {
                    Ok(Some(frame)) => self.event(Event::Frame { port, frame }),
                    Ok(None) => break,
                    Err(e) => {
                        self.complain(format_args!("port {port}: {e}"));
                        self.event(Event::Malformed { port });
                    }
                }
            }
            if !hangup {
                return Ok(());
            }
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

    /// One send for each connection that has something to send, again for those that get more by it.
    fn flush(&mut self) -> Result<(), FabricError> {
        while let Some(port) = self.touched.pop_front() {
            // Not by the method: the epoll descriptor is needed beside it.
            let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { continue };
            connection.touched = false;
            if connection.blocked && !connection.closing {
                continue;
            }
            let flushed = connection.output.flush(connection.stream.as_fd());
            match flushed {
                _ if connection.closing => self.end(port)?,
                Err(e) => {
                    debug!("port {port}: {e}");
                    // What it sent before its end still counts.
                    self.read(port, true)?;
                    self.end(port)?;
                }
                Ok(done) => {
                    connection.blocked = !done;
                    if connection.watched == done {
                        connection.watched = !done;
                        let flags = if done { INTEREST } else { INTEREST | epoll::EventFlags::OUT };
                        let data = epoll::EventData::new_u64(port.into());
                        epoll::modify(&self.epoll, &connection.stream, data, flags)
                            .map_err(system("watch a connection"))?;
                    }
                    let free = OUT_ROOM.saturating_sub(connection.output.len().div_ceil(MAX_LEN));
                    // When it is worth it; when nothing waits for the socket any more it always is.
                    if free >= OUT_ROOM / 2 {
                        self.event(Event::PortRoom { port, frames: free as u32 });
                    }
                }
            }
        }
        Ok(())
    }

    // ---- the switch ----

    fn event(&mut self, event: Event) {
        let mut actions = std::mem::take(&mut self.actions);
        self.switch.handle(event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::Send(port, frame) => {
                    if let Some(connection) = self.connection(port) {
                        frame.encode(connection.output.bytes());
                        connection.joined |= matches!(frame, Frame::Welcome { .. });
                    }
                    self.touch(port);
                }
                Action::Close(port) => {
                    if let Some(connection) = self.connection(port) {
                        connection.closing = true;
                    }
                    self.touch(port);
                }
                Action::Notice(notice) => self.notice(&notice),
            }
        }
        self.actions = actions;
    }

    // ---- logging ----

    fn notice(&mut self, notice: &Notice) {
        let (kind, level) = match notice {
            Notice::Joined { .. }
            | Notice::Left { .. }
            | Notice::Reset { .. }
            | Notice::Reached { .. }
            | Notice::Lost { .. }
            | Notice::TrunkUp { .. } => ("joins", Level::Info),
            Notice::Refused { .. }
            | Notice::Exhausted { .. }
            | Notice::Violation { .. }
            | Notice::TrunkDown { .. }
            | Notice::TrunkRefused { .. } => ("complaints", Level::Warn),
        };
        if let Some(more) = self.admit(kind) {
            log!(level, "{notice}{more}");
        }
    }

    fn complain(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(more) = self.admit("complaints") {
            warn!("{what}{more}");
        }
    }

    fn admit(&mut self, kind: &'static str) -> Option<Suffix> {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.limiter.admit(kind, now)
    }

    fn log_statistics(&self) {
        let Statistics { ports, joined, refused, violations, answered, .. } = self.switch.statistics();
        info!(
            "{joined} joins, {refused} refused, {violations} thrown out, {answered} requests to absent nodes answered"
        );
        for counted in ports {
            for class in Class::ALL {
                let c = counted.classes[class as usize];
                if c.received_packets + c.sent_packets + c.dropped > 0 {
                    info!(
                        "{}, {class:?}: {} packets ({} bytes) from it, {} ({}) to it, {} of these stalled, at \
                         most {} at once; {} dropped",
                        counted.attached,
                        c.received_packets,
                        c.received_bytes,
                        c.sent_packets,
                        c.sent_bytes,
                        c.stalls,
                        c.depth_max,
                        c.dropped
                    );
                }
            }
        }
    }
}

/// So that a restarted fabric does not give an incarnation again: the first join number is the seconds of the clock, in
/// the lower half of the counter's range, which leaves at least 2^19 joins per node. (The seconds come round after six
/// days; a restart would have to meet the same one.)
fn base_incarnation() -> u32 {
    const COUNTER_BITS: u32 = 20;
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    ((seconds % (1 << (COUNTER_BITS - 1))) as u32) << (32 - COUNTER_BITS)
}
