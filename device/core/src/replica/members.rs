// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who has a copy of a page, and who is its home: pages are set up and taken down, nodes join, leave, and go.

use super::moving::Moving;
use super::{Mode, Replica, Replicas, Source, TAG_INDEX_BITS, Work};
use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::FollowUp;
use crate::events::Cause;
use crate::hib::Hib;
use crate::requester::RequestKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, RemoteAddr, Status, UNIT};

impl Hib {
    /// `Ok(false)` if it completes later: when a copy is filled.
    pub(crate) fn replica_set(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let command = command.replica();
        let page = command.page;
        let mode = match command.mode {
            admin::NAIVE => Mode::Naive,
            admin::OWNER => Mode::Owner,
            admin::COUNTERS => Mode::Counters,
            admin::INVALIDATE => Mode::Invalidate,
            _ => return Err(Status::Invalid),
        };
        let grant = self.grants.get(page).filter(|grant| grant.valid == UNIT);
        let generation = grant.ok_or(Status::NotGranted)?.generation;
        if self.queues.contains(page) {
            return Err(Status::NotGranted);
        }
        let node = NodeId::try_from(command.node).map_err(|_| Status::BadNode)?;
        let here = node == self.ctx.config.node;
        if !here {
            self.reachable(node)?;
        } else if command.home_page != page {
            return Err(Status::Invalid);
        }
        let source = (node, command.home_page, command.home_generation);
        if let Some(replica) = self.replicas.pages.get(&page) {
            // What may change: an orphan gets a home, a naive page another peer. Two homes cannot be claimed for one
            // page.
            let joins = replica.mode == Mode::Naive && mode == Mode::Naive && !replica.sources.contains(&source);
            if replica.setting.is_some() || replica.clearing.is_some() || replica.gone {
                return Err(Status::Busy);
            }
            // A naive page has one source at each other node at most, whatever is said to be there.
            if joins && replica.sources.iter().any(|other| other.0 == node) {
                return Err(Status::Busy);
            }
            if replica.mode == Mode::Invalidate && mode == Mode::Invalidate && replica.sources.contains(&source) {
                return self.fill_again(slot, page, source);
            }
            if replica.orphaned.is_none() && (!joins || here) {
                return Err(Status::NotHome);
            }
        }
        if !here && self.replicas.sources.contains_key(&source) {
            return Err(Status::Busy); // This node has a copy of it already.
        }
        let replica = self.replicas.pages.entry(page).or_insert_with(|| Replica {
            mode,
            generation,
            sources: BTreeSet::new(),
            home: false,
            filled: false,
            orphaned: None,
            moving: None,
            moves: 0,
            returned: BTreeMap::new(),
            invalid: false,
            held: Vec::new(),
            joining: None,
            leaving: 0,
            setting: None,
            clearing: None,
            copies: BTreeMap::new(),
            filling: BTreeMap::new(),
            awaits: None,
            work: VecDeque::new(),
            busy: false,
            late: false,
            gone: false,
        });
        replica.mode = mode;
        replica.orphaned = None;
        if let Some(grant) = self.grants.get_mut(page) {
            grant.resigned = false;
        }
        if here {
            replica.home = mode != Mode::Naive;
            replica.filled = true;
            return Ok(true);
        }
        replica.home = false;
        // A naive page is in use already.
        replica.filled &= mode == Mode::Naive;
        replica.setting = Some(slot);
        replica.joining = Some(source);
        replica.sources.insert(source);
        self.replicas.sources.insert(source, page);
        let at = RemoteAddr { page: source.1, offset: 0, generation: source.2 };
        self.ask(node, RequestKind::Join { page, source }, Body::Join { at, mode: command.mode as u16, keep: false });
        Ok(false)
    }

    /// The home has refused a join, or has not answered.
    pub(crate) fn join_failed(&mut self, page: u32, source: Source, status: Status) {
        self.source_lost(page, source, status);
    }

