// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes of messages that say whose they are.

use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_msg::{Endpoint, Received};

fn byte(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add((at as u64).wrapping_mul(0x0123_4567_89ab_cdef)) >> 56) as u8
}

fn seed(from: Endpoint, to: Endpoint, tag: u32) -> u64 {
    u64::from(from.process.number) << 32
        ^ u64::from(to.process.number)
        ^ u64::from(from.thread) << 48
        ^ u64::from(to.thread) << 24
        ^ u64::from(tag)
}

/// Those of a message.
pub(crate) fn of(from: Endpoint, to: Endpoint, tag: u32, length: usize) -> Vec<u8> {
    let seed = seed(from, to, tag);
    (0..length).map(|at| byte(seed, at)).collect()
}

/// Fails unless a message is what [`of`] made.
pub(crate) fn check(got: &Received, to: Endpoint, length: usize, buffer: &[u8]) -> Outcome<()> {
    let seed = seed(got.from, to, got.tag);
    let wrong = (0..length).find(|at| buffer.get(*at) != Some(&byte(seed, *at)));
    if got.length == length as u64 && wrong.is_none() {
        return Ok(());
    }
    let (bytes, from, tag) = (got.length, got.from, got.tag);
    Err(Failure::Check(format!(
        "message {tag} of {from} has {bytes} bytes, of which {wrong:?} is wrong; sent were {length}"
    )))
}
