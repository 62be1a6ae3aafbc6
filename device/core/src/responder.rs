// SPDX-License-Identifier: MIT OR Apache-2.0
//! The receiving side: grants, published segments, and the requests of other nodes.
//!
//! Requests of one source are performed strictly one after the other (SPEC I8), each as one guest-memory step; sources
//! interleave. Every request is checked against its grant when its step is started, not before.

use crate::config::Bug;
use crate::ctx::{FollowUp, StepOwner};
use crate::hib::Hib;
use crate::queue::Queue;
use crate::refusals::Refusals;
use crate::replica::{Replicas, Served};
use crate::{HibConfig, Notice, Step, StepResult};
use std::collections::{BTreeMap, VecDeque};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::Command;
use telegraphos_wire::packet::Name;
use telegraphos_wire::{Body, Class, NodeId, Packet, RemoteAddr, Rights, Status, UNIT};

/// One export page, granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) address: u64,
    /// Valid bytes from the start of the page.
    pub(crate) valid: u64,
    pub(crate) rights: Rights,
    pub(crate) nodes: [u64; 4],
    pub(crate) generation: u64,
    /// The page was replicated and is not any more: it can be read, and is not changed, until it is replicated or granted anew (SPEC E20).
    pub(crate) resigned: bool,
}

/// A name others may look up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Segment {
    page: u32,
    count: u32,
    length: u64,
    generation: u64,
    rights_owner: Rights,
    rights_others: Rights,
    uid: u32,
    secret: [u8; 16],
}

/// A request that waits for its turn.
#[derive(Clone, Debug, Hash)]
struct Inbound {
    packet: Packet,
    /// Export page of the step in flight.
    page: Option<u32>,
    /// It took a credit of the link that is up now.
    charged: bool,
    /// Value of an atomic that is performed in two steps ([`Bug::SplitAtomic`]).
    loaded: Option<u64>,
}

/// A revocation that waits for steps in flight.
#[derive(Clone, Debug, Hash)]
struct Clearing {
    slot: u32,
    page: u32,
    count: u32,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Responder {
    pub(crate) grants: BTreeMap<u32, Grant>,
    /// Export pages that are queues; each has a grant, too.
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) replicas: Replicas,
    segments: BTreeMap<Name, Segment>,
    generation: u64,
    inbound: Vec<VecDeque<Inbound>>,
    /// Per source: its life, and how many of its requests have been performed since both nodes live their present lives, modulo 2^32.
    performed: Vec<(u64, u32)>,
    clearing: Vec<Clearing>,
    pub(crate) refusals: Refusals,
    /// Hold slots of this node's queues, in imports of queues (`hold` slots each), by the importing node.
    pub(crate) holds: Account<NodeId>,
}

/// How the hold slots are divided: half of them in guaranteed parts for all nodes, the rest for those who ask first, a quarter of all at most.
fn hold_shares(config: &HibConfig) -> Shares {
    let imports = u64::from(config.holds / config.hold.max(1));
    if config.has(Bug::UnsharedHolds) {
        return Shares { capacity: imports, spenders: 1, guaranteed: 0, limit: imports };
    }
    Shares::half_guaranteed(imports, config.window.nodes().into(), (imports / 4).max(1))
}

