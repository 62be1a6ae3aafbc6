// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds our own programs by a nested cargo in its own target directory: those of the guest, static, and the plugin
//! that counts instructions in guests (`device/plugin/`), as the QEMU at hand can load it.

use crate::qemu::Version;
use crate::store::{Store, environment};
use crate::{Error, Result, exec, files};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Packages with binaries that all go into the guest, first those of [`Programs::Demo`].
const PACKAGES: [&str; 4] =
    ["telegraphos-guest-tests", "telegraphos-agent", "telegraphos-daemon", "telegraphos-sockets"];
/// The package of the library that programs of other roots preload; not static, as they are not.
const PRELOAD: &str = "telegraphos-preload";
/// The package of the plugin that counts instructions in guests.
const PLUGIN: &str = "telegraphos-plugin";
/// The first QEMU that only takes plugins of interface 7.
const INTERFACE_7: Version = Version { major: 11, minor: 1, micro: 0 };
/// The first QEMU with interface 4.
const INTERFACE_4: Version = Version { major: 9, minor: 2, micro: 0 };
/// The target directory of the guest's programs, in that of the workspace.
const GUEST: &str = "guest";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Which of our own programs a boot root has. Guests wait for those that are not built yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Programs {
    /// All of them, and the library for programs of other roots.
    #[default]
    All,
    /// What guests need to come up and to take commands, and `tg-demo`: so a first look at the project waits for a
    /// quarter of the compilation. All of them where they have been built already.
    Demo,
}

impl Programs {
    /// What there is to build. The library `telegraphos` is in a file of the same name with and without the features
    /// of the other programs: after the one the other would be built anew, with all that uses it.
    pub(crate) fn to_build(self) -> Result<Programs> {
        let built = target_directory(GUEST)?.join(TARGET).join("guest/tg");
        Ok(if built.exists() { Programs::All } else { self })
    }
}

/// Where the project's sources are: `$TELEGRAPHOS_SOURCE`, else where this crate was built.
pub(crate) fn source_root() -> Result<PathBuf> {
    let root = environment("TELEGRAPHOS_SOURCE").unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    root.canonicalize().ok().filter(|root| root.join("guest-driver").is_dir()).ok_or_else(|| {
        let what = "the project's sources (a directory with guest-driver in it)";
        Error::missing(what, root, "set TELEGRAPHOS_SOURCE to a checkout of the project")
    })
}

/// Whether an environment variable of an outer cargo would change what the nested one builds.
fn leaks(name: &str) -> bool {
    const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_BUILD_JOBS", "CARGO_TERM_COLOR"];
    const KEPT_PREFIXES: [&str; 4] = ["CARGO_NET_", "CARGO_HTTP_", "CARGO_REGISTRY_", "CARGO_REGISTRIES_"];
    if KEPT.contains(&name) || KEPT_PREFIXES.iter().any(|p| name.starts_with(p)) {
        return false;
    }
    name.starts_with("CARGO")
        || [
            "RUSTFLAGS",
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTC_WORKSPACE_WRAPPER",
            "RUSTDOCFLAGS",
            "OUT_DIR",
            "TARGET",
            "HOST",
            "PROFILE",
            "LD_LIBRARY_PATH",
        ]
        .contains(&name)
}

/// A nested cargo, started in the project's sources, with nothing of an outer one but where it finds crates.
pub fn nested_cargo() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(leaks) {
            command.env_remove(&name);
        }
    }
    command.current_dir(source_root()?);
    Ok(command)
}

/// A target directory of a nested cargo, of this name.
fn target_directory(name: &str) -> Result<PathBuf> {
    // A relative one starts where the outer cargo was started, which is unknown here.
    let outer = environment("CARGO_TARGET_DIR").filter(|dir| dir.is_absolute());
    Ok(outer.unwrap_or(source_root()?.join("target")).join(name))
}

/// The nested cargo that builds the guest's programs, with the profile that the workspace has for them, for a target
/// directory of this name.
pub(crate) fn cargo(target: &str) -> Result<Command> {
    let mut command = nested_cargo()?;
    command.args(["build", "--profile=guest", "--locked", "--message-format=json-render-diagnostics", "--target-dir"]);
    command.arg(target_directory(target)?);
    Ok(command)
}

/// Where cargo's messages of the last build of these are.
fn built(programs: Programs) -> Result<PathBuf> {
    Ok(target_directory(GUEST)?.join(format!("built-{programs:?}.json")))
}

