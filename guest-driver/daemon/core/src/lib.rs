// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one system image of a cluster (s3 §6, SPEC item 38), as a pure state machine: one [`Engine`] in the daemon of
//! each node takes [events](Event) and returns [actions](Action). It has no clock, socket or process of its own; time
//! is [`Event::Tick`], once a period.
//!
//! ```text
//!   client ──Request──► Engine of its node ──Letter::Spawn──► Engine of the node that was chosen ──Start──► process
//!          ◄─Answer───                     ◄─Spawned, Died───                                    ◄─Exited──
//!   Engine ──Beat, once a period: one message for all nodes──► the others: Heard
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `types` | tasks, users, nodes, partitions; how a task ends; why something is refused |
//! | `protocol` | what clients and daemons say to each other, its encoding and its limits |
//! | `interface` | events, actions, configuration |
//! | `engine` | the rules: clients' requests, and what other daemons say |
//! | `members` | which nodes are alive, in which incarnation |
//! | `outbox` | the letters that are on their way, and whose they are |
//! | `tasks` | the tasks of this node |
//! | `partitions` | subsets of the nodes, of which all daemons have the same |
//!
//! Letters between two daemons that both live arrive once and in order. A node is dead when it is silent, and for no
//! other reason: a letter that cannot be delivered is sent again. What an incarnation that is dead for a daemon
//! has said, or says later, does not count: a node that has been declared dead by mistake is notified
//! ([`Letter::Fenced`](protocol::Letter::Fenced)), ends its tasks, and continues as another incarnation. So the death
//! of a node is final for all daemons that have seen it.
#![forbid(unsafe_code)]

mod bugs;
mod engine;
mod interface;
mod members;
mod outbox;
mod partitions;
pub mod protocol;
mod tasks;
mod types;

#[cfg(feature = "bugs")]
pub use bugs::Bug;
pub use engine::Engine;
pub use interface::{Action, Config, Event, Party};
pub use types::{
    Exit, INCARNATION_BITS, Incarnation, Job, LOAD_ONE, Logger, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo,
    User, Watched,
};
