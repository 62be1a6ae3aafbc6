// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations launched by a process: atomics and block copies (SPEC items 17 to 20).
//!
//! ```text
//!   argument aperture ─┐ (Telegraphos II: context, slot and key in the data)
//!   special mode ──────┼─► a slot's arguments ─┐
//!   context page ──────┘   and operands        ├─► Operation ─► requests behind the stores to the same node
//!   admin LAUNCH (plain ioctl) ────────────────┘        └─► done: value, then done[slot]; or an admin completion
//! ```
//!
//! Each import counts the unfinished operations that use it, so that closing waits for them; quiet waits for those that
//! were unfinished when it was asked for. An operation ends exactly once: performed, refused, or failed because its
//! node, import or grant is gone.
//!
//! A copy moves in blocks of at most [`MAX_BLOCK`] bytes that cross no export page. At most [`BLOCKS`] blocks are under
//! way to one destination, the contexts with copies for it taking turns, so that memory is bounded however many are
//! launched. At most [`TURN_BLOCKS`] of all are started before the shell has served other events
//! ([`Action::Continue`]), so that a turn of its loop is short.
//!
//! What a context makes the board spend is charged to it: the bytes of its unfinished copies, and the status words that
//! wait for bus mastering. A context with many bytes of unfinished copies, or with most of the stores since the socket
//! was last dry, is *congested*: the driver takes its page away from its processes until that ends.

#[cfg(feature = "bugs")]
mod variants;

#[cfg(feature = "bugs")]
pub use variants::Launching;

use crate::ctx::ones;
use crate::ctx::{FollowUp, StepOwner};
use crate::events::Cause;
use crate::hib::Hib;
use crate::requester::Waiting;
use crate::tables::AfterWrite;
use crate::{Bar, Bug, HibConfig, Notice, Step, StepResult, Token};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use telegraphos_accounts::{Account, Shares};
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::context::{self, Argument, Launch, Operation as What};
use telegraphos_wire::event;
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{AtomicOp, Body, ImportEpoch, MAX_BLOCK};
use telegraphos_wire::{NodeId, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, regs};

/// Longest copy in bytes.
pub const MAX_COPY: u64 = 16 << 20;
/// Blocks under way to one destination.
pub const BLOCKS: u32 = 16;
/// Blocks that may be started before other events are served: some tens of microseconds of copying.
pub const TURN_BLOCKS: u32 = 8;
/// Status words of one context that are promised or wait to be written: those of all slots twice, since a refused
/// launch has one, too.
pub const STATUS_WORDS: u64 = 2 * context::SLOT_COUNT;
/// Wrong keys through one import after which it is dead.
pub const KEY_ATTEMPTS: u32 = 16;

/// A place in an import's segment, as a process has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Place {
    import: u16,
    /// Which opening of that import number: a closed one is not meant by an old argument.
    opening: u64,
    offset: u64,
}

/// The launch registers of one slot.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(crate) struct Registers {
    arguments: [Option<Place>; 2],
    operand: u64,
    compare: u64,
    length: u64,
}

impl Registers {
    /// The arguments, with the low address bits that an aligned store could not pass.
    fn places(&self) -> [Option<Place>; 2] {
        let mut places = self.arguments;
        for (place, shift) in places.iter_mut().zip([48, 52]) {
            if let Some(place) = place {
                place.offset += self.length >> shift & 7;
            }
        }
        places
    }
}

/// Who waits for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Slot {
        context: u16,
        slot: u8,
        cookie: u64,
    },
    Admin {
        context: u16,
        slot: u32,
    },
    /// A load of FETCH. Without a token it has been answered: its time was over.
    Load {
        context: u16,
        slot: u8,
        size: u8,
        token: Option<Token>,
        deadline: u64,
    },
}

impl Origin {
    /// On whose account the operation is.
    fn context(&self) -> u16 {
        match *self {
            Origin::Slot { context, .. } | Origin::Admin { context, .. } | Origin::Load { context, .. } => context,
        }
    }
}

#[derive(Clone, Copy, Debug, Hash)]
enum Kind {
    Atomic {
        value: u64,
    },
    Copy {
        /// The end that requests go to, and where there: the source of a get, the destination otherwise.
        far: Place,
        /// The end in this node's memory.
        near: Place,
        get: bool,
        length: u64,
        /// Bytes whose block has been started.
        started: u64,
    },
}

#[derive(Clone, Debug, Hash)]
struct Operation {
    origin: Origin,
    notify: bool,
    node: NodeId,
    imports: [Option<u16>; 2],
    /// Of the first of them, when it was launched.
    epoch: ImportEpoch,
    kind: Kind,
    /// Blocks (or the one request of an atomic) under way.
    parts: u32,
    /// The first thing that went wrong, and the import that it concerns.
    status: Status,
    blamed: Option<u16>,
}

/// Operations that take turns, by context: one with many has no more turns than one with few.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Turns {
    contexts: VecDeque<u16>,
    operations: BTreeMap<u16, VecDeque<u64>>,
}

impl Turns {
    fn push(&mut self, context: u16, operation: u64) {
        let operations = self.operations.entry(context).or_default();
        if operations.is_empty() {
            self.contexts.push_back(context);
        }
        operations.push_back(operation);
    }

    fn pop(&mut self) -> Option<u64> {
        let context = self.contexts.pop_front()?;
        let operations = self.operations.get_mut(&context)?;
        let operation = operations.pop_front();
        if operations.is_empty() {
            self.operations.remove(&context);
        } else {
            self.contexts.push_back(context);
        }
        operation
    }

    fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }
}

/// All operations of the board.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Launcher {
    operations: BTreeMap<u64, Operation>,
    next: u64,
    /// Unfinished operations by the context of their imports.
    of_context: BTreeMap<u16, BTreeSet<u64>>,
    /// The outstanding operation of a context's slot.
    slots: BTreeMap<(u16, u8), u64>,
    registers: BTreeMap<(u16, u8), Registers>,
    /// Loads of FETCH that are not answered, by the time at which they must be.
    fetches: BTreeSet<(u64, u64)>,
    /// Special mode: context, slot, arguments passed so far.
    special: Option<(u16, u8, usize)>,
    #[cfg(feature = "bugs")]
    variants: variants::Variants,
    /// Nodes whose copies wait for the next turn of the shell's loop.
    resting: VecDeque<NodeId>,
    /// Bytes of unfinished copies, by context.
    bytes: Account<u16>,
    /// Status words promised or waiting, by context.
    words: Account<u16>,
    /// Contexts congested by their copies; by the board's intake.
    congested: BTreeSet<u16>,
    throttled: BTreeSet<u16>,
    /// Stores to context pages since the socket was last dry, or since contexts were last throttled.
    stores: BTreeMap<u16, u32>,
}

impl Launcher {
    pub(crate) fn new(config: &HibConfig) -> Launcher {
        let contexts = u64::from(config.contexts);
        let each = |units: u64| Account::new(Shares::equal(contexts.saturating_mul(units), contexts));
        Launcher {
            operations: BTreeMap::new(),
            next: 0,
            of_context: BTreeMap::new(),
            slots: BTreeMap::new(),
            registers: BTreeMap::new(),
            fetches: BTreeSet::new(),
            special: None,
            #[cfg(feature = "bugs")]
            variants: variants::Variants::default(),
            resting: VecDeque::new(),
            bytes: each(config.copies_limit),
            words: each(STATUS_WORDS),
            congested: BTreeSet::new(),
            throttled: BTreeSet::new(),
            stores: BTreeMap::new(),
        }
    }

    /// A closed context leaves nothing behind; whether it was congested.
    pub(crate) fn forget_context(&mut self, number: u16) -> bool {
        self.registers.retain(|(context, _), _| *context != number);
        if self.special.is_some_and(|(context, ..)| context == number) {
            self.special = None;
        }
        self.stores.remove(&number);
        let stopped = self.is_stopped(number);
        self.congested.remove(&number);
        self.throttled.remove(&number);
        stopped
    }

    fn is_stopped(&self, context: u16) -> bool {
        self.congested.contains(&context) || self.throttled.contains(&context)
    }

    pub(crate) fn any_stopped(&self) -> bool {
        !self.congested.is_empty() || !self.throttled.is_empty()
    }

    /// A status word has been written, or will not be.
    pub(crate) fn give_word(&mut self, context: u16) {
        self.words.give(&context, 1);
    }

    /// The moment at which a load of FETCH must be answered.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.fetches.first().map(|(at, _)| *at)
    }

    fn forget_operation(&mut self, context: u16, number: u64) {
        if let Some(operations) = self.of_context.get_mut(&context) {
            operations.remove(&number);
            if operations.is_empty() {
                self.of_context.remove(&context);
            }
        }
    }

    /// The unfinished operations through imports of a context of which `wanted` is true, ascending.
    pub(crate) fn used_by(&self, context: u16, wanted: impl Fn(u16) -> bool) -> Vec<u64> {
        let uses = |number: &u64| {
            let operation = self.operations.get(number);
            operation.is_some_and(|operation| operation.imports.into_iter().flatten().any(&wanted))
        };
        self.of_context.get(&context).into_iter().flatten().copied().filter(uses).collect()
    }

    /// Reset: everything is forgotten; numbers are not used again.
    pub(crate) fn reset(&mut self, config: &HibConfig) {
        *self = Launcher { next: self.next, ..Launcher::new(config) };
    }
}

/// The bytes of the block at `offset` of a copy: it leaves no export page at either end.
fn block_length(far: &Place, near: &Place, length: u64, offset: u64) -> u64 {
    let room = |place: &Place| UNIT - ((place.offset + offset) & (UNIT - 1));
    (length - offset).min(MAX_BLOCK as u64).min(room(far)).min(room(near))
}

impl Hib {
    // ---- arguments ----

    /// A store to the argument aperture.
    pub(crate) fn argument(&mut self, offset: u64, size: u32, data: u64) {
        let address = self.ctx.config.window.decode(offset);
        if size != 8 || offset % 8 != 0 {
            return self.ctx.bad_access(Bar::Window, offset, size, Status::BadSize);
        }
        let Some(number) = self.requester.slot(&address) else {
            return self.ctx.bad_access(Bar::Window, offset, size, Status::Unmapped);
        };
        self.requester.touched(number);
        let Argument { context, slot, which, key } = Argument::decode(data);
        let Some((owner, place)) = self.place(number, address.slot(), address.within()) else { return };
        #[cfg(feature = "bugs")]
        if self.variant_argument(place, slot, which, data) {
            return;
        }
        let context = u16::from(context);
        let right_key = self.requester.contexts.get(&context).is_some_and(|c| c.key == key);
        if !right_key || (owner != context && !self.ctx.has(crate::Bug::ForeignContext)) {
            return self.wrong_key(number, offset);
        }
        let launcher = &mut self.launcher;
        let Some(argument) =
            launcher.registers.entry((context, slot)).or_default().arguments.get_mut(usize::from(which))
        else {
            return self.ctx.bad_access(Bar::Window, offset, size, Status::Argument);
        };
        *argument = Some(place);
    }

