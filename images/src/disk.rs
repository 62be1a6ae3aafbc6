// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images that a guest gets. QEMU opens what it is given with the rights of the host user, and an image can name
//! other files: those that it is above of (backing files), and those that have its data. So an image from elsewhere, or
//! one that a guest has written, would show a guest any file of the host. Images that name others are refused, QEMU
//! gets the format of each, and opens nothing else.

use crate::{Error, Result};
use rustix::fs::FileType;
use serde_json::json;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How QEMU is to open an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disk {
    /// The format; `raw` is the bytes as they are.
    pub(crate) format: &'static str,
    /// The driver below it: a file, or a device of the host.
    pub(crate) access: &'static str,
}

/// Bytes that are looked at: a sector has the header of every format.
const HEADER: usize = 512;
/// Extensions of a header are in its first cluster, which has 2 MiB at most.
const EXTENSIONS: u64 = 2 << 20;

/// Formats that QEMU has and that are neither raw nor qcow2, by how they begin. Most can name other files.
const OTHERS: [(usize, &[u8], &str); 11] = [
    (0, b"KDMV", "a VMDK image"),
    (0, b"COWD", "a VMDK image"),
    (0, b"# Disk DescriptorFile", "the descriptor of a VMDK image"),
    (0, b"#Disk DescriptorFile", "the descriptor of a VMDK image"),
    (64, &[0x7f, 0x10, 0xda, 0xbe], "a VDI image"),
    (0, b"vhdxfile", "a VHDX image"),
    (0, b"conectix", "a VHD image"),
    (0, b"QED\0", "a QED image"),
    (0, b"WithoutFreeSpace", "a Parallels image"),
    (0, b"WithouFreSpacExt", "a Parallels image"),
    (0, b"Bochs Virtual HD Image", "a Bochs image"),
];

/// Fields of a qcow2 header, by offset (docs/interop/qcow2.rst of QEMU). All are big-endian.
mod qcow2 {
    pub(super) const MAGIC: &[u8] = b"QFI\xfb";
    pub(super) const VERSION: usize = 4;
    pub(super) const BACKING_OFFSET: usize = 8;
    pub(super) const BACKING_LENGTH: usize = 16;
    pub(super) const ENCRYPTION: usize = 32;
    /// From version 3 on.
    pub(super) const INCOMPATIBLE: usize = 72;
    pub(super) const LENGTH: usize = 100;
    /// Length of a header of version 2.
    pub(super) const LENGTH_OF_2: u32 = 72;
    /// Incompatible features that keep all data in this file: not closed properly, known to be damaged, the type of
    /// compression, and extended entries of tables. The one between them is an external data file.
    pub(super) const KNOWN: u64 = 0b1_1011;
    pub(super) const DATA_FILE: u64 = 1 << 2;
    /// Extensions that name a data file, or that hold a key.
    pub(super) const NAME_OF_DATA_FILE: u32 = 0x4441_5441;
    pub(super) const FULL_ENCRYPTION: u32 = 0x0537_be77;
}

