// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work of a page: one piece after the other, in the order of its memory.

use super::{Mode, Work};
use crate::config::Bug;
use crate::ctx::{FollowUp, StepOwner};
use crate::hib::Hib;
use crate::{Step, StepResult};
use telegraphos_wire::{Body, MAX_BLOCK, NodeId, Packet, RemoteAddr, Status, UNIT};

impl Hib {
    /// Starts the next work of a page, if none is under way.
    pub(super) fn work_on(&mut self, page: u32) {
        loop {
            let Some(replica) = self.replicas.pages.get_mut(&page).filter(|replica| !replica.busy) else {
                return;
            };
            let (mode, Some(work)) = (replica.mode, replica.work.front().cloned()) else { return };
            if matches!(work, Work::Move(_) | Work::Take) {
                replica.work.pop_front();
                match work {
                    // New copies are complete first.
                    Work::Move(_)
                        if !replica.filling.is_empty()
                            || replica.work.iter().any(|work| matches!(work, Work::Read(..))) =>
                    {
                        replica.work.push_back(work);
                        if replica.work.len() == 1 {
                            return;
                        }
                    }
                    Work::Move(packet) => self.give_home(page, packet),
                    _ => self.take_home(page),
                }
                continue;
            }
            // From here on: a counter that is freed below lets the next store of this node begin.
            replica.busy = true;
            if let Some(op) = self.first_step(page, mode, &work) {
                self.ctx.step(op, StepOwner::Replica(page));
                return;
            }
            let failed = !self.ctx.bus_master || self.grants.get(page).is_none();
            if let Some(replica) = self.replicas.pages.get_mut(&page) {
                replica.busy = false;
                replica.work.pop_front();
            }
            match work {
                work if failed => self.refuse_work(page, work, Status::MemoryFault),
                Work::Apply(packet, _) => self.acknowledge_copy(&packet, Status::Ok),
                work => self.refuse_work(page, work, Status::Invalid),
            }
        }
    }

