// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be configured, once: the same names on the command line and in the TOML file. The command line wins.

use std::fs;
use std::path::PathBuf;

use serde::Deserialize;
use telegraphos_capture::{CaptureOptions, Link};
use telegraphos_service::logging::LogFormat;
use telegraphos_service::settings::SettingsError;
use telegraphos_transport::QuicOptions;
use telegraphos_transport::faults::Schedule;
use telegraphos_wire::WindowLayout;

use crate::control;
use crate::metrics::MetricsAddress;
use crate::shell::Config;

/// Bytes of the longest path of a Unix socket.
const MAX_SOCKET_PATH: usize = 107;
/// Microseconds of a year, for transports that cannot do without a limit.
const NEVER: u64 = 366 * 86_400_000_000;

/// All settings; what is not given has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, clap::Args)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Socket to create for the HIBs (mode 0600)
    #[arg(long, value_name = "PATH")]
    pub listen: Option<PathBuf>,
    /// Nodes of the cluster, 1 to 4096; node numbers are below it [default: 64]
    #[arg(long, value_name = "N")]
    pub nodes: Option<u32>,
    /// log2 of the nodes a window can address; every HIB must have the same [default: as the first HIB]
    #[arg(long, value_name = "BITS")]
    pub node_bits: Option<u8>,
    /// log2 of the window bytes per node; every HIB must have the same [default: as the first HIB]
    #[arg(long, value_name = "BITS")]
    pub offset_bits: Option<u8>,
    /// Packets of each class that one node may have in the switch, 1 to 65536 [default: 256]
    #[arg(long, value_name = "N")]
    pub credits: Option<u32>,
    /// Replies of one node that may wait for one other [default: twice what the credits of both allow]
    #[arg(long, value_name = "N")]
    pub reply_limit: Option<u32>,
    /// Switches and trunks: a TOML file that all fabric processes share, or tree:4x2, mesh:4x4, torus:4x4 [default:
    /// star]
    #[arg(long, value_name = "FILE|TOPOLOGY")]
    pub topology: Option<String>,
    /// Which process of the topology file this is
    #[arg(long, value_name = "NAME")]
    pub process: Option<String>,
    /// What is wrong with links or trunks, as NAME=PLAN: `node:3=rate=1MB/s`, `trunk:a-b=loss=5% corrupt=1%`,
    /// `*=latency=2ms`
    #[arg(long, value_name = "NAME=PLAN")]
    #[serde(default)]
    pub fault: Vec<String>,
    /// A TOML file of faults that come and go: `[[event]]` with `at = "5s"`, `link = "trunk:a-b"`, `set = "down"` or
    /// `clear = true`
    #[arg(long, value_name = "FILE")]
    pub faults: Option<PathBuf>,
    /// Most rings in shared memory of each HIB to others of this host, beside the switch; each takes up to 260 KiB.
    /// HIBs of one process have rings to all others of it. 0: none, also within a process. Not in use while a link has
    /// faults or something is captured [default: 16]
    #[arg(long, value_name = "N")]
    pub rings: Option<u32>,
    /// Seed of all faults: the same seed gives the same faults [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write all frames of links and trunks to a pcapng file, for Wireshark and `telegraphos replay`
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// Capture only these: `node:3`, `trunk:0-1` (switch 0's end of its trunk to 1), `switch:0`; such a capture cannot
    /// be replayed
    #[arg(long, value_name = "LINK")]
    #[serde(default)]
    pub capture_link: Vec<String>,
    /// Bytes after which the capture stops
    #[arg(long, value_name = "BYTES")]
    pub capture_limit: Option<u64>,
    /// Bytes of each frame that are captured, 8 or more; such a capture cannot be replayed [default: all]
    #[arg(long, value_name = "BYTES")]
    pub capture_snap: Option<u32>,
    /// This process's certificate for trunks by QUIC, a PEM file (telegraphos-fabric keys new-process)
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Its private key, a PEM file that no other user may read
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The cluster's CA, a PEM file: peers must have a certificate of it in the name of their process
    #[arg(long, value_name = "FILE")]
    pub peers_ca: Option<PathBuf>,
    /// Allows trunks by plain UDP beyond the loopback: neither encrypted nor authenticated
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub insecure_trunks: Option<bool>,
    /// Milliseconds after which a HIB or trunk is disconnected that sends nothing, not even an answer to a probe; 0:
    /// never [default: 10000]
    #[arg(long, value_name = "MS")]
    pub silence_ms: Option<u64>,
    /// Milliseconds after which a HIB or trunk is disconnected that returns no credit while packets wait; 0: never
    /// [default: 60000]
    #[arg(long, value_name = "MS")]
    pub stall_ms: Option<u64>,
    /// Control socket to create (mode 0600), for telegraphos ctl and top; none: no such socket [default: --listen with
    /// .control]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Serve Prometheus at http://ADDRESS/metrics; a port alone is of 127.0.0.1 [default: not at all]
    #[arg(long, value_name = "PORT|ADDRESS")]
    pub metrics: Option<MetricsAddress>,
    /// error, warn, info, debug, trace, or a filter of the crate env_logger [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// How lines of the log look [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl Settings {
    /// The configuration they make, with defaults.
    pub fn config(&self) -> Result<Config, SettingsError> {
        let listen = self.listen.clone().ok_or(SettingsError::Missing("listen"))?;
        let mut config = Config::new(listen);
        let range = |name, value: u32, least: u32, most: u32| {
            if (least..=most).contains(&value) {
                Ok(value)
            } else {
                Err(SettingsError::Range { name, value: value.into(), expected: format!("{least} to {most}") })
            }
        };
        if self.node_bits.is_some() || self.offset_bits.is_some() {
            let usual = WindowLayout::default();
            let window = WindowLayout::new(
                self.node_bits.unwrap_or(usual.node_bits),
                self.offset_bits.unwrap_or(usual.offset_bits),
            )
            .map_err(|e| SettingsError::refused("--node-bits, --offset-bits", e))?;
            config.window = Some(window);
            // A smaller window makes a smaller cluster by default.
            config.nodes = config.nodes.min(window.nodes());
        }
        if let Some(nodes) = self.nodes {
            let most = config.window.map_or(telegraphos_fabric_core::MAX_NODES, |w| w.nodes());
            config.nodes = range("nodes", nodes, 1, most)?;
        }
        if let Some(from) = &self.topology {
            let plan = crate::check::plan(from, self.nodes).map_err(|e| SettingsError::refused("--topology", e))?;
            config.nodes = range("nodes", plan.topology.nodes(), 1, config.window.unwrap_or_default().nodes())?;
            plan.topology.check().map_err(|e| SettingsError::refused("--topology", format_args!("{from}: {e}")))?;
            config.plan = Some(plan);
        }
        config.process = self.process.clone();
        config.transport.allow_insecure = self.insecure_trunks.unwrap_or(false);
        config.transport.quic = match (&self.certificate, &self.key, &self.peers_ca) {
            (None, None, None) => None,
            (Some(certificate), Some(key), Some(ca)) => Some(QuicOptions {
                certificate: certificate.clone(),
                key: key.clone(),
                peers_ca: Some(ca.clone()),
                // Of each trunk the process at its other end.
                peers: Vec::new(),
                addresses: Vec::new(),
            }),
            (certificate, key, _) => {
                let missing = if certificate.is_none() { "certificate" } else { "peers-ca" };
                return Err(SettingsError::Missing(if key.is_none() { "key" } else { missing }));
            }
        };
        config.control = match &self.control {
            Some(none) if none.as_os_str() == "none" => None,
            Some(path) => Some(path.clone()),
            // The default only: there is none where its path would be too long.
            None => {
                Some(control::default_path(&config.listen)).filter(|path| path.as_os_str().len() <= MAX_SOCKET_PATH)
            }
        };
        config.metrics = self.metrics;
        for text in &self.fault {
            let fault = |why: String| SettingsError::refused(format!("--fault {text:?}"), why);
            let (name, plan) = text
                .split_once('=')
                .ok_or_else(|| fault("expected NAME=PLAN, such as trunk:a-b=loss=5%".to_owned()))?;
            let plan = plan.parse().map_err(|e: telegraphos_transport::faults::PlanError| fault(e.to_string()))?;
            config.faults.push((name.to_owned(), plan));
        }
        if let Some(file) = &self.faults {
            let name = format!("configuration file {}", file.display());
            let text =
                fs::read_to_string(file).map_err(|e| SettingsError::refused(format!("cannot read the {name}"), e))?;
            config.schedule = Schedule::parse(&text).map_err(|e| SettingsError::refused(name, e))?;
        }
        config.seed = self.seed.unwrap_or(config.seed);
        config.rings = range("rings", self.rings.unwrap_or(config.rings), 0, 4096)?;
        if let Some(file) = &self.capture {
            let links = self.capture_link.iter().map(|link| link.parse::<Link>());
            let links = links.collect::<Result<_, _>>().map_err(|e| SettingsError::refused("--capture-link", e))?;
            config.capture = Some(CaptureOptions {
                file: file.clone(),
                links,
                limit: self.capture_limit,
                snap: self.capture_snap,
                ..CaptureOptions::default()
            });
        }
        if let Some(credits) = self.credits {
            config.credits = range("credits", credits, 1, 1 << 16)?;
        }
        let limit = |name, ms: Option<u64>, default| match ms {
            None => Ok(default),
            Some(0) => Ok(None),
            Some(ms) if (10..=86_400_000).contains(&ms) => Ok(Some(ms * 1000)),
            Some(value) => Err(SettingsError::Range { name, value, expected: "0, or 10 to 86400000".to_owned() }),
        };
        config.silence = limit("silence-ms", self.silence_ms, config.silence)?;
        // What carries trunks is as patient as the switches.
        config.transport.common.silence = config.silence.unwrap_or(NEVER);
        config.stall = limit("stall-ms", self.stall_ms, config.stall)?;
        if let Some(limit) = self.reply_limit {
            config.reply_limit = Some(range("reply-limit", limit, 1, u32::MAX)?);
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("fabric.toml");
        std::fs::write(&file, text).unwrap();
        (dir, file)
    }

    #[test]
    fn an_unknown_key_is_refused_by_name_and_file() {
        let (_dir, file) = written("listen = \"/tmp/x\"\nnode = 3\n");
        let error = telegraphos_service::settings::read::<Settings>(&file).unwrap_err().to_string();
        assert!(error.contains("`node`") && error.contains("fabric.toml") && error.contains("line 2"), "{error}");
    }

    #[test]
    fn impossible_values_are_named_with_what_was_expected() {
        let base = Settings { listen: Some("/a".into()), ..Settings::default() };
        for (settings, parts) in [
            (Settings::default(), ["--listen", "is missing"]),
            (Settings { nodes: Some(0), ..base.clone() }, ["--nodes is 0", "1 to 4096"]),
            (Settings { nodes: Some(5), node_bits: Some(2), ..base.clone() }, ["--nodes is 5", "1 to 4"]),
            (Settings { credits: Some(0), ..base.clone() }, ["--credits is 0", "1 to 65536"]),
            (Settings { node_bits: Some(13), ..base.clone() }, ["--node-bits", "are 13"]),
            (Settings { reply_limit: Some(0), ..base.clone() }, ["--reply-limit is 0", "1 to"]),
            (Settings { silence_ms: Some(9), ..base.clone() }, ["--silence-ms is 9", "0, or 10 to"]),
            (Settings { stall_ms: Some(86_400_001), ..base.clone() }, ["--stall-ms is 86400001", "0, or 10 to"]),
        ] {
            let error = settings.config().unwrap_err().to_string();
            assert!(parts.iter().all(|p| error.contains(p)), "{error}");
        }
        assert_eq!(Settings { node_bits: Some(2), ..base.clone() }.config().unwrap().nodes, 4);
        let default = base.clone().config().unwrap();
        assert_eq!((default.control.as_deref(), default.metrics), (Some(Path::new("/a.control")), None));
        let other =
            Settings { control: Some("/b".into()), metrics: "7".parse().ok(), ..base.clone() }.config().unwrap();
        assert_eq!((other.control.as_deref(), other.metrics), (Some(Path::new("/b")), "127.0.0.1:7".parse().ok()));
        assert_eq!(Settings { control: Some("none".into()), ..base.clone() }.config().unwrap().control, None);
        let long = Settings { listen: Some(format!("/{}", "x".repeat(100)).into()), ..base.clone() };
        assert_eq!(long.config().unwrap().control, None, "a default that cannot be is none");
        let usual = Settings { silence_ms: Some(30_000), ..base.clone() }.config().unwrap();
        assert_eq!(usual.transport.common.silence, 30_000_000, "trunks are closed no earlier");
        let patient = Settings { silence_ms: Some(0), stall_ms: Some(10), ..base }.config().unwrap();
        assert_eq!((patient.silence, patient.stall), (None, Some(10_000)));
        assert!(patient.transport.common.silence > 86_400_000_000);
    }
}
