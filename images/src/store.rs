// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache: one directory, one lock, whole artefacts only.

use crate::files::write;
use crate::manifest::MANIFEST;
use crate::{Error, Manifest, Progress, Result, intact, owners};
use rustix::fs::{FlockOperation, Gid, Uid};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The cache of everything fetched and built. Cheap to clone; processes may share one directory.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    pub(crate) progress: Progress,
    pub(crate) cancel: Arc<AtomicBool>,
}

/// The right to change the cache. While one process holds it, others wait, and then find the work done.
pub(crate) struct Lock(#[allow(dead_code, reason = "held for its Drop")] File);

impl Store {
    /// Opens (and makes) the cache at `dir`, or at its default place (see the crate's first page).
    pub fn open(dir: Option<PathBuf>, progress: Progress) -> Result<Store> {
        let root = match dir {
            Some(dir) => dir,
            None => default_place(environment)?,
        };
        fs::create_dir_all(&root).map_err(Error::io("cannot create the cache directory", &root))?;
        let root = root.canonicalize().map_err(Error::io("cannot use the cache directory", &root))?;
        Ok(Store { root, progress, cancel: Arc::default() })
    }

    pub fn path(&self) -> &Path {
        &self.root
    }

    /// A flag that, once raised, ends whatever this store is doing with [`Error::Interrupted`], for use in a signal
    /// handler. Children are terminated, temporary files removed.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Forgets which versions were taken (QEMU, kernels, guest programs), so the next use fetches the newest again.
    /// Packages already fetched stay, and are used if they are still the newest.
    pub fn refresh(&self) -> Result<()> {
        let _lock = self.lock()?;
        for name in ["apt", "qemu", "tshark", "rust", "valgrind", "kernel", "peers", "userland", "checks"] {
            let path = self.root.join(name);
            match fs::remove_dir_all(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("cannot remove", path)(e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn check_cancelled(&self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    pub(crate) fn lock(&self) -> Result<Lock> {
        let path = self.root.join("lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io("cannot open the cache's lock", &path))?;
        let mut step = None;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(e) => return Err(Error::io("cannot lock", &path)(e.into())),
            }
            step.get_or_insert_with(|| self.progress.step("Waiting for another process that fills the cache", None));
            self.check_cancelled()?;
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        if let Some(step) = step {
            step.done();
        }
        // The holder of the lock owns all temporary files: those here were left by a process that was killed.
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                let _ = owners::remove(&entry.path());
            }
        }
        Ok(Lock(file))
    }

    /// A directory that vanishes unless it is renamed into place. Needs the lock, see there.
    pub(crate) fn temporary(&self, _: &Lock) -> Result<tempfile::TempDir> {
        tempfile::Builder::new()
            .prefix(TEMPORARY)
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir_in(&self.root)
            .map_err(Error::io("cannot create a temporary directory in", &self.root))
    }

    /// Hands out the directory `name` with its manifest, or has `make` fill it first. It is seen whole or not at all.
    pub(crate) fn artefact(
        &self,
        name: &str,
        make: impl FnOnce(&Lock, &Path) -> Result<Manifest>,
    ) -> Result<(PathBuf, Manifest)> {
        let place = self.root.join(name);
        if let Some(manifest) = intact::read(&place, |_| ()) {
            return Ok((place, manifest));
        }
        let lock = self.lock()?;
        // The process that held the lock before may have made it.
        let say = |file: &str| {
            if self.progress != Progress::Silent {
                let file = place.join(file);
                eprintln!("{} is not what was put there (its checksum differs): made anew", file.display());
            }
        };
        if let Some(manifest) = intact::read(&place, say) {
            return Ok((place, manifest));
        }
        self.fill(&place, &lock, make).map_err(|e| self.explain_space(e))
    }

    /// Has `make` fill a directory, and puts it in its place.
    fn fill(
        &self,
        place: &Path,
        lock: &Lock,
        make: impl FnOnce(&Lock, &Path) -> Result<Manifest>,
    ) -> Result<(PathBuf, Manifest)> {
        // Not left to apt, which waits without an end when its lists find no space.
        if self.free() < LEAST_FREE {
            return Err(self.no_space("nothing was begun"));
        }
        let temporary = self.temporary(lock)?;
        let manifest = make(lock, temporary.path()).inspect_err(|_| drop(owners::remove(temporary.path())))?;
        let text = serde_json::to_string_pretty(&manifest).map_err(|e| Error::Failed(e.to_string()))?;
        write(&temporary.path().join(MANIFEST), text.as_bytes())?;
        let relative = place.strip_prefix(&self.root).unwrap_or(place);
        let above = relative.parent().unwrap_or(Path::new(""));
        // Its user may put a link there, but not for what root makes and removes.
        let links = !self.is_of_another_user();
        let above = owners::directory(&self.root, above, links).map_err(Error::io("cannot create", place))?;
        let name = place.file_name().unwrap_or_default();
        // Anything without a manifest is the rest of something interrupted.
        let _ = owners::remove(&PathBuf::from(format!("/proc/self/fd/{}", above.as_raw_fd())).join(name));
        let from = temporary.keep();
        rustix::fs::renameat(rustix::fs::CWD, &from, &above, name).map_err(|e| {
            let _ = owners::remove(&from);
            Error::io("cannot rename into place", place)(e.into())
        })?;
        self.give_to_owner(place);
        Ok((place.to_path_buf(), manifest))
    }

    /// Removes artefacts of `kind` and a kernel that have not been used for a day; each edit of the sources makes a new
    /// one.
    pub(crate) fn forget_old(&self, kind: &str, kernel: &str) {
        for entry in fs::read_dir(self.path().join(kind)).into_iter().flatten().flatten() {
            let old = entry
                .metadata()
                .and_then(|m| m.modified())
                .is_ok_and(|t| t.elapsed().is_ok_and(|age| age.as_secs() > 24 * 3600));
            if old && entry.file_name().to_string_lossy().starts_with(&format!("{kernel}-")) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Bytes that are free on the cache's disk.
    fn free(&self) -> u64 {
        rustix::fs::statvfs(&self.root).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn no_space(&self, detail: &str) -> Error {
        Error::Failed(format!(
            "no space for the cache {}: {:.0} MB are free there, and QEMU, a kernel and its guest need about 2 GB; make \
             room, or name another directory with --cache or TELEGRAPHOS_CACHE; nothing partial was kept ({detail})",
            self.root.display(),
            self.free() as f64 / 1e6
        ))
    }

    /// An error that came of a full disk, with what to do about it.
    fn explain_space(&self, error: Error) -> Error {
        let text = error.to_string();
        if text.contains("No space left on device") { self.no_space(&text) } else { error }
    }

    /// Whether root uses a cache that a user can change, also meanwhile.
    fn is_of_another_user(&self) -> bool {
        rustix::process::geteuid().is_root() && fs::metadata(&self.root).is_ok_and(|owner| owner.uid() != 0)
    }

    /// What root makes once in a user's cache must stay the user's to change.
    fn give_to_owner(&self, place: &Path) {
        let Ok(owner) = fs::metadata(&self.root) else { return };
        if !self.is_of_another_user() {
            return;
        }
        let relative = place.strip_prefix(&self.root).unwrap_or(place);
        let above = relative.parent().filter(|above| !above.as_os_str().is_empty());
        let alone = above.into_iter().chain([Path::new("lock")]);
        let whole = [relative, Path::new("apt"), Path::new("debs")];
        let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
        let given = owners::give(&self.root, alone, whole, (uid, gid));
        if let Err(e) = given {
            log::warn!("{}: not all of it is its owner's: {e}", self.root.display());
        }
    }
}

const TEMPORARY: &str = "tmp-";
/// With less than this free nothing is made: one release's package lists, and what apt makes of them, take some 100 MB.
const LEAST_FREE: u64 = 200_000_000;

fn default_place(env: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let places = [("TELEGRAPHOS_CACHE", ""), ("XDG_CACHE_HOME", "telegraphos"), ("HOME", ".cache/telegraphos")];
    places.into_iter().find_map(|(name, below)| Some(env(name)?.join(below))).ok_or_else(|| {
        Error::Failed(
            "no place for the cache: none of TELEGRAPHOS_CACHE, XDG_CACHE_HOME and HOME is set; set TELEGRAPHOS_CACHE \
             to a directory with 2 GB of room"
                .into(),
        )
    })
}

/// The path that an environment variable has; an empty one counts as unset.
pub(crate) fn environment(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> Store {
        Store::open(Some(dir.to_path_buf()), Progress::Silent).unwrap()
    }

    #[test]
    fn cache_place_follows_the_environment() {
        let env = |set: &'static [(&'static str, &'static str)]| {
            move |name: &str| set.iter().find(|(k, _)| *k == name).map(|(_, v)| PathBuf::from(v))
        };
        let all = env(&[("TELEGRAPHOS_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")]);
        assert_eq!(default_place(all).unwrap(), Path::new("/a"));
        assert_eq!(
            default_place(env(&[("XDG_CACHE_HOME", "/b"), ("HOME", "/c")])).unwrap(),
            Path::new("/b/telegraphos")
        );
        assert_eq!(default_place(env(&[("HOME", "/c")])).unwrap(), Path::new("/c/.cache/telegraphos"));
        assert!(default_place(env(&[])).unwrap_err().to_string().contains("TELEGRAPHOS_CACHE"));
    }

    #[test]
    fn artefact_is_made_once_and_a_failure_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        let failed = store.artefact("x/y", |_, at| {
            fs::write(at.join("half"), "half").unwrap();
            Err(Error::Interrupted)
        });
        assert!(matches!(failed, Err(Error::Interrupted)));
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["lock"]);

        let wanted = Manifest { parts: vec!["it".into()], ..Manifest::default() };
        let (place, manifest) = store
            .artefact("x/y", |_, at| {
                fs::write(at.join("whole"), "whole").unwrap();
                Ok(wanted.clone())
            })
            .unwrap();
        assert_eq!(manifest, wanted);
        assert_eq!(fs::read_to_string(place.join("whole")).unwrap(), "whole");
        let (_, again) = store.artefact("x/y", |_, _| panic!("made twice")).unwrap();
        assert_eq!(again, wanted);
    }

    /// Root makes and removes nothing outside a cache that its user can change.
    #[test]
    fn what_root_makes_in_a_users_cache_stays_in_it_and_is_the_users() {
        use std::os::unix::fs::{chown, symlink};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let make = |name: &str| {
            open(dir.path()).artefact(name, |_, at| {
                fs::write(at.join("a"), "a").unwrap();
                Ok(Manifest::default())
            })
        };
        let owner = |path: &Path| fs::symlink_metadata(path).unwrap().uid();
        chown(dir.path(), Some(12345), Some(12345)).unwrap();
        let (place, _) = make("x/y").unwrap();
        for path in [place.join("a"), place.join(MANIFEST), dir.path().join("x"), dir.path().join("lock")] {
            assert_eq!(owner(&path), 12345, "{}", path.display());
        }
        fs::create_dir(outside.path().join("b")).unwrap();
        fs::write(outside.path().join("b/kept"), "").unwrap();
        symlink(outside.path(), dir.path().join("z")).unwrap();
        assert!(make("z/b").unwrap_err().to_string().contains("cannot create"));
        assert!(outside.path().join("b/kept").exists());
        assert_eq!((owner(outside.path()), owner(&outside.path().join("b"))), (0, 0));
        // A cache of root's own is used through the links in it.
        chown(dir.path(), Some(0), Some(0)).unwrap();
        make("z/b").unwrap();
        assert!(outside.path().join("b/a").exists());
    }

    #[test]
    fn concurrent_users_make_it_once() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    open(dir.path())
                        .artefact("shared", |_, _| {
                            made.fetch_add(1, Ordering::Relaxed);
                            std::thread::sleep(std::time::Duration::from_millis(50));
                            Ok(Manifest::default())
                        })
                        .unwrap();
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_full_disk_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let full = |_: &Lock, at: &Path| -> Result<Manifest> {
            Err(Error::io("cannot write", at)(std::io::Error::from_raw_os_error(28)))
        };
        let text = open(dir.path()).artefact("x", full).unwrap_err().to_string();
        for part in [dir.path().to_str().unwrap(), "MB are free", "about 2 GB", "TELEGRAPHOS_CACHE", "cannot write"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, ["lock"]);
    }

    #[test]
    fn leftovers_of_a_killed_process_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = open(dir.path());
        fs::create_dir(dir.path().join("tmp-dead")).unwrap();
        fs::write(dir.path().join("tmp-dead/part"), "x").unwrap();
        fs::create_dir(dir.path().join("half")).unwrap();
        store.artefact("half", |_, _| Ok(Manifest::default())).unwrap();
        assert!(!dir.path().join("tmp-dead").exists());
        assert!(dir.path().join("half/manifest.json").exists());
    }
}
