// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requester: imports, contexts, window accesses, back-pressure, requests in flight, and quiet. `hib` passes in
//! accesses, replies and credits; the launcher and the replicas send their requests through it.
//!
//! A store is accepted into the send queue of its *destination* (per-pair FIFO, SPEC I8), leaves it when the window of
//! outstanding requests and the switch's credits allow, and is finished when its acknowledgement arrives. Every
//! accepted store ends performed, refused or failed; the latter two latch the import's error. A lost store puts its
//! import *in error*: later stores are dropped until the driver acknowledges, so that none passes a lost one.

mod access;
mod ages;
mod bodies;
mod contexts;
mod deadlines;
mod enqueue;
mod imports;
mod losses;
mod presence;
mod pressure;
mod quiet;
mod send;
mod send_queue;

use self::ages::{Phase, Phases, Unanswered};
use self::bodies::Bodies;
use self::deadlines::{Deadlines, Limit};
pub(crate) use self::presence::Life;
use self::presence::Presence;
use self::send_queue::SendQueue;
use crate::by_node::ByNode;
use crate::config::{Bug, STATUS_WORDS};
use crate::ctx::Ctx;
use crate::keyed::{Key, Keyed};
use crate::numbered::Numbered;
use crate::page_counters::PageCounters;
use crate::table::Table;
use crate::{HibConfig, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, WindowAddress};

/// One open import: its destination, and the progress of its stores.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Import {
    pub(crate) context: u16,
    /// Number of this opening among all of the board; unlike the import's number it is never reused.
    pub(crate) opening: u64,
    pub(crate) node: NodeId,
    /// The window slots of the node that it occupies.
    pub(crate) first_slot: u32,
    slots: u32,
    pub(crate) page: u32,
    pub(crate) length: u64,
    /// Generation of the grant at the node.
    generation: u64,
    pub(crate) rights: Rights,
    /// Stores accepted and stores finished, both since the import was opened.
    issued: u64,
    finished: u64,
    /// The smallest number of finished stores that some quiet waits for, if any.
    awaited: Option<u64>,
    /// Unfinished operations that use the import.
    pub(crate) operations: u32,
    /// Accepted stores that are not sent.
    waiting: u32,
    /// Congested by its own waiting stores.
    congested: bool,
    /// Stopped because the board cannot keep up with the guest's stores.
    throttled: bool,
    /// A store came through the import since the guest's socket was last empty.
    active: bool,
    /// A store was lost: later stores are dropped until the driver acknowledges.
    pub(crate) in_error: bool,
    /// Epoch of its stores: a receiver that refuses a store refuses all later ones of the same epoch.
    pub(crate) epoch: u32,
    /// The receiver has refused a store of this epoch; an acknowledgement by the driver begins a new epoch.
    refused: bool,
    /// For a page replicated on this node: the word of the status page that counts the stores taken, and the count.
    taken: Option<(u32, u64)>,
    /// The import of a queue.
    pub(crate) queue: bool,
    /// The send queue of an import of a queue.
    send_queue: Option<Key>,
    /// Launch arguments through the import with a wrong key or for another process's context.
    pub(crate) bad_keys: u32,
    /// Permanently failed: its node went down or was reset, or it had too many wrong keys. An acknowledgement does not
    /// clear the error; the import can only be closed. The node may come back with other memory under the same pages
    /// and even generations.
    pub(crate) dead: bool,
    pub(crate) error: Option<Status>,
    /// The admin slot of a pending close.
    closing: Option<u32>,
    /// The admin slot of a pending IMPORT_QUIET.
    settling: Option<u32>,
}

impl Import {
    /// Returns whether the driver must stop the importing processes.
    pub(super) fn is_stopped(&self) -> bool {
        self.congested || self.throttled
    }

    /// Returns whether no store or operation of the import is unfinished.
    fn is_idle(&self) -> bool {
        self.finished == self.issued && self.operations == 0
    }

