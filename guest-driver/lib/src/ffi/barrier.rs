// SPDX-License-Identifier: MIT OR Apache-2.0
//! Barriers.

use super::{call_mut, free, give, given, given_slice, limit, name_of};
use crate::Node;
use crate::sync::Barrier;
use std::ffi::{c_char, c_int};
use std::time::Duration;

functions! { BARRIERS;
    /// Joins a barrier of count participants, the i-th on the i-th of nodes, as number me; mode as in
    /// tg_export_options. Waits for the other participants, at most so many nanoseconds. For one thread at a time.
    fn tg_barrier_join(
        node: *const Node, name: *const c_char, nodes: *const u16, count: u32, me: u32, mode: u32, nanoseconds: i64,
        barrier: *mut *mut Barrier
    ) -> c_int {
        give(barrier, || {
            let nodes = given_slice(nodes, count as usize, "the list of nodes")?;
            let mode = if mode == 0 { 0o600 } else { mode };
            let limit = limit(nanoseconds).unwrap_or(Duration::MAX);
            Barrier::join(given(node)?, name_of(name)?, nodes, me as usize, mode, limit)
        })
    }

    /// Waits for quiet, then for all participants; -EAGAIN after so many nanoseconds (negative: never); then it may be
    /// called again.
    fn tg_barrier_wait(barrier: *mut Barrier, nanoseconds: i64) -> c_int {
        call_mut(barrier, |b| b.wait_within(limit(nanoseconds)))
    }

    /// Leaves a barrier, for good.
    fn tg_barrier_leave(barrier: *mut Barrier) -> () {
        free(barrier)
    }
}
