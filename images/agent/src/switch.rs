// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the boot root to the root of the user's choice: modules for it, the mount with a writable layer above, and the
//! programs that the boot root brings along.

use crate::QUIET;
use rustix::mount::{MountFlags, mount, mount_bind, mount_move, unmount};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use telegraphos_agent::BOOT_ROOT;
use telegraphos_agent::modules::{VIRTIO, failed, load_all};

/// Where things are prepared, in the memory of the boot root's /run.
const PLACE: &str = "/run/switch";
const NEW: &str = "/run/switch/new";
/// What a guest of a shared or own directory writes is in its memory: with all others that processes may fill, at most
/// half of it.
const LAYER: &std::ffi::CStr = c"mode=755,size=25%";

/// What is to be the root.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The boot root, with a writable layer above.
    Boot,
    /// A directory of the host, with a writable layer above.
    Directory { kind: String, tag: String },
    /// A disk, to which QEMU lets nothing be written.
    Disk,
}

impl Root {
    /// Of the value of `telegraphos.root=`.
    pub(crate) fn of(value: &str) -> Option<Root> {
        match value.split_once(':') {
            Some((kind, tag)) => Some(Root::Directory { kind: kind.into(), tag: tag.into() }),
            None if value == "boot" => Some(Root::Boot),
            None if value == "disk" => Some(Root::Disk),
            None => None,
        }
    }
}

/// A directory of the host inside the root.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) kind: String,
    pub(crate) tag: String,
    pub(crate) read_only: bool,
    pub(crate) at: String,
}

impl Share {
    /// Of the value of `telegraphos.share=`.
    pub(crate) fn of(value: &str) -> Option<Share> {
        let mut parts = value.splitn(4, ':');
        let (kind, tag, mode, at) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(Share { kind: kind.into(), tag: tag.into(), read_only: mode == "ro", at: at.into() })
    }
}

/// Loads what mounts a file system of this kind.
fn load_for(kind: &str) -> io::Result<()> {
    load_all(&VIRTIO)?;
    match kind {
        "virtiofs" => load_all(&["fuse", "virtiofs"]),
        "9p" => load_all(&["netfs", "fscache", "9pnet", "9pnet_virtio", "9p"]),
        _ => Ok(()),
    }
}

/// Mounts a directory of the host.
fn mount_directory(kind: &str, tag: &str, at: &str, read_only: bool) -> io::Result<()> {
    let options = if kind == "9p" { c"trans=virtio,version=9p2000.L,msize=512000" } else { c"" };
    let flags = if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    Ok(mount(tag, at, kind, flags, options)?)
}

/// Whether there is a root at a directory.
fn is_root(at: &str) -> bool {
    ["bin", "usr/bin"].iter().any(|programs| Path::new(at).join(programs).is_dir())
}

/// Mounts the partition of the disk that has a root, or the whole disk.
fn mount_disk(at: &str) -> io::Result<()> {
    load_all(&VIRTIO)?;
    load_all(&["virtio_blk"])?;
    let known = fs::read_to_string("/proc/filesystems")?;
    let kinds: Vec<&str> = known.lines().filter(|line| !line.starts_with("nodev")).map(str::trim).collect();
    let mut places = vec!["vda".to_owned()];
    places.extend(fs::read_dir("/sys/block/vda")?.flatten().map(|entry| entry.file_name().to_string_lossy().into()));
    places.retain(|name| name.starts_with("vda"));
    places.sort();
    for place in &places {
        for kind in &kinds {
            if mount(format!("/dev/{place}"), at, *kind, MountFlags::empty(), c"").is_ok() {
                if is_root(at) {
                    return Ok(());
                }
                unmount(at, rustix::mount::UnmountFlags::empty())?;
            }
        }
    }
    Err(io::Error::other(format!(
        "no root on the disk: none of {} has a file system of {} with bin or usr/bin in it",
        places.join(", "),
        kinds.join(", ")
    )))
}

