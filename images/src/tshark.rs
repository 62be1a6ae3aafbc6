// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a tshark, the command-line Wireshark, that runs dissectors in Lua. It only reads capture files; nothing of it
//! is linked.

use crate::apt;
use crate::exec;
use crate::files;
use crate::prefix::{self, Program};
use crate::qemu::Version;
use crate::store::{Lock, Store};
use crate::{Error, Manifest, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first that the dissector is tested with.
const MIN_VERSION: Version = Version { major: 4, minor: 4, micro: 0 };
/// Where Debian's comes from, whatever the host's release: one version for everybody.
const RELEASE: &str = "trixie";
const PACKAGE: &str = "tshark";
const PLUGINS: &str = "usr/lib/x86_64-linux-gnu/plugins";

/// A tshark with Lua, ready to run.
#[derive(Clone, Debug)]
pub struct Tshark {
    pub version: Version,
    /// What it is made of.
    pub manifest: Manifest,
    program: Program,
}

impl Tshark {
    /// A command that runs it; add its options.
    pub fn command(&self) -> Command {
        self.program.command()
    }
}

impl Store {
    /// `$TELEGRAPHOS_TSHARK` if set (and then it must do), else the host's if it is 4.4 or newer and has Lua, else
    /// Debian's, fetched once.
    pub fn tshark(&self) -> Result<Tshark> {
        if let Some(tshark) = prefix::find("tshark", "TELEGRAPHOS_TSHARK", PACKAGE, |path| plain(self, path))? {
            return Ok(tshark);
        }
        let (prefix, manifest) = self.artefact("tshark/debian", |lock, at| unpack(self, lock, at))?;
        from_prefix(&prefix, manifest)
    }
}

fn plain(store: &Store, path: PathBuf) -> Result<Tshark> {
    let shown = path.display().to_string();
    let program = Program::of_host(path);
    let version = check(store, &program, &shown)?;
    Ok(Tshark { version, manifest: Manifest::of(format!("tshark {version} ({shown})"), []), program })
}

/// Reads the version of a tshark and tries Lua.
fn check(store: &Store, program: &Program, shown: &str) -> Result<Version> {
    let out = exec::run(program.command().arg("--version"), &store.cancel, || ())?;
    let first = out.stdout.lines().next().unwrap_or("");
    let unfit = |why: String| {
        Err(Error::Failed(format!(
            "{shown} will not do: {why}; expected tshark {MIN_VERSION} or newer with Lua: unset TELEGRAPHOS_TSHARK to have \
             Debian's fetched"
        )))
    };
    let Some(version) = Some(first).filter(|line| line.starts_with("TShark")).and_then(Version::parse) else {
        return unfit(format!("it printed {first:?}"));
    };
    if version < MIN_VERSION {
        return unfit(format!("it is version {version}"));
    }
    // Not every one has Lua, and one that has runs no scripts for root unless configured to: so it is tried.
    let dir = tempfile::tempdir().map_err(Error::io("cannot create a temporary directory in", std::env::temp_dir()))?;
    let (script, empty) = (dir.path().join("trial.lua"), dir.path().join("empty.pcapng"));
    files::write(&script, format!("print({TRIAL:?})\n").as_bytes())?;
    files::write(&empty, &EMPTY)?;
    let script = format!("lua_script:{}", script.display());
    let out = exec::run(program.command().arg("-X").arg(script).arg("-r").arg(&empty), &store.cancel, || ())?;
    if !out.stdout.contains(TRIAL) {
        return unfit(format!("it does not run a Lua script for this user: {}", out.tail(3)));
    }
    Ok(version)
}

/// What the script prints.
const TRIAL: &str = "Lua works";
/// A pcapng file without packets: a section header.
const EMPTY: [u8; 28] = [
    0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255,
    28, 0, 0, 0,
];

fn unpack(store: &Store, lock: &Lock, at: &Path) -> Result<Manifest> {
    let remedy = "set TELEGRAPHOS_TSHARK to a tshark of your own";
    let manifest = apt::install_from(store, lock, RELEASE, PACKAGE, remedy, at)?;
    // It runs no scripts for root, which CI mostly is, unless its own configuration allows it. It finds that beside
    // its loader.
    let plugins = at.join(PLUGINS);
    files::make_dir(&plugins)?;
    files::write(&plugins.join("init.lua"), b"run_user_scripts_when_superuser = true\n")?;
    // It must start here before it is kept.
    let trial = from_prefix(at, manifest.clone())?;
    check(store, &trial.program, &at.display().to_string())?;
    Ok(manifest)
}

/// How to run the packages unpacked under `at`.
fn from_prefix(at: &Path, manifest: Manifest) -> Result<Tshark> {
    let mut program = Program::of_prefix(at, "tshark", PACKAGE, "usr/bin/tshark")?;
    // Not the user's configuration, which may change what is shown.
    program.env.push(("XDG_CONFIG_HOME".into(), at.join("no-configuration").into_os_string()));
    let version = manifest.package(PACKAGE).and_then(|package| Version::parse(&package.version)).unwrap_or(MIN_VERSION);
    Ok(Tshark { version, manifest, program })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn an_unfit_tshark_is_refused_with_the_reason_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        let ask = |name: &str, says: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\ncat <<E\n{says}\nE\n")).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            // Another test's fork may still hold the script open for writing.
            for _ in 0..50 {
                match plain(&store, path.clone()) {
                    Err(Error::Spawn { source, .. }) if source.raw_os_error() == Some(26) => {
                        std::thread::sleep(std::time::Duration::from_millis(20));
                    }
                    other => return other,
                }
            }
            panic!("the script stays busy");
        };
        for (name, says, why) in [
            ("old", "TShark (Wireshark) 3.4.10 (Git v3.4)\nwith Lua 5.2", "version 3.4.10"),
            ("other", "hello 9.9", "hello"),
            ("bare", "TShark (Wireshark) 4.4.13\nCompiled without Lua", "does not run a Lua script"),
        ] {
            let e = ask(name, says).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains("TELEGRAPHOS_TSHARK") && e.contains(name), "{e}");
        }
        let good = ask("good", "TShark (Wireshark) 4.4.19\nCompiled with GLib\nLua works").unwrap();
        assert_eq!(good.version.to_string(), "4.4.19");
    }
}
