// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of imports: what is latched, what is dropped, and what ends with a node or a link.

use super::{InFlight, PendingRequest, RequestKind, Requester, Waiting, WaitingForward};
use crate::config::Bug;
use crate::ctx::ones;
use crate::events::Cause;
use crate::hib::Hib;
use crate::{LostStore, Notice};
use telegraphos_wire::{NodeId, Status, context};

impl Hib {
    /// A store of an import is lost before it is sent.
    pub(super) fn lose_store(&mut self, node: NodeId, number: u16, status: Status) {
        // What waits was issued before a store that found no room, and still goes out.
        let first = self.requester.open_import(number).is_some_and(|import| !import.cut);
        self.lose(node, number, status, first && status != Status::Cut);
    }

    /// A store of an import is lost: latch the first reason, cut the import, and maybe drop what waits.
    pub(super) fn lose(&mut self, node: NodeId, number: u16, status: Status, purge: bool) {
        self.ctx.counters.dropped += 1;
        self.ctx.notice(Notice::LostStore(LostStore { node, import: Some(number), status }));
        let Some(import) = self.requester.import(number) else { return };
        let first = !import.cut;
        import.cut = true;
        // First the error: a quiet that waits only for what is dropped now must report it.
        self.latch(number, status);
        if purge && !self.ctx.has(Bug::PassLostStore) {
            self.purge(number);
        }
        if first {
            self.ctx.cause(Cause::ImportState(number));
        }
    }

    pub(super) fn fail_load(&mut self, node: NodeId, import: u16, status: Status) {
        self.ctx.notice(Notice::FailedLoad { node, status });
        self.latch(import, status);
    }

    pub(crate) fn latch(&mut self, number: u16, status: Status) {
        self.ctx.counters.errors += 1;
        let Some(import) = self.requester.import(number) else { return };
        if import.error.is_some() {
            return; // Each quiet that waits has that one, or a later one, already.
        }
        import.error = Some(status);
        let (context, opening) = (import.context, import.opening);
        self.charge_quiets(context, status, |quiet| {
            quiet.targets.iter().any(|target| target.import == number && target.opening == opening)
        });
        self.count_context_error(context);
        self.ctx.cause(Cause::ImportState(number));
    }

    /// Counts an error in a context's status page.
    pub(crate) fn count_context_error(&mut self, number: u16) {
        if let Some(context) = self.requester.contexts.get_mut(&number) {
            context.errors += 1;
            let (address, errors) = (context.status_page + context::ERRORS_OFFSET, context.errors);
            self.ctx.count_in_status(number, address, errors);
        }
    }

    /// Drops the waiting stores of an import. They were never sent, so they leave the count of issued ones too.
    fn purge(&mut self, number: u16) {
        let Some(import) = self.requester.import(number) else { return };
        let node = import.node;
        let queue = &mut self.requester.peers[usize::from(node)].waiting;
        let before = queue.len();
        queue.retain(|(_, w)| !matches!(w, Waiting::Store { import, .. } if *import == number));
        let mut purged = (before - queue.len()) as u32;
        purged += self.drop_waiting(number);
        if purged == 0 {
            return;
        }
        self.requester.waiting_total -= purged;
        self.ctx.counters.dropped += u64::from(purged);
        if let Some(import) = self.requester.import(number) {
            import.issued -= u64::from(purged);
            import.waiting = import.waiting.saturating_sub(purged);
            let (context, opening, issued) = (import.context, import.opening, import.issued);
            let freed = std::mem::take(&mut import.congested) && !import.throttled;
            import.awaited = import.awaited.map(|stores| stores.min(issued));
            // A quiet that waited for what is dropped does not wait for what is issued from now on instead.
            let quiets = self.requester.contexts.get_mut(&context).map(|context| context.quiets.values_mut());
            for target in quiets.into_iter().flatten().flat_map(|quiet| &mut quiet.targets) {
                if target.import == number && target.opening == opening {
                    target.stores = target.stores.min(issued);
                }
            }
            if freed {
                self.stopped(number, false);
            }
        }
        self.progressed(number);
    }

