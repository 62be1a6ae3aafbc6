// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of the program, with the same names on the command line and in the TOML file. The command line takes
//! precedence. `cli` reads both and passes the resulting [`shell::Config`] to the server.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use telegraphos_device_core::{HibConfig, MAX_CONTEXTS};
use telegraphos_service::logging::LogFormat;
use telegraphos_service::settings::SettingsError;
use telegraphos_wire::WindowLayout;

use crate::{memory, shell};

/// All settings; one that is `None` has its default.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// Socket to create for QEMU (mode 0600)
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// This node's number in the cluster, from 0
    #[arg(long, value_name = "N")]
    pub node: Option<u16>,
    /// Socket of the fabric (telegraphos-fabric --listen)
    #[arg(long, value_name = "PATH")]
    pub fabric: Option<PathBuf>,
    /// log2 of the nodes the window can address; the same on all nodes [default: 6]
    #[arg(long, value_name = "BITS")]
    pub node_bits: Option<u8>,
    /// log2 of the window bytes per node; the same on all nodes [default: 26]
    #[arg(long, value_name = "BITS")]
    pub offset_bits: Option<u8>,
    /// Longest wait of a guest's load, in milliseconds, 1 to 4000: QEMU disables the device after 5000 [default: 1000]
    #[arg(long, value_name = "MS")]
    pub load_limit_ms: Option<u64>,
    /// Unanswered requests to one node [default: 64]
    #[arg(long, value_name = "N")]
    pub outstanding: Option<u32>,
    /// Waiting stores of one import at which its processes are stopped [default: 1024]
    #[arg(long, value_name = "N")]
    pub congest_at: Option<u32>,
    /// Waiting stores at which they continue [default: 256]
    #[arg(long, value_name = "N")]
    pub clear_at: Option<u32>,
    /// Waiting stores of the whole board at which stores are lost [default: 1048576]
    #[arg(long, value_name = "N")]
    pub reserve: Option<u32>,
    /// Guest messages without a pause at which importing processes are stopped [default: 8192]
    #[arg(long, value_name = "N")]
    pub intake_limit: Option<u32>,
    /// MiB of unfinished copies of one context at which its processes are stopped [default: 64]
    #[arg(long, value_name = "MIB")]
    pub copies_congest_mib: Option<u32>,
    /// MiB of unfinished copies at which they continue [default: 16]
    #[arg(long, value_name = "MIB")]
    pub copies_clear_mib: Option<u32>,
    /// MiB of unfinished copies of one context beyond which a launch fails, 16 to 1048576 [default: 1024]
    #[arg(long, value_name = "MIB")]
    pub copies_limit_mib: Option<u32>,
    /// GiB of guest memory that may be mapped in all, 1 to 65536 [default: 16384]
    #[arg(long, value_name = "GIB")]
    pub dma_limit_gib: Option<u32>,
    /// Packets of each class the fabric may send ahead, 1 to 2048 [default: 256]
    #[arg(long, value_name = "N")]
    pub credits: Option<u32>,
    /// Contexts (processes) of the board, a power of two up to 256 [default: 256]
    #[arg(long, value_name = "N")]
    pub contexts: Option<u16>,
    /// Imports of the board, 1 to 65534 [default: 1024]
    #[arg(long, value_name = "N")]
    pub imports: Option<u16>,
    /// Export pages (64 KiB each) of the board, 1 to 1048576 [default: 4096]
    #[arg(long, value_name = "N")]
    pub export_pages: Option<u32>,
    /// Elements in flight through one import of a queue of this node, 1 to 4096 [default: 32]
    #[arg(long, value_name = "N")]
    pub hold: Option<u32>,
    /// Receive credits of all queues of this node together; an import beyond them is refused [default: 8192]
    #[arg(long, value_name = "N")]
    pub holds: Option<u32>,
    /// Counters of own stores to replicated pages that the home has not reflected, one per aligned 8-byte word;
    /// a store that finds none free waits, 1 to 1024 [default: 32]
    #[arg(long, value_name = "N")]
    pub pending_writes: Option<u16>,
    /// Longest wait for a copy of a replicated page to acknowledge a store, or for a home to fill a copy, in
    /// milliseconds, 10 to 60000; after that the copy is dropped from the page [default: 5000]
    #[arg(long, value_name = "MS")]
    pub replica_limit_ms: Option<u64>,
    /// Let the switch replicate packets for all copies of a page; else this board sends a packet to each copy [default:
    /// true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub fanout_by_switch: Option<bool>,
    /// MSI-X instead of MSI; QEMU up to 11.1.3 aborts when such a device is unplugged
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub msix: Option<bool>,
    /// Microseconds to poll for work before sleeping; costs a processor [default: 0]
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// error, warn, info, debug, trace, or a filter of the crate env_logger [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log: Option<String>,
    /// Format of log lines [default: text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,
}

