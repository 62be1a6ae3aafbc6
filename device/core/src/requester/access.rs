// SPDX-License-Identifier: MIT OR Apache-2.0
//! Window accesses: checks the address of a store or load, and accepts, sends or fails it. Called by `hib` for BAR4.
//! Also keeps the pending requests and their deadlines.

use super::deadlines::Limit;
use super::{Ended, PendingRequest, Rejection, ReplicaRequest, RequestKind, Requester, Target, Waiting, access_size};
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::keyed::Key;
use crate::numbered::ones;
use crate::{Bar, Token};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Body, NodeId, RemoteAddr, Rights, Status, UNIT_SHIFT};

/// Time limit for the reply to a request: which one, and microseconds. Replica requests have a longer limit: no
/// processor stalls for them, and a node that is not scheduled for longer than a load may take is not silent. A home
/// that moves first waits for its copies, then for the new home.
fn time_limit(ctx: &Ctx, kind: &RequestKind) -> (Limit, u64) {
    match kind {
        RequestKind::Replica(ReplicaRequest::Move { .. }) => (Limit::Move, ctx.config.replica_limit.saturating_mul(3)),
        RequestKind::Replica(_) => (Limit::Replica, ctx.config.replica_limit),
        _ => (Limit::Load, ctx.config.load_limit),
    }
}

