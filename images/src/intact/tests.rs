// SPDX-License-Identifier: MIT OR Apache-2.0
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
