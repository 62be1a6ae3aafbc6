// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a fabric process reports of itself, at one moment. Counters count from the start of the process and never fall;
//! times are microseconds. A field that is zero or empty is left out of the JSON.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use telegraphos_wire::{Class, NodeId};

use super::target::{FaultSpec, Target};

fn none<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A struct of counters, all of which are left out of the JSON at 0, with their names and their sum.
macro_rules! counters {
    ($(#[doc = $about:literal])* $name:ident { $($(#[doc = $doc:literal])* $field:ident,)* }) => {
        $(#[doc = $about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])* #[serde(skip_serializing_if = "none")] pub $field: u64,)*
        }

        impl $name {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field)),*].into_iter()
            }

            /// The sum of both, counter by counter; it wraps around.
            #[must_use]
            pub fn plus(self, other: $name) -> $name {
                $name { $($field: self.$field.wrapping_add(other.$field)),* }
            }
        }
    };
}

/// One value for each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    bound(serialize = "T: Serialize + Default + PartialEq", deserialize = "T: Deserialize<'de> + Default")
)]
pub struct PerClass<T> {
    /// Remote enqueues.
    #[serde(skip_serializing_if = "none")]
    pub enqueue: T,
    /// Loads, stores, atomics.
    #[serde(skip_serializing_if = "none")]
    pub request: T,
    /// Updates of copies.
    #[serde(skip_serializing_if = "none")]
    pub reflected: T,
    /// Replies and acknowledgements.
    #[serde(skip_serializing_if = "none")]
    pub reply: T,
}

impl<T> PerClass<T> {
    /// Each class's value by its number.
    pub fn from_fn(mut of: impl FnMut(Class) -> T) -> PerClass<T> {
        PerClass {
            enqueue: of(Class::Enqueue),
            request: of(Class::Request),
            reflected: of(Class::Reflected),
            reply: of(Class::Reply),
        }
    }

    /// One class's value.
    pub fn get(&self, class: Class) -> &T {
        match class {
            Class::Enqueue => &self.enqueue,
            Class::Request => &self.request,
            Class::Reflected => &self.reflected,
            Class::Reply => &self.reply,
        }
    }

    /// Classes and their values, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (Class, &T)> {
        Class::ALL.into_iter().map(|class| (class, self.get(class)))
    }
}

/// A class's name in JSON, metrics and tables.
pub fn class_name(class: Class) -> &'static str {
    match class {
        Class::Enqueue => "enqueue",
        Class::Request => "request",
        Class::Reflected => "reflected",
        Class::Reply => "reply",
    }
}

counters! {
    /// Packets that go one way through a port or trunk.
    Flow {
        /// Packets.
        packets,
        /// Their bytes on the link.
        bytes,
        /// Packets in the switch now: received and not yet passed on, or waiting to be sent.
        depth,
        /// The most there ever were.
        depth_max,
        /// Packets that had to wait, for a credit, for room or for others before them.
        stalls,
        /// Those of them that found no credit.
        credit_stalls,
        /// Packets dropped because their sender or receiver had gone.
        dropped,
    }
}

/// Both ways, as the switch sees them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flows {
    /// From the node or the other switch.
    #[serde(skip_serializing_if = "none")]
    pub received: Flow,
    /// To it.
    #[serde(skip_serializing_if = "none")]
    pub sent: Flow,
}

impl PerClass<Flows> {
    /// All classes together.
    pub fn total(&self) -> Flows {
        self.iter().fold(Flows::default(), |sum, (_, f)| Flows {
            received: sum.received.plus(f.received),
            sent: sum.sent.plus(f.sent),
        })
    }
}

/// Whether a node is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortState {
    /// It has joined.
    Up,
    /// It had joined, and has gone.
    #[default]
    Down,
    /// It is kept out by a command.
    Crashed,
}

/// A node's port. Nodes that never joined have none in a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Port {
    /// The node.
    pub node: NodeId,
    /// The switch it is attached to.
    #[serde(skip_serializing_if = "none")]
    pub switch: u16,
    /// Whether it is there.
    pub state: PortState,
    /// Its incarnation, or the last it had.
    #[serde(skip_serializing_if = "none")]
    pub incarnation: u64,
    /// When it came or went: microseconds since the start of the process.
    #[serde(skip_serializing_if = "none")]
    pub since_us: u64,
    /// How often it joined.
    #[serde(skip_serializing_if = "none")]
    pub joins: u64,
    /// Faults of its link.
    #[serde(skip_serializing_if = "none")]
    pub faults: FaultSpec,
    /// By class.
    pub classes: PerClass<Flows>,
}

