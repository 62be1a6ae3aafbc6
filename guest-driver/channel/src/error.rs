// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why something failed.

use std::time::Duration;
use telegraphos::NodeId;
use telegraphos_channel_core::handshake::OfferError;
use telegraphos_channel_core::{LayoutError, PutError, Violation};

/// Result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a channel was not made, or what ended it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The board or its driver.
    #[error(transparent)]
    Board(#[from] telegraphos::Error),
    /// A name that no channel has.
    #[error("the name of a channel is {0:?}: expected 1 to {max} ASCII characters that can be seen", max = crate::NAME_MAX)]
    Name(String),
    /// A ring that cannot be.
    #[error(transparent)]
    Ring(#[from] LayoutError),
    /// A record that is not sent.
    #[error(transparent)]
    Record(PutError),
    /// A record that is longer than the memory it is to come into. It stays, and the next call may take it.
    #[error("the next record has {length} bytes, for which there are {room}: receive it with more memory")]
    Longer {
        /// Bytes of the record.
        length: usize,
        /// Bytes of the memory.
        room: usize,
    },
    /// The other end does not speak this protocol, or another version.
    #[error("the other end, on node {node}: {error}")]
    Offer {
        /// Its node.
        node: NodeId,
        /// What is wrong.
        error: OfferError,
    },
    /// The other end has stored what an end never stores: the channel has ended.
    #[error("the other end, on node {node}, does not keep to the rules: {violation}; the channel has ended")]
    Violation {
        /// Its node.
        node: NodeId,
        /// What it has done.
        violation: Violation,
    },
    /// The process of the other end has ended or closed the channel, its node was reset or is down, or a store was
    /// lost.
    #[error("the other end, on node {node}, is gone: {reason}; connect again")]
    Gone {
        /// Its node.
        node: NodeId,
        /// How this is known.
        reason: String,
    },
    /// It has not happened in the given time. The channel continues.
    #[error("{what}: not within {time:?}")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
        /// How long.
        time: Duration,
    },
}

impl From<OfferError> for Error {
    fn from(error: OfferError) -> Error {
        // Replaced by the node's as soon as that is known.
        Error::Offer { node: NodeId::MAX, error }
    }
}