/// Whether the bit of `node` is set; all ones admits every node, also those beyond the bits.
fn admits(nodes: &[u64; 4], node: NodeId) -> bool {
    if *nodes == [u64::MAX; 4] {
        return true;
    }
    nodes.get(usize::from(node) / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
}

impl Responder {
    pub(crate) fn new(config: &HibConfig) -> Responder {
        Responder {
            grants: BTreeMap::new(),
            queues: BTreeMap::new(),
            replicas: Replicas::new(config),
            performed: vec![(0, 0); config.window.nodes() as usize],
            segments: BTreeMap::new(),
            generation: 0,
            inbound: vec![VecDeque::new(); config.window.nodes() as usize],
            clearing: Vec::new(),
            holds: Account::new(hold_shares(config)),
            refusals: Refusals::new(config.window.nodes(), config.imports),
        }
    }

    pub(crate) fn raise_generation(&mut self, floor: u64) {
        self.generation = self.generation.max(floor);
    }

    pub(crate) fn new_generation(&mut self) -> u64 {
        self.generation += 1;
        self.generation
    }

    /// This node lives a new life for the others, or has lost them: they begin to count anew. Its own requests to itself do so at a reset.
    pub(crate) fn forget_performed(&mut self, own: NodeId) {
        let kept = self.performed.get(usize::from(own)).copied();
        self.performed.fill((0, 0));
        if let (Some(kept), Some(entry)) = (kept, self.performed.get_mut(usize::from(own))) {
            *entry = kept;
        }
    }

    /// The link is gone, and its credits with it.
    pub(crate) fn forget_credits(&mut self) {
        self.inbound.iter_mut().flatten().for_each(|request| request.charged = false);
    }

    fn serves(&self, page: u32, count: u32) -> bool {
        let end = u64::from(page) + u64::from(count);
        self.inbound
            .iter()
            .flat_map(|queue| queue.front())
            .filter_map(|request| request.page)
            .any(|p| p >= page && u64::from(p) < end)
    }
}

impl Hib {
    // ---- admin ----

    pub(crate) fn grant_set(&mut self, command: &Command) -> Result<u64, Status> {
        let Command { index, count, address, length, .. } = *command;
        let end = u64::from(index) + u64::from(count);
        let sane = count > 0
            && end <= u64::from(self.ctx.config.export_pages)
            && address % 4096 == 0
            && length > 0
            && length <= u64::from(count) * UNIT
            && length > u64::from(count - 1) * UNIT
            && address.checked_add(length).is_some();
        let rights = Rights(command.rights);
        if !sane || !Rights::ALL.contains(rights) {
            return Err(Status::Invalid);
        }
        self.pages_free(index, count)?;
        let generation = if command.generation == 0 {
            self.responder.new_generation()
        } else {
            let previous = index.checked_sub(1).and_then(|i| self.responder.grants.get(&i));
            match previous {
                Some(grant) if grant.generation == command.generation => command.generation,
                _ => return Err(Status::Stale),
            }
        };
        for i in 0..count {
            let start = u64::from(i) * UNIT;
            let grant = Grant {
                address: address + start,
                valid: (length - start).min(UNIT),
                rights,
                nodes: command.nodes,
                generation,
                resigned: false,
            };
            self.responder.grants.insert(index + i, grant);
        }
        Ok(generation)
    }

    /// Whether export pages are neither granted nor on their way out.
    pub(crate) fn pages_free(&self, page: u32, count: u32) -> Result<(), Status> {
        let end = page + count;
        let granted = self.responder.grants.range(page..end).next().is_some();
        let clearing = self.responder.clearing.iter().any(|c| c.page < end && page < c.page + c.count);
        if granted || clearing { Err(Status::Busy) } else { Ok(()) }
    }

    /// Revokes pages at once, with the queues on them; `Ok(false)` if an access to them is still in flight.
    pub(crate) fn grant_clear(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let Command { index, count, .. } = *command;
        if count == 0 || u64::from(index) + u64::from(count) > u64::from(self.ctx.config.export_pages) {
            return Err(Status::Invalid);
        }
        for page in index..index + count {
            self.responder.grants.remove(&page);
            self.queue_clear(page);
            self.replica_revoke(page);
        }
        if self.in_flight(index, count) {
            self.responder.clearing.push(Clearing { slot, page: index, count });
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether a step touches one of these export pages, for another node or for a copy of our own.
    fn in_flight(&self, page: u32, count: u32) -> bool {
        let queues = self.responder.queues.range(page..page + count).any(|(_, queue)| queue.steps());
        let queues = queues || self.replica_steps(page..page + count);
        let page = u64::from(page);
        queues || self.responder.serves(page as u32, count) || self.ctx.copies_touch(page..page + u64::from(count))
    }

    pub(crate) fn finish_clearing(&mut self) {
        if self.responder.clearing.is_empty() {
            return;
        }
        let clearing = std::mem::take(&mut self.responder.clearing);
        for c in clearing {
            if self.in_flight(c.page, c.count) {
                self.responder.clearing.push(c);
            } else {
                self.ctx.complete_status(c.slot, Status::Ok);
            }
        }
    }

    pub(crate) fn segment_publish(&mut self, command: &Command) -> Result<(), Status> {
        let name = command.name;
        if !telegraphos_wire::packet::is_valid_name(&name) {
            return Err(Status::BadName);
        }
        let all = Rights::ALL;
        let rights = (Rights(command.rights_owner), Rights(command.rights_others));
        let span = u64::from(command.count) * UNIT;
        if command.count == 0
            || command.length == 0
            || command.length > span
            || !all.contains(rights.0)
            || !all.contains(rights.1)
        {
            return Err(Status::Invalid);
        }
        let end = u64::from(command.index) + u64::from(command.count);
        if end > u64::from(self.ctx.config.export_pages) {
            return Err(Status::Invalid);
        }
        let held = (command.index..end as u32)
            .all(|page| self.responder.grants.get(&page).is_some_and(|g| g.generation == command.generation));
        if !held {
            return Err(Status::NotGranted);
        }
        if self.responder.segments.contains_key(&name) {
            return Err(Status::NameTaken);
        }
        // One for each page is enough for all that can be granted; pages may have several, and others none.
        if self.responder.segments.len() as u64 >= u64::from(self.ctx.config.export_pages)
            && !self.ctx.has(Bug::EndlessNames)
        {
            return Err(Status::NoSpace);
        }
        let segment = Segment {
            page: command.index,
            count: command.count,
            length: command.length,
            generation: command.generation,
            rights_owner: rights.0,
            rights_others: rights.1,
            uid: command.uid,
            secret: command.secret,
        };
        self.responder.segments.insert(name, segment);
        Ok(())
    }

    pub(crate) fn segment_withdraw(&mut self, command: &Command) -> Result<(), Status> {
        self.responder.segments.remove(&command.name).map(|_| ()).ok_or(Status::NoSegment)
    }

    // ---- requests ----

    pub(crate) fn request(&mut self, packet: Packet) {
        let Some(queue) = self.responder.inbound.get_mut(usize::from(packet.src)) else {
            // Only a switch that serves more nodes than the window holds could do this.
            self.ctx.link.consumed(packet.class());
            return;
        };
        let source = packet.src;
        queue.push_back(Inbound { packet, page: None, charged: source != self.ctx.config.node, loaded: None });
        if queue.len() == 1 || self.ctx.has(Bug::ServeOutOfOrder) {
            self.serve(source);
        }
    }

    /// Starts the request at the head of a source's queue; answers those that need no step.
    pub(crate) fn serve(&mut self, source: NodeId) {
        loop {
            let queue = &mut self.responder.inbound[usize::from(source)];
            if self.ctx.has(Bug::ServeOutOfOrder) && queue.front().is_some_and(|r| r.page.is_none()) {
                let newest = queue.iter().rposition(|r| r.page.is_none()).unwrap_or(0);
                queue.swap(0, newest);
            }
            let Some(request) = queue.front() else { return };
            if request.page.is_some() {
                return;
            }
            let packet = request.packet.clone();
            // A store or load meant for an earlier life of this node comes too late: one before it may have been lost.
            let late = source != self.ctx.config.node && packet.target != self.ctx.incarnation;
            if !late && self.is_behind_refused(&packet) {
                self.refuse(source, packet, Status::Cut);
                continue;
            }
            if !late {
                self.in_service(source, Some(packet.body.page()));
                match self.serve_replica(source, &packet) {
                    Served::Ordinary => self.in_service(source, None),
                    Served::Working => return,
                    Served::Left => continue,
                    Served::Stalled => return self.in_service(source, None),
                    Served::Answer(body) => {
                        self.answer(source, packet, body);
                        continue;
                    }
                    Served::Refused(status) => {
                        self.refuse(source, packet, status);
                        continue;
                    }
                }
            }
            let place = |at: &RemoteAddr, length: u64, right: Rights| {
                if late { Err(Status::Reset) } else { self.translate(source, at, length, right) }
            };
            let dma = |right: Rights| Rights(Rights::DMA.0 | right.0);
            let split = self.ctx.has(Bug::SplitAtomic);
            let op = match &packet.body {
                Body::Atomic { at, size, .. } if split => place(at, u64::from(*size), Rights::ATOMIC)
                    .map(|address| Some((at.page, Step::Load { address, size: *size }))),
                Body::Write { at, size, data, .. } => place(at, u64::from(*size), Rights::WRITE)
                    .map(|address| Some((at.page, Step::Store { address, size: *size, data: *data }))),
                Body::Read { at, size, .. } => place(at, u64::from(*size), Rights::READ)
                    .map(|address| Some((at.page, Step::Load { address, size: *size }))),
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    let (size, op, operand, compare) = (*size, *op, *operand, *compare);
                    place(at, u64::from(size), Rights::ATOMIC)
                        .map(|address| Some((at.page, Step::Atomic { address, size, op, operand, compare })))
                }
                Body::ReadBlock { at, length, .. } => place(at, u64::from(*length), dma(Rights::READ))
                    .map(|address| Some((at.page, Step::LoadBlock { address, length: *length }))),
                Body::WriteBlock { at, data, .. } => place(at, data.len() as u64, dma(Rights::WRITE))
                    .map(|address| Some((at.page, Step::StoreBlock { address, data: data.clone() }))),
                Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => Err(Status::Reset), // They are late.
                _ => Ok(None),
            };
            match op {
                Ok(Some((page, op))) => {
                    if let Some(request) = self.responder.inbound[usize::from(source)].front_mut() {
                        request.page = Some(page);
                    }
                    self.ctx.step(op, StepOwner::Serve(source));
                    return;
                }
                Ok(None) => {
                    let body = match packet.body {
                        Body::Reserve { .. } => self.reserve(&packet),
                        _ => self.answer_lookup(source, &packet.body),
                    };
                    self.answer(source, packet, body);
                }
                Err(status) => self.refuse(source, packet, status),
            }
        }
    }

    /// The guest address of an access, if every check admits it.
    pub(crate) fn translate(&self, source: NodeId, at: &RemoteAddr, length: u64, right: Rights) -> Result<u64, Status> {
        let grant = self.responder.grants.get(&at.page).ok_or(Status::NotGranted)?;
        if grant.generation != at.generation && !self.ctx.has(Bug::IgnoreGeneration) {
            return Err(Status::Stale);
        }
        if !admits(&grant.nodes, source) {
            return Err(Status::NotGranted);
        }
        if !grant.rights.contains(right) {
            return Err(Status::Rights);
        }
        let changes = right.0 & (Rights::WRITE.0 | Rights::ATOMIC.0) != 0;
        if grant.resigned && changes && !self.ctx.has(Bug::ServeResigned) {
            return Err(Status::NotHome);
        }
        if u64::from(at.offset) + length > grant.valid {
            return Err(Status::Bounds);
        }
        if !self.ctx.bus_master {
            return Err(Status::MemoryFault);
        }
        Ok(grant.address + u64::from(at.offset))
    }

    /// A step of the request at the head of `source`'s queue is done.
    pub(crate) fn served(&mut self, source: NodeId, result: StepResult) {
        let Some(request) = self.responder.inbound[usize::from(source)].front() else { return };
        let (packet, loaded) = (request.packet.clone(), request.loaded);
        if let (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) = (&packet.body, &result)
        {
            if self.ctx.has(Bug::SplitAtomic) && loaded.is_none() {
                let data = op.apply(*size, *old, *operand, *compare);
                let address = self.translate(source, at, u64::from(*size), Rights::ATOMIC);
                if let Some(request) = self.responder.inbound[usize::from(source)].front_mut() {
                    request.loaded = Some(*old);
                }
                if let Ok(address) = address {
                    return self.ctx.step(Step::Store { address, size: *size, data }, StepOwner::Serve(source));
                }
            }
        }
        let body = match (&packet.body, result) {
            (Body::Atomic { .. }, StepResult::Stored) => {
                Body::AtomicReply { status: Status::Ok, data: loaded.unwrap_or(u64::MAX) }
            }
            (_, StepResult::Failed(status)) => {
                self.refuse(source, packet, status);
                self.ctx.then(FollowUp::StepEnded);
                self.serve(source);
                return;
            }
            (Body::Read { .. }, StepResult::Loaded(data)) => Body::ReadReply { status: Status::Ok, data },
            (Body::Atomic { .. }, StepResult::Loaded(data)) => Body::AtomicReply { status: Status::Ok, data },
            (Body::ReadBlock { .. }, StepResult::Block(data)) => Body::BlockReply { status: Status::Ok, data },
            _ => Body::WriteAck { status: Status::Ok },
        };
        self.answer(source, packet, body);
        self.ctx.then(FollowUp::StepEnded);
        self.serve(source);
    }

    /// The request at the head of a source's queue is in service for this page, or is not.
    pub(crate) fn in_service(&mut self, source: NodeId, page: Option<u32>) {
        if let Some(request) = self.responder.inbound[usize::from(source)].front_mut() {
            request.page = page;
        }
    }

    pub(crate) fn refuse(&mut self, source: NodeId, packet: Packet, status: Status) {
        self.ctx.counters.refused += 1;
        let page = packet.body.page();
        self.ctx.notice(Notice::Refused { from: source, page, status });
        let body = refusal(&packet.body, status);
        self.finish(source, packet, body);
    }

    fn answer(&mut self, source: NodeId, packet: Packet, body: Body) {
        self.ctx.counters.served += 1;
        self.finish(source, packet, body);
    }

    /// Takes the head of the queue away and sends its reply.
    fn finish(&mut self, source: NodeId, packet: Packet, body: Body) {
        self.detach(source);
        self.reply_to(&packet, body);
        if source == self.ctx.config.node {
            self.leave_if_done(packet.body.page());
        }
    }

    /// Takes the head of the queue away: it has been performed or refused, and its place is free.
    pub(crate) fn detach(&mut self, source: NodeId) -> Option<Packet> {
        let queue = &mut self.responder.inbound[usize::from(source)];
        let request = queue.pop_front()?;
        if queue.is_empty() {
            // The next goes to the same place in memory.
            queue.clear();
        }
        if request.charged {
            self.ctx.link.consumed(request.packet.class());
        }
        self.count_performed(&request.packet);
        self.ctx.then(FollowUp::Performed(source));
        Some(request.packet)
    }

    /// Whether this node's processors have requests for one of its own pages that are not performed.
    pub(crate) fn own_requests_for(&self, page: u32) -> bool {
        let own = usize::from(self.ctx.config.node);
        let served = self.responder.inbound[own].iter().any(|request| request.packet.body.page() == page);
        served || self.requester.peers[own].stores_to(page)
    }

    /// Whether a request comes behind a store of its import that has been refused, so that it is refused, too (SPEC I8).
    pub(crate) fn is_behind_refused(&self, packet: &Packet) -> bool {
        packet.body.epoch().is_some_and(|epoch| self.responder.refusals.is_refused(packet.src, epoch))
    }

    /// Answers a request that has left the queue of its source. A store that is refused takes with it what comes behind it.
    pub(crate) fn reply_to(&mut self, packet: &Packet, body: Body) {
        if let (Body::WriteAck { status }, Some(epoch)) = (&body, packet.body.epoch()) {
            let lost = match packet.body {
                Body::Write { .. } | Body::Enqueue { .. } => !status.is_ok(),
                // The copy sends it to the new home, or knows by this that its page has none; it is not lost here.
                Body::Update { .. } => !matches!(status, Status::Ok | Status::NotHome | Status::Moving),
                // Atomics and blocks fail for themselves: what has launched them learns it.
                _ => false,
            };
            // Of an earlier life is also what will come behind it.
            if lost && *status != Status::Reset && !self.ctx.has(Bug::ForgetRefusal) {
                self.responder.refusals.remember(packet.src, epoch);
            }
        }
        let reply = Packet {
            src: self.ctx.config.node,
            dst: packet.src,
            tag: packet.tag,
            incarnation: packet.incarnation,
            target: 0,
            body,
        };
        self.ctx.transmit(reply);
    }

    /// The life of the requester that a packet belongs to. To itself, a node's life changes only with its resets.
    fn life(&self, packet: &Packet) -> u64 {
        if packet.src == self.ctx.config.node { packet.target } else { packet.incarnation }
    }

    /// Requests of the packet's sender that have been performed, of those that its `after` counts.
    pub(crate) fn performed(&self, packet: &Packet) -> u32 {
        match self.responder.performed.get(usize::from(packet.src)) {
            Some((life, count)) if *life == self.life(packet) => *count,
            _ => 0,
        }
    }

    /// A request has been performed or refused. Only what the present lives of both nodes say to each other counts.
    fn count_performed(&mut self, packet: &Packet) {
        let own = packet.src == self.ctx.config.node;
        let life = self.life(packet);
        let present = packet.target == if own { self.ctx.resets } else { self.ctx.incarnation };
        if let Some(entry) = self.responder.performed.get_mut(usize::from(packet.src)).filter(|_| present) {
            let count = if entry.0 == life { entry.1 } else { 0 };
            *entry = (life, count.wrapping_add(1));
        }
    }

    fn answer_lookup(&self, source: NodeId, body: &Body) -> Body {
        let no = |status| refusal(body, status);
        let Body::Lookup { name, secret, uid, rights } = body else { return no(Status::Invalid) };
        // First of all: to a node that its grant does not admit there is no such segment, whatever it knows of it.
        let admitted = |segment: &&Segment| {
            let grant = self.responder.grants.get(&segment.page).filter(|grant| grant.generation == segment.generation);
            grant.is_some_and(|grant| admits(&grant.nodes, source)) || self.ctx.has(Bug::TellOfSegments)
        };
        let Some(segment) = self.responder.segments.get(&**name).filter(admitted) else { return no(Status::NoSegment) };
        let offered = if *uid == segment.uid { segment.rights_owner } else { segment.rights_others };
        // All bytes, whichever differ first.
        let differing = segment.secret.iter().zip(secret).fold(0, |all, (a, b)| all | (a ^ b));
        if differing != 0 || !offered.contains(*rights) {
            return no(Status::Denied);
        }
        Body::LookupReply {
            status: Status::Ok,
            page: segment.page,
            count: segment.count,
            length: segment.length,
            generation: segment.generation,
            rights: offered,
            width: self.responder.queues.get(&segment.page).map_or(0, |queue| queue.width()),
        }
    }

    /// Drops the requests of a node that has gone; a step in flight completes and its reply goes nowhere.
    pub(crate) fn forget_requests_of(&mut self, node: NodeId) {
        let queue = &mut self.responder.inbound[usize::from(node)];
        let keep = usize::from(queue.front().is_some_and(|r| r.page.is_some()));
        let dropped: Vec<Class> = queue.drain(keep.min(queue.len())..).map(|r| r.packet.class()).collect();
        for class in dropped {
            self.ctx.link.consumed(class);
        }
    }

    /// Reset: all grants and names are gone; requests not yet started are refused.
    pub(crate) fn refuse_all(&mut self, status: Status) {
        if !self.ctx.has(Bug::KeepGrantsOnReset) {
            self.responder.grants.clear();
        }
        self.responder.segments.clear();
        self.responder.clearing.clear();
        self.responder.refusals.clear();
        for source in 0..self.responder.inbound.len() {
            let queue = &mut self.responder.inbound[source];
            let keep = usize::from(queue.front().is_some_and(|r| r.page.is_some()));
            let rest: Vec<Packet> = queue.drain(keep.min(queue.len())..).map(|r| r.packet).collect();
            for packet in rest {
                if usize::from(self.ctx.config.node) == source {
                    continue;
                }
                self.ctx.link.consumed(packet.class());
                let reply = Packet {
                    src: self.ctx.config.node,
                    dst: packet.src,
                    tag: packet.tag,
                    incarnation: packet.incarnation,
                    target: 0,
                    body: refusal(&packet.body, status),
                };
                self.ctx.transmit(reply);
            }
        }
    }
}

pub(crate) fn refusal(body: &Body, status: Status) -> Body {
    body.refusal(status).unwrap_or(Body::WriteAck { status })
}
