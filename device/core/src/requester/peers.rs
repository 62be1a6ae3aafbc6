// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other nodes, and this node as a destination: what waits for each, what is in flight to it, and whether it
//! answers.

use super::ages::{Phase, Phases, Unanswered};
use super::imports::Import;
use super::presence::Presence;
use crate::HibConfig;
use crate::by_node::ByNode;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::keyed::Key;
use crate::loan::Content;
use crate::numbered::Numbered;
use crate::rings::Way;
use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::{Body, Burst, Class, NodeId, RemoteAddr, Status, WindowAddress};

/// An entry of a destination's send queue.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Waiting {
    Store {
        import: u16,
        at: RemoteAddr,
        size: u8,
        data: u64,
    },
    /// Stores to one page of another node, which leave as one request.
    Burst {
        import: u16,
        page: u32,
        generation: u64,
        stores: Burst,
    },
    /// A pending request by its number in `PendingRequests`; absent there if it has timed out.
    PendingRequest {
        number: Key,
        content: Box<Content>,
    },
    /// A part of an operation: the offset of its bytes, and the request.
    Part {
        operation: Key,
        offset: u64,
        content: Box<Content>,
    },
}

/// Size of a waiting store: the unit of the reserve ([`HibConfig::reserve`](crate::HibConfig::reserve)). A burst has
/// this and 16 bytes for each store: less than its stores by themselves.
const _: () = assert!(size_of::<(u64, Waiting)>() <= 40);

/// A request to the home of a replicated page that is not sent.
#[derive(Clone, Debug, Hash)]
pub(crate) struct WaitingForward {
    /// Its number in the replicas' table of forwards.
    pub(crate) number: u64,
    pub(crate) body: Body,
    /// The import (number and opening) that the request counts against, as one of its waiting stores.
    pub(crate) import: Option<(u16, u64)>,
    /// If true, the request is sent even if the import is in error: the copy on this node has already applied the
    /// store.
    pub(crate) unconditional: bool,
}

/// A request in flight: sent and not answered.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum InFlight {
    Store {
        import: u16,
        epoch: u32,
    },
    /// So many stores, which are answered together.
    Burst {
        import: u16,
        epoch: u32,
        count: u16,
    },
    PendingRequest {
        number: Key,
    },
    Part {
        operation: Key,
        offset: u64,
    },
    Element {
        send_queue: Key,
        epoch: u32,
    },
    Forward {
        number: u64,
    },
    /// A request that has ended because its node did not answer in time. It occupies its place in the window until the
    /// node answers or leaves.
    Abandoned(Window),
}

impl InFlight {
    /// The window in which it has a place.
    fn window(&self) -> Window {
        match self {
            InFlight::Element { .. } => Window::Elements,
            InFlight::Forward { .. } => Window::Forwards,
            InFlight::Abandoned(window) => *window,
            InFlight::Store { .. }
            | InFlight::Burst { .. }
            | InFlight::PendingRequest { .. }
            | InFlight::Part { .. } => Window::Requests,
        }
    }
}

/// The windows of packets in flight to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Window {
    Requests,
    Forwards,
    Elements,
}

/// An entry of the table of requests in flight.
#[derive(Clone, Copy, Debug, Hash)]
struct Tagged {
    /// Upper bits of the tag.
    upper: u32,
    node: NodeId,
    /// When it was sent; `None` if its age has no limit.
    sent: Option<Phase>,
    request: InFlight,
}

