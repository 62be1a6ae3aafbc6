// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: stores go to the home, which multicasts them in its order to all copies (SPEC items 23 to 27, E15 to E20;
//! `docs/replication.md`).
//!
//! ```text
//!  copy:  processor's store -> counter++, RAM -> Update to the home ------+        (the store is acknowledged when all copies have it: E19)
//!  home:  processor's store or Update -> RAM -> Reflected{writer} to every copy -> all CopyAcks -> acknowledged
//!  copy:  Reflected: own -> counter--, ignored;  others -> the bytes whose counter is 0 -> RAM;  CopyAck
//! ```
//!
//! Everything that touches a replicated page is *work*: done one after the other in the order of its arrival, each piece in one or more
//! guest-memory steps. So the order of the home's memory is the order in which it multicasts, and a copy's counters and memory agree.
//!
//! What a home has for its copies leaves in one queue for all of them, so that a copy gets it in order, whether the switch copies it
//! or each copy has a packet of its own. Which of the two is decided when it leaves: it is one packet if it is for exactly the nodes
//! that the switch knows as the page's group then.

mod invalid;
mod moving;

use self::moving::{Arrival, Moving};
use crate::config::Bug;
use crate::events::Cause;
use crate::hib::{Hib, Purpose};
use crate::imports::{Asked, Waiting};
use crate::{Action, Notice, Step, StepResult};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_wire::admin::{self, Command};
use telegraphos_wire::link::MAX_MEMBERSHIPS;
use telegraphos_wire::packet::{MULTICAST, NO_NODE};
use telegraphos_wire::{Body, Class, MAX_BLOCK, NodeId, Packet, RemoteAddr, Rights, Status, UNIT, context, event};

/// How stores reach the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
enum Mode {
    Naive = admin::NAIVE as u16,
    Owner = admin::OWNER as u16,
    Counters = admin::COUNTERS as u16,
    Invalidate = admin::INVALIDATE as u16,
}

/// Where the pages of others lie that this page copies.
pub(crate) type Source = (NodeId, u32, u64);

/// Something that touches a page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// The request in service of this source: a store, update or atomic.
    Request(NodeId, Packet),
    /// A store of the home's order, and what is left to do of it: offset, bytes, value.
    Apply(Packet, Vec<(u32, u8, u64)>),
    /// A part of a new copy.
    Fill(Packet),
    /// A part of this page for a new copy at this node, from this offset.
    Read(NodeId, u32),
    /// A copy asks to be the home.
    Move(Packet),
    /// This copy is to be the home: everything before is on its way to the present one.
    Take,
    /// What came over a link that is no more: its step is in flight, and nobody waits for it.
    Lost,
}

/// One replicated page.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    mode: Mode,
    /// Of its grant here.
    generation: u64,
    /// The home's page; of a naive one those of all others; none if this is the home.
    sources: BTreeSet<Source>,
    home: bool,
    /// All of it has been filled.
    filled: bool,
    /// Its home serves it no more.
    orphaned: Option<Status>,
    /// Its home is another one now, or will be.
    moving: Option<Moving>,
    /// How often it has had another home.
    moves: u32,
    /// Stores of this node's processors that a home that was moving has not taken, by their places.
    returned: BTreeMap<u64, Packet>,
    /// Of a valid copy in mode invalidate: it is to be unmapped; what is acknowledged then.
    invalid: bool,
    held: Vec<Packet>,
    /// Whom it joins at present.
    joining: Option<Source>,
    /// Leaves that are unanswered; nothing is stored here any more.
    leaving: u32,
    /// Admin slots of the commands that set and clear it.
    setting: Option<u32>,
    clearing: Option<u32>,
    /// Nodes with copies of this page, and their incarnations.
    copies: BTreeMap<NodeId, u32>,
    /// What is to be done; a step for the first is in flight if `busy`.
    work: VecDeque<Work>,
    busy: bool,
    /// The work whose step is in flight is between it and a home that it has lost.
    late: bool,
    /// Revoked; goes when its step in flight is done.
    gone: bool,
}

impl Replica {
    /// Whether the stores of this node's processors are multicast from here.
    fn orders(&self) -> bool {
        self.home || self.mode == Mode::Naive
    }

    pub(crate) fn steps(&self) -> bool {
        self.busy
    }
}

/// A multicast that waits for its copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Multicast {
    /// Of this page.
    page: u32,
    waits: BTreeSet<NodeId>,
    /// Whom to answer then, and what.
    answer: Option<(Packet, Body)>,
}

/// A multicast that waits for credits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Outgoing {
    tag: u32,
    body: Body,
    /// Whom it has still to be sent to, ascending.
    to: Vec<NodeId>,
}

/// Low bits of a multicast's tag: the lowest number that was free. Above them is the round, which makes acknowledgements recognisable
/// that come after their sender was given up.
const TAG_INDEX_BITS: u32 = 20;

/// A request of this node's processors that the home answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Forward {
    packet: Packet,
    page: u32,
    /// How often the page's home had moved when it was sent.
    moves: u32,
    /// Its place among those of its page that are unanswered, or kept.
    place: u64,
    /// The processor has been refused already, since the page has lost its home: the answer is for nobody.
    refused: bool,
}

/// What has arrived from a node for copies here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Arrivals {
    packets: VecDeque<Packet>,
    /// The first is work of its page.
    working: bool,
    /// They are being taken at this moment.
    taking: bool,
}

/// All state of replicated pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replicas {
    pages: BTreeMap<u32, Replica>,
    sources: BTreeMap<Source, u32>,
    /// The counter cache: for (page, offset of an aligned 8-byte word) the pending writes of each byte (E18).
    pending: BTreeMap<(u32, u32), [u16; 8]>,
    multicasts: BTreeMap<u32, Multicast>,
    /// How often a copy was given up that had not acknowledged everything.
    round: u32,
    /// What waits for credits of the link, for all copies of all pages.
    outgoing: VecDeque<Outgoing>,
    /// The groups that the switch knows, by page: at least two members each, ascending.
    groups: BTreeMap<u32, Vec<NodeId>>,
    forwards: BTreeMap<u64, Forward>,
    /// Those of pages in mode invalidate in the order in which they were made, which is that of their answers.
    in_order: VecDeque<invalid::InOrder>,
    arrivals: BTreeMap<NodeId, Arrivals>,
    /// This node's processor waits for a free counter.
    stalled: bool,
}

/// What becomes of a request for a replicated page.
pub(crate) enum Served {
    /// It is for an ordinary page, or an ordinary access.
    Ordinary,
    /// It is work now.
    Working,
    /// It has left the queue of its source.
    Left,
    /// It must wait for a free counter.
    Stalled,
    /// It is answered with this.
    Answer(Body),
    /// It is refused.
    Refused(Status),
}

