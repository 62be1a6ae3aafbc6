// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a guest has packed (tar), unpacked beneath a directory of the host.
//!
//! The archive is hostile input: the guest may have written it by hand. Every name is resolved beneath the descriptor
//! of the directory, without following a link (`openat2(2)`: `RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`), at each entry
//! anew; so a link of an earlier archive, or of another process meanwhile, leads nowhere. Links that are made lead
//! nowhere outside either: programs that follow them later stay in the copy.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{Archive, EntryType, Header, PaxExtensions};

/// Bounds on what one archive may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of the archive, headers included.
    pub(super) bytes: u64,
    /// Headers, those that only prolong a name included.
    pub(super) entries: u64,
    /// Directories between the copy and a file.
    pub(super) depth: usize,
}

impl Limits {
    /// Those of `telegraphos cp`.
    pub(super) fn of(bytes: u64) -> Limits {
        Limits { bytes, entries: 4_000_000, depth: 128 }
    }
}

/// The kernel's limits on a path and on a name in it.
const PATH: usize = 4096;
const NAME: usize = 255;
/// Bytes of a header that prolongs a name or has pax records. It is held in memory.
const EXTENSION: u64 = 64 << 10;
/// So many of the entries that were left out are named.
const NAMED: usize = 10;
const PIECE: usize = 64 << 10;

/// Why unpacking ended before the archive did.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The archive is none, breaks a rule, or exceeds a limit.
    #[error("{0}")]
    Refused(String),
    /// The host cannot make an entry.
    #[error("{name:?}: {what}: {source}")]
    Host { name: String, what: &'static str, source: io::Error },
    /// What is read from has failed.
    #[error("{0}")]
    Input(io::Error),
}

/// Entries that were refused, each for itself, while the others were copied.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    pub(super) count: u64,
    /// The first ones, with the reason.
    pub(super) named: Vec<String>,
}

impl LeftOut {
    fn add(&mut self, name: &Path, why: &str) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(format!("{name:?}: {why}"));
        }
    }
}

/// Unpacks `input` into the directory `name` of `beneath`, and makes it if it is not there. The names of the archive
/// are relative to it, as `tar -c -C DIRECTORY .` packs them: each directory before what is in it.
pub(super) fn unpack(
    input: impl Read,
    beneath: BorrowedFd<'_>,
    name: &OsStr,
    limits: &Limits,
) -> Result<LeftOut, Failure> {
    let bounded = Bounded { from: input, left: limits.bytes, exceeded: false };
    let mut archive = Archive::new(bounded);
    let mut unpacking =
        Unpacking { beneath, root: Path::new(name), limits, left_out: LeftOut::default(), next: Next::default() };
    let result = unpacking.entries(&mut archive);
    let bounded = archive.into_inner();
    match result {
        Err(Failure::Input(_)) if bounded.exceeded => Err(Failure::Refused(format!(
            "it has more than {} bytes; expected that --limit-gib is enough",
            limits.bytes
        ))),
        Err(e) => Err(e),
        Ok(()) => bounded.drain().map(|()| unpacking.left_out),
    }
}

/// The input, as far as it may go.
struct Bounded<R> {
    from: R,
    left: u64,
    exceeded: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            self.exceeded = true;
            return Err(io::Error::other("more than the limit"));
        }
        let most = into.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let n = self.from.read(&mut into[..most])?;
        self.left -= n as u64;
        Ok(n)
    }
}

impl<R: Read> Bounded<R> {
    /// Reads what is behind the end of the archive: tar fills its last record, with 10 KiB at most by default.
    fn drain(mut self) -> Result<(), Failure> {
        self.left = self.left.min(1 << 20);
        match io::copy(&mut self, &mut io::sink()) {
            Ok(_) => Ok(()),
            Err(_) if self.exceeded => Err(Failure::Refused("more than 1 MiB is behind the end of the archive".into())),
            Err(e) => Err(Failure::Input(e)),
        }
    }
}

/// What headers have said about the next entry.
#[derive(Default)]
struct Next {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    modified: Option<i64>,
    /// Why it must be left out.
    without: Option<&'static str>,
}

struct Unpacking<'a> {
    beneath: BorrowedFd<'a>,
    root: &'a Path,
    limits: &'a Limits,
    left_out: LeftOut,
    next: Next,
}

/// A type that tar has and that is not copied.
fn foreign(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Link => "a hard link to another name",
        EntryType::Char | EntryType::Block => "a device node",
        EntryType::Fifo => "a named pipe",
        EntryType::GNUSparse => "a file with holes, packed without them",
        _ => "of an unknown type",
    }
}

