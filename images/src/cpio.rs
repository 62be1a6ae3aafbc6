// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes an initramfs: a cpio archive of the kernel's format (`newc`, Documentation/driver-api/early-userspace), whose
//! owners and devices need no root here.

/// An archive in the making. Names are relative to the root; a directory precedes what is in it.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const CHAR_DEVICE: u32 = 0o020_000;
const END: &str = "TRAILER!!!";

impl Cpio {
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub(crate) fn char_device(&mut self, name: &str, mode: u32, major: u32, minor: u32) {
        self.entry(name, CHAR_DEVICE | mode, (major, minor), &[]);
    }

    /// At most 4 GiB.
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name, FILE | mode, (0, 0), content);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(END, 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        // Number, mode, owner, group, links, time, size, device of the file system, device, name, checksum.
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_has_the_kernels_layout() {
        let mut cpio = Cpio::default();
        cpio.directory("dev");
        cpio.char_device("dev/console", 0o600, 5, 1);
        cpio.file("init", 0o755, b"hello");
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert_eq!(text.matches("070701").count(), 4);
        let console = text.find("dev/console").unwrap();
        let header = &text[console - 110..console];
        assert_eq!(&header[14..22], "00002180", "a character device, 0600");
        assert_eq!((&header[78..86], &header[86..94]), ("00000005", "00000001"));
        let init = text.rfind("init\0").unwrap();
        assert_eq!(&text[init - 110 + 54..init - 110 + 62], "00000005");
        // 110 + 5 bytes, to a multiple of 4.
        assert_eq!(&text[init + 6..init + 11], "hello");
    }
}
