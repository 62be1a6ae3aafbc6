// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos cp`: a file into a guest of a detached cluster, or out of one; a directory as `tar` packs it. What
//! comes out of a guest is hostile input: [`unpack`] makes it, beneath the directory that the user has named.

use super::CpArgs;
use super::client::{Command, Event, Pace};
use super::unpack::{self, Failure, LeftOut, Limits};
use crate::command::Stream;
use crate::{Error, Result, directory_of};
use rustix::fs::{FileType, RenameFlags};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Instant;
use telegraphos_agent::Exit;
use tempfile::NamedTempFile;

/// In the guest: standard input into the file $1, or into $2 of the directory $1, with mode $3.
const WRITE: &str = r#"p=$1; [ -d "$p" ] && p=${p%/}/$2; cat > "$p" && chmod "$3" "$p""#;
/// In the guest: the mode of the file $1 in a line, and its content.
const READ: &str =
    r#"[ -d "$1" ] && { echo "$1: is a directory" >&2; exit 1; }; stat -L -c %a -- "$1" && exec cat -- "$1""#;

/// In the guest: what is packed on standard input into the directory $1, or into $2 in it if it is there.
const UNPACK: &str = r#"p=$1; [ -d "$p" ] && p=${p%/}/$2; mkdir -p "$p" && exec tar -x -f - -C "$p""#;
/// In the guest: what is in the directory $1, packed.
const PACK: &str =
    r#"[ -d "$1" ] || { echo "$1: is no directory that can be read" >&2; exit 1; }; exec tar -c -f - -C "$1" ."#;

/// Of the guest's errors, so much is shown.
const ERRORS: usize = 4096;
const TREES: &str = "give -r to copy it with all that is in it";

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    Here(&'a Path),
    Guest { node: &'a str, path: &'a Path },
}

impl Side<'_> {
    /// NODE:PATH is a file of a guest; a path with a slash before the colon is one of this machine.
    fn of(words: &OsStr) -> Side<'_> {
        let bytes = words.as_bytes();
        let colon = bytes.iter().position(|byte| *byte == b':');
        let node = colon.and_then(|colon| std::str::from_utf8(&bytes[..colon]).ok());
        match (node, colon.map(|colon| &bytes[colon + 1..])) {
            (Some(node), Some(path)) if !node.is_empty() && !path.is_empty() && !node.contains('/') => {
                Side::Guest { node, path: Path::new(OsStr::from_bytes(path)) }
            }
            _ => Side::Here(Path::new(words)),
        }
    }
}

pub(in super::super) fn cp(args: &CpArgs) -> Result<u8> {
    match (Side::of(&args.from), Side::of(&args.to)) {
        (Side::Here(from), Side::Guest { node, path }) if args.recursive && from.is_dir() => {
            tree_into(args, from, node, path)
        }
        (Side::Guest { node, path }, Side::Here(to)) if args.recursive => tree_out_of(args, node, path, to),
        (Side::Here(from), Side::Guest { node, path }) => into(args, from, node, path),
        (Side::Guest { node, path }, Side::Here(to)) => out_of(args, node, path, to),
        (Side::Here(_), Side::Here(_)) => Err(Error::Usage(format!(
            "neither {:?} nor {:?} is of a guest: expected NODE:PATH, such as 0:/tmp/file",
            args.from, args.to
        ))),
        (Side::Guest { .. }, Side::Guest { .. }) => Err(Error::Usage(
            "both files are of guests: copy to this machine first, or `telegraphos exec` a program that sends it"
                .into(),
        )),
    }
}

