// SPDX-License-Identifier: MIT OR Apache-2.0
//! BAR0: the register map and the admin commands. Called by `hib` for accesses to BAR0 and for loaded commands; each
//! command is passed to the part that executes it.

use crate::ctx::StepOwner;
use crate::events::Cause;
use crate::hib::{Hib, below_launcher, below_replicas};
use crate::numbered::ones;
use crate::requester::Import;
use crate::{Bar, Notice, Step, StepResult};
use crate::{launch, replica};
use telegraphos_wire::admin::{self, BLOCK_SIZE, Command, Completion, SLOTS};
use telegraphos_wire::regs::{self, Access, Register};
use telegraphos_wire::{Status, UNIT_SHIFT};

impl Hib {
    /// Returns whether an offset lies in the MSI-X table, which the shell emulates.
    fn in_msix(&self, offset: u64) -> bool {
        self.ctx.config.msix && offset >= regs::MSIX_TABLE
    }

    /// Serves a load from BAR0. A bad access latches an error and returns all ones.
    pub(crate) fn read_register(&mut self, offset: u64, size: u32) -> u64 {
        let register = u8::try_from(size).ok().and_then(|size| Register::at(offset, size));
        let Some(register) = register else {
            if self.in_msix(offset) {
                return 0;
            }
            self.ctx.bad_access(Bar::Control, offset, size, Status::BadSize);
            return ones(size);
        };
        self.register(register)
    }

    /// The value of a register, as the guest would read it. Has no side effect.
    pub fn register(&self, register: Register) -> u64 {
        let counters = &self.ctx.counters;
        match register {
            Register::Magic => regs::MAGIC,
            Register::Version => regs::VERSION,
            Register::Capabilities => u64::from(self.ctx.config.msix) * regs::CAP_MSIX,
            Register::Node => u64::from(self.ctx.config.node),
            Register::NodeBits => u64::from(self.ctx.config.window.node_bits),
            Register::OffsetBits => u64::from(self.ctx.config.window.offset_bits),
            Register::UnitShift => u64::from(UNIT_SHIFT),
            Register::Contexts => u64::from(self.ctx.config.contexts),
            Register::Imports => u64::from(self.ctx.config.imports),
            Register::ExportPages => u64::from(self.ctx.config.export_pages),
            Register::AdminSlots => SLOTS as u64,
            Register::Incarnation => self.ctx.incarnation,
            Register::StatusBits => {
                let congested =
                    self.requester.imports.open().any(Import::is_stopped) || self.launcher.congestion.any_stopped();
                let bit = |on: bool, bit: u64| if on { bit } else { 0 };
                bit(self.ctx.link.is_up(), regs::STATUS_LINK_UP)
                    | bit(congested, regs::STATUS_CONGESTED)
                    | bit(self.ctx.registers.error != 0, regs::STATUS_ERROR)
            }
            Register::Control => {
                u64::from(self.ctx.registers.control) | if self.ctx.resetting { regs::CONTROL_RESET } else { 0 }
            }
            Register::Error => self.ctx.registers.error,
            Register::ErrorAddress => self.ctx.registers.error_address,
            Register::ErrorAck | Register::AdminDoorbell => 0,
            Register::EventBase => self.ctx.events.base,
            Register::EventSize => u64::from(self.ctx.events.size),
            Register::EventConsumer => u64::from(self.ctx.events.consumer),
            Register::EventIndex => self.ctx.events.index,
            Register::AdminBase => self.ctx.registers.admin_base,
            Register::Special => self.launcher.arguments.special(),
            #[cfg(feature = "bugs")]
            Register::Process => u64::from(self.launcher.arguments.variants.process),
            // Only the launch styles of the feature `bugs` use it.
            #[cfg(not(feature = "bugs"))]
            Register::Process => 0,
            Register::Counters => u64::from(self.ctx.config.counters),
            Register::DirectPair => self.ctx.config.direct_pair,
            Register::ErrorCount => counters.errors,
            Register::CountStores => counters.stores,
            Register::CountLoads => counters.loads,
            Register::CountServed => counters.served,
            Register::CountRefused => counters.refused,
            Register::CountDropped => counters.dropped,
            Register::CountCongested => counters.congested,
            Register::CountEvents => counters.events,
            Register::CountAtomics => counters.atomics,
            Register::CountCopies => counters.copies,
            Register::CountBadKeys => counters.bad_keys,
            Register::CountEnqueues => counters.enqueues,
            Register::CountElements => counters.elements,
            Register::CountOverflows => counters.overflows,
            Register::CountReflected => counters.reflected,
            Register::CountCounterStalls => counters.counter_stalls,
        }
    }

