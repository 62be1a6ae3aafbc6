// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requester: window accesses, imports, back-pressure, and quiet.
//!
//! A store is accepted into the queue of its *destination* (per-pair FIFO, SPEC I8), leaves it when the window of
//! outstanding requests and the switch's credits allow, and is finished when its acknowledgement arrives. Nothing
//! accepted is forgotten: it ends performed, or refused or failed with the import's error latched. A lost store *cuts*
//! its import: later stores are dropped until the driver acknowledges, so that none passes a lost one.

mod access;
mod imports;
mod losses;
mod pressure;
mod quiet;
mod send;

use crate::enqueue::SendQueue;
use crate::launch::Turns;
use crate::replica::Source;
use crate::{HibConfig, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::Shares;
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, WindowAddress};

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
    /// Its node went down or was reset: it stays cut whatever is acknowledged, and can only be closed. The node may
    /// come back with other memory under the same pages and even generations.
    pub(crate) dead: bool,
    pub(crate) error: Option<Status>,
    closing: Option<u32>,
}

impl Import {
    pub(super) fn stopped(&self) -> bool {
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
pub(crate) enum RequestKind {
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
struct PendingRequest {
    node: NodeId,
    deadline: u64,
    asked: RequestKind,
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
    PendingRequest {
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
pub(crate) enum InFlight {
    Store { import: u16, epoch: u32 },
    PendingRequest { number: u64 },
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
    /// Requests of copies for their home, which it answers when all copies have them. They have a window of their own,
    /// so that a copy which is slow to acknowledge holds up no other request.
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
    /// The first loss among what it waits for, or one that was not acknowledged when it was issued. An acknowledgement
    /// does not change it.
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
pub(crate) struct Requester {
    pub(crate) peers: Vec<Peer>,
    imports: Vec<Option<Box<Import>>>,
    pub(crate) contexts: BTreeMap<u16, Context>,
    openings: u64,
    /// The last epoch of an import of this board, modulo 2^32.
    epochs: u32,
    /// Elements of imports of queues, by the import's opening.
    pub(crate) send_queues: BTreeMap<u64, SendQueue>,
    /// Queues (node, page, generation) whose node has not answered how many imports are left, and whether that has
    /// changed since.
    pub(crate) returning: BTreeMap<(NodeId, u32, u64), bool>,
    /// Tags of this node's requests to itself that are a home's to answer now: they take no place of the own window any
    /// more.
    passed: BTreeSet<u32>,
    /// Tag index -> (tag, node, what).
    sent: Vec<Option<(u32, NodeId, InFlight)>>,
    free_tags: BTreeSet<u32>,
    pending_requests: BTreeMap<u64, PendingRequest>,
    next_request: u64,
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

/// A tag is an index into the table of sent requests, with its peer's round above it, which makes answers recognisable
/// that come after the peer was given up. Indices depend on what is outstanding alone, so that boards in the same state
/// go on alike.
const TAG_INDEX_BITS: u32 = 20;

/// Entries for which an empty queue keeps memory.
const KEPT: usize = 1024;

/// A queue has run empty. The next entry goes to the same place in memory: with thousands of peers this is what a store
/// costs. What a backlog took is given back.
pub(crate) fn emptied<T>(queue: &mut VecDeque<T>) {
    queue.clear();
    if queue.capacity() > KEPT {
        queue.shrink_to(KEPT);
    }
}

fn access_size(offset: u64, size: u32) -> Result<u8, Status> {
    match size {
        1 | 2 | 4 | 8 if offset % u64::from(size) == 0 => Ok(size as u8),
        _ => Err(Status::BadSize),
    }
}

impl Requester {
    pub(crate) fn new(config: &HibConfig) -> Requester {
        Requester {
            peers: vec![Peer::default(); config.window.nodes() as usize],
            imports: vec![None; usize::from(config.imports)],
            contexts: BTreeMap::new(),
            openings: 0,
            epochs: 0,
            send_queues: BTreeMap::new(),
            returning: BTreeMap::new(),
            passed: BTreeSet::new(),
            sent: Vec::new(),
            free_tags: BTreeSet::new(),
            pending_requests: BTreeMap::new(),
            next_request: 0,
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

    pub(crate) fn take_tag(&mut self, node: NodeId, sent: InFlight) -> u32 {
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

    fn release_tag(&mut self, tag: u32, node: NodeId) -> Option<InFlight> {
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
