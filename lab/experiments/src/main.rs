// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `telegraphos-lab`: see [`telegraphos_lab`].

use std::process::ExitCode;

fn main() -> ExitCode {
    telegraphos_lab::main()
}
