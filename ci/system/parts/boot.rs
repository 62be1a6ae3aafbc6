// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels, roots and directories of the user's.

use crate::command;
use crate::help::refused;
use crate::page;
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use telegraphos_cluster::{Cluster, NodeSettings, Settings};
use telegraphos_images::{KernelSeries, Progress, RootChoice, Share, Store};

/// `run` with these options is refused with exit code 125 and these words.
fn run_refused(options: &[&str], words: &[&str]) -> Result<()> {
    refused(command(&[&["run", "--nodes", "1"], options, &["--", "true"]].concat()), 125, words)
}

pub(crate) fn what_cannot_boot_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let place = |name: &str, content: &[u8]| -> Result<String> {
        let path = dir.path().join(name);
        fs::write(&path, content)?;
        Ok(path.display().to_string())
    };
    let text = place("notes", b"#!/bin/sh\necho this is no kernel\n")?;
    run_refused(&["--kernel", &text], &["notes", "a text file", "expected a bzImage"])?;
    let arm64 = place("Image", &[&[0; 0x38][..], b"ARM\x64", &[0; 100]].concat())?;
    run_refused(&["--kernel", &arm64], &["Image", "an Image for arm64"])?;
    run_refused(&["--kernel", "/nonexistent/linux"], &["/nonexistent/linux", "nothing at that path"])?;
    run_refused(&["--kernel", "5.10"], &["5.10", "6.12", "newest"])?;
    let file = format!("{text}:/mnt/x");
    for (share, word) in [("/tmp:/mnt/../etc", "leads outside"), ("/tmp:mnt", "not absolute"), (&file, "no directory")]
    {
        run_refused(&["--share", share], &[word])?;
    }
    let empty = dir.path().join("empty");
    fs::create_dir(&empty)?;
    run_refused(&["--root", &empty.display().to_string()], &["empty", "give a directory"])?;
    run_refused(&["--root", "debian:etch"], &["etch", "trixie"])?;
    run_refused(&["--kernel", "6.12", "--modules", "/lib/modules"], &["--modules", "of your own"])?;
    // One that is built, for this machine, and cannot mount the boot root.
    let tree = dir.path().join("linux");
    fs::create_dir_all(tree.join("include/config"))?;
    let vmlinux = Store::open(None, Progress::Plain)?.kernel(KernelSeries::V6_12)?.vmlinux;
    std::os::unix::fs::symlink(vmlinux, tree.join("vmlinux"))?;
    fs::write(tree.join("include/config/kernel.release"), "6.12.9-mine\n")?;
    fs::write(tree.join(".config"), "CONFIG_64BIT=y\nCONFIG_MODULES=y\nCONFIG_PCI=y\n# CONFIG_EXT4_FS is not set\n")?;
    let tree = tree.display().to_string();
    run_refused(&["--kernel", &tree], &["6.12.9-mine", "CONFIG_EXT4_FS=y", "CONFIG_PCI_MSI=y", "ci/kernel.config"])
}

/// What a directory of the host holds must be what was put there.
fn holds(dir: &Path, expected: &[&str]) -> Result<()> {
    let mut found: Vec<_> =
        fs::read_dir(dir)?.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    found.sort();
    ensure!(found == expected, "{} holds {found:?}: expected {expected:?}", dir.display());
    Ok(())
}