    /// A node or the link has gone: everything for it ends now.
    pub(crate) fn fail_peer(&mut self, node: NodeId, status: Status) {
        let peer = &mut self.requester.peers[usize::from(node)];
        peer.outstanding = 0;
        peer.forwarded = 0;
        peer.elements = 0;
        peer.silent = false;
        peer.unheard.clear();
        peer.round = peer.round.wrapping_add(1);
        peer.requests = 0;
        let (mut pending_requests, mut parts, mut forwards) = (Vec::new(), Vec::new(), Vec::new());
        peer.waiting.retain(|(_, w)| match w {
            Waiting::PendingRequest { number, .. } => {
                pending_requests.push(*number);
                false
            }
            Waiting::Part { operation, .. } => {
                parts.push(*operation);
                false
            }
            Waiting::Store { .. } => true,
        });
        let send_queues: Vec<WaitingForward> = peer.forwards.drain(..).map(|(_, waiting)| waiting).collect();
        for WaitingForward { number, import, .. } in send_queues {
            self.left_send_queue(import);
            forwards.push(number);
        }
        let tags: Vec<u32> = self.requester.sent.iter().flatten().filter(|s| s.1 == node).map(|s| s.0).collect();
        // First the stores that waited: `lose_store` purges them with the first failure of their import.
        for number in 0..self.requester.imports.len() as u16 {
            let lost = self.requester.import(number).is_some_and(|i| i.node == node && i.issued > i.finished);
            if lost {
                self.lose_store(node, number, status);
            }
        }
        // Copies that only wait for their turn end first, so that none of them starts another block.
        self.fail_waiting_copies(node, status);
        for tag in tags {
            match self.requester.release_tag(tag, node) {
                Some(InFlight::Element { opening, .. }) => {
                    let Some(number) = self.element_lost(opening) else { continue };
                    if let Some(import) = self.requester.import(number) {
                        import.finished += 1;
                    }
                    self.progressed(number);
                }
                Some(InFlight::Store { import, .. }) => {
                    if let Some(import) = self.requester.import(import) {
                        import.finished += 1;
                    }
                    self.progressed(import);
                }
                Some(InFlight::PendingRequest { number }) => self.fail_pending(number, status),
                Some(InFlight::Part { operation, .. }) => self.part_lost(operation, status),
                Some(InFlight::Forward { number }) => self.forward_lost(number, status),
                None => {}
            }
        }
        for operation in parts {
            self.part_lost(operation, status);
        }
        for number in forwards {
            self.forward_lost(number, status);
        }
        for number in pending_requests {
            self.fail_pending(number, status);
        }
        self.end_send_queues_to(node);
        self.kill_imports(node, status);
    }

    /// The other end of a node's imports is no longer what they were opened on.
    pub(crate) fn kill_imports(&mut self, node: NodeId, status: Status) {
        for number in 0..self.requester.imports.len() as u16 {
            if self.requester.import(number).is_some_and(|i| i.node == node && !i.dead) {
                self.kill_import(number, status);
            }
        }
    }

    /// This import is of no more use; it can only be closed.
    pub(crate) fn kill_import(&mut self, number: u16, status: Status) {
        let Some(import) = self.requester.import(number) else { return };
        import.dead = true;
        import.cut = true;
        self.latch(number, status);
        self.purge(number);
        self.ctx.cause(Cause::ImportState(number));
    }

    /// Reset: every table of the issuing side is emptied; loads are answered, lookups forgotten with their slots.
    pub(crate) fn fail_all(&mut self, status: Status) {
        let pending_requests: Vec<u64> = self.requester.pending_requests.keys().copied().collect();
        for number in pending_requests {
            if let Some(PendingRequest { node, asked: RequestKind::Load { token, size, .. }, .. }) =
                self.take_pending(number)
            {
                self.ctx.notice(Notice::FailedLoad { node, status });
                self.ctx.read_done(token, ones(size.into()));
            }
        }
        let mut fresh = Requester::new(&self.ctx.config);
        for (new, old) in fresh.peers.iter_mut().zip(&self.requester.peers) {
            new.incarnation = old.incarnation;
            // Tags stay unique across the reset.
            new.round = old.round.wrapping_add(1);
        }
        fresh.next_request = self.requester.next_request;
        fresh.openings = self.requester.openings;
        fresh.epochs = self.requester.epochs;
        self.requester = fresh;
    }
}
