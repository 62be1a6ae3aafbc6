// SPDX-License-Identifier: MIT OR Apache-2.0
//! The configuration of a kernel: where it is found, and which options a guest needs.

use crate::{Error, Result};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// How an option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// Built in, or a value.
    Yes,
    /// Built as a module.
    Module,
}

/// The options of one kernel that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Where it was read, for messages.
    pub(crate) origin: String,
    options: BTreeMap<String, Set>,
}

/// What a guest is to do, which decides what its kernel needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Uses {
    /// An initramfs finds the boot root, and may bring modules for it.
    pub(crate) initrd: bool,
    /// Directories of the host are mounted.
    pub(crate) directories: bool,
    /// The root has a writable layer above.
    pub(crate) overlay: bool,
    /// A disk of the user's is the root.
    pub(crate) disk: bool,
    /// Modules of the kernel can be put into the boot image.
    pub(crate) modules: bool,
}

/// Built in, always: what for.
const ALWAYS: [(&str, &str); 9] = [
    ("64BIT", "guests are amd64"),
    ("MODULES", "the driver is a module"),
    ("PCI", "the board is a PCI device"),
    ("PCI_MSI", "the board's interrupts"),
    ("SERIAL_8250_CONSOLE", "the console, and the line of the agent"),
    ("DEVTMPFS", "the nodes in /dev"),
    ("PROC_FS", "the kernel's command line"),
    ("SYSFS", "the board's attributes"),
    ("TMPFS", "what is writable in a guest"),
];
/// The boot root.
const BOOT_ROOT: [(&str, &str); 2] =
    [("BLK_DEV_NVME", "the disk of the boot root"), ("EXT4_FS", "the file system of the boot root")];

impl Config {
    /// The options of a text such as `.config`.
    pub(crate) fn parse(text: &str, origin: impl Into<String>) -> Config {
        let set = |line: &str| {
            let (name, value) = line.strip_prefix("CONFIG_")?.split_once('=')?;
            Some((name.to_owned(), if value.trim() == "m" { Set::Module } else { Set::Yes }))
        };
        Config { origin: origin.into(), options: text.lines().filter_map(set).collect() }
    }