    /// Serves a store to BAR0. A bad access latches an error and has no other effect.
    pub(crate) fn write_register(&mut self, offset: u64, size: u32, data: u64) {
        let register = u8::try_from(size).ok().and_then(|size| Register::at(offset, size));
        let Some(register) = register.filter(|r| r.access() != Access::ReadOnly) else {
            if !self.in_msix(offset) {
                self.ctx.bad_access(Bar::Control, offset, size, Status::BadSize);
            }
            return;
        };
        match register {
            Register::Control if data & regs::CONTROL_RESET != 0 => {
                // Bus mastering is a bit of the PCI configuration space, which this reset does not change.
                let bus_master = self.ctx.bus_master;
                self.reset();
                self.ctx.bus_master = bus_master;
            }
            Register::Control => {
                self.ctx.registers.control = data as u32 & regs::CONTROL_IRQ_ENABLE as u32;
                // Enabling the interrupt while events are unconsumed raises it.
                self.ctx.interrupt_if(self.ctx.events.unconsumed());
            }
            Register::ErrorAck => {
                self.ctx.registers.error = 0;
                self.ctx.registers.error_address = 0;
            }
            // A ring in use does not move: the driver disables it first.
            Register::EventBase | Register::EventIndex if self.ctx.events.size != 0 => {
                self.ctx.bad_access(Bar::Control, offset, size, Status::Busy);
            }
            Register::EventBase => self.ctx.events.base = data,
            Register::EventIndex if data % 4 == 0 => self.ctx.events.index = data,
            Register::EventIndex => self.ctx.bad_access(Bar::Control, offset, size, Status::Invalid),
            Register::EventSize => self.ctx.set_event_size(data as u32),
            Register::EventConsumer => self.ctx.consume_events(data as u32),
            Register::AdminBase => self.ctx.registers.admin_base = data,
            Register::AdminDoorbell => self.doorbell(data as u32),
            Register::Special => self.launcher.arguments.set_special(&self.requester, data),
            #[cfg(feature = "bugs")]
            Register::Process => self.launcher.arguments.variants.run(data as u16),
            _ => {}
        }
    }

    // ---- admin commands ----

    /// ADMIN_DOORBELL was written: starts to load the command of a slot.
    fn doorbell(&mut self, slot: u32) {
        let aligned = self.ctx.registers.admin_base % BLOCK_SIZE as u64 == 0;
        let taken = match (aligned, self.ctx.bus_master) {
            (false, _) => Err(Status::Invalid),
            (true, false) => Err(Status::MemoryFault),
            (true, true) => self.ctx.admin.occupy(slot),
        };
        match taken {
            Ok(()) => {
                let address = self.ctx.registers.slot_address(slot);
                self.ctx.step(Step::LoadCommand { address }, StepOwner::Command(slot));
            }
            Err(status) => self.ctx.bad_access(Bar::Control, Register::AdminDoorbell.offset(), 4, status),
        }
    }

    /// Executes the loaded command of a slot. A failed load latches an error and frees the slot without a completion.
    pub(crate) fn command_loaded(&mut self, slot: u32, result: StepResult) {
        let StepResult::Command(command) = result else {
            self.ctx.admin.busy.remove(&slot);
            if let StepResult::Failed(status) = result {
                self.ctx.own_memory_failed(self.ctx.registers.slot_address(slot), status);
            }
            return;
        };
        self.ctx.admin.busy.insert(slot, command.seq);
        match self.execute(slot, &command) {
            Ok(None) => {}
            Ok(Some(completion)) => self.ctx.complete(slot, completion),
            Err(status) => self.refuse_command(slot, command.opcode, status),
        }
    }

    /// Completes a command with an error.
    fn refuse_command(&mut self, slot: u32, opcode: u32, status: Status) {
        self.ctx.notice(Notice::Admin { opcode, status });
        self.ctx.complete_status(slot, status);
    }

