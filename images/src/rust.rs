// SPDX-License-Identifier: MIT OR Apache-2.0
//! The oldest Rust that the project promises to compile with, from Debian's packages.

use crate::apt::{self, Apt};
use crate::files;
use crate::sources::Release;
use crate::store::{Lock, Store};
use crate::{Error, Manifest, Result, exec};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's `rust-version`.
pub const OLDEST_RUST: &str = "1.85";
/// The release that has it.
const RELEASE: &str = "trixie";
const PACKAGES: [&str; 2] = ["rustc", "cargo"];
/// Beginnings of the names of packages that are left out: the host's C compiler links.
const C_COMPILER: [&str; 15] = [
    "binutils",
    "cpp",
    "gcc-1",
    "gcc-x86-64",
    "libasan",
    "libbinutils",
    "libc6-dev",
    "libcc1",
    "libgcc-1",
    "libhwasan",
    "libisl",
    "liblsan",
    "libtsan",
    "libubsan",
    "linux-libc-dev",
];

/// A compiler and its cargo, ready to run.
#[derive(Clone, Debug)]
pub struct Rust {
    /// What it is made of.
    pub manifest: Manifest,
    /// `cargo`, which runs the `rustc` beside it whatever the environment says. It finds crates where the host's cargo
    /// does.
    pub cargo: PathBuf,
}

impl Store {
    /// Rust [`OLDEST_RUST`], fetched once.
    pub fn oldest_rust(&self) -> Result<Rust> {
        let (at, manifest) = self.artefact("rust/debian", |lock, at| unpack(self, lock, at))?;
        Ok(Rust { manifest, cargo: at.join("bin/cargo") })
    }
}

fn unpack(store: &Store, lock: &Lock, at: &Path) -> Result<Manifest> {
    let apt = Apt::open(store, lock, |_| Release::named(RELEASE))?;
    let version = apt.version("rustc")?.unwrap_or_default();
    if !version.starts_with(OLDEST_RUST) {
        let remedy = "raise rust-version in Cargo.toml, and the version here, to what that release has";
        return Err(Error::no_package(format!("rustc {OLDEST_RUST}"), RELEASE, remedy));
    }
    let mut debs = apt.closure(&PACKAGES)?;
    debs.retain(|deb| !C_COMPILER.iter().any(|beginning| deb.name.starts_with(beginning)));
    let what = format!("Rust {version}");
    let debs = apt.fetch(&what, &debs)?;
    apt::unpack(store, &what, &debs, &at.join("root"))?;
    let bin = at.join("bin");
    files::make_dir(&bin)?;
    for program in PACKAGES {
        let script = bin.join(program);
        files::write(&script, wrapper(program).as_bytes())?;
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&script, executable).map_err(Error::io("cannot make executable", &script))?;
        // It must start here before it is kept.
        let out = exec::run(Command::new(&script).arg("--version"), &store.cancel, || ())?;
        if !out.status.success() || !out.stdout.starts_with(&format!("{program} {OLDEST_RUST}.")) {
            let status = format!("{}, having printed {:?}", out.status, out.stdout);
            return Err(Error::build(format!("starting {program}"), status, out.tail(10)));
        }
    }
    Ok(Manifest::of(format!("{what} (Debian {RELEASE})"), apt::records(debs)))
}

/// A script beside the packages' root, wherever that is, which runs a program through their own loader. What a
/// toolchain of the host may have set to choose another compiler is unset; a program under another loader does not know
/// its own path, so cargo reads its from `CARGO`. Not `sh`: Debian's drops variables such as `CARGO_BIN_EXE_tg-agent`
/// from the environment.
fn wrapper(program: &str) -> String {
    format!(
        "\
#!/bin/bash
bin=$(cd \"$(dirname \"$0\")\" && pwd)
root=${{bin%/*}}/root/usr
unset RUSTUP_TOOLCHAIN RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
export RUSTC=\"$bin/rustc\" CARGO=\"$bin/cargo\"
exec \"$root/lib64/ld-linux-x86-64.so.2\" --library-path \"$root/lib/x86_64-linux-gnu:$root/lib\" \"$root/bin/{program}\" \"$@\"
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_one_that_the_workspace_promises() {
        let manifest = include_str!("../../Cargo.toml");
        assert!(manifest.contains(&format!("rust-version = \"{OLDEST_RUST}\"")));
        // And its pages: the reason is in one of them.
        assert!(include_str!("../../README.md").contains(&format!("Rust {OLDEST_RUST} or newer")));
        let section = include_str!("../../CONTRIBUTING.md").split_once("\n## Rust versions\n").unwrap().1;
        assert!(section.contains(&format!("**{OLDEST_RUST}** (`rust-version` in `Cargo.toml`)")));
    }

    #[test]
    fn no_library_that_the_programs_need_is_taken_for_part_of_the_c_compiler() {
        let is_left_out = |name: &str| C_COMPILER.iter().any(|beginning| name.starts_with(beginning));
        for name in
            ["libc6", "libgcc-s1", "libllvm19", "libstd-rust-1.85", "libstd-rust-dev", "libgit2-1.9", "rustc", "cargo"]
        {
            assert!(!is_left_out(name), "{name}");
        }
        for name in
            ["gcc-14", "gcc-14-base", "gcc-x86-64-linux-gnu", "libgcc-14-dev", "libc6-dev", "cpp-14", "binutils-common"]
        {
            assert!(is_left_out(name), "{name}");
        }
    }
}
