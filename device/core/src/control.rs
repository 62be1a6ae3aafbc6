// SPDX-License-Identifier: MIT OR Apache-2.0
//! BAR0: registers and admin commands.

use crate::ctx::{StepOwner, ones};
use crate::events::Cause;
use crate::hib::Hib;
use crate::{Bar, Notice, Step, StepResult};
use telegraphos_wire::admin::{self, BLOCK_SIZE, Command, Completion, SLOTS};
use telegraphos_wire::regs::{self, Access, Register};
use telegraphos_wire::{Status, UNIT_SHIFT, context};

/// Registers that hold what was last written, and the latched error.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Registers {
    pub(crate) control: u32,
    pub(crate) admin_base: u64,
    pub(crate) error: u64,
    pub(crate) error_address: u64,
}

impl Registers {
    /// Latches an error, unless there is one.
    pub(crate) fn latch(&mut self, bar: Bar, offset: u64, size: u32, status: Status) -> bool {
        if self.error != 0 {
            return false;
        }
        let bar = match bar {
            Bar::Control => 0,
            Bar::Contexts => 2,
            Bar::Window => 4,
        };
        self.error = status as u64 | bar << 16 | u64::from(size.min(255)) << 20;
        self.error_address = offset;
        true
    }
}

/// What has become of a command.
enum Ended {
    /// It is done, with this. The slot's `seq` is added.
    Now(Completion),
    /// Somebody completes it later.
    Later,
}

impl From<()> for Ended {
    fn from((): ()) -> Ended {
        Ended::Now(Completion::of(0, Status::Ok))
    }
}

/// Whether it is done.
impl From<bool> for Ended {
    fn from(done: bool) -> Ended {
        if done { Ended::from(()) } else { Ended::Later }
    }
}

/// The generation of what has been granted.
impl From<u64> for Ended {
    fn from(generation: u64) -> Ended {
        Ended::Now(Completion { generation, ..Completion::of(0, Status::Ok) })
    }
}

impl From<Completion> for Ended {
    fn from(completion: Completion) -> Ended {
        Ended::Now(completion)
    }
}

impl Hib {
    fn in_msix(&self, offset: u64) -> bool {
        self.ctx.config.msix && offset >= regs::MSIX_TABLE
    }

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

