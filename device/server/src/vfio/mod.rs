// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vfio-user protocol. No other module depends on its details; `shell` owns a connection and a session, and `board`
//! implements [`Backend`].
//!
//! ```text
//!   socket ── connection  bytes and descriptors in, replies out, both bounded
//!                │
//!             message     one message, parsed and checked once
//!                │
//!             server      performs each message on a Backend
//! ```
//!
//! No call blocks. A load may be answered after later messages have been served ([`Answer::Later`]).

pub mod connection;
pub mod message;
pub mod server;

pub use connection::{Connection, Filled, hang_up};
pub use message::{Desync, Refused};
pub use server::{Answer, Backend, Session, Token};
