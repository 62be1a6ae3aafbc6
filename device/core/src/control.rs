// SPDX-License-Identifier: MIT OR Apache-2.0
//! BAR0: registers and admin commands.

use crate::events::Cause;
use crate::hib::{AfterWrite, Hib, StepOwner};
use crate::{Action, Bar, Notice, Step, StepResult};
use std::collections::BTreeMap;
use telegraphos_wire::admin::{self, BLOCK_SIZE, COMPLETION_OFFSET, Command, Completion, SLOTS};
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

/// Admin slots whose command has not completed, with its `seq` once it is known.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Admin {
    busy: BTreeMap<u32, u32>,
    /// Contexts closed but for their last status words, and the slots that wait for it.
    closing: BTreeMap<u16, u32>,
}

impl Admin {
    pub(crate) fn release(&mut self, slot: u32) {
        self.busy.remove(&slot);
    }
}

fn all_ones(size: u32) -> u64 {
    match size {
        1 => 0xff,
        2 => 0xffff,
        4 => 0xffff_ffff,
        _ => u64::MAX,
    }
}

impl Hib {
    /// Latches the first error that belongs to no import, counts every one.
    pub(crate) fn latch_error(&mut self, bar: Bar, offset: u64, size: u32, status: Status, out: &mut Vec<Action>) {
        self.counters.errors += 1;
        if self.registers.error == 0 {
            let bar = match bar {
                Bar::Control => 0,
                Bar::Contexts => 2,
                Bar::Window => 4,
            };
            self.registers.error = status as u64 | bar << 16 | u64::from(size.min(255)) << 20;
            self.registers.error_address = offset;
            self.cause(Cause::Error, out);
        }
    }

    pub(crate) fn bad_access(&mut self, bar: Bar, offset: u64, size: u32, status: Status, out: &mut Vec<Action>) {
        out.push(Action::Notice(Notice::BadAccess { bar, offset, size, status }));
        self.latch_error(bar, offset, size, status, out);
    }

    fn in_msix(&self, offset: u64) -> bool {
        self.config.msix && offset >= regs::MSIX_TABLE
    }

    pub(crate) fn read_register(&mut self, offset: u64, size: u32, out: &mut Vec<Action>) -> u64 {
        let register = u8::try_from(size).ok().and_then(|size| Register::at(offset, size));
        let Some(register) = register else {
            if self.in_msix(offset) {
                return 0;
            }
            self.bad_access(Bar::Control, offset, size, Status::BadSize, out);
            return all_ones(size);
        };
        self.register(register)
    }

