// SPDX-License-Identifier: MIT OR Apache-2.0
//! The private directory of one cluster (sockets, logs), and the lock that lets tests and measurements have the
//! machine to themselves.

use crate::process::listens;
use crate::{Error, ProgressMode, Result, interrupt, lock};
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use telegraphos_fabric::control::default_path;
use tempfile::TempDir;

/// This file is locked while the directory's owner runs.
const OWNER: &str = "owner";
/// What a detached cluster that ended by itself has left.
pub(crate) const RECORD: &str = "ended.json";
/// The name of the fabric's socket.
pub(crate) const FABRIC: &str = "fabric";
/// A Unix socket's path has at most 107 bytes; this much of it is for the names inside.
const LONGEST: usize = 107 - 24;

/// The name of a cluster that runs detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterName(String);

impl ClusterName {
    const LONGEST: usize = 24;
}

impl FromStr for ClusterName {
    type Err = String;
    fn from_str(text: &str) -> Result<ClusterName, String> {
        let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if text.is_empty() || text.len() > Self::LONGEST || !text.chars().all(fits) {
            return Err(format!(
                "{text:?} is no name of a cluster: expected 1 to {} letters, digits, - and _",
                Self::LONGEST
            ));
        }
        Ok(ClusterName(text.into()))
    }
}

impl std::fmt::Display for ClusterName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A directory only its owner may enter, removed when dropped. What a killed harness left is removed by the next.
#[derive(Debug)]
pub struct RunDir {
    dir: PathBuf,
    _owner: File,
    keep: Keep,
}

/// What stays of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    Nothing,
    /// All but the sockets, and a message says where.
    Said,
    /// The same in silence: [`RECORD`] is in it.
    Record,
}

impl RunDir {
    /// Makes one in `parent`, or in `$XDG_RUNTIME_DIR`, or in the directory for temporary files.
    pub fn create(parent: Option<&Path>) -> Result<RunDir> {
        RunDir::create_for(parent, None)
    }

    /// The same for a detached cluster, which is found by its name. No other may have it.
    pub(crate) fn create_for(parent: Option<&Path>, name: Option<&ClusterName>) -> Result<RunDir> {
        let parent = match parent {
            Some(parent) => parent.to_path_buf(),
            None => default_parent(),
        };
        check_parent(&parent)?;
        sweep(&parent);
        let remedy = "; name a writable directory with --run-dir or $XDG_RUNTIME_DIR";
        let io = |what| {
            let path = parent.clone();
            move |source| Error::Io { what, path, source, remedy }
        };
        let dir = tempfile::Builder::new()
            .prefix(&prefix())
            .permissions(fs::Permissions::from_mode(0o700))
            .tempdir_in(&parent)
            .map_err(io("cannot make the directory for sockets and logs in"))?;
        let path = name.map_or_else(|| dir.path().to_path_buf(), |name| named(&parent, name));
        let length = path.as_os_str().len();
        if length > LONGEST {
            return Err(Error::Usage(format!(
                "the run directory {} is {length} bytes long, and names of sockets leave it at most {LONGEST}; choose a \
                 shorter one with --run-dir",
                path.display()
            )));
        }
        if path.to_str().is_none() {
            return Err(Error::Usage(format!(
                "the run directory {} is not UTF-8, as QEMU's options are; choose another with --run-dir",
                path.display()
            )));
        }
        // Locked before it has the name that others look for.
        let early = dir.path().join("owner.new");
        let owner = File::create_new(&early).map_err(io("cannot write into"))?;
        rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| io("cannot lock a file in")(e.into()))?;
        fs::rename(&early, dir.path().join(OWNER)).map_err(io("cannot write into"))?;
        let path = match name {
            None => dir.keep(),
            Some(name) => take_name(dir, &parent, name)?,
        };
        Ok(RunDir { dir: path, _owner: owner, keep: Keep::Nothing })
    }

    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Whether it stays when this is dropped, without its sockets.
    pub(crate) fn keep(&mut self, keep: bool) {
        self.keep = if keep { Keep::Said } else { Keep::Nothing };
    }

    /// It stays when this is dropped, with the logs and this record, until the name is used again or given free.
    pub(crate) fn leave_record(&mut self, record: &[u8]) -> io::Result<()> {
        fs::write(self.dir.join(RECORD), record)?;
        self.keep = Keep::Record;
        Ok(())
    }
}

