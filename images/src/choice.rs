// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which kernel a guest runs: Debian's, by series or by version, or the user's own.

use crate::series::KernelSeries;
use crate::{Error, Result};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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

impl<'de> Deserialize<'de> for KernelChoice {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<KernelChoice, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

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
}
