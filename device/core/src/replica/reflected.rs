// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the home to the copies: transmission of multicasts, and their processing at a copy. `work`, `moving` and
//! `silent` send with it; `hib` calls it for class `Reflected`, its credits and its acknowledgements.

use super::page::{Arrival, Mode, Multicast, Outgoing, Work};
use super::{Below, Replicas, TAG_INDEX_BITS};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::requester::Source;
use crate::{Action, Notice};
use std::collections::BTreeSet;
use telegraphos_wire::link::{MAX_GROUPS, MAX_MEMBERSHIPS};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

impl Replicas {
    /// Queues a packet for all these nodes; `answer` is sent when all of them have acknowledged it (SPEC E19), at once
    /// if there are none.
    pub(super) fn multicast(
        &mut self,
        below: &mut Below<'_>,
        to: &[NodeId],
        body: Body,
        answer: Option<(Packet, Body)>,
    ) {
        let is_move = matches!(answer, Some((Packet { body: Body::Move { .. }, .. }, _)));
        let own = answer.as_ref().is_some_and(|(packet, _)| packet.src == below.ctx.config.node);
        let early = below.ctx.has(Bug::AcknowledgeEarly) && !is_move || own && below.ctx.has(Bug::AcknowledgeReflected);
        if to.is_empty() || early {
            if let Some((packet, body)) = answer.clone() {
                below.ctx.reply_to(&packet, body);
            }
            if to.is_empty() {
                return;
            }
        }
        let answer = answer.filter(|_| !early);
        let multicasts = &self.multicasts;
        let first = self.tag_epoch << TAG_INDEX_BITS;
        let used = multicasts.range(first..).map(|(tag, _)| *tag);
        let tag = used.fold(first, |free, used| if free == used { free.wrapping_add(1) } else { free });
        let page = body.page();
        let fill = match (&body, to) {
            (Body::Fill { .. }, [node]) => Some(*node),
            _ => None,
        };
        if let Some((packet, _)) = &answer {
            // The caller checked that there is room, except for a Move, of which there is at most one per page.
            let _ = self.copy_waits.take(packet.src, 1).is_ok();
        }
        let waits = to.iter().copied().collect();
        self.by_page.insert((page, tag));
        let rejoined = BTreeSet::new();
        self.multicasts.insert(tag, Multicast { page, waits, rejoined, answer, missed: false, fill, deadline: None });
        self.outgoing.push_back(Outgoing { tag, body, to: to.to_vec() });
        self.pump_reflected(below);
    }

    /// Sends queued multicasts as far as link credits allow.
    pub(crate) fn pump_reflected(&mut self, below: &mut Below<'_>) {
        loop {
            let Some(first) = self.outgoing.front_mut() else { return };
            let Some(node) = first.to.first().copied() else {
                let tag = first.tag;
                self.outgoing.pop_front();
                self.start_copy_timer(below.ctx, tag);
                continue;
            };
            if !below.ctx.link.spend(Class::Reflected) {
                return;
            }
            let (tag, body) = (first.tag, first.body.clone());
            let group = self.groups.get(&body.page());
            let all = group == Some(&first.to) || (group.is_some() && below.ctx.has(Bug::StaleGroup));
            let (dst, target) = if all {
                first.to.clear();
                (MULTICAST, 0)
            } else {
                first.to.remove(0);
                (node, below.requester.target(below.ctx, node))
            };
            let packet =
                Packet { src: below.ctx.config.node, dst, tag, incarnation: below.ctx.incarnation, target, body };
            below.ctx.transmit(packet);
        }
    }

