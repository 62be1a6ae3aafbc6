// SPDX-License-Identifier: MIT OR Apache-2.0
//! Debian kernels, each with the build root its modules are built in.

use crate::apt::{self, Apt};
use crate::config::Config;
use crate::files;
use crate::kernel::{Headers, Kernel, Modules};
use crate::manifest::FileRecord;
use crate::sources::Host;
use crate::store::{Lock, Store};
use crate::{Error, KernelChoice, KernelSeries, Manifest, Result, own, vmlinux};
use std::fs;
use std::path::Path;

/// The flavour for virtual machines.
const CLOUD: &str = "-cloud-amd64";
/// The flavour for everything else: NVMe and ext4 are modules.
const GENERIC: &str = "-amd64";

/// What kbuild runs beside the compiler, which the headers depend on. All are `Essential` on Debian, hence no package's
/// dependency, but for make and what objtool or compression may require.
const BUILD_TOOLS: [&str; 13] = [
    "bash",
    "binutils",
    "coreutils",
    "dash",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "make",
    "mawk",
    "sed",
    "tar",
    "xz-utils",
];

impl Store {
    /// A kernel of Debian's, fetched once together with its build root, or the user's own. Of a series it is the
    /// newest.
    pub fn kernel(&self, choice: impl Into<KernelChoice>) -> Result<Kernel> {
        let choice = choice.into();
        if let KernelChoice::Own(path) = &choice {
            return own::kernel(self, path, None);
        }
        let (dir, manifest) = self.artefact(&format!("kernel/{choice}"), |lock, at| fetch(self, lock, &choice, at))?;
        let release = fs::read_to_string(dir.join("release")).map_err(Error::io("cannot read", dir.join("release")))?;
        let root = dir.join("root");
        let config = Config::read(&root.join(format!("usr/src/linux-headers-{release}/.config")))?;
        let (name, vmlinux) = (choice.to_string(), dir.join("vmlinux"));
        let (headers, modules) = (Headers::Root(root), Modules::Package);
        Ok(Kernel { release, vmlinux, manifest, name, config, lacks: None, headers, modules })
    }
}

