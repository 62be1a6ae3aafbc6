// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests of captures share.

pub(crate) mod frames;
pub(crate) mod run;
pub(crate) mod tshark;

use std::path::Path;

use telegraphos_capture::{CaptureOptions, Captured, ReadError, Reader, Recorder};
use telegraphos_fabric_core::SwitchConfig;

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
