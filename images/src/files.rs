// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files, made, read and hashed.

use crate::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

/// Makes a directory and those above it.
pub(crate) fn make_dir(path: impl AsRef<Path>) -> Result<()> {
    fs::create_dir_all(&path).map_err(Error::io("cannot create", &path))
}

/// Makes a symbolic link, unless something is in its place.
pub(crate) fn link(target: impl AsRef<Path>, link: &Path) -> Result<()> {
    if link.symlink_metadata().is_ok() {
        return Ok(());
    }
    std::os::unix::fs::symlink(target, link).map_err(Error::io("cannot link", link))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io("cannot read", path))
}

/// Writes a file under another name and renames it, so that a reader never sees a part of it.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(dir)
        .map_err(Error::io("cannot create a file in", dir))?;
    file.write_all(content).map_err(Error::io("cannot write", path))?;
    file.persist(path).map_err(|e| Error::io("cannot write", path)(e.error))?;
    Ok(())
}

/// Directories within each other that [`walk`] follows: as many as there are in what others have packed.
pub(crate) const DEEPEST: usize = 32;

/// Calls `each` with all files below a directory and their names. Links are not followed; directories are, so deep.
pub(crate) fn walk(dir: &Path, depth: usize, each: &mut impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::io("cannot read the directory", dir))?.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type().map_err(Error::io("cannot read", &path))?;
        if kind.is_dir() && depth > 0 {
            walk(&path, depth - 1, each)?;
        } else if kind.is_file() {
            each(&path, &name.to_string_lossy())?;
        }
    }
    Ok(())
}

/// Removes a directory with all that is in it.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    fs::remove_dir_all(path).map_err(Error::io("cannot remove", path))
}

pub(crate) fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|b| format!("{b:02x}")).collect()
}

/// SHA-256 of a file, lower-case hexadecimal.
pub(crate) fn sha256_file(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(Error::io("cannot read", path))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).map_err(Error::io("cannot read", path))?;
    Ok(hex(hash.finalize()))
}

/// SHA-256 over named parts; names and lengths go in, so no two lists collide.
pub(crate) fn sha256_parts<'a>(parts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (name, content) in parts {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        hash.update((content.len() as u64).to_le_bytes());
        hash.update(content);
    }
    hex(hash.finalize())
}
