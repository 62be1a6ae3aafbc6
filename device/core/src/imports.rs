// SPDX-License-Identifier: MIT OR Apache-2.0
//! The issuing side: window accesses, imports, back-pressure, and quiet.
//!
//! A store is accepted into the queue of its *destination* (per-pair FIFO, SPEC I8), leaves it when the window of
//! outstanding requests and the switch's credits allow, and is finished when its acknowledgement arrives. Nothing
//! accepted is forgotten: it ends performed, or refused or failed with the import's error latched. A lost store *cuts* its
//! import: later stores are dropped until the driver acknowledges, so that none passes a lost one.

use crate::config::Bug;
use crate::enqueue::Line;
use crate::events::Cause;
use crate::hib::Hib;
use crate::launch::Turns;
use crate::replica::Source;
use crate::{Action, Bar, HibConfig, LostStore, Notice, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::Shares;
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{
    Body, Class, ImportEpoch, NodeId, Packet, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, WindowAddress,
};
use telegraphos_wire::{context, event};

/// One open import: where it leads, and what of it is unfinished.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Import {
    pub(crate) context: u16,
    /// Counts openings of all imports: names this one for good.
    pub(crate) opening: u64,
    pub(crate) node: NodeId,
    pub(crate) first_slot: u32,
    slots: u32,
    pub(crate) page: u32,
    pub(crate) length: u64,
    generation: u64,
    pub(crate) rights: Rights,
    /// Stores accepted, and of those finished (both since the import was opened).
    issued: u64,
    finished: u64,
    /// How many stores must be finished for the first quiet that waits for it, if one does.
    awaited: Option<u64>,
    /// Operations that use it and are unfinished.
    pub(crate) operations: u32,
    /// Stores accepted that wait in the destination's queue.
    waiting: u32,
    /// Congested by its own waiting stores; by the board's intake.
    congested: bool,
    throttled: bool,
    /// Stored since the socket was last dry.
    active: bool,
    pub(crate) cut: bool,
    /// Which of its stores belong together: the receiver that refuses one refuses all behind it of the same epoch.
    pub(crate) epoch: u32,
    /// A store of this epoch has been refused by its receiver; an acknowledgement begins another one.
    refused: bool,
    /// Of replicated pages here: the word of the status page that counts its stores taken, and that count.
    taken: Option<(u32, u64)>,
    /// It is an import of a queue.
    pub(crate) queue: bool,
    /// Arguments that came through it with a wrong key or for another's context.
    pub(crate) bad_keys: u32,
    /// Its node went down or was reset: it stays cut whatever is acknowledged, and can only be closed. The node may come
    /// back with other memory under the same pages and even generations.
    pub(crate) dead: bool,
    pub(crate) error: Option<Status>,
    closing: Option<u32>,
}

impl Import {
    fn stopped(&self) -> bool {
        self.congested || self.throttled
    }

    fn is_idle(&self) -> bool {
        self.finished == self.issued && self.operations == 0
    }

    /// Where in its node's exported memory the byte at `offset` of the segment is.
    pub(crate) fn address(&self, offset: u64) -> RemoteAddr {
        let page = self.page + (offset >> UNIT_SHIFT) as u32;
        RemoteAddr { page, offset: (offset & (UNIT - 1)) as u32, generation: self.generation }
    }
}

/// Something that waits for a reply other than a store.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Asked {
    Load {
        token: Token,
        import: u16,
        size: u8,
    },
    Lookup {
        slot: u32,
    },
    /// Hold slots for an import that is being opened by this admin slot.
    Reserve {
        opens: (u32, u16),
    },
    /// Fewer hold slots than before, of the queue there.
    Return {
        node: NodeId,
        at: RemoteAddr,
    },
    /// To become, or to be no more, a copy: the export page here.
    Join {
        page: u32,
        source: Source,
    },
    Leave {
        page: u32,
    },
    /// To become the home of the export page here.
    Move {
        page: u32,
    },
    /// To stay a copy when the home moves; the packet by which the old one said so, unless this is it.
    Keep {
        page: u32,
        source: Source,
        packet: Option<Packet>,
    },
}

#[derive(Clone, Debug, Hash)]
struct Question {
    node: NodeId,
    deadline: u64,
    asked: Asked,
}

/// An entry of a destination's queue.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Waiting {
    Store {
        import: u16,
        at: RemoteAddr,
        size: u8,
        data: u64,
    },
    /// A load or lookup, by its number in `questions`; gone from there if it has timed out.
    Question {
        number: u64,
        body: Box<Body>,
    },
    /// A part of an operation: which bytes of it, and the request.
    Part {
        operation: u64,
        offset: u64,
        body: Box<Body>,
    },
}

/// Bytes that a waiting store takes: what the reserve costs.
const _: () = assert!(size_of::<(u64, Waiting)>() <= 40);

/// A request for the home of a replicated page that waits to be sent.
#[derive(Clone, Debug, Hash)]
pub(crate) struct WaitingForward {
    /// Its number among the replicas' forwards.
    pub(crate) number: u64,
    pub(crate) body: Body,
    /// The import (number and opening) of whose waiting stores it is one.
    pub(crate) import: Option<(u16, u64)>,
}

/// A request that was sent and not yet answered.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) enum Sent {
    Store { import: u16, epoch: u32 },
    Question { number: u64 },
    Part { operation: u64, offset: u64 },
    Element { opening: u64, epoch: u32 },
    Forward { number: u64 },
}

/// What this node knows of another, and what it has for it.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Peer {
    pub(crate) incarnation: Option<u64>,
    /// What waits to be sent, each with its number in the order of acceptance.
    waiting: VecDeque<(u64, Waiting)>,
    /// Requests of copies for their home, which it answers when all copies have them. They have a window of their own, so that a copy which is
    /// slow to acknowledge holds up no other request.
    forwards: VecDeque<(u64, WaitingForward)>,
    forwarded: u32,
    accepted: u64,
    /// Requests sent since both nodes live their present lives, modulo 2^32.
    pub(crate) requests: u32,
    outstanding: u32,
    /// Elements sent and not answered.
    pub(crate) elements: u32,
    /// It is among those that wait for credits.
    short: bool,
    /// Loads asked since anything came from it.
    unheard: BTreeSet<u64>,
    /// A load has timed out, and nothing has come from it since the load was asked.
    silent: bool,
    /// How often everything outstanding to it was given up.
    round: u32,
    /// Imports of queues with elements that wait, by their opening, in turns.
    pub(crate) enqueuers: VecDeque<u64>,
    /// Copies with blocks left to start, in turns; blocks under way.
    pub(crate) copies: Turns,
    pub(crate) blocks: u32,
    /// Slot -> import + 1; empty until the first import of this node.
    slots: Vec<u16>,
}

impl Peer {
    pub(crate) fn accept(&mut self, waiting: Waiting) {
        self.accepted += 1;
        self.waiting.push_back((self.accepted, waiting));
    }

    pub(crate) fn accept_forward(&mut self, waiting: WaitingForward) {
        self.accepted += 1;
        self.forwards.push_back((self.accepted, waiting));
    }

    /// Requests sent and not answered, of both windows.
    fn unanswered(&self) -> u32 {
        self.outstanding + self.forwarded
    }

    /// Whether a store for this export page of the node waits.
    pub(crate) fn stores_to(&self, page: u32) -> bool {
        self.waiting.iter().any(|(_, waiting)| matches!(waiting, Waiting::Store { at, .. } if at.page == page))
    }

