// SPDX-License-Identifier: MIT OR Apache-2.0
//! The world around a node.

use crate::agenda::Agenda;
use crate::pipe::Pipe;
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
    pub(crate) statistics: &'a mut Statistics,
    pub(crate) watch: &'a mut Watch,
    /// Where to write what happens, if anybody wants to know.
    pub(crate) trace: Option<&'a mut Trace>,
    /// From this node to its switch.
    pub(crate) up: &'a mut Pipe,
    /// Buffer for the actions of the board, empty between calls.
    pub(crate) actions: Vec<Action>,
}
