// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requester: imports, contexts, window accesses, back-pressure, requests in flight, and quiet. `hib` passes in
//! accesses, replies and credits; the launcher and the replicas send their requests through it.
//!
//! A store is accepted into the send queue of its *destination* (per-pair FIFO, SPEC I8), leaves it when the window of
//! outstanding requests and the switch's credits allow, and is finished when its acknowledgement arrives. Every
//! accepted store ends performed, refused or failed; the latter two latch the import's error. A lost store puts its
//! import *in error*: later stores are dropped until the driver acknowledges, so that none passes a lost one.
//!
//! | Module | Owns |
//! |---|---|
//! | here | accesses of the window, admin commands, and losses: what concerns several of the parts below |
//! | `send` | no state: sending, replies, and the end of everything outstanding to a node |
//! | `imports` | the open imports |
//! | `contexts`, `quiet` | the contexts, their status words, and their quiets in progress |
//! | `pressure` | the reserve of waiting stores, and the imports that are stopped |
//! | `peers`, `presence`, `ages` | the destinations: what waits for each, what is in flight to it, whether it answers |
//! | `requests`, `deadlines` | requests that wait for a reply with a value, and until when |
//! | `send_queue` | elements for queues that wait, and receive credits |
//! | `bodies` | boxes for the content of waiting requests |

mod ages;
mod bodies;
mod contexts;
mod deadlines;
mod imports;
mod peers;
mod presence;
mod pressure;
mod quiet;
mod requests;
mod send;
mod send_queue;

use self::bodies::Bodies;
use self::contexts::Contexts;
pub(crate) use self::imports::Import;
use self::imports::Imports;
pub(crate) use self::peers::WaitingForward;
use self::peers::{Peers, Waiting};
pub(crate) use self::presence::Life;
use self::pressure::Pressure;
use self::requests::{PendingRequest, PendingRequests};
pub(crate) use self::requests::{ReplicaRequest, RequestKind};
use self::send_queue::SendQueues;
use crate::access::WindowAccess;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, earlier};
use crate::events::Cause;
use crate::keyed::Key;
use crate::loan::Content;
use crate::numbered::ones;
use crate::page_counters::PageCounters;
use crate::{Bar, HibConfig, LostStore, Notice, Token, WindowStore};
use std::collections::{BTreeSet, VecDeque};
use telegraphos_wire::admin::Command;
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Body, Burst, BurstStore, MAX_BURST, NodeId, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT};

/// The home of a page that an export page of this node replicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Source {
    pub(crate) node: NodeId,
    pub(crate) page: u32,
    pub(crate) generation: u64,
}

impl Source {
    /// The address of its first byte.
    pub(crate) fn address(&self) -> RemoteAddr {
        RemoteAddr { page: self.page, offset: 0, generation: self.generation }
    }
}

/// The result of a request that a part above the requester issued. Methods that end such requests return it, and
/// [`Hib`](crate::Hib) passes it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Part of an operation: the reply, or the reason why it has none.
    Part { operation: Key, offset: u64, answer: Result<Content, Status> },
    /// A request forwarded to the home of a page.
    Forward { number: u64, answer: Result<Body, Status> },
    /// A request about a replicated page.
    Replica { request: ReplicaRequest, status: Status },
}

/// The target of a checked window access: import, remote address, size in bytes.
type Target = (u16, RemoteAddr, u8);

/// A refused window access: node, import if the address is mapped, reason.
type Rejection = (NodeId, Option<u16>, Status);

