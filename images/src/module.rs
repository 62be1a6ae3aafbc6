// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds and checks the guest driver against one kernel.

use crate::apt::{self, Apt};
use crate::chroot::{self, Owners};
use crate::files;
use crate::kernel::Headers;
use crate::manifest::FileRecord;
use crate::sources::Host;
use crate::store::{Lock, Store};
use crate::tools::source_root;
use crate::{Error, Kernel, KernelChoice, KernelSeries, Manifest, Result, exec};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver, built for one kernel.
#[derive(Clone, Debug)]
pub struct Module {
    /// `telegraphos.ko`, `telegraphos_net.ko` (the network device) and `telegraphos_lab.ko` (for comparisons).
    pub files: [PathBuf; 3],
    /// Its hash, and the kernel it fits.
    pub manifest: Manifest,
    /// Compiler warnings in its own sources (built with `W=1`).
    pub warnings: Vec<String>,
}

/// What a check finds in the driver's sources.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One line each, as the tool said it.
    pub findings: Vec<String>,
    /// What was run, with versions.
    pub ran: Vec<String>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        write!(f, "{}: {} finding(s)", self.ran.join(", "), self.findings.len())
    }
}

/// Directory of the copied sources inside a build root. They have the same places in it as in the project.
const INSIDE: &str = "build/telegraphos";
/// The driver.
const DRIVER: &str = "guest-driver/module";
/// The headers that programs share with it.
const UAPI: &str = "guest-driver/uapi";
/// The module for comparisons.
const LAB: &str = "lab/module";
/// What kbuild is run in, each after those whose symbols it uses.
const DIRECTORIES: [&str; 2] = [DRIVER, LAB];
/// Has kbuild run sparse, which looks for values of the wrong byte order in every kernel's headers since 4.10. Newer
/// kbuild calls a script that Debian's headers lack whether sparse is usable, and continues without: hence the second
/// variable, and the question whether it ran.
const SPARSE: [&str; 3] = ["C=2", "KBUILD_CHECKSRC=2", "CHECK=/usr/bin/sparse"];
/// File names of the modules, each with the directory where it is built.
pub(crate) const MODULES: [(&str, &str); 3] =
    [("telegraphos.ko", DRIVER), ("telegraphos_net.ko", DRIVER), ("telegraphos_lab.ko", LAB)];

impl Store {
    /// The driver for a kernel, built if its sources or the kernel changed.
    pub fn module(&self, kernel: impl Into<KernelChoice>) -> Result<Module> {
        self.module_for(&self.kernel(kernel)?)
    }

    /// The same for a kernel that has been found.
    pub(crate) fn module_for(&self, kernel: &Kernel) -> Result<Module> {
        let sources = sources()?;
        let kernel_id = kernel.manifest.parts.join("\n");
        let key = files::sha256_parts(
            [("kernel", kernel_id.as_bytes())]
                .into_iter()
                .chain(sources.iter().map(|(n, c)| (n.as_str(), c.as_slice()))),
        );
        let (dir, manifest) = self.artefact(&format!("module/{}-{}", kernel.name, &key[..16]), |lock, at| {
            self.forget_old("module", &kernel.name);
            let step = self.progress.step(format!("Building the driver for {}", kernel.release), None);
            let build = Build::run(self, lock, kernel, &sources, &DIRECTORIES, &["W=1", "modules"])?.success(kernel)?;
            let mut files = Vec::new();
            for (name, directory) in MODULES {
                let made = build.place.0.join(directory).join(name);
                fs::copy(&made, at.join(name)).map_err(Error::io("the build left no module to copy:", &made))?;
                files.push(FileRecord::of(at, name)?);
            }
            files::write(&at.join("warnings"), build.findings().join("\n").as_bytes())?;
            step.done();
            Ok(Manifest { files, ..Manifest::of(format!("driver built for {}", kernel.release), []) })
        })?;
        let warnings = fs::read_to_string(dir.join("warnings")).unwrap_or_default();
        let warnings = warnings.lines().map(str::to_owned).collect();
        Ok(Module { files: MODULES.map(|(name, _)| dir.join(name)), manifest, warnings })
    }

