// SPDX-License-Identifier: MIT OR Apache-2.0
//! What every server process of Telegraphos shares: how it begins, logs, reads its settings and ends.
//!
//! [`command`] has usage errors, how a server starts, and exit codes, [`allocator`] what it keeps of memory it has
//! freed, [`logging`] the log as text or JSON, [`settings`] the TOML file and why settings are refused, [`signals`]
//! those that end a process cleanly, [`shutdown`] what ends a loop, [`wait`] what it waits for, and [`spin`] how long
//! it polls before that sleeps.
//!
//! Used by the HIB (`telegraphos-device`), the fabric, the host process that has both (`telegraphos-host`), and the
//! command `telegraphos` (`telegraphos-cluster`).
//!
//! Not for this crate: what only one process needs. The fabric alone has control and metrics clients, so their servers
//! are there. Packets, sockets and guest memory have no place here.
//!
//! `unsafe` exists in `signals` and `allocator` only.
#![deny(unsafe_code)]

pub mod allocator;
pub mod command;
pub mod logging;
pub mod settings;
pub mod shutdown;
pub mod signals;
pub mod spin;
pub mod wait;