/// Refuses a directory in which any user can exchange what is made in it: sockets, logs and directories are made,
/// renamed and removed there by their paths, perhaps as root.
fn check_parent(parent: &Path) -> Result<()> {
    let Ok(mode) = fs::metadata(parent).map(|metadata| metadata.mode()) else { return Ok(()) };
    if mode & 0o1002 != 0o2 {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "any user can rename what is in {} (mode {:o}): expected a directory that others cannot write, or a sticky one, as \
         /tmp is; choose another with --run-dir or $XDG_RUNTIME_DIR",
        parent.display(),
        mode & 0o7777
    )))
}

/// Gives a new directory the name of a cluster, unless a cluster has it. What an ended one has left makes room.
fn take_name(dir: TempDir, parent: &Path, name: &ClusterName) -> Result<PathBuf> {
    let wanted = named(parent, name);
    if own_directory(&wanted) && wanted.join(RECORD).exists() && !is_owned(&wanted) {
        fs::remove_dir_all(&wanted).map_err(Error::io("cannot remove what an ended cluster has left,", &wanted))?;
    }
    // The directory has the owner's file in it, so that it takes the place of none that has one.
    match fs::rename(dir.path(), &wanted) {
        Ok(()) => {
            let _ = dir.keep();
            Ok(wanted)
        }
        Err(_) if is_owned(&wanted) => Err(Error::Usage(format!(
            "a cluster named {name} runs already; end it with `telegraphos down --cluster {name}`, or choose another \
             name with --cluster"
        ))),
        Err(source) => Err(Error::Io {
            what: "cannot make the directory of the cluster,",
            path: wanted,
            source,
            remedy: "; remove what is there, or choose another name with --cluster",
        }),
    }
}

/// The directory of a detached cluster in this one.
fn named(parent: &Path, name: &ClusterName) -> PathBuf {
    // No random name has a dot.
    parent.join(format!("{}up.{name}", prefix()))
}

/// The directory of a detached cluster of this user, running or not, in one of these.
pub(crate) fn find_named(parents: &[PathBuf], name: &ClusterName) -> Option<PathBuf> {
    parents.iter().map(|parent| named(parent, name)).find(|dir| own_directory(dir))
}

/// The names of this user's detached clusters, running or not, in these directories.
pub(crate) fn names(parents: &[PathBuf]) -> Vec<String> {
    let begin = format!("{}up.", prefix());
    let name = |dir: PathBuf| Some(dir.file_name()?.to_str()?.strip_prefix(&begin)?.to_owned());
    let mut names: Vec<String> = parents.iter().flat_map(|parent| own_dirs(parent)).filter_map(name).collect();
    names.sort();
    names
}

/// Whether a process runs to which a directory belongs.
pub(crate) fn is_owned(dir: &Path) -> bool {
    let Ok(owner) = File::open(dir.join(OWNER)) else { return false };
    rustix::fs::flock(&owner, FlockOperation::NonBlockingLockShared).is_err()
}

/// A directory of this user; a link is none.
fn own_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == rustix::process::getuid().as_raw())
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if self.keep == Keep::Nothing {
            // What cannot be removed now, the next one removes.
            let _ = fs::remove_dir_all(&self.dir);
            return;
        }
        for entry in fs::read_dir(self.path()).into_iter().flatten().flatten() {
            // Without the owner's file it is no directory of a killed harness, which the next one would remove.
            if entry.file_name() == OWNER || entry.file_type().is_ok_and(|kind| kind.is_socket()) {
                let _ = fs::remove_file(entry.path());
            }
        }
        if self.keep == Keep::Said {
            eprintln!("kept: {}", self.path().display());
        }
    }
}

fn default_parent() -> PathBuf {
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|p| p.is_absolute())
        .filter(|path| path.canonicalize().is_ok_and(|path| own_directory(&path)))
        .unwrap_or_else(std::env::temp_dir)
}

/// Where directories of clusters usually are.
pub(crate) fn usual_parents() -> Vec<PathBuf> {
    let mut parents = vec![default_parent()];
    let temporary = std::env::temp_dir();
    if !parents.contains(&temporary) {
        parents.push(temporary);
    }
    parents
}

/// The control sockets of all running fabrics of this user, in these directories.
pub(crate) fn control_sockets(parents: &[PathBuf]) -> Vec<PathBuf> {
    let own = parents.iter().flat_map(|parent| own_dirs(parent));
    own.map(|dir| default_path(&dir.join(FABRIC))).filter(|path| listens(path)).collect()
}