    /// `Ok(false)` if it completes later: when its own stores are acknowledged and the home has let go.
    pub(crate) fn replica_clear(&mut self, slot: u32, page: u32) -> Result<bool, Status> {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return Err(Status::Invalid) };
        if replica.setting.is_some() || replica.clearing.is_some() {
            return Err(Status::Busy);
        }
        replica.clearing = Some(slot);
        self.leave_if_done(page);
        Ok(false)
    }

    /// Leaves the homes of a page that is being cleared, once no store of this node's processors for it is unfinished.
    pub(crate) fn leave_if_done(&mut self, page: u32) {
        let replica = self.replicas.pages.get(&page);
        let Some(replica) = replica.filter(|replica| replica.clearing.is_some() && replica.leaving == 0) else {
            return;
        };
        let unfinished = replica.busy
            || !replica.work.is_empty()
            || replica.holds_own()
            || self.replicas.in_order.iter().any(|request| request.page == page)
            || self.replicas.places_of(page).next().is_some()
            || self.own_requests_for(page);
        if unfinished {
            return;
        }
        let reachable = |source: &&Source| self.reachable(source.0).is_ok();
        let sources: Vec<Source> = replica.sources.iter().filter(reachable).copied().collect();
        if let Some(replica) = self.replicas.pages.get_mut(&page) {
            replica.leaving = sources.len().max(1) as u32;
        }
        if sources.is_empty() {
            return self.left(page);
        }
        for (node, home_page, generation) in sources {
            let at = RemoteAddr { page: home_page, offset: 0, generation };
            self.ask(node, RequestKind::Leave { page }, Body::Leave { at });
        }
    }

    /// A home has let go, or is not there.
    pub(crate) fn left(&mut self, page: u32) {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| replica.leaving > 0) else {
            return;
        };
        replica.leaving -= 1;
        if replica.leaving > 0 {
            return;
        }
        let slot = replica.clearing.take();
        // What is still on its way to it was meant for all copies, of which there are none now (SPEC E20).
        if let Some(grant) = self.grants.get_mut(page) {
            grant.resigned = true;
        }
        self.replica_revoke(page);
        if let Some(slot) = slot {
            self.ctx.complete_status(slot, Status::Ok);
        }
    }

    /// The page is an ordinary one from now on, or is revoked altogether.
    pub(crate) fn replica_revoke(&mut self, page: u32) {
        if let Some(replica) = self.replicas.pages.get_mut(&page) {
            replica.gone = true;
            self.end_replica_if_gone(page);
        }
    }

    pub(crate) fn replica_steps(&self, pages: std::ops::Range<u32>) -> bool {
        self.replicas.pages.range(pages).any(|(_, replica)| replica.steps())
    }

    pub(super) fn end_replica_if_gone(&mut self, page: u32) -> bool {
        let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| replica.gone) else {
            return false;
        };
        let keep = usize::from(replica.busy);
        let waiting: Vec<Work> = replica.work.drain(keep.min(replica.work.len())..).collect();
        for work in waiting {
            self.refuse_work(page, work, Status::Stale);
        }
        self.end_moving(page, Status::Stale);
        self.release_held(page, Status::NotHome);
        if self.replicas.pages.get(&page).is_none_or(|replica| replica.busy) {
            return true;
        }
        self.end_copies(page, Status::Stale);
        self.forget_page(page);
        if let Some(replica) = self.replicas.pages.remove(&page) {
            for slot in replica.setting.into_iter().chain(replica.clearing) {
                self.ctx.complete_status(slot, Status::Stale);
            }
        }
        true
    }

    /// The copies of a page hear, behind everything that was sent to them, that this is not their home any more.
    pub(super) fn end_copies(&mut self, page: u32, why: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        let copies: Vec<NodeId> = std::mem::take(&mut replica.copies).into_keys().collect();
        replica.filling.clear();
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        let end = Body::Rehome { at, to: NO_NODE, page: why as u32, generation: 0 };
        self.multicast(&copies, end, None);
        self.announce_group(page);
    }

    /// Counters and sources of a page.
    pub(super) fn forget_page(&mut self, page: u32) {
        self.await_no_longer(page);
        let replicas = &mut self.replicas;
        replicas.sources.retain(|_, p| *p != page);
        replicas.pending.retain(|(p, _), _| *p != page);
        if let Some(replica) = replicas.pages.get_mut(&page) {
            replica.sources.clear();
        }
        self.counters_freed();
    }

    /// Its home serves it no more: the copies may differ, and nobody stores to it until it has a home again.
    pub(super) fn orphan(&mut self, page: u32, status: Status) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        if replica.orphaned.is_some() {
            return;
        }
        replica.orphaned = Some(status);
        replica.home = false;
        if let Some(slot) = replica.setting.take() {
            self.ctx.complete_status(slot, status);
        }
        self.end_work(page, status);
        self.end_moving(page, status);
        self.release_held(page, Status::NotHome);
        self.end_copies(page, status);
        self.forget_page(page);
        self.ctx.cause(Cause::Replica(page));
        self.ctx.then(FollowUp::Serve(self.ctx.config.node));
        self.leave_if_done(page);
    }

    /// What is under way between a page and the home that it has lost is not for its next home, which would take a
    /// store for one that the copy has, and not of it: a copy is not filled by what the last one sent.
    pub(super) fn end_work(&mut self, page: u32, status: Status) {
        let own = self.ctx.config.node;
        let ends = |work: &Work| match work {
            Work::Request(source, _) => *source == own,
            work => matches!(work, Work::Apply(..) | Work::Fill(_)),
        };
        let unanswered = self.replicas.forwards.iter_mut().filter(|(_, f)| f.page == page && !f.refused);
        let mut refused = Vec::new();
        for (number, forward) in unanswered {
            forward.refused = true;
            refused.push((*number, forward.packet.clone()));
        }
        for (number, packet) in refused {
            let refusal = refusal(&packet.body, status);
            self.answer_in_order(number, packet, refusal);
        }
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        let busy = usize::from(replica.busy);
        replica.late = replica.busy && replica.work.front().is_some_and(ends);
        let rest = replica.work.drain(busy.min(replica.work.len())..);
        let (ended, left): (Vec<Work>, Vec<Work>) = rest.partition(ends);
        replica.work.extend(left);
        for work in ended {
            self.refuse_work(page, work, status);
        }
    }

    /// A node is a copy of a page no more: nothing waits for it.
    pub(super) fn forget_copy(&mut self, page: u32, node: NodeId) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        if replica.copies.remove(&node).is_some() {
            self.announce_group(page);
            self.drop_fills(page, node);
        }
    }

    /// A node has gone or begun another life: as a home, as a copy, as a requester.
    pub(crate) fn forget_member(&mut self, node: NodeId, status: Status) {
        for outgoing in &mut self.replicas.outgoing {
            outgoing.to.retain(|to| *to != node);
        }
        let unanswered = self.replicas.multicasts.iter().filter(|(_, multicast)| multicast.waits.contains(&node));
        let tags: Vec<u32> = unanswered.map(|(tag, _)| *tag).collect();
        if !tags.is_empty() {
            // Its next life may still acknowledge what was sent to this one: that must not be taken for something else.
            let round = &mut self.replicas.round;
            *round = (*round + u32::from(!self.ctx.has(Bug::ReuseTags))) & (u32::MAX >> TAG_INDEX_BITS);
        }
        let pages: Vec<u32> = self.replicas.pages.keys().copied().collect();
        // First of all: nothing is begun with it by what it would have acknowledged.
        for page in &pages {
            self.forget_copy(*page, node);
        }
        for tag in tags {
            self.copy_acknowledged(node, tag, Status::Ok);
        }
        for page in pages {
            let Some(replica) = self.replicas.pages.get_mut(&page) else { continue };
            let lost: Vec<Source> = replica.sources.iter().copied().filter(|source| source.0 == node).collect();
            for source in lost {
                self.source_lost(page, source, status);
            }
        }
        self.pump_reflected();
    }

    /// Reset: who waits for the copies of a home that was here, or for a page's work, is refused.
    pub(crate) fn refuse_multicasts(&mut self, status: Status) {
        let replicas = std::mem::replace(&mut self.replicas, Replicas::new(&self.ctx.config));
        for mut replica in replicas.pages.into_values() {
            for packet in replica.held.drain(..) {
                self.ctx.reply_to(&packet, Body::CopyAck { status });
            }
            if let Some(Moving::Giving { packet: Some(packet), .. }) = replica.moving {
                self.refuse_forward(packet, status);
            }
            for work in replica.work {
                match work {
                    Work::Request(..) if self.ctx.has(Bug::ForgetWork) => {}
                    Work::Request(source, packet) => {
                        // It is in service: the head of its source's queue, which nobody else would take away.
                        self.responder.detach(&mut self.ctx, source);
                        if source != self.ctx.config.node {
                            self.refuse_forward(packet, status);
                        }
                    }
                    Work::Move(packet) => self.refuse_forward(packet, status),
                    // Answered below, with what waits behind them.
                    Work::Apply(..) | Work::Fill(_) | Work::Read(..) | Work::Take | Work::Lost => {}
                }
            }
        }
        for packet in replicas.arrivals.into_values().flat_map(|arrivals| arrivals.packets) {
            self.acknowledge_copy(&packet, status);
        }
        for multicast in replicas.multicasts.into_values() {
            if let Some((packet, _)) = multicast.answer.filter(|(packet, _)| packet.src != self.ctx.config.node) {
                self.refuse_forward(packet, status);
            }
        }
    }
}