    /// Whose import it is, and a place in it. Bounds are checked at the launch, when the length is known.
    fn place(&self, number: u16, slot: u32, within: u32) -> Option<(u16, Place)> {
        let import = self.requester.open_import(number)?;
        let offset = u64::from(slot - import.first_slot) << UNIT_SHIFT | u64::from(within);
        Some((import.context, Place { import: number, opening: import.opening, offset }))
    }

    /// An argument with a wrong key, or for another process's context, has no effect but being counted.
    fn wrong_key(&mut self, number: u16, offset: u64) {
        self.ctx.counters.bad_keys += 1;
        self.ctx.bad_access(Bar::Window, offset, 8, Status::BadKey);
        let Some(import) = self.requester.import(number) else { return };
        import.bad_keys += 1;
        if import.bad_keys >= KEY_ATTEMPTS && !import.dead {
            self.kill_import(number, Status::BadKey);
        }
    }

    // ---- special mode (Telegraphos I) ----

    /// The SPECIAL register was written.
    pub(crate) fn set_special(&mut self, value: u64) {
        if let Some((context, slot, _)) = self.launcher.special.take() {
            // Left without a launch: clean.
            self.launcher.registers.remove(&(context, slot));
        }
        let (context, slot) = ((value >> 8) as u16, value as u8 & 63);
        if value & regs::SPECIAL_ENTER != 0 && self.requester.contexts.contains_key(&context) {
            self.launcher.registers.remove(&(context, slot));
            self.launcher.special = Some((context, slot, 0));
        }
    }

    pub(crate) fn special(&self) -> u64 {
        self.launcher
            .special
            .map_or(0, |(context, slot, _)| regs::SPECIAL_ENTER | u64::from(context) << 8 | u64::from(slot))
    }

    /// In special mode an access to the plain window is an argument and nothing else; whether it was one.
    pub(crate) fn special_access(&mut self, offset: u64, size: u32) -> bool {
        let Some((context, slot, count)) = self.launcher.special else { return false };
        let address = self.ctx.config.window.decode(offset);
        if address.aperture != Aperture::Plain {
            return false;
        }
        let place = self.requester.slot(&address).and_then(|n| self.place(n, address.slot(), address.within()));
        let registers = self.launcher.registers.entry((context, slot)).or_default();
        match (place, registers.arguments.get_mut(count)) {
            (Some((owner, place)), Some(argument)) if owner == context => {
                *argument = Some(place);
                self.launcher.special = Some((context, slot, count + 1));
            }
            _ => self.ctx.bad_access(Bar::Window, offset, size, Status::Argument),
        }
        true
    }

    // ---- the context page ----

    /// A store to a context page.
    pub(crate) fn context_write(&mut self, offset: u64, size: u32, data: u64) {
        let number = (offset >> UNIT_SHIFT) as u16;
        if self.requester.contexts.contains_key(&number) {
            *self.launcher.stores.entry(number).or_default() += 1;
        }
        self.count_intake();
        let within = offset & (UNIT - 1);
        let slots = context::SLOT_COUNT;
        let end = context::REGISTERS + slots * context::STRIDE;
        let status = if within == context::QUEUE_ARM && size == 8 && self.requester.contexts.contains_key(&number) {
            return self.queues.arm(&mut self.ctx, &self.grants, number, offset, data);
        } else if size != 8 || offset % 8 != 0 || within >= end {
            Status::BadSize
        } else if !self.requester.contexts.contains_key(&number) {
            Status::Unmapped
        } else if within < context::ARM {
            match self.quiet(number, (within / 8) as u8, data) {
                Ok(()) => return,
                Err(status) => status,
            }
        } else if within < context::REGISTERS {
            return self.arm(number, ((within - context::ARM) / 8) as u8, data);
        } else {
            let at = within - context::REGISTERS;
            let slot = (at / context::STRIDE) as u8;
            let registers = self.launcher.registers.entry((number, slot)).or_default();
            match at % context::STRIDE {
                context::OPERAND => registers.operand = data,
                context::COMPARE => registers.compare = data,
                context::LENGTH => registers.length = data,
                _ => return self.launch(number, slot, data, offset),
            }
            return;
        };
        self.ctx.bad_access(Bar::Contexts, offset, size, status);
    }

    /// Whether a slot has an unfinished operation.
    pub(crate) fn slot_is_busy(&self, context: u16, slot: u8) -> bool {
        self.launcher.slots.contains_key(&(context, slot))
    }

    /// `ARM[slot]` <- cookie: an event when it is done, or now if it is.
    fn arm(&mut self, number: u16, slot: u8, cookie: u64) {
        let operation = self.launcher.slots.get(&(number, slot)).copied();
        if let Some(operation) = operation.and_then(|o| self.launcher.operations.get_mut(&o)) {
            if operation.origin == (Origin::Slot { context: number, slot, cookie }) {
                operation.notify = true;
                return;
            }
        }
        let quiet = self.requester.contexts.get_mut(&number).and_then(|c| c.quiets.get_mut(&slot));
        match quiet {
            Some(quiet) if quiet.cookie == cookie => quiet.notify = true,
            _ => self.ctx.cause(Cause::Context(number)),
        }
    }

