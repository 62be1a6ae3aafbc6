// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload file: who does what to whom, how fast, on what machines, and what breaks (`docs/simulator.md`).

use crate::units::{self, MICROSECOND, NANOSECOND, Time};
use serde::Deserialize;
use telegraphos_wire::NodeId;

/// A workload, as its file says it. Every part may be left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Workload {
    /// To whom.
    pub pattern: Pattern,
    /// What, in parts of the whole.
    pub operations: Mix,
    /// How much at once.
    pub sizes: Sizes,
    /// How fast, and how much in all.
    pub load: Load,
    /// Notification queues.
    pub queue: Queue,
    /// Replicated pages.
    pub replicas: Replicas,
    /// What hardware takes.
    pub costs: Costs,
    /// Sizes of the boards.
    pub board: Board,
    /// Sizes of the switches.
    pub switch: SwitchSizes,
    /// What breaks, and when.
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

/// Who talks to whom. Variants without fields have braces: else unknown keys would be accepted.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Pattern {
    /// Each node has so many partners, drawn from all others, and picks one of them each time.
    Uniform {
        /// Partners of a node, at most all others.
        #[serde(default = "sixteen")]
        partners: u32,
    },
    /// The four neighbours on a grid whose edges meet, `width` nodes wide.
    Neighbour {
        /// Nodes in a row; by default the number nearest to a square that divides the nodes.
        width: Option<u32>,
    },
    /// As `uniform`, but so many of a hundred operations go to one node.
    HotSpot {
        /// That node.
        #[serde(default)]
        target: NodeId,
        /// Of a hundred.
        #[serde(default = "twenty")]
        percent: u32,
        /// As for `uniform`.
        #[serde(default = "sixteen")]
        partners: u32,
    },
    /// Row and column of a square are exchanged; nodes on the diagonal are idle.
    Transpose {},
    /// Each node sends to one other and receives from one, drawn by the seed.
    Permutation {},
    /// All to one.
    AllToOne {
        /// That node, which is idle.
        #[serde(default)]
        target: NodeId,
    },
    /// Each to the next.
    Ring {},
}

fn sixteen() -> u32 {
    16
}

fn twenty() -> u32 {
    20
}

impl Default for Pattern {
    fn default() -> Pattern {
        Pattern::Uniform { partners: sixteen() }
    }
}

/// Parts of the operations, of their sum.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Mix {
    /// Remote stores.
    pub store: u32,
    /// Remote loads.
    pub load: u32,
    /// Remote fetch-and-adds.
    pub atomic: u32,
    /// Elements for the partner's queue.
    pub enqueue: u32,
    /// Stores to the node's replicated page, followed by quiet.
    pub multicast: u32,
    /// Block copies to the partner.
    pub put: u32,
    /// Block copies from the partner.
    pub get: u32,
}

/// Kinds of operations, in the order of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// A remote store, until its acknowledgement is at the sender's board.
    Store,
    /// A remote load, until its value is at the processor.
    Load,
    /// A remote fetch-and-add, until its result is in the status page.
    Atomic,
    /// An enqueue, until its acknowledgement is at the sender's board.
    Enqueue,
    /// A store to a replicated page, until the quiet behind it is in the status page.
    Multicast,
    /// A block copy to a partner, until its completion is in the status page.
    Put,
    /// A block copy from a partner, likewise.
    Get,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 7] = [
        Operation::Store,
        Operation::Load,
        Operation::Atomic,
        Operation::Enqueue,
        Operation::Multicast,
        Operation::Put,
        Operation::Get,
    ];

    /// Its name in workload files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Store => "store",
            Operation::Load => "load",
            Operation::Atomic => "atomic",
            Operation::Enqueue => "enqueue",
            Operation::Multicast => "multicast",
            Operation::Put => "put",
            Operation::Get => "get",
        }
    }
}

impl Mix {
    /// By [`Operation::ALL`].
    pub fn parts(&self) -> [u32; 7] {
        [self.store, self.load, self.atomic, self.enqueue, self.multicast, self.put, self.get]
    }

    /// Their sum.
    pub fn sum(&self) -> u64 {
        self.parts().iter().map(|part| u64::from(*part)).sum()
    }
}

