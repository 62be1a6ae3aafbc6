// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `telegraphos-hib`: runs the command line of the library `telegraphos_device`.

fn main() -> std::process::ExitCode {
    telegraphos_device::cli_main(std::env::args_os())
}
