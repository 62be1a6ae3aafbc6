// SPDX-License-Identifier: MIT OR Apache-2.0
//! Window accesses: where a guest's store or load leads, and what becomes of it.

use super::{PendingRequest, Rejection, RequestKind, Target, Waiting, access_size};
use crate::config::Bug;
use crate::ctx::ones;
use crate::hib::Hib;
use crate::{Bar, Token};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Body, NodeId, RemoteAddr, Rights, Status, UNIT_SHIFT};

impl Hib {
    /// Finds and checks the import behind a window address; on failure says which import it was, if any.
    fn resolve(&self, offset: u64, size: u32, right: Rights) -> Result<Target, Rejection> {
        let aperture = if right == Rights::ENQUEUE { Aperture::Enqueue } else { Aperture::Plain };
        let address = self.ctx.config.window.decode(offset);
        let node = address.node;
        let size = access_size(offset, size).map_err(|status| (node, None, status))?;
        if address.aperture != aperture {
            return Err((node, None, Status::Aperture));
        }
        let Some(number) = self.requester.slot(&address) else {
            // Name the nearer reason where there is one: the id is beyond the fabric's nodes.
            let status = match self.ctx.link.nodes() {
                Some(nodes) if u32::from(node) >= nodes && node != self.ctx.config.node => Status::BadNode,
                _ => Status::Unmapped,
            };
            return Err((node, None, status));
        };
        let Some(import) = self.requester.imports[usize::from(number)].as_deref() else {
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

    pub(crate) fn store(&mut self, offset: u64, size: u32, data: u64) {
        self.count_intake();
        if self.ctx.config.window.decode(offset).aperture == Aperture::Argument {
            return self.argument(offset, size, data);
        }
        if self.special_access(offset, size) {
            return;
        }
        let enqueue = self.ctx.config.window.decode(offset).aperture == Aperture::Enqueue;
        let right = if enqueue { Rights::ENQUEUE } else { Rights::WRITE };
        let (number, at, size) = match self.resolve(offset, size, right) {
            Ok(found) => found,
            Err((node, Some(import), status)) => return self.lose_store(node, import, status),
            Err((_, None, status)) => {
                self.ctx.counters.dropped += 1;
                return self.ctx.bad_access(Bar::Window, offset, size, status);
            }
        };
        let full = !self.has_room(number);
        let Some(import) = self.requester.import(number) else { return };
        let node = import.node;
        if import.cut && !self.ctx.has(Bug::PassLostStore) {
            self.ctx.counters.dropped += 1;
            return;
        }
        if full {
            return self.lose_store(node, number, Status::Cut);
        }
        if enqueue && size < 4 {
            return self.lose_store(node, number, Status::NotQueue);
        }
        let peer = &mut self.requester.peers[usize::from(node)];
        if self.ctx.has(Bug::DropWhenFull) && peer.outstanding >= self.ctx.config.outstanding {
            return;
        }
        let data = data & ones(size.into());
        if enqueue {
            self.accept_element(node, number, at, size, data);
        } else {
            peer.accept(Waiting::Store { import: number, at, size, data });
            self.ctx.counters.stores += 1;
        }
        self.requester.waiting_total += 1;
        if let Some(import) = self.requester.import(number) {
            import.issued += 1;
            import.waiting += 1;
            import.active = true;
        }
        if !enqueue {
            self.page_counters.count(&mut self.ctx, node, at.page, true);
        }
        self.pump(node);
        let congest_at = self.ctx.config.congest_at;
        if let Some(import) =
            self.requester.import(number).filter(|import| import.waiting >= congest_at && !import.congested)
        {
            import.congested = true;
            self.stopped(number, true);
        }
    }

    pub(crate) fn load(&mut self, token: Token, offset: u64, size: u32) {
        if self.special_access(offset, size) {
            self.ctx.read_done(token, 0);
            return;
        }
        #[cfg(feature = "bugs")]
        if let Some(data) = self.command_load(offset) {
            self.ctx.read_done(token, data);
            return;
        }
        let (number, at, size) = match self.resolve(offset, size, Rights::READ) {
            Ok(found) => found,
            Err((node, import, status)) => {
                match import {
                    Some(import) => self.fail_load(node, import, status),
                    None => self.ctx.bad_access(Bar::Window, offset, size, status),
                }
                self.ctx.read_done(token, ones(size));
                return;
            }
        };
        let Some(import) = self.requester.import(number) else { return };
        let (node, context) = (import.node, import.context);
        if self.is_silent(node) {
            self.ctx.counters.silent_loads += 1;
            self.fail_load(node, number, Status::Timeout);
            self.ctx.read_done(token, ones(size.into()));
            return;
        }
        self.ctx.counters.loads += 1;
        self.page_counters.count(&mut self.ctx, node, at.page, false);
        let asked = RequestKind::Load { token, import: number, size };
        self.ask(node, asked, Body::Read { at, context, size });
    }

    /// Whether a load would only time out: one has, and the node has not answered anything since. What it has not
    /// answered tells when it does, since nothing is lost on the way; without anything of the kind the next load is
    /// sent.
    fn is_silent(&self, node: NodeId) -> bool {
        self.requester.peers.get(usize::from(node)).is_some_and(|peer| peer.silent && peer.unanswered() > 0)
    }

    /// Something has come from a node.
    pub(crate) fn heard(&mut self, node: NodeId) {
        if self.ctx.has(Bug::SilentForEver) {
            return;
        }
        let Some(peer) = self.requester.peers.get_mut(usize::from(node)) else { return };
        if peer.silent || !peer.unheard.is_empty() {
            peer.silent = false;
            peer.unheard.clear();
        }
    }

    /// Queues a load or lookup behind everything sent to its node before.
    pub(crate) fn ask(&mut self, node: NodeId, asked: RequestKind, body: Body) {
        let number = self.requester.next_request;
        self.requester.next_request += 1;
        let deadline = self.ctx.now.saturating_add(self.time_for(&asked));
        if matches!(asked, RequestKind::Load { .. }) && node != self.ctx.config.node {
            self.requester.peers[usize::from(node)].unheard.insert(number);
        }
        self.requester.pending_requests.insert(number, PendingRequest { node, deadline, asked });
        self.requester.deadlines.insert((deadline, number));
        self.requester.peers[usize::from(node)].accept(Waiting::PendingRequest { number, body: Box::new(body) });
        self.pump(node);
    }

    /// How long an answer may take, in microseconds. No processor stalls for the answers about copies and homes; a node
    /// that is not scheduled for longer than a load may take is not silent. A home that moves waits for its copies
    /// first, and then for the new one.
    fn time_for(&self, asked: &RequestKind) -> u64 {
        match asked {
            RequestKind::Join { .. } | RequestKind::Leave { .. } | RequestKind::Keep { .. } => {
                self.ctx.config.replica_limit
            }
            RequestKind::Move { .. } => self.ctx.config.replica_limit.saturating_mul(3),
            _ => self.ctx.config.load_limit,
        }
    }

    pub(super) fn take_pending(&mut self, number: u64) -> Option<PendingRequest> {
        let request = self.requester.pending_requests.remove(&number)?;
        self.requester.deadlines.remove(&(request.deadline, number));
        Some(request)
    }

    /// Ends a load or lookup without an answer.
    pub(super) fn fail_pending(&mut self, number: u64, status: Status) {
        let Some(request) = self.take_pending(number) else { return };
        match request.asked {
            RequestKind::Load { token, import, size } => {
                self.fail_load(request.node, import, status);
                self.ctx.read_done(token, ones(size.into()));
            }
            RequestKind::Lookup { slot } => self.ctx.complete_status(slot, status),
            RequestKind::Reserve { opens } => self.reserved(opens, Err(status)),
            RequestKind::Return { node, at } => self.holds_returned(node, at),
            RequestKind::Join { page, source } => self.join_failed(page, source, status),
            RequestKind::Leave { page } => self.left(page),
            RequestKind::Move { page } => self.move_failed(page, status),
            RequestKind::Keep { page, source, packet } => self.kept(page, source, packet, status),
        }
    }

    pub(crate) fn expire(&mut self) {
        while let Some(&(deadline, number)) = self.requester.deadlines.first() {
            if deadline > self.ctx.now {
                return;
            }
            let node = self.requester.pending_requests.get(&number).map(|request| request.node);
            if let Some(peer) = node.and_then(|node| self.requester.peers.get_mut(usize::from(node))) {
                peer.silent |= peer.unheard.remove(&number);
            }
            self.fail_pending(number, Status::Timeout);
            self.requester.deadlines.remove(&(deadline, number));
        }
    }
}
