// SPDX-License-Identifier: MIT OR Apache-2.0
//! How atomics and block copies reach the board (SPEC items 17 to 20).
//!
//! The default launch is that of Telegraphos II (s1, SPEC item 20), which consists of stores alone:
//!
//! ```text
//!   argument aperture of the import:  at the target address <- context | slot | which | key      (once or twice)
//!   the slot's registers:             OPERAND, COMPARE, LENGTH <- ...                            (as needed)
//!                                     LAUNCH <- operation | cookie                               (starts it)
//!   status page, written by the HIB:  value[slot], then done[slot] = status | cookie
//! ```
//!
//! By [`LaunchStyle::Load`] the last access of an atomic is a load of `FETCH[slot]` instead, which launches it and
//! returns its result.
//!
//! An import that has no window, as that of a registration, is named by its number: `ARGUMENT <- slot | which | import
//! | offset` in the context page, which belongs to this context alone.
//!
//! Only a process that has the page in its page tables can pass its address, and the board accepts the context only
//! with its key. A slot belongs to one thread, and keeps its arguments however long that thread is interrupted.

use crate::access::{Instructions, publish};
use crate::backoff::Backoff;
use crate::context::Context;
use crate::error::{Error, Result, latched, status_of};
use crate::launch_style::LaunchStyle;
use crate::pending_request::PendingRequest;
use crate::remote::Remote;
use crate::slots::{Answer, SlotUse};
use crate::sys;
use rustix::io::Errno;
use std::ops::Deref;
use telegraphos_wire::{AtomicOp, Status, context, uapi};

/// An operation with its arguments, which [`operation`](crate::operation) has checked.
pub(crate) struct Launch<'a> {
    pub(crate) operation: context::Operation,
    /// The import of an atomic's word, or of the destination of a copy.
    pub(crate) target: &'a Remote,
    pub(crate) target_offset: u64,
    /// Import and offset of the source of a copy.
    pub(crate) source: Option<(&'a Remote, u64)>,
    /// Bytes of a copy, or those that a gate is opened for.
    pub(crate) length: u64,
    pub(crate) operand: u64,
    pub(crate) compare: u64,
}

/// An operation in flight, or its end.
pub(crate) enum Progress<C: Deref<Target = Context>> {
    InFlight(PendingRequest<C>),
    Done(Status, u64),
}

impl<C: Deref<Target = Context>> Progress<C> {
    /// Status and value, once the operation has ended; then its slot is free. A load from memory, no system call.
    pub(crate) fn poll(&mut self) -> Option<Answer> {
        match self {
            Progress::InFlight(request) => {
                let (status, value) = request.poll()?;
                // Dropping the request frees its slot.
                *self = Progress::Done(status, value);
                Some((status, value))
            }
            Progress::Done(status, value) => Some((*status, *value)),
        }
    }

    /// [`Progress::poll`] until the operation has ended; `None` when `backoff` ends first. Fails when the board is
    /// gone.
    pub(crate) fn wait(&mut self, backoff: &mut Backoff) -> Result<Option<Answer>> {
        if let Progress::InFlight(request) = self {
            request.wait(backoff)?;
        }
        Ok(self.poll())
    }
}

