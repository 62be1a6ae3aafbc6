// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client and a server over a faulty medium in virtual time, and what each must see. Every check is a [`Failure`]
//! with its name, so that the same checks run against the protocol as it is and with a deliberate bug.

mod medium;
pub(crate) mod pair;

use std::collections::BTreeMap;

pub(crate) use medium::{Faults, Medium};
use telegraphos_rdp_core::{Bug, Config, Connection, Datagram, End, Identity, Key, Kind, Listener, Sequence, State};
use telegraphos_testkit::Rng;

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) check: &'static str,
    pub(crate) detail: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.check, self.detail)
    }
}

pub(crate) fn fail<T>(check: &'static str, detail: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { check, detail: detail.into() })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The byte at a place of the stream that the connection with this id sends.
pub(crate) fn byte(id: u64, at: u64) -> u8 {
    let x = (id ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x >> 56) as u8
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// The server's window and segments.
    pub(crate) server: (u16, u16),
    pub(crate) faults: Faults,
    /// When faults and restarts are over.
    pub(crate) calm: u64,
    /// Which side is restarted when, in order.
    pub(crate) restarts: Vec<(u64, Side)>,
    /// From when to when nothing passes.
    pub(crate) partitions: Vec<(u64, u64)>,
    /// Bytes that the client and the server send on each connection.
    pub(crate) bytes: [u64; 2],
    /// In percent: how often an application reads when it looks, which it does each millisecond.
    pub(crate) eager: u64,
    /// The restarted client has another address.
    pub(crate) moves: bool,
    /// The client announces a name.
    pub(crate) named: bool,
}

/// The sizes that the simulations run with: small, so that everything happens often.
pub(crate) fn small(bug: Option<Bug>) -> Config {
    Config {
        window: 16,
        window_floor: 2,
        mtu: 120,
        send_buffer: 3000,
        receive_buffer: 1500,
        timeout_initial: 10_000,
        timeout_max: 100_000,
        silence: 2_000_000,
        bug,
        ..Config::default()
    }
}

impl Plan {
    /// Faults of all kinds in a random mix, with restarts.
    pub(crate) fn random(rng: &mut Rng, bug: Option<Bug>) -> Plan {
        let calm = 500_000 + rng.below(3_000_000);
        let mut config = small(bug);
        config.window = 1 + rng.below(32) as u16;
        config.receive_buffer = 120 + rng.below(4000) as usize;
        let restarts = if rng.percent(50) { rng.below(4) } else { 0 };
        let mut restarts: Vec<(u64, Side)> = (0..restarts)
            .map(|_| (rng.below(calm), if rng.percent(50) { Side::Client } else { Side::Server }))
            .collect();
        restarts.sort_by_key(|(at, _)| *at);
        let partitions = (0..rng.below(3)).map(|_| {
            let at = rng.below(calm);
            let longest = if rng.percent(20) { 3_000_000 } else { 800_000 };
            (at, at + rng.below(longest))
        });
        let partitions = partitions.collect();
        let named = rng.percent(70);
        Plan {
            server: (1 + rng.below(32) as u16, 60 + rng.below(61) as u16),
            config,
            faults: Faults::random(rng),
            calm,
            restarts,
            partitions,
            bytes: [rng.below(30_000), rng.below(30_000)],
            eager: 5 + rng.below(96),
            moves: named && rng.percent(50),
            named,
        }
    }

    fn server(&self) -> Config {
        let (window, mtu) = self.server;
        Config { window, mtu, ..self.config.clone() }
    }

    /// No faults.
    pub(crate) fn calm(config: Config, bytes: [u64; 2]) -> Plan {
        Plan {
            server: (config.window, config.mtu),
            config,
            faults: Faults { delay: 100, ..Faults::default() },
            calm: 0,
            restarts: Vec::new(),
            partitions: Vec::new(),
            bytes,
            eager: 100,
            moves: false,
            named: true,
        }
    }
}

/// An application's view of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Application {
    wrote: u64,
    read: u64,
    pub(crate) ended: bool,
    over: Option<End>,
}

/// What the medium shows of one sending end.
#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    first: u32,
    /// Segments acknowledged by what was delivered.
    acknowledged: u32,
}

/// How often what happened in a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(crate) fn add(&mut self, other: Tally) {
        other.0.into_iter().for_each(|(what, times)| self.count(what, times));
    }
}

