// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: stores go to the home, which multicasts them in its order to all copies (SPEC items 23 to 27, E15
//! to E20; `docs/replication.md`).
//!
//! ```text
//!  copy:  processor's store -> counter++, RAM -> Update to the home ------+        (the store is acknowledged when all copies have it: E19)
//!  home:  processor's store or Update -> RAM -> Reflected{writer} to every copy -> all CopyAcks -> acknowledged
//!  copy:  Reflected: own -> counter--, ignored;  others -> the bytes whose counter is 0 -> RAM;  CopyAck
//! ```
//!
//! Everything that touches a replicated page is *work*: done one after the other in the order of its arrival, each
//! piece in one or more guest-memory steps. So the order of the home's memory is the order in which it multicasts, and
//! a copy's counters and memory agree.
//!
//! What a home has for its copies leaves in one queue for all of them, so that a copy gets it in order, whether the
//! switch copies it or each copy has a packet of its own. Which of the two is decided when it leaves: it is one packet
//! if it is for exactly the nodes that the switch knows as the page's group then.
//!
//! | Module | What is in it |
//! |---|---|
//! | `members` | who has a copy, who is the home: set up, joined, left, lost |
//! | `requests` | what becomes of a request for a page, and the way of a copy's own stores to the home |
//! | `work` | one piece after the other, in the order of the page's memory |
//! | `counters` | pending writes |
//! | `reflected` | from the home to the copies: multicast, fan-out, acknowledgements |
//! | `moving` | the home becomes another one while stores go on |
//! | `invalid` | copies that become invalid instead of being updated |
//! | `silent` | copies and homes that do not answer: how long they are waited for, and what they can use up |

mod counters;
mod invalid;
mod members;
mod moving;
mod reflected;
mod requests;
mod silent;
mod work;

use self::moving::Moving;
use crate::HibConfig;
use crate::hib::Hib;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::Account;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, Packet, Status, admin, event};

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
    copies: BTreeMap<NodeId, u64>,
    /// Copies that wait for a block, and where it begins.
    filling: BTreeMap<NodeId, u32>,
    /// Until when this copy waits for its home.
    awaits: Option<u64>,
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

    /// The home of this node's page, if it has one.
    fn home_at(&self, node: NodeId) -> Option<NodeId> {
        if self.home { Some(node) } else { self.sources.first().map(|source| source.0) }
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
    /// A copy that may survive this home has not taken it.
    missed: bool,
    /// It is a block for a new copy at this node.
    fill: Option<NodeId>,
    /// When copies that have not acknowledged it are dropped; none before all of it has been sent.
    due: Option<u64>,
}

/// A multicast that waits for credits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Outgoing {
    tag: u32,
    body: Body,
    /// Whom it has still to be sent to, ascending.
    to: Vec<NodeId>,
}

/// Low bits of a multicast's tag: the lowest number that was free. Above them is the round, which makes
/// acknowledgements recognisable that come after their sender was given up.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replicas {
    pages: BTreeMap<u32, Replica>,
    sources: BTreeMap<Source, u32>,
    /// The counter cache: for (page, offset of an aligned 8-byte word) the pending writes of each byte (E18).
    pending: BTreeMap<(u32, u32), [u16; 8]>,
    multicasts: BTreeMap<u32, Multicast>,
    /// Their tags, by page.
    by_page: BTreeSet<(u32, u32)>,
    /// How often a copy was given up that had not acknowledged everything.
    round: u32,
    /// What waits for credits of the link, for all copies of all pages.
    outgoing: VecDeque<Outgoing>,
    /// The groups that the switch knows, by page: at least two members each, ascending.
    groups: BTreeMap<u32, Vec<NodeId>>,
    forwards: BTreeMap<u64, Forward>,
    /// Their pages and places.
    places: BTreeSet<(u32, u64)>,
    /// Those of pages in mode invalidate in the order in which they were made, which is that of their answers.
    in_order: VecDeque<invalid::InOrder>,
    arrivals: BTreeMap<NodeId, Arrivals>,
    /// This node's processor waits for a free counter.
    stalled: bool,
    /// Multicasts in the order of the moments at which copies that have not acknowledged them are dropped.
    due: BTreeSet<(u64, u32)>,
    /// Pages that wait for their home, by the moment at which they do no more.
    awaited: BTreeSet<(u64, u32)>,
    /// Copies (page here, node) that were dropped for their silence: until when they may not join again.
    barred: BTreeMap<(u32, NodeId), u64>,
    /// Requests that have been performed and wait for copies, by requester.
    answers: Account<NodeId>,
    /// Requesters with a request that waits for a place among these.
    answers_full: BTreeSet<NodeId>,
    /// Blocks on their way to new copies, by their node; pages with copies that wait for such a place.
    fills: Account<NodeId>,
    fills_wait: BTreeMap<NodeId, VecDeque<u32>>,
    /// Acknowledgements that wait for the driver to unmap pages here, by home.
    held: Account<NodeId>,
    /// Members of all groups together.
    memberships: usize,
}

