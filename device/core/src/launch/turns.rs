// SPDX-License-Identifier: MIT OR Apache-2.0
//! Round-robin order of the copies to or from one node.

use crate::keyed::Key;
use std::collections::{BTreeMap, VecDeque};

/// Operations in round-robin order of their contexts: a context with many operations gets no more turns than one with
/// few.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Turns {
    contexts: VecDeque<u16>,
    operations: BTreeMap<u16, VecDeque<Key>>,
}

impl Turns {
    /// Appends an operation behind those of its context.
    pub(super) fn push(&mut self, context: u16, operation: Key) {
        let operations = self.operations.entry(context).or_default();
        if operations.is_empty() {
            self.contexts.push_back(context);
        }
        operations.push_back(operation);
    }

    /// Takes the next operation: the first of the context whose turn it is.
    pub(super) fn pop(&mut self) -> Option<Key> {
        let context = self.contexts.pop_front()?;
        let operations = self.operations.get_mut(&context)?;
        let operation = operations.pop_front();
        if operations.is_empty() {
            self.operations.remove(&context);
        } else {
            self.contexts.push_back(context);
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
