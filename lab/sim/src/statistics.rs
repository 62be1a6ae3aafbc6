// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run counts.

use crate::histogram::Histogram;
use crate::units::Time;
use crate::workload::Operation;

/// Operations of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperationStatistics {
    pub(crate) issued: u64,
    /// Of those that were performed.
    pub(crate) latency: Histogram,
    /// Ended with an error.
    pub(crate) failed: u64,
    /// Not issued: their partner was unreachable.
    pub(crate) refused: u64,
    /// Under way when their own node crashed.
    pub(crate) aborted: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// By [`Operation::ALL`].
    pub(crate) operations: [OperationStatistics; 7],
    /// Packets that boards gave to their links.
    pub(crate) sent: u64,
    /// Packets that boards took from their links.
    pub(crate) delivered: u64,
    /// Of those of each class.
    pub(crate) delivered_of: [u64; 4],
    /// Packets on links and trunks that broke.
    pub(crate) lost: u64,
    /// Elements that consumers took.
    pub(crate) consumed: u64,
    /// Stores and elements that came after a later one of their pair, twice, or not at all.
    pub(crate) disorder: u64,
    pub(crate) last_end: Time,
    /// Overflows of queues that drivers handled.
    pub(crate) overflows: u64,
    /// Links of boards closed by their switch.
    pub(crate) disconnected: u64,
    /// Operations under way.
    pub(crate) under_way: u64,
}

impl OperationStatistics {
    fn add(&mut self, other: &OperationStatistics) {
        // All fields, so that none is forgotten.
        let OperationStatistics { issued, latency, failed, refused, aborted, bytes } = other;
        self.latency.add_all(latency);
        self.issued += issued;
        self.failed += failed;
        self.refused += refused;
        self.aborted += aborted;
        self.bytes += bytes;
    }
}

impl Statistics {
    /// Adds those of another partition.
    pub(crate) fn add(&mut self, other: &Statistics) {
        let Statistics {
            operations,
            sent,
            delivered,
            delivered_of,
            lost,
            consumed,
            disorder,
            last_end,
            overflows,
            disconnected,
            under_way,
        } = other;
        self.operations.iter_mut().zip(operations).for_each(|(all, one)| all.add(one));
        self.delivered_of.iter_mut().zip(delivered_of).for_each(|(all, one)| *all += one);
        self.sent += sent;
        self.delivered += delivered;
        self.lost += lost;
        self.consumed += consumed;
        self.disorder += disorder;
        self.last_end = self.last_end.max(*last_end);
        self.overflows += overflows;
        self.disconnected += disconnected;
        self.under_way += under_way;
    }

    /// An operation has ended, though perhaps not the last: cells run ahead of each other.
    pub(crate) fn ended(&mut self, at: Time) {
        self.last_end = self.last_end.max(at);
    }

    pub(crate) fn of(&mut self, operation: Operation) -> &mut OperationStatistics {
        &mut self.operations[operation as usize]
    }
}
