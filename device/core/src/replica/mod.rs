// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated pages: stores go to the home, which orders them and multicasts them to all copies (SPEC items 23 to 27,
//! E15 to E20; `docs/replication.md`).
//!
//! This part owns all state of replicated pages ([`Replicas`]). `hib` calls it for requests for such pages, packets of
//! class `Reflected`, replies, credits, ticks and completed steps; `control` calls it for the REPLICA admin commands;
//! `launch` checks with it whether a block may touch a page.
//!
//! ```text
//!  copy:  processor's store -> counter++, RAM -> Update to the home (acknowledged when all copies have it: E19)
//!  home:  processor's store or Update -> RAM -> Reflected{writer} to every copy -> all CopyAcks -> acknowledged
//!  copy:  Reflected: own -> counter--, ignored;  others -> the bytes whose counter is 0 -> RAM;  CopyAck
//! ```
//!
//! Every access that changes a replicated page is a *work item*. A page's items run one at a time, in order of arrival,
//! each in one or more guest-memory steps. Therefore the home multicasts in the order of its memory, and a copy's
//! counters agree with its memory.
//!
//! All packets from the homes here to their copies leave through one queue, so that each copy receives them in order,
//! whether the switch replicates a packet or each copy gets a packet of its own. The choice is made at transmission:
//! one multicast packet if its destinations are exactly the group that the switch holds for the page at that moment.
//!
//! | Module | Content |
//! |---|---|
//! | `members` | set-up, join, leave and loss: which nodes have a copy, and which one is the home |
//! | `requests` | admission of a request for a page; forwarding of a copy's own stores to the home |
//! | `work` | the work queue of a page |
//! | `counters` | pending-write counters |
//! | `reflected` | from the home to the copies: multicast, fan-out, acknowledgements |
//! | `moving` | moving the home to another node while stores continue |
//! | `invalid` | copies that are invalidated instead of updated |
//! | `silent` | time limits for copies and homes that do not answer, and what each node can use up meanwhile |

mod counters;
mod invalid;
mod members;
mod moving;
mod page;
mod reflected;
mod requests;
mod shares;
mod silent;
mod work;

use self::page::{Arrivals, Forward, InOrder, Multicast, Outgoing, ReplicaPage};
use crate::HibConfig;
use crate::ctx::Ctx;
use crate::grants::Grants;
use crate::requester::{Requester, Source};
use crate::responder::Responder;
use crate::table::Table;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::Account;
use telegraphos_wire::packet::NO_NODE;
use telegraphos_wire::{Body, NodeId, Status, event};

/// Low bits of a multicast's tag: the lowest number that was free. The bits above are the tag epoch, which makes
/// acknowledgements recognisable that arrive after their sender was dropped.
const TAG_INDEX_BITS: u32 = 20;

/// The parts that replicas may use.
pub(crate) struct Below<'a> {
    pub(crate) ctx: &'a mut Ctx,
    pub(crate) requester: &'a mut Requester,
    pub(crate) responder: &'a mut Responder,
    pub(crate) grants: &'a mut Grants,
}

/// All state of replicated pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replicas {
    /// By export page of this node.
    pages: Table<ReplicaPage>,
    /// The page here that copies a home's page; the inverse of [`ReplicaPage::sources`].
    sources: BTreeMap<Source, u32>,
    /// The counter cache: for (page, offset of an aligned 8-byte word) the pending writes of each byte (E18).
    pending: BTreeMap<(u32, u32), [u16; 8]>,
    multicasts: BTreeMap<u32, Multicast>,
    /// (page, tag) of each multicast.
    by_page: BTreeSet<(u32, u32)>,
    /// Tag epoch: rises whenever a copy is dropped while it has multicasts to acknowledge.
    tag_epoch: u32,
    /// Multicasts that wait for link credits, for all copies of all pages.
    outgoing: VecDeque<Outgoing>,
    /// The groups that the switch holds, by page: at least two members each, ascending.
    groups: BTreeMap<u32, Vec<NodeId>>,
    /// By number; the home's answer carries it.
    forwards: BTreeMap<u64, Forward>,
    /// (page, ordinal) of each forwarded request.
    ordinals: BTreeSet<(u32, u64)>,
    /// Forwarded requests for pages in mode invalidate, in issue order, which is also the order of their answers.
    in_order: VecDeque<InOrder>,
    arrivals: BTreeMap<NodeId, Arrivals>,
    /// A store of this node's processors waits for a free counter.
    stalled: bool,
    /// (deadline, tag) of each multicast that is waiting for acknowledgements.
    copy_deadlines: BTreeSet<(u64, u32)>,
    /// (deadline, page) of each page that waits for its home.
    home_deadlines: BTreeSet<(u64, u32)>,
    /// Copies (page here, node) that were dropped for silence, and when they may join again.
    barred: BTreeMap<(u32, NodeId), u64>,
    /// Requests that have been performed and wait for copies, by requester.
    copy_waits: Account<NodeId>,
    /// Requesters with a request that stalls because their share of the above is used up.
    stalled_requesters: BTreeSet<NodeId>,
    /// Blocks in flight to new copies, by node.
    fills: Account<NodeId>,
    /// By node, the pages whose copy there waits until its next block may be sent.
    waiting_fills: BTreeMap<NodeId, VecDeque<u32>>,
    /// Acknowledgements that wait until the driver has unmapped the page, by home.
    deferred: Account<NodeId>,
    /// Number of members of all groups together.
    memberships: usize,
}

