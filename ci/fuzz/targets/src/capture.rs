// SPDX-License-Identifier: MIT OR Apache-2.0

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, memfd_create};
use telegraphos_capture::{Reader, Record};
use telegraphos_wire::link::Frame;

/// Fewest bytes that a record takes in a file: the fixed fields of a block.
const LEAST: usize = 28;

/// A capture: read to its end, and replayed.
pub fn capture(data: &[u8]) {
    // A file in memory: captures are opened by their path.
    let Ok(file) = memfd_create("capture", MemfdFlags::CLOEXEC) else { return };
    let mut file = File::from(file);
    if file.write_all(data).is_err() {
        return;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut records = 0;
    if let Ok(mut reader) = Reader::open(&path) {
        while let Ok(Some(captured)) = reader.next_record() {
            records += 1;
            assert_eq!(captured.index, records, "records are numbered as they come");
            let _ = (Record::decode(&captured.bytes), Frame::decode(&captured.bytes));
        }
        let _ = reader.links();
    }
    assert!(records as usize * LEAST <= data.len(), "{records} records of {} bytes", data.len());
    let _ = telegraphos_capture::replay(&path, |difference| {
        let _ = difference.to_string();
    });
}
