// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's log lines.

use log::{Level, info, log, warn};
use telegraphos_fabric_core::{Attached, Diagnostic, PortId, Statistics};
use telegraphos_wire::Class;

use super::Fabric;
use super::connection::Role;

/// Numbers of peers for the limit on lines: nodes are their own, the others begin here.
const TRUNKS: u64 = 1 << 32;
const LINKS: u64 = 2 << 32;
const ENDS: u64 = 3 << 32;
const PROCESSES: u64 = 4 << 32;
/// Those that are not known.
const OTHERS: u64 = 5 << 32;

/// The kind of line and the level of a diagnostic, and the node or trunk that it is about.
fn classify(diagnostic: &Diagnostic) -> (&'static str, Level, Option<Attached>) {
    match *diagnostic {
        Diagnostic::Joined { node, .. }
        | Diagnostic::Left { node, .. }
        | Diagnostic::Reset { node, .. }
        | Diagnostic::Reached { node, .. }
        | Diagnostic::Lost { node } => ("joins", Level::Info, Some(Attached::Node(node))),
        Diagnostic::TrunkUp { trunk, to, .. } => ("trunks", Level::Info, Some(Attached::Trunk(trunk, to))),
        Diagnostic::TrunkDown { trunk, to, .. } => ("trunks", Level::Warn, Some(Attached::Trunk(trunk, to))),
        Diagnostic::Exhausted { node, .. } | Diagnostic::Refused { node: Some(node), .. } => {
            ("complaints", Level::Warn, Some(Attached::Node(node)))
        }
        Diagnostic::Violation { who, .. } => ("complaints", Level::Warn, Some(who)),
        Diagnostic::Refused { node: None, .. } | Diagnostic::TrunkRefused { .. } => ("complaints", Level::Warn, None),
    }
}

impl Fabric {
    /// Logs a diagnostic of a switch, whose name is empty if it is alone; rate-limited by peer.
    pub(super) fn log_diagnostic(&mut self, switch: &str, diagnostic: &Diagnostic) {
        let (kind, level, about) = classify(diagnostic);
        let peer = match about {
            Some(Attached::Node(node)) => u64::from(node),
            Some(Attached::Trunk(trunk, _)) => TRUNKS + u64::from(trunk),
            None => OTHERS,
        };
        if let Some(more) = self.limiter.admit_of(kind, peer, self.now) {
            let colon = if switch.is_empty() { "" } else { ": " };
            // Besides the words, for machines.
            match about {
                Some(Attached::Node(node)) => log!(level, node = node; "{switch}{colon}{diagnostic}{more}"),
                Some(Attached::Trunk(trunk, to)) => {
                    log!(level, trunk = trunk, to = to; "{switch}{colon}{diagnostic}{more}");
                }
                None => log!(level, "{switch}{colon}{diagnostic}{more}"),
            }
        }
    }

    /// Logs a warning about no peer in particular; rate-limited.
    pub(super) fn complain(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(more) = self.limiter.admit("complaints", self.now) {
            warn!("{what}{more}");
        }
    }

    /// About what a connection sends.
    pub(super) fn complain_of(&mut self, port: PortId, what: std::fmt::Arguments<'_>) {
        let connection = self.connections.get(port as usize).and_then(Option::as_ref);
        let peer = match connection.map(|connection| (connection.role, connection.process)) {
            Some((Role::Link, _)) => LINKS + u64::from(port),
            Some((Role::Trunk(index), _)) => ENDS + index as u64,
            Some((_, Some(process))) => PROCESSES + u64::from(process),
            _ => OTHERS,
        };
        self.complain_as(peer, what);
    }

    /// About what a process does.
    pub(super) fn complain_of_process(&mut self, process: u32, what: std::fmt::Arguments<'_>) {
        self.complain_as(PROCESSES + u64::from(process), what);
    }

    fn complain_as(&mut self, peer: u64, what: std::fmt::Arguments<'_>) {
        if let Some(more) = self.limiter.admit_of("complaints", peer, self.now) {
            warn!("{what}{more}");
        }
    }

    /// Logs the totals of each switch.
    pub(super) fn log_statistics(&self) {
        for hosted in &self.switches {
            let Statistics { ports, joined, refused, violations, answered, .. } = hosted.switch.statistics();
            let name = if hosted.name.is_empty() { String::new() } else { format!("{}: ", hosted.name) };
            info!(
                "{name}{joined} joins, {refused} refused, {violations} disconnected, {answered} requests to absent nodes answered"
            );
            for counted in ports {
                for class in Class::ALL {
                    let c = counted.classes[class as usize];
                    if c.received_packets + c.sent_packets + c.dropped > 0 {
                        info!(
                            "{name}{}, {class:?}: {} packets ({} bytes) from it, {} ({}) to it, {} of these stalled, at \
                             most {} at once; {} dropped",
                            counted.attached,
                            c.received_packets,
                            c.received_bytes,
                            c.sent_packets,
                            c.sent_bytes,
                            c.stalls,
                            c.depth_max,
                            c.dropped
                        );
                    }
                }
            }
        }
    }
}
