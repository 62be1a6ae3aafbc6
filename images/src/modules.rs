// SPDX-License-Identifier: MIT OR Apache-2.0
//! All modules of a Debian kernel, with the indexes that `modprobe` reads; and, for a kernel whose NVMe and ext4 are
//! among them, the initramfs that mounts the boot root.

use crate::apt::{self, Apt};
use crate::config::{Config, Set};
use crate::cpio::Cpio;
use crate::files::{self, read};
use crate::kernel::{Kernel, Modules};
use crate::manifest::FileRecord;
use crate::prefix::Program;
use crate::sources::Host;
use crate::store::Store;
use crate::{Error, Manifest, Result, exec, peers};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// What mounts the boot root.
const BOOT: [&str; 2] = ["nvme", "ext4"];
/// Where `tg-init` expects them in an initramfs.
const EARLY: &str = "early";
const INITRAMFS: &str = "initramfs.cpio";
/// Part of the names in the cache, which changes with what is made.
const VERSION: u32 = 1;

/// Whether a kernel of Debian's has what mounts the boot root only as modules.
pub(crate) fn boots_by_modules(kernel: &Kernel) -> bool {
    let module = |config: &Config, name| config.get(name) == Some(Set::Module);
    let modular = |config: &Config| ["BLK_DEV_NVME", "EXT4_FS"].iter().any(|name| module(config, name));
    matches!(kernel.modules, Modules::Package) && kernel.config.as_ref().is_some_and(modular)
}

/// The directory that is to be `/lib/modules/RELEASE` of a guest with a kernel of Debian's.
pub(crate) fn tree(store: &Store, kernel: &Kernel) -> Result<PathBuf> {
    let inside = format!("lib/modules/{}", kernel.release);
    let name = format!("modules/{}-{}-{VERSION}", kernel.name, kernel.release);
    let (dir, _) = store.artefact(&name, |lock, at| {
        store.forget_old("modules", &kernel.name);
        let what = format!("the modules of Linux {}", kernel.release);
        let apt = Apt::open(store, lock, Host::release)?;
        let tools = at.join("tools");
        apt::unpack(store, "depmod", &apt.fetch("depmod", &apt.closure(&["kmod"])?)?, &tools)?;
        let debs = peers::packages(store, lock, kernel)?;
        let step = store.progress.step(format!("Unpacking {what}"), None);
        let scratch = at.join("scratch");
        files::make_dir(&scratch)?;
        for deb in &debs {
            apt::unpack_one(&deb.path, &scratch, &["*/boot", "*/doc"])?;
        }
        let places = ["lib", "usr/lib"].map(|lib| scratch.join(lib).join("modules").join(&kernel.release));
        let unpacked = places.into_iter().find(|place| place.join("kernel").is_dir()).ok_or_else(|| {
            let remedy = "the package of the kernel has a layout unknown to this program; report it";
            Error::missing(what.as_str(), scratch.join("lib/modules"), remedy)
        })?;
        let to = at.join(&inside);
        files::make_dir(at.join("lib/modules"))?;
        fs::rename(&unpacked, &to).map_err(Error::io("cannot move", &unpacked))?;
        let mut depmod = Program::of_prefix_as(&tools, "kmod", "modules", "usr/bin/kmod", "depmod")?.command();
        depmod.arg("-b").arg(at).arg(&kernel.release);
        exec::run(&mut depmod, &store.cancel, || ())?.success(|| format!("indexing {what} (depmod)"), 10)?;
        for done in [&scratch, &tools] {
            files::remove_dir(done)?;
        }
        step.done();
        // The index has the names of all others.
        let files = vec![FileRecord::of(at, &format!("{inside}/modules.dep"))?];
        Ok(Manifest { files, ..Manifest::default() })
    })?;
    Ok(dir.join(inside))
}

/// The initramfs of a kernel that [`boots_by_modules`]; `init` is `tg-init`.
pub(crate) fn initramfs(store: &Store, kernel: &Kernel, init: &Path) -> Result<PathBuf> {
    let tree = tree(store, kernel)?;
    let init = read(init)?;
    let key = files::sha256_parts([
        ("version", VERSION.to_string().as_bytes()),
        ("release", kernel.release.as_bytes()),
        ("init", &init),
    ]);
    let (dir, _) = store.artefact(&format!("initramfs/{}-{}", kernel.name, &key[..16]), |_, at| {
        store.forget_old("initramfs", &kernel.name);
        let text = |name: &str| fs::read_to_string(tree.join(name)).map_err(Error::io("cannot read", tree.join(name)));
        let (dep, softdep, alias) = (text("modules.dep")?, text("modules.softdep")?, text("modules.alias")?);
        let index = Index::of(&dep, &softdep, &alias);
        let mut cpio = Cpio::default();
        cpio.directory("dev");
        // The kernel opens it before anything is mounted.
        cpio.char_device("dev/console", 0o600, 5, 1);
        cpio.directory(EARLY);
        for (n, path) in index.in_order(&BOOT).iter().enumerate() {
            let file = path.rsplit('/').next().unwrap_or(path);
            // In this order they are loaded.
            cpio.file(&format!("{EARLY}/{n:03}-{file}"), 0o644, &read(&tree.join(path))?);
        }
        cpio.file("init", 0o755, &init);
        files::write(&at.join(INITRAMFS), &cpio.finish())?;
        Ok(Manifest { files: vec![FileRecord::of(at, INITRAMFS)?], ..Manifest::default() })
    })?;
    Ok(dir.join(INITRAMFS))
}