    /// Passes a command to the part that executes it. An error becomes the status of the completion; `None` if the part
    /// completes the slot later. [`Ctx::complete`](crate::ctx::Ctx::complete) adds the slot's `seq`.
    fn execute(&mut self, slot: u32, command: &Command) -> Result<Option<Completion>, Status> {
        let ok = || Completion::of(0, Status::Ok);
        let (done, later) = (|()| Some(ok()), |()| None);
        let if_done = |done: bool| done.then(ok);
        let with = |generation: u64| Some(Completion { generation, ..ok() });
        match command.opcode {
            admin::CONTEXT_OPEN => self.requester.contexts.open(&self.ctx, command).map(done),
            admin::CONTEXT_CLOSE => self.context_close(slot, command).map(if_done),
            admin::GRANT_SET => self.grants.set(&self.ctx, command).map(with),
            admin::GRANT_RANGE | admin::GRANT_GATED => self.grants.set_range(&mut self.ctx, slot, command).map(later),
            admin::GRANT_CLEAR => self.grant_clear(slot, command).map(if_done),
            admin::SEGMENT_PUBLISH => self.grants.publish(&self.ctx, command).map(done),
            admin::SEGMENT_WITHDRAW => {
                let withdrawn = self.grants.segments.remove(&command.name).map(|_| ());
                withdrawn.ok_or(Status::NoSegment).map(done)
            }
            admin::QUEUE_SET => self.queue_set(command).map(with),
            admin::QUEUE_RESUME => self.queues.resume(&mut self.ctx, &self.grants, slot, command.index).map(later),
            admin::REPLICA_SET => self.replica_set(slot, command).map(if_done),
            admin::REPLICA_MOVE => self.replicas.move_home(below_replicas!(self), slot, command.index).map(later),
            admin::REPLICA_INVALID => self.replicas.unmapped(&mut self.ctx, command.index).map(done),
            admin::REPLICA_CLEAR => self.replicas.clear(below_replicas!(self), slot, command.index).map(if_done),
            admin::LOOKUP => self.requester.lookup(&mut self.ctx, slot, command).map(later),
            admin::IMPORT_SET => self.requester.open(&mut self.ctx, slot, command).map(if_done),
            admin::IMPORT_CLEAR => self.requester.close(&mut self.ctx, slot, command).map(if_done),
            admin::IMPORT_QUIET => self.requester.settle(slot, command).map(if_done),
            admin::IMPORT_ACK => self.requester.acknowledge(&mut self.ctx, command).map(done),
            admin::LAUNCH => self.launcher.admin_launch(below_launcher!(self), slot, command).map(later),
            admin::COUNTER_SET => self.requester.page_counters.set(&self.ctx, command).map(done),
            admin::COUNTER_GET => self.requester.page_counters.get(command).map(Some),
            _ => Err(Status::Invalid),
        }
    }

    /// The list of a GRANT_RANGE has been read, or could not be: completes the command.
    pub(crate) fn runs_read(&mut self, slot: u32, result: &StepResult) {
        match self.grants.ranges.read(slot, result) {
            Ok(generation) => {
                let completion = Completion { generation, ..Completion::of(0, Status::Ok) };
                self.ctx.complete(slot, completion);
            }
            Err(status) => self.refuse_command(slot, admin::GRANT_RANGE, status),
        }
    }

    /// REPLICA_SET. The page of a queue cannot be replicated.
    fn replica_set(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let queue = self.queues.contains(command.replica().page);
        self.replicas.set(below_replicas!(self), slot, command, queue)
    }

    /// QUEUE_SET. The context that the queue notifies must be open.
    fn queue_set(&mut self, command: &Command) -> Result<u64, Status> {
        let known = u16::try_from(command.queue().context).is_ok_and(|c| self.requester.contexts.table.contains(c));
        if !known {
            return Err(Status::Invalid);
        }
        self.queues.set(&self.ctx, &mut self.grants, command)
    }

    /// Closes a context. Returns `Ok(false)` if stores to its status page are pending; the slot completes after them.
    fn context_close(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        self.requester.contexts.close(command.context)?;
        if self.launcher.forget_context(command.context) {
            self.ctx.cause(Cause::ContextState(command.context));
        }
        let done = !self.ctx.tables.writes_status(command.context);
        if !done {
            self.ctx.admin.closing.insert(command.context, slot);
        }
        Ok(done)
    }

    /// Completes a pending CONTEXT_CLOSE if no store to the context's status page is left.
    pub(crate) fn finish_context_close(&mut self, context: u16) {
        let Some(slot) = self.ctx.admin.closing.get(&context).copied() else { return };
        if !self.ctx.tables.writes_status(context) {
            self.ctx.admin.closing.remove(&context);
            self.ctx.complete_status(slot, Status::Ok);
        }
    }
}
