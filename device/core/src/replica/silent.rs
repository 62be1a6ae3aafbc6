// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and homes that do not answer: how long they are waited for, and what they can use up meanwhile
//! (`docs/replication.md`, "Silent copies and homes").

use super::{Multicast, Source, TAG_INDEX_BITS, Work};
use crate::config::Bug;
use crate::ctx::FollowUp;
use crate::hib::Hib;
use crate::{HibConfig, Notice};
use telegraphos_accounts::Shares;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, Class, NodeId, RemoteAddr, Status};

/// Requests of one node that this home may have performed without being able to answer them, since copies have not
/// acknowledged. Boards have at most `outstanding` for each home on their way, so only one that ignores its window
/// meets this.
const ANSWERS: u32 = 256;

/// Blocks that one node may have on their way to its new copies.
const BLOCKS: u64 = 2;

/// A copy that was dropped may join again after so many times the limit.
const BARRED: u64 = 8;

/// Each node has its own part; never more than the switch expects answers of this board.
pub(super) fn answer_shares(config: &HibConfig) -> Shares {
    let offered: u32 = config.offered().iter().fold(0, |sum, credits| sum.saturating_add(*credits));
    let part = u64::from(offered.clamp(1, ANSWERS));
    Shares::equal(part * u64::from(config.window.nodes()), config.window.nodes().into())
}

/// A quarter of the credits of the class, so that stores find the others; one for each node, as far as they suffice.
pub(super) fn fill_shares(config: &HibConfig) -> Shares {
    let capacity = u64::from(config.credits[Class::Reflected as usize] / 4).max(1);
    if config.has(Bug::FillAtOnce) {
        return Shares::single(u64::from(u32::MAX));
    }
    Shares { capacity, spenders: config.window.nodes().into(), guaranteed: 1, limit: BLOCKS }
}

/// What an honest home can have unacknowledged at one copy: the answers of all its requesters.
pub(super) fn held_shares(config: &HibConfig) -> Shares {
    let nodes = u64::from(config.window.nodes());
    let part = u64::from(ANSWERS) * nodes;
    Shares::equal(part * nodes, nodes)
}

impl Hib {
    /// Ends waiting for those who have not answered in time.
    pub(crate) fn expire_copies(&mut self) {
        while let Some(&(at, tag)) = self.replicas.due.first().filter(|(at, _)| *at <= self.ctx.now) {
            self.replicas.due.remove(&(at, tag));
            let Some(multicast) = self.replicas.multicasts.get_mut(&tag) else { continue };
            multicast.due = None;
            let (page, silent): (u32, Vec<NodeId>) = (multicast.page, multicast.waits.iter().copied().collect());
            for node in silent {
                self.drop_copy(page, node);
            }
        }
        while let Some(&(at, page)) = self.replicas.awaited.first().filter(|(at, _)| *at <= self.ctx.now) {
            self.replicas.awaited.remove(&(at, page));
            let Some(replica) = self.replicas.pages.get_mut(&page) else { continue };
            replica.awaits = None;
            let joining = replica.joining;
            self.ctx.notice(Notice::SilentHome { page });
            match joining {
                Some(source) => self.source_lost(page, source, Status::Timeout),
                None => self.orphan(page, Status::Timeout),
            }
        }
    }

    // ---- at the home ----

    /// All of a multicast has been sent: from now on its copies are waited for.
    pub(super) fn sent_to_all(&mut self, tag: u32) {
        if self.ctx.has(Bug::KeepSilentCopies) {
            return;
        }
        let due = self.ctx.now.saturating_add(self.ctx.config.replica_limit);
        if let Some(multicast) = self.replicas.multicasts.get_mut(&tag) {
            multicast.due = Some(due);
            self.replicas.due.insert((due, tag));
        }
    }

    /// A multicast has been acknowledged by all, or is for none any more.
    pub(super) fn end_multicast(&mut self, tag: u32) {
        let Some(Multicast { page, due, fill, .. }) = self.replicas.multicasts.remove(&tag) else { return };
        self.replicas.by_page.remove(&(page, tag));
        if let Some(due) = due {
            self.replicas.due.remove(&(due, tag));
        }
        if let Some(node) = fill {
            self.block_taken(node);
        }
    }

    /// A copy has not acknowledged in time. It is none any more; the others go on. It is told, with the reason, behind
    /// all that was sent to it.
    fn drop_copy(&mut self, page: u32, node: NodeId) {
        let replicas = &mut self.replicas;
        let waits = |tag: &u32| replicas.multicasts.get(tag).is_some_and(|multicast| multicast.waits.contains(&node));
        let tags: Vec<u32> = replicas.multicasts_of(page).filter(waits).collect();
        replicas.outgoing.iter_mut().filter(|o| o.body.page() == page).for_each(|o| o.to.retain(|to| *to != node));
        // It may still acknowledge: that must not be taken for something else.
        replicas.round = (replicas.round + u32::from(!self.ctx.has(Bug::ReuseTags))) & (u32::MAX >> TAG_INDEX_BITS);
        let now = self.ctx.now;
        replicas.barred.retain(|_, until| *until > now);
        let until = now.saturating_add(self.ctx.config.replica_limit.saturating_mul(BARRED));
        let told = replicas.barred.insert((page, node), until).is_some();
        self.forget_copy(page, node);
        for tag in tags {
            self.copy_acknowledged(node, tag, Status::Timeout);
        }
        // What ends it may be what it does not acknowledge.
        if !told {
            self.ctx.counters.silent_copies += 1;
            self.ctx.notice(Notice::SilentCopy { node, page });
            self.end_copy(page, node, Status::Timeout);
        }
        self.pump_reflected();
        self.leave_if_done(page);
    }

