// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the C header of the library.

fn main() {
    print!("{}", telegraphos::ffi::header());
}
