// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a fabric process, and why it does not run.

use std::path::PathBuf;

use rustix::io::Errno;
use telegraphos_accounts::Rate;
use telegraphos_capture::{CaptureError, CaptureOptions};
use telegraphos_fabric_core::pairs::DEFAULT_PAIRS;
use telegraphos_fabric_core::{ConfigError, SwitchConfig};
use telegraphos_link::listener::ListenError;
use telegraphos_topology::{Plan, SwitchId};
use telegraphos_transport::faults::{FaultPlan, Schedule, UnknownLink};
use telegraphos_wire::WindowLayout;
use telegraphos_wire::link::DEFAULT_CREDITS;

use super::names::between;
use crate::metrics::{MetricsAddress, MetricsError};
use crate::transports;

/// Default microseconds after which a silent port is disconnected.
const DEFAULT_SILENCE: u64 = 10_000_000;
/// Default microseconds after which a port that returns no credit is disconnected.
const DEFAULT_STALL: u64 = 60_000_000;

/// Default number of rings of one HIB: one to each other HIB on hosts of up to 17. The rings of one HIB then have at
/// most 4 MiB of memory, and those of a host with 64 HIBs 130 MiB.
const RINGS: u32 = 16;

/// How often a node may join or be reset: a guest resets its board a few times when it boots.
const PRESENCE: Rate = Rate::new(16, 128);
/// Connections accepted from HIBs, of whatever process.
const ACCEPTED: Rate = Rate::new(1000, 256);

/// The configuration of a fabric process. Start from [`Config::new`] and change fields.
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
    /// See [`SwitchConfig::presence_rate`] (16 a second, 128 at once).
    pub presence_rate: Option<Rate>,
    /// Connections accepted from HIBs (1000 a second, 256 at once); more wait.
    pub accept_rate: Rate,
    /// Path of the control socket to create, if there is to be one.
    pub control: Option<PathBuf>,
    /// Where to listen for Prometheus, if at all.
    pub metrics: Option<MetricsAddress>,
    /// How trunks are opened; its `silence` is how long a trunk over datagrams may be cut without breaking.
    pub transport: transports::Options,
    /// What is wrong from the start, by names such as `node:3`, `trunk:a-b` or `*`.
    pub faults: Vec<(String, FaultPlan)>,
    pub schedule: Schedule,
    /// Seed of all faults.
    pub seed: u64,
    /// What to capture from the start.
    pub capture: Option<CaptureOptions>,
    /// Rings of one HIB to others of this host, at most; 0: none (16).
    pub rings: u32,
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
            presence_rate: Some(PRESENCE),
            accept_rate: ACCEPTED,
            control: None,
            metrics: None,
            transport: transports::Options::default(),
            faults: Vec::new(),
            schedule: Schedule::default(),
            seed: 0,
            capture: None,
            rings: RINGS,
        }
    }

    /// The shortest time limit of a port, if there is any.
    pub(super) fn shortest_limit(&self) -> Option<u64> {
        self.silence.into_iter().chain(self.stall).min()
    }

    /// The name of the trunk between two switches.
    pub(super) fn trunk_between(&self, a: SwitchId, b: SwitchId) -> String {
        self.plan.as_ref().map_or_else(|| format!("{a}-{b}"), |plan| between(&plan.topology, a, b))
    }

    /// The configuration of each switch here.
    pub(super) fn switch(&self) -> SwitchConfig {
        let mut switch = SwitchConfig::new(self.nodes);
        switch.window = self.window;
        switch.credits = [self.credits; 4];
        switch.reply_limit = self.reply_limit;
        switch.silence = self.silence;
        switch.stall = self.stall;
        switch.presence_rate = self.presence_rate;
        switch.pairs = DEFAULT_PAIRS.min(4 * (self.nodes as usize).pow(2));
        switch
    }
}

/// Why a fabric does not run.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no socket for HIBs.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A trunk cannot be listened for, or its address cannot be.
    #[error("trunk {name}: {why}")]
    Trunk { name: String, why: String },
    /// Faults of what is not there.
    #[error("--fault: {0}")]
    Fault(#[from] UnknownLink),
    #[error(transparent)]
    Capture(#[from] Box<CaptureError>),
    /// The configuration names no process of the plan.
    #[error(
        "{}: expected one of {}, the processes of the topology",
        process.as_ref().map_or("--process is missing".to_owned(), |process| format!("--process is {process}")),
        known.join(", ")
    )]
    Process { process: Option<String>, known: Vec<String> },
    /// The system refuses something the fabric cannot do without.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was to be done.
        what: &'static str,
        errno: Errno,
    },
    /// There is no endpoint for Prometheus.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error("cannot catch SIGINT and SIGTERM: {0}")]
    Signals(String),
}

/// Makes an error of the system one that says what was to be done.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> FabricError {
    move |errno| FabricError::System { what, errno }
}
