// SPDX-License-Identifier: MIT OR Apache-2.0
//! Membership of replicated pages: set-up and removal by admin commands, join and leave, and the loss of a copy, a home
//! or a node. `control` and `hib` call this part.

use super::page::{Mode, Moving, ReplicaPage, Work};
use super::{Below, Replicas};
use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::events::Cause;
use crate::requester::{ReplicaRequest, RequestKind, Source};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, RemoteAddr, Status, UNIT};

/// The membership that a REPLICA_SET requests, after those checks that do not depend on the page's present state.
struct Membership {
    page: u32,
    /// Generation of the page's grant on this node.
    generation: u64,
    mode: Mode,
    /// The home, or in mode naive the peer; this node's own page if `here`.
    source: Source,
    here: bool,
}

impl Membership {
    /// Checks the command; `queue` says that the page belongs to a notification queue.
    fn new(below: &mut Below<'_>, command: &Command, queue: bool) -> Result<Membership, Status> {
        let command = command.replica();
        let page = command.page;
        let mode = match command.mode {
            admin::NAIVE => Mode::Naive,
            admin::OWNER => Mode::Owner,
            admin::COUNTERS => Mode::Counters,
            admin::INVALIDATE => Mode::Invalidate,
            _ => return Err(Status::Invalid),
        };
        let grant = below.grants.get(page).filter(|grant| grant.valid == UNIT);
        let generation = grant.ok_or(Status::NotGranted)?.generation;
        if queue {
            return Err(Status::NotGranted);
        }
        let node = NodeId::try_from(command.node).map_err(|_| Status::BadNode)?;
        let here = node == below.ctx.config.node;
        if !here {
            below.requester.reachable(below.ctx, node)?;
        } else if command.home_page != page {
            return Err(Status::Invalid);
        }
        let source = (node, command.home_page, command.home_generation);
        Ok(Membership { page, generation, mode, source, here })
    }
}

/// What a REPLICA_SET changes at a page that is replicated already.
#[derive(PartialEq, Eq)]
enum Change {
    /// Its home, or a further peer in mode naive.
    Join,
    /// Only its content: a copy in mode invalidate is filled again.
    Refill,
}

impl Membership {
    /// Whether the REPLICA_SET may change a page that is replicated already, and how. Only an orphan may get another
    /// home, and a naive page another peer: two homes cannot be claimed for one page.
    fn change_of(&self, page: &ReplicaPage) -> Result<Change, Status> {
        let joins = page.mode == Mode::Naive && self.mode == Mode::Naive && !page.sources.contains(&self.source);
        if page.setting.is_some() || page.clearing.is_some() || page.revoked {
            return Err(Status::Busy);
        }
        // A naive page has at most one source at each other node.
        if joins && page.sources.iter().any(|other| other.0 == self.source.0) {
            return Err(Status::Busy);
        }
        if page.mode == Mode::Invalidate && self.mode == Mode::Invalidate && page.sources.contains(&self.source) {
            return Ok(Change::Refill);
        }
        if page.orphaned.is_none() && (!joins || self.here) {
            return Err(Status::NotHome);
        }
        Ok(Change::Join)
    }
}

impl Replicas {
    /// REPLICA_SET of a page; `queue` says that the page belongs to a notification queue, which cannot be replicated.
    /// `Ok(true)` if the command is complete, `Ok(false)` if it completes later, when the copy has its content.
    pub(crate) fn set(
        &mut self,
        below: &mut Below<'_>,
        slot: u32,
        command: &Command,
        queue: bool,
    ) -> Result<bool, Status> {
        let new = Membership::new(below, command, queue)?;
        if let Some(replica) = self.pages.get(new.page) {
            if new.change_of(replica)? == Change::Refill {
                return self.refill(below, slot, new.page, new.source);
            }
        }
        if !new.here && self.sources.contains_key(&new.source) {
            return Err(Status::Busy); // This node has a copy of it already.
        }
        self.make_page(below, &new);
        if new.here {
            return Ok(true);
        }
        self.join_home(below, slot, new.page, new.source, new.mode);
        Ok(false)
    }