impl Replicas {
    /// No replicated page.
    pub(crate) fn new(config: &HibConfig) -> Replicas {
        Replicas {
            pages: Table::default(),
            sources: BTreeMap::new(),
            pending: BTreeMap::new(),
            multicasts: BTreeMap::new(),
            by_page: BTreeSet::new(),
            tag_epoch: 0,
            outgoing: VecDeque::new(),
            groups: BTreeMap::new(),
            forwards: BTreeMap::new(),
            ordinals: BTreeSet::new(),
            in_order: VecDeque::new(),
            arrivals: BTreeMap::new(),
            stalled: false,
            copy_deadlines: BTreeSet::new(),
            home_deadlines: BTreeSet::new(),
            barred: BTreeMap::new(),
            copy_waits: Account::new(shares::copy_wait_shares(config)),
            stalled_requesters: BTreeSet::new(),
            fills: Account::new(shares::fill_shares(config)),
            waiting_fills: BTreeMap::new(),
            deferred: Account::new(shares::deferred_shares(config)),
            memberships: 0,
        }
    }

    /// The tags of the unacknowledged multicasts of a page.
    fn multicasts_of(&self, page: u32) -> impl Iterator<Item = u32> + '_ {
        self.by_page.range((page, 0)..=(page, u32::MAX)).map(|(_, tag)| *tag)
    }

    /// The ordinals of a page's forwarded requests that its home has not answered, ascending.
    fn ordinals_of(&self, page: u32) -> impl DoubleEndedIterator<Item = u64> + '_ {
        self.ordinals.range((page, 0)..=(page, u64::MAX)).map(|(_, ordinal)| *ordinal)
    }

    /// Removes a forwarded request; `None` if there is no such request.
    fn take_forward(&mut self, number: u64) -> Option<Forward> {
        let forward = self.forwards.remove(&number)?;
        self.ordinals.remove(&(forward.page, forward.ordinal));
        Some(forward)
    }

    /// The next moment, in microseconds of the board's clock, at which `expire` has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        let (copy, home) = (self.copy_deadlines.first(), self.home_deadlines.first());
        copy.into_iter().chain(home).map(|(at, _)| *at).min()
    }
}

/// The outcome of [`Replicas::serve`].
pub(crate) enum Served {
    /// The request is a work item of its page.
    Working,
    /// The request has left the queue of its source; it is answered later.
    Left,
    /// The request must wait and stays at the head of its source's queue.
    Stalled,
    /// The request is answered with this.
    Answer(Body),
    /// The request is refused with this status.
    Refused(Status),
}

impl Replicas {
    /// Node and value of the REPLICA event that reports the page's present state.
    pub(crate) fn event(&self, ctx: &Ctx, page: u32) -> (NodeId, u64) {
        let value = u64::from(page) << 32;
        let Some(replica) = self.pages.get(page) else { return (NO_NODE, value) };
        let orphaned = replica.orphaned.map_or(0, |status| (status as u64) << 16 | event::REPLICA_ORPHANED);
        let moved = if replica.moves > 0 { event::REPLICA_MOVED } else { 0 };
        let invalid = if replica.invalid { event::REPLICA_INVALID } else { 0 };
        let home = replica.home_at(ctx.config.node).unwrap_or(NO_NODE);
        (home, value | orphaned | moved | invalid)
    }

    /// The home of a replicated page of this node; `None` if the page is not replicated, or is an orphan.
    pub(crate) fn home_of(&self, ctx: &Ctx, page: u32) -> Option<NodeId> {
        let replica = self.pages.get(page).filter(|replica| replica.orphaned.is_none())?;
        replica.home_at(ctx.config.node)
    }

    /// Whether stores of all nodes show in the memory of a page: it is not replicated, or the home, or a valid copy.
    pub(crate) fn shows_stores(&self, page: u32) -> bool {
        let Some(replica) = self.pages.get(page) else { return true };
        replica.home || replica.filled && !replica.invalid && replica.orphaned.is_none()
    }

    /// Pending-write counters in use, out of [`crate::HibConfig::pending_writes`].
    pub(crate) fn pending_counters(&self) -> usize {
        self.pending.len()
    }
}