/// The release of Debian that has the kernel, and the kernel's.
fn find<'a>(store: &'a Store, lock: &'a Lock, choice: &KernelChoice) -> Result<(Apt<'a>, String)> {
    let host = Host::here()?;
    let (prefix, releases) = match choice {
        KernelChoice::Version(version) => {
            let all = KernelSeries::ALL.into_iter().flat_map(|series| series.releases(&host));
            (format!("linux-image-{version}"), all.collect())
        }
        KernelChoice::Series(series) | KernelChoice::Generic(series) => {
            (series.prefix().to_owned(), series.releases(&host))
        }
        KernelChoice::Own(path) => return Err(Error::Usage(format!("{} is no package", path.display()))),
    };
    let wanted = |package: &str| -> Option<String> {
        let release = match choice {
            // The generic flavour only where it is asked for by its whole name.
            KernelChoice::Version(version) if package == format!("linux-image-{version}") => Some(version.as_str()),
            KernelChoice::Version(version) => kernel_release(package, CLOUD).filter(|release| is_of(release, version)),
            KernelChoice::Generic(_) => kernel_release(package, GENERIC),
            _ => kernel_release(package, CLOUD),
        };
        release.map(str::to_owned)
    };
    let mut best: Option<(Apt<'_>, String)> = None;
    let mut looked: Vec<String> = Vec::new();
    for release in releases {
        if looked.contains(&release.name) {
            continue;
        }
        looked.push(release.name.clone());
        let apt = Apt::open(store, lock, |_| release)?;
        let names: Vec<_> = apt.names(&prefix)?.into_iter().filter(|name| wanted(name).is_some()).collect();
        let candidates = apt.show(&names)?;
        let found = candidates.iter().filter_map(|p| wanted(p.get("package")?)).max_by_key(|r| numbers(r));
        let Some(found) = found else { continue };
        if best.as_ref().is_none_or(|(_, old)| upstream(&found) > upstream(old)) {
            best = Some((apt, found));
        }
        if !matches!(choice, KernelChoice::Series(KernelSeries::Newest) | KernelChoice::Generic(KernelSeries::Newest)) {
            break;
        }
    }
    let flavour = match choice {
        KernelChoice::Version(version) if version.ends_with(GENERIC) => "",
        KernelChoice::Generic(_) => GENERIC,
        _ => CLOUD,
    };
    best.ok_or_else(|| {
        let remedy = "Debian's archive keeps the newest of each series: take a series (6.1, 6.12, newest), a version that \
                      `apt-cache search linux-image` lists, or add Debian's security archive to the host's apt sources";
        Error::no_package(format!("{prefix}*{flavour}"), looked.join(", "), remedy)
    })
}

/// Whether a release such as `6.12.57+deb13-cloud-amd64` is of the version `6.12.57` or `6.12.57+deb13`.
fn is_of(release: &str, version: &str) -> bool {
    release.strip_prefix(version).is_some_and(|rest| rest.starts_with(['+', '-']))
}

fn fetch(store: &Store, lock: &Lock, choice: &KernelChoice, at: &Path) -> Result<Manifest> {
    let (apt, uname) = find(store, lock, choice)?;

    // Since 7.2 linux-image is an empty package over linux-binary and linux-modules.
    let image = format!("linux-image-{uname}");
    let binary = format!("linux-binary-{uname}");
    let split =
        apt.show(std::slice::from_ref(&image))?.iter().any(|p| p.get("depends").is_some_and(|d| d.contains(&binary)));
    let image = if split { binary } else { image };
    let headers = format!("linux-headers-{uname}");
    let mut wanted: Vec<&str> = BUILD_TOOLS.to_vec();
    wanted.push(&headers);
    let mut debs = apt.closure(&wanted)?;
    // The headers of some versions depend on the kernel and its boot tools, of which a build needs nothing.
    debs.retain(|d| {
        !["linux-image-", "linux-modules-", "linux-binary-", "linux-initramfs", "initramfs-tools"]
            .iter()
            .any(|p| d.name.starts_with(p))
    });
    debs.extend(apt.single(&[&image, "sparse"])?);
    let what = format!("Linux {uname} and its compiler");
    let (images, tools): (Vec<_>, Vec<_>) = apt.fetch(&what, &debs)?.into_iter().partition(|d| d.record.name == image);

    let root = at.join("root");
    apt::unpack(store, &what, &tools, &root)?;
    finish_root(&root)?;

    let scratch = at.join("image");
    files::make_dir(&scratch)?;
    for deb in &images {
        apt::unpack_one(&deb.path, &scratch, &["*/kernel"])?;
    }
    let vmlinuz = [format!("boot/vmlinuz-{uname}"), format!("usr/lib/modules/{uname}/vmlinuz")]
        .map(|p| scratch.join(p))
        .into_iter()
        .find(|p| p.is_file())
        .ok_or_else(|| {
            let remedy = format!("the package {image} has a layout unknown to this program; report it");
            Error::missing("the kernel", scratch.join("boot"), remedy)
        })?;
    let elf = vmlinux::extract(&files::read(&vmlinuz)?)
        .map_err(|source| Error::Failed(format!("cannot unpack the kernel {}: {source}", vmlinuz.display())))?;
    files::write(&at.join("vmlinux"), &elf)?;
    files::write(&at.join("release"), uname.as_bytes())?;
    files::remove_dir(&scratch)?;

    let version = images.first().map(|d| d.record.version.clone()).unwrap_or_default();
    let part = format!("kernel {uname} {version} (Debian {})", apt.release.name);
    let files = vec![FileRecord::of(at, "vmlinux")?];
    Ok(Manifest { files, ..Manifest::of(part, apt::records(images.into_iter().chain(tools))) })
}

/// What maintainer scripts would have done, as far as a build needs it.
fn finish_root(root: &Path) -> Result<()> {
    let bin = root.join("usr/bin");
    for (link, target) in [("awk", "mawk"), ("sh", "dash")] {
        files::link(target, &bin.join(link))?;
    }
    for dir in ["tmp", "proc", "dev", "build"] {
        files::make_dir(root.join(dir))?;
    }
    Ok(())
}

/// `6.12.117+deb12-cloud-amd64` of `linux-image-6.12.117+deb12-cloud-amd64`; nothing for other flavours, metapackages,
/// debug and unsigned ones.
fn kernel_release<'a>(package: &'a str, flavour: &str) -> Option<&'a str> {
    let release = package.strip_prefix("linux-image-")?;
    let version = release.strip_suffix(flavour)?;
    // A flavour has a name after the version: "-cloud-amd64", "-rt-amd64".
    if version
        .split(['+', '-'])
        .skip(1)
        .any(|part| part.starts_with(|c: char| c.is_ascii_alphabetic()) && !part.starts_with("deb"))
    {
        return None;
    }
    // "6.12-cloud-amd64" and "cloud-amd64" are metapackages.
    let dots = version.split(['+', '-']).next()?.split('.').count();
    (version.starts_with(|c: char| c.is_ascii_digit()) && dots == 3).then_some(release)
}

