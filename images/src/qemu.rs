// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a QEMU that can be the host of a HIB.

use crate::apt::{self, Apt};
use crate::exec;
use crate::prefix::{self, Program};
use crate::sources::Release;
use crate::store::{Lock, Store};
use crate::{Error, Manifest, Result};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub micro: u32,
}

/// The first QEMU with a vfio-user client that works: 10.1.0 had it with a regression.
pub const MIN_VERSION: Version = Version { major: 10, minor: 1, micro: 1 };

impl Version {
    /// The first `A.B` or `A.B.C` in a text such as `QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)` or in a
    /// Debian version.
    pub fn parse(text: &str) -> Option<Version> {
        text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
            let mut parts = word.trim_matches('.').split('.').map(str::parse::<u32>);
            let (major, minor) = (parts.next()?.ok()?, parts.next()?.ok()?);
            Some(Version { major, minor, micro: parts.next().and_then(|p| p.ok()).unwrap_or(0) })
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.micro)
    }
}

/// A QEMU with `vfio-user-pci`, ready to run.
#[derive(Clone, Debug)]
pub struct Qemu {
    pub version: Version,
    /// What it is made of.
    pub manifest: Manifest,
    program: Program,
}

impl Qemu {
    /// A command that runs it; add the machine's own options.
    pub fn command(&self) -> Command {
        self.program.command()
    }
}

const NAME: &str = "qemu-system-x86_64";
/// Debian's package of it.
const PACKAGE: &str = "qemu-system-x86";

impl Store {
    /// `$TELEGRAPHOS_QEMU` if set (and then it must do), else the host's if it is [`MIN_VERSION`] or newer with
    /// `vfio-user-pci`, else Debian's newest, fetched once.
    pub fn qemu(&self) -> Result<Qemu> {
        if let Some(qemu) = prefix::find("QEMU", "TELEGRAPHOS_QEMU", NAME, |path| plain(self, path))? {
            return Ok(qemu);
        }
        let (prefix, manifest) = self.artefact("qemu/debian", |lock, at| unpack(self, lock, at))?;
        from_prefix(&prefix, manifest)
    }

    /// The QEMU at `path`, which must be [`MIN_VERSION`] or newer with `vfio-user-pci`.
    pub fn qemu_at(&self, path: PathBuf) -> Result<Qemu> {
        plain(self, path)
    }

    /// The QEMU of one Debian release (`trixie`), fetched once, whatever it can do: one before [`MIN_VERSION`] runs
    /// guests, but no HIB.
    pub fn qemu_of(&self, release: &str) -> Result<Qemu> {
        let make = |lock: &Lock, at: &Path| {
            let apt = Apt::open(self, lock, |_| Release::named(release))?;
            let remedy = "name a release that has it, such as trixie";
            let debian = apt.version(PACKAGE)?.ok_or_else(|| Error::no_package(PACKAGE, release, remedy))?;
            unpack_version(self, &apt, release, &debian, at)
        };
        let (prefix, manifest) = self.artefact(&format!("qemu/{release}"), make)?;
        from_prefix(&prefix, manifest)
    }
}

fn plain(store: &Store, path: PathBuf) -> Result<Qemu> {
    let version = check(store, &path)?;
    let manifest = Manifest::of(format!("QEMU {version} ({})", path.display()), []);
    Ok(Qemu { version, manifest, program: Program::of_host(path) })
}

/// Reads the version and the devices of a QEMU.
fn check(store: &Store, program: &Path) -> Result<Version> {
    let ask = |args: &[&str]| exec::run(Command::new(program).args(args), &store.cancel, || ());
    let out = ask(&["--version"])?;
    let first = out.stdout.lines().next().unwrap_or("").to_owned();
    let unfit = |found: String| {
        Error::Failed(format!(
            "QEMU too old or without vfio-user: {} is version {found}, wanted is {MIN_VERSION} or newer with the device \
             vfio-user-pci; install a newer QEMU, or name none (--qemu, TELEGRAPHOS_QEMU) to use Debian's",
            program.display()
        ))
    };
    let version = first
        .strip_prefix("QEMU emulator version ")
        .and_then(Version::parse)
        .ok_or_else(|| unfit(format!("unknown (it printed {first:?})")))?;
    if version < MIN_VERSION {
        return Err(unfit(version.to_string()));
    }
    let devices = ask(&["-device", "help"])?.stdout;
    if !devices.contains("\"vfio-user-pci\"") {
        return Err(unfit(format!("{version} and lacks the device vfio-user-pci")));
    }
    Ok(version)
}

