// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes end when a guest has no memory left: not those that the harness needs.
#![allow(unsafe_code, reason = "a child between fork and exec makes raw system calls")]

use std::ffi::CStr;

const SCORE: &CStr = c"/proc/self/oom_score_adj";

/// The kernel spares this process, and those that it starts until they say [`be_usual`]. For root only.
pub fn be_spared() {
    write(b"-1000");
}

/// This process is as all others. It makes system calls and nothing else.
pub fn be_usual() {
    write(b"0");
}

/// Without `/proc`, nothing changes.
fn write(score: &[u8]) {
    // SAFETY: the path ends with a zero, the bytes are as many as that, and the descriptor is this function's own.
    unsafe {
        let file = libc::open(SCORE.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file >= 0 {
            libc::write(file, score.as_ptr().cast(), score.len());
            libc::close(file);
        }
    }
}
