// SPDX-License-Identifier: MIT OR Apache-2.0
//! A topology as a file describes it: with names, the processes that host the switches, and the addresses of trunks
//! between processes.
//!
//! All processes of a fabric read the same file, so it says nothing that is different for each of them.
//! `docs/topologies.md` has the format.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;

use crate::error::{missing_nodes, refused};
use crate::topology::{NAME_EXPECTED, check_names, checked_layers, checked_nodes, is_name, spread, unknown_switch};
use crate::{DEFAULT_NODES, MAX_LAYERS, MAX_NODES, NodeId, Shape, SwitchId, Topology, TopologyError, TrunkId};

/// The process of all switches, if the file names none.
const ONE_PROCESS: &str = "fabric";

/// A topology, and the processes that host its switches.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Switches, trunks, nodes and routes.
    pub topology: Topology,
    /// In the order of the file.
    processes: Vec<String>,
    /// For each switch, the index of its process.
    process_of: Vec<usize>,
    /// For each trunk between processes.
    addresses: Vec<Option<TrunkAddress>>,
}

/// The address of a trunk between two processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrunkAddress {
    /// Address of a transport, such as `udp:10.0.0.1:7001`.
    pub at: String,
    /// The switch whose process listens there: the one that the file names first.
    pub listener: SwitchId,
    /// The switch whose process connects.
    pub caller: SwitchId,
    /// The address that it connects from, if the file says so.
    pub from: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    topology: Option<String>,
    nodes: Option<u64>,
    layers: Option<u64>,
    #[serde(default)]
    switch: Vec<SwitchEntry>,
    #[serde(default)]
    trunk: Vec<TrunkEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchEntry {
    name: String,
    nodes: Option<String>,
    process: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrunkEntry {
    between: [String; 2],
    at: Option<String>,
    from: Option<String>,
}

impl Plan {
    /// All switches in one process.
    pub fn in_one_process(topology: Topology) -> Plan {
        Plan {
            processes: vec![ONE_PROCESS.to_owned()],
            process_of: vec![0; topology.switches().into()],
            addresses: vec![None; topology.trunks().len()],
            topology,
        }
    }

    pub fn from_toml(text: &str) -> Result<Plan, TopologyError> {
        // Of a wrong type or an unknown key TOML names line, key and what was expected.
        let file: File = toml::from_str(text).map_err(|e| refused!("{}", e.to_string().trim_end()))?;
        let layers = checked_layers(file.layers.unwrap_or(MAX_LAYERS.into()))?;
        let nodes = file.nodes.map(checked_nodes).transpose()?;
        if let Some(topology) = file.topology {
            if !file.switch.is_empty() || !file.trunk.is_empty() {
                let other = if file.switch.is_empty() { "[[trunk]]" } else { "[[switch]]" };
                return Err(refused!(
                    "topology = \"{topology}\" and {other}: expected either a regular topology or [[switch]] and \
                     [[trunk]]"
                ));
            }
            let shape: Shape = topology.parse()?;
            return Ok(Plan::in_one_process(Topology::new(shape, nodes.unwrap_or(DEFAULT_NODES), layers)?));
        }
        if file.switch.is_empty() {
            return Err(refused!(
                "neither `topology` nor [[switch]]: expected one of them, such as topology = \"torus:4x4\""
            ));
        }
        let names: Vec<String> = file.switch.iter().map(|switch| switch.name.clone()).collect();
        check_names(&names)?;
        let (processes, process_of) = processes(&file.switch)?;
        let ends = ends(&names, &file.trunk)?;
        let switch_of = places(&file.switch, nodes)?;
        let topology = Topology::graph(names, &ends, switch_of, layers)?;
        let mut plan = Plan { processes, process_of, addresses: vec![None; ends.len()], topology };
        plan.add_addresses(&file.trunk, &ends)?;
        Ok(plan)
    }

    /// The names of all processes, in the order of the file.
    pub fn processes(&self) -> &[String] {
        &self.processes
    }

    /// The process of a switch.
    pub fn process_of(&self, switch: SwitchId) -> Option<&str> {
        self.process_of.get(usize::from(switch)).map(|process| self.processes[*process].as_str())
    }

    /// The index of that name in [`Plan::processes`].
    pub(crate) fn process_index(&self, switch: SwitchId) -> usize {
        self.process_of.get(usize::from(switch)).copied().unwrap_or(0)
    }

    /// The switches of a process.
    pub fn switches_of<'a>(&'a self, process: &'a str) -> impl Iterator<Item = SwitchId> + 'a {
        (0..self.topology.switches()).filter(move |switch| self.process_of(*switch) == Some(process))
    }

    /// The address of a trunk; `None` if one process has both ends. One process may listen at one address for several
    /// trunks.
    pub fn address(&self, trunk: TrunkId) -> Option<&TrunkAddress> {
        self.addresses.get(usize::from(trunk))?.as_ref()
    }

    /// Puts the addresses of the file at their trunks.
    fn add_addresses(&mut self, entries: &[TrunkEntry], ends: &[(SwitchId, SwitchId)]) -> Result<(), TopologyError> {
        let mut listeners: HashMap<&str, usize> = HashMap::new();
        for (entry, &(listener, caller)) in entries.iter().zip(ends) {
            let described = format!("trunk between `{}` and `{}`", entry.between[0], entry.between[1]);
            let (listening, calling) = (self.process_index(listener), self.process_index(caller));
            let process = |index: usize| &self.processes[index];
            let from = match &entry.from {
                None => None,
                Some(text) => match text.parse::<IpAddr>() {
                    Ok(from) if entry.at.is_some() => Some(from),
                    _ => {
                        return Err(refused!(
                            "{described}: from = \"{text}\": expected an IP address, such as 10.0.0.2, and `at`"
                        ));
                    }
                },
            };
            let Some(at) = &entry.at else {
                if listening == calling {
                    continue;
                }
                let (listener, caller) = (process(listening), process(calling));
                return Err(refused!(
                    "{described} has no `at`: expected the address where the process `{listener}` listens and \
                     `{caller}` connects, such as at = \"udp:10.0.0.1:7001\""
                ));
            };
            if listening == calling {
                return Err(refused!(
                    "{described}: at = \"{at}\": expected none, both switches are in the process `{}`",
                    process(listening)
                ));
            }
            // Each transport checks its own addresses.
            if !at.split_once(':').is_some_and(|(transport, place)| is_name(transport) && !place.is_empty()) {
                return Err(refused!(
                    "{described}: at = \"{at}\": expected TRANSPORT:ADDRESS, such as udp:10.0.0.1:7001"
                ));
            }
            let first = *listeners.entry(at).or_insert(listening);
            if first != listening {
                let (first, second) = (process(first), process(listening));
                return Err(refused!(
                    "at = \"{at}\": the processes `{first}` and `{second}` would both listen there; expected \
                     addresses of their own"
                ));
            }
            let here =
                self.topology.trunks().iter().position(|t| (t.a, t.b) == (listener.min(caller), listener.max(caller)));
            if let Some(trunk) = here {
                self.addresses[trunk] = Some(TrunkAddress { at: at.clone(), listener, caller, from });
            }
        }
        Ok(())
    }
}

/// The names of the processes, and for each switch the index of its own.
fn processes(switches: &[SwitchEntry]) -> Result<(Vec<String>, Vec<usize>), TopologyError> {
    let Some(with) = switches.iter().find(|switch| switch.process.is_some()) else {
        return Ok((vec![ONE_PROCESS.to_owned()], vec![0; switches.len()]));
    };
    let mut names: Vec<String> = Vec::new();
    let mut of = Vec::new();
    for switch in switches {
        let Some(process) = &switch.process else {
            return Err(refused!(
                "switch `{}` has no `process`, switch `{}` has one: expected one for each switch or for none",
                switch.name,
                with.name
            ));
        };
        if !is_name(process) {
            return Err(refused!("switch `{}`: process = \"{process}\": {NAME_EXPECTED}", switch.name));
        }
        of.push(names.iter().position(|name| name == process).unwrap_or_else(|| {
            names.push(process.clone());
            names.len() - 1
        }));
    }
    Ok((names, of))
}

/// The ends of the trunks by number, in the order of the file.
fn ends(names: &[String], trunks: &[TrunkEntry]) -> Result<Vec<(SwitchId, SwitchId)>, TopologyError> {
    // At most MAX_GRAPH_SWITCHES.
    let ids: HashMap<&str, SwitchId> = names.iter().map(String::as_str).zip(0..).collect();
    let end = |trunk: &TrunkEntry, name: &String| {
        let [a, b] = &trunk.between;
        ids.get(name.as_str()).copied().ok_or_else(|| unknown_switch(a, b, name))
    };
    trunks.iter().map(|trunk| Ok((end(trunk, &trunk.between[0])?, end(trunk, &trunk.between[1])?))).collect()
}

/// The switch of each node: as the switches say, or spread evenly if none of them says anything.
fn places(switches: &[SwitchEntry], nodes: Option<u32>) -> Result<Vec<SwitchId>, TopologyError> {
    if switches.iter().all(|switch| switch.nodes.is_none()) {
        // At most MAX_GRAPH_SWITCHES.
        return Ok(spread(nodes.unwrap_or(DEFAULT_NODES), 0, switches.len() as u16));
    }
    let mut place: Vec<Option<SwitchId>> = vec![None; nodes.map_or(0, |nodes| nodes as usize)];
    for (id, switch) in (0..).zip(switches) {
        let Some(text) = &switch.nodes else { continue };
        let name = &switch.name;
        let list = node_list(text).ok_or_else(|| {
            refused!(
                "switch `{name}`: nodes = \"{text}\": expected numbers below {MAX_NODES} and ranges of them, such as \
                 \"0-5,9\"; a switch without nodes has no `nodes`"
            )
        })?;
        for node in list.into_iter().flatten() {
            let index = usize::from(node);
            if index >= place.len() {
                if let Some(nodes) = nodes {
                    return Err(refused!(
                        "switch `{name}`: node {node}, but nodes = {nodes}: expected numbers below it"
                    ));
                }
                place.resize(index + 1, None);
            }
            if let Some(first) = place[index].replace(id) {
                let first = &switches[usize::from(first)].name;
                return Err(refused!(
                    "node {node} is at switch `{first}` and at switch `{name}`: expected each node once"
                ));
            }
        }
    }
    let mut missing = (0..).zip(&place).filter(|(_, at)| at.is_none()).map(|(node, _)| node).peekable();
    if missing.peek().is_some() {
        return Err(missing_nodes(missing, place.len()));
    }
    Ok(place.into_iter().flatten().collect())
}

/// The ranges of a list such as `0-5,9`.
fn node_list(text: &str) -> Option<Vec<std::ops::RangeInclusive<NodeId>>> {
    let number = |digits: &str| {
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        digits.parse::<NodeId>().ok().filter(|node| plain && u32::from(*node) < MAX_NODES)
    };
    text.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first.trim())?, number(last.trim())?);
            (first <= last).then_some(first..=last)
        })
        .collect()
}
