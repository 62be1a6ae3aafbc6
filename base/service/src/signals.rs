// SPDX-License-Identifier: MIT OR Apache-2.0
//! The signals that end a process cleanly.
#![allow(unsafe_code)]

use nix::sys::signal::{SigHandler, Signal, signal};

/// Calls `stop`, on a separate thread, at each SIGINT, SIGTERM and SIGHUP. To be called once for a process.
///
/// SIGINT and SIGTERM count even if the process was started with them ignored, as a shell script does with what it
/// starts by `&`: it could not be ended otherwise. SIGHUP then stays ignored, as `nohup` requires.
pub fn on_stop(stop: impl FnMut() + Send + 'static) -> Result<(), ctrlc::Error> {
    let keep_on_hangup = ignored(Signal::SIGHUP);
    ctrlc::set_handler(stop)?;
    if keep_on_hangup {
        // SAFETY: no handler is installed, so none can run that is not safe in a signal.
        unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }.map_err(|e| ctrlc::Error::System(e.into()))?;
    }
    Ok(())
}

/// Whether this process ignores the signal; `false` where that is unknown.
fn ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as u32 - 1) & 1 == 1)
}
