// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the homes here to their copies: multicasts that wait for credits, or for acknowledgements.

use super::page::ReplicaPage;
use super::{Below, shares};
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::{Action, HibConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::Account;
use telegraphos_wire::link::{MAX_GROUPS, MAX_MEMBERSHIPS};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

/// Low bits of a multicast's tag: the lowest number that was free. The bits above are the tag epoch, which makes
/// acknowledgements recognisable that arrive after their sender was dropped.
const TAG_INDEX_BITS: u32 = 20;

/// How long a dropped copy is refused, in multiples of `replica_limit`.
const BARRED_LIMITS: u64 = 8;

/// A multicast that not all copies have acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Multicast {
    /// The page at this node.
    pub(super) page: u32,
    /// Copies that have not acknowledged it.
    pub(super) waits: BTreeSet<NodeId>,
    /// Those of them that have joined again since: a refusal is of their earlier copy, which had left.
    pub(super) rejoined: BTreeSet<NodeId>,
    /// The request to answer when all copies have acknowledged, and the answer.
    pub(super) answer: Option<(Packet, Body)>,
    /// A copy that may outlive this home has not applied it.
    pub(super) missed: bool,
    /// The multicast is a block for the new copy at this node.
    pub(super) fill: Option<NodeId>,
    /// When copies that have not acknowledged are dropped; `None` until the multicast has been sent to all of them.
    pub(super) deadline: Option<u64>,
}

/// A multicast that waits for link credits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outgoing {
    pub(super) tag: u32,
    pub(super) body: Body,
    /// Destinations that it has not been sent to, ascending.
    pub(super) to: Vec<NodeId>,
}

/// What the acknowledgement of a copy means for its multicast.
pub(super) struct Acknowledged {
    pub(super) page: u32,
    /// No copy is left to acknowledge it.
    pub(super) done: bool,
    /// The copy has joined again since.
    pub(super) rejoined: bool,
    /// A copy that may outlive this home has not applied it.
    pub(super) missed: bool,
    /// The request that can be answered now, and the answer.
    pub(super) answer: Option<(Packet, Body)>,
}

/// The multicasts of all homes here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Multicasts {
    table: BTreeMap<u32, Multicast>,
    /// (page, tag) of each multicast.
    by_page: BTreeSet<(u32, u32)>,
    /// Tag epoch: rises whenever a copy is dropped while it has multicasts to acknowledge.
    tag_epoch: u32,
    /// (deadline, tag) of each multicast that is waiting for acknowledgements.
    pub(super) deadlines: BTreeSet<(u64, u32)>,
    /// Multicasts that wait for link credits, for all copies of all pages.
    outgoing: VecDeque<Outgoing>,
    /// The groups that the switch holds, by page: at least two members each, ascending.
    groups: BTreeMap<u32, Vec<NodeId>>,
    /// Number of members of all groups together.
    memberships: usize,
    /// Requests that have been performed and wait for copies, by requester.
    waits: Account<NodeId>,
    /// Requesters with a request that stalls because their share of the above is used up.
    stalled: BTreeSet<NodeId>,
    /// Copies (page here, node) that were dropped for silence, and when they may join again.
    barred: BTreeMap<(u32, NodeId), u64>,
}

impl Multicasts {
    pub(super) fn new(config: &HibConfig) -> Multicasts {
        Multicasts {
            table: BTreeMap::new(),
            by_page: BTreeSet::new(),
            tag_epoch: 0,
            deadlines: BTreeSet::new(),
            outgoing: VecDeque::new(),
            groups: BTreeMap::new(),
            memberships: 0,
            waits: Account::new(shares::copy_wait_shares(config)),
            stalled: BTreeSet::new(),
            barred: BTreeMap::new(),
        }
    }

    /// The unacknowledged multicasts of a page, with their tags.
    fn of_page(&self, page: u32) -> impl Iterator<Item = (u32, &Multicast)> {
        self.by_page.range((page, 0)..=(page, u32::MAX)).filter_map(|(_, tag)| Some((*tag, self.table.get(tag)?)))
    }