pub(crate) struct World {
    plan: Plan,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) medium: Medium,
    pub(crate) client: Connection,
    client_address: u32,
    pub(crate) server: Listener<u32>,
    /// By the connection's own id, of both sides.
    pub(crate) applications: BTreeMap<u64, Application>,
    watches: BTreeMap<u64, Watch>,
    /// When the applications look next.
    look: u64,
    /// If always after the same time.
    every: Option<u64>,
    restarts: usize,
    pub(crate) tally: Tally,
    /// Since the last connection of the client was opened, something happened that may end it.
    disturbed: bool,
    buffer: Vec<u8>,
}

impl World {
    pub(crate) fn new(plan: Plan, mut rng: Rng) -> World {
        let identity = identity(&mut rng);
        let name = if plan.named { 77 } else { 0 };
        let server = Listener::new(plan.server()).unwrap();
        let client = Connection::open(plan.config.clone(), identity, name, 0).unwrap();
        let medium = Medium::new(plan.faults.clone(), plan.partitions.clone());
        let mut world = World {
            server,
            client,
            client_address: 1,
            medium,
            rng,
            now: 0,
            applications: BTreeMap::new(),
            watches: BTreeMap::new(),
            look: 0,
            every: None,
            restarts: 0,
            tally: Tally::default(),
            disturbed: false,
            buffer: Vec::new(),
            plan,
        };
        world.watch(identity);
        world
    }

    /// The applications look so often, eagerly.
    pub(crate) fn look_every(&mut self, time: u64) {
        self.every = Some(time);
    }

    /// Bytes that the server's applications have read.
    pub(crate) fn read_by_server(&self) -> u64 {
        let read = self.server.keys().filter_map(|key| self.applications.get(&key)).map(|a| a.read);
        read.sum()
    }

    fn watch(&mut self, identity: Identity) {
        self.watches.insert(identity.id, Watch { first: identity.sequence, acknowledged: 0 });
        self.applications.insert(identity.id, Application::default());
    }

    /// Runs until the last connection has moved everything both ways and is closed; what happened.
    pub(crate) fn run(mut self) -> Result<Tally, Failure> {
        self.run_through()?;
        Ok(self.tally)
    }

    /// The same; what happened is in it.
    pub(crate) fn run_through(&mut self) -> Result<(), Failure> {
        // Long enough for a silence, a new connection, and everything to be sent again.
        let limit = self.plan.calm + 60_000_000;
        while !self.done() {
            if self.now > limit {
                return fail(
                    "liveness",
                    format!("{} us after the last fault: {}", self.now - self.plan.calm, self.picture()),
                );
            }
            self.step()?;
        }
        self.finish()
    }

    fn picture(&self) -> String {
        let client = &self.client;
        let servers = self.server.keys().filter_map(|k| self.server.connection(k));
        let servers: Vec<_> = servers.map(|c| (c.state(), c.outstanding(), c.available())).collect();
        format!("client {:?} {:?}, servers {servers:?}", client.state(), self.applications.get(&client.id()))
    }

    fn done(&self) -> bool {
        let settled = self.now >= self.plan.calm && self.restarts == self.plan.restarts.len();
        settled && self.client.state() == State::Ended(End::Closed) && self.server.keys().all(|k| self.over(k))
    }

    fn over(&self, key: Key) -> bool {
        self.server.connection(key).is_none_or(|c| matches!(c.state(), State::Ended(_)) && c.available() == 0)
    }

    pub(crate) fn step(&mut self) -> Result<(), Failure> {
        let restart = self.plan.restarts.get(self.restarts).map(|(at, _)| *at);
        let next = [self.medium.next(), self.client.deadline(), self.server.deadline(), restart, Some(self.look)];
        self.now = next.into_iter().flatten().min().unwrap_or(self.look).max(self.now);
        if self.now >= self.plan.calm {
            self.medium.calm();
        }
        if restart.is_some_and(|at| at <= self.now) {
            self.restart();
        }
        if self.look <= self.now {
            self.look = self.now + self.every.unwrap_or_else(|| 1000 + self.rng.below(8000));
            self.applications()?;
        }
        self.client.timer(self.now);
        self.server.timer(self.now);
        while let Some((to, address, bytes)) = self.medium.arrived(self.now) {
            self.deliver(to, address, &bytes)?;
            self.transmit()?;
        }
        self.transmit()
    }

    fn restart(&mut self) {
        let (_, side) = self.plan.restarts[self.restarts];
        self.restarts += 1;
        self.tally.count("restarts", 1);
        match side {
            Side::Client => {
                self.client_address += u32::from(self.plan.moves);
                self.open();
            }
            Side::Server => {
                self.count_server();
                self.server = Listener::new(self.plan.server()).unwrap();
            }
        }
        self.disturbed = side == Side::Server;
    }