    /// What sparse finds in the modules' files with mistakes, which are in different ones.
    pub fn sparse_finds(&self, series: KernelSeries, mistakes: &[Mistake]) -> Result<Vec<String>> {
        let kernel = self.kernel(series)?;
        let lock = self.lock()?;
        let mut sources = sources()?;
        for mistake in mistakes {
            mistake.make(&mut sources)?;
        }
        let mut found = Vec::new();
        for directory in DIRECTORIES {
            let files = mistakes.iter().filter_map(|m| m.file.strip_prefix(directory)?.strip_prefix('/'));
            let objects: Vec<_> = files.map(|file| file.replace(".c", ".o")).collect();
            if objects.is_empty() {
                continue;
            }
            let targets: Vec<_> = SPARSE.into_iter().chain(objects.iter().map(String::as_str)).collect();
            let build = Build::run(self, &lock, &kernel, &sources, &[directory], &targets)?;
            build.sparse_ran(&kernel)?;
            found.extend(build.findings());
        }
        Ok(found)
    }

    /// Compiles the driver's sources with `W=1`, and runs sparse over them.
    pub fn check_module(&self, series: KernelSeries) -> Result<Report> {
        let kernel = self.kernel(series)?;
        let sources = sources()?;
        let lock = self.lock()?;
        let mut report = Report::default();
        let step = self.progress.step(format!("Checking the driver against {}", kernel.release), None);
        let run = |targets: &[&str]| Build::run(self, &lock, &kernel, &sources, &DIRECTORIES, targets);
        let checked = run(&[&["W=1"], &SPARSE[..], &["modules"]].concat())?;
        let version = |m: &Manifest, name| m.package(name).map(|p| p.version.clone()).unwrap_or_default();
        let sparse = format!("sparse {}", version(&kernel.manifest, "sparse"));
        // A sparse older than the kernel stops in its headers, and does not reach the driver.
        let stop = checked.lines().find(|l| l.starts_with("/usr/src/") && l.contains(" error: "));
        let (build, sparse) = if let Some(stop) = stop {
            let sparse = format!("NOT {sparse}, which cannot read this kernel's headers ({stop})");
            (run(&["W=1", "modules"])?.success(&kernel)?, sparse)
        } else {
            let checked = checked.success(&kernel)?;
            checked.sparse_ran(&kernel)?;
            (checked, sparse)
        };
        report.findings.extend(build.findings());
        report.ran.extend([format!("gcc W=1 for {}", kernel.release), sparse]);
        step.done();
        Ok(report)
    }

    /// Runs checkpatch and kernel-doc over the driver's sources, which is the same for every kernel.
    pub fn check_style(&self) -> Result<Report> {
        let (checks, checks_manifest) = self.artefact("checks", |lock, at| fetch_checks(self, lock, at))?;
        let sources = sources()?;
        // They are laid in a root that every process uses.
        let _lock = self.lock()?;
        let mut report = Report::default();
        let step = self.progress.step("Checking the driver's style", None);
        let root = checks.join("root");
        let place = Sources::lay(&root, &sources)?;
        let files = sources.keys().filter(|name| name.ends_with(".c") || name.ends_with(".h"));
        let files: Vec<_> = files.map(|name| format!("/{INSIDE}/{name}")).collect();
        let mut perl = |script: &[&str], words: &[&str]| -> Result<()> {
            let mut argv = vec!["/usr/bin/perl"];
            argv.extend(script.iter().copied().chain(files.iter().map(String::as_str)));
            let out = chroot::run(self, &root, Owners::Root, &argv)?;
            let all = format!("{}{}", out.stdout, out.stderr);
            let said: Vec<_> = all.lines().filter(|l| words.iter().any(|w| l.contains(w))).collect();
            if said.is_empty() && !out.status.success() {
                return Err(out.failed(script[0], 20));
            }
            report.findings.extend(said.iter().map(|l| l.replace(&format!("/{INSIDE}/"), "")));
            Ok(())
        };
        perl(
            &["/checkpatch/checkpatch.pl", "--no-tree", "--terse", "--no-summary", "--color=never", "--file"],
            &["ERROR:", "WARNING:", "CHECK:"],
        )?;
        perl(&["/checkpatch/kernel-doc", "-none", "-Wall"], &["warning:", "error:"])?;
        drop(place);
        let linux_source = checks_manifest.packages.iter().find(|p| p.name.starts_with("linux-source-"));
        report.ran.push(format!(
            "checkpatch and kernel-doc of linux-source {}",
            linux_source.map_or("?", |p| p.version.as_str())
        ));
        step.done();
        Ok(report)
    }
}