/// The state that this node keeps for a peer: the requests to it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Peer {
    /// The send queue; each entry has its number in the order of acceptance.
    pub(super) waiting: VecDeque<(u64, Waiting)>,
    /// Requests from copies on this node to their home, which answers when all copies have applied the store. They have
    /// a window of their own, so that a copy that is slow to acknowledge delays no other request.
    pub(super) forwards: VecDeque<(u64, WaitingForward)>,
    /// Entries of `forwards` in flight.
    pub(super) forwards_in_flight: u32,
    /// Number of entries accepted so far.
    pub(super) accepted: u64,
    /// Requests sent in the current sessions of both nodes, modulo 2^32.
    pub(crate) requests_sent: u32,
    /// Other requests in flight: the used part of the window.
    pub(super) outstanding: u32,
    /// Elements in flight.
    pub(crate) elements_in_flight: u32,
    /// The peer is in `credit_waiters`.
    awaits_credit: bool,
    /// The first load issued since a packet was last received from the peer: all later ones were as well.
    pub(super) unheard_since: Option<Key>,
    /// A load has timed out, and no packet was received from the peer since the load was issued.
    pub(super) silent: bool,
    /// Requests that it has not answered, elements and abandoned ones excepted.
    unanswered: Unanswered,
    /// Abandoned requests in flight, by [`Window`].
    abandoned: [u32; 3],
    /// Requests wait for the peer's end of a ring, since then: for a credit, or for the end of the ring's withdrawal.
    pub(super) ring_waits: Option<Phase>,
    /// Generation of the tags of requests to this peer: the number of times that all its requests in flight were
    /// abandoned.
    tag_generation: u32,
    /// Send queues with waiting elements, in round-robin order.
    pub(crate) enqueuers: VecDeque<Key>,
    /// Window slot -> import + 1, 0 if unmapped; empty until the first import from this node.
    pub(super) slots: Vec<u16>,
}

impl Peer {
    /// Appends an entry to the send queue.
    pub(crate) fn accept(&mut self, waiting: Waiting) {
        self.accepted += 1;
        self.waiting.push_back((self.accepted, waiting));
    }

    /// Appends a request to the home of a page, in the same order of acceptance.
    pub(crate) fn accept_forward(&mut self, waiting: WaitingForward) {
        self.accepted += 1;
        self.forwards.push_back((self.accepted, waiting));
    }

    /// Returns whether nothing waits to be sent, and none has waited for the peer's end of a ring.
    #[inline]
    pub(super) fn has_nothing_to_send(&self) -> bool {
        self.waiting.is_empty() && self.forwards.is_empty() && self.enqueuers.is_empty() && self.ring_waits.is_none()
    }

    /// The used part of a window.
    fn used(&mut self, window: Window) -> &mut u32 {
        match window {
            Window::Requests => &mut self.outstanding,
            Window::Forwards => &mut self.forwards_in_flight,
            Window::Elements => &mut self.elements_in_flight,
        }
    }

    /// Requests in flight, of both windows.
    pub(super) fn window_used(&self) -> u32 {
        self.outstanding + self.forwards_in_flight
    }

    /// Returns whether abandoned requests occupy a whole window of requests.
    fn is_exhausted(&self, window: u32) -> bool {
        [Window::Requests, Window::Forwards].iter().any(|which| self.abandoned[*which as usize] >= window)
    }

    /// Returns whether the first `count` accepted requests have been sent or dropped.
    pub(crate) fn has_sent(&self, count: u64) -> bool {
        let later = |number: &u64| *number > count;
        self.waiting.front().is_none_or(|(number, _)| later(number))
            && self.forwards.front().is_none_or(|(number, _)| later(number))
    }
}

/// A tag is an index into the table of requests in flight, with the peer's tag generation in the upper bits: a reply to
/// an abandoned request does not match. Indices depend on the requests in flight only, so that boards in the same state
/// behave alike.
const TAG_INDEX_BITS: u32 = 20;

/// All peers, and the requests in flight to them.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Peers {
    pub(crate) table: ByNode<Peer>,
    pub(crate) presence: Presence,
    /// Requests in flight by tag index.
    in_flight: Numbered<Tagged>,
    /// The phases by which the ages of requests are counted.
    pub(super) phases: Phases,
    /// Tags of requests of this node to itself that have been forwarded to a home. They no longer occupy the node's own
    /// window.
    forwarded_tags: BTreeSet<u32>,
    /// One of them has just left that window: a request that waits there may be sent.
    pub(super) own_window_freed: bool,
    /// Nodes with requests or elements that wait for credits, in round-robin order.
    credit_waiters: VecDeque<NodeId>,
}

impl Peers {
    /// All nodes are down.
    pub(super) fn new(config: &HibConfig) -> Peers {
        Peers {
            table: ByNode::new(config.window.nodes(), Peer::default()),
            presence: Presence::new(config.window.nodes()),
            in_flight: Numbered::default(),
            phases: Phases::new(),
            forwarded_tags: BTreeSet::new(),
            own_window_freed: false,
            credit_waiters: VecDeque::new(),
        }
    }