    /// How many requests have been accepted so far.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Whether the first `count` requests accepted have been sent or dropped.
    pub(crate) fn has_sent(&self, count: u64) -> bool {
        let later = |number: &u64| *number > count;
        self.waiting.front().is_none_or(|(number, _)| later(number))
            && self.forwards.front().is_none_or(|(number, _)| later(number))
    }
}

/// Where a checked window access goes: import, address, bytes.
type Target = (u16, RemoteAddr, u8);

/// A refused window access: node, import if the address had one, reason.
type Rejection = (NodeId, Option<u16>, Status);

#[derive(Clone, Debug, Hash)]
pub(crate) struct Quiet {
    pub(crate) cookie: u64,
    /// Its end is an event.
    pub(crate) notify: bool,
    /// By import, ascending.
    targets: Vec<QuietTarget>,
    /// Operations that must be finished, ascending; of those that are, nothing is left.
    operations: Vec<u64>,
    /// Targets that are not reached, and operations that are not finished.
    unfinished: usize,
    /// The first loss among what it waits for, or one that was not acknowledged when it was issued. An acknowledgement does not change it.
    lost: Option<Status>,
}

/// An import that a quiet waits for.
#[derive(Clone, Copy, Debug, Hash)]
struct QuietTarget {
    import: u16,
    /// Which opening of that number: another one has other stores.
    opening: u64,
    /// How many of its stores must be finished.
    stores: u64,
    /// They are.
    reached: bool,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Context {
    pub(crate) status_page: u64,
    pub(crate) key: u64,
    pub(crate) quiets: BTreeMap<u8, Quiet>,
    pub(crate) errors: u64,
    /// Its open imports.
    imports: BTreeSet<u16>,
}

/// All state of the issuing side.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Issuer {
    pub(crate) peers: Vec<Peer>,
    imports: Vec<Option<Box<Import>>>,
    pub(crate) contexts: BTreeMap<u16, Context>,
    openings: u64,
    /// The last epoch of an import of this board, modulo 2^32.
    epochs: u32,
    /// Elements of imports of queues, by the import's opening.
    pub(crate) lines: BTreeMap<u64, Line>,
    /// Queues (node, page, generation) whose node has not answered how many imports are left, and whether that has changed since.
    pub(crate) returning: BTreeMap<(NodeId, u32, u64), bool>,
    /// Tags of this node's requests to itself that are a home's to answer now: they take no place of the own window any more.
    passed: BTreeSet<u32>,
    /// Tag index -> (tag, node, what).
    sent: Vec<Option<(u32, NodeId, Sent)>>,
    free_tags: BTreeSet<u32>,
    questions: BTreeMap<u64, Question>,
    next_question: u64,
    deadlines: BTreeSet<(u64, u64)>,
    pub(crate) waiting_total: u32,
    /// How the reserve is divided among the open imports.
    reserve: Shares,
    intake: u32,
    throttled: BTreeSet<u16>,
    /// Nodes for which something waits for credits, in turns.
    short: VecDeque<NodeId>,
    /// Imports that are being closed.
    closing: BTreeSet<u16>,
}

/// A tag is an index into the table of sent requests, with its peer's round above it, which makes answers recognisable that come after the
/// peer was given up. Indices depend on what is outstanding alone, so that boards in the same state go on alike.
const TAG_INDEX_BITS: u32 = 20;

/// Entries for which an empty queue keeps memory.
const KEPT: usize = 1024;

/// A queue has run empty. The next entry goes to the same place in memory: with thousands of peers this is what a store costs. What a
/// backlog took is given back.
pub(crate) fn emptied<T>(queue: &mut VecDeque<T>) {
    queue.clear();
    if queue.capacity() > KEPT {
        queue.shrink_to(KEPT);
    }
}

fn ones(size: u8) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

fn access_size(offset: u64, size: u32) -> Result<u8, Status> {
    match size {
        1 | 2 | 4 | 8 if offset % u64::from(size) == 0 => Ok(size as u8),
        _ => Err(Status::BadSize),
    }
}