    /// `LAUNCH` of a slot was written: its arguments are consumed whatever comes of it.
    fn launch(&mut self, number: u16, slot: u8, word: u64, offset: u64) {
        let quiet = self.requester.contexts.get(&number).is_some_and(|c| c.quiets.contains_key(&slot));
        let busy = quiet || self.slot_is_busy(number, slot);
        let registers = self.launcher.registers.remove(&(number, slot)).unwrap_or_default();
        if self.launcher.special.is_some_and(|(c, s, _)| (c, s) == (number, slot)) {
            self.launcher.special = None;
        }
        let Some(Launch { operation, notify, cookie }) = Launch::decode(word) else {
            return self.ctx.bad_access(Bar::Contexts, offset, 8, Status::Invalid);
        };
        if let Err(status) = self.take_word(number) {
            // There is no room for a word to say so.
            return self.ctx.bad_access(Bar::Contexts, offset, 8, status);
        }
        if busy {
            // Told by its cookie; the word of the one that is under way comes later, and is not lost.
            self.ctx.bad_access(Bar::Contexts, offset, 8, Status::Busy);
            return self.slot_done((number, slot), cookie, Status::Busy, None, notify);
        }
        let origin = Origin::Slot { context: number, slot, cookie };
        let length = registers.length & ((1 << 48) - 1);
        let places = registers.places();
        let started = self.start(origin, notify, operation, places, length, registers.operand, registers.compare);
        if let Err(status) = started {
            if status == Status::NoSpace {
                // Only an operating system that does not stop a congested context comes here.
                self.ctx.bad_access(Bar::Contexts, offset, 8, status);
            }
            self.slot_done((number, slot), cookie, status, None, notify);
        }
    }

    /// Takes the place of a status word from a context's account.
    pub(crate) fn take_word(&mut self, context: u16) -> Result<(), Status> {
        if self.ctx.has(Bug::UnboundedStatusWords) {
            return Ok(());
        }
        self.launcher.words.take(context, 1).map_err(|_| Status::NoSpace)
    }

    // ---- loads that perform ----

    /// A load from a context page. Only FETCH is for loads; what else is there arrives in the status page and reads as
    /// zero.
    pub(crate) fn context_read(&mut self, token: Token, offset: u64, size: u32) {
        let within = offset & (UNIT - 1);
        let slots = context::FETCH..context::FETCH + 8 * context::SLOT_COUNT;
        if !slots.contains(&within) {
            return self.ctx.read_done(token, 0);
        }
        let number = (offset >> UNIT_SHIFT) as u16;
        if let Err((status, argument)) = self.fetch(token, number, offset, size) {
            self.fetch_failed(number, argument, offset, size, status);
            self.ctx.read_done(token, ones(size));
        }
    }

    /// A load of FETCH: performs the atomic that was prepared in its slot. An error comes with the import that it
    /// concerns.
    fn fetch(&mut self, token: Token, number: u16, offset: u64, size: u32) -> Result<(), (Status, Option<u16>)> {
        if !matches!(size, 4 | 8) || offset % 8 != 0 {
            return Err((Status::BadSize, None));
        }
        let Some(context) = self.requester.contexts.get(&number) else { return Err((Status::Unmapped, None)) };
        let slot = (((offset & (UNIT - 1)) - context::FETCH) / 8) as u8;
        let busy = context.quiets.contains_key(&slot) || self.slot_is_busy(number, slot);
        // Consumed whatever comes of it, as by LAUNCH.
        let registers = match self.ctx.has(Bug::FetchKeepsArguments) {
            true => self.launcher.registers.get(&(number, slot)).copied().unwrap_or_default(),
            false => self.launcher.registers.remove(&(number, slot)).unwrap_or_default(),
        };
        let places = registers.places();
        let argument = places[0].filter(|place| self.is_open(place)).map(|place| place.import);
        let failed = |status| (status, argument);
        if busy {
            return Err(failed(Status::Busy));
        }
        // All ones could be the word's value: with an error latched before, the process could not tell.
        let latched = argument.and_then(|import| self.requester.open_import(import)).and_then(|import| import.error);
        if let Some(status) = latched {
            return Err(failed(status));
        }
        let op = AtomicOp::from_u8((registers.length >> 56) as u8).ok_or(failed(Status::Invalid))?;
        let size = size as u8;
        let deadline = self.ctx.now.saturating_add(self.ctx.config.load_limit);
        let origin = Origin::Load { context: number, slot, size, token: Some(token), deadline };
        let what = What::Atomic { op, size };
        // On the account of what waits for the context: one whose load has been answered may be unfinished for long.
        self.take_word(number).map_err(failed)?;
        self.start(origin, false, what, places, 0, registers.operand, registers.compare).map_err(|status| {
            self.launcher.give_word(number);
            failed(status)
        })
    }

    /// A load of FETCH is answered with all ones. Each counts in the context's errors, by which its process tells it
    /// from a word that is all ones.
    fn fetch_failed(&mut self, number: u16, argument: Option<u16>, offset: u64, size: u32, status: Status) {
        let errors = |hib: &Hib| hib.requester.contexts.get(&number).map(|context| context.errors);
        let before = errors(self);
        match argument {
            Some(import) => {
                let node = self.requester.open_import(import).map_or(self.ctx.config.node, |import| import.node);
                self.ctx.notice(Notice::FailedLoad { node, status });
                self.latch(import, status);
            }
            None => self.ctx.bad_access(Bar::Contexts, offset, size, status),
        }
        if errors(self) == before {
            self.count_context_error(number);
        }
    }

