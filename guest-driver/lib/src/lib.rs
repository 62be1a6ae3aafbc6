// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load from and store into the memory of other virtual machines, with single instructions.
//!
//! ```no_run
//! use telegraphos::{Node, Queue};
//!
//! # fn main() -> telegraphos::Result<()> {
//! let node = Node::open()?;
//! // Memory of this node that other nodes may access, 64 KiB under the name "ring" ...
//! let ring = node.export("ring", 64 << 10).mode(0o606).create()?;
//! // ... and memory of node 3 that this node may access.
//! let remote = node.import(3, "ring").open()?;
//!
//! remote.put64(8, 42)?; // one store instruction; returns before node 3 has it
//! remote.quiet()?; // now node 3 has it
//! assert_eq!(remote.get64(8)?, 42); // one load instruction; waits for node 3
//! let arrived: u64 = ring.load(8)?; // a word that others have stored here: an ordinary load
//!
//! let ticket: u64 = remote.fetch_inc(0)?; // atomic with those of all other nodes
//! remote.get_block(0, &ring, 0, 64 << 10)?; // all of it, into local memory
//!
//! let news = Queue::create(&node, "news").mode(0o602).create()?; // to be notified, instead of polling
//! let word: Option<u64> = news.pop_wait(None)?; // a word that a sender appended with one store instruction
//! # Ok(()) }
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `node` | [`Node`]: the board of this machine, opened |
//! | `segment` | [`Segment`]: memory of this node, exported under a name |
//! | `remote` | [`Remote`]: memory of another node, imported |
//! | [`replicated`] | [`Replicated`]: memory with copies in several nodes, all of which every store reaches |
//! | [`broadcast`] | [`Broadcast`]: messages from one producer to consumers on many nodes |
//! | `access` | [`Word`]: the operand of one instruction |
//! | `quiet` | when stores, atomics and copies have arrived |
//! | `operation`, `launch` | [`Operation`]: atomics and block copies, and how they are launched ([`LaunchStyle`]) |
//! | [`queue`] | [`Queue`], [`RemoteQueue`]: notification queues |
//! | `context`, `device` | what all objects of one open board share: the device file, slots, completion channel |
//! | `handle` | what the driver keeps for one object, until it is ended |
//! | `slots`, `completion` | waiting for the board, by polling or asleep |
//! | [`sync`] | locks and barriers between nodes |
//! | `counter` | [`PageCounter`]: how often a page was read and written |
//! | `error` | [`Error`]: every failure, with what to do about it |
//! | [`ffi`] | the C interface, see `include/telegraphos.h` |
//!
//! # Order
//!
//! Of one process's accesses, those to one node are performed there in the order of the program (SPEC I8): a flag
//! stored after its data is seen after its data, and a [`Remote::get`] returns what an earlier [`Remote::put`] stored.
//! In a [`replicated`] segment the same holds of the stores into one of its pages, at every copy.
//! Between different nodes, and towards a third one that was notified by other means, only `quiet` orders (SPEC E19).
//! Atomics take part in this order as stores do. A copy moves in blocks, interleaved with other copies, and
//! stores made after its launch may pass it: its completion, or `quiet`, orders.
//!
//! An element of a queue is appended after all earlier puts of its node to the queue's node (SPEC I8): a consumer that
//! pops it sees those puts. Later puts may be performed earlier, while the element waits for room. Elements appended
//! through one import keep their order; those of several imports, or in several queues, are not ordered (SPEC I9).
//!
//! Window pages are mapped uncached. On x86 stores to them leave the processor in program order, after all earlier
//! ordinary stores; loads from them are not speculated. A reader of its own [`Segment`] uses [`Segment::load`]
//! (acquire), and then sees all stores that precede the word it found. On aarch64 the window is Device memory: ordered
//! among itself, but not with ordinary memory; [`fence`] between an ordinary store and a `put` that announces it makes
//! it so, and is free of charge on x86.
//!
//! # Atomicity
//!
//! A word of 1, 2, 4 or 8 bytes, naturally aligned, moves at once: no reader sees a part of it. Everything longer is a
//! sequence of words. A misaligned store would arrive in pieces; the safe functions refuse it.
//!
//! Read-modify-write is [`Remote::swap`], [`Remote::fetch_add`], [`Remote::fetch_inc`] and [`Remote::compare_swap`].
//! They run in the HIB of the word's node. A locked instruction of a processor of that node is not atomic with them, so
//! a word that is changed atomically is changed only this way, by its owner too ([`Segment::remote`]); or it has a
//! single writer. Those of a [`Replicated`] segment run at its home and reach all copies (SPEC E20).
//!
//! # SIGBUS
//!
//! When an exporter withdraws its memory or dies, its node is reset or leaves, or the board is unplugged, the window is
//! gone, and touching it raises SIGBUS, exactly as touching a truncated file does. The library installs no signal
//! handler; that is the program's decision. [`Remote::state`] and [`Node::wait_error`] report it, but an access may
//! always come first: a program that must survive the death of its peers imports [softly](ImportBuilder::soft), and
//! asks for the state before it believes what it has loaded; or it handles SIGBUS. One that must survive the loss of
//! its own board asks for that, too ([`Node::soften`]).
//!
//! Consumers of a queue may also lose its mapping because one of them was stopped during a dequeue for too long: see
//! [`Queue`].
//!
//! # Threads and processes
//!
//! Everything is `Send` and `Sync`. After `fork` the child has no windows (they are not copied), and shares its
//! parent's open files: open the node again in the child. Several processes may consume one queue, see
//! [`Node::from_fd`]. A launch may be interrupted anywhere, by another thread, process or signal: each launch has its
//! own slot for its arguments.

#![warn(missing_docs)]

mod access;
mod access_policy;
mod backoff;
mod bounds;
pub mod broadcast;
mod completion;
mod context;
mod counter;
mod destination;
mod device;
mod error;
mod eventfd;
pub mod ffi;
mod handle;
mod launch;
mod launch_style;
mod local;
mod node;
mod operation;
mod pending_request;
pub mod queue;
mod quiet;
mod recent;
mod registration;
mod registration_cache;
mod remote;
pub mod replicated;
mod segment;
mod slots;
pub mod sync;
mod sys;
mod word_wait;

pub use access::{AtomicWord, Word, fence};
pub use access_policy::{FULL, NAME_MAX, READ_WRITE, Secret};
pub use broadcast::{Broadcast, BroadcastBuilder, BroadcastConsumer, BroadcastJoinBuilder};
pub use counter::{Count, PageCounter};
pub use error::{Error, Object, Result, errno_of};
pub use launch_style::LaunchStyle;
pub use local::Local;
pub use node::{Info, Node};
pub use operation::{MAX_COPY, Operation, Outcome, copy, copy_nbi};
pub use queue::{Queue, QueueBuilder, QueueImportBuilder, QueueState, RemoteQueue};
// For telegraphos-msg, which keeps such, too.
#[doc(hidden)]
pub use recent::Recent;
pub use registration::{RegisterBuilder, Registration};
pub use registration_cache::RegistrationCache;
pub use remote::{ImportBuilder, Remote, State};
pub use replicated::{Adaptive, JoinBuilder, ReplicaMode, ReplicaState, Replicated, ReplicatedBuilder};
pub use segment::{ExportBuilder, Segment};
pub use telegraphos_wire::{NodeId, Rights, Status};
