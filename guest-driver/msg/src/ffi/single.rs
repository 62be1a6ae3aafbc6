// SPDX-License-Identifier: MIT OR Apache-2.0
//! Single buffers.

use super::thread::OpenThread;
use super::{PatternRecord, ReceivedRecord, SharedThread, length_of, pattern_of, room_of};
use crate::error::Result;
use crate::single::SingleBuffer;
use crate::thread::Thread;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use telegraphos::c_functions;
use telegraphos::ffi::boundary::{call, call_mut, free, give, given, offer};
use telegraphos_msg_core::Pattern;

/// A single buffer in C, and the thread that it keeps open.
#[derive(Debug)]
pub struct OpenBuffer {
    /// Borrows from what is behind `_thread`: dropped first.
    buffer: SingleBuffer<'static>,
    _thread: Arc<OpenThread>,
}

impl OpenBuffer {
    fn open(thread: &Arc<OpenThread>, pattern: Pattern, capacity: usize) -> Result<OpenBuffer> {
        let thread = thread.clone();
        // SAFETY: an `Arc`'s contents stay where they are, and this one's until the buffer, which alone has the
        // reference and does not show it, has been dropped. No `&mut` to them exists meanwhile.
        let lasting: &'static Thread<'static> = unsafe { &*std::ptr::from_ref(thread.get()).cast() };
        Ok(OpenBuffer { buffer: SingleBuffer::open(lasting, pattern, capacity)?, _thread: thread })
    }
}

c_functions! { BUFFERS;
    /// Opens a buffer for one message that the pattern accepts, which comes meanwhile: a second sender waits until the
    /// first one's message has been used.
    fn tg_msg_buffer_open(
        thread: *const SharedThread, pattern: *const PatternRecord, capacity: u64, buffer: *mut *mut OpenBuffer
    ) -> c_int = give(buffer, || {
        let capacity = length_of(capacity, "the size of the buffer")?;
        OpenBuffer::open(&given(thread)?.0, pattern_of(pattern)?, capacity)
    });

    /// 1 if there is a message in a buffer, else 0. Does not wait.
    fn tg_msg_buffer_test(buffer: *const OpenBuffer) -> c_int = call(buffer, |b| Ok(b.buffer.test()));

    /// Waits for the message, copies it to bytes, and opens the buffer for the next one. Of a message that is longer
    /// than the buffer, or than capacity, the beginning is there. received may be NULL.
    fn tg_msg_buffer_next(
        buffer: *mut OpenBuffer, bytes: *mut c_void, capacity: u64, received: *mut ReceivedRecord
    ) -> c_int = call_mut(buffer, |b| {
        let room = room_of(bytes, capacity)?;
        let message = b.buffer.next(|message, bytes| {
            let length = bytes.len().min(room.len());
            room[..length].copy_from_slice(&bytes[..length]);
            *message
        })?;
        offer(received, message.into())
    });

    /// Closes a buffer. A message in it that was not used is lost.
    fn tg_msg_buffer_close(buffer: *mut OpenBuffer) -> () = free(buffer);
}
