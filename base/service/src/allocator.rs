// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the C library's allocator keeps of the memory that a server has freed.
//!
//! A board takes tens of MiB for the backlog of a guest that stores faster than the network takes it, and frees them
//! when it has drained. By default glibc raises its limits as soon as one such block is freed: the next backlog would
//! lie among small blocks and stay with the process, for ever where one of those lies behind it.
#![allow(unsafe_code)]

/// Larger blocks are mapped, each for itself, and go back to the system when they are freed. Blocks of copies are
/// smaller by far.
#[cfg(target_env = "gnu")]
const MAPPED: i32 = 1 << 20;
/// Free memory that is kept at the end of the heap: the buffers of copies come from it without a system call.
#[cfg(target_env = "gnu")]
const KEPT: i32 = 8 << 20;

/// From now on, large blocks go back to the system when they are freed. To be called when a process begins.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt may be called at any time; these parameters take these values, and no memory is passed.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::hint::black_box;

    /// KiB of this process that are no files.
    fn anonymous() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// A backlog of 20 MB grows and drains, with small blocks allocated meanwhile, which stay.
    fn backlog(kept: &mut Vec<Vec<u8>>) {
        let mut queue = VecDeque::new();
        for n in 0..500_000_u64 {
            queue.push_back([n; 5]);
            if n % 1000 == 0 {
                kept.push(vec![n as u8; 100]);
            }
        }
        black_box(&queue);
    }

    #[test]
    fn a_backlog_that_has_drained_takes_no_memory() {
        super::return_large_blocks();
        let mut kept = Vec::new();
        let before = anonymous();
        (0..4).for_each(|_| backlog(&mut kept));
        let after = anonymous();
        assert!(after < before + 12 * 1024, "{before} KiB before, {after} KiB after");
    }
}
