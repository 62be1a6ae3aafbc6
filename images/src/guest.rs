// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest image: a kernel and a read-only file system, of which guests read what they use.

use crate::config::Uses;
use crate::directories::{Directory, Transport};
use crate::disk::Disk;
use crate::ext4::Ext4;
use crate::files::{self, read};
use crate::kernel::{Headers, Kernel, Modules};
use crate::manifest::FileRecord;
use crate::module::MODULES;
use crate::root::{RootChoice, Share};
use crate::store::Store;
use crate::tools::Programs;
use crate::{Error, KernelChoice, KernelSeries, Machine, Manifest, Result};
use crate::{debian, directories, modules, own, peers, userland};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a guest is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootOptions {
    pub kernel: KernelChoice,
    /// Where an own kernel's modules are, if not in its tree.
    pub modules: Option<PathBuf>,
    /// An initramfs that runs before the boot root.
    pub initrd: Option<PathBuf>,
    /// The root; the boot root itself without this.
    pub root: Option<RootChoice>,
    /// Directories of the host inside the guest.
    pub shares: Vec<Share>,
    /// An emulated boot leaves out what few programs use (`BootOptions::skips`).
    pub fast: bool,
    /// Our own programs in the boot root.
    pub programs: Programs,
}

impl From<KernelSeries> for BootOptions {
    fn from(series: KernelSeries) -> BootOptions {
        BootOptions { kernel: series.into(), ..BootOptions::default() }
    }
}

impl BootOptions {
    /// Whether an emulated kernel skips parts of its boot that programs may look for, such as probes of the tracer:
    /// where that is wanted, and where no program is that could: with Debian's kernel and the boot root alone.
    fn skips(&self) -> bool {
        let own = matches!(self.kernel, KernelChoice::Own(_)) || self.root.is_some() || !self.shares.is_empty();
        self.fast || !own
    }
}

#[derive(Clone, Debug)]
pub struct Guest {
    pub kernel: PathBuf,
    /// An initramfs that runs before the boot root.
    pub initrd: Option<PathBuf>,
    /// The boot root, read-only: any number of guests share it.
    pub root: PathBuf,
    /// Why there is no driver in it, if so.
    pub without_driver: Option<String>,
    /// The driver's modules, as files of the host.
    pub drivers: Vec<PathBuf>,
    /// The vmlinux of an own kernel's build, for its symbols.
    pub symbols: Option<PathBuf>,
    /// Directories of the host that it mounts, by tag.
    pub directories: Vec<Directory>,
    transport: Option<Transport>,
    /// The disk that is its root.
    disk: Option<PathBuf>,
    /// An emulated kernel skips parts of its boot.
    skips: bool,
    /// Words for its kernel that say what is mounted.
    words: String,
    /// What all of it is made of.
    pub manifest: Manifest,
}

/// The directory that is the root.
const ROOT_TAG: &str = "root";
/// Changes when this file packs the same content in another way.
const FORMAT: &str = "4";
/// Its file in the cache.
const ROOT: &str = "root.ext4";
/// What an emulated processor need not do at every boot where no program could miss it, a quarter of its instructions:
/// a source of random numbers that no guest uses is tested, types of BPF are resolved, Debian's certificates for
/// modules are read, probes and enumerations of the kernel's tracer are prepared (tracefs then lacks `kprobe_events`),
/// and the names of all functions that it could trace are looked up, which alone is a sixth.
const NOT_EMULATED: &str = "jent_mod_init,bpf_tcp_ca_kfunc_init,load_system_certificate_list,trace_eval_init,\
                            init_kprobe_trace,ftrace_check_for_weak_functions";
/// Words for emulated guests' kernels. All pages need not be zeroed once more when they are allocated, which is a 25th
/// of the instructions of a boot; and a fifth level of page tables makes each miss of the emulated TLB dearer.
const EMULATED: &str = "init_on_alloc=0 no5lvl";
/// The same where virtiofsd writes to guest memory. QEMU does not see those writes, and would continue with what it
/// made of code that was in a page before: programs crash. A page that the guest itself zeroes first has no such past.
const EMULATED_WITH_VIRTIOFS: &str = "init_on_alloc=1 no5lvl";
/// The accelerator of QEMU that emulates, with a thread for each processor.
pub const TCG: &str = "tcg,thread=multi";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\ntg:x:1000:1000:tg:/home/tg:/bin/sh\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\ntelegraphos:x:990:tg\ntg:x:1000:\n";
const PROFILE: &str = "export PATH=/bin HOME=\"${HOME:-/root}\"\ncd \"$HOME\"\nPS1='\\u@\\h:\\w\\$ '\n";

impl Store {
    /// Debian's list of PCI ids.
    pub fn pci_ids(&self) -> Result<PathBuf> {
        Ok(userland::fetched(self)?.root.join(userland::PCI_IDS))
    }

