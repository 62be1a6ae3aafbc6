// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of what is captured.

use std::fmt;
use std::str::FromStr;

use telegraphos_wire::NodeId;

use crate::SwitchId;

/// One interface of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Link {
    /// What belongs to no link: unidentified connections, ticks, diagnostics.
    Switch(SwitchId),
    /// The link of a node.
    Node(NodeId),
    /// This switch's end of the trunk to that one.
    Trunk(SwitchId, SwitchId),
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Switch(switch) => write!(f, "switch {switch}"),
            Link::Node(node) => write!(f, "node {node}"),
            Link::Trunk(at, to) => write!(f, "trunk {at}-{to}"),
        }
    }
}

/// A name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no link: expected `node:N`, `trunk:A-B` (switch A's end of its trunk to B) or `switch:S`")]
pub struct LinkError(String);

impl FromStr for Link {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Link, LinkError> {
        let number = |text: &str| text.parse().ok();
        let parse = || {
            // With a colon as `telegraphos ctl` has it, which needs no quotes.
            let (kind, which) = text.trim().split_once([' ', ':'])?;
            match kind {
                "switch" => number(which).map(Link::Switch),
                "node" => number(which).map(Link::Node),
                "trunk" => {
                    let (at, to) = which.split_once('-')?;
                    Some(Link::Trunk(number(at)?, number(to)?))
                }
                _ => None,
            }
        };
        parse().ok_or_else(|| LinkError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for link in [Link::Switch(0), Link::Node(4095), Link::Trunk(7, 2)] {
            assert_eq!(link.to_string().parse(), Ok(link));
            assert_eq!(link.to_string().replace(' ', ":").parse(), Ok(link));
        }
        for wrong in ["", "node", "node x", "node 70000", "trunk 3", "trunk 3-", "port 3", "node 3 4"] {
            let error = wrong.parse::<Link>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("trunk:A-B"), "{error}");
        }
    }
}