    /// Makes a page, or gives an existing one the mode and home of the command. The home's own page is filled.
    fn make_page(&mut self, below: &mut Below<'_>, new: &Membership) {
        // What is stored to it from now on is ordered.
        if let Some(grant) = below.grants.get(new.page) {
            below.ctx.recall(grant.address, grant.valid);
        }
        let replica = self.pages.get_or_insert_with(new.page, || ReplicaPage {
            mode: new.mode,
            generation: new.generation,
            sources: BTreeSet::new(),
            home: false,
            filled: false,
            orphaned: None,
            moving: None,
            moves: 0,
            returned: BTreeMap::new(),
            invalid: false,
            deferred: Vec::new(),
            joining: None,
            leaving: 0,
            setting: None,
            clearing: None,
            copies: BTreeMap::new(),
            filling: BTreeMap::new(),
            home_deadline: None,
            work: VecDeque::new(),
            busy: false,
            stale: false,
            revoked: false,
        });
        replica.mode = new.mode;
        replica.orphaned = None;
        replica.home = new.here && new.mode != Mode::Naive;
        // A naive page is usable before it has joined.
        replica.filled = new.here || replica.filled && new.mode == Mode::Naive;
        if !new.here {
            replica.sources.insert(new.source);
            self.sources.insert(new.source, new.page);
        }
        if let Some(grant) = below.grants.get_mut(new.page) {
            grant.resigned = false;
        }
    }

    /// Sends the Join of a page to its home; the command in `slot` completes when the content has arrived.
    pub(super) fn join_home(&mut self, below: &mut Below<'_>, slot: u32, page: u32, source: Source, mode: Mode) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        replica.setting = Some(slot);
        replica.joining = Some(source);
        let (node, home_page, generation) = source;
        let at = RemoteAddr { page: home_page, offset: 0, generation };
        let purpose = RequestKind::Replica(ReplicaRequest::Join { page, source });
        below.requester.submit(below.ctx, node, purpose, Body::Join { at, mode: mode as u16, keep: false });
    }

    /// A replica request of this board has been answered with this status, or has failed with it.
    pub(crate) fn answered(&mut self, below: &mut Below<'_>, request: ReplicaRequest, status: Status) {
        match request {
            // A Fill or a Rehome follows a successful Join.
            ReplicaRequest::Join { page, source } if status.is_ok() => self.join_accepted(below.ctx, page, source),
            ReplicaRequest::Join { page, source } => self.source_lost(below, page, source, status),
            ReplicaRequest::Leave { page } => self.leave_answered(below, page),
            ReplicaRequest::Move { .. } if status.is_ok() => {}
            ReplicaRequest::Move { page } => self.move_failed(below, page, status),
            ReplicaRequest::Keep { page, source, packet } => self.keep_answered(below, page, source, packet, status),
        }
    }

    /// REPLICA_CLEAR. `Ok(false)`: completes later, when this node's own stores are acknowledged and the homes have
    /// answered the Leave.
    pub(crate) fn clear(&mut self, below: &mut Below<'_>, slot: u32, page: u32) -> Result<bool, Status> {
        let Some(replica) = self.pages.get_mut(page) else { return Err(Status::Invalid) };
        if replica.setting.is_some() || replica.clearing.is_some() {
            return Err(Status::Busy);
        }
        replica.clearing = Some(slot);
        self.leave_if_done(below, page);
        Ok(false)
    }

    /// Sends the Leave requests of a page that is being cleared, unless a store of this node's processors for it is
    /// unfinished. Called whenever such a store may have ended.
    pub(crate) fn leave_if_done(&mut self, below: &mut Below<'_>, page: u32) {
        let replica = self.pages.get(page);
        let Some(replica) = replica.filter(|replica| replica.clearing.is_some() && replica.leaving == 0) else {
            return;
        };
        let unfinished = replica.busy
            || !replica.work.is_empty()
            || replica.stalls_own_stores()
            || self.in_order.iter().any(|request| request.page == page)
            || self.ordinals_of(page).next().is_some()
            || below.responder.has_for(below.ctx.config.node, page)
            || below.requester.stores_to(below.ctx.config.node, page);
        if unfinished {
            return;
        }
        let reachable = |source: &&Source| below.requester.reachable(below.ctx, source.0).is_ok();
        let sources: Vec<Source> = replica.sources.iter().filter(reachable).copied().collect();
        if let Some(replica) = self.pages.get_mut(page) {
            replica.leaving = sources.len().max(1) as u32;
        }
        if sources.is_empty() {
            return self.leave_answered(below, page);
        }
        for (node, home_page, generation) in sources {
            let at = RemoteAddr { page: home_page, offset: 0, generation };
            below.requester.submit(
                below.ctx,
                node,
                RequestKind::Replica(ReplicaRequest::Leave { page }),
                Body::Leave { at },
            );
        }
    }

