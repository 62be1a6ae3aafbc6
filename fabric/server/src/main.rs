// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-fabric`; see the library.

fn main() -> std::process::ExitCode {
    telegraphos_fabric::cli_main(std::env::args_os())
}
