// SPDX-License-Identifier: MIT OR Apache-2.0
//! The settings of the program, with the same names on the command line and in the TOML file. The command line takes
//! precedence. `cli` reads both and passes the resulting [`shell::Config`] to the server.

use std::ops::RangeBounds;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use telegraphos_device_core::{HibConfig, MAX_CONTEXTS, MAX_COPY};
use telegraphos_service::logging::LogFormat;
use telegraphos_service::settings::SettingsError;
use telegraphos_wire::WindowLayout;

use crate::attach::Starter;
use crate::{memory, shell};

/// Declares the settings. Of each: its help text, its name, its type, the name of its value in the help text, and
/// perhaps more of clap's arguments.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $value:literal $(($($arg:tt)+))?;)*) => {
        /// All settings; one that is `None` has its default.
        #[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields)]
        pub struct Settings {
            $($(#[$doc])*
            #[arg(long, value_name = $value $(, $($arg)+)?)]
            pub $name: Option<$type>,)*
        }

        impl Settings {
            /// These settings, with those of `under` where these are `None`.
            pub fn over(self, under: Settings) -> Settings {
                Settings { $($name: self.$name.or(under.$name),)* }
            }
        }
    };
}

settings! {
    /// Socket to create for QEMU (mode 0600)
    socket: PathBuf, "PATH";
    /// This node's number in the cluster, from 0
    node: u16, "N";
    /// Socket of the fabric (telegraphos-fabric --listen)
    fabric: PathBuf, "PATH";
    /// log2 of the nodes the window can address; the same on all nodes [default: 6]
    node_bits: u8, "BITS";
    /// log2 of the window bytes per node; the same on all nodes [default: 26]
    offset_bits: u8, "BITS";
    /// Longest wait of a guest's load, in milliseconds, 1 to 4000: QEMU disables the device after 5000 [default: 1000]
    load_limit_ms: u64, "MS";
    /// Longest time that a node may leave a request unanswered, in milliseconds, at least 4 times --replica-limit-ms
    /// and at most 600000; after that its imports here are dead with TIMEOUT [default: 30000]
    answer_limit_ms: u64, "MS";
    /// Unanswered requests to one node [default: 64]
    outstanding: u32, "N";
    /// Waiting stores of one import at which its processes are stopped [default: 1024]
    congest_at: u32, "N";
    /// Waiting stores at which they continue [default: 256]
    clear_at: u32, "N";
    /// Waiting stores of the whole board at which stores are lost [default: 1048576]
    reserve: u32, "N";
    /// Guest messages without a pause at which importing processes are stopped [default: 8192]
    intake_limit: u32, "N";
    /// MiB of unfinished copies of one context at which its processes are stopped [default: 64]
    copies_congest_mib: u32, "MIB";
    /// MiB of unfinished copies at which they continue [default: 16]
    copies_clear_mib: u32, "MIB";
    /// MiB of unfinished copies of one context beyond which a launch fails, 16 to 1048576 [default: 1024]
    copies_limit_mib: u32, "MIB";
    /// GiB of guest memory that may be mapped in all, 1 to 65536 [default: 16384]
    dma_limit_gib: u32, "GIB";
    /// Packets of each class the fabric may send ahead, 1 to 2048 [default: 256]
    credits: u32, "N";
    /// Contexts (processes) of the board, a power of two up to 256 [default: 256]
    contexts: u16, "N";
    /// Imports of the board, 1 to 65534 [default: 1024]
    imports: u16, "N";
    /// Export pages (64 KiB each) of the board, 1 to 1048576 [default: 4096]
    export_pages: u32, "N";
    /// Runs of adjacent memory (16 bytes each) of all memory that processes register, 256 to 16777216 [default:
    /// 1048576]
    runs: u32, "N";
    /// Elements in flight through one import of a queue of this node, 1 to 4096 [default: 32]
    hold: u32, "N";
    /// Receive credits of all queues of this node together; an import beyond them is refused [default: 8192]
    holds: u32, "N";
    /// Counters of own stores to replicated pages that the home has not reflected, one per aligned 8-byte word;
    /// a store that finds none free waits, 1 to 1024 [default: 32]
    pending_writes: u16, "N";
    /// Longest wait for a copy of a replicated page to acknowledge a store, or for a home to fill a copy, in
    /// milliseconds, 10 to 60000; after that the copy is dropped from the page [default: 5000]
    replica_limit_ms: u64, "MS";
    /// Let the switch replicate packets for all copies of a page; else this board sends a packet to each copy [default:
    /// true]
    fanout_by_switch: bool, "BOOL" (num_args = 0..=1, default_missing_value = "true", require_equals = true);
    /// MSI-X instead of MSI; QEMU up to 11.1.3 aborts when such a device is unplugged
    msix: bool, "BOOL" (num_args = 0..=1, default_missing_value = "true", require_equals = true);
    /// Microseconds to poll for work before sleeping, while that pays and a processor is free [default: 0; in
    /// telegraphos-host 50 where there is a processor for each guest and each of its threads]
    spin_us: u64, "US";
    /// What to print about attaching the board: for the program that starts the virtual machine [default: qemu]
    print: Starter, "PROGRAM" (value_enum);
    /// error, warn, info, debug, trace, or a filter of the crate env_logger [default: info]
    log: String, "LEVEL";
    /// Format of log lines [default: text]
    log_format: LogFormat, "FORMAT" (value_enum);
}

