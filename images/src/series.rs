// SPDX-License-Identifier: MIT OR Apache-2.0
//! The series of Debian's kernels.

use crate::sources::{Host, Release};
use crate::{Error, Result};
use std::fmt;
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

#[cfg(test)]
mod tests {
    use super::*;

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
