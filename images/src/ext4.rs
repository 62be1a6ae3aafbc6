// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes an ext4 file system, the root of a guest: read-only, without journal, checksums or times, every file in one
//! piece. Debian's cloud kernels have ext4 built in, so that a guest mounts it without help from an initramfs. Offsets
//! of fields are those of the kernel's Documentation/filesystems/ext4.

use crate::{Error, Result};
use std::borrow::Cow;
use std::collections::BTreeMap;

const BLOCK: usize = 4096;
const BLOCKS_PER_GROUP: usize = 8 * BLOCK;
const INODE: usize = 256;
const DESCRIPTOR: usize = 32;
/// The descriptors of all groups have one block.
const MAX_GROUPS: usize = BLOCK / DESCRIPTOR;
/// Blocks of an extent, of which an inode has up to four.
const MAX_EXTENT: usize = 1 << 15;
const MAX_FILE: usize = 4 * MAX_EXTENT * BLOCK;
const ROOT_INODE: usize = 2;
/// The inodes before it are reserved; by custom it is that of `lost+found`.
const FIRST_INODE: usize = 11;
/// A link this short is in its inode.
const MAX_FAST_LINK: usize = 59;
const MAX_NAME: usize = 255;

const DIR: u16 = 0o040_000;
const FILE: u16 = 0o100_000;
const LINK: u16 = 0o120_000;
const CHAR: u16 = 0o020_000;

/// A file system under construction. Everything belongs to root. Equal calls give equal bytes.
pub(crate) struct Ext4<'a> {
    /// First the root, then `lost+found`.
    nodes: Vec<Node<'a>>,
}

struct Node<'a> {
    mode: u16,
    device: u32,
    content: Cow<'a, [u8]>,
    /// Of a directory: entries by name, as places in `nodes`.
    entries: BTreeMap<String, usize>,
    above: usize,
}

