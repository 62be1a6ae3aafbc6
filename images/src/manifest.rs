// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a thing was made of. Debian's pool drops old versions, so a cluster takes the newest of a named series and
//! writes down which one that was.

use crate::Result;
use crate::files::sha256_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Its file beside an artefact.
pub(crate) const MANIFEST: &str = "manifest.json";

/// The versions and hashes behind one artefact (a QEMU, a kernel, a guest image) or several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// One line for people, for each part: "kernel 6.12.117+deb12-cloud-amd64 (bookworm)".
    pub parts: Vec<String>,
    /// Every Debian package in it.
    pub packages: Vec<PackageRecord>,
    /// Files made here.
    pub files: Vec<FileRecord>,
}

/// One Debian package as it was fetched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PackageRecord {
    pub name: String,
    pub version: String,
    /// The release it was resolved in, such as `trixie-backports`.
    pub release: String,
    /// SHA-256 of the `.deb`, lower-case hexadecimal.
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its name inside the artefact.
    pub name: String,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

impl FileRecord {
    /// The record of the file `name` of the artefact at `at`.
    pub(crate) fn of(at: &Path, name: &str) -> Result<FileRecord> {
        Ok(FileRecord { name: name.into(), sha256: sha256_file(&at.join(name))? })
    }
}

impl Manifest {
    /// One part, made of these packages.
    pub(crate) fn of(part: String, packages: impl IntoIterator<Item = PackageRecord>) -> Manifest {
        Manifest { parts: vec![part], packages: packages.into_iter().collect(), files: Vec::new() }
    }

    /// Adds everything `other` has that `self` lacks.
    pub fn merge(&mut self, other: &Manifest) {
        for part in &other.parts {
            if !self.parts.contains(part) {
                self.parts.push(part.clone());
            }
        }
        let mut packages: BTreeSet<_> = self.packages.drain(..).collect();
        packages.extend(other.packages.iter().cloned());
        self.packages = packages.into_iter().collect();
        for file in &other.files {
            if !self.files.contains(file) {
                self.files.push(file.clone());
            }
        }
    }

    /// The record of a package, if it went in.
    pub fn package(&self, name: &str) -> Option<&PackageRecord> {
        self.packages.iter().find(|p| p.name == name)
    }
}

/// A short list: one line a part, one line a file made here.
impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            writeln!(f, "{part}")?;
        }
        for file in &self.files {
            writeln!(f, "{} sha256 {}", file.name, file.sha256.get(..16).unwrap_or(&file.sha256))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> PackageRecord {
        PackageRecord {
            name: name.into(),
            version: "1:2.3-4".into(),
            release: "trixie".into(),
            sha256: "ab".repeat(32),
        }
    }

    #[test]
    fn merge_is_a_union_and_keeps_what_was_there() {
        let mut a = Manifest { parts: vec!["a".into()], packages: vec![package("x"), package("z")], files: vec![] };
        let b = Manifest {
            parts: vec!["a".into(), "b".into()],
            packages: vec![package("y"), package("z")],
            files: vec![FileRecord { name: "f".into(), sha256: "cd".repeat(32) }],
        };
        a.merge(&b);
        assert_eq!(a.parts, ["a", "b"]);
        assert_eq!(a.packages.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["x", "y", "z"]);
        let once = a.clone();
        a.merge(&b);
        assert_eq!(a, once);
    }

    #[test]
    fn json_round_trip_and_short_list() {
        let m = Manifest {
            parts: vec!["kernel 6.12".into()],
            packages: vec![package("linux")],
            files: vec![FileRecord { name: "vmlinux".into(), sha256: "0123456789abcdef0123".into() }],
        };
        let text = serde_json::to_string(&m).unwrap();
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), m);
        assert_eq!(m.to_string(), "kernel 6.12\nvmlinux sha256 0123456789abcdef\n");
    }
}
