// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules of the guest's own kernel: those that mount directories and disks of the host, the port over which the agent
//! sends much data, and, for what boards are compared with (`telegraphos bench`), a network device and interrupts for
//! programs. They lie in the image as they were built, and are loaded by what needs them.

use crate::apt::{self, Apt, Fetched};
use crate::files;
use crate::kernel::Modules;
use crate::manifest::FileRecord;
use crate::store::{Lock, Store};
use crate::{Error, Kernel, Manifest, Result};
use std::fs;
use std::path::PathBuf;

/// Where the image has them.
pub(crate) const INSIDE: &str = "usr/lib/telegraphos/peers";
/// Part of their name in the cache, which changes with them.
const VERSION: u32 = 3;
const MODULES: [&str; 20] = [
    "failover",
    "net_failover",
    "virtio_net",
    "uio",
    "uio_pci_generic",
    // In the order in which tg-init loads them.
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_console",
    "virtio_blk",
    "fuse",
    "virtiofs",
    "netfs",
    "fscache",
    "9pnet",
    "9pnet_virtio",
    "9p",
    "overlay",
];

/// The modules of this kernel: name in the image, file here. Kernels that have one of them built in have none.
pub(crate) fn modules(store: &Store, kernel: &Kernel) -> Result<Vec<(String, PathBuf)>> {
    if let Modules::Files(files) = &kernel.modules {
        let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let named = files.iter().filter_map(|path| Some((name(path)?, path.clone())));
        let mut found: Vec<_> = named.filter(|(name, _)| wanted(name)).collect();
        found.sort();
        return Ok(found);
    }
    let (dir, manifest) =
        store.artefact(&format!("peers/{}-{}-{VERSION}", kernel.name, kernel.release), |lock, at| {
            store.forget_old("peers", &kernel.name);
            let debs = packages(store, lock, kernel)?;
            let scratch = at.join("scratch");
            files::make_dir(&scratch)?;
            for deb in &debs {
                apt::unpack_one(&deb.path, &scratch, &["*/boot", "*/sound"])?;
            }
            let mut records = Vec::new();
            files::walk(&scratch, files::DEEPEST, &mut |path, name| {
                if wanted(name) {
                    fs::copy(path, at.join(name)).map_err(Error::io("cannot copy", path))?;
                    records.push(FileRecord::of(at, name)?);
                }
                Ok(())
            })?;
            files::remove_dir(&scratch)?;
            Ok(Manifest { files: records, ..Manifest::default() })
        })?;
    Ok(manifest.files.into_iter().map(|file| (file.name.clone(), dir.join(file.name))).collect())
}

/// Debian's package with the modules of a kernel.
pub(crate) fn packages(store: &Store, lock: &Lock, kernel: &Kernel) -> Result<Vec<Fetched>> {
    // Debian's pool keeps the newest only; what the kernel was unpacked from is here still.
    let of_kernel = |prefix: &str| kernel.manifest.package(&format!("{prefix}-{}", kernel.release));
    let package = of_kernel("linux-image").or_else(|| of_kernel("linux-binary"));
    let missing = || Error::missing("the package of the kernel", store.path(), "run `telegraphos images --refresh`");
    let package = package.ok_or_else(missing)?;
    let apt = Apt::open(store, lock, |_| crate::sources::Release::named(&package.release))?;
    // Since 7.2 the modules are a package of their own.
    let name = match package.name.strip_prefix("linux-binary-") {
        Some(release) => format!("linux-modules-{release}"),
        None => package.name.clone(),
    };
    apt.fetch("the kernel's modules", &apt.single(&[&name])?)
}

/// Whether a file is one of the modules, packed or not.
fn wanted(name: &str) -> bool {
    let module = [".xz", ".zst", ".gz"].iter().find_map(|packed| name.strip_suffix(packed)).unwrap_or(name);
    let module = module.strip_suffix(".ko");
    module.is_some_and(|module| MODULES.contains(&module.replace('-', "_").as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_known_by_their_names() {
        for name in ["virtio_net.ko", "uio_pci_generic.ko.xz", "net-failover.ko", "9p.ko.zst"] {
            assert!(wanted(name), "{name}");
        }
        for name in ["virtio_net", "virtio_net.xz", "uio_aec.ko.xz", "virtio_net.ko.bz2"] {
            assert!(!wanted(name), "{name}");
        }
    }
}
