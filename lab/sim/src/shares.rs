// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each node has completed when the first one has nothing more to issue: a moment that partitions which run at the
//! same time find afterwards.

use crate::agenda::Moment;
use telegraphos_wire::NodeId;

/// An operation of a node that has ended well: in which call, and its class.
pub(crate) type Completion = (Moment, NodeId, u8);

/// One partition's view, from the start of the operations until the moment is known.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    on: bool,
    /// Completions are kept, since those behind the moment must be subtracted.
    keeps: bool,
    first: Option<Moment>,
    completions: Vec<Completion>,
    pub(crate) call: Moment,
}

impl Watch {
    /// Begins, or ends.
    pub(crate) fn turn(&mut self, on: bool) {
        *self = Watch { on, ..Watch::default() };
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on
    }

    /// Calls are not made in the order of their moments from now on, or are.
    pub(crate) fn keep(&mut self, keeps: bool) {
        self.keeps = keeps && self.on;
    }

    /// A node has nothing more to issue after the present call.
    pub(crate) fn first(&mut self) {
        self.first = Some(self.first.map_or(self.call, |first| first.min(self.call)));
    }

    /// Whether there was such a call.
    pub(crate) fn has_found(&self) -> bool {
        self.first.is_some()
    }

    /// An operation has ended well.
    pub(crate) fn completed(&mut self, node: NodeId, class: usize) {
        if self.keeps {
            self.completions.push((self.call, node, class as u8));
        }
    }

    /// The first call after which a node had nothing more to issue, and the completions; the next begin anew.
    pub(crate) fn take(&mut self) -> (Option<Moment>, Vec<Completion>) {
        (self.first.take(), std::mem::take(&mut self.completions))
    }
}