    /// The remote address of the byte at `offset` of the segment.
    pub(crate) fn address(&self, offset: u64) -> RemoteAddr {
        let page = self.page + (offset >> UNIT_SHIFT) as u32;
        RemoteAddr { page, offset: (offset & (UNIT - 1)) as u32, generation: self.generation }
    }
}

/// The kind of a pending request.
#[derive(Clone, Debug, Hash)]
pub(crate) enum RequestKind {
    Load {
        token: Token,
        import: u16,
        size: u8,
    },
    Lookup {
        slot: u32,
    },
    /// Request of receive credits for an import that this admin slot is opening: slot, import.
    Reserve {
        opens: (u32, u16),
    },
    /// Return of receive credits of the queue there.
    Return {
        node: NodeId,
        at: RemoteAddr,
    },
    Replica(ReplicaRequest),
}

/// The home of a page that an export page of this node replicates: node, page, generation.
pub(crate) type Source = (NodeId, u32, u64);

/// A request about a replicated export page of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReplicaRequest {
    /// Become a copy.
    Join { page: u32, source: Source },
    /// Stop being a copy.
    Leave { page: u32 },
    /// Become the home.
    Move { page: u32 },
    /// Stay a copy when the home moves. `packet` is the old home's announcement; `None` if this node is the old home.
    Keep { page: u32, source: Source, packet: Option<Packet> },
}

/// The result of a request that a part above the requester issued. Methods that end such requests return it, and
/// [`Hib`](crate::Hib) passes it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Part of an operation: the reply, or the reason why it has none.
    Part { operation: Key, offset: u64, answer: Result<Body, Status> },
    /// A request forwarded to the home of a page.
    Forward { number: u64, answer: Result<Body, Status> },
    /// A request about a replicated page.
    Replica { request: ReplicaRequest, status: Status },
}

/// A request that waits for a reply until its deadline, before and after it is sent.
#[derive(Clone, Debug, Hash)]
struct PendingRequest {
    node: NodeId,
    limit: Limit,
    deadline: u64,
    kind: RequestKind,
}

/// An entry of a destination's send queue.
#[derive(Clone, Debug, Hash)]
pub(super) enum Waiting {
    Store {
        import: u16,
        at: RemoteAddr,
        size: u8,
        data: u64,
    },
    /// A pending request by its number in `pending_requests`; absent there if it has timed out.
    PendingRequest {
        number: Key,
        body: Box<Body>,
    },
    /// A part of an operation: the offset of its bytes, and the request.
    Part {
        operation: Key,
        offset: u64,
        body: Box<Body>,
    },
}

