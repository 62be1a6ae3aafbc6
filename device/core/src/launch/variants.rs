// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other launch styles that the paper compares (SPEC items 20 and 21). Each needs an operating system that acts at
//! every context switch. For tests only; no shipped board has them.

use super::{Below, LaunchRegisters, Launcher, Location, Origin, Variants, slot_number};
use crate::Launching;
use crate::ctx::Ctx;
use telegraphos_wire::context::Operation as Opcode;
use telegraphos_wire::window::Aperture;

impl Launcher {
    pub(crate) fn running_process(&self) -> u16 {
        self.variants.process
    }

    /// Serves a store to PROCESS, which also discards a half-issued command.
    pub(crate) fn set_process(&mut self, context: u16) {
        self.variants = Variants { process: context, command: None };
    }

    /// Records an argument in one of the other styles. Returns false for Telegraphos II.
    pub(super) fn variant_argument(
        &mut self,
        ctx: &mut Ctx,
        location: Location,
        slot: u8,
        which: u8,
        data: u64,
    ) -> bool {
        match ctx.config.launching {
            Launching::Keys => return false,
            Launching::CommandPages => self.variants.command = Some((location, data)),
            // The argument is attributed to the context in PROCESS; the import may belong to any context.
            Launching::ProcessRegister => {
                let slot = slot_number(self.variants.process, slot);
                let slot = self.registers.get_or_insert_with(slot, LaunchRegisters::default);
                if let Some(argument) = slot.arguments.get_mut(usize::from(which)) {
                    *argument = Some(location);
                }
            }
        }
        true
    }

    /// A load from the argument aperture: the second half of a SHRIMP command. Returns 1 if the copy was started, which
    /// completes in slot 63 of the context of the destination's import.
    pub(crate) fn command_load(&mut self, below: &mut Below<'_>, offset: u64) -> Option<u64> {
        if below.ctx.config.launching != Launching::CommandPages {
            return None;
        }
        let address = below.ctx.config.window.decode(offset);
        if address.aperture != Aperture::Argument {
            return None;
        }
        let started = (|| {
            let (to, length) = self.variants.command.take()?;
            let number = below.requester.slot(&address)?;
            let (_, from) = self.locate(below, number, address.slot(), address.within())?;
            let context = below.requester.open_import(to.import)?.context;
            let origin = Origin::Slot { context, slot: 63, cookie: 1 };
            self.start(below, origin, false, Opcode::Copy, [Some(to), Some(from)], length, 0, 0).ok()
        })();
        Some(u64::from(started.is_some()))
    }
}
