// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric process: the pure switch of `telegraphos-fabric-core` behind a Unix socket.
//!
//! ```text
//!   HIB process ── telegraphos_link ══ Unix stream ══ port ── telegraphos_fabric_core::Switch ── port ══ ... ── HIB process
//! ```
//!
//! What travels on the stream is `telegraphos_wire::link`. [`Fabric`] is the server; [`cli_main`] is the command around
//! it. [`control`] has queries and commands to a running fabric, [`metrics`] its endpoint for Prometheus, [`keys`]
//! makes certificates for trunks between hosts, [`transports`] is the set of what can carry trunks. What every server
//! of Telegraphos has in common is `telegraphos_service`; what the fabric shares with HIBs, such as the HIB's end of
//! the stream, is `telegraphos_link`.
//!
//! `unsafe` exists in `peer` only.
#![deny(unsafe_code)]

pub mod check;
mod cli;
pub mod control;
#[cfg(feature = "quic")]
pub mod keys;
pub mod metrics;
mod peer;
pub mod settings;
mod shell;
pub mod transports;

pub use cli::{cli_main, command_line};
pub use settings::Settings;
pub use shell::{Config, Fabric, FabricError, Rounds};
pub use telegraphos_service::settings::SettingsError;
pub use telegraphos_service::shutdown::ShutdownHandle;