pub(crate) fn a_directory_is_the_root_and_shares_are_in_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |name: &str| dir.path().join(name);
    for name in ["root/bin", "root/etc", "fixed", "results/inner", "inner", "home", "etc"] {
        fs::create_dir_all(path(name))?;
    }
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    fs::write(path("root/etc/marker"), "of the host")?;
    fs::write(path("root/bin/hello"), "#!/run/telegraphos-image/bin/sh\necho hello from \"$(cat /etc/marker)\"\n")?;
    fs::set_permissions(path("root/bin/hello"), PermissionsExt::from_mode(0o755))?;
    fs::write(path("fixed/given"), "given\n")?;
    fs::write(path("etc/only"), "only\n")?;
    let share = |name: &str, guest: &str, read_only| Share { host: path(name), guest: guest.into(), read_only };
    // Of Linux 6.1 virtio is a set of modules.
    let old = NodeSettings { kernel: Some(KernelSeries::V6_1.into()), ..NodeSettings::default() };
    // What a guest sets up for itself is in places of one's own here.
    let places = vec![share("etc", "/etc", false), share("home", "/home/tg", false)];
    let placed = NodeSettings { share: places, ..NodeSettings::default() };
    let settings = Settings {
        node: vec![NodeSettings::default(), old, placed],
        root: Some(RootChoice::Path(path("root"))),
        // One that is in another, before it.
        share: vec![
            share("inner", "/mnt/results/inner", false),
            share("fixed", "/mnt/fixed", true),
            share("results", "/mnt/results", false),
        ],
        append: Some("telegraphos.test=appended".into()),
        ..crate::settings("directory-root")
    };
    let before = fs::metadata(path("home"))?;
    let cluster = Cluster::builder().nodes(3).settings(settings).boot()?;
    for guest in &cluster.guests()[..2] {
        let node = guest.node();
        let script = format!(
            "set -e; hello; grep -q telegraphos.test=appended /proc/cmdline; echo changed >/etc/marker; touch /new; \
             cat /etc/marker /mnt/fixed/given; ! touch /mnt/fixed/no 2>/dev/null; echo {node} >/mnt/results/{node}; \
             echo {node} >/mnt/results/inner/{node}; \
             tg-selftest --help >/dev/null; [ -c /dev/telegraphos0 ]"
        );
        let said = guest.sh(&script).as_root().check()?;
        ensure!(said == "hello from of the host\nchanged\ngiven\n", "node {node} said {said:?}");
    }
    // Both are there for both, and user tg has its home and the board.
    let said = cluster.node(0).sh("cat /mnt/results/1; id -un; cd; pwd; [ -w /dev/telegraphos0 ]").check()?;
    ensure!(said == "1\ntg\n/home/tg\n", "node 0 said {said:?}");
    let said = cluster.node(2).sh("cat /etc/only; ls -A /home/tg | wc -l; id -u").check()?;
    ensure!(said == "only\n0\n1000\n", "node 2 said {said:?}");
    for (node, guests) in [(0, &["all", "other"][..]), (2, &["placed"])] {
        page::holds(guests, |user, script| {
            let user = user.parse().map_err(anyhow::Error::msg)?;
            Ok(cluster.node(node).sh(script).user(user).check()?)
        })?;
    }
    drop(cluster);
    let after = fs::metadata(path("home"))?;
    let about = |of: &fs::Metadata| (of.uid(), of.gid(), of.mode());
    ensure!(about(&after) == about(&before), "the home is {:?}, and was {:?}", about(&after), about(&before));
    holds(&path("etc"), &["only"])?;
    holds(&path("home"), &[])?;
    holds(&path("inner"), &["0", "1"])?;
    holds(&path("root"), &["bin", "etc"])?;
    holds(&path("fixed"), &["given"])?;
    holds(&path("results"), &["0", "1", "inner"])?;
    ensure!(fs::read_to_string(path("root/etc/marker"))? == "of the host", "a guest changed the directory of its root");
    Ok(())
}

/// Programs with shared libraries, started often: what QEMU's emulation keeps of code must not outlive the pages that
/// virtiofsd fills.
pub(crate) fn the_hosts_own_root_runs_its_programs() -> Result<()> {
    let dir = tempfile::tempdir()?;
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777))?;
    let share = vec![Share { host: dir.path().into(), guest: "/mnt/here".into(), read_only: false }];
    let settings = Settings { root: Some(RootChoice::Host), share, ..crate::settings("host-root") };
    attributes(dir.path())?;
    let cluster = Cluster::builder().nodes(1).settings(settings).boot()?;
    let script = "set -e; for i in 1 2 3 4 5 6 7 8; do /bin/true; ls -R /etc/apt >/dev/null; done; apt-get --version \
                  >/dev/null; cat /etc/debian_version; touch /of-the-guest; grep -c ' / overlay ' /proc/mounts";
    let said = cluster.node(0).sh(script).as_root().check()?;
    let expected = format!("{}1\n", fs::read_to_string("/etc/debian_version")?);
    ensure!(said == expected, "the guest said {said:?}: expected {expected:?}");
    // Without its rights it has none, as user tg.
    cluster.node(0).sh("cp --preserve=xattr /mnt/here/cat /mnt/here/copy").as_root().check()?;
    let said = cluster.node(0).argv(&["/mnt/here/cat", "/proc/self/status"]).check()?;
    if rustix::process::geteuid().is_root() {
        ensure!(said.contains("CapEff:\t0000000000002000\n"), "the program has not the rights of its file:\n{said}");
    }
    drop(cluster);
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(dir.path().join("copy"), "user.kind", &mut value[..])?;
    ensure!(&value[..length] == b"a cat", "the attribute of the copy is {value:?}");
    ensure!(!Path::new("/of-the-guest").exists(), "the guest wrote to the root of the host");
    Ok(())
}

