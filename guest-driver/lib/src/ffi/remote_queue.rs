// SPDX-License-Identifier: MIT OR Apache-2.0
//! Imported queues.

use super::error::guard;
use super::remote::state_of;
use super::{ImportState, Window, give, given, limit, take, text};
use crate::{Error, Node, Queue, Remote, RemoteQueue, Secret};
use std::ffi::{c_char, c_int};

functions! { REMOTE_QUEUES;
    /// Imports a queue of a node, to append to it. The secret has 16 bytes, or is NULL.
    fn tg_queue_import(
        node: *const Node, id: u16, name: *const c_char, secret: *const u8, queue: *mut *mut RemoteQueue
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            give(queue, || {
                let builder = Queue::import(given(node, "the node")?, id, text(name, "the name")?);
                match secret.cast::<Secret>().as_ref() {
                    Some(secret) => builder.secret(*secret),
                    None => builder,
                }
                .open()
            })
        }
    }

    /// Appends with one store instruction, after all that this thread has put to that node before, and returns before
    /// the other node has it.
    fn tg_queue_enqueue(queue: *const RemoteQueue, value: u64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(queue, "the imported queue")? }.enqueue(value)?;
            Ok(0)
        })
    }

    /// Stores count words of 8 bytes from offset of an import of the same node on, then appends value: who pops it sees
    /// them. Not appended while that import has an error.
    fn tg_queue_put_notify(
        queue: *const RemoteQueue, remote: *const Remote, offset: u64, words: *const u64, count: u64, value: u64
    ) -> c_int {
        guard(|| {
            let words = match usize::try_from(count) {
                Ok(0) => &[][..],
                Ok(count) if count <= isize::MAX as usize / 8 => {
                    // SAFETY: the caller's promise.
                    unsafe { std::slice::from_raw_parts(given(words, "the data")?, count) }
                }
                _ => {
                    return Err(Error::Argument {
                        what: "the number of words",
                        value: count.to_string(),
                        expected: "what fits this process's address space".into(),
                    });
                }
            };
            // SAFETY: the caller's promise.
            let (queue, remote) =
                unsafe { (given(queue, "the imported queue")?, given(remote, "the import of the data")?) };
            queue.put_notify(remote, offset, words, value)?;
            Ok(0)
        })
    }

    /// Where to store an element oneself: one aligned scalar store of tg_queue_width bytes.
    fn tg_queue_aperture(queue: *const RemoteQueue) -> Window {
        // SAFETY: the caller's promise.
        Window(unsafe { queue.as_ref() }.map_or(std::ptr::null_mut(), |q| q.as_ptr().cast()))
    }

    /// Bytes of an imported queue's words, 4 or 8.
    fn tg_queue_width(queue: *const RemoteQueue) -> u32 {
        // SAFETY: the caller's promise.
        unsafe { queue.as_ref() }.map_or(0, RemoteQueue::width)
    }

    /// Returns when every earlier element has been appended; -EAGAIN after so many nanoseconds (negative: never), then
    /// it may be called again.
    fn tg_queue_quiet(queue: *const RemoteQueue, nanoseconds: i64) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            let queue = unsafe { given(queue, "the imported queue")? };
            match limit(nanoseconds) {
                Some(limit) => queue.quiet_timeout(limit)?,
                None => queue.quiet()?,
            }
            Ok(0)
        })
    }

    /// What has become of an imported queue.
    fn tg_queue_state_of(queue: *const RemoteQueue, state: *mut ImportState) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { state_of(state, || given(queue, "the imported queue")?.state()) }
    }

    /// Clears the latched error of an imported queue and goes on after a cut. Lost elements stay lost.
    fn tg_queue_acknowledge(queue: *const RemoteQueue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { given(queue, "the imported queue")? }.acknowledge()?;
            Ok(0)
        })
    }

    /// Closes the import of a queue after its outstanding elements.
    fn tg_queue_unimport(queue: *mut RemoteQueue) -> c_int {
        guard(|| {
            // SAFETY: the caller's promise.
            unsafe { take(queue) }.map_or(Ok(()), RemoteQueue::close)?;
            Ok(0)
        })
    }
}
