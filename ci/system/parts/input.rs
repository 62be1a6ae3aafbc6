// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bad input that reaches the system from the host: each has a message that names the thing, the value and the remedy.

use crate::command;
use crate::help::refused;
use anyhow::{Result, ensure};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use telegraphos_cluster::Cluster;

pub(crate) fn a_directory_for_sockets_that_cannot_be_written() -> Result<()> {
    // Not even root can write there.
    refused(command(&["run", "--nodes", "1", "--run-dir", "/proc", "--", "true"]), 125, &["/proc", "--run-dir"])
}

pub(crate) fn a_configuration_with_an_unknown_key() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let file = dir.path().join("cluster.toml");
    fs::write(&file, "nodes = 2\nmemori = 512\n")?;
    let mut c = command(&["run", "--config"]);
    c.arg(&file).args(["--", "true"]);
    refused(c, 125, &["cluster.toml", "line 2", "memori", "memory"])?;
    // Also in the table that is for the HIBs.
    fs::write(&file, "nodes = 1\n[hib]\nlode-limit-ms = 5\n")?;
    let mut c = command(&["run", "--config"]);
    c.arg(&file).args(["--", "true"]);
    refused(c, 125, &["cluster.toml", "lode-limit-ms", "load-limit-ms"])
}

pub(crate) fn a_qemu_that_is_too_old_or_without_vfio_user() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("qemu-system-x86_64");
    let fake = |version: &str, device: &str| -> Result<()> {
        let script = format!(
            "#!/bin/sh\ncase \"$1\" in --version) echo 'QEMU emulator version {version}';;\n-device) echo 'name \
             \"{device}\", bus PCI';; esac\n"
        );
        fs::write(&path, script)?;
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(())
    };
    let run = |path: &Path| {
        let mut c = command(&["run", "--nodes", "1", "--", "true"]);
        c.env("TELEGRAPHOS_QEMU", path);
        c
    };
    fake("7.2.22 (Debian 1:7.2+dfsg-7)", "vfio-user-pci")?;
    refused(run(&path), 125, &["QEMU too old", "7.2.22", "10.1.1", "TELEGRAPHOS_QEMU"])?;
    fake("11.1.3", "vfio-pci")?;
    refused(run(&path), 125, &["without vfio-user", "11.1.3", "vfio-user-pci"])
}

pub(crate) fn kvm_that_cannot_run_a_guest_is_named_and_not_used() -> Result<()> {
    use telegraphos_images::{KvmState, kvm_usable};
    let mut forced = command(&["run", "--nodes", "1", "--accel", "kvm", "--", "true"]);
    match kvm_usable() {
        // The rules for hosts unlike this one are tested where they are written (images, cluster).
        KvmState::Usable => {
            let status = forced.status()?;
            ensure!(status.success(), "KVM is usable, and yet: {status}");
            Ok(())
        }
        KvmState::PresentButUnusable { reason } => {
            refused(forced, 125, &["KVM is present but unusable", &reason, "--accel tcg"])
        }
        KvmState::Absent => refused(forced, 125, &["KVM is absent", "/dev/kvm", "--accel tcg"]),
    }
}

pub(crate) fn guest_memory_that_is_private() -> Result<()> {
    let builder = Cluster::builder().nodes(1).each(|node| {
        node.shared_memory = false;
        node.wait_for_device = false;
    });
    let cluster = builder.boot()?;
    let guest = cluster.node(0);
    let dmesg = guest.dmesg()?;
    ensure!(
        dmesg.contains("private") && dmesg.contains("memory-backend-memfd,share=on"),
        "the guest's kernel log does not name the option:\n{dmesg}"
    );
    // The guest runs, and so does its HIB.
    guest.sh("true").check()?;
    ensure!(guest.hib_memory().is_some(), "the HIB has ended:\n{}", guest.hib_log());
    Ok(())
}
