// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds `ip` of iproute2, which joins network namespaces.

use crate::prefix::Program;
use crate::store::Store;
use crate::{Result, apt};
use std::path::{Path, PathBuf};

const RELEASE: &str = "trixie";
const PACKAGE: &str = "iproute2";
/// Where it is besides PATH: an ordinary user's may lack it.
const USUAL: [&str; 3] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"];

impl Store {
    /// The host's `ip` if it has one, else Debian's, fetched once.
    pub fn ip(&self) -> Result<Program> {
        if let Some(program) = USUAL.map(PathBuf::from).into_iter().find(|path| path.is_file()) {
            return Ok(Program::of_host(program));
        }
        let (at, _) = self.artefact("iproute2/debian", |lock, at| {
            let remedy = "install a program ip as /usr/sbin/ip";
            let manifest = apt::install_from(self, lock, RELEASE, PACKAGE, remedy, at)?;
            from_prefix(at)?;
            Ok(manifest)
        })?;
        from_prefix(&at)
    }
}

fn from_prefix(at: &Path) -> Result<Program> {
    Program::of_prefix(at, "ip", PACKAGE, "usr/bin/ip")
}
