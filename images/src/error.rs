// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, each with what to do next.

use std::fmt::Display;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// Why something could not be found, fetched or built. The text names the thing, the value and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb ("cannot write").
        what: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// A program of the host could not be started.
    #[error("cannot run {program}: {source}; {remedy}")]
    Spawn { program: String, source: std::io::Error, remedy: String },
    /// The host's apt configuration has no source this crate could derive Debian's suites from.
    #[error(
        "no source of Debian's main archive in the host's apt configuration (looked in {looked}): {why}; add one, for \
         example through the file /etc/apt/sources.list.d/debian.sources, and try again"
    )]
    NoDebianSource { looked: String, why: String },
    /// Something that the user named cannot be used.
    #[error("{0}")]
    Usage(String),
    /// Anything else. The functions below make the texts that several places use.
    #[error("{0}")]
    Failed(String),
    /// The caller's cancel flag was raised.
    #[error("interrupted")]
    Interrupted,
}

/// In a file of settings such a value is the text that the command line has.
macro_rules! read_as_text {
    ($($of:ty),*) => {
        $(impl<'de> serde::Deserialize<'de> for $of {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<$of, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        })*
    };
}
pub(crate) use read_as_text;

impl Error {
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |source| Error::Io { what, path, source }
    }

    /// apt-get failed. Whatever it had fetched in part is removed.
    pub(crate) fn apt(what: impl Display, detail: impl Display, remedy: impl Display) -> Error {
        Error::Failed(format!("{what} failed: {detail}\n{remedy}; nothing partial was kept"))
    }

    /// A program that makes something failed; `log` is the end of its output.
    pub(crate) fn build(what: impl Display, status: impl Display, log: impl Display) -> Error {
        Error::Failed(format!("{what} failed ({status}):\n{log}"))
    }

    /// Something expected is not where it should be.
    pub(crate) fn missing(what: impl Display, path: impl AsRef<Path>, remedy: impl Display) -> Error {
        Error::Failed(format!("{what} not found at {}; {remedy}", path.as_ref().display()))
    }

    /// Something needs root once: this command.
    pub(crate) fn needs_root(reason: impl Display, command: impl Display) -> Error {
        Error::Failed(format!("{reason}; run once as root:\n    {command}\nand try again"))
    }

    /// None of the releases that were searched has the package.
    pub(crate) fn no_package(wanted: impl Display, looked: impl Display, remedy: impl Display) -> Error {
        Error::Failed(format!("no package {wanted} in {looked}; {remedy}"))
    }
}