impl Disk {
    /// Looks at an image. `Err` says why no guest gets it.
    pub(crate) fn examine(path: &Path) -> Result<Disk> {
        let refused = |why: &str| Error::Usage(format!("the disk image {}: {why}", path.display()));
        let mut file = File::open(path).map_err(Error::io("cannot open the disk image", path))?;
        let metadata = file.metadata().map_err(Error::io("cannot examine the disk image", path))?;
        let access = match FileType::from_raw_mode(metadata.mode()) {
            FileType::RegularFile => "file",
            FileType::BlockDevice => "host_device",
            _ => return Err(refused("it is neither a file nor a block device")),
        };
        let mut begin = [0; HEADER];
        match file.read_exact(&mut begin) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(refused("that file is too short for a disk image"));
            }
            Err(e) => return Err(Error::io("cannot read the disk image", path)(e)),
        }
        let format = Disk::format(&begin, |at, into| {
            file.seek(SeekFrom::Start(at))?;
            file.read_exact(into)
        });
        format.map(|format| Disk { format, access }).map_err(|why| refused(&why))
    }

    /// The format by the first bytes; `more` reads at an offset.
    fn format(
        begin: &[u8; HEADER],
        more: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> std::result::Result<&'static str, String> {
        if begin.starts_with(qcow2::MAGIC) {
            return Disk::check_qcow2(begin, more).map(|()| "qcow2");
        }
        match OTHERS.iter().find(|(at, magic, _)| begin[*at..].starts_with(magic)) {
            Some((.., name)) => Err(format!(
                "it is {name}; expected raw or qcow2: convert it, if you trust it, with `qemu-img convert -O qcow2`"
            )),
            // Whatever is in it: QEMU does not look.
            None => Ok("raw"),
        }
    }

    /// Whether a qcow2 image has all of its data itself, and in plain.
    fn check_qcow2(
        begin: &[u8; HEADER],
        mut more: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> std::result::Result<(), String> {
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|n| begin[at + n]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|n| begin[at + n]));
        let alone = "`qemu-img convert -O qcow2`, if you trust it, makes an image that has all of its data itself";
        let version = u32_at(qcow2::VERSION);
        if !(2..=3).contains(&version) {
            return Err(format!("it is qcow of version {version}: expected 2 or 3"));
        }
        if u64_at(qcow2::BACKING_OFFSET) != 0 || u32_at(qcow2::BACKING_LENGTH) != 0 {
            return Err(format!("it has a backing file, which a guest would read whatever file that is; {alone}"));
        }
        let encrypted = "it is encrypted, and there is no key for it; expected an image in plain";
        if u32_at(qcow2::ENCRYPTION) != 0 {
            return Err(encrypted.into());
        }
        let mut at = u64::from(qcow2::LENGTH_OF_2);
        if version == 3 {
            let features = u64_at(qcow2::INCOMPATIBLE);
            if features & qcow2::DATA_FILE != 0 {
                return Err(format!("its data is in another file, which a guest would read and write; {alone}"));
            }
            if features & !qcow2::KNOWN != 0 {
                return Err(format!("it has features that are unknown here ({features:#x}); {alone}"));
            }
            at = u64::from(u32_at(qcow2::LENGTH));
        }
        loop {
            let mut head = [0; 8];
            if at > EXTENSIONS || more(at, &mut head).is_err() {
                return Err("its header has no end".into());
            }
            let [kind, length] = [0, 4].map(|n| u32::from_be_bytes(std::array::from_fn(|byte| head[n + byte])));
            match kind {
                0 => return Ok(()),
                qcow2::NAME_OF_DATA_FILE => return Err(format!("it names a file for its data; {alone}")),
                qcow2::FULL_ENCRYPTION => return Err(encrypted.into()),
                _ => at += 8 + u64::from(length).next_multiple_of(8),
            }
        }
    }

    /// What QEMU is given for `-drive file=`: the format, which it need not guess, and that nothing is below. So an
    /// image that has got a backing file since it was looked at reads zeros instead.
    pub(crate) fn file(self, path: &Path) -> Result<String> {
        let name = path.to_str().ok_or_else(|| {
            Error::Usage(format!("the disk image {}: expected a path that is UTF-8, as QEMU needs it", path.display()))
        })?;
        let below = json!({ "driver": self.access, "filename": name });
        let image = match self.format {
            "qcow2" => json!({ "driver": "qcow2", "backing": null, "file": below }),
            format => json!({ "driver": format, "file": below }),
        };
        Ok(format!("json:{image}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A header with these fields, and what is behind it.
    fn header(version: u32, fields: &[(usize, u64)], extensions: &[(u32, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; 4096];
        image[..4].copy_from_slice(qcow2::MAGIC);
        image[4..8].copy_from_slice(&version.to_be_bytes());
        image[20..24].copy_from_slice(&16u32.to_be_bytes());
        let length = if version == 3 { 112 } else { 72 };
        image[100..104].copy_from_slice(&u32::to_be_bytes(if version == 3 { 112 } else { 0 }));
        for (at, value) in fields {
            let bytes = value.to_be_bytes();
            let bytes = if [16, 32, 100].contains(at) { &bytes[4..] } else { &bytes[..] };
            image[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        let mut at = length;
        for (kind, content) in extensions {
            image[at..at + 4].copy_from_slice(&kind.to_be_bytes());
            image[at + 4..at + 8].copy_from_slice(&(content.len() as u32).to_be_bytes());
            image[at + 8..at + 8 + content.len()].copy_from_slice(content);
            at += 8 + content.len().next_multiple_of(8);
        }
        image
    }

    fn examined(image: &[u8]) -> std::result::Result<&'static str, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), image).unwrap();
        Disk::examine(file.path()).map(|disk| disk.format).map_err(|e| e.to_string())
    }

    #[test]
    fn an_image_that_has_all_of_its_data_is_a_guests() {
        const NAMES: (u32, &[u8]) = (0x6803_f857, &[7; 384]);
        assert_eq!(examined(&header(2, &[], &[])), Ok("qcow2"));
        assert_eq!(examined(&header(3, &[], &[NAMES])), Ok("qcow2"));
        // Not closed properly, compressed by zstd.
        assert_eq!(examined(&header(3, &[(72, 0b01001)], &[(0x2385_2875, &[1; 24]), NAMES])), Ok("qcow2"));
        assert_eq!(examined(&[0; 600]), Ok("raw"));
        assert_eq!(examined(&[b"LUKS\xba\xbe", &[0; 600][..]].concat()), Ok("raw"), "its bytes as they are");
    }

    /// The claim: such an image reads files of the host.
    #[test]
    fn an_image_that_names_another_file_is_refused() {
        let (secret, data) = (b"/etc/shadow".as_slice(), b"/root/.ssh/id".as_slice());
        for (image, why) in [
            (header(2, &[(8, 80), (16, 11)], &[(0xe279_2aca, b"raw")]), "it has a backing file"),
            (header(3, &[(8, 0x210), (16, 21)], &[(0xe279_2aca, b"raw")]), "it has a backing file"),
            // An empty name, and a name without a place.
            (header(3, &[(8, 0x210)], &[]), "it has a backing file"),
            (header(3, &[(16, 21)], &[(7, secret)]), "it has a backing file"),
            (header(3, &[(72, 4)], &[(0x4441_5441, data)]), "its data is in another file"),
            (header(3, &[(72, 4)], &[]), "its data is in another file"),
            (header(3, &[], &[(0x4441_5441, data)]), "it names a file for its data"),
            (header(2, &[], &[(1, b"x"), (0x4441_5441, data)]), "it names a file for its data"),
            (header(3, &[(32, 2)], &[]), "it is encrypted"),
            (header(3, &[], &[(0x0537_be77, &[0; 16])]), "it is encrypted"),
            (header(3, &[(72, 1 << 5)], &[]), "features that are unknown here (0x20)"),
            (header(1, &[], &[]), "qcow of version 1"),
            (header(4, &[], &[]), "qcow of version 4"),
            (header(3, &[(100, 0xffff_ffff)], &[]), "its header has no end"),
            (header(3, &[], &[(1, &[0; 3000][..]); 1])[..600].to_vec(), "its header has no end"),
        ] {
            let text = examined(&image).unwrap_err();
            assert!(text.contains(why) && text.contains("the disk image"), "{text}: expected {why:?}");
        }
    }

    #[test]
    fn other_formats_are_refused_by_name() {
        for (at, magic, name) in OTHERS {
            let mut image = vec![0; 600];
            image[at..at + magic.len()].copy_from_slice(magic);
            let text = examined(&image).unwrap_err();
            assert!(text.contains(name) && text.contains("expected raw or qcow2"), "{text}");
        }
        let text = Disk::examine(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(text.contains("neither a file nor a block device"), "{text}");
        assert!(examined(b"short").unwrap_err().contains("too short"));
    }

    #[test]
    fn the_format_is_named_and_nothing_is_below() {
        let disk = |format| Disk { format, access: "file" };
        let path = Path::new("/a,b:\"c");
        assert_eq!(
            disk("qcow2").file(path).unwrap(),
            r#"json:{"backing":null,"driver":"qcow2","file":{"driver":"file","filename":"/a,b:\"c"}}"#
        );
        assert_eq!(
            disk("raw").file(path).unwrap(),
            r#"json:{"driver":"raw","file":{"driver":"file","filename":"/a,b:\"c"}}"#
        );
    }
}
