// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds valgrind, which counts the instructions of a program, and `ip` of iproute2, which joins network namespaces.
//! Nothing of them is linked.

use crate::prefix::{self, Packaged, Program};
use crate::store::Store;
use crate::{Error, Result, exec};
use std::path::PathBuf;

const VALGRIND: Packaged = Packaged {
    name: "valgrind",
    package: "valgrind",
    release: "bookworm",
    place: "valgrind/debian",
    // `usr/bin/valgrind` is a script that names paths of the host.
    program: "usr/bin/valgrind.bin",
    env: Some(("VALGRIND_LIB", "usr/libexec/valgrind")),
    // No variable names another: what counts must be the same everywhere.
    remedy: "install valgrind",
};

const IP: Packaged = Packaged {
    name: "ip",
    package: "iproute2",
    release: "trixie",
    place: "iproute2/debian",
    program: "usr/bin/ip",
    env: None,
    remedy: "install a program ip as /usr/sbin/ip",
};
/// Where it is besides PATH: an ordinary user's may lack it.
const USUAL: [&str; 3] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"];

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
        Ok(VALGRIND.fetched(self, |_, program| check(self, program))?.0)
    }

    /// The host's `ip` if it has one, else Debian's, fetched once.
    pub fn ip(&self) -> Result<Program> {
        match USUAL.map(PathBuf::from).into_iter().find(|path| path.is_file()) {
            Some(path) => Ok(Program::of_host(path)),
            None => Ok(IP.fetched(self, |_, _| Ok(()))?.0),
        }
    }
}

fn check(store: &Store, program: &Program) -> Result<()> {
    let out = exec::run(program.command().args(["--tool=callgrind", "--version"]), &store.cancel, || ())?;
    if !out.stdout.starts_with("valgrind-") {
        return Err(Error::Failed(format!("valgrind does not start: {}; {}", out.tail(3), VALGRIND.remedy)));
    }
    Ok(())
}
