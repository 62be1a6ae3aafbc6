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
mod tests {
    use crate::{FileRecord, Manifest, Progress, Store};
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    fn make(store: &Store, made: &mut u32) -> String {
        let (place, _) = store
            .artefact("kernel/x", |_, at| {
                *made += 1;
                fs::write(at.join("vmlinux"), "a kernel of many bytes").unwrap();
                Ok(Manifest { files: vec![FileRecord::of(at, "vmlinux")?], ..Manifest::default() })
            })
            .unwrap();
        fs::read_to_string(place.join("vmlinux")).unwrap()
    }

    #[test]
    fn a_flipped_byte_is_found_and_the_file_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().to_path_buf()), Progress::Silent).unwrap();
        let mut made = 0;
        make(&store, &mut made);
        make(&store, &mut made);
        assert_eq!(made, 1);
        let file = store.path().join("kernel/x/vmlinux");
        let flip = |path: &Path| fs::File::options().write(true).open(path).unwrap().write_all_at(b"K", 2).unwrap();
        flip(&file);
        assert_eq!(make(&store, &mut made), "a kernel of many bytes");
        assert_eq!(made, 2);
        // One that is gone, or cut off, is no better.
        fs::remove_file(&file).unwrap();
        make(&store, &mut made);
        fs::write(&file, "a kernel").unwrap();
        assert_eq!(make(&store, &mut made), "a kernel of many bytes");
        assert_eq!(made, 4);
    }

    #[test]
    fn what_was_only_touched_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().to_path_buf()), Progress::Silent).unwrap();
        let mut made = 0;
        make(&store, &mut made);
        let file = fs::File::options().write(true).open(store.path().join("kernel/x/vmlinux")).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        make(&store, &mut made);
        assert_eq!(made, 1);
    }
}
