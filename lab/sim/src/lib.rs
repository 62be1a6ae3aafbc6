// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cluster of up to 4096 nodes in virtual time, in one thread or several: the *real* cores of boards
//! ([`telegraphos_device_core::Hib`]) and switches ([`telegraphos_fabric_core::Switch`]), the same code that runs
//! behind vfio-user and in the fabric process. What is simulated is what lies around them: wires, guest memory, and
//! guests that issue operations (`docs/simulator.md`).
//!
//! ```text
//!  workload file --> plan --> simulation: agenda (what is called next, and when)
//!                                |
//!     node: guest --accesses--> Hib <--steps--> memory          link: two pipes       Switch
//!           driver --commands-->  | ------------frames------->  latency, bandwidth -> ...
//!                                |
//!                             statistics --> report
//! ```
//!
//! The same workload, number of nodes and seed give the same report, byte for byte: time and costs are whole numbers,
//! everything that happens at one moment happens in one order, and each node draws from its own stream of the seed.
#![forbid(unsafe_code)]

mod agenda;
mod ahead;
mod audit;
#[cfg(feature = "bugs")]
mod bugs;
mod driver;
mod guest;
mod histogram;
mod layout;
mod memory;
mod node;
mod output;
mod partition;
mod pattern;
mod pipe;
mod plan;
mod random;
mod report;
mod shares;
mod simulation;
mod statistics;
mod summary;
mod trace;
pub mod units;
mod workers;
mod workload;
mod world;

#[cfg(feature = "bugs")]
pub use bugs::Bugs;
pub use report::{ClassReport, Fairness, Latency, OperationReport, Packets, Pair, Report, TrunkReport};
pub use simulation::{Simulation, SimulationError};
pub use workload::{
    Board, Costs, Fault, FaultKind, Load, MAX_COPY, Mix, Operation, Pattern, Queue, Replicas, Sizes, SwitchSizes,
    Workload, WorkloadError,
};
