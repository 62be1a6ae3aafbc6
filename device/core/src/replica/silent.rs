// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and homes that do not answer: their time limits, and what one node can use up of this board meanwhile
//! (`docs/replication.md`, "Silent copies and homes"). `hib` calls `expire` on ticks; the other parts start and stop
//! the timers and charge the accounts.

use super::page::{Multicast, Work};
use super::{Below, Replicas, TAG_INDEX_BITS};
use crate::Notice;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::requester::Source;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, RemoteAddr, Status};

/// How long a dropped copy is refused, in multiples of `replica_limit`.
const BARRED_LIMITS: u64 = 8;

impl Replicas {
    /// Drops the copies and homes that have exceeded their time limit.
    pub(crate) fn expire(&mut self, below: &mut Below<'_>) {
        while let Some(&(at, tag)) = self.copy_deadlines.first().filter(|(at, _)| *at <= below.ctx.now) {
            self.copy_deadlines.remove(&(at, tag));
            let Some(multicast) = self.multicasts.get_mut(&tag) else { continue };
            multicast.deadline = None;
            let (page, nodes): (u32, Vec<NodeId>) = (multicast.page, multicast.waits.iter().copied().collect());
            for node in nodes {
                self.drop_copy(below, page, node);
            }
        }
        while let Some(&(at, page)) = self.home_deadlines.first().filter(|(at, _)| *at <= below.ctx.now) {
            self.home_deadlines.remove(&(at, page));
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

    // ---- at the home ----

    /// Starts the timer of a multicast that has been sent to all its copies.
    pub(super) fn start_copy_timer(&mut self, ctx: &mut Ctx, tag: u32) {
        if ctx.has(Bug::KeepSilentCopies) {
            return;
        }
        let deadline = ctx.now.saturating_add(ctx.config.replica_limit);
        if let Some(multicast) = self.multicasts.get_mut(&tag) {
            multicast.deadline = Some(deadline);
            self.copy_deadlines.insert((deadline, tag));
        }
    }

    /// Removes a multicast that no copy has left to acknowledge.
    pub(super) fn end_multicast(&mut self, below: &mut Below<'_>, tag: u32) {
        let Some(Multicast { page, deadline, fill, .. }) = self.multicasts.remove(&tag) else { return };
        self.by_page.remove(&(page, tag));
        if let Some(deadline) = deadline {
            self.copy_deadlines.remove(&(deadline, tag));
        }
        if let Some(node) = fill {
            self.release_block(below, node);
        }
    }

    /// Drops a copy that has not acknowledged in time; the other copies are not affected. Behind everything already
    /// sent to it, the copy is sent a Rehome with the reason.
    fn drop_copy(&mut self, below: &mut Below<'_>, page: u32, node: NodeId) {
        let waits = |tag: &u32| self.multicasts.get(tag).is_some_and(|multicast| multicast.waits.contains(&node));
        let tags: Vec<u32> = self.multicasts_of(page).filter(waits).collect();
        self.outgoing.iter_mut().filter(|o| o.body.page() == page).for_each(|o| o.to.retain(|to| *to != node));
        // The copy may still acknowledge; the new epoch makes that acknowledgement match no new multicast.
        self.next_tag_epoch(below.ctx);
        let now = below.ctx.now;
        self.barred.retain(|_, until| *until > now);
        let until = now.saturating_add(below.ctx.config.replica_limit.saturating_mul(BARRED_LIMITS));
        let already_dropped = self.barred.insert((page, node), until).is_some();
        self.remove_copy(below, page, node);
        for tag in tags {
            self.copy_acknowledged(below, node, tag, Status::Timeout);
        }
        // The copy may fail to acknowledge even this Rehome, so it is sent once.
        if !already_dropped {
            below.ctx.counters.silent_copies += 1;
            below.ctx.notice(Notice::SilentCopy { node, page });
            self.end_copy(below, page, node, Status::Timeout);
        }
        self.pump_reflected(below);
        self.leave_if_done(below, page);
    }

    /// Begins a new tag epoch: acknowledgements of a dropped copy that are still in flight match no later multicast.
    pub(super) fn next_tag_epoch(&mut self, ctx: &Ctx) {
        self.tag_epoch = (self.tag_epoch + u32::from(!ctx.has(Bug::ReuseTags))) & (u32::MAX >> TAG_INDEX_BITS);
    }

    /// Notifies a copy, behind everything already sent to it, that this node is no longer its home.
    pub(super) fn end_copy(&mut self, below: &mut Below<'_>, page: u32, node: NodeId, status: Status) {
        let Some(replica) = self.pages.get(page) else { return };
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        self.multicast(below, &[node], Body::Rehome { at, to: NO_NODE, page: status as u32, generation: 0 }, None);
    }

    /// Whether a copy was dropped for silence so recently that it may not join.
    pub(super) fn is_barred(&self, ctx: &Ctx, page: u32, node: NodeId) -> bool {
        self.barred.get(&(page, node)).is_some_and(|until| *until > ctx.now)
    }

    /// Whether one more request of a node may wait for copies. If not, the requester is served again when one has been
    /// answered.
    pub(super) fn may_wait_for_copies(&mut self, source: NodeId) -> bool {
        let room = self.copy_waits.available(&source) > 0;
        if !room {
            self.stalled_requesters.insert(source);
        }
        room
    }

    /// A request that waited for copies has been answered: releases its share.
    pub(super) fn release_copy_wait(&mut self, ctx: &mut Ctx, source: NodeId) {
        self.copy_waits.give(&source, 1);
        if self.stalled_requesters.remove(&source) {
            ctx.defer(FollowUp::Serve(source));
        }
    }

    /// Queues the block at this offset for a new copy, or makes the copy wait until its node has acknowledged enough
    /// earlier blocks.
    pub(super) fn fill_from(&mut self, page: u32, node: NodeId, offset: u32) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        if self.fills.available(&node) > 0 && self.fills.take(node, 1).is_ok() {
            replica.work.push_back(Work::Read(node, offset));
        } else {
            replica.filling.insert(node, offset);
            self.waiting_fills.entry(node).or_default().push_back(page);
        }
    }

    /// Releases the share of a block that is no longer in flight, and queues blocks that waited: for this node or, if
    /// the class's credits were the limit, for another.
    pub(super) fn release_block(&mut self, below: &mut Below<'_>, node: NodeId) {
        self.fills.give(&node, 1);
        let waiting: Vec<NodeId> = self.waiting_fills.keys().copied().collect();
        for node in waiting {
            while self.fills.available(&node) > 0 {
                let Some(pages) = self.waiting_fills.get_mut(&node) else { break };
                let Some(page) = pages.pop_front() else {
                    self.waiting_fills.remove(&node);
                    break;
                };
                let waits = self.pages.get_mut(page).and_then(|replica| replica.filling.remove(&node));
                if let Some(offset) = waits {
                    self.fill_from(page, node, offset);
                    self.run_work(below, page);
                }
            }
        }
    }

    /// Drops the blocks for a removed copy that have not been sent.
    pub(super) fn drop_fills(&mut self, below: &mut Below<'_>, page: u32, node: NodeId) {
        if let Some(replica) = self.pages.get_mut(page) {
            replica.filling.remove(&node);
        }
        if let Some(pages) = self.waiting_fills.get_mut(&node) {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                self.waiting_fills.remove(&node);
            }
        }
        let (mut tags, mut blocks) = (Vec::new(), 0);
        self.outgoing.retain(|outgoing| {
            let drops = outgoing.to == [node] && matches!(&outgoing.body, Body::Fill { at, .. } if at.page == page);
            tags.extend(drops.then_some(outgoing.tag));
            !drops
        });
        if let Some(replica) = self.pages.get_mut(page) {
            let reads_for_copy = |work: &Work| matches!(work, Work::Read(to, _) if *to == node);
            // The result of a step in flight always removes the first item, so the item stays.
            if let Some(first) = replica.work.front_mut().filter(|first| replica.busy && reads_for_copy(first)) {
                *first = Work::Cancelled;
                blocks += 1;
            }
            let before = replica.work.len();
            replica.work.retain(|work| !reads_for_copy(work));
            blocks += before - replica.work.len();
        }
        for tag in tags {
            self.end_multicast(below, tag);
        }
        for _ in 0..blocks {
            self.release_block(below, node);
        }
        // A Move waits until all copies are complete.
        self.run_work(below, page);
    }

