// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each node can use up of a home or of a copy.

use crate::HibConfig;
use crate::config::Bug;
use telegraphos_accounts::Shares;
use telegraphos_wire::Class;

/// Limit on the blocks in flight to the new copies of one node.
const MAX_FILLS: u64 = 2;

/// Limit on the requests of one node that this home has performed and that wait for copies. A board has at most
/// `outstanding` requests to one home in flight, so only a board that ignores its window reaches this.
const MAX_COPY_WAITS: u32 = 256;

/// Requests of one node that may wait for copies: an equal part for each node, at most the answers that the switch
/// expects of this board.
pub(super) fn most_copy_waits(config: &HibConfig) -> u32 {
    let offered = config.offered().iter().fold(0u32, |sum, credits| sum.saturating_add(*credits));
    offered.clamp(1, MAX_COPY_WAITS)
}

/// Shares for blocks in flight: a quarter of the credits of the class, so that stores find the others. Guarantees one
/// to each node as far as they suffice.
pub(super) fn fill_shares(config: &HibConfig) -> Shares {
    let capacity = u64::from(config.credits[Class::Reflected as usize] / 4).max(1);
    if config.has(Bug::FillAtOnce) {
        return Shares::single(u64::from(u32::MAX));
    }
    Shares { capacity, spenders: config.window.nodes().into(), guaranteed: 1, limit: MAX_FILLS }
}

/// Shares for deferred acknowledgements at a copy: what a conforming home can have unacknowledged for all its
/// requesters.
pub(super) fn deferred_shares(config: &HibConfig) -> Shares {
    let nodes = u64::from(config.window.nodes());
    let part = u64::from(MAX_COPY_WAITS) * nodes;
    Shares::equal(part * nodes, nodes)
}
