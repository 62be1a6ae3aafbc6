// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcasts: the producer and its consumers.

use super::segment::access_of;
use super::{ExportOptions, call_mut, give, given, given_slice, limit, missing, name_of, secret_of, take, with};
use crate::{Broadcast, BroadcastBuilder, BroadcastConsumer, Error, Node};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};

c_functions! { BROADCASTS;
    /// Makes a broadcast of messages of at most message bytes, for at most consumers consumers, of which the slowest
    /// may be slots messages behind; each may be 0 for 248, 16 and 64. For one thread at a time.
    fn tg_broadcast_create(
        node: *const Node, name: *const c_char, slots: u32, message: u32, consumers: u32, options: *const ExportOptions,
        broadcast: *mut *mut Broadcast
    ) -> c_int = give(broadcast, || {
        let builder = Broadcast::create(given(node)?, name_of(name)?).access(access_of(options)?);
        let builder = with(builder, slots, BroadcastBuilder::slots);
        let builder = with(builder, message, BroadcastBuilder::message);
        with(builder, consumers, BroadcastBuilder::consumers).create()
    });

    /// Waits until there are so many consumers, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_wait_consumers(broadcast: *mut Broadcast, count: u32, nanoseconds: i64) -> c_int =
        call_mut(broadcast, |b| b.wait_consumers(count as usize, limit(nanoseconds)));

    /// Stores a message for all consumers; waits for the slowest, -EAGAIN after so many nanoseconds (negative: never).
    fn tg_broadcast_push(broadcast: *mut Broadcast, message: *const c_void, length: u32, nanoseconds: i64) -> c_int =
        call_mut(broadcast, |b| {
            let message = given_slice::<u8>(message.cast(), length as usize, "the message")?;
            b.push(message, limit(nanoseconds))
        });

    /// Ends a broadcast: waits until all consumers have all messages and have left, -EAGAIN after so many nanoseconds
    /// (negative: never). It is gone in any case.
    fn tg_broadcast_finish(broadcast: *mut Broadcast, nanoseconds: i64) -> c_int =
        take(broadcast, |b| b.finish(limit(nanoseconds)));

    /// Becomes a consumer of the broadcast of another node. The secret has 16 bytes, or is NULL. For one thread at a
    /// time.
    fn tg_broadcast_join(
        node: *const Node, producer: u16, name: *const c_char, secret: *const u8, consumer: *mut *mut BroadcastConsumer
    ) -> c_int =
        give(consumer, || Broadcast::join(given(node)?, producer, name_of(name)?).secret(secret_of(secret)).open());

    /// Takes the next message into size bytes at message, and stores its length: 1, or 0 at the end; -EAGAIN after so
    /// many nanoseconds (negative: never), -EOVERFLOW when the producer has evicted this consumer, -EMSGSIZE for a
    /// longer message, which is lost.
    fn tg_consumer_pop(
        consumer: *mut BroadcastConsumer, message: *mut c_void, size: u32, length: *mut u32, nanoseconds: i64
    ) -> c_int = call_mut(consumer, |consumer| {
        if message.is_null() || length.is_null() {
            return Err(missing("the place for the message, or for its length,"));
        }
        let mut bytes = Vec::new();
        if !consumer.pop_into(&mut bytes, limit(nanoseconds))? {
            return Ok(false);
        }
        if bytes.len() > size as usize {
            let what = format!("a message of {} bytes for {size} bytes of memory", bytes.len());
            return Err(Error::Os { what, errno: Errno::MSGSIZE });
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), message.cast(), bytes.len());
        // A message is shorter than 64 KiB.
        length.write(bytes.len() as u32);
        Ok(true)
    });

    /// Frees a consumer's place, and leaves the segment.
    fn tg_consumer_leave(consumer: *mut BroadcastConsumer) -> c_int = take(consumer, BroadcastConsumer::leave);
}
