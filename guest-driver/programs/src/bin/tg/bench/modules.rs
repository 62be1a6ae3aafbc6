// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules of the guest's kernel.

use std::path::Path;
use std::process::Command;
use telegraphos_guest_tests::cli::{self, Outcome, failed};

const MODULES: &str = "/lib/telegraphos/peers";

/// Runs a program of the guest.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Outcome<()> {
    let output = Command::new(program).args(arguments).output().map_err(failed(program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(cli::refused(format_args!("{program} {}: {}", arguments.join(" "), said.trim())))
}

/// Loads the kernel's modules of these names, in order, unless they are loaded.
pub(crate) fn load_modules(names: &[&str]) -> Outcome<()> {
    for name in names {
        if Path::new(&format!("/sys/module/{name}")).exists() {
            continue;
        }
        let packed = format!("{MODULES}/{name}.ko.xz");
        let plain = format!("{MODULES}/{name}.ko");
        let module = if Path::new(&packed).exists() { packed } else { plain };
        if !Path::new(&module).exists() {
            return Err(cli::refused(format_args!("the guest's kernel: its module {name} is not in the image")));
        }
        run(
            "sh",
            &["-c", "case $1 in *.xz) xzcat $1 >/tmp/module.ko; set - /tmp/module.ko; esac; insmod $1", "sh", &module],
        )?;
    }
    Ok(())
}