    /// A copy hears, behind everything that was sent to it, that this is not its home any more.
    pub(super) fn end_copy(&mut self, page: u32, node: NodeId, status: Status) {
        let Some(replica) = self.replicas.pages.get(&page) else { return };
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        self.multicast(&[node], Body::Rehome { at, to: NO_NODE, page: status as u32, generation: 0 }, None);
    }

    /// Whether a copy was dropped for its silence, not long ago.
    pub(super) fn is_barred(&self, page: u32, node: NodeId) -> bool {
        self.replicas.barred.get(&(page, node)).is_some_and(|until| *until > self.ctx.now)
    }

    /// Whether one more request of a node may wait for copies; else it is to be served when one has been answered.
    pub(super) fn may_wait_for_copies(&mut self, source: NodeId) -> bool {
        let room = self.replicas.answers.available(&source) > 0;
        if !room {
            self.replicas.answers_full.insert(source);
        }
        room
    }

    /// A request that waited for copies has its answer.
    pub(super) fn waited_for_copies(&mut self, source: NodeId) {
        self.replicas.answers.give(&source, 1);
        if self.replicas.answers_full.remove(&source) {
            self.ctx.then(FollowUp::Serve(source));
        }
    }

    /// The next block for a new copy, which begins at this offset: read when its node has taken enough of the earlier
    /// ones.
    pub(super) fn fill_from(&mut self, page: u32, node: NodeId, offset: u32) {
        let replicas = &mut self.replicas;
        let Some(replica) = replicas.pages.get_mut(&page) else { return };
        if replicas.fills.available(&node) > 0 && replicas.fills.take(node, 1).is_ok() {
            replica.work.push_back(Work::Read(node, offset));
        } else {
            replica.filling.insert(node, offset);
            replicas.fills_wait.entry(node).or_default().push_back(page);
        }
    }

    /// A block is not on its way any more: another one may be, to this node or, if the credits were the reason, to
    /// another.
    pub(super) fn block_taken(&mut self, node: NodeId) {
        self.replicas.fills.give(&node, 1);
        let waiting: Vec<NodeId> = self.replicas.fills_wait.keys().copied().collect();
        for node in waiting {
            while self.replicas.fills.available(&node) > 0 {
                let replicas = &mut self.replicas;
                let Some(pages) = replicas.fills_wait.get_mut(&node) else { break };
                let Some(page) = pages.pop_front() else {
                    replicas.fills_wait.remove(&node);
                    break;
                };
                let waits = replicas.pages.get_mut(&page).and_then(|replica| replica.filling.remove(&node));
                if let Some(offset) = waits {
                    self.fill_from(page, node, offset);
                    self.work_on(page);
                }
            }
        }
    }

    /// Blocks for a copy that is none any more, and have not left, do not leave.
    pub(super) fn drop_fills(&mut self, page: u32, node: NodeId) {
        let replicas = &mut self.replicas;
        if let Some(replica) = replicas.pages.get_mut(&page) {
            replica.filling.remove(&node);
        }
        if let Some(pages) = replicas.fills_wait.get_mut(&node) {
            pages.retain(|other| *other != page);
            if pages.is_empty() {
                replicas.fills_wait.remove(&node);
            }
        }
        let (mut tags, mut blocks) = (Vec::new(), 0);
        replicas.outgoing.retain(|outgoing| {
            let drops = outgoing.to == [node] && matches!(&outgoing.body, Body::Fill { at, .. } if at.page == page);
            tags.extend(drops.then_some(outgoing.tag));
            !drops
        });
        if let Some(replica) = replicas.pages.get_mut(&page) {
            let for_it = |work: &Work| matches!(work, Work::Read(to, _) if *to == node);
            // A step in flight ends the first work, whatever it is then.
            if let Some(first) = replica.work.front_mut().filter(|first| replica.busy && for_it(first)) {
                *first = Work::Lost;
                blocks += 1;
            }
            let before = replica.work.len();
            replica.work.retain(|work| !for_it(work));
            blocks += before - replica.work.len();
        }
        for tag in tags {
            self.end_multicast(tag);
        }
        for _ in 0..blocks {
            self.block_taken(node);
        }
        // A move waits until all copies are complete.
        self.work_on(page);
    }

    // ---- at the copy ----

    /// The home has accepted this copy; its content follows.
    pub(crate) fn join_accepted(&mut self, page: u32, source: Source) {
        let joins = self.replicas.pages.get(&page).is_some_and(|replica| replica.joining == Some(source));
        if joins {
            self.await_home(page);
        }
    }

    /// From now on the home has the limit's time for what is next to come.
    pub(super) fn await_home(&mut self, page: u32) {
        if self.ctx.has(Bug::KeepSilentHomes) {
            return;
        }
        self.await_no_longer(page);
        let until = self.ctx.now.saturating_add(self.ctx.config.replica_limit);
        if let Some(replica) = self.replicas.pages.get_mut(&page) {
            replica.awaits = Some(until);
            self.replicas.awaited.insert((until, page));
        }
    }

    pub(super) fn await_no_longer(&mut self, page: u32) {
        let until = self.replicas.pages.get_mut(&page).and_then(|replica| replica.awaits.take());
        if let Some(until) = until {
            self.replicas.awaited.remove(&(until, page));
        }
    }

    /// Whether a home may have one more acknowledgement wait for the driver here.
    pub(super) fn holds_acknowledgement(&mut self, home: NodeId) -> bool {
        self.replicas.held.take(home, 1).is_ok()
    }
}
