// SPDX-License-Identifier: MIT OR Apache-2.0
//! The switches of this process.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use telegraphos_fabric_core::{Attached, Part, PortId, Switch};
use telegraphos_topology::{SwitchId, Topology};
use telegraphos_wire::NodeId;
use telegraphos_wire::link::incarnation_at;

use super::config::{Config, FabricError};

/// One switch of this process.
#[derive(Debug)]
pub(super) struct Hosted {
    pub(super) id: SwitchId,
    /// Empty if it is alone.
    pub(super) name: String,
    pub(super) switch: Switch,
}

/// All of them, known by their index.
#[derive(Debug)]
pub(super) struct Switches(pub(super) Vec<Hosted>);

impl Switches {
    /// Those of the process that the configuration names.
    pub(super) fn of(config: &Config, topology: Option<&Arc<Topology>>) -> Result<Switches, FabricError> {
        // From the time of day, so that a restarted fabric uses no incarnation twice.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let incarnation = incarnation_at(now);
        let hosted = |id: SwitchId, name: String, part: Option<Part>| {
            let mut config = config.switch();
            config.part = part;
            config.base_incarnation = incarnation;
            Ok(Hosted { id, name, switch: Switch::new(config)? })
        };
        let (Some(plan), Some(topology)) = (&config.plan, topology) else {
            return Ok(Switches(vec![hosted(0, String::new(), None)?]));
        };
        let process = match (&config.process, plan.processes()) {
            (Some(process), known) if known.contains(process) => process,
            (None, [only]) => only,
            (process, known) => {
                return Err(FabricError::Process { process: process.clone(), known: known.to_vec() });
            }
        };
        let part = |switch| Some(Part { topology: topology.clone(), switch });
        let all = plan.switches_of(process).map(|switch| hosted(switch, topology.name(switch), part(switch)));
        all.collect::<Result<_, _>>().map(Switches)
    }

    /// The index of a switch that is here.
    pub(super) fn index_of(&self, id: SwitchId) -> Option<usize> {
        self.0.iter().position(|hosted| hosted.id == id)
    }

    /// The port of a node that has joined.
    pub(super) fn port_of(&self, node: NodeId) -> Option<PortId> {
        self.nodes().find(|(_, joined)| *joined == node).map(|(port, _)| port)
    }

    /// The ports of nodes that have joined.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (PortId, NodeId)> + '_ {
        self.open().filter_map(|(attached, port)| match attached {
            Attached::Node(node) => Some((port, node)),
            Attached::Trunk(..) => None,
        })
    }

    /// The ports of trunks that have joined.
    pub(super) fn trunks(&self) -> impl Iterator<Item = PortId> + '_ {
        self.open().filter(|(attached, _)| matches!(attached, Attached::Trunk(..))).map(|(_, port)| port)
    }

    fn open(&self) -> impl Iterator<Item = (Attached, PortId)> + '_ {
        self.0.iter().flat_map(|hosted| hosted.switch.open_ports()).map(|(attached, port, _)| (attached, port))
    }
}