macro_rules! overlay {
    ($over:expr, $under:expr; $($field:ident),* $(,)?) => {
        Settings { $( $field: $over.$field.or($under.$field), )* }
    };
}

impl Settings {
    /// Reads a TOML file. An unknown key is an error that names it.
    pub fn from_file(file: &Path) -> Result<Settings, SettingsError> {
        telegraphos_service::settings::read(file)
    }

    /// These settings, with those of `under` where these are `None`.
    pub fn over(self, under: Settings) -> Settings {
        overlay!(self, under; socket, node, fabric, node_bits, offset_bits, load_limit_ms, outstanding, congest_at,
            clear_at, reserve, intake_limit, copies_congest_mib, copies_clear_mib, copies_limit_mib, dma_limit_gib, credits, contexts, imports, export_pages, hold, holds, pending_writes,
            replica_limit_ms, fanout_by_switch, msix, spin_us, log, log_format)
    }

    /// Checks all settings and fills in the defaults.
    pub fn config(&self) -> Result<shell::Config, SettingsError> {
        let socket = self.socket.clone().ok_or(SettingsError::Missing("socket"))?;
        let node = self.node.ok_or(SettingsError::Missing("node"))?;
        let fabric = self.fabric.clone().ok_or(SettingsError::Missing("fabric"))?;
        let default = WindowLayout::default();
        let node_bits = self.node_bits.unwrap_or(default.node_bits);
        let offset_bits = self.offset_bits.unwrap_or(default.offset_bits);
        let window = WindowLayout::new(node_bits, offset_bits)
            .map_err(|e| SettingsError::refused("--node-bits, --offset-bits", e))?;
        let range = |name, value: u64, ok: bool, expected: &str| {
            if ok { Ok(()) } else { Err(SettingsError::Range { name, value, expected: expected.to_owned() }) }
        };
        range(
            "node",
            node.into(),
            u32::from(node) < window.nodes(),
            "less than the nodes the window can address (2 to the --node-bits)",
        )?;
        let mut hib = HibConfig { window, ..HibConfig::new(node) };
        if let Some(ms) = self.load_limit_ms {
            range("load-limit-ms", ms, (1..=4000).contains(&ms), "1 to 4000 (QEMU gives the device up after 5000)")?;
            hib.load_limit = ms * 1000;
        }
        hib.outstanding = self.outstanding.unwrap_or(hib.outstanding);
        range("outstanding", hib.outstanding.into(), (1..=4096).contains(&hib.outstanding), "1 to 4096")?;
        hib.reserve = self.reserve.unwrap_or(hib.reserve);
        range("reserve", hib.reserve.into(), (16..=16 << 20).contains(&hib.reserve), "16 to 16777216")?;
        hib.congest_at = self.congest_at.unwrap_or(hib.congest_at.min(hib.reserve));
        let congest = (2..=hib.reserve).contains(&hib.congest_at);
        range("congest-at", hib.congest_at.into(), congest, "at least 2 and at most --reserve")?;
        hib.clear_at = self.clear_at.unwrap_or(hib.clear_at.min(hib.congest_at - 1));
        let clear = (1..hib.congest_at).contains(&hib.clear_at);
        range("clear-at", hib.clear_at.into(), clear, "at least 1 and less than --congest-at")?;
        hib.intake_limit = self.intake_limit.unwrap_or(hib.intake_limit);
        range("intake-limit", hib.intake_limit.into(), hib.intake_limit >= 256, "at least 256")?;
        let mib = |given: Option<u32>, default: u64| given.map_or(default, |mib| u64::from(mib) << 20);
        hib.copies_limit = mib(self.copies_limit_mib, hib.copies_limit);
        let limit = (telegraphos_device_core::MAX_COPY..=1 << 40).contains(&hib.copies_limit);
        range("copies-limit-mib", hib.copies_limit >> 20, limit, "16 (the longest copy) to 1048576")?;
        hib.copies_congest_at = mib(self.copies_congest_mib, hib.copies_congest_at.min(hib.copies_limit));
        let congest = (1 << 20..=hib.copies_limit).contains(&hib.copies_congest_at);
        range("copies-congest-mib", hib.copies_congest_at >> 20, congest, "at least 1 and at most --copies-limit-mib")?;
        hib.copies_clear_at = mib(self.copies_clear_mib, hib.copies_clear_at.min(hib.copies_congest_at / 2));
        let clear = hib.copies_clear_at < hib.copies_congest_at;
        range("copies-clear-mib", hib.copies_clear_at >> 20, clear, "less than --copies-congest-mib")?;
        let dma_limit = self.dma_limit_gib.map_or(memory::DEFAULT_LIMIT, |gib| u64::from(gib) << 30);
        let dma = (1 << 30..=1 << 46).contains(&dma_limit);
        range("dma-limit-gib", dma_limit >> 30, dma, "1 to 65536")?;
        if let Some(credits) = self.credits {
            range("credits", credits.into(), (1..=2048).contains(&credits), "1 to 2048")?;
            hib.credits = [credits; 4];
        }
        hib.contexts = self.contexts.unwrap_or(hib.contexts);
        let contexts = hib.contexts.is_power_of_two() && hib.contexts <= MAX_CONTEXTS;
        range(
            "contexts",
            hib.contexts.into(),
            contexts,
            "a power of two from 1 to 256: the word of an argument names a context in 8 bits",
        )?;
        hib.imports = self.imports.unwrap_or(hib.imports);
        range("imports", hib.imports.into(), (1..=65534).contains(&hib.imports), "1 to 65534")?;
        hib.export_pages = self.export_pages.unwrap_or(hib.export_pages);
        let pages = (1..=1 << 20).contains(&hib.export_pages);
        range("export-pages", hib.export_pages.into(), pages, "1 to 1048576")?;
        hib.hold = self.hold.unwrap_or(hib.hold);
        range("hold", hib.hold.into(), (1..=4096).contains(&hib.hold), "1 to 4096")?;
        hib.holds = self.holds.unwrap_or(hib.holds.max(hib.hold));
        let holds = (hib.hold..=1 << 20).contains(&hib.holds);
        range("holds", hib.holds.into(), holds, "at least --hold and at most 1048576")?;
        hib.pending_writes = self.pending_writes.unwrap_or(hib.pending_writes);
        let pending = (1..=1024).contains(&hib.pending_writes);
        range(
            "pending-writes",
            hib.pending_writes.into(),
            pending,
            "1 to 1024: without one, no store could ever be made",
        )?;
        if let Some(ms) = self.replica_limit_ms {
            range("replica-limit-ms", ms, (10..=60_000).contains(&ms), "10 to 60000")?;
            hib.replica_limit = ms * 1000;
        }
        hib.fanout_by_switch = self.fanout_by_switch.unwrap_or(hib.fanout_by_switch);
        hib.msix = self.msix.unwrap_or(false);
        let spin = self.spin_us.unwrap_or(0);
        range("spin-us", spin, spin <= 1_000_000, "0 to 1000000")?;
        Ok(shell::Config { socket, fabric, hib, spin, dma_limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal() -> Settings {
        Settings { socket: Some("s".into()), node: Some(1), fabric: Some("f".into()), ..Settings::default() }
    }

    #[test]
    fn the_defaults_are_those_of_the_core() {
        let config = minimal().config().unwrap();
        assert_eq!(config.hib, HibConfig::new(1));
        assert_eq!(config.spin, 0);
    }

    #[test]
    fn every_setting_can_be_given_in_the_file_and_the_command_line_wins() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hib.toml");
        let text = "socket = 'a'\nnode = 3\nfabric = 'b'\nnode-bits = 4\noffset-bits = 20\nload-limit-ms = 500\noutstanding = 7\n\
                    congest-at = 100\nclear-at = 50\nreserve = 1000\nintake-limit = 512\ncopies-congest-mib = 8\ncopies-clear-mib = 4\ncopies-limit-mib = 32\ndma-limit-gib = 64\ncredits = 9\ncontexts = 16\nimports = 20\n\
                    export-pages = 30\nhold = 4\nholds = 64\npending-writes = 8\nreplica-limit-ms = 300\nfanout-by-switch = false\nmsix = true\nspin-us = 5\nlog = 'debug'\nlog-format = 'json'\n";
        std::fs::write(&file, text).unwrap();
        let settings = Settings::from_file(&file).unwrap();
        assert!(!format!("{settings:?}").contains("None"), "{settings:?}");
        let over = Settings { node: Some(2), ..Settings::default() };
        let config = over.over(settings).config().unwrap();
        assert_eq!((config.hib.node, config.hib.load_limit, config.hib.clear_at), (2, 500_000, 50));
        assert!(config.hib.msix && !config.hib.fanout_by_switch);
        assert_eq!((config.hib.pending_writes, config.hib.replica_limit), (8, 300_000));
        assert_eq!((config.hib.copies_limit, config.dma_limit), (32 << 20, 64 << 30));
    }

    #[test]
    fn an_unknown_key_is_named_with_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hib.toml");
        std::fs::write(&file, "node = 1\nnode-bit = 6\n").unwrap();
        let error = Settings::from_file(&file).unwrap_err().to_string();
        assert!(error.contains("hib.toml") && error.contains("node-bit") && error.contains("node-bits"), "{error}");
        let missing = Settings::from_file(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none"), "{missing}");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let cases: [(&str, Settings); 23] = [
            ("node", Settings { node: Some(64), ..minimal() }),
            ("load-limit-ms", Settings { load_limit_ms: Some(5000), ..minimal() }),
            ("load-limit-ms", Settings { load_limit_ms: Some(0), ..minimal() }),
            ("outstanding", Settings { outstanding: Some(0), ..minimal() }),
            ("congest-at", Settings { congest_at: Some(1), ..minimal() }),
            ("clear-at", Settings { clear_at: Some(1024), ..minimal() }),
            ("contexts", Settings { contexts: Some(100), ..minimal() }),
            ("contexts", Settings { contexts: Some(257), ..minimal() }),
            ("contexts", Settings { contexts: Some(512), ..minimal() }),
            ("copies-limit-mib", Settings { copies_limit_mib: Some(15), ..minimal() }),
            ("copies-congest-mib", Settings { copies_congest_mib: Some(0), ..minimal() }),
            ("copies-congest-mib", Settings { copies_congest_mib: Some(1025), ..minimal() }),
            ("copies-clear-mib", Settings { copies_clear_mib: Some(64), ..minimal() }),
            ("dma-limit-gib", Settings { dma_limit_gib: Some(0), ..minimal() }),
            ("dma-limit-gib", Settings { dma_limit_gib: Some(65537), ..minimal() }),
            ("imports", Settings { imports: Some(65535), ..minimal() }),
            ("node-bits", Settings { node_bits: Some(13), ..minimal() }),
            ("hold", Settings { hold: Some(0), ..minimal() }),
            ("holds", Settings { holds: Some(31), ..minimal() }),
            ("replica-limit-ms", Settings { replica_limit_ms: Some(9), ..minimal() }),
            ("pending-writes", Settings { pending_writes: Some(0), ..minimal() }),
            ("pending-writes", Settings { pending_writes: Some(1025), ..minimal() }),
            ("socket", Settings { socket: None, ..minimal() }),
        ];
        for (name, settings) in cases {
            let error = settings.config().unwrap_err().to_string();
            assert!(error.contains(&format!("--{name}")), "{name}: {error}");
        }
        assert_eq!(Settings { contexts: Some(256), ..minimal() }.config().unwrap().hib.contexts, 256);
        let settings = Settings { pending_writes: Some(1024), ..minimal() };
        assert_eq!(settings.config().unwrap().hib.pending_writes, 1024);
        let small = Settings { copies_limit_mib: Some(16), ..minimal() }.config().unwrap().hib;
        assert_eq!((small.copies_congest_at, small.copies_clear_at), (16 << 20, 8 << 20));
        // A small reserve lowers the default thresholds.
        let config = Settings { reserve: Some(16), ..minimal() }.config().unwrap();
        assert!(config.hib.clear_at < config.hib.congest_at && config.hib.congest_at <= 16);
    }
}