/// A command that runs a script with these arguments.
fn script<'a>(script: &'a str, arguments: &[&'a OsStr]) -> Vec<&'a OsStr> {
    ["sh", "-c", script, "sh"].map(OsStr::new).iter().chain(arguments).copied().collect()
}

fn into(args: &CpArgs, from: &Path, node: &str, path: &Path) -> Result<u8> {
    let file = File::open(from).map_err(Error::io("cannot open", from))?;
    let metadata = file.metadata().map_err(Error::io("cannot read", from))?;
    if metadata.is_dir() {
        return Err(Error::Usage(format!("{} is a directory; {TREES}", from.display())));
    }
    let name = from.file_name().unwrap_or("file".as_ref());
    let mode = format!("{:o}", metadata.permissions().mode() & 0o777);
    let argv = script(WRITE, &[path.as_os_str(), name, mode.as_ref()]);
    let command = Command::start(&args.which, node, args.user, &argv)?;
    feed(command, file.as_fd(), node, path, args)
}

/// Follows a command in the guest that takes this input, to its end.
fn feed<'a>(mut command: Command<'a>, input: BorrowedFd<'a>, node: &str, path: &Path, args: &CpArgs) -> Result<u8> {
    command.input = Some(input);
    let mut errors = Vec::new();
    let exit = command.follow(&mut |_, bytes| {
        keep(&mut errors, bytes);
        Ok(())
    })?;
    done(exit, &errors, node, path, args)
}

/// Where a copy goes: a name in a directory that is held open. Links in the user's own words are followed, a link that
/// has the name is not: a guest may have put it there by an earlier copy.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    name: OsString,
    shown: PathBuf,
}

impl Place {
    /// Of what is at a guest's `path`: `to`, or its name in that if it is a directory. `what` it is to name.
    fn of(path: &Path, to: &Path, what: &str) -> Result<Place> {
        let (directory, name) = match to.is_dir() {
            true => (to, path.file_name()),
            false => (directory_of(to), to.file_name()),
        };
        let name = name.ok_or_else(|| Error::Usage(format!("{path:?} names no {what}")))?.to_owned();
        let shown = directory.join(&name);
        let directory = unpack::directory(directory).map_err(Error::io("cannot open", directory))?;
        Ok(Place { directory, name, shown })
    }

    /// A path of the directory itself, whatever its own path leads to meanwhile.
    fn within(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }
}

/// What is not whole yet has a name that begins so.
const HIDDEN: &str = ".telegraphos-";

fn out_of(args: &CpArgs, node: &str, path: &Path, to: &Path) -> Result<u8> {
    let place = Place::of(path, to, "file")?;
    let argv = script(READ, &[path.as_os_str()]);
    let mut command = Command::start(&args.which, node, args.user, &argv)?;
    command.pace = Some(pace(args));
    let mut arriving = Arriving::at(place, bytes(args));
    let mut errors = Vec::new();
    let exit = command.follow(&mut |stream, bytes| {
        if stream == Stream::Stdout {
            return arriving.write(bytes);
        }
        keep(&mut errors, bytes);
        Ok(())
    });
    let code = done(exit?, &errors, node, path, args)?;
    arriving.finish()?;
    Ok(code)
}

/// For all that the guest sends: the copy with what carries it, and error messages.
fn pace(args: &CpArgs) -> Pace {
    Pace::from(Instant::now(), bytes(args).saturating_mul(2).saturating_add(16 << 20))
}

/// The limit on what arrives.
fn bytes(args: &CpArgs) -> u64 {
    args.limit_gib.saturating_mul(1 << 30)
}

fn tree_into(args: &CpArgs, from: &Path, node: &str, path: &Path) -> Result<u8> {
    let whole = from.canonicalize().map_err(Error::io("cannot read", from))?;
    let name = whole.file_name().unwrap_or("root".as_ref());
    let argv = script(UNPACK, &[path.as_os_str(), name]);
    let command = Command::start(&args.which, node, args.user, &argv)?;
    let mut packing = std::process::Command::new("tar");
    packing.args(["-c", "-f", "-", "-C"]).arg(&whole).arg(".").stdin(Stdio::null()).stdout(Stdio::piped());
    // Ctrl-C is for the command in the guest, whose end is then this one's.
    let started = packing.process_group(0).spawn();
    let mut packing =
        Packing(started.map_err(|source| Error::Spawn { what: "tar, which a directory needs".into(), source })?);
    let output = packing.0.stdout.take();
    let Some(packed) = output.as_ref().map(AsFd::as_fd) else { return Ok(1) };
    let code = feed(command, packed, node, path, args)?;
    packing.end(from)?;
    Ok(code)
}