/// Size of a waiting store: the unit of the reserve ([`HibConfig::reserve`](crate::HibConfig::reserve)).
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
            InFlight::Store { .. } | InFlight::PendingRequest { .. } | InFlight::Part { .. } => Window::Requests,
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
    waiting: VecDeque<(u64, Waiting)>,
    /// Requests from copies on this node to their home, which answers when all copies have applied the store. They have
    /// a window of their own, so that a copy that is slow to acknowledge delays no other request.
    forwards: VecDeque<(u64, WaitingForward)>,
    /// Entries of `forwards` in flight.
    forwards_in_flight: u32,
    /// Number of entries accepted so far.
    accepted: u64,
    /// Requests sent in the current sessions of both nodes, modulo 2^32.
    pub(crate) requests_sent: u32,
    /// Other requests in flight: the used part of the window.
    outstanding: u32,
    /// Elements in flight.
    pub(crate) elements_in_flight: u32,
    /// The peer is in `credit_waiters`.
    awaits_credit: bool,
    /// The first load issued since a packet was last received from the peer: all later ones were as well.
    unheard_since: Option<Key>,
    /// A load has timed out, and no packet was received from the peer since the load was issued.
    silent: bool,
    /// Requests that it has not answered, elements and abandoned ones excepted.
    unanswered: Unanswered,
    /// Abandoned requests in flight, by [`Window`].
    abandoned: [u32; 3],
    /// Requests wait for the peer's end of a ring, since then: for a credit, or for the end of the ring's withdrawal.
    ring_waits: Option<Phase>,
    /// Generation of the tags of requests to this peer: the number of times that all its requests in flight were
    /// abandoned.
    tag_generation: u32,
    /// Send queues with waiting elements, in round-robin order.
    pub(crate) enqueuers: VecDeque<Key>,
    /// Window slot -> import + 1, 0 if unmapped; empty until the first import from this node.
    slots: Vec<u16>,
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

    /// Requests in flight, of both windows.
    fn window_used(&self) -> u32 {
        self.outstanding + self.forwards_in_flight
    }

    /// Returns whether abandoned requests occupy a whole window of requests.
    fn is_exhausted(&self, window: u32) -> bool {
        [Window::Requests, Window::Forwards].iter().any(|which| self.abandoned[*which as usize] >= window)
    }

    /// Returns whether a store to this export page of the peer is not sent.
    fn stores_to(&self, page: u32) -> bool {
        self.waiting.iter().any(|(_, waiting)| matches!(waiting, Waiting::Store { at, .. } if at.page == page))
    }

    /// Number of requests accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns whether the first `count` accepted requests have been sent or dropped.
    pub(crate) fn has_sent(&self, count: u64) -> bool {
        let later = |number: &u64| *number > count;
        self.waiting.front().is_none_or(|(number, _)| later(number))
            && self.forwards.front().is_none_or(|(number, _)| later(number))
    }
}

/// The target of a checked window access: import, remote address, size in bytes.
type Target = (u16, RemoteAddr, u8);

/// A refused window access: node, import if the address is mapped, reason.
type Rejection = (NodeId, Option<u16>, Status);

#[derive(Clone, Debug, Hash)]
pub(crate) struct Quiet {
    pub(crate) cookie: u64,
    /// Post an event when the quiet completes.
    pub(crate) notify: bool,
    /// The imports it waits for, ascending.
    targets: Vec<QuietTarget>,
    /// The unfinished operations it waits for, ascending.
    operations: Vec<Key>,
    /// Number of targets and operations that are unfinished.
    unfinished: usize,
    /// The status to report: the first loss among the stores and operations it waits for, or an error that was latched
    /// when it was issued. A later acknowledgement does not change it.
    lost: Option<Status>,
}

/// An import that a quiet waits for.
#[derive(Clone, Copy, Debug, Hash)]
struct QuietTarget {
    import: u16,
    /// The opening of that import number: a reopened import has other stores.
    opening: u64,
    /// The number of its stores that must be finished.
    stores: u64,
    /// That many stores are finished.
    reached: bool,
}

/// An open context of a process.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Context {
    /// Guest address of its status page.
    pub(crate) status_page: u64,
    pub(crate) key: u64,
    /// Quiets in progress, by slot.
    pub(crate) quiets: BTreeMap<u8, Quiet>,
    /// Errors of its imports and loads, as its status page counts them.
    pub(crate) errors: u64,
    /// Open imports of the context.
    imports: BTreeSet<u16>,
}

/// The requester of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Requester {
    pub(crate) presence: Presence,
    pub(crate) peers: ByNode<Peer>,
    imports: Vec<Option<Box<Import>>>,
    pub(crate) contexts: Table<Context>,
    /// Number of openings so far.
    openings: u64,
    /// The epoch assigned last, of all imports of the board, modulo 2^32.
    epochs: u32,
    /// Send queues of imports of queues.
    pub(crate) send_queues: Keyed<SendQueue>,
    /// Queues (node, page, generation) to which a return of receive credits is in flight. True if another return must
    /// follow.
    pub(crate) credit_returns: BTreeMap<(NodeId, u32, u64), bool>,
    /// Tags of requests of this node to itself that have been forwarded to a home. They no longer occupy the node's own
    /// window.
    forwarded_tags: BTreeSet<u32>,
    /// Requests in flight by tag index.
    in_flight: Numbered<Tagged>,
    /// The phases by which the ages of requests are counted.
    phases: Phases,
    pending_requests: Keyed<PendingRequest>,
    deadlines: Deadlines,
    bodies: Bodies,
    pub(crate) waiting_total: u32,
    /// How the reserve is divided among the open imports.
    reserve: Shares,
    /// Posted stores since the guest's socket was last empty.
    intake: u32,
    /// Imports that are throttled.
    throttled: BTreeSet<u16>,
    /// Nodes with requests or elements that wait for credits, in round-robin order.
    credit_waiters: VecDeque<NodeId>,
    /// Imports whose close is pending.
    closing: BTreeSet<u16>,
    /// Status words that are reserved or wait to be written, by context.
    status_words: Account<u16>,
    /// Page access counters of remote pages.
    pub(crate) page_counters: PageCounters,
}