impl Requester {
    /// Finds and checks the import at a window address. An error names the import if the address is mapped.
    fn resolve(&self, ctx: &Ctx, offset: u64, size: u32, right: Rights) -> Result<Target, Rejection> {
        let aperture = if right == Rights::ENQUEUE { Aperture::Enqueue } else { Aperture::Plain };
        let address = ctx.config.window.decode(offset);
        let node = address.node;
        let size = access_size(offset, size).map_err(|status| (node, None, status))?;
        if address.aperture != aperture {
            return Err((node, None, Status::Aperture));
        }
        let Some(number) = self.slot(&address) else {
            // Report the more specific reason: the node id exceeds the nodes of the fabric.
            let status = match ctx.link.nodes() {
                Some(nodes) if u32::from(node) >= nodes && node != ctx.config.node => Status::BadNode,
                _ => Status::Unmapped,
            };
            return Err((node, None, status));
        };
        let Some(import) = self.imports[usize::from(number)].as_deref() else {
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
        if let Err(status) = self.reachable(ctx, node) {
            return fail(status);
        }
        let at = RemoteAddr { page: import.page + page, offset: within, generation: import.generation };
        Ok((number, at, size))
    }

    /// Serves a store to the plain window or the enqueue aperture. The store is accepted, or dropped with an error
    /// latched.
    pub(crate) fn store(&mut self, ctx: &mut Ctx, offset: u64, size: u32, data: u64) {
        let enqueue = ctx.config.window.decode(offset).aperture == Aperture::Enqueue;
        let right = if enqueue { Rights::ENQUEUE } else { Rights::WRITE };
        let (number, at, size) = match self.resolve(ctx, offset, size, right) {
            Ok(found) => found,
            Err((node, Some(import), status)) => return self.lose_store(ctx, node, import, status),
            Err((_, None, status)) => {
                ctx.counters.dropped += 1;
                return ctx.bad_access(Bar::Window, offset, size, status);
            }
        };
        let full = !self.has_room(ctx, number);
        let Some(import) = self.import(number) else { return };
        let node = import.node;
        if import.in_error && !ctx.has(Bug::PassLostStore) {
            ctx.counters.dropped += 1;
            return;
        }
        if full {
            return self.lose_store(ctx, node, number, Status::Cut);
        }
        if enqueue && size < 4 {
            return self.lose_store(ctx, node, number, Status::NotQueue);
        }
        let peer = &mut self.peers[usize::from(node)];
        if ctx.has(Bug::DropWhenFull) && peer.outstanding >= ctx.config.outstanding {
            return;
        }
        let data = data & ones(size.into());
        if enqueue {
            self.accept_element(ctx, node, number, at, size, data);
        } else {
            peer.accept(Waiting::Store { import: number, at, size, data });
            ctx.counters.stores += 1;
        }
        self.waiting_total += 1;
        if let Some(import) = self.import(number) {
            import.issued += 1;
            import.waiting += 1;
            import.active = true;
        }
        if !enqueue {
            self.page_counters.count(ctx, node, at.page, true);
        }
        self.pump(ctx, node);
        self.congest_if_full(ctx, number);
    }

    /// Serves a load from the plain window. It completes when its node answers, or with all ones at the time limit.
    pub(crate) fn load(&mut self, ctx: &mut Ctx, token: Token, offset: u64, size: u32) {
        let (number, at, size) = match self.resolve(ctx, offset, size, Rights::READ) {
            Ok(found) => found,
            Err((node, import, status)) => {
                match import {
                    Some(import) => self.fail_load(ctx, node, import, status),
                    None => ctx.bad_access(Bar::Window, offset, size, status),
                }
                ctx.read_done(token, ones(size));
                return;
            }
        };
        let Some(import) = self.import(number) else { return };
        let (node, context) = (import.node, import.context);
        if self.is_silent(node) {
            ctx.counters.silent_loads += 1;
            self.fail_load(ctx, node, number, Status::Timeout);
            ctx.read_done(token, ones(size.into()));
            return;
        }
        ctx.counters.loads += 1;
        self.page_counters.count(ctx, node, at.page, false);
        let kind = RequestKind::Load { token, import: number, size };
        self.submit(ctx, node, kind, Body::Read { at, context, size });
    }

    /// Returns whether a load to this node would only time out: an earlier one has, and the node has sent nothing
    /// since. Its requests in flight show when it answers again, since no packet is lost on the way; without any in
    /// flight, the next load is sent as a probe.
    fn is_silent(&self, node: NodeId) -> bool {
        let peer = &self.peers[usize::from(node)];
        peer.silent && peer.window_used() > 0
    }

    /// A packet was received from a node: it is not silent.
    pub(crate) fn note_packet_from(&mut self, ctx: &Ctx, node: NodeId) {
        if ctx.has(Bug::SilentForEver) {
            return;
        }
        let Some(peer) = self.peers.existing_mut(node) else { return };
        if peer.silent || peer.unheard_since.is_some() {
            peer.silent = false;
            peer.unheard_since = None;
        }
    }

    /// Appends a pending request to the send queue of its node, behind all earlier stores.
    pub(crate) fn submit(&mut self, ctx: &mut Ctx, node: NodeId, kind: RequestKind, body: Body) {
        let (limit, time) = time_limit(ctx, &kind);
        let deadline = ctx.now.saturating_add(time);
        let is_load = matches!(kind, RequestKind::Load { .. });
        let number = self.pending_requests.insert(PendingRequest { node, limit, deadline, kind });
        if is_load && node != ctx.config.node {
            self.peers[usize::from(node)].unheard_since.get_or_insert(number);
        }
        self.deadlines.insert(limit, deadline, number);
        let body = self.bodies.put(body);
        self.peers[usize::from(node)].accept(Waiting::PendingRequest { number, body });
        self.pump(ctx, node);
    }

    /// Appends a request of an operation to the send queue of its node.
    pub(crate) fn submit_part(&mut self, ctx: &mut Ctx, node: NodeId, operation: Key, offset: u64, body: Body) {
        let body = self.bodies.put(body);
        self.peers[usize::from(node)].accept(Waiting::Part { operation, offset, body });
        self.pump(ctx, node);
    }

    /// Removes a pending request and its deadline.
    pub(super) fn take_pending(&mut self, number: Key) -> Option<PendingRequest> {
        let request = self.pending_requests.remove(number)?;
        self.deadlines.remove(request.limit, request.deadline, number);
        Some(request)
    }

    /// Fails a pending request that has no reply.
    pub(super) fn fail_pending(&mut self, ctx: &mut Ctx, number: Key, status: Status) -> Option<Ended> {
        let request = self.take_pending(number)?;
        self.fail_request(ctx, request, status)
    }

    /// Fails a request that has been removed from the pending ones.
    pub(super) fn fail_request(&mut self, ctx: &mut Ctx, request: PendingRequest, status: Status) -> Option<Ended> {
        match request.kind {
            RequestKind::Load { token, import, size } => {
                self.fail_load(ctx, request.node, import, status);
                ctx.read_done(token, ones(size.into()));
            }
            RequestKind::Lookup { slot } => ctx.complete_status(slot, status),
            RequestKind::Reserve { opens } => self.reserve_answered(ctx, opens, Err(status)),
            RequestKind::Return { node, at } => self.receive_credits_returned(ctx, node, at),
            RequestKind::Replica(request) => return Some(Ended::Replica { request, status }),
        }
        None
    }

    /// Fails the pending requests whose deadline has passed, and marks their nodes as silent.
    pub(crate) fn expire(&mut self, ctx: &mut Ctx) -> Vec<Ended> {
        let mut ended = Vec::new();
        while let Some(number) = self.deadlines.take_due(ctx.now) {
            let load = match self.pending_requests.get(number) {
                Some(PendingRequest { node, kind: RequestKind::Load { .. }, .. }) => Some(*node),
                _ => None,
            };
            if let Some(peer) = load.and_then(|node| self.peers.existing_mut(node)) {
                // Keys ascend with age.
                peer.silent |= peer.unheard_since.is_some_and(|first| number >= first);
            }
            ended.extend(self.fail_pending(ctx, number, Status::Timeout));
        }
        ended
    }
}