fn tree_out_of(args: &CpArgs, node: &str, path: &Path, to: &Path) -> Result<u8> {
    let place = Place::of(path, to, "directory")?;
    let argv = script(PACK, &[path.as_os_str()]);
    let mut command = Command::start(&args.which, node, args.user, &argv)?;
    command.pace = Some(pace(args));
    let mut packed = Packed { command, output: Vec::new(), at: 0, errors: Vec::new(), ended: None };
    let unpacked = unpack_at(&place, &mut packed, &Limits::of(bytes(args)), |packed| match packed.ended.take() {
        Some(Ok(exit)) => done(exit, &packed.errors, node, path, args).map(drop),
        Some(Err(e)) => Err(e),
        // It has not come to its end: what was wrong is in the archive.
        None => Ok(()),
    });
    let left_out = unpacked?;
    if left_out.count == 0 {
        return Ok(0);
    }
    let count = left_out.count;
    let more = if count > left_out.named.len() as u64 { "; ..." } else { "" };
    let named = left_out.named.join("; ");
    Err(Error::Cluster {
        code: 1,
        why: format!("{}: copied without {count} of its entries: {named}{more}", place.shown.display()),
    })
}

/// Unpacks what is packed into a place: under its name when it is whole; into a directory that is there already.
/// `ended` says how the source of it has ended, which is asked before its content is.
fn unpack_at<R: Read>(
    place: &Place,
    packed: &mut R,
    limits: &Limits,
    ended: impl FnOnce(&mut R) -> Result<()>,
) -> Result<LeftOut> {
    let there = unpack::kind_at(&place.directory, &place.name).map_err(Error::io("cannot examine", &place.shown))?;
    let what = match there {
        None => "",
        Some(FileType::Directory) => "a directory",
        Some(FileType::Symlink) => "a link, which is not followed",
        Some(_) => "a file",
    };
    if !["", "a directory"].contains(&what) {
        let shown = place.shown.display();
        return Err(Error::Usage(format!("{shown} is {what}; remove it, or name another place for the directory")));
    }
    let into = |beneath: BorrowedFd<'_>, name: &OsStr, packed: &mut R| {
        let result = unpack::unpack(&mut *packed, beneath, name, limits);
        ended(packed)?;
        result.map_err(|e: Failure| Error::Cluster { code: 3, why: format!("{}: {e}", place.shown.display()) })
    };
    if there.is_some() {
        return into(place.directory.as_fd(), &place.name, packed);
    }
    let making = || Error::io("cannot make a directory for", &place.shown);
    let fresh = tempfile::Builder::new().prefix(HIDDEN).tempdir_in(place.within()).map_err(making())?;
    let beneath = unpack::directory(fresh.path()).map_err(making())?;
    let left_out = into(beneath.as_fd(), TREE.as_ref(), packed)?;
    let taken = rustix::fs::renameat_with(&beneath, TREE, &place.directory, &place.name, RenameFlags::NOREPLACE);
    taken.map_err(|e| making()(e.into()))?;
    Ok(left_out)
}

/// The name of a directory that is not whole yet.
const TREE: &str = "tree";

/// The output of a command in a guest, to be read.
struct Packed<'a> {
    command: Command<'a>,
    output: Vec<u8>,
    at: usize,
    errors: Vec<u8>,
    ended: Option<Result<Exit>>,
}

impl Read for Packed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.at == self.output.len() {
            match self.ended {
                Some(Ok(_)) => return Ok(0),
                Some(Err(_)) => return Err(io::Error::other("the command has failed")),
                None => {}
            }
            match self.command.next() {
                Ok(Event::Output(Stream::Stdout, bytes)) => (self.output, self.at) = (bytes, 0),
                Ok(Event::Output(Stream::Stderr, bytes)) => keep(&mut self.errors, &bytes),
                Ok(Event::Exited(exit)) => self.ended = Some(Ok(exit)),
                Err(e) => self.ended = Some(Err(e)),
            }
        }
        let n = (&self.output[self.at..]).read(into)?;
        self.at += n;
        Ok(n)
    }
}

/// A tar of this machine, which ends with this.
struct Packing(Child);

impl Packing {
    /// Waits for its end; it has said what failed.
    fn end(&mut self, what: &Path) -> Result<()> {
        let status = self.0.wait().map_err(Error::io("cannot wait for tar, for", what))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Cluster { code: 3, why: format!("{}: tar has failed ({status})", what.display()) }),
        }
    }
}