    /// The same nodes without requests. Replies to requests from before do not match.
    pub(super) fn emptied(self, config: &HibConfig) -> Peers {
        let reset = |old: &Peer| Peer { tag_generation: old.tag_generation.wrapping_add(1), ..Peer::default() };
        let mut table = ByNode::new(config.window.nodes(), reset(self.table.absent()));
        for (node, old) in self.table.existing() {
            table[usize::from(node)] = reset(old);
        }
        Peers { table, presence: self.presence, ..Peers::new(config) }
    }

    /// The incarnation of `node` that requests to it carry; for this node itself the number of resets.
    pub(crate) fn target(&self, ctx: &Ctx, node: NodeId) -> u64 {
        if node == ctx.config.node {
            return ctx.resets;
        }
        self.presence.incarnation(node).unwrap_or(0)
    }

    /// Checks that a node can be reached; the node itself always can. Fails with `LinkDown`, `BadNode`, `NodeDown`, or
    /// `Timeout` for a node that has left a whole window of requests unanswered.
    pub(crate) fn reachable(&self, ctx: &Ctx, node: NodeId) -> Result<(), Status> {
        if node == ctx.config.node {
            return Ok(());
        }
        let Some(nodes) = ctx.link.nodes() else { return Err(Status::LinkDown) };
        if u32::from(node) >= nodes {
            return Err(Status::BadNode);
        }
        match self.presence.incarnation(node) {
            // A request would never be sent.
            Some(_) if self.table[usize::from(node)].is_exhausted(ctx.config.outstanding) => Err(Status::Timeout),
            Some(_) => Ok(()),
            None if self.presence.contains(node) => Err(Status::NodeDown),
            None => Err(Status::BadNode),
        }
    }

    /// Divides the credits of the link among the present nodes.
    pub(crate) fn divide_credits(&self, ctx: &mut Ctx) {
        ctx.link.divide(self.presence.present().into());
    }

    /// Returns whether a store to this export page of this node is not sent.
    pub(crate) fn stores_to(&self, node: NodeId, page: u32) -> bool {
        let waiting = &self.table[usize::from(node)].waiting;
        waiting.iter().any(|(_, waiting)| matches!(waiting, Waiting::Store { at, .. } if at.page == page))
    }

    /// The import that is mapped at a window address.
    pub(crate) fn slot(&self, address: &WindowAddress) -> Option<u16> {
        let slots = &self.table[usize::from(address.node)].slots;
        slots.get(address.slot() as usize)?.checked_sub(1)
    }

    /// Removes an import from the window; accesses to its slots fail from now on.
    pub(super) fn unmap(&mut self, import: &Import) {
        let (first, count) = (import.first_slot as usize, import.slots as usize);
        self.table[usize::from(import.node)].slots[first..first + count].fill(0);
    }

    // ---- silence ----

    /// Returns whether a load to this node would only time out: an earlier one has, and the node has sent nothing
    /// since. Its requests in flight show when it answers again, since no packet is lost on the way; without any in
    /// flight, the next load is sent as a probe.
    pub(super) fn is_silent(&self, node: NodeId) -> bool {
        let peer = &self.table[usize::from(node)];
        peer.silent && peer.window_used() > 0
    }

    /// A packet was received from a node: it is not silent.
    pub(crate) fn note_packet_from(&mut self, ctx: &Ctx, node: NodeId) {
        if ctx.has(Bug::SilentForEver) {
            return;
        }
        let Some(peer) = self.table.existing_mut(node) else { return };
        if peer.silent || peer.unheard_since.is_some() {
            peer.silent = false;
            peer.unheard_since = None;
        }
    }

    /// Ends the phase of ages if it is over. Returns the nodes that have left a request, or the room for one in a ring,
    /// unanswered for longer than [`HibConfig::answer_limit`], ascending.
    pub(crate) fn overdue(&mut self, ctx: &Ctx) -> Vec<NodeId> {
        let oldest = self.phases.advance(ctx.now, ctx.config.answer_limit);
        let Some(oldest) = oldest.filter(|_| !ctx.has(Bug::AwaitAnswers)) else { return Vec::new() };
        self.table.existing().filter(|(_, peer)| peer.unanswered.has(oldest)).map(|(node, _)| node).collect()
    }