    /// Loads of FETCH whose time is over are answered; what they have launched continues, and quiet waits for it.
    pub(crate) fn expire_fetches(&mut self) {
        if self.ctx.has(Bug::FetchWithoutLimit) {
            return;
        }
        while let Some(&(deadline, number)) = self.launcher.fetches.first() {
            if deadline > self.ctx.now {
                return;
            }
            self.answer_fetch(number, Status::Timeout);
            self.launcher.fetches.remove(&(deadline, number));
        }
    }

    /// Answers the load that has launched an operation, if that has not been answered.
    fn answer_fetch(&mut self, number: u64, status: Status) {
        let Some(operation) = self.launcher.operations.get_mut(&number) else { return };
        let Origin::Load { context, slot, size, token, deadline } = &mut operation.origin else { return };
        let Some(token) = token.take() else { return };
        let (context, slot, size, deadline) = (*context, *slot, *size, *deadline);
        let (argument, kind) = (operation.imports[0], operation.kind);
        self.launcher.fetches.remove(&(deadline, number));
        // Nothing will be written for it: the slot is its process's again.
        self.launcher.slots.remove(&(context, slot));
        let data = match kind {
            Kind::Atomic { value } if status == Status::Ok => value & ones(u32::from(size)),
            _ => {
                let offset = u64::from(context) * UNIT + context::FETCH + 8 * u64::from(slot);
                self.fetch_failed(context, argument, offset, u32::from(size), status);
                ones(u32::from(size))
            }
        };
        self.ctx.read_done(token, data);
    }

    /// Reset: loads that have launched an operation are answered.
    pub(crate) fn fail_fetches(&mut self) {
        for (_, number) in std::mem::take(&mut self.launcher.fetches) {
            let Some(operation) = self.launcher.operations.get(&number) else { continue };
            if let Origin::Load { size, token: Some(token), .. } = operation.origin {
                self.ctx.notice(Notice::FailedLoad { node: operation.node, status: Status::Reset });
                self.ctx.read_done(token, ones(u32::from(size)));
            }
        }
    }

    // ---- congestion ----

    /// The value of the next CONTEXT_STATE event of a context: TG_CONTEXT_* bits.
    pub fn context_state(&self, context: u16) -> u64 {
        if self.launcher.is_stopped(context) { event::CONTEXT_CONGESTED } else { 0 }
    }

    fn context_stopped(&mut self, context: u16, on: bool) {
        if on {
            self.ctx.counters.congested += 1;
        } else if self.ctx.has(Bug::ForgetContextClear) {
            return;
        }
        self.ctx.notice(Notice::ContextCongested { context, on });
        self.ctx.cause(Cause::ContextState(context));
    }

    /// The board cannot keep up with its guest's stores: stops the contexts that more than their part of them came
    /// from. If less than half came from contexts, it is imports that are stopped.
    pub(crate) fn throttle_contexts(&mut self) {
        let stores = std::mem::take(&mut self.launcher.stores);
        let part = self.ctx.config.intake_limit / 2 / (stores.len() as u32).max(1);
        for context in stores.into_iter().filter(|(_, count)| *count >= part).map(|(context, _)| context) {
            let news = !self.launcher.is_stopped(context);
            self.launcher.throttled.insert(context);
            if news {
                self.context_stopped(context, true);
            }
        }
    }

    /// The guest's stores have been taken in.
    pub(crate) fn release_contexts(&mut self) {
        self.launcher.stores.clear();
        for context in std::mem::take(&mut self.launcher.throttled) {
            if !self.launcher.is_stopped(context) {
                self.context_stopped(context, false);
            }
        }
    }

    /// Charges the bytes of a copy to its context.
    fn charge_copy(&mut self, context: u16, length: u64) -> Result<(), Status> {
        if self.ctx.has(Bug::UnboundedCopies) {
            return Ok(());
        }
        let launcher = &mut self.launcher;
        launcher.bytes.take(context, length).map_err(|_| Status::NoSpace)?;
        if launcher.bytes.held(&context) >= self.ctx.config.copies_congest_at && !launcher.congested.contains(&context)
        {
            let news = !launcher.is_stopped(context);
            launcher.congested.insert(context);
            if news {
                self.context_stopped(context, true);
            }
        }
        Ok(())
    }

    /// A copy has ended.
    fn credit_copy(&mut self, context: u16, length: u64) {
        let launcher = &mut self.launcher;
        launcher.bytes.give(&context, length);
        if launcher.bytes.held(&context) <= self.ctx.config.copies_clear_at
            && launcher.congested.remove(&context)
            && !launcher.is_stopped(context)
        {
            self.context_stopped(context, false);
        }
    }

    /// Bytes of unfinished copies of a context, of [`HibConfig::copies_limit`].
    pub fn copying(&self, context: u16) -> u64 {
        self.launcher.bytes.held(&context)
    }

    /// Status words of a context that are promised or wait to be written, of [`STATUS_WORDS`].
    pub fn status_words(&self, context: u16) -> u64 {
        self.launcher.words.held(&context)
    }

    /// The LAUNCH command of the kernel.
    pub(crate) fn admin_launch(&mut self, slot: u32, command: &Command) -> Result<(), Status> {
        let command = command.launch();
        let word = u64::from(command.operation & 0xff) << 56 | u64::from(command.operation >> 8) << 48;
        let Launch { operation, .. } = Launch::decode(word).ok_or(Status::Invalid)?;
        let place = |import, offset| {
            let found = self.requester.open_import(import).filter(|i| i.context == command.context);
            found.map(|i| Place { import, opening: i.opening, offset })
        };
        let source = if operation == What::Copy { place(command.source, command.source_offset) } else { None };
        let places = [place(command.target, command.target_offset), source];
        let (length, operand, compare) = (command.length, command.operand, command.compare);
        let origin = Origin::Admin { context: command.context, slot };
        self.start(origin, false, operation, places, length, operand, compare)
    }

