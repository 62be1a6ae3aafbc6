// SPDX-License-Identifier: MIT OR Apache-2.0

use telegraphos_topology::{Plan, Shape};
use telegraphos_transport::faults::Schedule;

/// Switches up to which a topology is checked: the check takes seconds for the largest.
const CHECKED: u16 = 40;

/// One text, read as each of the TOML files: a topology, settings of the three commands, a schedule of
/// faults.
///
/// A topology that is accepted has routes that do not block each other. No path that the text names is opened.
pub fn settings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(plan) = Plan::from_toml(text) {
        let topology = &plan.topology;
        if topology.switches() <= CHECKED {
            assert!(topology.check().is_ok(), "{:?}", topology.check());
        }
        for (trunk, _) in (0..).zip(topology.trunks()) {
            let _ = plan.address(trunk);
        }
        for process in plan.processes() {
            assert!(plan.switches_of(process).next().is_some(), "a process without a switch: {process}");
        }
    }
    if let Ok(mut settings) = toml::from_str::<telegraphos_fabric::Settings>(text) {
        // These would be opened; a topology is only if it is no shape, and takes long if it is a large one.
        (settings.faults, settings.certificate, settings.key, settings.peers_ca) = (None, None, None, None);
        settings.topology =
            settings.topology.filter(|text| Shape::is_meant_by(text) && text.len() <= "torus:4x4".len());
        settings.listen.get_or_insert_with(|| "listen".into());
        let _ = settings.config();
    }
    if let Ok(mut settings) = toml::from_str::<telegraphos_device::Settings>(text) {
        settings.node.get_or_insert(0);
        settings.socket.get_or_insert_with(|| "socket".into());
        settings.fabric.get_or_insert_with(|| "fabric".into());
        let _ = settings.config();
    }
    if let Ok(settings) = toml::from_str::<telegraphos_cluster::Settings>(text) {
        let _ = settings.check();
    }
    if let Ok(schedule) = Schedule::parse(text) {
        let _ = schedule.deadline();
    }
}