fn numbers(release: &str) -> Vec<u64> {
    // That ends the names of all flavours, and its digits are no version.
    release.trim_end_matches(GENERIC).split(|c: char| !c.is_ascii_digit()).filter_map(|p| p.parse().ok()).collect()
}

/// The numbers before Debian's own.
fn upstream(release: &str) -> Vec<u64> {
    numbers(release.split('+').next().unwrap_or(release))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_kernels_count_and_the_newest_wins() {
        for not in [
            "linux-image-cloud-amd64",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64-dbg",
            "linux-image-6.12.117+deb12-cloud-amd64-unsigned",
            "linux-image-6.12.117+deb12-amd64",
            "linux-headers-6.12.117+deb12-cloud-amd64",
        ] {
            assert_eq!(kernel_release(not, CLOUD), None, "{not}");
        }
        for not in [
            "linux-image-amd64",
            "linux-image-6.12-amd64",
            "linux-image-6.12.117+deb12-cloud-amd64",
            "linux-image-6.12.117+deb12-rt-amd64",
            "linux-image-6.12.117+deb12-amd64-dbg",
            "linux-image-6.12.117+deb12-amd64-unsigned",
            "linux-image-6.1.0-56-cloud-amd64",
        ] {
            assert_eq!(kernel_release(not, GENERIC), None, "{not}");
        }
        for generic in ["6.12.117+deb12-amd64", "6.12.38+deb13.1-amd64", "6.1.0-56-amd64"] {
            assert_eq!(kernel_release(&format!("linux-image-{generic}"), GENERIC), Some(generic));
        }
        let best =
            |names: &[&'static str]| names.iter().filter_map(|n| kernel_release(n, CLOUD)).max_by_key(|r| numbers(r));
        assert_eq!(
            best(&["linux-image-6.1.0-9-cloud-amd64", "linux-image-6.1.0-56-cloud-amd64"]),
            Some("6.1.0-56-cloud-amd64")
        );
        assert_eq!(
            best(&[
                "linux-image-6.12.115+deb13.1-cloud-amd64",
                "linux-image-6.12.115+deb13-cloud-amd64",
                "linux-image-6.12.99+deb13-cloud-amd64"
            ]),
            Some("6.12.115+deb13.1-cloud-amd64")
        );
        assert!(upstream("7.2.12+deb14-cloud-amd64") == upstream("7.2.12+deb13-cloud-amd64"));
        assert!(upstream("7.3.1+deb14-cloud-amd64") > upstream("7.2.12+deb13-cloud-amd64"));
    }

    #[test]
    fn a_version_is_a_whole_one() {
        assert!(is_of("6.12.57+deb13-cloud-amd64", "6.12.57"));
        assert!(is_of("6.12.57+deb13-cloud-amd64", "6.12.57+deb13"));
        assert!(!is_of("6.12.57+deb13-cloud-amd64", "6.12.5"));
        assert!(!is_of("6.12.57+deb13-cloud-amd64", "6.12.57+deb1"));
    }
}
