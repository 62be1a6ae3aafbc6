// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arguments of launches: the argument aperture (Telegraphos II), and special mode (Telegraphos I). `hib` offers every
//! window access to the launcher first.

use super::registers::{LaunchRegisters, Location};
#[cfg(feature = "bugs")]
use super::variants::{Attribution, Variants};
use super::{Below, slot_number};
use crate::Bar;
use crate::access::WindowAccess;
use crate::config::KEY_ATTEMPTS;
use crate::requester::Requester;
use crate::table::Table;
use telegraphos_wire::context::{self, Argument, NumberedArgument};
use telegraphos_wire::window::Aperture;
use telegraphos_wire::{Status, regs};

/// The launch registers of all slots, and the special mode that fills them.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Arguments {
    /// By slot ([`slot_number`]).
    registers: Table<LaunchRegisters>,
    /// Special mode: context, slot, number of arguments passed so far.
    special: Option<(u16, u8, usize)>,
    #[cfg(feature = "bugs")]
    pub(crate) variants: Variants,
}

impl Arguments {
    /// The registers of a slot.
    pub(super) fn registers(&mut self, context: u16, slot: u8) -> &mut LaunchRegisters {
        self.registers.get_or_insert_with(slot_number(context, slot), LaunchRegisters::default)
    }

    /// Takes the arguments and operands of a slot for a launch.
    pub(super) fn take(&mut self, context: u16, slot: u8) -> LaunchRegisters {
        self.registers.remove(slot_number(context, slot)).unwrap_or_default()
    }

    /// Ends the special mode of the slots of a context that `ends` selects.
    pub(super) fn end_special(&mut self, context: u16, ends: impl Fn(u8) -> bool) {
        self.special.take_if(|(of, slot, _)| *of == context && ends(*slot));
    }

    /// Removes the registers of a closed context.
    pub(super) fn forget_context(&mut self, number: u16) {
        for slot in 0..context::SLOT_COUNT as u8 {
            self.take(number, slot);
        }
        self.end_special(number, |_| true);
    }

    /// Handles a store to the window if it is an argument or belongs to special mode. Returns false for an access to a
    /// segment.
    #[inline]
    pub(crate) fn try_store(&mut self, below: &mut Below<'_>, access: &WindowAccess, data: u64) -> bool {
        if access.address.aperture == Aperture::Argument {
            self.argument(below, access, data);
            return true;
        }
        self.special_access(below, access)
    }

    /// Handles a store to the argument aperture: checks context and key, and records the argument in its slot.
    fn argument(&mut self, below: &mut Below<'_>, access: &WindowAccess, data: u64) {
        let WindowAccess { offset, address, size } = *access;
        if size != 8 || offset % 8 != 0 {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::BadSize);
        }
        let Some(number) = below.requester.peers.slot(&address) else {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::Unmapped);
        };
        if let Some(import) = below.requester.imports.get_mut(number) {
            // It does not count as a store to its segment.
            import.active = true;
        }
        let Argument { context, slot, which, key } = Argument::decode(data);
        let Some((owner, location)) = Location::of(below.requester, number, &address) else { return };
        #[cfg(feature = "bugs")]
        match self.variants.argument(below.ctx.config.launching, location, data) {
            Attribution::ByKey => {}
            Attribution::Recorded => return,
            Attribution::To(context) => {
                if let Some(argument) = self.registers(context, slot).arguments.get_mut(usize::from(which)) {
                    *argument = Some(location);
                }
                return;
            }
        }
        let context = u16::from(context);
        let right_key = below.requester.contexts.table.get(context).is_some_and(|c| c.key == key);
        if !right_key || (owner != context && !below.ctx.has(crate::Bug::ForeignContext)) {
            return wrong_key(below, number, offset);
        }
        let Some(argument) = self.registers(context, slot).arguments.get_mut(usize::from(which)) else {
            return below.ctx.bad_access(Bar::Window, offset, size, Status::Argument);
        };
        *argument = Some(location);
    }

    /// Handles a store to ARGUMENT of a context: records an argument that names its import by number. The import must
    /// be of the context that owns the page, so that no key is needed.
    pub(super) fn numbered_argument(&mut self, below: &mut Below<'_>, context: u16, at: u64, data: u64) {
        let NumberedArgument { slot, which, import: number, offset } = NumberedArgument::decode(data);
        let own = |owner: u16| owner == context || below.ctx.has(crate::Bug::ForeignContext);
        let Some(import) = below.requester.imports.get(number).filter(|import| own(import.context)) else {
            return below.ctx.bad_access(Bar::Contexts, at, 8, Status::Argument);
        };
        let location = Location { import: number, opening: import.opening, offset };
        self.registers(context, slot).arguments[usize::from(which)] = Some(location);
    }

    // ---- special mode (Telegraphos I) ----

    /// Serves a store to SPECIAL: enters special mode for a slot, or leaves it.
    pub(crate) fn set_special(&mut self, requester: &Requester, value: u64) {
        if let Some((context, slot, _)) = self.special.take() {
            // Special mode ends without a launch: drop its arguments.
            self.take(context, slot);
        }
        let (context, slot) = ((value >> 8) as u16, value as u8 & 63);
        if value & regs::SPECIAL_ENTER != 0 && requester.contexts.table.contains(context) {
            self.take(context, slot);
            self.special = Some((context, slot, 0));
        }
    }

    /// The value of SPECIAL.
    pub(crate) fn special(&self) -> u64 {
        self.special.map_or(0, |(context, slot, _)| regs::SPECIAL_ENTER | u64::from(context) << 8 | u64::from(slot))
    }

    /// In special mode, takes an access to the plain window as the next argument. Returns whether it did.
    #[inline]
    pub(super) fn special_access(&mut self, below: &mut Below<'_>, access: &WindowAccess) -> bool {
        self.special.is_some_and(|special| self.next_argument(below, access, special))
    }

    /// The same where special mode is on: for which slot, and how many arguments it has.
    fn next_argument(
        &mut self,
        below: &mut Below<'_>,
        access: &WindowAccess,
        (context, slot, count): (u16, u8, usize),
    ) -> bool {
        let WindowAccess { offset, address, size } = *access;
        if address.aperture != Aperture::Plain {
            return false;
        }
        let location = below.requester.peers.slot(&address).and_then(|n| Location::of(below.requester, n, &address));
        match (location, self.registers(context, slot).arguments.get_mut(count)) {
            (Some((owner, location)), Some(argument)) if owner == context => {
                *argument = Some(location);
                self.special = Some((context, slot, count + 1));
            }
            _ => below.ctx.bad_access(Bar::Window, offset, size, Status::Argument),
        }
        true
    }
}

/// Counts an argument with a wrong key or for another process's context; it has no other effect. Too many of them fail
/// the import permanently, so that a process cannot guess keys.
fn wrong_key(below: &mut Below<'_>, number: u16, offset: u64) {
    below.ctx.counters.bad_keys += 1;
    below.ctx.bad_access(Bar::Window, offset, 8, Status::BadKey);
    let Some(import) = below.requester.imports.get_mut(number) else { return };
    import.bad_keys += 1;
    if import.bad_keys >= KEY_ATTEMPTS && !import.dead {
        below.requester.kill_import(below.ctx, number, Status::BadKey);
    }
}
