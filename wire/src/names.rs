// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of segments and queues that several parts make or recognize. Any other name is its program's own affair.
//!
//! | Beginning | Whose |
//! |---|---|
//! | [`KERNEL`] | the kernel's own objects, such as those of the network device ([`net`](crate::net)) |
//! | [`CONNECTION`] | what belongs to a TCP connection, by its two ends ([`NAME_OF_CONNECTION`]) |
//! | [`MESSAGES`] | what a process has for its messages |
//!
//! [`NAME_OF_CONNECTION`]: crate::uapi::NAME_OF_CONNECTION

use alloc::format;
use alloc::string::String;

use crate::NodeId;

c_strings! {
    /// Beginnings of names for the C header.
    pub ALL {
        /// Names of the kernel's own objects begin so, and no others.
        KERNEL as "TG_KERNEL_PREFIX" = "kernel:",
        /// Names that the driver makes of what belongs to a TCP connection begin so, and no others.
        CONNECTION as "TG_CONNECTION_PREFIX" = "tcp:",
    }
}

c_consts! {
    /// Lengths of names for the C header.
    pub LENGTHS: usize, prefix "TG_" {
        /// Most characters, of a to z, that a program gives what belongs to a connection: its ends take 47 of a name.
        CONNECTION_WHAT = 8,
    }
}

/// Names of what a process has for its messages begin so.
pub const MESSAGES: &str = "msg.";

/// Under which messages find the process that has a name.
pub fn of_process(name: &str) -> String {
    format!("{MESSAGES}at.{name}")
}

/// A queue of a process, for messages.
pub fn queue(process: u64, port: u16) -> String {
    format!("{MESSAGES}{process:08x}.p{port}")
}

/// The inbox that a process has for messages of another one.
pub fn inbox(process: u64, (node, from): (NodeId, u64)) -> String {
    format!("{MESSAGES}{process:08x}.{node}.{from:08x}")
}

/// Memory of a process that is registered for a long message.
pub fn memory(process: u64, id: u64) -> String {
    format!("{MESSAGES}{process:08x}.m{id:x}")
}
