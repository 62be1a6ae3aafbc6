// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renews the tables in the committed Wireshark dissector.

fn main() -> std::io::Result<()> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/dissector/telegraphos.lua");
    std::fs::write(path, telegraphos_capture::dissector::generate())
}
