// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who may use what this node makes known under a name: segments, queues, replicated segments, broadcasts.

use crate::error::{Error, Result};
use crate::{NodeId, Secret};

/// What a builder knows of that. By default: processes of this user id, on every node, without a secret.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessPolicy {
    /// As for a file; 0o600 if `None`.
    pub(crate) mode: Option<u32>,
    /// What an importer presents; zeros mean none.
    pub(crate) secret: Secret,
    /// The nodes admitted; every node if `None`.
    pub(crate) nodes: Option<Vec<NodeId>>,
}

impl AccessPolicy {
    /// The mode.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.unwrap_or(0o600)
    }

    /// The nodes admitted, one bit each. Fails for a node id of 256 or more.
    pub(crate) fn node_set(&self) -> Result<[u64; 4]> {
        let Some(list) = &self.nodes else { return Ok([u64::MAX; 4]) };
        let mut nodes = [0; 4];
        for node in list {
            let word = nodes.get_mut(usize::from(node / 64)).ok_or_else(|| Error::Argument {
                what: "an admitted node",
                value: node.to_string(),
                expected: "a node id below 256".into(),
            })?;
            *word |= 1 << (node % 64);
        }
        Ok(nodes)
    }
}

/// The digits of a mode for the owner and for others. Fails for a mode that files may have and these not.
pub(crate) fn mode_digits(what: &'static str, mode: u32) -> Result<(u32, u32)> {
    let digit = |shift: u32| (mode >> shift) & 7;
    let group = digit(3);
    if mode > 0o777 || mode & 0o111 != 0 || (group != 0 && group != digit(0)) {
        return Err(Error::Argument {
            what,
            value: format!("{mode:#o}"),
            expected: "read (4) and write (2) for the owner and for others, the group's digit 0 or the last, as 0o604"
                .into(),
        });
    }
    Ok((digit(6), digit(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_it_is_for_processes_of_this_user_on_every_node() {
        let policy = AccessPolicy::default();
        assert_eq!((policy.mode(), policy.secret, policy.node_set().unwrap()), (0o600, [0; 16], [u64::MAX; 4]));
        let policy = AccessPolicy { mode: Some(0o602), nodes: Some(vec![0, 65, 255]), ..policy };
        assert_eq!((policy.mode(), policy.node_set().unwrap()), (0o602, [1, 2, 0, 1 << 63]));
        let nobody = AccessPolicy { nodes: Some(Vec::new()), ..policy };
        assert_eq!(nobody.node_set().unwrap(), [0; 4]);
    }
}
