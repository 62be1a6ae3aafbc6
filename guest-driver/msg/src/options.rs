// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the messages of a process are opened with.

use std::fmt;
use telegraphos_msg_core::Config;

/// How a process finds out that a message has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Progress {
    /// A thread looks all the time. For processes with a processor to spare.
    Polling,
    /// A thread sleeps until an interrupt, and then wakes the one whose message has come.
    #[default]
    Blocking,
    /// Threads that wait look themselves for as long as that has been worth it, and sleep then. Neither an interrupt
    /// nor another thread stands between a message and a thread that looks.
    Adaptive,
}

/// What the messages of a process are opened with; from a [`Config`], or with other fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Sizes and limits, which must be the same for all processes that talk to each other.
    pub config: Config,
    /// Ports: queues with a thread each, 1 to [`Options::MOST_PORTS`]. One is opened for each process that this one
    /// talks to, until there are so many; further processes share them (s4 §4: any number of threads over 8 ports).
    pub ports: u16,
    /// How messages are waited for.
    pub progress: Progress,
    /// Threads that look let others of this processor run between two looks (s3's hint for coscheduling). Without it,
    /// processes that exchange messages on one processor each look until the scheduler takes it from them.
    pub yields: bool,
    /// How processes are reached that no board reaches, if they are.
    pub routing: Option<Routing>,
}

/// How a process takes part in routing (SPEC item 42): it has streams to neighbours, which tell it what they reach.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Routing {
    /// The number of this cluster's node 0 among the nodes of all clusters, which is the same for all its processes.
    pub first_node: u16,
    /// Others reach further processes by this one.
    pub gateway: bool,
    /// Where neighbours connect to, as `0.0.0.0:7000`.
    pub listen: Option<String>,
    /// Neighbours to connect to, as `gateway.example:7000`, and again when that ends; at most
    /// [`Routing::MOST_NEIGHBOURS`].
    pub neighbours: Vec<String>,
    /// What all of them have in common, at least [`Routing::SHORTEST_KEY`] bytes. A process that has it is trusted to
    /// identify itself correctly, and to pass on what is from and for others.
    pub key: Vec<u8>,
}

impl Routing {
    /// Neighbours to connect to, at most.
    pub const MOST_NEIGHBOURS: usize = 64;
    /// Bytes of a key, at least.
    pub const SHORTEST_KEY: usize = 16;
}

impl fmt::Debug for Routing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Routing { first_node, gateway, listen, neighbours, key: _ } = self;
        let mut all = f.debug_struct("Routing");
        all.field("first_node", first_node).field("gateway", gateway).field("listen", listen);
        all.field("neighbours", neighbours).finish_non_exhaustive()
    }
}

impl Options {
    /// Ports, at most.
    pub const MOST_PORTS: u16 = 64;
}

impl Default for Options {
    fn default() -> Options {
        Config::default().into()
    }
}

impl From<Config> for Options {
    fn from(config: Config) -> Options {
        Options { config, ports: 8, progress: Progress::default(), yields: true, routing: None }
    }
}
