// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds `ip` of iproute2, which joins network namespaces.

use crate::apt;
use crate::prefix;
use crate::store::{Lock, Store};
use crate::{Manifest, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const RELEASE: &str = "trixie";
const PACKAGE: &str = "iproute2";
/// Where it is besides PATH: an ordinary user's may lack it.
const USUAL: [&str; 3] = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip"];

/// The program `ip`, ready to run.
#[derive(Clone, Debug)]
pub struct Ip {
    program: PathBuf,
    args: Vec<OsString>,
}

impl Ip {
    /// A command that runs it; add its arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command
    }
}

impl Store {
    /// The host's `ip` if it has one, else Debian's, fetched once.
    pub fn ip(&self) -> Result<Ip> {
        match USUAL.map(PathBuf::from).into_iter().find(|path| path.is_file()) {
            Some(program) => Ok(Ip { program, args: Vec::new() }),
            None => self.debians_ip(),
        }
    }

    fn debians_ip(&self) -> Result<Ip> {
        let (at, _) = self.artefact("iproute2/debian", |lock, at| unpack(self, lock, at))?;
        from_prefix(&at)
    }
}

fn unpack(store: &Store, lock: &Lock, at: &Path) -> Result<Manifest> {
    let manifest = apt::install_from(store, lock, RELEASE, PACKAGE, "install a program ip as /usr/sbin/ip", at)?;
    from_prefix(at)?;
    Ok(manifest)
}

/// How to run the packages unpacked under `at`.
fn from_prefix(at: &Path) -> Result<Ip> {
    let names = ["Debian's ip", "the dynamic loader of Debian's ip"];
    let libraries = ["usr/lib/x86_64-linux-gnu", "usr/lib"];
    let program = prefix::program(at, names, "iproute2", "usr/bin/ip", &libraries)?;
    Ok(Ip { program: program.loader, args: program.args })
}