fn lanes(offset: u32, size: u8) -> std::ops::Range<usize> {
    let first = (offset & 7) as usize;
    first..(first + usize::from(size)).min(8)
}

impl Hib {
    // ---- admin ----

    /// `Ok(false)` if it completes later: when a copy is filled.
    pub(crate) fn replica_set(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<bool, Status> {
        let command = command.replica();
        let page = command.page;
        let mode = match command.mode {
            admin::NAIVE => Mode::Naive,
            admin::OWNER => Mode::Owner,
            admin::COUNTERS => Mode::Counters,
            admin::INVALIDATE => Mode::Invalidate,
            _ => return Err(Status::Invalid),
        };
        let grant = self.server.grants.get(&page).filter(|grant| grant.valid == UNIT);
        let generation = grant.ok_or(Status::NotGranted)?.generation;
        if self.server.queues.contains_key(&page) {
            return Err(Status::NotGranted);
        }
        let node = NodeId::try_from(command.node).map_err(|_| Status::BadNode)?;
        let here = node == self.config.node;
        if !here {
            self.reachable(node)?;
        } else if command.home_page != page {
            return Err(Status::Invalid);
        }
        let source = (node, command.home_page, command.home_generation);
        if let Some(replica) = self.server.replicas.pages.get(&page) {
            // What may change: an orphan gets a home, a naive page another peer. Two homes cannot be claimed for one page.
            let joins = replica.mode == Mode::Naive && mode == Mode::Naive && !replica.sources.contains(&source);
            if replica.setting.is_some() || replica.clearing.is_some() || replica.gone {
                return Err(Status::Busy);
            }
            if replica.mode == Mode::Invalidate && mode == Mode::Invalidate && replica.sources.contains(&source) {
                return self.fill_again(slot, page, source, out);
            }
            if replica.orphaned.is_none() && (!joins || here) {
                return Err(Status::NotHome);
            }
        }
        if !here && self.server.replicas.sources.contains_key(&source) {
            return Err(Status::Busy); // This node has a copy of it already.
        }
        let replica = self.server.replicas.pages.entry(page).or_insert_with(|| Replica {
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
            work: VecDeque::new(),
            busy: false,
            late: false,
            gone: false,
        });
        replica.mode = mode;
        replica.orphaned = None;
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
        self.server.replicas.sources.insert(source, page);
        let at = RemoteAddr { page: source.1, offset: 0, generation: source.2 };
        self.ask(node, Asked::Join { page, source }, Body::Join { at, mode: command.mode as u16, keep: false }, out);
        Ok(false)
    }

    /// The home has refused a join, or has not answered.
    pub(crate) fn join_failed(&mut self, page: u32, source: Source, status: Status, out: &mut Vec<Action>) {
        self.source_lost(page, source, status, out);
    }

    /// `Ok(false)` if it completes later: when its own stores are acknowledged and the home has let go.
    pub(crate) fn replica_clear(&mut self, slot: u32, page: u32, out: &mut Vec<Action>) -> Result<bool, Status> {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return Err(Status::Invalid) };
        if replica.setting.is_some() || replica.clearing.is_some() {
            return Err(Status::Busy);
        }
        replica.clearing = Some(slot);
        self.leave_if_done(page, out);
        Ok(false)
    }

    /// Leaves the homes of a page that is being cleared, once no store of this node's processors for it is unfinished.
    pub(crate) fn leave_if_done(&mut self, page: u32, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get(&page) else { return };
        let unfinished = replica.busy
            || !replica.work.is_empty()
            || replica.holds_own()
            || self.server.replicas.in_order.iter().any(|request| request.page == page)
            || self.server.replicas.forwards.values().any(|forward| forward.page == page)
            || self.own_requests_for(page);
        if replica.clearing.is_none() || replica.leaving > 0 || unfinished {
            return;
        }
        let reachable = |source: &&Source| self.reachable(source.0).is_ok();
        let sources: Vec<Source> = replica.sources.iter().filter(reachable).copied().collect();
        if let Some(replica) = self.server.replicas.pages.get_mut(&page) {
            replica.leaving = sources.len().max(1) as u32;
        }
        if sources.is_empty() {
            return self.left(page, out);
        }
        for (node, home_page, generation) in sources {
            let at = RemoteAddr { page: home_page, offset: 0, generation };
            self.ask(node, Asked::Leave { page }, Body::Leave { at }, out);
        }
    }