    // ---- starting ----

    #[expect(clippy::too_many_arguments, reason = "these are what an operation consists of")]
    fn start(
        &mut self,
        origin: Origin,
        notify: bool,
        operation: What,
        places: [Option<Place>; 2],
        length: u64,
        operand: u64,
        compare: u64,
    ) -> Result<(), Status> {
        match operation {
            What::Atomic { op, size } => {
                let place = places[0].ok_or(Status::Argument)?;
                let (node, at) = self.reach(&place, u64::from(size), Rights::ATOMIC)?;
                if place.offset % u64::from(size) != 0 {
                    return Err(Status::BadSize);
                }
                let mask = if size == 8 { u64::MAX } else { u64::from(u32::MAX) };
                self.ctx.counters.atomics += 1;
                let kind = Kind::Atomic { value: 0 };
                let number = self.begin(Operation {
                    origin,
                    notify,
                    node,
                    imports: [Some(place.import), None],
                    epoch: self.epoch_of(place.import),
                    kind,
                    parts: 1,
                    status: Status::Ok,
                    blamed: None,
                });
                let context = self.requester.open_import(place.import).map_or(0, |i| i.context);
                let (operand, compare) = (operand & mask, compare & mask);
                let epoch = self.epoch_of(place.import);
                let body = Body::Atomic { at, context, epoch, size, op, operand, compare };
                self.page_counters.count(&mut self.ctx, node, at.page, true);
                self.send_part(node, number, 0, body);
            }
            What::Copy => {
                let (to, from) = (places[0].ok_or(Status::Argument)?, places[1].ok_or(Status::Argument)?);
                if length == 0 || length > MAX_COPY {
                    return Err(Status::Length);
                }
                let dma = Rights::DMA.0;
                let (to_node, _) = self.reach(&to, length, Rights(dma | Rights::WRITE.0))?;
                let (from_node, _) = self.reach(&from, length, Rights(dma | Rights::READ.0))?;
                let own = self.ctx.config.node;
                let get = from_node != own;
                if get && to_node != own {
                    return Err(Status::NotLocal);
                }
                if !get && to_node == own && self.overlap(&to, &from, length) {
                    return Err(Status::Overlap);
                }
                let (far, near) = if get { (from, to) } else { (to, from) };
                let node = if get { from_node } else { to_node };
                let second = (to.import != from.import).then_some(near.import);
                let context = origin.context();
                self.charge_copy(context, length)?;
                self.ctx.counters.copies += 1;
                let number = self.begin(Operation {
                    origin,
                    notify,
                    node,
                    imports: [Some(far.import), second],
                    epoch: self.epoch_of(far.import),
                    kind: Kind::Copy { far, near, get, length, started: 0 },
                    parts: 0,
                    status: Status::Ok,
                    blamed: None,
                });
                self.queue_copy(node, context, number);
                self.pump_copies(node);
            }
        }
        Ok(())
    }

    /// Puts a copy behind those whose turn comes before.
    fn queue_copy(&mut self, node: NodeId, context: u16, number: u64) {
        let context = if self.ctx.has(Bug::TurnsByOperation) { 0 } else { context };
        self.requester.peers[usize::from(node)].copies.push(context, number);
    }

    /// Whether the import that a place was named in is still the same.
    fn is_open(&self, place: &Place) -> bool {
        self.requester.open_import(place.import).is_some_and(|import| import.opening == place.opening)
    }

    /// Checks a place of `length` bytes for `right`; where its first byte is.
    fn reach(&self, place: &Place, length: u64, right: Rights) -> Result<(NodeId, RemoteAddr), Status> {
        let import = self.requester.open_import(place.import).filter(|i| i.opening == place.opening);
        let import = import.ok_or(Status::Argument)?;
        if import.cut {
            return Err(import.error.unwrap_or(Status::Cut));
        }
        if !import.rights.contains(right) {
            return Err(Status::Rights);
        }
        if place.offset.checked_add(length).is_none_or(|end| end > import.length) {
            return Err(Status::Bounds);
        }
        self.reachable(import.node)?;
        Ok((import.node, import.address(place.offset)))
    }

    /// Whether two ranges of this node's exported memory share a byte.
    fn overlap(&self, a: &Place, b: &Place, length: u64) -> bool {
        let start = |place: &Place| {
            let import = self.requester.open_import(place.import)?;
            Some((u64::from(import.page) << UNIT_SHIFT) + place.offset)
        };
        match (start(a), start(b)) {
            (Some(a), Some(b)) => a < b + length && b < a + length,
            _ => false,
        }
    }

    /// Enters an operation in the tables.
    fn begin(&mut self, operation: Operation) -> u64 {
        let number = self.launcher.next;
        self.launcher.next += 1;
        if let Origin::Slot { context, slot, .. } | Origin::Load { context, slot, .. } = operation.origin {
            self.launcher.slots.insert((context, slot), number);
        }
        if let Origin::Load { deadline, .. } = operation.origin {
            self.launcher.fetches.insert((deadline, number));
        }
        for import in operation.imports.into_iter().flatten() {
            if let Some(import) = self.requester.import(import) {
                import.operations += 1;
                self.launcher.of_context.entry(import.context).or_default().insert(number);
            }
        }
        self.launcher.operations.insert(number, operation);
        number
    }

