// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sizes and limits.

use crate::bugs::Bug;

/// Bytes of a slot that are not the message's, in [`Config::paper`]: the header of SPEC E21.
pub const HEADER: u32 = 40;

/// How the bytes of a matched request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// The receiver's board fetches them: one packet to the sender fewer.
    Get,
    /// The sender's board stores them, when the receiver asks it to, as in s2.
    Put,
}

/// Sizes and limits of an engine. Sizes of the processes that it talks to are the same. Start from
/// [`Config::default`] or [`Config::paper`] and change fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Messages, or fragments of them, that one process may have at another, until the thread there has them. At least
    /// 1.
    pub slots: u16,
    /// Bytes of a message that a slot has room for.
    pub block: u32,
    /// Fragments of one message, at most. At least 1.
    pub fragments: u16,
    /// Bytes of the longest message that goes to a slot before it is received. Longer ones are requests. At most what
    /// `fragments` slots have room for.
    pub eager: u64,
    /// Bytes of the longest message that goes to a slot in any case. Longer ones, up to `eager`, go the way that has
    /// been faster to that process: as requests, or to slots. From `eager` on, nothing is measured. Others may have
    /// another one.
    pub eager_floor: u64,
    /// Bytes of the longest message.
    pub longest: u64,
    /// Other processes, at most. Memory for their messages is `slots` times that.
    pub peers: u32,
    /// Threads that can receive, at most.
    pub threads: u32,
    /// Sends that are not complete, at most.
    pub sends: u32,
    /// Receives that are not complete, at most.
    pub receives: u32,
    /// How the bytes of requests go that this process matches.
    pub way: Way,
    /// Chains that the hash chooses from.
    pub chains: u16,
    /// A deliberate bug that a check must find.
    #[cfg(feature = "bugs")]
    pub bug: Option<Bug>,
}

/// A configuration that is refused: the field, its value, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Default for Config {
    fn default() -> Config {
        Config {
            slots: 64,
            block: 4096,
            fragments: 1,
            eager: 4096,
            eager_floor: 128,
            longest: u64::MAX,
            peers: 1024,
            threads: 4096,
            sends: 16_384,
            receives: 16_384,
            way: Way::Get,
            chains: 256,
            #[cfg(feature = "bugs")]
            bug: None,
        }
    }
}

impl Config {
    /// That of s4: blocks of 64 KiB with their header, 32 fragments, and nothing longer (SPEC item 40, E21).
    pub fn paper() -> Config {
        let (block, fragments) = ((64 << 10) - HEADER, 32);
        let longest = u64::from(block) * u64::from(fragments);
        Config { block, fragments, eager: longest, eager_floor: longest, longest, ..Config::default() }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let room = u64::from(self.block) * u64::from(self.fragments);
        let refused = |field: &str, value: u64, expected: String| {
            Err(ConfigError(format!("{field} is {value}: expected {expected}")))
        };
        for (field, value) in [
            ("slots", u64::from(self.slots)),
            ("fragments", u64::from(self.fragments)),
            ("chains", u64::from(self.chains)),
            ("peers", u64::from(self.peers)),
            ("threads", u64::from(self.threads)),
            ("sends", u64::from(self.sends)),
            ("receives", u64::from(self.receives)),
        ] {
            if value == 0 {
                return refused(field, value, "at least 1".into());
            }
        }
        if self.eager > room {
            return refused(
                "eager",
                self.eager,
                format!("at most {room}, what {} slots have room for", self.fragments),
            );
        }
        match self.peers.checked_mul(u32::from(self.slots)) {
            Some(_) => Ok(()),
            None => refused("peers", self.peers.into(), format!("fewer with {} slots each", self.slots)),
        }
    }

    #[cfg(feature = "bugs")]
    pub(crate) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    #[cfg(not(feature = "bugs"))]
    #[expect(clippy::unused_self, reason = "the other one uses it")]
    pub(crate) fn has(&self, _bug: Bug) -> bool {
        false
    }

    /// Bytes up to which a message goes to a slot in any case.
    pub fn floor(&self) -> u64 {
        self.eager_floor.min(self.eager)
    }

    /// Fragments of a message that goes to slots. One without bytes is one fragment.
    pub(crate) fn fragments_of(&self, length: u64) -> u16 {
        // At most `fragments`, since `eager` is checked against them.
        length.div_ceil(u64::from(self.block).max(1)).max(1) as u16
    }

    /// Where a fragment begins in its message, and its bytes.
    pub fn fragment(&self, length: u64, fragment: u16) -> (u64, u32) {
        let offset = u64::from(self.block) * u64::from(fragment);
        // At most `block`.
        (offset, length.saturating_sub(offset).min(self.block.into()) as u32)
    }
}
