// SPDX-License-Identifier: MIT OR Apache-2.0
//! Notification queues.

pub mod dequeue;
