// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos cp`: a file into a guest of a detached cluster, or out of one; a directory as `tar` packs it on one
//! side and unpacks it on the other.

use super::CpArgs;
use super::client::{Command, Input};
use crate::command::Stream;
use crate::{Error, Result, directory_of};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use telegraphos_agent::Exit;

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
    Guest { node: &'a str, path: &'a str },
}

impl Side<'_> {
    /// NODE:PATH is a file of a guest; a path with a slash before the colon is one of this machine.
    fn of(text: &str) -> Side<'_> {
        match text.split_once(':') {
            Some((node, path)) if !node.is_empty() && !path.is_empty() && !node.contains('/') => {
                Side::Guest { node, path }
            }
            _ => Side::Here(Path::new(text)),
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

fn into(args: &CpArgs, from: &Path, node: &str, path: &str) -> Result<u8> {
    let file = File::open(from).map_err(Error::io("cannot open", from))?;
    let metadata = file.metadata().map_err(Error::io("cannot read", from))?;
    if metadata.is_dir() {
        return Err(Error::Usage(format!("{} is a directory; {TREES}", from.display())));
    }
    let name = from.file_name().map_or("file".into(), |name| name.to_string_lossy().into_owned());
    let mode = format!("{:o}", metadata.permissions().mode() & 0o777);
    let argv = ["sh", "-c", WRITE, "sh", path, &name, &mode].map(str::to_owned);
    let command = Command::start(&args.which, node, args.user, &argv)?;
    feed(command, &mut file.as_fd(), node, path, args)
}

/// Follows a command in the guest that takes this input, to its end.
fn feed<'a>(
    mut command: Command<'a>,
    input: &'a mut BorrowedFd<'_>,
    node: &str,
    path: &str,
    args: &CpArgs,
) -> Result<u8> {
    command.input = Some(Input::of(input));
    let mut errors = Vec::new();
    let exit = command.follow(&mut |_, bytes| {
        keep(&mut errors, bytes);
        Ok(())
    })?;
    done(exit, &errors, node, path, args)
}

/// Where what is at a guest's `path` goes: `to`, or its name in that if it is a directory. `what` it is to name.
fn destination(path: &str, to: &Path, what: &str) -> Result<PathBuf> {
    let name = Path::new(path).file_name().ok_or_else(|| Error::Usage(format!("{path:?} names no {what}")))?;
    Ok(if to.is_dir() { to.join(name) } else { to.to_path_buf() })
}

fn out_of(args: &CpArgs, node: &str, path: &str, to: &Path) -> Result<u8> {
    let to = destination(path, to, "file")?;
    let argv = ["sh", "-c", READ, "sh", path].map(str::to_owned);
    let mut command = Command::start(&args.which, node, args.user, &argv)?;
    let mut arriving = Arriving { to: &to, line: Vec::new(), file: None };
    let mut errors = Vec::new();
    let exit = command.follow(&mut |stream, bytes| {
        if stream == Stream::Stdout {
            return arriving.write(bytes);
        }
        keep(&mut errors, bytes);
        Ok(())
    });
    let exit = exit.inspect_err(|_| arriving.discard())?;
    if exit != Exit::Code(0) {
        arriving.discard();
    }
    let code = done(exit, &errors, node, path, args)?;
    arriving.finish()?;
    Ok(code)
}

/// This machine's tar. It takes no owners along, and a guest's files get no more rights than the user's mask lets them.
fn tar(arguments: &[&str], directory: &Path) -> std::process::Command {
    let mut command = std::process::Command::new("tar");
    command.args(arguments).args(["-f", "-", "-C"]).arg(directory);
    command
}

fn started(mut command: std::process::Command) -> Result<Child> {
    // Ctrl-C is for the command in the guest, whose end is then this one's.
    command
        .process_group(0)
        .spawn()
        .map_err(|source| Error::Spawn { what: "tar, which a directory needs".into(), source })
}

fn tree_into(args: &CpArgs, from: &Path, node: &str, path: &str) -> Result<u8> {
    let whole = from.canonicalize().map_err(Error::io("cannot read", from))?;
    let name = whole.file_name().map_or("root".into(), |name| name.to_string_lossy().into_owned());
    let argv = ["sh", "-c", UNPACK, "sh", path, &name].map(str::to_owned);
    let command = Command::start(&args.which, node, args.user, &argv)?;
    let mut packing = tar(&["-c"], &whole);
    packing.arg(".").stdin(Stdio::null()).stdout(Stdio::piped());
    let mut packing = Packing(started(packing)?);
    let output = packing.0.stdout.take();
    let Some(mut handle) = output.as_ref().map(AsFd::as_fd) else { return Ok(1) };
    let code = feed(command, &mut handle, node, path, args)?;
    packing.end(from)?;
    Ok(code)
}

