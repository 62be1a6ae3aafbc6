// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel a guest runs: Debian's, by series or by version, or the user's own.

use crate::sources::{Host, Release};
use crate::{Error, Result};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The series of Debian's kernels that a guest can run, of the cloud flavour for amd64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelSeries {
    /// Linux 6.1, of Debian 12: the oldest the driver supports.
    V6_1,
    /// Linux 6.12, of Debian 13, and of Debian 12's security suite.
    #[default]
    V6_12,
    /// Whatever Debian's backports or testing hold.
    Newest,
}

impl KernelSeries {
    /// Every series, oldest first.
    pub const ALL: [KernelSeries; 3] = [KernelSeries::V6_1, KernelSeries::V6_12, KernelSeries::Newest];

    /// Beginning of the package names.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            KernelSeries::V6_1 => "linux-image-6.1.",
            KernelSeries::V6_12 => "linux-image-6.12.",
            KernelSeries::Newest => "linux-image-",
        }
    }

    /// Releases to ask: the host's own first, since their package lists and compiler may be at hand.
    pub(crate) fn releases(self, host: &Host) -> Vec<Release> {
        let own = host.release().name;
        let names: &[&str] = match self {
            KernelSeries::V6_1 => &[&own, "bookworm"],
            KernelSeries::V6_12 => &[&own, "trixie", "bookworm"],
            KernelSeries::Newest => &["trixie-backports", "testing"],
        };
        let mut releases: Vec<Release> = Vec::new();
        for name in names {
            if !releases.iter().any(|r| r.name == *name) {
                releases.push(Release::named(name));
            }
        }
        releases
    }
}

impl fmt::Display for KernelSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            KernelSeries::V6_1 => "6.1",
            KernelSeries::V6_12 => "6.12",
            KernelSeries::Newest => "newest",
        })
    }
}

impl FromStr for KernelSeries {
    type Err = Error;
    fn from_str(text: &str) -> Result<KernelSeries> {
        KernelSeries::ALL
            .into_iter()
            .find(|s| s.to_string() == text)
            .ok_or_else(|| Error::Failed(format!("unknown kernel series {text:?}; expected 6.1, 6.12 or newest")))
    }
}

/// A kernel, as `--kernel` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelChoice {
    /// The newest packaged kernel of a series, of Debian's cloud flavour.
    Series(KernelSeries),
    /// The same of the generic flavour, which has every driver, most of them as modules.
    Generic(KernelSeries),
    /// One of Debian's packages, by its release (`6.12.57+deb13-amd64`) or the beginning of it (`6.12.57`).
    Version(String),
    /// The user's own: a bzImage, a vmlinux, or the directory of a kernel build.
    Own(PathBuf),
}

impl Default for KernelChoice {
    fn default() -> KernelChoice {
        KernelChoice::Series(KernelSeries::default())
    }
}

impl From<KernelSeries> for KernelChoice {
    fn from(series: KernelSeries) -> KernelChoice {
        KernelChoice::Series(series)
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KernelChoice::Series(series) => series.fmt(f),
            KernelChoice::Generic(series) => f.pad(&format!("{series}{GENERIC}")),
            KernelChoice::Version(version) => f.pad(version),
            KernelChoice::Own(path) => f.pad(&path.display().to_string()),
        }
    }
}

/// Behind a series: its generic flavour.
const GENERIC: &str = "-generic";

/// What a version may consist of; it becomes a name in the cache.
fn is_version(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || ".+-~".contains(c);
    // With a point: a number alone is no kernel of Debian's.
    text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.') && text.chars().all(plain)
}

