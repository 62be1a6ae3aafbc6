// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric process: the pure switch of `switch-core` behind a Unix socket, and the HIB's end of that socket.
//!
//! ```text
//!   HIB process ── link::LinkClient ══ Unix stream ══ port ── switch_core::Switch ── port ══ ... ── HIB process
//! ```
//!
//! What travels on the stream is `telegraphos_wire::link`. [`Fabric`] is the server; [`cli_main`] is the command around it.
//! [`control`] is how a running fabric is asked and told, [`metrics`] its endpoint for Prometheus, [`keys`] makes certificates for trunks
//! between hosts.
//! [`service`], [`logging`], [`signals`] and the reading of [`settings`] are what every server of Telegraphos has in common; the
//! listening socket is `telegraphos_transport::listener`, the limit on log lines `telegraphos_transport::limit`, here [`limit`].
//!
//! `unsafe` exists in `signals` and `peer` only.
#![deny(unsafe_code)]

pub mod check;
mod cli;
pub mod control;
mod fabric;
pub mod keys;
pub mod link;
pub mod logging;
pub mod metrics;
mod peer;
pub mod service;
pub mod settings;
pub mod signals;

pub use cli::cli_main;
pub use fabric::{Config, Fabric, FabricError, ShutdownHandle};
pub use settings::{Settings, SettingsError};
pub use telegraphos_transport::limit;
