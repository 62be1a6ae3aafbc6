// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of a context: registers that launch operations and issue quiets; and the LAUNCH admin command. Called by
//! `hib` for stores to BAR2, and by `control`.

use super::{Below, LaunchRegisters, Launcher, Location, Origin, slot_number};
use crate::Bar;
use crate::events::Cause;
use telegraphos_wire::admin::Command;
use telegraphos_wire::context::{self, Launch, Operation as Opcode};
use telegraphos_wire::{Status, UNIT, UNIT_SHIFT};

impl Launcher {
    /// Counts a store to the page of an open context, for [`Launcher::throttle`].
    pub(crate) fn count_store(&mut self, context: u16) {
        self.stores.increment(context);
    }

    /// Serves a store to a context page, other than an arm of a queue.
    pub(crate) fn context_write(&mut self, below: &mut Below<'_>, offset: u64, size: u32, data: u64) {
        let number = (offset >> UNIT_SHIFT) as u16;
        let within = offset & (UNIT - 1);
        let end = context::REGISTERS + context::SLOT_COUNT * context::STRIDE;
        let status = if size != 8 || offset % 8 != 0 || within >= end {
            if (size, within) == (8, context::ARGUMENT) && below.requester.contexts.contains(number) {
                return self.numbered_argument(below, number, offset, data);
            }
            Status::BadSize
        } else if !below.requester.contexts.contains(number) {
            Status::Unmapped
        } else if within < context::ARM {
            match self.quiet(below, number, (within / 8) as u8, data) {
                Ok(()) => return,
                Err(status) => status,
            }
        } else if within < context::REGISTERS {
            return self.arm(below, number, ((within - context::ARM) / 8) as u8, data);
        } else {
            let at = within - context::REGISTERS;
            let slot = (at / context::STRIDE) as u8;
            let registers = self.registers.get_or_insert_with(slot_number(number, slot), LaunchRegisters::default);
            match at % context::STRIDE {
                context::OPERAND => registers.operand = data,
                context::COMPARE => registers.compare = data,
                context::LENGTH => registers.length = data,
                _ => return self.launch(below, number, slot, data, offset),
            }
            return;
        };
        below.ctx.bad_access(Bar::Contexts, offset, size, status);
    }

    /// Serves a store to `QUIET[slot]`, the import in bits 63:48 and the cookie below: waits for stores, and for the
    /// operations that are unfinished now.
    fn quiet(&mut self, below: &mut Below<'_>, number: u16, slot: u8, data: u64) -> Result<(), Status> {
        if self.slot_is_busy(number, slot) {
            return Err(Status::Busy);
        }
        let import = (data >> context::COOKIE_BITS) as u16;
        let scope = (u64::from(import) != context::QUIET_ALL).then_some(import);
        let cookie = data & ((1 << context::COOKIE_BITS) - 1);
        let operations = self.operations_using(number, |import| scope.is_none_or(|scope| import == scope));
        below.requester.quiet(below.ctx, number, slot, scope, cookie, operations)
    }

    /// Returns whether a slot has an unfinished operation.
    pub(super) fn slot_is_busy(&self, context: u16, slot: u8) -> bool {
        self.slots.contains(slot_number(context, slot))
    }

    /// Serves a store of a cookie to `ARM[slot]`: requests an event when the operation or quiet with this cookie
    /// completes, or posts it now if that is complete.
    fn arm(&mut self, below: &mut Below<'_>, number: u16, slot: u8, cookie: u64) {
        let operation = self.slots.get(slot_number(number, slot)).copied();
        if let Some(operation) = operation.and_then(|o| self.operations.get_mut(o)) {
            if operation.origin == (Origin::Slot { context: number, slot, cookie }) {
                operation.notify = true;
                return;
            }
        }
        let quiet = below.requester.contexts.get_mut(number).and_then(|c| c.quiets.get_mut(&slot));
        match quiet {
            Some(quiet) if quiet.cookie == cookie => quiet.notify = true,
            _ => below.ctx.cause(Cause::Context(number)),
        }
    }

    /// Serves a store to `LAUNCH` of a slot. The slot's arguments are consumed even if the launch fails.
    fn launch(&mut self, below: &mut Below<'_>, number: u16, slot: u8, word: u64, offset: u64) {
        let quiet = below.requester.contexts.get(number).is_some_and(|c| c.quiets.contains_key(&slot));
        let busy = quiet || self.slot_is_busy(number, slot);
        let registers = self.registers.remove(slot_number(number, slot)).unwrap_or_default();
        if self.special.is_some_and(|(c, s, _)| (c, s) == (number, slot)) {
            self.special = None;
        }
        let Some(Launch { operation, notify, cookie }) = Launch::decode(word) else {
            return below.ctx.bad_access(Bar::Contexts, offset, 8, Status::Invalid);
        };
        if let Err(status) = below.requester.take_status_word(below.ctx, number) {
            // No status word is left to report the error in the slot.
            return below.ctx.bad_access(Bar::Contexts, offset, 8, status);
        }
        if busy {
            // The refusal carries the cookie of the refused launch. The status word of the operation in progress is
            // still written later.
            below.ctx.bad_access(Bar::Contexts, offset, 8, Status::Busy);
            return below.requester.slot_done(below.ctx, (number, slot), cookie, Status::Busy, None, notify);
        }
        let origin = Origin::Slot { context: number, slot, cookie };
        let length = registers.length & ((1 << 48) - 1);
        let locations = registers.locations();
        let started =
            self.start(below, origin, notify, operation, locations, length, registers.operand, registers.compare);
        if let Err(status) = started {
            if status == Status::NoSpace {
                // This occurs only if the operating system does not stop a congested context.
                below.ctx.bad_access(Bar::Contexts, offset, 8, status);
            }
            below.requester.slot_done(below.ctx, (number, slot), cookie, status, None, notify);
        }
    }

    /// LAUNCH. Starts an operation of the kernel; its end completes the admin slot.
    pub(crate) fn admin_launch(&mut self, below: &mut Below<'_>, slot: u32, command: &Command) -> Result<(), Status> {
        let command = command.launch();
        let word = u64::from(command.operation & 0xff) << 56 | u64::from(command.operation >> 8) << 48;
        let Launch { operation, .. } = Launch::decode(word).ok_or(Status::Invalid)?;
        let location = |import, offset| {
            let found = below.requester.open_import(import).filter(|i| i.context == command.context);
            found.map(|i| Location { import, opening: i.opening, offset })
        };
        let source = if operation == Opcode::Copy { location(command.source, command.source_offset) } else { None };
        let locations = [location(command.target, command.target_offset), source];
        let (length, operand, compare) = (command.length, command.operand, command.compare);
        let origin = Origin::Admin { context: command.context, slot };
        self.start(below, origin, false, operation, locations, length, operand, compare)
    }
}
