// SPDX-License-Identifier: MIT OR Apache-2.0
//! Load from and store into the memory of other virtual machines, with single instructions.
//!
//! ```no_run
//! use telegraphos::{Node, Queue};
//!
//! # fn main() -> telegraphos::Result<()> {
//! let node = Node::open()?;
//! // Memory of ours that others may reach, 64 KiB under the name "ring" ...
//! let ring = node.export("ring", 64 << 10).mode(0o606).create()?;
//! // ... and memory of node 3 that we may reach.
//! let remote = node.import(3, "ring").open()?;
//!
//! remote.put64(8, 42)?; // one store instruction; returns before node 3 has it
//! remote.quiet()?; // now node 3 has it
//! assert_eq!(remote.get64(8)?, 42); // one load instruction; waits for node 3
//! let arrived: u64 = ring.load(8)?; // what others stored into our memory: an ordinary load
//!
//! let ticket: u64 = remote.fetch_inc(0)?; // atomic with everybody else's, whichever node they are on
//! remote.get_block(0, &ring, 0, 64 << 10)?; // all of it, into our memory
//!
//! let news = Queue::create(&node, "news").mode(0o602).create()?; // to be told, instead of looking
//! let word: Option<u64> = news.pop_wait(None)?; // what somebody appended with one store instruction
//! # Ok(()) }
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `node` | [`Node`]: the board of this machine |
//! | `segment` | [`Segment`]: memory of ours, exported under a name |
//! | `remote` | [`Remote`]: memory of another node, imported |
//! | [`replicated`] | [`Replicated`]: memory with copies in several nodes, which every store reaches |
//! | [`broadcast`] | [`Broadcast`]: messages from one producer to consumers on many nodes |
//! | `access` | [`Word`]: what one instruction moves |
//! | `quiet` | when stores, atomics and copies have arrived |
//! | `operation` | [`Operation`]: atomics and block copies, and how they are launched ([`LaunchStyle`]) |
//! | [`queue`] | [`Queue`], [`RemoteQueue`]: notification queues, which tell a receiver what has come |
//! | `slots`, `bell` | who waits for what, by looking or by sleeping |
//! | [`sync`] | locks and barriers between nodes |
//! | `counter` | [`PageCounter`]: how often a page was read and written |
//! | `error` | [`Error`]: everything that can go wrong, with what to do about it |
//! | [`ffi`] | the same for C, see `include/telegraphos.h` |
//!
//! # Order
//!
//! Of one process's accesses, those to one node are performed there in the order of the program (SPEC I8): a flag
//! stored after its data is seen after its data, and a [`Remote::get`] returns what an earlier [`Remote::put`] stored.
//! In a [`replicated`] segment the same holds of the stores into one of its pages, at every copy.
//! Between different nodes, and towards a third one that was told by other means, only `quiet` orders (SPEC E19).
//! Atomics take part in this order as stores do. A copy moves in blocks, in turns with other copies, and stores made
//! after its launch may pass it: its end, or `quiet`, orders.
//!
//! An element of a queue is appended after all that its node has put to the queue's node before (SPEC I8): whoever pops
//! it sees those puts. Puts made after it may be performed earlier, while it waits for room. What is appended through
//! one import keeps its order; between several imports, or several queues, there is none (SPEC I9).
//!
//! Window pages are mapped uncached. On x86 stores to them leave the processor in program order, after all earlier
//! ordinary stores; loads from them are not executed ahead of time. A reader of its own [`Segment`] uses
//! [`Segment::load`] (acquire), and then sees what was stored before the word it found. On aarch64 the window is Device
//! memory: ordered among itself, but not with ordinary memory; [`fence`] between an ordinary store and a `put` that
//! announces it makes it so, and is free of charge on x86.
//!
//! # Atomicity
//!
//! A word of 1, 2, 4 or 8 bytes, naturally aligned, moves at once: nobody sees a part of it. Everything longer is a
//! sequence of words. A misaligned store would arrive in pieces; the safe functions refuse it.
//!
//! Read-modify-write is [`Remote::swap`], [`Remote::fetch_add`], [`Remote::fetch_inc`] and [`Remote::compare_swap`].
//! They run in the HIB of the word's node. A locked instruction of a processor of that node is not atomic with them, so
//! a word that others change atomically is changed only so, by its owner too ([`Segment::remote`]); or it has a single
//! writer. Those of a [`Replicated`] segment run at its home and reach all copies (SPEC E20).
//!
//! # SIGBUS
//!
//! When an exporter withdraws its memory or dies, its node is reset or leaves, or the board is unplugged, the window is
//! gone, and touching it raises SIGBUS, exactly as touching a truncated file does. The library installs no signal
//! handler, since that is the program's to decide. [`Remote::state`] and [`Node::wait_error`] tell of it beforehand,
//! but the other side may always be faster: a program that must survive the death of its peers handles SIGBUS, or keeps
//! its remote accesses in a process of their own.
//!
//! Consumers of a queue may also lose its mapping because one of them was stopped amid a dequeue for too long: see
//! [`Queue`].
//!
//! # Threads and processes
//!
//! Everything is `Send` and `Sync`. After `fork` the child has no windows (they are not copied) and its open files are
//! its parent's: open the node again in the child. Several processes may consume one queue, see [`Node::from_fd`]. A
//! launch may be interrupted anywhere, by another thread, process or signal: its arguments wait in a slot of their own.

mod access;
mod access_policy;
mod bell;
pub mod broadcast;
mod counter;
mod error;
pub mod ffi;
mod node;
mod operation;
pub mod queue;
mod quiet;
mod remote;
pub mod replicated;
mod segment;
mod slots;
pub mod sync;
mod sys;

pub use access::{AtomicWord, Word, fence};
pub use broadcast::{Broadcast, BroadcastBuilder, BroadcastConsumer, BroadcastJoinBuilder};
pub use counter::{Count, PageCounter};
pub use error::{Error, Object, Result, errno_of};
pub use node::{Info, Node};
pub use operation::{LaunchStyle, MAX_COPY, Operation, Outcome, copy, copy_nbi};
pub use queue::{Queue, QueueBuilder, QueueImportBuilder, QueueState, RemoteQueue};
pub use remote::{ImportBuilder, Remote, State};
pub use replicated::{Adaptive, JoinBuilder, ReplicaMode, ReplicaState, Replicated, ReplicatedBuilder};
pub use segment::{ExportBuilder, Segment};
pub use telegraphos_wire::{NodeId, Rights, Status};

/// Loads and stores.
pub const READ_WRITE: Rights = Rights(Rights::READ.0 | Rights::WRITE.0);

/// Loads, stores, atomics and copies.
pub const FULL: Rights = Rights(READ_WRITE.0 | Rights::ATOMIC.0 | Rights::DMA.0);

/// Bytes of a segment's name, at most.
pub const NAME_MAX: usize = telegraphos_wire::admin::NAME_MAX;

/// A secret that an importer must present, 16 bytes; zeros mean none.
pub type Secret = [u8; 16];