fn tree_out_of(args: &CpArgs, node: &str, path: &str, to: &Path) -> Result<u8> {
    let to = destination(path, to, "directory")?;
    let parent = directory_of(&to);
    // Under its name when it is whole; one that is there already gets more.
    let fresh = tempfile::Builder::new().prefix(".telegraphos-").tempdir_in(parent);
    let fresh = fresh.map_err(Error::io("cannot make a directory in", parent))?;
    let merges = to.exists();
    let place = if merges { to.clone() } else { fresh.path().join("tree") };
    if !merges {
        fs::create_dir(&place).map_err(Error::io("cannot make", &place))?;
    }
    let argv = ["sh", "-c", PACK, "sh", path].map(str::to_owned);
    let mut command = Command::start(&args.which, node, args.user, &argv)?;
    let mut unpacking = tar(&["-x", "--no-same-owner", "--no-same-permissions"], &place);
    unpacking.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut unpacking = Packing(started(unpacking)?);
    let mut input = unpacking.0.stdin.take();
    let mut errors = Vec::new();
    let exit = command.follow(&mut |stream, bytes| {
        if stream == Stream::Stderr {
            keep(&mut errors, bytes);
        } else if let Some(pipe) = &mut input {
            if pipe.write_all(bytes).is_err() {
                // tar says why.
                input = None;
            }
        }
        Ok(())
    })?;
    let whole = input.is_some();
    drop(input);
    let code = done(exit, &errors, node, path, args)?;
    unpacking.end(&to)?;
    if !whole {
        return Err(Error::Cluster { code: 3, why: format!("{} could not be unpacked", to.display()) });
    }
    if !merges {
        fs::rename(&place, &to).map_err(Error::io("cannot make", &to))?;
    }
    Ok(code)
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
struct Arriving<'a> {
    to: &'a Path,
    line: Vec<u8>,
    file: Option<(File, PathBuf)>,
}

impl Arriving<'_> {
    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        if self.file.is_none() {
            let end = bytes.iter().position(|byte| *byte == b'\n');
            self.line.extend_from_slice(&bytes[..end.unwrap_or(bytes.len())]);
            let Some(end) = end else { return Ok(()) };
            bytes = &bytes[end + 1..];
            self.file = Some(self.open()?);
        }
        let Some((file, path)) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(Error::io("cannot write", path))
    }

    fn open(&self) -> Result<(File, PathBuf)> {
        let mode = std::str::from_utf8(&self.line).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
        let mut part = self.to.as_os_str().to_owned();
        part.push(format!(".part{}", std::process::id()));
        let part = PathBuf::from(part);
        let mut options = OpenOptions::new();
        // No more rights than the guest's file has, and never those of set-user-id.
        let file = options.write(true).create_new(true).mode(mode.unwrap_or(0o600) & 0o777).open(&part);
        Ok((file.map_err(Error::io("cannot make", &part))?, part))
    }

    fn discard(&mut self) {
        if let Some((_, path)) = self.file.take() {
            // It is of this process alone.
            let _ = fs::remove_file(path);
        }
    }

    fn finish(mut self) -> Result<()> {
        let Some((_, path)) = &self.file else { return Ok(()) };
        let renamed = fs::rename(path, self.to).map_err(Error::io("cannot make", self.to));
        renamed.inspect_err(|_| self.discard())
    }
}

fn keep(errors: &mut Vec<u8>, bytes: &[u8]) {
    errors.extend_from_slice(&bytes[..bytes.len().min(ERRORS - errors.len())]);
}

fn done(exit: Exit, errors: &[u8], node: &str, path: &str, args: &CpArgs) -> Result<u8> {
    if exit == Exit::Code(0) {
        return Ok(0);
    }
    let text = String::from_utf8_lossy(errors);
    let mut why = format!("node {node}: {path}: {}", text.trim_end());
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

    #[test]
    fn a_side_is_of_a_guest_if_it_names_a_node() {
        assert_eq!(Side::of("0:/tmp/a"), Side::Guest { node: "0", path: "/tmp/a" });
        assert_eq!(Side::of("node1:a:b"), Side::Guest { node: "node1", path: "a:b" });
        for here in ["a", "/a:b", "./0:x", ":a", "0:"] {
            assert_eq!(Side::of(here), Side::Here(Path::new(here)), "{here}");
        }
    }

    #[test]
    fn what_arrives_has_its_name_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("file");
        let begin = || Arriving { to: &to, line: Vec::new(), file: None };
        let mut half = begin();
        half.write(b"6").unwrap();
        half.write(b"40\nab").unwrap();
        assert!(!to.exists());
        half.discard();
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
    fn errors_of_a_guest_are_bounded() {
        let mut errors = Vec::new();
        (0..10).for_each(|_| keep(&mut errors, &[b'x'; 1000]));
        assert_eq!(errors.len(), ERRORS);
    }
}
