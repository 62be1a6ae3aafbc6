// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses of senders and receivers (SPEC item 39).

use serde::{Deserialize, Serialize};
use std::fmt;

/// A process of the cluster. Its number is its own for as long as any process may hold it: one that has ended is not
/// followed by another with the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Node that it runs on.
    pub node: u16,
    pub number: u32,
}

/// A thread of a process: what messages are from and for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub process: Process,
    pub thread: u32,
}

/// Which messages a receive accepts. What is `None` may be anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pattern {
    /// Process that it is from.
    pub process: Option<Process>,
    /// Number of the thread that it is from.
    pub thread: Option<u32>,
    pub tag: Option<u32>,
}

impl Pattern {
    /// Exactly this thread's messages with this tag.
    pub fn exactly(from: Endpoint, tag: u32) -> Pattern {
        Pattern { process: Some(from.process), thread: Some(from.thread), tag: Some(tag) }
    }

    /// Whether it accepts a message.
    pub fn accepts(&self, from: Endpoint, tag: u32) -> bool {
        self.process.is_none_or(|process| process == from.process)
            && self.thread.is_none_or(|thread| thread == from.thread)
            && self.tag.is_none_or(|expected| expected == tag)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of node {}", self.number, self.node)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of {}", self.thread, self.process)
    }
}