/// One end of a trunk: each process reports the ends it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrunkEnd {
    /// The trunk's name: those of its switches with a dash, the switch with the lower number first.
    pub name: String,
    /// The switch at this end.
    pub switch: u16,
    /// The switch at the other end.
    pub peer: u16,
    /// What carries it: `process`, `unix`, `ring`, `unix-datagram`, `udp`, `quic`.
    pub transport: String,
    /// Whether packets can cross.
    pub up: bool,
    /// Its session: rises whenever it comes up again.
    #[serde(skip_serializing_if = "none")]
    pub session: u64,
    /// When it came up or went down.
    #[serde(skip_serializing_if = "none")]
    pub since_us: u64,
    /// How often it went down.
    #[serde(skip_serializing_if = "none")]
    pub resets: u64,
    /// Microseconds of a round trip to the other switch and back; none before the first was measured.
    #[serde(skip_serializing_if = "none")]
    pub rtt_us: Option<u64>,
    /// Datagrams sent again.
    #[serde(skip_serializing_if = "none")]
    pub retransmissions: u64,
    /// Datagrams that the faults lost, doubled, reordered or corrupted.
    #[serde(skip_serializing_if = "none")]
    pub faulted: u64,
    /// Faults that are set.
    #[serde(skip_serializing_if = "none")]
    pub faults: FaultSpec,
    /// By class, all layers together.
    pub classes: PerClass<Flows>,
}

/// Packets from one node to another, since they were first kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pair {
    /// The sender.
    pub source: NodeId,
    /// The receiver.
    pub destination: NodeId,
    /// By class.
    pub classes: PerClass<Traffic>,
}

counters! {
    /// Packets and bytes.
    Traffic {
        /// Packets.
        packets,
        /// Their bytes on the link.
        bytes,
    }
}

impl PerClass<Traffic> {
    /// All classes together.
    pub fn total(&self) -> Traffic {
        self.iter().fold(Traffic::default(), |sum, (_, traffic)| sum.plus(*traffic))
    }

    /// From the switch's own counters.
    pub fn of(counted: &telegraphos_fabric_core::pairs::PairStatistics) -> PerClass<Traffic> {
        PerClass::from_fn(|class| {
            let c = counted.classes[class as usize];
            Traffic { packets: c.packets, bytes: c.bytes }
        })
    }
}

/// The process itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Where its HIBs come to.
    pub listen: String,
    /// Microseconds since its start.
    pub uptime_us: u64,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// How often its loop was woken.
    pub wakeups: u64,
}

impl Process {
    /// Measures this process; `listen` and `wakeups` are the caller's.
    pub fn measure(started: Instant, listen: String, wakeups: u64) -> Process {
        let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu =
            u64::try_from(clock.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(clock.tv_nsec).unwrap_or(0) / 1000;
        Process {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            listen,
            uptime_us: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX),
            memory: resident(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()),
            cpu_us: cpu,
            wakeups,
        }
    }
}

/// Resident bytes from `/proc/PID/status`; 0 where the kernel does not say.
fn resident(status: &str) -> u64 {
    let field =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    field.map_or(0, |kib: u64| kib.saturating_mul(1024))
}

/// Joins, refusals, and requests to absent nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Totals {
    /// Nodes that joined.
    #[serde(skip_serializing_if = "none")]
    pub joined: u64,
    /// Joiners refused.
    #[serde(skip_serializing_if = "none")]
    pub refused: u64,
    /// Nodes and trunks disconnected for breaking the protocol.
    #[serde(skip_serializing_if = "none")]
    pub violations: u64,
    /// Requests to absent nodes that a switch answered.
    #[serde(skip_serializing_if = "none")]
    pub answered: u64,
    /// Unidentified connections ended to make room for others.
    #[serde(skip_serializing_if = "none")]
    pub unidentified: u64,
    /// How often a node was not read for a while, because it sent too much that no credit pays for.
    #[serde(skip_serializing_if = "none")]
    pub rests: u64,
    /// Attempts to connect for trunks.
    #[serde(skip_serializing_if = "none")]
    pub callers: Callers,
}