/// How names of this user's directories begin.
fn prefix() -> String {
    format!("telegraphos-{}-", rustix::process::getuid().as_raw())
}

/// Directories of this user's clusters in this one.
fn own_dirs(parent: &Path) -> impl Iterator<Item = PathBuf> {
    let prefix = prefix();
    let named = move |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix));
    let entries = fs::read_dir(parent).into_iter().flatten().flatten().filter(named);
    entries.map(|entry| entry.path()).filter(|path| own_directory(path))
}

/// Removes directories of this user's clusters that no process owns any more.
fn sweep(parent: &Path) {
    for dir in own_dirs(parent) {
        let path = dir.join(OWNER);
        let Ok(owner) = File::open(&path) else { continue };
        // Another one may have removed it meanwhile, and a third made one of the same name.
        let same = || fs::metadata(&path).ok().zip(owner.metadata().ok()).is_some_and(|(a, b)| a.ino() == b.ino());
        if rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive).is_ok() && same() {
            log::info!("removing {}, left by a harness that was killed", dir.display());
            // If it fails, the next one tries again.
            let _ = fs::remove_dir_all(dir);
        }
    }
}

/// The right to have this computer, which tests and measurements take. Guests under emulation take whole processors, so
/// two clusters at once would run into each other's time limits.
#[derive(Debug)]
pub struct MachineLock(#[allow(dead_code, reason = "held for its Drop")] Option<File>);

impl MachineLock {
    /// The environment variable that has every command take the right; [`MachineLock::HELD`] as its value says that
    /// the process that started this one has it.
    pub const VARIABLE: &str = "TELEGRAPHOS_EXCLUSIVE";
    /// See [`MachineLock::VARIABLE`].
    pub const HELD: &str = "held";

    /// Waits for the right; clusters of one process share it, and with it those of the processes that it tells so.
    pub fn acquire(progress: ProgressMode) -> Result<Arc<MachineLock>> {
        static HELD: Mutex<Weak<MachineLock>> = Mutex::new(Weak::new());
        if std::env::var_os(MachineLock::VARIABLE).is_some_and(|value| value == MachineLock::HELD) {
            return Ok(Arc::new(MachineLock(None)));
        }
        let mut held = lock(&HELD);
        if let Some(right) = held.upgrade() {
            return Ok(right);
        }
        let path = std::env::temp_dir().join("telegraphos.lock");
        let file = open_lock(&path).map_err(|source| Error::Io {
            what: "cannot open the machine's lock",
            path: path.clone(),
            source,
            remedy: "; remove it if it is not a file of this project",
        })?;
        let mut step = None;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("cannot lock", &path)(e.into())),
            }
            step.get_or_insert_with(|| {
                progress.step(format!("Waiting for another cluster on this machine to end ({})", path.display()), None)
            });
            interrupt::sleep(Duration::from_millis(100))?;
        }
        if let Some(step) = step {
            step.done();
        }
        let right = Arc::new(MachineLock(Some(file)));
        *held = Arc::downgrade(&right);
        Ok(right)
    }
}

