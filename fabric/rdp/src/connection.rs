// SPDX-License-Identifier: MIT OR Apache-2.0
//! One end of a connection, from handshake to end, around a sender and a receiver.

use crate::bugs::Bug;
use crate::config::{Config, ConfigError, Identity, require};
use crate::datagram::{Datagram, Greeting, Kind};
use crate::receiver::Receiver;
use crate::rtt::RoundTrip;
use crate::sender::Sender;
use crate::sequence::Sequence;
use crate::statistics::Statistics;

/// How often an Accept is sent without another Open, which would be answered once more. The bound limits what an Open
/// under a forged address makes this side send to the owner of that address.
const ACCEPTS: u32 = 4;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// This side has opened it and has no answer yet. Bytes to be sent wait.
    Opening,
    /// The other side has opened it and was answered, but has not confirmed the answer.
    Answering,
    /// Each side has the other's id.
    Established,
    /// Ended. What was received in order before can still be read.
    Ended(End),
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both sides closed, and all that either sent was acknowledged.
    Closed,
    /// The other side was restarted and has no such connection. What it had not acknowledged or not read is lost.
    Restarted,
    /// The other side aborted the connection, before all was sent and read.
    Abandoned,
    /// This side aborted it, by [`Connection::abandon`].
    Aborted,
    /// Nothing arrived for [`Config::silence`].
    Silent,
}

/// One end of a connection. After each call that changes something, [`Connection::poll_transmit`] until it is false.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    id: u64,
    /// 0 until it is known.
    peer: u64,
    name: u64,
    first: Sequence,
    state: State,
    sender: Sender,
    receiver: Receiver,
    trip: RoundTrip,
    statistics: Statistics,
    /// When a datagram of this connection last arrived, or when it began.
    heard: u64,
    /// Open or Accept: when to send it again, and how often it was sent. `None` in other states.
    greeting: Option<(u64, u32)>,
    greet: bool,
    /// Stamp to echo in the next Accept.
    greeted: u32,
    probed: Option<u64>,
    probe: bool,
    /// A Reset to be sent: to, from, deliberate.
    reset: Option<(u64, u64, bool)>,
}

impl Connection {
    /// Opens a connection, as the client. `name` identifies this side whatever its address (0: it has no name): at the
    /// other side's [`Listener`](crate::Listener), a new connection ends the old one of the same name. `now` is in
    /// microseconds, as everywhere.
    ///
    /// # Errors
    /// The field of the configuration, or the identity, that is invalid.
    pub fn open(config: Config, identity: Identity, name: u64, now: u64) -> Result<Connection, ConfigError> {
        let mut connection = Connection::new(config, identity, now)?;
        connection.name = name;
        Ok(connection)
    }

    /// Sets the time at which the connection began, for a caller that had none at [`Connection::open`]. No effect once
    /// the first Open has been sent.
    pub fn begin(&mut self, now: u64) {
        if let (State::Opening, Some((_, 0))) = (self.state, self.greeting) {
            self.heard = now;
            self.greeting = Some((now, 0));
        }
    }

    /// A connection that answers this Open; `None` if its greeting is invalid.
    pub(crate) fn answer(
        config: Config,
        identity: Identity,
        open: &Datagram<'_>,
        now: u64,
    ) -> Result<Option<Connection>, ConfigError> {
        let Some(greeting) = Greeting::parse(open.payload) else { return Ok(None) };
        let mut connection = Connection::new(config, identity, now)?;
        connection.state = State::Answering;
        connection.peer = open.from;
        connection.name = greeting.name;
        connection.greeted = open.stamp;
        connection.sender.agree(greeting.window, greeting.mtu);
        connection.receiver = Receiver::new(open.sequence);
        connection.statistics.datagrams_received += 1;
        Ok(Some(connection))
    }

    fn new(config: Config, identity: Identity, now: u64) -> Result<Connection, ConfigError> {
        config.check()?;
        require(identity.id != 0, format_args!("connection id is 0: expected a random number that is not"))?;
        let first = Sequence(identity.sequence);
        Ok(Connection {
            id: identity.id,
            peer: 0,
            name: 0,
            first,
            state: State::Opening,
            sender: Sender::new(&config, first),
            receiver: Receiver::new(Sequence(0)),
            trip: RoundTrip::default(),
            statistics: Statistics::default(),
            heard: now,
            greeting: Some((now, 0)),
            greet: true,
            greeted: 0,
            probed: None,
            probe: false,
            reset: None,
            config,
        })
    }

