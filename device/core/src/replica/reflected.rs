// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the home to the copies: what is multicast, how it leaves, and what a copy does with it.

use super::moving::Arrival;
use super::{Mode, Multicast, Outgoing, Source, TAG_INDEX_BITS, Work};
use crate::config::Bug;
use crate::hib::Hib;
use crate::{Action, Notice};
use telegraphos_wire::link::{MAX_GROUPS, MAX_MEMBERSHIPS};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

impl Hib {
    /// Sends the same to all these nodes; `answer` goes out when all of them have taken it (SPEC E19).
    pub(super) fn multicast(&mut self, to: &[NodeId], body: Body, answer: Option<(Packet, Body)>) {
        let moves = matches!(answer, Some((Packet { body: Body::Move { .. }, .. }, _)));
        let own = answer.as_ref().is_some_and(|(packet, _)| packet.src == self.ctx.config.node);
        let early = self.ctx.has(Bug::AcknowledgeEarly) && !moves || own && self.ctx.has(Bug::AcknowledgeReflected);
        if to.is_empty() || early {
            if let Some((packet, body)) = answer.clone() {
                self.ctx.reply_to(&packet, body);
            }
            if to.is_empty() {
                return;
            }
        }
        let answer = answer.filter(|_| !early);
        let multicasts = &self.replicas.multicasts;
        let first = self.replicas.round << TAG_INDEX_BITS;
        let used = multicasts.range(first..).map(|(tag, _)| *tag);
        let tag = used.fold(first, |free, used| if free == used { free.wrapping_add(1) } else { free });
        let page = body.page();
        let fill = match (&body, to) {
            (Body::Fill { .. }, [node]) => Some(*node),
            _ => None,
        };
        if let Some((packet, _)) = &answer {
            // The caller has seen room, but for what is no store: a move, one for each page.
            let _ = self.replicas.answers.take(packet.src, 1).is_ok();
        }
        let waits = to.iter().copied().collect();
        self.replicas.by_page.insert((page, tag));
        self.replicas.multicasts.insert(tag, Multicast { page, waits, answer, missed: false, fill, due: None });
        self.replicas.outgoing.push_back(Outgoing { tag, body, to: to.to_vec() });
        self.pump_reflected();
    }

    /// Sends what credits allow.
    pub(crate) fn pump_reflected(&mut self) {
        loop {
            let replicas = &mut self.replicas;
            let Some(first) = replicas.outgoing.front_mut() else { return };
            let Some(node) = first.to.first().copied() else {
                let tag = first.tag;
                replicas.outgoing.pop_front();
                self.sent_to_all(tag);
                continue;
            };
            if !self.ctx.link.spend(Class::Reflected) {
                return;
            }
            let (tag, body) = (first.tag, first.body.clone());
            let group = replicas.groups.get(&body.page());
            let all = group == Some(&first.to) || (group.is_some() && self.ctx.has(Bug::StaleGroup));
            let (dst, target) = if all {
                first.to.clear();
                (MULTICAST, 0)
            } else {
                first.to.remove(0);
                (node, self.target(node))
            };
            let packet =
                Packet { src: self.ctx.config.node, dst, tag, incarnation: self.ctx.incarnation, target, body };
            self.ctx.transmit(packet);
        }
    }

    /// Tells the switch whom multicasts of a page are for, if that has changed. Two copies at least: one needs no
    /// group.
    pub(super) fn announce_group(&mut self, page: u32) {
        let replicas = &mut self.replicas;
        if !self.ctx.config.fanout_by_switch || !self.ctx.link.is_up() {
            return;
        }
        let replica = replicas.pages.get(&page).filter(|replica| replica.copies.len() > 1);
        let mut members: Vec<NodeId> = replica.map_or(Vec::new(), |replica| replica.copies.keys().copied().collect());
        let known = replicas.groups.remove(&page).unwrap_or_default();
        let others = replicas.memberships - known.len();
        if others + members.len() > MAX_MEMBERSHIPS || replicas.groups.len() >= MAX_GROUPS {
            members.clear();
        }
        replicas.memberships = others + members.len();
        if !members.is_empty() {
            replicas.groups.insert(page, members.clone());
        }
        if members != known {
            self.ctx.out.push(Action::Group { page, members });
        }
    }

    /// The link is gone. The switch knows no group of this node any more; what came over it took none of the next
    /// link's credits, and the homes that sent it are lost.
    pub(crate) fn replica_link_lost(&mut self) {
        self.replicas.groups.clear();
        self.replicas.memberships = 0;
        self.replicas.held.clear();
        if self.ctx.has(Bug::ChargeNextLink) {
            return;
        }
        self.replicas.arrivals.clear();
        for replica in self.replicas.pages.values_mut() {
            if let Some(first @ (Work::Apply(..) | Work::Fill(_))) = replica.work.front_mut().filter(|_| replica.busy) {
                *first = Work::Lost;
            }
            replica.work.retain(|work| !matches!(work, Work::Apply(..) | Work::Fill(_)));
            // Nor is there anybody left to acknowledge anything to.
            replica.held.clear();
        }
    }

