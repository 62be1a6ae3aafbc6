// SPDX-License-Identifier: MIT OR Apache-2.0
//! The header of messages.

use super::records::{EAGER, ENDPOINT, FIELDS, MODE_NAMES, OPTIONS, PATTERN, PROCESS, RECEIVED, WAY_NAMES};
use super::{OpenBuffer, SharedMessages, SharedThread, handle, messages, single, thread};
use crate::error::Error;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::messages::Name;
use telegraphos::c_handles;
use telegraphos::ffi::declarations::{Constants, Function, Header, Record};

c_handles! { HANDLES, Error;
    SharedMessages => "tg_msg", "tg_msg", "the messages' handle", "The messages of a process.";
    Name => "tg_msg_name", "tg_msg_name", "the published name", "A name of a process.";
    SharedThread => "tg_msg_thread", "tg_msg_thread", "the thread", "A thread that sends and receives.";
    Memory => "tg_msg_memory", "tg_msg_memory", "the memory", "Memory that belongs to messages under way.";
    Handle => "tg_msg_handle", "tg_msg_handle", "the handle of a send or receive", "An asynchronous send or receive.";
    OpenBuffer => "tg_msg_buffer", "tg_msg_buffer", "the single buffer",
        "A buffer for one message at a time, which comes while its thread does something else.";
}

/// In the order of the header.
const CONSTANTS: [Constants<'_>; 3] = [
    ("Fields of a pattern", &FIELDS),
    ("Which board moves the bytes of long messages", &WAY_NAMES),
    ("How messages are waited for", &MODE_NAMES),
];

/// In the order of the header.
const RECORDS: [&Record; 6] = [&PROCESS, &ENDPOINT, &PATTERN, &RECEIVED, &EAGER, &OPTIONS];

/// In the order of the header.
const FUNCTIONS: &[&[Function]] =
    &[messages::MESSAGES, thread::THREADS, thread::MESSAGES, handle::MEMORY, handle::HANDLES, single::BUFFERS];

const ABOUT: &str = "\
Messages between threads of a cluster's processes, over windows, notification queues and copies of Telegraphos.

Functions return 0 or a negative errno unless said otherwise; tg_last_error() has the message: -ECONNRESET when the
other process has gone, -ESRCH when it has no such thread, -EHOSTUNREACH, -ETIMEDOUT and -EPROTO when it is not
reached, does not answer or has other options, -ESHUTDOWN when the messages or the receiving thread have been closed,
-ESTALE in a child, made by fork, of the process that has opened the messages, which is to open its own,
-ECANCELED after a receive was withdrawn, -EFAULT when a message or a buffer is not mapped, and -EEXIST when a thread
is open already. No call raises SIGBUS when another process or node dies.

Several threads may use messages, threads and handles at once, but only one may close them, after all other use;
memory and single buffers are for one thread at a time. Threads keep their messages open, and single buffers their
thread. Names are UTF-8.

The library has the functions of telegraphos.h, too: a program links it instead of that one.

Generated from the library; do not edit. Renew with
  cargo run -p telegraphos-msg --example telegraphos_msg_h > guest-driver/msg/include/telegraphos_msg.h
";

/// The text of `include/telegraphos_msg.h`:
/// `cargo run -p telegraphos-msg --example telegraphos_msg_h > guest-driver/msg/include/telegraphos_msg.h` renews it.
pub fn header() -> String {
    let header = Header {
        about: ABOUT,
        guard: "TELEGRAPHOS_MSG_H",
        includes: &["stdint.h", "telegraphos.h"],
        handles: HANDLES,
        constants: &CONSTANTS,
        records: &RECORDS,
        functions: FUNCTIONS,
    };
    header.text()
}