impl<'a> Ext4<'a> {
    pub(crate) fn new() -> Ext4<'a> {
        let mut image = Ext4 { nodes: vec![Node::new(DIR | 0o755, Cow::Borrowed(&[]))] };
        image.put("lost+found", Node::new(DIR | 0o700, Cow::Borrowed(&[])));
        image
    }

    /// A directory and those above it. Asking twice makes it once.
    pub(crate) fn dir(&mut self, path: &str) {
        self.dir_at(path);
    }

    /// A regular file; makes the directories above it.
    pub(crate) fn file(&mut self, path: &str, mode: u16, content: impl Into<Cow<'a, [u8]>>) {
        self.put(path, Node::new(FILE | mode, content.into()));
    }

    /// A symbolic link; makes the directories above it.
    pub(crate) fn symlink(&mut self, path: &str, target: &str) {
        self.put(path, Node::new(LINK | 0o777, Cow::Owned(target.as_bytes().to_vec())));
    }

    /// A character device; makes the directories above it.
    pub(crate) fn char_device(&mut self, path: &str, mode: u16, major: u8, minor: u8) {
        let device = u32::from(major) << 8 | u32::from(minor);
        self.put(path, Node { device, ..Node::new(CHAR | mode, Cow::Borrowed(&[])) });
    }

    /// The place of a directory, made where it is missing.
    fn dir_at(&mut self, path: &str) -> usize {
        let mut at = 0;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = match self.nodes[at].entries.get(name) {
                Some(&below) => below,
                None => self.add(at, name, Node::new(DIR | 0o755, Cow::Borrowed(&[]))),
            };
        }
        at
    }

    fn put(&mut self, path: &str, node: Node<'a>) {
        let path = path.trim_matches('/');
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let above = self.dir_at(above);
        // What is there already is replaced, as in an archive that is unpacked.
        match self.nodes[above].entries.get(name) {
            Some(&old) => self.nodes[old] = Node { above, ..node },
            None => {
                self.add(above, name, node);
            }
        }
    }

    fn add(&mut self, above: usize, name: &str, node: Node<'a>) -> usize {
        let place = self.nodes.len();
        self.nodes.push(Node { above, ..node });
        self.nodes[above].entries.insert(name.to_owned(), place);
        place
    }

    /// The finished file system. Fails for what one of this kind cannot hold.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        if let Some(node) = self.nodes.iter().find(|node| !node.is_dir() && !node.entries.is_empty()) {
            let names: Vec<&str> = node.entries.keys().map(String::as_str).collect();
            return Err(Error::Failed(format!("{} for a guest would be below a file or a link", names.join(", "))));
        }
        let contents: Vec<Cow<'_, [u8]>> = self.nodes.iter().map(|node| self.content(node)).collect::<Result<_>>()?;
        if let Some(large) = contents.iter().find(|content| content.len() > MAX_FILE) {
            let is = large.len();
            return Err(Error::Failed(format!("a file of {is} bytes for a guest; at most {MAX_FILE} are possible")));
        }
        let layout = Layout::of(contents.iter().map(|content| content.len().div_ceil(BLOCK)).sum(), self.nodes.len())?;
        let mut bytes = vec![0; layout.blocks * BLOCK];
        let mut next = layout.data;
        for (place, (node, content)) in self.nodes.iter().zip(&contents).enumerate() {
            bytes[next * BLOCK..][..content.len()].copy_from_slice(content);
            let inode = layout.inode(inode_of(place));
            self.inode(node, content, next, Bytes(&mut bytes[inode..][..INODE]));
            next += content.len().div_ceil(BLOCK);
        }
        layout.bitmaps(&mut bytes, FIRST_INODE - 2 + self.nodes.len());
        let directories = self.directories_by_group(&layout);
        layout.descriptors(&mut bytes, &directories, FIRST_INODE - 2 + self.nodes.len());
        layout.superblock(&mut bytes, FIRST_INODE - 2 + self.nodes.len());
        Ok(bytes)
    }

    /// What the data blocks of a node have.
    fn content<'b>(&'b self, node: &'b Node<'a>) -> Result<Cow<'b, [u8]>> {
        if node.is_dir() {
            self.directory(node).map(Cow::Owned)
        } else if node.fast_link().is_some() {
            Ok(Cow::Borrowed(&[]))
        } else {
            Ok(Cow::Borrowed(&node.content))
        }
    }

    /// The blocks of a directory: entries one behind the other, none across the end of a block, where the last one has
    /// what is left.
    fn directory(&self, node: &Node<'_>) -> Result<Vec<u8>> {
        let own = self.nodes.iter().position(|other| std::ptr::eq(other, node)).unwrap_or(0);
        let above = [(".", own), ("..", node.above)];
        let entries = node.entries.iter().map(|(name, &place)| (name.as_str(), place));
        let mut bytes: Vec<u8> = Vec::new();
        let mut last = 0;
        for (name, place) in above.into_iter().chain(entries) {
            if name.len() > MAX_NAME {
                return Err(Error::Failed(format!("the name {name:?} for a guest has more than {MAX_NAME} bytes")));
            }
            let length = (8 + name.len()).next_multiple_of(4);
            let left = bytes.len().next_multiple_of(BLOCK) - bytes.len();
            if left < length && left > 0 {
                extend_last(&mut bytes, last);
            }
            last = bytes.len();
            let kind = match self.nodes[place].mode & 0o170_000 {
                DIR => 2,
                CHAR => 3,
                LINK => 7,
                _ => 1,
            };
            bytes.extend_from_slice(&(inode_of(place) as u32).to_le_bytes());
            bytes.extend_from_slice(&(length as u16).to_le_bytes());
            bytes.extend_from_slice(&[name.len() as u8, kind]);
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(last + length, 0);
        }
        extend_last(&mut bytes, last);
        Ok(bytes)
    }

    fn inode(&self, node: &Node<'_>, content: &[u8], first: usize, mut to: Bytes<'_>) {
        let below = node.entries.values().filter(|&&place| self.nodes[place].is_dir()).count();
        let links = if node.is_dir() { 2 + below } else { 1 };
        let blocks = content.len().div_ceil(BLOCK);
        let size = node.fast_link().map_or(content.len(), <[u8]>::len);
        to.u16(0x00, node.mode);
        to.u32(0x04, size as u32);
        to.u16(0x1a, links as u16);
        to.u32(0x1c, (blocks * BLOCK / 512) as u32);
        // i_extra_isize: the fields beyond the first 128 bytes that are meant.
        to.u16(0x80, 32);
        if let Some(target) = node.fast_link() {
            to.0[0x28..][..target.len()].copy_from_slice(target);
        } else if node.mode & 0o170_000 == CHAR {
            to.u32(0x28, node.device);
        } else {
            // EXT4_EXTENTS_FL, and the root of a tree of extents without inner nodes.
            to.u32(0x20, 0x8_0000);
            to.u16(0x28, 0xf30a);
            to.u16(0x2a, blocks.div_ceil(MAX_EXTENT) as u16);
            to.u16(0x2c, 4);
            for (n, start) in (0..blocks).step_by(MAX_EXTENT).enumerate() {
                let at = 0x34 + 12 * n;
                to.u32(at, start as u32);
                to.u16(at + 4, (blocks - start).min(MAX_EXTENT) as u16);
                to.u32(at + 8, (first + start) as u32);
            }
        }
    }

    fn directories_by_group(&self, layout: &Layout) -> Vec<usize> {
        let mut directories = vec![0; layout.groups];
        for (place, _) in self.nodes.iter().enumerate().filter(|(_, node)| node.is_dir()) {
            directories[(inode_of(place) - 1) / layout.inodes_per_group] += 1;
        }
        directories
    }
}

