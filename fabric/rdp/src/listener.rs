// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many connections on one socket, and which of them are over because their peer was restarted.

use std::collections::{BTreeMap, VecDeque};

use crate::config::{Bug, Config, ConfigError, Identity};
use crate::connection::{Connection, State, encode_reset};
use crate::datagram::{Datagram, Kind};
use crate::statistics::Statistics;

/// Names a connection of a listener: this side's id of it.
pub type Key = u64;

/// The most Resets that wait; more are not sent: who needs one will ask again.
const RESETS: usize = 64;

#[derive(Debug)]
struct Entry<P> {
    peer: P,
    connection: Connection,
    accepted: bool,
    /// Counts up with each connection.
    age: u64,
}

/// The side that is called: it finds the connection of each datagram by its id, sets up new ones, and ends those whose
/// peer has begun a new one. `P` is the address of a peer.
///
/// A *peer* is known by the name in its Open, or by its address if it has none. A new connection of a peer ends its old
/// ones, but not before the peer has confirmed it: the Open itself may be a late copy from an earlier life.
#[derive(Debug)]
pub struct Listener<P> {
    config: Config,
    entries: BTreeMap<Key, Entry<P>>,
    /// Established, not handed out.
    accepted: VecDeque<Key>,
    /// To whom, and (to, from).
    resets: VecDeque<(P, u64, u64)>,
    /// Of what belongs to no connection.
    statistics: Statistics,
    created: u64,
    /// Opens are not answered.
    stopped: bool,
    /// Where the next [`Listener::poll_transmit`] looks first.
    turn: Key,
}

