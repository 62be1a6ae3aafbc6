// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that the state is consistent.

use std::collections::{BTreeMap, BTreeSet};

use telegraphos_wire::Class;

use super::routes::Routes;
use super::state::Neighbours;
use crate::channel::Channel;
use crate::neighbour::Kind;
use crate::presences::Presences;

/// See [`Switch::audit`](super::Switch::audit).
pub(super) fn audit(routes: &Routes, neighbours: &Neighbours, presence: &Presences) -> Result<(), String> {
    // By port index: packets that use a credit of the channel.
    let mut inside: Vec<BTreeMap<Channel, u64>> = vec![BTreeMap::new(); neighbours.len()];
    let mut copies: Vec<BTreeMap<u32, u32>> = vec![BTreeMap::new(); neighbours.len()];
    let mut multicasts: BTreeSet<(usize, u32)> = BTreeSet::new();
    let mut beyond = vec![0; neighbours.len()];
    let mut waiting_replies = vec![0; neighbours.len()];
    for (index, neighbour) in neighbours.present() {
        neighbour.audit().map_err(|e| format!("output of {}: {e}", neighbours.name(index)))?;
        let mut replies: BTreeMap<usize, u64> = BTreeMap::new();
        for (from, channel, queued) in neighbour.waiting() {
            if !presence.is_up(from) {
                return Err(format!(
                    "output of {} holds packets of node {from}, which is absent",
                    neighbours.name(index)
                ));
            }
            if channel.class() == Class::Reply {
                if let Some(sender) = routes.index_of(from) {
                    *replies.entry(sender).or_default() += 1;
                    waiting_replies[sender] += 1;
                    beyond[sender] += u64::from(neighbour.is_trunk());
                }
            }
            let Some(paid) = queued.paid else { continue };
            let payer = usize::from(paid.index);
            if let Some(number) = paid.multicast {
                *copies[payer].entry(number).or_default() += 1;
                if !multicasts.insert((payer, number)) {
                    continue;
                }
            }
            *inside[payer].entry(paid.channel).or_default() += 1;
        }
        for (sender, count) in replies {
            let limit = neighbours.get(sender).map_or(0, |n| routes.config.replies_from(&n.offered));
            if !neighbour.is_trunk() && count > limit {
                return Err(format!(
                    "output of {} holds {count} replies of {}",
                    neighbours.name(index),
                    neighbours.name(sender)
                ));
            }
        }
    }
    for (index, neighbour) in neighbours.present() {
        let name = neighbours.name(index);
        if copies[index] != neighbour.multicasts {
            return Err(format!("multicasts of {name}: {:?}, in the lanes {:?}", neighbour.multicasts, copies[index]));
        }
        for (what, counted, waiting) in [
            (" before trunks", neighbour.replies_beyond, beyond[index]),
            ("", neighbour.replies_waiting, waiting_replies[index]),
        ] {
            if counted != waiting {
                return Err(format!("replies of {name}{what}: {counted} counted, {waiting} wait"));
            }
        }
        neighbour.groups.audit().map_err(|e| format!("groups of {name}: {e}"))?;
        for channel in neighbour.credited_channels() {
            let at = channel.index();
            let given = neighbour.given[at];
            let (held, owed) = (u64::from(given.held), u64::from(given.owed));
            let waiting = inside[index].get(&channel).copied().unwrap_or(0);
            let given = u64::from(routes.config.credits[channel.class() as usize]);
            if held + owed + waiting != given {
                return Err(format!(
                    "credits of {name}, {channel:?}: {held} held + {owed} owed + {waiting} in the switch, expected {given}"
                ));
            }
        }
        if let Kind::Node(node) = neighbour.kind {
            if routes.index_of(node) != Some(index) {
                return Err(format!("{name} is at index {index}"));
            }
        }
    }
    Ok(())
}
