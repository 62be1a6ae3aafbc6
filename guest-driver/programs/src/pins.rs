// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages that are pinned in a guest.

use crate::patience::becomes;
use std::time::Duration;

/// Pages that were pinned and unpinned since the kernel started.
fn counts() -> Result<(u64, u64), String> {
    let path = "/proc/vmstat";
    let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
        line.ok_or_else(|| format!("{path} has no {name}"))
    };
    Ok((value("nr_foll_pin_acquired")?, value("nr_foll_pin_released")?))
}

/// Waits until as many pages are unpinned as were pinned since the kernel started: those of killed processes are given
/// back by a worker, and each processor's counts join the others' within some seconds. Fails after 20 of them.
pub fn nothing_is_pinned() -> Result<(), String> {
    let late = |(acquired, released): &(u64, u64)| {
        format!("{acquired} pages were pinned and {released} unpinned: expected as many")
    };
    let equal = |(acquired, released): &(u64, u64)| acquired == released;
    becomes(Duration::from_secs(20), Duration::from_millis(20), counts, equal, late).map(drop)
}
