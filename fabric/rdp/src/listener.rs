// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many connections on one socket; those of restarted peers are ended.

use std::collections::{BTreeMap, VecDeque};

use telegraphos_accounts::{Account, Rate, Rates, Shares, Slots};

use crate::bugs::Bug;
use crate::config::{Config, ConfigError, Identity};
use crate::connection::{Connection, State};
use crate::datagram::{Datagram, Kind};
use crate::statistics::Statistics;

/// Identifies a connection of a listener: this side's id of it.
pub type Key = u64;

/// The most Resets that wait. More are not sent: the peer's next datagram causes another.
const RESETS: usize = 64;
/// Opens per second, and at once, of one origin and of all.
const OPENS: [(u32, u32); 2] = [(1000, 256), (4000, 1024)];
/// Resets per second, and at once, to one origin and to all.
const RESET_RATES: [(u32, u32); 2] = [(200, 16), (1000, 256)];
/// Origins remembered for that.
const ORIGINS: usize = 1024;

fn rates([each, all]: [(u32, u32); 2]) -> Rates<u64> {
    Rates::new(Rate::new(each.0, each.1), Rate::new(all.0, all.1), ORIGINS)
}

#[derive(Debug)]
struct Entry<P> {
    peer: P,
    connection: Connection,
    accepted: bool,
    /// The ordinal of the connection; greater than that of every earlier one.
    age: u64,
}

/// The server: it finds the connection of each datagram by its id, accepts new ones, and ends those of peers that
/// have opened a new one. `P` is the address of a peer.
///
/// A *peer* is identified by the name in its Open, or by its address if it has none. A new connection of a peer ends
/// its old ones, but not before the peer has confirmed it: the Open itself may be a stale copy from an earlier session.
///
/// What peers can make it spend is on accounts by *origin*, which several addresses may have in common (ports of one
/// host). Half of [`Config::connections`] are for handshakes: when they are used up, a new one displaces the oldest of
/// the origin that has most. The other half are for established connections, at most three quarters of them for one
/// origin. Opens and Resets are rate-limited.
#[derive(Debug)]
pub struct Listener<P> {
    config: Config,
    entries: BTreeMap<Key, Entry<P>>,
    /// Established, not yet returned by [`Listener::accepted`].
    accepted: VecDeque<Key>,
    /// Resets to send: address, and ids (to, from).
    resets: VecDeque<(P, u64, u64)>,
    /// Counters of what belongs to no connection.
    statistics: Statistics,
    created: u64,
    /// Opens are not answered any more.
    stopped: bool,
    /// The first key that the next [`Listener::poll_transmit`] polls.
    turn: Key,
    origin: fn(&P) -> u64,
    /// Handshakes, by age and key.
    opening: Slots<u64, (u64, Key)>,
    standing: Account<u64>,
    opens: Rates<u64>,
    reset_rates: Rates<u64>,
}

impl<P: Clone + PartialEq> Listener<P> {
    /// A listener for connections with this configuration, with one origin for all peers.
    ///
    /// # Errors
    /// The field of the configuration that is invalid.
    pub fn new(config: Config) -> Result<Listener<P>, ConfigError> {
        Listener::with_origins(config, |_| 0)
    }