impl Unpacking<'_> {
    fn entries<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), Failure> {
        let mut seen = 0;
        // Raw: the library would read a long name of any length into memory.
        for entry in archive.entries().map_err(Failure::Input)?.raw(true) {
            let mut entry = entry.map_err(Failure::Input)?;
            seen += 1;
            if seen > self.limits.entries {
                return Err(Failure::Refused(format!("it has more than {} entries", self.limits.entries)));
            }
            let header = entry.header().clone();
            let size = header.entry_size().map_err(Failure::Input)?;
            match header.entry_type() {
                EntryType::GNULongName => self.next.name = Some(text(&mut entry, size)?),
                EntryType::GNULongLink => self.next.target = Some(text(&mut entry, size)?),
                EntryType::XHeader => {
                    let records = extension(&mut entry, size)?;
                    self.next.take_pax(&records)?;
                }
                EntryType::XGlobalHeader => drop(extension(&mut entry, size)?),
                kind => {
                    let next = std::mem::take(&mut self.next);
                    self.entry(kind, &header, next, &mut entry)?;
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, kind: EntryType, header: &Header, next: Next, content: &mut impl Read) -> Result<(), Failure> {
        let name = next.name.unwrap_or_else(|| header.path_bytes().into_owned());
        let path = self.inside(&name)?;
        let whole = self.root.join(&path);
        let mode = header.mode().map_err(Failure::Input)?;
        if let Some(why) = next.without {
            self.left_out.add(&path, why);
            return Ok(());
        }
        match kind {
            EntryType::Directory => self.directory(&whole, mode),
            // Of an old tar, a name that ends with a slash is a directory's.
            EntryType::Regular if header.as_ustar().is_none() && header.as_gnu().is_none() && name.ends_with(b"/") => {
                self.directory(&whole, mode)
            }
            EntryType::Regular | EntryType::Continuous => {
                let modified = match next.modified {
                    Some(seconds) => Some(seconds),
                    None => header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()),
                };
                self.file(&whole, mode, modified, content)
            }
            EntryType::Symlink => {
                let target = next.target.or_else(|| header.link_name_bytes().map(|target| target.into_owned()));
                let target = target.unwrap_or_default();
                let depth = path.components().count().saturating_sub(1);
                match stays(&target, depth) {
                    Ok(()) => self.link(&whole, &target),
                    Err(why) => {
                        let target = String::from_utf8_lossy(&target);
                        self.left_out.add(&path, &format!("a link to {target:?}, {why}"));
                        Ok(())
                    }
                }
            }
            kind => {
                self.left_out.add(&path, foreign(kind));
                Ok(())
            }
        }
    }

    /// The path that a name has in the copy. Empty for the copy itself.
    fn inside(&self, name: &[u8]) -> Result<PathBuf, Failure> {
        let shown = || String::from_utf8_lossy(&name[..name.len().min(NAME)]).into_owned();
        let refused = |why: &str| Failure::Refused(format!("it has the name {:?}: {why}", shown()));
        if name.len() > PATH {
            return Err(refused("longer than 4096 bytes"));
        }
        if name.is_empty() || name.contains(&0) {
            return Err(refused("empty, or with a byte of value 0"));
        }
        if name.starts_with(b"/") {
            return Err(refused("expected one relative to the directory"));
        }
        let mut path = PathBuf::new();
        let mut depth = 0;
        for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            if part == b".." {
                return Err(refused("it leads outside by \"..\""));
            }
            if part.len() > NAME {
                return Err(refused("a part of it is longer than 255 bytes"));
            }
            depth += 1;
            if depth > self.limits.depth {
                return Err(refused(&format!("more than {} directories deep", self.limits.depth)));
            }
            path.push(OsStr::from_bytes(part));
        }
        Ok(path)
    }

    /// Opens what is at a path beneath, without following links.
    fn open(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(self.beneath, path, flags | OFlags::CLOEXEC, mode, resolve)
    }

    /// The directory that a path is in, and the name there.
    fn parent<'p>(&self, path: &'p Path) -> Result<(OwnedFd, &'p OsStr), Failure> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let fd = self.open(above, OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        let fd = fd.map_err(|e| failed(above, unopened(e), e))?;
        Ok((fd, path.file_name().unwrap_or_default()))
    }

    fn directory(&self, path: &Path, mode: u32) -> Result<(), Failure> {
        let (parent, name) = self.parent(path)?;
        // Its owner must be able to fill it.
        let mode = Mode::from_raw_mode(mode & 0o777 | 0o700);
        match rustix::fs::mkdirat(&parent, name, mode) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => {
                let there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
                let there = there.map_err(|e| failed(path, "cannot be examined", e))?;
                match FileType::from_raw_mode(there.st_mode) {
                    FileType::Directory => Ok(()),
                    FileType::Symlink => {
                        Err(failed(path, "a link is in its place, which is not followed", Errno::LOOP))
                    }
                    _ => Err(failed(path, "a file is in its place", Errno::NOTDIR)),
                }
            }
            Err(e) => Err(failed(path, "cannot make the directory", e)),
        }
    }

    fn file(&self, path: &Path, mode: u32, modified: Option<i64>, content: &mut impl Read) -> Result<(), Failure> {
        // No more rights than the guest's file has, and never those of set-user-id.
        let mode = Mode::from_raw_mode(mode & 0o777);
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // What is there is never written into: it may have another name elsewhere.
        let made = replacing(&parent, name, || rustix::fs::openat(&parent, name, flags, mode));
        let mut file = File::from(made.map_err(|e| failed(path, "cannot make the file", e))?);
        let mut bytes = vec![0; PIECE];
        loop {
            let n = match content.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(Failure::Input(e)),
            };
            file.write_all(&bytes[..n]).map_err(|source| Failure::Host {
                name: path.to_string_lossy().into_owned(),
                what: "cannot write",
                source,
            })?;
        }
        if let Some(seconds) = modified {
            let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
            // A time that the file system cannot have is not worth the copy.
            let _ = rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time });
        }
        Ok(())
    }

    fn link(&self, path: &Path, target: &[u8]) -> Result<(), Failure> {
        let (parent, name) = self.parent(path)?;
        let made = replacing(&parent, name, || rustix::fs::symlinkat(OsStr::from_bytes(target), &parent, name));
        made.map_err(|e| failed(path, "cannot make the link", e))
    }
}

