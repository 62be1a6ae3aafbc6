// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the state agrees with itself.

use std::collections::{BTreeMap, BTreeSet};

use telegraphos_wire::Class;

use super::Switch;
use crate::channel::Channel;
use crate::neighbour::Kind;

impl Switch {
    /// Whether the state agrees with itself: credits are conserved, turns and lanes match, queues are within their
    /// bounds, nothing is kept that could be sent. For checks; it takes time.
    pub fn audit(&self) -> Result<(), String> {
        // By place it was paid at.
        let mut inside: Vec<BTreeMap<Channel, u64>> = vec![BTreeMap::new(); self.state.neighbours.len()];
        let mut copies: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); self.state.neighbours.len()];
        let mut multicasts: BTreeSet<(usize, u32)> = BTreeSet::new();
        let mut beyond = vec![0; self.state.neighbours.len()];
        let mut waiting_replies = vec![0; self.state.neighbours.len()];
        for (place, neighbour) in self.present() {
            neighbour.audit(&self.config).map_err(|e| format!("output of {}: {e}", self.name(place)))?;
            let mut replies: BTreeMap<usize, u64> = BTreeMap::new();
            for (from, channel, queued) in neighbour.waiting() {
                if !self.state.presence.get(usize::from(from)).is_some_and(|presence| presence.up) {
                    return Err(format!(
                        "output of {} holds packets of node {from}, which is absent",
                        self.name(place)
                    ));
                }
                if channel.class() == Class::Reply {
                    if let Some(sender) = self.place_of(from) {
                        *replies.entry(sender).or_default() += 1;
                        waiting_replies[sender] += 1;
                        beyond[sender] += u64::from(neighbour.is_trunk());
                    }
                }
                let Some(paid) = queued.paid else { continue };
                let payer = usize::from(paid.place);
                if let Some(number) = paid.multicast {
                    *copies[payer].entry(number).or_default() += 1;
                    if !multicasts.insert((payer, number)) {
                        continue;
                    }
                }
                *inside[payer].entry(paid.channel).or_default() += 1;
            }
            for (sender, count) in replies {
                let limit = self.neighbour(sender).map_or(0, |n| self.config.replies_from(&n.offered));
                if !neighbour.is_trunk() && count > limit {
                    return Err(format!(
                        "output of {} holds {count} replies of {}",
                        self.name(place),
                        self.name(sender)
                    ));
                }
            }
        }
        for (place, neighbour) in self.present() {
            let who = self.name(place);
            if copies[place] != neighbour.multicasts {
                return Err(format!(
                    "multicasts of {who}: {:?}, in the lanes {:?}",
                    neighbour.multicasts, copies[place]
                ));
            }
            if neighbour.replies_beyond != beyond[place] {
                let (counted, waiting) = (neighbour.replies_beyond, beyond[place]);
                return Err(format!("replies of {who} before trunks: {counted} counted, {waiting} wait"));
            }
            if neighbour.replies_waiting != waiting_replies[place] {
                let (counted, waiting) = (neighbour.replies_waiting, waiting_replies[place]);
                return Err(format!("replies of {who}: {counted} counted, {waiting} wait"));
            }
            neighbour.groups.audit().map_err(|e| format!("groups of {who}: {e}"))?;
            for channel in neighbour.credited_channels() {
                let index = channel.index();
                let (held, owed) = (u64::from(neighbour.held[index]), u64::from(neighbour.owed[index]));
                let waiting = inside[place].get(&channel).copied().unwrap_or(0);
                let given = u64::from(self.config.credits[channel.class() as usize]);
                if held + owed + waiting != given {
                    return Err(format!(
                        "credits of {who}, {channel:?}: {held} held + {owed} owed + {waiting} in the switch, expected {given}"
                    ));
                }
            }
            if let Kind::Node(node) = neighbour.kind {
                if self.place_of(node) != Some(place) {
                    return Err(format!("{who} is at place {place}"));
                }
            }
        }
        Ok(())
    }
}
