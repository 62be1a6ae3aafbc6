// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads that send and receive.

use super::{
    EndpointRecord, PatternRecord, ReceivedRecord, SharedMessages, bytes_of, endpoint_of, length_of, memory_of,
    pattern_of, room_of,
};
use crate::error::Result;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::messages::Messages;
use crate::thread::Thread;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;
use telegraphos::c_functions;
use telegraphos::ffi::boundary::{call, fill, free, give, given, offer, taken};

/// A thread, and the messages that it keeps open.
#[derive(Debug)]
pub(super) struct OpenThread {
    /// Borrows from what is behind `_messages`: dropped first.
    thread: Thread<'static>,
    _messages: Arc<Messages>,
}

/// A thread in C, which its single buffers keep open.
#[derive(Debug)]
pub struct SharedThread(pub(super) Arc<OpenThread>);

impl OpenThread {
    fn open(messages: &Arc<Messages>, number: u32) -> Result<OpenThread> {
        let messages = messages.clone();
        // SAFETY: an `Arc`'s contents stay where they are, and this one's until the thread, which alone has the
        // reference and does not show it for that long, has been dropped. No `&mut` to them exists meanwhile.
        let lasting: &'static Messages = unsafe { &*Arc::as_ptr(&messages) };
        Ok(OpenThread { thread: lasting.thread(number)?, _messages: messages })
    }

    pub(super) fn get(&self) -> &Thread<'_> {
        &self.thread
    }
}

c_functions! { THREADS;
    /// Opens a thread of this process, which can receive from now on; the number is its own. It need not be one of the
    /// system's.
    fn tg_msg_thread_open(messages: *const SharedMessages, number: u32, thread: *mut *mut SharedThread) -> c_int =
        give(thread, || Ok(SharedThread(Arc::new(OpenThread::open(&given(messages)?.0, number)?))));

    /// Closes a thread. Single buffers of it that are open keep it open. Receives that have no message end then, and
    /// so do sends to it that it has not received.
    fn tg_msg_thread_close(thread: *mut SharedThread) -> () = free(thread);

    /// What others send to.
    fn tg_msg_endpoint_of(thread: *const SharedThread, endpoint: *mut EndpointRecord) -> c_int =
        fill(endpoint, "the place for the endpoint", || Ok(given(thread)?.0.get().endpoint().into()));
}

c_functions! { MESSAGES;
    /// Sends length bytes: returns when the receiving thread has them.
    fn tg_msg_send(
        thread: *const SharedThread, to: *const EndpointRecord, tag: u32, bytes: *const c_void, length: u64
    ) -> c_int = call(thread, |t| t.0.get().send(endpoint_of(to)?, tag, bytes_of(bytes, length)?));

    /// Waits for a message that the pattern accepts. Of one that is longer than the buffer the beginning is there.
    /// received may be NULL.
    fn tg_msg_receive(
        thread: *const SharedThread, pattern: *const PatternRecord, buffer: *mut c_void, capacity: u64,
        received: *mut ReceivedRecord
    ) -> c_int = call(thread, |t| {
        let message = t.0.get().receive(pattern_of(pattern)?, room_of(buffer, capacity)?)?;
        offer(received, message.into())
    });

    /// tg_msg_receive that fails with -EAGAIN after so many nanoseconds; no message is lost.
    fn tg_msg_receive_timeout(
        thread: *const SharedThread, pattern: *const PatternRecord, buffer: *mut c_void, capacity: u64,
        nanoseconds: u64, received: *mut ReceivedRecord
    ) -> c_int = call(thread, |t| {
        let (room, time) = (room_of(buffer, capacity)?, Duration::from_nanos(nanoseconds));
        offer(received, t.0.get().receive_timeout(pattern_of(pattern)?, room, time)?.into())
    });

    /// Sends a copy of length bytes, and does not wait for the receiving thread. The first message to a process
    /// connects to it before. Ends with tg_msg_handle_wait or tg_msg_handle_free.
    fn tg_msg_send_copy(
        thread: *const SharedThread, to: *const EndpointRecord, tag: u32, bytes: *const c_void, length: u64,
        handle: *mut *mut Handle
    ) -> c_int =
        give(handle, || given(thread)?.0.get().send_copy(endpoint_of(to)?, tag, bytes_of(bytes, length)?));

    /// Sends the first length bytes of memory, without a copy, and does not wait; see tg_msg_send_copy. The memory
    /// belongs to the handle from now on, and is freed if this fails.
    fn tg_msg_send_dma(
        thread: *const SharedThread, to: *const EndpointRecord, tag: u32, memory: *mut Memory, length: u64,
        handle: *mut *mut Handle
    ) -> c_int = {
        let memory = taken(memory);
        give(handle, || {
            let length = length_of(length, "the length of the message")?;
            given(thread)?.0.get().send_dma(endpoint_of(to)?, tag, memory?, length)
        })
    };

    /// Has a message that the pattern accepts come into new memory of capacity bytes, and does not wait. Ends with
    /// tg_msg_handle_wait, which returns the memory, or tg_msg_handle_free, which withdraws it.
    fn tg_msg_receive_copy(
        thread: *const SharedThread, pattern: *const PatternRecord, capacity: u64, handle: *mut *mut Handle
    ) -> c_int = give(handle, || given(thread)?.0.get().receive_dma(pattern_of(pattern)?, memory_of(capacity)?));

    /// The same, with memory of the program, which belongs to the handle from now on, and is freed if this fails.
    fn tg_msg_receive_dma(
        thread: *const SharedThread, pattern: *const PatternRecord, memory: *mut Memory, handle: *mut *mut Handle
    ) -> c_int = {
        let memory = taken(memory);
        give(handle, || given(thread)?.0.get().receive_dma(pattern_of(pattern)?, memory?))
    };
}
