// SPDX-License-Identifier: MIT OR Apache-2.0
//! The QUIC engine of one socket with its connections: its input and output, its timers, and the users to wake.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use quinn_proto::{
    ClientConfig, ConnectionHandle, DatagramEvent, Endpoint, EndpointEvent, Incoming, ServerConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use telegraphos_transport::faults::LinkFaults;
use telegraphos_transport::{AcceptorStatistics, Received, SharedSocket, TransportStatistics, Waker};

use crate::bugs::Bug;
use crate::clock::Clock;
use crate::config::{Engine, LONGEST};
use crate::ending::{Ending, ending};
use crate::entry::{Change, Entry, Key, Owner};
use crate::network::Network;
use crate::options::Options;
use crate::reception::Reception;
use crate::udp::Udp;
use crate::verify::PeerVerifier;

/// Datagrams read in one call, which bounds its time under a flood.
const BATCH: usize = 64;
/// Microseconds a dropped connection may take to deliver the rest.
const LINGER: u64 = 1_000_000;
/// The server name for TLS; the verifier ignores it and checks the names of the peers.
const SERVER: &str = "telegraphos";

/// A driver shared by its users.
pub(crate) type Shared = Mutex<Driver>;

/// A socket, the engine and its connections. Times are microseconds of the callers' clock.
pub(crate) struct Driver {
    endpoint: Endpoint,
    network: Network,
    clock: Clock,
    verifier: Arc<PeerVerifier>,
    /// Bytes that a connection may have in flight.
    window: u64,
    entries: BTreeMap<Key, Entry>,
    handles: HashMap<ConnectionHandle, Key>,
    next: Key,
    /// A connection to begin at the first call, which sets the time.
    begin: Option<(ClientConfig, SocketAddr, Arc<Waker>)>,
    /// Users watch for room in the socket.
    watched: bool,
    /// Datagrams that belonged to nothing.
    rejected: u64,
    /// Connections that others began.
    reception: Reception,
    #[cfg(feature = "bugs")]
    bug: Option<Bug>,
    datagram: Box<[u8]>,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("local", &self.network.udp().local())
            .field("entries", &self.entries)
            .field("reception", &self.reception)
            .finish_non_exhaustive()
    }
}

impl Driver {
    /// A driver without connections. If it listens, the waker is signalled while connections can be accepted.
    pub(crate) fn new(
        engine: &Engine,
        udp: Arc<Udp>,
        options: &Options,
        listening: Option<(ServerConfig, Arc<Waker>)>,
    ) -> Driver {
        let (server, acceptor) = listening.unzip();
        Driver {
            reception: Reception::new(engine, udp.local(), acceptor),
            endpoint: Endpoint::new(engine.endpoint.clone(), server.map(Arc::new), true, None),
            network: Network::new(udp, options.common.faults.clone()),
            clock: Clock::new(),
            verifier: engine.verifier.clone(),
            window: engine.window,
            entries: BTreeMap::new(),
            handles: HashMap::new(),
            next: 0,
            begin: None,
            watched: false,
            rejected: 0,
            #[cfg(feature = "bugs")]
            bug: options.bug,
            datagram: vec![0; usize::from(LONGEST)].into_boxed_slice(),
            scratch: Vec::new(),
        }
    }

    /// A driver with a single connection, which begins at the first call, and its key.
    pub(crate) fn connecting(
        engine: &Engine,
        client: ClientConfig,
        udp: Arc<Udp>,
        options: &Options,
        to: SocketAddr,
        waker: Arc<Waker>,
    ) -> (Driver, Key) {
        let driver = Driver { begin: Some((client, to, waker)), ..Driver::new(engine, udp, options, None) };
        let key = driver.next;
        (driver, key)
    }

