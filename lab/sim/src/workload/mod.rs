// SPDX-License-Identifier: MIT OR Apache-2.0
//! The workload file: operations and their partners, rates, costs of the hardware, and faults (`docs/simulator.md`).

mod check;

pub use check::WorkloadError;

use crate::units::{self, MICROSECOND, NANOSECOND, Time};
use serde::Deserialize;
use telegraphos_wire::NodeId;

/// Declares tables of the file: fields, each with its default and perhaps the function that reads it.
macro_rules! tables {
    ($($(#[$doc:meta])* pub struct $name:ident {
        $($(#[$field_doc:meta])* pub $field:ident: $type:ty = $default:expr $(, by $read:literal)?;)*
    })*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
        #[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
        pub struct $name {
            $($(#[$field_doc])*
            $(#[serde(deserialize_with = $read)])?
            pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name { $($field: $default),* }
            }
        })*
    };
}

/// Declares enums whose values have names in workload files and reports.
macro_rules! named {
    ($($(#[$meta:meta])* pub enum $type:ident { $($(#[$doc:meta])* $value:ident = $name:literal,)* })*) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* #[serde(rename = $name)] $value,)*
        }

        impl $type {
            /// All of them.
            pub const ALL: [$type; [$($name),*].len()] = [$($type::$value),*];

            /// Its name in workload files and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name,)*
                }
            }
        })*
    };
}

/// A workload, as its file says it. Every part may be left out.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Workload {
    /// The partners of each node.
    pub pattern: Pattern,
    /// The operations, in parts of the whole.
    pub operations: Mix,
    pub sizes: Sizes,
    /// How fast, and how much in all.
    pub load: Load,
    pub queue: Queue,
    /// Replicated pages.
    pub replicas: Replicas,
    pub costs: Costs,
    /// Sizes of the boards.
    pub board: Board,
    /// Sizes of the switches.
    pub switch: SwitchSizes,
    #[serde(rename = "fault")]
    pub faults: Vec<Fault>,
}

/// The partners of each node. Variants without fields have braces: otherwise unknown keys would be accepted.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
pub enum Pattern {
    /// Each node has so many partners, drawn from all others, and picks one of them each time.
    Uniform {
        /// Partners of a node, at most all others.
        #[serde(default = "sixteen")]
        partners: u32,
    },
    /// The four neighbours on a torus, `width` nodes wide.
    Neighbour {
        /// Nodes in a row; by default the number nearest to a square that divides the nodes.
        width: Option<u32>,
    },
    /// As `uniform`, but so many of a hundred operations go to one node.
    HotSpot {
        #[serde(default)]
        target: NodeId,
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
    pub store: u32,
    pub load: u32,
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

named! {
    /// Kinds of operations, in the order of all tables.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Operation {
        /// A remote store, until its acknowledgement is at the sender's board.
        Store = "store",
        /// A remote load, until its value is at the processor.
        Load = "load",
        /// A remote fetch-and-add, until its result is in the status page.
        Atomic = "atomic",
        /// An enqueue, until its acknowledgement is at the sender's board.
        Enqueue = "enqueue",
        /// A store to a replicated page, until the quiet behind it is in the status page.
        Multicast = "multicast",
        /// A block copy to a partner, until its completion is in the status page.
        Put = "put",
        /// A block copy from a partner, likewise.
        Get = "get",
    }

    pub enum FaultKind {
        /// The node's board and guest are gone; their link ends.
        Crash = "crash",
        /// It comes back, as a new incarnation.
        Rejoin = "rejoin",
        /// The node's board and guest do nothing for a while; their link stands.
        Hang = "hang",
        /// The trunk breaks; what is on it is lost.
        TrunkDown = "trunk-down",
        /// It is joined again.
        TrunkUp = "trunk-up",
    }
}

impl Mix {
    /// By [`Operation::ALL`].
    pub fn parts(&self) -> [u32; 7] {
        [self.store, self.load, self.atomic, self.enqueue, self.multicast, self.put, self.get]
    }

