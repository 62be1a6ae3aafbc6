// SPDX-License-Identifier: MIT OR Apache-2.0
//! What settings of all servers have in common: one TOML file with the names of the command line, and why they are
//! refused.

use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("--{0} is missing: give it on the command line, or as `{0}` in the configuration file")]
    Missing(&'static str),
    /// A value out of range.
    #[error("--{name} is {value}: expected {expected}")]
    Range { name: &'static str, value: u64, expected: String },
    /// A value that cannot be, or a file.
    #[error("{what}: {why}")]
    Refused {
        /// The setting as on the command line, or the settings, such as `--node-bits, --offset-bits`; or the file.
        what: String,
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
    let name = format!("configuration file {}", file.display());
    let text =
        std::fs::read_to_string(file).map_err(|e| SettingsError::refused(format!("cannot read the {name}"), e))?;
    toml::from_str(&text).map_err(|e| SettingsError::refused(name, e.to_string().trim_end()))
}

/// A value that a TOML file may have as a number or as the text of the command line; it means the same.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(untagged, expecting = "expected a number or a text")]
pub enum Given {
    Number(u64),
    Text(String),
}

impl Given {
    /// The value, as the command line would read it.
    pub fn parse<T: std::str::FromStr>(&self) -> Result<T, T::Err> {
        match self {
            Given::Number(number) => number.to_string().parse(),
            Given::Text(text) => text.parse(),
        }
    }
}
