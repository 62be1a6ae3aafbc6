// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rate of the clock that guests under TCG see.
//!
//! Such a guest reads the host's own time stamp counter. At boot its kernel measures the rate against emulated timers,
//! which are delayed when the host is busy: clocks that run three times too fast have been seen, and every timeout in
//! the guest with them. So the kernel gets the frequency on its command line.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the rate is measured.
const MEASURED: Duration = Duration::from_millis(50);
/// Reading clock and counter takes no longer than this, if nothing comes in between.
const TOGETHER: Duration = Duration::from_micros(5);

/// Thousands of counts of the host's time stamp counter in a second, measured once; none on hosts without one.
pub(crate) fn tsc_khz() -> Option<u64> {
    static RATE: OnceLock<Option<u64>> = OnceLock::new();
    *RATE.get_or_init(measure)
}

#[cfg(target_arch = "x86_64")]
fn measure() -> Option<u64> {
    // Clock and counter at one moment; on a busy host it may take some attempts.
    let now = || {
        (0..1000).find_map(|_| {
            let before = Instant::now();
            // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
            let count = unsafe { std::arch::x86_64::_rdtsc() };
            (before.elapsed() < TOGETHER).then_some((before, count))
        })
    };
    let (start, first) = now()?;
    std::thread::sleep(MEASURED);
    let (end, last) = now()?;
    let nanoseconds = u64::try_from(end.duration_since(start).as_nanos()).ok()?;
    last.checked_sub(first)?.checked_mul(1_000_000)?.checked_div(nanoseconds)
}

#[cfg(not(target_arch = "x86_64"))]
fn measure() -> Option<u64> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{measure, tsc_khz};

    #[test]
    fn two_measurements_agree() {
        let (one, other) = (tsc_khz().unwrap_or(0), measure().unwrap_or(0));
        assert!(one > 100_000, "{one} kHz");
        assert!(one.abs_diff(other) < one / 100, "{one} and {other} kHz");
    }
}