    /// The guest of these options. Its image is rebuilt if the driver, the tools or anything else in it changed; that
    /// of one content has one place in the cache and is never written again.
    pub fn guest(&self, options: impl Into<BootOptions>) -> Result<Guest> {
        let options = options.into();
        let (kernel, mut initrd, mounts) = self.checked(&options)?;
        let programs = options.programs.to_build()?;
        let tools = self.tools(programs)?;
        let (root, mut manifest, without_driver, drivers) = self.image(&kernel, &tools, programs)?;
        let symbols = match &options.kernel {
            KernelChoice::Own(path) => own::symbols(path),
            _ => None,
        };
        if initrd.is_none() && modules::boots_by_modules(&kernel) {
            initrd = Some(modules::initramfs(self, &kernel, tool(&tools, "tg-init")?)?);
        }
        if let Some(root) = &options.root {
            manifest.parts.push(format!("root {root}"));
        }
        let Mounts { directories, transport, disk, words } = mounts;
        Ok(Guest {
            kernel: kernel.vmlinux,
            initrd,
            root,
            without_driver,
            drivers,
            symbols,
            directories,
            transport,
            disk,
            skips: options.skips(),
            words,
            manifest,
        })
    }

    /// What the options name, looked at before anything is built.
    fn checked(&self, options: &BootOptions) -> Result<(Kernel, Option<PathBuf>, Mounts)> {
        let initrd = options.initrd.as_deref().map(readable).transpose()?;
        let root = options.root.as_ref().map(RootChoice::resolve).transpose()?;
        let shares = Share::in_order(options.shares.iter().map(Share::resolve).collect::<Result<_>>()?)?;
        let kernel = match (&options.kernel, &options.modules) {
            (KernelChoice::Own(path), modules) => own::kernel(self, path, modules.as_deref())?,
            (kernel, Some(modules)) => {
                return Err(Error::Usage(format!(
                    "--modules {} is for a kernel of your own, and --kernel is {kernel}, whose modules are Debian's; \
                     leave one of them out",
                    modules.display()
                )));
            }
            (kernel, None) => self.kernel(kernel.clone())?,
        };
        let directories = has_directories(root.as_ref(), &shares);
        let uses = Uses {
            initrd: initrd.is_some() || modules::boots_by_modules(&kernel),
            directories,
            overlay: directories,
            disk: matches!(root, Some(RootChoice::Disk(_))),
            modules: !matches!(&kernel.modules, Modules::Files(files) if files.is_empty()),
        };
        match &kernel.config {
            Some(config) => config.check(&kernel.release, uses)?,
            None => {
                if let Some(what) = kernel.lacks.filter(|_| initrd.is_none()) {
                    let release = &kernel.release;
                    return Err(Error::Usage(format!(
                        "Linux {release} has no {what} built in, and so cannot mount a guest's root; choose another \
                         kernel, or give --initrd"
                    )));
                }
            }
        }
        // Last, since it may take minutes.
        let mut mounts = Mounts::of(self, &kernel, root, shares)?;
        mounts.add_modules(self, &kernel)?;
        Ok((kernel, initrd, mounts))
    }