/// Makes `root` the root, with these directories of the host in it. What is set up in the root, by `set_up` too, is
/// there before them: it changes nothing of the host's.
pub(crate) fn switch(root: &Root, shares: &[Share], set_up: impl FnOnce()) -> io::Result<()> {
    for share in shares {
        load_for(&share.kind)?;
    }
    fs::create_dir(PLACE)?;
    mount("tmpfs", PLACE, "tmpfs", MountFlags::NODEV, LAYER)?;
    let lower = format!("{PLACE}/lower");
    for dir in ["lower", "upper", "work", "new"] {
        fs::create_dir(format!("{PLACE}/{dir}"))?;
    }
    match root {
        Root::Boot => mount_bind("/", &lower)?,
        Root::Directory { kind, tag } => {
            load_for(kind)?;
            mount_directory(kind, tag, &lower, true).map_err(failed(format!("mounting the directory ({kind})")))?;
        }
        Root::Disk => mount_disk(NEW)?,
    }
    if *root != Root::Disk {
        load_all(&["overlay"])?;
        let options = c"lowerdir=/run/switch/lower,upperdir=/run/switch/upper,workdir=/run/switch/work";
        mount("overlay", NEW, "overlay", MountFlags::empty(), options)
            .map_err(failed("mounting the writable layer (overlay)"))?;
    }
    enter()?;
    users()?;
    set_up();
    for share in shares {
        let Share { kind, tag, read_only, at } = share;
        fs::create_dir_all(at).map_err(failed(at))?;
        mount_directory(kind, tag, at, *read_only).map_err(failed(format!("mounting the share {at} ({kind})")))?;
    }
    Ok(())
}

/// Moves what is mounted to the new root, and makes it the root.
fn enter() -> io::Result<()> {
    for dir in ["dev", "proc", "sys", "run", "tmp"] {
        let at = format!("{NEW}/{dir}");
        if !Path::new(&at).is_dir() {
            fs::create_dir_all(&at).map_err(failed(&at))?;
        }
    }
    mount("tmpfs", format!("{NEW}/run"), "tmpfs", QUIET, c"mode=755,size=5%")?;
    mount("tmpfs", format!("{NEW}/tmp"), "tmpfs", QUIET, c"mode=1777,size=10%")?;
    let tools = format!("{NEW}{BOOT_ROOT}");
    fs::create_dir(&tools)?;
    mount_bind("/", &tools)?;
    for dir in ["/dev", "/proc", "/sys"] {
        mount_move(dir, format!("{NEW}{dir}")).map_err(failed(dir))?;
    }
    std::env::set_current_dir(NEW)?;
    mount_move(".", "/")?;
    rustix::process::chroot(".")?;
    std::env::set_current_dir("/")
}

/// Sees to it that there is a user 1000 with a home, in the group of the boards.
fn users() -> io::Result<()> {
    const TG: &str = "tg:x:1000:1000:tg:/home/tg:/bin/sh\n";
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_else(|_| "root:x:0:0:root:/root:/bin/sh\n".into());
    let group = fs::read_to_string("/etc/group").unwrap_or_else(|_| "root:x:0:\n".into());
    let there = passwd.lines().find(|line| line.split(':').nth(2) == Some("1000"));
    let name = there.and_then(|line| line.split(':').next()).unwrap_or("tg");
    fs::create_dir_all("/etc")?;
    let append = |path: &str, text: &str, line: String| -> io::Result<()> {
        let fresh = !Path::new(path).exists();
        let mut file = File::options().append(true).create(true).open(path)?;
        if fresh || text.is_empty() {
            file.write_all(text.as_bytes())?;
        } else if !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        file.write_all(line.as_bytes())
    };
    if there.is_none() {
        append("/etc/passwd", &passwd, TG.into())?;
        fs::create_dir_all("/home/tg")?;
        rustix::fs::chown("/home/tg", Some(rustix::fs::Uid::from_raw(1000)), Some(rustix::fs::Gid::from_raw(1000)))?;
    }
    if !group.lines().any(|line| line.starts_with("telegraphos:")) {
        let group_of_boards = telegraphos_agent::devices::GROUP;
        append("/etc/group", &group, format!("telegraphos:x:{group_of_boards}:{name}\n"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_words_are_read() {
        assert_eq!(Root::of("boot"), Some(Root::Boot));
        assert_eq!(Root::of("disk"), Some(Root::Disk));
        let directory = Root::Directory { kind: "virtiofs".into(), tag: "root".into() };
        assert_eq!(Root::of("virtiofs:root"), Some(directory));
        assert_eq!(Root::of("flash"), None);
        let share = Share { kind: "9p".into(), tag: "share0".into(), read_only: true, at: "/mnt/x".into() };
        assert_eq!(Share::of("9p:share0:ro:/mnt/x"), Some(share));
        assert_eq!(Share::of("9p:share0:ro"), None);
    }
}