/// Refuses the value of a setting unless `ok`.
fn check(name: &'static str, value: impl Into<u64>, ok: bool, expected: &str) -> Result<(), SettingsError> {
    let refused = || SettingsError::Range { name, value: value.into(), expected: expected.to_owned() };
    ok.then_some(()).ok_or_else(refused)
}

/// The value of a setting, or its default, within `range`, which `expected` gives in words.
fn within<T: Copy + PartialOrd + Into<u64>>(
    name: &'static str,
    given: Option<T>,
    default: T,
    range: impl RangeBounds<T>,
    expected: &str,
) -> Result<T, SettingsError> {
    let value = given.unwrap_or(default);
    check(name, value, range.contains(&value), expected).map(|()| value)
}

/// The same in bytes, of a setting in units of `1 << shift` bytes.
fn bytes(
    name: &'static str,
    (given, shift): (Option<u32>, u32),
    default: u64,
    range: impl RangeBounds<u64>,
    expected: &str,
) -> Result<u64, SettingsError> {
    let value = given.map_or(default, |units| u64::from(units) << shift);
    check(name, value >> shift, range.contains(&value), expected).map(|()| value)
}

/// log2 of a MiB and of a GiB in bytes.
const MIB: u32 = 20;
const GIB: u32 = 30;

impl Settings {
    /// Reads a TOML file. An unknown key is an error that names it.
    pub fn from_file(file: &Path) -> Result<Settings, SettingsError> {
        telegraphos_service::settings::read(file)
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
        let addressed = "less than the nodes the window can address (2 to the --node-bits)";
        check("node", node, u32::from(node) < window.nodes(), addressed)?;
        let mut hib = HibConfig { window, ..HibConfig::new(node) };
        let limit = "1 to 4000 (QEMU gives the device up after 5000)";
        hib.load_limit = 1000 * within("load-limit-ms", self.load_limit_ms, hib.load_limit / 1000, 1..=4000, limit)?;
        hib.outstanding = within("outstanding", self.outstanding, hib.outstanding, 1..=4096, "1 to 4096")?;
        hib.reserve = within("reserve", self.reserve, hib.reserve, 16..=16 << 20, "16 to 16777216")?;
        let (default, expected) = (hib.congest_at.min(hib.reserve), "at least 2 and at most --reserve");
        hib.congest_at = within("congest-at", self.congest_at, default, 2..=hib.reserve, expected)?;
        let (default, expected) = (hib.clear_at.min(hib.congest_at - 1), "at least 1 and less than --congest-at");
        hib.clear_at = within("clear-at", self.clear_at, default, 1..hib.congest_at, expected)?;
        hib.intake_limit = within("intake-limit", self.intake_limit, hib.intake_limit, 256.., "at least 256")?;
        let (range, expected) = (MAX_COPY..=1 << 40, "16 (the longest copy) to 1048576");
        hib.copies_limit = bytes("copies-limit-mib", (self.copies_limit_mib, MIB), hib.copies_limit, range, expected)?;
        let (default, range) = (hib.copies_congest_at.min(hib.copies_limit), 1 << MIB..=hib.copies_limit);
        let expected = "at least 1 and at most --copies-limit-mib";
        hib.copies_congest_at = bytes("copies-congest-mib", (self.copies_congest_mib, MIB), default, range, expected)?;
        let (default, range) = (hib.copies_clear_at.min(hib.copies_congest_at / 2), ..hib.copies_congest_at);
        let expected = "less than --copies-congest-mib";
        hib.copies_clear_at = bytes("copies-clear-mib", (self.copies_clear_mib, MIB), default, range, expected)?;
        let (given, range) = ((self.dma_limit_gib, GIB), 1 << GIB..=1 << 46);
        let dma_limit = bytes("dma-limit-gib", given, memory::DEFAULT_LIMIT, range, "1 to 65536")?;
        hib.credits = [within("credits", self.credits, hib.credits[0], 1..=2048, "1 to 2048")?; 4];
        hib.contexts = self.contexts.unwrap_or(hib.contexts);
        let possible = hib.contexts.is_power_of_two() && hib.contexts <= MAX_CONTEXTS;
        let expected = "a power of two from 1 to 256: the word of an argument names a context in 8 bits";
        check("contexts", hib.contexts, possible, expected)?;
        hib.imports = within("imports", self.imports, hib.imports, 1..=65534, "1 to 65534")?;
        hib.export_pages = within("export-pages", self.export_pages, hib.export_pages, 1..=1 << 20, "1 to 1048576")?;
        hib.runs = within("runs", self.runs, hib.runs, 256..=1 << 24, "256 to 16777216")?;
        hib.hold = within("hold", self.hold, hib.hold, 1..=4096, "1 to 4096")?;
        let (default, expected) = (hib.holds.max(hib.hold), "at least --hold and at most 1048576");
        hib.holds = within("holds", self.holds, default, hib.hold..=1 << 20, expected)?;
        let expected = "1 to 1024: without one, no store could ever be made";
        hib.pending_writes = within("pending-writes", self.pending_writes, hib.pending_writes, 1..=1024, expected)?;
        let (default, range) = (hib.replica_limit / 1000, 10..=60_000);
        hib.replica_limit = 1000 * within("replica-limit-ms", self.replica_limit_ms, default, range, "10 to 60000")?;
        // A store waits for the copies of its page and, where its home moves, for the move: for three limits.
        let shortest = 4 * hib.replica_limit / 1000;
        let (default, expected) =
            ((hib.answer_limit / 1000).max(shortest), "at least 4 times --replica-limit-ms and at most 600000");
        hib.answer_limit =
            1000 * within("answer-limit-ms", self.answer_limit_ms, default, shortest..=600_000, expected)?;
        hib.fanout_by_switch = self.fanout_by_switch.unwrap_or(hib.fanout_by_switch);
        hib.msix = self.msix.unwrap_or(false);
        let spin = self.spin_us.map(|us| within("spin-us", Some(us), 0, ..=1_000_000, "0 to 1000000")).transpose()?;
        Ok(shell::Config { socket, fabric, hib, spin, dma_limit, direct: None })
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
        assert_eq!(config.spin, None);
    }