    /// The value of a register, as the guest would read it; has no side effect.
    pub fn register(&self, register: Register) -> u64 {
        match register {
            Register::Magic => regs::MAGIC,
            Register::Version => regs::VERSION,
            Register::Capabilities => {
                if self.ctx.config.msix {
                    regs::CAP_MSIX
                } else {
                    0
                }
            }
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
                let mut bits = 0;
                if self.ctx.link.is_up() {
                    bits |= regs::STATUS_LINK_UP;
                }
                if self.requester.any_congested() || self.launcher.any_stopped() {
                    bits |= regs::STATUS_CONGESTED;
                }
                if self.ctx.registers.error != 0 {
                    bits |= regs::STATUS_ERROR;
                }
                bits
            }
            Register::Control => {
                u64::from(self.ctx.registers.control) | if self.ctx.resetting { regs::CONTROL_RESET } else { 0 }
            }
            Register::Error => self.ctx.registers.error,
            Register::ErrorAddress => self.ctx.registers.error_address,
            Register::ErrorAck | Register::AdminDoorbell => 0,
            Register::EventBase => self.ctx.events.base,
            Register::EventSize => u64::from(self.ctx.events.size),
            Register::EventConsumer => u64::from(self.ctx.events.consumer()),
            Register::AdminBase => self.ctx.registers.admin_base,
            Register::Special => self.special(),
            #[cfg(feature = "bugs")]
            Register::Process => u64::from(self.running_process()),
            // Nothing depends on it.
            #[cfg(not(feature = "bugs"))]
            Register::Process => 0,
            Register::Counters => u64::from(self.ctx.config.counters),
            Register::ErrorCount
            | Register::CountStores
            | Register::CountLoads
            | Register::CountServed
            | Register::CountRefused
            | Register::CountDropped
            | Register::CountCongested
            | Register::CountEvents
            | Register::CountAtomics
            | Register::CountCopies
            | Register::CountBadKeys
            | Register::CountEnqueues
            | Register::CountElements
            | Register::CountOverflows
            | Register::CountReflected
            | Register::CountCounterStalls => self.counter(register),
        }
    }

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
                // Bus mastering is a bit of the configuration space, which is not the board's.
                let bus_master = self.ctx.bus_master;
                self.reset();
                self.ctx.bus_master = bus_master;
            }
            Register::Control => {
                self.ctx.registers.control = data as u32 & regs::CONTROL_IRQ_ENABLE as u32;
                self.ctx.control_written();
            }
            Register::ErrorAck => {
                self.ctx.registers.error = 0;
                self.ctx.registers.error_address = 0;
            }
            Register::EventBase => {
                // A live ring does not move: the driver disables it first.
                if self.ctx.events.size == 0 {
                    self.ctx.events.base = data;
                } else {
                    self.ctx.bad_access(Bar::Control, offset, size, Status::Busy);
                }
            }
            Register::EventSize => self.ctx.set_event_size(data as u32),
            Register::EventConsumer => self.ctx.consume_events(data as u32),
            Register::AdminBase => self.ctx.registers.admin_base = data,
            Register::AdminDoorbell => self.doorbell(data as u32),
            Register::Special => self.set_special(data),
            #[cfg(feature = "bugs")]
            Register::Process => self.set_process(data as u16),
            _ => {}
        }
    }

    // ---- admin commands ----

    fn doorbell(&mut self, slot: u32) {
        let aligned = self.ctx.registers.admin_base % BLOCK_SIZE as u64 == 0;
        let taken = match (aligned, self.ctx.bus_master) {
            (false, _) => Err(Status::Invalid),
            (true, false) => Err(Status::MemoryFault),
            (true, true) => self.ctx.admin.begin(slot),
        };
        match taken {
            Ok(()) => {
                let address = self.ctx.slot_address(slot);
                self.ctx.step(Step::LoadCommand { address }, StepOwner::Command(slot));
            }
            Err(status) => self.ctx.bad_access(Bar::Control, Register::AdminDoorbell.offset(), 4, status),
        }
    }

    pub(crate) fn command_loaded(&mut self, slot: u32, result: StepResult) {
        let command = match result {
            StepResult::Command(command) => command,
            StepResult::Failed(status) => {
                self.ctx.admin.release(slot);
                return self.ctx.own_memory_failed(self.ctx.slot_address(slot), status);
            }
            StepResult::Loaded(_) | StepResult::Block(_) | StepResult::Stored => return self.ctx.admin.release(slot),
        };
        self.ctx.admin.loaded(slot, command.seq);
        let status = match self.execute(slot, &command) {
            Ok(Ended::Later) => return,
            Ok(Ended::Now(completion)) => return self.ctx.complete(slot, completion),
            Err(status) => status,
        };
        self.ctx.notice(Notice::Admin { opcode: command.opcode, status });
        self.ctx.complete_status(slot, status);
    }

    /// Executes a command.
    fn execute(&mut self, slot: u32, command: &Command) -> Result<Ended, Status> {
        let later = |()| Ended::Later;
        match command.opcode {
            admin::CONTEXT_OPEN => self.context_open(command).map(Ended::from),
            admin::CONTEXT_CLOSE => self.context_close(slot, command).map(Ended::from),
            admin::GRANT_SET => self.grants.set(&self.ctx, command).map(Ended::from),
            admin::GRANT_CLEAR => self.grant_clear(slot, command).map(Ended::from),
            admin::SEGMENT_PUBLISH => self.grants.publish(&self.ctx, command).map(Ended::from),
            admin::SEGMENT_WITHDRAW => self.grants.withdraw(command).map(Ended::from),
            admin::QUEUE_SET => self.queue_set(command).map(Ended::from),
            admin::QUEUE_RESUME => self.queues.resume(&mut self.ctx, &self.grants, slot, command.index).map(later),
            admin::REPLICA_SET => self.replica_set(slot, command).map(Ended::from),
            admin::REPLICA_MOVE => self.replica_move(slot, command.index).map(later),
            admin::REPLICA_INVALID => self.replica_invalid(command.index).map(Ended::from),
            admin::REPLICA_CLEAR => self.replica_clear(slot, command.index).map(Ended::from),
            admin::LOOKUP => self.lookup(slot, command).map(later),
            admin::IMPORT_SET => self.import_set(slot, command).map(Ended::from),
            admin::IMPORT_CLEAR => self.import_clear(slot, command).map(Ended::from),
            admin::IMPORT_ACK => self.import_ack(command).map(Ended::from),
            admin::LAUNCH => self.admin_launch(slot, command).map(later),
            admin::COUNTER_SET => self.page_counters.set(&self.ctx, command).map(Ended::from),
            admin::COUNTER_GET => self.page_counters.get(command).map(Ended::from),
            _ => Err(Status::Invalid),
        }
    }

    /// QUEUE_SET: the queue's notifications are for an open context.
    fn queue_set(&mut self, command: &Command) -> Result<u64, Status> {
        let known = u16::try_from(command.queue().context).is_ok_and(|c| self.requester.contexts.contains_key(&c));
        if !known {
            return Err(Status::Invalid);
        }
        self.queues.set(&self.ctx, &mut self.grants, command)
    }

    fn context_open(&mut self, command: &Command) -> Result<(), Status> {
        if command.context >= self.ctx.config.contexts || command.address % context::STATUS_SIZE != 0 {
            return Err(Status::Invalid);
        }
        if command.key >> context::KEY_BITS != 0 {
            return Err(Status::Invalid);
        }
        self.requester.open_context(command.context, command.address, command.key)
    }

    /// Closes a context; `Ok(false)` if its status page is still to be written.
    fn context_close(&mut self, slot: u32, command: &Command) -> Result<bool, Status> {
        let quiets = self.requester.contexts.get(&command.context).map_or(0, |context| context.quiets.len());
        self.requester.close_context(command.context)?;
        for _ in 0..quiets {
            // Forgotten with their context.
            self.launcher.give_word(command.context);
        }
        if self.launcher.forget_context(command.context) {
            self.ctx.cause(Cause::ContextState(command.context));
        }
        let done = !self.ctx.tables.writes_status(command.context);
        if !done {
            self.ctx.admin.close_later(command.context, slot);
        }
        Ok(done)
    }

    /// A store into a context's status page has been made or has failed: a context that is being closed may be.
    pub(crate) fn finish_context_close(&mut self, context: u16) {
        if self.ctx.tables.writes_status(context) {
            return;
        }
        if let Some(slot) = self.ctx.admin.take_closing(context) {
            self.ctx.complete_status(slot, Status::Ok);
        }
    }
}
