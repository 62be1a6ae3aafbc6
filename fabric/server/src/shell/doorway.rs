// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission at the listener: how many connections a second, and how many unidentified ones, of all processes and of
//! each.

use std::collections::BTreeMap;

use log::debug;
use rustix::io::Errno;
use telegraphos_accounts::{Account, Exhausted, Rate, Shares};
use telegraphos_fabric_core::PortId;
use telegraphos_link::Door;
use telegraphos_link::listener::Listener;
use telegraphos_transport::{MemoryTransport, UnixTransport};

use super::connection::Role;
use super::ports::Ports;
use super::watch::{READ, Source};

/// Unidentified connections, of all processes together. Each of up to 32 processes may always have one, and one alone
/// at most a half.
const UNIDENTIFIED: Shares = Shares { capacity: 128, spenders: 32, guaranteed: 1, limit: 64 };
/// Connections accepted in one round of the loop.
pub(super) const AT_ONCE: usize = 8;
/// Microseconds for which the listener rests after an error.
const REST: u64 = 100_000;

#[derive(Debug)]
pub(super) struct Doorway {
    pub(super) listener: Listener,
    /// Where HIBs of this process hand in the ends of their links.
    pub(super) door: Door,
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
    pub(super) fn new(rate: Rate, listener: Listener, door: Door) -> Doorway {
        let (unidentified, known) = (Account::new(UNIDENTIFIED), BTreeMap::new());
        Doorway { listener, door, rate, unidentified, known, closed_until: None, ended: 0 }
    }

    /// Watches the listener and the door.
    pub(super) fn watch(&self, ports: &Ports) -> Result<(), Errno> {
        ports.watch.add(self.listener.fd(), Source::Listener.place(), READ)?;
        ports.watch.add(self.door.fd(), Source::Door.place(), READ)
    }

    /// Whether another connection may be accepted now; else the listener rests until it may.
    pub(super) fn admits(&mut self, ports: &mut Ports) -> bool {
        let admits = self.rate.take(ports.now);
        if !admits {
            let until = self.rate.ready_at(ports.now).unwrap_or(u64::MAX);
            self.close(ports, until);
        }
        admits
    }

    /// One more unidentified connection of this process, if there is room for it.
    pub(super) fn charge(&mut self, process: u32) -> Result<(), Exhausted> {
        self.unidentified.take(process, 1)
    }

    /// Unidentified connections of this process.
    #[cfg(test)]
    pub(super) fn held(&self, process: u32) -> u64 {
        self.unidentified.held(&process)
    }

    /// Whether this process has its full share of them.
    pub(super) fn is_full(&self, process: u32) -> bool {
        self.unidentified.held(&process) >= UNIDENTIFIED.limit
    }

    /// An unidentified connection of this process is a node's now.
    pub(super) fn identified(&mut self, process: u32) {
        self.left(process, true);
        *self.known.entry(process).or_default() += 1;
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

    /// Links of HIBs of this process: on no account.
    pub(super) fn enter(&mut self, ports: &mut Ports) {
        if !self.door.is_knocked() {
            return;
        }
        for link in self.door.enter() {
            match ports.connect_in_memory(Box::new(MemoryTransport::new(link))) {
                Ok(port) => debug!("connection {} of this process accepted as port {port}", ports.accepted),
                Err(e) => {
                    ports.complain(format_args!("a connection of this process cannot be watched: {e}; it is ended"))
                }
            }
        }
    }

    /// A new connection, which was charged to the process that made it.
    pub(super) fn let_in(&mut self, ports: &mut Ports, transport: UnixTransport, process: u32) {
        match ports.connect(Box::new(transport), 0, Role::Unidentified) {
            Ok(port) => {
                if let Some(connection) = ports.get_mut(port) {
                    (connection.process, connection.unidentified) = (Some(process), true);
                }
                debug!("connection {} accepted as port {port}", ports.accepted);
            }
            Err(e) => {
                self.unidentified.give(&process, 1);
                ports.complain_of_process(process, format_args!("a connection cannot be watched: {e}; it is ended"));
            }
        }
    }

    /// The oldest unidentified connection: of this process; without one, of the process with the most, processes
    /// without a node first.
    pub(super) fn oldest(&self, ports: &Ports, of: Option<u32>) -> Option<PortId> {
        let unidentified =
            ports.iter().filter(|(_, connection)| connection.unidentified).filter_map(|(port, connection)| {
                let process = connection.process.filter(|process| of.is_none_or(|of| of == *process))?;
                let known = self.known.contains_key(&process);
                let held = self.unidentified.held(&process);
                Some((known, std::cmp::Reverse(held), connection.number, port))
            });
        unidentified.min().map(|(.., port)| port)
    }

    /// The listener cannot accept: it rests for a while.
    pub(super) fn rest(&mut self, ports: &mut Ports) {
        self.close(ports, ports.now.saturating_add(REST));
    }

    fn close(&mut self, ports: &mut Ports, until: u64) {
        if self.closed_until.is_none() {
            if let Err(e) = ports.watch.remove(self.listener.fd()) {
                ports.complain(format_args!("the listener cannot rest: {e}"));
                return;
            }
        }
        self.closed_until = Some(until);
    }

    /// Watches the listener again if it has rested; on an error, later.
    pub(super) fn open(&mut self, ports: &mut Ports) {
        if self.closed_until.is_none_or(|at| at > ports.now) {
            return;
        }
        self.closed_until = match ports.watch.add(self.listener.fd(), Source::Listener.place(), READ) {
            Ok(()) => None,
            Err(e) => {
                ports.complain(format_args!("the listener cannot be watched: {e}"));
                Some(ports.now.saturating_add(REST))
            }
        };
    }
}