    /// Queues a packet for all these nodes; `answer` is sent when all of them have acknowledged it (SPEC E19), at once
    /// if there are none.
    pub(super) fn send(&mut self, below: &mut Below<'_>, to: &[NodeId], body: Body, answer: Option<(Packet, Body)>) {
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
        let multicasts = &self.table;
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
            let _ = self.waits.take(packet.src, 1).is_ok();
        }
        let waits = to.iter().copied().collect();
        self.by_page.insert((page, tag));
        let rejoined = BTreeSet::new();
        self.table.insert(tag, Multicast { page, waits, rejoined, answer, missed: false, fill, deadline: None });
        self.outgoing.push_back(Outgoing { tag, body, to: to.to_vec() });
        self.pump(below);
    }

    /// Notifies copies, behind everything already sent to them, that this node is no longer their home.
    pub(super) fn send_end(&mut self, below: &mut Below<'_>, replica: &ReplicaPage, to: &[NodeId], why: Status) {
        let end = Body::Rehome { at: replica.address(0), to: NO_NODE, page: why as u32, generation: 0 };
        self.send(below, to, end, None);
    }

    /// Notifies all copies of a page that this node is no longer their home.
    pub(super) fn end_copies(&mut self, below: &mut Below<'_>, replica: &mut ReplicaPage, why: Status) {
        let copies = replica.members();
        replica.copies.clear();
        replica.filling.clear();
        self.send_end(below, replica, &copies, why);
        self.announce_group(below.ctx, replica);
    }

    /// Sends queued multicasts as far as link credits allow.
    pub(crate) fn pump(&mut self, below: &mut Below<'_>) {
        loop {
            let Some(first) = self.outgoing.front_mut() else { return };
            let Some(node) = first.to.first().copied() else {
                let tag = first.tag;
                self.outgoing.pop_front();
                self.start_timer(below.ctx, tag);
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
                (node, below.requester.peers.target(below.ctx, node))
            };
            let packet =
                Packet { src: below.ctx.config.node, dst, tag, incarnation: below.ctx.incarnation, target, body };
            below.ctx.transmit(packet);
        }
    }

    /// Announces to the switch the group of a page's multicasts, if it has changed. A single copy needs no group.
    pub(super) fn announce_group(&mut self, ctx: &mut Ctx, replica: &ReplicaPage) {
        if !ctx.config.fanout_by_switch || !ctx.link.is_up() {
            return;
        }
        let page = replica.page;
        let mut members = if replica.copies.len() > 1 { replica.members() } else { Vec::new() };
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

    /// The link went down: the switch no longer holds a group of this node.
    pub(super) fn link_lost(&mut self) {
        self.groups.clear();
        self.memberships = 0;
    }

    /// Counts the acknowledgement of a multicast by one copy, or a copy that was dropped; `None` if it waits for none.
    /// `revoked` tells of a page whether it is no longer replicated here.
    pub(super) fn acknowledged(
        &mut self,
        ctx: &Ctx,
        node: NodeId,
        tag: u32,
        status: Status,
        revoked: impl FnOnce(u32) -> bool,
    ) -> Option<Acknowledged> {
        let multicast = self.table.get_mut(&tag)?;
        if !multicast.waits.remove(&node) {
            return None;
        }
        let (done, page) = (multicast.waits.is_empty(), multicast.page);
        let rejoined = multicast.rejoined.remove(&node);
        // A copy may find out that this home has revoked the page before it has applied everything. Since it may become
        // the next home, a store that it lacks is not acknowledged (SPEC I7).
        multicast.missed |=
            revoked(page) && !matches!(status, Status::Ok | Status::Invalidated | Status::NodeDown | Status::Reset);
        let missed = multicast.missed && !ctx.has(Bug::AcknowledgeMissed);
        let own_update = multicast.answer.as_ref().is_some_and(|(packet, _)| packet.src == node);
        let early = own_update && ctx.has(Bug::AcknowledgeReflected);
        let answer = multicast.answer.take_if(|_| done || early);
        Some(Acknowledged { page, done, rejoined, missed, answer })
    }

    /// Removes a multicast that no copy has left to acknowledge. Returns the node of the new copy, if it was a block
    /// for one.
    pub(super) fn end(&mut self, tag: u32) -> Option<NodeId> {
        let Multicast { page, deadline, fill, .. } = self.table.remove(&tag)?;
        self.by_page.remove(&(page, tag));
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, tag));
        }
        fill
    }

    /// Starts the timer of a multicast that has been sent to all its copies.
    fn start_timer(&mut self, ctx: &Ctx, tag: u32) {
        if ctx.has(Bug::KeepSilentCopies) {
            return;
        }
        let deadline = ctx.now.saturating_add(ctx.config.replica_limit);
        if let Some(multicast) = self.table.get_mut(&tag) {
            multicast.deadline = Some(deadline);
            self.deadlines.insert((deadline, tag));
        }
    }

    /// Takes a page with a multicast that has exceeded its time limit, and the copies that have not acknowledged it.
    pub(super) fn take_overdue(&mut self, now: u64) -> Option<(u32, Vec<NodeId>)> {
        loop {
            self.deadlines.first().filter(|(at, _)| *at <= now)?;
            let (_, tag) = self.deadlines.pop_first()?;
            if let Some(multicast) = self.table.get_mut(&tag) {
                multicast.deadline = None;
                return Some((multicast.page, multicast.waits.iter().copied().collect()));
            }
        }
    }

    // ---- copies that leave, or join again ----

    /// A node has joined: what it has not acknowledged was sent to an earlier copy. A Join may pass the
    /// acknowledgements that its node has sent before it: they are replies, and it may come by a ring.
    pub(super) fn note_rejoin(&mut self, ctx: &Ctx, page: u32, node: NodeId) {
        if ctx.has(Bug::RefusalEndsNextCopy) {
            return;
        }
        let tags: Vec<u32> = self.unacknowledged(page, node);
        for tag in tags {
            if let Some(multicast) = self.table.get_mut(&tag) {
                multicast.rejoined.insert(node);
            }
        }
    }

    /// The multicasts of a page that a copy has not acknowledged.
    fn unacknowledged(&self, page: u32, node: NodeId) -> Vec<u32> {
        let waits = self.of_page(page).filter(|(_, multicast)| multicast.waits.contains(&node));
        waits.map(|(tag, _)| tag).collect()
    }

    /// Copies of a page that have not acknowledged a multicast, in any order.
    pub(super) fn waited_for(&self, page: u32) -> impl Iterator<Item = NodeId> {
        self.of_page(page).flat_map(|(_, multicast)| &multicast.waits).copied()
    }

    /// Begins a new tag epoch: acknowledgements of a dropped copy that are still in flight match no later multicast.
    fn next_tag_epoch(&mut self, ctx: &Ctx) {
        self.tag_epoch = (self.tag_epoch + u32::from(!ctx.has(Bug::ReuseTags))) & (u32::MAX >> TAG_INDEX_BITS);
    }

    /// Sends nothing more to a node. Returns the multicasts that it has not acknowledged.
    pub(super) fn forget_node(&mut self, ctx: &Ctx, node: NodeId) -> Vec<u32> {
        for outgoing in &mut self.outgoing {
            outgoing.to.retain(|to| *to != node);
        }
        let unanswered = self.table.iter().filter(|(_, multicast)| multicast.waits.contains(&node));
        let tags: Vec<u32> = unanswered.map(|(tag, _)| *tag).collect();
        if !tags.is_empty() {
            // A later session of the node may still acknowledge a tag of this one; the new epoch makes such an
            // acknowledgement match no new multicast.
            self.next_tag_epoch(ctx);
        }
        tags
    }

    /// Sends nothing more to a silent copy, and bars it from joining for some time. Returns the multicasts that it has
    /// not acknowledged, and whether it was dropped before.
    pub(super) fn bar(&mut self, ctx: &Ctx, page: u32, node: NodeId) -> (Vec<u32>, bool) {
        let tags = self.unacknowledged(page, node);
        self.outgoing.iter_mut().filter(|o| o.body.page() == page).for_each(|o| o.to.retain(|to| *to != node));
        // The copy may still acknowledge; the new epoch makes that acknowledgement match no new multicast.
        self.next_tag_epoch(ctx);
        self.barred.retain(|_, until| *until > ctx.now);
        let until = ctx.now.saturating_add(ctx.config.replica_limit.saturating_mul(BARRED_LIMITS));
        (tags, self.barred.insert((page, node), until).is_some())
    }

    /// Whether a copy was dropped for silence so recently that it may not join.
    pub(super) fn is_barred(&self, ctx: &Ctx, page: u32, node: NodeId) -> bool {
        self.barred.get(&(page, node)).is_some_and(|until| *until > ctx.now)
    }

    /// Drops the blocks for a removed copy that have not been sent, and returns their tags.
    pub(super) fn drop_fills(&mut self, page: u32, node: NodeId) -> Vec<u32> {
        let mut tags = Vec::new();
        self.outgoing.retain(|outgoing| {
            let drops = outgoing.to == [node] && matches!(&outgoing.body, Body::Fill { at, .. } if at.page == page);
            tags.extend(drops.then_some(outgoing.tag));
            !drops
        });
        tags
    }

    // ---- requests that wait for copies ----

    /// Whether one more request of a node may wait for copies. If not, the requester is served again when one has been
    /// answered.
    pub(super) fn may_wait(&mut self, source: NodeId) -> bool {
        let room = self.waits.available(&source) > 0;
        if !room {
            self.stalled.insert(source);
        }
        room
    }

    /// A request that waited for copies has been answered: releases its share.
    pub(super) fn release_wait(&mut self, ctx: &mut Ctx, source: NodeId) {
        self.waits.give(&source, 1);
        if self.stalled.remove(&source) {
            ctx.defer(FollowUp::Serve(source));
        }
    }

    /// Refuses the requests of other nodes that wait for copies. Called on reset.
    pub(super) fn refuse_all(self, ctx: &mut Ctx, status: Status) {
        for (packet, _) in self.table.into_values().filter_map(|multicast| multicast.answer) {
            if packet.src != ctx.config.node {
                ctx.refuse(&packet, status);
            }
        }
    }
}
