// SPDX-License-Identifier: MIT OR Apache-2.0
//! The user's own kernel: an image, or the directory of a kernel build, against which the driver is built with the
//! host's compiler.

use crate::config::Config;
use crate::files::{self, hex};
use crate::kernel::{Headers, Kernel, Modules};
use crate::manifest::FileRecord;
use crate::store::Store;
use crate::{Error, Manifest, Result, vmlinux};
use object::LittleEndian;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// The vmlinux with the symbols of the kernel at `path`: a vmlinux itself, or that of the build which it is of.
pub(crate) fn symbols(path: &Path) -> Option<PathBuf> {
    let place = path.canonicalize().ok()?;
    let is_elf = |file: &Path| {
        let mut magic = [0; 4];
        std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"\x7fELF"
    };
    let tree = if place.is_dir() { Some(place.as_path()) } else { place.ancestors().nth(4) };
    [Some(place.clone()), tree.map(|tree| tree.join("vmlinux"))].into_iter().flatten().find(|file| is_elf(file))
}

/// The kernel at `path`. `modules` is the directory of its modules, where that is not the tree.
pub(crate) fn kernel(store: &Store, path: &Path, modules: Option<&Path>) -> Result<Kernel> {
    let place = path.canonicalize().map_err(|e| {
        let why = match e.kind() {
            ErrorKind::NotFound => "there is nothing at that path".to_owned(),
            _ => e.to_string(),
        };
        Error::Usage(format!(
            "the kernel {}: {why}; give a bzImage, a vmlinux or the directory of a kernel build",
            path.display()
        ))
    })?;
    let tree = place.is_dir();
    let image = if tree { built(&place)? } else { place.clone() };
    let bytes = fs::read(&image).map_err(|e| {
        Error::Usage(format!("cannot read the kernel {}: {e}; see its mode and owner", image.display()))
    })?;
    let form = Form::of(&bytes).map_err(|what| {
        Error::Usage(format!(
            "the kernel {} is {what}; expected a bzImage or a vmlinux for x86-64 (such as arch/x86/boot/bzImage of a \
             kernel build)",
            image.display()
        ))
    })?;
    let elf = match form {
        Form::Vmlinux => None,
        // What does not unpack boots as QEMU's firmware boots it, slower.
        Form::BzImage => vmlinux::extract(&bytes).ok(),
    };
    let code: &[u8] = elf.as_deref().unwrap_or(&bytes);
    let release = tree_release(&place).filter(|_| tree).or_else(|| release(&bytes, form)).ok_or_else(|| {
        Error::Usage(format!("the kernel {} says no release; is it whole? Build it anew", image.display()))
    })?;
    let config = configuration(tree.then_some(place.as_path()), &image, &release, code)?;
    // Of one that does not unpack nothing can be seen.
    let lacks = if config.is_none() && code.starts_with(b"\x7fELF") { drivers(code).err() } else { None };
    // With KASAN such a kernel faults before its first message, in xen_prepare_pvh() (seen with 6.12).
    let sanitized = config.as_ref().is_some_and(|config| config.has("KASAN"));
    let enters = enters_by_pvh(code) && !sanitized;
    if form == Form::Vmlinux && !enters {
        let (path, why) = (path.display(), if sanitized { "with CONFIG_KASAN" } else { "without CONFIG_PVH" });
        return Err(Error::Usage(format!(
            "the kernel {path} is a vmlinux {why}, so QEMU cannot enter it; give arch/x86/boot/bzImage of its build"
        )));
    }
    let sha256 = hex(Sha256::digest(&bytes));
    let vmlinux = match elf.filter(|_| enters) {
        Some(elf) => unpacked(store, &sha256, &elf)?,
        None => image.clone(),
    };
    let modules = Sources::find(tree.then_some(place.as_path()), modules, &release)?;
    let symbols = match &modules.headers {
        Headers::Tree(tree) => fs::read(tree.join("Module.symvers")).unwrap_or_default(),
        _ => Vec::new(),
    };
    let symbols = hex(Sha256::digest(symbols));
    // The driver is built anew for another kernel, and for one with other symbols.
    let part = format!("kernel {release} of {} (sha256 {}, symbols {})", path.display(), &sha256[..16], &symbols[..8]);
    let manifest = Manifest { parts: vec![part], ..Manifest::default() };
    let (name, headers, modules) = ("own".into(), modules.headers, Modules::Files(modules.files));
    Ok(Kernel { release, vmlinux, manifest, name, config, lacks, headers, modules })
}