/// Bytes of operations.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Sizes {
    /// Of stores, loads and stores to replicated pages: 1, 2, 4 or 8.
    pub word: u8,
    /// Of block copies: up to 24576.
    pub copy: u32,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { word: 8, copy: 4096 }
    }
}

/// The most bytes of one block copy: what lies behind the words of stores and atomics in an exported segment.
pub const MAX_COPY: u32 = 24_576;

/// How fast, and how much in all.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Load {
    /// Operations of a node under way at once, at most. Without a rate the node issues the next when one is complete.
    pub outstanding: u32,
    /// Without a rate: the pause behind a completion.
    #[serde(deserialize_with = "units::time")]
    pub think: Time,
    /// Operations of a node in a second, whether earlier ones are complete or not.
    pub rate: Option<u64>,
    /// With a rate: so many come at once, as much more seldom.
    pub burst: u32,
    /// Operations of a node in all.
    pub operations: u64,
    /// Instead: operations are issued for so long.
    #[serde(deserialize_with = "units::some_time")]
    pub duration: Option<Time>,
}

impl Default for Load {
    fn default() -> Load {
        Load { outstanding: 4, think: 0, rate: None, burst: 1, operations: 1000, duration: None }
    }
}

/// Notification queues, one at each node that is a partner.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Queue {
    /// Words of the buffer: a power of two from 8 to 8192.
    pub words: u32,
    /// Time in which the consumer takes an element.
    #[serde(deserialize_with = "units::time")]
    pub consume: Time,
    /// Elements that each sender may have on their way.
    pub hold: u32,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue { words: 256, consume: 200 * NANOSECOND, hold: 32 }
    }
}

/// Replicated pages: nodes 0..group share one, the next `group` the next, and so on; the first of each group is the
/// home.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Replicas {
    /// Nodes with a copy of the same page, 2 to 64.
    pub group: u32,
}

impl Default for Replicas {
    fn default() -> Replicas {
        Replicas { group: 4 }
    }
}

/// What the hardware takes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Costs {
    /// Wire between board and switch.
    #[serde(deserialize_with = "units::time")]
    pub link_latency: Time,
    /// Picoseconds for each byte on it; in the file a bandwidth.
    #[serde(deserialize_with = "units::bandwidth")]
    pub link_bandwidth: Time,
    /// Wire between switches.
    #[serde(deserialize_with = "units::time")]
    pub trunk_latency: Time,
    /// Picoseconds for each byte on it; in the file a bandwidth.
    #[serde(deserialize_with = "units::bandwidth")]
    pub trunk_bandwidth: Time,
    /// From the arrival of a frame at a switch to its output.
    #[serde(deserialize_with = "units::time")]
    pub switch_crossing: Time,
    /// From the arrival of a frame at a board to its effect.
    #[serde(deserialize_with = "units::time")]
    pub board: Time,
    /// One access of a board to its guest's memory.
    #[serde(deserialize_with = "units::time")]
    pub memory: Time,
    /// One access of a processor to its board.
    #[serde(deserialize_with = "units::time")]
    pub processor: Time,
    /// From an interrupt to its handler, and between attempts of a driver.
    #[serde(deserialize_with = "units::time")]
    pub interrupt: Time,
    /// Pause of a processor whose operation could not be issued because its partner was unreachable.
    #[serde(deserialize_with = "units::time")]
    pub retry: Time,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            link_latency: 500 * NANOSECOND,
            link_bandwidth: 320,
            trunk_latency: 500 * NANOSECOND,
            trunk_bandwidth: 80,
            switch_crossing: 200 * NANOSECOND,
            board: 100 * NANOSECOND,
            memory: 100 * NANOSECOND,
            processor: 50 * NANOSECOND,
            interrupt: 2 * MICROSECOND,
            retry: 20 * MICROSECOND,
        }
    }
}

/// Sizes of the boards.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Board {
    /// Requests in flight to one destination.
    pub outstanding: u32,
    /// Packets of each class that the board offers to take.
    pub credits: u32,
}

impl Default for Board {
    fn default() -> Board {
        Board { outstanding: 64, credits: 256 }
    }
}

/// Sizes of the switches.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct SwitchSizes {
    /// Packets of each class that a port takes.
    pub credits: u32,
    /// Frames that an output takes before the first of them has left.
    pub room: u32,
    /// After so long a node that says nothing, or returns no credit, is given up; by default never.
    #[serde(deserialize_with = "units::some_time")]
    pub silence: Option<Time>,
}

