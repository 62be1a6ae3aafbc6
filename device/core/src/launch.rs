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
//! Each import counts the unfinished operations that use it, so that closing waits for them; quiet waits for those that were
//! unfinished when it was asked for. An operation ends exactly once: performed, refused, or failed because its node, import or grant
//! is gone.
//!
//! A copy moves in blocks of at most [`MAX_BLOCK`] bytes that cross no export page. At most [`BLOCKS`] blocks are under way
//! to one destination, the copies for it taking turns, so that memory is bounded however many are launched.

use crate::events::Cause;
use crate::hib::{Hib, Purpose, Then};
use crate::imports::Waiting;
use crate::{Action, Bar, Launching, Notice, Step, StepResult};
use std::collections::BTreeMap;
use telegraphos_wire::admin::{Command, Completion};
use telegraphos_wire::context::{self, Argument, Launch, Operation as What};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Body, ImportEpoch, MAX_BLOCK, NodeId, RemoteAddr, Rights, Status, UNIT, UNIT_SHIFT, regs};

/// Longest copy in bytes.
pub const MAX_COPY: u64 = 16 << 20;
/// Blocks under way to one destination.
pub const BLOCKS: u32 = 16;
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

/// Who waits for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Origin {
    Slot { context: u16, slot: u8, cookie: u64 },
    Admin(u32),
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

/// All operations of the board.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Launcher {
    operations: BTreeMap<u64, Operation>,
    next: u64,
    /// The outstanding operation of a context's slot.
    slots: BTreeMap<(u16, u8), u64>,
    registers: BTreeMap<(u16, u8), Registers>,
    /// Special mode: context, slot, arguments passed so far.
    special: Option<(u16, u8, usize)>,
    /// The PROCESS register.
    process: u16,
    /// A half-made command: destination and length ([`Launching::CommandPages`]).
    command: Option<(Place, u64)>,
}

impl Launcher {
    /// A closed context leaves nothing behind.
    pub(crate) fn forget_context(&mut self, number: u16) {
        self.registers.retain(|(context, _), _| *context != number);
        if self.special.is_some_and(|(context, ..)| context == number) {
            self.special = None;
        }
    }

    /// Whether this operation is unfinished.
    pub(crate) fn unfinished(&self, number: u64) -> bool {
        self.operations.contains_key(&number)
    }

    /// The unfinished operations that use an import of which `wanted` is true.
    pub(crate) fn using(&self, wanted: impl Fn(u16) -> bool) -> Vec<u64> {
        let uses = |operation: &Operation| operation.imports.into_iter().flatten().any(&wanted);
        self.operations.iter().filter(|(_, operation)| uses(operation)).map(|(number, _)| *number).collect()
    }