    /// A home has answered a Leave, or cannot be reached. After the last one the page is an ordinary page again.
    pub(super) fn leave_answered(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.leaving > 0) else {
            return;
        };
        replica.leaving -= 1;
        if replica.leaving > 0 {
            return;
        }
        let slot = replica.clearing.take();
        // Stores in flight to this page were addressed to all copies; there are none now, so the page refuses them
        // (SPEC E20).
        if let Some(grant) = below.grants.get_mut(page) {
            grant.resigned = true;
        }
        self.revoke(below, page);
        if let Some(slot) = slot {
            below.ctx.complete_status(slot, Status::Ok);
        }
    }

    /// Ends replication of a page: its grant is revoked, or it becomes an ordinary page. If a step is in flight, the
    /// page is removed when the step is done.
    pub(crate) fn revoke(&mut self, below: &mut Below<'_>, page: u32) {
        if let Some(replica) = self.pages.get_mut(page) {
            replica.revoked = true;
            self.end_if_revoked(below, page);
        }
    }

    /// Whether a guest-memory step is in flight on one of these replicated pages.
    pub(crate) fn step_on(&self, pages: std::ops::Range<u32>) -> bool {
        self.pages.range(pages).any(|(_, replica)| replica.has_step_in_flight())
    }

    /// Ends a revoked page: refuses what waits, and removes the page unless a step is in flight. False if the page is
    /// not revoked.
    pub(super) fn end_if_revoked(&mut self, below: &mut Below<'_>, page: u32) -> bool {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.revoked) else {
            return false;
        };
        let in_flight = usize::from(replica.busy);
        let waiting: Vec<Work> = replica.work.drain(in_flight.min(replica.work.len())..).collect();
        for work in waiting {
            self.refuse_work(below, page, work, Status::Stale);
        }
        self.end_moving(below.ctx, page, Status::Stale);
        self.send_deferred(below.ctx, page, Status::NotHome);
        if self.pages.get(page).is_none_or(|replica| replica.busy) {
            return true;
        }
        self.end_copies(below, page, Status::Stale);
        self.forget_page(below.ctx, page);
        if let Some(replica) = self.pages.remove(page) {
            for slot in replica.setting.into_iter().chain(replica.clearing) {
                below.ctx.complete_status(slot, Status::Stale);
            }
        }
        true
    }

    /// Notifies all copies of a page, behind everything already sent to them, that this node is no longer their home.
    pub(super) fn end_copies(&mut self, below: &mut Below<'_>, page: u32, why: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let copies: Vec<NodeId> = std::mem::take(&mut replica.copies).into_keys().collect();
        replica.filling.clear();
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        let end = Body::Rehome { at, to: NO_NODE, page: why as u32, generation: 0 };
        self.multicast(below, &copies, end, None);
        self.announce_group(below.ctx, page);
    }

    /// Drops the counters, sources and home deadline of a page.
    pub(super) fn forget_page(&mut self, ctx: &mut Ctx, page: u32) {
        self.stop_home_timer(page);
        self.sources.retain(|_, p| *p != page);
        self.pending.retain(|(p, _), _| *p != page);
        if let Some(replica) = self.pages.get_mut(page) {
            replica.sources.clear();
        }
        self.resume_stalled(ctx);
    }

    /// Makes a page an orphan: its home no longer serves it, so its copies may differ. Stores to it are refused until
    /// REPLICA_SET gives it a home again.
    pub(super) fn orphan(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        if replica.orphaned.is_some() {
            return;
        }
        replica.orphaned = Some(status);
        replica.home = false;
        if let Some(slot) = replica.setting.take() {
            below.ctx.complete_status(slot, status);
        }
        self.cancel_work(below, page, status);
        self.end_moving(below.ctx, page, status);
        self.send_deferred(below.ctx, page, Status::NotHome);
        self.end_copies(below, page, status);
        self.forget_page(below.ctx, page);
        below.ctx.cause(Cause::Replica(page));
        below.ctx.defer(FollowUp::Serve(below.ctx.config.node));
        self.leave_if_done(below, page);
    }

    /// Cancels everything in flight between a page and the home that it has lost. The next home must not get a store
    /// that the copy already contains, nor may the copy be filled with blocks of the lost home.
    pub(super) fn cancel_work(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let own = below.ctx.config.node;
        let ends = |work: &Work| match work {
            Work::Request(source, _) => *source == own,
            work => matches!(work, Work::Apply(..) | Work::Fill(_)),
        };
        let unanswered = self.forwards.iter_mut().filter(|(_, f)| f.page == page && !f.refused);
        let (mut refused, mut by_home) = (Vec::new(), BTreeMap::<NodeId, Vec<u64>>::new());
        for (number, forward) in unanswered {
            forward.refused = true;
            refused.push((*number, forward.packet.clone()));
            by_home.entry(forward.home).or_default().push(*number);
        }
        for (home, numbers) in by_home {
            // A request that was still waiting for the window is not sent, so no answer will come.
            for number in below.requester.cancel_forwards(below.ctx, home, &numbers) {
                self.take_forward(number);
            }
        }
        for (number, packet) in refused {
            let refusal = refusal(&packet.body, status);
            self.answer_in_order(below, number, packet, refusal);
        }
        let Some(replica) = self.pages.get_mut(page) else { return };
        let busy = usize::from(replica.busy);
        replica.stale = replica.busy && replica.work.front().is_some_and(ends);
        let rest = replica.work.drain(busy.min(replica.work.len())..);
        let (ended, left): (Vec<Work>, Vec<Work>) = rest.partition(ends);
        replica.work.extend(left);
        for work in ended {
            self.refuse_work(below, page, work, status);
        }
    }

    /// A node has joined: what it has not acknowledged was sent to an earlier copy. A Join may pass the
    /// acknowledgements that its node has sent before it: they are replies, and it may come by a ring.
    pub(super) fn note_rejoin(&mut self, ctx: &Ctx, page: u32, node: NodeId) {
        if ctx.has(Bug::RefusalEndsNextCopy) {
            return;
        }
        let tags: Vec<u32> = self.multicasts_of(page).collect();
        for tag in tags {
            if let Some(multicast) = self.multicasts.get_mut(&tag).filter(|multicast| multicast.waits.contains(&node)) {
                multicast.rejoined.insert(node);
            }
        }
    }

    /// Removes a node from the copies of a page, with the blocks that wait to be sent to it.
    pub(super) fn remove_copy(&mut self, below: &mut Below<'_>, page: u32, node: NodeId) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        if replica.copies.remove(&node).is_some() {
            self.announce_group(below.ctx, page);
            self.drop_fills(below, page, node);
        }
    }

    /// A node went down or was reset: removes it as a home, a copy and a requester.
    pub(crate) fn forget_member(&mut self, below: &mut Below<'_>, node: NodeId, status: Status) {
        for outgoing in &mut self.outgoing {
            outgoing.to.retain(|to| *to != node);
        }
        let unanswered = self.multicasts.iter().filter(|(_, multicast)| multicast.waits.contains(&node));
        let tags: Vec<u32> = unanswered.map(|(tag, _)| *tag).collect();
        if !tags.is_empty() {
            // A later session of the node may still acknowledge a tag of this one; the new epoch makes such an
            // acknowledgement match no new multicast.
            self.next_tag_epoch(below.ctx);
        }
        let pages: Vec<u32> = self.pages.numbers().collect();
        // Removed first, so that nothing new is sent to it when its missing acknowledgements complete multicasts below.
        for page in &pages {
            self.remove_copy(below, *page, node);
        }
        for tag in tags {
            self.copy_acknowledged(below, node, tag, Status::Ok);
        }
        for page in pages {
            let Some(replica) = self.pages.get_mut(page) else { continue };
            let lost: Vec<Source> = replica.sources.iter().copied().filter(|source| source.0 == node).collect();
            for source in lost {
                self.source_lost(below, page, source, status);
            }
        }
        self.pump_reflected(below);
    }

    /// Board reset: refuses requests that wait for copies or for a page's work, and removes all pages.
    pub(crate) fn reset(&mut self, below: &mut Below<'_>) {
        let status = Status::Reset;
        let replicas = std::mem::replace(self, Replicas::new(&below.ctx.config));
        for mut replica in replicas.pages.into_values() {
            for packet in replica.deferred.drain(..) {
                below.ctx.reply_to(&packet, Body::CopyAck { status });
            }
            if let Some(Moving::Giving { packet: Some(packet), .. }) = replica.moving {
                self.refuse_forward(below.ctx, packet, status);
            }
            for work in replica.work {
                match work {
                    Work::Request(..) if below.ctx.has(Bug::ForgetWork) => {}
                    Work::Request(source, packet) => {
                        // The request is in service, at the head of its source's queue; only this part can remove it
                        // there.
                        below.responder.detach(below.ctx, source);
                        if source != below.ctx.config.node {
                            self.refuse_forward(below.ctx, packet, status);
                        }
                    }
                    Work::Move(packet) => self.refuse_forward(below.ctx, packet, status),
                    // Acknowledged below, together with the packets that wait behind them.
                    Work::Apply(..) | Work::Fill(_) | Work::Read(..) | Work::Take | Work::Cancelled => {}
                }
            }
        }
        for packet in replicas.arrivals.into_values().flat_map(|arrivals| arrivals.packets) {
            self.acknowledge_copy(below, &packet, status);
        }
        for multicast in replicas.multicasts.into_values() {
            if let Some((packet, _)) = multicast.answer.filter(|(packet, _)| packet.src != below.ctx.config.node) {
                self.refuse_forward(below.ctx, packet, status);
            }
        }
    }
}
