// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: stores go to the home, which orders them and multicasts them to all copies (SPEC items 23 to 27,
//! E15 to E20; `docs/replication.md`).
//!
//! This part owns all state of replicated pages ([`Replicas`]). `hib` calls it for requests for such pages, packets of
//! class `Reflected`, replies, credits, ticks and completed steps; `control` calls it for the REPLICA admin commands;
//! `launch` checks with it whether a block may touch a page.
//!
//! ```text
//!  copy:  processor's store -> counter++, RAM -> Update to the home (acknowledged when all copies have it: E19)
//!  home:  processor's store or Update -> RAM -> Reflected{writer} to every copy -> all CopyAcks -> acknowledged
//!  copy:  Reflected: own -> counter--, ignored;  others -> the bytes whose counter is 0 -> RAM;  CopyAck
//! ```
//!
//! Every access that changes a replicated page is a *work item*. A page's items run one at a time, in order of arrival,
//! each in one or more guest-memory steps. Therefore the home multicasts in the order of its memory, and a copy's
//! counters agree with its memory.
//!
//! All packets from the homes here to their copies leave through one queue, so that each copy receives them in order,
//! whether the switch replicates a packet or each copy gets a packet of its own. The choice is made at transmission:
//! one multicast packet if its destinations are exactly the group that the switch holds for the page at that moment.
//!
//! | Module | Owns |
//! |---|---|
//! | here | membership and homes: set-up, join, leave, moves, and the loss of a copy, a home or a node |
//! | `work` | no state: requests, packets of homes, and the work items of pages |
//! | `page`, `moving` | one page and its work items; its state while its home moves |
//! | `members` | a requested membership, which it checks |
//! | `homes` | the homes of the copies here, their time limits, and the acknowledgements that they wait for |
//! | `multicasts` | from the homes here to their copies: multicasts, groups, acknowledgements, silent copies |
//! | `unacknowledged`, `lists` | the multicasts that not all copies have acknowledged; memory for their destinations |
//! | `fills` | the content of new copies |
//! | `forwards` | a copy's own requests at its home |
//! | `arrivals` | packets of homes that wait to be processed |
//! | `pending` | pending-write counters |

mod arrivals;
mod fills;
mod forwards;
mod homes;
mod lists;
mod members;
mod moving;
mod multicasts;
mod page;
mod pending;
mod shares;
mod unacknowledged;
mod work;

use self::arrivals::Arrivals;
use self::fills::Fills;
use self::forwards::Forwards;
use self::homes::Homes;
use self::members::{Change, Membership};
use self::multicasts::Multicasts;
use self::page::{Arrival, Mode, Moving, ReplicaPage, Work};
use self::pending::PendingWrites;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, earlier};
use crate::events::Cause;
use crate::grants::Grants;
use crate::requester::{ReplicaRequest, RequestKind, Requester, Source};
use crate::responder::Responder;
use crate::table::Table;
use crate::{HibConfig, Notice};
use std::collections::BTreeMap;
use telegraphos_wire::admin::Command;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, Packet, Rights, Status, event};

/// The parts that replicas may use.
pub(crate) struct Below<'a> {
    pub(crate) ctx: &'a mut Ctx,
    pub(crate) requester: &'a mut Requester,
    pub(crate) responder: &'a mut Responder,
    pub(crate) grants: &'a mut Grants,
}

impl Below<'_> {
    /// Sends a request about a page of this node to a home.
    fn request(&mut self, home: Source, request: ReplicaRequest, body: Body) {
        self.requester.submit(self.ctx, home.node, RequestKind::Replica(request), body);
    }

    /// Sends the Join of a page to its home; the command in `slot` completes when the content has arrived.
    fn join_home(&mut self, replica: &mut ReplicaPage, slot: u32, home: Source) {
        replica.setting = Some(slot);
        replica.joining = Some(home);
        let body = Body::Join { at: home.address(), mode: replica.mode as u16, keep: false };
        self.request(home, ReplicaRequest::Join { page: replica.page, source: home }, body);
    }

    /// Sends the Join of a copy that stays one of the new home. `packet` is the old home's announcement; `None` if this
    /// node is the old home.
    fn keep_copy(&mut self, page: u32, mode: Mode, home: Source, packet: Option<Packet>) {
        let body = Body::Join { at: home.address(), mode: mode as u16, keep: true };
        self.request(home, ReplicaRequest::Keep { page, source: home, packet }, body);
    }
}

