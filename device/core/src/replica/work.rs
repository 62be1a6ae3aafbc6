// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work queue of a page: its items run one at a time, so that the multicasts have the order of the page's memory.
//! Every other part of `replica` adds items; `hib` calls `stepped`.

use super::page::{Mode, Work};
use super::{Below, Replicas};
use crate::config::Bug;
use crate::ctx::{Ctx, FollowUp, StepOwner};
use crate::{Step, StepResult};
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, STREAM_BLOCK, Status, UNIT};

impl Replicas {
    /// Runs a page's work items until one needs a step.
    pub(super) fn run_work(&mut self, below: &mut Below<'_>, page: u32) {
        loop {
            let Some(replica) = self.pages.get_mut(page).filter(|replica| !replica.busy) else {
                return;
            };
            let (mode, Some(work)) = (replica.mode, replica.work.front().cloned()) else { return };
            if matches!(work, Work::Move(_) | Work::Take) {
                replica.work.pop_front();
                match work {
                    // New copies are completed before the home moves.
                    Work::Move(_)
                        if !replica.filling.is_empty()
                            || replica.work.iter().any(|work| matches!(work, Work::Read(..))) =>
                    {
                        replica.work.push_back(work);
                        if replica.work.len() == 1 {
                            return;
                        }
                    }
                    Work::Move(packet) => self.give_home(below, page, packet),
                    _ => self.take_home(below, page),
                }
                continue;
            }
            // Set before the call: a counter that it frees may let the next store of this node begin.
            replica.busy = true;
            if let Some(op) = self.first_step(below, page, mode, &work) {
                below.ctx.step(op, StepOwner::Replica(page));
                return;
            }
            let failed = !below.ctx.bus_master || below.grants.get(page).is_none();
            if let Some(replica) = self.pages.get_mut(page) {
                replica.busy = false;
                replica.work.pop_front();
            }
            match work {
                work if failed => self.refuse_work(below, page, work, Status::MemoryFault),
                Work::Apply(packet, _) => self.acknowledge_copy(below, &packet, Status::Ok),
                work => self.refuse_work(below, page, work, Status::Invalid),
            }
        }
    }