    /// The same for peers of several origins, which `origin` derives from their addresses.
    ///
    /// # Errors
    /// The field of the configuration that is invalid.
    pub fn with_origins(config: Config, origin: fn(&P) -> u64) -> Result<Listener<P>, ConfigError> {
        config.check()?;
        let opening = (config.connections as u64 / 2).max(1);
        let standing = (config.connections as u64 - opening).max(1);
        let shares = |capacity: u64, limit: u64| Shares { capacity, spenders: 1, guaranteed: 0, limit };
        Ok(Listener {
            origin,
            opening: Slots::new(shares(opening, opening)),
            standing: Account::new(shares(standing, standing.div_ceil(4) * 3)),
            opens: rates(OPENS),
            reset_rates: rates(RESET_RATES),
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

    /// Processes a datagram from `peer` and returns the connection it was for, `None` if it was for none. If it opens a
    /// connection, that gets the identity `fresh`.
    pub fn datagram(&mut self, now: u64, peer: &P, bytes: &[u8], fresh: Identity) -> Option<Key> {
        let datagram = match self.config.parse(bytes) {
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
                self.foreign(now, peer, &datagram);
                None
            };
        };
        let entry = self.entries.get_mut(&key)?;
        entry.connection.take(now, &datagram);
        self.settle(now, key);
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
        let origin = (self.origin)(peer);
        if !self.opens.take(origin, now) {
            self.statistics.crowded += 1;
            return None;
        }
        let answered = Connection::answer(self.config.clone(), fresh, open, now);
        let Ok(Some(connection)) = answered else {
            self.statistics.malformed += 1;
            return None;
        };
        self.created += 1;
        match self.opening.take(origin, (self.created, fresh.id)) {
            Ok(None) => {}
            Ok(Some((_, displaced))) => {
                self.statistics.displaced += 1;
                self.entries.remove(&displaced);
            }
            // Not reached: the capacity is at least one.
            Err(_) => return None,
        }
        let entry = Entry { peer: peer.clone(), connection, accepted: false, age: self.created };
        self.entries.insert(fresh.id, entry);
        if self.config.has(Bug::ReplaceUnconfirmed) {
            self.replace(fresh.id);
        }
        Some(fresh.id)
    }

    /// A datagram of a connection that does not exist here is answered by a Reset.
    fn foreign(&mut self, now: u64, peer: &P, datagram: &Datagram<'_>) {
        self.statistics.foreign += 1;
        if datagram.kind != Kind::Reset && !self.config.has(Bug::NoReset) {
            self.reset(now, peer.clone(), datagram.from, datagram.to);
        }
    }

    fn reset(&mut self, now: u64, peer: P, to: u64, from: u64) {
        if self.resets.len() < RESETS && self.reset_rates.take((self.origin)(&peer), now) {
            self.resets.push_back((peer, to, from));
        } else {
            self.statistics.resets_left_out += 1;
        }
    }

    /// Removes a connection and gives its unit back to its account.
    fn forget(&mut self, key: Key) -> Option<Connection> {
        let entry = self.entries.remove(&key)?;
        if entry.accepted {
            self.standing.give(&(self.origin)(&entry.peer), 1);
        } else {
            self.opening.give((entry.age, key));
        }
        Some(entry.connection)
    }

    /// After an event of a connection: accepts it if it was confirmed, removes it if it ended before that.
    fn settle(&mut self, now: u64, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        match entry.connection.state() {
            State::Established if !entry.accepted => {
                if self.standing.take((self.origin)(&entry.peer), 1).is_err() {
                    self.statistics.crowded += 1;
                    let (peer, to) = (entry.peer.clone(), entry.connection.peer());
                    self.forget(key);
                    return self.reset(now, peer, to.unwrap_or(0), key);
                }
                self.opening.give((entry.age, key));
                entry.accepted = true;
                self.accepted.push_back(key);
                self.statistics.established += 1;
                self.replace(key);
            }
            State::Ended(_) if !entry.accepted => {
                self.forget(key);
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
        let same = |e: &Entry<P>| if name == 0 { e.peer == peer } else { e.connection.name() == name };
        let ended = |e: &Entry<P>| matches!(e.connection.state(), State::Ended(_));
        for entry in self.entries.values_mut().filter(|e| e.age < age && same(e) && !ended(e)) {
            entry.connection.replaced();
            self.statistics.restarts += u64::from(entry.accepted);
        }
        let ended = self.entries.iter().filter(|(_, e)| !e.accepted && ended(e));
        let ended: Vec<Key> = ended.map(|(key, _)| *key).collect();
        ended.into_iter().for_each(|key| drop(self.forget(key)));
    }

    /// Stops accepting: Opens are not answered from now on, and connections that [`Listener::accepted`] has not
    /// returned are aborted.
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

    /// Connections established since the last call, in order.
    pub fn accepted(&mut self) -> impl Iterator<Item = Key> + '_ {
        self.accepted.drain(..)
    }

    /// A connection, to inspect; `None` if no connection has this key.
    pub fn connection(&self, key: Key) -> Option<&Connection> {
        self.entries.get(&key).map(|e| &e.connection)
    }

    /// A connection, to send, receive or close; [`Listener::poll_transmit`] must be called afterwards.
    pub fn connection_mut(&mut self, key: Key) -> Option<&mut Connection> {
        self.entries.get_mut(&key).map(|e| &mut e.connection)
    }

    /// The address of a connection's peer.
    pub fn peer(&self, key: Key) -> Option<&P> {
        self.entries.get(&key).map(|e| &e.peer)
    }

    /// All connections, handshakes included, in the order of keys.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.entries.keys().copied()
    }

    /// Removes a connection; datagrams that still arrive for it are answered with a Reset. Connections that have ended
    /// stay until they are removed.
    pub fn remove(&mut self, key: Key) -> Option<Connection> {
        self.accepted.retain(|k| *k != key);
        self.forget(key)
    }

    /// When [`Listener::timer`] must be called, in microseconds; `None`: never.
    pub fn deadline(&self) -> Option<u64> {
        self.entries.values().filter_map(|e| e.connection.deadline()).min()
    }

    /// Processes expired timers of all connections.
    pub fn timer(&mut self, now: u64) {
        let due = |e: &Entry<P>| e.connection.deadline().is_some_and(|at| at <= now);
        let keys: Vec<Key> = self.entries.iter().filter(|(_, e)| due(e)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.connection.timer(now);
            }
            self.settle(now, key);
        }
    }

    /// Replaces the contents of `out` by the next datagram to send; returns its destination and its connection (`None`
    /// for a Reset), or `None` if nothing is to be sent. The connections take turns.
    pub fn poll_transmit(&mut self, now: u64, out: &mut Vec<u8>) -> Option<(P, Option<Key>)> {
        self.poll_transmit_to(now, out, |_| true)
    }

    /// The same for the connections of peers that are `ready`. Resets are returned for any peer.
    pub fn poll_transmit_to(
        &mut self,
        now: u64,
        out: &mut Vec<u8>,
        ready: impl Fn(&P) -> bool,
    ) -> Option<(P, Option<Key>)> {
        if let Some((peer, to, from)) = self.resets.pop_front() {
            self.statistics.resets_sent += 1;
            self.statistics.datagrams_sent += 1;
            Datagram::bare(Kind::Reset, to, from, now).encode(out);
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

    /// Counters of what belonged to no connection, and of connections established and restarted.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }
}
