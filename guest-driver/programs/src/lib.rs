// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that run inside a guest, and what they share.
//!
//! | Program | What it does |
//! |---|---|
//! | `tg-selftest` | every statement about the product that a guest can check, as KTAP; runs in all guests at once |
//! | `tg-demo` | one guest's process of `telegraphos demo`: makes its steps and checks them |
//! | `tg-export`, `tg-store`, `tg-load` | one segment, one store, one load, by hand |
//! | `tg-flood`, `tg-watch` | a store loop that outruns the network, and the receiver that checks it |
//! | `tg-queue` | a queue under siege: consumers that are slow, stopped and killed, and senders that number their elements |
//! | `tg-replica` | a replicated segment by hand |
//! | `tg-chaos` | all nodes store to one replicated page at once, and watch it |
//! | `tg-hostile` | a hostile user: every ioctl with what no program would send |
//! | `tg-hostile-tgd` | a hostile user of the daemon of its node |
//! | `tg-traffic` | traffic of one layer with another node, whatever becomes of the boards |
//! | `tg-faults` | on a kernel with fault injection: the driver's allocations fail, one after the other |
//! | `tg-race` | memory is registered while its board is reset, unbound or unplugged |
//! | `tg-count` | single operations between markers, for the counting plugin |
//! | `tg-pingpong`, `tg-work`, `tg-lock`, `tg-copy`, `tg-register`, `tg-farm`, `tg-mailbox`, `tg-whiteboard`, `tg-hotpage`, `tg-broadcast` | the library's examples (`guest-driver/lib/examples`) |
//! | `tg-msg` | messages between threads of processes, checked |
//! | `tg-map` | an application of messages: a map of JPEG images over the memory of nodes (`docs/map.md`) |
//! | `tg-bench` | what stores and loads cost, as ratios to a device inside QEMU |
//! | `tg-notify` | what notification queues cost, against flags and queues in software |
//!
//! Exit codes of all of them: 0 done, 1 a check failed, 2 usage, 3 the board, the driver or a peer refused.

pub mod child;
pub mod cli;
pub mod flood;
pub mod interface;
pub mod lab;
pub mod launch;
pub mod mark;
pub mod notify;
pub mod pci;
pub mod peers;
pub mod pins;
pub mod queue;
pub mod random;
pub mod raw;
pub mod replica;
pub mod stats;
pub mod testdev;
pub mod user;
pub mod userfault;
