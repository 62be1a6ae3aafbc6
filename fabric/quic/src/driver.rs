// SPDX-License-Identifier: MIT OR Apache-2.0
//! The QUIC engine of one socket with its connections: what goes into it and comes out of it, and who is woken.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Endpoint, EndpointEvent, Incoming, ServerConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use telegraphos_accounts::{Account, Shares};
use telegraphos_link::limit::Limiter;
use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{AcceptorStatistics, Received, TransportStatistics};

use crate::admission::{Admission, HANDSHAKE_TIME};
use crate::clock::Clock;
use crate::config::{Engine, LONGEST};
use crate::credentials::Peer;
use crate::ending::Ending;
use crate::entry::{Change, Entry, Owner};
use crate::network::Network;
use crate::udp::Udp;
use crate::verify::PeerVerifier;
use crate::waker::Waker;

/// Datagrams read at once, so that a flood cannot keep a caller for ever.
const BATCH: usize = 64;
/// Connections at a time that are authenticated, in equal parts for each peer.
const CONNECTIONS: u64 = 1024;
/// Microseconds that the handshake of an end that connects may take.
const CONNECT_TIME: u64 = 10_000_000;
/// Microseconds a dropped connection may take to deliver the rest.
const LINGER: u64 = 1_000_000;
/// The name under which TLS files the connection; the verifier has names of its own.
const SERVER: &str = "telegraphos";

/// Names a connection of a driver.
pub(crate) type Key = u64;

/// A driver that several share.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<Driver>);

