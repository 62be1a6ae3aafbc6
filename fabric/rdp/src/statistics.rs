// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a connection or a listener counts.

/// Counts of one connection; those of a [`Listener`](crate::Listener) are of what belonged to none of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Datagrams handed out for sending.
    pub datagrams_sent: u64,
    /// Datagrams that came, good or bad.
    pub datagrams_received: u64,
    /// Bytes of payload sent for the first time.
    pub bytes_sent: u64,
    /// Bytes of payload accepted, each once.
    pub bytes_received: u64,
    /// Segments sent for the first time.
    pub segments_sent: u64,
    /// Segments accepted.
    pub segments_received: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Times the retransmission timer ran out.
    pub timeouts: u64,
    /// Sequence NACKs sent.
    pub sequence_nacks_sent: u64,
    /// Sequence NACKs received that made the sender go back.
    pub sequence_nacks_received: u64,
    /// Capacity NACKs sent.
    pub capacity_nacks_sent: u64,
    /// Capacity NACKs received that made the sender pause.
    pub capacity_nacks_received: u64,
    /// Segments that came again.
    pub duplicates: u64,
    /// Segments that came before the expected one, and were refused.
    pub out_of_order: u64,
    /// Datagrams with a wrong checksum.
    pub checksum_errors: u64,
    /// Datagrams shorter than a header, or longer or shorter than they say.
    pub length_errors: u64,
    /// Datagrams of another version.
    pub version_errors: u64,
    /// Datagrams that were whole and made no sense.
    pub malformed: u64,
    /// Datagrams of connections that are not known here.
    pub foreign: u64,
    /// Resets sent.
    pub resets_sent: u64,
    /// Resets not sent because too many waited or the rate was exceeded.
    pub resets_left_out: u64,
    /// Opens not answered, and connections ended when they were set up, because a share or rate was used up.
    pub crowded: u64,
    /// Connections being set up whose place another one has taken.
    pub displaced: u64,
    /// Probes sent because nothing came.
    pub probes: u64,
    /// Connections that ended because their peer was found to be restarted (0 or 1 in those of a connection).
    pub restarts: u64,
    /// Connections set up (0 or 1 in those of a connection).
    pub established: u64,
}

impl Statistics {
    pub(crate) fn discarded(&mut self, why: crate::Discard) {
        match why {
            crate::Discard::Short | crate::Discard::Length => self.length_errors += 1,
            crate::Discard::Checksum => self.checksum_errors += 1,
            crate::Discard::Version(_) => self.version_errors += 1,
            crate::Discard::Malformed => self.malformed += 1,
        }
    }
}