    /// A home has let go, or is not there.
    pub(crate) fn left(&mut self, page: u32, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|replica| replica.leaving > 0) else {
            return;
        };
        replica.leaving -= 1;
        if replica.leaving > 0 {
            return;
        }
        let slot = replica.clearing.take();
        self.replica_revoke(page, out);
        if let Some(slot) = slot {
            self.complete_status(slot, Status::Ok, out);
        }
    }

    /// The page is an ordinary one from now on, or is revoked altogether.
    pub(crate) fn replica_revoke(&mut self, page: u32, out: &mut Vec<Action>) {
        if let Some(replica) = self.server.replicas.pages.get_mut(&page) {
            replica.gone = true;
            self.end_replica_if_gone(page, out);
        }
    }

    pub(crate) fn replica_steps(&self, pages: std::ops::Range<u32>) -> bool {
        self.server.replicas.pages.range(pages).any(|(_, replica)| replica.steps())
    }

    fn end_replica_if_gone(&mut self, page: u32, out: &mut Vec<Action>) -> bool {
        let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|replica| replica.gone) else {
            return false;
        };
        let keep = usize::from(replica.busy);
        let waiting: Vec<Work> = replica.work.drain(keep.min(replica.work.len())..).collect();
        for work in waiting {
            self.refuse_work(work, Status::Stale, out);
        }
        self.end_moving(page, Status::Stale, out);
        self.release_held(page, Status::NotHome, out);
        if self.server.replicas.pages.get(&page).is_none_or(|replica| replica.busy) {
            return true;
        }
        self.end_copies(page, out);
        self.forget_page(page, out);
        if let Some(replica) = self.server.replicas.pages.remove(&page) {
            for slot in replica.setting.into_iter().chain(replica.clearing) {
                self.complete_status(slot, Status::Stale, out);
            }
        }
        true
    }

    /// The copies of a page hear, behind everything that was sent to them, that this is not their home any more.
    fn end_copies(&mut self, page: u32, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
        let copies: Vec<NodeId> = std::mem::take(&mut replica.copies).into_keys().collect();
        let at = RemoteAddr { page, offset: 0, generation: replica.generation };
        let end = Body::Rehome { at, to: NO_NODE, page: 0, generation: 0 };
        self.multicast(&copies, end, None, out);
        self.announce_group(page, out);
    }

    /// Counters and sources of a page.
    fn forget_page(&mut self, page: u32, out: &mut Vec<Action>) {
        let replicas = &mut self.server.replicas;
        replicas.sources.retain(|_, p| *p != page);
        replicas.pending.retain(|(p, _), _| *p != page);
        if let Some(replica) = replicas.pages.get_mut(&page) {
            replica.sources.clear();
        }
        self.counters_freed(out);
    }

    /// Its home serves it no more: the copies may differ, and nobody stores to it until it has a home again.
    fn orphan(&mut self, page: u32, status: Status, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
        if replica.orphaned.is_some() {
            return;
        }
        replica.orphaned = Some(status);
        replica.home = false;
        if let Some(slot) = replica.setting.take() {
            self.complete_status(slot, status, out);
        }
        self.end_work(page, status, out);
        self.end_moving(page, status, out);
        self.release_held(page, Status::NotHome, out);
        self.end_copies(page, out);
        self.forget_page(page, out);
        self.cause(Cause::Replica(page), out);
        self.serve_again(self.config.node, out);
        self.leave_if_done(page, out);
    }

    /// What is under way between a page and the home that it has lost is not for its next home, which would take a store for one that the copy has, and
    /// not of it: a copy is not filled by what the last one sent.
    fn end_work(&mut self, page: u32, status: Status, out: &mut Vec<Action>) {
        let own = self.config.node;
        let ends = |work: &Work| match work {
            Work::Request(source, _) => *source == own,
            work => matches!(work, Work::Apply(..) | Work::Fill(_)),
        };
        let unanswered = self.server.replicas.forwards.iter_mut().filter(|(_, f)| f.page == page && !f.refused);
        let mut refused = Vec::new();
        for (number, forward) in unanswered {
            forward.refused = true;
            refused.push((*number, forward.packet.clone()));
        }
        for (number, packet) in refused {
            let refusal = packet.body.refusal(status).unwrap_or(Body::WriteAck { status });
            self.answer_in_order(number, packet, refusal, out);
        }
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
        let busy = usize::from(replica.busy);
        replica.late = replica.busy && replica.work.front().is_some_and(ends);
        let rest = replica.work.drain(busy.min(replica.work.len())..);
        let (ended, left): (Vec<Work>, Vec<Work>) = rest.partition(ends);
        replica.work.extend(left);
        for work in ended {
            self.refuse_work(work, status, out);
        }
    }

    /// Index and value of a REPLICA event: the home, and what has become of the page.
    pub(crate) fn replica_event(&self, page: u32) -> (NodeId, u64) {
        let value = u64::from(page) << 32;
        let Some(replica) = self.server.replicas.pages.get(&page) else { return (NO_NODE, value) };
        let home = if replica.home { Some(self.config.node) } else { replica.sources.first().map(|source| source.0) };
        let orphaned = replica.orphaned.map_or(0, |status| (status as u64) << 16 | event::REPLICA_ORPHANED);
        let moved = if replica.moves > 0 { event::REPLICA_MOVED } else { 0 };
        let invalid = if replica.invalid { event::REPLICA_INVALID } else { 0 };
        (home.unwrap_or(NO_NODE), value | orphaned | moved | invalid)
    }

    // ---- requests ----

    /// Takes over a request in service if it concerns a replicated page. The caller has checked that it is not late.
    pub(crate) fn serve_replica(&mut self, source: NodeId, packet: &Packet, out: &mut Vec<Action>) -> Served {
        let own = source == self.config.node;
        let (at, size, right) = match &packet.body {
            Body::Write { at, size, .. } | Body::Update { at, size, .. } => (*at, u64::from(*size), Rights::WRITE),
            Body::Atomic { at, size, .. } => (*at, u64::from(*size), Rights::ATOMIC),
            Body::WriteBlock { at, .. } => (*at, 1, Rights::WRITE),
            Body::Join { at, .. } | Body::Leave { at } => (*at, 1, Rights::READ),
            // Whoever is the home says what all copies hold.
            Body::Move { at, .. } => (*at, 1, Rights::WRITE),
            Body::Read { at, size, .. } => (*at, u64::from(*size), Rights::READ),
            Body::ReadBlock { at, length, .. } => (*at, u64::from(*length), Rights::READ),
            _ => return Served::Ordinary,
        };
        let Some(replica) = self.server.replicas.pages.get(&at.page) else {
            return match packet.body {
                Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => {
                    Served::Refused(Status::NotHome)
                }
                _ => Served::Ordinary,
            };
        };
        // A copy is its own node's; one that can be invalid is read at its home.
        let elsewhere = replica.mode == Mode::Invalidate && !replica.home;
        let reads = matches!(packet.body, Body::Read { .. } | Body::ReadBlock { .. });
        if reads && !own && !replica.orders() {
            return Served::Refused(Status::NotHome);
        }
        if reads && !(own && elsewhere) {
            return Served::Ordinary;
        }
        let (orders, mode, ready) = (replica.orders(), replica.mode, replica.filled && !replica.gone);
        let (orphaned, leaving, holds) = (replica.orphaned, replica.leaving > 0, replica.holds_own());
        let member = replica.copies.get(&source) == Some(&packet.incarnation);
        if let Err(status) = self.translate(source, &at, size, right) {
            return Served::Refused(status);
        }
        if let Some(status) = orphaned {
            return Served::Refused(status);
        }
        match packet.body {
            Body::Join { keep: true, .. } => self.join_kept(source, packet, at.page, out),
            Body::Join { .. } => self.join(source, packet, at.page, out),
            Body::Move { .. } => self.asked_to_move(source, at.page, out),
            Body::Leave { .. } => {
                self.forget_copy(at.page, source, out);
                Served::Answer(Body::WriteAck { status: Status::Ok })
            }
            // Blocks would need an order of their own.
            Body::WriteBlock { .. } => Served::Refused(Status::Rights),
            Body::Update { .. } if !orders || mode == Mode::Naive || !member && mode != Mode::Invalidate => {
                Served::Refused(Status::NotHome)
            }
            // Its copy keeps it for the home to come.
            ref body if !own && member && self.gives(at.page) => {
                body.refusal(Status::Moving).map_or(Served::Refused(Status::Invalid), Served::Answer)
            }
            _ if own && elsewhere && !leaving => {
                if let Some(packet) = self.detach(source, out) {
                    self.forward(packet, at.page, out);
                }
                Served::Left
            }
            _ if !ready || leaving => Served::Refused(Status::Busy),
            _ if !own && self.gives(at.page) => Served::Refused(Status::NotHome),
            _ if own && holds && !self.config.has(Bug::ServeWhileMoving) => Served::Stalled,
            _ if orders => self.begin_work(at.page, Work::Request(source, packet.clone()), out),
            // A copy takes stores of its own processors alone.
            _ if !own => Served::Refused(Status::NotHome),
            Body::Atomic { .. } => {
                if let Some(packet) = self.detach(source, out) {
                    self.forward(packet, at.page, out);
                }
                Served::Left
            }
            _ => {
                if mode == Mode::Counters && !self.count_pending(at.page, at.offset, size as u8) {
                    self.counters.counter_stalls += u64::from(!self.server.replicas.stalled);
                    self.server.replicas.stalled = true;
                    return Served::Stalled;
                }
                self.begin_work(at.page, Work::Request(source, packet.clone()), out)
            }
        }
    }

    /// Whether a block may be loaded from (or stored to) a page of this node's at the near end of a copy: never stored, since the other copies would not
    /// get it, nor loaded from one that may be invalid.
    pub(crate) fn block_of_replica(&self, page: u32, right: Rights) -> Result<(), Status> {
        match self.server.replicas.pages.get(&page) {
            Some(_) if right.contains(Rights::WRITE) => Err(Status::Rights),
            Some(replica) if replica.mode == Mode::Invalidate && !replica.home => Err(Status::Invalidated),
            _ => Ok(()),
        }
    }

    fn join(&mut self, source: NodeId, packet: &Packet, page: u32, out: &mut Vec<Action>) -> Served {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return Served::Refused(Status::NotHome) };
        let Body::Join { mode, .. } = packet.body else { return Served::Refused(Status::Invalid) };
        if !replica.orders() || source == self.config.node || mode != replica.mode as u16 {
            return Served::Refused(Status::NotHome);
        }
        if replica.gone || !replica.filled && replica.home || replica.moving.is_some() {
            return Served::Refused(Status::Busy);
        }
        if replica.copies.insert(source, packet.incarnation) == Some(packet.incarnation) {
            return Served::Refused(Status::Busy);
        }
        replica.work.push_back(Work::Read(source, 0));
        self.announce_group(page, out);
        self.work_on(page, out);
        Served::Answer(Body::WriteAck { status: Status::Ok })
    }

    fn begin_work(&mut self, page: u32, work: Work, out: &mut Vec<Action>) -> Served {
        if let Work::Request(source, packet) = &work {
            if *source == self.config.node && self.config.has(Bug::TakenEarly) {
                self.taken(packet, out);
            }
        }
        if let Some(replica) = self.server.replicas.pages.get_mut(&page) {
            replica.work.push_back(work);
        }
        self.work_on(page, out);
        Served::Working
    }

    // ---- counters ----

    /// Which counts of a word a store of these bytes has.
    fn counts(&self, offset: u32, size: u8) -> std::ops::Range<usize> {
        if self.config.has(Bug::CountWords) { 0..1 } else { lanes(offset, size) }
    }

    /// Counts a store of this node's processor as pending, if the cache has room (SPEC items 25 and 26).
    fn count_pending(&mut self, page: u32, offset: u32, size: u8) -> bool {
        let capacity = usize::from(self.config.pending_writes);
        let lanes = self.counts(offset, size);
        let pending = &mut self.server.replicas.pending;
        let word = (page, offset & !7);
        if !pending.contains_key(&word) && pending.len() >= capacity {
            return false;
        }
        let counts = pending.entry(word).or_default();
        if lanes.clone().any(|lane| counts[lane] == u16::MAX) {
            return false;
        }
        for lane in lanes {
            counts[lane] += 1;
        }
        true
    }

    /// The store has come back.
    fn count_reflected(&mut self, page: u32, offset: u32, size: u8, out: &mut Vec<Action>) {
        let (lanes, keep) = (self.counts(offset, size), self.config.has(Bug::KeepCounters));
        let pending = &mut self.server.replicas.pending;
        let word = (page, offset & !7);
        let Some(counts) = pending.get_mut(&word) else { return };
        for lane in lanes {
            counts[lane] = counts[lane].saturating_sub(1);
        }
        // Only counters that are not zero are kept.
        if counts.iter().all(|count| *count == 0) && !keep {
            pending.remove(&word);
        }
        self.counters_freed(out);
    }

    fn counters_freed(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.server.replicas.stalled) {
            self.serve_again(self.config.node, out);
        }
    }

    /// The parts of a store whose bytes have no pending write of this node.
    fn unmasked(&self, page: u32, offset: u32, size: u8, data: u64) -> Vec<(u32, u8, u64)> {
        let Some(counts) = self.server.replicas.pending.get(&(page, offset & !7)) else {
            return vec![(offset, size, data)];
        };
        let free = |from: u32, size: u8| self.counts(from, size).all(|lane| counts[lane] == 0);
        let mut parts = Vec::new();
        let mut at = 0u32;
        while at < u32::from(size) {
            // The widest aligned piece from here on.
            let piece = [8u8, 4, 2, 1].into_iter().find(|piece| {
                let fits = at + u32::from(*piece) <= u32::from(size) && (offset + at) % u32::from(*piece) == 0;
                fits && free(offset + at, *piece)
            });
            match piece {
                Some(piece) => {
                    let ones = if piece == 8 { u64::MAX } else { (1 << (8 * u32::from(piece))) - 1 };
                    parts.push((offset + at, piece, data >> (8 * at) & ones));
                    at += u32::from(piece);
                }
                None => at += 1,
            }
        }
        parts
    }

    // ---- work ----

    /// Starts the next work of a page, if none is under way.
    fn work_on(&mut self, page: u32, out: &mut Vec<Action>) {
        loop {
            let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|replica| !replica.busy) else {
                return;
            };
            let (mode, Some(work)) = (replica.mode, replica.work.front().cloned()) else { return };
            if matches!(work, Work::Move(_) | Work::Take) {
                replica.work.pop_front();
                match work {
                    // New copies are complete first.
                    Work::Move(_) if replica.work.iter().any(|work| matches!(work, Work::Read(..))) => {
                        replica.work.push_back(work);
                    }
                    Work::Move(packet) => self.give_home(page, packet, out),
                    _ => self.take_home(page, out),
                }
                continue;
            }
            // From here on: a counter that is freed below lets the next store of this node begin.
            replica.busy = true;
            if let Some(op) = self.first_step(page, mode, &work, out) {
                self.step(op, Purpose::Replica(page), out);
                return;
            }
            let failed = !self.bus_master || !self.server.grants.contains_key(&page);
            if let Some(replica) = self.server.replicas.pages.get_mut(&page) {
                replica.busy = false;
                replica.work.pop_front();
            }
            match work {
                work if failed => self.refuse_work(work, Status::MemoryFault, out),
                Work::Apply(packet, _) => self.acknowledge_copy(&packet, Status::Ok, out),
                work => self.refuse_work(work, Status::Invalid, out),
            }
        }
    }

    /// The first guest-memory step of a work; none if it needs none, or guest memory cannot be reached now.
    fn first_step(&mut self, page: u32, mode: Mode, work: &Work, out: &mut Vec<Action>) -> Option<Step> {
        let base = self.server.grants.get(&page).filter(|_| self.bus_master)?.address;
        let place = |offset: u32| base + u64::from(offset);
        match work {
            Work::Request(_, packet) => match packet.body {
                Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. } => {
                    Some(Step::Store { address: place(at.offset), size, data })
                }
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    Some(Step::Atomic { address: place(at.offset), size, op, operand, compare })
                }
                _ => None,
            },
            Work::Apply(packet, _) => {
                let (offset, size, data) = self.apply(page, mode, packet, out)?;
                Some(Step::Store { address: place(offset), size, data })
            }
            Work::Fill(Packet { body: Body::Fill { at, data, .. }, .. }) => {
                Some(Step::StoreBlock { address: place(at.offset), data: data.clone() })
            }
            Work::Fill(_) | Work::Lost | Work::Move(_) | Work::Take => None,
            Work::Read(_, offset) => Some(Step::LoadBlock { address: place(*offset), length: MAX_BLOCK as u32 }),
        }
    }

    /// What the next part of a reflected store is; decided when its turn has come.
    fn apply(&mut self, page: u32, mode: Mode, packet: &Packet, out: &mut Vec<Action>) -> Option<(u32, u8, u64)> {
        let Body::Reflected { at, size, data, writer } = packet.body else { return None };
        let parts = if mode == Mode::Counters && writer == self.config.node {
            self.count_reflected(page, at.offset, size, out);
            Vec::new()
        } else if mode == Mode::Counters && !self.config.has(Bug::IgnoreCounters) {
            self.unmasked(page, at.offset, size, data)
        } else {
            vec![(at.offset, size, data)]
        };
        let first = parts.first().copied();
        let replica = self.server.replicas.pages.get_mut(&page)?;
        if let Some(Work::Apply(_, rest)) = replica.work.front_mut() {
            *rest = parts.into_iter().skip(1).collect();
        }
        first
    }

    /// A step of a page's work is done.
    pub(crate) fn replica_stepped(&mut self, page: u32, result: StepResult, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
        // The other parts of a store whose bytes are masked.
        if let (Some(Work::Apply(_, rest)), StepResult::Stored) = (replica.work.front_mut(), &result) {
            if !rest.is_empty() && !replica.gone {
                let (offset, size, data) = rest.remove(0);
                if let Some(address) = self.server.grants.get(&page).map(|grant| grant.address + u64::from(offset)) {
                    self.step(Step::Store { address, size, data }, Purpose::Replica(page), out);
                    return;
                }
            }
        }
        replica.busy = false;
        let late = std::mem::take(&mut replica.late);
        match replica.work.pop_front() {
            // The page may be a copy of the same home again.
            Some(Work::Apply(packet, _) | Work::Fill(packet)) if late => {
                self.acknowledge_copy(&packet, Status::NotHome, out);
            }
            Some(work) if late => self.refuse_work(work, Status::NotHome, out),
            Some(work) => self.work_done(page, work, result, out),
            None => {}
        }
        if self.end_replica_if_gone(page, out) {
            self.finish_clearing(out);
            return;
        }
        self.work_on(page, out);
        self.leave_if_done(page, out);
    }

    fn work_done(&mut self, page: u32, work: Work, result: StepResult, out: &mut Vec<Action>) {
        match (work, result) {
            (work, StepResult::Failed(status)) => self.refuse_work(work, status, out),
            (Work::Request(source, _), result) => self.performed_at(page, source, result, out),
            (Work::Apply(packet, _), _) => self.acknowledge_copy(&packet, Status::Ok, out),
            (Work::Fill(packet), _) => {
                let last = matches!(packet.body, Body::Fill { last: true, .. });
                // Before what follows it is taken: a store behind the last of its content is one to a complete copy.
                if let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|_| last) {
                    replica.filled = true;
                    replica.joining = None;
                    if let Some(slot) = replica.setting.take() {
                        self.complete_status(slot, Status::Ok, out);
                    }
                }
                self.acknowledge_copy(&packet, Status::Ok, out);
            }
            (Work::Read(to, offset), StepResult::Block(data)) => {
                let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
                if !replica.copies.contains_key(&to) {
                    return;
                }
                let next = offset + MAX_BLOCK as u32;
                let last = u64::from(next) >= UNIT;
                if !last {
                    replica.work.push_back(Work::Read(to, next));
                }
                let at = RemoteAddr { page, offset, generation: replica.generation };
                self.multicast(&[to], Body::Fill { at, data, last }, None, out);
            }
            (Work::Read(..) | Work::Lost | Work::Move(_) | Work::Take, _) => {}
        }
    }

    /// A store or atomic has been performed in this node's memory: it goes on to the others.
    fn performed_at(&mut self, page: u32, source: NodeId, result: StepResult, out: &mut Vec<Action>) {
        let own = source == self.config.node;
        let Some(packet) = self.detach(source, out) else { return };
        if own && !self.config.has(Bug::TakenEarly) {
            self.taken(&packet, out);
        }
        let Some(replica) = self.server.replicas.pages.get(&page) else { return };
        if !replica.orders() {
            self.forward(packet, page, out);
            self.serve_again(source, out);
            return;
        }
        let copies: Vec<NodeId> = replica.copies.keys().copied().chain(self.still_invalid(page)).collect();
        let (at, size, data, answer) = match (&packet.body, result) {
            (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) => {
                let new = op.apply(*size, old, *operand, *compare);
                (*at, *size, new, Body::AtomicReply { status: Status::Ok, data: old })
            }
            (Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. }, _) => {
                (*at, *size, *data, Body::WriteAck { status: Status::Ok })
            }
            _ => return,
        };
        let update = matches!(packet.body, Body::Update { .. });
        let writer = if update { source } else { self.config.node };
        let body = Body::Reflected { at, size, data, writer };
        self.counters.reflected += copies.len() as u64;
        self.multicast(&copies, body, Some((packet, answer)), out);
        self.forget_invalid(page, out);
        self.serve_again(source, out);
    }

    fn refuse_work(&mut self, work: Work, status: Status, out: &mut Vec<Action>) {
        match work {
            Work::Request(source, packet) => {
                self.refuse(source, packet, status, out);
                self.serve_again(source, out);
            }
            Work::Apply(packet, _) | Work::Fill(packet) => {
                self.give_up_copy(&packet, status, out);
                self.acknowledge_copy(&packet, status, out);
            }
            Work::Move(packet) => self.refuse_forward(packet, status, out),
            Work::Read(..) | Work::Lost | Work::Take => {}
        }
    }

    /// What a copy refuses makes its home forget it: it is told, too.
    fn give_up_copy(&mut self, packet: &Packet, status: Status, out: &mut Vec<Action>) {
        let (Body::Reflected { at, .. } | Body::Fill { at, .. }) = packet.body else { return };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.server.replicas.sources.get(&source).copied() else { return };
        if self.server.replicas.pages.get(&page).is_some_and(|replica| !replica.gone) {
            self.source_lost(page, source, status, out);
        }
    }

    // ---- from copies to the home ----

    /// Sends a request of this node's processors on to the home.
    fn forward(&mut self, packet: Packet, page: u32, out: &mut Vec<Action>) {
        let unanswered = self.server.replicas.forwards.values().filter(|forward| forward.page == page);
        let last = unanswered.map(|forward| forward.place).max();
        let place = last.map_or(0, |last| last + 1);
        if let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|replica| replica.keeps()) {
            let place = replica.returned.last_key_value().map_or(place, |(last, _)| place.max(last + 1));
            replica.returned.insert(place, packet);
            return;
        }
        let source = self.server.replicas.pages.get(&page).and_then(|replica| replica.sources.first().copied());
        let Some((home, home_page, generation)) = source else {
            return self.refuse_forward(packet, Status::NotHome, out);
        };
        let there = |at: RemoteAddr| RemoteAddr { page: home_page, offset: at.offset, generation };
        let body = match packet.body.clone() {
            Body::Write { at, context, size, data } => Body::Update { at: there(at), context, size, data },
            Body::Read { at, context, size } => Body::Read { at: there(at), context, size },
            Body::Atomic { at, context, size, op, operand, compare } => {
                Body::Atomic { at: there(at), context, size, op, operand, compare }
            }
            _ => return self.refuse_forward(packet, Status::Invalid, out),
        };
        if let Err(status) = self.reachable(home) {
            return self.refuse_forward(packet, status, out);
        }
        let number = crate::hib::lowest_free(&self.server.replicas.forwards);
        self.begin_in_order(number, page);
        let moves = self.server.replicas.pages.get(&page).map_or(0, |replica| replica.moves);
        self.server.replicas.forwards.insert(number, Forward { packet, page, moves, place, refused: false });
        self.issuer.peers[usize::from(home)].accept(Waiting::Forward { number, body });
        self.pump(home, out);
    }

    fn refuse_forward(&mut self, packet: Packet, status: Status, out: &mut Vec<Action>) {
        let body = packet.body.refusal(status).unwrap_or(Body::WriteAck { status });
        self.reply_to(&packet, body, out);
    }

    /// The home has answered: everybody has the store, or it is lost.
    pub(crate) fn forward_answered(&mut self, number: u64, body: Body, out: &mut Vec<Action>) {
        let Some(forward) = self.server.replicas.forwards.remove(&number) else { return };
        let Forward { packet, page, moves, place, refused } = forward;
        if refused {
            return self.leave_if_done(page, out);
        }
        let status = match (&packet.body, &body) {
            (Body::Write { .. }, Body::WriteAck { status })
            | (Body::Read { .. }, Body::ReadReply { status, .. })
            | (Body::Atomic { .. }, Body::AtomicReply { status, .. }) => *status,
            _ => Status::Invalid,
        };
        let replica = self.server.replicas.pages.get_mut(&page);
        let elsewhere = |replica: &Replica| replica.moves != moves && replica.orphaned.is_none();
        match replica {
            // It goes to the new home, which this node knows already or will be told of.
            Some(replica) if status == Status::Moving && replica.orphaned.is_none() => {
                replica.returned.insert(place, packet);
            }
            Some(replica) if status == Status::NotHome && elsewhere(replica) => {
                replica.returned.insert(place, packet);
            }
            _ => self.forward_ended(number, packet, page, Some(body).filter(|_| status == Status::Ok), status, out),
        }
        self.follow_if_ready(page, out);
        self.leave_if_done(page, out);
    }

    /// The answer to a request that was forwarded goes to the processor, or a refusal.
    fn forward_ended(
        &mut self,
        number: u64,
        packet: Packet,
        page: u32,
        body: Option<Body>,
        status: Status,
        out: &mut Vec<Action>,
    ) {
        let refusal = packet.body.refusal(status).unwrap_or(Body::WriteAck { status });
        self.answer_in_order(number, packet, body.unwrap_or(refusal), out);
        // An atomic may be refused for itself; a store that the home does not take leaves this copy alone with it.
        if matches!(status, Status::NotHome | Status::NotGranted | Status::Stale | Status::Rights | Status::Reset) {
            self.orphan(page, status, out);
        }
    }

    pub(crate) fn forward_lost(&mut self, number: u64, status: Status, out: &mut Vec<Action>) {
        let Some(Forward { packet, page, refused, .. }) = self.server.replicas.forwards.remove(&number) else {
            return;
        };
        if !refused {
            let refusal = packet.body.refusal(status).unwrap_or(Body::WriteAck { status });
            self.answer_in_order(number, packet, refusal, out);
            self.orphan(page, status, out);
        }
        self.leave_if_done(page, out);
    }

    /// The board has taken a store of this import: it is in this node's memory (SPEC E22b).
    fn taken(&mut self, packet: &Packet, out: &mut Vec<Action>) {
        let Some((context, index, count)) = self.count_taken(packet.tag) else { return };
        let Some(page) = self.issuer.contexts.get(&context).map(|c| c.status_page) else { return };
        self.count_in_status(context, page + context::TAKEN_OFFSET + 8 * u64::from(index), count, out);
    }

    // ---- from the home to the copies ----

    /// Sends the same to all these nodes; `answer` goes out when all of them have taken it (SPEC E19).
    fn multicast(&mut self, to: &[NodeId], body: Body, answer: Option<(Packet, Body)>, out: &mut Vec<Action>) {
        let moves = matches!(answer, Some((Packet { body: Body::Move { .. }, .. }, _)));
        let own = answer.as_ref().is_some_and(|(packet, _)| packet.src == self.config.node);
        let early =
            self.config.has(Bug::AcknowledgeEarly) && !moves || own && self.config.has(Bug::AcknowledgeReflected);
        if to.is_empty() || early {
            if let Some((packet, body)) = answer.clone() {
                self.reply_to(&packet, body, out);
            }
            if to.is_empty() {
                return;
            }
        }
        let answer = answer.filter(|_| !early);
        let multicasts = &mut self.server.replicas.multicasts;
        let first = self.server.replicas.round << TAG_INDEX_BITS;
        let used = multicasts.range(first..).map(|(tag, _)| *tag);
        let tag = used.fold(first, |free, used| if free == used { free.wrapping_add(1) } else { free });
        let page = body.page();
        multicasts.insert(tag, Multicast { page, waits: to.iter().copied().collect(), answer });
        self.server.replicas.outgoing.push_back(Outgoing { tag, body, to: to.to_vec() });
        self.pump_reflected(out);
    }

    /// Sends what credits allow.
    pub(crate) fn pump_reflected(&mut self, out: &mut Vec<Action>) {
        loop {
            let replicas = &mut self.server.replicas;
            let Some(first) = replicas.outgoing.front_mut() else { return };
            let Some(node) = first.to.first().copied() else {
                replicas.outgoing.pop_front();
                continue;
            };
            let Some(link) = self.link.as_mut().filter(|link| link.credits[Class::Reflected as usize] > 0) else {
                return;
            };
            link.credits[Class::Reflected as usize] -= 1;
            let (tag, body) = (first.tag, first.body.clone());
            let group = replicas.groups.get(&body.page());
            let all = group == Some(&first.to) || (group.is_some() && self.config.has(Bug::StaleGroup));
            let (dst, target) = if all {
                first.to.clear();
                (MULTICAST, 0)
            } else {
                first.to.remove(0);
                (node, self.target(node))
            };
            let packet = Packet { src: self.config.node, dst, tag, incarnation: self.incarnation, target, body };
            self.transmit(packet, out);
        }
    }

    /// Tells the switch whom multicasts of a page are for, if that has changed. Two copies at least: one needs no group.
    fn announce_group(&mut self, page: u32, out: &mut Vec<Action>) {
        let replicas = &mut self.server.replicas;
        if !self.config.fanout_by_switch || self.link.is_none() {
            return;
        }
        let replica = replicas.pages.get(&page).filter(|replica| replica.copies.len() > 1);
        let mut members: Vec<NodeId> = replica.map_or(Vec::new(), |replica| replica.copies.keys().copied().collect());
        let others = replicas.groups.iter().filter(|group| *group.0 != page).map(|group| group.1.len()).sum::<usize>();
        if others + members.len() > MAX_MEMBERSHIPS {
            members.clear();
        }
        let known = replicas.groups.remove(&page).unwrap_or_default();
        if !members.is_empty() {
            replicas.groups.insert(page, members.clone());
        }
        if members != known {
            out.push(Action::Group { page, members });
        }
    }

    /// The link is gone. The switch knows no group of this node any more; what came over it took none of the next link's credits, and the
    /// homes that sent it are lost.
    pub(crate) fn replica_link_lost(&mut self) {
        self.server.replicas.groups.clear();
        if self.config.has(Bug::ChargeNextLink) {
            return;
        }
        self.server.replicas.arrivals.clear();
        for replica in self.server.replicas.pages.values_mut() {
            if let Some(first @ (Work::Apply(..) | Work::Fill(_))) = replica.work.front_mut().filter(|_| replica.busy) {
                *first = Work::Lost;
            }
            replica.work.retain(|work| !matches!(work, Work::Apply(..) | Work::Fill(_)));
            // Nor is there anybody left to acknowledge anything to.
            replica.held.clear();
        }
    }

    /// A copy has taken a multicast, or will never.
    pub(crate) fn copy_acknowledged(&mut self, node: NodeId, tag: u32, status: Status, out: &mut Vec<Action>) {
        let Some(multicast) = self.server.replicas.multicasts.get_mut(&tag) else { return };
        if !multicast.waits.remove(&node) {
            return;
        }
        let (done, page) = (multicast.waits.is_empty(), multicast.page);
        let come_back = multicast.answer.as_ref().is_some_and(|(packet, _)| packet.src == node);
        let early = come_back && self.config.has(Bug::AcknowledgeReflected);
        let answer = multicast.answer.take_if(|_| done || early);
        if done {
            self.server.replicas.multicasts.remove(&tag);
        }
        match answer {
            Some((packet, _)) if matches!(packet.body, Body::Move { .. }) => self.all_told(page, packet, out),
            Some((packet, body)) => self.reply_to(&packet, body, out),
            None => {}
        }
        if !matches!(status, Status::Ok | Status::Invalidated) {
            // It has no such copy, or cannot write it: it is none any more.
            self.forget_copy(page, node, out);
            out.push(Action::Notice(Notice::FailedOperation { node, status }));
        }
    }

    /// Something of a home has arrived. What one node sends is taken one after the other, whichever pages it is for: who sees a store sees what
    /// the home did before (SPEC I6, words of one home).
    pub(crate) fn reflected(&mut self, packet: Packet, out: &mut Vec<Action>) {
        let source = packet.src;
        self.server.replicas.arrivals.entry(source).or_default().packets.push_back(packet);
        self.take_arrivals(source, out);
    }

    /// Takes what has arrived from a node, up to a packet whose work takes a step.
    fn take_arrivals(&mut self, source: NodeId, out: &mut Vec<Action>) {
        let Some(arrivals) = self.server.replicas.arrivals.get_mut(&source) else { return };
        if std::mem::replace(&mut arrivals.taking, true) {
            return;
        }
        while let Some(arrivals) = self.server.replicas.arrivals.get_mut(&source) {
            let Some(packet) = arrivals.packets.front().filter(|_| !arrivals.working).cloned() else { break };
            match self.take_arrival(&packet, out) {
                Arrival::Done(status) => self.acknowledge_copy(&packet, status, out),
                Arrival::Working => {}
                Arrival::Held => self.release_arrival(packet.src),
            }
        }
        let Some(arrivals) = self.server.replicas.arrivals.get_mut(&source) else { return };
        arrivals.taking = false;
        if arrivals.packets.is_empty() {
            self.server.replicas.arrivals.remove(&source);
        }
    }

    /// What becomes of a packet.
    fn take_arrival(&mut self, packet: &Packet, out: &mut Vec<Action>) -> Arrival {
        if packet.target != self.incarnation {
            return Arrival::Done(Status::Reset);
        }
        let (Body::Reflected { at, .. } | Body::Fill { at, .. } | Body::Rehome { at, .. }) = packet.body else {
            return Arrival::Done(Status::Invalid);
        };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.server.replicas.sources.get(&source).copied() else {
            // Of somebody who is not the home: nothing of it is believed.
            self.counters.refused += 1;
            out.push(Action::Notice(Notice::Refused { from: packet.src, page: at.page, status: Status::NotHome }));
            return Arrival::Done(Status::NotHome);
        };
        let work = match packet.body {
            Body::Rehome { to: NO_NODE, .. } => {
                self.source_lost(page, source, Status::Stale, out);
                return Arrival::Done(Status::Ok);
            }
            Body::Rehome { .. } => return self.rehomed(page, source, packet, out),
            Body::Reflected { .. } if self.is_valid_copy(page) => return self.invalidated(page, packet, out),
            Body::Fill { .. } => Work::Fill(packet.clone()),
            _ => Work::Apply(packet.clone(), Vec::new()),
        };
        if let Some(arrivals) = self.server.replicas.arrivals.get_mut(&packet.src) {
            arrivals.working = true;
        }
        if let Some(replica) = self.server.replicas.pages.get_mut(&page) {
            replica.work.push_back(work);
        }
        self.work_on(page, out);
        Arrival::Working
    }

    /// The first of what has arrived from a node is done with.
    fn release_arrival(&mut self, source: NodeId) {
        if let Some(arrivals) = self.server.replicas.arrivals.get_mut(&source) {
            arrivals.packets.pop_front();
            arrivals.working = false;
        }
        self.consumed(Class::Reflected);
    }

    fn acknowledge_copy(&mut self, packet: &Packet, status: Status, out: &mut Vec<Action>) {
        self.release_arrival(packet.src);
        self.reply_to(packet, Body::CopyAck { status }, out);
        self.take_arrivals(packet.src, out);
    }

    /// A page that this one copies is not there any more. A naive page is everybody's own and goes on; others are orphans then.
    fn source_lost(&mut self, page: u32, source: Source, status: Status, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page).filter(|r| r.sources.contains(&source)) else {
            return;
        };
        if replica.mode != Mode::Naive {
            return self.orphan(page, status, out);
        }
        replica.sources.remove(&source);
        self.server.replicas.sources.remove(&source);
        if replica.joining == Some(source) {
            replica.joining = None;
            if let Some(slot) = replica.setting.take() {
                self.complete_status(slot, status, out);
            }
        }
    }

    // ---- members come and go ----

    /// A node is a copy of a page no more: nothing waits for it.
    fn forget_copy(&mut self, page: u32, node: NodeId, out: &mut Vec<Action>) {
        let Some(replica) = self.server.replicas.pages.get_mut(&page) else { return };
        if replica.copies.remove(&node).is_some() {
            let for_it = |work: &Work| matches!(work, Work::Read(to, _) if *to == node);
            // A step in flight ends the first work, whatever it is then.
            if let Some(first) = replica.work.front_mut().filter(|first| replica.busy && for_it(first)) {
                *first = Work::Lost;
            }
            replica.work.retain(|work| !for_it(work));
            self.announce_group(page, out);
        }
    }

    /// A node has gone or begun another life: as a home, as a copy, as a requester.
    pub(crate) fn forget_member(&mut self, node: NodeId, status: Status, out: &mut Vec<Action>) {
        for outgoing in &mut self.server.replicas.outgoing {
            outgoing.to.retain(|to| *to != node);
        }
        self.server.replicas.outgoing.retain(|outgoing| !outgoing.to.is_empty());
        let unanswered =
            self.server.replicas.multicasts.iter().filter(|(_, multicast)| multicast.waits.contains(&node));
        let tags: Vec<u32> = unanswered.map(|(tag, _)| *tag).collect();
        if !tags.is_empty() {
            // Its next life may still acknowledge what was sent to this one: that must not be taken for something else.
            let round = &mut self.server.replicas.round;
            *round = (*round + u32::from(!self.config.has(Bug::ReuseTags))) & (u32::MAX >> TAG_INDEX_BITS);
        }
        let pages: Vec<u32> = self.server.replicas.pages.keys().copied().collect();
        // First of all: nothing is begun with it by what it would have acknowledged.
        for page in &pages {
            self.forget_copy(*page, node, out);
        }
        for tag in tags {
            self.copy_acknowledged(node, tag, Status::Ok, out);
        }
        for page in pages {
            let Some(replica) = self.server.replicas.pages.get_mut(&page) else { continue };
            let lost: Vec<Source> = replica.sources.iter().copied().filter(|source| source.0 == node).collect();
            if lost.is_empty() {
                continue;
            }
            for source in lost {
                self.source_lost(page, source, status, out);
            }
        }
    }

    /// Reset: who waits for the copies of a home that was here, or for a page's work, is refused.
    pub(crate) fn refuse_multicasts(&mut self, status: Status, out: &mut Vec<Action>) {
        let replicas = std::mem::take(&mut self.server.replicas);
        for mut replica in replicas.pages.into_values() {
            for packet in replica.held.drain(..) {
                self.reply_to(&packet, Body::CopyAck { status }, out);
            }
            if let Some(Moving::Giving { packet: Some(packet), .. }) = replica.moving {
                self.refuse_forward(packet, status, out);
            }
            for work in replica.work {
                match work {
                    Work::Request(..) if self.config.has(Bug::ForgetWork) => {}
                    Work::Request(source, packet) => {
                        // It is in service: the head of its source's queue, which nobody else would take away.
                        self.detach(source, out);
                        if source != self.config.node {
                            self.refuse_forward(packet, status, out);
                        }
                    }
                    Work::Move(packet) => self.refuse_forward(packet, status, out),
                    // Answered below, with what waits behind them.
                    Work::Apply(..) | Work::Fill(_) | Work::Read(..) | Work::Take | Work::Lost => {}
                }
            }
        }
        for packet in replicas.arrivals.into_values().flat_map(|arrivals| arrivals.packets) {
            self.acknowledge_copy(&packet, status, out);
        }
        for multicast in replicas.multicasts.into_values() {
            if let Some((packet, _)) = multicast.answer.filter(|(packet, _)| packet.src != self.config.node) {
                self.refuse_forward(packet, status, out);
            }
        }
    }

    /// The home of a replicated page of this node; none if it is not replicated, or an orphan.
    pub fn home_of(&self, page: u32) -> Option<NodeId> {
        let replica = self.server.replicas.pages.get(&page).filter(|replica| replica.orphaned.is_none())?;
        if replica.home { Some(self.config.node) } else { replica.sources.first().map(|source| source.0) }
    }

    /// Pending-write counters in use, of [`crate::HibConfig::pending_writes`].
    pub fn pending_counters(&self) -> usize {
        self.server.replicas.pending.len()
    }
}