    fn count_server(&mut self) {
        let statistics = *self.server.statistics();
        self.tally.count("checksum errors", statistics.checksum_errors);
        self.tally.count("length errors", statistics.length_errors);
        let keys: Vec<Key> = self.server.keys().collect();
        for key in keys {
            if let Some(connection) = self.server.connection(key) {
                count(&mut self.tally, connection);
            }
        }
    }

    fn open(&mut self) {
        count(&mut self.tally, &self.client);
        let identity = identity(&mut self.rng);
        self.watch(identity);
        let name = if self.plan.named { 77 } else { 0 };
        self.client = Connection::open(self.plan.config.clone(), identity, name, self.now).unwrap();
        self.disturbed = false;
    }

    /// The applications write, read and close; a client opens another connection when one ended.
    fn applications(&mut self) -> Result<(), Failure> {
        let eager = self.rng.percent(self.plan.eager);
        let mut application = self.applications.remove(&self.client.id()).unwrap_or_default();
        let used = use_connection(&mut application, &mut self.client, self.plan.bytes, eager, &mut self.rng);
        let over = application.over;
        self.applications.insert(self.client.id(), application);
        used?;
        match over {
            Some(End::Closed) if self.now < self.plan.calm || self.restarts < self.plan.restarts.len() => self.open(),
            Some(End::Closed) | None => {}
            Some(why) => {
                let cut = self.medium.cut_for(self.now) >= self.plan.config.silence / 2;
                if why == End::Silent && !cut {
                    return fail("notified", format!("silence instead of a reason at {}", self.now));
                }
                let disturbed = self.disturbed || cut;
                if !disturbed {
                    return fail(
                        "cause",
                        format!("the client's connection ended ({why:?}) at {} though nothing happened", self.now),
                    );
                }
                self.open();
            }
        }
        let keys: Vec<Key> = self.server.keys().collect();
        for key in keys {
            let eager = self.rng.percent(self.plan.eager);
            let bytes = [self.plan.bytes[1], self.plan.bytes[0]];
            let Some(connection) = self.server.connection_mut(key) else { continue };
            if connection.state() == State::Answering {
                continue;
            }
            let mut application = self.applications.remove(&key).unwrap_or_default();
            let used = use_connection(&mut application, connection, bytes, eager, &mut self.rng);
            self.applications.insert(key, application);
            used?;
        }
        Ok(())
    }

    fn deliver(&mut self, to: Side, address: u32, bytes: &[u8]) -> Result<(), Failure> {
        // What an acknowledgement that was delivered allows.
        if let Ok(datagram) = Datagram::parse(bytes) {
            if let Some(watch) = self.watches.get_mut(&datagram.to) {
                let count = datagram.acknowledge.since(Sequence(watch.first));
                if !matches!(datagram.kind, Kind::Open | Kind::Accept | Kind::Reset) && count > 0 {
                    watch.acknowledged = watch.acknowledged.max(count as u32);
                }
            }
        }
        match to {
            Side::Client if address != self.client_address => {}
            Side::Client => self.client.datagram(self.now, bytes),
            Side::Server => {
                let fresh = identity(&mut self.rng);
                self.server.datagram(self.now, &address, bytes, fresh);
                let new: Vec<Key> = self.server.accepted().collect();
                if self.server.connection(fresh.id).is_some() {
                    self.watch(fresh);
                }
                self.replaced(&new)?;
            }
        }
        let capacity = self.plan.config.receive_buffer;
        let servers = self.server.keys().filter_map(|k| self.server.connection(k));
        match servers.chain([&self.client]).find(|c| c.available() > capacity) {
            Some(full) => fail("room", format!("{} bytes are kept, {capacity} is the room", full.available())),
            None => Ok(()),
        }
    }

    /// A new connection has been set up: all others of that peer are over and say why.
    fn replaced(&mut self, new: &[Key]) -> Result<(), Failure> {
        for key in new {
            let peer = self.server.peer(*key).copied();
            for other in self.server.keys().filter(|k| !new.contains(k)) {
                let Some(connection) = self.server.connection(other) else { continue };
                let same = self.plan.named || self.server.peer(other).copied() == peer;
                if same && connection.state() == State::Established {
                    return fail("notified", format!("connection {other:x} continues beside {key:x}"));
                }
            }
        }
        Ok(())
    }

    fn transmit(&mut self) -> Result<(), Failure> {
        let mut buffer = std::mem::take(&mut self.buffer);
        for count in 0.. {
            if count > 10_000 {
                return fail("quiet", "there is no end of datagrams to send");
            }
            if self.client.poll_transmit(self.now, &mut buffer) {
                self.look_at(&buffer)?;
                self.medium.send(&mut self.rng, self.now, Side::Server, self.client_address, &buffer);
            } else if let Some((address, _)) = self.server.poll_transmit(self.now, &mut buffer) {
                self.look_at(&buffer)?;
                self.medium.send(&mut self.rng, self.now, Side::Client, address, &buffer);
            } else {
                break;
            }
        }
        self.buffer = buffer;
        Ok(())
    }

