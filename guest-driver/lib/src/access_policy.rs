// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which processes may use an object that this node publishes under a name: a segment, a queue, a replicated segment, a
//! broadcast.

use crate::error::{Error, Result};
use std::os::fd::RawFd;
use telegraphos_wire::{NodeId, Rights, uapi};

/// Loads and stores.
pub const READ_WRITE: Rights = Rights(Rights::READ.0 | Rights::WRITE.0);

/// Loads, stores, atomics and copies.
pub const FULL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0 | Rights::DMA.0);

/// Bytes of a segment's name, at most.
pub const NAME_MAX: usize = telegraphos_wire::admin::NAME_MAX;

/// A secret that an importer must present, 16 bytes; zeros mean none.
pub type Secret = [u8; 16];

/// The options of a builder for that. By default: processes of this user id, on every node, without a secret.
#[derive(Clone, Debug, Default)]
pub(crate) struct AccessPolicy {
    /// As of a file; 0o600 if `None`.
    pub(crate) mode: Option<u32>,
    /// What an importer presents; zeros mean none.
    pub(crate) secret: Secret,
    /// The nodes admitted; every node if `None`.
    pub(crate) nodes: Option<Vec<NodeId>>,
}

impl AccessPolicy {
    /// The mode, as of a file.
    pub(crate) fn mode(&self) -> u32 {
        self.mode.unwrap_or(0o600)
    }

    /// The nodes admitted, one bit each. Fails for a node id of 256 or more.
    pub(crate) fn node_set(&self) -> Result<[u64; 4]> {
        let Some(list) = &self.nodes else { return Ok([u64::MAX; 4]) };
        let mut nodes = [0; 4];
        for node in list {
            let word = nodes
                .get_mut(usize::from(node / 64))
                .ok_or_else(|| Error::argument("an admitted node", node, "a node id below 256"))?;
            *word |= 1 << (node % 64);
        }
        Ok(nodes)
    }
}

/// The builder methods `mode`, `secret` and `nodes`, with their documentation, and `access`, which sets all three;
/// `path` leads to the builder's [`AccessPolicy`].
macro_rules! access_options {
    (self $(. $path:ident)+; $(#[$mode:meta])+ mode; $(#[$secret:meta])+ secret; $(#[$nodes:meta])+ nodes;) => {
        $(#[$mode])+
        pub fn mode(mut self, mode: u32) -> Self {
            self $(. $path)+.mode = Some(mode);
            self
        }

        $(#[$secret])+
        pub fn secret(mut self, secret: $crate::Secret) -> Self {
            self $(. $path)+.secret = secret;
            self
        }

        $(#[$nodes])+
        pub fn nodes(mut self, nodes: &[$crate::NodeId]) -> Self {
            self $(. $path)+.nodes = Some(nodes.to_vec());
            self
        }

        /// All of [`mode`](Self::mode), [`secret`](Self::secret) and [`nodes`](Self::nodes).
        pub(crate) fn access(mut self, access: $crate::access_policy::AccessPolicy) -> Self {
            self $(. $path)+ = access;
            self
        }
    };
}
pub(crate) use access_options;

/// The driver's form of a name: 64 bytes, padded with zeros. Fails for an empty or too long one, or one that a log
/// could not print.
pub(crate) fn name_bytes(name: &str) -> Result<[u8; 64]> {
    let bytes = name.as_bytes();
    let printable = bytes.iter().all(|byte| (b' '..=b'~').contains(byte));
    if bytes.is_empty() || bytes.len() > NAME_MAX || !printable {
        let value = format!("\"{}\"", name.escape_default());
        return Err(Error::argument("the name", value, format!("1 to {NAME_MAX} printable ASCII characters")));
    }
    let mut out = [0; 64];
    out[..bytes.len()].copy_from_slice(bytes);
    Ok(out)
}

/// What a request has if its name is of what belongs to the connection of a descriptor: the flag, and the descriptor.
pub(crate) fn of_connection(socket: Option<RawFd>) -> (u32, RawFd) {
    socket.map_or((0, 0), |socket| (uapi::NAME_OF_CONNECTION as u32, socket))
}

/// The digits of a mode for the owner and for others. Fails for a mode that files may have and these objects may not.
pub(crate) fn mode_digits(what: &'static str, mode: u32) -> Result<(u32, u32)> {
    let digit = |shift: u32| (mode >> shift) & 7;
    let group = digit(3);
    if mode > 0o777 || mode & 0o111 != 0 || (group != 0 && group != digit(0)) {
        return Err(Error::argument(
            what,
            format!("{mode:#o}"),
            "read (4) and write (2) for the owner and for others, the group's digit 0 or the last, as 0o604",
        ));
    }
    Ok((digit(6), digit(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_processes_of_this_user_on_every_node() {
        let policy = AccessPolicy::default();
        assert_eq!((policy.mode(), policy.secret, policy.node_set().unwrap()), (0o600, [0; 16], [u64::MAX; 4]));
        let policy = AccessPolicy { mode: Some(0o602), nodes: Some(vec![0, 65, 255]), ..policy };
        assert_eq!((policy.mode(), policy.node_set().unwrap()), (0o602, [1, 2, 0, 1 << 63]));
        let none = AccessPolicy { nodes: Some(Vec::new()), ..policy };
        assert_eq!(none.node_set().unwrap(), [0; 4]);
    }

    #[test]
    fn names_are_checked() {
        assert!(name_bytes("").is_err());
        assert!(name_bytes("a\0b").is_err());
        for forged in ["a\nhib 0: all is well", "\u{1b}[2J", "a\u{7f}", "gr\u{f6}\u{df}e"] {
            let error = name_bytes(forged).unwrap_err().to_string();
            assert!(error.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{error:?}");
        }
        assert!(name_bytes(&"x".repeat(64)).is_err());
        let longest = name_bytes(&"x".repeat(63)).unwrap();
        assert_eq!(longest[62..], [b'x', 0]);
        assert_eq!(name_bytes("ab").unwrap()[..3], *b"ab\0");
    }
}