/// The kernel that was built in a tree.
fn built(tree: &Path) -> Result<PathBuf> {
    let places = ["arch/x86/boot/bzImage", "vmlinux"].map(|place| tree.join(place));
    if let Some(image) = places.iter().find(|place| place.is_file()) {
        return Ok(image.clone());
    }
    // A directory that cannot be read says so here.
    fs::read_dir(tree).map_err(|e| Error::Usage(format!("cannot read the kernel tree {}: {e}", tree.display())))?;
    let what = if tree.join("Makefile").is_file() && tree.join("Kbuild").is_file() {
        "is a kernel tree in which nothing is built"
    } else {
        "is no kernel tree"
    };
    Err(Error::Usage(format!(
        "the directory {} {what}: it has neither arch/x86/boot/bzImage nor vmlinux; build one there (`make bzImage \
         modules`), or name the directory of the build (O=)",
        tree.display()
    )))
}

/// The release of a tree's kernel.
fn tree_release(tree: &Path) -> Option<String> {
    let text = fs::read_to_string(tree.join("include/config/kernel.release")).ok()?;
    Some(text.trim().to_owned()).filter(|release| !release.is_empty())
}

/// What a file that can boot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    BzImage,
    Vmlinux,
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

impl Form {
    /// Which form a file has; or what it is, if it cannot boot here.
    fn of(bytes: &[u8]) -> std::result::Result<Form, String> {
        if let Some(ident) = at::<20>(bytes, 0).filter(|ident| ident.starts_with(b"\x7fELF")) {
            let machine = u16::from_le_bytes([ident[18], ident[19]]);
            return match (ident[4], ident[5], machine) {
                (2, 1, 62) => Ok(Form::Vmlinux),
                (1, 1, 3) => Err("an ELF file for 32-bit x86".into()),
                (_, 1, 183) => Err("an ELF file for arm64".into()),
                (_, 1, 243) => Err("an ELF file for RISC-V".into()),
                (_, 1, other) => Err(format!("an ELF file for another machine (number {other})")),
                _ => Err("an ELF file for a machine of the other byte order".into()),
            };
        }
        if at(bytes, 0x202) == Some(*b"HdrS") {
            // Since protocol 2.12 a flag says whether it has a 64-bit entry.
            let version = at(bytes, 0x206).map_or(0, u16::from_le_bytes);
            let flags = at(bytes, 0x236).map_or(0, u16::from_le_bytes);
            if version >= 0x020c && flags & 1 == 0 {
                return Err("a bzImage for 32-bit x86".into());
            }
            return Ok(Form::BzImage);
        }
        Err(match at(bytes, 0x38) {
            Some([b'A', b'R', b'M', 0x64]) => "an Image for arm64".into(),
            Some([b'R', b'S', b'C', 0x05]) => "an Image for RISC-V".into(),
            _ if bytes.is_empty() => "an empty file".into(),
            _ if bytes.starts_with(&[0x1f, 0x8b]) => "a file that gzip has packed".into(),
            _ if bytes.starts_with(b"!<arch>") => "a package or a library, no kernel".into(),
            _ if bytes.iter().take(512).all(|b| matches!(b, b'\t' | b'\n' | b'\r' | 0x20..=0x7e)) => {
                "a text file".into()
            }
            _ => format!("no kernel (it begins with {:02x?})", &bytes[..bytes.len().min(8)]),
        })
    }
}

