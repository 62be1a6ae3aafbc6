// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations launched by a process: atomics and block copies (SPEC items 17 to 20). `hib` passes in accesses to BAR2
//! and to the argument aperture, results of requests and of block steps.
//!
//! ```text
//!   argument aperture ─┐ (Telegraphos II: context, slot and key in the data)
//!   special mode ──────┼─► a slot's arguments ─┐
//!   context page ──────┘   and operands        ├─► Operation ─► requests behind the stores to the same node
//!   admin LAUNCH (plain ioctl) ────────────────┘        └─► done: value, then done[slot]; or an admin completion
//! ```
//!
//! Each import counts the unfinished operations that use it, so that closing waits for them; a quiet waits for those
//! that were unfinished when it was issued. An operation ends exactly once: performed, refused, or failed because its
//! node, import or grant is gone.
//!
//! A copy is split into blocks that cross no export page: of at most [`MAX_BLOCK`] bytes within a node and between
//! nodes of one process, of [`STREAM_BLOCK`] bytes between others. At most [`BLOCKS`] blocks and [`BLOCK_BYTES`] are in
//! flight to one destination, with the contexts in round-robin order, so that memory is bounded for any number of
//! copies. At most [`TURN_BYTES`] are moved before the shell has served other events ([`Action::Continue`]), so that a
//! turn of its loop is short. Blocks that are requested by others count as well, and each waiter gets a turn in the
//! order in which it came ([`Claim`](crate::ctx::Claim)).
//!
//! Where a request goes to this node itself, or by a ring within this process, the shell may lend the near end instead
//! of loading or storing it: a [`Loan`](crate::Loan) goes beside the packet, whose block is empty, and the other shell
//! copies from one guest's memory to the other's, for a put when it stores the block, for a get when it loads it. A
//! block that is lent and finds the ring withdrawn when it is sent goes by the switch with its bytes. The loan is taken
//! back ([`Action::Recall`]) when the grant of the memory is revoked, bus mastering is switched off, or the board is
//! reset; that of a get also when it ends without an answer, or the page becomes a replicated one.
//!
//! The resources that a context uses are charged to it: the bytes of its unfinished copies, and its reserved status
//! words. A context with many bytes of unfinished copies, or with most of the stores since the guest's socket was last
//! empty, is *congested*: the driver unmaps its page from its processes until the congestion ends.

mod arguments;
mod congestion;
mod copies;
mod lifecycle;
mod operations;
mod registers;
mod turns;
#[cfg(feature = "bugs")]
mod variants;

use self::arguments::Arguments;
use self::congestion::Congestion;
use self::operations::{Operations, Origin};
use self::registers::{LaunchRegisters, Location};
use self::turns::Destination;
use crate::access::WindowAccess;
use crate::by_node::ByNode;
use crate::ctx::Ctx;
use crate::events::Cause;
use crate::grants::Grants;
use crate::numbered::ones;
use crate::replica::Replicas;
use crate::requester::Requester;
use crate::{Bar, Bug, HibConfig, Notice, Token};
use telegraphos_wire::admin::Command;
use telegraphos_wire::context::{self, Launch, Operation as Opcode};
use telegraphos_wire::{AtomicOp, Status, UNIT, UNIT_SHIFT};

/// The number of a slot of a context among all slots of the board.
fn slot_number(context: u16, slot: u8) -> u32 {
    u32::from(context) * context::SLOT_COUNT as u32 + u32::from(slot)
}

/// The parts that the launcher uses, as the argument of its methods.
pub(crate) struct Below<'a> {
    pub(crate) ctx: &'a mut Ctx,
    pub(crate) requester: &'a mut Requester,
    pub(crate) grants: &'a mut Grants,
    pub(crate) replicas: &'a Replicas,
}

/// The launcher of the board; see the module documentation.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Launcher {
    pub(crate) arguments: Arguments,
    operations: Operations,
    /// Copies to or from each node.
    destinations: ByNode<Destination>,
    pub(crate) congestion: Congestion,
}

impl Launcher {
    /// No operations, nothing charged.
    pub(crate) fn new(config: &HibConfig) -> Launcher {
        Launcher {
            arguments: Arguments::default(),
            operations: Operations::default(),
            destinations: ByNode::new(config.window.nodes(), Destination::default()),
            congestion: Congestion::new(config),
        }
    }

    /// Removes the state of a closed context. Returns whether the context was congested.
    pub(crate) fn forget_context(&mut self, number: u16) -> bool {
        self.arguments.forget_context(number);
        self.operations.forget_context(number);
        self.congestion.forget_context(number)
    }