impl Issuer {
    pub(crate) fn new(config: &HibConfig) -> Issuer {
        Issuer {
            peers: vec![Peer::default(); config.window.nodes() as usize],
            imports: vec![None; usize::from(config.imports)],
            contexts: BTreeMap::new(),
            openings: 0,
            epochs: 0,
            lines: BTreeMap::new(),
            returning: BTreeMap::new(),
            passed: BTreeSet::new(),
            sent: Vec::new(),
            free_tags: BTreeSet::new(),
            questions: BTreeMap::new(),
            next_question: 0,
            deadlines: BTreeSet::new(),
            waiting_total: 0,
            reserve: Shares::half_guaranteed(config.reserve.into(), 0, u64::MAX),
            intake: 0,
            throttled: BTreeSet::new(),
            short: VecDeque::new(),
            closing: BTreeSet::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<u64> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// A store has come through an import that is no store to its segment: an argument.
    pub(crate) fn touched(&mut self, number: u16) {
        if let Some(import) = self.import(number) {
            import.active = true;
        }
    }

    pub(crate) fn any_congested(&self) -> bool {
        self.imports.iter().flatten().any(|i| i.stopped())
    }

    pub(crate) fn open_import(&self, number: u16) -> Option<&Import> {
        self.imports.get(usize::from(number))?.as_deref()
    }

    pub(crate) fn import(&mut self, number: u16) -> Option<&mut Import> {
        self.imports.get_mut(usize::from(number))?.as_deref_mut()
    }

    pub(crate) fn open_context(&mut self, number: u16, status_page: u64, key: u64) -> Result<(), Status> {
        if self.contexts.contains_key(&number) {
            return Err(Status::Busy);
        }
        self.contexts
            .insert(number, Context { status_page, key, quiets: BTreeMap::new(), errors: 0, imports: BTreeSet::new() });
        Ok(())
    }

    pub(crate) fn close_context(&mut self, number: u16) -> Result<(), Status> {
        if self.contexts.get(&number).is_some_and(|context| !context.imports.is_empty()) {
            return Err(Status::Busy);
        }
        self.contexts.remove(&number).map(|_| ()).ok_or(Status::Invalid)
    }

    pub(crate) fn take_tag(&mut self, node: NodeId, sent: Sent) -> u32 {
        let index = match self.free_tags.pop_first() {
            Some(index) => index,
            None => {
                self.sent.push(None);
                self.sent.len() as u32 - 1
            }
        };
        let round = self.peers.get(usize::from(node)).map_or(0, |peer| peer.round);
        let tag = index | round << TAG_INDEX_BITS;
        self.sent[index as usize] = Some((tag, node, sent));
        tag
    }

    fn release_tag(&mut self, tag: u32, node: NodeId) -> Option<Sent> {
        let index = tag & ((1 << TAG_INDEX_BITS) - 1);
        let entry = self.sent.get_mut(index as usize)?;
        match *entry {
            Some((t, n, sent)) if t == tag && n == node => {
                *entry = None;
                self.free_tags.insert(index);
                while let Some(None) = self.sent.last() {
                    self.sent.pop();
                    self.free_tags.remove(&(self.sent.len() as u32));
                }
                Some(sent)
            }
            _ => None,
        }
    }

    pub(crate) fn slot(&self, address: &WindowAddress) -> Option<u16> {
        let slots = &self.peers.get(usize::from(address.node))?.slots;
        slots.get(address.slot() as usize)?.checked_sub(1)
    }
}

impl Hib {
    // ---- window accesses ----

    /// Finds and checks the import behind a window address; on failure says which import it was, if any.
    fn resolve(&self, offset: u64, size: u32, right: Rights) -> Result<Target, Rejection> {
        let aperture = if right == Rights::ENQUEUE { Aperture::Enqueue } else { Aperture::Plain };
        let address = self.config.window.decode(offset);
        let node = address.node;
        let size = access_size(offset, size).map_err(|status| (node, None, status))?;
        if address.aperture != aperture {
            return Err((node, None, Status::Aperture));
        }
        let Some(number) = self.issuer.slot(&address) else {
            // Name the nearer reason where there is one: the id is beyond the fabric's nodes.
            let status = match self.link.nodes() {
                Some(nodes) if u32::from(node) >= nodes && node != self.config.node => Status::BadNode,
                _ => Status::Unmapped,
            };
            return Err((node, None, status));
        };
        let Some(import) = self.issuer.imports[usize::from(number)].as_deref() else {
            return Err((node, None, Status::Unmapped));
        };
        let fail = |status| Err((node, Some(number), status));
        if import.dead {
            return fail(import.error.unwrap_or(Status::NodeDown));
        }
        if !import.rights.contains(right) {
            return fail(Status::Rights);
        }
        let page = address.slot() - import.first_slot;
        let within = address.within();
        if (u64::from(page) << UNIT_SHIFT) + u64::from(within) + u64::from(size) > import.length {
            return fail(Status::Bounds);
        }
        if let Err(status) = self.reachable(node) {
            return fail(status);
        }
        let at = RemoteAddr { page: import.page + page, offset: within, generation: import.generation };
        Ok((number, at, size))
    }

    pub(crate) fn store(&mut self, offset: u64, size: u32, data: u64, out: &mut Vec<Action>) {
        self.count_intake(out);
        if self.config.window.decode(offset).aperture == Aperture::Argument {
            return self.argument(offset, size, data, out);
        }
        if self.special_access(offset, size, out) {
            return;
        }
        let enqueue = self.config.window.decode(offset).aperture == Aperture::Enqueue;
        let right = if enqueue { Rights::ENQUEUE } else { Rights::WRITE };
        let (number, at, size) = match self.resolve(offset, size, right) {
            Ok(found) => found,
            Err((node, Some(import), status)) => return self.lose_store(node, import, status, out),
            Err((_, None, status)) => {
                self.counters.dropped += 1;
                return self.bad_access(Bar::Window, offset, size, status, out);
            }
        };
        let full = !self.has_room(number);
        let Some(import) = self.issuer.import(number) else { return };
        let node = import.node;
        if import.cut && !self.config.has(Bug::PassLostStore) {
            self.counters.dropped += 1;
            return;
        }
        if full {
            return self.lose_store(node, number, Status::Cut, out);
        }
        if enqueue && size < 4 {
            return self.lose_store(node, number, Status::NotQueue, out);
        }
        let peer = &mut self.issuer.peers[usize::from(node)];
        if self.config.has(Bug::DropWhenFull) && peer.outstanding >= self.config.outstanding {
            return;
        }
        let data = data & ones(size);
        if enqueue {
            self.accept_element(node, number, at, size, data);
        } else {
            peer.accept(Waiting::Store { import: number, at, size, data });
            self.counters.stores += 1;
        }
        self.issuer.waiting_total += 1;
        if let Some(import) = self.issuer.import(number) {
            import.issued += 1;
            import.waiting += 1;
            import.active = true;
        }
        if !enqueue {
            self.count_access(node, at.page, true, out);
        }
        self.pump(node, out);
        let congest_at = self.config.congest_at;
        if let Some(import) =
            self.issuer.import(number).filter(|import| import.waiting >= congest_at && !import.congested)
        {
            import.congested = true;
            self.stopped(number, true, out);
        }
    }

    pub(crate) fn load(&mut self, token: Token, offset: u64, size: u32, out: &mut Vec<Action>) {
        if self.special_access(offset, size, out) {
            out.push(Action::ReadDone { token, data: 0 });
            return;
        }
        if let Some(data) = self.command_load(offset, out) {
            out.push(Action::ReadDone { token, data });
            return;
        }
        let (number, at, size) = match self.resolve(offset, size, Rights::READ) {
            Ok(found) => found,
            Err((node, import, status)) => {
                match import {
                    Some(import) => self.fail_load(node, import, status, out),
                    None => self.bad_access(Bar::Window, offset, size, status, out),
                }
                out.push(Action::ReadDone { token, data: ones(size.min(8) as u8) });
                return;
            }
        };
        let Some(import) = self.issuer.import(number) else { return };
        let (node, context) = (import.node, import.context);
        if self.is_silent(node) {
            self.counters.silent_loads += 1;
            self.fail_load(node, number, Status::Timeout, out);
            out.push(Action::ReadDone { token, data: ones(size) });
            return;
        }
        self.counters.loads += 1;
        self.count_access(node, at.page, false, out);
        let asked = Asked::Load { token, import: number, size };
        self.ask(node, asked, Body::Read { at, context, size }, out);
    }

    /// Whether a load would only time out: one has, and the node has not answered anything since. What it has not answered tells when it
    /// does, since nothing is lost on the way; without anything of the kind the next load is sent.
    fn is_silent(&self, node: NodeId) -> bool {
        self.issuer.peers.get(usize::from(node)).is_some_and(|peer| peer.silent && peer.unanswered() > 0)
    }

    /// Something has come from a node.
    pub(crate) fn heard(&mut self, node: NodeId) {
        if self.config.has(Bug::SilentForEver) {
            return;
        }
        let Some(peer) = self.issuer.peers.get_mut(usize::from(node)) else { return };
        if peer.silent || !peer.unheard.is_empty() {
            peer.silent = false;
            peer.unheard.clear();
        }
    }

    /// Queues a load or lookup behind everything sent to its node before.
    pub(crate) fn ask(&mut self, node: NodeId, asked: Asked, body: Body, out: &mut Vec<Action>) {
        let number = self.issuer.next_question;
        self.issuer.next_question += 1;
        let deadline = self.now + self.config.load_limit;
        if matches!(asked, Asked::Load { .. }) && node != self.config.node {
            self.issuer.peers[usize::from(node)].unheard.insert(number);
        }
        self.issuer.questions.insert(number, Question { node, deadline, asked });
        self.issuer.deadlines.insert((deadline, number));
        self.issuer.peers[usize::from(node)].accept(Waiting::Question { number, body: Box::new(body) });
        self.pump(node, out);
    }

    fn take_question(&mut self, number: u64) -> Option<Question> {
        let question = self.issuer.questions.remove(&number)?;
        self.issuer.deadlines.remove(&(question.deadline, number));
        Some(question)
    }

    /// Ends a load or lookup without an answer.
    fn fail_question(&mut self, number: u64, status: Status, out: &mut Vec<Action>) {
        let Some(question) = self.take_question(number) else { return };
        match question.asked {
            Asked::Load { token, import, size } => {
                self.fail_load(question.node, import, status, out);
                out.push(Action::ReadDone { token, data: ones(size) });
            }
            Asked::Lookup { slot } => self.complete_status(slot, status, out),
            Asked::Reserve { opens } => self.reserved(opens, Err(status), out),
            Asked::Return { node, at } => self.holds_returned(node, at, out),
            Asked::Join { page, source } => self.join_failed(page, source, status, out),
            Asked::Leave { page } => self.left(page, out),
            Asked::Move { page } => self.move_failed(page, status, out),
            Asked::Keep { page, source, packet } => self.kept(page, source, packet, status, out),
        }
    }

    pub(crate) fn expire(&mut self, out: &mut Vec<Action>) {
        while let Some(&(deadline, number)) = self.issuer.deadlines.first() {
            if deadline > self.now {
                return;
            }
            let node = self.issuer.questions.get(&number).map(|question| question.node);
            if let Some(peer) = node.and_then(|node| self.issuer.peers.get_mut(usize::from(node))) {
                peer.silent |= peer.unheard.remove(&number);
            }
            self.fail_question(number, Status::Timeout, out);
            self.issuer.deadlines.remove(&(deadline, number));
        }
    }

    // ---- sending ----

    /// Sends what has waited for credits, as far as they reach.
    pub(crate) fn pump_short(&mut self, out: &mut Vec<Action>) {
        for node in std::mem::take(&mut self.issuer.short) {
            self.issuer.peers[usize::from(node)].short = false;
            self.pump(node, out);
        }
    }

    /// Whether a packet of this class may be sent to another node now; if not, it waits for credits. Each node that is present has a
    /// share of them that the others cannot hold, however long they take (`Shares::half_guaranteed`).
    pub(crate) fn has_credit(&mut self, node: NodeId, class: Class) -> bool {
        if !self.link.is_up() {
            return false;
        }
        let peer = &mut self.issuer.peers[usize::from(node)];
        let unanswered = if class == Class::Enqueue { peer.elements } else { peer.unanswered() };
        let any = self.config.has(Bug::ShareAllCredits) && self.link.has_credit(class);
        let admitted = any || self.link.admits(class, unanswered) && !self.config.has(Bug::ShareAllCredits);
        if !admitted && !std::mem::replace(&mut peer.short, true) {
            self.issuer.short.push_back(node);
        }
        admitted
    }

    /// Sends what waits for the own window, if requests that were passed on have left it.
    pub(crate) fn pump_own(&mut self, out: &mut Vec<Action>) {
        let own = &self.issuer.peers[usize::from(self.config.node)];
        if !own.waiting.is_empty() && own.outstanding < self.config.outstanding {
            self.pump_requests(self.config.node, out);
        }
    }

    /// Sends what the window of outstanding requests, the holds of queues and the credits allow.
    pub(crate) fn pump(&mut self, node: NodeId, out: &mut Vec<Action>) {
        self.pump_requests(node, out);
        self.pump_elements(node, out);
    }

    fn pump_requests(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let own = node == self.config.node;
        loop {
            let peer = &mut self.issuer.peers[usize::from(node)];
            let shared = self.config.has(Bug::ForwardsShareWindow);
            let used = |window: u32| if shared { peer.unanswered() } else { window };
            let waiting = peer.waiting.front().filter(|_| used(peer.outstanding) < self.config.outstanding);
            let forward = peer.forwards.front().filter(|_| used(peer.forwarded) < self.config.outstanding);
            // A copy that asks for a page does so behind all its stores to it.
            let asks = |waiting: &(u64, Waiting)| match &waiting.1 {
                Waiting::Question { body, .. } => matches!(**body, Body::Move { .. }),
                _ => false,
            };
            let behind = |number: u64| peer.forwards.front().is_some_and(|(first, _)| *first < number);
            let waiting = waiting.filter(|waiting| !(asks(waiting) && behind(waiting.0)));
            let forward = match (waiting, forward) {
                (None, None) => return,
                // In the order of acceptance as far as their windows allow.
                (Some(waiting), Some(forward)) => forward.0 < waiting.0,
                (waiting, _) => waiting.is_none(),
            };
            if !own && !self.has_credit(node, Class::Request) {
                return;
            }
            if forward {
                self.send_forward(node, out);
                continue;
            }
            let peer = &mut self.issuer.peers[usize::from(node)];
            let Some((_, waiting)) = peer.waiting.pop_front() else { return };
            if peer.waiting.is_empty() {
                emptied(&mut peer.waiting);
            }
            let (body, sent) = match waiting {
                Waiting::Store { import, at, size, data } => {
                    let context = self.left_queue(import, out);
                    // What waits is of the present epoch: a refusal, which comes before another one, has left nothing waiting.
                    let epoch = self.epoch_of(import);
                    (Body::Write { at, context, epoch, size, data }, Sent::Store { import, epoch: epoch.epoch })
                }
                Waiting::Question { number, body } => {
                    if !self.issuer.questions.contains_key(&number) {
                        continue; // It has timed out already.
                    }
                    (*body, Sent::Question { number })
                }
                Waiting::Part { operation, offset, body } => (*body, Sent::Part { operation, offset }),
            };
            self.issuer.peers[usize::from(node)].outstanding += 1;
            self.send_request(node, body, sent, out);
        }
    }

    /// Sends a request. The caller has seen a credit for it.
    fn send_request(&mut self, node: NodeId, body: Body, sent: Sent, out: &mut Vec<Action>) {
        if node != self.config.node {
            self.link.spend(Class::Request);
        }
        let peer = &mut self.issuer.peers[usize::from(node)];
        peer.requests = peer.requests.wrapping_add(1);
        let target = self.target(node);
        let tag = self.issuer.take_tag(node, sent);
        let packet = Packet { src: self.config.node, dst: node, tag, incarnation: self.incarnation, target, body };
        self.transmit(packet, out);
    }

    /// Sends the oldest request for the home of a page that waits, if anybody still waits for it.
    fn send_forward(&mut self, node: NodeId, out: &mut Vec<Action>) {
        let forwards = &mut self.issuer.peers[usize::from(node)].forwards;
        let Some((_, waiting)) = forwards.pop_front() else { return };
        if forwards.is_empty() {
            emptied(forwards);
        }
        let WaitingForward { number, body, import } = waiting;
        self.left_line(import, out);
        // Behind a lost store of its import it must not be made.
        let cut = |(import, opening): (u16, u64)| {
            self.issuer.open_import(import).is_some_and(|import| import.opening == opening && import.cut)
        };
        let cut = import.is_some_and(cut);
        if self.drop_forward(number, cut, out) {
            return;
        }
        self.issuer.peers[usize::from(node)].forwarded += 1;
        self.send_request(node, body, Sent::Forward { number }, out);
    }

    /// A store of this node's processors to a copy here waits for its home from now on: it is one of its import's waiting stores.
    pub(crate) fn enter_line(&mut self, tag: u32, out: &mut Vec<Action>) -> Option<(u16, u64)> {
        let congest_at = self.config.congest_at;
        let number = self.store_of(tag)?;
        let import = self.issuer.import(number)?;
        let opening = import.opening;
        import.waiting += 1;
        self.issuer.waiting_total += 1;
        if let Some(import) =
            self.issuer.import(number).filter(|import| import.waiting >= congest_at && !import.congested)
        {
            import.congested = true;
            self.stopped(number, true, out);
        }
        Some((number, opening))
    }

    fn left_line(&mut self, import: Option<(u16, u64)>, out: &mut Vec<Action>) {
        let Some((number, opening)) = import else { return };
        match self.issuer.open_import(number).filter(|import| import.opening == opening) {
            Some(_) => {
                self.left_queue(number, out);
            }
            None => self.issuer.waiting_total -= 1,
        }
    }

    /// The import of this node's own store with that tag.
    fn store_of(&self, tag: u32) -> Option<u16> {
        let index = tag & ((1 << TAG_INDEX_BITS) - 1);
        match self.issuer.sent.get(index as usize).copied().flatten() {
            Some((t, _, Sent::Store { import, .. })) if t == tag => Some(import),
            _ => None,
        }
    }

    /// A request of this node to itself has been passed on to a home: its place in the own window is free.
    pub(crate) fn pass_tag(&mut self, tag: u32) {
        let own = &mut self.issuer.peers[usize::from(self.config.node)];
        if !self.config.has(Bug::ForwardsShareWindow) && self.issuer.passed.insert(tag) {
            own.outstanding = own.outstanding.saturating_sub(1);
        }
    }

    /// A store of `import` leaves the waiting queue; ends the import's congestion when few are left.
    pub(crate) fn left_queue(&mut self, number: u16, out: &mut Vec<Action>) -> u16 {
        self.issuer.waiting_total -= 1;
        let clear_at = self.config.clear_at;
        let Some(import) = self.issuer.import(number) else { return 0 };
        import.waiting -= 1;
        let context = import.context;
        if import.congested && import.waiting <= clear_at {
            import.congested = false;
            let free = !import.throttled;
            if free {
                self.stopped(number, false, out);
            }
        }
        context
    }

    /// The store with this tag is in this node's copy: context, word of its status page, and count.
    pub(crate) fn count_taken(&mut self, tag: u32) -> Option<(u16, u32, u64)> {
        let import = self.store_of(tag)?;
        let import = self.issuer.import(import)?;
        let (word, count) = import.taken.as_mut()?;
        *count += 1;
        Some((import.context, *word, *count))
    }

    // ---- replies ----

    pub(crate) fn reply(&mut self, packet: Packet, out: &mut Vec<Action>) {
        if packet.incarnation != self.incarnation && packet.src != self.config.node {
            return; // An answer to an earlier life.
        }
        if let Body::CopyAck { status } = packet.body {
            return self.copy_acknowledged(packet.src, packet.tag, status, out);
        }
        let Some(sent) = self.issuer.release_tag(packet.tag, packet.src) else { return };
        let passed = self.issuer.passed.remove(&packet.tag) && packet.src == self.config.node;
        let peer = &mut self.issuer.peers[usize::from(packet.src)];
        match sent {
            Sent::Element { .. } => peer.elements = peer.elements.saturating_sub(1),
            Sent::Forward { .. } => peer.forwarded = peer.forwarded.saturating_sub(1),
            _ if passed => {}
            _ => peer.outstanding = peer.outstanding.saturating_sub(1),
        }
        match (sent, packet.body) {
            (Sent::Element { opening, epoch }, body) => {
                let status = if let Body::WriteAck { status } = body { status } else { Status::Invalid };
                self.element_finished(opening, epoch, status, out);
            }
            (Sent::Store { import, epoch }, Body::WriteAck { status }) => {
                self.store_finished(import, epoch, status, out);
            }
            (Sent::Question { number }, body) => self.answered(number, body, out),
            (Sent::Forward { number }, body) => self.forward_answered(number, body, out),
            (Sent::Part { operation, offset }, body) => self.part_answered(operation, offset, body, out),
            // A store that is answered with something else counts as lost.
            (Sent::Store { import, epoch }, _) => self.store_finished(import, epoch, Status::Invalid, out),
        }
        self.pump(packet.src, out);
    }

    /// A question has its answer, or one of another kind: then it has failed.
    fn answered(&mut self, number: u64, body: Body, out: &mut Vec<Action>) {
        let Some(asked) = self.issuer.questions.get(&number).map(|question| question.asked.clone()) else { return };
        match (asked, body) {
            (Asked::Load { token, size, .. }, Body::ReadReply { status: Status::Ok, data }) => {
                self.take_question(number);
                out.push(Action::ReadDone { token, data: data & ones(size) });
            }
            (Asked::Reserve { opens }, Body::ReserveReply { status: Status::Ok, holds }) => {
                self.take_question(number);
                self.reserved(opens, Ok(holds), out);
            }
            (Asked::Return { node, at }, _) => {
                self.take_question(number);
                self.holds_returned(node, at, out);
            }
            (
                Asked::Lookup { slot },
                Body::LookupReply { status: Status::Ok, page, count, length, generation, rights, width },
            ) => {
                self.take_question(number);
                let completion = Completion {
                    index: page,
                    count,
                    generation,
                    length,
                    rights: u32::from(rights.0),
                    width: u32::from(width),
                    ..Completion::of(0, Status::Ok)
                };
                self.complete(slot, completion, out);
            }
            // What follows fills the copy, or says who the home is.
            (Asked::Join { page, source }, Body::WriteAck { status: Status::Ok }) => {
                self.take_question(number);
                self.join_accepted(page, source);
            }
            (Asked::Move { .. }, Body::WriteAck { status: Status::Ok }) => {
                self.take_question(number);
            }
            (Asked::Keep { page, source, packet }, Body::WriteAck { status: Status::Ok }) => {
                self.take_question(number);
                self.kept(page, source, packet, Status::Ok, out);
            }
            (_, body) => {
                let status = match body {
                    Body::ReadReply { status, .. }
                    | Body::LookupReply { status, .. }
                    | Body::ReserveReply { status, .. }
                    | Body::WriteAck { status } => status,
                    _ => Status::Invalid,
                };
                self.fail_question(number, if status.is_ok() { Status::Invalid } else { status }, out);
            }
        }
    }

    /// A store (or element) of this epoch of an import has been acknowledged or refused.
    pub(crate) fn store_finished(&mut self, number: u16, epoch: u32, status: Status, out: &mut Vec<Action>) {
        let Some(import) = self.issuer.import(number) else { return };
        import.finished += 1;
        let node = import.node;
        if !status.is_ok() && import.epoch == epoch {
            let first = !std::mem::replace(&mut import.refused, true);
            self.lose(node, number, status, first, out);
            if self.config.has(Bug::PassLostStore) {
                self.begin_epoch(number);
            }
        } else if !status.is_ok() {
            // Its epoch has been acknowledged as lost: what is issued now does not come behind it.
            self.counters.dropped += 1;
            out.push(Action::Notice(Notice::LostStore(LostStore { node, import: Some(number), status })));
        }
        self.progressed(number, out);
    }

    /// What identifies stores of an open import at their receiver.
    pub(crate) fn epoch_of(&self, number: u16) -> ImportEpoch {
        ImportEpoch { import: number, epoch: self.issuer.open_import(number).map_or(0, |import| import.epoch) }
    }

    /// The stores of an import do not belong to its earlier ones any more.
    fn begin_epoch(&mut self, number: u16) {
        self.issuer.epochs = self.issuer.epochs.wrapping_add(1);
        let epoch = self.issuer.epochs;
        if let Some(import) = self.issuer.import(number) {
            (import.epoch, import.refused) = (epoch, false);
        }
        self.begin_epoch_of_line(number, epoch);
    }

    // ---- errors ----

    /// A store of an import is lost before it is sent.
    fn lose_store(&mut self, node: NodeId, number: u16, status: Status, out: &mut Vec<Action>) {
        // What waits was issued before a store that found no room, and still goes out.
        let first = self.issuer.open_import(number).is_some_and(|import| !import.cut);
        self.lose(node, number, status, first && status != Status::Cut, out);
    }

    /// A store of an import is lost: latch the first reason, cut the import, and maybe drop what waits.
    fn lose(&mut self, node: NodeId, number: u16, status: Status, purge: bool, out: &mut Vec<Action>) {
        self.counters.dropped += 1;
        out.push(Action::Notice(Notice::LostStore(LostStore { node, import: Some(number), status })));
        let Some(import) = self.issuer.import(number) else { return };
        let first = !import.cut;
        import.cut = true;
        // First the error: a quiet that waits only for what is dropped now must report it.
        self.latch(number, status, out);
        if purge && !self.config.has(Bug::PassLostStore) {
            self.purge(number, out);
        }
        if first {
            self.cause(Cause::ImportState(number), out);
        }
    }

    fn fail_load(&mut self, node: NodeId, import: u16, status: Status, out: &mut Vec<Action>) {
        out.push(Action::Notice(Notice::FailedLoad { node, status }));
        self.latch(import, status, out);
    }

    pub(crate) fn latch(&mut self, number: u16, status: Status, out: &mut Vec<Action>) {
        self.counters.errors += 1;
        let Some(import) = self.issuer.import(number) else { return };
        if import.error.is_some() {
            return; // Each quiet that waits has that one, or a later one, already.
        }
        import.error = Some(status);
        let (context, opening) = (import.context, import.opening);
        self.charge_quiets(context, status, |quiet| {
            quiet.targets.iter().any(|target| target.import == number && target.opening == opening)
        });
        self.count_context_error(context, out);
        self.cause(Cause::ImportState(number), out);
    }

    /// Counts an error in a context's status page.
    pub(crate) fn count_context_error(&mut self, number: u16, out: &mut Vec<Action>) {
        if let Some(context) = self.issuer.contexts.get_mut(&number) {
            context.errors += 1;
            let (address, errors) = (context.status_page + context::ERRORS_OFFSET, context.errors);
            self.count_in_status(number, address, errors, out);
        }
    }

    /// Drops the waiting stores of an import. They were never sent, so they leave the count of issued ones too.
    fn purge(&mut self, number: u16, out: &mut Vec<Action>) {
        let Some(import) = self.issuer.import(number) else { return };
        let node = import.node;
        let queue = &mut self.issuer.peers[usize::from(node)].waiting;
        let before = queue.len();
        queue.retain(|(_, w)| !matches!(w, Waiting::Store { import, .. } if *import == number));
        let mut purged = (before - queue.len()) as u32;
        purged += self.drop_waiting(number);
        if purged == 0 {
            return;
        }
        self.issuer.waiting_total -= purged;
        self.counters.dropped += u64::from(purged);
        if let Some(import) = self.issuer.import(number) {
            import.issued -= u64::from(purged);
            import.waiting = import.waiting.saturating_sub(purged);
            let (context, opening, issued) = (import.context, import.opening, import.issued);
            let freed = std::mem::take(&mut import.congested) && !import.throttled;
            import.awaited = import.awaited.map(|stores| stores.min(issued));
            // A quiet that waited for what is dropped does not wait for what is issued from now on instead.
            let quiets = self.issuer.contexts.get_mut(&context).map(|context| context.quiets.values_mut());
            for target in quiets.into_iter().flatten().flat_map(|quiet| &mut quiet.targets) {
                if target.import == number && target.opening == opening {
                    target.stores = target.stores.min(issued);
                }
            }
            if freed {
                self.stopped(number, false, out);
            }
        }
        self.progressed(number, out);
    }

    /// A node or the link has gone: everything for it ends now.
    pub(crate) fn fail_peer(&mut self, node: NodeId, status: Status, out: &mut Vec<Action>) {
        let peer = &mut self.issuer.peers[usize::from(node)];
        peer.outstanding = 0;
        peer.forwarded = 0;
        peer.elements = 0;
        peer.silent = false;
        peer.unheard.clear();
        peer.round = peer.round.wrapping_add(1);
        peer.requests = 0;
        let (mut questions, mut parts, mut forwards) = (Vec::new(), Vec::new(), Vec::new());
        peer.waiting.retain(|(_, w)| match w {
            Waiting::Question { number, .. } => {
                questions.push(*number);
                false
            }
            Waiting::Part { operation, .. } => {
                parts.push(*operation);
                false
            }
            Waiting::Store { .. } => true,
        });
        let lines: Vec<WaitingForward> = peer.forwards.drain(..).map(|(_, waiting)| waiting).collect();
        for WaitingForward { number, import, .. } in lines {
            self.left_line(import, out);
            forwards.push(number);
        }
        let tags: Vec<u32> = self.issuer.sent.iter().flatten().filter(|s| s.1 == node).map(|s| s.0).collect();
        // First the stores that waited: `lose_store` purges them with the first failure of their import.
        for number in 0..self.issuer.imports.len() as u16 {
            let lost = self.issuer.import(number).is_some_and(|i| i.node == node && i.issued > i.finished);
            if lost {
                self.lose_store(node, number, status, out);
            }
        }
        // Copies that only wait for their turn end first, so that none of them starts another block.
        self.fail_waiting_copies(node, status, out);
        for tag in tags {
            match self.issuer.release_tag(tag, node) {
                Some(Sent::Element { opening, .. }) => {
                    let Some(number) = self.element_lost(opening) else { continue };
                    if let Some(import) = self.issuer.import(number) {
                        import.finished += 1;
                    }
                    self.progressed(number, out);
                }
                Some(Sent::Store { import, .. }) => {
                    if let Some(import) = self.issuer.import(import) {
                        import.finished += 1;
                    }
                    self.progressed(import, out);
                }
                Some(Sent::Question { number }) => self.fail_question(number, status, out),
                Some(Sent::Part { operation, .. }) => self.part_lost(operation, status, out),
                Some(Sent::Forward { number }) => self.forward_lost(number, status, out),
                None => {}
            }
        }
        for operation in parts {
            self.part_lost(operation, status, out);
        }
        for number in forwards {
            self.forward_lost(number, status, out);
        }
        for number in questions {
            self.fail_question(number, status, out);
        }
        self.end_lines_to(node);
        self.kill_imports(node, status, out);
    }

    /// The other end of a node's imports is no longer what they were opened on.
    pub(crate) fn kill_imports(&mut self, node: NodeId, status: Status, out: &mut Vec<Action>) {
        for number in 0..self.issuer.imports.len() as u16 {
            if self.issuer.import(number).is_some_and(|i| i.node == node && !i.dead) {
                self.kill_import(number, status, out);
            }
        }
    }

    /// This import is of no more use; it can only be closed.
    pub(crate) fn kill_import(&mut self, number: u16, status: Status, out: &mut Vec<Action>) {
        let Some(import) = self.issuer.import(number) else { return };
        import.dead = true;
        import.cut = true;
        self.latch(number, status, out);
        self.purge(number, out);
        self.cause(Cause::ImportState(number), out);
    }

    /// Reset: every table of the issuing side is emptied; loads are answered, lookups forgotten with their slots.
    pub(crate) fn fail_all(&mut self, status: Status, out: &mut Vec<Action>) {
        let questions: Vec<u64> = self.issuer.questions.keys().copied().collect();
        for number in questions {
            if let Some(Question { node, asked: Asked::Load { token, size, .. }, .. }) = self.take_question(number) {
                out.push(Action::Notice(Notice::FailedLoad { node, status }));
                out.push(Action::ReadDone { token, data: ones(size) });
            }
        }
        let mut fresh = Issuer::new(&self.config);
        for (new, old) in fresh.peers.iter_mut().zip(&self.issuer.peers) {
            new.incarnation = old.incarnation;
            // Tags stay unique across the reset.
            new.round = old.round.wrapping_add(1);
        }
        fresh.next_question = self.issuer.next_question;
        fresh.openings = self.issuer.openings;
        fresh.epochs = self.issuer.epochs;
        self.issuer = fresh;
    }

    // ---- back-pressure ----

    fn stopped(&mut self, import: u16, on: bool, out: &mut Vec<Action>) {
        if on {
            self.counters.congested += 1;
        }
        out.push(Action::Notice(Notice::Congested { import, on }));
        self.cause(Cause::ImportState(import), out);
    }

    /// QEMU queues posted stores without bound. A socket that never runs dry means that its queue grows: stop the
    /// processes that store.
    pub(crate) fn count_intake(&mut self, out: &mut Vec<Action>) {
        self.issuer.intake = self.issuer.intake.saturating_add(1);
        if self.issuer.intake < self.config.intake_limit {
            return;
        }
        self.issuer.intake = 0;
        self.throttle_contexts(out);
        for number in 0..self.issuer.imports.len() as u16 {
            let Some(import) = self.issuer.import(number) else { continue };
            if std::mem::take(&mut import.active) && !import.throttled {
                import.throttled = true;
                let news = !import.congested;
                self.issuer.throttled.insert(number);
                if news {
                    self.stopped(number, true, out);
                }
            }
        }
    }

    pub(crate) fn intake_dry(&mut self, out: &mut Vec<Action>) {
        self.issuer.intake = 0;
        self.release_contexts(out);
        for number in std::mem::take(&mut self.issuer.throttled) {
            let Some(import) = self.issuer.import(number) else { continue };
            import.throttled = false;
            if !import.congested {
                self.stopped(number, false, out);
            }
        }
    }

    /// Whether one more store of an import may wait. Half of the reserve is divided among the open imports, so that one that only waits is not
    /// cut because others have filled it.
    fn has_room(&self, number: u16) -> bool {
        let free = self.config.reserve.saturating_sub(self.issuer.waiting_total);
        let held = self.issuer.open_import(number).map_or(0, |import| import.waiting);
        if self.config.has(Bug::ShareWholeReserve) {
            return free > 0;
        }
        self.issuer.reserve.admits(free.into(), held.into())
    }

    /// Divides the reserve among the open imports.
    fn divide_reserve(&mut self) {
        let open = self.issuer.imports.iter().flatten().count() as u64;
        self.issuer.reserve = Shares::half_guaranteed(self.config.reserve.into(), open, u64::MAX);
    }

    /// Whether so many stores wait that the shell should take in no more for a while, if it can.
    pub fn is_nearly_full(&self) -> bool {
        self.issuer.waiting_total >= self.config.reserve / 4
    }

    /// Stores and elements of the whole board that wait to be sent, of [`HibConfig::reserve`].
    pub fn waiting(&self) -> u32 {
        self.issuer.waiting_total
    }

    /// Stores (or elements) accepted through an open import and not dropped, and how many of those are finished: what quiet waits for.
    pub fn import_progress(&self, number: u16) -> Option<(u64, u64)> {
        self.issuer.open_import(number).map(|import| (import.issued, import.finished))
    }

    /// The value that the next IMPORT_STATE event of an import tells: TG_IMPORT_* bits, its latched status in bits 31:16.
    pub fn import_state(&self, number: u16) -> u64 {
        let Some(import) = self.issuer.imports.get(usize::from(number)).and_then(|i| i.as_deref()) else { return 0 };
        let mut value = import.error.map_or(0, |status| (status as u64) << 16);
        if import.stopped() {
            value |= event::IMPORT_CONGESTED;
        }
        if import.cut {
            value |= event::IMPORT_CUT;
        }
        value
    }

    // ---- quiet ----

    /// `QUIET[slot]` of a context <- import << 48 | cookie. One about an import that is not open here is refused and answered all the same: who
    /// has asked while the import was closed (a replicated segment is adopted) waits for nothing that never comes.
    pub(crate) fn quiet(&mut self, number: u16, slot: u8, data: u64, out: &mut Vec<Action>) -> Result<(), Status> {
        let scope = (data >> context::COOKIE_BITS) as u16;
        let cookie = data & ((1 << context::COOKIE_BITS) - 1);
        let all = u64::from(scope) == context::QUIET_ALL;
        if self.slot_is_busy(number, slot) {
            return Err(Status::Busy);
        }
        // One that waits in this slot is forgotten, and its word is for this one.
        let Some(context) = self.issuer.contexts.get_mut(&number) else { return Err(Status::Unmapped) };
        if context.quiets.remove(&slot).is_none() {
            self.take_word(number)?;
        }
        if !all && self.issuer.open_import(scope).is_none_or(|import| import.context != number) {
            self.slot_done((number, slot), cookie, Status::Unmapped, None, false, out);
            return Err(Status::Rights);
        }
        let Some(context) = self.issuer.contexts.get_mut(&number) else { return Err(Status::Unmapped) };
        let scope = match all {
            true => context.imports.iter().copied().collect(),
            false => vec![scope],
        };
        let operations = self.launcher.used_by(number, |import| all || scope.contains(&import));
        let (mut targets, mut lost) = (Vec::with_capacity(scope.len()), None);
        let mut unfinished = operations.len();
        for n in scope {
            let Some(import) = self.issuer.import(n) else { continue };
            let (opening, stores, reached) = (import.opening, import.issued, import.finished >= import.issued);
            targets.push(QuietTarget { import: n, opening, stores, reached });
            lost = lost.or(import.error);
            if !reached {
                unfinished += 1;
                import.awaited = Some(import.awaited.map_or(stores, |awaited| awaited.min(stores)));
            }
        }
        if let Some(context) = self.issuer.contexts.get_mut(&number) {
            context.quiets.insert(slot, Quiet { cookie, notify: false, targets, operations, unfinished, lost });
        }
        self.check_quiet(number, slot, out);
        Ok(())
    }

    /// Something is lost: the quiets of a context that wait for it report it, whatever is acknowledged before they are done (SPEC I7, E19).
    fn charge_quiets(&mut self, context: u16, status: Status, waits: impl Fn(&Quiet) -> bool) {
        let Some(context) = self.issuer.contexts.get_mut(&context) else { return };
        for quiet in context.quiets.values_mut().filter(|quiet| waits(quiet)) {
            quiet.lost = quiet.lost.or(Some(status));
        }
    }

    /// An operation has failed: so do the quiets that wait for it, whichever of its imports they are about.
    pub(crate) fn charge_quiets_of(&mut self, context: u16, operation: u64, status: Status) {
        self.charge_quiets(context, status, |quiet| quiet.operations.contains(&operation));
    }

    /// Completes a quiet if all that it waits for is finished.
    fn check_quiet(&mut self, number: u16, slot: u8, out: &mut Vec<Action>) {
        let ignore = self.config.has(Bug::QuietIgnoresOutstanding);
        let Some(context) = self.issuer.contexts.get_mut(&number) else { return };
        if context.quiets.get(&slot).is_none_or(|quiet| quiet.unfinished > 0 && !ignore) {
            return;
        }
        let Some(quiet) = context.quiets.remove(&slot) else { return };
        let mut status = quiet.lost;
        if self.config.has(Bug::QuietReadsPresentError) {
            let open = |t: &QuietTarget| self.issuer.open_import(t.import).filter(|import| import.opening == t.opening);
            status = quiet.targets.iter().find_map(|target| open(target).and_then(|import| import.error));
        }
        let status = status.unwrap_or(Status::Ok);
        self.slot_done((number, slot), quiet.cookie, status, None, quiet.notify, out);
    }

    /// As many stores of an import are finished (all, if it goes) as some quiet waits for: those that wait for no more may be done.
    fn reach_quiets(&mut self, number: u16, all: bool, out: &mut Vec<Action>) {
        let Some(import) = self.issuer.import(number) else { return };
        let (context, opening, finished, issued) = (import.context, import.opening, import.finished, import.issued);
        let reached = |stores: u64| all || finished >= stores.min(issued);
        if import.awaited.is_none_or(|stores| !reached(stores)) {
            return;
        }
        let (mut awaited, mut done) = (None, Vec::new());
        let quiets = self.issuer.contexts.get_mut(&context).map(|context| &mut context.quiets);
        for (slot, quiet) in quiets.into_iter().flatten() {
            let Ok(at) = quiet.targets.binary_search_by_key(&number, |target| target.import) else { continue };
            let Some(target) = quiet.targets.get_mut(at).filter(|t| t.opening == opening && !t.reached) else {
                continue;
            };
            if reached(target.stores) {
                target.reached = true;
                quiet.unfinished -= 1;
                done.push(*slot);
            } else {
                awaited = Some(awaited.map_or(target.stores, |least: u64| least.min(target.stores)));
            }
        }
        if let Some(import) = self.issuer.import(number) {
            import.awaited = awaited;
        }
        for slot in done {
            self.check_quiet(context, slot, out);
        }
    }

    /// An operation has ended that a quiet of this context may wait for.
    pub(crate) fn operation_ended(&mut self, number: u16, operation: u64, out: &mut Vec<Action>) {
        let Some(context) = self.issuer.contexts.get_mut(&number) else { return };
        let mut done = Vec::new();
        for (slot, quiet) in &mut context.quiets {
            if let Ok(at) = quiet.operations.binary_search(&operation) {
                quiet.operations.remove(at);
                quiet.unfinished -= 1;
                done.push(*slot);
            }
        }
        for slot in done {
            self.check_quiet(number, slot, out);
        }
    }

    /// A store of an import has finished: quiets and a pending close may be done.
    pub(crate) fn progressed(&mut self, number: u16, out: &mut Vec<Action>) {
        self.reach_quiets(number, false, out);
        let Some(import) = self.issuer.open_import(number) else { return };
        let closed = import.closing.filter(|_| self.has_ended(import));
        if let Some(slot) = closed {
            self.remove_import(number, out);
            self.complete_status(slot, Status::Ok, out);
        }
    }

    // ---- admin ----

    pub(crate) fn lookup(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<(), Status> {
        if u32::from(command.node) >= self.config.window.nodes() {
            return Err(Status::BadNode);
        }
        if !telegraphos_wire::packet::is_valid_name(&command.name) {
            return Err(Status::BadName);
        }
        self.reachable(command.node)?;
        let body = Body::Lookup {
            name: Box::new(command.name),
            secret: command.secret,
            uid: command.uid,
            rights: Rights(command.rights),
        };
        self.ask(command.node, Asked::Lookup { slot }, body, out);
        Ok(())
    }

    /// Opens an import; `Ok(false)` if it is one of a queue, whose node is asked for hold slots first.
    pub(crate) fn import_set(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<bool, Status> {
        let Command { import, context, node, index, count, page, generation, length, rights, .. } = *command;
        if u32::from(node) >= self.config.window.nodes() {
            return Err(Status::BadNode);
        }
        let slots = self.config.window.slots();
        let sane = import < self.config.imports
            && count > 0
            && u64::from(index) + u64::from(count) <= u64::from(slots)
            && page.checked_add(count).is_some()
            && length > 0
            && length <= u64::from(count) * UNIT
            && Rights::ALL.contains(Rights(rights))
            && command.taken <= context::TAKEN_WORDS
            && (!Rights(rights).contains(Rights::ENQUEUE) || (rights == Rights::ENQUEUE.0 && count == 1))
            && self.issuer.contexts.contains_key(&context);
        if !sane {
            return Err(Status::Invalid);
        }
        let peer = &mut self.issuer.peers[usize::from(node)];
        if peer.slots.is_empty() {
            peer.slots = vec![0; slots as usize];
        }
        let range = index as usize..(index + count) as usize;
        if self.issuer.imports[usize::from(import)].is_some() || peer.slots[range.clone()].iter().any(|s| *s != 0) {
            return Err(Status::Busy);
        }
        // The count of an earlier import is still on its way to that word: it would come after this one's.
        let taken = command.taken.checked_sub(1);
        if taken.is_some_and(|word| self.counts_in_status(context, context::TAKEN_OFFSET + 8 * u64::from(word))) {
            return Err(Status::Busy);
        }
        let peer = &mut self.issuer.peers[usize::from(node)];
        peer.slots[range].fill(import + 1);
        if let Some(context) = self.issuer.contexts.get_mut(&context) {
            context.imports.insert(import);
        }
        self.issuer.openings += 1;
        self.issuer.epochs = self.issuer.epochs.wrapping_add(1);
        self.issuer.imports[usize::from(import)] = Some(Box::new(Import {
            context,
            opening: self.issuer.openings,
            node,
            first_slot: index,
            slots: count,
            page,
            length,
            generation,
            rights: Rights(rights),
            issued: 0,
            finished: 0,
            awaited: None,
            operations: 0,
            taken: taken.map(|word| (word, 0)),
            queue: rights == Rights::ENQUEUE.0,
            bad_keys: 0,
            waiting: 0,
            congested: false,
            throttled: false,
            active: false,
            cut: false,
            epoch: self.issuer.epochs,
            refused: false,
            dead: false,
            error: None,
            closing: None,
        }));
        self.divide_reserve();
        if rights == Rights::ENQUEUE.0 {
            self.open_queue(slot, import, out);
            return Ok(false);
        }
        Ok(true)
    }

    /// Unmaps an import's slots at once; `Ok(false)` if stores of it are unfinished. Elements for a queue are not waited for: its receiver may
    /// never take them.
    pub(crate) fn import_clear(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<bool, Status> {
        let number = command.import;
        let opening = self.is_opening(number);
        let Some(import) = self.issuer.open_import(number) else { return Err(Status::Invalid) };
        if import.closing.is_some() || opening {
            return Err(Status::Busy);
        }
        let done = import.queue || self.has_ended(import);
        self.unmap_import(number);
        if done {
            self.remove_import(number, out);
        } else if let Some(import) = self.issuer.import(number) {
            import.closing = Some(slot);
            self.issuer.closing.insert(number);
        }
        Ok(done)
    }

    /// Nothing of an import is outstanding, and the count of its stores taken is in memory: its word may be another's.
    fn has_ended(&self, import: &Import) -> bool {
        let counts = |word: u32| self.counts_in_status(import.context, context::TAKEN_OFFSET + 8 * u64::from(word));
        import.is_idle() && !import.taken.is_some_and(|(word, _)| counts(word))
    }

    /// A count is in memory.
    pub(crate) fn count_stored(&mut self, out: &mut Vec<Action>) {
        let closing: Vec<u16> = self.issuer.closing.iter().copied().collect();
        for number in closing {
            self.progressed(number, out);
        }
    }

    /// Nothing leads to the import any more.
    pub(crate) fn unmap_import(&mut self, number: u16) {
        let Some(import) = self.issuer.import(number) else { return };
        let (node, first, count) = (import.node, import.first_slot as usize, import.slots as usize);
        self.issuer.peers[usize::from(node)].slots[first..first + count].fill(0);
    }

    pub(crate) fn remove_import(&mut self, number: u16, out: &mut Vec<Action>) {
        self.reach_quiets(number, true, out);
        let context = self.issuer.open_import(number).map(|import| import.context);
        if let Some(context) = context.and_then(|context| self.issuer.contexts.get_mut(&context)) {
            context.imports.remove(&number);
        }
        let import = self.issuer.imports.get_mut(usize::from(number)).and_then(|import| import.take());
        self.issuer.throttled.remove(&number);
        self.issuer.closing.remove(&number);
        self.divide_reserve();
        if let Some(import) = import.filter(|import| import.queue) {
            self.leave_line(import.opening, out);
        }
    }

    pub(crate) fn import_ack(&mut self, command: &Command, out: &mut Vec<Action>) -> Result<(), Status> {
        let Some(import) = self.issuer.import(command.import) else { return Err(Status::Invalid) };
        if import.dead {
            return Err(import.error.unwrap_or(Status::NodeDown));
        }
        import.error = None;
        import.cut = false;
        // Only what has been refused is refused on: behind a store that was lost here, those on their way may still be.
        if import.refused {
            self.begin_epoch(command.import);
        }
        self.cause(Cause::ImportState(command.import), out);
        Ok(())
    }
}
