// SPDX-License-Identifier: MIT OR Apache-2.0
//! FETCH: loads that perform an atomic (I14, contract 4). Called by `hib` for loads from BAR2.

use super::{Below, Kind, Launcher, Origin, slot_number};
use crate::keyed::Key;
use crate::numbered::ones;
use crate::requester::Requester;
use crate::{Bar, Bug, Notice, Token};
use telegraphos_wire::AtomicOp;
use telegraphos_wire::context::{self, Operation as Opcode};
use telegraphos_wire::{Status, UNIT, UNIT_SHIFT};

impl Launcher {
    /// Serves a load from a context page. Only FETCH can be read; other registers read as zero, since their results
    /// arrive in the status page.
    pub(crate) fn context_read(&mut self, below: &mut Below<'_>, token: Token, offset: u64, size: u32) {
        let within = offset & (UNIT - 1);
        let slots = context::FETCH..context::FETCH + 8 * context::SLOT_COUNT;
        if !slots.contains(&within) {
            return below.ctx.read_done(token, 0);
        }
        let number = (offset >> UNIT_SHIFT) as u16;
        if let Err((status, argument)) = self.fetch(below, token, number, offset, size) {
            self.fetch_failed(below, number, argument, offset, size, status);
            below.ctx.read_done(token, ones(size));
        }
    }

    /// Starts the atomic that was prepared in the slot of a FETCH load. An error names the import that it concerns, if
    /// any.
    fn fetch(
        &mut self,
        below: &mut Below<'_>,
        token: Token,
        number: u16,
        offset: u64,
        size: u32,
    ) -> Result<(), (Status, Option<u16>)> {
        if !matches!(size, 4 | 8) || offset % 8 != 0 {
            return Err((Status::BadSize, None));
        }
        let Some(context) = below.requester.contexts.get(number) else { return Err((Status::Unmapped, None)) };
        let slot = (((offset & (UNIT - 1)) - context::FETCH) / 8) as u8;
        let busy = context.quiets.contains_key(&slot) || self.slot_is_busy(number, slot);
        // The arguments are consumed even if the load fails, as by LAUNCH.
        let registers = match below.ctx.has(Bug::FetchKeepsArguments) {
            true => self.registers.get(slot_number(number, slot)).copied().unwrap_or_default(),
            false => self.registers.remove(slot_number(number, slot)).unwrap_or_default(),
        };
        let locations = registers.locations();
        let argument = locations[0].filter(|location| self.is_open(below, location)).map(|location| location.import);
        let failed = |status| (status, argument);
        if busy {
            return Err(failed(Status::Busy));
        }
        // All ones may be the value of the word: with an error latched before, the process could not distinguish a
        // failure.
        let latched = argument.and_then(|import| below.requester.open_import(import)).and_then(|import| import.error);
        if let Some(status) = latched {
            return Err(failed(status));
        }
        let op = AtomicOp::from_u8((registers.length >> 56) as u8).ok_or(failed(Status::Invalid))?;
        let size = size as u8;
        let deadline = below.ctx.now.saturating_add(below.ctx.config.load_limit);
        let origin = Origin::Load { context: number, slot, size, token: Some(token), deadline };
        let opcode = Opcode::Atomic { op, size };
        // Reserve a status word: the operation may stay unfinished long after its load has been completed.
        below.requester.take_status_word(below.ctx, number).map_err(failed)?;
        self.start(below, origin, false, opcode, locations, 0, registers.operand, registers.compare).map_err(|status| {
            below.requester.return_status_word(number);
            failed(status)
        })
    }

    /// Records a FETCH load that completes with all ones. Each one increments the context's error count, which
    /// distinguishes it from a word with that value.
    fn fetch_failed(
        &mut self,
        below: &mut Below<'_>,
        number: u16,
        argument: Option<u16>,
        offset: u64,
        size: u32,
        status: Status,
    ) {
        let errors = |requester: &Requester| requester.contexts.get(number).map(|context| context.errors);
        let before = errors(below.requester);
        match argument {
            Some(import) => {
                let node = below.requester.open_import(import).map_or(below.ctx.config.node, |import| import.node);
                below.ctx.notice(Notice::FailedLoad { node, status });
                below.requester.latch(below.ctx, import, status);
            }
            None => below.ctx.bad_access(Bar::Contexts, offset, size, status),
        }
        if errors(below.requester) == before {
            below.requester.count_context_error(below.ctx, number);
        }
    }

    /// Completes the loads of FETCH whose deadline has passed. Their operations continue, and quiet waits for them.
    pub(crate) fn expire(&mut self, below: &mut Below<'_>) {
        if below.ctx.has(Bug::FetchWithoutLimit) {
            return;
        }
        while let Some(&(deadline, number)) = self.fetches.front() {
            if deadline > below.ctx.now {
                return;
            }
            self.fetches.pop_front();
            self.answer_fetch(below, number, Status::Timeout);
        }
    }

    /// Completes the load that launched an operation, unless it is complete.
    pub(super) fn answer_fetch(&mut self, below: &mut Below<'_>, number: Key, status: Status) {
        let Some(operation) = self.operations.get_mut(number) else { return };
        let Origin::Load { context, slot, size, token, deadline } = &mut operation.origin else { return };
        let Some(token) = token.take() else { return };
        let (context, slot, size, deadline) = (*context, *slot, *size, *deadline);
        let (argument, kind) = (operation.imports[0], operation.kind);
        if let Ok(at) = self.fetches.binary_search(&(deadline, number)) {
            self.fetches.remove(at);
        }
        // No status word is written for it: the process can use the slot again.
        self.slots.remove(slot_number(context, slot));
        let data = match kind {
            Kind::Atomic { value } if status == Status::Ok => value & ones(u32::from(size)),
            _ => {
                let offset = u64::from(context) * UNIT + context::FETCH + 8 * u64::from(slot);
                self.fetch_failed(below, context, argument, offset, u32::from(size), status);
                ones(u32::from(size))
            }
        };
        below.ctx.read_done(token, data);
    }
}