/// A program with an attribute and, if root runs this, the right to use raw sockets, as that of ping.
fn attributes(dir: &Path) -> Result<()> {
    let program = dir.join("cat");
    fs::copy("/bin/cat", &program)?;
    rustix::fs::setxattr(&program, "user.kind", b"a cat", rustix::fs::XattrFlags::empty())?;
    if rustix::process::geteuid().is_root() {
        // Revision 2, effective; permitted CAP_NET_RAW.
        let rights = [0x0200_0001_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
        rustix::fs::setxattr(&program, "security.capability", &rights, rustix::fs::XattrFlags::empty())?;
    }
    Ok(())
}

/// A disk with one partition, as its bytes.
fn partitioned(root: &[u8]) -> Vec<u8> {
    const SECTOR: usize = 512;
    const BEGIN: usize = 2048;
    let mut disk = vec![0; BEGIN * SECTOR];
    disk.extend_from_slice(root);
    disk.resize(disk.len().next_multiple_of(SECTOR), 0);
    // The first entry of the table: type Linux, first sector, sectors.
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&(BEGIN as u32).to_le_bytes());
    let sectors = (disk.len() / SECTOR - BEGIN) as u32;
    disk[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// A qcow2 image (version 2) of these bytes, up to 512 MiB. Clusters of zeros are not in it.
fn qcow2(raw: &[u8]) -> Vec<u8> {
    const CLUSTER: usize = 1 << 16;
    // The header, the first table, the table of reference counts and its only block, the second table.
    let mut image = vec![0; 5 * CLUSTER];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        image[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"QFI\xfb");
    put(&2u32.to_be_bytes());
    put(&[0; 12]); // nothing below
    put(&16u32.to_be_bytes()); // bits of a cluster
    put(&(raw.len() as u64).to_be_bytes());
    put(&0u32.to_be_bytes()); // not encrypted
    put(&1u32.to_be_bytes()); // entries of the first table, each of 512 MiB
    put(&(CLUSTER as u64).to_be_bytes());
    put(&(2 * CLUSTER as u64).to_be_bytes()); // counts of references
    put(&1u32.to_be_bytes());
    // No snapshots and no extensions: the rest is zeros.
    const COPIED: u64 = 1 << 63;
    image[CLUSTER..][..8].copy_from_slice(&((4 * CLUSTER as u64) | COPIED).to_be_bytes());
    image[2 * CLUSTER..][..8].copy_from_slice(&(3 * CLUSTER as u64).to_be_bytes());
    for (n, cluster) in raw.chunks(CLUSTER).enumerate().filter(|(_, cluster)| cluster.iter().any(|byte| *byte != 0)) {
        let place = image.len() as u64 | COPIED;
        image[4 * CLUSTER + 8 * n..][..8].copy_from_slice(&place.to_be_bytes());
        image.extend_from_slice(cluster);
        image.resize(image.len().next_multiple_of(CLUSTER), 0);
    }
    for cluster in 0..image.len() / CLUSTER {
        image[3 * CLUSTER + 2 * cluster..][..2].copy_from_slice(&1u16.to_be_bytes());
    }
    image
}

pub(crate) fn a_partition_of_a_qcow2_image_is_the_root() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let raw = partitioned(&fs::read(Store::open(None, Progress::Plain)?.guest(KernelSeries::V6_12)?.root)?);
    // A comma is QEMU's separator.
    let disk = dir.path().join("disk,1.qcow2");
    fs::write(&disk, qcow2(&raw))?;
    is_the_root_and_stays(&disk, "qcow2-root", "/dev/vda1")
}

pub(crate) fn without_a_root_or_init_it_says_so() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let disk = dir.path().join("empty.img");
    fs::write(&disk, vec![0; 1 << 20])?;
    let said = |options: &[&str], words: &[&str]| {
        refused(command(&[&["--quiet", "run", "--nodes", "1"], options, &["--", "true"]].concat()), 125, words)
    };
    said(
        &["--root", &disk.display().to_string()],
        &["QEMU of node 0", "there is no root", "no root on the disk", "vda"],
    )?;
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("bin"))?;
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755))?;
    let root = root.display().to_string();
    let words = ["QEMU of node 0", "/sbin/none is not in it", "give another telegraphos.init="];
    said(&["--root", &root, "--append", "telegraphos.init=/sbin/none"], &words)
}

pub(crate) fn a_disk_is_the_root_and_stays_as_it_is() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let disk = dir.path().join("disk.img");
    // A boot root is a disk with a root, too.
    fs::copy(Store::open(None, Progress::Plain)?.guest(KernelSeries::V6_12)?.root, &disk)?;
    is_the_root_and_stays(&disk, "disk-root", "/dev/vda")
}

/// A guest has this disk as its root, under that name, writes to it, and leaves it as it is.
fn is_the_root_and_stays(disk: &Path, name: &str, device: &str) -> Result<()> {
    let before = fs::read(disk)?;
    let settings = Settings { root: Some(RootChoice::Path(disk.to_owned())), ..crate::settings(name) };
    let cluster = Cluster::builder().nodes(1).settings(settings).boot()?;
    let said =
        cluster.node(0).sh("grep ' / ' /proc/mounts | tail -n 1; chmod 700 /mnt && ls -ld /mnt").as_root().check()?;
    ensure!(said.contains(&format!("{device} / ext4 rw")) && said.contains("drwx------"), "the guest said {said:?}");
    drop(cluster);
    ensure!(fs::read(disk)? == before, "the guest changed the disk of its root");
    Ok(())
}
