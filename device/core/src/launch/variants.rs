// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other launch styles that the paper compares with (SPEC items 20 and 21): each needs an operating system that
//! acts at every context switch. For tests alone; no shipped board has any of this.

use super::{Origin, Place, What};
use crate::hib::Hib;
use telegraphos_wire::window::Aperture;

/// How the board knows whose argument a store to the argument aperture is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Launching {
    /// Telegraphos II, and the only style that is served to guests: the data names a context and carries its key.
    #[default]
    Keys,
    /// SHRIMP's command pages: a store of the length at the destination's address, then a load at the source's, make a
    /// copy. There is one half-made command; the system must abandon it (a write to PROCESS) when it switches
    /// processes.
    CommandPages,
    /// FLASH's process id register: arguments belong to the context in PROCESS, which the system must write when it
    /// switches processes.
    ProcessRegister,
}

/// What the other styles remember.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Variants {
    /// The PROCESS register.
    process: u16,
    /// A half-made command: destination and length.
    command: Option<(Place, u64)>,
}

impl Hib {
    pub(crate) fn running_process(&self) -> u16 {
        self.launcher.variants.process
    }

    /// The PROCESS register was written.
    pub(crate) fn set_process(&mut self, context: u16) {
        self.launcher.variants = Variants { process: context, command: None };
    }

    /// An argument in one of the other styles; false in Telegraphos II's.
    pub(super) fn variant_argument(&mut self, place: Place, slot: u8, which: u8, data: u64) -> bool {
        match self.ctx.config.launching {
            Launching::Keys => return false,
            Launching::CommandPages => self.launcher.variants.command = Some((place, data)),
            // Whoever runs now has passed it, says the system; the import may be anybody's.
            Launching::ProcessRegister => {
                let slot = self.launcher.registers.entry((self.launcher.variants.process, slot)).or_default();
                if let Some(argument) = slot.arguments.get_mut(usize::from(which)) {
                    *argument = Some(place);
                }
            }
        }
        true
    }

    /// A load from the argument aperture: the second half of a SHRIMP command. Reads as 1 if the copy was started,
    /// which ends in slot 63 of the context whose import the destination is.
    pub(crate) fn command_load(&mut self, offset: u64) -> Option<u64> {
        if self.ctx.config.launching != Launching::CommandPages {
            return None;
        }
        let address = self.ctx.config.window.decode(offset);
        if address.aperture != Aperture::Argument {
            return None;
        }
        let started = (|| {
            let (to, length) = self.launcher.variants.command.take()?;
            let number = self.requester.slot(&address)?;
            let (_, from) = self.place(number, address.slot(), address.within())?;
            let context = self.requester.open_import(to.import)?.context;
            let origin = Origin::Slot { context, slot: 63, cookie: 1 };
            self.start(origin, false, What::Copy, [Some(to), Some(from)], length, 0, 0).ok()
        })();
        Some(u64::from(started.is_some()))
    }
}
