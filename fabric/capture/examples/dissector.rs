// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the generated Wireshark dissector.

fn main() -> Result<(), std::fmt::Error> {
    let mut text = String::new();
    telegraphos_capture::dissector::generate(&mut text)?;
    print!("{text}");
    Ok(())
}
