// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prints the C header of messages.

fn main() {
    print!("{}", telegraphos_msg::ffi::header());
}
