// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of launches: the argument aperture (Telegraphos II), and special mode (Telegraphos I). `hib` offers every
//! window access to the launcher first.

use super::{Below, LaunchRegisters, Launcher, Location, slot_number};
use crate::Bar;
use crate::config::KEY_ATTEMPTS;
use crate::requester::Requester;
use telegraphos_wire::context::{Argument, NumberedArgument};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Status, UNIT_SHIFT, regs};

impl Launcher {
    /// Handles a store to the window if it is an argument or belongs to special mode. Returns false for an access to a
    /// segment.
    pub(crate) fn try_store(&mut self, below: &mut Below<'_>, offset: u64, size: u32, data: u64) -> bool {
        if below.ctx.config.window.decode(offset).aperture == Aperture::Argument {
            self.argument(below, offset, size, data);
            return true;
        }
        self.special_access(below, offset, size)
    }

    /// Handles a load from the window if it belongs to a launch style, and returns its value. `None` for an access to a
    /// segment.
    pub(crate) fn try_load(&mut self, below: &mut Below<'_>, offset: u64, size: u32) -> Option<u64> {
        if self.special_access(below, offset, size) {
            return Some(0);
        }
        #[cfg(feature = "bugs")]
        return self.command_load(below, offset);
        #[cfg(not(feature = "bugs"))]
        None
    }

    /// Handles a store to the argument aperture: checks context and key, and records the argument in its slot.
    fn argument(&mut self, below: &mut Below<'_>, offset: u64, size: u32, data: u64) {
        let address = below.ctx.config.window.decode(offset);
        if size != 8 || offset % 8 != 0 {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::BadSize);
        }
        let Some(number) = below.requester.slot(&address) else {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::Unmapped);
        };
        below.requester.mark_active(number);
        let Argument { context, slot, which, key } = Argument::decode(data);
        let Some((owner, location)) = self.locate(below, number, address.slot(), address.within()) else { return };
        #[cfg(feature = "bugs")]
        if self.variant_argument(below.ctx, location, slot, which, data) {
            return;
        }
        let context = u16::from(context);
        let right_key = below.requester.contexts.get(context).is_some_and(|c| c.key == key);
        if !right_key || (owner != context && !below.ctx.has(crate::Bug::ForeignContext)) {
            return self.wrong_key(below, number, offset);
        }
        let Some(argument) = self
            .registers
            .get_or_insert_with(slot_number(context, slot), LaunchRegisters::default)
            .arguments
            .get_mut(usize::from(which))
        else {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::Argument);
        };
        *argument = Some(location);
    }

    /// Handles a store to ARGUMENT of a context: records an argument that names its import by number. The import must
    /// be of the context that owns the page, so that no key is needed.
    pub(super) fn numbered_argument(&mut self, below: &mut Below<'_>, context: u16, at: u64, data: u64) {
        let NumberedArgument { slot, which, import: number, offset } = NumberedArgument::decode(data);
        let own = |owner: u16| owner == context || below.ctx.has(crate::Bug::ForeignContext);
        let Some(import) = below.requester.open_import(number).filter(|import| own(import.context)) else {
            return below.ctx.bad_access(Bar::Contexts, at, 8, Status::Argument);
        };
        let location = Location { import: number, opening: import.opening, offset };
        let registers = self.registers.get_or_insert_with(slot_number(context, slot), LaunchRegisters::default);
        registers.arguments[usize::from(which)] = Some(location);
    }

    /// The context of an import, and the location of an address in it. Bounds are checked at the launch, when the
    /// length is known.
    pub(super) fn locate(&self, below: &Below<'_>, number: u16, slot: u32, within: u32) -> Option<(u16, Location)> {
        let import = below.requester.open_import(number)?;
        let offset = u64::from(slot - import.first_slot) << UNIT_SHIFT | u64::from(within);
        Some((import.context, Location { import: number, opening: import.opening, offset }))
    }

    /// Counts an argument with a wrong key or for another process's context; it has no other effect. Too many of them
    /// fail the import permanently, so that a process cannot guess keys.
    fn wrong_key(&mut self, below: &mut Below<'_>, number: u16, offset: u64) {
        below.ctx.counters.bad_keys += 1;
        below.ctx.bad_access(Bar::Window, offset, 8, Status::BadKey);
        let Some(import) = below.requester.import(number) else { return };
        import.bad_keys += 1;
        if import.bad_keys >= KEY_ATTEMPTS && !import.dead {
            below.requester.kill_import(below.ctx, number, Status::BadKey);
        }
    }

    // ---- special mode (Telegraphos I) ----

    /// Serves a store to SPECIAL: enters special mode for a slot, or leaves it.
    pub(crate) fn set_special(&mut self, requester: &Requester, value: u64) {
        if let Some((context, slot, _)) = self.special.take() {
            // Special mode ends without a launch: drop its arguments.
            self.registers.remove(slot_number(context, slot));
        }
        let (context, slot) = ((value >> 8) as u16, value as u8 & 63);
        if value & regs::SPECIAL_ENTER != 0 && requester.contexts.contains(context) {
            self.registers.remove(slot_number(context, slot));
            self.special = Some((context, slot, 0));
        }
    }

    /// The value of SPECIAL.
    pub(crate) fn special(&self) -> u64 {
        self.special.map_or(0, |(context, slot, _)| regs::SPECIAL_ENTER | u64::from(context) << 8 | u64::from(slot))
    }

    /// In special mode, takes an access to the plain window as the next argument. Returns whether it did.
    fn special_access(&mut self, below: &mut Below<'_>, offset: u64, size: u32) -> bool {
        let Some((context, slot, count)) = self.special else { return false };
        let address = below.ctx.config.window.decode(offset);
        if address.aperture != Aperture::Plain {
            return false;
        }
        let location =
            below.requester.slot(&address).and_then(|n| self.locate(below, n, address.slot(), address.within()));
        let registers = self.registers.get_or_insert_with(slot_number(context, slot), LaunchRegisters::default);
        match (location, registers.arguments.get_mut(count)) {
            (Some((owner, location)), Some(argument)) if owner == context => {
                *argument = Some(location);
                self.special = Some((context, slot, count + 1));
            }
            _ => below.ctx.bad_access(Bar::Window, offset, size, Status::Argument),
        }
        true
    }
}
