// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest image: a kernel and a read-only file system, of which guests read what they use.

use crate::ext4::Ext4;
use crate::manifest::FileRecord;
use crate::module::{KO, LAB_KO, forget_old};
use crate::peers;
use crate::store::{self, Store, read};
use crate::{Error, KernelSeries, Manifest, Result};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// A bootable guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The uncompressed kernel.
    pub kernel: PathBuf,
    /// The root file system, read-only: any number of guests share it.
    pub root: PathBuf,
    /// What all of it is made of.
    pub manifest: Manifest,
}

/// Changes when this file packs the same content in another way.
const FORMAT: &str = "3";
/// Its file in the cache.
const ROOT: &str = "root.ext4";
/// What an emulated processor need not do at every boot, a quarter of its instructions: a source of random numbers that
/// no guest uses is tested, types of BPF are resolved, Debian's certificates for modules are read, probes and
/// enumerations of the kernel's tracer are prepared (tracefs then lacks `kprobe_events`), and the names of all
/// functions that it could trace are looked up, which alone is a sixth.
const NOT_EMULATED: &str = "jent_mod_init,bpf_tcp_ca_kfunc_init,load_system_certificate_list,trace_eval_init,\
                            init_kprobe_trace,ftrace_check_for_weak_functions";
/// Words for emulated guests' kernels. All pages need not be zeroed once more when they are allocated, which is a 25th
/// of the instructions of a boot; and a fifth level of page tables makes each miss of the emulated TLB dearer.
const EMULATED: &str = "init_on_alloc=0 no5lvl";
/// The accelerator of QEMU that emulates, with a thread for each processor.
pub const TCG: &str = "tcg,thread=multi";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ntg:x:1000:1000:tg:/home/tg:/bin/sh\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\ntelegraphos:x:990:tg\ntg:x:1000:\n";
const PROFILE: &str = "export PATH=/bin HOME=\"${HOME:-/root}\"\ncd \"$HOME\"\nPS1='\\u@\\h:\\w\\$ '\n";

impl Store {
    /// The guest image of a kernel series, rebuilt if the driver, the tools or anything else in it changed. The image
    /// of one content has one place in the cache and is never written again.
    pub fn guest(&self, series: KernelSeries) -> Result<Guest> {
        let kernel = self.kernel(series)?;
        let userland = self.userland()?;
        let tools = self.tools()?;
        let peers = self.peer_modules(series, &kernel)?;
        // Last, since it alone may need root: what root finds made by the user stays the user's.
        let module = self.module(series)?;

        let mut contents = Vec::new();
        for (name, path) in &tools {
            contents.push((name.as_str(), read(path)?));
        }
        let mut modules = Vec::new();
        for (name, path) in &peers {
            modules.push((name.as_str(), read(path)?));
        }
        let (ko, lab) = (read(&module.path)?, read(&module.lab)?);
        let etc = [PASSWD, GROUP, PROFILE].concat();
        let userland_id = userland.manifest.parts.join("\n");
        let kernel_id = kernel.manifest.parts.join("\n");
        let fixed: [(&str, &[u8]); 6] = [
            ("format", FORMAT.as_bytes()),
            ("kernel", kernel_id.as_bytes()),
            ("userland", userland_id.as_bytes()),
            ("etc", etc.as_bytes()),
            ("module", &ko),
            ("lab", &lab),
        ];
        let varied = contents.iter().chain(&modules).map(|(n, c)| (*n, c.as_slice()));
        let key = store::sha256_parts(fixed.into_iter().chain(varied));

        let (dir, image) = self.artefact(&format!("guest/{series}-{}", &key[..16]), |_, at| {
            forget_old(self, "guest", series);
            mounts_its_root(&read(&kernel.vmlinux)?).map_err(|what| {
                let release = &kernel.release;
                Error::Failed(format!(
                    "Linux {release} has no {what} built in, and so cannot mount a guest's root; choose another kernel \
                     series"
                ))
            })?;
            let mut image = Ext4::new();
            for dir in ["dev", "proc", "sys", "tmp", "run", "root", "mnt", "home/tg", "bin", "usr/lib64", peers::INSIDE]
            {
                image.dir(dir);
            }
            // The kernel opens it before anything is mounted.
            image.char_device("dev/console", 0o600, 5, 1);
            for (link, target) in [
                ("sbin", "bin"),
                ("lib64", "usr/lib64"),
                ("usr/bin", "../bin"),
                ("usr/sbin", "../bin"),
                ("lib", "usr/lib"),
                // What tg-init writes.
                ("etc/inittab", "../run/inittab"),
                ("init", "bin/tg-init"),
            ] {
                image.symlink(link, target);
            }
            for (name, text) in [("passwd", PASSWD), ("group", GROUP), ("profile", PROFILE)] {
                image.file(&format!("etc/{name}"), 0o644, text.as_bytes());
            }
            image.file("bin/busybox", 0o755, read(&userland.busybox()?)?);
            let lspci = userland.lspci()?;
            image.file("bin/lspci", 0o755, read(&lspci)?);
            for (inside, path) in userland.libraries(self, &lspci)? {
                image.file(&inside, 0o755, read(&path)?);
            }
            image.file("usr/share/misc/pci.ids", 0o644, read(&userland.root.join("usr/share/misc/pci.ids"))?);
            image.file(&format!("usr/lib/telegraphos/{KO}"), 0o644, ko.as_slice());
            image.file(&format!("usr/lib/telegraphos/{LAB_KO}"), 0o644, lab.as_slice());
            for (name, content) in &modules {
                image.file(&format!("{}/{name}", peers::INSIDE), 0o644, content);
            }
            for (name, content) in &contents {
                image.file(&format!("bin/{name}"), 0o755, content);
            }
            let own = |name: &str| ["busybox", "lspci"].contains(&name) || tools.iter().any(|(t, _)| t == name);
            for applet in userland.applets(self)?.iter().filter(|a| !own(a)) {
                image.symlink(&format!("bin/{applet}"), "busybox");
            }
            store::write(&at.join(ROOT), &image.finish()?)?;
            Ok(Manifest { files: vec![FileRecord::of(at, ROOT)?], ..Manifest::default() })
        })?;
        let mut manifest = kernel.manifest;
        for other in [&userland.manifest, &module.manifest, &image] {
            manifest.merge(other);
        }
        Ok(Guest { kernel: kernel.vmlinux, root: dir.join(ROOT), manifest })
    }
}