impl Drop for Packing {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that comes out of a guest: its mode in a line, then its content. It has its name when it is whole.
struct Arriving {
    line: Vec<u8>,
    /// Removed by its path in the place, so before that is closed: fields are dropped in order.
    file: Option<NamedTempFile>,
    place: Place,
    /// Bytes that may still come.
    left: u64,
}

/// Bytes of the line with the mode.
const LINE: usize = 16;

impl Arriving {
    fn at(place: Place, limit: u64) -> Arriving {
        Arriving { place, line: Vec::new(), file: None, left: limit }
    }

    fn refused(&self, why: &str) -> Error {
        Error::Cluster { code: 1, why: format!("{}: {why}", self.place.shown.display()) }
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.file.is_none() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len()).min(LINE)]);
            if self.line.len() > 4 {
                return Err(self.refused("the guest has not sent the mode of the file: expected up to 4 octal digits"));
            }
            let Some(end) = end else { return Ok(()) };
            bytes = &bytes[end + 1..];
            self.file = Some(self.open()?);
        }
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| self.refused("it has more bytes than the limit: expected that --limit-gib is enough"))?;
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::io("cannot write", &self.place.shown))
    }

    fn open(&self) -> Result<NamedTempFile> {
        let mode = std::str::from_utf8(&self.line).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
        let mode = mode.ok_or_else(|| self.refused("the guest has sent no mode: expected octal digits"))?;
        // No more rights than the guest's file has, and never those of set-user-id.
        let mode = Permissions::from_mode(mode & 0o777);
        let file = tempfile::Builder::new().prefix(HIDDEN).permissions(mode).tempfile_in(self.place.within());
        file.map_err(Error::io("cannot make a file for", &self.place.shown))
    }

    fn finish(mut self) -> Result<()> {
        let Some(file) = self.file.take() else {
            return Err(self.refused("the guest has sent nothing: expected the mode of the file"));
        };
        let taken = file.persist(self.place.within().join(&self.place.name));
        taken.map(drop).map_err(|e| Error::io("cannot make", &self.place.shown)(e.error))
    }
}

fn keep(errors: &mut Vec<u8>, bytes: &[u8]) {
    errors.extend_from_slice(&bytes[..bytes.len().min(ERRORS - errors.len())]);
}

