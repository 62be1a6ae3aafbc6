// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fetches Debian packages through the host's own apt-get, with separate state, lists and cache. apt verifies the
//! signed metadata and the packages' hashes; no root is needed since nothing is installed.

use crate::exec;
use crate::files;
use crate::manifest::PackageRecord;
use crate::sources::{Host, Release, derive, stanzas};
use crate::store::{Lock, Store};
use crate::{Error, Manifest, Result};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// One release, ready for queries.
pub(crate) struct Apt<'a> {
    store: &'a Store,
    lock: &'a Lock,
    pub(crate) release: Release,
    keyring: String,
    dir: PathBuf,
}

/// A package apt would fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deb {
    pub(crate) name: String,
    pub(crate) version: String,
    file: String,
    size: u64,
}

/// A package in the pool, hash checked.
pub(crate) struct Fetched {
    pub(crate) path: PathBuf,
    pub(crate) record: PackageRecord,
}

/// What a manifest says of them.
pub(crate) fn records(debs: impl IntoIterator<Item = Fetched>) -> impl Iterator<Item = PackageRecord> {
    debs.into_iter().map(|deb| deb.record)
}

/// Lists younger than this are not fetched again.
const FRESH: Duration = Duration::from_secs(3600);

impl<'a> Apt<'a> {
    /// Writes the configuration for the release that `choose` names for this host, and sees to it that the lists are
    /// there and fresh.
    pub(crate) fn open(store: &'a Store, lock: &'a Lock, choose: impl FnOnce(&Host) -> Release) -> Result<Apt<'a>> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::Failed(format!(
                "this host is {}, guests are amd64; run on an amd64 host",
                std::env::consts::ARCH
            )));
        }
        let host = Host::here()?;
        let release = choose(&host);
        let sources = derive(&host, &release)?;
        let dir = store.path().join("apt").join(&release.name);
        for sub in ["state", "lists/partial", "cache/archives/partial"] {
            files::make_dir(dir.join(sub))?;
        }
        files::write(&dir.join("status"), b"")?;
        files::write(&dir.join("debian.sources"), sources.text.as_bytes())?;
        files::write(&dir.join("apt.conf"), config(&dir, &release)?.as_bytes())?;
        let apt = Apt { store, lock, release, keyring: sources.keyring, dir };
        let stamp = apt.dir.join("stamp");
        let fresh = fs::read(&stamp).is_ok_and(|of| of == sources.text.as_bytes())
            && fs::metadata(&stamp).and_then(|m| m.modified()).is_ok_and(|t| t.elapsed().is_ok_and(|age| age < FRESH));
        if !fresh {
            apt.update()?;
            files::write(&stamp, sources.text.as_bytes())?;
        }
        Ok(apt)
    }

    fn update(&self) -> Result<()> {
        let lists = format!("package lists of {}", self.release.name);
        let step = self.store.progress.step(format!("Reading Debian's {lists}"), None);
        let mut command = self.tool("apt-get");
        command.args(["update", "-q", "--allow-releaseinfo-change", "-o", "APT::Update::Error-Mode=any"]);
        self.run(&mut command, || (), || format!("reading the {lists}"))?;
        step.done();
        Ok(())
    }

    /// Names of all packages that begin so.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let out = self.ask(self.tool("apt-cache").args(["pkgnames", prefix]))?;
        Ok(out.lines().map(|l| l.trim().to_owned()).collect())
    }

    /// Fields of the candidates of these packages, one map each, by lower-case names. Packages without a candidate are
    /// left out.
    pub(crate) fn show(&self, names: &[String]) -> Result<Vec<HashMap<String, String>>> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut show = self.tool("apt-cache");
        show.args(["show", "--no-all-versions"]).args(names);
        Ok(paragraphs(&exec::run(&mut show, &self.store.cancel, || ())?.stdout))
    }

    /// The newest of some packages by upstream version. `None` when the release has none of them.
    pub(crate) fn version(&self, name: &str) -> Result<Option<String>> {
        Ok(self.show(&[name.to_owned()])?.into_iter().next().and_then(|mut p| p.remove("version")))
    }

    /// These packages and what they depend on.
    pub(crate) fn closure(&self, names: &[&str]) -> Result<Vec<Deb>> {
        self.debs("resolving", &["install", "--yes"], names)
    }

    /// Only these packages.
    pub(crate) fn single(&self, names: &[&str]) -> Result<Vec<Deb>> {
        self.debs("finding", &["download"], names)
    }

    /// The packages that an apt-get command would fetch. `doing` begins the error's text.
    fn debs(&self, doing: &str, command: &[&str], names: &[&str]) -> Result<Vec<Deb>> {
        let mut apt = self.tool("apt-get");
        apt.args(command).args(["-qq", "--print-uris"]).args(names);
        let out = self.run(&mut apt, || (), || format!("{doing} {}", names.join(" ")))?;
        Ok(out.lines().filter_map(parse_uri_line).collect())
    }

    /// Brings packages into the pool and checks every one against the hash in the signed metadata.
    pub(crate) fn fetch(&self, what: &str, debs: &[Deb]) -> Result<Vec<Fetched>> {
        let pool = self.store.path().join("debs");
        files::make_dir(&pool)?;
        let expected = self.hashes(debs)?;
        let intact = |deb: &Deb, path: &Path| -> Result<Option<String>> {
            if !path.exists() {
                return Ok(None);
            }
            let hash = files::sha256_file(path)?;
            Ok((expected.get(&(deb.name.clone(), deb.version.clone())) == Some(&hash)).then_some(hash))
        };
        let mut missing = Vec::new();
        for deb in debs {
            if intact(deb, &pool.join(&deb.file))?.is_none() {
                missing.push(deb);
            }
        }
        if !missing.is_empty() {
            self.download(what, &missing, &pool)?;
        }
        let mut all = Vec::new();
        for deb in debs {
            let path = pool.join(&deb.file);
            let Some(sha256) = intact(deb, &path)? else {
                let _ = fs::remove_file(&path);
                let detail = format!("{} is not what the signed package list says", deb.file);
                let remedy = "try again; if it stays, check the mirror and the disk";
                return Err(Error::apt(format!("fetching {what}"), detail, remedy));
            };
            let record = PackageRecord {
                name: deb.name.clone(),
                version: deb.version.clone(),
                release: self.release.name.clone(),
                sha256,
            };
            all.push(Fetched { path, record });
        }
        Ok(all)
    }

    fn download(&self, what: &str, missing: &[&Deb], pool: &Path) -> Result<()> {
        // apt writes beside its final name; a directory of our own makes a torn file impossible in the pool.
        let temporary = self.store.temporary(self.lock)?;
        let bytes = missing.iter().map(|d| d.size).sum();
        let text = format!(
            "Fetching {what}: {} package{}, {:.0} MB",
            missing.len(),
            if missing.len() == 1 { "" } else { "s" },
            bytes as f64 / 1e6
        );
        let step = self.store.progress.step(text, Some(bytes));
        let mut command = self.tool("apt-get");
        command.args(["download", "-q"]).args(missing.iter().map(|d| format!("{}={}", d.name, d.version)));
        command.current_dir(temporary.path());
        let moved = || {
            let files = fs::read_dir(temporary.path()).into_iter().flatten().flatten();
            step.at(files.filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum());
        };
        self.run(&mut command, moved, || format!("fetching {what}"))?;
        for deb in missing {
            let (from, to) = (temporary.path().join(&deb.file), pool.join(&deb.file));
            fs::rename(&from, &to).map_err(Error::io("cannot move into the cache", &from))?;
        }
        step.done();
        Ok(())
    }

    /// SHA-256 of each package, from apt's verified lists.
    fn hashes(&self, debs: &[Deb]) -> Result<HashMap<(String, String), String>> {
        let mut command = self.tool("apt-cache");
        command.arg("show").args(debs.iter().map(|d| format!("{}={}", d.name, d.version)));
        let out = self.ask(&mut command)?;
        Ok(paragraphs(&out)
            .into_iter()
            .filter_map(|mut p| Some(((p.remove("package")?, p.remove("version")?), p.remove("sha256")?)))
            .collect())
    }

    fn ask(&self, command: &mut Command) -> Result<String> {
        self.run(command, || (), || "asking apt".into())
    }

    /// Runs apt and returns its standard output; calls `waiting` now and then. `what` is for the error.
    fn run(&self, command: &mut Command, waiting: impl FnMut(), what: impl FnOnce() -> String) -> Result<String> {
        let out = exec::run(command, &self.store.cancel, waiting)?;
        if out.status.success() { Ok(out.stdout) } else { Err(self.explain(&what(), &out)) }
    }

    fn tool(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.arg("-c").arg(self.dir.join("apt.conf")).env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    /// Turns apt's complaint into one that says what to do.
    fn explain(&self, what: &str, out: &exec::Output) -> Error {
        let lines: Vec<_> = out
            .stderr
            .lines()
            .chain(out.stdout.lines())
            .filter(|l| l.starts_with(['E', 'W']) || l.contains("Err:"))
            .collect();
        let detail = if lines.is_empty() { out.tail(6) } else { lines[..lines.len().min(6)].join("\n") };
        explain(what, &self.release.name, &self.keyring, detail)
    }
}

