// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files with several owners, as packages have them. Root makes them as they are; an ordinary user in a user namespace
//! with the subordinate ids that the system has set aside for them (subuid(5)), from which they keep their owners: what
//! is root's there is the user's here, and other owners have numbers that are nobody's.

use crate::Error;
use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Options of `unshare` for such a namespace.
pub(crate) const NAMESPACE: [&str; 3] = ["--user", "--map-root-user", "--map-auto"];

/// The file beside a root that says that its files have such owners.
pub(crate) const MARK: &str = ".telegraphos-owners";

/// Whether an ordinary user runs this, to whom all owners but one are foreign.
pub(crate) fn are_foreign() -> bool {
    !geteuid().is_root()
}

/// The same command, run where files have their owners.
pub(crate) fn among(command: &Command) -> Command {
    let mut all = Command::new("unshare");
    all.args(NAMESPACE).arg("--").arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => all.env(name, value),
            None => all.env_remove(name),
        };
    }
    all
}

/// What to do where this user has no subordinate ids, or no program that may hand them out.
pub(crate) fn missing() -> Error {
    let user = geteuid().as_raw();
    Error::needs_root(
        "a root of Debian's packages has files of several owners, for which an ordinary user needs subordinate ids \
         (/etc/subuid, /etc/subgid) and newuidmap",
        format!(
            "apt-get install --yes uidmap; \
             usermod --add-subuids 100000-165535 --add-subgids 100000-165535 \"$(id -un {user})\""
        ),
    )
}

/// Removes a directory with all that is in it, whichever users own that.
pub(crate) fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() == ErrorKind::PermissionDenied && are_foreign() => {
            let mut command = Command::new("rm");
            command.args(["-rf".as_ref(), "--".as_ref(), path.as_os_str()] as [&OsStr; 3]);
            let mut command = among(&command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if command.status()?.success() { Ok(()) } else { Err(e) }
        }
        result => result,
    }
}

/// Makes a directory below `root`, and those above it, and opens it. Without `links`, none is followed below `root`.
pub(crate) fn directory(root: &Path, below: &Path, links: bool) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(root, flags, Mode::empty())?;
    let flags = if links { flags } else { flags | OFlags::NOFOLLOW };
    for part in below.components() {
        match rustix::fs::mkdirat(&at, part.as_os_str(), Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        at = rustix::fs::openat(&at, part.as_os_str(), flags, Mode::empty())?;
    }
    Ok(at)
}

/// How a name is looked up where another user can change the tree: below a directory that is held open, through no
/// link, and not on another file system.
const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Directories within each other that are followed. The deepest that is made here has some twenty.
const DEPTH: usize = 100;

/// As root, gives what is below `root` to a user: `alone` themselves, and `whole` with all that is in them. The user
/// may own the tree already, and change it meanwhile. So each thing is opened first, itself, and the owner is changed
/// of what was opened, unless it has a second name, which may be elsewhere. What is not there is left out.
pub(crate) fn give<'a>(
    root: &Path,
    alone: impl IntoIterator<Item = &'a Path>,
    whole: impl IntoIterator<Item = &'a Path>,
    owner: (Uid, Gid),
) -> std::io::Result<()> {
    let root = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let alone = alone.into_iter().map(|path| (path, 0));
    let paths = alone.chain(whole.into_iter().map(|path| (path, DEPTH)));
    // All are tried; the first error is the answer.
    let mut result = Ok(());
    for (path, depth) in paths {
        result = result.and(give_below(root.as_fd(), path.as_os_str().as_bytes(), depth, owner));
    }
    Ok(result?)
}