    /// The first guest-memory step of an item; `None` if it needs none, or if guest memory is not accessible now.
    pub(super) fn first_step(&mut self, below: &mut Below<'_>, page: u32, mode: Mode, work: &Work) -> Option<Step> {
        let base = below.grants.get(page).filter(|_| below.ctx.bus_master)?.address;
        let address_of = |offset: u32| base + u64::from(offset);
        match work {
            Work::Request(_, packet) => match packet.body {
                Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. } => {
                    Some(Step::Store { address: address_of(at.offset), size, data })
                }
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    Some(Step::Atomic { address: address_of(at.offset), size, op, operand, compare })
                }
                _ => None,
            },
            Work::Apply(packet, _) => {
                let (offset, size, data) = self.apply(below.ctx, page, mode, packet)?;
                Some(Step::Store { address: address_of(offset), size, data })
            }
            Work::Fill(Packet { body: Body::Fill { at, data, .. }, .. }) => {
                Some(Step::StoreBlock { address: address_of(at.offset), data: data.clone() })
            }
            Work::Fill(_) | Work::Cancelled | Work::Move(_) | Work::Take => None,
            Work::Read(_, offset) => Some(Step::LoadBlock {
                address: address_of(*offset),
                length: STREAM_BLOCK as u32,
                lend: false,
                into: None,
            }),
        }
    }

    /// The first part of a reflected store that must be stored; the others stay in the item. Decided when the item
    /// runs, since the counters may change before that.
    pub(super) fn apply(&mut self, ctx: &mut Ctx, page: u32, mode: Mode, packet: &Packet) -> Option<(u32, u8, u64)> {
        let Body::Reflected { at, size, data, writer } = packet.body else { return None };
        let parts = if mode == Mode::Counters && writer == ctx.config.node {
            self.count_reflected(ctx, page, at.offset, size);
            Vec::new()
        } else if mode == Mode::Counters && !ctx.has(Bug::IgnoreCounters) {
            self.unmasked(ctx, page, at.offset, size, data)
        } else {
            vec![(at.offset, size, data)]
        };
        let first = parts.first().copied();
        let replica = self.pages.get_mut(page)?;
        if let Some(Work::Apply(_, rest)) = replica.work.front_mut() {
            *rest = parts.into_iter().skip(1).collect();
        }
        first
    }

    /// Continues a page after its step in flight.
    pub(crate) fn stepped(&mut self, below: &mut Below<'_>, page: u32, result: StepResult) {
        let Some(replica) = self.pages.get_mut(page) else { return };
        // A store of which some bytes are masked takes a step for each part.
        if let (Some(Work::Apply(_, rest)), StepResult::Stored) = (replica.work.front_mut(), &result) {
            if !rest.is_empty() && !replica.revoked {
                let (offset, size, data) = rest.remove(0);
                if let Some(address) = below.grants.get(page).map(|grant| grant.address + u64::from(offset)) {
                    below.ctx.step(Step::Store { address, size, data }, StepOwner::Replica(page));
                    return;
                }
            }
        }
        replica.busy = false;
        let stale = std::mem::take(&mut replica.stale);
        match replica.work.pop_front() {
            // The page may have joined the same home again, which must not count this as applied.
            Some(Work::Apply(packet, _) | Work::Fill(packet)) if stale => {
                self.acknowledge_copy(below, &packet, Status::NotHome);
            }
            Some(work) if stale => self.refuse_work(below, page, work, Status::NotHome),
            Some(work) => self.work_done(below, page, work, result),
            None => {}
        }
        if self.end_if_revoked(below, page) {
            below.ctx.defer(FollowUp::StepEnded);
            return;
        }
        self.run_work(below, page);
        self.leave_if_done(below, page);
    }

    /// Completes an item after its last step.
    pub(super) fn work_done(&mut self, below: &mut Below<'_>, page: u32, work: Work, result: StepResult) {
        match (work, result) {
            (work, StepResult::Failed(status)) => self.refuse_work(below, page, work, status),
            (Work::Request(source, _), result) => self.request_performed(below, page, source, result),
            (Work::Apply(packet, _), _) => self.acknowledge_copy(below, &packet, Status::Ok),
            (Work::Fill(packet), _) => {
                let last = matches!(packet.body, Body::Fill { last: true, .. });
                // Before the next packet is processed: a store behind the last block is one to a complete copy.
                if self.pages.get(page).is_some_and(|replica| replica.home_deadline.is_some()) {
                    self.start_home_timer(below.ctx, page);
                }
                if last {
                    self.stop_home_timer(page);
                }
                if let Some(replica) = self.pages.get_mut(page).filter(|_| last) {
                    replica.filled = true;
                    replica.joining = None;
                    if let Some(slot) = replica.setting.take() {
                        below.ctx.complete_status(slot, Status::Ok);
                    }
                }
                self.acknowledge_copy(below, &packet, Status::Ok);
            }
            (Work::Read(to, offset), StepResult::Block(data)) => {
                let replica = self.pages.get(page).filter(|replica| replica.copies.contains_key(&to));
                let Some(replica) = replica else { return self.release_block(below, to) };
                let next = offset + STREAM_BLOCK as u32;
                let last = u64::from(next) >= UNIT;
                let at = RemoteAddr { page, offset, generation: replica.generation };
                // The share of the block is released when the copy has acknowledged it.
                self.multicast(below, &[to], Body::Fill { at, data, last }, None);
                if !last {
                    self.fill_from(page, to, next);
                }
            }
            (Work::Read(..) | Work::Cancelled | Work::Move(_) | Work::Take, _) => {}
        }
    }

    /// A store or atomic is in this node's memory: multicasts it, or at a copy forwards it to the home.
    pub(super) fn request_performed(&mut self, below: &mut Below<'_>, page: u32, source: NodeId, result: StepResult) {
        let own = source == below.ctx.config.node;
        let Some(packet) = below.responder.detach(below.ctx, source) else { return };
        if own && !below.ctx.has(Bug::TakenEarly) {
            self.count_taken(below, &packet);
        }
        let Some(replica) = self.pages.get(page) else { return };
        if !replica.orders_stores() {
            self.forward(below, packet, page);
            below.ctx.defer(FollowUp::Serve(source));
            return;
        }
        let copies: Vec<NodeId> = replica.copies.keys().copied().chain(self.invalidating_copies(page)).collect();
        let (at, size, data, answer) = match (&packet.body, result) {
            (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) => {
                let new = op.apply(*size, old, *operand, *compare);
                (*at, *size, new, Body::AtomicReply { status: Status::Ok, data: old })
            }
            (Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. }, _) => {
                (*at, *size, *data, Body::WriteAck { status: Status::Ok })
            }
            _ => return,
        };
        let update = matches!(packet.body, Body::Update { .. });
        let writer = if update { source } else { below.ctx.config.node };
        let body = Body::Reflected { at, size, data, writer };
        below.ctx.counters.reflected += copies.len() as u64;
        self.multicast(below, &copies, body, Some((packet, answer)));
        self.remove_invalidated(below.ctx, page);
        below.ctx.defer(FollowUp::Serve(source));
    }

    /// Refuses an item that cannot be performed.
    pub(super) fn refuse_work(&mut self, below: &mut Below<'_>, page: u32, work: Work, status: Status) {
        match work {
            Work::Request(source, _) => {
                below.responder.refuse(below.ctx, source, status);
                below.ctx.defer(FollowUp::Serve(source));
            }
            Work::Apply(packet, _) | Work::Fill(packet) => {
                self.leave_home(below, &packet, status);
                self.acknowledge_copy(below, &packet, status);
            }
            Work::Move(packet) => self.refuse_forward(below.ctx, packet, status),
            Work::Read(to, _) => {
                self.release_block(below, to);
                // A copy that cannot be filled is removed.
                let copy = self.pages.get(page).is_some_and(|replica| replica.copies.contains_key(&to));
                if copy {
                    self.remove_copy(below, page, to);
                    self.end_copy(below, page, to, status);
                }
            }
            Work::Cancelled | Work::Take => {}
        }
    }

    /// Leaves the home whose packet this copy refuses: the home drops the copy when it gets the refusal.
    pub(super) fn leave_home(&mut self, below: &mut Below<'_>, packet: &Packet, status: Status) {
        let (Body::Reflected { at, .. } | Body::Fill { at, .. }) = packet.body else { return };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.sources.get(&source).copied() else { return };
        if self.pages.get(page).is_some_and(|replica| !replica.revoked) {
            self.source_lost(below, page, source, status);
        }
    }
}
