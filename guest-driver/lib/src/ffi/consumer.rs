// SPDX-License-Identifier: MIT OR Apache-2.0
//! Broadcasts: a consumer.

use super::{call_mut, limit, missing, take};
use crate::{BroadcastConsumer, Error};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};

functions! { CONSUMERS;
    /// Takes the next message into size bytes at message, and stores its length: 1, or 0 at the end; -EAGAIN after so
    /// many nanoseconds (negative: never), -EOVERFLOW when the producer has evicted this consumer, -EMSGSIZE for a
    /// longer message, which is lost.
    fn tg_consumer_pop(
        consumer: *mut BroadcastConsumer, message: *mut c_void, size: u32, length: *mut u32, nanoseconds: i64
    ) -> c_int {
        call_mut(consumer, |consumer| {
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
        })
    }

    /// Gives up a consumer's place.
    fn tg_consumer_leave(consumer: *mut BroadcastConsumer) -> c_int {
        take(consumer, BroadcastConsumer::leave)
    }
}
