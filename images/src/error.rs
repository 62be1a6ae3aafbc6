// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, each with what to do next.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be found, fetched or built. The text names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb ("cannot write").
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A program of the host could not be started.
    #[error("cannot run {program}: {source}; {remedy}")]
    Spawn {
        /// Name of the program.
        program: String,
        /// The system's answer.
        source: std::io::Error,
        /// What to do.
        remedy: String,
    },
    /// The host's apt configuration has no source this crate could derive Debian's suites from.
    #[error(
        "no source of Debian's main archive in the host's apt configuration (looked in {looked}): {why}; add one, for \
         example through the file /etc/apt/sources.list.d/debian.sources, and try again"
    )]
    NoDebianSource {
        /// Where was looked.
        looked: String,
        /// What was found instead.
        why: String,
    },
    /// apt could not verify a suite with the host's keyring.
    #[error(
        "the host's Debian keyring {keyring} does not know the keys that sign {suite}; run once as root:\n    apt-get \
         update && apt-get install --yes debian-archive-keyring\nand try again\n(apt said: {detail})"
    )]
    KeyringTooOld {
        /// The suite apt refused.
        suite: String,
        /// The keyring in use.
        keyring: String,
        /// apt's own line.
        detail: String,
    },
    /// apt-get failed for another reason. Whatever it had fetched in part is removed.
    #[error("{what} failed: {detail}\n{remedy}; nothing partial was kept")]
    Apt {
        /// What was fetched.
        what: String,
        /// apt's error lines.
        detail: String,
        /// What to do.
        remedy: String,
    },
    /// No suite that was searched has the package.
    #[error("no package {wanted} in {looked}; {remedy}")]
    NoPackage {
        /// Package or pattern.
        wanted: String,
        /// Suites that were searched.
        looked: String,
        /// What to do.
        remedy: String,
    },
    /// QEMU named by the user cannot serve as a host for the HIB.
    #[error(
        "QEMU too old or without vfio-user: {program} is version {found}{missing}, wanted is {wanted} or newer with the \
         device vfio-user-pci; install a newer QEMU, or unset TELEGRAPHOS_QEMU to use Debian's"
    )]
    QemuUnfit {
        /// The program that was tried.
        program: String,
        /// The version it printed, or what it printed instead of one.
        found: String,
        /// Empty, or a remark that the device is missing.
        missing: String,
        /// The least version that will do.
        wanted: String,
    },
    /// Something needs root once.
    #[error("{reason}; run once as root:\n    {command}\nand try again")]
    NeedsRoot {
        /// What is missing.
        reason: String,
        /// The one command.
        command: String,
    },
    /// A build failed.
    #[error("{what} failed ({status}):\n{log}")]
    Build {
        /// What was built.
        what: String,
        /// Exit status.
        status: String,
        /// The end of its output.
        log: String,
    },
    /// A kernel image could not be unpacked.
    #[error("cannot unpack the kernel {}: {source}", path.display())]
    Vmlinuz {
        /// The compressed kernel.
        path: PathBuf,
        /// What is wrong with it.
        source: crate::vmlinux::VmlinuxError,
    },
    /// Something expected was not where it should be.
    #[error("{what} not found at {}; {remedy}", path.display())]
    Missing {
        /// What was looked for.
        what: String,
        /// Where.
        path: PathBuf,
        /// What to do.
        remedy: String,
    },
    /// The host is of a kind this crate cannot work on.
    #[error("{0}")]
    Unsupported(String),
    /// The caller's cancel flag was raised.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { what, path, source }
    }

    pub(crate) fn build(what: impl Into<String>, status: impl ToString, log: impl Into<String>) -> Error {
        Error::Build { what: what.into(), status: status.to_string(), log: log.into() }
    }

    pub(crate) fn missing(what: impl Into<String>, path: impl AsRef<Path>, remedy: impl Into<String>) -> Error {
        Error::Missing { what: what.into(), path: path.as_ref().to_path_buf(), remedy: remedy.into() }
    }

    pub(crate) fn no_package(wanted: impl Into<String>, looked: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::NoPackage { wanted: wanted.into(), looked: looked.into(), remedy: remedy.into() }
    }
}
