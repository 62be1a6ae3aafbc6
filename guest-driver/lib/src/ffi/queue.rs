// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues, of this node and of others.

use super::remote::state_of;
use super::segment::access;
use super::{
    ImportState, Window, call, fill, get_or, give, given, given_as, given_slice, guard, limit, missing, name_of,
    secret_of, take, with,
};
use crate::{Error, Node, Queue, QueueBuilder, Remote, RemoteQueue, Result, Status};
use std::ffi::{c_char, c_int};

c_record! { QUEUE_OPTIONS, "tg_queue_options",
    /// How to make a queue. All zeros, or NULL, means: for processes of the same user id, no secret, every node, 64 KiB
    /// per buffer, of 4-byte words, 16 buffers behind the first.
    pub struct QueueOptions {
        /// Words per buffer: a power of two from 8 on, at most 64 KiB in all; 0 means those 64 KiB.
        pub words: u32,
        /// Bytes of a word, 4 or 8; 0 means 4.
        pub width: u32,
        /// Buffers that may be linked behind the first, up to 1024; 0 means 16.
        pub quota: u32,
        /// Linked buffers at which tg_queue_limits counts, up to the quota; 0 means half of it, UINT32_MAX never.
        pub limit: u32,
        /// Access rights, as the mode of a file, by the write bits: e.g. 0602; 0 means 0600.
        pub mode: u32,
        /// Number of admitted nodes listed; 0 admits every node.
        pub node_count: u32,
        /// The admitted nodes.
        pub nodes: *const u16,
        /// The secret that an importer must present; zeros mean none.
        pub secret: [u8; 16],
    }
}

