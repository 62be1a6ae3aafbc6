// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends a channel, and what a record cannot be.

/// A word that an end which keeps to the rules never stores. It ends the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A head of a length that no record has.
    #[error("the head of a record says {length} bytes: at most {max} were agreed")]
    Length {
        /// Bytes, as the head says.
        length: u64,
        /// Bytes of the longest record.
        max: u64,
    },
    /// A head that is not the next one.
    #[error("the head of record {expected} has number {found}, modulo 2^24, or no kind: a store was lost or changed")]
    Sequence {
        /// Number in the head.
        found: u64,
        /// Number of the next record.
        expected: u64,
    },
    /// A credit for bytes that were not sent, or one that was taken back.
    #[error("{found} bytes are reported as taken: expected {least} to {most}, in multiples of 8")]
    Credit {
        /// Bytes, as reported.
        found: u64,
        /// Bytes that were reported before.
        least: u64,
        /// Bytes that were sent.
        most: u64,
    },
    /// An end before what was taken, or behind records that are not there.
    #[error("the other end says that it has sent {found} bytes, and {taken} were found")]
    End {
        /// Bytes, as reported.
        found: u64,
        /// Bytes that were found.
        taken: u64,
    },
}

/// Why a record is not put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutError {
    /// It is longer than a record can be.
    #[error("a record of {length} bytes: expected at most {max}; send it in several, or agree on a longer ring")]
    TooLong {
        /// Bytes of the record.
        length: u64,
        /// Bytes of the longest record.
        max: u64,
    },
    /// A part but the last has bytes beyond its words.
    #[error("a part of {length} bytes before the last one of a record: expected a multiple of 8")]
    Ragged {
        /// Bytes of the part.
        length: u64,
    },
    /// Kind 0 is that of no record.
    #[error("a record of kind 0: expected 1 to 255")]
    Kind,
    /// This end has ended the direction.
    #[error("a record behind the end of this direction")]
    Ended,
    /// The other end does not keep to the rules.
    #[error(transparent)]
    Violation(#[from] Violation),
}
