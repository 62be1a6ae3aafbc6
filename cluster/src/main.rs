// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos`: see [`telegraphos_cluster::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    telegraphos_cluster::reexecuted().unwrap_or_else(|| telegraphos_cluster::cli::main(std::env::args_os()))
}
