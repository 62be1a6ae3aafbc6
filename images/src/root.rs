// SPDX-License-Identifier: MIT OR Apache-2.0
//! The root file system of the user's choice, and directories of the host inside a guest.

use crate::debian::SUITES;
use crate::disk::Disk;
use crate::{Error, Result};
use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// A root file system, as `--root` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootChoice {
    /// A directory of the host, never changed: what a guest writes is in its memory.
    Directory(PathBuf),
    /// A disk image, raw or qcow2, never changed.
    Disk(PathBuf),
    /// A directory or a disk image, to be looked at when it is used.
    Path(PathBuf),
    Host,
    /// A root of Debian's packages, of the host's own release without a suite.
    Debian {
        suite: Option<String>,
        /// Packages beside the essential ones.
        packages: Vec<String>,
    },
}

impl FromStr for RootChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<RootChoice> {
        match text {
            "" => Err(Error::Usage("--root is empty; expected a directory, a disk image, debian, or host".into())),
            "host" => Ok(RootChoice::Host),
            _ if text.strip_prefix("debian").is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '+'])) => {
                debian(text)
            }
            _ => Ok(RootChoice::Path(text.into())),
        }
    }
}

/// Reads `debian[:SUITE][+PACKAGE...]`.
fn debian(text: &str) -> Result<RootChoice> {
    let usage = |why: String| {
        let expected = "expected debian[:SUITE][+PACKAGE...], such as debian:trixie+openssh-server+iperf3";
        Error::Usage(format!("root {text:?}: {why}; {expected}"))
    };
    let rest = &text["debian".len()..];
    let (suite, packages) = rest.split_once('+').map_or((rest, None), |(suite, packages)| (suite, Some(packages)));
    let suite = suite.strip_prefix(':').map(str::to_owned);
    if let Some(unknown) = suite.as_deref().filter(|suite| !SUITES.contains(suite)) {
        return Err(usage(format!("unknown suite {unknown:?}, known are {}", SUITES.join(", "))));
    }
    // Debian's rule; a plus sign is part of some names (g++), so a name begins after each one that a letter follows.
    let mut names: Vec<String> = Vec::new();
    for part in packages.into_iter().flat_map(|packages| packages.split('+')) {
        match names.last_mut() {
            Some(last) if part.is_empty() => last.push('+'),
            _ => names.push(part.to_owned()),
        }
    }
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let good = |name: &String| name.len() >= 2 && name.chars().all(plain) && name.starts_with(|c: char| c != '-');
    if let Some(wrong) = names.iter().find(|name| !good(name)) {
        return Err(usage(format!("{wrong:?} is no name of a package")));
    }
    Ok(RootChoice::Debian { suite, packages: names })
}

impl fmt::Display for RootChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RootChoice::Host => f.pad("host"),
            RootChoice::Debian { suite, packages } => {
                write!(f, "debian")?;
                suite.iter().try_for_each(|suite| write!(f, ":{suite}"))?;
                packages.iter().try_for_each(|package| write!(f, "+{package}"))
            }
            RootChoice::Directory(path) | RootChoice::Disk(path) | RootChoice::Path(path) => path.display().fmt(f),
        }
    }
}

impl RootChoice {
    /// The same with what it names looked at: a directory or a disk image that can be read.
    pub(crate) fn resolve(&self) -> Result<RootChoice> {
        let path = match self {
            RootChoice::Debian { .. } => return Ok(self.clone()),
            RootChoice::Host => Path::new("/"),
            RootChoice::Directory(path) | RootChoice::Disk(path) | RootChoice::Path(path) => path,
        };
        let usage = |why: String| {
            Error::Usage(format!("the root {}: {why}; give a directory, a disk image, debian, or host", path.display()))
        };
        let place = path.canonicalize().map_err(|e| usage(e.to_string()))?;
        let metadata = fs::metadata(&place).map_err(|e| usage(e.to_string()))?;
        if metadata.is_dir() {
            let mut entries = fs::read_dir(&place).map_err(|e| usage(format!("cannot read that directory: {e}")))?;
            if entries.next().is_none() {
                return Err(usage("that directory is empty".into()));
            }
            if !["bin", "usr/bin"].iter().any(|programs| place.join(programs).is_dir()) {
                return Err(usage("that directory has neither bin nor usr/bin: it is no root".into()));
            }
            return Ok(RootChoice::Directory(place));
        }
        Disk::examine(&place)?;
        Ok(RootChoice::Disk(place))
    }
}

/// Where guests have what the boot root brings along.
const TOOLS: &str = "/run/telegraphos-image";

