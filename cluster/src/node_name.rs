// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of nodes.

use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The name of a node: 1 to 24 letters, digits and hyphens, a letter first. It is a host name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NodeName(Arc<str>);

impl FromStr for NodeName {
    type Err = String;

    fn from_str(text: &str) -> Result<NodeName, String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let fits = (1..=24).contains(&text.len())
            && text.chars().all(plain)
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-');
        if !fits || text == "localhost" {
            return Err(format!(
                "{text:?} is no name of a node: expected 1 to 24 small letters, digits and hyphens, a letter first"
            ));
        }
        Ok(NodeName(text.into()))
    }
}

impl TryFrom<String> for NodeName {
    type Error = String;

    fn try_from(text: String) -> Result<NodeName, String> {
        text.parse()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A node in messages: its number and, if it has one of its own, its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLabel {
    pub number: usize,
    pub name: Option<NodeName>,
}

impl NodeLabel {
    /// The name: its own or `nodeN`.
    pub fn host_name(&self) -> String {
        self.name.as_ref().map_or_else(|| format!("node{}", self.number), NodeName::to_string)
    }

    /// As lines of its output begin: its own name or its number.
    pub(crate) fn short(&self) -> String {
        self.name.as_ref().map_or_else(|| self.number.to_string(), NodeName::to_string)
    }
}

impl From<usize> for NodeLabel {
    fn from(number: usize) -> NodeLabel {
        NodeLabel { number, name: None }
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number.fmt(f)?;
        self.name.iter().try_for_each(|name| write!(f, " ({name})"))
    }
}
