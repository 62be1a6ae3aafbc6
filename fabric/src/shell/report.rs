// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric says in its log.

use log::{Level, info, log, warn};
use switch_core::{Attached, Notice, PortId, Statistics};
use telegraphos_link::limit::Suffix;
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

/// Which node or trunk it is about.
fn about(notice: &Notice) -> Option<Attached> {
    match *notice {
        Notice::Joined { node, .. }
        | Notice::Left { node, .. }
        | Notice::Reset { node, .. }
        | Notice::Reached { node, .. }
        | Notice::Lost { node }
        | Notice::Exhausted { node, .. }
        | Notice::Refused { node: Some(node), .. } => Some(Attached::Node(node)),
        Notice::Violation { who, .. } => Some(who),
        Notice::TrunkUp { trunk, to, .. } | Notice::TrunkDown { trunk, to, .. } => Some(Attached::Trunk(trunk, to)),
        Notice::Refused { node: None, .. } | Notice::TrunkRefused { .. } => None,
    }
}

impl Fabric {
    pub(super) fn log_notice(&mut self, switch: &str, notice: &Notice) {
        let (kind, level) = match notice {
            Notice::Joined { .. }
            | Notice::Left { .. }
            | Notice::Reset { .. }
            | Notice::Reached { .. }
            | Notice::Lost { .. } => ("joins", Level::Info),
            Notice::TrunkUp { .. } => ("trunks", Level::Info),
            Notice::TrunkDown { .. } => ("trunks", Level::Warn),
            Notice::Refused { .. }
            | Notice::Exhausted { .. }
            | Notice::Violation { .. }
            | Notice::TrunkRefused { .. } => ("complaints", Level::Warn),
        };
        let peer = match about(notice) {
            Some(Attached::Node(node)) => u64::from(node),
            Some(Attached::Trunk(trunk, _)) => TRUNKS + u64::from(trunk),
            None => OTHERS,
        };
        if let Some(more) = self.limiter.admit_of(kind, peer, self.now) {
            let colon = if switch.is_empty() { "" } else { ": " };
            // Besides the words, for machines.
            match about(notice) {
                Some(Attached::Node(node)) => log!(level, node = node; "{switch}{colon}{notice}{more}"),
                Some(Attached::Trunk(trunk, to)) => {
                    log!(level, trunk = trunk, to = to; "{switch}{colon}{notice}{more}");
                }
                None => log!(level, "{switch}{colon}{notice}{more}"),
            }
        }
    }

    pub(super) fn complain(&mut self, what: std::fmt::Arguments<'_>) {
        if let Some(more) = self.admit("complaints") {
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

    fn admit(&mut self, kind: &'static str) -> Option<Suffix> {
        self.limiter.admit(kind, self.now)
    }

    pub(super) fn log_statistics(&self) {
        for hosted in &self.switches {
            let Statistics { ports, joined, refused, violations, answered, .. } = hosted.switch.statistics();
            let name = if hosted.name.is_empty() { String::new() } else { format!("{}: ", hosted.name) };
            info!(
                "{name}{joined} joins, {refused} refused, {violations} thrown out, {answered} requests to absent nodes answered"
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