    /// The boot root of a kernel: its file, what it is made of, why it has no driver, if so, and the driver's modules.
    /// `tools` are the guest's programs.
    fn image(
        &self,
        kernel: &Kernel,
        tools: &[(String, PathBuf)],
        programs: Programs,
    ) -> Result<(PathBuf, Manifest, Option<String>, Vec<PathBuf>)> {
        let userland = userland::fetched(self)?;
        let peers = peers::modules(self, kernel)?;
        let preload = match programs {
            Programs::All => Some(read(&self.preload()?)?),
            Programs::Demo => None,
        };
        // Last, since it alone may need root: what root finds made by the user stays the user's.
        let (module, without_driver) = match &kernel.headers {
            Headers::Missing(why) => (None, Some(why.clone())),
            _ => (Some(self.module_for(kernel)?), None),
        };

        let contents = contents_of(tools)?;
        let modules = contents_of(&peers)?;
        let drivers: Vec<PathBuf> = module.iter().flat_map(|module| module.files.clone()).collect();
        // Empty without a driver.
        let mut kos = [const { Vec::new() }; MODULES.len()];
        for (ko, path) in kos.iter_mut().zip(&drivers) {
            *ko = read(path)?;
        }
        let [ko, net, lab] = &kos;
        let etc = [PASSWD, GROUP, PROFILE].concat();
        let userland_id = userland.manifest.parts.join("\n");
        let kernel_id = kernel.manifest.parts.join("\n");
        let fixed: [(&str, &[u8]); 8] = [
            ("format", FORMAT.as_bytes()),
            ("kernel", kernel_id.as_bytes()),
            ("userland", userland_id.as_bytes()),
            ("etc", etc.as_bytes()),
            ("module", ko),
            ("net", net),
            ("lab", lab),
            ("preload", preload.as_deref().unwrap_or_default()),
        ];
        let varied = contents.iter().chain(&modules).map(|(n, c)| (*n, c.as_slice()));
        let key = files::sha256_parts(fixed.into_iter().chain(varied));

        let (dir, image) = self.artefact(&format!("guest/{}-{}", kernel.name, &key[..16]), |_, at| {
            self.forget_old("guest", &kernel.name);
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
                ("etc/hosts", "../run/hosts"),
                ("etc/resolv.conf", "../run/resolv.conf"),
                ("init", "bin/tg-init"),
            ] {
                image.symlink(link, target);
            }
            for (name, text) in [("passwd", PASSWD), ("group", GROUP), ("profile", PROFILE)] {
                image.file(&format!("etc/{name}"), 0o644, text.as_bytes());
            }
            let busybox = userland.busybox()?;
            image.file("bin/busybox", 0o755, read(&busybox)?);
            let lspci = userland.lspci()?;
            image.file("bin/lspci", 0o755, read(&lspci)?);
            for (inside, path) in userland.libraries(self, &lspci)? {
                image.file(&inside, 0o755, read(&path)?);
            }
            image.file(userland::PCI_IDS, 0o644, read(&userland.root.join(userland::PCI_IDS))?);
            for ((name, _), content) in MODULES.iter().zip(&kos).filter(|_| module.is_some()) {
                image.file(&format!("usr/lib/telegraphos/{name}"), 0o644, content.as_slice());
            }
            if let Some(preload) = &preload {
                image.file("usr/lib/telegraphos/libtelegraphos-preload.so", 0o755, preload.as_slice());
            }
            for (name, content) in &modules {
                image.file(&format!("{}/{name}", peers::INSIDE), 0o644, content);
            }
            for (name, content) in &contents {
                image.file(&format!("bin/{name}"), 0o755, content);
            }
            let own = |name: &str| ["busybox", "lspci"].contains(&name) || tools.iter().any(|(t, _)| t == name);
            let tg = match programs {
                Programs::All => Some(("tg", tool(tools, "tg")?)),
                Programs::Demo => None,
            };
            for (name, program) in tg.into_iter().chain([("busybox", &busybox)]) {
                for applet in userland::applets(self, program)?.iter().filter(|applet| !own(applet)) {
                    image.symlink(&format!("bin/{applet}"), name);
                }
            }
            files::write(&at.join(ROOT), &image.finish()?)?;
            Ok(Manifest { files: vec![FileRecord::of(at, ROOT)?], ..Manifest::default() })
        })?;
        let mut manifest = kernel.manifest.clone();
        for other in
            [Some(&userland.manifest), module.as_ref().map(|m| &m.manifest), Some(&image)].into_iter().flatten()
        {
            manifest.merge(other);
        }
        Ok((dir.join(ROOT), manifest, without_driver, drivers))
    }
}

/// Names of files, and what is in them.
fn contents_of(files: &[(String, PathBuf)]) -> Result<Vec<(&str, Vec<u8>)>> {
    files.iter().map(|(name, path)| Ok((name.as_str(), read(path)?))).collect()
}

/// The guest's program of this name.
fn tool<'a>(tools: &'a [(String, PathBuf)], name: &str) -> Result<&'a PathBuf> {
    let missing = || Error::Failed(format!("the guest's programs have no {name}; check out the whole project"));
    tools.iter().find(|(tool, _)| tool == name).map(|(_, path)| path).ok_or_else(missing)
}

/// A file that can be read, by its whole path.
fn readable(path: &Path) -> Result<PathBuf> {
    let usage = |e: std::io::Error| Error::Usage(format!("cannot read the initramfs {}: {e}", path.display()));
    std::fs::File::open(path).map_err(usage)?;
    path.canonicalize().map_err(usage)
}

/// Whether guests mount directories of the host.
fn has_directories(root: Option<&RootChoice>, shares: &[Share]) -> bool {
    !shares.is_empty() || matches!(root, Some(RootChoice::Directory(_) | RootChoice::Debian { .. }))
}

/// What a guest mounts beside its boot root.
struct Mounts {
    directories: Vec<Directory>,
    transport: Option<Transport>,
    disk: Option<PathBuf>,
    words: String,
}