    /// Requests to a node begin to wait for its end of a ring, or do so no longer.
    pub(super) fn ring_waits(&mut self, ctx: &Ctx, node: NodeId, waits: bool) {
        let Some(peer) = self.table.existing_mut(node) else { return };
        match peer.ring_waits {
            None if waits => {
                let phase = self.phases.enter(ctx.now, ctx.config.answer_limit, &mut peer.unanswered);
                peer.ring_waits = Some(phase);
            }
            Some(phase) if !waits => {
                peer.ring_waits = None;
                self.phases.leave(phase, &mut peer.unanswered);
            }
            _ => {}
        }
    }

    // ---- what may be sent ----

    /// Returns whether nothing to a node is unanswered.
    fn is_idle(&self, node: NodeId) -> bool {
        let peer = &self.table[usize::from(node)];
        peer.window_used() == 0 && peer.elements_in_flight == 0
    }

    /// Returns whether a request to this node, as things are, can have a loan beside it: it goes to this node itself,
    /// or by a ring within this process.
    pub(crate) fn can_lend(&self, ctx: &Ctx, node: NodeId) -> bool {
        node == ctx.config.node || ctx.rings.lends(node, self.is_idle(node))
    }

    /// The way by which a packet of this class may be sent to another node now; `None` if it may not. If it may not for
    /// lack of the switch's credits, the node is queued for them; one that waits for its ring the ring's next event
    /// sends. Each present node has a guaranteed share, so that a slow destination cannot occupy all credits
    /// (`Shares::half_guaranteed`).
    pub(crate) fn may_send(&mut self, ctx: &mut Ctx, node: NodeId, class: Class) -> Option<Way> {
        if !ctx.link.is_up() {
            return None;
        }
        if !ctx.rings.is_empty() {
            let way = ctx.rings.way(node, class, self.is_idle(node));
            if class == Class::Request {
                self.ring_waits(ctx, node, way.is_none());
            }
            if way != Some(Way::Switch) {
                return way;
            }
        }
        let peer = &mut self.table[usize::from(node)];
        let unanswered = if class == Class::Enqueue { peer.elements_in_flight } else { peer.window_used() };
        let any = ctx.has(Bug::ShareAllCredits) && ctx.link.has_credit(class);
        let admitted = any || ctx.link.admits(class, unanswered) && !ctx.has(Bug::ShareAllCredits);
        if !admitted && !std::mem::replace(&mut peer.awaits_credit, true) {
            self.credit_waiters.push_back(node);
        }
        admitted.then_some(Way::Switch)
    }

    /// Takes the nodes that wait for credits.
    pub(super) fn take_credit_waiters(&mut self) -> VecDeque<NodeId> {
        let waiters = std::mem::take(&mut self.credit_waiters);
        for node in &waiters {
            self.table[usize::from(*node)].awaits_credit = false;
        }
        waiters
    }

    // ---- requests in flight ----

    /// Records a request in flight, which takes a place in its window, and returns its tag. Its age counts from now,
    /// unless it is an element or goes to this node itself, which waits for a home at most, as the request to that
    /// does.
    pub(super) fn take_tag(&mut self, ctx: &Ctx, node: NodeId, request: InFlight) -> u32 {
        let peer = &mut self.table[usize::from(node)];
        let window = request.window();
        *peer.used(window) += 1;
        let ages = node != ctx.config.node && window != Window::Elements;
        if window != Window::Elements {
            peer.requests_sent = peer.requests_sent.wrapping_add(1);
        }
        let sent = ages.then(|| self.phases.enter(ctx.now, ctx.config.answer_limit, &mut peer.unanswered));
        let upper = peer.tag_generation << TAG_INDEX_BITS;
        upper | self.in_flight.insert(Tagged { upper, node, sent, request }) as u32
    }

    /// The request in flight with this tag; `None` for an unknown tag or a tag of an earlier generation.
    fn tagged(&self, tag: u32) -> Option<(u64, Tagged)> {
        let index = tag & ((1 << TAG_INDEX_BITS) - 1);
        let tagged = self.in_flight.get(index.into()).copied()?;
        (tagged.upper | index == tag).then_some((index.into(), tagged))
    }

