// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ctrl-C: a flag that every wait of this crate looks at, so that the ordinary way out (errors and `Drop`) cleans up.

use crate::{Error, Result, lock};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

static COUNT: AtomicU32 = AtomicU32::new(0);
static FLAGS: Mutex<Vec<Arc<AtomicBool>>> = Mutex::new(Vec::new());

/// Makes SIGINT, SIGTERM and SIGHUP end all waits with [`Error::Interrupted`]. To be called once, by `main`. The fifth
/// signal ends the process at once: its children die with it, but its directory stays until the next start.
pub fn catch_signals() -> Result<()> {
    let handler = || {
        if COUNT.fetch_add(1, Ordering::SeqCst) >= 4 {
            std::process::exit(130);
        }
        for flag in lock(&FLAGS).iter() {
            flag.store(true, Ordering::SeqCst);
        }
    };
    telegraphos_service::signals::on_stop(handler)
        .map_err(|e| Error::Spawn { what: "the signal handler".into(), source: std::io::Error::other(e) })
}

/// Whether a signal has come.
pub fn interrupted() -> bool {
    COUNT.load(Ordering::SeqCst) != 0
}

/// [`Error::Interrupted`] once a signal has come.
pub fn check() -> Result<()> {
    if interrupted() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Has this flag raised, too, when a signal comes.
pub(crate) fn forward(flag: Arc<AtomicBool>) {
    lock(&FLAGS).push(flag);
}

/// Sleeps, unless a signal comes.
pub fn sleep(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}
