// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds valgrind, which counts the instructions of a program. Nothing of it is linked.

use crate::prefix::{self, Program};
use crate::store::Store;
use crate::{Error, Result, apt, exec};
use std::path::Path;

/// The release it comes from, whatever the host's: one version for everybody.
const RELEASE: &str = "bookworm";
const PACKAGE: &str = "valgrind";
/// No variable names another: what counts must be the same everywhere.
const REMEDY: &str = "install valgrind";

impl Store {
    /// The host's valgrind if it has one that starts, else Debian's, fetched once.
    pub fn valgrind(&self) -> Result<Program> {
        if let Some(program) = prefix::in_path("valgrind").map(Program::of_host) {
            if check(self, &program).inspect_err(|e| log::info!("the host's valgrind is left alone: {e}")).is_ok() {
                return Ok(program);
            }
        }
        self.debian_valgrind()
    }

    /// Debian's valgrind, whatever the host has.
    pub fn debian_valgrind(&self) -> Result<Program> {
        let (at, _) = self.artefact("valgrind/debian", |lock, at| {
            let manifest = apt::install_from(self, lock, RELEASE, PACKAGE, REMEDY, at)?;
            // It must start here before it is kept.
            check(self, &from_prefix(at)?)?;
            Ok(manifest)
        })?;
        from_prefix(&at)
    }
}

fn check(store: &Store, program: &Program) -> Result<()> {
    let out = exec::run(program.command().args(["--tool=callgrind", "--version"]), &store.cancel, || ())?;
    if !out.stdout.starts_with("valgrind-") {
        return Err(Error::Failed(format!("valgrind does not start: {}; {REMEDY}", out.tail(3))));
    }
    Ok(())
}

/// How to run the packages unpacked under `at`. `usr/bin/valgrind` is a script that names paths of the host.
fn from_prefix(at: &Path) -> Result<Program> {
    let mut program = Program::of_prefix(at, "valgrind", PACKAGE, "usr/bin/valgrind.bin")?;
    program.env.push(("VALGRIND_LIB".into(), at.join("usr/libexec/valgrind").into_os_string()));
    Ok(program)
}
