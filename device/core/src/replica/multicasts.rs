// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the homes here to their copies: multicasts that wait for credits, or for acknowledgements.

use super::lists::Lists;
use super::page::ReplicaPage;
use super::unacknowledged::{Multicast, Unacknowledged};
use super::{Below, shares};
use crate::by_node::ByNode;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::{Action, HibConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::link::{MAX_GROUPS, MAX_MEMBERSHIPS};
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

/// How long a dropped copy is refused, in multiples of `replica_limit`.
const BARRED_LIMITS: u64 = 8;

/// A multicast that waits for link credits.
#[derive(Clone, Debug, Hash)]
struct Outgoing {
    tag: u32,
    /// With the last packet it is taken.
    body: Body,
    /// Destinations that it has not been sent to, the next one last.
    to: Vec<NodeId>,
}

impl Outgoing {
    /// Sends it as far as link credits allow: as one packet if its destinations are exactly the group of its page.
    /// Returns whether no destination is left.
    fn transmit(&mut self, below: &mut Below<'_>, groups: &BTreeMap<u32, Vec<NodeId>>) -> bool {
        while let Some(node) = self.to.last().copied() {
            if !below.ctx.link.spend(Class::Reflected) {
                return false;
            }
            // A group has two members or more.
            let stale = below.ctx.has(Bug::StaleGroup);
            let group = if self.to.len() > 1 || stale { groups.get(&self.body.page()) } else { None };
            let (dst, target) = if group.is_some_and(|group| stale || group.iter().eq(self.to.iter().rev())) {
                self.to.clear();
                (MULTICAST, 0)
            } else {
                self.to.pop();
                (node, below.requester.peers.target(below.ctx, node))
            };
            let taken = Body::CopyAck { status: Status::Ok };
            let body = if self.to.is_empty() { std::mem::replace(&mut self.body, taken) } else { self.body.clone() };
            let (src, tag, incarnation) = (below.ctx.config.node, self.tag, below.ctx.incarnation);
            below.ctx.transmit(Packet { src, dst, tag, incarnation, target, body });
        }
        true
    }
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
    /// The request can be answered before that ([`Bug::AcknowledgeReflected`]).
    pub(super) early: bool,
}

/// The answer to a store, or to an atomic that has loaded this, which all copies have.
pub(super) fn answer_to(request: &Packet, loaded: u64) -> Body {
    match request.body {
        Body::Atomic { .. } => Body::AtomicReply { status: Status::Ok, data: loaded },
        _ => Body::WriteAck { status: Status::Ok },
    }
}

/// The tags of those multicasts that a copy has not acknowledged, ascending.
fn waiting_for<'a>(multicasts: impl Iterator<Item = (u32, &'a Multicast)>, node: NodeId) -> Vec<u32> {
    let waits = multicasts.filter(|(_, multicast)| multicast.waits.binary_search(&node).is_ok());
    let mut tags: Vec<u32> = waits.map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    tags
}

/// The multicasts of all homes here.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Multicasts {
    table: Unacknowledged,
    /// (deadline, tag) of each multicast that is waiting for acknowledgements, ascending.
    deadlines: VecDeque<(u64, u32)>,
    /// Multicasts that wait for link credits, for all copies of all pages.
    outgoing: VecDeque<Outgoing>,
    /// The groups that the switch holds, by page: at least two members each, ascending.
    groups: BTreeMap<u32, Vec<NodeId>>,
    /// Number of members of all groups together.
    memberships: usize,
    /// Requests that have been performed and wait for copies, by requester: an equal part of them for each.
    waits: ByNode<u32>,
    /// That part.
    most_waits: u32,
    /// Requesters with a request that stalls because their share of the above is used up.
    stalled: BTreeSet<NodeId>,
    /// Copies (page here, node) that were dropped for silence, and when they may join again.
    barred: BTreeMap<(u32, NodeId), u64>,
    /// Memory for the destinations of multicasts.
    lists: Lists,
}

impl Multicasts {
    pub(super) fn new(config: &HibConfig) -> Multicasts {
        Multicasts {
            table: Unacknowledged::default(),
            deadlines: VecDeque::new(),
            outgoing: VecDeque::new(),
            groups: BTreeMap::new(),
            memberships: 0,
            waits: ByNode::new(config.window.nodes(), 0),
            most_waits: shares::most_copy_waits(config),
            stalled: BTreeSet::new(),
            barred: BTreeMap::new(),
            lists: Lists::default(),
        }
    }

