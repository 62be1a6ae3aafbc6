// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-hib`; see the library.

fn main() -> std::process::ExitCode {
    telegraphos_device::cli_main(std::env::args_os())
}