impl<'a> Node<'a> {
    fn new(mode: u16, content: Cow<'a, [u8]>) -> Node<'a> {
        Node { mode, device: 0, content, entries: BTreeMap::new(), above: 0 }
    }

    fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == DIR
    }

    /// The target of a link that is in its inode.
    fn fast_link(&self) -> Option<&[u8]> {
        (self.mode & 0o170_000 == LINK && self.content.len() <= MAX_FAST_LINK).then_some(&self.content)
    }
}

fn inode_of(place: usize) -> usize {
    if place == 0 { ROOT_INODE } else { FIRST_INODE - 1 + place }
}

/// Gives the directory entry at `last` the rest of its block.
fn extend_last(bytes: &mut Vec<u8>, last: usize) {
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    let length = (bytes.len() - last) as u16;
    Bytes(bytes).u16(last + 4, length);
}

/// Where everything is, in blocks: superblock, descriptors, block bitmaps, inode bitmaps and inode tables of all
/// groups, then data. That a group's tables are not in it is the feature flex_bg.
struct Layout {
    groups: usize,
    inodes_per_group: usize,
    tables: usize,
    data: usize,
    blocks: usize,
}

impl Layout {
    fn of(data_blocks: usize, nodes: usize) -> Result<Layout> {
        for groups in 1..=MAX_GROUPS {
            let inodes_per_group = (FIRST_INODE + nodes).div_ceil(groups).next_multiple_of(BLOCK / INODE);
            let tables = 2 + 2 * groups;
            let data = tables + groups * inodes_per_group * INODE / BLOCK;
            let blocks = data + data_blocks;
            // As many groups as its blocks make.
            if blocks.div_ceil(BLOCKS_PER_GROUP) == groups && inodes_per_group <= 8 * BLOCK {
                return Ok(Layout { groups, inodes_per_group, tables, data, blocks });
            }
        }
        Err(Error::Failed(format!("{data_blocks} blocks of {BLOCK} bytes are too many for a guest's file system")))
    }

