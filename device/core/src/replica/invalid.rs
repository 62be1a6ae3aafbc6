// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies that are invalidated instead of updated (SPEC item 28; `docs/replication.md`, "Invalidation").
//!
//! The home multicasts a store to its valid copies as in the other modes. A copy does not apply it: its board raises an
//! event for the driver, and acknowledges when the driver has unmapped the page from all processors. Stores and trapped
//! loads of a copy's processors are performed at the home.
//!
//! `reflected`, `requests` and `members` call this part, and `control` for REPLICA_INVALID.

use super::page::{Arrival, InOrder, Mode, Work};
use super::{Below, Replicas};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::events::Cause;
use crate::requester::Source;
use std::collections::BTreeSet;
use telegraphos_wire::{Body, NodeId, Packet, Status};

impl Replicas {
    /// REPLICA_SET of a copy with its present home: an invalid copy joins again to get the content. `Ok(true)` if the
    /// copy is valid, `Ok(false)` if the command completes later.
    pub(super) fn refill(
        &mut self,
        below: &mut Below<'_>,
        slot: u32,
        page: u32,
        source: Source,
    ) -> Result<bool, Status> {
        let replica = self.pages.get_mut(page).ok_or(Status::Invalid)?;
        if let Some(status) = replica.orphaned {
            return Err(status);
        }
        if replica.filled && !replica.invalid {
            return Ok(true);
        }
        if replica.invalid || replica.joining.is_some() || replica.leaving > 0 {
            return Err(Status::Busy);
        }
        let mode = replica.mode;
        self.join_home(below, slot, page, source, mode);
        Ok(false)
    }

    /// Whether the page is a copy in mode invalidate that processors may have mapped.
    pub(super) fn is_valid_copy(&self, page: u32) -> bool {
        let replica = self.pages.get(page);
        replica.is_some_and(|replica| replica.mode == Mode::Invalidate && replica.filled)
    }

    /// Processes a store to a valid copy: reports the copy as invalid and defers the acknowledgement until the driver
    /// has unmapped the page.
    pub(super) fn invalidate_copy(&mut self, below: &mut Below<'_>, page: u32, packet: &Packet) -> Arrival {
        let early = below.ctx.has(Bug::AcknowledgeMapped);
        if !early && !self.charge_deferred(packet.src) {
            // A conforming home never has this many unacknowledged stores.
            let replica = self.pages.get(page);
            if let Some(source) = replica.and_then(|replica| replica.sources.first().copied()) {
                self.source_lost(below, page, source, Status::NoSpace);
            }
            return Arrival::Done(Status::NotHome);
        }
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        if !early {
            replica.deferred.push(packet.clone());
        }
        if !std::mem::replace(&mut replica.invalid, true) {
            below.ctx.cause(Cause::Replica(page));
        }
        if early { Arrival::Done(Status::Invalidated) } else { Arrival::Deferred }
    }

    /// REPLICA_INVALID: the driver has unmapped the page. Sends the deferred acknowledgements. `Err` if the page is not
    /// replicated in mode invalidate.
    pub(crate) fn unmapped(&mut self, ctx: &mut Ctx, page: u32) -> Result<(), Status> {
        let replica = self.pages.get_mut(page).filter(|replica| replica.mode == Mode::Invalidate);
        let replica = replica.ok_or(Status::Invalid)?;
        if std::mem::take(&mut replica.invalid) {
            replica.filled = false;
        }
        self.send_deferred(ctx, page, Status::Invalidated);
        Ok(())
    }

    /// Sends the deferred acknowledgements of a page with this status.
    pub(super) fn send_deferred(&mut self, ctx: &mut Ctx, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        for packet in std::mem::take(&mut replica.deferred) {
            self.deferred.give(&packet.src, 1);
            ctx.reply_to(&packet, Body::CopyAck { status });
        }
    }

    /// Copies that an earlier store invalidates and that have not acknowledged it. A processor there may still read the
    /// content before that store, so the next store waits for them too.
    pub(super) fn invalidating_copies(&self, page: u32) -> BTreeSet<NodeId> {
        let Some(replica) = self.pages.get(page).filter(|replica| replica.mode == Mode::Invalidate) else {
            return BTreeSet::new();
        };
        let waits = self.multicasts_of(page).filter_map(|tag| self.multicasts.get(&tag)).flat_map(|m| &m.waits);
        waits.copied().filter(|node| !replica.copies.contains_key(node)).collect()
    }

    /// Removes the copies that a store has been sent to, since it invalidates them. A copy that is still being filled
    /// stays: it applies the store like an update, before the last block of its content.
    pub(super) fn remove_invalidated(&mut self, ctx: &mut Ctx, page: u32) {
        let Some(replica) = self.pages.get_mut(page) else { return };
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
            self.announce_group(ctx, page);
        }
    }

    /// Enters a forwarded request into the order of answers, if its page is in mode invalidate.
    pub(super) fn begin_in_order(&mut self, number: u64, page: u32) {
        if self.pages.get(page).is_some_and(|replica| replica.mode == Mode::Invalidate) {
            self.in_order.push_back(InOrder { number, page, done: None });
        }
    }

    /// Records the answer to a forwarded request, and sends the answers that are next in order.
    ///
    /// A load is answered at once. It was performed behind the earlier stores, but their acknowledgements may take the
    /// drivers of all copies, and the processor that stalls on the load may be the one that this node's driver needs.
    pub(super) fn answer_in_order(&mut self, below: &mut Below<'_>, number: u64, packet: Packet, body: Body) {
        let in_order = &mut self.in_order;
        let found = in_order.iter().position(|request| request.number == number && request.done.is_none());
        match found {
            Some(at) if matches!(packet.body, Body::Read { .. }) => {
                in_order.remove(at);
                below.ctx.reply_to(&packet, body);
            }
            Some(at) => in_order[at].done = Some((packet, body)),
            None => below.ctx.reply_to(&packet, body),
        }
        while self.in_order.front().is_some_and(|request| request.done.is_some()) {
            let Some(InOrder { page, done: Some((packet, body)), .. }) = self.in_order.pop_front() else {
                return;
            };
            if matches!(body, Body::WriteAck { status: Status::Ok }) {
                self.count_taken(below, &packet);
            }
            below.ctx.reply_to(&packet, body);
            self.leave_if_done(below, page);
        }
    }
}
