// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vfio-user protocol: the only place that knows it.
//!
//! ```text
//!   socket ── connection  bytes and descriptors in, replies out, both bounded
//!                │
//!             message     one message, parsed and checked once
//!                │
//!             server      what each message means; asks a Backend
//! ```
//!
//! Nothing here blocks. A load may be answered long after other messages have been served ([`Answer::Later`]).

pub mod connection;
pub mod message;
pub mod server;

pub use connection::{Connection, Filled, hang_up};
pub use message::{Desync, Refused};
pub use server::{Answer, Backend, Session, Token};
