// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether an artefact in the cache still is what was made. Its files are hashed when they are used for the first time,
//! and again whenever the file system says that they have changed.

use crate::Manifest;
use crate::files::{sha256_file, write};
use crate::manifest::MANIFEST;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file beside the manifest that remembers what was hashed.
const SEEN: &str = "seen.json";

/// What tells a file from itself after a change: size, inode, and its two times in nanoseconds.
type Stamp = (u64, u64, i64, i64, i64, i64);

fn stamp(path: &Path) -> Option<Stamp> {
    let m = fs::metadata(path).ok()?;
    Some((m.size(), m.ino(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()))
}

/// The manifest of the artefact at `place`, if that is whole. Calls `damaged` with the name of the first file that is
/// not what the manifest says.
pub(crate) fn read(place: &Path, damaged: impl FnOnce(&str)) -> Option<Manifest> {
    let manifest: Manifest = serde_json::from_slice(&fs::read(place.join(MANIFEST)).ok()?).ok()?;
    let seen = fs::read(place.join(SEEN)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let seen: BTreeMap<String, Stamp> = seen.unwrap_or_default();
    let mut now = BTreeMap::new();
    for file in &manifest.files {
        let path = place.join(&file.name);
        // Taken before it is hashed: what changes meanwhile is hashed again next time.
        let stamp = stamp(&path);
        let known = stamp.is_some() && seen.get(&file.name) == stamp.as_ref();
        let same = known || sha256_file(&path).is_ok_and(|sha256| sha256 == file.sha256);
        let Some(stamp) = stamp.filter(|_| same) else {
            damaged(&file.name);
            return None;
        };
        now.insert(file.name.clone(), stamp);
    }
    if now != seen {
        // In a cache that cannot be written the files are hashed each time.
        let _ = serde_json::to_vec(&now).map(|text| write(&place.join(SEEN), &text));
    }
    Some(manifest)
}

#[cfg(test)]
mod tests;
