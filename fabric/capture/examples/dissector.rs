// SPDX-License-Identifier: MIT OR Apache-2.0
//! Renews the tables in the committed Wireshark dissector.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut text = String::new();
    telegraphos_capture::dissector::generate(&mut text)?;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../dissector/telegraphos.lua");
    Ok(std::fs::write(path, text)?)
}
