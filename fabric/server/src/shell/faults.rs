// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is made to go wrong with links and trunks: named `node:3` and `trunk:left-middle`, `*` for all.
//!
//! Trunks have a place for faults from the start (below RDP and QUIC, where those carry them). The link of a node gets
//! one when it is to have its first fault: until then nothing is between its socket and the switch.

use log::{debug, info, warn};
use telegraphos_capture::Link;
use telegraphos_fabric_core::{Attached, PortId};
use telegraphos_topology::SwitchId;
use telegraphos_transport::faults::{FaultPlan, FaultyTransport, LinkFaults, UnknownLink};
use telegraphos_wire::NodeId;

use super::Fabric;
use super::config::{FabricError, system};
use super::connection::Role;
use super::watch::Source;

/// The name of a node's link.
pub(super) fn link_name(node: NodeId) -> String {
    format!("node:{node}")
}

/// The name of a trunk, by those of its switches, the first in the topology first.
pub(super) fn trunk_name(name: &str) -> String {
    format!("trunk:{name}")
}

impl Fabric {
    /// Every link and trunk end of this process, whether it is up or not: its name, its switch, and what a capture
    /// calls it.
    pub(super) fn named_links(&self) -> impl Iterator<Item = (String, SwitchId, Link)> + '_ {
        self.switches.iter().flat_map(|hosted| {
            hosted.switch.statistics().ports.iter().filter_map(|port| match port.attached {
                Attached::Node(node) => Some((link_name(node), hosted.id, Link::Node(node))),
                Attached::Trunk(trunk, to) => {
                    let end = self.trunks.iter().find(|end| end.trunk == trunk)?;
                    Some((trunk_name(&end.name), hosted.id, Link::Trunk(hosted.id, to)))
                }
            })
        })
    }

    /// Registers all of them, so that faults can be set by name.
    pub(super) fn name_links(&self) {
        for (name, ..) in self.named_links() {
            self.faults.link(&name);
        }
    }

    /// Whether something is wrong with the link of one of these nodes, or everything is captured: then nothing may pass
    /// beside the links.
    pub(super) fn observes(&self, nodes: &[NodeId]) -> bool {
        let faulty = |node: &NodeId| self.faults_of(&link_name(*node)).0 != FaultPlan::default();
        self.capturing.is_some() || nodes.iter().any(faulty)
    }

    /// Changes what is wrong with a link or trunk.
    pub(super) fn set_faults(&mut self, name: &str, plan: FaultPlan) -> Result<(), UnknownLink> {
        self.faults.set(name, plan)?;
        self.place_faults();
        Ok(())
    }

    /// Performs the steps of the schedule that are due.
    pub(super) fn run_schedule(&mut self) {
        if self.schedule.deadline().is_none_or(|at| at > self.now) {
            return;
        }
        let (done, unknown) = self.schedule.apply(self.now, &self.faults);
        for change in done {
            info!("as scheduled: {}: {}", change.links.join(", "), change.plan);
        }
        for e in unknown {
            warn!("scheduled faults: {e}");
        }
        self.place_faults();
    }

    /// Gives the links that are to have faults a place for them.
    pub(super) fn place_faults(&mut self) {
        self.observations_changed();
        // The withdrawal of rings goes before the faults.
        self.tend_rings();
        // What they held back may be due at another time, or at once.
        (0..self.connections.len()).for_each(|port| self.touch(port as PortId));
        for hosted in 0..self.switches.len() {
            let ports: Vec<(PortId, NodeId)> = self.switches[hosted]
                .switch
                .open_ports()
                .filter_map(|(attached, port, _)| match attached {
                    Attached::Node(node) => Some((port, node)),
                    Attached::Trunk(..) => None,
                })
                .collect();
            for (port, node) in ports {
                self.place_faults_of(port, node);
            }
        }
    }

    /// The same for one link. A link that cannot be wrapped is ended: without faults it must not run.
    pub(super) fn place_faults_of(&mut self, port: PortId, node: NodeId) {
        let Some(link) = self.faults.find(&link_name(node)).filter(|link| link.plan() != FaultPlan::default()) else {
            return;
        };
        let Some(connection) = self.connections.get(port as usize).and_then(Option::as_ref) else { return };
        if connection.faulty || matches!(connection.role, Role::Trunk(_)) {
            return;
        }
        let place = connection.place();
        if let Err(e) = self.wrap(port, link) {
            self.complain(format_args!("node {node}: no place for its faults: {e}; its link is ended"));
            // The connection went with its transport.
            self.vacate(port, place);
        }
    }

    fn wrap(&mut self, port: PortId, link: LinkFaults) -> Result<(), FabricError> {
        let Some(mut connection) = self.connections.get_mut(port as usize).and_then(Option::take) else {
            return Ok(());
        };
        self.watch.remove(connection.transport.fd()).map_err(system("stop watching a descriptor"))?;
        // What was queued before has no faults.
        if let Err(e) = connection.flush(self.now) {
            debug!("port {port}: {e}");
        }
        connection.as_bytes();
        let transport = FaultyTransport::new(connection.transport, link).map_err(|e| FabricError::System {
            what: "make a place for faults",
            errno: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
        })?;
        connection.transport = Box::new(transport);
        (connection.faulty, connection.watched) = (true, false);
        self.watch.add(connection.transport.fd(), Source::Port(port)).map_err(system("watch a descriptor"))?;
        self.connections[port as usize] = Some(connection);
        self.touch(port);
        Ok(())
    }
}