/// A mistake made on purpose in a copy of the modules' sources.
#[derive(Clone, Copy, Debug)]
pub struct Mistake {
    /// A C file, from the project's root.
    pub file: &'static str,
    /// Text that occurs once in it.
    pub right: &'static str,
    pub wrong: &'static str,
}

impl Mistake {
    fn make(&self, sources: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
        let text = String::from_utf8_lossy(sources.get(self.file).map_or(&[], Vec::as_slice)).into_owned();
        let places = text.matches(self.right).count();
        if places != 1 {
            return Err(Error::Failed(format!(
                "{:?} occurs {places} times in {}; expected once: name another place for the mistake",
                self.right, self.file
            )));
        }
        sources.insert(self.file.to_owned(), text.replacen(self.right, self.wrong, 1).into_bytes());
        Ok(())
    }
}

/// The sources of the modules, by path below the project's root.
fn sources() -> Result<BTreeMap<String, Vec<u8>>> {
    let base = source_root()?;
    let mut found = BTreeMap::new();
    for directory in DIRECTORIES.into_iter().chain([UAPI]) {
        collect(&base, &base.join(directory), &mut found)?;
    }
    for directory in DIRECTORIES {
        if !["Kbuild", "Makefile"].iter().any(|name| found.contains_key(&format!("{directory}/{name}"))) {
            let remedy = "check out the whole project, or set TELEGRAPHOS_SOURCE to where it is";
            return Err(Error::missing(format!("the Kbuild of {directory}"), base.join(directory), remedy));
        }
    }
    Ok(found)
}

fn collect(base: &Path, dir: &Path, found: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
    // What a build by hand leaves behind must not count as a change.
    const PRODUCTS: [&str; 9] = [".o", ".ko", ".mod", ".mod.c", ".cmd", ".symvers", ".order", ".d", "~"];
    if !dir.exists() {
        return Ok(());
    }
    files::walk(dir, files::DEEPEST, &mut |path, name| {
        if !name.starts_with('.') && !PRODUCTS.iter().any(|p| name.ends_with(p)) {
            let name = path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned();
            found.insert(name, files::read(path)?);
        }
        Ok(())
    })
}

/// A copy of the sources inside a root, removed at the end.
struct Sources(PathBuf);

