// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcasts: the producer.

use super::segment::access_of;
use super::{ExportOptions, call_mut, give, given, given_slice, limit, name_of, take};
use crate::{Broadcast, BroadcastConsumer, Node, Secret};
use std::ffi::{c_char, c_int, c_void};

functions! { BROADCASTS;
    /// Makes a broadcast of messages of at most message bytes, for at most consumers consumers, of which the slowest
    /// may be slots messages behind; each may be 0 for 248, 16 and 64. For one thread at a time.
    fn tg_broadcast_create(
        node: *const Node, name: *const c_char, slots: u32, message: u32, consumers: u32, options: *const ExportOptions,
        broadcast: *mut *mut Broadcast
    ) -> c_int {
        give(broadcast, || {
            let mut builder = Broadcast::create(given(node)?, name_of(name)?);
            if slots != 0 {
                builder = builder.slots(slots);
            }
            if message != 0 {
                builder = builder.message(message);
            }
            if consumers != 0 {
                builder = builder.consumers(consumers);
            }
            builder.access(access_of(options)?).create()
        })
    }

    /// Waits until there are so many consumers, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_wait_consumers(broadcast: *mut Broadcast, count: u32, nanoseconds: i64) -> c_int {
        call_mut(broadcast, |b| b.wait_consumers(count as usize, limit(nanoseconds)))
    }

    /// Stores a message for all consumers; waits for the slowest, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_push(broadcast: *mut Broadcast, message: *const c_void, length: u32, nanoseconds: i64) -> c_int {
        call_mut(broadcast, |b| {
            let message = given_slice::<u8>(message.cast(), length as usize, "the message")?;
            b.push(message, limit(nanoseconds))
        })
    }

    /// Ends a broadcast: waits until all consumers have all messages and have left, -EAGAIN after so many nanoseconds
    /// (negative: never). It is gone in any case.
    fn tg_broadcast_finish(broadcast: *mut Broadcast, nanoseconds: i64) -> c_int {
        take(broadcast, |b| b.finish(limit(nanoseconds)))
    }

    /// Becomes a consumer of the broadcast of another node. The secret has 16 bytes, or is NULL. For one thread at a
    /// time.
    fn tg_broadcast_join(
        node: *const Node, producer: u16, name: *const c_char, secret: *const u8, consumer: *mut *mut BroadcastConsumer
    ) -> c_int {
        give(consumer, || {
            let builder = Broadcast::join(given(node)?, producer, name_of(name)?);
            match secret.cast::<Secret>().as_ref() {
                Some(secret) => builder.secret(*secret),
                None => builder,
            }
            .open()
        })
    }
}