/// Which modules need which others.
struct Index<'a> {
    /// Path and dependencies of each, by its name with underscores.
    modules: HashMap<String, (&'a str, Vec<&'a str>)>,
    /// What is to be loaded first though no symbol of it is used: names or aliases.
    before: HashMap<String, Vec<&'a str>>,
    aliases: HashMap<&'a str, Vec<&'a str>>,
}

/// The name of a module by its path, its file or its name with hyphens.
fn name_of(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

impl<'a> Index<'a> {
    fn of(dep: &'a str, softdep: &'a str, alias: &'a str) -> Index<'a> {
        let of_line = |line: &'a str| {
            let (path, needs) = line.split_once(':')?;
            Some((name_of(path), (path, needs.split_whitespace().collect())))
        };
        let before_of_line = |line: &'a str| {
            let (name, words) = line.strip_prefix("softdep ")?.split_once(' ')?;
            let pre = words.split_once("pre:")?.1;
            Some((name_of(name), pre.split_whitespace().take_while(|word| *word != "post:").collect()))
        };
        let mut aliases: HashMap<&str, Vec<&str>> = HashMap::new();
        for line in alias.lines() {
            if let Some((from, to)) = line.strip_prefix("alias ").and_then(|pair| pair.split_once(' ')) {
                aliases.entry(from).or_default().push(to);
            }
        }
        Index {
            modules: dep.lines().filter_map(of_line).collect(),
            before: softdep.lines().filter_map(before_of_line).collect(),
            aliases,
        }
    }

    /// The paths of these modules and of all that they need, each behind what it needs. Those that the kernel has built
    /// in are in no index.
    fn in_order(&self, wanted: &[&str]) -> Vec<&'a str> {
        let (mut order, mut seen) = (Vec::new(), Vec::new());
        wanted.iter().for_each(|name| self.add(name, &mut seen, &mut order));
        order
    }

    fn add(&self, module: &str, seen: &mut Vec<String>, order: &mut Vec<&'a str>) {
        let name = name_of(module);
        if seen.contains(&name) {
            return;
        }
        seen.push(name.clone());
        let Some((path, needs)) = self.modules.get(&name) else {
            self.aliases.get(module).into_iter().flatten().for_each(|module| self.add(module, seen, order));
            return;
        };
        self.before.get(&name).into_iter().flatten().for_each(|module| self.add(module, seen, order));
        needs.iter().rev().for_each(|module| self.add(module, seen, order));
        order.push(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_loaded_behind_what_they_need() {
        let dep = "kernel/fs/ext4/ext4.ko.xz: kernel/fs/jbd2/jbd2.ko.xz kernel/lib/crc16.ko.xz kernel/fs/mbcache.ko.xz\n\
                   kernel/fs/jbd2/jbd2.ko.xz: kernel/lib/crc16.ko.xz\n\
                   kernel/lib/crc16.ko.xz:\n\
                   kernel/fs/mbcache.ko.xz:\n\
                   kernel/crypto/crc32c-generic.ko.xz:\n\
                   kernel/crypto/loop-a.ko: kernel/crypto/loop-b.ko\n\
                   kernel/crypto/loop-b.ko: kernel/crypto/loop-a.ko\n";
        let softdep = "# Soft dependencies\nsoftdep ext4 pre: crc32c built_in post: other\nsoftdep x post: y\n";
        let alias = "alias crc32c crc32c_generic\nalias pci:v* nvme\n";
        let index = Index::of(dep, softdep, alias);
        assert_eq!(
            index.in_order(&["nvme", "ext4"]),
            [
                "kernel/crypto/crc32c-generic.ko.xz",
                "kernel/fs/mbcache.ko.xz",
                "kernel/lib/crc16.ko.xz",
                "kernel/fs/jbd2/jbd2.ko.xz",
                "kernel/fs/ext4/ext4.ko.xz",
            ]
        );
        assert_eq!(index.in_order(&["loop_a"]).len(), 2);
        assert_eq!(index.in_order(&["absent"]), [""; 0]);
    }
}