    /// A list of destinations for [`Multicasts::send`].
    pub(super) fn list(&mut self, nodes: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        self.lists.of(nodes)
    }

    /// Queues a packet for all these nodes, each of which is there once. The request in `answer`, which has loaded this
    /// if it is an atomic, is answered when all of them have acknowledged it (SPEC E19), at once if there are none.
    pub(super) fn send(
        &mut self,
        below: &mut Below<'_>,
        mut to: Vec<NodeId>,
        body: Body,
        mut answer: Option<(Packet, u64)>,
    ) {
        if let Some((packet, loaded)) = &answer {
            let is_move = matches!(packet.body, Body::Move { .. });
            let own = packet.src == below.ctx.config.node;
            let early =
                below.ctx.has(Bug::AcknowledgeEarly) && !is_move || own && below.ctx.has(Bug::AcknowledgeReflected);
            if to.is_empty() || early {
                below.ctx.reply_to(packet, answer_to(packet, *loaded));
                answer = None;
            }
        }
        if to.is_empty() {
            return self.lists.put(to);
        }
        if let Some(waits) = answer.as_ref().and_then(|(packet, _)| self.waits.get_mut(packet.src)) {
            // The caller checked that there is room, except for a Move, of which there is at most one per page.
            *waits = (*waits + 1).min(self.most_waits);
        }
        let tag = self.table.insert(body.page(), &to, answer);
        if let (Body::Fill { .. }, Some(multicast)) = (&body, self.table.get_mut(tag)) {
            multicast.fill = to.first().copied();
        }
        to.reverse();
        let mut outgoing = Outgoing { tag, body, to };
        // Most often nothing waits.
        if self.outgoing.is_empty() && outgoing.transmit(below, &self.groups) {
            return self.sent(below.ctx, outgoing);
        }
        self.outgoing.push_back(outgoing);
        self.pump(below);
    }

    /// Notifies copies, behind everything already sent to them, that this node is no longer their home.
    pub(super) fn send_end(&mut self, below: &mut Below<'_>, replica: &ReplicaPage, to: Vec<NodeId>, why: Status) {
        let end = Body::Rehome { at: replica.address(0), to: NO_NODE, page: why as u32, generation: 0 };
        self.send(below, to, end, None);
    }

    /// Notifies all copies of a page that this node is no longer their home.
    pub(super) fn end_copies(&mut self, below: &mut Below<'_>, replica: &mut ReplicaPage, why: Status) {
        let copies = self.list(replica.members());
        replica.copies.clear();
        replica.filling.clear();
        self.send_end(below, replica, copies, why);
        self.announce_group(below.ctx, replica);
    }

    /// Sends queued multicasts as far as link credits allow.
    pub(crate) fn pump(&mut self, below: &mut Below<'_>) {
        while let Some(first) = self.outgoing.front_mut() {
            if !first.transmit(below, &self.groups) {
                return;
            }
            if let Some(sent) = self.outgoing.pop_front() {
                self.sent(below.ctx, sent);
            }
        }
    }

    /// Announces to the switch the group of a page's multicasts, if it has changed. A single copy needs no group.
    pub(super) fn announce_group(&mut self, ctx: &mut Ctx, replica: &ReplicaPage) {
        if !ctx.config.fanout_by_switch || !ctx.link.is_up() {
            return;
        }
        let page = replica.page;
        let mut members = if replica.copies.len() > 1 { replica.members().collect() } else { Vec::new() };
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
        let multicast = self.table.get_mut(tag)?;
        multicast.waits.remove(multicast.waits.binary_search(&node).ok()?);
        let (done, page) = (multicast.waits.is_empty(), multicast.page);
        let rejoined = multicast.rejoined.binary_search(&node).map(|at| multicast.rejoined.remove(at)).is_ok();
        // A copy may find out that this home has revoked the page before it has applied everything. Since it may become
        // the next home, a store that it lacks is not acknowledged (SPEC I7).
        multicast.missed |=
            !matches!(status, Status::Ok | Status::Invalidated | Status::NodeDown | Status::Reset) && revoked(page);
        let missed = multicast.missed && !ctx.has(Bug::AcknowledgeMissed);
        let own_update = multicast.answer.as_ref().is_some_and(|(packet, _)| packet.src == node);
        let early = own_update && ctx.has(Bug::AcknowledgeReflected);
        Some(Acknowledged { page, done, rejoined, missed, early })
    }