    /// The hook of deliberate bugs: always false without the feature `bugs`.
    #[inline]
    fn has(&self, bug: Bug) -> bool {
        #[cfg(feature = "bugs")]
        return self.bug == Some(bug);
        #[cfg(not(feature = "bugs"))]
        {
            let _ = bug;
            false
        }
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

    /// Reads the socket, processes expired timers and sends. `current` is the connection of the caller: the users of
    /// others are woken when they have something to do, and what `current` has to send is left to its `flush`.
    pub(crate) fn pump(&mut self, now: u64, current: Option<Key>) -> io::Result<()> {
        self.clock.advance(now);
        self.begin()?;
        for _ in 0..BATCH {
            let Some((len, from)) = self.network.receive(now, &mut self.datagram)? else { break };
            let bytes = BytesMut::from(&self.datagram[..len]);
            self.arrived(from, bytes, current);
        }
        self.due(current);
        self.transmit(now, current)
    }

    /// `flush` of a transport: sends, processes expired timers, and returns whether nothing is left to send.
    pub(crate) fn flush(&mut self, key: Key, now: u64) -> io::Result<bool> {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.waits = false;
        }
        // A user that does not read must still process and send acknowledgements.
        self.pump(now, None)?;
        self.idle(key)
    }

    /// Processes a datagram.
    fn arrived(&mut self, from: SocketAddr, bytes: BytesMut, current: Option<Key>) {
        let now = self.clock.instant();
        self.scratch.clear();
        match self.endpoint.handle(now, from, None, None, bytes, &mut self.scratch) {
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

    /// Sends the first `len` bytes of `scratch`; they are lost if the socket has no room.
    fn respond(&mut self, to: SocketAddr, len: usize) {
        let bytes = std::mem::take(&mut self.scratch);
        let _ = self.network.try_send(self.clock.last(), to, &bytes[..len]);
        self.scratch = bytes;
    }

    fn incoming(&mut self, incoming: Incoming, current: Option<Key>) {
        let remote = incoming.remote_address();
        if !incoming.remote_address_validated() && self.reception.must_validate(remote) {
            self.scratch.clear();
            // It may be retried, since it is not validated.
            if let Ok(transmit) = self.endpoint.retry(incoming, &mut self.scratch) {
                self.respond(transmit.destination, transmit.size);
            }
            return;
        }
        let Some(displaced) = self.reception.admit(self.next, remote, self.clock.last()) else {
            return self.endpoint.ignore(incoming);
        };
        if let Some(displaced) = displaced {
            self.displace(displaced);
        }
        let live: BTreeSet<SocketAddr> = self.entries.values().map(|e| e.connection.remote_address()).collect();
        self.network.tidy(|peer| *peer == remote || live.contains(peer));
        self.scratch.clear();
        let key = self.next;
        match self.endpoint.accept(incoming, self.clock.instant(), &mut self.scratch, None) {
            Ok((handle, connection)) => {
                let key = self.insert(handle, connection, Owner::None);
                self.settle(key, current);
            }
            Err(error) => {
                self.reception.ended(key, None);
                self.reception.failed(remote, &ending(&error.cause, false, remote), self.clock.last());
                if let Some(transmit) = error.response {
                    self.respond(transmit.destination, transmit.size);
                }
            }
        }
    }

    /// Ends a handshake without notifying the client, to make room for another.
    fn displace(&mut self, key: Key) {
        let Some(entry) = self.remove(key) else { return };
        let last = self.clock.last();
        self.reception.displaced(entry.connection.remote_address(), last.saturating_sub(entry.born), last);
    }

    /// Removes a connection and gives back what the engine and the accounts hold for it.
    fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.reception.ended(key, entry.charged.as_ref());
        if !entry.drained {
            self.handles.remove(&entry.handle);
            self.endpoint.handle_event(entry.handle, EndpointEvent::drained());
        }
        Some(entry)
    }

    /// The connections that are `wanted`.
    fn keys(&self, wanted: impl Fn(Key, &Entry) -> bool) -> Vec<Key> {
        self.entries.iter().filter(|(key, entry)| wanted(**key, entry)).map(|(key, _)| *key).collect()
    }

    /// Processes the engine's events of a connection and wakes its user.
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
                    // From here on the engine may reuse the handle.
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
            // Not reached: TLS has checked it.
            let why = "the peer is refused: it has no name".to_owned();
            entry.ending.get_or_insert(Ending::Failed(io::ErrorKind::PermissionDenied, why));
            return self.close(key);
        }
        if let (Owner::None, Some(peer)) = (&entry.owner, entry.peer.clone()) {
            let remote = entry.connection.remote_address();
            if !self.reception.authenticated(key, &peer, remote, self.clock.last()) {
                return self.close(key);
            }
            entry.charged = Some(peer);
            entry.owner = Owner::Queue;
        }
    }

    fn over(&mut self, key: Key) {
        let Some(entry) = self.entries.get(&key) else { return };
        if let (Owner::None, Some(ending)) = (&entry.owner, &entry.ending) {
            self.reception.failed(entry.connection.remote_address(), ending, self.clock.last());
        }
    }

    fn delivered(&mut self, key: Key) {
        if self.entries.get(&key).is_some_and(|e| matches!(e.owner, Owner::Lingers(_))) {
            self.close(key);
        }
    }

    /// Closes a connection unless it is closed already.
    fn close(&mut self, key: Key) {
        let now = self.clock.instant();
        if let Some(entry) = self.entries.get_mut(&key) {
            if !entry.connection.is_closed() {
                entry.connection.close(now, VarInt::from_u32(0), Bytes::new());
                entry.dirty = true;
            }
        }
    }

    /// Removes a connection that has no user and is drained.
    fn forget(&mut self, key: Key) {
        let gone = |e: &Entry| e.drained && matches!(e.owner, Owner::None | Owner::Lingers(_));
        if self.entries.get(&key).is_some_and(gone) {
            self.remove(key);
        }
    }

    /// Processes expired timers.
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
                entry.ending.get_or_insert_with(|| ending(&unanswered, false, remote));
                if !entry.connection.is_closed() {
                    self.over(key);
                    self.close(key);
                }
            }
            self.settle(key, current);
        }
    }

    /// Sends what connections have to send, except that of `except`.
    fn transmit(&mut self, now: u64, except: Option<Key>) -> io::Result<()> {
        self.network.flush(now)?;
        for key in self.keys(|key, entry| entry.dirty && except != Some(key)) {
            while !self.network.is_full() {
                let Some(entry) = self.entries.get_mut(&key) else { break };
                self.scratch.clear();
                let Some(transmit) = entry.connection.poll_transmit(self.clock.instant(), 1, &mut self.scratch) else {
                    entry.dirty = false;
                    break;
                };
                self.network.send(now, transmit.destination, &self.scratch[..transmit.size])?;
            }
            // Sending can need new identifiers from the endpoint.
            self.settle(key, except);
        }
        self.watch_room();
        Ok(())
    }

    /// Has users woken by room in the socket while something waits for it.
    fn watch_room(&mut self) {
        let wanted = self.network.waits_for_room();
        if wanted != self.watched {
            self.watched = wanted;
            let transports = self.entries.values().filter_map(|entry| match &entry.owner {
                Owner::Transport(waker) => Some(waker),
                _ => None,
            });
            for waker in transports.chain(&self.reception.acceptor) {
                waker.watch_room(self.network.udp().fd(), wanted);
            }
        }
    }

    /// When to flush at the latest: the same for all users, since any of the others may not be called any more.
    pub(crate) fn deadline(&mut self) -> Option<u64> {
        if self.begin.is_some() || !self.network.is_full() && self.entries.values().any(|entry| entry.dirty) {
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

    /// The next connection to be accepted, with its waker; if that cannot be made, the connection stays queued.
    pub(crate) fn accept(&mut self) -> io::Result<Option<(Key, Arc<Waker>)>> {
        while let Some(key) = self.reception.first() {
            let Some(entry) = self.entries.get_mut(&key) else {
                self.reception.pop();
                continue;
            };
            if matches!(entry.ending, Some(Ending::Failed(..))) {
                // It has failed while it waited.
                entry.owner = Owner::None;
                self.reception.pop();
                self.forget(key);
                continue;
            }
            let waker = Arc::new(Waker::new(self.network.udp().fd())?);
            if self.watched {
                waker.watch_room(self.network.udp().fd(), true);
            }
            entry.owner = Owner::Transport(waker.clone());
            if entry.ready() {
                waker.signal();
            }
            self.reception.pop();
            return Ok(Some((key, waker)));
        }
        Ok(None)
    }

    /// Stops accepting: connections without a user are closed.
    pub(crate) fn stop_accepting(&mut self) {
        self.endpoint.set_server_config(None);
        self.reception.close();
        for key in self.keys(|_, entry| matches!(entry.owner, Owner::None | Owner::Queue)) {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.owner = Owner::None;
            }
            self.close(key);
            self.forget(key);
        }
        self.hand_over();
    }

    /// A user has gone: the others are woken to take over its timers. After the last one all connections are closed.
    fn hand_over(&mut self) {
        let used = |e: &Entry| matches!(e.owner, Owner::Transport(_) | Owner::Queue);
        if self.reception.acceptor.is_none() && !self.entries.values().any(used) {
            for key in self.keys(|_, _| true) {
                self.run_out(key);
                self.close(key);
            }
        }
        // Errors of the socket show again in the next call of a user.
        let _ = self.transmit(self.clock.last(), None);
        self.entries.values().for_each(Entry::wake);
        if let Some(acceptor) = &self.reception.acceptor {
            acceptor.signal();
        }
    }

    /// Lets the timers of the next [`LINGER`] expire at once, since no user is left to serve them. Otherwise pacing and
    /// congestion control, which also apply to a close while other data waits, could hold it back for ever; after an
    /// expired loss timer they do not.
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

    /// A transport was dropped: what it sent is delivered if possible.
    pub(crate) fn release(&mut self, key: Key) {
        self.begin = None;
        let last = self.clock.last();
        let keep = self.has(Bug::KeepDescriptors);
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let owner = std::mem::replace(&mut entry.owner, Owner::Lingers(last.saturating_add(LINGER)));
        if keep {
            std::mem::forget(owner);
        }
        let delivered = entry.finish();
        // The rest is sent as far as the socket has room now.
        let _ = self.transmit(last, None);
        if delivered {
            self.close(key);
        }
        self.forget(key);
        self.hand_over();
    }

    /// `receive` of a transport.
    pub(crate) fn receive(&mut self, key: Key, now: u64, buffer: &mut [u8]) -> io::Result<Received> {
        self.clock.advance(now);
        if self.has(Bug::EndOvertakes) {
            self.pump(now, Some(key))?;
            if self.entries.get(&key).is_some_and(|entry| entry.ending.is_some()) {
                return Ok(Received::End);
            }
        }
        let mut got = self.read(key, buffer)?;
        if got == Received::Nothing {
            self.pump(now, Some(key))?;
            got = self.read(key, buffer)?;
        }
        let Some(entry) = self.entries.get(&key) else { return Ok(Received::End) };
        if let Owner::Transport(waker) = &entry.owner {
            // The descriptor stays readable until everything was returned.
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
            Some(entry) => entry.read(buffer),
            None if self.begin.is_some() => Ok(Received::Nothing),
            None => Ok(Received::End),
        }
    }

    /// `send` of a transport: how many bytes were queued.
    pub(crate) fn send(&mut self, key: Key, now: u64, bytes: &[u8]) -> io::Result<usize> {
        self.clock.advance(now);
        self.begin()?;
        self.entries.get_mut(&key).map_or(Ok(bytes.len()), |entry| entry.write(bytes))
    }

    /// Whether a connection has nothing left to send; otherwise its user is woken when it has. A failure is returned by
    /// `receive`, behind the last bytes.
    fn idle(&mut self, key: Key) -> io::Result<bool> {
        let Some(entry) = self.entries.get_mut(&key) else { return Ok(true) };
        let idle = !self.network.is_full() && entry.idle();
        entry.waits = !idle;
        Ok(idle)
    }

    /// Replaces the faults on the path to a connection's peer; false if there is no place for faults.
    pub(crate) fn set_faults(&mut self, key: Key, link: &LinkFaults) -> bool {
        let begun = self.entries.get(&key).map(|entry| entry.connection.remote_address());
        let remote = begun.or(self.begin.as_ref().map(|(_, to, _)| *to));
        remote.is_some_and(|remote| self.network.set_faults(remote, link))
    }

    /// Why the connection has ended, if its peer ended it.
    pub(crate) fn end_reason(&self, key: Key) -> Option<&'static str> {
        match self.entries.get(&key)?.ending {
            Some(Ending::Gone(why)) => Some(why),
            _ => None,
        }
    }

    /// The authenticated name or pin of the peer.
    pub(crate) fn peer(&self, key: Key) -> Option<String> {
        self.entries.get(&key)?.peer.as_ref().map(ToString::to_string)
    }

    /// Counters of a connection.
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
            // Not measured before.
            round_trip: entry.established.then(|| (entry.connection.rtt().as_micros() as u64).max(1)),
            ..TransportStatistics::default()
        }
    }

    /// Counters of the acceptor.
    pub(crate) fn accepted(&self) -> AcceptorStatistics {
        AcceptorStatistics { rejected: self.rejected, ..self.reception.counted }
    }
}
