// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fabric says in its log.

use log::{Level, info, log, warn};
use switch_core::{Attached, Notice, Statistics};
use telegraphos_wire::Class;

use super::Fabric;
use crate::limit::Suffix;

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
        if let Some(more) = self.admit(kind) {
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
