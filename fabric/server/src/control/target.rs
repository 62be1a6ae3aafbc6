// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a link or trunk is named, and what may be done to it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use telegraphos_transport::faults::{FaultPlan, PlanError};
use telegraphos_wire::NodeId;

/// The most bytes of a name.
pub const MAX_NAME: usize = 64;

/// What a command is about. As text (and in JSON) `all`, `links`, `trunks`, `node:3`, `trunk:0-1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Target {
    /// Every link and trunk.
    All,
    /// Every link between a node and its switch.
    Links,
    Trunks,
    /// The link of one node.
    Node(NodeId),
    /// One trunk: the names of its switches with a dash between them, or their numbers.
    Trunk(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::All => f.write_str("all"),
            Target::Links => f.write_str("links"),
            Target::Trunks => f.write_str("trunks"),
            Target::Node(node) => write!(f, "node:{node}"),
            Target::Trunk(name) => write!(f, "trunk:{name}"),
        }
    }
}

/// In JSON they are their texts.
macro_rules! as_text {
    ($($type:ty),*) => {
        $(impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $type {
            type Error = Unknown;

            fn try_from(text: String) -> Result<$type, Unknown> {
                text.parse()
            }
        })*
    };
}
as_text!(Target, FaultSpec);

/// Why a name or value is refused: names it and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(pub String);

/// Whether it can be the name of a trunk, switch or node: letters, digits, `-`, `_` and `.`.
pub fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(fits)
}

impl FromStr for Target {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<Target, Unknown> {
        let unknown = || Unknown(format!("{text:?} is no link: expected all, links, trunks, node:N or trunk:NAME"));
        match text {
            "all" => return Ok(Target::All),
            "links" => return Ok(Target::Links),
            "trunks" => return Ok(Target::Trunks),
            _ => {}
        }
        match text.split_once(':') {
            // Only what is written back the same: "node:+3" and "node:03" are not.
            Some(("node", number)) => match number.parse::<NodeId>() {
                Ok(node) if node.to_string() == number => Ok(Target::Node(node)),
                _ => Err(Unknown(format!("{number:?} is no node: expected a number from 0 to 4095, such as node:3"))),
            },
            Some(("trunk", name)) if is_name(name) => Ok(Target::Trunk(name.to_owned())),
            Some(("trunk", name)) => Err(Unknown(format!(
                "{name:?} is no name of a trunk: expected up to {MAX_NAME} letters, digits, '-', '_' and '.'"
            ))),
            _ => Err(unknown()),
        }
    }
}

/// Faults of one link or trunk, in the words of a [`FaultPlan`]: `latency=5ms jitter=1ms loss=2%`; no words are no
/// faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FaultSpec(pub FaultPlan);

impl FaultSpec {
    pub fn is_none(&self) -> bool {
        *self == FaultSpec::default()
    }
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FaultSpec {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<FaultSpec, Unknown> {
        text.parse().map(FaultSpec).map_err(|e: PlanError| Unknown(e.to_string()))
    }
}

/// Microseconds, from a text such as `250ms`.
pub fn parse_time(text: &str) -> Result<u64, Unknown> {
    let number = |ending: &str, unit: u64| text.strip_suffix(ending)?.parse::<u64>().ok()?.checked_mul(unit);
    number("us", 1)
        .or_else(|| number("ms", 1000))
        .or_else(|| number("s", 1_000_000))
        .ok_or_else(|| Unknown(format!("{text:?} is no time: expected a whole number with us, ms or s, such as 250ms")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_with_what_was_expected() {
        for text in ["5", "1.5s", "s", "-1s", "99999999999999999999s"] {
            let error = parse_time(text).unwrap_err().to_string();
            assert!(error.contains(text) && error.contains("us, ms or s"), "{error}");
        }
        assert_eq!(
            [parse_time("2s"), parse_time("250ms"), parse_time("7us")].map(Result::unwrap),
            [2_000_000, 250_000, 7]
        );
        assert!("loss=101%".parse::<FaultSpec>().unwrap_err().to_string().contains("100%"));
        for text in ["", "node", "node:", "node:+3", "node:03", "node:70000", "trunk:", "trunk:a b", "link:3"] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains("expected"), "{text}: {error}");
        }
    }
}
