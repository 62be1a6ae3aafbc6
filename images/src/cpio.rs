// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a "newc" cpio archive, the format of an initramfs.

use std::collections::BTreeSet;

/// An archive under construction. Everything belongs to root; order is the caller's.
#[derive(Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
    dirs: BTreeSet<String>,
}

const DIR: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
const CHAR: u32 = 0o020_000;

impl Cpio {
    /// A directory and those above it. Asking twice writes it once.
    pub(crate) fn dir(&mut self, path: &str) {
        let path = path.trim_matches('/');
        if path.is_empty() || self.dirs.contains(path) {
            return;
        }
        if let Some((above, _)) = path.rsplit_once('/') {
            self.dir(above);
        }
        self.dirs.insert(path.to_owned());
        self.entry(path, DIR | 0o755, (0, 0), &[]);
    }

    /// A regular file; makes the directories above it.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.above(path);
        self.entry(path, FILE | mode, (0, 0), content);
    }

    /// A symbolic link; makes the directories above it.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.above(path);
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// A character device.
    pub(crate) fn char_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) {
        self.above(path);
        self.entry(path, CHAR | mode, (major, minor), &[]);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.inode = u32::MAX;
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn above(&mut self, path: &str) {
        if let Some((above, _)) = path.trim_matches('/').rsplit_once('/') {
            self.dir(above);
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let path = path.trim_matches('/');
        self.inode = self.inode.wrapping_add(1);
        let links = if mode & DIR == DIR && mode & FILE != FILE { 2 } else { 1 };
        // No time stamps: equal content must give an equal archive.
        let (size, name) = (content.len() as u32, path.len() as u32 + 1);
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the archive back by the format's own rules: (path, mode, content).
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let total = bytes.len();
        let mut out = Vec::new();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |i: usize| {
                u32::from_str_radix(std::str::from_utf8(&bytes[6 + 8 * i..14 + 8 * i]).unwrap(), 16).unwrap()
            };
            let (mode, size, name) = (field(1), field(6) as usize, field(11) as usize);
            let path = String::from_utf8(bytes[110..110 + name - 1].to_vec()).unwrap();
            let at = (110 + name).next_multiple_of(4);
            let content = bytes[at..at + size].to_vec();
            bytes = &bytes[(at + size).next_multiple_of(4)..];
            assert_eq!((total - bytes.len()) % 4, 0);
            if path == "TRAILER!!!" {
                assert!(bytes.is_empty());
                return out;
            }
            out.push((path, mode, content));
        }
    }

    #[test]
    fn parents_come_first_and_once_and_content_survives() {
        let mut c = Cpio::default();
        c.file("/bin/a", 0o755, b"12345");
        c.file("bin/b", 0o600, b"");
        c.symlink("lib/x/link", "../a");
        c.char_device("dev/console", 0o600, 5, 1);
        let got = read(&c.finish());
        let paths: Vec<_> = got.iter().map(|e| e.0.as_str()).collect();
        assert_eq!(paths, ["bin", "bin/a", "bin/b", "lib", "lib/x", "lib/x/link", "dev", "dev/console"]);
        assert_eq!(got[1], ("bin/a".into(), 0o100_755, b"12345".to_vec()));
        assert_eq!(got[5], ("lib/x/link".into(), 0o120_777, b"../a".to_vec()));
        assert_eq!(got[7].1, 0o020_600);
    }
}