    /// I16: the window is never exceeded.
    fn look_at(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Ok(datagram) = Datagram::parse(bytes) else { return fail("format", format!("sent {bytes:x?}")) };
        let Some(watch) = self.watches.get(&datagram.from) else { return Ok(()) };
        if !matches!(datagram.kind, Kind::Data | Kind::Finish) {
            return Ok(());
        }
        let at = datagram.sequence.since(Sequence(watch.first));
        let window = i64::from(self.plan.config.window.min(self.plan.server.0));
        let ahead = i64::from(at) - i64::from(watch.acknowledged);
        self.tally.count("full windows", (ahead + 1 == window).into());
        self.tally.count("wraps", (datagram.sequence == Sequence(0)).into());
        if ahead >= window {
            return fail(
                "window",
                format!("segment {at} sent with {} acknowledged, window {window}", watch.acknowledged),
            );
        }
        Ok(())
    }

    /// Everything of the last connection arrived, and every application was notified of what happened to its
    /// connections.
    fn finish(&mut self) -> Result<(), Failure> {
        self.applications()?;
        let (client, peer) = (self.client.id(), self.client.peer().unwrap_or(0));
        let [up, down] = self.plan.bytes;
        let read = |id: u64| self.applications.get(&id).map_or((0, false), |a| (a.read, a.ended));
        if read(client) != (down, true) {
            return fail("liveness", format!("the client read {:?} of {down} bytes", read(client)));
        }
        // The server may have been restarted after it had read everything.
        if self.server.connection(peer).is_some() && read(peer) != (up, true) {
            return fail("liveness", format!("the server read {:?} of {up} bytes", read(peer)));
        }
        count(&mut self.tally, &self.client);
        self.count_server();
        Ok(())
    }
}

fn count(tally: &mut Tally, connection: &Connection) {
    let s = connection.statistics();
    match connection.state() {
        State::Ended(End::Closed) => tally.count("connections completed", 1),
        State::Ended(End::Restarted) => tally.count("connections notified of a restart", 1),
        State::Ended(End::Silent) => tally.count("connections ended by silence", 1),
        _ => {}
    }
    for (what, times) in [
        ("retransmissions", s.retransmissions),
        ("sequence NACKs", s.sequence_nacks_received),
        ("capacity NACKs", s.capacity_nacks_received),
        ("checksum errors", s.checksum_errors),
        ("length errors", s.length_errors),
        ("duplicates", s.duplicates),
        ("timeouts", s.timeouts),
    ] {
        tally.count(what, times);
    }
}

/// Ids that differ; first numbers so near to each other and to the wrap that old segments would fit new connections.
fn identity(rng: &mut Rng) -> Identity {
    Identity { id: rng.next() | 1, sequence: (rng.below(24) as u32).wrapping_sub(20) }
}

/// One look of an application at its connection. `bytes`: to write and to read.
fn use_connection(
    application: &mut Application,
    connection: &mut Connection,
    bytes: [u64; 2],
    eager: bool,
    rng: &mut Rng,
) -> Result<(), Failure> {
    let id = connection.id();
    let count = (bytes[0] - application.wrote).min(rng.below(2 * connection.room().max(1000) as u64));
    let data: Vec<u8> = (0..count).map(|n| byte(id, application.wrote + n)).collect();
    application.wrote += connection.send(&data) as u64;
    if application.wrote == bytes[0] && !connection.closing() {
        connection.close();
    }
    let mut buffer = vec![0; 1 + rng.below(3000) as usize + connection.available()];
    while eager || matches!(connection.state(), State::Ended(_)) {
        let count = connection.receive(&mut buffer);
        if let Some(peer) = connection.peer() {
            for (n, got) in buffer[..count].iter().enumerate() {
                let at = application.read + n as u64;
                if *got != byte(peer, at) || at >= bytes[1] {
                    return fail("stream", format!("{id:x} read {got:#x} at {at} of {}", bytes[1]));
                }
            }
        }
        application.read += count as u64;
        if count == 0 || !matches!(connection.state(), State::Ended(_)) {
            break;
        }
    }
    if connection.at_end() && application.read != bytes[1] {
        return fail("end", format!("{id:x} was notified of the end at {} of {} bytes", application.read, bytes[1]));
    }
    application.ended |= connection.at_end();
    if let State::Ended(why) = connection.state() {
        application.over = Some(why);
    }
    Ok(())
}