    /// Removes a multicast that no copy has left to acknowledge; its memory [is kept](Multicasts::keep) afterwards.
    pub(super) fn end(&mut self, tag: u32) -> Option<Box<Multicast>> {
        let multicast = self.table.remove(tag)?;
        if let Some(deadline) = multicast.deadline {
            let of = (deadline, tag);
            if self.deadlines.front() == Some(&of) {
                self.deadlines.pop_front();
            } else if let Ok(at) = self.deadlines.binary_search(&of) {
                self.deadlines.remove(at);
            }
        }
        Some(multicast)
    }

    /// Takes the answer of a multicast that some copies have not acknowledged.
    pub(super) fn take_answer(&mut self, tag: u32) -> Option<(Packet, u64)> {
        self.table.get_mut(tag)?.answer.take()
    }

    /// Keeps the memory of a multicast that has ended.
    pub(super) fn keep(&mut self, multicast: Box<Multicast>) {
        self.table.keep(multicast);
    }

    /// Starts the timer of a multicast that has been sent to all its copies.
    fn sent(&mut self, ctx: &Ctx, outgoing: Outgoing) {
        let Outgoing { tag, to, .. } = outgoing;
        self.lists.put(to);
        if ctx.has(Bug::KeepSilentCopies) {
            return;
        }
        let Some(multicast) = self.table.get_mut(tag) else { return };
        let deadline = ctx.now.saturating_add(ctx.config.replica_limit);
        multicast.deadline = Some(deadline);
        // No earlier one is greater, since the time ascends; with the same one, the tag decides.
        let of = (deadline, tag);
        if self.deadlines.back().is_none_or(|last| *last < of) {
            self.deadlines.push_back(of);
        } else {
            let at = self.deadlines.partition_point(|other| *other < of);
            self.deadlines.insert(at, of);
        }
    }

    /// When the next copy is dropped unless it acknowledges, in microseconds of the board's clock.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.deadlines.front().map(|(at, _)| *at)
    }

    /// Takes a page with a multicast that has exceeded its time limit, and the copies that have not acknowledged it.
    pub(super) fn take_overdue(&mut self, now: u64) -> Option<(u32, Vec<NodeId>)> {
        loop {
            self.deadline().filter(|at| *at <= now)?;
            let (_, tag) = self.deadlines.pop_front()?;
            if let Some(multicast) = self.table.get_mut(tag) {
                multicast.deadline = None;
                return Some((multicast.page, multicast.waits.clone()));
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
            let Some(multicast) = self.table.get_mut(tag) else { continue };
            if let Err(at) = multicast.rejoined.binary_search(&node) {
                multicast.rejoined.insert(at, node);
            }
        }
    }

    /// The multicasts of a page that a copy has not acknowledged, ascending.
    fn unacknowledged(&self, page: u32, node: NodeId) -> Vec<u32> {
        waiting_for(self.table.of_page(page), node)
    }

    /// Copies of a page that have not acknowledged a multicast, in any order.
    pub(super) fn waited_for(&self, page: u32) -> impl Iterator<Item = NodeId> {
        self.table.of_page(page).flat_map(|(_, multicast)| &multicast.waits).copied()
    }

    /// Begins a new tag epoch: acknowledgements of a dropped copy that are still in flight match no later multicast.
    fn next_tag_epoch(&mut self, ctx: &Ctx) {
        if !ctx.has(Bug::ReuseTags) {
            self.table.next_epoch();
        }
    }

    /// Sends nothing more to a node. Returns the multicasts that it has not acknowledged.
    pub(super) fn forget_node(&mut self, ctx: &Ctx, node: NodeId) -> Vec<u32> {
        for outgoing in &mut self.outgoing {
            outgoing.to.retain(|to| *to != node);
        }
        let tags = waiting_for(self.table.iter(), node);
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
        let room = self.waits[usize::from(source)] < self.most_waits;
        if !room {
            self.stalled.insert(source);
        }
        room
    }

    /// A request that waited for copies has been answered: releases its share.
    pub(super) fn release_wait(&mut self, ctx: &mut Ctx, source: NodeId) {
        if let Some(waits) = self.waits.existing_mut(source) {
            *waits = waits.saturating_sub(1);
        }
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