    fn send_part(&mut self, node: NodeId, operation: u64, offset: u64, body: Body) {
        self.requester.peers[usize::from(node)].accept(Waiting::Part { operation, offset, body: Box::new(body) });
        self.pump(node);
    }

    // ---- copies ----

    /// Starts blocks of the copies for a node, in turns, as far as [`BLOCKS`] allow.
    fn pump_copies(&mut self, node: NodeId) {
        loop {
            let peer = &mut self.requester.peers[usize::from(node)];
            if peer.blocks >= BLOCKS {
                return;
            }
            if peer.copies.is_empty() {
                return;
            }
            if !self.ctx.take_block() {
                if !self.launcher.resting.contains(&node) {
                    self.launcher.resting.push_back(node);
                }
                return;
            }
            let Some(number) = self.requester.peers[usize::from(node)].copies.pop() else { return };
            let Some(operation) = self.launcher.operations.get_mut(&number) else { continue };
            if operation.status != Status::Ok {
                continue; // It ends with its last block under way.
            }
            let Kind::Copy { far, near, get, length, started } = &mut operation.kind else { continue };
            let offset = *started;
            let count = block_length(far, near, *length, offset);
            *started += count;
            let more = *started < *length;
            let (far, near, get) = (*far, *near, *get);
            let own_context = operation.origin.context();
            operation.parts += 1;
            peer_blocks(self, node, 1);
            if more {
                self.queue_copy(node, own_context, number);
            }
            let context = self.requester.open_import(far.import).map_or(0, |i| i.context);
            if get {
                let at = self.requester.open_import(far.import).map(|i| i.address(far.offset + offset));
                let Some(at) = at else {
                    // Cannot be: an import is not closed while an operation uses it.
                    self.part_done(number, Status::Argument, far.import);
                    continue;
                };
                self.page_counters.count(&mut self.ctx, node, at.page, false);
                self.send_part(node, number, offset, Body::ReadBlock { at, context, length: count as u32 });
            } else {
                match self.near_address(&near, offset, count, Rights::READ) {
                    Ok((page, address)) => {
                        let owner = StepOwner::Block { operation: number, offset, page };
                        self.ctx.step(Step::LoadBlock { address, length: count as u32 }, owner);
                    }
                    Err(status) => self.part_done(number, status, near.import),
                }
            }
        }
    }

    /// The shell has served other events since blocks were last started.
    pub(crate) fn continue_copies(&mut self) {
        for node in std::mem::take(&mut self.launcher.resting) {
            // Those that find no block left rest again, in the same order.
            self.pump_copies(node);
        }
    }

    /// The guest address of a block at the near end, under the same checks as for a request of another node.
    fn near_address(&self, near: &Place, offset: u64, count: u64, right: Rights) -> Result<(u32, u64), Status> {
        let import = self.requester.open_import(near.import).ok_or(Status::Argument)?;
        let at = import.address(near.offset + offset);
        let address =
            self.grants.translate(&self.ctx, self.ctx.config.node, &at, count, Rights(Rights::DMA.0 | right.0))?;
        self.block_of_replica(at.page, right)?;
        Ok((at.page, address))
    }

    /// A block has been loaded from or stored to this node's memory.
    pub(crate) fn block_stepped(&mut self, number: u64, offset: u64, result: StepResult) {
        let Some(operation) = self.launcher.operations.get(&number) else { return };
        let (node, kind, failed) = (operation.node, operation.kind, operation.status != Status::Ok);
        let epoch = operation.epoch;
        let Kind::Copy { far, near, get, .. } = kind else { return };
        match result {
            StepResult::Block(data) if !get && !failed => {
                let import = match self.requester.open_import(far.import) {
                    Some(import) if !import.dead => import,
                    // Its node went away while the block was loaded.
                    import => {
                        let status = import.and_then(|i| i.error).unwrap_or(Status::NodeDown);
                        return self.part_done(number, status, far.import);
                    }
                };
                let (at, context) = (import.address(far.offset + offset), import.context);
                self.page_counters.count(&mut self.ctx, node, at.page, true);
                self.send_part(node, number, offset, Body::WriteBlock { at, context, epoch, data });
            }
            StepResult::Failed(status) => self.part_done(number, status, near.import),
            _ => self.part_done(number, Status::Ok, far.import),
        }
        self.ctx.then(FollowUp::StepEnded);
    }

    // ---- ends ----

    /// The answer to a part of an operation.
    pub(crate) fn part_answered(&mut self, number: u64, offset: u64, body: Body) {
        let Some(operation) = self.launcher.operations.get_mut(&number) else { return };
        let far = operation.imports[0].unwrap_or_default();
        match (body, &mut operation.kind) {
            (Body::AtomicReply { status, data }, Kind::Atomic { value }) => {
                *value = data;
                self.part_done(number, status, far);
            }
            (Body::WriteAck { status }, Kind::Copy { get: false, .. }) => self.part_done(number, status, far),
            (Body::BlockReply { status: Status::Ok, data }, Kind::Copy { far: place, near, get: true, length, .. }) => {
                let near = *near;
                let asked = block_length(place, &near, *length, offset);
                if operation.status != Status::Ok || data.len() as u64 != asked {
                    // More than was asked for would run over other memory, less leave a hole.
                    return self.part_done(number, Status::Invalid, far);
                }
                match self.near_address(&near, offset, data.len() as u64, Rights::WRITE) {
                    Ok((page, address)) => {
                        let owner = StepOwner::Block { operation: number, offset, page };
                        self.ctx.step(Step::StoreBlock { address, data }, owner);
                    }
                    Err(status) => self.part_done(number, status, near.import),
                }
            }
            (Body::BlockReply { status, .. }, Kind::Copy { get: true, .. }) => self.part_done(number, status, far),
            // A peer that answers something else has lost its mind.
            _ => self.part_done(number, Status::Invalid, far),
        }
    }

