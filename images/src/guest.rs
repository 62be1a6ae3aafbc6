// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest image: a kernel and an initramfs.

use crate::cpio::Cpio;
use crate::manifest::FileRecord;
use crate::module::{KO, LAB_KO, forget_old};
use crate::store::{self, Store};
use crate::{Error, KernelSeries, Manifest, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A bootable guest.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The requested kernel.
    pub series: KernelSeries,
    /// `uname -r` of the guest.
    pub release: String,
    /// The uncompressed kernel.
    pub kernel: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// What all of it is made of.
    pub manifest: Manifest,
}

/// Changes when this file packs the same content in another way.
const FORMAT: &str = "1";
const INIT: &str = include_str!("../rootfs/init");
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ntg:x:1000:1000:tg:/home/tg:/bin/sh\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\ntelegraphos:x:990:tg\ntg:x:1000:\n";
/// A name that matches no line is set to 0660 root, so the usual ones are listed.
const MDEV: &str = "telegraphos[0-9]+ 0:990 0660\n(null|zero|full|random|urandom|tty|ptmx) 0:0 0666\n";
const PROFILE: &str = "export PATH=/bin HOME=\"${HOME:-/root}\"\ncd \"$HOME\"\nPS1='\\u@\\h:\\w\\$ '\n";

impl Store {
    /// The guest image of a kernel series, rebuilt if the driver, the tools or anything else in it changed. The image
    /// of one content has one place in the cache and is never written again.
    pub fn guest(&self, series: KernelSeries) -> Result<Guest> {
        let kernel = self.kernel(series)?;
        let userland = self.userland()?;
        let tools = self.tools()?;
        // Last, since it alone may need root: what root finds made by the user stays the user's.
        let module = self.module(series)?;

        let mut contents = Vec::new();
        for (name, path) in &tools {
            contents.push((name.as_str(), fs::read(path).map_err(Error::io("cannot read", path))?));
        }
        let ko = fs::read(&module.path).map_err(Error::io("cannot read", &module.path))?;
        let lab = fs::read(&module.lab).map_err(Error::io("cannot read", &module.lab))?;
        let userland_id = userland.manifest.parts.join("\n");
        let kernel_id = kernel.manifest.parts.join("\n");
        let fixed = [
            ("format", FORMAT.as_bytes()),
            ("kernel", kernel_id.as_bytes()),
            ("userland", userland_id.as_bytes()),
            ("init", INIT.as_bytes()),
            ("etc", [PASSWD, GROUP, MDEV, PROFILE].concat().as_bytes()).to_owned(),
            ("module", &ko),
            ("lab", &lab),
        ]
        .map(|(n, c)| (n, c.to_vec()));
        let key = store::sha256_parts(
            fixed.iter().map(|(n, c)| (*n, c.as_slice())).chain(contents.iter().map(|(n, c)| (*n, c.as_slice()))),
        );

        let (dir, mut manifest) = self.artefact(&format!("guest/{series}-{}", &key[..16]), |_, at| {
            forget_old(self, "guest", series);
            let mut image = Cpio::default();
            for dir in ["dev", "proc", "sys", "tmp", "run", "root", "home/tg", "etc", "bin", "usr/lib"] {
                image.dir(dir);
            }
            // The kernel opens it before anything is mounted.
            image.char_device("dev/console", 0o600, 5, 1);
            for (link, target) in
                [("sbin", "bin"), ("lib64", "usr/lib64"), ("usr/bin", "../bin"), ("usr/sbin", "../bin")]
            {
                image.symlink(link, target);
            }
            image.symlink("lib", "usr/lib");
            image.file("init", 0o755, INIT.as_bytes());
            for (name, text) in [("passwd", PASSWD), ("group", GROUP), ("mdev.conf", MDEV), ("profile", PROFILE)] {
                image.file(&format!("etc/{name}"), 0o644, text.as_bytes());
            }
            image.file("bin/busybox", 0o755, &read(&userland.busybox()?)?);
            let lspci = userland.lspci()?;
            image.file("bin/lspci", 0o755, &read(&lspci)?);
            for (inside, path) in userland.libraries(self, &lspci)? {
                image.file(&inside, 0o755, &read(&path)?);
            }
            image.file("usr/share/misc/pci.ids", 0o644, &read(&userland.root.join("usr/share/misc/pci.ids"))?);
            image.file(&format!("usr/lib/telegraphos/{KO}"), 0o644, &ko);
            image.file(&format!("usr/lib/telegraphos/{LAB_KO}"), 0o644, &lab);
            for (name, content) in &contents {
                image.file(&format!("bin/{name}"), 0o755, content);
            }
            let own = |name: &str| ["busybox", "lspci"].contains(&name) || tools.iter().any(|(t, _)| t == name);
            for applet in userland.applets(self)?.iter().filter(|a| !own(a)) {
                image.symlink(&format!("bin/{applet}"), "busybox");
            }
            let path = at.join("initramfs");
            store::write(&path, &image.finish())?;
            Ok(Manifest {
                parts: Vec::new(),
                packages: Vec::new(),
                files: vec![FileRecord { name: "initramfs".into(), sha256: store::sha256_file(&path)? }],
            })
        })?;
        let mut whole = kernel.manifest.clone();
        whole.merge(&userland.manifest);
        whole.merge(&module.manifest);
        whole.merge(&manifest);
        manifest = whole;
        Ok(Guest {
            series,
            release: kernel.release,
            kernel: kernel.vmlinux,
            initramfs: dir.join("initramfs"),
            manifest,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io("cannot read", path))
}

impl Guest {
    /// QEMU options that boot this guest fastest: machine, processor, kernel and command line, to which `append` is
    /// added (see `rootfs/init` for the words that it accepts). The caller adds memory, processors and devices:
    ///
    /// - `-m 256M -object memory-backend-memfd,id=ram,size=256M,share=on`: the machine takes the backend named `ram`;
    ///   without `share=on` a HIB cannot reach guest memory;
    /// - `-smp N`;
    /// - `-chardev ... -serial chardev:...` twice: the first is the console `ttyS0`, the second `ttyS1` for the agent;
    /// - one `-device pcie-root-port,id=rpN,chassis=N,slot=N,pref64-reserve=SIZE` for each device that is plugged while
    ///   the guest runs, with `-device '{"driver":"vfio-user-pci","bus":"rpN",...}'` behind it. SIZE is a power of two
    ///   above the sum of its 64-bit BARs: firmware gives a port without it 2 MiB, and a window plugged later stays
    ///   without address ("failed to assign");
    /// - `-qmp ...`, `-no-reboot` where wanted.
    pub fn qemu_args(&self, append: &str) -> Vec<OsString> {
        // no_timer_check and tsc=reliable: a loaded host makes an emulated guest doubt its timers. cryptomgr.notests:
        // Debian's kernels test every cipher at boot, 0.7 s of 3.6 when emulated.
        let mut command_line = String::from(
            "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check tsc=reliable cryptomgr.notests \
             telegraphos.agent=ttyS1",
        );
        if !append.trim().is_empty() {
            command_line.push(' ');
            command_line.push_str(append.trim());
        }
        let mut args: Vec<OsString> = [
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-machine",
            "q35,memory-backend=ram,hpet=off,smm=off,vmport=off,usb=off,sata=off,smbus=off",
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
        ]
        .map(OsString::from)
        .into();
        args.extend(["-kernel".into(), self.kernel.clone().into_os_string()]);
        args.extend(["-initrd".into(), self.initramfs.clone().into_os_string()]);
        args.extend(["-append".into(), command_line.into()]);
        args
    }
}