impl Shared {
    pub(crate) fn new(driver: Driver) -> Arc<Shared> {
        Arc::new(Shared(Mutex::new(driver)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Driver> {
        // Nothing that holds it panics, and if it did the state would be stale, not unsound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket, the engine, its connections.
pub(crate) struct Driver {
    endpoint: Endpoint,
    network: Network,
    clock: Clock,
    verifier: Arc<PeerVerifier>,
    /// Bytes that a connection may have under way.
    window: u64,
    entries: BTreeMap<Key, Entry>,
    handles: HashMap<ConnectionHandle, Key>,
    next: Key,
    /// To be accepted.
    queue: VecDeque<Key>,
    acceptor: Option<Arc<Waker>>,
    /// To be begun at the first call, which tells the time.
    begin: Option<(ClientConfig, SocketAddr, Arc<Waker>)>,
    /// Found no room in the socket.
    unsent: Option<(SocketAddr, Vec<u8>)>,
    /// Users watch for room.
    watched: bool,
    rejected: u64,
    counted: AcceptorStatistics,
    /// Handshakes that others began.
    admission: Admission,
    /// Authenticated connections that others began.
    connections: Account<Peer>,
    /// Deliberate bugs.
    keep_descriptors: bool,
    end_overtakes: bool,
    limiter: Limiter,
    datagram: Box<[u8]>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("local", &self.network.udp().local())
            .field("entries", &self.entries)
            .field("queue", &self.queue)
            .field("counted", &self.counted)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Driver {
    fn new(engine: &Engine, udp: Arc<Udp>, faults: Option<LinkFaults>, server: Option<ServerConfig>) -> Driver {
        Driver {
            endpoint: Endpoint::new(engine.endpoint.clone(), server.map(Arc::new), true, None),
            network: Network::new(udp, faults),
            clock: Clock::new(),
            verifier: engine.verifier.clone(),
            window: engine.window,
            entries: BTreeMap::new(),
            handles: HashMap::new(),
            next: 0,
            queue: VecDeque::new(),
            acceptor: None,
            begin: None,
            unsent: None,
            watched: false,
            rejected: 0,
            counted: AcceptorStatistics::default(),
            admission: Admission::new(engine.peers, engine.addresses.iter().copied()),
            connections: Account::new(Shares::equal(CONNECTIONS, engine.peers as u64)),
            keep_descriptors: engine.keep_descriptors,
            end_overtakes: engine.end_overtakes,
            limiter: Limiter::default(),
            datagram: vec![0; usize::from(LONGEST)].into_boxed_slice(),
            scratch: Vec::new(),
        }
    }

    /// One that listens.
    pub(crate) fn listening(
        engine: &Engine,
        server: ServerConfig,
        udp: Arc<Udp>,
        faults: Option<LinkFaults>,
        waker: Arc<Waker>,
    ) -> Driver {
        Driver { acceptor: Some(waker), ..Driver::new(engine, udp, faults, Some(server)) }
    }

    /// One with a single connection, which begins at the first call; its key is the one given.
    pub(crate) fn connecting(
        engine: &Engine,
        client: ClientConfig,
        udp: Arc<Udp>,
        faults: Option<LinkFaults>,
        to: SocketAddr,
        waker: Arc<Waker>,
    ) -> (Driver, Key) {
        let driver = Driver { begin: Some((client, to, waker)), ..Driver::new(engine, udp, faults, None) };
        let key = driver.next;
        (driver, key)
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.network.udp().local()
    }

    fn insert(&mut self, handle: ConnectionHandle, connection: quinn_proto::Connection, owner: Owner) -> Key {
        let key = self.next;
        self.next += 1;
        self.handles.insert(handle, key);
        self.entries.insert(key, Entry::new(handle, connection, owner, self.clock.last(), self.window));
        key
    }

    fn begin(&mut self) -> io::Result<()> {
        let Some((client, to, waker)) = self.begin.take() else { return Ok(()) };
        let begun = self.endpoint.connect(self.clock.instant(), client, to, SERVER);
        let (handle, connection) = begun.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e.to_string()))?;
        self.insert(handle, connection, Owner::Transport(waker));
        Ok(())
    }

    /// Reads what has come and does what is due. `current` is whose call it is: the others are woken if there is
    /// something for them, and what it has to send is left to its `flush`.
    pub(crate) fn pump(&mut self, now: u64, current: Option<Key>) -> io::Result<()> {
        self.clock.advance(now);
        self.begin()?;
        let mut buffer = std::mem::take(&mut self.datagram);
        let mut result = Ok(());
        for _ in 0..BATCH {
            match self.network.receive(now, &mut buffer) {
                Ok(Some((len, from))) => self.arrived(from, &buffer[..len], current),
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        self.datagram = buffer;
        result?;
        self.due(current);
        self.transmit(now, current)
    }

    /// A call of `flush` of a transport: sends what is to be sent and does what is due, and says whether nothing is
    /// left.
    pub(crate) fn flush(&mut self, key: Key, now: u64) -> io::Result<bool> {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.waits = false;
        }
        // Who does not read bytes at the moment must still take in acknowledgements, and give some.
        self.pump(now, None)?;
        self.idle(key)
    }

    /// A datagram has come.
    fn arrived(&mut self, from: SocketAddr, bytes: &[u8], current: Option<Key>) {
        let now = self.clock.instant();
        self.scratch.clear();
        match self.endpoint.handle(now, from, None, None, BytesMut::from(bytes), &mut self.scratch) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let Some(&key) = self.handles.get(&handle) else { return };
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.connection.handle_event(event);
                    entry.dirty = true;
                }
                self.settle(key, current);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.incoming(incoming, current),
            Some(DatagramEvent::Response(transmit)) => {
                self.rejected += 1;
                self.respond(transmit.destination, transmit.size);
            }
            None => self.rejected += 1,
        }
    }

    /// Sends the start of `scratch`; if there is no room it is lost.
    fn respond(&mut self, to: SocketAddr, len: usize) {
        let bytes = std::mem::take(&mut self.scratch);
        let _ = self.network.send(self.clock.last(), to, &bytes[..len]);
        self.scratch = bytes;
    }

    fn incoming(&mut self, incoming: Incoming, current: Option<Key>) {
        let remote = incoming.remote_address();
        if !incoming.remote_address_validated() && self.admission.must_validate(remote.ip()) {
            self.scratch.clear();
            self.counted.validated += 1;
            // It may be retried, since it is not validated.
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.scratch) {
                self.respond(transmit.destination, transmit.size);
            }
            return;
        }
        match self.admission.admit(self.next, remote.ip(), self.clock.last()) {
            Ok(None) => {}
            Ok(Some(displaced)) => self.displace(displaced),
            Err(why) => {
                self.counted.crowded += 1;
                if let Some(more) = self.limiter.admit("crowded", self.clock.last()) {
                    log::warn!("{}: {remote} gets no answer: {why}{more}", self.local());
                }
                return self.endpoint.ignore(incoming);
            }
        }
        let live: BTreeSet<SocketAddr> = self.entries.values().map(|e| e.connection.remote_address()).collect();
        self.network.tidy(|peer| *peer == remote || live.contains(peer));
        self.scratch.clear();
        let key = self.next;
        match self.endpoint.accept(incoming, self.clock.instant(), &mut self.scratch, None) {
            Ok((handle, connection)) => {
                let key = self.insert(handle, connection, Owner::Nobody);
                self.settle(key, current);
            }
            Err(error) => {
                self.admission.ended(key);
                self.count_failed(remote, &super::ending::ending(&error.cause, false, remote));
                if let Some(transmit) = error.response {
                    self.respond(transmit.destination, transmit.size);
                }
            }
        }
    }

    /// Ends a handshake without a word: its place is needed.
    fn displace(&mut self, key: Key) {
        let Some(entry) = self.entries.remove(&key) else { return };
        self.counted.displaced += 1;
        if let Some(more) = self.limiter.admit("displaced", self.clock.last()) {
            let (remote, age) = (entry.connection.remote_address(), self.clock.last().saturating_sub(entry.born));
            log::warn!("{}: the handshake with {remote} ends after {age} us for a newer one{more}", self.local());
        }
        self.remove(key, &entry);
    }

    /// Nothing is left of a connection but what the engine and the accounts have.
    fn remove(&mut self, key: Key, entry: &Entry) {
        self.admission.ended(key);
        if let Some(peer) = entry.charged.as_ref() {
            self.connections.give(peer, 1);
        }
        if !entry.drained {
            self.handles.remove(&entry.handle);
            self.endpoint.handle_event(entry.handle, EndpointEvent::drained());
        }
    }

    /// Takes in what the engine says of a connection, and tells who has it.
    fn settle(&mut self, key: Key, current: Option<Key>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let mut changes = Vec::new();
        loop {
            while let Some(event) = entry.connection.poll_endpoint_events() {
                let drained = event.is_drained();
                if let Some(back) = self.endpoint.handle_event(entry.handle, event) {
                    entry.connection.handle_event(back);
                }
                if drained {
                    // From here on the engine may use the handle for another one.
                    self.handles.remove(&entry.handle);
                    entry.drained = true;
                    break;
                }
            }
            let Some(event) = entry.connection.poll() else { break };
            changes.extend(entry.event(event));
        }
        if current != Some(key) && entry.wants_call() {
            entry.wake();
        }
        for change in changes {
            match change {
                Change::Established => self.established(key),
                Change::Over => self.over(key),
                Change::Delivered => self.delivered(key),
            }
        }
        self.forget(key);
    }

    fn established(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let identity = entry.connection.crypto_session().peer_identity();
        let chain = identity.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        entry.peer = chain.and_then(|chain| self.verifier.identify(chain.first()?).cloned());
        if entry.peer.is_none() {
            // TLS has checked it: this is not reached.
            let why = "the peer is refused: it has no name".to_owned();
            entry.ending.get_or_insert(Ending::Failed(io::ErrorKind::PermissionDenied, why));
            return self.close(key);
        }
        if let (Owner::Nobody, Some(peer)) = (&entry.owner, entry.peer.clone()) {
            let remote = entry.connection.remote_address();
            self.admission.authenticated(key, &peer, remote.ip());
            if let Err(why) = self.connections.take(peer.clone(), 1) {
                self.counted.crowded += 1;
                if let Some(more) = self.limiter.admit("connections", self.clock.last()) {
                    log::warn!("{}: no connection with {peer} at {remote}: it {why}{more}", self.local());
                }
                return self.close(key);
            }
            entry.charged = Some(peer);
            match &self.acceptor {
                Some(acceptor) => {
                    entry.owner = Owner::Queue;
                    self.queue.push_back(key);
                    self.counted.accepted += 1;
                    acceptor.signal();
                }
                None => self.close(key),
            }
        }
    }

    fn over(&mut self, key: Key) {
        let Some(entry) = self.entries.get(&key) else { return };
        if let (Owner::Nobody, Some(ending)) = (&entry.owner, &entry.ending) {
            let (remote, ending) = (entry.connection.remote_address(), ending.clone());
            self.count_failed(remote, &ending);
        }
    }

    /// A handshake that somebody else began has failed.
    fn count_failed(&mut self, remote: SocketAddr, ending: &Ending) {
        let why = ending.error();
        match why.kind() {
            io::ErrorKind::PermissionDenied => self.counted.refused += 1,
            _ => self.counted.broken += 1,
        }
        if let Some(more) = self.limiter.admit("handshake", self.clock.last()) {
            log::warn!("{}: no connection with {remote}: {why}{more}", self.local());
        }
    }

    fn delivered(&mut self, key: Key) {
        if self.entries.get(&key).is_some_and(|e| matches!(e.owner, Owner::Lingers(_))) {
            self.close(key);
        }
    }

    /// Says goodbye, once.
    fn close(&mut self, key: Key) {
        let now = self.clock.instant();
        if let Some(entry) = self.entries.get_mut(&key) {
            if !entry.connection.is_closed() {
                entry.connection.close(now, VarInt::from_u32(0), Bytes::new());
                entry.dirty = true;
            }
        }
    }

    /// Removes a connection that nobody has and the engine has forgotten.
    fn forget(&mut self, key: Key) {
        let gone = |e: &Entry| e.drained && matches!(e.owner, Owner::Nobody | Owner::Lingers(_));
        if self.entries.get(&key).is_some_and(gone) {
            if let Some(entry) = self.entries.remove(&key) {
                self.remove(key, &entry);
            }
        }
    }

    /// Timers.
    fn due(&mut self, current: Option<Key>) {
        let now = self.clock.instant();
        let last = self.clock.last();
        let due: Vec<Key> = self
            .entries
            .iter_mut()
            .filter_map(|(key, e)| {
                let timer = e.connection.poll_timeout().is_some_and(|at| at <= now);
                (!e.drained && (timer || e.limit().is_some_and(|at| at <= last))).then_some(*key)
            })
            .collect();
        for key in due {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            entry.connection.handle_timeout(now);
            entry.dirty = true;
            if entry.limit().is_some_and(|at| at <= last) {
                let unanswered = quinn_proto::ConnectionError::TimedOut;
                let remote = entry.connection.remote_address();
                entry.ending.get_or_insert_with(|| super::ending::ending(&unanswered, false, remote));
                if !entry.connection.is_closed() {
                    self.over(key);
                    self.close(key);
                }
            }
            self.settle(key, current);
        }
    }

    /// Hands to the network what connections have to send, but for `except`'s.
    fn transmit(&mut self, now: u64, except: Option<Key>) -> io::Result<()> {
        self.network.flush(now)?;
        if let Some((to, bytes)) = self.unsent.take() {
            if !self.network.send(now, to, &bytes)? {
                self.unsent = Some((to, bytes));
            }
        }
        let dirty: Vec<Key> =
            self.entries.iter().filter(|(key, e)| e.dirty && except != Some(**key)).map(|(key, _)| *key).collect();
        for key in dirty {
            while self.unsent.is_none() {
                let Some(entry) = self.entries.get_mut(&key) else { break };
                self.scratch.clear();
                let Some(transmit) = entry.connection.poll_transmit(self.clock.instant(), 1, &mut self.scratch) else {
                    entry.dirty = false;
                    break;
                };
                let bytes = &self.scratch[..transmit.size];
                if !self.network.send(now, transmit.destination, bytes)? {
                    self.unsent = Some((transmit.destination, bytes.to_vec()));
                }
            }
            // Sending can need new identifiers from the endpoint.
            self.settle(key, except);
        }
        self.watch_room();
        Ok(())
    }

    /// Users are woken by room in the socket as long as something waits for it.
    fn watch_room(&mut self) {
        let wanted = self.unsent.is_some() || self.network.blocked();
        if wanted != self.watched {
            self.watched = wanted;
            let transports = self.entries.values().filter_map(|entry| match &entry.owner {
                Owner::Transport(waker) => Some(waker),
                _ => None,
            });
            for waker in transports.chain(&self.acceptor) {
                waker.watch_room(self.network.udp().fd(), wanted);
            }
        }
    }

    /// When to flush at the latest: the same for all users, for none knows who of the others is still called.
    pub(crate) fn deadline(&mut self) -> Option<u64> {
        if self.begin.is_some() {
            return Some(self.clock.last());
        }
        if self.unsent.is_none() && self.entries.values().any(|entry| entry.dirty) {
            return Some(self.clock.last());
        }
        let clock = &self.clock;
        let entries = self.entries.values_mut().filter(|e| !e.drained);
        let timers = entries.filter_map(|e| {
            let timer = e.connection.poll_timeout().map(|at| clock.micros(at));
            timer.into_iter().chain(e.limit()).min()
        });
        timers.chain(self.network.deadline()).min()
    }

    /// The next connection to be accepted. `waker` makes its descriptor; if that fails it stays where it is.
    pub(crate) fn accept(
        &mut self,
        waker: impl FnOnce(&Udp) -> io::Result<Arc<Waker>>,
    ) -> io::Result<Option<(Key, Arc<Waker>)>> {
        while let Some(key) = self.queue.front().copied() {
            let Some(entry) = self.entries.get_mut(&key) else {
                self.queue.pop_front();
                continue;
            };
            if matches!(entry.ending, Some(Ending::Failed(..))) {
                // Not worth a transport.
                entry.owner = Owner::Nobody;
                self.queue.pop_front();
                self.forget(key);
                continue;
            }
            let waker = waker(self.network.udp())?;
            if self.watched {
                waker.watch_room(self.network.udp().fd(), true);
            }
            entry.owner = Owner::Transport(waker.clone());
            if entry.ready() {
                waker.signal();
            }
            self.queue.pop_front();
            return Ok(Some((key, waker)));
        }
        if let Some(acceptor) = &self.acceptor {
            acceptor.clear();
        }
        Ok(None)
    }

    /// Nobody accepts any more.
    pub(crate) fn stop_accepting(&mut self) {
        self.endpoint.set_server_config(None);
        self.acceptor = None;
        let orphans: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, e)| matches!(e.owner, Owner::Nobody | Owner::Queue))
            .map(|(k, _)| *k)
            .collect();
        self.queue.clear();
        for key in orphans {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.owner = Owner::Nobody;
            }
            self.close(key);
            self.forget(key);
        }
        self.hand_over();
    }

    /// Whoever is left must know what the one who left would have done, and when. If nobody is, this is the end.
    fn hand_over(&mut self) {
        let used = |e: &Entry| matches!(e.owner, Owner::Transport(_) | Owner::Queue);
        if self.acceptor.is_none() && !self.entries.values().any(used) {
            let rest: Vec<Key> = self.entries.keys().copied().collect();
            for key in rest {
                self.run_out(key);
                self.close(key);
            }
        }
        // Errors of the socket are met again by whoever is left.
        let _ = self.transmit(self.clock.last(), None);
        self.entries.values().for_each(Entry::wake);
        if let Some(acceptor) = &self.acceptor {
            acceptor.signal();
        }
    }

    /// Lets the timers of the next moment expire, for nobody will be here then. Otherwise the limits on how fast and
    /// how much is sent, which hold for a goodbye too as long as other things wait, could keep it back for ever. Once a
    /// timer has told that answers are missing, they do not.
    fn run_out(&mut self, key: Key) {
        let until = self.clock.last().saturating_add(LINGER);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        for _ in 0..8 {
            let due = entry.connection.poll_timeout().map(|at| self.clock.micros(at));
            let Some(due) = due.filter(|due| *due <= until && !entry.connection.is_closed()) else { break };
            self.clock.advance(due);
            entry.connection.handle_timeout(self.clock.instant());
        }
    }

    /// A transport has been dropped.
    pub(crate) fn release(&mut self, key: Key) {
        self.begin = None;
        let last = self.clock.last();
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let owner = std::mem::replace(&mut entry.owner, Owner::Lingers(last.saturating_add(LINGER)));
        if self.keep_descriptors {
            std::mem::forget(owner);
        }
        let delivered = entry.finish();
        // The rest leaves as far as the network takes it now.
        let _ = self.transmit(last, None);
        if delivered {
            self.close(key);
        }
        self.forget(key);
        self.hand_over();
    }

    /// A call of `receive` of a transport.
    pub(crate) fn receive(&mut self, key: Key, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        self.clock.advance(now);
        if self.end_overtakes {
            self.pump(now, Some(key))?;
        }
        let mut got = self.read(key, buffer)?;
        if got == Received::Nothing {
            self.pump(now, Some(key))?;
            got = self.read(key, buffer)?;
        }
        let Some(entry) = self.entries.get(&key) else { return Ok(Received::End) };
        if let Owner::Transport(waker) = &entry.owner {
            // Readable as long as this has not been told.
            if matches!(got, Received::Bytes(_)) && entry.ready() {
                waker.signal();
            } else {
                waker.clear();
            }
        }
        Ok(got)
    }

    fn read(&mut self, key: Key, buffer: &mut [u8]) -> io::Result<Received> {
        match self.entries.get_mut(&key) {
            Some(entry) if self.end_overtakes && entry.ending.is_some() => Ok(Received::End),
            Some(entry) => entry.read(buffer),
            None if self.begin.is_some() => Ok(Received::Nothing),
            None => Ok(Received::End),
        }
    }

    /// A call of `send` of a transport.
    pub(crate) fn send(&mut self, key: Key, now: u64, bytes: &[u8]) -> io::Result<usize> {
        self.clock.advance(now);
        self.begin()?;
        self.entries.get_mut(&key).map_or(Ok(bytes.len()), |entry| entry.write(bytes))
    }

    /// Whether a connection has nothing left to send; if not, it is woken when that has changed. Why it failed is for
    /// `receive` to say, behind the last bytes.
    fn idle(&mut self, key: Key) -> io::Result<bool> {
        let Some(entry) = self.entries.get_mut(&key) else { return Ok(true) };
        let idle = self.unsent.is_none() && entry.idle();
        entry.waits = !idle;
        Ok(idle)
    }

    /// Other faults on the way to a connection's peer.
    pub(crate) fn set_faults(&mut self, key: Key, link: &LinkFaults) -> bool {
        let begun = self.entries.get(&key).map(|entry| entry.connection.remote_address());
        let remote = begun.or(self.begin.as_ref().map(|(_, to, _)| *to));
        remote.is_some_and(|remote| self.network.set_faults(remote, link))
    }

    /// Why the peer has gone.
    pub(crate) fn end_reason(&self, key: Key) -> Option<&'static str> {
        match self.entries.get(&key)?.ending {
            Some(Ending::Gone(why)) => Some(why),
            _ => None,
        }
    }

    /// Who the other end is.
    pub(crate) fn peer(&self, key: Key) -> Option<String> {
        self.entries.get(&key)?.peer.as_ref().map(ToString::to_string)
    }

    pub(crate) fn statistics(&self, key: Key) -> TransportStatistics {
        let Some(entry) = self.entries.get(&key) else { return TransportStatistics::default() };
        let engine = entry.connection.stats();
        TransportStatistics {
            received_bytes: entry.received,
            sent_bytes: entry.sent,
            received_datagrams: engine.udp_rx.datagrams,
            sent_datagrams: engine.udp_tx.datagrams,
            retransmitted: engine.path.lost_packets,
            rejected: self.rejected,
            faults: self.network.faults(&entry.connection.remote_address()),
            // Before that it is a guess.
            round_trip: entry.established.then(|| micros(entry.connection.rtt())),
            ..TransportStatistics::default()
        }
    }

    pub(crate) fn accepted(&self) -> AcceptorStatistics {
        AcceptorStatistics { rejected: self.rejected, ..self.counted }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

impl Entry {
    /// When it is closed, whatever the engine's timers say.
    fn limit(&self) -> Option<u64> {
        match self.owner {
            _ if self.connection.is_closed() => None,
            Owner::Lingers(until) => Some(until),
            Owner::Nobody if !self.established => Some(self.born.saturating_add(HANDSHAKE_TIME)),
            _ if !self.established => Some(self.born.saturating_add(CONNECT_TIME)),
            _ => None,
        }
    }
}
