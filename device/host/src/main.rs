// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program `telegraphos-host`: runs the command line of the library `telegraphos_host`.

fn main() -> std::process::ExitCode {
    telegraphos_host::cli_main(std::env::args_os())
}
