// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated segments.

use super::segment::access_of;
use super::sync::{lock, unlock};
use super::{ExportOptions, Window, call, fill, get_or, give, given, limit, name_of, take};
use crate::{Error, Node, Remote, ReplicaMode, Replicated, Result, Status};
use std::ffi::{c_char, c_int, c_void};

c_record! { REPLICATED_STATE, "tg_replicated_state",
    /// The state of a replicated segment.
    pub struct ReplicatedState {
        /// The node that orders the stores.
        pub home: u32,
        /// Why it is an orphan, TG_ERR_*: touching it raises SIGBUS until it is adopted. TG_OK if it has a home.
        pub orphan: u32,
        /// 1 while stores are faster than the network: the next one waits.
        pub congested: u8,
        /// 1 after a store was lost, until tg_replicated_acknowledge; later stores are dropped.
        pub cut: u8,
        /// 1 if it is gone, or an orphan.
        pub dead: u8,
        /// Zero.
        pub reserved: u8,
        /// The first error since the last tg_replicated_acknowledge: TG_ERR_*, or TG_OK.
        pub status: u32,
    }
}

/// The mode of a replicated segment from C, 0 for the default.
fn replica_mode(number: u32) -> Result<ReplicaMode> {
    match number {
        0 => Ok(ReplicaMode::default()),
        number => ReplicaMode::from_u32(number).ok_or_else(|| {
            let expected = "TG_REPLICA_NAIVE, _OWNER, _COUNTERS or _INVALIDATE, or 0 for TG_REPLICA_COUNTERS";
            Error::argument("the mode of a replicated segment", number, expected)
        }),
    }
}

c_functions! { SEGMENTS;
    /// Makes a replicated segment of size bytes, zeroed, under a name, with this node as its home. mode is
    /// TG_REPLICA_*, or 0 for TG_REPLICA_COUNTERS; options name the nodes that may join, with mode digits 0, 4 or 6.
    fn tg_replicated_create(
        node: *const Node, name: *const c_char, size: u64, mode: u32, options: *const ExportOptions,
        replicated: *mut *mut Replicated
    ) -> c_int = give(replicated, || {
        Replicated::create(given(node)?, name_of(name)?, size)
            .replica_mode(replica_mode(mode)?)
            .access(access_of(options)?)
            .create()
    });

    /// Makes a copy here of a replicated segment whose home is node home. mode is that of the segment, or 0. options,
    /// or NULL, hold the secret, the requested rights in the first digit of their mode, and the access rights of nodes
    /// that join here should this node become the home.
    fn tg_replicated_join(
        node: *const Node, home: u16, name: *const c_char, mode: u32, options: *const ExportOptions,
        replicated: *mut *mut Replicated
    ) -> c_int = give(replicated, || {
        Replicated::join(given(node)?, home, name_of(name)?)
            .replica_mode(replica_mode(mode)?)
            .access(access_of(options)?)
            .open()
    });

    /// Makes a segment of mode TG_REPLICA_NAIVE take the stores of another node, which has created it too.
    fn tg_replicated_join_peer(replicated: *const Replicated, peer: u16) -> c_int =
        call(replicated, |r| r.join_peer(peer));

    /// Leaves a replicated segment once its stores are acknowledged. If this node is its home, the other copies become
    /// orphans.
    fn tg_replicated_leave(replicated: *mut Replicated) -> c_int = take(replicated, Replicated::leave);

    /// Bytes of a replicated segment.
    fn tg_replicated_size(replicated: *const Replicated) -> u64 = get_or(replicated, 0, Replicated::size);

    /// Where this node's copy lies, read-only. A raw read may miss a store that this process has just made:
    /// tg_replicated_settle before it, or tg_load8 to tg_load64 instead.
    fn tg_replicated_memory(replicated: *const Replicated) -> *const c_void =
        get_or(replicated, std::ptr::null(), |r| r.as_ptr().cast());

    /// Where the window lies, for stores of aligned words of 1, 2, 4 or 8 bytes, never for memcpy;
    /// tg_replicated_announce before.
    fn tg_replicated_window(replicated: *const Replicated) -> Window =
        Window(get_or(replicated, std::ptr::null_mut(), |r| r.window_ptr().cast()));

    /// Announces the exact number of stores that this process is about to make through tg_replicated_window.
    fn tg_replicated_announce(replicated: *const Replicated, count: u64) -> c_int = call(replicated, |r| {
        r.announce(count);
        Ok(())
    });

    /// One pointer for loads and stores, both through the board of this node: a load through it is behind this
    /// process's stores, which are not announced. Words and access as in tg_replicated_window. From the first call on
    /// tg_load8 to tg_load64 make such a trip to the board, too.
    fn tg_replicated_trapped(replicated: *const Replicated) -> Window =
        Window(get_or(replicated, std::ptr::null_mut(), |r| r.trapped_ptr().cast()));

    /// The window as an import, for atomics, which run at the home, and for tg_quiet; NULL for NULL. Stores through it
    /// are refused. It belongs to the segment: do not close it.
    fn tg_replicated_remote(replicated: *const Replicated) -> *const Remote =
        get_or(replicated, std::ptr::null(), |r| std::ptr::from_ref(r.remote()));
}