    /// Byte offset of an inode.
    fn inode(&self, number: usize) -> usize {
        self.tables * BLOCK + (number - 1) * INODE
    }

    /// Used inodes of a group, of which `used` are in the whole: they are the first ones.
    fn group_inodes(&self, group: usize, used: usize) -> usize {
        used.saturating_sub(group * self.inodes_per_group).min(self.inodes_per_group)
    }

    fn bitmaps(&self, bytes: &mut [u8], used: usize) {
        for group in 0..self.groups {
            // Every block is used, and bits without a block or inode are set.
            bytes[(2 + group) * BLOCK..][..BLOCK].fill(0xff);
            let inodes = &mut bytes[(2 + self.groups + group) * BLOCK..][..BLOCK];
            inodes.fill(0xff);
            for free in self.group_inodes(group, used)..self.inodes_per_group {
                inodes[free / 8] &= !(1 << (free % 8));
            }
        }
    }

    fn descriptors(&self, bytes: &mut [u8], directories: &[usize], used: usize) {
        let table = self.inodes_per_group * INODE / BLOCK;
        for (group, &directories) in directories.iter().enumerate() {
            let mut to = Bytes(&mut bytes[BLOCK + group * DESCRIPTOR..][..DESCRIPTOR]);
            to.u32(0x00, (2 + group) as u32);
            to.u32(0x04, (2 + self.groups + group) as u32);
            to.u32(0x08, (self.tables + group * table) as u32);
            to.u16(0x0e, (self.inodes_per_group - self.group_inodes(group, used)) as u16);
            to.u16(0x10, directories as u16);
        }
    }

    fn superblock(&self, bytes: &mut [u8], used: usize) {
        let inodes = self.groups * self.inodes_per_group;
        let mut to = Bytes(&mut bytes[1024..2048]);
        to.u32(0x00, inodes as u32);
        to.u32(0x04, self.blocks as u32);
        to.u32(0x10, (inodes - used) as u32);
        // Blocks, and clusters of one block, of 2^(10 + 2) bytes.
        to.u32(0x18, 2);
        to.u32(0x1c, 2);
        to.u32(0x20, BLOCKS_PER_GROUP as u32);
        to.u32(0x24, BLOCKS_PER_GROUP as u32);
        to.u32(0x28, self.inodes_per_group as u32);
        // Never to be checked for its age.
        to.u16(0x36, u16::MAX);
        to.u16(0x38, 0xef53);
        // Clean; errors are ignored, as there is nothing to save; revision 1.
        to.u16(0x3a, 1);
        to.u16(0x3c, 1);
        to.u32(0x4c, 1);
        to.u32(0x54, FIRST_INODE as u32);
        to.u16(0x58, INODE as u16);
        // sparse_super2, with no copy of the superblock; filetype, extents, flex_bg; large_file, extra_isize.
        to.u32(0x5c, 0x200);
        to.u32(0x60, 0x2 | 0x40 | 0x200);
        to.u32(0x64, 0x2 | 0x40);
        to.0[0x68..0x78].copy_from_slice(b"telegraphos-root");
        to.u16(0x15c, 32);
        to.u16(0x15e, 32);
        // Names are bytes with sign, which matters to an index of names only.
        to.u32(0x160, 1);
    }
}

/// Little-endian fields at offsets.
struct Bytes<'a>(&'a mut [u8]);

