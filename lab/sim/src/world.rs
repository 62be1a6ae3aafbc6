// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world around a node.

use crate::agenda::{Agenda, CellId, Kind};
use crate::pipe::{Frames, Pipe};
use crate::plan::Plan;
use crate::shares::Watch;
use crate::statistics::Statistics;
use crate::trace::Trace;
use crate::units::Time;
use telegraphos_device_core::Action;

/// What a node reads and changes outside itself during one call.
pub(crate) struct World<'a> {
    pub(crate) now: Time,
    pub(crate) plan: &'a Plan,
    pub(crate) agenda: &'a mut Agenda,
    /// That of the node.
    pub(crate) cell: CellId,
    /// That of its switch.
    pub(crate) switch: CellId,
    pub(crate) statistics: &'a mut Statistics,
    pub(crate) watch: &'a mut Watch,
    /// Where to write what happens, if the run has a trace.
    pub(crate) trace: Option<&'a mut Trace>,
    /// From this node to its switch.
    pub(crate) up: &'a mut Pipe,
    /// Those in flight.
    pub(crate) frames: &'a mut Frames,
    /// Buffer for the actions of the board, empty between calls.
    pub(crate) actions: Vec<Action>,
}

impl World<'_> {
    /// Calls something of the node.
    pub(crate) fn call(&mut self, at: Time, kind: Kind, number: u32) {
        self.agenda.add(at, self.cell, kind, number);
    }
}
