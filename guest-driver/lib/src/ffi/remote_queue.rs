// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imported queues.

use super::remote::state_of;
use super::{ImportState, Window, call, get_or, give, given, given_as, given_slice, limit, name_of, take};
use crate::{Error, Node, Queue, Remote, RemoteQueue, Secret};
use std::ffi::{c_char, c_int};

functions! { REMOTE_QUEUES;
    /// Imports a queue of a node, to append to it. The secret has 16 bytes, or is NULL.
    fn tg_queue_import(
        node: *const Node, id: u16, name: *const c_char, secret: *const u8, queue: *mut *mut RemoteQueue
    ) -> c_int {
        give(queue, || {
            let builder = Queue::import(given(node)?, id, name_of(name)?);
            match secret.cast::<Secret>().as_ref() {
                Some(secret) => builder.secret(*secret),
                None => builder,
            }
            .open()
        })
    }

    /// Appends with one store instruction, after all earlier puts of this thread to that node, and returns before the
    /// other node has it.
    fn tg_queue_enqueue(queue: *const RemoteQueue, value: u64) -> c_int {
        call(queue, |q| q.enqueue(value))
    }

    /// Stores count words of 8 bytes from offset of an import of the same node on, then appends value: a consumer that
    /// pops it sees them. Not appended while that import has an error.
    fn tg_queue_put_notify(
        queue: *const RemoteQueue, remote: *const Remote, offset: u64, words: *const u64, count: u64, value: u64
    ) -> c_int {
        call(queue, |queue| {
            let count = usize::try_from(count).ok().filter(|count| *count <= isize::MAX as usize / 8).ok_or_else(|| {
                Error::argument("the number of words", count, "what fits this process's address space")
            })?;
            let words = given_slice(words, count, "the data")?;
            queue.put_notify(given_as(remote, "the import of the data")?, offset, words, value)
        })
    }

    /// Where to store an element directly: one aligned scalar store of tg_queue_width bytes.
    fn tg_queue_aperture(queue: *const RemoteQueue) -> Window {
        Window(get_or(queue, std::ptr::null_mut(), |q| q.as_ptr().cast()))
    }

    /// Bytes of an imported queue's words, 4 or 8.
    fn tg_queue_width(queue: *const RemoteQueue) -> u32 {
        get_or(queue, 0, RemoteQueue::width)
    }

    /// Returns when every earlier element has been appended; -EAGAIN after so many nanoseconds (negative: never), then
    /// it may be called again.
    fn tg_queue_quiet(queue: *const RemoteQueue, nanoseconds: i64) -> c_int {
        call(queue, |q| q.quiet_within(limit(nanoseconds)))
    }

    /// The state of an imported queue.
    fn tg_queue_state_of(queue: *const RemoteQueue, state: *mut ImportState) -> c_int {
        state_of(state, || given(queue)?.state())
    }

    /// Clears the latched error of an imported queue and accepts elements again after a cut. Lost elements stay lost.
    fn tg_queue_acknowledge(queue: *const RemoteQueue) -> c_int {
        call(queue, RemoteQueue::acknowledge)
    }

    /// Closes the import of a queue after its outstanding elements.
    fn tg_queue_unimport(queue: *mut RemoteQueue) -> c_int {
        take(queue, RemoteQueue::close)
    }
}
