// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client library of the one system image (SPEC item 38): a [`Daemon`] is a connection to `tgd`, the daemon of this
//! node, which knows all nodes, and the tasks of all nodes.
//!
//! ```no_run
//! use telegraphos_daemon::{Daemon, Job, Place, Spawn};
//!
//! # fn main() -> Result<(), telegraphos_daemon::Error> {
//! let mut daemon = Daemon::connect()?;
//! let job = Job { argv: vec!["hostname".into()], env: Vec::new(), dir: "/".into(), logger: None };
//! for spawned in daemon.spawn(Spawn { place: Place::LeastLoaded, count: 4, partition: None, job })? {
//!     println!("{:?}", spawned);
//! }
//! while let Some((what, exit)) = daemon.next_death()? {
//!     println!("{what}: {exit}");
//! }
//! # Ok(()) }
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `client` | the connection, and a function for each request |
//! | `logger` | the outputs of tasks, which come to their master |
//! | `program` | what `tgd`, `tg-spawn` and `tg-task` share |
//!
//! A client is the master of the tasks that it spawns: when it goes, by whatever cause, they are ended.

mod client;
mod error;
mod logger;
pub mod program;

pub use client::{Daemon, Spawn, Spawned};
pub use error::{Error, Result};
pub use logger::{Outputs, Piece};
pub use telegraphos_daemon_core::{
    Exit, Job, LOAD_ONE, Logger, NodeInfo, Partition, Place, Refusal, TaskId, TaskInfo, User, Watched,
};

/// Where the daemon of a node listens.
pub const SOCKET: &str = "/run/telegraphos/tgd.sock";