/// The release that a kernel names: a bzImage by the pointer in its header, a vmlinux in its banner.
fn release(bytes: &[u8], form: Form) -> Option<String> {
    let text = match form {
        Form::BzImage => {
            let start = usize::from(at(bytes, 0x20e).map(u16::from_le_bytes)?) + 0x200;
            bytes.get(start..)?
        }
        Form::Vmlinux => {
            const BANNER: &[u8] = b"Linux version ";
            let mut places = bytes.windows(BANNER.len() + 1);
            let digit = |window: &[u8]| window.starts_with(BANNER) && window[BANNER.len()].is_ascii_digit();
            bytes.get(places.position(digit)? + BANNER.len()..)?
        }
    };
    let end = text.iter().take(100).position(|b| *b == 0 || b.is_ascii_whitespace())?;
    let release = std::str::from_utf8(&text[..end]).ok()?;
    // It becomes part of paths.
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-~_".contains(c);
    (release.starts_with(|c: char| c.is_ascii_digit()) && release.chars().all(plain)).then(|| release.to_owned())
}

/// Whether QEMU can enter an ELF kernel: it has Xen's note with the address of its PVH entry.
fn enters_by_pvh(elf: &[u8]) -> bool {
    const ENTRY: u32 = 18;
    let has_note = || -> object::Result<bool> {
        for segment in FileHeader64::<LittleEndian>::parse(elf)?.program_headers(LittleEndian, elf)? {
            let Some(mut notes) = segment.notes(LittleEndian, elf)? else { continue };
            while let Some(note) = notes.next()? {
                if note.n_type(LittleEndian) == ENTRY && note.name() == b"Xen" {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    };
    has_note().unwrap_or(false)
}

/// The configuration: of the tree, beside the image as Debian has it, or inside the kernel.
fn configuration(tree: Option<&Path>, image: &Path, release: &str, code: &[u8]) -> Result<Option<Config>> {
    let beside = image.parent().map(|dir| dir.join(format!("config-{release}")));
    for place in tree.map(|tree| tree.join(".config")).into_iter().chain(beside) {
        if let Some(config) = Config::read(&place)? {
            return Ok(Some(config));
        }
    }
    Ok(Config::embedded(code, image))
}

/// The uncompressed kernel of this content.
fn unpacked(store: &Store, sha256: &str, elf: &[u8]) -> Result<PathBuf> {
    let (dir, _) = store.artefact(&format!("own/own-{}", &sha256[..16]), |_, at| {
        store.forget_old("own", "own");
        files::write(&at.join("vmlinux"), elf)?;
        Ok(Manifest { files: vec![FileRecord::of(at, "vmlinux")?], ..Manifest::default() })
    })?;
    Ok(dir.join("vmlinux"))
}

/// Where the driver is built and what modules there are.
struct Sources {
    headers: Headers,
    files: Vec<PathBuf>,
}

impl Sources {
    fn find(tree: Option<&Path>, modules: Option<&Path>, release: &str) -> Result<Sources> {
        let dir = modules.map(|dir| modules_dir(dir, release)).transpose()?;
        let mut files = Vec::new();
        match (&dir, tree) {
            // Not through links: `build` leads to a whole tree.
            (Some(dir), _) => files::walk(dir, files::DEEPEST, &mut |path, name| {
                files.extend(name.contains(".ko").then(|| path.to_path_buf()));
                Ok(())
            })?,
            (None, Some(tree)) => files.extend(in_order(tree)),
            (None, None) => {}
        }
        let link = dir.as_ref().map(|dir| dir.join("build")).filter(|build| build.join("Makefile").is_file());
        let tree = tree.map(Path::to_path_buf).or(link);
        let headers = match tree {
            Some(tree) if tree.join("Module.symvers").is_file() => Headers::Tree(tree),
            Some(tree) => Headers::Missing(format!(
                "{} has no Module.symvers: run `make modules` there, and the driver is built against it",
                tree.display()
            )),
            None => Headers::Missing(format!(
                "nothing is known to build it against: give --modules a directory such as /lib/modules/{release} with \
                 its link `build`, or --kernel the directory of the kernel's build"
            )),
        };
        Ok(Sources { headers, files })
    }
}

/// The directory of the modules of this release: `dir` itself, or below it.
fn modules_dir(dir: &Path, release: &str) -> Result<PathBuf> {
    let usage = |why: String| Error::Usage(format!("--modules {}: {why}", dir.display()));
    fs::read_dir(dir).map_err(|e| usage(format!("cannot read that directory: {e}")))?;
    let is_one = |dir: &Path| dir.join("kernel").is_dir() || dir.join("modules.order").is_file();
    let places = [dir.join(release), dir.join("lib/modules").join(release), dir.to_path_buf()];
    let found = places.into_iter().find(|place| is_one(place)).ok_or_else(|| {
        usage(format!(
            "no modules of {release} there; expected a directory such as /lib/modules/{release}, or one above it (`make \
             modules_install INSTALL_MOD_PATH=DIR` makes one)"
        ))
    })?;
    found.canonicalize().map_err(Error::io("cannot use the directory of modules", &found))
}

/// The modules that were built in a tree.
fn in_order(tree: &Path) -> Vec<PathBuf> {
    let order = fs::read_to_string(tree.join("modules.order")).unwrap_or_default();
    let built = order.lines().map(|line| tree.join(line).with_extension("ko"));
    built.filter(|path| path.is_file()).collect()
}

/// Whether a kernel has the drivers of the boot root built in: else the name of one that it lacks. Each is known by a
/// text that otherwise only the module has.
fn drivers(vmlinux: &[u8]) -> std::result::Result<(), &'static str> {
    for (driver, text) in [("NVMe (CONFIG_BLK_DEV_NVME)", "nvme.io_queue_depth"), ("ext4 (CONFIG_EXT4_FS)", "EXT4-fs ")]
    {
        if !vmlinux.windows(text.len()).any(|window| window == text.as_bytes()) {
            return Err(driver);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        (dir, store)
    }

    fn elf(class: u8, machine: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes[4] = class;
        bytes.resize(256, 0);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes
    }

    fn bzimage(flags: u16) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        bytes[0x202..0x208].copy_from_slice(b"HdrS\x0f\x02");
        bytes[0x236..0x238].copy_from_slice(&flags.to_le_bytes());
        bytes[0x20e..0x210].copy_from_slice(&0x100u16.to_le_bytes());
        bytes[0x300..0x30f].copy_from_slice(b"6.12.9-me (x@y)");
        bytes
    }

    #[test]
    fn symbols_are_those_of_the_build() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().canonicalize().unwrap();
        let boot = tree.join("arch/x86/boot");
        fs::create_dir_all(&boot).unwrap();
        fs::write(boot.join("bzImage"), "image").unwrap();
        assert_eq!(symbols(&tree), None);
        fs::write(tree.join("vmlinux"), b"\x7fELF and so on").unwrap();
        for path in [tree.clone(), tree.join("vmlinux"), boot.join("bzImage")] {
            assert_eq!(symbols(&path), Some(tree.join("vmlinux")), "{}", path.display());
        }
        assert_eq!(symbols(&tree.join("none")), None);
    }

    #[test]
    fn kernels_for_other_machines_are_named() {
        let arm64 = [&[0; 0x38][..], b"ARM\x64", &[0; 100]].concat();
        for (bytes, what) in [
            (arm64, "an Image for arm64"),
            (elf(2, 183), "an ELF file for arm64"),
            (elf(1, 3), "an ELF file for 32-bit x86"),
            (bzimage(0), "a bzImage for 32-bit x86"),
            (b"#!/bin/sh\necho no kernel\n".to_vec(), "a text file"),
            (Vec::new(), "an empty file"),
            (vec![0x1f, 0x8b, 8], "a file that gzip has packed"),
            (vec![0xff; 600], "no kernel (it begins with [ff, "),
        ] {
            let (dir, store) = store();
            let path = dir.path().join("image");
            fs::write(&path, &bytes).unwrap();
            let error = kernel(&store, &path, None).unwrap_err();
            let text = error.to_string();
            assert!(matches!(error, Error::Usage(_)), "{text}");
            assert!(text.contains(what) && text.contains("image") && text.contains("expected a bzImage"), "{text}");
        }
    }

    #[test]
    fn what_is_not_there_or_not_built_is_said() {
        let (dir, store) = store();
        let text = |path: &Path| kernel(&store, path, None).unwrap_err().to_string();
        assert!(text(&dir.path().join("gone")).contains("there is nothing at that path"));
        let empty = dir.path().join("empty");
        fs::create_dir(&empty).unwrap();
        assert!(text(&empty).contains("is no kernel tree"));
        fs::write(empty.join("Makefile"), "").unwrap();
        fs::write(empty.join("Kbuild"), "").unwrap();
        assert!(text(&empty).contains("nothing is built") && text(&empty).contains("make bzImage"));
        fs::write(empty.join("vmlinux"), [elf(2, 62), b"Linux version 6.12.9-me (x".to_vec()].concat()).unwrap();
        assert!(text(&empty).contains("without CONFIG_PVH"), "{}", text(&empty));
    }

    #[test]
    fn releases_are_read_from_both_forms() {
        assert_eq!(release(&bzimage(1), Form::BzImage).as_deref(), Some("6.12.9-me"));
        assert_eq!(release(b"..Linux version %s\0Linux version 6.1.2 (x", Form::Vmlinux).as_deref(), Some("6.1.2"));
        assert_eq!(release(b"Linux version 6/../../x ", Form::Vmlinux), None);
        assert_eq!(release(b"", Form::BzImage), None);
    }

    #[test]
    fn the_pvh_note_is_found() {
        let mut kernel = elf(2, 62);
        kernel[32..40].copy_from_slice(&64u64.to_le_bytes());
        kernel[54..56].copy_from_slice(&56u16.to_le_bytes());
        kernel[56..58].copy_from_slice(&1u16.to_le_bytes());
        kernel[64..68].copy_from_slice(&4u32.to_le_bytes());
        kernel[72..80].copy_from_slice(&160u64.to_le_bytes());
        kernel[96..104].copy_from_slice(&40u64.to_le_bytes());
        assert!(!enters_by_pvh(&kernel));
        // Another note before it.
        let note = |kind: u32| [4, 4, kind, u32::from_le_bytes(*b"Xen\0"), 0].map(u32::to_le_bytes).concat();
        kernel.splice(160..200, [note(5), note(18)].concat());
        assert!(enters_by_pvh(&kernel));
        kernel[96..104].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(!enters_by_pvh(&kernel));
    }

    #[test]
    fn modules_are_those_of_the_release() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("lib/modules/6.12.9");
        fs::create_dir_all(below.join("kernel/fs")).unwrap();
        fs::write(below.join("kernel/fs/overlay.ko.zst"), "").unwrap();
        std::os::unix::fs::symlink("/", below.join("source")).unwrap();
        for given in [dir.path(), &dir.path().join("lib/modules"), &below] {
            let found = Sources::find(None, Some(given), "6.12.9").unwrap();
            assert_eq!(found.files, [below.canonicalize().unwrap().join("kernel/fs/overlay.ko.zst")]);
            assert!(matches!(&found.headers, Headers::Missing(why) if why.contains("/lib/modules/6.12.9")));
        }
        let text = modules_dir(dir.path(), "6.1.1").unwrap_err().to_string();
        assert!(text.contains("no modules of 6.1.1") && text.contains("modules_install"), "{text}");
        assert!(modules_dir(Path::new("/nonexistent"), "6.1.1").is_err());
    }

    #[test]
    fn a_kernel_without_the_drivers_of_its_root_is_refused() {
        assert_eq!(drivers(b"..nvme.io_queue_depth\0..EXT4-fs (%s): .."), Ok(()));
        assert_eq!(drivers(b"..nvme.io_queue_depth\0.."), Err("ext4 (CONFIG_EXT4_FS)"));
        assert_eq!(drivers(b"..EXT4-fs (%s): .."), Err("NVMe (CONFIG_BLK_DEV_NVME)"));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, flip in 0usize..256, to: u8) {
            let mut kernel = elf(2, 62);
            kernel[32] = 64;
            kernel[54] = 56;
            kernel[56] = 3;
            kernel[flip] = to;
            enters_by_pvh(&kernel);
            enters_by_pvh(&bytes);
            let _ = Form::of(&bytes);
            release(&bytes, Form::BzImage);
            release(&bytes, Form::Vmlinux);
        }
    }
}