/// A directory of the host inside the guests, as `--share HOSTDIR:GUESTDIR[:ro]` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    pub host: PathBuf,
    pub guest: String,
    /// Guests cannot change it.
    pub read_only: bool,
}

impl FromStr for Share {
    type Err = Error;

    fn from_str(text: &str) -> Result<Share> {
        let usage = |why: &str| {
            Error::Usage(format!(
                "share {text:?}: {why}; expected HOSTDIR:GUESTDIR[:ro], such as ./results:/mnt/results"
            ))
        };
        let (text_of_paths, read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (host, guest) = text_of_paths.split_once(':').ok_or_else(|| usage("there is no directory of guests"))?;
        if host.is_empty() {
            return Err(usage("there is no directory of the host"));
        }
        if !guest.starts_with('/') {
            return Err(usage("the directory of guests is not absolute"));
        }
        if Path::new(guest).components().any(|part| part == Component::ParentDir) {
            return Err(usage("the directory of guests leads outside by \"..\""));
        }
        // It is a word of the kernel's command line.
        if !guest.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+@%=~".contains(&b)) {
            return Err(usage("the directory of guests has a character other than letters, digits and /._-+@%=~"));
        }
        // `/mnt//x/.` is `/mnt/x`.
        let names = Path::new(guest).components().filter(|part| matches!(part, Component::Normal(_)));
        let guest = Path::new("/").join(names.collect::<PathBuf>());
        let within = |dir: &str| guest.starts_with(dir);
        if guest == Path::new("/") || ["/dev", "/proc", "/sys"].into_iter().any(within) {
            return Err(usage("a share cannot be the root, /dev, /proc or /sys"));
        }
        if guest == Path::new("/run") || within(TOOLS) {
            return Err(usage("a share cannot be /run, where the guest has its agent; a directory in it can be one"));
        }
        let guest = guest.to_str().ok_or_else(|| usage("the directory of guests is no text"))?.to_owned();
        Ok(Share { host: host.into(), guest, read_only })
    }
}

impl Share {
    /// Puts each behind those that it is in, so that none hides another.
    ///
    /// # Errors
    ///
    /// Two are at one place; or one is in another, whose directory of the host has no place for it: it would have to be
    /// made there.
    pub fn in_order(mut shares: Vec<Share>) -> Result<Vec<Share>> {
        shares.sort_by_key(|share| Path::new(&share.guest).components().count());
        for (n, share) in shares.iter().enumerate() {
            let Share { guest, .. } = share;
            // The innermost is the last.
            let Some(outer) = shares[..n].iter().rfind(|outer| Path::new(guest).starts_with(&outer.guest)) else {
                continue;
            };
            let rest = Path::new(guest).strip_prefix(&outer.guest).unwrap_or(Path::new(""));
            if rest == Path::new("") {
                return Err(Error::Usage(format!("two shares are at {guest}; give each a place of its own")));
            }
            let place = outer.host.join(rest);
            if !place.is_dir() {
                let (outer, place) = (&outer.guest, place.display());
                return Err(Error::Usage(format!(
                    "the share {guest} is in the share {outer}, and {place} is no directory: make it, or give the share \
                     another place"
                )));
            }
        }
        Ok(shares)
    }

    /// The same with the directory of the host looked at.
    pub(crate) fn resolve(&self) -> Result<Share> {
        let usage = |why: String| {
            Error::Usage(format!("share {}: {why}; give a directory of this machine that exists", self.host.display()))
        };
        let host = self.host.canonicalize().map_err(|e| usage(e.to_string()))?;
        if !host.is_dir() {
            return Err(usage("it is no directory".into()));
        }
        fs::read_dir(&host).map_err(|e| usage(format!("cannot read that directory: {e}")))?;
        Ok(Share { host, ..self.clone() })
    }
}

