// SPDX-License-Identifier: MIT OR Apache-2.0
//! The launch registers of a slot, and the locations in them.

use super::Below;
use crate::requester::{Import, Requester};
use telegraphos_wire::{NodeId, RemoteAddr, Rights, Status, UNIT_SHIFT, WindowAddress};

/// A location in an import's segment, as named by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) import: u16,
    /// The opening of that import number: an old argument does not refer to a reopened import.
    pub(super) opening: u64,
    pub(super) offset: u64,
}

impl Location {
    /// The location of a window address, which is in an import, and the context of that. Bounds are checked at the
    /// launch, when the length is known.
    pub(super) fn of(requester: &Requester, number: u16, address: &WindowAddress) -> Option<(u16, Location)> {
        let import = requester.imports.get(number)?;
        let offset = u64::from(address.slot() - import.first_slot) << UNIT_SHIFT | u64::from(address.within());
        Some((import.context, Location { import: number, opening: import.opening, offset }))
    }

    /// The import, unless it has been closed since it was named.
    pub(super) fn open<'a>(&self, requester: &'a Requester) -> Result<&'a Import, Status> {
        let import = requester.imports.get(self.import).filter(|import| import.opening == self.opening);
        import.ok_or(Status::Argument)
    }

    /// Checks `length` bytes at the location for `right`, and returns the node and remote address of the first byte.
    pub(super) fn check(&self, below: &Below<'_>, length: u64, right: Rights) -> Result<(NodeId, RemoteAddr), Status> {
        let import = self.open(below.requester)?;
        if import.in_error {
            return Err(import.error.unwrap_or(Status::Cut));
        }
        if !import.rights.contains(right) {
            return Err(Status::Rights);
        }
        if self.offset.checked_add(length).is_none_or(|end| end > import.length) {
            return Err(Status::Bounds);
        }
        below.requester.peers.reachable(below.ctx, import.node)?;
        Ok((import.node, import.address(self.offset)))
    }
}

/// The launch registers of one slot.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct LaunchRegisters {
    pub(super) arguments: [Option<Location>; 2],
    pub(super) operand: u64,
    pub(super) compare: u64,
    pub(super) length: u64,
}

impl LaunchRegisters {
    /// The arguments as byte addresses: adds the low 3 bits, which an aligned store cannot pass, from LENGTH, and
    /// leaves the length there.
    pub(super) fn by_bytes(mut self) -> LaunchRegisters {
        for (location, shift) in self.arguments.iter_mut().zip([48, 52]) {
            if let Some(location) = location {
                location.offset += self.length >> shift & 7;
            }
        }
        self.length &= (1 << 48) - 1;
        self
    }
}