words! { WORDS(replicated: *const Replicated, offset);
    [call(replicated, |r| r.store(offset, value))]
    /// Stores to all copies with one instruction, and returns before any has the value.
    tg_store8(value: u8);
    /// See tg_store8.
    tg_store16(value: u16);
    /// See tg_store8.
    tg_store32(value: u32);
    /// See tg_store8.
    tg_store64(value: u64);
    [fill(value, "the place for the value", || given(replicated)?.load(offset))]
    /// Loads from this node's copy, with acquire ordering; never older than this process's own last store.
    tg_load8(value: *mut u8);
    /// See tg_load8.
    tg_load16(value: *mut u16);
    /// See tg_load8.
    tg_load32(value: *mut u32);
    /// See tg_load8.
    tg_load64(value: *mut u64);
}

c_functions! { STATE;
    /// Loads 8 bytes through the window with one instruction: behind this processor's stores, by a round trip to the
    /// board of this node. All ones may mean that it failed: see tg_replicated_state_of. For other sizes: tg_get8 to
    /// tg_get32 of tg_replicated_remote.
    fn tg_load_trapped64(replicated: *const Replicated, offset: u64, value: *mut u64) -> c_int =
        fill(value, "the place for the value", || given(replicated)?.load_trapped(offset));

    /// Waits until the stores made so far are in this node's copy, -EAGAIN after so many nanoseconds (negative: never).
    /// For other copies see tg_replicated_quiet.
    fn tg_replicated_settle(replicated: *const Replicated, nanoseconds: i64) -> c_int =
        call(replicated, |r| r.settle(limit(nanoseconds)));

    /// Returns when every copy has every earlier store and atomic of this process; -EAGAIN after so many nanoseconds
    /// (negative: never).
    fn tg_replicated_quiet(replicated: *const Replicated, nanoseconds: i64) -> c_int =
        call(replicated, |r| r.remote().quiet_within(limit(nanoseconds)));

    /// The state of a replicated segment.
    fn tg_replicated_state_of(replicated: *const Replicated, state: *mut ReplicatedState) -> c_int =
        fill(state, "the place for the state", || {
            let found = given(replicated)?.state()?;
            let number = |status: Option<Status>| status.unwrap_or(Status::Ok) as u32;
            Ok(ReplicatedState {
                home: found.home.into(),
                orphan: number(found.orphan),
                congested: found.window.congested.into(),
                cut: found.window.cut.into(),
                dead: found.window.dead.into(),
                reserved: 0,
                status: number(found.window.error),
            })
        });

    /// Clears the latched error of a replicated segment, and accepts stores again after a cut. Lost stores stay
    /// lost. No other thread uses it meanwhile.
    fn tg_replicated_acknowledge(replicated: *const Replicated) -> c_int = call(replicated, Replicated::acknowledge);

    /// Makes this node the home of an orphan: its copy is authoritative, and the other nodes leave their copies and
    /// join here. No other thread uses it meanwhile.
    fn tg_replicated_adopt(replicated: *const Replicated) -> c_int = call(replicated, Replicated::adopt);

    /// Makes this node the home while all nodes continue; the previous home keeps its copy. Further nodes join here.
    /// -EBUSY or -EREMOTEIO while another node takes it. If it fails midway, call it again.
    fn tg_replicated_take_home(replicated: *const Replicated) -> c_int = call(replicated, Replicated::take_home);

    /// As tg_lock, in 16 bytes of a replicated segment: tickets are drawn at the home, and waiting threads poll the
    /// copy of this node.
    fn tg_replicated_lock(replicated: *const Replicated, offset: u64, nanoseconds: i64, ticket: *mut u64) -> c_int =
        lock(replicated, offset, nanoseconds, ticket);

    /// As tg_unlock.
    fn tg_replicated_unlock(replicated: *const Replicated, offset: u64, ticket: u64) -> c_int =
        unlock(replicated, offset, ticket);
}