impl Mounts {
    fn of(store: &Store, kernel: &Kernel, root: Option<RootChoice>, shares: Vec<Share>) -> Result<Mounts> {
        let mut mounts = Mounts { directories: Vec::new(), transport: None, disk: None, words: String::new() };
        let directories = has_directories(root.as_ref(), &shares);
        if directories {
            mounts.transport = Some(directories::transport(store, kernel.config.as_ref())?);
        }
        let kind = mounts.transport.as_ref().map_or("", Transport::file_system);
        let mut root_is = |host, constant| {
            mounts.words += &format!(" telegraphos.root={kind}:{ROOT_TAG}");
            mounts.directories.push(Directory { tag: ROOT_TAG.into(), host, read_only: true, constant });
        };
        match root {
            Some(RootChoice::Directory(host)) => root_is(host, false),
            Some(RootChoice::Debian { suite, packages }) => {
                root_is(debian::root(store, suite.as_deref(), &packages)?.0, true);
            }
            Some(RootChoice::Disk(disk)) => {
                mounts.words += " telegraphos.root=disk";
                mounts.disk = Some(disk);
            }
            _ if directories => mounts.words += " telegraphos.root=boot",
            _ => {}
        }
        for (n, Share { host, guest, read_only }) in shares.into_iter().enumerate() {
            let (tag, mode) = (format!("share{n}"), if read_only { "ro" } else { "rw" });
            mounts.words += &format!(" telegraphos.share={kind}:{tag}:{mode}:{guest}");
            mounts.directories.push(Directory { tag, host, read_only, constant: false });
        }
        Ok(mounts)
    }

    /// Where the root is a directory, its `modprobe` finds the modules of a kernel of Debian's.
    fn add_modules(&mut self, store: &Store, kernel: &Kernel) -> Result<()> {
        let rooted = self.directories.iter().any(|directory| directory.tag == ROOT_TAG);
        let (true, Some(transport), Modules::Package) = (rooted, &self.transport, &kernel.modules) else {
            return Ok(());
        };
        let (kind, release) = (transport.file_system(), &kernel.release);
        self.words += &format!(" telegraphos.share={kind}:modules:ro:/lib/modules/{release}");
        let host = modules::tree(store, kernel)?;
        self.directories.push(Directory { tag: "modules".into(), host, read_only: true, constant: true });
        Ok(())
    }
}

impl Guest {
    /// QEMU options that boot this guest fastest: `machine`, processor, `accelerator` ([`TCG`] or `kvm`), kernel, root
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
    pub fn qemu_args(&self, machine: Machine, accelerator: &str, append: &str) -> Vec<OsString> {
        // no_timer_check and tsc=reliable: a loaded host makes an emulated guest doubt its timers. cryptomgr.notests:
        // Debian's kernels test every cipher at boot, 0.7 s of 3.6 when emulated. noreplace-smp: with one processor, a
        // kernel removes ten thousand lock prefixes from its code, each by mappings of its own, a tenth of the boot.
        let mut command_line = String::from(
            "console=ttyS0 panic=-1 quiet loglevel=5 no_timer_check tsc=reliable cryptomgr.notests noreplace-smp \
             root=/dev/nvme0n1 rootfstype=ext4 rootwait ro init=/init raid=noautodetect telegraphos.agent=ttyS1",
        );
        if accelerator == TCG {
            let virtiofs = matches!(self.transport, Some(Transport::Virtiofs(_)));
            let emulated = if virtiofs { EMULATED_WITH_VIRTIOFS } else { EMULATED };
            for word in [" ", emulated] {
                command_line.push_str(word);
            }
            if self.skips {
                for word in [" initcall_blacklist=", NOT_EMULATED] {
                    command_line.push_str(word);
                }
            }
        }
        command_line.push_str(&self.words);
        if !append.trim().is_empty() {
            command_line.push(' ');
            command_line.push_str(append.trim());
        }
        let machine = machine.option();
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
        if let Some(initrd) = &self.initrd {
            args.extend(["-initrd".into(), initrd.clone().into_os_string()]);
        }
        args
    }

    /// QEMU's options for the disk that is its root, if that is one. What guests write to it goes into a file of QEMU's
    /// that has no name.
    pub fn disk_args(&self) -> Result<Vec<OsString>> {
        let Some(disk) = &self.disk else { return Ok(Vec::new()) };
        // Once more: the next guest may have written it since, in a directory that it shares.
        let file = Disk::examine(disk)?.file(disk)?.replace(',', ",,");
        let drive = format!("if=none,id=disk,file={file},snapshot=on");
        Ok(["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"].map(OsString::from).to_vec())
    }

    /// The command of the server that a directory needs at `socket`, if it needs one.
    pub fn directory_server(&self, directory: &Directory, socket: &Path) -> Option<Command> {
        directory.server(self.transport.as_ref()?, socket)
    }

    /// QEMU's options for a directory, whose server, if it needs one, listens on `socket`.
    pub fn directory_args(&self, directory: &Directory, socket: &Path) -> Vec<OsString> {
        self.transport.as_ref().map_or_else(Vec::new, |transport| directory.qemu_args(transport, socket))
    }
}