impl FromStr for KernelChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<KernelChoice> {
        let series = |name: &str| KernelSeries::ALL.into_iter().find(|series| series.to_string() == name);
        if let Some(series) = series(text) {
            return Ok(KernelChoice::Series(series));
        }
        if let Some(series) = text.strip_suffix(GENERIC).and_then(series) {
            return Ok(KernelChoice::Generic(series));
        }
        // As a shell leaves it in `--kernel=~/linux`, and as a file of settings has it.
        if let Some(below) = text.strip_prefix("~/") {
            let home = std::env::var_os("HOME").unwrap_or_default();
            return Ok(KernelChoice::Own(PathBuf::from(home).join(below)));
        }
        if text.contains('/') || text == "." || text == ".." {
            return Ok(KernelChoice::Own(text.into()));
        }
        let version = text.strip_prefix("linux-image-").unwrap_or(text);
        // At least three numbers, so that a series that does not exist is no version.
        if is_version(version) && version.split(['+', '-']).next().is_some_and(|v| v.split('.').count() >= 3) {
            return Ok(KernelChoice::Version(version.into()));
        }
        Err(Error::Usage(format!(
            "unknown kernel {text:?}; expected a series (6.1, 6.12, newest; 6.12-generic for the generic flavour), a version of \
             Debian's such as 6.12.57 or linux-image-6.12.57+deb13-amd64, or a path with a slash: a bzImage, a vmlinux or a kernel build tree, \
             such as ./{text}"
        )))
    }
}

crate::error::read_as_text!(KernelChoice);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_versions_and_paths_are_distinguished() {
        let parse = |text: &str| text.parse::<KernelChoice>().unwrap();
        assert_eq!(parse("6.1"), KernelChoice::Series(KernelSeries::V6_1));
        assert_eq!(parse("newest"), KernelChoice::Series(KernelSeries::Newest));
        assert_eq!(parse("6.12-generic"), KernelChoice::Generic(KernelSeries::V6_12));
        assert_eq!(parse("6.12-generic").to_string(), "6.12-generic");
        assert_eq!(parse("6.12.57"), KernelChoice::Version("6.12.57".into()));
        let generic = "6.12.57+deb13-amd64";
        assert_eq!(parse(&format!("linux-image-{generic}")), KernelChoice::Version(generic.into()));
        assert_eq!(parse("6.1.0-56-cloud-amd64"), KernelChoice::Version("6.1.0-56-cloud-amd64".into()));
        assert_eq!(parse("./linux"), KernelChoice::Own("./linux".into()));
        assert_eq!(parse("/boot/vmlinuz"), KernelChoice::Own("/boot/vmlinuz".into()));
        for wrong in ["", "5.10", "5.10-generic", "linux", "6.12.x y", "linux-image-amd64"] {
            let text = wrong.parse::<KernelChoice>().unwrap_err().to_string();
            assert!(text.contains(&format!("{wrong:?}")) && text.contains("6.12") && text.contains("newest"), "{text}");
        }
    }

    #[test]
    fn series_round_trip() {
        for s in KernelSeries::ALL {
            assert_eq!(s.to_string().parse::<KernelSeries>().unwrap(), s);
        }
        assert_eq!(KernelSeries::default().to_string(), "6.12");
        let e = "5.10".parse::<KernelSeries>().unwrap_err().to_string();
        assert!(e.contains("5.10") && e.contains("6.12") && e.contains("newest"), "{e}");
    }

    #[test]
    fn own_suites_come_first() {
        let on = |code: &str, s: KernelSeries| {
            let host = Host { codename: code.into(), ..Host::default() };
            s.releases(&host).into_iter().map(|r| r.name).collect::<Vec<_>>()
        };
        assert_eq!(on("bookworm", KernelSeries::V6_12), ["bookworm", "trixie"]);
        assert_eq!(on("trixie", KernelSeries::V6_12), ["trixie", "bookworm"]);
        assert_eq!(on("trixie", KernelSeries::V6_1), ["trixie", "bookworm"]);
        assert_eq!(on("forky", KernelSeries::V6_12), ["testing", "trixie", "bookworm"]);
        assert_eq!(on("bookworm", KernelSeries::Newest), ["trixie-backports", "testing"]);
    }
}