    #[test]
    fn every_setting_can_be_given_in_the_file_and_the_command_line_wins() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("hib.toml");
        let text = "socket = 'a'\nnode = 3\nfabric = 'b'\nnode-bits = 4\noffset-bits = 20\nload-limit-ms = 500\nanswer-limit-ms = 9000\noutstanding = 7\n\
                    congest-at = 100\nclear-at = 50\nreserve = 1000\nintake-limit = 512\ncopies-congest-mib = 8\ncopies-clear-mib = 4\ncopies-limit-mib = 32\ndma-limit-gib = 64\ncredits = 9\ncontexts = 16\nimports = 20\n\
                    export-pages = 30\nruns = 300\nhold = 4\nholds = 64\npending-writes = 8\nreplica-limit-ms = 300\nfanout-by-switch = false\nmsix = true\nspin-us = 5\nprint = 'virtme-ng'\nlog = 'debug'\nlog-format = 'json'\n";
        std::fs::write(&file, text).unwrap();
        let settings = Settings::from_file(&file).unwrap();
        assert!(!format!("{settings:?}").contains("None"), "{settings:?}");
        let over = Settings { node: Some(2), ..Settings::default() };
        let config = over.over(settings).config().unwrap();
        assert_eq!((config.hib.node, config.hib.load_limit, config.hib.clear_at), (2, 500_000, 50));
        assert!(config.hib.msix && !config.hib.fanout_by_switch);
        assert_eq!((config.hib.pending_writes, config.hib.replica_limit), (8, 300_000));
        assert_eq!(config.hib.answer_limit, 9_000_000);
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
        let cases: [(&str, Settings); 25] = [
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
            ("answer-limit-ms", Settings { answer_limit_ms: Some(19_999), ..minimal() }),
            ("answer-limit-ms", Settings { answer_limit_ms: Some(600_001), ..minimal() }),
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
        // Patience with copies is patience with their home.
        let patient = Settings { replica_limit_ms: Some(60_000), ..minimal() }.config().unwrap().hib;
        assert_eq!(patient.answer_limit, 240_000_000);
        // A small reserve lowers the default thresholds.
        let config = Settings { reserve: Some(16), ..minimal() }.config().unwrap();
        assert!(config.hib.clear_at < config.hib.congest_at && config.hib.congest_at <= 16);
    }
}