/// The requester of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Requester {
    pub(crate) imports: Imports,
    pub(crate) contexts: Contexts,
    pub(crate) pressure: Pressure,
    pub(crate) peers: Peers,
    requests: PendingRequests,
    bodies: Bodies,
    send_queues: SendQueues,
    /// Page access counters of remote pages.
    pub(crate) page_counters: PageCounters,
}

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
            imports: Imports::new(config),
            contexts: Contexts::new(config),
            pressure: Pressure::new(config),
            peers: Peers::new(config),
            requests: PendingRequests::default(),
            bodies: Bodies::default(),
            send_queues: SendQueues::default(),
            page_counters: PageCounters::default(),
        }
    }

    /// The earliest deadline of a pending request, or the end of the phase of ages.
    pub(crate) fn deadline(&self) -> Option<u64> {
        earlier(self.requests.deadlines.first().map(|(at, _)| at), self.peers.phases.deadline())
    }

    /// Number of elements of an import in flight.
    pub(crate) fn elements_in_flight(&self, import: u16) -> u32 {
        let send_queue = self.imports.get(import).and_then(|import| self.send_queues.table.get(import.send_queue?));
        send_queue.map_or(0, |send_queue| send_queue.unacknowledged)
    }

    // ---- window accesses ----

    /// Finds and checks the import at a window address. An error names the import if the address is mapped.
    fn resolve(&self, ctx: &Ctx, access: &WindowAccess, right: Rights) -> Result<Target, Rejection> {
        let aperture = if right == Rights::ENQUEUE { Aperture::Enqueue } else { Aperture::Plain };
        let address = access.address;
        let node = address.node;
        let size = access_size(access.offset, access.size).map_err(|status| (node, None, status))?;
        if address.aperture != aperture {
            return Err((node, None, Status::Aperture));
        }
        let Some(import) = self.peers.slot(&address).and_then(|number| self.imports.get(number)) else {
            // Report the more specific reason: the node id exceeds the nodes of the fabric.
            let status = match ctx.link.nodes() {
                Some(nodes) if u32::from(node) >= nodes && node != ctx.config.node => Status::BadNode,
                _ => Status::Unmapped,
            };
            return Err((node, None, status));
        };
        let fail = |status| Err((node, Some(import.number), status));
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
        if let Err(status) = self.peers.reachable(ctx, node) {
            return fail(status);
        }
        let at = RemoteAddr { page: import.page + page, offset: within, generation: import.generation };
        Ok((import.number, at, size))
    }

    /// Serves a store to the plain window or the enqueue aperture. The store is accepted, or dropped with an error
    /// latched.
    pub(crate) fn store(&mut self, ctx: &mut Ctx, access: &WindowAccess, data: u64) {
        let enqueue = access.address.aperture == Aperture::Enqueue;
        let right = if enqueue { Rights::ENQUEUE } else { Rights::WRITE };
        let (number, at, size) = match self.resolve(ctx, access, right) {
            Ok(found) => found,
            Err((node, Some(import), status)) => return self.lose_store(ctx, node, import, status),
            Err((_, None, status)) => {
                ctx.counters.dropped += 1;
                return ctx.bad_access(Bar::Window, access.offset, access.size, status);
            }
        };
        let Some(import) = self.imports.get_mut(number) else { return };
        let node = import.node;
        if import.in_error && !ctx.has(Bug::PassLostStore) {
            ctx.counters.dropped += 1;
            return;
        }
        if !self.pressure.has_room(ctx, import) {
            return self.lose_store(ctx, node, number, Status::Cut);
        }
        if enqueue && size < 4 {
            return self.lose_store(ctx, node, number, Status::NotQueue);
        }
        let peer = &mut self.peers.table[usize::from(node)];
        if ctx.has(Bug::DropWhenFull) && peer.outstanding >= ctx.config.outstanding {
            return;
        }
        let data = data & ones(size.into());
        if enqueue {
            ctx.counters.enqueues += u64::from(self.send_queues.accept(import, peer, at, size, data));
        } else {
            peer.accept(Waiting::Store { import: number, at, size, data });
            ctx.counters.stores += 1;
        }
        let page = if enqueue { None } else { Some(at.page) };
        self.accepted(ctx, number, page, 1);
    }

    /// So many stores to an import, to one page unless they are elements, have joined the send queue of its node: they
    /// wait until they are sent, and are issued.
    #[inline]
    fn accepted(&mut self, ctx: &mut Ctx, number: u16, page: Option<u32>, count: u32) {
        let Some(import) = self.imports.get_mut(number) else { return };
        let node = import.node;
        self.pressure.waiting += count;
        import.issued += u64::from(count);
        import.waiting += count;
        import.active = true;
        if let Some(page) = page {
            self.page_counters.count(ctx, node, page, true, count);
        }
        self.pump(ctx, node);
        if let Some(import) = self.imports.get_mut(number) {
            self.pressure.congest_if_full(ctx, import);
        }
    }

    /// Accepts the first of these stores as one burst, as many of them as are to one page of another node in the plain
    /// window, if all of those are accepted and there are several. Returns how many, or 0: then the first one is to be
    /// served [by itself](Requester::store). (A refusal by this node comes before the next store.)
    pub(crate) fn store_burst(&mut self, ctx: &mut Ctx, stores: &[WindowStore]) -> usize {
        let Some(first) = stores.first() else { return 0 };
        let start = first.offset & !(UNIT - 1);
        // What is to another page, or another aperture, is apart as far.
        let near = stores.iter().take(MAX_BURST).take_while(|store| store.offset.wrapping_sub(start) < UNIT).count();
        if near < 2 || ctx.has(Bug::DropWhenFull) {
            return 0;
        }
        let access = WindowAccess::new(&ctx.config.window, first.offset, first.size);
        if access.address.node == ctx.config.node {
            return 0;
        }
        let Ok((number, at, _)) = self.resolve(ctx, &access, Rights::WRITE) else { return 0 };
        let Some(import) = self.imports.get_mut(number) else { return 0 };
        // Where the segment ends, if it ends in this page.
        let end = import.length - (u64::from(at.page - import.page) << UNIT_SHIFT);
        let fits = |store: &&WindowStore| {
            let within = store.offset - start + u64::from(store.size) <= end;
            within && access_size(store.offset, store.size).is_ok()
        };
        let count = stores[..near].iter().take_while(fits).count();
        if count < 2 || import.in_error || !self.pressure.has_room_behind(ctx, import, count as u32 - 1) {
            return 0;
        }
        let burst = Burst::new(stores[..count].iter().map(|store| BurstStore {
            data: store.data & ones(store.size),
            offset: (store.offset - start) as u16,
            size: store.size as u8,
        }));
        let Ok(burst) = burst else { return 0 };
        let node = import.node;
        let peer = &mut self.peers.table[usize::from(node)];
        peer.accept(Waiting::Burst { import: number, page: at.page, generation: at.generation, stores: burst });
        ctx.counters.stores += count as u64;
        self.accepted(ctx, number, Some(at.page), count as u32);
        count
    }

    /// Serves a load from the plain window. It completes when its node answers, or with all ones at the time limit.
    pub(crate) fn load(&mut self, ctx: &mut Ctx, token: Token, access: &WindowAccess) {
        let (number, at, size) = match self.resolve(ctx, access, Rights::READ) {
            Ok(found) => found,
            Err((node, import, status)) => {
                match import {
                    Some(import) => self.fail_load(ctx, node, import, status),
                    None => ctx.bad_access(Bar::Window, access.offset, access.size, status),
                }
                ctx.read_done(token, ones(access.size));
                return;
            }
        };
        let Some(import) = self.imports.get(number) else { return };
        let (node, context) = (import.node, import.context);
        if self.peers.is_silent(node) {
            ctx.counters.silent_loads += 1;
            self.fail_load(ctx, node, number, Status::Timeout);
            ctx.read_done(token, ones(size.into()));
            return;
        }
        ctx.counters.loads += 1;
        self.page_counters.count(ctx, node, at.page, false, 1);
        let kind = RequestKind::Load { token, import: number, size };
        self.submit(ctx, node, kind, Body::Read { at, context, size });
    }

    // ---- admin commands ----

    /// LOOKUP. Sends the request; the reply completes the slot.
    pub(crate) fn lookup(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<(), Status> {
        if u32::from(command.node) >= ctx.config.window.nodes() {
            return Err(Status::BadNode);
        }
        if !telegraphos_wire::packet::is_valid_name(&command.name) {
            return Err(Status::BadName);
        }
        self.peers.reachable(ctx, command.node)?;
        let body = Body::Lookup {
            name: Box::new(command.name),
            secret: command.secret,
            uid: command.uid,
            rights: Rights(command.rights),
        };
        self.submit(ctx, command.node, RequestKind::Lookup { slot }, body);
        Ok(())
    }

    /// IMPORT_SET. Opens an import, which has no window if it has no slots. Returns `Ok(false)` for an import of a
    /// queue, which first requests receive credits; the reply completes the slot.
    pub(crate) fn open(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<bool, Status> {
        Import::check(ctx, command)?;
        let Command { import, context, node, index, count, .. } = *command;
        if !self.contexts.table.contains(context) {
            return Err(Status::Invalid);
        }
        let peer = &mut self.peers.table[usize::from(node)];
        if peer.slots.is_empty() {
            peer.slots = vec![0; ctx.config.window.slots() as usize];
        }
        let slots = &mut peer.slots[index as usize..(index + count) as usize];
        // A store of an earlier import's count to that word is in progress and would overwrite this import's count.
        let taken = command.taken.checked_sub(1);
        let counting = taken.is_some_and(|word| self.contexts.taken_in_progress(ctx, context, word));
        if self.imports.get(import).is_some() || slots.iter().any(|slot| *slot != 0) || counting {
            return Err(Status::Busy);
        }
        slots.fill(import + 1);
        if let Some(context) = self.contexts.table.get_mut(context) {
            context.imports.insert(import);
        }
        self.imports.insert(command);
        self.pressure.divide_reserve(ctx, &self.imports);
        let queue = command.rights == Rights::ENQUEUE.0;
        if queue {
            self.open_queue(ctx, slot, import);
        }
        Ok(!queue)
    }

    /// IMPORT_CLEAR. Unmaps an import at once. Returns `Ok(false)` if stores of it are unfinished; the slot completes
    /// after them. The close does not wait for elements: the receiver of a queue may never take them.
    pub(crate) fn close(&mut self, ctx: &mut Ctx, slot: u32, command: &Command) -> Result<bool, Status> {
        let number = command.import;
        let Some(import) = self.imports.get_mut(number) else { return Err(Status::Invalid) };
        if import.closing.is_some() || self.send_queues.is_opening(import) {
            return Err(Status::Busy);
        }
        let done = import.queue || self.contexts.has_ended(ctx, import);
        self.peers.unmap(import);
        if done {
            self.remove_import(ctx, number);
        } else {
            import.closing = Some(slot);
            self.imports.closing.insert(number);
        }
        Ok(done)
    }

    /// IMPORT_QUIET. Returns `Ok(false)` if stores or operations of the import are unfinished; the slot completes after
    /// them.
    pub(crate) fn settle(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let Some(import) = self.imports.get_mut(command.import) else { return Err(Status::Invalid) };
        if import.closing.is_some() || import.settling.is_some() || self.send_queues.is_opening(import) {
            return Err(Status::Busy);
        }
        if !import.is_idle() {
            import.settling = Some(slot);
        }
        Ok(import.settling.is_none())
    }

    /// IMPORT_ACK. Clears the error of an import, so that it accepts stores again. Fails for a permanently failed
    /// import.
    pub(crate) fn acknowledge(&mut self, ctx: &mut Ctx, command: &Command) -> Result<(), Status> {
        let Some(import) = self.imports.get_mut(command.import) else { return Err(Status::Invalid) };
        if import.dead {
            return Err(import.error.unwrap_or(Status::NodeDown));
        }
        import.error = None;
        import.in_error = false;
        // A new epoch is needed only if the receiver has refused a store. After a local loss, earlier stores of the
        // epoch may still be in flight and must not be refused.
        if import.refused {
            self.begin_epoch(command.import);
        }
        ctx.cause(Cause::ImportState(command.import));
        Ok(())
    }

    /// Begins a new epoch of an import's stores or elements.
    fn begin_epoch(&mut self, number: u16) {
        let Some(import) = self.imports.begin_epoch(number) else { return };
        if let Some(send_queue) = self.send_queues.of(import) {
            send_queue.epoch.epoch = import.epoch;
        }
    }

    /// Removes an import from all tables, and completes the quiets that wait for its stores.
    fn remove_import(&mut self, ctx: &mut Ctx, number: u16) {
        self.contexts.reach_quiets(ctx, &mut self.imports, number, true);
        let Some(import) = self.imports.remove(number) else { return };
        if let Some(context) = self.contexts.table.get_mut(import.context) {
            context.imports.remove(&number);
        }
        if let Some(slot) = import.settling {
            ctx.complete_status(slot, Status::Invalid);
        }
        self.pressure.throttled.remove(&number);
        self.pressure.divide_reserve(ctx, &self.imports);
        if let Some(key) = import.send_queue {
            // Its elements are still sent.
            if let Some(send_queue) = self.send_queues.table.get_mut(key) {
                send_queue.import = None;
            }
            self.end_send_queue(ctx, key);
        }
    }

    // ---- the end of stores ----

    /// Completes the quiets, those of the driver included, and the pending close that a finished store or operation of
    /// an import allows.
    pub(crate) fn progressed(&mut self, ctx: &mut Ctx, number: u16) {
        self.contexts.reach_quiets(ctx, &mut self.imports, number, false);
        let Some(import) = self.imports.get_mut(number) else { return };
        if import.is_idle() {
            if let Some(slot) = import.settling.take() {
                ctx.complete_status(slot, Status::Ok);
            }
        }
        let closed = import.closing.filter(|_| self.contexts.has_ended(ctx, import));
        if let Some(slot) = closed {
            self.remove_import(ctx, number);
            ctx.complete_status(slot, Status::Ok);
        }
    }

    /// A count of taken stores is in memory: closes the imports that waited for it.
    pub(crate) fn count_stored(&mut self, ctx: &mut Ctx) {
        let closing: Vec<u16> = self.imports.closing.iter().copied().collect();
        for number in closing {
            self.progressed(ctx, number);
        }
    }

    /// A store with this tag is taken by the copy on this node: counts it in the status page of its context.
    pub(crate) fn count_taken(&mut self, ctx: &mut Ctx, tag: u32) {
        if let Some(number) = self.peers.store_of(tag) {
            self.contexts.count_taken(ctx, &mut self.imports, number);
        }
    }

    // ---- losses ----

    /// Handles a store that is lost before it is sent.
    fn lose_store(&mut self, ctx: &mut Ctx, node: NodeId, number: u16, status: Status) {
        // If the store found no room, the waiting stores precede it and are still sent.
        let first = self.imports.get(number).is_some_and(|import| !import.in_error);
        self.lose(ctx, node, number, status, first && status != Status::Cut);
    }

    /// Handles a lost store: counts and reports it, latches the first error, puts the import in error state, and drops
    /// the waiting stores if `purge` is true.
    fn lose(&mut self, ctx: &mut Ctx, node: NodeId, number: u16, status: Status, purge: bool) {
        ctx.counters.dropped += 1;
        ctx.notice(Notice::LostStore(LostStore { node, import: Some(number), status }));
        let Some(import) = self.imports.get_mut(number) else { return };
        let first = !import.in_error;
        import.in_error = true;
        // Latch before the purge: a quiet that waits only for purged stores must report the error.
        self.latch(ctx, number, status);
        if purge && !ctx.has(Bug::PassLostStore) {
            self.purge(ctx, number);
        }
        if first {
            ctx.cause(Cause::ImportState(number));
        }
    }

    /// Reports a failed load and latches its error. The caller completes the load.
    pub(crate) fn fail_load(&mut self, ctx: &mut Ctx, node: NodeId, import: u16, status: Status) {
        ctx.notice(Notice::FailedLoad { node, status });
        self.latch(ctx, import, status);
    }

    /// Latches an error of an import, unless one is latched, and reports it to the quiets and the context that it
    /// concerns.
    pub(crate) fn latch(&mut self, ctx: &mut Ctx, number: u16, status: Status) {
        ctx.counters.errors += 1;
        // Each quiet in progress has recorded an error that is latched, or a later one.
        let import = self.imports.get_mut(number).filter(|import| import.error.is_none());
        let Some(import) = import else { return };
        import.error = Some(status);
        self.contexts.import_failed(ctx, import, status);
        ctx.cause(Cause::ImportState(number));
    }

    /// Drops the waiting stores of an import. They were never sent, so the count of issued stores decreases as well.
    fn purge(&mut self, ctx: &mut Ctx, number: u16) {
        let Some(import) = self.imports.get_mut(number) else { return };
        let queue = &mut self.peers.table[usize::from(import.node)].waiting;
        let own = import.node == ctx.config.node;
        let (mut purged, mut pages) = (0, BTreeSet::new());
        queue.retain(|(_, w)| match w {
            Waiting::Store { import, at, .. } if *import == number => {
                purged += 1;
                // A copy here may wait for its end, to leave.
                if own {
                    pages.insert(at.page);
                }
                false
            }
            Waiting::Burst { import, stores, .. } if *import == number => {
                purged += stores.len() as u32;
                false
            }
            _ => true,
        });
        pages.into_iter().for_each(|page| ctx.defer(FollowUp::OwnEnded(page)));
        purged += self.send_queues.drop_waiting(import);
        if purged == 0 {
            return;
        }
        self.pressure.waiting -= purged;
        ctx.counters.dropped += u64::from(purged);
        import.issued -= u64::from(purged);
        import.waiting = import.waiting.saturating_sub(purged);
        let freed = std::mem::take(&mut import.congested) && !import.throttled;
        self.contexts.stores_dropped(import);
        if freed {
            import.congestion_changed(ctx, false);
        }
        self.progressed(ctx, number);
    }

    /// Permanently fails all imports from a node that is down or has a new incarnation.
    pub(crate) fn kill_imports(&mut self, ctx: &mut Ctx, node: NodeId, status: Status) {
        for number in self.imports.numbers(|import| import.node == node && !import.dead) {
            self.kill_import(ctx, number, status);
        }
    }

    /// Permanently fails an import: it stays in error state and can only be closed.
    pub(crate) fn kill_import(&mut self, ctx: &mut Ctx, number: u16, status: Status) {
        let Some(import) = self.imports.get_mut(number) else { return };
        import.dead = true;
        import.in_error = true;
        self.latch(ctx, number, status);
        self.purge(ctx, number);
        ctx.cause(Cause::ImportState(number));
    }

    /// Clears all tables on reset. Pending loads complete with all ones; lookups are dropped with their admin slots.
    pub(crate) fn reset(&mut self, ctx: &mut Ctx) {
        for number in self.requests.table.keys() {
            if let Some(PendingRequest { node, kind: RequestKind::Load { token, size, .. }, .. }) =
                self.requests.take(number)
            {
                ctx.notice(Notice::FailedLoad { node, status: Status::Reset });
                ctx.read_done(token, ones(size.into()));
            }
        }
        let Requester { imports, peers, requests, send_queues, .. } =
            std::mem::replace(self, Requester::new(&ctx.config));
        self.imports = imports.emptied(&ctx.config);
        self.peers = peers.emptied(&ctx.config);
        self.requests.table = requests.table.emptied();
        self.send_queues.table = send_queues.table.emptied();
    }
}