fn explain(what: &str, release: &str, keyring: &str, detail: String) -> Error {
    let has = |words: &[&str]| words.iter().any(|w| detail.contains(w));
    if has(&["NO_PUBKEY", "Missing key", "is not signed", "no longer signed", "verification failed"]) {
        return Error::Failed(format!(
            "the host's Debian keyring {keyring} does not know the keys that sign {release}; run once as root:\n    \
             apt-get update && apt-get install --yes debian-archive-keyring\nand try again\n(apt said: {detail})"
        ));
    }
    let remedy = if has(&["Unable to locate package", "has no installation candidate"]) {
        "`apt-cache search WORD` finds names of packages; a package may be in another suite"
    } else if has(&["resolv", "onnect", "timed out", "etwork is unreachable"]) {
        "the mirror of the host's apt configuration cannot be reached: check the network and try again"
    } else if has(&["No space left"]) {
        "make room on the cache's disk, or point TELEGRAPHOS_CACHE to another, and try again"
    } else if has(&["404", "Hash Sum mismatch", "unexpected size"]) {
        "the mirror is changing right now: try again in some minutes"
    } else {
        "check that the host's own `apt-get update` works and try again"
    };
    Error::apt(what, detail, remedy)
}

/// Read after the host's own configuration, so proxies and credentials stay and only places change.
fn config(dir: &Path, release: &Release) -> Result<String> {
    let dir = dir.display().to_string();
    if dir.contains(['"', '\n']) {
        return Err(Error::Failed(format!("the cache's path has a quote or newline, which apt cannot take: {dir}")));
    }
    let target = release.target.as_ref().map(|t| format!("APT::Default-Release \"{t}\";\n")).unwrap_or_default();
    Ok(format!(
        "\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Default-Release;
#clear APT::Architectures;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-hidpi;
#clear Acquire::IndexTargets::deb::Contents-deb;
#clear Acquire::IndexTargets::deb::CNF;
Dir::State \"{dir}/state\";
Dir::State::lists \"{dir}/lists\";
Dir::State::status \"{dir}/status\";
Dir::State::extended_states \"{dir}/state/extended_states\";
Dir::Cache \"{dir}/cache\";
Dir::Cache::archives \"{dir}/cache/archives\";
Dir::Etc::sourcelist \"{dir}/debian.sources\";
Dir::Etc::sourceparts \"/dev/null\";
Dir::Etc::preferences \"/dev/null\";
Dir::Etc::preferencesparts \"/dev/null\";
APT::Architecture \"amd64\";
APT::Architectures \"amd64\";
APT::Install-Recommends \"false\";
APT::Install-Suggests \"false\";
APT::Get::AllowUnauthenticated \"false\";
Acquire::AllowInsecureRepositories \"false\";
Acquire::AllowWeakRepositories \"false\";
Acquire::Languages \"none\";
// apt runs as the user, and the sandbox user could not write the user's cache.
APT::Sandbox::User \"root\";
{target}"
    ))
}