    /// A copy has taken a multicast, or will never.
    pub(crate) fn copy_acknowledged(&mut self, node: NodeId, tag: u32, status: Status) {
        let Some(multicast) = self.replicas.multicasts.get_mut(&tag) else { return };
        if !multicast.waits.remove(&node) {
            return;
        }
        let (done, page) = (multicast.waits.is_empty(), multicast.page);
        // A copy may know that its home has gone before it has everything. It may be the next home: what it lacks was
        // not acknowledged (SPEC I7).
        let gone = self.replicas.pages.get(&page).is_none_or(|replica| replica.gone);
        multicast.missed |=
            gone && !matches!(status, Status::Ok | Status::Invalidated | Status::NodeDown | Status::Reset);
        let missed = multicast.missed && !self.ctx.has(Bug::AcknowledgeMissed);
        let come_back = multicast.answer.as_ref().is_some_and(|(packet, _)| packet.src == node);
        let early = come_back && self.ctx.has(Bug::AcknowledgeReflected);
        let answer = multicast.answer.take_if(|_| done || early);
        let requester = answer.as_ref().map(|(packet, _)| packet.src);
        if done {
            self.end_multicast(tag);
        }
        match answer {
            Some((packet, _)) if matches!(packet.body, Body::Move { .. }) => self.all_told(page, packet),
            Some((packet, _)) if missed => self.refuse_forward(packet, Status::Stale),
            Some((packet, body)) => self.ctx.reply_to(&packet, body),
            None => {}
        }
        if let Some(requester) = requester {
            self.waited_for_copies(requester);
        }
        if !matches!(status, Status::Ok | Status::Invalidated) {
            // It has no such copy, or cannot write it: it is none any more.
            self.forget_copy(page, node);
            self.ctx.notice(Notice::FailedOperation { node, status });
        }
    }

    /// Something of a home has arrived. What one node sends is taken one after the other, whichever pages it is for:
    /// who sees a store sees what the home did before (SPEC I6, words of one home).
    pub(crate) fn reflected(&mut self, packet: Packet) {
        let source = packet.src;
        self.replicas.arrivals.entry(source).or_default().packets.push_back(packet);
        self.take_arrivals(source);
    }

    /// Takes what has arrived from a node, up to a packet whose work takes a step.
    pub(super) fn take_arrivals(&mut self, source: NodeId) {
        let Some(arrivals) = self.replicas.arrivals.get_mut(&source) else { return };
        if std::mem::replace(&mut arrivals.taking, true) {
            return;
        }
        while let Some(arrivals) = self.replicas.arrivals.get_mut(&source) {
            let Some(packet) = arrivals.packets.front().filter(|_| !arrivals.working).cloned() else { break };
            match self.take_arrival(&packet) {
                Arrival::Done(status) => self.acknowledge_copy(&packet, status),
                Arrival::Working => {}
                Arrival::Held => self.release_arrival(packet.src),
            }
        }
        let Some(arrivals) = self.replicas.arrivals.get_mut(&source) else { return };
        arrivals.taking = false;
        if arrivals.packets.is_empty() {
            self.replicas.arrivals.remove(&source);
        }
    }

    /// What becomes of a packet.
    pub(super) fn take_arrival(&mut self, packet: &Packet) -> Arrival {
        if packet.target != self.ctx.incarnation {
            return Arrival::Done(Status::Reset);
        }
        let (Body::Reflected { at, .. } | Body::Fill { at, .. } | Body::Rehome { at, .. }) = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.replicas.sources.get(&source).copied() else {
            // Of somebody who is not the home: nothing of it is believed.
            self.ctx.counters.refused += 1;
            self.ctx.notice(Notice::Refused { from: packet.src, page: at.page, status: Status::NotHome });
            return Arrival::Done(Status::NotHome);
        };
        let work = match packet.body {
            Body::Rehome { to: NO_NODE, page: why, .. } => {
                let status = u16::try_from(why).ok().filter(|why| *why > 0).map_or(Status::Stale, Status::from_u16);
                self.source_lost(page, source, status);
                return Arrival::Done(Status::Ok);
            }
            Body::Rehome { .. } => return self.rehomed(page, source, packet),
            Body::Reflected { .. } if self.is_valid_copy(page) => return self.invalidated(page, packet),
            Body::Fill { .. } => Work::Fill(packet.clone()),
            _ => Work::Apply(packet.clone(), Vec::new()),
        };
        if let Some(arrivals) = self.replicas.arrivals.get_mut(&packet.src) {
            arrivals.working = true;
        }
        if let Some(replica) = self.replicas.pages.get_mut(&page) {
            replica.work.push_back(work);
        }
        self.work_on(page);
        Arrival::Working
    }

    /// The first of what has arrived from a node is done with.
    pub(super) fn release_arrival(&mut self, source: NodeId) {
        if let Some(arrivals) = self.replicas.arrivals.get_mut(&source) {
            arrivals.packets.pop_front();
            arrivals.working = false;
        }
        self.ctx.link.consumed(Class::Reflected);
    }

    pub(super) fn acknowledge_copy(&mut self, packet: &Packet, status: Status) {
        self.release_arrival(packet.src);
        self.ctx.reply_to(packet, Body::CopyAck { status });
        self.take_arrivals(packet.src);
    }

    /// A page that this one copies is not there any more. A naive page is everybody's own and goes on; others are
    /// orphans then.
    pub(super) fn source_lost(&mut self, page: u32, source: Source, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|r| r.sources.contains(&source)) else {
            return;
        };
        if replica.mode != Mode::Naive {
            return self.orphan(page, status);
        }
        replica.sources.remove(&source);
        self.replicas.sources.remove(&source);
        if replica.joining == Some(source) {
            self.await_no_longer(page);
            let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
            replica.joining = None;
            if let Some(slot) = replica.setting.take() {
                self.ctx.complete_status(slot, status);
            }
        }
    }
}
