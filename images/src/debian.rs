// SPDX-License-Identifier: MIT OR Apache-2.0
//! A root made of Debian's packages, installed as Debian installs them: unpacked, then configured by dpkg inside the
//! new root, so that their users, keys and configurations are there.

use crate::apt::{self, Apt, Fetched};
use crate::chroot::{self, Owners};
use crate::files;
use crate::store::{Lock, Store};
use crate::{Error, Manifest, Result, owners, sources};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Suites that roots are made from.
pub(crate) const SUITES: [&str; 5] = ["bookworm", "bookworm-backports", "trixie", "trixie-backports", "testing"];

/// What Debian calls essential, and what it needs to configure the rest.
const ESSENTIAL: [&str; 24] = [
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "debconf",
    "debianutils",
    "diffutils",
    "dpkg",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "init-system-helpers",
    "libc-bin",
    "login",
    "mawk",
    "ncurses-bin",
    "passwd",
    "perl-base",
    "sed",
    "sysvinit-utils",
    "tar",
    "util-linux",
];
/// Where the packages lie inside the root while it is made.
const DEBS: &str = "var/cache/telegraphos";
const FORMAT: &str = "1";

/// The root of a suite (the host's own release without one) with these packages.
pub(crate) fn root(store: &Store, suite: Option<&str>, packages: &[String]) -> Result<(PathBuf, Manifest)> {
    let suite = match suite {
        Some(suite) => suite.to_owned(),
        None => sources::Host::here()?.release().name,
    };
    let mut names = packages.to_vec();
    names.sort();
    names.dedup();
    let key = files::sha256_parts([("format", FORMAT.as_bytes()), ("packages", names.join(" ").as_bytes())]);
    let make = |lock: &Lock, at: &Path| make(store, lock, &suite, &names, at);
    let (dir, manifest) = store.artefact(&format!("root/{suite}-{}", &key[..16]), make)?;
    Ok((dir.join("root"), manifest))
}

fn make(store: &Store, lock: &Lock, suite: &str, packages: &[String], at: &Path) -> Result<Manifest> {
    if owners::are_foreign() {
        files::write(&at.join(owners::MARK), b"")?;
    }
    // Before anything is fetched.
    chroot::check(store, Owners::Several)?;
    let apt = Apt::open(store, lock, |_| sources::Release::named(suite))?;
    let wanted: Vec<&str> = ESSENTIAL.into_iter().chain(packages.iter().map(String::as_str)).collect();
    let what = match packages {
        [] => format!("a root of Debian {suite}"),
        some => format!("a root of Debian {suite} with {}", some.join(", ")),
    };
    let debs = apt.fetch(&what, &apt.closure(&wanted)?)?;
    let root = at.join("root");
    // What the scripts of packages call must be there before the first of them runs.
    apt::unpack(store, &what, &debs, &root)?;
    let step = store.progress.step(format!("Configuring {what}"), None);
    prepare(&root, &debs)?;
    configure(store, &root)?;
    clean(&root)?;
    step.done();
    Ok(Manifest::of(what, apt::records(debs)))
}

/// What dpkg expects of a root.
fn prepare(root: &Path, debs: &[Fetched]) -> Result<()> {
    for dir in [DEBS, "proc", "sys", "dev", "run", "tmp", "root", "home", "var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        files::make_dir(root.join(dir))?;
    }
    let mode = |path: &str, mode: u32| {
        let path = root.join(path);
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).map_err(Error::io("cannot change", path))
    };
    mode("tmp", 0o1777)?;
    mode("root", 0o700)?;
    for name in ["status", "available"] {
        files::write(&root.join("var/lib/dpkg").join(name), b"")?;
    }
    // The owners that packages name; base-passwd itself comes with all others.
    for name in ["passwd", "group"] {
        let master = root.join(format!("usr/share/base-passwd/{name}.master"));
        files::write(&root.join("etc").join(name), &files::read(&master)?)?;
    }
    // Nothing is started while packages are configured.
    files::write(&root.join("usr/sbin/policy-rc.d"), b"#!/bin/sh\nexit 101\n")?;
    mode("usr/sbin/policy-rc.d", 0o755)?;
    for deb in debs {
        let to = root.join(DEBS).join(deb.path.file_name().unwrap_or_default());
        fs::hard_link(&deb.path, &to)
            .or_else(|_| fs::copy(&deb.path, &to).map(drop))
            .map_err(Error::io("cannot copy a package to", &to))?;
    }
    Ok(())
}

/// Has dpkg install the packages. Those that another must precede fail in the first turn, and succeed in the second.
fn configure(store: &Store, root: &Path) -> Result<()> {
    let dpkg = |words: &str| {
        let script = format!(
            "umask 022; dpkg --force-depends --force-confnew --force-unsafe-io --path-exclude='/usr/share/doc/*' \
             --path-exclude='/usr/share/man/*' --path-exclude='/usr/share/locale/*' {words}"
        );
        let argv = ["DEBIAN_FRONTEND=noninteractive", "DEBCONF_NONINTERACTIVE_SEEN=true", "sh", "-c", &script];
        chroot::run(store, root, Owners::Several, &argv)
    };
    dpkg(&format!("--unpack /{DEBS}/base-passwd_*.deb /{DEBS}/base-files_*.deb && dpkg --configure -a"))?;
    dpkg(&format!("--unpack /{DEBS}/*.deb"))?.success(|| "unpacking the packages of a root".into(), 20)?;
    let first = dpkg("--configure -a")?;
    if first.status.success() {
        return Ok(());
    }
    dpkg("--configure -a")?.success(|| "configuring the packages of a root".into(), 40).map(drop)
}

fn clean(root: &Path) -> Result<()> {
    let debs = root.join(DEBS);
    files::remove_dir(&debs)?;
    let policy = root.join("usr/sbin/policy-rc.d");
    fs::remove_file(&policy).map_err(Error::io("cannot remove", policy))
}