    /// Reset: everything is forgotten; numbers are not used again.
    pub(crate) fn reset(&mut self) {
        *self = Launcher { next: self.next, ..Launcher::default() };
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
    pub(crate) fn argument(&mut self, offset: u64, size: u32, data: u64, out: &mut Vec<Action>) {
        let address = self.config.window.decode(offset);
        if size != 8 || offset % 8 != 0 {
            return self.bad_access(Bar::Window, offset, size, Status::BadSize, out);
        }
        let Some(number) = self.issuer.slot(&address) else {
            return self.bad_access(Bar::Window, offset, size, Status::Unmapped, out);
        };
        let Argument { context, slot, which, key } = Argument::decode(data);
        let Some((owner, place)) = self.place(number, address.slot(), address.within()) else { return };
        let (context, right_key) = match self.config.launching {
            Launching::Keys => {
                let context = u16::from(context);
                (context, self.issuer.contexts.get(&context).is_some_and(|c| c.key == key))
            }
            Launching::CommandPages => {
                self.launcher.command = Some((place, data));
                return;
            }
            // Whoever runs now has passed it, says the system; the import may be anybody's.
            Launching::ProcessRegister => {
                let slot = self.launcher.registers.entry((self.launcher.process, slot)).or_default();
                if let Some(argument) = slot.arguments.get_mut(usize::from(which)) {
                    *argument = Some(place);
                }
                return;
            }
        };
        if !right_key || (owner != context && !self.config.has(crate::Bug::ForeignContext)) {
            return self.wrong_key(number, offset, out);
        }
        let launcher = &mut self.launcher;
        let Some(argument) =
            launcher.registers.entry((context, slot)).or_default().arguments.get_mut(usize::from(which))
        else {
            return self.bad_access(Bar::Window, offset, size, Status::Argument, out);
        };
        *argument = Some(place);
    }

    /// Whose import it is, and a place in it. Bounds are checked at the launch, when the length is known.
    fn place(&self, number: u16, slot: u32, within: u32) -> Option<(u16, Place)> {
        let import = self.issuer.open_import(number)?;
        let offset = u64::from(slot - import.first_slot) << UNIT_SHIFT | u64::from(within);
        Some((import.context, Place { import: number, opening: import.opening, offset }))
    }

    /// An argument with a wrong key, or for another process's context, has no effect but being counted.
    fn wrong_key(&mut self, number: u16, offset: u64, out: &mut Vec<Action>) {
        self.counters.bad_keys += 1;
        self.bad_access(Bar::Window, offset, 8, Status::BadKey, out);
        let Some(import) = self.issuer.import(number) else { return };
        import.bad_keys += 1;
        if import.bad_keys >= KEY_ATTEMPTS && !import.dead {
            self.kill_import(number, Status::BadKey, out);
        }
    }

    // ---- what the other styles need of the system ----

    pub(crate) fn running_process(&self) -> u16 {
        self.launcher.process
    }

    /// The PROCESS register was written.
    pub(crate) fn set_process(&mut self, context: u16) {
        self.launcher.process = context;
        self.launcher.command = None;
    }

    /// A load from the argument aperture: the second half of a SHRIMP command. Reads as 1 if the copy was started, which ends in slot 63 of the
    /// context whose import the destination is.
    pub(crate) fn command_load(&mut self, offset: u64, out: &mut Vec<Action>) -> Option<u64> {
        if self.config.launching != Launching::CommandPages {
            return None;
        }
        let address = self.config.window.decode(offset);
        if address.aperture != Aperture::Argument {
            return None;
        }
        let started = (|| {
            let (to, length) = self.launcher.command.take()?;
            let number = self.issuer.slot(&address)?;
            let (_, from) = self.place(number, address.slot(), address.within())?;
            let context = self.issuer.open_import(to.import)?.context;
            let origin = Origin::Slot { context, slot: 63, cookie: 1 };
            self.start(origin, false, What::Copy, [Some(to), Some(from)], length, 0, 0, out).ok()
        })();
        Some(u64::from(started.is_some()))
    }

    // ---- special mode (Telegraphos I) ----

    /// The SPECIAL register was written.
    pub(crate) fn set_special(&mut self, value: u64) {
        if let Some((context, slot, _)) = self.launcher.special.take() {
            // Left without a launch: clean.
            self.launcher.registers.remove(&(context, slot));
        }
        let (context, slot) = ((value >> 8) as u16, value as u8 & 63);
        if value & regs::SPECIAL_ENTER != 0 && self.issuer.contexts.contains_key(&context) {
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
    pub(crate) fn special_access(&mut self, offset: u64, size: u32, out: &mut Vec<Action>) -> bool {
        let Some((context, slot, count)) = self.launcher.special else { return false };
        let address = self.config.window.decode(offset);
        if address.aperture != Aperture::Plain {
            return false;
        }
        let place = self.issuer.slot(&address).and_then(|n| self.place(n, address.slot(), address.within()));
        let registers = self.launcher.registers.entry((context, slot)).or_default();
        match (place, registers.arguments.get_mut(count)) {
            (Some((owner, place)), Some(argument)) if owner == context => {
                *argument = Some(place);
                self.launcher.special = Some((context, slot, count + 1));
            }
            _ => self.bad_access(Bar::Window, offset, size, Status::Argument, out),
        }
        true
    }

    // ---- the context page ----

    /// A store to a context page.
    pub(crate) fn context_write(&mut self, offset: u64, size: u32, data: u64, out: &mut Vec<Action>) {
        let number = (offset >> UNIT_SHIFT) as u16;
        let within = offset & (UNIT - 1);
        let slots = context::SLOT_COUNT;
        let end = context::REGISTERS + slots * context::STRIDE;
        let status = if within == context::QUEUE_ARM && size == 8 && self.issuer.contexts.contains_key(&number) {
            return self.queue_arm(number, offset, data, out);
        } else if size != 8 || offset % 8 != 0 || within >= end {
            Status::BadSize
        } else if !self.issuer.contexts.contains_key(&number) {
            Status::Unmapped
        } else if within < context::ARM {
            match self.quiet(number, (within / 8) as u8, data, out) {
                Ok(()) => return,
                Err(status) => status,
            }
        } else if within < context::REGISTERS {
            return self.arm(number, ((within - context::ARM) / 8) as u8, data, out);
        } else {
            let at = within - context::REGISTERS;
            let slot = (at / context::STRIDE) as u8;
            let registers = self.launcher.registers.entry((number, slot)).or_default();
            match at % context::STRIDE {
                context::OPERAND => registers.operand = data,
                context::COMPARE => registers.compare = data,
                context::LENGTH => registers.length = data,
                _ => return self.launch(number, slot, data, offset, out),
            }
            return;
        };
        self.bad_access(Bar::Contexts, offset, size, status, out);
    }

    /// Whether a slot has an unfinished operation.
    pub(crate) fn slot_is_busy(&self, context: u16, slot: u8) -> bool {
        self.launcher.slots.contains_key(&(context, slot))
    }

    /// `ARM[slot]` <- cookie: an event when it is done, or now if it is.
    fn arm(&mut self, number: u16, slot: u8, cookie: u64, out: &mut Vec<Action>) {
        let operation = self.launcher.slots.get(&(number, slot)).copied();
        if let Some(operation) = operation.and_then(|o| self.launcher.operations.get_mut(&o)) {
            if operation.origin == (Origin::Slot { context: number, slot, cookie }) {
                operation.notify = true;
                return;
            }
        }
        let quiet = self.issuer.contexts.get_mut(&number).and_then(|c| c.quiets.get_mut(&slot));
        match quiet {
            Some(quiet) if quiet.cookie == cookie => quiet.notify = true,
            _ => self.cause(Cause::Context(number), out),
        }
    }

    /// `LAUNCH` of a slot was written: its arguments are consumed whatever comes of it.
    fn launch(&mut self, number: u16, slot: u8, word: u64, offset: u64, out: &mut Vec<Action>) {
        let quiet = self.issuer.contexts.get(&number).is_some_and(|c| c.quiets.contains_key(&slot));
        let busy = quiet || self.slot_is_busy(number, slot);
        let registers = self.launcher.registers.remove(&(number, slot)).unwrap_or_default();
        if self.launcher.special.is_some_and(|(c, s, _)| (c, s) == (number, slot)) {
            self.launcher.special = None;
        }
        let Some(Launch { operation, notify, cookie }) = Launch::decode(word) else {
            return self.bad_access(Bar::Contexts, offset, 8, Status::Invalid, out);
        };
        if busy {
            // Told by its cookie; the word of the one that is under way comes later, and is not lost.
            self.bad_access(Bar::Contexts, offset, 8, Status::Busy, out);
            return self.slot_done((number, slot), cookie, Status::Busy, None, notify, out);
        }
        let origin = Origin::Slot { context: number, slot, cookie };
        let low = [registers.length >> 48 & 7, registers.length >> 52 & 7];
        let length = registers.length & ((1 << 48) - 1);
        let mut places = registers.arguments;
        for (place, low) in places.iter_mut().zip(low) {
            if let Some(place) = place {
                place.offset += low;
            }
        }
        let started = self.start(origin, notify, operation, places, length, registers.operand, registers.compare, out);
        if let Err(status) = started {
            self.slot_done((number, slot), cookie, status, None, notify, out);
        }
    }

    /// The LAUNCH command of the kernel.
    pub(crate) fn admin_launch(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<(), Status> {
        let command = command.launch();
        let word = u64::from(command.operation & 0xff) << 56 | u64::from(command.operation >> 8) << 48;
        let Launch { operation, .. } = Launch::decode(word).ok_or(Status::Invalid)?;
        let place = |import, offset| {
            let found = self.issuer.open_import(import).filter(|i| i.context == command.context);
            found.map(|i| Place { import, opening: i.opening, offset })
        };
        let source = if operation == What::Copy { place(command.source, command.source_offset) } else { None };
        let places = [place(command.target, command.target_offset), source];
        let (length, operand, compare) = (command.length, command.operand, command.compare);
        self.start(Origin::Admin(slot), false, operation, places, length, operand, compare, out)
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
        out: &mut Vec<Action>,
    ) -> Result<(), Status> {
        match operation {
            What::Atomic { op, size } => {
                let place = places[0].ok_or(Status::Argument)?;
                let (node, at) = self.reach(&place, u64::from(size), Rights::ATOMIC)?;
                if place.offset % u64::from(size) != 0 {
                    return Err(Status::BadSize);
                }
                let mask = if size == 8 { u64::MAX } else { u64::from(u32::MAX) };
                self.counters.atomics += 1;
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
                let context = self.issuer.open_import(place.import).map_or(0, |i| i.context);
                let (operand, compare) = (operand & mask, compare & mask);
                let epoch = self.epoch_of(place.import);
                let body = Body::Atomic { at, context, epoch, size, op, operand, compare };
                self.count_access(node, at.page, true, out);
                self.send_part(node, number, 0, body, out);
            }
            What::Copy => {
                let (to, from) = (places[0].ok_or(Status::Argument)?, places[1].ok_or(Status::Argument)?);
                if length == 0 || length > MAX_COPY {
                    return Err(Status::Length);
                }
                let dma = Rights::DMA.0;
                let (to_node, _) = self.reach(&to, length, Rights(dma | Rights::WRITE.0))?;
                let (from_node, _) = self.reach(&from, length, Rights(dma | Rights::READ.0))?;
                let own = self.config.node;
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
                self.counters.copies += 1;
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
                self.issuer.peers[usize::from(node)].copies.push_back(number);
                self.pump_copies(node, out);
            }
        }
        Ok(())
    }

    /// Checks a place of `length` bytes for `right`; where its first byte is.
    fn reach(&self, place: &Place, length: u64, right: Rights) -> Result<(NodeId, RemoteAddr), Status> {
        let import = self.issuer.open_import(place.import).filter(|i| i.opening == place.opening);
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
            let import = self.issuer.open_import(place.import)?;
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
        if let Origin::Slot { context, slot, .. } = operation.origin {
            self.launcher.slots.insert((context, slot), number);
        }
        for import in operation.imports.into_iter().flatten() {
            if let Some(import) = self.issuer.import(import) {
                import.operations += 1;
            }
        }
        self.launcher.operations.insert(number, operation);
        number
    }

    fn send_part(&mut self, node: NodeId, operation: u64, offset: u64, body: Body, out: &mut Vec<Action>) {
        self.issuer.peers[usize::from(node)].accept(Waiting::Part { operation, offset, body });
        self.pump(node, out);
    }

    // ---- copies ----

    /// Starts blocks of the copies for a node, in turns, as far as [`BLOCKS`] allow.
    fn pump_copies(&mut self, node: NodeId, out: &mut Vec<Action>) {
        loop {
            let peer = &mut self.issuer.peers[usize::from(node)];
            if peer.blocks >= BLOCKS {
                return;
            }
            let Some(number) = peer.copies.pop_front() else { return };
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
            operation.parts += 1;
            peer_blocks(self, node, 1);
            if more {
                self.issuer.peers[usize::from(node)].copies.push_back(number);
            }
            let context = self.issuer.open_import(far.import).map_or(0, |i| i.context);
            if get {
                let at = self.issuer.open_import(far.import).map(|i| i.address(far.offset + offset));
                let Some(at) = at else {
                    // Cannot be: an import is not closed while an operation uses it.
                    self.part_done(number, Status::Argument, far.import, out);
                    continue;
                };
                self.count_access(node, at.page, false, out);
                self.send_part(node, number, offset, Body::ReadBlock { at, context, length: count as u32 }, out);
            } else {
                match self.near_address(&near, offset, count, Rights::READ) {
                    Ok((page, address)) => {
                        let purpose = Purpose::Block { operation: number, offset, page };
                        self.step(Step::LoadBlock { address, length: count as u32 }, purpose, out);
                    }
                    Err(status) => self.part_done(number, status, near.import, out),
                }
            }
        }
    }

    /// The guest address of a block at the near end, under the same checks as for a request of another node.
    fn near_address(&self, near: &Place, offset: u64, count: u64, right: Rights) -> Result<(u32, u64), Status> {
        let import = self.issuer.open_import(near.import).ok_or(Status::Argument)?;
        let at = import.address(near.offset + offset);
        let address = self.translate(self.config.node, &at, count, Rights(Rights::DMA.0 | right.0))?;
        self.block_of_replica(at.page, right)?;
        Ok((at.page, address))
    }

    /// A block has been loaded from or stored to this node's memory.
    pub(crate) fn block_stepped(&mut self, number: u64, offset: u64, result: StepResult, out: &mut Vec<Action>) {
        let Some(operation) = self.launcher.operations.get(&number) else { return };
        let (node, kind, failed) = (operation.node, operation.kind, operation.status != Status::Ok);
        let epoch = operation.epoch;
        let Kind::Copy { far, near, get, .. } = kind else { return };
        match result {
            StepResult::Block(data) if !get && !failed => {
                let import = match self.issuer.open_import(far.import) {
                    Some(import) if !import.dead => import,
                    // Its node went away while the block was loaded.
                    import => {
                        let status = import.and_then(|i| i.error).unwrap_or(Status::NodeDown);
                        return self.part_done(number, status, far.import, out);
                    }
                };
                let (at, context) = (import.address(far.offset + offset), import.context);
                self.count_access(node, at.page, true, out);
                self.send_part(node, number, offset, Body::WriteBlock { at, context, epoch, data }, out);
            }
            StepResult::Failed(status) => self.part_done(number, status, near.import, out),
            _ => self.part_done(number, Status::Ok, far.import, out),
        }
        self.finish_clearing(out);
    }

    // ---- ends ----

    /// The answer to a part of an operation.
    pub(crate) fn part_answered(&mut self, number: u64, offset: u64, body: Body, out: &mut Vec<Action>) {
        let Some(operation) = self.launcher.operations.get_mut(&number) else { return };
        let far = operation.imports[0].unwrap_or_default();
        match (body, &mut operation.kind) {
            (Body::AtomicReply { status, data }, Kind::Atomic { value }) => {
                *value = data;
                self.part_done(number, status, far, out);
            }
            (Body::WriteAck { status }, Kind::Copy { get: false, .. }) => self.part_done(number, status, far, out),
            (Body::BlockReply { status: Status::Ok, data }, Kind::Copy { far: place, near, get: true, length, .. }) => {
                let near = *near;
                let asked = block_length(place, &near, *length, offset);
                if operation.status != Status::Ok || data.len() as u64 != asked {
                    // More than was asked for would run over other memory, less leave a hole.
                    return self.part_done(number, Status::Invalid, far, out);
                }
                match self.near_address(&near, offset, data.len() as u64, Rights::WRITE) {
                    Ok((page, address)) => {
                        let purpose = Purpose::Block { operation: number, offset, page };
                        self.step(Step::StoreBlock { address, data }, purpose, out);
                    }
                    Err(status) => self.part_done(number, status, near.import, out),
                }
            }
            (Body::BlockReply { status, .. }, Kind::Copy { get: true, .. }) => self.part_done(number, status, far, out),
            // A peer that answers something else has lost its mind.
            _ => self.part_done(number, Status::Invalid, far, out),
        }
    }

    /// A part of an operation has been lost with its node.
    pub(crate) fn part_lost(&mut self, number: u64, status: Status, out: &mut Vec<Action>) {
        let far = self.launcher.operations.get(&number).and_then(|operation| operation.imports[0]);
        self.part_done(number, status, far.unwrap_or_default(), out);
    }

    /// A part of an operation has ended; the operation with its last one. An error concerns this import.
    fn part_done(&mut self, number: u64, status: Status, import: u16, out: &mut Vec<Action>) {
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
            self.end(number, out);
        }
        if copy {
            self.pump_copies(node, out);
        }
    }

    fn end(&mut self, number: u64, out: &mut Vec<Action>) {
        let Some(operation) = self.launcher.operations.remove(&number) else { return };
        let Operation { origin, notify, node, imports, epoch, kind, status, blamed, .. } = operation;
        let value = match kind {
            Kind::Atomic { value } if status == Status::Ok => Some(value),
            Kind::Atomic { .. } => Some(u64::MAX),
            Kind::Copy { .. } => None,
        };
        if status != Status::Ok {
            out.push(Action::Notice(Notice::FailedOperation { node, status }));
            // Both of its imports are of one context.
            let context = imports.into_iter().flatten().find_map(|n| self.issuer.open_import(n)).map(|i| i.context);
            if let Some(context) = context {
                self.charge_quiets_of(context, number, status);
            }
            // Refused with stores that have been acknowledged as lost since, it is no error of those that come now.
            let acknowledged = |import: &u16| status == Status::Cut && self.epoch_of(*import).epoch != epoch.epoch;
            if let Some(import) = blamed.filter(|import| *import != epoch.import || !acknowledged(import)) {
                self.latch(import, status, out);
            }
        }
        match origin {
            Origin::Slot { context, slot, cookie } => {
                self.launcher.slots.remove(&(context, slot));
                self.slot_done((context, slot), cookie, status, value, notify, out);
            }
            Origin::Admin(slot) => {
                let length = value.unwrap_or(0);
                self.complete(slot, Completion { length, ..Completion::of(0, status) }, out);
            }
        }
        for import in imports.into_iter().flatten() {
            if let Some(import) = self.issuer.import(import) {
                import.operations -= 1;
            }
            self.progressed(import, out);
        }
    }

    /// Writes a slot's completion: the value first, `done` last, then the event.
    pub(crate) fn slot_done(
        &mut self,
        (number, slot): (u16, u8),
        cookie: u64,
        status: Status,
        value: Option<u64>,
        notify: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(page) = self.issuer.contexts.get(&number).map(|c| c.status_page) else { return };
        let at = 8 * u64::from(slot);
        let value = value.map(|value| (page + context::VALUE_OFFSET + at, value));
        let done = (page + at, (status as u64) << context::COOKIE_BITS | cookie);
        let then = if notify { Then::ContextDone(number) } else { Then::Nothing };
        self.status_job(number, value.into_iter().chain([done]), then, out);
    }

    /// The operations for a node of which no part is under way (they only wait for their turn) end now.
    pub(crate) fn fail_waiting_copies(&mut self, node: NodeId, status: Status, out: &mut Vec<Action>) {
        let copies = std::mem::take(&mut self.issuer.peers[usize::from(node)].copies);
        for number in copies {
            let Some(operation) = self.launcher.operations.get_mut(&number) else { continue };
            if operation.status == Status::Ok {
                operation.status = status;
                operation.blamed = operation.imports[0];
            }
            if operation.parts == 0 {
                self.end(number, out);
            }
        }
    }
}

fn peer_blocks(hib: &mut Hib, node: NodeId, change: i32) {
    let blocks = &mut hib.issuer.peers[usize::from(node)].blocks;
    *blocks = blocks.saturating_add_signed(change);
}