/// Whether a kernel has the drivers of the root file system built in, which a guest without initramfs relies on: else
/// the name of one that it lacks. Each is known by a text that otherwise only the module has.
fn mounts_its_root(vmlinux: &[u8]) -> std::result::Result<(), &'static str> {
    for (driver, text) in [("NVMe", "nvme.io_queue_depth"), ("ext4", "EXT4-fs ")] {
        if !vmlinux.windows(text.len()).any(|window| window == text.as_bytes()) {
            return Err(driver);
        }
    }
    Ok(())
}

impl Guest {
    /// QEMU options that boot this guest fastest: machine, processor, `accelerator` ([`TCG`] or `kvm`), kernel, root
    /// file system (as an NVMe disk, for which every kernel here has the driver built in) and command line, to which
    /// `append` is added (see `images/agent/src/init.rs` for the words that it accepts). The caller adds memory,
    /// processors and devices:
    ///
    /// - `-m 256M -object memory-backend-memfd,id=ram,size=256M,share=on`: the machine takes the backend named `ram`;
    ///   without `share=on` a HIB cannot reach guest memory;
    /// - `-smp N`;
    /// - `-chardev ... -serial chardev:...` twice: the first is the console `ttyS0`, the second `ttyS1` for the agent;
    /// - one `-device pcie-root-port,id=rpN,chassis=N,slot=N,pref64-reserve=SIZE` for each device that is plugged while
    ///   the guest runs, with `-device '{"driver":"vfio-user-pci","bus":"rpN",...}'` behind it. SIZE is that
    ///   of `WindowLayout::pref64_reserve`: firmware gives a port without it 2 MiB, and a window plugged later stays
    ///   without address ("failed to assign");
    /// - `-qmp ...`, `-no-reboot` where wanted.
    pub fn qemu_args(&self, accelerator: &str, append: &str) -> Vec<OsString> {
        // no_timer_check and tsc=reliable: a loaded host makes an emulated guest doubt its timers. cryptomgr.notests:
        // Debian's kernels test every cipher at boot, 0.7 s of 3.6 when emulated. noreplace-smp: with one processor, a
        // kernel removes ten thousand lock prefixes from its code, each by mappings of its own, a tenth of the boot.
        let mut command_line = String::from(
            "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check tsc=reliable cryptomgr.notests noreplace-smp \
             root=/dev/nvme0n1 rootfstype=ext4 rootwait ro init=/init raid=noautodetect telegraphos.agent=ttyS1",
        );
        if accelerator == TCG {
            for word in [" ", EMULATED, " initcall_blacklist=", NOT_EMULATED] {
                command_line.push_str(word);
            }
        }
        if !append.trim().is_empty() {
            command_line.push(' ');
            command_line.push_str(append.trim());
        }
        let machine = "q35,memory-backend=ram,hpet=off,smm=off,vmport=off,usb=off,sata=off,smbus=off";
        let mut args = vec!["-nodefaults".into(), "-no-user-config".into()];
        // As JSON: a path may have a comma.
        let root = json!({"driver": "file", "node-name": "root", "read-only": true, "filename": self.root});
        let root = root.to_string();
        let options: [(&str, &OsStr); 8] = [
            ("-display", "none".as_ref()),
            ("-machine", machine.as_ref()),
            ("-accel", accelerator.as_ref()),
            ("-cpu", "max".as_ref()),
            ("-kernel", self.kernel.as_os_str()),
            ("-blockdev", root.as_ref()),
            ("-device", "nvme,drive=root,serial=root,addr=10.0".as_ref()),
            ("-append", command_line.as_ref()),
        ];
        for (option, value) in options {
            args.extend([option.into(), value.to_owned()]);
        }
        args
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_drivers_of_its_root_is_refused() {
        assert_eq!(mounts_its_root(b"..nvme.io_queue_depth\0..EXT4-fs (%s): .."), Ok(()));
        assert_eq!(mounts_its_root(b"..nvme.io_queue_depth\0.."), Err("ext4"));
        assert_eq!(mounts_its_root(b"..EXT4-fs (%s): .."), Err("NVMe"));
    }
}
