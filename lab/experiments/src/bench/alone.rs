// SPDX-License-Identifier: MIT OR Apache-2.0
//! What boards and switch take alone: an operation in both boards, the switch and the encoding between them, in one
//! thread, without guests, sockets and hand-overs (`ci/budgets`).
//!
//! The instructions are the same on every machine. The time, and the cycles where the kernel lets a process count its
//! own, say how fast this one executes them: so a figure of one machine can be read on another.

use super::result::Measure;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Instant;
use telegraphos_budgets::{Cluster, Sizes, budget, perform};

/// The operations, and what their figures are called.
const OPERATIONS: [(&str, &str); 5] = [
    ("store", "alone_store"),
    ("stores", "alone_store_of_32"),
    ("load", "alone_load"),
    ("fetch-add", "alone_fetch_add"),
    ("enqueue", "alone_enqueue"),
];
/// How often an operation is performed at a time: some milliseconds.
const COUNT: u64 = 2048;

/// Time, instructions and cycles of each operation. `rounds` of all in turn.
pub(super) fn figures(rounds: u32) -> Vec<Measure> {
    let mut cluster = Cluster::new(Sizes::default());
    let mut cycles = Cycles::open();
    let mut values = vec![(Vec::new(), Vec::new()); OPERATIONS.len()];
    // The first round fills caches.
    for round in 0..=rounds {
        for ((operation, _), (times, counts)) in OPERATIONS.iter().zip(&mut values) {
            let before = cycles.as_mut().ok().and_then(Cycles::read);
            let begun = Instant::now();
            perform(&mut cluster, operation, COUNT, 0);
            let took = begun.elapsed();
            let after = cycles.as_mut().ok().and_then(Cycles::read);
            if round == 0 {
                continue;
            }
            times.push(took.as_secs_f64() * 1e6 / COUNT as f64);
            if let (Some(before), Some(after)) = (before, after) {
                counts.push(after.saturating_sub(before) as f64 / COUNT as f64);
            }
        }
    }
    let marks = cycles.err().map(|e| format!("the kernel counts no cycles for this process: {e}"));
    let mut list = Vec::new();
    for ((operation, name), (times, counts)) in OPERATIONS.iter().zip(&values) {
        let counted = Measure::of(&format!("{name}_cycles"), "cycles", counts);
        list.push(Measure::of(name, "us", times));
        list.push(Measure::of(&format!("{name}_instructions"), "instructions", budget(operation).as_slice()));
        list.push(counted.marked(marks.clone().filter(|_| counts.is_empty())));
    }
    list
}

/// The kernel's counter of this thread's cycles, without those of the kernel.
struct Cycles(File);

/// `perf_event_attr` of the kernel's interface, as long as its first version: `PERF_ATTR_SIZE_VER0`.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    /// 0: counted by the processor.
    kind: u32,
    size: u32,
    /// 0: cycles.
    config: u64,
    period: u64,
    sample: u64,
    format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    more: u64,
}

/// Bits of the flags: what the kernel and a hypervisor execute is not counted.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;

impl Cycles {
    /// # Errors
    /// The kernel has no such counter here, or not for this user.
    fn open() -> io::Result<Cycles> {
        let attributes = Attributes {
            size: size_of::<Attributes>() as u32,
            flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
            ..Attributes::default()
        };
        let (this_thread, any_processor, no_group, no_flags) = (0, -1, -1, 0);
        // SAFETY: the kernel reads as many bytes as `size` says, and all of them are initialised.
        let number = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                any_processor,
                no_group,
                no_flags,
            )
        };
        let number = i32::try_from(number).ok().filter(|number| *number >= 0).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the kernel has just opened it for this process, and it has no other owner.
        Ok(Cycles(unsafe { OwnedFd::from_raw_fd(number) }.into()))
    }

    /// Cycles so far.
    fn read(&mut self) -> Option<u64> {
        let mut count = [0; 8];
        self.0.read_exact(&mut count).ok()?;
        Some(u64::from_ne_bytes(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_time_instructions_and_cycles_or_a_reason() {
        let list = figures(2);
        assert_eq!(list.len(), 3 * OPERATIONS.len());
        for measures in list.chunks(3) {
            let [time, instructions, cycles] = measures else { panic!("{measures:?}") };
            assert!(time.n == 2 && time.median.is_some_and(|us| us > 0.0), "{time:?}");
            assert!(instructions.n == 1 && instructions.median.is_some_and(|count| count > 0.0), "{instructions:?}");
            match cycles.median {
                Some(count) => assert!(count > 0.0 && cycles.marks.is_empty(), "{cycles:?}"),
                None => assert!(cycles.marks[0].starts_with("the kernel counts no cycles"), "{cycles:?}"),
            }
        }
    }
}