    /// The value of a register, as the guest would read it; has no side effect.
    pub fn register(&self, register: Register) -> u64 {
        match register {
            Register::Magic => regs::MAGIC,
            Register::Version => regs::VERSION,
            Register::Capabilities => {
                if self.config.msix {
                    regs::CAP_MSIX
                } else {
                    0
                }
            }
            Register::Node => u64::from(self.config.node),
            Register::NodeBits => u64::from(self.config.window.node_bits),
            Register::OffsetBits => u64::from(self.config.window.offset_bits),
            Register::UnitShift => u64::from(UNIT_SHIFT),
            Register::Contexts => u64::from(self.config.contexts),
            Register::Imports => u64::from(self.config.imports),
            Register::ExportPages => u64::from(self.config.export_pages),
            Register::AdminSlots => SLOTS as u64,
            Register::Incarnation => self.incarnation,
            Register::StatusBits => {
                let mut bits = 0;
                if self.link.is_up() {
                    bits |= regs::STATUS_LINK_UP;
                }
                if self.requester.any_congested() || self.launcher.any_stopped() {
                    bits |= regs::STATUS_CONGESTED;
                }
                if self.registers.error != 0 {
                    bits |= regs::STATUS_ERROR;
                }
                bits
            }
            Register::Control => {
                u64::from(self.registers.control) | if self.is_resetting() { regs::CONTROL_RESET } else { 0 }
            }
            Register::Error => self.registers.error,
            Register::ErrorAddress => self.registers.error_address,
            Register::ErrorAck | Register::AdminDoorbell => 0,
            Register::EventBase => self.events.base,
            Register::EventSize => u64::from(self.events.size),
            Register::EventConsumer => u64::from(self.events.consumer()),
            Register::AdminBase => self.registers.admin_base,
            Register::Special => self.special(),
            Register::Process => u64::from(self.running_process()),
            Register::Counters => u64::from(self.config.counters),
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

    pub(crate) fn write_register(&mut self, offset: u64, size: u32, data: u64, out: &mut Vec<Action>) {
        let register = u8::try_from(size).ok().and_then(|size| Register::at(offset, size));
        let Some(register) = register.filter(|r| r.access() != Access::ReadOnly) else {
            if !self.in_msix(offset) {
                self.bad_access(Bar::Control, offset, size, Status::BadSize, out);
            }
            return;
        };
        match register {
            Register::Control if data & regs::CONTROL_RESET != 0 => {
                // Bus mastering is a bit of the configuration space, which is not the board's.
                let bus_master = self.bus_master;
                self.reset(out);
                self.bus_master = bus_master;
            }
            Register::Control => {
                self.registers.control = data as u32 & regs::CONTROL_IRQ_ENABLE as u32;
                self.control_written(out);
            }
            Register::ErrorAck => {
                self.registers.error = 0;
                self.registers.error_address = 0;
            }
            Register::EventBase => {
                // A live ring does not move: the driver disables it first.
                if self.events.size == 0 {
                    self.events.base = data;
                } else {
                    self.bad_access(Bar::Control, offset, size, Status::Busy, out);
                }
            }
            Register::EventSize => self.set_event_size(data as u32, out),
            Register::EventConsumer => self.consume_events(data as u32, out),
            Register::AdminBase => self.registers.admin_base = data,
            Register::AdminDoorbell => self.doorbell(data as u32, out),
            Register::Special => self.set_special(data),
            Register::Process => self.set_process(data as u16),
            _ => {}
        }
    }

    // ---- admin commands ----

    fn slot_address(&self, slot: u32) -> u64 {
        self.registers.admin_base.wrapping_add(u64::from(slot) * BLOCK_SIZE as u64)
    }

    fn doorbell(&mut self, slot: u32, out: &mut Vec<Action>) {
        let bad = if slot as usize >= SLOTS || self.registers.admin_base % BLOCK_SIZE as u64 != 0 {
            Some(Status::Invalid)
        } else if self.admin.busy.contains_key(&slot) {
            Some(Status::Busy)
        } else if !self.bus_master {
            Some(Status::MemoryFault)
        } else {
            None
        };
        if let Some(status) = bad {
            self.bad_access(Bar::Control, Register::AdminDoorbell.offset(), 4, status, out);
            return;
        }
        self.admin.busy.insert(slot, 0);
        self.step(Step::LoadCommand { address: self.slot_address(slot) }, StepOwner::Command(slot), out);
    }

    pub(crate) fn command_loaded(&mut self, slot: u32, result: StepResult, out: &mut Vec<Action>) {
        let command = match result {
            StepResult::Command(command) => command,
            StepResult::Failed(status) => {
                self.admin.release(slot);
                self.own_memory_failed(self.slot_address(slot), status, out);
                return;
            }
            StepResult::Loaded(_) | StepResult::Block(_) | StepResult::Stored => {
                self.admin.release(slot);
                return;
            }
        };
        self.admin.busy.insert(slot, command.seq);
        let done = self.execute(slot, &command, out);
        if let Some(completion) = done {
            if completion.status != Status::Ok as u32 {
                let status = Status::from_u16(completion.status as u16);
                out.push(Action::Notice(Notice::Admin { opcode: command.opcode, status }));
            }
            self.complete(slot, completion, out);
        }
    }

    /// Executes a command; `None` if it completes later.
    fn execute(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Option<Completion> {
        let result = match command.opcode {
            admin::CONTEXT_OPEN => self.context_open(command),
            admin::CONTEXT_CLOSE => match self.context_close(slot, command, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::GRANT_SET => {
                return Some(match self.grant_set(command) {
                    Ok(generation) => Completion { generation, ..Completion::of(command.seq, Status::Ok) },
                    Err(status) => Completion::of(command.seq, status),
                });
            }
            admin::QUEUE_SET => {
                return Some(match self.queue_set(command) {
                    Ok(generation) => Completion { generation, ..Completion::of(command.seq, Status::Ok) },
                    Err(status) => Completion::of(command.seq, status),
                });
            }
            admin::QUEUE_RESUME => match self.queue_resume(slot, command.index, out) {
                Ok(()) => return None,
                Err(status) => Err(status),
            },
            admin::REPLICA_SET => match self.replica_set(slot, command, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::REPLICA_MOVE => match self.replica_move(slot, command.index, out) {
                Ok(()) => return None,
                Err(status) => Err(status),
            },
            admin::REPLICA_INVALID => self.replica_invalid(command.index, out),
            admin::REPLICA_CLEAR => match self.replica_clear(slot, command.index, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::GRANT_CLEAR => match self.grant_clear(slot, command, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::SEGMENT_PUBLISH => self.segment_publish(command),
            admin::SEGMENT_WITHDRAW => self.segment_withdraw(command),
            admin::LOOKUP => match self.lookup(slot, command, out) {
                Ok(()) => return None,
                Err(status) => Err(status),
            },
            admin::IMPORT_SET => match self.import_set(slot, command, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::IMPORT_CLEAR => match self.import_clear(slot, command, out) {
                Ok(true) => Ok(()),
                Ok(false) => return None,
                Err(status) => Err(status),
            },
            admin::IMPORT_ACK => self.import_ack(command, out),
            admin::LAUNCH => match self.admin_launch(slot, command, out) {
                Ok(()) => return None,
                Err(status) => Err(status),
            },
            admin::COUNTER_SET => self.counter_set(command),
            admin::COUNTER_GET => match self.counter_get(command) {
                Ok(completion) => return Some(completion),
                Err(status) => Err(status),
            },
            _ => Err(Status::Invalid),
        };
        Some(Completion::of(command.seq, result.err().unwrap_or(Status::Ok)))
    }

    /// Completes the command of a slot with a bare status.
    pub(crate) fn complete_status(&mut self, slot: u32, status: Status, out: &mut Vec<Action>) {
        self.complete(slot, Completion::of(0, status), out);
    }

    /// Writes the completion of a slot: result words first, `{seq, status}` last.
    pub(crate) fn complete(&mut self, slot: u32, completion: Completion, out: &mut Vec<Action>) {
        let Some(&seq) = self.admin.busy.get(&slot) else { return };
        let at = self.slot_address(slot) + COMPLETION_OFFSET as u64;
        let stores = [
            (at + 8, u64::from(completion.index) | u64::from(completion.count) << 32),
            (at + 16, completion.generation),
            (at + 24, completion.length),
            (at + 32, u64::from(completion.rights) | u64::from(completion.width) << 32),
            (at, u64::from(seq) | u64::from(completion.status) << 32),
        ];
        self.write_table(stores, AfterWrite::AdminDone(slot), out);
    }

    pub(crate) fn admin_completed(&mut self, slot: u32, out: &mut Vec<Action>) {
        self.admin.release(slot);
        self.cause(Cause::AdminDone(slot), out);
    }

    fn context_open(&mut self, command: &Command) -> Result<(), Status> {
        if command.context >= self.config.contexts || command.address % context::STATUS_SIZE != 0 {
            return Err(Status::Invalid);
        }
        if command.key >> context::KEY_BITS != 0 {
            return Err(Status::Invalid);
        }
        self.requester.open_context(command.context, command.address, command.key)
    }

    /// Closes a context; `Ok(false)` if its status page is still to be written.
    fn context_close(&mut self, slot: u32, command: &Command, out: &mut Vec<Action>) -> Result<bool, Status> {
        let quiets = self.requester.contexts.get(&command.context).map_or(0, |context| context.quiets.len());
        self.requester.close_context(command.context)?;
        for _ in 0..quiets {
            // Forgotten with their context.
            self.launcher.give_word(command.context);
        }
        if self.launcher.forget_context(command.context) {
            self.cause(Cause::ContextState(command.context), out);
        }
        let done = !self.writes_status(command.context);
        if !done {
            self.admin.closing.insert(command.context, slot);
        }
        Ok(done)
    }

    /// A store into a context's status page has been made or has failed.
    pub(crate) fn finish_context_close(&mut self, context: u16, out: &mut Vec<Action>) {
        if self.admin.closing.contains_key(&context) && !self.writes_status(context) {
            if let Some(slot) = self.admin.closing.remove(&context) {
                self.complete_status(slot, Status::Ok, out);
            }
        }
    }
}
