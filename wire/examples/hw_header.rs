// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the generated C header of the hardware, which only the driver includes.

fn main() -> Result<(), std::fmt::Error> {
    let mut text = String::new();
    telegraphos_wire::header::generate_hw(&mut text)?;
    print!("{text}");
    Ok(())
}
