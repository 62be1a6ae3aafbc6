// SPDX-License-Identifier: MIT OR Apache-2.0
//! The unfinished operations, which are found by name, by the slot that launched them, and by context.

use super::copies::BlockCopy;
use super::registers::Location;
use super::slot_number;
use crate::Token;
use crate::keyed::{Key, Keyed};
use crate::requester::Requester;
use crate::table::Table;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use telegraphos_wire::{ImportEpoch, NodeId, Status};

/// The origin of an operation, which its completion goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Origin {
    Slot {
        context: u16,
        slot: u8,
        cookie: u64,
    },
    Admin {
        context: u16,
        slot: u32,
    },
    /// A load of FETCH. `token` is `None` after the load has been completed at its deadline.
    Load {
        context: u16,
        slot: u8,
        size: u8,
        token: Option<Token>,
        deadline: u64,
    },
}

impl Origin {
    /// The context that the operation is charged to.
    pub(super) fn context(&self) -> u16 {
        match *self {
            Origin::Slot { context, .. } | Origin::Admin { context, .. } | Origin::Load { context, .. } => context,
        }
    }
}

#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum Kind {
    Atomic { value: u64 },
    Copy(BlockCopy),
    Gate,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct Operation {
    pub(super) origin: Origin,
    pub(super) notify: bool,
    pub(super) node: NodeId,
    pub(super) imports: [Option<u16>; 2],
    /// Epoch of the first import when the operation was launched.
    pub(super) epoch: ImportEpoch,
    pub(super) kind: Kind,
    /// Blocks in flight, or 1 for the request of an atomic, or a gate.
    pub(super) parts: u32,
    /// The first error, and the import that it concerns.
    pub(super) status: Status,
    pub(super) failed_import: Option<u16>,
}

impl Operation {
    /// An operation at a location of `node`, with no part in flight and no error.
    pub(super) fn new(
        requester: &Requester,
        origin: Origin,
        notify: bool,
        node: NodeId,
        at: &Location,
        kind: Kind,
    ) -> Operation {
        let (imports, epoch) = ([Some(at.import), None], requester.imports.epoch_of(at.import));
        Operation { origin, notify, node, imports, epoch, kind, parts: 0, status: Status::Ok, failed_import: None }
    }

    /// Records an error, unless there is one.
    pub(super) fn fail(&mut self, status: Status, import: Option<u16>) {
        if self.status == Status::Ok && status != Status::Ok {
            (self.status, self.failed_import) = (status, import);
        }
    }
}

/// The unfinished operations by the context of their imports, ascending. An empty list keeps its memory until its
/// context is closed; it is not part of the state.
#[derive(Clone, Default)]
struct ByContext(Table<Vec<Key>>);

impl ByContext {
    fn state(&self) -> impl Iterator<Item = (u32, &Vec<Key>)> {
        self.0.iter().filter(|(_, operations)| !operations.is_empty())
    }
}

impl Hash for ByContext {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.state().for_each(|entry| entry.hash(state));
    }
}

impl fmt::Debug for ByContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.state()).finish()
    }
}

/// The unfinished operations of the board.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Operations {
    pub(super) table: Keyed<Operation>,
    by_context: ByContext,
    /// The unfinished operation of each slot ([`slot_number`]).
    slots: Table<Key>,
    /// Loads of FETCH that are not complete: deadline and operation, both ascending, since all have the same limit.
    pub(super) fetches: VecDeque<(u64, Key)>,
}

impl Operations {
    /// No operations; numbers are not reused.
    pub(super) fn emptied(&self) -> Operations {
        Operations { table: self.table.emptied(), ..Operations::default() }
    }

    /// Adds an operation and returns its name.
    pub(super) fn begin(&mut self, requester: &mut Requester, operation: Operation) -> Key {
        let (origin, imports) = (operation.origin, operation.imports);
        let number = self.table.insert(operation);
        if let Origin::Slot { context, slot, .. } | Origin::Load { context, slot, .. } = origin {
            self.slots.insert(slot_number(context, slot), number);
        }
        if let Origin::Load { deadline, .. } = origin {
            self.fetches.push_back((deadline, number));
        }
        for import in imports.into_iter().flatten() {
            if let Some(import) = requester.imports.get_mut(import) {
                import.operations += 1;
                let operations = self.by_context.0.get_or_insert_with(import.context, Vec::new);
                // Both imports may belong to the same context.
                if operations.last() != Some(&number) {
                    operations.push(number);
                }
            }
        }
        number
    }

    /// The unfinished operation of a slot.
    pub(super) fn of_slot(&self, context: u16, slot: u8) -> Option<Key> {
        self.slots.get(slot_number(context, slot)).copied()
    }

    /// Frees the slot of an operation.
    pub(super) fn leave_slot(&mut self, context: u16, slot: u8) {
        self.slots.remove(slot_number(context, slot));
    }

    /// The load that launched an operation is complete: removes its deadline, and frees its slot.
    pub(super) fn end_fetch(&mut self, number: Key, deadline: u64, context: u16, slot: u8) {
        if let Ok(at) = self.fetches.binary_search(&(deadline, number)) {
            self.fetches.remove(at);
        }
        self.leave_slot(context, slot);
    }

    /// Removes a closed context, which has no operations.
    pub(super) fn forget_context(&mut self, number: u16) {
        self.by_context.0.remove(number);
    }

    /// Removes a finished operation from those of a context.
    pub(super) fn leave_context(&mut self, context: u16, number: Key) {
        if let Some(operations) = self.by_context.0.get_mut(context) {
            if let Ok(at) = operations.binary_search(&number) {
                operations.remove(at);
            }
        }
    }

    /// The unfinished operations of a context that use an import for which `selects` is true, ascending.
    pub(super) fn using(&self, context: u16, selects: impl Fn(u16) -> bool) -> Vec<Key> {
        let uses = |number: &Key| {
            let operation = self.table.get(*number);
            operation.is_some_and(|operation| operation.imports.into_iter().flatten().any(&selects))
        };
        self.by_context.0.get(context).into_iter().flatten().copied().filter(uses).collect()
    }
}