/// A nested cargo that builds the guest's programs; what is to be built of them, as `--bins`, is missing.
pub fn guest_programs(programs: Programs) -> Result<Command> {
    let mut command = cargo(GUEST)?;
    command.env("RUSTFLAGS", "-C target-feature=+crt-static").args(["--target", TARGET]);
    let packages = match programs {
        Programs::All => &PACKAGES[..],
        Programs::Demo => {
            command.arg("--no-default-features");
            &PACKAGES[..2]
        }
    };
    for package in packages {
        command.args(["--package", package]);
    }
    Ok(command)
}

impl Store {
    /// The guest's programs, freshly built: (name, file). Cargo decides what is up to date.
    pub(crate) fn tools(&self, programs: Programs) -> Result<Vec<(String, PathBuf)>> {
        let built = built(programs)?;
        let messages = self.build("the guest's programs", guest_programs(programs)?.arg("--bins"), Some(&built))?;
        let mut tools: Vec<_> = messages.lines().filter_map(executable).collect();
        tools.sort();
        tools.dedup();
        Ok(tools)
    }

    /// Builds the guest's programs if there are none yet, silently, until `stop` is set: [`Store::guest`] needs
    /// them behind all that it fetches, and says what is wrong with them.
    pub fn build_ahead(&self, programs: Programs, stop: &Arc<AtomicBool>) {
        let build = || -> Result<()> {
            let programs = programs.to_build()?;
            if !built(programs)?.exists() {
                let interrupted = || stop.fetch_or(self.cancel.load(Ordering::Relaxed), Ordering::Relaxed);
                exec::run(guest_programs(programs)?.arg("--bins"), stop, || _ = interrupted())?;
            }
            Ok(())
        };
        build().unwrap_or_else(|error| log::debug!("the guest's programs are not built ahead: {error}"));
    }

    /// The library for programs of other roots, `libtelegraphos_preload.so`, freshly built.
    pub fn preload(&self) -> Result<PathBuf> {
        // Beside the static ones, each would be built anew after the other.
        let mut command = cargo("guest-shared")?;
        command.args(["--package", PRELOAD, "--target", TARGET]);
        let built = target_directory("guest-shared")?.join("built.json");
        let messages = self.build("the library of sockets", &mut command, Some(&built))?;
        library(&messages, PRELOAD, ".so").ok_or_else(|| Error::Failed(format!("cargo built no library of {PRELOAD}")))
    }

    /// The counting plugin for a QEMU of this version, freshly built: a shared library for `-plugin`. Before 11.1 it
    /// needs a newer Rust than the rest of the project (`device/plugin/Cargo.toml`).
    pub fn plugin(&self, qemu: Version) -> Result<PathBuf> {
        let (target, features) = match qemu {
            v if v >= INTERFACE_7 => ("plugin", None),
            v if v >= INTERFACE_4 => ("plugin-api-v4", Some("plugin-api-v4")),
            old => {
                return Err(Error::Failed(format!(
                    "QEMU {old} cannot load the counting plugin: expected {INTERFACE_4} or newer"
                )));
            }
        };
        let mut command = cargo(target)?;
        command.args(["--package", PLUGIN]);
        if let Some(features) = features {
            command.args(["--features", features]);
        }
        let messages = self.build("the counting plugin", &mut command, None)?;
        let made = library(&messages, PLUGIN, ".so");
        made.ok_or_else(|| Error::build("building the counting plugin", "no shared library was made", ""))
    }

    /// Runs a nested cargo; its messages. Where there is no cargo, as for root or a service, those that `built` has of
    /// the last time.
    fn build(&self, what: &str, command: &mut Command, built: Option<&Path>) -> Result<String> {
        // The step is shown only if cargo has something to do.
        let begun = std::time::Instant::now();
        let mut step = None;
        let ended = exec::run(command, &self.cancel, || {
            if step.is_none() && begun.elapsed().as_millis() > 700 {
                step = Some(self.progress.step(format!("Building {what}"), None));
            }
        });
        let mut out = match (ended, built) {
            (Err(Error::Spawn { source, .. }), Some(built)) if source.kind() == ErrorKind::NotFound => {
                return last_built(what, built);
            }
            (ended, _) => ended?,
        };
        let messages = std::mem::take(&mut out.stdout);
        out.success(|| format!("building {what}"), 40)?;
        if let Some(built) = built {
            // Without it, one without cargo says that it is missing.
            remember(built, &messages).unwrap_or_else(|e| log::debug!("{e}"));
        }
        if let Some(step) = step {
            step.done();
        }
        Ok(messages)
    }
}

