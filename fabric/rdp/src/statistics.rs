// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters of a connection or a listener.

use crate::datagram::Discard;

/// Counters of one connection; those of a [`Listener`](crate::Listener) count what belonged to none of its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Datagrams returned for sending.
    pub datagrams_sent: u64,
    /// Datagrams that arrived, valid or not.
    pub datagrams_received: u64,
    /// Bytes of payload sent for the first time.
    pub bytes_sent: u64,
    /// Bytes of payload accepted, each once.
    pub bytes_received: u64,
    /// Segments sent for the first time.
    pub segments_sent: u64,
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
    /// Segments that arrived again.
    pub duplicates: u64,
    /// Segments that arrived before the expected one, and were refused.
    pub out_of_order: u64,
    /// Datagrams with a wrong checksum.
    pub checksum_errors: u64,
    /// Datagrams shorter than a header, or of another length than their header says.
    pub length_errors: u64,
    /// Datagrams of another version.
    pub version_errors: u64,
    /// Datagrams that were whole and had an invalid field, or one invalid in the state of their connection.
    pub malformed: u64,
    /// Datagrams of connections that do not exist here.
    pub foreign: u64,
    pub resets_sent: u64,
    /// Resets not sent because too many waited or the rate was exceeded.
    pub resets_left_out: u64,
    /// Opens not answered, and connections ended when they were established, because a share or rate was used up.
    pub crowded: u64,
    /// Handshakes displaced by newer ones.
    pub displaced: u64,
    /// Probes sent because nothing arrived.
    pub probes: u64,
    /// Connections that ended because their peer was found to be restarted (0 or 1 in those of a connection).
    pub restarts: u64,
    /// Connections established (0 or 1 in those of a connection).
    pub established: u64,
}

impl Statistics {
    /// Datagrams that were not valid.
    pub fn damaged(&self) -> u64 {
        self.checksum_errors + self.length_errors + self.version_errors + self.malformed
    }

    /// Counts a discarded datagram by its reason.
    pub(crate) fn discarded(&mut self, why: Discard) {
        match why {
            Discard::Short | Discard::Length => self.length_errors += 1,
            Discard::Checksum => self.checksum_errors += 1,
            Discard::Version(_) => self.version_errors += 1,
            Discard::Malformed => self.malformed += 1,
        }
    }
}
