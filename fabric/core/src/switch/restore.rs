// SPDX-License-Identifier: MIT OR Apache-2.0
//! A switch as it is between two events, to be continued elsewhere: what a capture begins with that begins amid
//! traffic.

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::routes::Routes;
use super::state::State;

/// What a switch of the same configuration needs to continue: the protocol state, and when things were seen. Counters
/// are not in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub(super) state: State,
    pub(super) clock: Clock,
}

impl Snapshot {
    /// Whether a switch that was just made can have had it.
    ///
    /// # Errors
    /// What is wrong.
    pub(super) fn check(&self, state: &State, clock: &Clock, routes: &Routes) -> Result<(), String> {
        let ports = state.neighbours.len();
        let same = self.state.neighbours.len() == ports
            && self.state.presence.len() == state.presence.len()
            && self.state.epochs.len() == state.epochs.len()
            && self.clock.is_of(clock);
        if !same {
            return Err(format!("the state is that of a switch of another size: expected {ports} nodes and trunks"));
        }
        for (index, attached) in routes.attached().enumerate() {
            let kind = routes.kind_of(attached);
            if self.state.neighbours.get(index).is_some_and(|neighbour| !neighbour.is_sound(kind, ports)) {
                return Err(format!("the state of {kind:?} is none that it can have"));
            }
        }
        Ok(())
    }
}
