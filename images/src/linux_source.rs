// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source of Debian's kernel, for one that checks itself while it runs (`ci/debug.config`).

use crate::apt::{self, Apt};
use crate::files;
use crate::sources::Host;
use crate::store::Store;
use crate::{Error, KernelSeries, Manifest, Result};
use std::path::PathBuf;

/// The source of a series, packed.
#[derive(Clone, Debug)]
pub struct LinuxSource {
    /// What it is made of.
    pub manifest: Manifest,
    /// A tar archive, compressed by xz, with one directory.
    pub archive: PathBuf,
}

impl Store {
    /// The source of the newest kernel of a series, fetched once.
    pub fn linux_source(&self, series: KernelSeries) -> Result<LinuxSource> {
        let package = package(series)?;
        let (at, manifest) = self.artefact(&format!("linux-source/{series}"), |lock, at| {
            let host = Host::here()?;
            let mut looked = Vec::new();
            for release in series.releases(&host) {
                looked.push(release.name.clone());
                let apt = Apt::open(self, lock, |_| release)?;
                let Some(version) = apt.version(&package)? else { continue };
                let what = format!("the source of Linux {version}");
                let debs = apt.fetch(&what, &apt.single(&[&package])?)?;
                let scratch = at.join("package");
                apt::unpack(self, &what, &debs, &scratch)?;
                let (from, to) = (scratch.join(in_package(&package)), at.join(archive(&package)));
                std::fs::rename(&from, &to).map_err(Error::io("cannot move", &from))?;
                files::remove_dir(&scratch)?;
                return Ok(Manifest::of(format!("{what} (Debian {})", apt.release.name), apt::records(debs)));
            }
            let remedy =
                "add Debian's security archive to the host's apt sources, or unpack a source by hand (ci/README.md)";
            Err(Error::no_package(&package, looked.join(", "), remedy))
        })?;
        let archive = at.join(archive(&package));
        match archive.is_file() {
            true => Ok(LinuxSource { manifest, archive }),
            false => {
                Err(Error::missing("the kernel's source", archive, "remove that directory, and it is fetched anew"))
            }
        }
    }
}

/// Debian has a source by a series' number, and none by `newest`.
fn package(series: KernelSeries) -> Result<String> {
    match series {
        KernelSeries::Newest => {
            Err(Error::Usage("the source of a kernel series: expected 6.1 or 6.12, not newest".into()))
        }
        series => Ok(format!("linux-source-{series}")),
    }
}

fn archive(package: &str) -> String {
    format!("{package}.tar.xz")
}

fn in_package(package: &str) -> String {
    format!("usr/src/{}", archive(package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_with_a_number_has_a_source() {
        assert_eq!(package(KernelSeries::V6_12).unwrap(), "linux-source-6.12");
        assert_eq!(in_package(&package(KernelSeries::V6_1).unwrap()), "usr/src/linux-source-6.1.tar.xz");
        let refused = package(KernelSeries::Newest).unwrap_err().to_string();
        assert!(refused.contains("6.12") && refused.contains("newest"), "{refused}");
    }
}