impl<P: Clone + PartialEq> Listener<P> {
    /// A listener whose connections have this configuration.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(config: Config) -> Result<Listener<P>, ConfigError> {
        config.check()?;
        Ok(Listener {
            config,
            entries: BTreeMap::new(),
            accepted: VecDeque::new(),
            resets: VecDeque::new(),
            statistics: Statistics::default(),
            created: 0,
            stopped: false,
            turn: 0,
        })
    }

    /// A datagram that came from `peer`. `fresh` is used if it opens a connection. Returns the connection it was for.
    pub fn datagram(&mut self, now: u64, peer: &P, bytes: &[u8], fresh: Identity) -> Option<Key> {
        let datagram = match Datagram::parse_with(bytes, !self.config.has(Bug::NoChecksum)) {
            Ok(datagram) => datagram,
            Err(why) => {
                self.statistics.datagrams_received += 1;
                self.statistics.discarded(why);
                return None;
            }
        };
        let Some(key) = self.find(peer, &datagram) else {
            self.statistics.datagrams_received += 1;
            return if datagram.kind == Kind::Open {
                self.open(now, peer, &datagram, fresh)
            } else {
                self.foreign(peer, &datagram);
                None
            };
        };
        let entry = self.entries.get_mut(&key)?;
        entry.connection.take(now, &datagram);
        self.settle(key);
        Some(key)
    }

    /// The connection that a datagram is for.
    fn find(&self, peer: &P, datagram: &Datagram<'_>) -> Option<Key> {
        if datagram.kind == Kind::Open {
            let same = |e: &Entry<P>| e.peer == *peer && e.connection.peer() == Some(datagram.from);
            return self.entries.iter().find(|(_, e)| same(e)).map(|(key, _)| *key);
        }
        if self.config.has(Bug::IgnoreConnectionId) {
            return self.entries.iter().rev().find(|(_, e)| e.peer == *peer).map(|(key, _)| *key);
        }
        self.entries.get(&datagram.to).filter(|e| e.peer == *peer).map(|_| datagram.to)
    }

    fn open(&mut self, now: u64, peer: &P, open: &Datagram<'_>, fresh: Identity) -> Option<Key> {
        if self.stopped || self.entries.contains_key(&fresh.id) {
            return None;
        }
        if self.entries.len() >= self.config.connections && !self.make_room() {
            return None;
        }
        let answered = Connection::answer(self.config.clone(), fresh, open, now);
        let Ok(Some(connection)) = answered else {
            self.statistics.malformed += 1;
            return None;
        };
        self.created += 1;
        let entry = Entry { peer: peer.clone(), connection, accepted: false, age: self.created };
        self.entries.insert(fresh.id, entry);
        if self.config.has(Bug::ReplaceUnconfirmed) {
            self.replace(fresh.id);
        }
        Some(fresh.id)
    }

    /// Forgets the oldest connection that is being set up.
    fn make_room(&mut self) -> bool {
        let unconfirmed = self.entries.iter().filter(|(_, e)| e.connection.state() == State::Answering);
        let oldest = unconfirmed.min_by_key(|(_, e)| e.age).map(|(key, _)| *key);
        oldest.is_some_and(|key| self.entries.remove(&key).is_some())
    }

    /// A datagram of a connection that does not exist here: its sender must learn that.
    fn foreign(&mut self, peer: &P, datagram: &Datagram<'_>) {
        self.statistics.foreign += 1;
        if datagram.kind != Kind::Reset && self.resets.len() < RESETS && !self.config.has(Bug::NoReset) {
            self.resets.push_back((peer.clone(), datagram.from, datagram.to));
        }
    }

    /// After an event of a connection: it may have been confirmed, or have ended before that.
    fn settle(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match entry.connection.state() {
            State::Established if !entry.accepted => {
                entry.accepted = true;
                self.accepted.push_back(key);
                self.statistics.established += 1;
                self.replace(key);
            }
            State::Ended(_) if !entry.accepted => {
                self.entries.remove(&key);
            }
            _ => {}
        }
    }

    /// Ends all older connections of the peer of this one.
    fn replace(&mut self, key: Key) {
        let Some(new) = self.entries.get(&key) else { return };
        let (peer, name, age) = (new.peer.clone(), new.connection.name(), new.age);
        if self.config.has(Bug::KeepReplaced) {
            return;
        }
        for entry in self.entries.values_mut() {
            let same = if name == 0 { entry.peer == peer } else { entry.connection.name() == name };
            if !same || entry.age >= age {
                continue;
            }
            if !matches!(entry.connection.state(), State::Ended(_)) {
                entry.connection.replaced();
                self.statistics.restarts += u64::from(entry.accepted);
            }
        }
        self.entries.retain(|_, e| e.accepted || !matches!(e.connection.state(), State::Ended(_)));
    }

    /// No more connections: an Open is not answered from now on, and what was not handed out by [`Listener::accepted`] is
    /// given up.
    pub fn stop(&mut self) {
        self.stopped = true;
        for entry in self.entries.values_mut().filter(|e| !e.accepted) {
            entry.connection.abandon();
        }
        for key in self.accepted.drain(..) {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.connection.abandon();
            }
        }
    }

    /// Connections set up since the last call, in order.
    pub fn accepted(&mut self) -> impl Iterator<Item = Key> + '_ {
        self.accepted.drain(..)
    }

    /// A connection.
    pub fn connection(&self, key: Key) -> Option<&Connection> {
        self.entries.get(&key).map(|e| &e.connection)
    }

    /// A connection, to send, receive or close; then [`Listener::poll_transmit`].
    pub fn connection_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.entries.get_mut(&key).map(|e| &mut e.connection)
    }

    /// The address of a connection's peer.
    pub fn peer(&self, key: Key) -> Option<&P> {
        self.entries.get(&key).map(|e| &e.peer)
    }

    /// The connections, those that are being set up included.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.entries.keys().copied()
    }

    /// Forgets a connection; what still comes for it is answered with a Reset. Connections that have ended stay until then.
    pub fn remove(&mut self, key: Key) -> Option<Connection> {
        self.accepted.retain(|k| *k != key);
        self.entries.remove(&key).map(|e| e.connection)
    }

    /// When [`Listener::timer`] wants to be called; `None`: never.
    pub fn deadline(&self) -> Option<u64> {
        self.entries.values().filter_map(|e| e.connection.deadline()).min()
    }

    /// Does what is due on all connections.
    pub fn timer(&mut self, now: u64) {
        let due = |e: &Entry<P>| e.connection.deadline().is_some_and(|at| at <= now);
        let keys: Vec<Key> = self.entries.iter().filter(|(_, e)| due(e)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.connection.timer(now);
            }
            self.settle(key);
        }
    }

    /// Writes the next datagram to be sent now, and says to whom and of which connection (`None`: of none); `None`: there is
    /// none. The connections take turns.
    pub fn poll_transmit(&mut self, now: u64, out: &mut Vec<u8>) -> Option<(P, Option<Key>)> {
        self.poll_transmit_to(now, out, |_| true)
    }

    /// The same, of the connections of peers that can be sent to now.
    pub fn poll_transmit_to(
        &mut self,
        now: u64,
        out: &mut Vec<u8>,
        ready: impl Fn(&P) -> bool,
    ) -> Option<(P, Option<Key>)> {
        if let Some((peer, to, from)) = self.resets.pop_front() {
            self.statistics.resets_sent += 1;
            self.statistics.datagrams_sent += 1;
            encode_reset(now, to, from, false, out);
            return Some((peer, None));
        }
        let turn = self.turn;
        for keys in [turn..=Key::MAX, 0..=turn.saturating_sub(1)] {
            for (key, entry) in self.entries.range_mut(keys) {
                if ready(&entry.peer) && entry.connection.poll_transmit(now, out) {
                    self.turn = key.wrapping_add(1);
                    return Some((entry.peer.clone(), Some(*key)));
                }
            }
        }
        None
    }

    /// Counts of what belonged to no connection, and connections set up and found restarted.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}