    /// Reads such a file, if it is there.
    pub(crate) fn read(path: &Path) -> Result<Option<Config>> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(Config::parse(&String::from_utf8_lossy(&bytes), path.display().to_string()))),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io("cannot read the kernel's configuration", path)(e)),
        }
    }

    /// The configuration inside a kernel that was built with `CONFIG_IKCONFIG`.
    pub(crate) fn embedded(vmlinux: &[u8], origin: &Path) -> Option<Config> {
        const BEGIN: &[u8] = b"IKCFG_ST";
        /// No configuration is longer.
        const LIMIT: u64 = 4 << 20;
        let at = vmlinux.windows(BEGIN.len()).position(|window| window == BEGIN)? + BEGIN.len();
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(vmlinux.get(at..)?).take(LIMIT).read_to_end(&mut text).ok()?;
        Some(Config::parse(&String::from_utf8_lossy(&text), format!("that inside {}", origin.display())))
    }

    /// How `CONFIG_NAME` is set, if it is.
    pub(crate) fn get(&self, name: &str) -> Option<Set> {
        self.options.get(name).copied()
    }

    /// Whether it is set either way.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// An error that names every option that is missing for these uses.
    pub(crate) fn check(&self, kernel: &str, uses: Uses) -> Result<()> {
        let mut missing: Vec<String> = Vec::new();
        let mut need = |name: &str, why: &str, may_be_module: bool| {
            let fits = self.get(name).is_some_and(|set| set == Set::Yes || may_be_module);
            if !fits {
                let value = if may_be_module { "y or m" } else { "y" };
                missing.push(format!("CONFIG_{name}={value} ({why})"));
            }
        };
        ALWAYS.iter().for_each(|(name, why)| need(name, why, false));
        BOOT_ROOT.iter().for_each(|(name, why)| need(name, why, uses.initrd));
        for (wanted, name, why) in [
            (uses.overlay, "OVERLAY_FS", "what the guest writes over a root that is not changed"),
            (uses.directories || uses.disk, "VIRTIO_PCI", "directories and disks of the host"),
            (uses.disk, "VIRTIO_BLK", "the disk of the root"),
        ] {
            if wanted {
                need(name, why, uses.modules);
            }
        }
        if uses.directories && !self.has("VIRTIO_FS") && !(self.has("9P_FS") && self.has("NET_9P_VIRTIO")) {
            missing.push("CONFIG_VIRTIO_FS, or CONFIG_9P_FS and CONFIG_NET_9P_VIRTIO (directories of the host)".into());
        } else if uses.directories {
            let names: &[&str] = if self.has("VIRTIO_FS") { &["VIRTIO_FS"] } else { &["9P_FS", "NET_9P_VIRTIO"] };
            for name in names {
                need(name, "directories of the host", uses.modules);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "the kernel {kernel} cannot run in a guest: its configuration ({}) lacks\n    {}\nset it (ci/kernel.config \
             has everything that is needed) and build the kernel anew, take another kernel, or, where a module is what \
             there is, give --initrd",
            self.origin,
            missing.join("\n    ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const GOOD: &str = "CONFIG_64BIT=y\nCONFIG_MODULES=y\nCONFIG_PCI=y\nCONFIG_PCI_MSI=y\nCONFIG_SERIAL_8250_CONSOLE=y\n\
                        CONFIG_DEVTMPFS=y\nCONFIG_PROC_FS=y\nCONFIG_SYSFS=y\nCONFIG_TMPFS=y\nCONFIG_BLK_DEV_NVME=y\n\
                        CONFIG_EXT4_FS=y\nCONFIG_VIRTIO_PCI=y\nCONFIG_OVERLAY_FS=m\n";

    fn lacks(config: &str, uses: Uses) -> Vec<String> {
        match Config::parse(config, "x/.config").check("6.12.9", uses) {
            Ok(()) => Vec::new(),
            Err(e) => {
                let text = e.to_string();
                assert!(text.contains("6.12.9") && text.contains("x/.config") && text.contains("ci/kernel.config"));
                let words = text.split_whitespace().filter(|w| w.starts_with("CONFIG_"));
                words.map(|w| w.trim_end_matches([',', ')']).to_owned()).collect()
            }
        }
    }

    #[test]
    fn every_missing_option_is_named() {
        let plain = Uses::default();
        assert_eq!(lacks(GOOD, plain), [""; 0]);
        for option in ["MODULES", "PCI_MSI", "DEVTMPFS", "SERIAL_8250_CONSOLE", "EXT4_FS", "BLK_DEV_NVME"] {
            let without = GOOD.replace(&format!("CONFIG_{option}=y\n"), &format!("# CONFIG_{option} is not set\n"));
            assert_eq!(lacks(&without, plain), [format!("CONFIG_{option}=y")]);
        }
        assert_eq!(lacks("", plain).len(), ALWAYS.len() + BOOT_ROOT.len());
    }

    #[test]
    fn a_module_will_do_where_something_can_load_it() {
        let modular = GOOD.replace("EXT4_FS=y", "EXT4_FS=m");
        assert_eq!(lacks(&modular, Uses::default()), ["CONFIG_EXT4_FS=y"]);
        assert_eq!(lacks(&modular, Uses { initrd: true, ..Uses::default() }), [""; 0]);
        let overlay = Uses { overlay: true, ..Uses::default() };
        assert_eq!(lacks(GOOD, overlay), ["CONFIG_OVERLAY_FS=y"]);
        assert_eq!(lacks(GOOD, Uses { modules: true, ..overlay }), [""; 0]);
    }

    #[test]
    fn directories_need_virtiofs_or_9p() {
        let uses = Uses { directories: true, modules: true, ..Uses::default() };
        assert_eq!(lacks(GOOD, uses), ["CONFIG_VIRTIO_FS", "CONFIG_9P_FS", "CONFIG_NET_9P_VIRTIO"]);
        assert_eq!(lacks(&format!("{GOOD}CONFIG_VIRTIO_FS=m\n"), uses), [""; 0]);
        assert_eq!(lacks(&format!("{GOOD}CONFIG_9P_FS=m\nCONFIG_NET_9P_VIRTIO=m\n"), uses), [""; 0]);
    }

    #[test]
    fn the_configuration_inside_a_kernel_is_read() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(GOOD.as_bytes()).unwrap();
        let kernel = [b"\x7fELF....IKCFG_ST", &gz.finish().unwrap()[..], b"IKCFG_ED...."].concat();
        let config = Config::embedded(&kernel, Path::new("/k/vmlinux")).unwrap();
        assert!(config.has("EXT4_FS") && config.origin.contains("/k/vmlinux"));
        assert_eq!(Config::embedded(b"nothing here", Path::new("k")), None);
        assert_eq!(Config::embedded(b"IKCFG_STgarbage", Path::new("k")), None);
    }
}
