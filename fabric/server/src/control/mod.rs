// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control socket: queries and commands to a running fabric (`docs/control.md`).
//!
//! ```text
//!   ctl, top, scripts ── ControlClient ══ Unix stream, lines of JSON ══ ControlServer ── the fabric
//! ```
//!
//! [`protocol`] has requests and answers, [`snapshot`] what is counted and reported, [`target`] how links, trunks and
//! faults are named. All three are used by both ends. The server is driven by the fabric's own loop and depends on the
//! fabric only as a function from requests to answers.

mod client;
pub mod protocol;
mod server;
pub mod snapshot;
pub mod target;

pub use client::{ClientError, ControlClient};
pub use protocol::{Done, ErrorAnswer, ErrorKind, Request, Response};
pub use server::{ControlServer, Limits};
pub use snapshot::Snapshot;
pub use target::{FaultSpec, Target};

use std::path::{Path, PathBuf};

/// The default control socket of a fabric that listens at `listen`: the same path with `.control` behind it.
pub fn default_path(listen: &Path) -> PathBuf {
    let mut path = listen.as_os_str().to_owned();
    path.push(".control");
    path.into()
}
