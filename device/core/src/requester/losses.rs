// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors of imports: lost stores, latched errors, dropped stores, and the end of everything outstanding to a node that
//! is down. Called by the other files of the requester, and by `hib` for nodes, links and resets.

use super::{Ended, InFlight, Peer, PendingRequest, RequestKind, Requester, Waiting, WaitingForward};
use crate::by_node::ByNode;
use crate::config::Bug;
use crate::ctx::Ctx;
use crate::events::Cause;
use crate::numbered::ones;
use crate::{LostStore, Notice};
use telegraphos_wire::{NodeId, Status};

impl Requester {
    /// Handles a store that is lost before it is sent.
    pub(super) fn lose_store(&mut self, ctx: &mut Ctx, node: NodeId, number: u16, status: Status) {
        // If the store found no room, the waiting stores precede it and are still sent.
        let first = self.open_import(number).is_some_and(|import| !import.in_error);
        self.lose(ctx, node, number, status, first && status != Status::Cut);
    }

    /// Handles a lost store: counts and reports it, latches the first error, puts the import in error state, and drops
    /// the waiting stores if `purge` is true.
    pub(super) fn lose(&mut self, ctx: &mut Ctx, node: NodeId, number: u16, status: Status, purge: bool) {
        ctx.counters.dropped += 1;
        ctx.notice(Notice::LostStore(LostStore { node, import: Some(number), status }));
        let Some(import) = self.import(number) else { return };
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
    pub(super) fn fail_load(&mut self, ctx: &mut Ctx, node: NodeId, import: u16, status: Status) {
        ctx.notice(Notice::FailedLoad { node, status });
        self.latch(ctx, import, status);
    }

    /// Latches an error of an import, unless one is latched, and reports it to the quiets and the context that it
    /// concerns.
    pub(crate) fn latch(&mut self, ctx: &mut Ctx, number: u16, status: Status) {
        ctx.counters.errors += 1;
        let Some(import) = self.import(number) else { return };
        if import.error.is_some() {
            return; // Each quiet in progress has recorded that error or a later one.
        }
        import.error = Some(status);
        let (context, opening) = (import.context, import.opening);
        self.fail_quiets(context, status, |quiet| {
            quiet.targets.iter().any(|target| target.import == number && target.opening == opening)
        });
        self.count_context_error(ctx, context);
        ctx.cause(Cause::ImportState(number));
    }

    /// Drops the waiting stores of an import. They were never sent, so the count of issued stores decreases as well.
    fn purge(&mut self, ctx: &mut Ctx, number: u16) {
        let Some(import) = self.import(number) else { return };
        let node = import.node;
        let queue = &mut self.peers[usize::from(node)].waiting;
        let before = queue.len();
        queue.retain(|(_, w)| !matches!(w, Waiting::Store { import, .. } if *import == number));
        let mut purged = (before - queue.len()) as u32;
        purged += self.drop_waiting(number);
        if purged == 0 {
            return;
        }
        self.waiting_total -= purged;
        ctx.counters.dropped += u64::from(purged);
        if let Some(import) = self.import(number) {
            import.issued -= u64::from(purged);
            import.waiting = import.waiting.saturating_sub(purged);
            let (context, opening, issued) = (import.context, import.opening, import.issued);
            let freed = std::mem::take(&mut import.congested) && !import.throttled;
            import.awaited = import.awaited.map(|stores| stores.min(issued));
            // A quiet that waited for dropped stores must not wait for stores issued from now on instead.
            let quiets = self.contexts.get_mut(context).map(|context| context.quiets.values_mut());
            for target in quiets.into_iter().flatten().flat_map(|quiet| &mut quiet.targets) {
                if target.import == number && target.opening == opening {
                    target.stores = target.stores.min(issued);
                }
            }
            if freed {
                self.congestion_changed(ctx, number, false);
            }
        }
        self.progressed(ctx, number);
    }

    /// Ends everything outstanding to a node that is down or behind a lost link. Returns the requests of parts above
    /// the requester.
    pub(crate) fn fail_peer(&mut self, ctx: &mut Ctx, node: NodeId, status: Status) -> Vec<Ended> {
        let tags = self.tags_to(node);
        let in_flight = tags.into_iter().filter_map(|tag| self.release_tag(tag, node)).collect();
        let peer = &mut self.peers[usize::from(node)];
        peer.outstanding = 0;
        peer.forwards_in_flight = 0;
        peer.elements_in_flight = 0;
        peer.tag_generation = peer.tag_generation.wrapping_add(1);
        peer.requests_sent = 0;
        self.fail_outstanding(ctx, node, in_flight, status)
    }

    /// The same for a node that is up and has exceeded the time limit for answers. Its session continues: what it has
    /// not answered is still on its way, keeps its credits, and may be performed.
    pub(crate) fn abandon_peer(&mut self, ctx: &mut Ctx, node: NodeId) -> Vec<Ended> {
        let in_flight = self.abandon(ctx, node);
        self.fail_outstanding(ctx, node, in_flight, Status::Timeout)
    }

    /// Fails the requests to a node that are waiting, and these, which were in flight, and kills its imports.
    fn fail_outstanding(
        &mut self,
        ctx: &mut Ctx,
        node: NodeId,
        in_flight: Vec<InFlight>,
        status: Status,
    ) -> Vec<Ended> {
        self.ring_waits(ctx, node, false);
        let peer = &mut self.peers[usize::from(node)];
        peer.silent = false;
        peer.unheard_since = None;
        let (mut pending_requests, mut parts, mut forwards) = (Vec::new(), Vec::new(), Vec::new());
        peer.waiting.retain(|(_, w)| match w {
            Waiting::PendingRequest { number, .. } => {
                pending_requests.push(*number);
                false
            }
            Waiting::Part { operation, offset, .. } => {
                parts.push((*operation, *offset));
                false
            }
            Waiting::Store { .. } => true,
        });
        let waiting_forwards: Vec<WaitingForward> = peer.forwards.drain(..).map(|(_, waiting)| waiting).collect();
        for WaitingForward { number, import, .. } in waiting_forwards {
            self.uncount_waiting_forward(ctx, import);
            forwards.push(number);
        }
        // The waiting stores first: `lose_store` purges them with the first failure of their import.
        for number in 0..self.imports.len() as u16 {
            let lost = self.import(number).is_some_and(|i| i.node == node && i.issued > i.finished);
            if lost {
                self.lose_store(ctx, node, number, status);
            }
        }
        let mut ended = Vec::new();
        let part = |operation, offset| Ended::Part { operation, offset, answer: Err(status) };
        let forward = |number| Ended::Forward { number, answer: Err(status) };
        for request in in_flight {
            match request {
                InFlight::Element { send_queue, .. } => {
                    if let Some(number) = self.element_lost(send_queue) {
                        self.count_lost(ctx, number);
                    }
                }
                InFlight::Store { import, .. } => self.count_lost(ctx, import),
                InFlight::PendingRequest { number } => ended.extend(self.fail_pending(ctx, number, status)),
                InFlight::Part { operation, offset } => ended.push(part(operation, offset)),
                InFlight::Forward { number } => ended.push(forward(number)),
                InFlight::Abandoned(_) => {}
            }
        }
        ended.extend(parts.into_iter().map(|(operation, offset)| part(operation, offset)));
        ended.extend(forwards.into_iter().map(forward));
        for number in pending_requests {
            ended.extend(self.fail_pending(ctx, number, status));
        }
        self.end_send_queues_to(ctx, node);
        self.kill_imports(ctx, node, status);
        ended
    }

    /// A store or element in flight is lost with its node; it counts as finished.
    fn count_lost(&mut self, ctx: &mut Ctx, number: u16) {
        if let Some(import) = self.import(number) {
            import.finished += 1;
        }
        self.progressed(ctx, number);
    }

    /// Permanently fails all imports from a node that is down or has a new incarnation.
    pub(crate) fn kill_imports(&mut self, ctx: &mut Ctx, node: NodeId, status: Status) {
        for number in 0..self.imports.len() as u16 {
            if self.import(number).is_some_and(|i| i.node == node && !i.dead) {
                self.kill_import(ctx, number, status);
            }
        }
    }

    /// Permanently fails an import: it stays in error state and can only be closed.
    pub(crate) fn kill_import(&mut self, ctx: &mut Ctx, number: u16, status: Status) {
        let Some(import) = self.import(number) else { return };
        import.dead = true;
        import.in_error = true;
        self.latch(ctx, number, status);
        self.purge(ctx, number);
        ctx.cause(Cause::ImportState(number));
    }

    /// Clears all tables on reset. Pending loads complete with all ones; lookups are dropped with their admin slots.
    pub(crate) fn reset(&mut self, ctx: &mut Ctx) {
        for number in self.pending_requests.keys() {
            if let Some(PendingRequest { node, kind: RequestKind::Load { token, size, .. }, .. }) =
                self.take_pending(number)
            {
                ctx.notice(Notice::FailedLoad { node, status: Status::Reset });
                ctx.read_done(token, ones(size.into()));
            }
        }
        let mut fresh = Requester::new(&ctx.config);
        // Replies to requests from before the reset must not match.
        let reset = |old: &Peer| Peer { tag_generation: old.tag_generation.wrapping_add(1), ..Peer::default() };
        fresh.peers = ByNode::new(ctx.config.window.nodes(), reset(self.peers.absent()));
        for (node, old) in self.peers.existing() {
            fresh.peers[usize::from(node)] = reset(old);
        }
        std::mem::swap(&mut fresh.presence, &mut self.presence);
        fresh.pending_requests = self.pending_requests.emptied();
        fresh.send_queues = self.send_queues.emptied();
        fresh.openings = self.openings;
        fresh.epochs = self.epochs;
        *self = fresh;
    }
}
