// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of Debian's packages that lie under a prefix of our own: they run through their own dynamic loader with
//! their own libraries, so the host's are neither needed nor disturbed.

use crate::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// What to run, and the arguments before the program's own.
pub(crate) struct Program {
    /// The prefix's dynamic loader.
    pub(crate) loader: PathBuf,
    /// Its arguments: where the libraries are, and the program.
    pub(crate) args: Vec<OsString>,
}

/// How to run `program` (a path below `prefix`) with the libraries in `libraries` (directories below it). `directory`
/// is that of the cache, which a user may remove to have everything fetched again.
pub(crate) fn program(
    prefix: &Path,
    [what, what_loader]: [&'static str; 2],
    directory: &str,
    program: &str,
    libraries: &[&str],
) -> Result<Program> {
    let loader = prefix.join("usr/lib64/ld-linux-x86-64.so.2");
    let program = prefix.join(program);
    for (what, path) in [(what_loader, &loader), (what, &program)] {
        if !path.exists() {
            return Err(Error::Missing {
                what,
                path: path.clone(),
                remedy: format!("remove the directory {directory} from the cache and try again"),
            });
        }
    }
    let libraries: Vec<OsString> = libraries.iter().map(|dir| prefix.join(dir).into_os_string()).collect();
    let args = vec!["--library-path".into(), libraries.join(OsString::from(":").as_os_str()), program.into_os_string()];
    Ok(Program { loader, args })
}