impl Sources {
    fn lay(root: &Path, sources: &BTreeMap<String, Vec<u8>>) -> Result<Sources> {
        let base = root.join(INSIDE);
        let _ = fs::remove_dir_all(&base);
        let place = Sources(base.clone());
        for (name, content) in sources {
            let path = base.join(name);
            if let Some(dir) = path.parent() {
                files::make_dir(dir)?;
            }
            fs::write(&path, content).map_err(Error::io("cannot write", &path))?;
        }
        Ok(place)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs of kbuild inside a kernel's root, or beside its tree. What they made is gone when this is dropped.
struct Build {
    place: Sources,
    _scratch: Option<tempfile::TempDir>,
    /// What they said, by directory. None follows one that has failed.
    runs: Vec<(&'static str, exec::Output)>,
}

impl Build {
    fn run(
        store: &Store,
        lock: &Lock,
        kernel: &Kernel,
        sources: &BTreeMap<String, Vec<u8>>,
        directories: &[&'static str],
        targets: &[&str],
    ) -> Result<Build> {
        let (place, scratch) = match &kernel.headers {
            Headers::Root(root) => (Sources::lay(root, sources)?, None),
            Headers::Tree(_) => {
                let scratch = store.temporary(lock)?;
                (Sources::lay(scratch.path(), sources)?, Some(scratch))
            }
            Headers::Missing(why) => return Err(Error::Failed(why.clone())),
        };
        let mut build = Build { place, _scratch: scratch, runs: Vec::new() };
        for directory in directories {
            let output = build.make(store, kernel, directory, targets)?;
            let ends = !output.status.success();
            build.runs.push((directory, output));
            if ends {
                break;
            }
        }
        Ok(build)
    }

    fn make(&self, store: &Store, kernel: &Kernel, directory: &str, targets: &[&str]) -> Result<exec::Output> {
        let jobs = format!("-j{}", std::thread::available_parallelism().map_or(1, |n| n.get()));
        match &kernel.headers {
            Headers::Root(root) => {
                let headers = format!("/usr/src/linux-headers-{}", kernel.release);
                let directory = format!("M=/{INSIDE}/{directory}");
                // W=1 needs scripts/kernel-doc, which Debian's headers lack; check_module runs it separately.
                let mut argv = vec!["/usr/bin/make", "-C", &headers, &directory, &jobs, "cmd_checkdoc="];
                argv.extend(targets);
                chroot::run(store, root, Owners::Root, &argv)
            }
            Headers::Tree(tree) => {
                let mut make = Command::new("make");
                make.arg("-C").arg(tree).arg(format!("M={}", self.place.0.join(directory).display()));
                make.arg(&jobs).args(["LOCALVERSION=", "cmd_checkdoc="]).args(targets).env("LC_ALL", "C");
                if kernel.config.as_ref().is_some_and(|config| config.has("CC_IS_CLANG")) {
                    make.arg("LLVM=1");
                }
                exec::run(&mut make, &store.cancel, || ())
            }
            Headers::Missing(why) => Err(Error::Failed(why.clone())),
        }
    }

    /// Everything that they said.
    fn lines(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().flat_map(|(_, output)| lines(output))
    }

    /// Complaints about the modules' files, not about the kernel's headers.
    fn findings(&self) -> Vec<String> {
        let mut findings = Vec::new();
        for (directory, output) in &self.runs {
            findings.extend(lines(output).filter_map(|line| finding(directory, line)));
        }
        findings
    }

    fn sparse_ran(&self, kernel: &Kernel) -> Result<()> {
        let without = |(_, output): &&(_, exec::Output)| !lines(output).any(|l| l.trim_start().starts_with("CHECK "));
        let Some((directory, output)) = self.runs.iter().find(without) else { return Ok(()) };
        let what = format!("running sparse in {directory} for {}", kernel.release);
        Err(Error::build(what, "it did not run", format!("{}{}", output.stdout, output.stderr)))
    }

    fn success(self, kernel: &Kernel) -> Result<Build> {
        match self.runs.last() {
            Some((directory, output)) if !output.status.success() => {
                Err(output.failed(format!("building {directory} for {}", kernel.release), 40))
            }
            _ => Ok(self),
        }
    }
}

fn lines(output: &exec::Output) -> impl Iterator<Item = &str> {
    output.stdout.lines().chain(output.stderr.lines())
}

/// A complaint about a file of the project, which is named from its root, by kbuild run in a directory of it.
fn finding(directory: &str, line: &str) -> Option<String> {
    if line.starts_with("WARNING: modpost:") || line.starts_with("ERROR: modpost:") {
        return Some(line.to_owned());
    }
    if !line.contains("warning:") && !line.contains("error:") {
        return None;
    }
    let (file, rest) = line.split_once(':')?;
    let path = match file.split_once(&format!("/{INSIDE}/")) {
        Some((_, inside)) => inside.to_owned(),
        // Newer kbuild works in the module's directory and names files from there.
        None if !file.starts_with('/') && (file.ends_with(".c") || file.ends_with(".h")) => {
            format!("{directory}/{file}")
        }
        None => return None,
    };
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            ".." => drop(names.pop()),
            "." => {}
            name => names.push(name),
        }
    }
    Some(format!("{}:{rest}", names.join("/")))
}
/// perl and the kernel's checkpatch.
fn fetch_checks(store: &Store, lock: &Lock, at: &Path) -> Result<Manifest> {
    const PREFIX: &str = "linux-source-";
    let apt = Apt::open(store, lock, Host::release)?;
    let release = &apt.release.name;
    // Others, such as metapackages, have a name that is no version.
    let version = |name: &str| -> Option<Vec<u32>> {
        name.trim_start_matches(PREFIX).split('.').map(|part| part.parse().ok()).collect()
    };
    let names = apt.names(PREFIX)?.into_iter().filter(|name| version(name).is_some());
    let best = names
        .max_by_key(|name| version(name))
        .ok_or_else(|| Error::no_package(format!("{PREFIX}*"), release, "check the host's apt sources"))?;
    let mut debs = apt.closure(&["perl", "bash", "coreutils", "dash", "diffutils", "tar", "xz-utils"])?;
    debs.extend(apt.single(&[&best])?);
    let (source, tools): (Vec<_>, Vec<_>) =
        apt.fetch("checkpatch and perl", &debs)?.into_iter().partition(|d| d.record.name == best);
    let root = at.join("root");
    apt::unpack(store, "checkpatch and perl", &tools, &root)?;
    for dir in ["tmp", "proc", "dev", "build", "checkpatch"] {
        files::make_dir(root.join(dir))?;
    }
    let step = store.progress.step("Taking checkpatch out of the kernel source", None);
    for deb in &source {
        apt::unpack_one(&deb.path, &root.join("tmp"), &["./usr/share/*"])?;
    }
    let tarball = format!("/tmp/usr/src/{best}.tar.xz");
    let files = ["checkpatch.pl", "spelling.txt", "const_structs.checkpatch", "kernel-doc"]
        .map(|f| format!("{best}/scripts/{f}"));
    let mut argv =
        vec!["/usr/bin/tar", "-xJf", &tarball, "-C", "/checkpatch", "--strip-components=2", "--no-same-owner"];
    argv.extend(files.iter().map(String::as_str));
    chroot::run(store, &root, Owners::Root, &argv)?.success(|| format!("unpacking {tarball}"), 10)?;
    let scratch = root.join("tmp/usr");
    files::remove_dir(&scratch)?;
    step.done();
    Ok(Manifest::of(format!("checkpatch of {best} (Debian {release})"), apt::records(source.into_iter().chain(tools))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_findings_in_our_own_files_count() {
        let log = "\
/build/telegraphos/guest-driver/module/main.c:7:5: warning: no previous prototype for 'f' [-Wmissing-prototypes]
/usr/src/linux-headers-6.12/include/linux/x.h:1:1: warning: in a header
  CC [M]  /build/telegraphos/guest-driver/module/main.o
WARNING: modpost: missing MODULE_DESCRIPTION() in /build/telegraphos/guest-driver/module/telegraphos.o
/build/telegraphos/lab/module/../../guest-driver/module/driver.h:9:20: error: incompatible types
/tmp/scratch/build/telegraphos/guest-driver/module/main.c:1:1: warning: beside a tree
main.c:25:5: warning: symbol 'f' was not declared. Should it be static?
../../guest-driver/uapi/telegraphos.h:3:1: warning: as newer kbuild has it
warning: the compiler differs from the one used to build the kernel
make[2]: warning: Clock skew detected.
";
        let found: Vec<String> = log.lines().filter_map(|line| finding("lab/module", line)).collect();
        let files: Vec<&str> = found.iter().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        let driver = "guest-driver/module/main.c";
        let [header, shared] = ["guest-driver/module/driver.h", "guest-driver/uapi/telegraphos.h"];
        assert_eq!(files, [driver, "WARNING", header, driver, "lab/module/main.c", shared], "{found:?}");
        assert!(found[0].starts_with("guest-driver/module/main.c:7:5: warning: no previous"), "{found:?}");
    }

    #[test]
    fn build_products_are_no_sources() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        fs::create_dir_all(base.join("module/sub")).unwrap();
        for name in ["main.c", "sub/a.h", "Kbuild", "main.o", "x.ko", "x.mod.c", ".x.o.cmd", "Module.symvers"] {
            fs::write(base.join("module").join(name), name).unwrap();
        }
        let mut found = BTreeMap::new();
        collect(base, &base.join("module"), &mut found).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["module/Kbuild", "module/main.c", "module/sub/a.h"]);
    }
}
