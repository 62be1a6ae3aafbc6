// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults on purpose: seeded middleware over connections, so that a network can misbehave without touching the host's.
//!
//! ```text
//!   RDP, QUIC                                  frames
//!      │                                          │
//!   FaultyDatagrams ── loss, corruption, ...   FaultyTransport ── delays; anything else is a link reset
//!      │                                          │
//!   dyn Datagrams                              dyn Transport (reliable: Unix stream, ring, in-process)
//! ```
//!
//! A [`FaultPlan`] describes the faults of a link, a [`LinkFaults`] is the handle by which they can be changed at any
//! time, [`Faults`] has all links of a process by name, and a [`Schedule`] changes them at given times. Both
//! middlewares stack: on each other, and on anything that has the trait.
//!
//! The same seed, link name and sequence of calls give the same faults: a fixed number of random numbers is drawn for
//! each datagram (each 1024 bytes of a stream), whatever the plan.

mod datagrams;
mod delay;
mod lane;
mod link;
mod plan;
mod registry;
mod schedule;
mod transport;

pub use datagrams::FaultyDatagrams;
pub use link::{FaultCounts, FaultEvent, FaultKind, FaultSink, LinkFaults};
pub use plan::{Chance, Direction, FaultPlan, PlanError};
pub use registry::{Faults, UnknownLink};
pub use schedule::{Schedule, ScheduleError, Scheduled};
pub use transport::{FaultyAcceptor, FaultyTransport};
