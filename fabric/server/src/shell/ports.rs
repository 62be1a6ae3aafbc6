// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connections by their ports, and which of them have something to do: what the parts of the fabric work with,
//! together with the time and the log.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Arguments;
use std::time::Instant;

use rustix::io::Errno;
use telegraphos_fabric_core::PortId;
use telegraphos_service::wait::WaitSet;
use telegraphos_transport::Transport;

use super::connection::{Connection, Place, Role};
use super::report::Log;
use super::turns::{self, Turns, relieve};
use super::watch::{READ, Source};

#[derive(Debug)]
pub(super) struct Ports {
    /// By port.
    connections: Vec<Option<Connection>>,
    /// What the loop waits for, by [`Source`].
    pub(super) watch: WaitSet,
    pub(super) turns: Turns,
    /// By port: when its transport has something to do without any event.
    pub(super) timed: BTreeMap<PortId, u64>,
    /// The ports of HIBs of this process, which no descriptor reports where they share the fabric's thread.
    in_memory: Vec<PortId>,
    /// Connections to flush.
    pub(super) touched: VecDeque<PortId>,
    /// Connections so far.
    pub(super) accepted: u64,
    /// Work of the current turn so far.
    pub(super) work: i64,
    pub(super) started: Instant,
    /// Microseconds since the start, as of this round.
    pub(super) now: u64,
    pub(super) log: Log,
}

impl Ports {
    /// No connections.
    pub(super) fn new(watch: WaitSet) -> Ports {
        Ports {
            connections: Vec::new(),
            watch,
            turns: Turns::default(),
            timed: BTreeMap::new(),
            in_memory: Vec::new(),
            touched: VecDeque::new(),
            accepted: 0,
            work: 0,
            started: Instant::now(),
            now: 0,
            log: Log::default(),
        }
    }

    /// Microseconds since the start.
    pub(super) fn clock(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// A port's connection, if it is open.
    pub(super) fn get(&self, port: PortId) -> Option<&Connection> {
        self.connections.get(port as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, port: PortId) -> Option<&mut Connection> {
        self.connections.get_mut(port as usize)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (PortId, &Connection)> {
        let all = self.connections.iter().enumerate();
        all.filter_map(|(port, connection)| Some((port as PortId, connection.as_ref()?)))
    }

    /// A new connection gets a port. If it cannot be watched it is ended, and nothing else.
    pub(super) fn connect(
        &mut self,
        transport: Box<dyn Transport>,
        switch: usize,
        role: Role,
    ) -> Result<PortId, Errno> {
        let port = match self.connections.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.connections.push(None);
                self.connections.len() - 1
            }
        };
        self.watch.add(transport.fd(), Source::Port(port as u32).place(), READ)?;
        self.accepted += 1;
        self.connections[port] = Some(Connection::new(transport, switch, role, self.accepted));
        self.touch(port as PortId);
        Ok(port as PortId)
    }

    /// The connection of a HIB of this process.
    pub(super) fn connect_in_memory(&mut self, transport: Box<dyn Transport>) -> Result<PortId, Errno> {
        let port = self.connect(transport, 0, Role::Unidentified)?;
        self.in_memory.push(port);
        Ok(port)
    }

    /// Takes a connection out, to be changed as a whole; it is put back, or [forgotten](Ports::forget).
    pub(super) fn take(&mut self, port: PortId) -> Option<Connection> {
        self.connections.get_mut(port as usize)?.take()
    }

    /// Puts a connection back.
    pub(super) fn put(&mut self, port: PortId, connection: Connection) {
        self.connections[port as usize] = Some(connection);
        self.touch(port);
    }

    /// A connection that was [taken out](Ports::take) has ended.
    pub(super) fn forget(&mut self, port: PortId, place: &Place) {
        self.timed.remove(&port);
        self.in_memory.retain(|other| *other != port);
        if place.queued {
            let Turns { identified, unidentified, .. } = &mut self.turns;
            let queue = if place.role.is_identified() { identified } else { unidentified };
            queue.retain(|queued| *queued != port);
        }
    }

    /// A connection has something to do: it gets a turn.
    pub(super) fn ready(&mut self, port: PortId, ended: bool) {
        self.touch(port);
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return };
        connection.ended |= ended;
        if !connection.queued {
            connection.queued = true;
            if connection.role.is_identified() {
                // Before those that have more to do than their turns allow: it may be all that it has.
                self.turns.identified.push_front(port);
            } else {
                self.turns.unidentified.push_back(port);
            }
        }
    }

