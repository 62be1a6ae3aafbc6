// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a fabric needs to know, and why it does not run.

use std::path::PathBuf;

use rustix::io::Errno;
use switch_core::{ConfigError, SwitchConfig};
use telegraphos_transport::listener::ListenError;
use telegraphos_transport::{AddressError, OpenError};
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::DEFAULT_CREDITS;

use fabric_topology::Plan;

/// Microseconds after which a silent port is given up, unless configured otherwise.
const DEFAULT_SILENCE: u64 = 10_000_000;
/// Microseconds after which a port that returns no credit is given up, unless configured otherwise.
const DEFAULT_STALL: u64 = 60_000_000;

/// What a fabric process needs to know. Start from [`Config::new`] and change fields.
#[derive(Clone, Debug)]
pub struct Config {
    /// Path of the socket to create for HIBs.
    pub listen: PathBuf,
    /// Number of nodes of the whole fabric, 1 to 4096 (64).
    pub nodes: u32,
    /// Packets of each class that one port may have in a switch (256).
    pub credits: u32,
    /// Window layout every HIB must have; `None`: that of the first to join, or the usual one if there are trunks.
    pub window: Option<WindowLayout>,
    /// See [`SwitchConfig::reply_limit`].
    pub reply_limit: Option<u32>,
    /// The switches and trunks of the whole fabric; `None`: one switch.
    pub plan: Option<Plan>,
    /// The process of the plan that this is; `None`: the only one.
    pub process: Option<String>,
    /// See [`SwitchConfig::silence`].
    pub silence: Option<u64>,
    /// See [`SwitchConfig::stall`].
    pub stall: Option<u64>,
    /// How trunks are opened.
    pub transport: telegraphos_transport::Options,
}

impl Config {
    /// The defaults, listening at `listen`.
    pub fn new(listen: impl Into<PathBuf>) -> Config {
        Config {
            listen: listen.into(),
            nodes: WindowLayout::default().nodes(),
            credits: DEFAULT_CREDITS,
            window: None,
            reply_limit: None,
            plan: None,
            process: None,
            silence: Some(DEFAULT_SILENCE),
            stall: Some(DEFAULT_STALL),
            transport: telegraphos_transport::Options::default(),
        }
    }

    /// The configuration of each switch here.
    pub(super) fn switch(&self) -> SwitchConfig {
        let mut switch = SwitchConfig::new(self.nodes);
        switch.window = self.window;
        switch.credits = [self.credits; 4];
        switch.reply_limit = self.reply_limit;
        switch.silence = self.silence;
        switch.stall = self.stall;
        switch
    }
}

/// Why a fabric does not run.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// The configuration is impossible.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no socket for HIBs.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A trunk cannot be listened for.
    #[error("trunk {name}: {why}")]
    Trunk {
        /// Its name.
        name: String,
        /// Why.
        why: Box<OpenError>,
    },
    /// The address of a trunk cannot be.
    #[error("trunk {name}: {why}")]
    Address {
        /// Its name.
        name: String,
        /// Why.
        why: AddressError,
    },
    /// Which process of the plan this is, is not said, or is none of it.
    #[error(
        "{}: expected one of {}, the processes of the topology",
        process.as_ref().map_or("--process is missing".to_owned(), |process| format!("--process is {process}")),
        known.join(", ")
    )]
    Process {
        /// What was asked for.
        process: Option<String>,
        /// What there is.
        known: Vec<String>,
    },
    /// The system refuses something the fabric cannot do without.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// The reason.
        errno: Errno,
    },
    /// Signals cannot be caught.
    #[error("cannot catch SIGINT and SIGTERM: {0}")]
    Signals(String),
}

pub(super) fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { what, errno }
}
