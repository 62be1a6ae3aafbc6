// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests that have come in, from other nodes and from this one for itself: of each source one is in service at a
//! time, the first (SPEC I8). What becomes of it is said in `serve`.

use crate::answers::refusal;
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp};
use crate::{HibConfig, Notice};
use std::collections::VecDeque;
use telegraphos_wire::{Body, Class, NodeId, Packet, Status};

/// A request that waits for its turn.
#[derive(Clone, Debug, Hash)]
struct Inbound {
    packet: Packet,
    /// Export page of the step in flight.
    page: Option<u32>,
    /// It took a credit of the link that is up now.
    charged: bool,
    /// Value of an atomic that is performed in two steps ([`Bug::SplitAtomic`]).
    loaded: Option<u64>,
}

/// Requests that have come in.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Responder {
    /// By source: the first may be in service.
    inbound: Vec<VecDeque<Inbound>>,
}

impl Responder {
    pub(crate) fn new(config: &HibConfig) -> Responder {
        Responder { inbound: vec![VecDeque::new(); config.window.nodes() as usize] }
    }

    /// Takes a request in; whether it is the turn of its source's first.
    pub(crate) fn accept(&mut self, ctx: &mut Ctx, packet: Packet) -> bool {
        let charged = packet.src != ctx.config.node;
        let Some(queue) = self.inbound.get_mut(usize::from(packet.src)) else {
            // Only a switch that serves more nodes than the window holds could do this.
            ctx.link.consumed(packet.class());
            return false;
        };
        queue.push_back(Inbound { packet, page: None, charged, loaded: None });
        queue.len() == 1 || ctx.has(Bug::ServeOutOfOrder)
    }

    /// The first request of a source, unless it is in service.
    pub(crate) fn first_of(&mut self, ctx: &Ctx, source: NodeId) -> Option<Packet> {
        let queue = self.inbound.get_mut(usize::from(source))?;
        if ctx.has(Bug::ServeOutOfOrder) && queue.front().is_some_and(|r| r.page.is_none()) {
            let newest = queue.iter().rposition(|r| r.page.is_none()).unwrap_or(0);
            queue.swap(0, newest);
        }
        queue.front().filter(|request| request.page.is_none()).map(|request| request.packet.clone())
    }

    /// The request of a source whose step is done, and what an earlier step of it has loaded.
    pub(crate) fn in_step(&self, source: NodeId) -> Option<(Packet, Option<u64>)> {
        let request = self.inbound.get(usize::from(source))?.front()?;
        Some((request.packet.clone(), request.loaded))
    }

    /// The first step of an atomic that takes two has loaded this.
    pub(crate) fn loaded(&mut self, source: NodeId, value: u64) {
        if let Some(request) = self.inbound.get_mut(usize::from(source)).and_then(VecDeque::front_mut) {
            request.loaded = Some(value);
        }
    }

    /// Whether a request of this source for one of this node's pages is not performed.
    pub(crate) fn has_for(&self, source: NodeId, page: u32) -> bool {
        self.inbound.get(usize::from(source)).is_some_and(|queue| queue.iter().any(|r| r.packet.body.page() == page))
    }

    /// The link is gone, and its credits with it.
    pub(crate) fn forget_credits(&mut self) {
        self.inbound.iter_mut().flatten().for_each(|request| request.charged = false);
    }

    /// Whether a request in service is for one of these export pages.
    pub(crate) fn serves(&self, page: u32, count: u32) -> bool {
        let end = u64::from(page) + u64::from(count);
        self.inbound
            .iter()
            .flat_map(|queue| queue.front())
            .filter_map(|request| request.page)
            .any(|p| p >= page && u64::from(p) < end)
    }

    /// The request at the head of a source's queue is in service for this page, or is not.
    pub(crate) fn in_service(&mut self, source: NodeId, page: Option<u32>) {
        if let Some(request) = self.inbound[usize::from(source)].front_mut() {
            request.page = page;
        }
    }

    /// A request is refused, counted, and noted.
    pub(crate) fn refuse(&mut self, ctx: &mut Ctx, source: NodeId, packet: Packet, status: Status) {
        ctx.counters.refused += 1;
        let page = packet.body.page();
        ctx.notice(Notice::Refused { from: source, page, status });
        let body = refusal(&packet.body, status);
        self.finish(ctx, source, packet, body);
    }

    /// A request has been performed: it is answered with this.
    pub(crate) fn answer(&mut self, ctx: &mut Ctx, source: NodeId, packet: Packet, body: Body) {
        ctx.counters.served += 1;
        self.finish(ctx, source, packet, body);
    }

    /// Takes the head of the queue away and sends its reply.
    fn finish(&mut self, ctx: &mut Ctx, source: NodeId, packet: Packet, body: Body) {
        self.detach(ctx, source);
        ctx.reply_to(&packet, body);
        if source == ctx.config.node {
            ctx.then(FollowUp::OwnEnded(packet.body.page()));
        }
    }

    /// Takes the head of the queue away: it has been performed or refused, and its place is free.
    pub(crate) fn detach(&mut self, ctx: &mut Ctx, source: NodeId) -> Option<Packet> {
        let queue = &mut self.inbound[usize::from(source)];
        let request = queue.pop_front()?;
        if queue.is_empty() {
            // The next goes to the same place in memory.
            queue.clear();
        }
        if request.charged {
            ctx.link.consumed(request.packet.class());
        }
        ctx.count_performed(&request.packet);
        ctx.then(FollowUp::Performed(source));
        Some(request.packet)
    }

    /// Drops the requests of a node that has gone; a step in flight completes and its reply goes nowhere.
    pub(crate) fn forget_requests_of(&mut self, ctx: &mut Ctx, node: NodeId) {
        let queue = &mut self.inbound[usize::from(node)];
        let keep = usize::from(queue.front().is_some_and(|r| r.page.is_some()));
        let dropped: Vec<Class> = queue.drain(keep.min(queue.len())..).map(|r| r.packet.class()).collect();
        for class in dropped {
            ctx.link.consumed(class);
        }
    }

    /// Reset: requests not yet started are refused.
    pub(crate) fn refuse_all(&mut self, ctx: &mut Ctx, status: Status) {
        for source in 0..self.inbound.len() {
            let queue = &mut self.inbound[source];
            let keep = usize::from(queue.front().is_some_and(|r| r.page.is_some()));
            let rest: Vec<Packet> = queue.drain(keep.min(queue.len())..).map(|r| r.packet).collect();
            for packet in rest {
                if usize::from(ctx.config.node) == source {
                    continue;
                }
                ctx.link.consumed(packet.class());
                let reply = Packet {
                    src: ctx.config.node,
                    dst: packet.src,
                    tag: packet.tag,
                    incarnation: packet.incarnation,
                    target: 0,
                    body: refusal(&packet.body, status),
                };
                ctx.transmit(reply);
            }
        }
    }
}
