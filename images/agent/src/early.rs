// SPDX-License-Identifier: MIT OR Apache-2.0
//! In an initramfs: loads what the boot root needs, mounts it, and becomes its `tg-init`. Only kernels have one whose
//! NVMe or ext4 are modules (see `modules.rs` of telegraphos-images, which makes it).

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};
use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use telegraphos_agent::modules::{failed, load_file};

/// Its modules; their names sort as they are to be loaded.
const MODULES: &str = "/early";
const NEW: &str = "/new";
/// As in `root=` of the kernel's command line, which a kernel without an initramfs mounts itself.
const DISK: &str = "/dev/nvme0n1";
const KIND: &CStr = c"ext4";
/// How long the disk may take to appear.
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn is_early() -> bool {
    Path::new(MODULES).is_dir()
}

/// Becomes the boot root's `tg-init`; returns only if that fails.
pub(crate) fn become_init() -> io::Error {
    match enter() {
        Ok(()) => Command::new("/init").exec(),
        Err(e) => e,
    }
}

fn enter() -> io::Result<()> {
    mount("dev", "/dev", "devtmpfs", MountFlags::NOSUID, c"").map_err(failed("mounting /dev"))?;
    for module in modules(MODULES.as_ref())? {
        load_file(&module)?;
        // What is in the initramfs is memory.
        fs::remove_file(&module)?;
    }
    let begun = Instant::now();
    while !Path::new(DISK).exists() {
        if begun.elapsed() > LIMIT {
            return Err(io::Error::other(format!("{DISK}, the disk of the boot root, did not appear in {LIMIT:?}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::create_dir(NEW)?;
    mount(DISK, NEW, KIND, MountFlags::RDONLY, c"").map_err(failed(format!("mounting {DISK}")))?;
    unmount("/dev", UnmountFlags::empty())?;
    fs::remove_file("/init")?;
    std::env::set_current_dir(NEW)?;
    mount_move(".", "/").map_err(failed("moving the boot root"))?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")
}

/// The files of a directory, in the order of their names.
fn modules(at: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(at)?.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_as_their_names_sort() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["010-nvme.ko", "002-crc16.ko.xz", "000-t10-pi.ko"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        let names: Vec<_> =
            modules(dir.path()).unwrap().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["000-t10-pi.ko", "002-crc16.ko.xz", "010-nvme.ko"]);
        assert!(modules(&dir.path().join("absent")).is_err());
    }
}
