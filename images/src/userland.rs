// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs of a guest that come from Debian: busybox and lspci, of the host's own release.

use crate::apt::{self, Apt};
use crate::sources::Host;
use crate::store::Store;
use crate::{Error, Manifest, Result, exec};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's list of PCI ids.
pub(crate) const PCI_IDS: &str = "usr/share/misc/pci.ids";

/// Unpacked packages a guest image takes files from.
pub(crate) struct Userland {
    pub(crate) root: PathBuf,
    pub(crate) manifest: Manifest,
}

pub(crate) fn fetched(store: &Store) -> Result<Userland> {
    let (dir, manifest) = store.artefact("userland", |lock, at| {
        let apt = Apt::open(store, lock, Host::release)?;
        let debs = apt.fetch("busybox and lspci", &apt.closure(&["busybox-static", "pciutils", "pci.ids"])?)?;
        apt::unpack(store, "busybox and lspci", &debs, &at.join("root"))?;
        let version = |name| debs.iter().find(|d| d.record.name == name).map_or("?", |d| d.record.version.as_str());
        let (busybox, pciutils) = (version("busybox-static"), version("pciutils"));
        let part = format!("busybox {busybox}, pciutils {pciutils} (Debian {})", apt.release.name);
        Ok(Manifest::of(part, apt::records(debs)))
    })?;
    Ok(Userland { root: dir.join("root"), manifest })
}

/// Names of the programs that a program is, which it lists itself.
pub(crate) fn applets(store: &Store, program: &Path) -> Result<Vec<String>> {
    let out = exec::run(Command::new(program).arg("--list"), &store.cancel, || ())?;
    Ok(out.stdout.lines().map(str::to_owned).collect())
}

impl Userland {
    pub(crate) fn busybox(&self) -> Result<PathBuf> {
        self.find("busybox", &["usr/bin/busybox", "usr/sbin/busybox"])
    }

    pub(crate) fn lspci(&self) -> Result<PathBuf> {
        self.find("lspci", &["usr/bin/lspci", "usr/sbin/lspci"])
    }

    fn find(&self, what: &str, at: &[&str]) -> Result<PathBuf> {
        let remedy = "remove the directory userland from the cache and try again";
        let mut places = at.iter().map(|path| self.root.join(path));
        places.find(|path| path.is_file()).ok_or_else(|| Error::missing(what, self.root.join(at[0]), remedy))
    }

    /// The loader and the shared libraries a program needs: (path in the guest, file here).
    pub(crate) fn libraries(&self, store: &Store, program: &Path) -> Result<Vec<(String, PathBuf)>> {
        const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
        let loader = self.root.join(LOADER);
        let directory = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(&loader);
        command.arg("--library-path").arg(&directory).arg("--list").arg(program);
        let out = exec::run(&mut command, &store.cancel, || ())?;
        let mut all = vec![(LOADER.to_owned(), loader)];
        for line in out.stdout.lines() {
            let library = line.split_once(" => ").and_then(|(_, place)| place.split_whitespace().next());
            let Some(path) = library.map(PathBuf::from) else { continue };
            let Ok(inside) = path.strip_prefix(&self.root) else { continue };
            let inside = inside.to_string_lossy().into_owned();
            if !inside.ends_with("ld-linux-x86-64.so.2") {
                all.push((inside, path));
            }
        }
        if all.len() < 2 {
            return Err(out.failed(format!("listing the libraries of {}", program.display()), 10));
        }
        Ok(all)
    }
}
