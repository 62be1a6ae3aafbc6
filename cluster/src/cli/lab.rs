// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands of another program, `telegraphos-lab`, which is beside this one: what only measures and explains is not
//! built for those who use clusters.

use super::Common;
use crate::{Error, Result};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "telegraphos-lab";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Those of the command: --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    options: Vec<OsString>,
}

/// Replaces this process by that program; returns only if that fails.
pub(super) fn run(command: &str, common: &Common, arguments: &Arguments) -> Result<u8> {
    let program = program(common.quiet)?;
    let mut other = Command::new(&program);
    if let Some(config) = &common.config {
        other.arg("--config").arg(config);
    }
    other.args(common.quiet.then_some("--quiet")).arg(command).args(&arguments.options);
    Err(Error::Spawn { what: program.display().to_string(), source: other.exec() })
}

/// Where it is. Where this program is one that cargo has built, and not for tests, it is built first: it would be of
/// other sources.
fn program(quiet: bool) -> Result<PathBuf> {
    let this = std::env::current_exe().map_err(Error::io("cannot find", Path::new("this program")))?;
    let folder = crate::directory_of(&this);
    // Tests are in a folder of their own below the programs'.
    let (folder, test) = match folder.file_name().is_some_and(|name| name == "deps") {
        true => (crate::directory_of(folder), true),
        false => (folder, false),
    };
    let program = folder.join(PROGRAM);
    if let (false, Some(profile)) = (test, profile_of(folder)) {
        build(folder, profile, quiet)?;
    }
    match program.is_file() {
        true => Ok(program),
        false => {
            let why = format!("{PROGRAM} is not in {}: build it with `cargo build -p {PROGRAM}`", folder.display());
            Err(Error::Usage(why))
        }
    }
}

/// The profile by which cargo has built the programs of this folder, if it has.
fn profile_of(folder: &Path) -> Option<&'static str> {
    let built = crate::directory_of(folder).join("CACHEDIR.TAG").is_file();
    let name = folder.file_name()?.to_str()?;
    let profile = [("debug", "dev"), ("release", "release")].into_iter().find(|(folder, _)| *folder == name)?.1;
    (built && telegraphos_images::nested_cargo().is_ok()).then_some(profile)
}

fn build(folder: &Path, profile: &str, quiet: bool) -> Result<()> {
    let mut cargo = telegraphos_images::nested_cargo()?;
    cargo.args(["build", "--locked", "--package", PROGRAM, "--profile", profile, "--target-dir"]);
    cargo.arg(crate::directory_of(folder)).args(quiet.then_some("--quiet"));
    let what = || format!("cargo, which builds {PROGRAM}");
    let status = cargo.status().map_err(|source| Error::Spawn { what: what(), source })?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::ended(what(), status, "before it was built", String::new())),
    }
}