    /// A part of an operation has been lost with its node.
    pub(crate) fn part_lost(&mut self, number: u64, status: Status) {
        let far = self.launcher.operations.get(&number).and_then(|operation| operation.imports[0]);
        self.part_done(number, status, far.unwrap_or_default());
    }

    /// A part of an operation has ended; the operation with its last one. An error concerns this import.
    fn part_done(&mut self, number: u64, status: Status, import: u16) {
        let Some(operation) = self.launcher.operations.get_mut(&number) else { return };
        operation.parts = operation.parts.saturating_sub(1);
        if operation.status == Status::Ok && status != Status::Ok {
            operation.status = status;
            operation.blamed = Some(import);
        }
        let failed = operation.status != Status::Ok;
        let (node, parts) = (operation.node, operation.parts);
        let complete = match operation.kind {
            Kind::Atomic { .. } => true,
            Kind::Copy { length, started, .. } => failed || started == length,
        };
        let copy = matches!(operation.kind, Kind::Copy { .. });
        if copy {
            peer_blocks(self, node, -1);
        }
        if parts == 0 && complete {
            self.end(number);
        }
        if copy {
            self.pump_copies(node);
        }
    }

    fn end(&mut self, number: u64) {
        if let Some(status) = self.launcher.operations.get(&number).map(|operation| operation.status) {
            self.answer_fetch(number, status);
        }
        let Some(operation) = self.launcher.operations.remove(&number) else { return };
        let Operation { origin, notify, node, imports, epoch, kind, status, blamed, .. } = operation;
        let value = match kind {
            Kind::Atomic { value } if status == Status::Ok => Some(value),
            Kind::Atomic { .. } => Some(u64::MAX),
            Kind::Copy { .. } => None,
        };
        if status != Status::Ok {
            self.ctx.notice(Notice::FailedOperation { node, status });
            // Both of its imports are of one context.
            let context = imports.into_iter().flatten().find_map(|n| self.requester.open_import(n)).map(|i| i.context);
            if let Some(context) = context {
                self.charge_quiets_of(context, number, status);
            }
            // Refused with stores that have been acknowledged as lost since, it is no error of those that come now.
            let acknowledged = |import: &u16| status == Status::Cut && self.epoch_of(*import).epoch != epoch.epoch;
            if let Some(import) = blamed.filter(|import| *import != epoch.import || !acknowledged(import)) {
                self.latch(import, status);
            }
        }
        if let Kind::Copy { length, .. } = kind {
            self.credit_copy(origin.context(), length);
        }
        match origin {
            Origin::Slot { context, slot, cookie } => {
                self.launcher.slots.remove(&(context, slot));
                self.slot_done((context, slot), cookie, status, value, notify);
            }
            Origin::Load { context, .. } => self.launcher.give_word(context),
            Origin::Admin { slot, .. } => {
                let length = value.unwrap_or(0);
                self.ctx.complete(slot, Completion { length, ..Completion::of(0, status) });
            }
        }
        for import in imports.into_iter().flatten() {
            // It is open as long as an operation uses it.
            if let Some(import) = self.requester.import(import) {
                import.operations -= 1;
                let context = import.context;
                self.launcher.forget_operation(context, number);
                self.operation_ended(context, number);
            }
            self.progressed(import);
        }
    }

    /// Writes a slot's completion, whose place in the context's account was taken before: the value first, `done` last,
    /// then the event.
    pub(crate) fn slot_done(
        &mut self,
        (number, slot): (u16, u8),
        cookie: u64,
        status: Status,
        value: Option<u64>,
        notify: bool,
    ) {
        let Some(page) = self.requester.contexts.get(&number).map(|c| c.status_page) else {
            return self.launcher.give_word(number);
        };
        let at = 8 * u64::from(slot);
        let value = value.map(|value| (page + context::VALUE_OFFSET + at, value));
        let done = (page + at, (status as u64) << context::COOKIE_BITS | cookie);
        let then = if notify { AfterWrite::ContextDone(number) } else { AfterWrite::Nothing };
        self.ctx.write_status(number, value.into_iter().chain([done]), then, true);
    }

    /// The operations for a node of which no part is under way (they only wait for their turn) end now.
    pub(crate) fn fail_waiting_copies(&mut self, node: NodeId, status: Status) {
        let mut copies = std::mem::take(&mut self.requester.peers[usize::from(node)].copies);
        while let Some(number) = copies.pop() {
            let Some(operation) = self.launcher.operations.get_mut(&number) else { continue };
            if operation.status == Status::Ok {
                operation.status = status;
                operation.blamed = operation.imports[0];
            }
            if operation.parts == 0 {
                self.end(number);
            }
        }
    }
}

fn peer_blocks(hib: &mut Hib, node: NodeId, change: i32) {
    let blocks = &mut hib.requester.peers[usize::from(node)].blocks;
    *blocks = blocks.saturating_add_signed(change);
}
