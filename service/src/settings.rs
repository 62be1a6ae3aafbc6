// SPDX-License-Identifier: MIT OR Apache-2.0
//! What settings of all servers have in common: one TOML file with the names of the command line, and why they are
//! refused.

use std::path::{Path, PathBuf};

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {why}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: String,
    },
    /// The file is not what was expected; names key and line.
    #[error("configuration file {}: {why}", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// Key, line and what was expected.
        why: String,
    },
    /// Something needed is missing.
    #[error("--{0} is missing: give it on the command line, or as `{0}` in the configuration file")]
    Missing(&'static str),
    /// A value out of range.
    #[error("--{name} is {value}: expected {expected}")]
    Range {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// What was expected.
        expected: String,
    },
    /// A value that cannot be.
    #[error("{what}: {why}")]
    Refused {
        /// The setting as on the command line, or the settings, such as `--node-bits, --offset-bits`.
        what: String,
        /// The reason.
        why: String,
    },
}

impl SettingsError {
    /// `what` (a setting as on the command line, or several) has a value that cannot be, because of `why`.
    pub fn refused(what: impl Into<String>, why: impl std::fmt::Display) -> SettingsError {
        SettingsError::Refused { what: what.into(), why: why.to_string() }
    }
}

/// Reads the settings of a server from its TOML file. Errors name the file, and the key that is unknown or has a wrong
/// value.
pub fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, SettingsError> {
    let text =
        std::fs::read_to_string(file).map_err(|e| SettingsError::Read { file: file.to_owned(), why: e.to_string() })?;
    toml::from_str(&text)
        .map_err(|e| SettingsError::Parse { file: file.to_owned(), why: e.to_string().trim_end().to_owned() })
}
