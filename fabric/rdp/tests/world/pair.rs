// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two ends over a medium that loses exactly what a test says.

use std::collections::VecDeque;

use telegraphos_rdp_core::{Config, Connection, Datagram, Identity, Key, Listener, State};

use super::Side;

/// Microseconds from one side to the other.
pub(crate) const DELAY: u64 = 100;

/// Whether a datagram on its way to a side is lost.
pub(crate) type Lose = Box<dyn FnMut(Side, &Datagram<'_>) -> bool>;

pub(crate) struct Pair {
    pub(crate) now: u64,
    pub(crate) client: Connection,
    pub(crate) listener: Listener<()>,
    pub(crate) server: Key,
    queue: VecDeque<(u64, Side, Vec<u8>)>,
    pub(crate) lose: Lose,
    config: Config,
    next: u64,
}

pub(crate) fn pair(config: Config) -> Pair {
    let client = Connection::open(config.clone(), Identity { id: 1000, sequence: u32::MAX - 1 }, 5, 0).unwrap();
    let listener = Listener::new(config.clone()).unwrap();
    let lose = Box::new(|_: Side, _: &Datagram<'_>| false);
    let mut pair = Pair { now: 0, client, listener, server: 0, queue: VecDeque::new(), lose, config, next: 2000 };
    pair.run(10 * DELAY);
    assert_eq!((pair.client.state(), pair.server().state()), (State::Established, State::Established));
    pair
}

impl Pair {
    pub(crate) fn server(&mut self) -> &mut Connection {
        self.listener.connection_mut(self.server).unwrap()
    }

    /// A new server without memory.
    pub(crate) fn restart_server(&mut self) {
        self.listener = Listener::new(self.config.clone()).unwrap();
    }

    /// A new client without memory.
    pub(crate) fn restart_client(&mut self) {
        self.next += 1;
        let identity = Identity { id: self.next, sequence: 7 };
        self.client = Connection::open(self.config.clone(), identity, 5, self.now).unwrap();
    }

    /// Lets so many microseconds pass.
    pub(crate) fn run(&mut self, time: u64) {
        let until = self.now + time;
        loop {
            self.transmit();
            let arrival = self.queue.front().map(|(at, _, _)| *at);
            let next = [arrival, self.client.deadline(), self.listener.deadline()].into_iter().flatten().min();
            let Some(next) = next.filter(|at| *at <= until) else { break };
            self.now = next.max(self.now);
            self.client.timer(self.now);
            self.listener.timer(self.now);
            while self.queue.front().is_some_and(|(at, _, _)| *at <= self.now) {
                let Some((_, side, bytes)) = self.queue.pop_front() else { break };
                match side {
                    Side::Client => self.client.datagram(self.now, &bytes),
                    Side::Server => {
                        self.next += 1;
                        let fresh = Identity { id: self.next, sequence: u32::MAX };
                        self.listener.datagram(self.now, &(), &bytes, fresh);
                        if let Some(key) = self.listener.accepted().last() {
                            self.server = key;
                        }
                    }
                }
                self.transmit();
            }
        }
        self.now = until;
    }

    pub(crate) fn transmit(&mut self) {
        let mut bytes = Vec::new();
        loop {
            let to = if self.client.poll_transmit(self.now, &mut bytes) {
                Side::Server
            } else if self.listener.poll_transmit(self.now, &mut bytes).is_some() {
                Side::Client
            } else {
                break;
            };
            if !(self.lose)(to, &Datagram::parse(&bytes).unwrap()) {
                self.queue.push_back((self.now + DELAY, to, bytes.clone()));
            }
        }
    }

    /// Everything that the server can read now.
    pub(crate) fn read(&mut self) -> Vec<u8> {
        let mut buffer = vec![0; self.server().available()];
        let count = self.server().receive(&mut buffer);
        assert_eq!(count, buffer.len());
        buffer
    }
}
