// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is made to go wrong with links and trunks, named `node:3` and `trunk:left-middle`, `*` for all; and what is
//! captured of them.
//!
//! Trunks have a place for faults from the start (below RDP and QUIC, where those carry them). The link of a node gets
//! one when it is to have its first fault: until then nothing is between its socket and the switch.

use log::{debug, info, warn};
use telegraphos_capture::{CaptureError, CaptureOptions};
use telegraphos_fabric_core::PortId;
use telegraphos_transport::faults::{self, FaultPlan, FaultyTransport, LinkFaults, Schedule, UnknownLink};
use telegraphos_wire::NodeId;

use super::capturing::Capturing;
use super::config::{FabricError, system};
use super::connection::{Place, Role};
use super::names::link_name;
use super::ports::Ports;
use super::switches::Switches;
use super::trunks::Trunks;
use super::watch::{READ, Source};
use crate::control::FaultSpec;

#[derive(Debug)]
pub(super) struct Faults {
    /// Those of each link and trunk.
    pub(super) links: faults::Faults,
    pub(super) schedule: Schedule,
    pub(super) capturing: Option<Capturing>,
    /// How often faults were set, or a capture has begun or ended.
    pub(super) changes: u64,
    /// Some were set that may have no place yet.
    pub(super) unplaced: bool,
}

impl Faults {
    /// No faults, until the schedule says otherwise.
    pub(super) fn new(seed: u64, schedule: Schedule) -> Faults {
        Faults { links: faults::Faults::new(seed), schedule, capturing: None, changes: 0, unplaced: false }
    }

    /// The faults of a link or trunk, by its name.
    pub(super) fn of(&self, name: &str) -> FaultSpec {
        FaultSpec(self.links.find(name).map(|link| link.plan()).unwrap_or_default())
    }

    /// Whether something is wrong with the link of one of these nodes, or everything is captured: then nothing may pass
    /// beside the links.
    pub(super) fn observes(&self, nodes: &[NodeId]) -> bool {
        let faulty = |node: &NodeId| !self.of(&link_name(*node)).is_none();
        self.capturing.is_some() || nodes.iter().any(faulty)
    }

    /// Changes what is wrong with a link or trunk.
    pub(super) fn set(&mut self, name: &str, plan: FaultPlan) -> Result<(), UnknownLink> {
        self.links.set(name, plan)?;
        self.unplaced = true;
        Ok(())
    }

    /// The same by a name that is known.
    pub(super) fn change(&mut self, name: &str, plan: FaultPlan) {
        self.links.link(name).set(plan);
        self.unplaced = true;
    }

    /// Performs the steps of the schedule that are due.
    pub(super) fn run_schedule(&mut self, now: u64) {
        if self.schedule.deadline().is_none_or(|at| at > now) {
            return;
        }
        let (done, unknown) = self.schedule.apply(now, &self.links);
        for change in done {
            info!("as scheduled: {}: {}", change.links.join(", "), change.plan);
        }
        for e in unknown {
            warn!("scheduled faults: {e}");
        }
        self.unplaced = true;
    }

    /// Gives a link that is to have faults a place for them. A link that cannot have one is gone: without faults it
    /// must not run. Returns what it held then.
    pub(super) fn place(&self, ports: &mut Ports, port: PortId, node: NodeId) -> Option<Place> {
        let link = self.links.find(&link_name(node)).filter(|link| link.plan() != FaultPlan::default())?;
        let connection = ports.get(port).filter(|c| !c.faulty && !matches!(c.role, Role::Trunk(_)))?;
        let place = connection.place();
        let e = wrap(ports, port, link).err()?;
        ports.complain(format_args!("node {node}: no place for its faults: {e}; its link is ended"));
        // The connection went with its transport.
        Some(place)
    }

    // ---- captures ----

    /// Begins a capture; an earlier one ends.
    pub(super) fn start_capture(
        &mut self,
        options: CaptureOptions,
        ports: &Ports,
        switches: &Switches,
        trunks: &Trunks,
        late: bool,
    ) -> Result<(), CaptureError> {
        self.stop_capture(ports.now);
        self.capturing = Some(Capturing::begin(options, ports, switches, trunks, &self.links, late)?);
        self.changes += 1;
        Ok(())
    }

    /// Ends the capture, if there is one.
    pub(super) fn stop_capture(&mut self, now: u64) {
        if let Some(capturing) = self.capturing.take() {
            self.changes += 1;
            capturing.end(&self.links, now);
        }
    }

    /// Nothing passes beside the links any more.
    pub(super) fn rings_withdrawn(&mut self, now: u64) {
        if let Some(capturing) = &mut self.capturing {
            capturing.rings_withdrawn(now);
        }
    }
}

fn wrap(ports: &mut Ports, port: PortId, link: LinkFaults) -> Result<(), FabricError> {
    let Some(mut connection) = ports.take(port) else { return Ok(()) };
    ports.watch.remove(connection.transport.fd()).map_err(system("stop watching a descriptor"))?;
    // What was queued before has no faults.
    if let Err(e) = connection.flush(ports.now) {
        debug!("port {port}: {e}");
    }
    connection.as_bytes();
    let transport = FaultyTransport::new(connection.transport, link).map_err(|e| FabricError::System {
        what: "make a place for faults",
        errno: rustix::io::Errno::from_io_error(&e).unwrap_or(rustix::io::Errno::IO),
    })?;
    connection.transport = Box::new(transport);
    (connection.faulty, connection.watched) = (true, false);
    let place = Source::Port(port).place();
    ports.watch.add(connection.transport.fd(), place, READ).map_err(system("watch a descriptor"))?;
    ports.put(port, connection);
    Ok(())
}
