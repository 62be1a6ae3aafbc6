// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a fabric process reports of itself, at one moment. Counters count from the start of the process and never fall;
//! times are microseconds. A field that is zero or empty is left out of the JSON.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use telegraphos_wire::{Class, NodeId};

use super::target::{FaultSpec, Target};

pub use telegraphos_fabric_core::pairs::Count as Traffic;

fn none<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Structs that are reported, with public fields; those with a `?` are left out of the JSON while zero or empty.
macro_rules! report {
    (@ $head:tt [$($done:tt)*] $(#[$about:meta])* $field:ident?: $type:ty, $($more:tt)*) => {
        report! {
            @ $head [$($done)* $(#[$about])* #[serde(skip_serializing_if = "none")] pub $field: $type,] $($more)*
        }
    };
    (@ $head:tt [$($done:tt)*] $(#[$about:meta])* $field:ident: $type:ty, $($more:tt)*) => {
        report! { @ $head [$($done)* $(#[$about])* pub $field: $type,] $($more)* }
    };
    (@ [$(#[$about:meta])* $name:ident] [$($fields:tt)*]) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($fields)* }
    };
    ($($(#[$about:meta])* $name:ident { $($fields:tt)* })*) => {
        $(report! { @ [$(#[$about])* $name] [] $($fields)* })*
    };
}

/// A report of counters, with their names and their sum.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $field:ident,)* }) => {
        report! { $(#[$about])* #[derive(Copy)] $name { $($(#[$doc])* $field?: u64,)* } }

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

report! {
    /// Both ways, as the switch sees them.
    #[derive(Copy)]
    Flows {
        /// From the node or the other switch.
        received?: Flow,
        sent?: Flow,
    }
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
    /// It had joined, and has left.
    #[default]
    Down,
    /// It is kept out by a command.
    Crashed,
}

report! {
    /// A node's port. Nodes that never joined have none in a snapshot.
    Port {
        node: NodeId,
        /// The switch it is attached to.
        switch?: u16,
        state: PortState,
        /// Its incarnation, or the last it had.
        incarnation?: u64,
        /// When it came or went: microseconds since the start of the process.
        since_us?: u64,
        joins?: u64,
        /// Faults of its link.
        faults?: FaultSpec,
        classes: PerClass<Flows>,
    }

    /// One end of a trunk: each process reports the ends it has.
    TrunkEnd {
        /// The trunk's name: those of its switches with a dash, the switch with the lower number first.
        name: String,
        /// The switch at this end.
        switch: u16,
        /// The switch at the other end.
        peer: u16,
        /// What carries it: `process`, `unix`, `ring`, `unix-datagram`, `udp`, `quic`.
        transport: String,
        up: bool,
        /// Its session: rises whenever it comes up again.
        session?: u64,
        /// When it came up or went down.
        since_us?: u64,
        /// How often it went down.
        resets?: u64,
        /// Microseconds of a round trip to the other switch and back; none before the first was measured.
        rtt_us?: Option<u64>,
        /// Datagrams sent again.
        retransmissions?: u64,
        /// Datagrams that the faults lost, doubled, reordered or corrupted.
        faulted?: u64,
        /// Faults that are set.
        faults?: FaultSpec,
        /// By class, all layers together.
        classes: PerClass<Flows>,
    }

    /// Packets from one node to another, since they were first kept.
    #[derive(Copy)]
    Pair {
        source: NodeId,
        destination: NodeId,
        classes: PerClass<Traffic>,
    }
}

impl PerClass<Traffic> {
    /// All classes together.
    pub fn total(&self) -> Traffic {
        self.iter().fold(Traffic::default(), |sum, (_, traffic)| sum.plus(*traffic))
    }

    /// From the switch's own counters.
    pub fn of(counted: &telegraphos_fabric_core::pairs::PairStatistics) -> PerClass<Traffic> {
        PerClass::from_fn(|class| counted.classes[class as usize])
    }
}

report! {
    Process {
        pid: u32,
        version: String,
        /// Where its HIBs come to.
        listen: String,
        /// Microseconds since its start.
        uptime_us: u64,
        /// Resident memory in bytes.
        memory: u64,
        /// Processor time used, in microseconds.
        cpu_us: u64,
        /// How often its loop was woken.
        wakeups: u64,
    }
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

report! {
    /// Joins, refusals, and requests to absent nodes.
    #[derive(Copy)]
    Totals {
        /// Nodes that joined.
        joined?: u64,
        refused?: u64,
        /// Nodes and trunks disconnected for breaking the protocol.
        violations?: u64,
        /// Requests to absent nodes that a switch answered.
        answered?: u64,
        /// Unidentified connections ended to make room for others.
        unidentified?: u64,
        /// How often a node was not read for a while, because it sent too much that no credit pays for.
        rests?: u64,
        /// Rings between HIBs that are in use now.
        rings?: u64,
        /// Rings that a HIB has closed, because the other broke the rules.
        rings_lost?: u64,
        /// Packets that passed by rings within this process, which are in the figures of ports and pairs, too.
        ring_packets?: u64,
        /// Attempts to connect for trunks.
        callers?: Callers,
    }
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

report! {
    /// Everything that is counted, at one moment.
    Snapshot {
        process: Process,
        /// Nodes of the cluster, present or not.
        nodes: u32,
        /// Joins and refusals.
        totals?: Totals,
        /// Nodes attached to switches of this process that have joined at least once, by number.
        ports?: Vec<Port>,
        /// Ends of trunks in this process, by name.
        trunks?: Vec<TrunkEnd>,
        /// The hottest pairs, the greatest first.
        pairs?: Vec<Pair>,
        /// All other pairs together.
        other_pairs?: PerClass<Traffic>,
    }

    /// The state of the process in short.
    Status {
        protocol: u32,
        process: Process,
        /// Nodes of the cluster, present or not.
        nodes: u32,
        /// Those that are present at switches of this process.
        present: Vec<NodeId>,
        /// Switches of this process.
        switches: Vec<u16>,
        /// Ends of trunks in this process.
        trunks: u32,
        /// Those that are up.
        trunks_up: u32,
        capture?: Option<Capture>,
        /// The filter of the log.
        log: String,
    }

    /// A capture that is being written.
    Capture {
        file: String,
        /// What is captured, such as `node 3`; none means everything.
        links?: Vec<String>,
        /// Frames and notes written.
        records: u64,
        /// Those that could not be written.
        lost: u64,
    }

    /// The topology, from the view of this process.
    TopologyView {
        /// The same in all processes of the fabric, as 16 hexadecimal digits.
        digest: String,
        switches: Vec<SwitchView>,
        trunks: Vec<TrunkView>,
    }

    /// A switch of the topology.
    SwitchView {
        switch: u16,
        /// Its name, if the topology's file gives one.
        name?: String,
        /// Whether this process hosts it.
        here: bool,
        nodes: Vec<NodeId>,
    }

    /// A trunk of the topology.
    TrunkView {
        name: String,
        /// The lower of its switches.
        a: u16,
        b: u16,
    }

    /// Everything that is made to go wrong now.
    FaultsView {
        /// Links and trunks with faults, or down by command.
        faults: Vec<FaultView>,
        /// Groups of switches that are cut off from each other; empty when there is no partition.
        partition?: Vec<Vec<u16>>,
        crashed?: Vec<NodeId>,
    }
}

/// What is wrong with one link or trunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultView {
    pub on: Target,
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