    /// The earliest deadline of a load of FETCH.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.operations.fetches.front().map(|(at, _)| *at)
    }

    /// Clears all tables on reset. Loads of FETCH complete with all ones. Operation numbers are not reused.
    pub(crate) fn reset(&mut self, ctx: &mut Ctx) {
        for (_, number) in std::mem::take(&mut self.operations.fetches) {
            let Some(operation) = self.operations.table.get(number) else { continue };
            if let Origin::Load { size, token: Some(token), .. } = operation.origin {
                ctx.notice(Notice::FailedLoad { node: operation.node, status: Status::Reset });
                ctx.read_done(token, ones(u32::from(size)));
            }
        }
        *self = Launcher { operations: self.operations.emptied(), ..Launcher::new(&ctx.config) };
    }

    /// Handles a load from the window if it belongs to a launch style, and returns its value. `None` for an access to a
    /// segment.
    pub(crate) fn try_load(&mut self, below: &mut Below<'_>, access: &WindowAccess) -> Option<u64> {
        if self.arguments.special_access(below, access) {
            return Some(0);
        }
        #[cfg(feature = "bugs")]
        if let Some(command) = self.arguments.variants.command_load(below, &access.address) {
            let started = command.map(|(origin, copy)| self.start(below, origin, false, Opcode::Copy, copy));
            return Some(u64::from(started.is_some_and(|started| started.is_ok())));
        }
        None
    }

    // ---- the page of a context ----

    /// Serves a store to a context page, other than an arm of a queue.
    pub(crate) fn context_write(&mut self, below: &mut Below<'_>, offset: u64, size: u32, data: u64) {
        let number = (offset >> UNIT_SHIFT) as u16;
        let within = offset & (UNIT - 1);
        let end = context::REGISTERS + context::SLOT_COUNT * context::STRIDE;
        let status = if size != 8 || offset % 8 != 0 || within >= end {
            if (size, within) == (8, context::ARGUMENT) && below.requester.contexts.table.contains(number) {
                return self.arguments.numbered_argument(below, number, offset, data);
            }
            Status::BadSize
        } else if !below.requester.contexts.table.contains(number) {
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
            let registers = self.arguments.registers(number, slot);
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
        if self.operations.of_slot(number, slot).is_some() {
            return Err(Status::Busy);
        }
        let import = (data >> context::COOKIE_BITS) as u16;
        let scope = (u64::from(import) != context::QUIET_ALL).then_some(import);
        let cookie = data & ((1 << context::COOKIE_BITS) - 1);
        let operations = self.operations.using(number, |import| scope.is_none_or(|scope| import == scope));
        let Requester { contexts, imports, .. } = &mut *below.requester;
        contexts.quiet(below.ctx, imports, number, slot, scope, cookie, operations)
    }

    /// Returns whether a slot has an unfinished operation or quiet.
    fn is_busy(&self, below: &Below<'_>, number: u16, slot: u8) -> bool {
        let quiet = below.requester.contexts.table.get(number).is_some_and(|c| c.quiets.contains_key(&slot));
        quiet || self.operations.of_slot(number, slot).is_some()
    }

    /// Serves a store of a cookie to `ARM[slot]`: requests an event when the operation or quiet with this cookie
    /// completes, or posts it now if that is complete.
    fn arm(&mut self, below: &mut Below<'_>, number: u16, slot: u8, cookie: u64) {
        let operation = self.operations.of_slot(number, slot);
        if let Some(operation) = operation.and_then(|o| self.operations.table.get_mut(o)) {
            if operation.origin == (Origin::Slot { context: number, slot, cookie }) {
                operation.notify = true;
                return;
            }
        }
        let quiet = below.requester.contexts.table.get_mut(number).and_then(|c| c.quiets.get_mut(&slot));
        match quiet {
            Some(quiet) if quiet.cookie == cookie => quiet.notify = true,
            _ => below.ctx.cause(Cause::Context(number)),
        }
    }

    /// Serves a store to `LAUNCH` of a slot. The slot's arguments are consumed even if the launch fails.
    fn launch(&mut self, below: &mut Below<'_>, number: u16, slot: u8, word: u64, offset: u64) {
        let busy = self.is_busy(below, number, slot);
        let registers = self.arguments.take(number, slot);
        self.arguments.end_special(number, |of| of == slot);
        let Some(Launch { operation, notify, cookie }) = Launch::decode(word) else {
            return below.ctx.bad_access(Bar::Contexts, offset, 8, Status::Invalid);
        };
        if let Err(status) = below.requester.contexts.take_status_word(below.ctx, number) {
            // No status word is left to report the error in the slot.
            return below.ctx.bad_access(Bar::Contexts, offset, 8, status);
        }
        // The refusal carries the cookie of the refused launch. The status word of an operation in progress is still
        // written later.
        let origin = Origin::Slot { context: number, slot, cookie };
        let started = match busy {
            true => Err(Status::Busy),
            false => self.start(below, origin, notify, operation, registers.by_bytes()),
        };
        if let Err(status) = started {
            // Without space only if the operating system does not stop a congested context.
            if busy || status == Status::NoSpace {
                below.ctx.bad_access(Bar::Contexts, offset, 8, status);
            }
            below.requester.contexts.slot_done(below.ctx, (number, slot), cookie, status, None, notify);
        }
    }

    /// LAUNCH. Starts an operation of the kernel; its end completes the admin slot.
    pub(crate) fn admin_launch(&mut self, below: &mut Below<'_>, slot: u32, command: &Command) -> Result<(), Status> {
        let command = command.launch();
        let word = u64::from(command.operation & 0xff) << 56 | u64::from(command.operation >> 8) << 48;
        let Launch { operation, .. } = Launch::decode(word).ok_or(Status::Invalid)?;
        let location = |import, offset| {
            let found = below.requester.imports.get(import).filter(|i| i.context == command.context);
            found.map(|i| Location { import, opening: i.opening, offset })
        };
        let source = if operation == Opcode::Copy { location(command.source, command.source_offset) } else { None };
        let arguments = [location(command.target, command.target_offset), source];
        let (length, operand, compare) = (command.length, command.operand, command.compare);
        let origin = Origin::Admin { context: command.context, slot };
        self.start(below, origin, false, operation, LaunchRegisters { arguments, operand, compare, length })
    }

    // ---- FETCH: loads that perform an atomic (I14, contract 4) ----

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
            fetch_failed(below, number, argument, offset, size, status);
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
        if !below.requester.contexts.table.contains(number) {
            return Err((Status::Unmapped, None));
        }
        let slot = (((offset & (UNIT - 1)) - context::FETCH) / 8) as u8;
        let busy = self.is_busy(below, number, slot);
        // The arguments are consumed even if the load fails, as by LAUNCH.
        let registers = self.arguments.take(number, slot);
        if below.ctx.has(Bug::FetchKeepsArguments) {
            *self.arguments.registers(number, slot) = registers;
        }
        let argument = registers.arguments[0].filter(|location| location.open(below.requester).is_ok());
        let argument = argument.map(|location| location.import);
        let failed = |status| (status, argument);
        if busy {
            return Err(failed(Status::Busy));
        }
        // All ones may be the value of the word: with an error latched before, the process could not distinguish a
        // failure.
        let latched = argument.and_then(|import| below.requester.imports.get(import)).and_then(|import| import.error);
        if let Some(status) = latched {
            return Err(failed(status));
        }
        let op = AtomicOp::from_u8((registers.length >> 56) as u8).ok_or(failed(Status::Invalid))?;
        let size = size as u8;
        let deadline = below.ctx.now.saturating_add(below.ctx.config.load_limit);
        let origin = Origin::Load { context: number, slot, size, token: Some(token), deadline };
        // Reserve a status word: the operation may stay unfinished long after its load has been completed.
        below.requester.contexts.take_status_word(below.ctx, number).map_err(failed)?;
        self.start(below, origin, false, Opcode::Atomic { op, size }, registers.by_bytes()).map_err(|status| {
            below.requester.contexts.return_status_word(number);
            failed(status)
        })
    }
}

/// Records a FETCH load that completes with all ones. Each one increments the context's error count, which
/// distinguishes it from a word with that value.
fn fetch_failed(below: &mut Below<'_>, number: u16, argument: Option<u16>, offset: u64, size: u32, status: Status) {
    let errors = |requester: &Requester| requester.contexts.table.get(number).map(|context| context.errors);
    let before = errors(below.requester);
    match argument {
        Some(import) => {
            let node = below.requester.imports.get(import).map_or(below.ctx.config.node, |import| import.node);
            below.requester.fail_load(below.ctx, node, import, status);
        }
        None => below.ctx.bad_access(Bar::Contexts, offset, size, status),
    }
    if errors(below.requester) == before {
        below.requester.contexts.count_error(below.ctx, number);
    }
}
