// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notices what ends under a command that uses a cluster: a process, a kernel, a guest that hangs.

use crate::{Cluster, Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often the cluster is looked at.
const EVERY: Duration = Duration::from_millis(100);
/// A command in a guest that fails because the guest did may fail so long before the reason is found.
const REASON: Duration = Duration::from_secs(2);

/// Raises the flag also when the work panics.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does `work` with the cluster. If a part of the cluster ends meanwhile, all guests are ended, so that `work` ends,
/// and the error says what it was.
pub(super) fn watched<T>(cluster: &Cluster, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            loop {
                if let Err(e) = cluster.check_strictly() {
                    cluster.guests().iter().for_each(crate::Guest::kill_qemu);
                    return Err(e);
                }
                if done.load(Ordering::Acquire) {
                    return Ok(());
                }
                std::thread::sleep(EVERY);
            }
        });
        let raise = Raise(&done);
        let result = work();
        if matches!(result, Err(Error::Command { .. })) {
            let begun = Instant::now();
            while !watcher.is_finished() && begun.elapsed() < REASON {
                std::thread::sleep(EVERY / 5);
            }
        }
        drop(raise);
        match watcher.join() {
            Ok(found) => found.and(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