impl Bytes<'_> {
    fn u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u16_at(bytes: &[u8], at: usize) -> usize {
        usize::from(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()))
    }

    fn u32_at(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    /// One thing in a file system: mode, links, content (of a device its numbers).
    type Entry = (u16, usize, Vec<u8>);

    /// Reads a file system by the format's own rules, from the superblock down.
    struct Reader<'a> {
        bytes: &'a [u8],
        inodes_per_group: usize,
    }

    impl Reader<'_> {
        fn open(bytes: &[u8]) -> Reader<'_> {
            let sb = &bytes[1024..2048];
            assert_eq!(u16_at(sb, 0x38), 0xef53);
            assert_eq!(u32_at(sb, 4) * BLOCK, bytes.len());
            Reader { bytes, inodes_per_group: u32_at(sb, 0x28) }
        }

        fn inode(&self, number: usize) -> &[u8] {
            let (group, index) = ((number - 1) / self.inodes_per_group, (number - 1) % self.inodes_per_group);
            let descriptor = &self.bytes[BLOCK + group * DESCRIPTOR..];
            let bitmap = &self.bytes[u32_at(descriptor, 4) * BLOCK..];
            assert_ne!(bitmap[index / 8] & 1 << (index % 8), 0, "inode {number} is used");
            &self.bytes[u32_at(descriptor, 8) * BLOCK + index * INODE..][..INODE]
        }

        fn content(&self, inode: &[u8]) -> Vec<u8> {
            let size = u32_at(inode, 4);
            if u32_at(inode, 0x20) & 0x8_0000 == 0 {
                return inode[0x28..][..size].to_vec();
            }
            assert_eq!((u16_at(inode, 0x28), u16_at(inode, 0x2e)), (0xf30a, 0));
            let mut content = Vec::new();
            for n in 0..u16_at(inode, 0x2a) {
                let extent = &inode[0x34 + 12 * n..];
                assert_eq!(u32_at(extent, 0) * BLOCK, content.len());
                content.extend_from_slice(&self.bytes[u32_at(extent, 8) * BLOCK..][..u16_at(extent, 4) * BLOCK]);
            }
            assert_eq!(content.len(), size.next_multiple_of(BLOCK));
            assert!(content[size..].iter().all(|&byte| byte == 0));
            content.truncate(size);
            content
        }

        fn tree(&self, number: usize, above: usize, path: &str, into: &mut BTreeMap<String, Entry>) {
            let inode = self.inode(number);
            let mode = u16_at(inode, 0) as u16;
            let content = match mode & 0o170_000 {
                CHAR => inode[0x28..0x2c].to_vec(),
                _ => self.content(inode),
            };
            if mode & 0o170_000 == DIR {
                let mut at = 0;
                let mut names = Vec::new();
                while at < content.len() {
                    let (inode, length) = (u32_at(&content, at), u16_at(&content, at + 4));
                    let name = std::str::from_utf8(&content[at + 8..][..usize::from(content[at + 6])]).unwrap();
                    assert!(length >= 8 + name.len() && at / BLOCK == (at + length - 1) / BLOCK, "{name}");
                    names.push((name.to_owned(), inode));
                    at += length;
                }
                assert_eq!(names[..2], [(".".to_owned(), number), ("..".to_owned(), above)], "in {path}");
                for (name, inode) in &names[2..] {
                    self.tree(*inode, number, &format!("{path}/{name}"), into);
                }
            }
            let content = if mode & 0o170_000 == DIR { Vec::new() } else { content };
            into.insert(path.to_owned(), (mode, u16_at(inode, 0x1a), content));
        }
    }

    fn read(bytes: &[u8]) -> BTreeMap<String, Entry> {
        let mut all = BTreeMap::new();
        Reader::open(bytes).tree(ROOT_INODE, ROOT_INODE, "", &mut all);
        all
    }

    #[test]
    fn what_was_put_in_is_there() {
        let mut image = Ext4::new();
        let large: Vec<u8> = (0..3 * BLOCK + 5).map(|n| (n % 251) as u8).collect();
        image.file("/bin/a", 0o755, b"12345".as_slice());
        image.file("bin/empty", 0o600, Vec::new());
        image.file("bin/large", 0o644, &large);
        image.symlink("lib/x/link", "../a");
        image.symlink("lib/x/long", &"y/".repeat(100));
        image.char_device("dev/console", 0o600, 5, 1);
        image.dir("bin");
        image.file("bin/a", 0o700, b"6".as_slice());
        let got = read(&image.finish().unwrap());
        let paths: Vec<_> = got.keys().map(String::as_str).collect();
        let wanted =
            "|/bin|/bin/a|/bin/empty|/bin/large|/dev|/dev/console|/lib|/lib/x|/lib/x/link|/lib/x/long|/lost+found";
        assert_eq!(paths.join("|"), wanted);
        assert_eq!(got["/bin/a"], (FILE | 0o700, 1, b"6".to_vec()));
        assert_eq!(got["/bin/empty"].2, b"");
        assert_eq!(got["/bin/large"].2, large);
        assert_eq!(got["/lib/x/link"].2, b"../a");
        assert_eq!(got["/lib/x/long"].2, "y/".repeat(100).into_bytes());
        assert_eq!(got["/dev/console"], (CHAR | 0o600, 1, vec![1, 5, 0, 0]));
        // The root has four below it, lib one.
        assert_eq!((got[""].1, got["/lib"].1, got["/bin"].1), (6, 3, 2));
    }

    #[test]
    fn large_directories_and_several_groups_are_readable() {
        let mut image = Ext4::new();
        for n in 0..1000 {
            image.symlink(&format!("bin/{}{n}", "long-name-".repeat(n % 20)), "busybox");
        }
        // More blocks than a group has, in two extents.
        let huge = vec![7; (MAX_EXTENT + 1) * BLOCK];
        image.file("huge", 0o644, &huge);
        let bytes = image.finish().unwrap();
        let got = read(&bytes);
        assert_eq!(got.keys().filter(|path| path.starts_with("/bin/")).count(), 1000);
        assert_eq!(got["/huge"].2.len(), huge.len());
        let free = |group: usize| u16_at(&bytes, BLOCK + group * DESCRIPTOR + 0x0e);
        assert_eq!(free(0) + free(1), u32_at(&bytes, 1024 + 0x10));
    }

    #[test]
    fn equal_content_gives_equal_bytes() {
        let make = || {
            let mut image = Ext4::new();
            image.file("a/b", 0o644, b"c".as_slice());
            image.finish().unwrap()
        };
        assert!(make() == make());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut image = Ext4::new();
        image.file(&"n".repeat(MAX_NAME + 1), 0o644, b"".as_slice());
        assert!(image.finish().unwrap_err().to_string().contains("more than 255 bytes"));
        let mut image = Ext4::new();
        image.symlink("lib", "usr/lib");
        image.file("lib/a", 0o644, b"".as_slice());
        assert!(image.finish().unwrap_err().to_string().contains("a for a guest would be below"));
        assert!(Layout::of(MAX_GROUPS * BLOCKS_PER_GROUP, 1).is_err());
        assert!(Layout::of(MAX_GROUPS * BLOCKS_PER_GROUP / 2, 1).is_ok());
    }

    /// e2fsprogs is on every Debian but the slimmest; the guests mount what it checks here.
    #[test]
    fn e2fsck_finds_no_fault() {
        let mut image = Ext4::new();
        image.file("bin/a", 0o755, vec![1; 100_000]);
        image.symlink("b", "bin/a");
        image.symlink("c", &"d".repeat(100));
        image.char_device("dev/console", 0o600, 5, 1);
        image.file("huge", 0o644, vec![7; (MAX_EXTENT + 1) * BLOCK]);
        for n in 0..500 {
            image.symlink(&format!("bin/applet{n}"), "a");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), image.finish().unwrap()).unwrap();
        let Some(program) = ["/usr/sbin/e2fsck", "/sbin/e2fsck"].into_iter().find(|p| std::path::Path::new(p).exists())
        else {
            eprintln!("e2fsck is not installed: the kernels of the system tests check the file system alone");
            return;
        };
        let out = std::process::Command::new(program).args(["-f", "-n"]).arg(file.path()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{text}");
    }
}
