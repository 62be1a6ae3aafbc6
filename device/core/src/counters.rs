// SPDX-License-Identifier: MIT OR Apache-2.0
//! Statistics of the board.

/// Statistics of the board since its last reset. No protocol decision depends on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Remote stores accepted from this node's processors.
    pub stores: u64,
    /// Remote loads accepted.
    pub loads: u64,
    /// Remote loads completed with all ones at once, because an earlier load to the node timed out and nothing was
    /// received from it since.
    pub silent_loads: u64,
    /// Times a node left a request unanswered for longer than
    /// [`HibConfig::answer_limit`](crate::HibConfig::answer_limit).
    pub silent_nodes: u64,
    /// Requests served, of other nodes and of this one.
    pub served: u64,
    /// Requests of other nodes refused.
    pub refused: u64,
    /// Stores dropped; each is reported on its import or in ERROR.
    pub dropped: u64,
    /// Times an import or a context became congested.
    pub congested: u64,
    pub events: u64,
    pub atomics: u64,
    pub copies: u64,
    /// Elements for queues accepted from this node's processors.
    pub enqueues: u64,
    /// Elements committed to this node's queues.
    pub elements: u64,
    /// Overflows of this node's queues.
    pub overflows: u64,
    /// Stores that this node as their home sent to copies, counted once for each copy.
    pub reflected: u64,
    /// Copies of replicated pages removed because they did not acknowledge in time.
    pub silent_copies: u64,
    /// Times a store of this node had to wait for a pending-write counter.
    pub counter_stalls: u64,
    /// Launch arguments refused for their key or context.
    pub bad_keys: u64,
    /// Errors, including those that found another one latched.
    pub errors: u64,
}