    pub fn sum(&self) -> u64 {
        self.parts().iter().map(|part| u64::from(*part)).sum()
    }
}

tables! {
    /// Bytes of operations.
    pub struct Sizes {
        /// Of stores, loads and stores to replicated pages: 1, 2, 4 or 8.
        pub word: u8 = 8;
        /// Of block copies: up to 24576.
        pub copy: u32 = 4096;
    }

    /// How fast, and how much in all.
    pub struct Load {
        /// Operations of a node under way at once, at most. Without a rate the node issues the next when one is
        /// complete.
        pub outstanding: u32 = 4;
        /// Without a rate: the pause behind a completion.
        pub think: Time = 0, by "units::time";
        /// Operations of a node in a second, whether earlier ones are complete or not.
        pub rate: Option<u64> = None;
        /// With a rate: so many come at once, as much more seldom.
        pub burst: u32 = 1;
        /// Operations of a node in all.
        pub operations: u64 = 1000;
        /// Instead: operations are issued for so long.
        pub duration: Option<Time> = None, by "units::some_time";
    }

    /// Notification queues, one at each node that is a partner.
    pub struct Queue {
        /// Words of the buffer: a power of two from 8 to 8192.
        pub words: u32 = 256;
        /// Time in which the consumer takes an element.
        pub consume: Time = 200 * NANOSECOND, by "units::time";
        /// Elements that each sender may have on their way.
        pub hold: u32 = 32;
    }

    /// Replicated pages: nodes 0..group share one, the next `group` the next, and so on; the first of each group is the
    /// home.
    pub struct Replicas {
        /// Nodes with a copy of the same page, 2 to 64.
        pub group: u32 = 4;
    }

    pub struct Costs {
        /// Wire between board and switch.
        pub link_latency: Time = 500 * NANOSECOND, by "units::time";
        /// Picoseconds for each byte on it; in the file a bandwidth.
        pub link_bandwidth: Time = 320, by "units::bandwidth";
        /// Wire between switches.
        pub trunk_latency: Time = 500 * NANOSECOND, by "units::time";
        /// Picoseconds for each byte on it; in the file a bandwidth.
        pub trunk_bandwidth: Time = 80, by "units::bandwidth";
        /// From the arrival of a frame at a switch to its output.
        pub switch_crossing: Time = 200 * NANOSECOND, by "units::time";
        /// From the arrival of a frame at a board to its effect.
        pub board: Time = 100 * NANOSECOND, by "units::time";
        /// One access of a board to its guest's memory.
        pub memory: Time = 100 * NANOSECOND, by "units::time";
        /// One access of a processor to its board.
        pub processor: Time = 50 * NANOSECOND, by "units::time";
        /// From an interrupt to its handler, and between attempts of a driver.
        pub interrupt: Time = 2 * MICROSECOND, by "units::time";
        /// Pause of a processor after an operation that was not issued because its partner was unreachable.
        pub retry: Time = 20 * MICROSECOND, by "units::time";
    }

    /// Sizes of the boards.
    pub struct Board {
        /// Requests in flight to one destination.
        pub outstanding: u32 = 64;
        /// Packets of each class that the board offers to take.
        pub credits: u32 = 256;
    }

    /// Sizes of the switches.
    pub struct SwitchSizes {
        /// Packets of each class that a port takes.
        pub credits: u32 = 256;
        /// Frames that an output takes before the first of them has left.
        pub room: u32 = 8;
        /// After so long a node that sends nothing, or returns no credit, is declared down; by default never.
        pub silence: Option<Time> = None, by "units::some_time";
    }
}

/// The most bytes of one block copy: what lies behind the words of stores and atomics in an exported segment.
pub const MAX_COPY: u32 = 24_576;

/// Something that breaks.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Fault {
    /// When, counted from the start of the operations.
    #[serde(deserialize_with = "units::time")]
    pub at: Time,
    pub kind: FaultKind,
    /// The node, for those that have one.
    pub node: Option<NodeId>,
    /// The two switches of a trunk.
    pub trunk: Option<[u16; 2]>,
    #[serde(default, deserialize_with = "units::some_time")]
    pub lasts: Option<Time>,
}
