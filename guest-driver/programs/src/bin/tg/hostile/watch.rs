// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which call is under way, and how long it may take.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a single call may take, beside much else, on a kernel that checks itself.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// What is being sent, and a number that changes with it.
static STEP: (AtomicU64, Mutex<String>) = (AtomicU64::new(0), Mutex::new(String::new()));

/// Says what comes next, which a call that does not return is called by.
pub(crate) fn step<T: std::fmt::Display>(what: T) -> T {
    if let Ok(mut text) = STEP.1.lock() {
        *text = what.to_string();
    }
    STEP.0.fetch_add(1, Ordering::Relaxed);
    what
}

/// Ends the program when a call does not return.
pub(crate) fn watch() {
    std::thread::spawn(|| {
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let now = STEP.0.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() > PATIENCE {
                let what = STEP.1.lock().map(|text| text.clone()).unwrap_or_default();
                eprintln!("tg-hostile: {what}: has not returned for {PATIENCE:?}");
                std::process::exit(1);
            }
        }
    });
}
