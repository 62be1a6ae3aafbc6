// SPDX-License-Identifier: MIT OR Apache-2.0
//! Round-robin order of the copies to or from one node.

use crate::kept::Kept;
use crate::keyed::Key;
use std::collections::VecDeque;

/// Operations in round-robin order of their contexts: a context with many operations gets no more turns than one with
/// few.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Turns {
    /// The contexts that have operations, and these; the next one first.
    contexts: VecDeque<(u16, VecDeque<Key>)>,
    /// The memory of contexts that had their last operation taken: a copy comes and goes with each block.
    empty: Kept<VecDeque<Key>>,
}

impl Turns {
    /// Appends an operation behind those of its context.
    pub(super) fn push(&mut self, context: u16, operation: Key) {
        if let Some((_, operations)) = self.contexts.iter_mut().find(|(of, _)| *of == context) {
            return operations.push_back(operation);
        }
        let mut operations = self.empty.take().unwrap_or_default();
        operations.push_back(operation);
        self.contexts.push_back((context, operations));
    }

    /// Takes the next operation: the first of the context whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let (context, mut operations) = self.contexts.pop_front()?;
        let operation = operations.pop_front();
        if operations.is_empty() {
            self.empty.put(operations);
        } else {
            self.contexts.push_back((context, operations));
        }
        operation
    }

    /// Returns whether no operation waits.
    pub(super) fn is_empty(&self) -> bool {
        self.contexts.is_empty()
    }
}

/// The copies to or from one node.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Destination {
    /// Copies with blocks left to start.
    pub(super) copies: Turns,
    /// Blocks in flight.
    pub(super) blocks: u32,
}
