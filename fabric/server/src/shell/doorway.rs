// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission at the listener: how many connections a second, and how many unidentified ones, of all processes and of
//! each.

use std::collections::BTreeMap;

use log::debug;
use rustix::io::Errno;
use telegraphos_accounts::{Account, Rate, Shares};
use telegraphos_fabric_core::PortId;
use telegraphos_transport::{MemoryTransport, UnixTransport};

use super::Fabric;
use super::connection::Role;
use super::trunks::passes;
use super::watch::Source;
use crate::peer;

/// Unidentified connections, of all processes together. Each of up to 32 processes may always have one, and one alone
/// at most a half.
const UNIDENTIFIED: Shares = Shares { capacity: 128, spenders: 32, guaranteed: 1, limit: 64 };
/// Connections accepted in one round of the loop.
const AT_ONCE: usize = 8;
/// Microseconds for which the listener rests after an error.
const REST: u64 = 100_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Doorway {
    rate: Rate,
    unidentified: Account<u32>,
    /// By process: its connections that are nodes'. These go before others.
    known: BTreeMap<u32, usize>,
    /// The listener is not watched until then; `None` while it is.
    pub(super) closed_until: Option<u64>,
    /// Connections ended to make place for others.
    pub(super) ended: u64,
}

impl Doorway {
    /// Open, without connections.
    pub(super) fn new(rate: Rate) -> Doorway {
        Doorway { rate, unidentified: Account::new(UNIDENTIFIED), known: BTreeMap::new(), closed_until: None, ended: 0 }
    }

    /// One more unidentified connection, if there is room for it.
    #[cfg(test)]
    pub(super) fn charge(&mut self, process: u32) -> bool {
        self.unidentified.take(process, 1).is_ok()
    }

    /// Unidentified connections of this process.
    #[cfg(test)]
    pub(super) fn held(&self, process: u32) -> u64 {
        self.unidentified.held(&process)
    }

    /// A connection of this process has ended, or is no longer unidentified.
    pub(super) fn left(&mut self, process: u32, unidentified: bool) {
        if unidentified {
            self.unidentified.give(&process, 1);
        } else if let Some(count) = self.known.get_mut(&process) {
            *count -= 1;
            if *count == 0 {
                self.known.remove(&process);
            }
        }
    }
}

impl Fabric {
    /// Accepts pending connections, as far as the rate allows, a few per round.
    pub(super) fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            if !self.doorway.rate.take(self.now) {
                let until = self.doorway.rate.ready_at(self.now).unwrap_or(u64::MAX);
                return self.close_doorway(until);
            }
            match self.listener.accept() {
                Ok(Some(stream)) => {
                    let transport = UnixTransport::from_stream(stream, &self.config.transport.common);
                    self.let_in(transport);
                }
                Ok(None) => return,
                // Another process ended what waited here.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                Err(e) => {
                    // An unidentified connection makes room for one that may be a node's.
                    let made = passes(e) && self.end_unidentified(None);
                    let hint = if passes(e) { " (raise the limit: ulimit -n)" } else { "" };
                    self.complain(format_args!("cannot accept a connection: {e}{hint}"));
                    if !made {
                        return self.close_doorway(self.now.saturating_add(REST));
                    }
                }
            }
        }
    }

    /// Links of HIBs of this process: on nobody's account.
    pub(super) fn enter(&mut self) {
        if !self.door.is_knocked() {
            return;
        }
        for link in self.door.enter() {
            match self.connect(Box::new(MemoryTransport::new(link)), 0, Role::Unidentified) {
                Ok(port) => {
                    self.in_memory.push(port);
                    debug!("connection {} of this process accepted as port {port}", self.accepted);
                }
                Err(e) => {
                    self.complain(format_args!("a connection of this process cannot be watched: {e}; it is ended"))
                }
            }
        }
    }

    /// A new connection, on the account of the process that made it.
    fn let_in(&mut self, transport: UnixTransport) {
        use telegraphos_transport::Transport;
        let process = peer::process(transport.fd());
        if let Err(e) = self.doorway.unidentified.take(process, 1) {
            // The oldest of this process, if it has its full share; else of the process with the most.
            let own = self.doorway.unidentified.held(&process) >= UNIDENTIFIED.limit;
            self.complain_of_process(
                process,
                format_args!("process {process} {e} connections that have not said hello: ending one that waits"),
            );
            if !self.end_unidentified(own.then_some(process)) || self.doorway.unidentified.take(process, 1).is_err() {
                return;
            }
        }
        match self.connect(Box::new(transport), 0, Role::Unidentified) {
            Ok(port) => {
                if let Some(connection) = self.connection(port) {
                    (connection.process, connection.unidentified) = (Some(process), true);
                }
                debug!("connection {} accepted as port {port}", self.accepted);
            }
            Err(e) => {
                self.doorway.unidentified.give(&process, 1);
                self.complain_of_process(process, format_args!("a connection cannot be watched: {e}; it is ended"));
            }
        }
    }

    /// Ends the oldest unidentified connection: of this process; without one, of the process with the most, processes
    /// without a node first. False if no connection is unidentified.
    pub(super) fn end_unidentified(&mut self, of: Option<u32>) -> bool {
        let unidentified = self.connections.iter().enumerate().filter_map(|(port, connection)| {
            let connection = connection.as_ref().filter(|connection| connection.unidentified)?;
            let process = connection.process?;
            if of.is_some_and(|of| of != process) {
                return None;
            }
            let known = self.doorway.known.contains_key(&process);
            let held = self.doorway.unidentified.held(&process);
            Some((known, std::cmp::Reverse(held), connection.number, port as PortId))
        });
        let Some((.., port)) = unidentified.min() else { return false };
        self.doorway.ended += 1;
        self.end(port);
        true
    }

    /// A connection is identified: its node has joined, or its trunk is known.
    pub(super) fn identified(&mut self, port: PortId, role: Role) {
        let Some(connection) = self.connections.get_mut(port as usize).and_then(Option::as_mut) else { return };
        // It waits among those that are identified from now on.
        if std::mem::take(&mut connection.queued) {
            self.turns.unidentified.retain(|queued| *queued != port);
        }
        connection.identified(role);
        if let Some(process) = connection.process.filter(|_| connection.unidentified) {
            connection.unidentified = false;
            self.doorway.left(process, true);
            *self.doorway.known.entry(process).or_default() += 1;
        }
    }

    fn close_doorway(&mut self, until: u64) {
        if self.doorway.closed_until.is_none() {
            if let Err(e) = self.watch.remove(self.listener.fd()) {
                self.complain(format_args!("the listener cannot rest: {e}"));
                return;
            }
        }
        self.doorway.closed_until = Some(until);
    }

    /// Watches the listener again; on an error, later.
    pub(super) fn open_doorway(&mut self) {
        self.doorway.closed_until = match self.watch.add(self.listener.fd(), Source::Listener) {
            Ok(()) => None,
            Err(e) => {
                self.complain(format_args!("the listener cannot be watched: {e}"));
                Some(self.now.saturating_add(REST))
            }
        };
    }
}
