// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is fuzzed: a function for each parser and state machine that takes bytes from outside.
//!
//! ```text
//!   ../corpus/NAME/*    inputs worth beginning with, made by the example `corpus`
//!        │ mutated
//!        ├── tests/corpus.rs           so many mutations, seeded, on stable Rust: part of `cargo test`
//!        └── ../fuzz_targets/NAME.rs   without end, guided by coverage: cargo-fuzz on nightly Rust
//!        │
//!   NAME(&[u8])         one of TARGETS: returns whatever the bytes are, or has found a bug
//! ```
//!
//! | Target | Bytes from | Code |
//! |---|---|---|
//! | [`vfio_user`] | QEMU, and so the guest | the vfio-user stream, down to the board |
//! | [`packet`] | other nodes | `Packet::decode` |
//! | [`link_frame`] | HIBs and fabrics | `Frame::decode` |
//! | [`hib()`] | guest, fabric, other nodes | `Hib::handle`: two boards, their guests' memory, and the packets between them |
//! | [`rdp`] | any host | `Datagram::parse`, `Listener` and `Connection` |
//! | [`settings`] | files | topologies, settings of all commands, workloads, schedules of faults |
//! | [`messages`] | other processes | the messages' `Element::decode`, `Layout` and `Engine` |
//! | [`routes`] | neighbours of a gateway | the messages' `Far` and `Routes` |
//! | [`sockets`] | the other end of a connection | `read`, `peek` and `write` of a framed direction |
//! | [`channel`] | the other end of a channel | `End`: its words change at any time |
//! | [`tgd`] | clients, daemons of other nodes | the protocol of `tgd` |
//! | [`capture`] | files | the reader of captures, and their replay |
//!
//! A target panics where an input shows a bug: by the code it calls, or by an assertion of the target. Arithmetic that
//! overflows panics, too.
#![forbid(unsafe_code)]

mod capture;
mod channel;
pub mod hib;
mod input;
mod link_frame;
mod messages;
mod packet;
mod rdp;
mod routes;
mod settings;
mod sockets;
mod tgd;
mod vfio_user;

pub use crate::capture::capture;
pub use crate::channel::channel;
pub use crate::hib::hib;
pub use crate::link_frame::link_frame;
pub use crate::messages::messages;
pub use crate::packet::packet;
pub use crate::rdp::rdp;
pub use crate::routes::routes;
pub use crate::settings::settings;
pub use crate::sockets::sockets;
pub use crate::tgd::tgd;
pub use crate::vfio_user::vfio_user;

/// A target: takes any bytes, and panics if they show a bug.
pub type Target = fn(&[u8]);

/// All targets by their names, which are those of their files in `fuzz_targets/` and of their directories in `corpus/`.
pub const TARGETS: [(&str, Target); 12] = [
    ("vfio_user", vfio_user),
    ("packet", packet),
    ("link_frame", link_frame),
    ("hib", hib),
    ("rdp", rdp),
    ("settings", settings),
    ("capture", capture),
    ("messages", messages),
    ("routes", routes),
    ("sockets", sockets),
    ("channel", channel),
    ("tgd", tgd),
];