/// A tag is an index into the table of requests in flight, with the peer's tag generation in the upper bits: a reply to
/// an abandoned request does not match. Indices depend on the requests in flight only, so that boards in the same state
/// behave alike.
const TAG_INDEX_BITS: u32 = 20;

/// Capacity, in entries, that an empty send queue keeps.
const KEPT_CAPACITY: usize = 1024;

/// Restarts an empty ring at the same place in memory, which stays in the cache: with thousands of peers this dominates
/// the cost of a store. Memory of a large backlog is released.
pub(crate) fn reset_empty_ring<T>(queue: &mut VecDeque<T>) {
    queue.clear();
    if queue.capacity() > KEPT_CAPACITY {
        queue.shrink_to(KEPT_CAPACITY);
    }
}

/// Checks that an access is aligned and has 1, 2, 4 or 8 bytes.
fn access_size(offset: u64, size: u32) -> Result<u8, Status> {
    match size {
        1 | 2 | 4 | 8 if offset % u64::from(size) == 0 => Ok(size as u8),
        _ => Err(Status::BadSize),
    }
}

impl Requester {
    /// No imports, no contexts, all nodes down.
    pub(crate) fn new(config: &HibConfig) -> Requester {
        Requester {
            presence: Presence::new(config.window.nodes()),
            peers: ByNode::new(config.window.nodes(), Peer::default()),
            imports: vec![None; usize::from(config.imports)],
            contexts: Table::default(),
            openings: 0,
            epochs: 0,
            send_queues: Keyed::default(),
            credit_returns: BTreeMap::new(),
            forwarded_tags: BTreeSet::new(),
            in_flight: Numbered::default(),
            phases: Phases::new(),
            pending_requests: Keyed::default(),
            deadlines: Deadlines::default(),
            bodies: Bodies::default(),
            waiting_total: 0,
            reserve: Shares::half_guaranteed(config.reserve.into(), 0, u64::MAX),
            intake: 0,
            throttled: BTreeSet::new(),
            credit_waiters: VecDeque::new(),
            closing: BTreeSet::new(),
            status_words: Account::new(Shares::equal(
                u64::from(config.contexts) * STATUS_WORDS,
                config.contexts.into(),
            )),
            page_counters: PageCounters::default(),
        }
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
            Some(_) if self.peers[usize::from(node)].is_exhausted(ctx.config.outstanding) => Err(Status::Timeout),
            Some(_) => Ok(()),
            None if self.presence.contains(node) => Err(Status::NodeDown),
            None => Err(Status::BadNode),
        }
    }

    /// Divides the credits of the link among the present nodes.
    pub(crate) fn divide_credits(&self, ctx: &mut Ctx) {
        ctx.link.divide(self.presence.present().into());
    }

    /// The earliest deadline of a pending request, or the end of the phase of ages.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| at).into_iter().chain(self.phases.deadline()).min()
    }

    /// Marks an import as active for a launch argument, which is not a store to its segment.
    pub(crate) fn mark_active(&mut self, number: u16) {
        if let Some(import) = self.import(number) {
            import.active = true;
        }
    }

    /// Returns whether a store to this export page of a node is not sent.
    pub(crate) fn stores_to(&self, node: NodeId, page: u32) -> bool {
        self.peers[usize::from(node)].stores_to(page)
    }

    /// Returns whether an import is stopped for congestion.
    pub(crate) fn any_congested(&self) -> bool {
        self.imports.iter().flatten().any(|i| i.is_stopped())
    }

    /// The import with this number, if it is open.
    pub(crate) fn open_import(&self, number: u16) -> Option<&Import> {
        self.imports.get(usize::from(number))?.as_deref()
    }

    /// The import with this number for modification, if it is open.
    pub(crate) fn import(&mut self, number: u16) -> Option<&mut Import> {
        self.imports.get_mut(usize::from(number))?.as_deref_mut()
    }

    /// Records a request in flight and returns its tag. Its age counts from now, unless it is an element or goes to
    /// this node itself, which waits for a home at most, as the request to that does.
    pub(crate) fn take_tag(&mut self, ctx: &Ctx, node: NodeId, request: InFlight) -> u32 {
        let ages = node != ctx.config.node && !matches!(request, InFlight::Element { .. });
        let sent = ages.then(|| self.phases.enter(ctx.now, ctx.config.answer_limit));
        let peer = &mut self.peers[usize::from(node)];
        if let Some(phase) = sent {
            peer.unanswered.add(phase);
        }
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
            let abandoned = &mut self.peers[usize::from(node)].abandoned[window as usize];
            *abandoned = abandoned.saturating_sub(1);
        }
        Some(request)
    }

    /// A request that was sent in this phase is answered or lost.
    fn stop_ageing(&mut self, node: NodeId, sent: Option<Phase>) {
        if let Some(phase) = sent {
            self.peers[usize::from(node)].unanswered.remove(phase);
            self.phases.leave();
        }
    }

    /// Tags of the requests in flight to a node.
    fn tags_to(&self, node: NodeId) -> Vec<u32> {
        let to = self.in_flight.iter().filter(|(_, tagged)| tagged.node == node);
        to.map(|(index, tagged)| tagged.upper | index as u32).collect()
    }

    /// Takes the requests in flight to a node from their owners. They keep their tags and their places in the windows:
    /// answers to them are stale.
    fn abandon(&mut self, ctx: &Ctx, node: NodeId) -> Vec<InFlight> {
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
            self.peers[usize::from(node)].abandoned[window as usize] += 1;
        }
        taken
    }

    /// Ends the phase of ages if it is over. Returns the nodes that have left a request, or the room for one in a ring,
    /// unanswered for longer than [`HibConfig::answer_limit`], ascending.
    pub(crate) fn overdue(&mut self, ctx: &Ctx) -> Vec<NodeId> {
        let oldest = self.phases.advance(ctx.now, ctx.config.answer_limit);
        let Some(oldest) = oldest.filter(|_| !ctx.has(Bug::AwaitAnswers)) else { return Vec::new() };
        self.peers.existing().filter(|(_, peer)| peer.unanswered.has(oldest)).map(|(node, _)| node).collect()
    }

    /// Requests to a node begin to wait for its end of a ring, or do so no longer.
    fn ring_waits(&mut self, ctx: &Ctx, node: NodeId, waits: bool) {
        let Some(peer) = self.peers.existing_mut(node) else { return };
        match (peer.ring_waits, waits) {
            (None, true) => {
                let phase = self.phases.enter(ctx.now, ctx.config.answer_limit);
                peer.unanswered.add(phase);
                peer.ring_waits = Some(phase);
            }
            (Some(phase), false) => {
                self.phases.leave();
                peer.unanswered.remove(phase);
                peer.ring_waits = None;
            }
            _ => {}
        }
    }

    /// The import that is mapped at a window address.
    pub(crate) fn slot(&self, address: &WindowAddress) -> Option<u16> {
        let slots = &self.peers[usize::from(address.node)].slots;
        slots.get(address.slot() as usize)?.checked_sub(1)
    }
}