    /// The first guest-memory step of a work; none if it needs none, or guest memory cannot be reached now.
    pub(super) fn first_step(&mut self, page: u32, mode: Mode, work: &Work) -> Option<Step> {
        let base = self.grants.get(page).filter(|_| self.ctx.bus_master)?.address;
        let place = |offset: u32| base + u64::from(offset);
        match work {
            Work::Request(_, packet) => match packet.body {
                Body::Write { at, size, data, .. } | Body::Update { at, size, data, .. } => {
                    Some(Step::Store { address: place(at.offset), size, data })
                }
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    Some(Step::Atomic { address: place(at.offset), size, op, operand, compare })
                }
                _ => None,
            },
            Work::Apply(packet, _) => {
                let (offset, size, data) = self.apply(page, mode, packet)?;
                Some(Step::Store { address: place(offset), size, data })
            }
            Work::Fill(Packet { body: Body::Fill { at, data, .. }, .. }) => {
                Some(Step::StoreBlock { address: place(at.offset), data: data.clone() })
            }
            Work::Fill(_) | Work::Lost | Work::Move(_) | Work::Take => None,
            Work::Read(_, offset) => Some(Step::LoadBlock { address: place(*offset), length: MAX_BLOCK as u32 }),
        }
    }

    /// What the next part of a reflected store is; decided when its turn has come.
    pub(super) fn apply(&mut self, page: u32, mode: Mode, packet: &Packet) -> Option<(u32, u8, u64)> {
        let Body::Reflected { at, size, data, writer } = packet.body else { return None };
        let parts = if mode == Mode::Counters && writer == self.ctx.config.node {
            self.count_reflected(page, at.offset, size);
            Vec::new()
        } else if mode == Mode::Counters && !self.ctx.has(Bug::IgnoreCounters) {
            self.unmasked(page, at.offset, size, data)
        } else {
            vec![(at.offset, size, data)]
        };
        let first = parts.first().copied();
        let replica = self.replicas.pages.get_mut(&page)?;
        if let Some(Work::Apply(_, rest)) = replica.work.front_mut() {
            *rest = parts.into_iter().skip(1).collect();
        }
        first
    }

    /// A step of a page's work is done.
    pub(crate) fn replica_stepped(&mut self, page: u32, result: StepResult) {
        let Some(replica) = self.replicas.pages.get_mut(&page) else { return };
        // The other parts of a store whose bytes are masked.
        if let (Some(Work::Apply(_, rest)), StepResult::Stored) = (replica.work.front_mut(), &result) {
            if !rest.is_empty() && !replica.gone {
                let (offset, size, data) = rest.remove(0);
                if let Some(address) = self.grants.get(page).map(|grant| grant.address + u64::from(offset)) {
                    self.ctx.step(Step::Store { address, size, data }, StepOwner::Replica(page));
                    return;
                }
            }
        }
        replica.busy = false;
        let late = std::mem::take(&mut replica.late);
        match replica.work.pop_front() {
            // The page may be a copy of the same home again.
            Some(Work::Apply(packet, _) | Work::Fill(packet)) if late => {
                self.acknowledge_copy(&packet, Status::NotHome);
            }
            Some(work) if late => self.refuse_work(page, work, Status::NotHome),
            Some(work) => self.work_done(page, work, result),
            None => {}
        }
        if self.end_replica_if_gone(page) {
            self.ctx.then(FollowUp::StepEnded);
            return;
        }
        self.work_on(page);
        self.leave_if_done(page);
    }

    pub(super) fn work_done(&mut self, page: u32, work: Work, result: StepResult) {
        match (work, result) {
            (work, StepResult::Failed(status)) => self.refuse_work(page, work, status),
            (Work::Request(source, _), result) => self.performed_at(page, source, result),
            (Work::Apply(packet, _), _) => self.acknowledge_copy(&packet, Status::Ok),
            (Work::Fill(packet), _) => {
                let last = matches!(packet.body, Body::Fill { last: true, .. });
                // Before what follows it is taken: a store behind the last of its content is one to a complete copy.
                if self.replicas.pages.get(&page).is_some_and(|replica| replica.awaits.is_some()) {
                    self.await_home(page);
                }
                if last {
                    self.await_no_longer(page);
                }
                if let Some(replica) = self.replicas.pages.get_mut(&page).filter(|_| last) {
                    replica.filled = true;
                    replica.joining = None;
                    if let Some(slot) = replica.setting.take() {
                        self.ctx.complete_status(slot, Status::Ok);
                    }
                }
                self.acknowledge_copy(&packet, Status::Ok);
            }
            (Work::Read(to, offset), StepResult::Block(data)) => {
                let replica = self.replicas.pages.get(&page).filter(|replica| replica.copies.contains_key(&to));
                let Some(replica) = replica else { return self.block_taken(to) };
                let next = offset + MAX_BLOCK as u32;
                let last = u64::from(next) >= UNIT;
                let at = RemoteAddr { page, offset, generation: replica.generation };
                // Its place is free again when the copy has acknowledged it.
                self.multicast(&[to], Body::Fill { at, data, last }, None);
                if !last {
                    self.fill_from(page, to, next);
                }
            }
            (Work::Read(..) | Work::Lost | Work::Move(_) | Work::Take, _) => {}
        }
    }

    /// A store or atomic has been performed in this node's memory: it goes on to the others.
    pub(super) fn performed_at(&mut self, page: u32, source: NodeId, result: StepResult) {
        let own = source == self.ctx.config.node;
        let Some(packet) = self.responder.detach(&mut self.ctx, source) else { return };
        if own && !self.ctx.has(Bug::TakenEarly) {
            self.taken(&packet);
        }
        let Some(replica) = self.replicas.pages.get(&page) else { return };
        if !replica.orders() {
            self.forward(packet, page);
            self.ctx.then(FollowUp::Serve(source));
            return;
        }
        let copies: Vec<NodeId> = replica.copies.keys().copied().chain(self.still_invalid(page)).collect();
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
        let writer = if update { source } else { self.ctx.config.node };
        let body = Body::Reflected { at, size, data, writer };
        self.ctx.counters.reflected += copies.len() as u64;
        self.multicast(&copies, body, Some((packet, answer)));
        self.forget_invalid(page);
        self.ctx.then(FollowUp::Serve(source));
    }

    pub(super) fn refuse_work(&mut self, page: u32, work: Work, status: Status) {
        match work {
            Work::Request(source, packet) => {
                self.responder.refuse(&mut self.ctx, source, packet, status);
                self.ctx.then(FollowUp::Serve(source));
            }
            Work::Apply(packet, _) | Work::Fill(packet) => {
                self.give_up_copy(&packet, status);
                self.acknowledge_copy(&packet, status);
            }
            Work::Move(packet) => self.refuse_forward(packet, status),
            Work::Read(to, _) => {
                self.block_taken(to);
                // A copy that cannot be filled is none.
                let copy = self.replicas.pages.get(&page).is_some_and(|replica| replica.copies.contains_key(&to));
                if copy {
                    self.forget_copy(page, to);
                    self.end_copy(page, to, status);
                }
            }
            Work::Lost | Work::Take => {}
        }
    }

    /// What a copy refuses makes its home forget it: it is told, too.
    pub(super) fn give_up_copy(&mut self, packet: &Packet, status: Status) {
        let (Body::Reflected { at, .. } | Body::Fill { at, .. }) = packet.body else { return };
        let source = (packet.src, at.page, at.generation);
        let Some(page) = self.replicas.sources.get(&source).copied() else { return };
        if self.replicas.pages.get(&page).is_some_and(|replica| !replica.gone) {
            self.source_lost(page, source, status);
        }
    }
}