/// `'URI' FILE SIZE HASH`, as `--print-uris` has it. The file's name holds package and version.
fn parse_uri_line(line: &str) -> Option<Deb> {
    let mut words = line.strip_prefix('\'')?.split_once("' ")?.1.split_whitespace();
    let (file, size) = (words.next()?, words.next()?.parse().ok()?);
    let (name, rest) = file.strip_suffix(".deb")?.split_once('_')?;
    let (version, _arch) = rest.rsplit_once('_')?;
    Some(Deb { name: name.into(), version: version.replace("%3a", ":"), file: file.into(), size })
}

/// Those paragraphs of a text that have fields.
fn paragraphs(text: &str) -> Vec<HashMap<String, String>> {
    let all = stanzas(text).into_iter().filter(|stanza| !stanza.is_empty());
    all.map(|stanza| stanza.into_iter().collect()).collect()
}

/// Lays a package and all it depends on over `root`. `what` names it while it is fetched, `part` in the manifest.
pub(crate) fn install(
    store: &Store,
    apt: &Apt<'_>,
    package: &str,
    what: &str,
    part: String,
    root: &Path,
) -> Result<Manifest> {
    let debs = apt.fetch(what, &apt.closure(&[package])?)?;
    unpack(store, what, &debs, root)?;
    Ok(Manifest::of(part, records(debs)))
}