/// Opens the lock, also one of another user. Reading suffices for a lock; the kernel refuses `O_CREAT` on another
/// user's file in a shared directory, so making it is a separate step.
fn open_lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => return Ok(fd.into()),
            Err(rustix::io::Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        match rustix::fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o644)) {
            Ok(fd) => return Ok(fd.into()),
            Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_private_and_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let run = RunDir::create(Some(parent.path())).unwrap();
        let path = run.path().to_path_buf();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        // A second harness keeps a running one's directory.
        drop(RunDir::create(Some(parent.path())).unwrap());
        assert!(path.exists());
        drop(run);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_any_user_can_change_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let with = |mode| {
            fs::set_permissions(parent.path(), fs::Permissions::from_mode(mode)).unwrap();
            RunDir::create(Some(parent.path())).map(drop).map_err(|e| e.to_string())
        };
        for mode in [0o700, 0o755, 0o775, 0o1777] {
            assert_eq!(with(mode), Ok(()), "{mode:o}");
        }
        for mode in [0o777, 0o702] {
            let text = with(mode).unwrap_err();
            assert!(text.contains("any user can rename") && text.contains(&format!("mode {mode:o}")), "{text}");
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_that_is_kept_has_its_logs_and_no_sockets() {
        let parent = tempfile::tempdir().unwrap();
        let mut run = RunDir::create(Some(parent.path())).unwrap();
        run.keep(true);
        let path = run.path().to_path_buf();
        fs::write(path.join("console.0.log"), "text").unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(path.join("qmp0")).unwrap();
        drop(run);
        // Nor does the next harness remove it.
        drop(RunDir::create(Some(parent.path())).unwrap());
        let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["console.0.log"]);
    }

    #[test]
    fn what_a_killed_harness_left_is_removed_by_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join(format!("telegraphos-{}-left", rustix::process::getuid().as_raw()));
        fs::create_dir(&left).unwrap();
        fs::write(left.join(OWNER), "").unwrap();
        let other = parent.path().join("telegraphos-x");
        fs::create_dir(&other).unwrap();
        let _run = RunDir::create(Some(parent.path())).unwrap();
        assert!(!left.exists() && other.exists());
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named_with_the_remedy() {
        let text = RunDir::create(Some(Path::new("/proc"))).unwrap_err().to_string();
        assert!(text.contains("/proc") && text.contains("--run-dir"), "{text}");
        let parent = tempfile::tempdir().unwrap();
        let long = parent.path().join("x".repeat(90));
        fs::create_dir(&long).unwrap();
        let text = RunDir::create(Some(&long)).unwrap_err().to_string();
        assert!(text.contains("at most 83"), "{text}");
    }

    #[test]
    fn running_clusters_are_found_by_their_control_sockets() {
        let parent = tempfile::tempdir().unwrap();
        let parents = [parent.path().to_path_buf(), parent.path().join("none")];
        let (first, second) =
            (RunDir::create(Some(parent.path())).unwrap(), RunDir::create(Some(parent.path())).unwrap());
        let listen = |run: &RunDir| {
            let path = run.path().join("fabric.control");
            (std::os::unix::net::UnixListener::bind(&path).unwrap(), path)
        };
        assert!(control_sockets(&parents).is_empty());
        let (socket, path) = listen(&first);
        assert_eq!(control_sockets(&parents), std::slice::from_ref(&path));
        let (_second, other) = listen(&second);
        let mut both = control_sockets(&parents);
        both.sort();
        let mut expected = vec![path, other.clone()];
        expected.sort();
        assert_eq!(both, expected);
        drop(socket);
        assert_eq!(control_sockets(&parents), [other], "the socket of an ended fabric does not count");
    }

    #[test]
    fn a_name_is_that_of_one_cluster_and_free_when_it_has_ended() {
        let parent = tempfile::tempdir().unwrap();
        let parents = [parent.path().to_path_buf()];
        let lab: ClusterName = "lab".parse().unwrap();
        assert_eq!(find_named(&parents, &lab), None);
        let mut first = RunDir::create_for(Some(parent.path()), Some(&lab)).unwrap();
        assert_eq!(find_named(&parents, &lab).as_deref(), Some(first.path()));
        assert!(is_owned(first.path()));
        let text = RunDir::create_for(Some(parent.path()), Some(&lab)).unwrap_err().to_string();
        assert!(text.contains("lab runs already") && text.contains("telegraphos down --cluster lab"), "{text}");
        assert_eq!(names(&parents), ["lab"], "the one that was refused has left something");
        // A record stays until the name is used again.
        first.leave_record(b"{}").unwrap();
        let path = first.path().to_path_buf();
        drop(first);
        assert!(path.join(RECORD).exists() && !is_owned(&path));
        drop(RunDir::create(Some(parent.path())).unwrap());
        assert!(path.join(RECORD).exists());
        drop(RunDir::create_for(Some(parent.path()), Some(&lab)).unwrap());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
        // What is no cluster's is not touched.
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        let text = RunDir::create_for(Some(parent.path()), Some(&lab)).unwrap_err().to_string();
        assert!(text.contains("remove what is there"), "{text}");
    }

    #[test]
    fn names_of_clusters_fit_into_paths() {
        for name in ["default", "a", "CI-7_x", "x".repeat(24).as_str()] {
            assert_eq!(name.parse::<ClusterName>().map(|name| name.to_string()), Ok(name.to_owned()));
        }
        for name in ["", "a/b", "..", "a b", "ä", "x".repeat(25).as_str()] {
            assert!(name.parse::<ClusterName>().unwrap_err().contains("1 to 24 letters"), "{name}");
        }
    }

    #[test]
    fn the_lock_is_opened_whether_or_not_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = open_lock(&path).unwrap();
        let second = open_lock(&path).unwrap();
        rustix::fs::flock(&first, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive).is_err());
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(open_lock(&dir.path().join("link")).is_err());
    }
}
