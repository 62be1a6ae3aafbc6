// SPDX-License-Identifier: MIT OR Apache-2.0
//! A switch as it is between two events, to be continued elsewhere: what a capture begins with that begins amid
//! traffic.

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::{State, Switch};
use crate::neighbour::Kind;
use crate::{Attached, SwitchConfig};

/// What a switch of the same configuration needs to continue: the protocol state, and when things were seen. Counters
/// are not in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    state: State,
    clock: Clock,
}

impl Switch {
    /// The switch as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.state.clone(), clock: self.clock.clone() }
    }

    /// A switch that continues where another of this configuration was. Its counters begin with 0.
    ///
    /// # Errors
    /// What is wrong: the configuration, or a snapshot that no switch of it can have had.
    pub fn restore(config: SwitchConfig, snapshot: Snapshot) -> Result<Switch, String> {
        // With a deliberate bug it would contradict itself at once; here another one is to be found.
        let sound = SwitchConfig {
            #[cfg(feature = "bugs")]
            bug: None,
            ..config.clone()
        };
        let mut switch = Switch::new(sound).map_err(|e| e.to_string())?;
        let Snapshot { state, clock } = snapshot;
        let ports = switch.state.neighbours.len();
        let same = state.neighbours.len() == ports
            && state.presence.len() == switch.state.presence.len()
            && state.epochs.len() == switch.state.epochs.len()
            && clock.is_of(&switch.clock);
        if !same {
            return Err(format!("the state is that of a switch of another size: expected {ports} nodes and trunks"));
        }
        let layers = switch.config.part.as_ref().map_or(1, |part| part.topology.layers());
        for (index, neighbour) in state.neighbours.iter().enumerate() {
            let kind = match switch.attached(index) {
                Some(Attached::Node(node)) => Kind::Node(node),
                Some(Attached::Trunk(trunk, _)) => Kind::Trunk { trunk, layers },
                None => continue,
            };
            if neighbour.as_ref().is_some_and(|neighbour| !neighbour.is_sound(kind, ports)) {
                return Err(format!("the state of {kind:?} is none that it can have"));
            }
        }
        (switch.state, switch.clock) = (state, clock);
        switch.audit().map_err(|e| format!("the state contradicts itself: {e}"))?;
        switch.config = config;
        Ok(switch)
    }
}