/// The outcome of [`Replicas::serve`].
pub(crate) enum Served {
    /// The request is a work item of its page.
    Working,
    /// The request has left the queue of its source; it is answered later.
    Left,
    /// The request must wait and stays at the head of its source's queue.
    Stalled,
    /// The request is answered with this.
    Answer(Body),
    /// The request is refused with this status.
    Refused(Status),
}

/// All state of replicated pages.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Replicas {
    /// By export page of this node.
    pages: Table<ReplicaPage>,
    homes: Homes,
    pub(crate) multicasts: Multicasts,
    fills: Fills,
    forwards: Forwards,
    arrivals: Arrivals,
    pub(crate) pending: PendingWrites,
}

impl Replicas {
    /// No replicated page.
    pub(crate) fn new(config: &HibConfig) -> Replicas {
        Replicas {
            pages: Table::default(),
            homes: Homes::new(config),
            multicasts: Multicasts::new(config),
            fills: Fills::new(config),
            forwards: Forwards::default(),
            arrivals: Arrivals::new(config.window.nodes()),
            pending: PendingWrites::default(),
        }
    }

    // ---- what other parts ask ----

    /// The next moment, in microseconds of the board's clock, at which `expire` has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        earlier(self.multicasts.deadline(), self.homes.deadlines.first().map(|(at, _)| *at))
    }

    /// Node and value of the REPLICA event that reports the page's present state.
    pub(crate) fn event(&self, ctx: &Ctx, page: u32) -> (NodeId, u64) {
        let value = u64::from(page) << 32;
        let Some(replica) = self.pages.get(page) else { return (NO_NODE, value) };
        let orphaned = replica.orphaned.map_or(0, |status| (status as u64) << 16 | event::REPLICA_ORPHANED);
        let moved = if replica.moves > 0 { event::REPLICA_MOVED } else { 0 };
        let invalid = if replica.invalid { event::REPLICA_INVALID } else { 0 };
        let home = replica.home_at(ctx.config.node).unwrap_or(NO_NODE);
        (home, value | orphaned | moved | invalid)
    }

    /// The home of a replicated page of this node; `None` if the page is not replicated, or is an orphan.
    pub(crate) fn home_of(&self, ctx: &Ctx, page: u32) -> Option<NodeId> {
        let replica = self.pages.get(page).filter(|replica| replica.orphaned.is_none())?;
        replica.home_at(ctx.config.node)
    }

    /// Whether stores of all nodes show in the memory of a page: it is not replicated, or the home, or a valid copy.
    pub(crate) fn shows_stores(&self, page: u32) -> bool {
        let Some(replica) = self.pages.get(page) else { return true };
        replica.home || replica.filled && !replica.invalid && replica.orphaned.is_none()
    }

    /// Whether a guest-memory step is in flight on one of these replicated pages.
    pub(crate) fn step_on(&self, pages: std::ops::Range<u32>) -> bool {
        self.pages.range(pages).any(|(_, replica)| replica.busy)
    }

    /// Whether a block copy may load from (or store to) this page of this node. `Err` for a store to a replicated page,
    /// since the other copies would not get it, and for a load from a copy that may be invalid.
    pub(crate) fn block_of_replica(&self, page: u32, right: Rights) -> Result<(), Status> {
        match self.pages.get(page) {
            Some(_) if right.contains(Rights::WRITE) => Err(Status::Rights),
            Some(replica) if replica.is_served_by_home() => Err(Status::Invalidated),
            _ => Ok(()),
        }
    }

    /// Whether this page of this node is replicated.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages.get(page).is_some()
    }

    // ---- membership ----

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
        if let Some(replica) = self.pages.get_mut(new.page) {
            match new.change_of(replica)? {
                Change::Join => {}
                Change::Nothing => return Ok(true),
                Change::Refill => {
                    below.join_home(replica, slot, new.source);
                    return Ok(false);
                }
            }
        }
        if !new.here && self.homes.sources.contains_key(&new.source) {
            return Err(Status::Busy); // This node has a copy of it already.
        }
        if let Some(grant) = below.grants.pages.get_mut(new.page) {
            // What is stored to it from now on is ordered.
            below.ctx.recall(grant.address, grant.valid);
            grant.resigned = false;
        }
        let Membership { page, generation, mode, here, source } = new;
        let fresh = || ReplicaPage { page, generation, ..ReplicaPage::default() };
        let replica = self.pages.get_or_insert_with(page, fresh);
        replica.mode = mode;
        replica.orphaned = None;
        replica.home = here && mode != Mode::Naive;
        // The home's own page is filled. A naive page is usable before it has joined.
        replica.filled = here || replica.filled && mode == Mode::Naive;
        if here {
            return Ok(true);
        }
        replica.sources.insert(source);
        self.homes.sources.insert(source, page);
        below.join_home(replica, slot, source);
        Ok(false)
    }

    /// A replica request of this board has been answered with this status, or has failed with it.
    pub(crate) fn answered(&mut self, below: &mut Below<'_>, request: ReplicaRequest, status: Status) {
        match request {
            // A Fill or a Rehome follows a successful Join; the first block must arrive within the time limit.
            ReplicaRequest::Join { page, source } if status.is_ok() => {
                if let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.joining == Some(source)) {
                    self.homes.start_timer(below.ctx, replica);
                }
            }
            ReplicaRequest::Join { page, source } => self.source_lost(below, page, source, status),
            ReplicaRequest::Leave { page } => self.leave_answered(below, page),
            ReplicaRequest::Move { .. } if status.is_ok() => {}
            ReplicaRequest::Move { page } => self.move_failed(below, page, status),
            ReplicaRequest::Keep { page, source, packet } => self.keep_answered(below, page, source, packet, status),
        }
    }

    /// A Join of a new copy: enters it and starts to send the page's content.
    fn join(&mut self, below: &mut Below<'_>, source: NodeId, packet: &Packet, page: u32) -> Result<Served, Status> {
        let replica = self.pages.get_mut(page).ok_or(Status::NotHome)?;
        let Body::Join { mode, .. } = packet.body else { return Err(Status::Invalid) };
        if !replica.orders_stores() || source == below.ctx.config.node || mode != replica.mode as u16 {
            return Err(Status::NotHome);
        }
        if replica.revoked || !replica.filled && replica.home || replica.moving.is_some() {
            return Err(Status::Busy);
        }
        if self.multicasts.is_barred(below.ctx, page, source) {
            return Err(Status::Timeout);
        }
        if replica.copies.insert(source, packet.incarnation) == Some(packet.incarnation) {
            return Err(Status::Busy);
        }
        self.multicasts.note_rejoin(below.ctx, page, source);
        self.multicasts.announce_group(below.ctx, replica);
        self.fills.fill_from(replica, source, 0);
        self.run_work(below, page);
        Ok(Served::Answer(Body::WriteAck { status: Status::Ok }))
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
        let replica = self.pages.get_mut(page);
        let Some(replica) = replica.filter(|replica| replica.clearing.is_some() && !replica.is_leaving()) else {
            return;
        };
        let own = below.ctx.config.node;
        let unfinished = replica.busy
            || !replica.work.is_empty()
            || replica.stalls_own_stores()
            || self.forwards.has(page)
            || below.responder.has_for(own, page)
            || below.requester.peers.stores_to(own, page);
        if unfinished {
            return;
        }
        let reachable = |source: &&Source| below.requester.peers.reachable(below.ctx, source.node).is_ok();
        let homes: Vec<Source> = replica.sources.iter().filter(reachable).copied().collect();
        replica.leaving = homes.len().max(1) as u32;
        if homes.is_empty() {
            return self.leave_answered(below, page);
        }
        for home in homes {
            below.request(home, ReplicaRequest::Leave { page }, Body::Leave { at: home.address() });
        }
    }

    /// A home has answered a Leave, or cannot be reached. After the last one the page is an ordinary page again.
    fn leave_answered(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.leaving > 0) else {
            return;
        };
        replica.leaving -= 1;
        if replica.leaving > 0 {
            return;
        }
        replica.left = true;
        // Stores in flight to this page were addressed to all copies; there are none now, so the page refuses them
        // (SPEC E20).
        if let Some(grant) = below.grants.pages.get_mut(page) {
            grant.resigned = true;
        }
        self.revoke(below, page);
    }

    /// Ends replication of a page: its grant is revoked, or it becomes an ordinary page. If a step is in flight, the
    /// page is removed when the step is done.
    pub(crate) fn revoke(&mut self, below: &mut Below<'_>, page: u32) {
        if let Some(replica) = self.pages.get_mut(page) {
            replica.revoked = true;
            self.end_if_revoked(below, page);
        }
    }

    /// Ends a revoked page: refuses what waits, and removes the page unless a step is in flight. False if the page is
    /// not revoked.
    fn end_if_revoked(&mut self, below: &mut Below<'_>, page: u32) -> bool {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| replica.revoked) else {
            return false;
        };
        for work in replica.take_work(|_| true) {
            self.refuse_work(below, page, work, Status::Stale);
        }
        let Some(replica) = self.pages.get_mut(page) else { return true };
        self.homes.end_moving(below.ctx, replica, Status::Stale);
        self.homes.send_deferred(below.ctx, replica, Status::NotHome);
        if replica.busy {
            return true;
        }
        self.multicasts.end_copies(below, replica, Status::Stale);
        self.homes.forget_page(replica);
        self.pending.forget_page(below.ctx, page);
        // A REPLICA_CLEAR completes only now: the page can be replicated again.
        if let Some(replica) = self.pages.remove(page) {
            let cleared = if replica.left { Status::Ok } else { Status::Stale };
            let set = replica.setting.map(|slot| (slot, Status::Stale));
            for (slot, status) in set.into_iter().chain(replica.clearing.map(|slot| (slot, cleared))) {
                below.ctx.complete_status(slot, status);
            }
        }
        true
    }

    /// Makes a page an orphan: its home no longer serves it, so its copies may differ. Stores to it are refused until
    /// REPLICA_SET gives it a home again.
    fn orphan(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let replica = self.pages.get_mut(page).filter(|replica| replica.orphaned.is_none());
        let Some(replica) = replica else { return };
        replica.orphaned = Some(status);
        replica.home = false;
        replica.complete_setting(below.ctx, status);
        self.cancel_work(below, page, status);
        if let Some(replica) = self.pages.get_mut(page) {
            self.homes.end_moving(below.ctx, replica, status);
            self.homes.send_deferred(below.ctx, replica, Status::NotHome);
            self.multicasts.end_copies(below, replica, status);
            self.homes.forget_page(replica);
        }
        self.pending.forget_page(below.ctx, page);
        below.ctx.cause(Cause::Replica(page));
        below.ctx.serve_own();
        self.leave_if_done(below, page);
    }

    /// Cancels everything in flight between a page and the home that it has lost. The next home must not get a store
    /// that the copy already contains, nor may the copy be filled with blocks of the lost home.
    fn cancel_work(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let own = below.ctx.config.node;
        let ends = |work: &Work| match work {
            Work::Request(source) => *source == own,
            work => matches!(work, Work::Apply(..) | Work::Fill(_)),
        };
        let refused = self.forwards.refuse(page);
        let mut by_home = BTreeMap::<NodeId, Vec<u64>>::new();
        for (number, home, _) in &refused {
            by_home.entry(*home).or_default().push(*number);
        }
        for (home, numbers) in by_home {
            // A request that was still waiting for the window is not sent, so no answer will come.
            for number in below.requester.cancel_forwards(below.ctx, home, &numbers) {
                self.forwards.take(number);
            }
        }
        for (number, _, packet) in refused {
            self.refuse_in_order(below, number, packet, status);
        }
        let Some(replica) = self.pages.get_mut(page) else { return };
        replica.stale = replica.busy && replica.work.front().is_some_and(ends);
        for work in replica.take_work(ends) {
            self.refuse_work(below, page, work, status);
        }
    }

    /// A page that this node's page copies is lost. A naive page only loses a peer; any other page becomes an orphan.
    fn source_lost(&mut self, below: &mut Below<'_>, page: u32, source: Source, status: Status) {
        let Some(replica) = self.pages.get_mut(page).filter(|r| r.sources.contains(&source)) else {
            return;
        };
        if replica.mode != Mode::Naive {
            return self.orphan(below, page, status);
        }
        replica.sources.remove(&source);
        self.homes.sources.remove(&source);
        if replica.joining == Some(source) {
            self.homes.stop_timer(replica);
            replica.joining = None;
            replica.complete_setting(below.ctx, status);
        }
    }

    /// Removes a node from the copies of a page, with the blocks that wait to be sent to it.
    fn remove_copy(&mut self, below: &mut Below<'_>, page: u32, node: NodeId) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        if replica.copies.remove(&node).is_none() {
            return;
        }
        self.multicasts.announce_group(below.ctx, replica);
        replica.filling.remove(&node);
        self.fills.drop_copy(page, node);
        let (tags, blocks) = (self.multicasts.drop_fills(page, node), replica.drop_reads(node));
        for tag in tags {
            self.end_multicast(below, tag, false);
        }
        for _ in 0..blocks {
            self.release_block(below, node);
        }
        // A Move waits until all copies are complete.
        self.run_work(below, page);
    }

    /// Removes a multicast that no copy has left to acknowledge, and answers its request. `missed` says that one of
    /// them has not applied it.
    fn end_multicast(&mut self, below: &mut Below<'_>, tag: u32, missed: bool) {
        let Some(mut multicast) = self.multicasts.end(tag) else { return };
        if let Some(node) = multicast.fill {
            self.release_block(below, node);
        }
        self.answer(below, multicast.page, &mut multicast.answer, missed);
        self.multicasts.keep(multicast);
    }

    /// A block for a new copy at this node is no longer in flight: others that waited may be read.
    fn release_block(&mut self, below: &mut Below<'_>, node: NodeId) {
        for node in self.fills.release(node) {
            while let Some(page) = self.fills.resume(&mut self.pages, node) {
                self.run_work(below, page);
            }
        }
    }

    /// Drops the copies and homes that have exceeded their time limit.
    pub(crate) fn expire(&mut self, below: &mut Below<'_>) {
        while let Some((page, nodes)) = self.multicasts.take_overdue(below.ctx.now) {
            for node in nodes {
                self.drop_copy(below, page, node);
            }
        }
        while let Some(page) = self.homes.take_overdue(below.ctx.now) {
            let Some(replica) = self.pages.get_mut(page) else { continue };
            replica.home_deadline = None;
            let joining = replica.joining;
            below.ctx.notice(Notice::SilentHome { page });
            match joining {
                Some(source) => self.source_lost(below, page, source, Status::Timeout),
                None => self.orphan(below, page, Status::Timeout),
            }
        }
    }

    /// Drops a copy that has not acknowledged in time; the other copies are not affected. Behind everything already
    /// sent to it, the copy is sent a Rehome with the reason.
    fn drop_copy(&mut self, below: &mut Below<'_>, page: u32, node: NodeId) {
        let (tags, already_dropped) = self.multicasts.bar(below.ctx, page, node);
        self.remove_copy(below, page, node);
        for tag in tags {
            self.copy_acknowledged(below, node, tag, Status::Timeout);
        }
        // The copy may fail to acknowledge even this Rehome, so it is sent once.
        if !already_dropped {
            below.ctx.counters.silent_copies += 1;
            below.ctx.notice(Notice::SilentCopy { node, page });
            if let Some(replica) = self.pages.get(page) {
                let copy = self.multicasts.list([node]);
                self.multicasts.send_end(below, replica, copy, Status::Timeout);
            }
        }
        self.multicasts.pump(below);
        self.leave_if_done(below, page);
    }

    /// A node went down or was reset: removes it as a home, a copy and a requester.
    pub(crate) fn forget_member(&mut self, below: &mut Below<'_>, node: NodeId, status: Status) {
        let tags = self.multicasts.forget_node(below.ctx, node);
        let pages: Vec<u32> = self.pages.numbers().collect();
        // Removed first, so that nothing new is sent to it when its missing acknowledgements complete multicasts below.
        for page in &pages {
            self.remove_copy(below, *page, node);
        }
        for tag in tags {
            self.copy_acknowledged(below, node, tag, Status::Ok);
        }
        for page in pages {
            let Some(replica) = self.pages.get(page) else { continue };
            let lost: Vec<Source> = replica.sources.iter().copied().filter(|source| source.node == node).collect();
            for source in lost {
                self.source_lost(below, page, source, status);
            }
        }
        self.multicasts.pump(below);
    }

    /// The link went down. The packets that arrived hold no credits of the next link, and the homes that sent them are
    /// lost.
    pub(crate) fn link_lost(&mut self, ctx: &Ctx) {
        self.multicasts.link_lost();
        self.homes.link_lost();
        if !ctx.has(Bug::ChargeNextLink) {
            self.arrivals.clear();
            self.pages.values_mut().for_each(ReplicaPage::drop_arrived);
        }
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
                below.ctx.refuse(&packet, status);
            }
            for work in replica.work {
                match work {
                    Work::Request(_) if below.ctx.has(Bug::ForgetWork) => {}
                    Work::Request(source) => {
                        // The request is in service, at the head of its source's queue; only this part can remove it
                        // there.
                        let packet = below.responder.detach(below.ctx, source);
                        if let Some(packet) = packet.filter(|_| source != below.ctx.config.node) {
                            below.ctx.refuse(&packet, status);
                        }
                    }
                    Work::Move(packet) => below.ctx.refuse(&packet, status),
                    Work::Apply(packet, _) | Work::Fill(packet) => self.acknowledge_copy(below, &packet, status),
                    Work::Read(..) | Work::Take | Work::Cancelled => {}
                }
            }
        }
        // Behind those of their node that were work items.
        for packet in replicas.arrivals.into_waiting() {
            self.acknowledge_copy(below, &packet, status);
        }
        replicas.multicasts.refuse_all(below.ctx, status);
    }

    // ---- moving the home to a copy while stores continue ----

    /// REPLICA_MOVE at the copy that is to become the home. `Ok`: the command completes later.
    pub(crate) fn move_home(&mut self, below: &mut Below<'_>, slot: u32, page: u32) -> Result<(), Status> {
        self.pages.get_mut(page).ok_or(Status::Invalid)?.begin_move(slot)?;
        self.run_work(below, page);
        Ok(())
    }

    /// Sends the Move request: all earlier stores of this node's processors have been sent to the home.
    fn take_home(&mut self, below: &mut Below<'_>, page: u32) {
        let Some(replica) = self.pages.get(page) else { return };
        let Some(home) = replica.source() else { return };
        if !matches!(replica.moving, Some(Moving::Taking { .. })) {
            // Another copy has become the home in the meantime.
            return self.move_failed(below, page, Status::NotHome);
        }
        let body = Body::Move { at: home.address(), page, generation: replica.generation };
        below.request(home, ReplicaRequest::Move { page }, body);
    }

    /// The home has refused the Move, or has not answered in time.
    fn move_failed(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page).filter(|replica| !replica.home) else {
            return;
        };
        match replica.moving {
            Some(Moving::Taking { released: true }) => return self.orphan(below, page, status),
            Some(Moving::Taking { released: false }) => replica.moving = None,
            // The home moves to another copy.
            _ => {}
        }
        replica.complete_setting(below.ctx, status);
        self.multicasts.end_copies(below, replica, status);
        below.ctx.serve_own();
        self.leave_if_done(below, page);
    }

    /// A Join with `keep`, of a node that has a copy and stays one of this new home.
    fn join_kept(&mut self, below: &mut Below<'_>, packet: &Packet, page: u32) -> Result<Served, Status> {
        let replica = self.pages.get_mut(page).ok_or(Status::NotHome)?;
        let is_home = replica.join_kept(below.ctx.config.node, packet)?;
        self.multicasts.note_rejoin(below.ctx, page, packet.src);
        self.multicasts.announce_group(below.ctx, replica);
        if is_home {
            self.homes.sources.retain(|_, p| *p != page);
            let (at, generation) = (replica.address(0), replica.generation);
            let announcement = Body::Rehome { at, to: below.ctx.config.node, page, generation };
            let copies = self.multicasts.list(replica.members());
            self.multicasts.send(below, copies, announcement, None);
            replica.complete_setting(below.ctx, Status::Ok);
            below.ctx.cause(Cause::Replica(page));
            // The caller serves the next request of the old home; requests of this node's processors are in a queue of
            // their own.
            below.ctx.serve_own();
        }
        Ok(Served::Answer(Body::WriteAck { status: Status::Ok }))
    }

    /// A Move request of a copy: queued as a work item.
    fn queue_move(&mut self, below: &mut Below<'_>, source: NodeId, page: u32) -> Result<Served, Status> {
        self.pages.get(page).ok_or(Status::NotHome)?.admit_move(source)?;
        if let Some(packet) = below.responder.detach(below.ctx, source) {
            self.begin_work(below, page, Work::Move(packet));
        }
        Ok(Served::Left)
    }

    /// Runs a Move item: everything before it has been multicast, and this node multicasts nothing after it.
    fn give_home(&mut self, below: &mut Below<'_>, page: u32, packet: Packet) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let (to, again) = match replica.give(&packet) {
            Ok(given) => given,
            Err(status) => return below.ctx.refuse(&packet, status),
        };
        let rehome = Body::Rehome { at: replica.address(0), to: to.node, page: to.page, generation: to.generation };
        let copies = self.multicasts.list(replica.members());
        self.multicasts.send(below, copies, rehome, Some((packet, 0)));
        for source in again {
            below.responder.in_service(source, None);
            below.ctx.defer(FollowUp::Serve(source));
        }
    }

    /// All copies have acknowledged the Rehome, or have been dropped: joins the new home as its last copy.
    fn rehome_acknowledged(&mut self, below: &mut Below<'_>, page: u32, packet: Packet) {
        let Some(replica) = self.pages.get_mut(page) else {
            return below.ctx.refuse(&packet, Status::NotHome);
        };
        let Some(Moving::Giving { to, packet: request @ None }) = &mut replica.moving else {
            return below.ctx.refuse(&packet, Status::NotHome);
        };
        let to = *to;
        let is_copy = replica.copies.get(&to.node) == Some(&packet.incarnation);
        *request = Some(packet);
        if !is_copy || self.homes.sources.contains_key(&to) {
            return self.stay_home(below, page, Status::NotHome);
        }
        // The new home's announcement may arrive before its answer to this Join.
        self.homes.sources.insert(to, page);
        below.keep_copy(page, replica.mode, to, None);
    }

    /// The new home has failed to take over: this node remains the home. Copies that already joined the other one
    /// become orphans.
    fn stay_home(&mut self, below: &mut Below<'_>, page: u32, status: Status) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let Some(Moving::Giving { to, packet }) = replica.moving.take() else { return };
        self.homes.sources.remove(&to);
        let members: Vec<NodeId> = replica.members().collect();
        for node in members {
            self.remove_copy(below, page, node);
        }
        if let Some(packet) = packet {
            below.ctx.refuse(&packet, status);
        }
        below.ctx.serve_own();
        self.run_work(below, page);
        self.leave_if_done(below, page);
    }

    /// The new home has accepted this node as a copy: this node stops being the home, if it is.
    fn hand_over(&mut self, ctx: &mut Ctx, page: u32, source: Source) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        let Ok(packet) = replica.hand_over(source) else { return };
        self.multicasts.announce_group(ctx, replica);
        self.homes.start_timer(ctx, replica);
        if let Some(packet) = packet {
            ctx.reply_to(&packet, Body::WriteAck { status: Status::Ok });
        }
        ctx.cause(Cause::Replica(page));
    }

    /// A Rehome that names a node: the home's announcement that the page moves there, or that the sender is the new
    /// home.
    fn rehomed(&mut self, below: &mut Below<'_>, page: u32, source: Source, packet: &Packet) -> Arrival {
        let Body::Rehome { to, page: new_page, generation, .. } = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        if to == source.node {
            return self.announced(below, page, source);
        }
        if to == below.ctx.config.node {
            let is_this_page = new_page == page && generation == replica.generation;
            if let Some(Moving::Taking { released }) = replica.moving.as_mut().filter(|_| is_this_page) {
                *released = true;
                return Arrival::Done(Status::Ok);
            }
            self.source_lost(below, page, source, Status::NotHome);
            return Arrival::Done(Status::NotHome);
        }
        let new = Source { node: to, page: new_page, generation };
        let reachable = below.requester.peers.reachable(below.ctx, to).is_ok();
        if !replica.can_move() || !reachable || self.homes.sources.contains_key(&new) {
            self.source_lost(below, page, source, Status::Stale);
            return Arrival::Done(Status::NotHome);
        }
        replica.follow(new);
        self.homes.sources.remove(&source);
        self.homes.sources.insert(new, page);
        below.ctx.cause(Cause::Replica(page));
        below.keep_copy(page, replica.mode, new, Some(packet.clone()));
        Arrival::Deferred
    }

    /// The new home has answered the Join of a copy, or (`packet` is `None`) of the old home.
    fn keep_answered(
        &mut self,
        below: &mut Below<'_>,
        page: u32,
        source: Source,
        packet: Option<Packet>,
        status: Status,
    ) {
        let Some(packet) = packet else {
            return match status {
                Status::Ok => self.hand_over(below.ctx, page, source),
                // The other node may be the home by now, and there must not be two.
                Status::Timeout | Status::NodeDown | Status::LinkDown | Status::Reset => {
                    self.homes.sources.remove(&source);
                    self.orphan(below, page, status);
                }
                _ => self.stay_home(below, page, status),
            };
        };
        if status != Status::Ok {
            self.source_lost(below, page, source, status);
        }
        let is_source = self.homes.sources.get(&source) == Some(&page);
        let replica = self.pages.get_mut(page).filter(|_| is_source);
        if let Some(replica) = replica.filter(|r| r.moving == Some(Moving::Following { announced: false })) {
            self.homes.start_timer(below.ctx, replica);
        }
        let status = if is_source { Status::Ok } else { Status::NotHome };
        below.ctx.reply_to(&packet, Body::CopyAck { status });
    }

    /// The new home has confirmed that it is the home.
    fn announced(&mut self, below: &mut Below<'_>, page: u32, source: Source) -> Arrival {
        self.hand_over(below.ctx, page, source);
        let Some(replica) = self.pages.get_mut(page) else { return Arrival::Done(Status::NotHome) };
        let Some(Moving::Following { announced }) = &mut replica.moving else { return Arrival::Done(Status::Invalid) };
        *announced = true;
        self.homes.stop_timer(replica);
        self.follow_if_ready(below, page);
        Arrival::Done(Status::Ok)
    }

    /// Resumes stores with the new home, once the old home has answered everything; the stores it refused are sent
    /// first.
    fn follow_if_ready(&mut self, below: &mut Below<'_>, page: u32) {
        let replica = self.pages.get_mut(page);
        let replica = replica.filter(|replica| replica.moving == Some(Moving::Following { announced: true }));
        let Some(replica) = replica.filter(|replica| !self.forwards.has_before_move(page, replica.moves)) else {
            return;
        };
        replica.moving = None;
        for packet in std::mem::take(&mut replica.returned).into_values() {
            self.forward(below, packet, page);
        }
        below.ctx.serve_own();
        self.leave_if_done(below, page);
    }
}