/// Debian's packages of the newest QEMU that will do, and all they depend on.
fn unpack(store: &Store, lock: &Lock, at: &Path) -> Result<Manifest> {
    let mut looked = Vec::new();
    for name in ["trixie-backports", "testing"] {
        let apt = Apt::open(store, lock, |_| Release::named(name))?;
        let debian = apt.version(PACKAGE)?.unwrap_or_else(|| "none".into());
        if Version::parse(upstream(&debian)).is_none_or(|version| version < MIN_VERSION) {
            looked.push(format!("{name} ({debian})"));
            continue;
        }
        let manifest = unpack_version(store, &apt, name, &debian, at)?;
        // It must start here and know the device before it is kept.
        let trial = from_prefix(at, manifest.clone())?;
        let out = exec::run(trial.command().args(["-device", "help"]), &store.cancel, || ())?;
        if !out.stdout.contains("\"vfio-user-pci\"") {
            return Err(out.failed(format!("the first start of Debian's QEMU {debian}"), 10));
        }
        return Ok(manifest);
    }
    let remedy = "set TELEGRAPHOS_QEMU to a QEMU that will do";
    Err(Error::no_package(format!("{PACKAGE} >= {MIN_VERSION}"), looked.join(", "), remedy))
}

/// A Debian version without its epoch.
fn upstream(debian: &str) -> &str {
    debian.split_once(':').map_or(debian, |(_epoch, v)| v)
}

/// The packages of this version and all they depend on.
fn unpack_version(store: &Store, apt: &Apt<'_>, release: &str, debian: &str, at: &Path) -> Result<Manifest> {
    let upstream = upstream(debian);
    let what = format!("QEMU {}", upstream.split('+').next().unwrap_or(upstream));
    apt::install(store, apt, PACKAGE, &what, format!("QEMU {debian} (Debian {release})"), at)
}

/// How to run the packages unpacked under `at`.
fn from_prefix(at: &Path, manifest: Manifest) -> Result<Qemu> {
    let mut program = Program::of_prefix(at, "QEMU", "qemu", "usr/bin/qemu-system-x86_64")?;
    let debian = manifest.package(PACKAGE).map(|p| p.version.clone()).unwrap_or_default();
    let version = Version::parse(upstream(&debian)).unwrap_or(MIN_VERSION);
    for dir in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
        program.args.extend(["-L".into(), at.join(dir).into_os_string()]);
    }
    let modules = at.join("usr/lib/x86_64-linux-gnu/qemu").into_os_string();
    program.env.push(("QEMU_MODULE_DIR".into(), modules));
    Ok(Qemu { version, manifest, program })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::exec::tests::of_script;

    #[test]
    fn versions_are_read_and_ordered() {
        let v = |t| Version::parse(t).unwrap();
        assert_eq!(v("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)").to_string(), "7.2.22");
        assert_eq!(v("11.1.3+ds-1~bpo13+1").to_string(), "11.1.3");
        assert_eq!(v("10.2").micro, 0);
        assert!(v("10.1.0") < MIN_VERSION && v("10.1.1") >= MIN_VERSION && v("11.0.0") > MIN_VERSION);
        assert!(v("9.2.50") < MIN_VERSION);
        assert_eq!(Version::parse("no number here"), None);
    }

    #[test]
    fn unfit_qemus_are_refused_with_found_wanted_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        // A program that answers like a QEMU of that version with those devices.
        let ask = |version: &str, device: &str| {
            let script = format!(
                "#!/bin/sh\ncase \"$1\" in --version) echo '{version}';; -device) echo 'name \"{device}\", bus PCI';; esac\n"
            );
            let path = dir.path().join("qemu");
            of_script(&path, &script, || check(&store, &path))
        };
        for (version, found) in [
            ("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)", "7.2.22"),
            ("QEMU emulator version 10.1.0", "10.1.0"),
            ("something else 99.0", "unknown"),
        ] {
            let e = ask(version, "vfio-user-pci").unwrap_err().to_string();
            assert!(e.starts_with("QEMU too old or without vfio-user"), "{e}");
            for part in [found, "10.1.1", "TELEGRAPHOS_QEMU", "/qemu"] {
                assert!(e.contains(part), "{part} is not in: {e}");
            }
        }
        let e = ask("QEMU emulator version 11.1.3", "vfio-pci").unwrap_err().to_string();
        assert!(e.contains("11.1.3 and lacks the device vfio-user-pci"), "{e}");
        assert_eq!(ask("QEMU emulator version 10.1.1", "vfio-user-pci").unwrap(), MIN_VERSION);
        let e = check(&store, Path::new("/nonexistent/qemu")).unwrap_err().to_string();
        assert!(e.contains("/nonexistent/qemu"), "{e}");
    }
}
