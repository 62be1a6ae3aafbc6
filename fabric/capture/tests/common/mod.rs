// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of captures share.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

pub(crate) mod frames;
pub(crate) mod run;
pub(crate) mod tshark;

use std::path::Path;

use switch_core::SwitchConfig;
use telegraphos_capture::{CaptureOptions, Captured, ReadError, Reader, Recorder};

/// Numbers in a row, from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The seed to begin with: `TELEGRAPHOS_SEED`, or the one given.
pub(crate) fn seed(usual: u64) -> u64 {
    std::env::var("TELEGRAPHOS_SEED").map_or(usual, |text| text.parse().expect("TELEGRAPHOS_SEED is a number"))
}

/// `full` with `TELEGRAPHOS_SCALE=full`, else `usual`.
pub(crate) fn scale<T>(usual: T, full: T) -> T {
    if std::env::var("TELEGRAPHOS_SCALE").is_ok_and(|scale| scale == "full") { full } else { usual }
}

pub(crate) fn options(file: &Path) -> CaptureOptions {
    CaptureOptions { file: file.to_owned(), epoch: 1_700_000_000_000_000, ..CaptureOptions::default() }
}

/// A recorder of one switch with these nodes.
pub(crate) fn recorder(options: CaptureOptions, nodes: u32) -> Recorder {
    Recorder::create(options, &[(0, &SwitchConfig::new(nodes))]).unwrap()
}

/// Everything in a capture, and why it could not be read any further.
pub(crate) fn read_all(file: &Path) -> (Vec<Captured>, Option<ReadError>) {
    let mut reader = match Reader::open(file) {
        Ok(reader) => reader,
        Err(e) => return (Vec::new(), Some(e)),
    };
    let mut all = Vec::new();
    loop {
        match reader.next_record() {
            Ok(Some(captured)) => all.push(captured),
            Ok(None) => return (all, None),
            Err(e) => return (all, Some(e)),
        }
    }
}
