// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of a request: it is one for a replicated page, for a queue's places, for a name, or an access of
//! granted memory.
//!
//! Requests of one source are performed strictly one after the other (SPEC I8), each as one guest-memory step; sources
//! interleave. Every request is checked against its grant when its step is started, not before.

use crate::config::Bug;
use crate::ctx::{FollowUp, StepOwner};
use crate::hib::Hib;
use crate::replica::Served;
use crate::{Step, StepResult};
use telegraphos_wire::{Body, NodeId, Packet, RemoteAddr, Rights, Status};

impl Hib {
    /// A request has come in: served at once, if no other of its source is.
    pub(crate) fn request(&mut self, packet: Packet) {
        let source = packet.src;
        if self.responder.accept(&mut self.ctx, packet) {
            self.serve(source);
        }
    }

    /// Starts the request at the head of a source's queue; answers those that need no step.
    pub(crate) fn serve(&mut self, source: NodeId) {
        loop {
            let Some(packet) = self.responder.first_of(&self.ctx, source) else { return };
            // A store or load meant for an earlier life of this node comes too late: one before it may have been lost.
            let late = source != self.ctx.config.node && packet.target != self.ctx.incarnation;
            if !late && self.ctx.is_behind_refused(&packet) {
                self.responder.refuse(&mut self.ctx, source, packet, Status::Cut);
                continue;
            }
            if !late {
                self.responder.in_service(source, Some(packet.body.page()));
                match self.serve_replica(source, &packet) {
                    Served::Ordinary => self.responder.in_service(source, None),
                    Served::Working => return,
                    Served::Left => continue,
                    Served::Stalled => return self.responder.in_service(source, None),
                    Served::Answer(body) => {
                        self.responder.answer(&mut self.ctx, source, packet, body);
                        continue;
                    }
                    Served::Refused(status) => {
                        self.responder.refuse(&mut self.ctx, source, packet, status);
                        continue;
                    }
                }
            }
            let place = |at: &RemoteAddr, length: u64, right: Rights| {
                if late { Err(Status::Reset) } else { self.grants.translate(&self.ctx, source, at, length, right) }
            };
            let dma = |right: Rights| Rights(Rights::DMA.0 | right.0);
            let split = self.ctx.has(Bug::SplitAtomic);
            let op = match &packet.body {
                Body::Atomic { at, size, .. } if split => place(at, u64::from(*size), Rights::ATOMIC)
                    .map(|address| Some((at.page, Step::Load { address, size: *size }))),
                Body::Write { at, size, data, .. } => place(at, u64::from(*size), Rights::WRITE)
                    .map(|address| Some((at.page, Step::Store { address, size: *size, data: *data }))),
                Body::Read { at, size, .. } => place(at, u64::from(*size), Rights::READ)
                    .map(|address| Some((at.page, Step::Load { address, size: *size }))),
                Body::Atomic { at, size, op, operand, compare, .. } => {
                    let (size, op, operand, compare) = (*size, *op, *operand, *compare);
                    place(at, u64::from(size), Rights::ATOMIC)
                        .map(|address| Some((at.page, Step::Atomic { address, size, op, operand, compare })))
                }
                Body::ReadBlock { at, length, .. } => place(at, u64::from(*length), dma(Rights::READ))
                    .map(|address| Some((at.page, Step::LoadBlock { address, length: *length }))),
                Body::WriteBlock { at, data, .. } => place(at, data.len() as u64, dma(Rights::WRITE))
                    .map(|address| Some((at.page, Step::StoreBlock { address, data: data.clone() }))),
                Body::Update { .. } | Body::Join { .. } | Body::Move { .. } | Body::Leave { .. } => Err(Status::Reset), // They are late.
                _ => Ok(None),
            };
            match op {
                Ok(Some((page, op))) => {
                    self.responder.in_service(source, Some(page));
                    self.ctx.step(op, StepOwner::Serve(source));
                    return;
                }
                Ok(None) => {
                    let body = match packet.body {
                        Body::Reserve { .. } => self.queues.reserve(&mut self.ctx, &self.grants, &packet),
                        _ => self.grants.look_up(&self.ctx, source, &packet.body, |page| self.queues.width(page)),
                    };
                    self.responder.answer(&mut self.ctx, source, packet, body);
                }
                Err(status) => self.responder.refuse(&mut self.ctx, source, packet, status),
            }
        }
    }

    /// A step of the request at the head of `source`'s queue is done.
    pub(crate) fn served(&mut self, source: NodeId, result: StepResult) {
        let Some((packet, loaded)) = self.responder.in_step(source) else { return };
        if let (Body::Atomic { at, size, op, operand, compare, .. }, StepResult::Loaded(old)) = (&packet.body, &result)
        {
            if self.ctx.has(Bug::SplitAtomic) && loaded.is_none() {
                let data = op.apply(*size, *old, *operand, *compare);
                let address = self.grants.translate(&self.ctx, source, at, u64::from(*size), Rights::ATOMIC);
                self.responder.loaded(source, *old);
                if let Ok(address) = address {
                    return self.ctx.step(Step::Store { address, size: *size, data }, StepOwner::Serve(source));
                }
            }
        }
        let body = match (&packet.body, result) {
            (Body::Atomic { .. }, StepResult::Stored) => {
                Body::AtomicReply { status: Status::Ok, data: loaded.unwrap_or(u64::MAX) }
            }
            (_, StepResult::Failed(status)) => {
                self.responder.refuse(&mut self.ctx, source, packet, status);
                self.ctx.then(FollowUp::StepEnded);
                self.serve(source);
                return;
            }
            (Body::Read { .. }, StepResult::Loaded(data)) => Body::ReadReply { status: Status::Ok, data },
            (Body::Atomic { .. }, StepResult::Loaded(data)) => Body::AtomicReply { status: Status::Ok, data },
            (Body::ReadBlock { .. }, StepResult::Block(data)) => Body::BlockReply { status: Status::Ok, data },
            _ => Body::WriteAck { status: Status::Ok },
        };
        self.responder.answer(&mut self.ctx, source, packet, body);
        self.ctx.then(FollowUp::StepEnded);
        self.serve(source);
    }
}