    /// A connection is to be flushed in this round.
    pub(super) fn touch(&mut self, port: PortId) {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return };
        if !connection.touched {
            connection.touched = true;
            self.work += turns::CALL;
            self.touched.push_back(port);
        }
    }

    /// All of them are.
    pub(super) fn touch_all(&mut self) {
        (0..self.connections.len()).for_each(|port| self.touch(port as PortId));
    }

    /// Ends a connection once its output was offered to it.
    pub(super) fn close(&mut self, port: PortId) {
        if let Some(connection) = self.get_mut(port) {
            connection.closing = true;
        }
        self.touch(port);
    }

    /// A connection is identified: its node has joined, or its trunk is known. Returns the process on whose account it
    /// was until now.
    pub(super) fn identified(&mut self, port: PortId, role: Role) -> Option<u32> {
        let connection = self.connections.get_mut(port as usize)?.as_mut()?;
        // It waits among those that are identified from now on.
        if std::mem::take(&mut connection.queued) {
            self.turns.unidentified.retain(|queued| *queued != port);
        }
        connection.identified(role);
        connection.process.filter(|_| std::mem::take(&mut connection.unidentified))
    }

    /// What a connection is watched for has changed. Fails if it cannot be watched.
    pub(super) fn rewatch(&self, port: PortId) -> Result<(), Errno> {
        let Some(connection) = self.get(port) else { return Ok(()) };
        self.watch.change(connection.transport.fd(), Source::Port(port).place(), connection.interest())
    }

    /// The links in memory with something to do, and whether their HIBs have gone.
    pub(super) fn attention(&self) -> impl Iterator<Item = (PortId, bool)> + '_ {
        self.in_memory.iter().filter_map(|port| self.get(*port)?.attention().map(|ended| (*port, ended)))
    }

    /// Whether there is something to do at once.
    pub(super) fn is_busy(&self) -> bool {
        !self.turns.is_empty() || !self.touched.is_empty() || self.attention().next().is_some()
    }

    /// Those whose transports have something to do now without any event get a turn.
    pub(super) fn timers(&mut self) {
        let now = self.now;
        let due: Vec<PortId> = self.timed.iter().filter(|(_, at)| **at <= now).map(|(port, _)| *port).collect();
        due.into_iter().for_each(|port| self.ready(port, false));
    }

    /// No flow was allowed anything in a round of turns: if any has work, the least debt is forgiven to all that have.
    pub(super) fn relieve(&mut self) {
        let mut waiting = self.turns.identified.clone();
        waiting.make_contiguous().sort_unstable();
        let connections = self.connections.iter_mut().enumerate();
        let flows = connections.filter(|(port, _)| waiting.binary_search(&(*port as PortId)).is_ok());
        let flows = flows.filter_map(|(_, connection)| Some(&mut connection.as_mut()?.flow));
        let common = Some(&mut self.turns.common).filter(|_| !self.turns.unidentified.is_empty());
        relieve(flows.chain(common));
    }

    // ---- the log ----

    /// Logs a warning about no peer in particular; rate-limited.
    pub(super) fn complain(&mut self, what: Arguments<'_>) {
        self.log.complain(self.now, what);
    }

    /// About what a connection sends.
    pub(super) fn complain_of(&mut self, port: PortId, what: Arguments<'_>) {
        let connection = self.connections.get(port as usize).and_then(Option::as_ref);
        self.log.complain_of(self.now, port, connection, what);
    }

    /// About what a process does.
    pub(super) fn complain_of_process(&mut self, process: u32, what: Arguments<'_>) {
        self.log.complain_of_process(self.now, process, what);
    }
}