/// Keeps messages of cargo that name what it has built.
fn remember(built: &Path, messages: &str) -> Result<()> {
    let names = |line: &&str| line.contains("\"compiler-artifact\"");
    let text: String = messages.lines().filter(names).flat_map(|line| [line, "\n"]).collect();
    // Another user's may be there, which is as good as this one.
    if fs::read_to_string(built).is_ok_and(|before| before == text) {
        return Ok(());
    }
    files::write(built, text.as_bytes())
}

/// Messages that were kept, if what they name is there still.
fn last_built(what: &str, built: &Path) -> Result<String> {
    let missing = |why: String| {
        Error::Failed(format!(
            "{what}: cargo is not in PATH, and {why}; add the directory of cargo to PATH, or run the command once in an \
             environment with cargo"
        ))
    };
    let messages = fs::read_to_string(built).map_err(|e| missing(format!("cannot read {}: {e}", built.display())))?;
    match messages.lines().filter_map(executable).find(|(_, program)| !program.is_file()) {
        Some((_, gone)) => Err(missing(format!("{} is not there", gone.display()))),
        None => {
            log::info!("{what}: cargo is not in PATH, so that those are used which {} names", built.display());
            Ok(messages)
        }
    }
}

/// The program that a line of cargo's messages names.
fn executable(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let path = PathBuf::from(message.get("executable")?.as_str()?);
    Some((path.file_name()?.to_str()?.to_owned(), path))
}

/// The library of a package with this ending that cargo's messages name.
pub fn library(messages: &str, package: &str, ending: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message.get("target")?.get("name")?.as_str()?;
        let files = message.get("filenames")?.as_array()?;
        let found = files.iter().filter_map(|file| file.as_str()).find(|file| file.ends_with(ending))?;
        (name.replace('_', "-") == package).then(|| found.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    #[test]
    fn the_outer_build_does_not_leak() {
        for name in [
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_PKG_NAME",
            "CARGO",
            "RUSTC_WRAPPER",
            "CARGO_PROFILE_RELEASE_DEBUG",
        ] {
            assert!(leaks(name), "{name}");
        }
        for name in
            ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_X_INDEX", "PATH", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN"]
        {
            assert!(!leaks(name), "{name}");
        }
    }

    #[test]
    fn executables_are_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/release/tg-agent","target":{"name":"tg-agent"}}"#;
        assert_eq!(executable(line), Some(("tg-agent".into(), "/t/release/tg-agent".into())));
        assert_eq!(executable(r#"{"reason":"compiler-artifact","executable":null}"#), None);
        assert_eq!(executable("warning: x"), None);
        let line = r#"{"reason":"compiler-artifact","filenames":["/t/liba_b.so"],"target":{"name":"a_b"}}"#;
        assert_eq!(library(line, "a-b", ".so"), Some("/t/liba_b.so".into()));
        assert_eq!(library(line, "a", ".so"), None);
    }

    /// As `env -i`, sudo, cron or systemd start it.
    #[test]
    fn without_cargo_what_was_built_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        let (built, program) = (dir.path().join("built.json"), dir.path().join("tg"));
        let line = format!(r#"{{"reason":"compiler-artifact","executable":"{}"}}"#, program.display());
        let build = |cargo: &mut Command| store.build("the programs", cargo, Some(&built));
        let without = || build(&mut Command::new("/none/cargo")).map_err(|e| e.to_string());
        let why = without().unwrap_err();
        assert!(why.contains("cargo is not in PATH") && why.contains("built.json"), "{why}");
        let said = build(Command::new("echo").arg(format!("noise\n{line}"))).unwrap();
        assert!(said.starts_with("noise\n"));
        let why = without().unwrap_err();
        assert!(why.contains("/tg is not there"), "{why}");
        fs::write(&program, "").unwrap();
        assert_eq!(without().unwrap(), format!("{line}\n"));
        // One that is there and fails is an error.
        assert!(build(&mut Command::new("false")).is_err());
    }

    #[test]
    fn the_library_is_found_in_cargos_messages() {
        let library = |line| super::library(line, PLUGIN, ".so");
        let line = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"telegraphos_plugin"},"#,
            r#""filenames":["/t/release/libtelegraphos_plugin.so"]}"#
        );
        assert_eq!(library(line), Some("/t/release/libtelegraphos_plugin.so".into()));
        assert_eq!(
            library(r#"{"target":{"name":"telegraphos_plugin_core"},"filenames":["/t/libobserver_core.so"]}"#),
            None
        );
        assert_eq!(library("warning: x"), None);
    }

    #[test]
    fn a_qemu_without_the_interface_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        let e = store.plugin(Version { major: 7, minor: 2, micro: 22 }).unwrap_err().to_string();
        assert!(e.contains("7.2.22") && e.contains("9.2.0"), "{e}");
    }
}