    /// Announces to the switch the group of a page's multicasts, if it has changed. A single copy needs no group.
    pub(super) fn announce_group(&mut self, ctx: &mut Ctx, page: u32) {
        if !ctx.config.fanout_by_switch || !ctx.link.is_up() {
            return;
        }
        let replica = self.pages.get(page).filter(|replica| replica.copies.len() > 1);
        let mut members: Vec<NodeId> = replica.map_or(Vec::new(), |replica| replica.copies.keys().copied().collect());
        let announced = self.groups.remove(&page).unwrap_or_default();
        let others = self.memberships - announced.len();
        if others + members.len() > MAX_MEMBERSHIPS || self.groups.len() >= MAX_GROUPS {
            members.clear();
        }
        self.memberships = others + members.len();
        if !members.is_empty() {
            self.groups.insert(page, members.clone());
        }
        if members != announced {
            ctx.out.push(Action::Group { page, members });
        }
    }

    /// The link went down. The switch no longer holds a group of this node, the packets that arrived hold no credits of
    /// the next link, and the homes that sent them are lost.
    pub(crate) fn link_lost(&mut self, ctx: &Ctx) {
        self.groups.clear();
        self.memberships = 0;
        self.deferred.clear();
        if ctx.has(Bug::ChargeNextLink) {
            return;
        }
        self.arrivals.clear();
        for replica in self.pages.values_mut() {
            if let Some(first @ (Work::Apply(..) | Work::Fill(_))) = replica.work.front_mut().filter(|_| replica.busy) {
                *first = Work::Cancelled;
            }
            replica.work.retain(|work| !matches!(work, Work::Apply(..) | Work::Fill(_)));
            // No acknowledgement can reach its home.
            replica.deferred.clear();
        }
    }

    /// Processes the acknowledgement of a multicast by one copy; also called for a copy that was dropped.
    pub(crate) fn copy_acknowledged(&mut self, below: &mut Below<'_>, node: NodeId, tag: u32, status: Status) {
        let Some(multicast) = self.multicasts.get_mut(&tag) else { return };
        if !multicast.waits.remove(&node) {
            return;
        }
        let (done, page) = (multicast.waits.is_empty(), multicast.page);
        let rejoined = multicast.rejoined.remove(&node);
        // A copy may find out that this home has revoked the page before it has applied everything. Since it may become
        // the next home, a store that it lacks is not acknowledged (SPEC I7).
        let revoked = self.pages.get(page).is_none_or(|replica| replica.revoked);
        multicast.missed |=
            revoked && !matches!(status, Status::Ok | Status::Invalidated | Status::NodeDown | Status::Reset);
        let missed = multicast.missed && !below.ctx.has(Bug::AcknowledgeMissed);
        let own_update = multicast.answer.as_ref().is_some_and(|(packet, _)| packet.src == node);
        let early = own_update && below.ctx.has(Bug::AcknowledgeReflected);
        let answer = multicast.answer.take_if(|_| done || early);
        let requester = answer.as_ref().map(|(packet, _)| packet.src);
        if done {
            self.end_multicast(below, tag);
        }
        match answer {
            Some((packet, _)) if matches!(packet.body, Body::Move { .. }) => {
                self.rehome_acknowledged(below, page, packet)
            }
            Some((packet, _)) if missed => self.refuse_forward(below.ctx, packet, Status::Stale),
            Some((packet, body)) => below.ctx.reply_to(&packet, body),
            None => {}
        }
        if let Some(requester) = requester {
            self.release_copy_wait(below.ctx, requester);
        }
        if !matches!(status, Status::Ok | Status::Invalidated) {
            // The node has no such copy, or cannot write it. One that it has joined with since is another one, which
            // refuses what is sent to itself.
            if !rejoined {
                self.remove_copy(below, page, node);
            }
            below.ctx.notice(Notice::FailedOperation { node, status });
        }
    }

    /// Takes in a packet of a home. Packets of one node are processed one at a time, across all pages: a processor that
    /// sees one store sees what the home did before (SPEC I6, words of one home).
    pub(crate) fn reflected(&mut self, below: &mut Below<'_>, packet: Packet) {
        let source = packet.src;
        self.arrivals.entry(source).or_default().packets.push_back(packet);
        self.take_arrivals(below, source);
    }

