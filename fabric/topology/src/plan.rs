// SPDX-License-Identifier: MIT OR Apache-2.0
//! A topology as a file describes it: with names, the processes that host the switches, and the addresses of trunks
//! between processes.
//!
//! All processes of a fabric read the same file, so it says nothing that is different for each of them.
//! `docs/topologies.md` has the format.

use std::collections::HashMap;
use std::net::IpAddr;

use serde::Deserialize;

use crate::topology::{check_names, is_name, spread};
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

/// Why a file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, an unknown key, or a value of the wrong type; names line, key and what was expected.
    #[error("{0}")]
    Parse(String),
    /// Neither kind of description.
    #[error("neither `topology` nor [[switch]]: expected one of them, such as topology = \"torus:4x4\"")]
    Empty,
    /// Both kinds.
    #[error("topology = \"{topology}\" and {other}: expected either a regular topology or [[switch]] and [[trunk]]")]
    Both {
        /// The regular topology.
        topology: String,
        /// What else is there.
        other: &'static str,
    },
    /// Not a list of nodes.
    #[error(
        "switch `{switch}`: nodes = \"{text}\": expected numbers below {MAX_NODES} and ranges of them, such as \"0-5,9\"; a switch without nodes has no `nodes`"
    )]
    NodeList {
        /// The switch.
        switch: String,
        /// What was given.
        text: String,
    },
    /// A node at two switches, or twice at one.
    #[error("node {node} is at switch `{first}` and at switch `{second}`: expected each node once")]
    DuplicateNode {
        /// The node.
        node: NodeId,
        /// One switch.
        first: String,
        /// The other; perhaps the same.
        second: String,
    },
    /// A node that is not below the number of nodes.
    #[error("switch `{switch}`: node {node}, but nodes = {nodes}: expected numbers below it")]
    NodeRange {
        /// The node.
        node: NodeId,
        /// Its switch.
        switch: String,
        /// Number of nodes.
        nodes: u32,
    },
    /// A process name that is not one.
    #[error("switch `{switch}`: process = \"{process}\": expected a name of 1 to 64 letters, digits, '.', '_' or '-'")]
    Process {
        /// The switch.
        switch: String,
        /// What was given.
        process: String,
    },
    /// Only some switches have a process.
    #[error("switch `{without}` has no `process`, switch `{with}` has one: expected one for each switch or for none")]
    MissingProcess {
        /// A switch without.
        without: String,
        /// A switch with one.
        with: String,
    },
    /// A trunk between processes without an address.
    #[error(
        "trunk between `{a}` and `{b}` has no `at`: expected the address where the process `{listener}` listens and `{caller}` connects, such as at = \"udp:10.0.0.1:7001\""
    )]
    MissingAddress {
        /// One end.
        a: String,
        /// The other end.
        b: String,
        /// The process of the first.
        listener: String,
        /// The process of the other.
        caller: String,
    },
    /// A trunk within a process with an address.
    #[error(
        "trunk between `{a}` and `{b}`: at = \"{at}\": expected none, both switches are in the process `{process}`"
    )]
    NeedlessAddress {
        /// One end.
        a: String,
        /// The other end.
        b: String,
        /// The address.
        at: String,
        /// The process.
        process: String,
    },
    /// An address that cannot be one.
    #[error("trunk between `{a}` and `{b}`: at = \"{at}\": expected TRANSPORT:ADDRESS, such as udp:10.0.0.1:7001")]
    Address {
        /// One end.
        a: String,
        /// The other end.
        b: String,
        /// The address.
        at: String,
    },
    /// An address to connect from that is none, or of a trunk without a connection.
    #[error("trunk between `{a}` and `{b}`: from = \"{from}\": expected an IP address, such as 10.0.0.2, and `at`")]
    From {
        /// One end.
        a: String,
        /// The other end.
        b: String,
        /// What was given.
        from: String,
    },
    /// Two processes are to listen at one address.
    #[error(
        "at = \"{at}\": the processes `{first}` and `{second}` would both listen there; expected addresses of their own"
    )]
    DuplicateAddress {
        /// The address.
        at: String,
        /// One process.
        first: String,
        /// The other.
        second: String,
    },
    /// The topology itself.
    #[error(transparent)]
    Topology(#[from] TopologyError),
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

    /// What a file describes.
    pub fn from_toml(text: &str) -> Result<Plan, PlanError> {
        let file: File = toml::from_str(text).map_err(|e| PlanError::Parse(e.to_string().trim_end().to_owned()))?;
        let layers = file.layers.unwrap_or(MAX_LAYERS.into());
        let layers = u8::try_from(layers).map_err(|_| TopologyError::Layers { layers })?;
        let nodes = file.nodes.map(|nodes| match u32::try_from(nodes) {
            Ok(nodes) if (1..=MAX_NODES).contains(&nodes) => Ok(nodes),
            _ => Err(TopologyError::Nodes { nodes }),
        });
        let nodes = nodes.transpose()?;
        if let Some(topology) = file.topology {
            if !file.switch.is_empty() || !file.trunk.is_empty() {
                let other = if file.switch.is_empty() { "[[trunk]]" } else { "[[switch]]" };
                return Err(PlanError::Both { topology, other });
            }
            let shape: Shape = topology.parse()?;
            return Ok(Plan::in_one_process(Topology::new(shape, nodes.unwrap_or(DEFAULT_NODES), layers)?));
        }
        if file.switch.is_empty() {
            return Err(PlanError::Empty);
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
    fn add_addresses(&mut self, entries: &[TrunkEntry], ends: &[(SwitchId, SwitchId)]) -> Result<(), PlanError> {
        let mut listeners: HashMap<&str, usize> = HashMap::new();
        for (entry, &(listener, caller)) in entries.iter().zip(ends) {
            let [a, b] = entry.between.clone();
            let (listening, calling) = (self.process_index(listener), self.process_index(caller));
            let process = |index: usize| self.processes[index].clone();
            let from = match &entry.from {
                None => None,
                Some(text) => match text.parse::<IpAddr>() {
                    Ok(from) if entry.at.is_some() => Some(from),
                    _ => return Err(PlanError::From { a, b, from: text.clone() }),
                },
            };
            let Some(at) = entry.at.clone() else {
                if listening == calling {
                    continue;
                }
                let (listener, caller) = (process(listening), process(calling));
                return Err(PlanError::MissingAddress { a, b, listener, caller });
            };
            if listening == calling {
                return Err(PlanError::NeedlessAddress { a, b, at, process: process(listening) });
            }
            // Each transport checks its own addresses.
            if !at.split_once(':').is_some_and(|(transport, place)| is_name(transport) && !place.is_empty()) {
                return Err(PlanError::Address { a, b, at });
            }
            let first = *listeners.entry(entry.at.as_deref().unwrap_or_default()).or_insert(listening);
            if first != listening {
                return Err(PlanError::DuplicateAddress { at, first: process(first), second: process(listening) });
            }
            let here =
                self.topology.trunks().iter().position(|t| (t.a, t.b) == (listener.min(caller), listener.max(caller)));
            if let Some(trunk) = here {
                self.addresses[trunk] = Some(TrunkAddress { at, listener, caller, from });
            }
        }
        Ok(())
    }
}

/// The names of the processes, and for each switch the index of its own.
fn processes(switches: &[SwitchEntry]) -> Result<(Vec<String>, Vec<usize>), PlanError> {
    let Some(with) = switches.iter().find(|switch| switch.process.is_some()) else {
        return Ok((vec![ONE_PROCESS.to_owned()], vec![0; switches.len()]));
    };
    let mut names: Vec<String> = Vec::new();
    let mut of = Vec::new();
    for switch in switches {
        let Some(process) = &switch.process else {
            return Err(PlanError::MissingProcess { without: switch.name.clone(), with: with.name.clone() });
        };
        if !is_name(process) {
            return Err(PlanError::Process { switch: switch.name.clone(), process: process.clone() });
        }
        of.push(names.iter().position(|name| name == process).unwrap_or_else(|| {
            names.push(process.clone());
            names.len() - 1
        }));
    }
    Ok((names, of))
}

/// The ends of the trunks by number, in the order of the file.
fn ends(names: &[String], trunks: &[TrunkEntry]) -> Result<Vec<(SwitchId, SwitchId)>, PlanError> {
    // At most MAX_GRAPH_SWITCHES.
    let ids: HashMap<&str, SwitchId> = names.iter().map(String::as_str).zip(0..).collect();
    let end = |trunk: &TrunkEntry, name: &String| {
        let [a, b] = trunk.between.clone();
        ids.get(name.as_str()).copied().ok_or(TopologyError::UnknownSwitch { a, b, unknown: name.clone() })
    };
    trunks.iter().map(|trunk| Ok((end(trunk, &trunk.between[0])?, end(trunk, &trunk.between[1])?))).collect()
}

/// The switch of each node: as the switches say, or spread evenly if none of them says anything.
fn places(switches: &[SwitchEntry], nodes: Option<u32>) -> Result<Vec<SwitchId>, PlanError> {
    if switches.iter().all(|switch| switch.nodes.is_none()) {
        // At most MAX_GRAPH_SWITCHES.
        return Ok(spread(nodes.unwrap_or(DEFAULT_NODES), 0, switches.len() as u16));
    }
    let mut place: Vec<Option<SwitchId>> = vec![None; nodes.map_or(0, |nodes| nodes as usize)];
    for (id, switch) in (0..).zip(switches) {
        let Some(text) = &switch.nodes else { continue };
        let list =
            node_list(text).ok_or_else(|| PlanError::NodeList { switch: switch.name.clone(), text: text.clone() })?;
        for node in list.into_iter().flatten() {
            let index = usize::from(node);
            if index >= place.len() {
                if let Some(nodes) = nodes {
                    return Err(PlanError::NodeRange { node, switch: switch.name.clone(), nodes });
                }
                place.resize(index + 1, None);
            }
            if let Some(first) = place[index].replace(id) {
                let first = switches[usize::from(first)].name.clone();
                return Err(PlanError::DuplicateNode { node, first, second: switch.name.clone() });
            }
        }
    }
    let missing: Vec<NodeId> = (0..).zip(&place).filter(|(_, at)| at.is_none()).map(|(node, _)| node).collect();
    if !missing.is_empty() {
        // At most MAX_NODES.
        return Err(TopologyError::MissingNodes { missing, nodes: place.len() as u32 }.into());
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