impl Default for SwitchSizes {
    fn default() -> SwitchSizes {
        SwitchSizes { credits: 256, room: 8, silence: None }
    }
}

/// Something that breaks.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fault {
    /// When, counted from the start of the operations.
    #[serde(deserialize_with = "units::time")]
    pub at: Time,
    /// What.
    pub kind: FaultKind,
    /// The node, for those that have one.
    pub node: Option<NodeId>,
    /// The two switches of a trunk.
    pub trunk: Option<[u16; 2]>,
    /// How long it hangs.
    #[serde(default, deserialize_with = "units::some_time")]
    pub lasts: Option<Time>,
}

/// What can break.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The node's board and guest are gone; their link ends.
    Crash,
    /// It comes back, with a new life.
    Rejoin,
    /// The node's board and guest do nothing for a while; their link stands.
    Hang,
    /// The trunk breaks; what is on it is lost.
    TrunkDown,
    /// It is joined again.
    TrunkUp,
}

impl FaultKind {
    /// Its name in workload files.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Crash => "crash",
            FaultKind::Rejoin => "rejoin",
            FaultKind::Hang => "hang",
            FaultKind::TrunkDown => "trunk-down",
            FaultKind::TrunkUp => "trunk-up",
        }
    }
}

/// What is wrong with a workload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WorkloadError {
    /// The file is no TOML of this form.
    #[error("{0}")]
    Syntax(String),
    /// A value is out of its range, or does not fit the others.
    #[error("{key} is {value}: expected {expected}")]
    Value {
        /// Where in the file.
        key: String,
        /// What it says.
        value: String,
        /// What it may say.
        expected: String,
    },
}

fn wrong(key: &str, value: impl ToString, expected: impl Into<String>) -> WorkloadError {
    WorkloadError::Value { key: key.to_owned(), value: value.to_string(), expected: expected.into() }
}

