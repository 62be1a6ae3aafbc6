// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules of the guest's kernel that the boot root brings along.

use crate::BOOT_ROOT;
use std::fmt::Display;
use std::fs::File;
use std::io;
use std::path::Path;

/// Where they are in it.
const INSIDE: &str = "/lib/telegraphos/peers";
/// What any virtio device may need, each behind those whose symbols it needs.
pub const VIRTIO: [&str; 5] = ["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"];

/// An error with what it happened to.
pub fn failed<E: Display>(what: impl Display) -> impl FnOnce(E) -> io::Error {
    move |error| io::Error::other(format!("{what}: {error}"))
}

/// Loads a module from a file, which may be compressed.
pub fn load_file(path: &Path) -> io::Result<()> {
    // The kernel unpacks it.
    const COMPRESSED: std::ffi::c_int = 4;
    let flags = if path.extension().is_some_and(|ending| ending == "ko") { 0 } else { COMPRESSED };
    match rustix::system::finit_module(File::open(path)?, c"", flags) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(failed(format!("the module {} does not load", path.display()))(e)),
    }
}

/// Loads those of these modules that the boot root has; a kernel without one has it built in.
pub fn load_all(modules: &[&str]) -> io::Result<()> {
    let elsewhere = format!("{BOOT_ROOT}{INSIDE}");
    let place = if Path::new(&elsewhere).is_dir() { &elsewhere } else { INSIDE };
    for module in modules {
        let files = ["ko", "ko.xz", "ko.zst", "ko.gz"].map(|ending| format!("{place}/{module}.{ending}"));
        files.iter().map(Path::new).filter(|file| file.exists()).try_for_each(load_file)?;
    }
    Ok(())
}