/// Gives one thing, and what is in it down to this depth.
fn give_below(
    directory: BorrowedFd<'_>,
    name: impl Arg + Copy,
    depth: usize,
    (uid, gid): (Uid, Gid),
) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match rustix::fs::openat2(directory, name, flags, Mode::empty(), BENEATH) {
        Ok(found) => found,
        // A link or a mount in the way, or it has gone meanwhile.
        Err(Errno::NOENT | Errno::LOOP | Errno::XDEV) => return Ok(()),
        Err(e) => return Err(e),
    };
    let stat = rustix::fs::fstat(&found)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    let plain = matches!(kind, FileType::RegularFile | FileType::Symlink) && stat.st_nlink == 1;
    if plain || kind == FileType::Directory {
        rustix::fs::chownat(&found, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    if kind != FileType::Directory || depth == 0 {
        return Ok(());
    }
    let readable = rustix::fs::openat(&found, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut result = Ok(());
    for entry in Dir::read_from(&readable)? {
        let entry = entry?;
        if ![c".", c".."].contains(&entry.file_name()) {
            result = result.and(give_below(readable.as_fd(), entry.file_name(), depth - 1, (uid, gid)));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The claim: the owner of a tree that root gives away gets files outside of it.
    #[test]
    fn only_what_is_in_the_tree_is_given() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let owner = |path: &Path| std::fs::symlink_metadata(path).unwrap().uid();
        if are_foreign() {
            // An ordinary user can give nothing, not even to itself what is its own already under another number.
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("a"), "").unwrap();
            let given = give(dir.path(), [], [Path::new("a")], (Uid::from_raw(0), Gid::from_raw(0)));
            assert_eq!(given.unwrap_err().kind(), ErrorKind::PermissionDenied);
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cache/x/y/deep", "cache/apt", "outside/inner"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for name in [
            "cache/lock",
            "cache/x/y/file",
            "cache/x/y/deep/file",
            "cache/x/beside",
            "outside/shadow",
            "outside/inner/shadow",
        ] {
            std::fs::write(at(name), "content").unwrap();
        }
        symlink(at("outside/shadow"), at("cache/x/y/link")).unwrap();
        // What a user can put in place of something that root has just made.
        symlink(at("outside"), at("cache/x/y/way")).unwrap();
        symlink(at("outside"), at("cache/debs")).unwrap();
        std::fs::hard_link(at("outside/shadow"), at("cache/x/y/second")).unwrap();
        let paths = |names: [&'static str; 3]| names.map(Path::new);
        let user = (Uid::from_raw(12345), Gid::from_raw(12345));
        give(&at("cache"), [Path::new("x"), Path::new("lock")], paths(["x/y", "apt", "debs"]), user).unwrap();
        give(&at("cache"), [], paths(["debs/inner", "x/y/way/inner", "../outside"]), user).unwrap();
        for given in [
            "cache/x",
            "cache/x/y",
            "cache/x/y/file",
            "cache/x/y/deep/file",
            "cache/x/y/link",
            "cache/lock",
            "cache/apt",
        ] {
            assert_eq!(owner(&at(given)), 12345, "{given}");
        }
        for kept in ["cache/x/beside", "outside", "outside/shadow", "outside/inner", "outside/inner/shadow"] {
            assert_eq!(owner(&at(kept)), 0, "{kept}");
        }
        assert_eq!(owner(&at("cache/x/y/way")), 12345, "the link itself");
    }

    /// The same while the user changes the tree: a directory is exchanged for a link and back all the time.
    #[test]
    fn a_tree_that_changes_meanwhile_gives_nothing_outside() {
        use std::os::unix::fs::{MetadataExt, symlink};
        use std::sync::atomic::{AtomicBool, Ordering};
        if are_foreign() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["cache/x/a", "outside"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        for n in 0..20 {
            std::fs::write(at("cache/x/a").join(n.to_string()), "").unwrap();
            std::fs::write(at("outside").join(n.to_string()), "").unwrap();
        }
        symlink(at("outside"), at("cache/x/b")).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = rustix::fs::renameat_with(
                        rustix::fs::CWD,
                        at("cache/x/a"),
                        rustix::fs::CWD,
                        at("cache/x/b"),
                        rustix::fs::RenameFlags::EXCHANGE,
                    );
                }
            });
            for _ in 0..500 {
                let user = (Uid::from_raw(12345), Gid::from_raw(12345));
                give(&at("cache"), [], [Path::new("x"), Path::new("x/a"), Path::new("x/b")], user).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        for n in 0..20 {
            let outside = std::fs::metadata(at("outside").join(n.to_string())).unwrap().uid();
            assert_eq!(outside, 0, "file {n} outside was given away");
        }
    }

    #[test]
    fn a_command_keeps_its_arguments_and_environment() {
        let mut inner = Command::new("/x/virtiofsd");
        inner.args(["--socket-path", "/run/fs0"]).env("A", "1").env_remove("B");
        let all = among(&inner);
        let words: Vec<_> = all.get_args().filter_map(OsStr::to_str).collect();
        let expected = ["--user", "--map-root-user", "--map-auto", "--", "/x/virtiofsd", "--socket-path", "/run/fs0"];
        assert_eq!((all.get_program(), &words[..]), ("unshare".as_ref(), &expected[..]));
        assert_eq!(all.get_envs().count(), 2);
    }

    #[test]
    fn what_is_removed_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a");
        std::fs::create_dir_all(place.join("b/c")).unwrap();
        remove(&place).unwrap();
        assert!(!place.exists());
        assert_eq!(remove(&place).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