/// Lays the files of packages over `root`. Maintainer scripts are not run; documentation is left out.
pub(crate) fn unpack(store: &Store, what: &str, debs: &[Fetched], root: &Path) -> Result<()> {
    // The merged layout is a maintainer script's work on bookworm, so it is made beforehand.
    for dir in ["bin", "sbin", "lib", "lib64"] {
        files::make_dir(root.join("usr").join(dir))?;
        files::link(format!("usr/{dir}"), &root.join(dir))?;
    }
    let step = store.progress.step(format!("Unpacking {what}"), None);
    for deb in debs {
        store.check_cancelled()?;
        unpack_one(&deb.path, root, &["doc", "man", "locale", "info"].map(|dir| format!("./usr/share/{dir}/*")))?;
    }
    step.done();
    Ok(())
}

/// Lays the files of one package over `root`, but for those that match a pattern of `excluded`.
pub(crate) fn unpack_one(deb: &Path, root: &Path, excluded: &[impl AsRef<str>]) -> Result<()> {
    let mut source = exec::Guarded(
        Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(deb)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| exec::spawn_error("dpkg-deb", e))?,
    );
    let pipe = source.0.stdout.take().map_or_else(Stdio::null, Stdio::from);
    let mut command = Command::new("tar");
    command.args(["--extract", "--keep-directory-symlink", "--no-same-owner", "--no-same-permissions", "--directory"]);
    let out = command
        .arg(root)
        .args(excluded.iter().map(|pattern| format!("--exclude={}", pattern.as_ref())))
        .stdin(pipe)
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| exec::spawn_error("tar", e))?;
    drop(command);
    let packed = source.0.wait().map_err(|e| exec::spawn_error("dpkg-deb", e))?;
    if !out.status.success() || !packed.success() {
        let status = format!("dpkg-deb {packed}, tar {}", out.status);
        return Err(Error::build(format!("unpacking {}", deb.display()), status, String::from_utf8_lossy(&out.stderr)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_lines_give_name_and_version() {
        let line = "'http://m/pool/q/qemu_11.1.3%2bds-1_amd64.deb' qemu-system-x86_1%3a11.1.3+ds-1~bpo13+1_amd64.deb \
                    10377056 MD5Sum:00";
        let deb = parse_uri_line(line).unwrap();
        assert_eq!((deb.name.as_str(), deb.version.as_str()), ("qemu-system-x86", "1:11.1.3+ds-1~bpo13+1"));
        assert_eq!(deb.size, 10_377_056);
        assert_eq!(parse_uri_line("E: no such package"), None);
        assert_eq!(parse_uri_line("'http://m/x' x.tar.xz 5 -"), None);
    }

    #[test]
    fn paragraphs_are_separated() {
        let p = paragraphs("Package: a\nVersion: 1\nDescription: x\n more: text\n\nPackage: b\nVersion: 2\n");
        assert_eq!(p.len(), 2);
        assert_eq!(p[1]["version"], "2");
        assert!(!p[0].contains_key(" more"));
    }

    #[test]
    fn apt_errors_say_what_to_do() {
        let text = |d: &str| explain("fetching QEMU", "testing", "/k.gpg", d.into()).to_string();
        let e = text(
            "W: GPG error: x InRelease: The following signatures couldn't be verified: NO_PUBKEY 0E98404D386FA1D9",
        );
        assert!(e.contains("debian-archive-keyring") && e.contains("/k.gpg") && e.contains("testing"), "{e}");
        assert!(text("E: Failed to fetch u  Could not resolve 'm'").contains("check the network"));
        assert!(text("E: Failed to fetch u  Temporary failure resolving 'm'").contains("check the network"));
        assert!(text("E: Failed to fetch u  404  Not Found").contains("try again in some minutes"));
        assert!(text("E: Write error - write (28: No space left on device)").contains("TELEGRAPHOS_CACHE"));
        assert!(text("E: Unable to locate package iperf9").contains("apt-cache search"));
        assert!(text("E: odd").contains("nothing partial was kept"));
    }

    #[test]
    fn configuration_keeps_to_its_directory() {
        let release = Release::named("trixie-backports");
        let text = config(Path::new("/c/apt/x"), &release).unwrap();
        assert!(text.contains("APT::Default-Release \"trixie-backports\""));
        for line in text.lines().filter(|l| l.starts_with("Dir::")) {
            assert!(line.contains("/c/apt/x/") || line.contains("/dev/null"), "{line}");
        }
        assert!(config(Path::new("/a\"b"), &release).is_err());
    }
}
