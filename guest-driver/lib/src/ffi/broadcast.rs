// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcasts: the producer.

use super::error::guard;
use super::segment::access_of;
use super::{ExportOptions, give, given, given_alone, limit, take, text};
use crate::{Broadcast, BroadcastConsumer, Node, Secret};
use std::ffi::{c_char, c_int, c_void};

functions! { BROADCASTS;
    /// Makes a broadcast of messages of at most message bytes, for at most consumers consumers, of which the slowest
    /// may be slots messages behind; each may be 0 for 248, 16 and 64. For one thread at a time.
    fn tg_broadcast_create(
        node: *const Node, name: *const c_char, slots: u32, message: u32, consumers: u32, options: *const ExportOptions,
        broadcast: *mut *mut Broadcast
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(broadcast, || {
                let mut builder = Broadcast::create(given(node, "the node")?, text(name, "the name")?);
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
    }

    /// Waits until there are so many consumers, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_wait_consumers(broadcast: *mut Broadcast, count: u32, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let broadcast = unsafe { given_alone(broadcast, "the broadcast")? };
            broadcast.wait_consumers(count as usize, limit(nanoseconds))?;
            Ok(0)
        })
    }

    /// Stores a message for all consumers; waits for the slowest, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_push(broadcast: *mut Broadcast, message: *const c_void, length: u32, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let broadcast = unsafe { given_alone(broadcast, "the broadcast")? };
            let message = match length {
                0 => &[],
                // SAFETY: the caller's promise.
                _ => unsafe { std::slice::from_raw_parts(given(message.cast(), "the message")?, length as usize) },
            };
            broadcast.push(message, limit(nanoseconds))?;
            Ok(0)
        })
    }

    /// Ends a broadcast: waits until all consumers have all messages and have left, -EAGAIN after so many nanoseconds
    /// (negative: never). It is gone in any case.
    fn tg_broadcast_finish(broadcast: *mut Broadcast, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(broadcast) }.map_or(Ok(()), |b| b.finish(limit(nanoseconds)))?;
            Ok(0)
        })
    }

    /// Becomes a consumer of the broadcast of another node. The secret has 16 bytes, or is NULL. For one thread at a
    /// time.
    fn tg_broadcast_join(
        node: *const Node, producer: u16, name: *const c_char, secret: *const u8, consumer: *mut *mut BroadcastConsumer
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(consumer, || {
                let mut builder = Broadcast::join(given(node, "the node")?, producer, text(name, "the name")?);
                if let Some(secret) = secret.cast::<Secret>().as_ref() {
                    builder = builder.secret(*secret);
                }
                builder.open()
            })
        }
    }
}
