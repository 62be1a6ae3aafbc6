// SPDX-License-Identifier: MIT OR Apache-2.0
//! One end of a connection: its life from handshake to end, around a sender and a receiver.

use crate::config::{Bug, Config, ConfigError, Identity};
use crate::datagram::{Datagram, Greeting, Kind, stamp};
use crate::receiver::Receiver;
use crate::rtt::RoundTrip;
use crate::sender::Sender;
use crate::sequence::Sequence;
use crate::statistics::Statistics;

/// How often an Accept is sent by itself. Each Open is answered once more; but who opens under a false address must not
/// make us send much to whom that belongs.
const ACCEPTS: u32 = 4;

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// This side wants it and has no answer yet. What is sent meanwhile waits.
    Opening,
    /// The other side wants it, was answered, and has not shown that it knows.
    Answering,
    /// Both know each other.
    Established,
    /// Over. What was received in order before can still be read.
    Ended(End),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Both sides have sent all they had and said so.
    Closed,
    /// The other side does not know this connection any more: it was restarted. What it had not acknowledged, and
    /// what it had not read, is lost.
    Restarted,
    /// The other side gave the connection up on purpose, before all was sent and read.
    Abandoned,
    /// This side did, by [`Connection::abandon`].
    Aborted,
    /// Nothing came for [`Config::silence`].
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
    /// When a datagram of this connection last came, or when it began.
    heard: u64,
    /// Open or Accept: when to send it again, and how often it was. `None` in other states.
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
    /// Opens a connection: the side that calls. `name` says who it is, whatever its address (0: it has no name): at the
    /// other side's [`Listener`](crate::Listener), a new connection ends the old one of the same name.
    ///
    /// # Errors
    /// What is wrong with the configuration or the identity.
    pub fn open(config: Config, identity: Identity, name: u64, now: u64) -> Result<Connection, ConfigError> {
        let mut connection = Connection::new(config, identity, now)?;
        connection.name = name;
        Ok(connection)
    }

    /// Says when it really began, for a caller of [`Connection::open`] that did not know the time. Later it has no
    /// effect.
    pub fn begin(&mut self, now: u64) {
        if let (State::Opening, Some((_, 0))) = (self.state, self.greeting) {
            self.heard = now;
            self.greeting = Some((now, 0));
        }
    }

    /// The side that is called, by this Open; `None` if it can take nothing.
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
        if identity.id == 0 {
            return Err(ConfigError::Id);
        }
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

    /// Where the connection is in its life.
    pub fn state(&self) -> State {
        self.state
    }

    /// This side's id.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The other side's id, once known.
    pub fn peer(&self) -> Option<u64> {
        (self.peer != 0).then_some(self.peer)
    }

    /// The name that the opening side gave itself; 0: none.
    pub fn name(&self) -> u64 {
        self.name
    }

    /// What happened so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// How long an answer takes, microseconds, smoothed; `None` before the first.
    pub fn round_trip(&self) -> Option<u64> {
        self.trip.smoothed()
    }

    /// Takes bytes to be sent, as many as there is room for, and says how many: none once closed or over.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        match self.state {
            State::Ended(_) => 0,
            _ => self.sender.send(&self.config, bytes),
        }
    }

    /// How many bytes [`Connection::send`] would take.
    pub fn room(&self) -> usize {
        match self.state {
            State::Ended(_) => 0,
            _ => self.sender.room(&self.config),
        }
    }

    /// Bytes taken that the other side has not acknowledged.
    pub fn outstanding(&self) -> usize {
        self.sender.outstanding()
    }

    /// Reads what was received, and says how much; 0: nothing is there now.
    pub fn receive(&mut self, out: &mut [u8]) -> usize {
        self.receiver.read(&self.config, out)
    }

    /// Bytes that can be read.
    pub fn available(&self) -> usize {
        self.receiver.available()
    }

    /// The other side has closed, and all that it sent has been read.
    pub fn at_end(&self) -> bool {
        self.receiver.finished() && self.receiver.available() == 0
    }

    /// No more will be sent. What was taken still is, and then the other side is told. Reading goes on.
    pub fn close(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            self.sender.close();
        }
    }

    /// [`Connection::close`] was called.
    pub fn closing(&self) -> bool {
        self.sender.closing()
    }

    /// Gives the connection up; the other side is told once (it will find out if that gets lost).
    pub fn abandon(&mut self) {
        if !matches!(self.state, State::Ended(_)) {
            if self.peer != 0 {
                self.reset = Some((self.peer, self.id, true));
            }
            self.end(End::Aborted);
        }
    }

    /// The other side has set up another connection in place of this one.
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

    /// A datagram that came from the other side's address.
    pub fn datagram(&mut self, now: u64, bytes: &[u8]) {
        match Datagram::parse_with(bytes, !self.config.has(Bug::NoChecksum)) {
            Ok(datagram) => self.take(now, &datagram),
            Err(why) => {
                self.statistics.datagrams_received += 1;
                self.statistics.discarded(why);
            }
        }
    }

    pub(crate) fn take(&mut self, now: u64, datagram: &Datagram<'_>) {
        self.statistics.datagrams_received += 1;
        let ours = datagram.to == self.id || datagram.kind == Kind::Open && datagram.from == self.peer;
        if !ours && !self.config.has(Bug::IgnoreConnectionId) {
            return self.foreign(datagram);
        }
        match self.state {
            State::Opening => self.take_opening(now, datagram),
            _ if datagram.from != self.peer && !self.config.has(Bug::IgnoreConnectionId) => {
                // Another answer to our Open means that the other side may have forgotten the first one: ask it.
                self.probe |= datagram.kind == Kind::Accept && self.state == State::Established;
                self.foreign(datagram);
            }
            State::Answering => self.take_answering(now, datagram),
            State::Established => self.take_established(now, datagram),
            State::Ended(why) => self.take_ended(now, why, datagram),
        }
    }

    /// A datagram of a connection that does not exist here: its sender must learn that.
    fn foreign(&mut self, datagram: &Datagram<'_>) {
        self.statistics.foreign += 1;
        if !matches!(datagram.kind, Kind::Reset | Kind::Open) && !self.config.has(Bug::NoReset) {
            self.reset = Some((datagram.from, datagram.to, false));
        }
    }

    fn take_opening(&mut self, now: u64, datagram: &Datagram<'_>) {
        let greeting = Greeting::parse(datagram.payload).filter(|_| datagram.kind == Kind::Accept);
        let (Some(greeting), true) = (greeting, datagram.acknowledge == self.first) else {
            // Of this connection, the other side cannot say anything else.
            self.statistics.malformed += 1;
            return;
        };
        self.peer = datagram.from;
        self.sender.agree(greeting.window, greeting.mtu);
        self.receiver = Receiver::new(datagram.sequence);
        // The other side must learn that its answer came.
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
            // Who knows our id has got our answer.
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
            // A late copy: who knows our id has our answer.
            Kind::Open => return,
            Kind::Accept => {
                // It did not get what showed that we know its id.
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
        if self.receiver.finished() && self.sender.finished() {
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

    /// The other side, which is gone, has sent everything and got everything but our end, or that and its
    /// acknowledgement was lost.
    fn complete(&self) -> bool {
        self.receiver.finished() && self.sender.delivered()
    }

    fn take_ended(&mut self, now: u64, why: End, datagram: &Datagram<'_>) {
        match (why, datagram.kind) {
            (_, Kind::Reset | Kind::Open) => {}
            // Our last acknowledgement was lost.
            (End::Closed, _) => {
                if matches!(datagram.kind, Kind::Data | Kind::Finish | Kind::Probe) {
                    self.heard = now;
                    self.receiver.answer(datagram.stamp);
                }
            }
            _ => self.reset = Some((self.peer, self.id, why == End::Aborted)),
        }
    }

    /// When [`Connection::timer`] wants to be called; `None`: never.
    pub fn deadline(&self) -> Option<u64> {
        let greeting = self.greeting.map(|(at, _)| at);
        let mut least = match self.state {
            State::Ended(_) => return None,
            State::Opening | State::Answering => greeting,
            State::Established => [
                self.receiver.deadline(),
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

    /// When to ask whether the other side is there.
    fn probe_at(&self) -> u64 {
        match self.probed {
            None => self.heard.saturating_add(self.config.silence / 3),
            Some(at) => at.saturating_add((self.config.silence / 32).max(1)),
        }
    }

    /// Does what is due. May be called at any time.
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

    /// Writes the next datagram to be sent now in place of what `out` holds; false: there is none.
    pub fn poll_transmit(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        let sent = self.next_datagram(now, out);
        self.statistics.datagrams_sent += u64::from(sent);
        sent
    }

    fn next_datagram(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        if let Some((to, from, deliberate)) = self.reset.take() {
            self.statistics.resets_sent += 1;
            encode_reset(now, to, from, deliberate, out);
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
        Datagram {
            kind: if answering { Kind::Accept } else { Kind::Open },
            to: self.peer,
            from: self.id,
            sequence: self.first,
            acknowledge: self.receiver.expected(),
            stamp: stamp(now),
            echo: self.greeted,
            round: 0,
            ask: false,
            deliberate: false,
            payload: &greeting.encode(),
        }
        .encode(out);
        true
    }

    fn next_established(&mut self, now: u64, out: &mut Vec<u8>) -> bool {
        if let Some(nack) = self.receiver.take_nack() {
            match nack.kind {
                Kind::NackCapacity => self.statistics.capacity_nacks_sent += 1,
                _ => self.statistics.sequence_nacks_sent += 1,
            }
            self.receiver.acknowledged();
            self.header(now, nack.kind, nack.echo, nack.round).encode(out);
            return true;
        }
        if self.receiver.take_room() {
            self.encode(now, Kind::Room, out);
            return true;
        }
        let head = self.header(now, Kind::Data, 0, self.sender.round());
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
            kind,
            to: self.peer,
            from: self.id,
            sequence: self.sender.next(),
            acknowledge: self.receiver.expected(),
            stamp: stamp(now),
            echo,
            round,
            ask: false,
            deliberate: false,
            payload: &[],
        }
    }

    fn encode(&mut self, now: u64, kind: Kind, out: &mut Vec<u8>) {
        let echo = self.receiver.acknowledged();
        self.header(now, kind, echo, self.sender.round()).encode(out);
    }
}

/// Writes a Reset.
pub(crate) fn encode_reset(now: u64, to: u64, from: u64, deliberate: bool, out: &mut Vec<u8>) {
    Datagram {
        kind: Kind::Reset,
        to,
        from,
        sequence: Sequence(0),
        acknowledge: Sequence(0),
        stamp: stamp(now),
        echo: 0,
        round: 0,
        ask: false,
        deliberate,
        payload: &[],
    }
    .encode(out);
}