    // ---- at the copy ----

    /// The home has accepted the Join: its first block must arrive within the time limit.
    pub(super) fn join_accepted(&mut self, ctx: &mut Ctx, page: u32, source: Source) {
        let joining = self.pages.get(page).is_some_and(|replica| replica.joining == Some(source));
        if joining {
            self.start_home_timer(ctx, page);
        }
    }

    /// Starts or restarts the timer for the next packet of the home.
    pub(super) fn start_home_timer(&mut self, ctx: &mut Ctx, page: u32) {
        if ctx.has(Bug::KeepSilentHomes) {
            return;
        }
        self.stop_home_timer(page);
        let until = ctx.now.saturating_add(ctx.config.replica_limit);
        if let Some(replica) = self.pages.get_mut(page) {
            replica.home_deadline = Some(until);
            self.home_deadlines.insert((until, page));
        }
    }

    /// Stops the timer of the home.
    pub(super) fn stop_home_timer(&mut self, page: u32) {
        let until = self.pages.get_mut(page).and_then(|replica| replica.home_deadline.take());
        if let Some(until) = until {
            self.home_deadlines.remove(&(until, page));
        }
    }

    /// Charges one deferred acknowledgement to a home; false if its share is used up.
    pub(super) fn charge_deferred(&mut self, home: NodeId) -> bool {
        self.deferred.take(home, 1).is_ok()
    }
}