impl Replicas {
    pub(crate) fn new(config: &HibConfig) -> Replicas {
        Replicas {
            pages: BTreeMap::new(),
            sources: BTreeMap::new(),
            pending: BTreeMap::new(),
            multicasts: BTreeMap::new(),
            by_page: BTreeSet::new(),
            round: 0,
            outgoing: VecDeque::new(),
            groups: BTreeMap::new(),
            forwards: BTreeMap::new(),
            places: BTreeSet::new(),
            in_order: VecDeque::new(),
            arrivals: BTreeMap::new(),
            stalled: false,
            due: BTreeSet::new(),
            awaited: BTreeSet::new(),
            barred: BTreeMap::new(),
            answers: Account::new(silent::answer_shares(config)),
            answers_full: BTreeSet::new(),
            fills: Account::new(silent::fill_shares(config)),
            fills_wait: BTreeMap::new(),
            held: Account::new(silent::held_shares(config)),
            memberships: 0,
        }
    }

    /// The tags of the multicasts of a page that wait for copies.
    fn multicasts_of(&self, page: u32) -> impl Iterator<Item = u32> + '_ {
        self.by_page.range((page, 0)..=(page, u32::MAX)).map(|(_, tag)| *tag)
    }

    /// The places of a page's requests that its home has not answered.
    fn places_of(&self, page: u32) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.places.range((page, 0)..=(page, u64::MAX)).map(|(_, place)| *place)
    }

    fn take_forward(&mut self, number: u64) -> Option<Forward> {
        let forward = self.forwards.remove(&number)?;
        self.places.remove(&(forward.page, forward.place));
        Some(forward)
    }

    /// The next moment at which somebody is waited for no longer.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let (due, awaited) = (self.due.first(), self.awaited.first());
        due.into_iter().chain(awaited).map(|(at, _)| *at).min()
    }
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

impl Hib {
    /// Index and value of a REPLICA event: the home, and what has become of the page.
    pub(crate) fn replica_event(&self, page: u32) -> (NodeId, u64) {
        let value = u64::from(page) << 32;
        let Some(replica) = self.replicas.pages.get(&page) else { return (NO_NODE, value) };
        let orphaned = replica.orphaned.map_or(0, |status| (status as u64) << 16 | event::REPLICA_ORPHANED);
        let moved = if replica.moves > 0 { event::REPLICA_MOVED } else { 0 };
        let invalid = if replica.invalid { event::REPLICA_INVALID } else { 0 };
        let home = replica.home_at(self.ctx.config.node).unwrap_or(NO_NODE);
        (home, value | orphaned | moved | invalid)
    }

    /// The home of a replicated page of this node; none if it is not replicated, or an orphan.
    pub fn home_of(&self, page: u32) -> Option<NodeId> {
        let replica = self.replicas.pages.get(&page).filter(|replica| replica.orphaned.is_none())?;
        replica.home_at(self.ctx.config.node)
    }

    /// Pending-write counters in use, of [`crate::HibConfig::pending_writes`].
    pub fn pending_counters(&self) -> usize {
        self.replicas.pending.len()
    }
}
