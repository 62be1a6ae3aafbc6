// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other launch styles that the paper compares (SPEC items 20 and 21). Each needs an operating system that acts at
//! every context switch. For tests only; no shipped board has them.

use super::Below;
use super::operations::Origin;
use super::registers::{LaunchRegisters, Location};
use crate::Launching;
use telegraphos_wire::WindowAddress;
use telegraphos_wire::window::Aperture;

/// The context that a launch argument belongs to.
pub(super) enum Attribution {
    /// The one that it names, with its key.
    ByKey,
    /// This one.
    To(u16),
    /// None: it is half of a command, and recorded.
    Recorded,
}

/// State of the other launch styles.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct Variants {
    /// The value of the PROCESS register.
    pub(crate) process: u16,
    /// The first half of a command: destination and length.
    command: Option<(Location, u64)>,
}

impl Variants {
    /// Serves a store to PROCESS, which also discards a half-issued command.
    pub(crate) fn run(&mut self, process: u16) {
        *self = Variants { process, command: None };
    }

    /// Attributes an argument in the style of the configuration.
    pub(super) fn argument(&mut self, launching: Launching, location: Location, data: u64) -> Attribution {
        match launching {
            Launching::Keys => Attribution::ByKey,
            Launching::CommandPages => {
                self.command = Some((location, data));
                Attribution::Recorded
            }
            // The argument is attributed to the context in PROCESS; the import may belong to any context.
            Launching::ProcessRegister => Attribution::To(self.process),
        }
    }

    /// A load from the argument aperture: the second half of a SHRIMP command. Returns the copy to start, if it is
    /// complete, which completes in slot 63 of the context of the destination's import.
    pub(super) fn command_load(
        &mut self,
        below: &Below<'_>,
        address: &WindowAddress,
    ) -> Option<Option<(Origin, LaunchRegisters)>> {
        let launching = below.ctx.config.launching;
        if launching != Launching::CommandPages || address.aperture != Aperture::Argument {
            return None;
        }
        let mut command = || {
            let (to, length) = self.command.take()?;
            let number = below.requester.peers.slot(address)?;
            let (_, from) = Location::of(below.requester, number, address)?;
            let context = below.requester.imports.get(to.import)?.context;
            let origin = Origin::Slot { context, slot: 63, cookie: 1 };
            Some((origin, LaunchRegisters { arguments: [Some(to), Some(from)], length, ..LaunchRegisters::default() }))
        };
        Some(command())
    }
}
