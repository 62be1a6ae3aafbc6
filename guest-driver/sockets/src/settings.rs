// SPDX-License-Identifier: MIT OR Apache-2.0
//! Settings from the environment, and messages to the user.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use telegraphos_sockets_core::longest;

/// What a user may set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Bytes in one direction after which it may become framed: `TELEGRAPHOS_SOCKETS_AFTER`.
    pub(crate) after: u64,
    /// Bytes of data in a ring, from 16 KiB to 64 MiB: `TELEGRAPHOS_SOCKETS_RING`.
    data: u64,
    /// Whether to say on the standard error what is done: `TELEGRAPHOS_SOCKETS_LOG=1`.
    log: bool,
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
            after: number("TELEGRAPHOS_SOCKETS_AFTER").unwrap_or(64 << 10).max(1),
            data: ring.next_power_of_two().min(64 << 20),
            log: std::env::var_os("TELEGRAPHOS_SOCKETS_LOG").is_some_and(|value| !value.is_empty() && value != "0"),
        }
    })
}

/// Says it, if the user wants to know.
pub(crate) fn say(what: fmt::Arguments<'_>) {
    if settings().log {
        let line = format!("telegraphos: {}: {what}\n", std::process::id());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
}
