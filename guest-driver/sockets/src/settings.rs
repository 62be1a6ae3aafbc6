// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings from the environment, and messages to the user.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use telegraphos_sockets_core::longest;

/// What a user may set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Bytes in one direction after which it may become framed: `TELEGRAPHOS_SOCKETS_AFTER`.
    pub(crate) after: u64,
    /// Bytes of data in a ring, from 16 KiB to 64 MiB: `TELEGRAPHOS_SOCKETS_RING`.
    data: u64,
}

impl Settings {
    /// Bytes of a ring: one that holds two records of half the data.
    pub(crate) fn ring(&self) -> u64 {
        self.data + 8192
    }

    /// Bytes of data in a record, at most: while one is read, the next one is written.
    pub(crate) fn record(&self) -> u64 {
        longest(self.ring()).min(128 << 10)
    }

    /// Bytes of a smaller one, where so much cannot be locked.
    pub(crate) fn small_ring(&self) -> u64 {
        (self.data / 8).max(16 << 10) + 8192
    }
}

/// The settings of this process.
pub(crate) fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    *SETTINGS.get_or_init(|| {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let ring = number("TELEGRAPHOS_SOCKETS_RING").unwrap_or(1 << 20).clamp(16 << 10, 64 << 20);
        Settings {
            after: number("TELEGRAPHOS_SOCKETS_AFTER").unwrap_or(4 << 20).max(1),
            data: ring.next_power_of_two().min(64 << 20),
        }
    })
}

/// Reads the environment, which programs change later.
pub(crate) fn read() {
    settings();
    log();
}

/// Where to say what is done, if the user wants to know: `TELEGRAPHOS_SOCKETS_LOG=1` for the standard error, or the
/// whole path of a file, to which it is appended.
fn log() -> Option<&'static Path> {
    static LOG: OnceLock<Option<PathBuf>> = OnceLock::new();
    let wanted = || std::env::var_os("TELEGRAPHOS_SOCKETS_LOG").filter(|value| !value.is_empty() && value != "0");
    LOG.get_or_init(|| wanted().map(PathBuf::from)).as_deref()
}

/// Says it, if the user wants to know.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    let Some(log) = log() else { return };
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let line = format!("telegraphos: {} {}: {what}\n", name.trim_end(), std::process::id());
    let _ = if log.is_absolute() {
        // As a whole, behind what other programs have written.
        OpenOptions::new().append(true).create(true).open(log).and_then(|mut file| file.write_all(line.as_bytes()))
    } else {
        std::io::stderr().write_all(line.as_bytes())
    };
}
