// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames without a credit: groups, probes, and frames without effect. Each node has a rate of them and a burst, over
//! all its connections; the connection of a node that exceeds it is not read for a while, and its socket applies
//! back-pressure. So no node occupies the loop with frames that cost it no credit.

use std::collections::BTreeSet;

use rustix::io::Errno;
use telegraphos_accounts::{Rate, Rates};
use telegraphos_fabric_core::PortId;
use telegraphos_wire::link::{Frame, MAX_GROUPS};
use telegraphos_wire::{Class, NodeId};

use super::connection::Role;
use super::ports::Ports;

/// Of a node: all the groups that it may have, and more, at once when it joins; then as many a second as take a few
/// hundredths of a processor's time.
const EACH: Rate = Rate::new(8192, MAX_GROUPS as u32 + 1024);
/// Of all nodes together.
const ALL: Rate = Rate::new(16 * EACH.per_second(), 16 * EACH.burst());
/// Nodes that are remembered.
const NODES: usize = 1024;
/// Microseconds for which a connection is not read.
const REST: u64 = 10_000;

#[derive(Debug)]
pub(super) struct Unpaid {
    rates: Rates<NodeId>,
    /// Connections that are not read, by when they will be.
    resting: BTreeSet<(u64, PortId)>,
    /// How often one was not read.
    pub(super) rests: u64,
}

impl Unpaid {
    /// No connection rests.
    pub(super) fn new() -> Unpaid {
        Unpaid { rates: Rates::new(EACH, ALL, NODES), resting: BTreeSet::new(), rests: 0 }
    }

    /// When the first connection is read again, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.resting.first().map(|(at, _)| *at)
    }

    /// Whether the connection of a node has sent so many frames without a credit that it must rest before this one.
    pub(super) fn must_rest(&mut self, ports: &mut Ports, port: PortId, frame: &Frame) -> bool {
        if !is_unpaid(frame) {
            return false;
        }
        let now = ports.now;
        let Some(connection) = ports.get_mut(port) else { return false };
        let Some(node) = connection.node.filter(|_| connection.role == Role::Link && !connection.ended) else {
            return false;
        };
        if self.rates.take(node, now) {
            return false;
        }
        let until = now.saturating_add(REST);
        connection.rests_until = Some(until);
        self.resting.insert((until, port));
        self.rests += 1;
        if let Err(e) = ports.rewatch(port) {
            ports.complain_of(port, format_args!("port {port} cannot rest: {e}"));
        }
        let (rate, burst) = (EACH.per_second(), EACH.burst());
        ports.complain_of(
            port,
            format_args!(
                "node {node}: more frames than {rate} a second and {burst} at once that no credit pays for (groups, probes); \
                 it is not read for {REST} us"
            ),
        );
        true
    }

    /// The next connection that has rested, if any has: it is read again. An error if it cannot be.
    pub(super) fn rested(&mut self, ports: &mut Ports) -> Option<(PortId, Result<(), Errno>)> {
        while let Some((at, port)) = self.resting.first().copied().filter(|(at, _)| *at <= ports.now) {
            self.resting.remove(&(at, port));
            // Another connection may have its port now.
            let Some(connection) = ports.get_mut(port).filter(|c| c.rests_until == Some(at)) else { continue };
            connection.rests_until = None;
            return Some((port, ports.rewatch(port)));
        }
        None
    }
}

fn is_unpaid(frame: &Frame) -> bool {
    match frame {
        Frame::Group { .. } | Frame::Probe | Frame::Alive | Frame::RingUse { .. } | Frame::RingLost { .. } => true,
        Frame::Credit { class, count } => *count == 0 || *class == Class::Reply,
        _ => false,
    }
}