    /// Processes packets of a node until one becomes a work item.
    pub(super) fn take_arrivals(&mut self, below: &mut Below<'_>, source: NodeId) {
        let Some(arrivals) = self.arrivals.get_mut(&source) else { return };
        if std::mem::replace(&mut arrivals.taking, true) {
            return;
        }
        while let Some(arrivals) = self.arrivals.get_mut(&source) {
            let Some(packet) = arrivals.packets.front().filter(|_| !arrivals.working).cloned() else { break };
            match self.take_arrival(below, &packet) {
                Arrival::Done(status) => self.acknowledge_copy(below, &packet, status),
                Arrival::Working => {}
                Arrival::Deferred => self.release_arrival(below.ctx, packet.src),
            }
        }
        let Some(arrivals) = self.arrivals.get_mut(&source) else { return };
        arrivals.taking = false;
        if arrivals.packets.is_empty() {
            self.arrivals.remove(&source);
        }
    }

    /// Processes one packet.
    pub(super) fn take_arrival(&mut self, below: &mut Below<'_>, packet: &Packet) -> Arrival {
        if packet.target != below.ctx.incarnation {
            return Arrival::Done(Status::Reset);
        }
        let (Body::Reflected { at, .. } | Body::Fill { at, .. } | Body::Rehome { at, .. }) = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.sources.get(&source).copied() else {
            // The sender is not the page's home: the packet is refused.
            below.ctx.counters.refused += 1;
            below.ctx.notice(Notice::Refused { from: packet.src, page: at.page, status: Status::NotHome });
            return Arrival::Done(Status::NotHome);
        };
        let work = match packet.body {
            Body::Rehome { to: NO_NODE, page: why, .. } => {
                let status = u16::try_from(why).ok().filter(|why| *why > 0).map_or(Status::Stale, Status::from_u16);
                self.source_lost(below, page, source, status);
                return Arrival::Done(Status::Ok);
            }
            Body::Rehome { .. } => return self.rehomed(below, page, source, packet),
            Body::Reflected { .. } if self.is_valid_copy(page) => return self.invalidate_copy(below, page, packet),
            Body::Fill { .. } => Work::Fill(packet.clone()),
            _ => Work::Apply(packet.clone(), Vec::new()),
        };
        if let Some(arrivals) = self.arrivals.get_mut(&packet.src) {
            arrivals.working = true;
        }
        if let Some(replica) = self.pages.get_mut(page) {
            replica.work.push_back(work);
        }
        self.run_work(below, page);
        Arrival::Working
    }

    /// Removes the first packet of a node, and returns its credit.
    pub(super) fn release_arrival(&mut self, ctx: &mut Ctx, source: NodeId) {
        if let Some(arrivals) = self.arrivals.get_mut(&source) {
            arrivals.packets.pop_front();
            arrivals.working = false;
        }
        ctx.link.consumed(Class::Reflected);
    }

    /// Acknowledges the first packet of its node with this status, and processes the next.
    pub(super) fn acknowledge_copy(&mut self, below: &mut Below<'_>, packet: &Packet, status: Status) {
        self.release_arrival(below.ctx, packet.src);
        below.ctx.reply_to(packet, Body::CopyAck { status });
        self.take_arrivals(below, packet.src);
    }

    /// A page that this node's page copies is lost. A naive page only loses a peer; any other page becomes an orphan.
    pub(super) fn source_lost(&mut self, below: &mut Below<'_>, page: u32, source: Source, status: Status) {
        let Some(replica) = self.pages.get_mut(page).filter(|r| r.sources.contains(&source)) else {
            return;
        };
        if replica.mode != Mode::Naive {
            return self.orphan(below, page, status);
        }
        replica.sources.remove(&source);
        self.sources.remove(&source);
        if replica.joining == Some(source) {
            self.stop_home_timer(page);
            let Some(replica) = self.pages.get_mut(page) else { return };
            replica.joining = None;
            if let Some(slot) = replica.setting.take() {
                below.ctx.complete_status(slot, status);
            }
        }
    }
}
