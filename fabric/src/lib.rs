// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fabric process: the pure switch of `switch-core` behind a Unix socket, and the HIB's end of that socket.
//!
//! ```text
//!   HIB process ── link::LinkClient ══ Unix stream ══ port ── switch_core::Switch ── port ══ ... ── HIB process
//! ```
//!
//! What travels on the stream is `telegraphos_wire::link`. [`Fabric`] is the server; [`cli_main`] is the command around it.
#![forbid(unsafe_code)]

mod cli;
mod fabric;
mod limit;
pub mod link;
mod settings;
mod socket;

pub use cli::cli_main;
pub use fabric::{Config, Fabric, FabricError, ShutdownHandle};
pub use settings::{Settings, SettingsError};
pub use socket::ListenError;
