// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints docs/packets.md.

fn main() -> Result<(), std::fmt::Error> {
    let mut text = String::new();
    telegraphos_wire::tables::generate(&mut text)?;
    print!("{text}");
    Ok(())
}