c_record! { QUEUE_STATUS, "tg_queue_status",
    /// The state of a queue.
    pub struct QueueStatus {
        /// Why it accepts no more elements: TG_ERR_*, or TG_OK if it does.
        pub status: u32,
        /// Linked buffers, as the driver counts them.
        pub linked: u32,
        /// Overflows handled.
        pub overflows: u64,
        /// The number of times that a consumer took too long over an element and lost its mapping.
        pub evictions: u64,
        /// 1 while an overflow is not handled yet.
        pub full: u8,
        /// 1 while the quota is used up and senders are held back.
        pub held: u8,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

/// Takes an element: 1 and its value, or 0.
///
/// # Safety
/// As the module says.
unsafe fn pop(queue: *const Queue, value: *mut u64, action: impl FnOnce(&Queue) -> Result<Option<u64>>) -> c_int {
    guard(|| {
        if value.is_null() {
            return Err(missing("the place for the element"));
        }
        // SAFETY: the caller's promise.
        let Some(found) = action(unsafe { given(queue)? })? else { return Ok(false) };
        // SAFETY: the caller's promise.
        unsafe { value.write(found) };
        Ok(true)
    })
}

c_functions! { QUEUES;
    /// Makes a notification queue under a name.
    fn tg_queue_create(
        node: *const Node, name: *const c_char, options: *const QueueOptions, queue: *mut *mut Queue
    ) -> c_int = give(queue, || {
        let mut builder = Queue::create(given(node)?, name_of(name)?);
        if let Some(options) = options.as_ref() {
            builder = builder.access(access(options.mode, options.secret, options.nodes, options.node_count)?);
            builder = match options.width {
                0 | 4 => builder,
                8 => builder.wide(),
                other => return Err(Error::argument("the width of a queue", other, "4 or 8 bytes")),
            };
            builder = with(builder, options.words, QueueBuilder::words);
            builder = with(builder, options.quota, QueueBuilder::quota);
            builder = with(builder, options.limit, |b, limit| b.limit(if limit == u32::MAX { 0 } else { limit }));
        }
        builder.create()
    });

    /// A queue that another process has created through the same open file (tg_open_fd), or that this process has
    /// created before it lost the mapping, by its tg_queue_handle.
    fn tg_queue_attach(node: *const Node, handle: u32, queue: *mut *mut Queue) -> c_int =
        give(queue, || Queue::attach(given(node)?, handle));

    /// The number by which processes that share the open file attach a queue; UINT32_MAX for NULL.
    fn tg_queue_handle(queue: *const Queue) -> u32 = get_or(queue, u32::MAX, Queue::handle);

    /// Takes the oldest element: 1, or 0 if there is none. No system call, unless the queue has overflowed.
    fn tg_queue_try_pop(queue: *const Queue, value: *mut u64) -> c_int = pop(queue, value, Queue::try_pop);

    /// Takes the oldest element, asleep until there is one: 1, or 0 after so many nanoseconds (negative: never).
    fn tg_queue_pop_wait(queue: *const Queue, nanoseconds: i64, value: *mut u64) -> c_int =
        pop(queue, value, |q| q.pop_wait(limit(nanoseconds)));

    /// Takes up to count elements, oldest first: how many, 0 if there is none.
    fn tg_queue_pop_batch(queue: *const Queue, values: *mut u64, count: u32) -> c_int = guard(|| {
        if values.is_null() {
            return Err(missing("the place for the elements"));
        }
        let count = count.min(c_int::MAX as u32) as usize;
        Ok(given(queue)?.pop_batch(std::slice::from_raw_parts_mut(values, count))? as c_int)
    });

    /// Takes the oldest element by a system call that does everything in the kernel, as a baseline: 1, or 0 if there
    /// is none.
    fn tg_queue_pop_in_kernel(queue: *const Queue, value: *mut u64) -> c_int = pop(queue, value, Queue::pop_in_kernel);

    /// Makes tg_completions readable at the next element; at once if there has been one since a pop last found nothing.
    fn tg_queue_arm(queue: *const Queue) -> c_int = call(queue, Queue::arm);

    /// The number of times that the linked buffers of a queue have reached the limit: when it rises, consumers are
    /// slow.
    fn tg_queue_limits(queue: *const Queue) -> u64 = get_or(queue, 0, Queue::limits);

    /// The state of a queue.
    fn tg_queue_status_of(queue: *const Queue, status: *mut QueueStatus) -> c_int =
        fill(status, "the place for the status", || {
            let found = given(queue)?.state()?;
            Ok(QueueStatus {
                status: found.dead.unwrap_or(Status::Ok) as u32,
                linked: found.linked,
                overflows: found.overflows,
                evictions: found.evictions,
                full: found.full.into(),
                held: found.held.into(),
                reserved: [0; 6],
            })
        });

    /// Ends a queue that this process has created, with the elements not taken; one that was attached is only unmapped.
    fn tg_queue_close(queue: *mut Queue) -> c_int = take(queue, Queue::close);

    /// Imports a queue of a node, to append to it. The secret has 16 bytes, or is NULL.
    fn tg_queue_import(
        node: *const Node, id: u16, name: *const c_char, secret: *const u8, queue: *mut *mut RemoteQueue
    ) -> c_int = give(queue, || Queue::import(given(node)?, id, name_of(name)?).secret(secret_of(secret)).open());

    /// The same, of an import that raises no SIGBUS when its owner is gone: elements then reach no queue.
    fn tg_queue_import_soft(
        node: *const Node, id: u16, name: *const c_char, secret: *const u8, queue: *mut *mut RemoteQueue
    ) -> c_int =
        give(queue, || Queue::import(given(node)?, id, name_of(name)?).secret(secret_of(secret)).soft().open());

    /// Appends with one store instruction, after all earlier puts of this thread to that node, and returns before the
    /// other node has it.
    fn tg_queue_enqueue(queue: *const RemoteQueue, value: u64) -> c_int = call(queue, |q| q.enqueue(value));

    /// Stores count words of 8 bytes from offset of an import of the same node on, then appends value: a consumer that
    /// pops it sees them. Not appended while that import has an error.
    fn tg_queue_put_notify(
        queue: *const RemoteQueue, remote: *const Remote, offset: u64, words: *const u64, count: u64, value: u64
    ) -> c_int = call(queue, |queue| {
        let count = usize::try_from(count).ok().filter(|count| *count <= isize::MAX as usize / 8).ok_or_else(|| {
            Error::argument("the number of words", count, "what fits this process's address space")
        })?;
        let words = given_slice(words, count, "the data")?;
        queue.put_notify(given_as(remote, "the import of the data")?, offset, words, value)
    });

    /// Where to store an element directly: one aligned scalar store of tg_queue_width bytes.
    fn tg_queue_aperture(queue: *const RemoteQueue) -> Window =
        Window(get_or(queue, std::ptr::null_mut(), |q| q.as_ptr().cast()));

    /// Bytes of an imported queue's words, 4 or 8.
    fn tg_queue_width(queue: *const RemoteQueue) -> u32 = get_or(queue, 0, RemoteQueue::width);

    /// Returns when every earlier element has been appended; -EAGAIN after so many nanoseconds (negative: never), then
    /// it may be called again.
    fn tg_queue_quiet(queue: *const RemoteQueue, nanoseconds: i64) -> c_int =
        call(queue, |q| q.remote.quiet_within(limit(nanoseconds)));

    /// The state of an imported queue.
    fn tg_queue_state_of(queue: *const RemoteQueue, state: *mut ImportState) -> c_int =
        state_of(state, || given(queue)?.state());

    /// Clears the latched error of an imported queue and accepts elements again after a cut. Lost elements stay lost.
    fn tg_queue_acknowledge(queue: *const RemoteQueue) -> c_int = call(queue, RemoteQueue::acknowledge);

    /// Closes the import of a queue after its outstanding elements.
    fn tg_queue_unimport(queue: *mut RemoteQueue) -> c_int = take(queue, RemoteQueue::close);
}
