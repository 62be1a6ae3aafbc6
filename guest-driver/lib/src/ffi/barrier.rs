// SPDX-License-Identifier: MIT OR Apache-2.0
//! Barriers.

use super::error::guard;
use super::{give, given, given_alone, limit, take, text};
use crate::sync::Barrier;
use crate::{Node, NodeId};
use std::ffi::{c_char, c_int};
use std::time::Duration;

functions! { BARRIERS;
    /// Joins a barrier of count participants, the i-th on the i-th of nodes, as number me; mode as in
    /// tg_export_options. Waits for the others, at most so many nanoseconds. For one thread at a time.
    fn tg_barrier_join(
        node: *const Node, name: *const c_char, nodes: *const u16, count: u32, me: u32, mode: u32, nanoseconds: i64,
        barrier: *mut *mut Barrier
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(barrier, || {
                let first = given(nodes, "the list of nodes")?;
                let nodes: &[NodeId] = std::slice::from_raw_parts(first, count as usize);
                let mode = if mode == 0 { 0o600 } else { mode };
                let limit = limit(nanoseconds).unwrap_or(Duration::MAX);
                Barrier::join(given(node, "the node")?, text(name, "the name")?, nodes, me as usize, mode, limit)
            })
        }
    }

    /// Waits for quiet, then for everybody; -EAGAIN after so many nanoseconds (negative: never); then it may be called
    /// again.
    fn tg_barrier_wait(barrier: *mut Barrier, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let barrier = unsafe { given_alone(barrier, "the barrier")? };
            match limit(nanoseconds) {
                Some(limit) => barrier.wait_timeout(limit)?,
                None => barrier.wait()?,
            }
            Ok(0)
        })
    }

    /// Leaves a barrier, for good.
    fn tg_barrier_leave(barrier: *mut Barrier) -> () {
        guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { take(barrier) });
            Ok(0)
        });
    }
}
