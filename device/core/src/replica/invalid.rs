// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that become invalid instead of being updated (SPEC item 28; `docs/replication.md`, "Invalidation").
//!
//! The home multicasts a store to its valid copies as in the other modes; what differs is what they do: they tell their
//! driver, and acknowledge when no processor has the page mapped any more. Stores, and trapped loads, of a copy's
//! processors are performed at the home.

use super::moving::Arrival;
use super::{Mode, Source, Work};
use crate::config::Bug;
use crate::events::Cause;
use crate::hib::Hib;
use crate::requester::RequestKind;
use std::collections::BTreeSet;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Status};

/// A request of this node's processors that the home performs; answered in the order in which they were made, so that
/// the count of stores taken (SPEC E22b) says which.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct InOrder {
    number: u64,
    pub(super) page: u32,
    /// The request and its answer, once it is there.
    done: Option<(Packet, Body)>,
}

impl Hib {
    /// A driver fills an invalid copy again. `Ok(false)`: it completes later.
    pub(super) fn fill_again(&mut self, slot: u32, page: u32, source: Source) -> Result<bool, Status> {
        let replica = self.replicas.pages.get_mut(&page).ok_or(Status::Invalid)?;
        if let Some(status) = replica.orphaned {
            return Err(status);
        }
        if replica.filled && !replica.invalid {
            return Ok(true); // It is valid.
        }
        if replica.invalid || replica.joining.is_some() || replica.leaving > 0 {
            return Err(Status::Busy);
        }
        replica.setting = Some(slot);
        replica.joining = Some(source);
        let mode = replica.mode as u16;
        let at = RemoteAddr { page: source.1, offset: 0, generation: source.2 };
        self.ask(source.0, RequestKind::Join { page, source }, Body::Join { at, mode, keep: false });
        Ok(false)
    }

    /// A copy that processors may have mapped, in mode invalidate.
    pub(super) fn is_valid_copy(&self, page: u32) -> bool {
        let replica = self.replicas.pages.get(&page);
        replica.is_some_and(|replica| replica.mode == Mode::Invalidate && replica.filled)
    }

    /// Somebody has stored to the page.
    pub(super) fn invalidated(&mut self, page: u32, packet: &Packet) -> Arrival {
        let early = self.ctx.has(Bug::AcknowledgeMapped);
        if !early && !self.holds_acknowledgement(packet.src) {
            // No honest home has so much unacknowledged.
            let replica = self.replicas.pages.get(&page);
            if let Some(source) = replica.and_then(|replica| replica.sources.first().copied()) {
                self.source_lost(page, source, Status::NoSpace);
            }
            return Arrival::Done(Status::NotHome);
        }
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return Arrival::Done(Status::NotHome) };
        if !early {
            replica.held.push(packet.clone());
        }
        if !std::mem::replace(&mut replica.invalid, true) {
            self.ctx.cause(Cause::Replica(page));
        }
        if early { Arrival::Done(Status::Invalidated) } else { Arrival::Held }
    }

    /// The driver has unmapped the page.
    pub(crate) fn replica_invalid(&mut self, page: u32) -> Result<(), Status> {
        let replica = self.replicas.pages.get_mut(&page).filter(|replica| replica.mode == Mode::Invalidate);
        let replica = replica.ok_or(Status::Invalid)?;
        if std::mem::take(&mut replica.invalid) {
            replica.filled = false;
        }
        self.release_held(page, Status::Invalidated);
        Ok(())
    }

    pub(super) fn release_held(&mut self, page: u32, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        for packet in std::mem::take(&mut replica.held) {
            self.replicas.held.give(&packet.src, 1);
            self.ctx.reply_to(&packet, Body::CopyAck { status });
        }
    }

    /// Copies that an earlier store makes invalid, and that have not said so: a processor there may still read what was
    /// before it. The next store waits for them too.
    pub(super) fn still_invalid(&self, page: u32) -> BTreeSet<NodeId> {
        let replicas = &self.replicas;
        let Some(replica) = replicas.pages.get(&page).filter(|replica| replica.mode == Mode::Invalidate) else {
            return BTreeSet::new();
        };
        let waits = replicas.multicasts_of(page).filter_map(|tag| replicas.multicasts.get(&tag)).flat_map(|m| &m.waits);
        waits.copied().filter(|node| !replica.copies.contains_key(node)).collect()
    }

    /// At the home, when a store has been sent to its copies: they are none any more. One that is still being filled
    /// takes the store, which comes before the last of its content.
    pub(super) fn forget_invalid(&mut self, page: u32) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        if replica.mode != Mode::Invalidate {
            return;
        }
        let (work, waiting) = (&replica.work, &replica.filling);
        let filling = |node: NodeId| {
            waiting.contains_key(&node) || work.iter().any(|work| matches!(work, Work::Read(to, _) if *to == node))
        };
        let before = replica.copies.len();
        replica.copies.retain(|node, _| filling(*node));
        if replica.copies.len() != before {
            self.announce_group(page);
        }
    }

    /// A request is forwarded.
    pub(super) fn begin_in_order(&mut self, number: u64, page: u32) {
        let replicas = &mut self.replicas;
        if replicas.pages.get(&page).is_some_and(|replica| replica.mode == Mode::Invalidate) {
            replicas.in_order.push_back(InOrder { number, page, done: None });
        }
    }

    /// Answers a request that was forwarded, and those that waited for it. A load waits for no store to be
    /// acknowledged, which takes the drivers of all copies: its processor stands still, and that of this node's driver
    /// may be the same. It was performed behind the stores.
    pub(super) fn answer_in_order(&mut self, number: u64, packet: Packet, body: Body) {
        let in_order = &mut self.replicas.in_order;
        let found = in_order.iter().position(|request| request.number == number && request.done.is_none());
        match found {
            Some(at) if matches!(packet.body, Body::Read { .. }) => {
                in_order.remove(at);
                self.ctx.reply_to(&packet, body);
            }
            Some(at) => in_order[at].done = Some((packet, body)),
            None => self.ctx.reply_to(&packet, body),
        }
        while self.replicas.in_order.front().is_some_and(|request| request.done.is_some()) {
            let Some(InOrder { page, done: Some((packet, body)), .. }) = self.replicas.in_order.pop_front() else {
                return;
            };
            if matches!(body, Body::WriteAck { status: Status::Ok }) {
                self.taken(&packet);
            }
            self.ctx.reply_to(&packet, body);
            self.leave_if_done(page);
        }
    }
}
