// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that this crate finds: the host's, or those of Debian's packages that lie under a prefix of our own. The
//! latter run through their own dynamic loader with their own libraries, so the host's are neither needed nor
//! disturbed.

use crate::apt::{self, Apt};
use crate::sources::Release;
use crate::store::{Store, environment};
use crate::{Error, Manifest, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories of libraries below a prefix, those first that are searched first.
const LIBRARIES: [&str; 3] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio", "usr/lib"];

/// A program, ready to run.
#[derive(Clone, Debug)]
pub struct Program {
    path: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: Vec<(OsString, OsString)>,
}

impl Program {
    pub(crate) fn of_host(path: PathBuf) -> Program {
        Program { path, args: Vec::new(), env: Vec::new() }
    }

    /// Debian's `name`, whose path is `program` below `prefix`. `directory` is that of the cache, which a user may
    /// remove to have everything fetched again.
    pub(crate) fn of_prefix(prefix: &Path, name: &str, directory: &str, program: &str) -> Result<Program> {
        let loader = prefix.join("usr/lib64/ld-linux-x86-64.so.2");
        let program = prefix.join(program);
        for (what, path) in [("the dynamic loader of ", &loader), ("", &program)] {
            if !path.exists() {
                let remedy = format!("remove the directory {directory} from the cache and try again");
                return Err(Error::missing(format!("{what}Debian's {name}"), path, remedy));
            }
        }
        let libraries = LIBRARIES.map(|dir| prefix.join(dir).into_os_string()).join(OsString::from(":").as_os_str());
        let args = vec!["--library-path".into(), libraries, program.into_os_string()];
        Ok(Program { path: loader, args, env: Vec::new() })
    }

    /// The same for a program that does what its name says, and is to have another one.
    pub(crate) fn of_prefix_as(
        prefix: &Path,
        name: &str,
        directory: &str,
        program: &str,
        argv0: &str,
    ) -> Result<Program> {
        let mut program = Program::of_prefix(prefix, name, directory, program)?;
        program.args.splice(0..0, ["--argv0".into(), argv0.into()]);
        Ok(program)
    }

    /// A command that runs it; add its own arguments.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args).envs(self.env.iter().cloned());
        command
    }
}

/// A program of one Debian release, whatever the host's: one version for everybody.
pub(crate) struct Packaged {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    pub(crate) release: &'static str,
    /// Where the cache has it.
    pub(crate) place: &'static str,
    /// Its path below the prefix.
    pub(crate) program: &'static str,
    /// A variable of its environment, and the path below the prefix that it names.
    pub(crate) env: Option<(&'static str, &'static str)>,
    /// What to do where the release has none.
    pub(crate) remedy: &'static str,
}

impl Packaged {
    /// How to run the packages unpacked under `at`.
    fn unpacked(&self, at: &Path) -> Result<Program> {
        let mut program = Program::of_prefix(at, self.name, self.package, self.program)?;
        program.env.extend(self.env.map(|(name, below)| (name.into(), at.join(below).into_os_string())));
        Ok(program)
    }

    /// It and all that it depends on, fetched once. It must pass `check` before it is kept.
    pub(crate) fn fetched(
        &self,
        store: &Store,
        check: impl FnOnce(&Path, &Program) -> Result<()>,
    ) -> Result<(Program, Manifest)> {
        let (at, manifest) = store.artefact(self.place, |lock, at| {
            let Packaged { package, release, remedy, .. } = self;
            let apt = Apt::open(store, lock, |_| Release::named(release))?;
            let debian = apt.version(package)?.ok_or_else(|| Error::no_package(package, release, remedy))?;
            let what = format!("{package} {debian}");
            let manifest = apt::install(store, &apt, package, &what, format!("{what} (Debian {release})"), at)?;
            check(at, &self.unpacked(at)?)?;
            Ok(manifest)
        })?;
        Ok((self.unpacked(&at)?, manifest))
    }
}

/// The first file of this name in `PATH`.
pub fn in_path(file: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(file)).find(|path| path.is_file())
}

/// What `check` says of the program that the environment variable names (and then it must do), else of the first in
/// `PATH` of this file name, if that will do.
pub(crate) fn find<T>(
    what: &str,
    variable: &str,
    file: &str,
    check: impl Fn(PathBuf) -> Result<T>,
) -> Result<Option<T>> {
    if let Some(path) = environment(variable) {
        return check(path).map(Some);
    }
    let Some(path) = in_path(file) else { return Ok(None) };
    Ok(check(path).inspect_err(|e| log::info!("the host's {what} is left alone: {e}")).ok())
}