fn done(exit: Exit, errors: &[u8], node: &str, path: &Path, args: &CpArgs) -> Result<u8> {
    if exit == Exit::Code(0) {
        return Ok(0);
    }
    let text = String::from_utf8_lossy(errors);
    let mut why = format!("node {node}: {}: {}", path.display(), text.trim_end());
    if text.contains("ermission denied") && args.user == crate::User::Tg {
        why += "; --user root may";
    } else if text.contains("is a directory") {
        why += &format!("; {TREES}");
    }
    Err(Error::Cluster { code: 1, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_side_is_of_a_guest_if_it_names_a_node() {
        let of = |text: &'static [u8]| Side::of(OsStr::from_bytes(text));
        assert_eq!(of(b"0:/tmp/a"), Side::Guest { node: "0", path: "/tmp/a".as_ref() });
        assert_eq!(of(b"node1:a:b"), Side::Guest { node: "node1", path: "a:b".as_ref() });
        assert_eq!(of(b"0:\xff"), Side::Guest { node: "0", path: OsStr::from_bytes(b"\xff").as_ref() });
        for here in [&b"a"[..], b"/a:b", b"./0:x", b":a", b"0:", b"\xff:a"] {
            assert_eq!(of(here), Side::Here(OsStr::from_bytes(here).as_ref()), "{here:?}");
        }
    }

    #[test]
    fn what_arrives_has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let begin = || Arriving::at(Place::of("/tmp/x".as_ref(), &to, "file").unwrap(), 100);
        let mut half = begin();
        half.write(b"6").unwrap();
        half.write(b"40\nab").unwrap();
        assert!(!to.exists());
        drop(half);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let mut whole = begin();
        whole.write(b"4755\na\nb").unwrap();
        whole.write(b"\nc").unwrap();
        whole.finish().unwrap();
        assert_eq!(fs::read(&to).unwrap(), b"a\nb\nc");
        assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o7000, 0);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_out_of_a_guest_is_bounded_and_follows_no_link_at_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let begin = || Arriving::at(Place::of("/tmp/x".as_ref(), dir.path(), "file").unwrap(), 10);
        for (bytes, why) in [
            (&b"644\n0123456789a"[..], "--limit-gib"),
            (&[b'7'; 1 << 20][..], "expected up to 4 octal digits"),
            (b"999\n", "expected octal digits"),
            (b"\nabc", "expected octal digits"),
        ] {
            let text = begin().write(bytes).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
        assert!(begin().finish().is_err(), "without a mode there is no file");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // As an earlier copy may have left it.
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "before").unwrap();
        std::os::unix::fs::symlink(outside.path().join("kept"), dir.path().join("x")).unwrap();
        let mut arriving = begin();
        arriving.write(b"600\nafter").unwrap();
        arriving.finish().unwrap();
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "before");
        assert_eq!(fs::read_to_string(dir.path().join("x")).unwrap(), "after");
        assert!(dir.path().join("x").symlink_metadata().unwrap().is_file());
    }

    /// An archive of these entries: name, type, target, content.
    fn archive(entries: &[(&str, tar::EntryType, &str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, kind, target, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_link_name_literal(target).unwrap();
            header.set_mode(0o755);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn unpacked(path: &str, to: &Path, archive: &[u8]) -> Result<LeftOut> {
        let place = Place::of(path.as_ref(), to, "directory")?;
        unpack_at(&place, &mut &archive[..], &Limits::of(1 << 20), |_| Ok(()))
    }

    /// What a guest can send in two copies: a link, then files below its name; in the tree, and in place of the tree.
    #[test]
    fn two_archives_of_a_guest_write_nothing_outside() {
        use tar::EntryType::{Directory, Regular, Symlink};
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().to_str().unwrap();
        let file: &[(&str, _, &str, &[u8])] = &[("./", Directory, "", b""), ("./a/stolen", Regular, "", b"abc")];
        // Such links are not made, and one that exists already is not followed.
        let left_out = unpacked("/tmp/x", dir.path(), &archive(&[file[0], ("./a", Symlink, target, b"")])).unwrap();
        assert!(left_out.count == 1 && left_out.named[0].contains("absolute"), "{left_out:?}");
        std::os::unix::fs::symlink(target, dir.path().join("x/a")).unwrap();
        let text = unpacked("/tmp/x", dir.path(), &archive(file)).unwrap_err().to_string();
        assert!(text.contains("a link is in this path, which is not followed"), "{text}");
        // The name of the tree itself, which the user has not named as a place.
        std::os::unix::fs::symlink(target, dir.path().join("y")).unwrap();
        let text = unpacked("/tmp/y", dir.path(), &archive(file)).unwrap_err().to_string();
        assert!(text.contains("is a link, which is not followed"), "{text}");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(left.len() == 2 && left.iter().all(|name| name == "x" || name == "y"), "{left:?}");
    }

    #[test]
    fn a_tree_has_its_name_when_it_is_whole() {
        use tar::EntryType::{Directory, Regular};
        let dir = tempfile::tempdir().unwrap();
        let whole = archive(&[("./", Directory, "", b""), ("./a", Regular, "", &[7; 5000])]);
        assert!(unpacked("/tmp/x", dir.path(), &whole[..3000]).is_err());
        let failed = |_: &mut &[u8]| Err(Error::Usage("the command has failed".into()));
        let place = Place::of("/tmp/x".as_ref(), dir.path(), "directory").unwrap();
        let text = unpack_at(&place, &mut &whole[..3000], &Limits::of(1 << 20), failed).unwrap_err().to_string();
        assert_eq!(text, "the command has failed", "the reason, not what it has led to");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        unpacked("/tmp/x", dir.path(), &whole).unwrap();
        assert_eq!(fs::read(dir.path().join("x/a")).unwrap(), [7; 5000]);
        // Into what is there already.
        unpacked("/tmp/x", dir.path(), &archive(&[("./", Directory, "", b""), ("./b", Regular, "", b"b")])).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("x")).unwrap().count(), 2);
    }

    #[test]
    fn errors_of_a_guest_are_bounded() {
        let mut errors = Vec::new();
        (0..10).for_each(|_| keep(&mut errors, &[b'x'; 1000]));
        assert_eq!(errors.len(), ERRORS);
    }
}