impl Launch<'_> {
    /// The operation's name in messages.
    pub(crate) fn what(&self) -> String {
        describe(self.operation, &self.target.handle.label)
    }

    /// Launches the operation, in the context's style. Waits for a free slot, until `backoff` ends with
    /// [`Error::Pending`].
    pub(crate) fn start<C: Deref<Target = Context>>(&self, context: C, backoff: &mut Backoff) -> Result<Progress<C>> {
        let gate = self.operation == context::Operation::Gate;
        // The other styles are for comparisons of atomics and copies.
        let style = if gate { LaunchStyle::Context } else { context.launch_style() };
        if style == LaunchStyle::Plain {
            return self.call(&context, style, 0);
        }
        let Some(request) = PendingRequest::new(context, SlotUse::Operation, backoff) else {
            let what = format!("a free slot for {}", self.what());
            return Err(self.target.handle.context.pending(what, backoff));
        };
        match style {
            LaunchStyle::Load => match self.operation {
                context::Operation::Atomic { op, size } => self.load(request, op, size),
                context::Operation::Copy | context::Operation::Gate => self.store(request),
            },
            LaunchStyle::Context => self.store(request),
            LaunchStyle::Special | LaunchStyle::Plain => self.call(&request.context, style, request.slot),
        }
    }

    /// Passes addresses and operands; the addresses' low bits, as the LENGTH register takes them.
    fn pass<C: Deref<Target = Context>>(&self, request: &PendingRequest<C>) -> Result<u64> {
        let pass = |remote: &Remote, offset: u64, which: u8| -> Result<u64> {
            if !remote.has_window() {
                // By its number, with all bits of the address.
                let (slot, import) = (request.slot as u8, remote.handle() as u16);
                let word = context::NumberedArgument { slot, which, import, offset }.encode();
                request.context.slots.write_register(context::ARGUMENT, word);
                return Ok(0);
            }
            let window = remote.arguments()?;
            let word = request.context.argument(request.slot, which);
            // SAFETY: the offset was checked against the import's size, and the mapping is that long in whole pages;
            // rounded down to 8 bytes the word lies aligned in it.
            unsafe { Instructions::window_store(window.add((offset & !7) as usize).cast::<u64>(), word) };
            Ok(offset & 7)
        };
        // Nothing fails once the first of them is passed.
        for remote in [Some(self.target), self.source.map(|(remote, _)| remote)].into_iter().flatten() {
            if remote.has_window() {
                remote.arguments()?;
            }
        }
        publish();
        let low = pass(self.target, self.target_offset, 0)?;
        let low = match self.source {
            Some((remote, offset)) => low | pass(remote, offset, 1)? << 4,
            None => low,
        };
        let (slots, registers) = (&request.context.slots, registers_of(request.slot));
        if self.operation != context::Operation::Copy {
            slots.write_register(registers + context::OPERAND, self.operand);
        }
        if let context::Operation::Atomic { op: AtomicOp::CompareSwap, .. } = self.operation {
            slots.write_register(registers + context::COMPARE, self.compare);
        }
        Ok(low << 48)
    }

    /// Launches by stores alone: Telegraphos II.
    fn store<C: Deref<Target = Context>>(&self, mut request: PendingRequest<C>) -> Result<Progress<C>> {
        let low = self.pass(&request)?;
        let registers = registers_of(request.slot);
        request.context.slots.write_register(registers + context::LENGTH, self.length | low);
        let launch = context::Launch { operation: self.operation, notify: false, cookie: request.cookie };
        match self.operation {
            context::Operation::Copy => request.submit_copy(registers + context::LAUNCH, launch.encode(), self.length),
            context::Operation::Atomic { .. } | context::Operation::Gate => {
                request.submit(registers + context::LAUNCH, launch.encode())
            }
        }
        Ok(Progress::InFlight(request))
    }

    /// Launches an atomic whose last access is a load.
    fn load<C: Deref<Target = Context>>(
        &self,
        request: PendingRequest<C>,
        op: AtomicOp,
        size: u8,
    ) -> Result<Progress<C>> {
        let (context, slots) = (&*request.context, &request.context.slots);
        let low = self.pass(&request)?;
        slots.write_register(registers_of(request.slot) + context::LENGTH, (op as u64) << 56 | low);
        let errors = slots.errors();
        let value = slots.read_register(context::FETCH + 8 * u64::from(request.slot), size);
        let all_ones = u64::MAX >> (64 - 8 * u32::from(size));
        if value != all_ones {
            return Ok(Progress::Done(Status::Ok, value));
        }
        // All ones: the word's value, or a load that could not be served. In the latter case an error was counted
        // before the load was answered, or the board is gone.
        context.device.check()?;
        if slots.errors() == errors {
            return Ok(Progress::Done(Status::Ok, value));
        }
        let state = self.target.state()?;
        Ok(Progress::Done(state.error.unwrap_or(Status::Argument), u64::MAX))
    }

    /// Launches by one system call, which performs the operation.
    fn call<C: Deref<Target = Context>>(
        &self,
        context: &Context,
        style: LaunchStyle,
        slot: u32,
    ) -> Result<Progress<C>> {
        let address = |remote: &Remote, offset: u64| match style {
            LaunchStyle::Special if remote.as_ptr().is_null() => {
                Err(remote.lacks("pass its addresses in special mode", "import it with the right to load or to store"))
            }
            LaunchStyle::Special => Ok(remote.as_ptr() as u64 + offset),
            LaunchStyle::Context | LaunchStyle::Load | LaunchStyle::Plain => Ok(offset),
        };
        let word = context::Launch { operation: self.operation, notify: false, cookie: 0 }.encode();
        let mut launch = uapi::Launch {
            style: style as u32,
            // From `operation << 56 | flags << 48`.
            operation: (word >> 56) as u32 | ((word >> 48) as u32 & u32::from(context::WIDE)) << 8,
            target: self.target.handle(),
            target_address: address(self.target, self.target_offset)?,
            length: self.length,
            operand: self.operand,
            compare: self.compare,
            slot,
            ..uapi::Launch::default()
        };
        if let Some((remote, offset)) = self.source {
            launch.source = remote.handle();
            launch.source_address = address(remote, offset)?;
        }
        if style == LaunchStyle::Special {
            (launch.target, launch.source) = (0, 0);
        }
        publish();
        match sys::launch(context.device.fd(), &mut launch) {
            Ok(()) => Ok(Progress::Done(Status::Ok, launch.value)),
            Err(Errno::NOTTY) => Err(Error::Os {
                what: format!(
                    "{}: launch style {style:?} is for comparisons, and its module is not loaded: insmod \
                     telegraphos_lab.ko",
                    self.what()
                ),
                errno: Errno::NOTTY,
            }),
            Err(errno) => match latched(launch.status).or_else(|| status_of(errno)) {
                Some(status) => Ok(Progress::Done(status, u64::MAX)),
                None => Err(context.device.error(&self.what(), errno)),
            },
        }
    }
}

/// The offset of a slot's launch registers in the context page.
fn registers_of(slot: u32) -> u64 {
    context::REGISTERS + context::STRIDE * u64::from(slot)
}

/// The name of an operation in messages, on the import of that name.
pub(crate) fn describe(operation: context::Operation, label: &str) -> String {
    match operation {
        context::Operation::Atomic { .. } => format!("an atomic on {label}"),
        context::Operation::Copy => format!("a copy to {label}"),
        context::Operation::Gate => format!("the gate of {label}"),
    }
}