    /// The state of the connection.
    pub fn state(&self) -> State {
        self.state
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// The other side's id, once known.
    pub fn peer(&self) -> Option<u64> {
        (self.peer != 0).then_some(self.peer)
    }

    /// The name that the opening side announced; 0: none.
    pub fn name(&self) -> u64 {
        self.name
    }

    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// The smoothed round-trip time in microseconds; `None` before the first measurement.
    pub fn round_trip(&self) -> Option<u64> {
        self.trip.smoothed()
    }

    /// Queues as many bytes as there is room for and returns how many: none once closed or ended.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Ended(_) => 0,
            _ => self.sender.send(&self.config, bytes),
        }
    }

    /// How many bytes [`Connection::send`] would queue.
    pub fn room(&self) -> usize {
        match self.state {
            State::Ended(_) => 0,
            _ => self.sender.room(&self.config),
        }
    }

    /// Bytes queued or sent that the other side has not acknowledged.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// Reads received bytes into `out` and returns how many; 0: none are available.
    pub fn receive(&mut self, out: &mut [u8]) -> usize {
        self.receiver.read(&self.config, out)
    }

    /// Bytes that can be read.
    pub fn available(&self) -> usize {
        self.receiver.available()
    }

    /// The other side has closed, and all that it sent has been read.
    pub fn at_end(&self) -> bool {
        self.receiver.finished && self.receiver.available() == 0
    }

    /// Closes the sending direction: what was queued is still sent, then the end is signalled. Reading continues.
    pub fn close(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            self.sender.close();
        }
    }

    /// [`Connection::close`] was called.
    pub fn closing(&self) -> bool {
        self.sender.closing
    }

    /// Aborts the connection. One Reset is sent; if it is lost, the other side finds out by the next datagram it sends.
    pub fn abandon(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            if self.peer != 0 {
                self.reset = Some((self.peer, self.id, true));
            }
            self.end(End::Aborted);
        }
    }

    /// Ends the connection because its peer has established a new one.
    pub(crate) fn replaced(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            self.end(if self.complete() { End::Closed } else { End::Restarted });
        }
    }

    fn end(&mut self, why: End) {
        self.state = State::Ended(why);
        self.sender.discard();
        self.greeting = None;
        self.greet = false;
        self.probe = false;
        if why == End::Restarted {
            self.statistics.restarts += 1;
        }
    }

    /// Processes a datagram from the other side's address; an invalid one is counted and discarded.
    pub fn datagram(&mut self, now: u64, bytes: &[u8]) {
        match self.config.parse(bytes) {
            Ok(datagram) => self.take(now, &datagram),
            Err(why) => {
                self.statistics.datagrams_received += 1;
                self.statistics.discarded(why);
            }
        }
    }

    /// Processes a datagram that was found to be valid.
    pub(crate) fn take(&mut self, now: u64, datagram: &Datagram<'_>) {
        self.statistics.datagrams_received += 1;
        let matches = datagram.to == self.id || datagram.kind == Kind::Open && datagram.from == self.peer;
        if !matches && !self.config.has(Bug::IgnoreConnectionId) {
            return self.foreign(datagram);
        }
        match self.state {
            State::Opening => self.take_opening(now, datagram),
            _ if datagram.from != self.peer && !self.config.has(Bug::IgnoreConnectionId) => {
                // Another answer to this side's Open: the other side may have lost the first connection, so probe it.
                self.probe |= datagram.kind == Kind::Accept && self.state == State::Established;
                self.foreign(datagram);
            }
            State::Answering => self.take_answering(now, datagram),
            State::Established => self.take_established(now, datagram),
            State::Ended(why) => self.take_ended(now, why, datagram),
        }
    }

    /// A datagram of a connection that does not exist here is answered by a Reset.
    fn foreign(&mut self, datagram: &Datagram<'_>) {
        self.statistics.foreign += 1;
        if !matches!(datagram.kind, Kind::Reset | Kind::Open) && !self.config.has(Bug::NoReset) {
            self.reset = Some((datagram.from, datagram.to, false));
        }
    }

    fn take_opening(&mut self, now: u64, datagram: &Datagram<'_>) {
        let greeting = Greeting::parse(datagram.payload).filter(|_| datagram.kind == Kind::Accept);
        let (Some(greeting), true) = (greeting, datagram.acknowledge == self.first) else {
            // The other side can send nothing else before its Accept.
            self.statistics.malformed += 1;
            return;
        };
        self.peer = datagram.from;
        self.sender.agree(greeting.window, greeting.mtu);
        self.receiver = Receiver::new(datagram.sequence);
        // Confirms the Accept.
        self.receiver.answer(datagram.stamp);
        self.establish(now, datagram);
    }

    fn take_answering(&mut self, now: u64, datagram: &Datagram<'_>) {
        match datagram.kind {
            Kind::Open => {
                self.heard = now;
                self.greeted = datagram.stamp;
                self.greet = true;
            }
            Kind::Reset => self.take_reset(datagram),
            // A sender that has this side's id has its Accept.
            _ => {
                self.establish(now, datagram);
                self.take_established(now, datagram);
            }
        }
    }

    fn establish(&mut self, now: u64, datagram: &Datagram<'_>) {
        self.state = State::Established;
        self.statistics.established = 1;
        self.greeting = None;
        self.greet = false;
        self.heard = now;
        self.trip.answered(now, datagram.echo);
    }

    fn take_established(&mut self, now: u64, datagram: &Datagram<'_>) {
        match datagram.kind {
            Kind::Reset => return self.take_reset(datagram),
            // A stale copy: the connection is established.
            Kind::Open => return,
            Kind::Accept => {
                // The confirmation was lost.
                self.heard = now;
                self.receiver.answer(datagram.stamp);
                return;
            }
            _ => {}
        }
        if !self.sender.acknowledge(&self.config, now, datagram.acknowledge) {
            self.statistics.malformed += 1;
            return;
        }
        self.heard = now;
        self.probed = None;
        self.trip.answered(now, datagram.echo);
        let timeout = self.trip.timeout(&self.config);
        match datagram.kind {
            Kind::Data | Kind::Finish => {
                self.receiver.segment(&self.config, self.config.window, now, datagram, &mut self.statistics);
            }
            Kind::NackSequence => {
                let took = self.sender.refused(&self.config, datagram.acknowledge, datagram.round);
                self.statistics.sequence_nacks_received += u64::from(took);
            }
            Kind::NackCapacity => {
                let took = self.sender.no_room(&self.config, now, timeout, datagram.acknowledge, datagram.round);
                self.statistics.capacity_nacks_received += u64::from(took);
            }
            Kind::Room => self.sender.resume(),
            Kind::Probe => self.receiver.answer(datagram.stamp),
            Kind::Acknowledge | Kind::Open | Kind::Accept | Kind::Reset => {}
        }
        if self.receiver.finished && self.sender.finished() {
            self.end(End::Closed);
        }
    }

    fn take_reset(&mut self, datagram: &Datagram<'_>) {
        self.end(match (self.complete(), datagram.deliberate) {
            (true, _) => End::Closed,
            (false, true) => End::Abandoned,
            (false, false) => End::Restarted,
        });
    }

    /// Whether both directions were delivered. Only the acknowledgement of this side's end may be missing: the other
    /// side, which is gone, cannot send it again.
    fn complete(&self) -> bool {
        self.receiver.finished && self.sender.delivered()
    }

    fn take_ended(&mut self, now: u64, why: End, datagram: &Datagram<'_>) {
        match (why, datagram.kind) {
            (_, Kind::Reset | Kind::Open) => {}
            // The last acknowledgement was lost.
            (End::Closed, _) => {
                if matches!(datagram.kind, Kind::Data | Kind::Finish | Kind::Probe) {
                    self.heard = now;
                    self.receiver.answer(datagram.stamp);
                }
            }
            _ => self.reset = Some((self.peer, self.id, why == End::Aborted)),
        }
    }

    /// When [`Connection::timer`] must be called, in microseconds; `None`: never.
    pub fn deadline(&self) -> Option<u64> {
        let greeting = self.greeting.map(|(at, _)| at);
        let mut least = match self.state {
            State::Ended(_) => return None,
            State::Opening | State::Answering => greeting,
            State::Established => [
                self.receiver.due,
                self.sender.deadline(&self.config, self.trip.timeout(&self.config)),
                (!self.config.has(Bug::NoKeepAlive)).then(|| self.probe_at()),
            ]
            .into_iter()
            .flatten()
            .min(),
        };
        if !self.config.has(Bug::EndlessPatience) {
            let silent = self.heard.saturating_add(self.config.silence);
            least = Some(least.map_or(silent, |at| at.min(silent)));
        }
        least
    }

    /// When the next probe is sent if nothing arrives.
    fn probe_at(&self) -> u64 {
        match self.probed {
            None => self.heard.saturating_add(self.config.silence / 3),
            Some(at) => at.saturating_add((self.config.silence / 32).max(1)),
        }
    }

    /// Processes expired timers. May be called at any time.
    pub fn timer(&mut self, now: u64) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        if now >= self.heard.saturating_add(self.config.silence) && !self.config.has(Bug::EndlessPatience) {
            return self.end(End::Silent);
        }
        if let Some((at, times)) = self.greeting {
            if now >= at && self.state == State::Answering && times >= ACCEPTS {
                self.greeting = None;
            } else if now >= at {
                let wait = self.config.back_off(self.config.timeout_initial, times);
                self.greeting = Some((now.saturating_add(wait), times.saturating_add(1)));
                self.greet = true;
            }
        }
        if self.state == State::Established {
            let timeout = self.trip.timeout(&self.config);
            self.sender.timer(&self.config, now, timeout, &mut self.statistics);
            if now >= self.probe_at() && !self.config.has(Bug::NoKeepAlive) {
                self.probed = Some(now);
                self.probe = true;
                self.statistics.probes += 1;
            }
        }
    }

    /// Replaces the contents of `out` by the next datagram to send; false, and `out` unchanged, if nothing is to be
    /// sent.
    pub fn poll_transmit(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        let sent = self.next_datagram(now, out);
        self.statistics.datagrams_sent += u64::from(sent);
        sent
    }

    fn next_datagram(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        if let Some((to, from, deliberate)) = self.reset.take() {
            self.statistics.resets_sent += 1;
            Datagram { deliberate, ..Datagram::bare(Kind::Reset, to, from, now) }.encode(out);
            return true;
        }
        match self.state {
            State::Opening | State::Answering => std::mem::take(&mut self.greet) && self.encode_greeting(now, out),
            State::Established => self.next_established(now, out),
            State::Ended(End::Closed) if self.receiver.must_acknowledge(now) => {
                self.encode(now, Kind::Acknowledge, out);
                true
            }
            State::Ended(_) => false,
        }
    }

    fn encode_greeting(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        let answering = self.state == State::Answering;
        if let Some((at, 0)) = self.greeting {
            let wait = self.config.back_off(self.config.timeout_initial, 0);
            self.greeting = Some((at.max(now).saturating_add(wait), 1));
        }
        let name = if answering { 0 } else { self.name };
        let greeting = Greeting { window: self.config.window, mtu: self.config.mtu, name };
        let kind = if answering { Kind::Accept } else { Kind::Open };
        Datagram {
            sequence: self.first,
            acknowledge: self.receiver.expected,
            echo: self.greeted,
            payload: &greeting.encode(),
            ..Datagram::bare(kind, self.peer, self.id, now)
        }
        .encode(out);
        true
    }

    fn next_established(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        if let Some(nack) = self.receiver.nack.take() {
            match nack.kind {
                Kind::NackCapacity => self.statistics.capacity_nacks_sent += 1,
                _ => self.statistics.sequence_nacks_sent += 1,
            }
            self.receiver.acknowledged();
            self.header(now, nack.kind, nack.echo, nack.round).encode(out);
            return true;
        }
        if std::mem::take(&mut self.receiver.room) {
            self.encode(now, Kind::Room, out);
            return true;
        }
        let head = self.header(now, Kind::Data, 0, self.sender.round);
        if let Some(segment) = self.sender.poll(&self.config, now, &mut self.statistics) {
            Datagram {
                kind: if segment.finish { Kind::Finish } else { Kind::Data },
                sequence: segment.sequence,
                ask: segment.ask,
                payload: segment.bytes,
                echo: self.receiver.acknowledged(),
                ..head
            }
            .encode(out);
            self.probe = false;
            return true;
        }
        if std::mem::take(&mut self.probe) {
            self.encode(now, Kind::Probe, out);
            return true;
        }
        if self.receiver.must_acknowledge(now) {
            self.encode(now, Kind::Acknowledge, out);
            return true;
        }
        false
    }

    fn header(&self, now: u64, kind: Kind, echo: u32, round: u16) -> Datagram<'static> {
        Datagram {
            sequence: self.sender.next(),
            acknowledge: self.receiver.expected,
            echo,
            round,
            ..Datagram::bare(kind, self.peer, self.id, now)
        }
    }

    fn encode(&mut self, now: u64, kind: Kind, out: &mut Vec<u8>) {
        let echo = self.receiver.acknowledged();
        self.header(now, kind, echo, self.sender.round).encode(out);
    }
}
