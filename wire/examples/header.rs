// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the generated C header.

fn main() -> Result<(), std::fmt::Error> {
    let mut text = String::new();
    telegraphos_wire::header::generate(&mut text)?;
    print!("{text}");
    Ok(())
}