crate::error::read_as_text!(RootChoice, Share);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_refused() {
        let share = |text: &str| text.parse::<Share>().map_err(|e| e.to_string());
        let made = |host: &str, guest: &str, read_only| Share { host: host.into(), guest: guest.into(), read_only };
        assert_eq!(share("./out:/mnt/out"), Ok(made("./out", "/mnt/out", false)));
        assert_eq!(share("/a:/b:ro"), Ok(made("/a", "/b", true)));
        assert_eq!(share("/a:/mnt//x/./"), Ok(made("/a", "/mnt/x", false)));
        assert_eq!(share("/a:/run/x"), Ok(made("/a", "/run/x", false)));
        for (wrong, why) in [
            ("/a", "no directory of guests"),
            (":/b", "no directory of the host"),
            ("/a:b", "not absolute"),
            ("/a:/b/../../etc", "leads outside"),
            ("/a:/b c", "a character other"),
            ("/a:/", "cannot be the root"),
            ("/a://.", "cannot be the root"),
            ("/a:/proc/x", "cannot be the root"),
            ("/a:/run", "cannot be /run"),
            ("/a:/run/", "cannot be /run"),
            ("/a:/run/telegraphos-image/bin", "cannot be /run"),
        ] {
            let text = share(wrong).unwrap_err();
            assert!(text.contains(why) && text.contains("HOSTDIR:GUESTDIR"), "{text}");
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = made(file.path().to_str().unwrap(), "/b", false).resolve().unwrap_err().to_string();
        assert!(text.contains("it is no directory"), "{text}");
        assert!(made("/nonexistent/x", "/b", false).resolve().is_err());
    }

    #[test]
    fn shares_come_behind_those_that_they_are_in() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/in/ner")).unwrap();
        let share =
            |host: &str, guest: &str| -> Share { format!("{}/{host}:{guest}", dir.path().display()).parse().unwrap() };
        let order = |shares: &[Share]| {
            let shares = Share::in_order(shares.to_vec()).map_err(|e| e.to_string())?;
            Ok::<_, String>(shares.into_iter().map(|share| share.guest).collect::<Vec<_>>())
        };
        let (outer, inner, other) = (share("a", "/mnt/x"), share("b", "/mnt/x/in"), share("c", "/mnt/xy"));
        let innermost = share("d", "/mnt/x/in/ner");
        assert_eq!(order(&[inner.clone(), other, outer.clone()]).unwrap(), ["/mnt/xy", "/mnt/x", "/mnt/x/in"]);
        // It would be made in b, which is what is seen there.
        let why = order(&[innermost.clone(), outer.clone(), inner]).unwrap_err();
        assert!(why.contains("/b/ner is no directory: make it"), "{why}");
        assert_eq!(order(&[innermost, outer.clone()]).unwrap(), ["/mnt/x", "/mnt/x/in/ner"]);
        let why = order(&[outer, share("e", "/mnt/x/")]).unwrap_err();
        assert!(why.contains("two shares are at /mnt/x"), "{why}");
    }

    #[test]
    fn debian_roots_are_read() {
        let read = |text: &str| match text.parse::<RootChoice>().unwrap() {
            RootChoice::Debian { suite, packages } => (suite.unwrap_or_default(), packages.join(" ")),
            other => panic!("{other:?}"),
        };
        let of = |suite: &str, packages: &str| (suite.to_owned(), packages.to_owned());
        assert_eq!(read("debian"), of("", ""));
        assert_eq!(read("debian:trixie"), of("trixie", ""));
        assert_eq!(read("debian+iperf3+openssh-server"), of("", "iperf3 openssh-server"));
        assert_eq!(read("debian:bookworm+g+++make"), of("bookworm", "g++ make"));
        for wrong in ["debian:etch", "debian+", "debian+A", "debian+a b", "debian:trixie+-x"] {
            let text = wrong.parse::<RootChoice>().unwrap_err().to_string();
            assert!(text.contains("debian[:SUITE][+PACKAGE...]"), "{text}");
        }
        let text = "debian:trixie+iperf3";
        assert_eq!(text.parse::<RootChoice>().unwrap().to_string(), text);
        assert_eq!("debianroot".parse::<RootChoice>().unwrap(), RootChoice::Path("debianroot".into()));
    }

    #[test]
    fn roots_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let look = |path: &Path| RootChoice::Path(path.into()).resolve().map_err(|e| e.to_string());
        assert!(look(dir.path()).unwrap_err().contains("is empty"));
        assert!(look(&dir.path().join("gone")).unwrap_err().contains("No such file"));
        fs::create_dir(dir.path().join("etc")).unwrap();
        assert!(look(dir.path()).unwrap_err().contains("neither bin nor usr/bin"));
        fs::create_dir(dir.path().join("bin")).unwrap();
        assert_eq!(look(dir.path()), Ok(RootChoice::Directory(dir.path().canonicalize().unwrap())));
        let image = dir.path().join("disk");
        fs::write(&image, "short").unwrap();
        assert!(look(&image).unwrap_err().contains("too short"));
        fs::write(&image, [0; 600]).unwrap();
        assert!(matches!(look(&image), Ok(RootChoice::Disk(_))));
        // Before anything is built for it.
        fs::write(&image, [b"QFI\xfb\0\0\0\x02", &[1; 600][..]].concat()).unwrap();
        assert!(look(&image).unwrap_err().contains("it has a backing file"));
        assert_eq!("host".parse::<RootChoice>().unwrap().resolve().unwrap(), RootChoice::Directory("/".into()));
        assert!("".parse::<RootChoice>().is_err());
    }
}
