// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hardware interface of Telegraphos, written down once.
//!
//! Everything two parts of the system must agree on is defined here and nowhere else (contract 6):
//!
//! ```text
//!   guest program      | uapi     ioctls and mmap offsets of /dev/telegraphosN
//!   guest driver       | regs     BAR0 registers          ids     PCI identity
//!      |               | admin    command blocks          event   event queue entries
//!      |  MMIO, DMA    | context  BAR2 pages and the status page in guest memory
//!   HIB (device)       | window   BAR4 addresses          queue   notification-queue buffers
//!      |  link         | packet   packets between HIBs
//!   fabric             | link     frames between a HIB and its switch port
//!   Wireshark          | layout   fields of frames and packets, as tables
//!   kernels, programs  | names    of segments             net     addresses and places of the network device
//! ```
//!
//! A packet kind is one entry of `kinds!` in `packet.rs`. CONTRIBUTING.md, "Where is ...?", lists what else a new kind
//! needs.
//!
//! The C header of the guest driver is generated from these tables ([`header`]); a test fails when the
//! committed header is stale. All integers are little-endian. Bytes from a guest or the wire are parsed
//! once, by a checked `decode`; after that accessors cannot panic.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

#[macro_use]
mod cstruct;
mod numbers;
mod schema;

mod access;
pub mod admin;
mod block;
mod burst;
mod class;
pub mod context;
pub mod direct;
mod epoch;
pub mod error;
pub mod event;
mod field;
pub mod header;
pub mod ids;
pub mod layout;
pub mod link;
pub mod names;
pub mod net;
pub mod packet;
mod packet_error;
pub mod queue;
pub mod range;
pub mod regs;
pub mod tables;
mod tags;
pub mod uapi;
pub mod window;

pub use burst::{Burst, BurstStore};
pub use class::Class;
pub use cstruct::{CField, CStruct};
pub use epoch::ImportEpoch;
pub use error::Status;
pub use packet::{AtomicOp, Block, Body, Packet, RemoteAddr, RemotePage, Rights};
pub use tags::Tags;
pub use window::{Aperture, WindowAddress, WindowLayout};

/// Version of the link and packet formats; a HIB and a fabric that differ refuse each other.
pub const PROTOCOL_VERSION: u8 = 6;
/// Bytes of memory that one packet of a block copy carries at most: a whole export unit. A frame with it fits into the
/// buffer of a stream.
pub const MAX_BLOCK: usize = UNIT as usize;
/// The same between nodes that are not both linked to their fabric in memory: what is sent behind a block waits for it.
/// [`Frame::NodeUp`](link::Frame::NodeUp) names the limit that is in force.
pub const STREAM_BLOCK: usize = 8192;
/// Stores of a burst, at most.
pub const MAX_BURST: usize = 64;
/// Bytes of a store in a burst's packet: data (8), offset (2), size (1), and one that is ignored.
pub const STORE_LEN: usize = 12;

/// log2 of the import and export unit in bytes (64 KiB): one import slot, one grant, one context page stride.
pub const UNIT_SHIFT: u32 = 16;

/// The import and export unit in bytes.
pub const UNIT: u64 = 1 << UNIT_SHIFT;

/// A node's number in the cluster, from 0.
pub type NodeId = u16;