    /// Removes a request in flight to this node. Returns `None` if there is none with this tag.
    fn release_tag(&mut self, tag: u32, node: NodeId) -> Option<InFlight> {
        let (index, Tagged { sent, request, .. }) = self.tagged(tag).filter(|(_, tagged)| tagged.node == node)?;
        self.in_flight.remove(index);
        self.stop_ageing(node, sent);
        if let InFlight::Abandoned(window) = request {
            let abandoned = &mut self.table[usize::from(node)].abandoned[window as usize];
            *abandoned = abandoned.saturating_sub(1);
        }
        Some(request)
    }

    /// A request that was sent in this phase is answered or lost.
    fn stop_ageing(&mut self, node: NodeId, sent: Option<Phase>) {
        if let Some(phase) = sent {
            self.phases.leave(phase, &mut self.table[usize::from(node)].unanswered);
        }
    }

    /// Tags of the requests in flight to a node.
    fn tags_to(&self, node: NodeId) -> Vec<u32> {
        let to = self.in_flight.iter().filter(|(_, tagged)| tagged.node == node);
        to.map(|(index, tagged)| tagged.upper | index as u32).collect()
    }

    /// The import of a store in flight from this node to itself.
    pub(super) fn store_of(&self, tag: u32) -> Option<u16> {
        match self.tagged(tag) {
            Some((_, Tagged { request: InFlight::Store { import, .. }, .. })) => Some(import),
            _ => None,
        }
    }

    /// A request of this node to itself has been forwarded to a home: releases its place in the node's own window.
    pub(crate) fn pass_tag(&mut self, ctx: &mut Ctx, tag: u32) {
        let own = &mut self.table[usize::from(ctx.config.node)];
        if !ctx.has(Bug::ForwardsShareWindow) && self.forwarded_tags.insert(tag) {
            own.outstanding = own.outstanding.saturating_sub(1);
            self.own_window_freed = true;
            ctx.unsettled = true;
        }
    }

    /// Removes the request in flight with this tag, which a reply of `node` answers. `None` if that is no request to
    /// it.
    pub(crate) fn take_in_flight(&mut self, ctx: &Ctx, node: NodeId, tag: u32) -> Option<InFlight> {
        let request = self.release_tag(tag, node)?;
        let was_forwarded = self.forwarded_tags.remove(&tag) && node == ctx.config.node;
        let peer = &mut self.table[usize::from(node)];
        let window = request.window();
        if !(was_forwarded && window == Window::Requests) {
            let used = peer.used(window);
            *used = used.saturating_sub(1);
        }
        Some(request)
    }

    /// A node is down, or behind a lost link: removes and returns the requests in flight to it.
    pub(super) fn take_all_in_flight(&mut self, node: NodeId) -> Vec<InFlight> {
        let tags = self.tags_to(node);
        let in_flight = tags.into_iter().filter_map(|tag| self.release_tag(tag, node)).collect();
        let peer = &mut self.table[usize::from(node)];
        peer.outstanding = 0;
        peer.forwards_in_flight = 0;
        peer.elements_in_flight = 0;
        peer.tag_generation = peer.tag_generation.wrapping_add(1);
        peer.requests_sent = 0;
        in_flight
    }

    /// Takes the requests in flight to a node from their owners. They keep their tags and their places in the windows:
    /// answers to them are stale.
    pub(super) fn abandon(&mut self, ctx: &Ctx, node: NodeId) -> Vec<InFlight> {
        let mut taken = Vec::new();
        for tag in self.tags_to(node) {
            let Some((index, Tagged { sent, request, .. })) = self.tagged(tag) else { continue };
            let window = request.window();
            if matches!(request, InFlight::Abandoned(_)) {
                continue;
            }
            taken.push(request);
            if ctx.has(Bug::ForgetAbandoned) {
                self.take_in_flight(ctx, node, tag);
                continue;
            }
            self.stop_ageing(node, sent);
            if let Some(tagged) = self.in_flight.get_mut(index) {
                tagged.sent = None;
                tagged.request = InFlight::Abandoned(window);
            }
            self.table[usize::from(node)].abandoned[window as usize] += 1;
        }
        taken
    }
}