/// Makes something of this name, in place of what has it.
fn replacing<T>(parent: &OwnedFd, name: &OsStr, make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match make() {
        Err(Errno::EXIST) => rustix::fs::unlinkat(parent, name, AtFlags::empty()).and_then(|()| make()),
        made => made,
    }
}

fn failed(path: &Path, what: &'static str, e: Errno) -> Failure {
    Failure::Host { name: path.to_string_lossy().into_owned(), what, source: e.into() }
}

fn unopened(e: Errno) -> &'static str {
    match e {
        Errno::LOOP | Errno::XDEV => "a link is in this path, which is not followed",
        Errno::NOENT => "it was not packed before what is in it",
        Errno::NOSYS => "Linux 5.6 or newer is needed (openat2)",
        _ => "cannot be opened",
    }
}

/// Whether a link in a directory so deep in the copy leads to the copy. Steps up come first, from a directory that is
/// no link; then only names, each a directory or such a link itself. So none leads outside, whatever links there are.
fn stays(target: &[u8], depth: usize) -> Result<(), &'static str> {
    if target.is_empty() || target.len() > PATH || target.contains(&0) {
        return Err("which is no path");
    }
    if target.starts_with(b"/") {
        return Err("which is absolute");
    }
    let mut ups = 0;
    let mut names = false;
    for part in target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        match part == b".." {
            true if names => return Err("which goes up again below a name"),
            true => ups += 1,
            false => names = true,
        }
    }
    if ups > depth { Err("which leads outside") } else { Ok(()) }
}

/// The whole content of a header that prolongs the next one.
fn extension(entry: &mut impl Read, size: u64) -> Result<Vec<u8>, Failure> {
    if size > EXTENSION {
        return Err(Failure::Refused(format!(
            "a name or its attributes have {size} bytes: expected {EXTENSION} at most"
        )));
    }
    let mut bytes = Vec::new();
    entry.take(EXTENSION).read_to_end(&mut bytes).map_err(Failure::Input)?;
    Ok(bytes)
}

/// A name or target longer than a header has room for.
fn text(entry: &mut impl Read, size: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = extension(entry, size)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

impl Next {
    fn take_pax(&mut self, records: &[u8]) -> Result<(), Failure> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(Failure::Input)?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"mtime" => {
                    let whole = value.split(|byte| *byte == b'.').next().unwrap_or_default();
                    self.modified = std::str::from_utf8(whole).ok().and_then(|text| text.parse().ok());
                }
                // The header has no room for it, and so does not say where the next one is.
                b"size" => {
                    return Err(Failure::Refused(
                        "a file of 8 GiB or more as pax has it: expected GNU's format (tar --format=gnu)".into(),
                    ));
                }
                key if key.starts_with(b"GNU.sparse.") => self.without = Some(foreign(EntryType::GNUSparse)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The descriptor of a directory that the user has named. Links that the user names are followed.
pub(super) fn directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())?)
}

/// What a name in a directory is, itself: a link is not followed. `None` if nothing is there.
pub(super) fn kind_at(directory: impl AsFd, name: &OsStr) -> io::Result<Option<FileType>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests;
