// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of a broadcast, over a [`Memory`] whose every call is one access.
//!
//! ```text
//!   word 0       MAGIC, stored last                          written by
//!        1       slots << 32 | words of a slot               the producer
//!        2       places for consumers
//!        3       1 + number of messages, at the end
//!        4 ..    place: 0 free, JOINING, 1 + next message    its consumer; the producer turns JOINING into a number
//!          ..    evicted: 1 if that place's consumer is      the producer
//!   slots        data ..., commit = (1 + number) << 16 | bytes
//! ```
//!
//! The ring relies on this alone: the stores of one writer into one page reach every copy in their order, and an atomic
//! or quiet that has returned is in all copies. Hence
//!
//! - a slot lies within one page, and its commit word is stored last: a consumer that finds it finds the data (no
//!   message is ever torn);
//! - a consumer reads a slot before it reports that in its place, and the producer reads the report before it stores to
//!   the slot again;
//! - places are claimed and assigned by atomics, so that no two consumers claim the same one, and none is assigned to a
//!   consumer that has left.
//!
//! Nothing here is unsafe or waits. Words stored by others are checked: wrong ones may stop a ring, and no more.

mod consumer;
mod memory;
mod producer;
mod shape;
#[cfg(test)]
mod tests;

pub use consumer::{Consumer, Found, Joined};
pub use memory::Memory;
pub use producer::Producer;
pub use shape::{CONSUMERS_MAX, MAGIC, MESSAGE_MAX, PAGE, Shape};
