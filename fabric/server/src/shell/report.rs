// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric's log lines.

use std::fmt::Arguments;

use log::{Level, info, log, warn};
use telegraphos_fabric_core::{Attached, Diagnostic, PortId, Statistics};
use telegraphos_link::limit::Limiter;
use telegraphos_wire::Class;

use super::connection::{Connection, Role};
use super::switches::Switches;

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

/// The log, which limits how many lines each peer can cause.
#[derive(Debug, Default)]
pub(super) struct Log {
    limiter: Limiter,
}

impl Log {
    /// Logs a diagnostic of a switch, whose name is empty if it is alone; rate-limited by peer.
    pub(super) fn diagnostic(&mut self, now: u64, switch: &str, diagnostic: &Diagnostic) {
        let (kind, level, about) = classify(diagnostic);
        let peer = match about {
            Some(Attached::Node(node)) => u64::from(node),
            Some(Attached::Trunk(trunk, _)) => TRUNKS + u64::from(trunk),
            None => OTHERS,
        };
        if let Some(more) = self.limiter.admit_of(kind, peer, now) {
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
    pub(super) fn complain(&mut self, now: u64, what: Arguments<'_>) {
        if let Some(more) = self.limiter.admit("complaints", now) {
            warn!("{what}{more}");
        }
    }

    /// About what a connection sends, which has this port.
    pub(super) fn complain_of(&mut self, now: u64, port: PortId, connection: Option<&Connection>, what: Arguments<'_>) {
        let peer = match connection.map(|connection| (connection.role, connection.process)) {
            Some((Role::Link, _)) => LINKS + u64::from(port),
            Some((Role::Trunk(index), _)) => ENDS + index as u64,
            Some((_, Some(process))) => PROCESSES + u64::from(process),
            _ => OTHERS,
        };
        self.complain_as(now, peer, what);
    }

    /// About what a process does.
    pub(super) fn complain_of_process(&mut self, now: u64, process: u32, what: Arguments<'_>) {
        self.complain_as(now, PROCESSES + u64::from(process), what);
    }

    fn complain_as(&mut self, now: u64, peer: u64, what: Arguments<'_>) {
        if let Some(more) = self.limiter.admit_of("complaints", peer, now) {
            warn!("{what}{more}");
        }
    }
}

/// Logs the totals of each switch.
pub(super) fn log_statistics(switches: &Switches) {
    for hosted in &switches.0 {
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
