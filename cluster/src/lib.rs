// SPDX-License-Identifier: MIT OR Apache-2.0
//! Virtual clusters: a fabric and, for each node, a HIB and a stock QEMU, booted in parallel and ended by one harness
//! process. Fabric and HIBs have processes of their own, or share one ([`Processes`]).
//!
//! ```no_run
//! # fn main() -> telegraphos_cluster::Result<()> {
//! use telegraphos_cluster::Cluster;
//! let cluster = Cluster::builder().nodes(2).boot()?;
//! assert_eq!(cluster.node(1).sh("hostname").check()?, "node1\n");
//! cluster.node(0).reset()?;
//! # Ok(())
//! # }
//! ```
//!
//! From the top down:
//!
//! - [`cli`] is the command `telegraphos`.
//! - [`Cluster`] is a running cluster, [`Guest`] one node of it: commands in the guest, QMP, and every fault that
//!   tests inject (reset, unplug, QEMU, HIB or fabric killed).
//! - [`Boards`] are HIBs and a fabric without virtual machines, driven by test clients; `tap` counts what crosses their
//!   links.
//! - `launch` starts HIBs and fabrics: command lines, logs, sockets.
//! - `namespaces` puts fabric processes into separate networks.
//! - `command` runs commands in a guest, through `agent`, its line to the guest's agent; `qmp` speaks to QEMU.
//! - `gdb` says how gdb is started for a guest's kernel.
//! - `nodes` are the nodes of a cluster that differ from the others.
//! - `panic` knows when a guest's kernel has died, and finds on its console why; `symbols` finds the source lines of
//!   its stack.
//! - `stopwatch` is the time that counts against others.
//! - `report` writes what a command did in every guest as JUnit XML and KTAP.
//! - `process` and `rundir` clean up after the harness: children die with it, its directory is removed by it or by the
//!   next one.
//!
//! HIBs and fabric run in this same executable, started again with a hidden first argument. A program that boots
//! clusters therefore begins its `main` with [`reexecuted`].

mod agent;
mod boards;
pub mod cli;
mod clock;
mod cluster;
mod command;
mod error;
mod gdb;
mod guest;
mod interrupt;
mod launch;
mod namespaces;
mod node_name;
mod node_settings;
mod nodes;
mod panic;
mod prepared;
mod process;
mod qmp;
pub mod report;
mod rundir;
mod settings;
mod ssh;
mod stopwatch;
mod symbols;
mod tap;

pub use boards::{Boards, Row};
pub use cluster::{Builder, Cluster};
pub use command::{GuestCommand, Output, OutputLine, Running, Status, User};
pub use error::{Error, Result};
pub use guest::{Guest, NodeOptions};
pub use interrupt::{catch_signals, check as check_interrupt, interrupted, sleep};
pub use launch::{PROMPT, role, start_fabric};
pub use node_name::{NodeLabel, NodeName};
pub use node_settings::NodeSettings;
pub use prepared::{Prepared, prepare};
pub use process::{Memory, Process, listens_seen_by, tail};
pub use rundir::{MachineLock, RunDir};
pub use settings::{Accelerator, MAX_NODES, Net, Processes, Settings};
pub use tap::{LinkCount, PacketKind};
pub use telegraphos_device_client as client;
pub use telegraphos_fabric::control;
pub use telegraphos_images::Progress as ProgressMode;

use std::path::Path;
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Serves as HIB or fabric if this process was started as one of a cluster's; `main` then returns what this returns.
/// To be called first, before any thread is started.
pub fn reexecuted() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let program = args.next()?;
    let role = args.next()?;
    let rest = std::iter::once(program).chain(args);
    match role.to_str()? {
        "__hib" => Some(telegraphos_device::cli_main(rest)),
        "__host" => Some(telegraphos_host::cli_main(rest)),
        "__fabric" => Some(telegraphos_fabric::cli_main(rest)),
        "__up" => Some(cli::detached_main(rest)),
        "__namespace" => namespaces::hold(),
        _ => None,
    }
}

/// Locks, also what a thread that has panicked has held.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a thread has returned; its panic is this one's.
fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The directory that a path is in.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
