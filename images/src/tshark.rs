// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a tshark, the command-line Wireshark, that runs dissectors in Lua. It only reads capture files; nothing of it
//! is linked.

use crate::exec;
use crate::files;
use crate::prefix::{self, Packaged, Program};
use crate::qemu::Version;
use crate::store::Store;
use crate::{Error, Manifest, Result};
use std::path::PathBuf;
use std::process::Command;

/// The first that the dissector is tested with.
const MIN_VERSION: Version = Version { major: 4, minor: 4, micro: 0 };
const DEBIANS: Packaged = Packaged {
    name: "tshark",
    package: "tshark",
    release: "trixie",
    place: "tshark/debian",
    program: "usr/bin/tshark",
    // Not the user's configuration, which may change what is shown.
    env: Some(("XDG_CONFIG_HOME", "no-configuration")),
    remedy: "set TELEGRAPHOS_TSHARK to a tshark of your own",
};
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
        if let Some(tshark) = prefix::find("tshark", "TELEGRAPHOS_TSHARK", "tshark", |path| plain(self, path))? {
            return Ok(tshark);
        }
        let (program, manifest) = DEBIANS.fetched(self, |at, program| {
            // It runs no scripts for root, which CI mostly is, unless its own configuration allows it. It finds that
            // beside its loader.
            let plugins = at.join(PLUGINS);
            files::make_dir(&plugins)?;
            files::write(&plugins.join("init.lua"), b"run_user_scripts_when_superuser = true\n")?;
            check(self, program, &at.display().to_string()).map(drop)
        })?;
        let debian = manifest.package(DEBIANS.package);
        let version = debian.and_then(|package| Version::parse(&package.version)).unwrap_or(MIN_VERSION);
        Ok(Tshark { version, manifest, program })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::exec::tests::of_script;

    #[test]
    fn an_unfit_tshark_is_refused_with_the_reason_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        let ask = |name: &str, says: &str| {
            let path = dir.path().join(name);
            of_script(&path, &format!("#!/bin/sh\ncat <<E\n{says}\nE\n"), || plain(&store, path.clone()))
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