impl Workload {
    /// Reads a workload file. Call [`Workload::check`] with the number of nodes before it is used.
    pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
        let mut workload: Workload =
            toml::from_str(text).map_err(|e| WorkloadError::Syntax(e.to_string().trim_end().to_owned()))?;
        if workload.operations.sum() == 0 {
            workload.operations.store = 1;
        }
        Ok(workload)
    }

    /// Whether its values are possible, among so many nodes.
    pub fn check(&self, nodes: u32) -> Result<(), WorkloadError> {
        let between = |key, value: u64, from: u64, to: u64| {
            if (from..=to).contains(&value) { Ok(()) } else { Err(wrong(key, value, format!("{from} to {to}"))) }
        };
        between("nodes", nodes.into(), 2, 4096)?;
        let mix = &self.operations;
        if mix.sum() == 0 {
            return Err(wrong("operations", "without any part", "a part of at least one operation above 0"));
        }
        if !matches!(self.sizes.word, 1 | 2 | 4 | 8) {
            return Err(wrong("sizes.word", self.sizes.word, "1, 2, 4 or 8"));
        }
        between("sizes.copy", self.sizes.copy.into(), 1, MAX_COPY.into())?;
        // Operations that end in the status page have one of the context's 64 slots each.
        let slots = u64::from(mix.atomic) + u64::from(mix.multicast) + u64::from(mix.put) + u64::from(mix.get);
        between("load.outstanding", self.load.outstanding.into(), 1, if slots > 0 { 64 } else { 512 })?;
        between("load.operations", self.load.operations, 1, 1 << 40)?;
        between("load.burst", self.load.burst.into(), 1, 1 << 20)?;
        if let Some(rate) = self.load.rate {
            between("load.rate", rate, 1, 1_000_000_000)?;
        } else if self.load.burst != 1 {
            return Err(wrong("load.burst", self.load.burst, "1 without load.rate"));
        }
        let words = self.queue.words;
        if !words.is_power_of_two() || !(8..=8192).contains(&words) {
            return Err(wrong("queue.words", words, "a power of two from 8 to 8192"));
        }
        between("queue.hold", self.queue.hold.into(), 1, 8192)?;
        between("replicas.group", self.replicas.group.into(), 2, 64)?;
        between("board.outstanding", self.board.outstanding.into(), 1, 4096)?;
        between("board.credits", self.board.credits.into(), 1, 65_536)?;
        between("switch.credits", self.switch.credits.into(), 1, 65_536)?;
        between("switch.room", self.switch.room.into(), 1, 1 << 20)?;
        if let Some(silence) = self.switch.silence.filter(|silence| *silence < 40 * MICROSECOND) {
            // The switch counts microseconds, and asks several times before it gives up.
            return Err(wrong("switch.silence", units::show_time(silence), "at least 40 us"));
        }
        self.check_costs()?;
        self.check_pattern(nodes)?;
        self.faults.iter().enumerate().try_for_each(|(index, fault)| fault.check(index, nodes))
    }

    fn check_costs(&self) -> Result<(), WorkloadError> {
        let costs = &self.costs;
        let all = [
            ("costs.link-latency", costs.link_latency),
            ("costs.trunk-latency", costs.trunk_latency),
            ("costs.switch-crossing", costs.switch_crossing),
            ("costs.board", costs.board),
            ("costs.memory", costs.memory),
            ("costs.processor", costs.processor),
            ("costs.interrupt", costs.interrupt),
            ("costs.retry", costs.retry),
            ("queue.consume", self.queue.consume),
            ("load.think", self.load.think),
        ];
        if let Some((key, value)) = all.iter().find(|(_, value)| *value > 10 * units::SECOND) {
            return Err(wrong(key, units::show_time(*value), "at most 10 s"));
        }
        // Else a node could do without end in no time.
        for (key, value) in [("costs.processor", costs.processor), ("costs.retry", costs.retry)] {
            if value < NANOSECOND {
                return Err(wrong(key, units::show_time(value), "at least 1 ns"));
            }
        }
        Ok(())
    }

    fn check_pattern(&self, nodes: u32) -> Result<(), WorkloadError> {
        let target = |target: NodeId| {
            if u32::from(target) < nodes {
                Ok(())
            } else {
                Err(wrong("pattern.target", target, format!("a node below {nodes}")))
            }
        };
        match &self.pattern {
            Pattern::Uniform { partners: 0 } | Pattern::HotSpot { partners: 0, .. } => {
                Err(wrong("pattern.partners", 0, "at least 1"))
            }
            Pattern::HotSpot { target: node, percent, .. } => match percent {
                1..=100 => target(*node),
                _ => Err(wrong("pattern.percent", percent, "1 to 100")),
            },
            Pattern::AllToOne { target: node } => target(*node),
            Pattern::Neighbour { width: Some(width) } if *width == 0 || nodes % width != 0 => {
                Err(wrong("pattern.width", width, format!("a divisor of the number of nodes, {nodes}")))
            }
            Pattern::Transpose {} if nodes.isqrt().pow(2) != nodes => {
                Err(wrong("pattern.kind", "transpose", format!("a square number of nodes, not {nodes}")))
            }
            _ => Ok(()),
        }
    }
}

impl Fault {
    fn check(&self, index: usize, nodes: u32) -> Result<(), WorkloadError> {
        let name = self.kind.name();
        let key = |field: &str| format!("{field} of fault {} ({name})", index + 1);
        let of_trunk = matches!(self.kind, FaultKind::TrunkDown | FaultKind::TrunkUp);
        match (of_trunk, self.node, self.trunk) {
            (false, Some(node), None) if u32::from(node) < nodes => {}
            (false, Some(node), None) => return Err(wrong(&key("node"), node, format!("a node below {nodes}"))),
            (false, None, _) => return Err(wrong(&key("node"), "missing", "a node")),
            (false, _, Some(_)) => return Err(wrong(&key("trunk"), "given", "none: this happens to a node")),
            (true, None, Some(_)) => {}
            (true, _, None) => return Err(wrong(&key("trunk"), "missing", "the two switches it joins, as in [0, 1]")),
            (true, Some(_), _) => return Err(wrong(&key("node"), "given", "none: this happens to a trunk")),
        }
        match (self.kind, self.lasts) {
            (FaultKind::Hang, None) => Err(wrong(&key("lasts"), "missing", "how long it hangs, as in \"3ms\"")),
            (FaultKind::Hang, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => Err(wrong(&key("lasts"), "given", "nothing: only a hang ends by itself")),
        }
    }
}