counters! {
    /// Attempts to connect for trunks over datagrams, by what became of them.
    Callers {
        /// Connected; over QUIC, authenticated.
        accepted,
        /// Refused for the certificate they showed, or did not.
        refused,
        /// Did not complete their handshake.
        broken,
        /// Exceeded a share or rate.
        crowded,
        /// Had to make room for others in the middle of their handshake.
        displaced,
        /// Had to prove their address by a Retry.
        validated,
    }
}

/// Everything that is counted, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Snapshot {
    /// The process.
    pub process: Process,
    /// Nodes of the cluster, present or not.
    pub nodes: u32,
    /// Joins and refusals.
    #[serde(skip_serializing_if = "none")]
    pub totals: Totals,
    /// Nodes attached to switches of this process that have joined at least once, by number.
    #[serde(skip_serializing_if = "none")]
    pub ports: Vec<Port>,
    /// Ends of trunks in this process, by name.
    #[serde(skip_serializing_if = "none")]
    pub trunks: Vec<TrunkEnd>,
    /// The hottest pairs, the greatest first.
    #[serde(skip_serializing_if = "none")]
    pub pairs: Vec<Pair>,
    /// All other pairs together.
    #[serde(skip_serializing_if = "none")]
    pub other_pairs: PerClass<Traffic>,
}

/// The state of the process in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Status {
    /// The protocol's version.
    pub protocol: u32,
    /// The process.
    pub process: Process,
    /// Nodes of the cluster, present or not.
    pub nodes: u32,
    /// Those that are present at switches of this process.
    pub present: Vec<NodeId>,
    /// Switches of this process.
    pub switches: Vec<u16>,
    /// Ends of trunks in this process.
    pub trunks: u32,
    /// Those that are up.
    pub trunks_up: u32,
    /// What is being captured.
    #[serde(skip_serializing_if = "none")]
    pub capture: Option<Capture>,
    /// The filter of the log.
    pub log: String,
}

/// A capture that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Capture {
    /// The file.
    pub file: String,
    /// What is captured, such as `node 3`; none means everything.
    #[serde(skip_serializing_if = "none")]
    pub links: Vec<String>,
    /// Frames and notes written.
    pub records: u64,
    /// Those that could not be written.
    pub lost: u64,
}

/// The topology, from the view of this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TopologyView {
    /// The same in all processes of the fabric, as 16 hexadecimal digits.
    pub digest: String,
    /// Its switches, by number.
    pub switches: Vec<SwitchView>,
    /// Its trunks, by number.
    pub trunks: Vec<TrunkView>,
}

/// A switch of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SwitchView {
    /// Its number.
    pub switch: u16,
    /// Its name, if the topology's file gives one.
    #[serde(skip_serializing_if = "none")]
    pub name: String,
    /// Whether this process hosts it.
    pub here: bool,
    /// Its nodes.
    pub nodes: Vec<NodeId>,
}

/// A trunk of the topology.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrunkView {
    /// Its name.
    pub name: String,
    /// The lower of its switches.
    pub a: u16,
    /// The higher.
    pub b: u16,
}

/// Everything that is made to go wrong now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsView {
    /// Links and trunks with faults, or down by command.
    pub faults: Vec<FaultView>,
    /// Groups of switches that are cut off from each other; empty when there is no partition.
    #[serde(skip_serializing_if = "none")]
    pub partition: Vec<Vec<u16>>,
    /// Crashed nodes.
    #[serde(skip_serializing_if = "none")]
    pub crashed: Vec<NodeId>,
}

/// What is wrong with one link or trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultView {
    /// Which.
    pub on: Target,
    /// Its faults.
    pub faults: FaultSpec,
    /// Down by command.
    pub down: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_measured() {
        let process = Process::measure(Instant::now(), "/x".into(), 7);
        assert_eq!((process.pid, process.wakeups), (std::process::id(), 7));
        assert!(process.memory > 100_000, "{process:?}");
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), 12 * 1024);
    }

    #[test]
    fn zeros_are_left_out() {
        let port = Port { node: 3, state: PortState::Up, ..Port::default() };
        assert_eq!(serde_json::to_string(&port).unwrap(), r#"{"node":3,"state":"up","classes":{}}"#);
    }
}
