// SPDX-License-Identifier: MIT OR Apache-2.0
//! Replicated segments (s1; SPEC items 23 to 28): memory that has a copy in each of several nodes. Every store reaches
//! all copies; a load is one of ordinary memory.
//!
//! ```no_run
//! use telegraphos::{Node, Replicated};
//!
//! # fn main() -> telegraphos::Result<()> {
//! # let node = Node::open()?;
//! // On one node, the home, which orders the stores ...
//! let board = Replicated::create(&node, "board", 64 << 10).mode(0o606).create()?;
//! // ... and on each of the others.
//! let board = Replicated::join(&node, 0, "board").open()?;
//!
//! board.store(8, 42u64)?; // one store instruction; returns before any copy has it
//! let seen: u64 = board.load(8)?; // from this node's memory: 42, or what was stored after it
//! board.quiet()?; // now every copy has it
//! # Ok(()) }
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `segment` | [`Replicated`]: a copy, and the window through which it is stored to |
//! | `mode`, `builder` | how stores reach the copies; how to create and to join one |
//! | `home` | recovery, and moving the home |
//! | `stores` | the count that a load waits for, so that a program reads its own stores |
//! | `adaptive` | [`Adaptive`]: a segment that is imported first, and copied once it is used often |
//!
//! # What a program sees
//!
//! - **One word.** All copies of a word take values in the home's order, each a subsequence of it (I1). With
//!   [`ReplicaMode::Counters`] no reader ever sees x, then y, then x again (I5), and [`load`](Replicated::load) never
//!   gives a value older than this process's own last store (I4): that value, or one that another process's store has
//!   put in its place. Bytes of a word that are stored separately count as separate words (E18).
//! - **Two words.** Stores by one thread into one page (64 KiB, from the segment's start) reach every copy in the order
//!   of the program: data, then a flag, is right for readers that [`load`](Replicated::load) the flag first (acquire).
//!   When a program has seen a store and then stores into the same page, every copy gets the two in this order.
//! - **Two segments, or pages, or replicated and other memory.** No order but that of [`quiet`](Replicated::quiet),
//!   which returns when *every copy* has the stores (E19, I7). Without it, two readers may even see the stores of two
//!   writers in different orders: replicated memory of different homes is not multi-copy atomic (I6). And a
//!   process sees its own store before others do: store to x, load of y in one node and store to y, load of x in
//!   another may both see the old values (store buffering); `quiet` between the two prevents it.
//! - **Together.** A program whose concurrent accesses are ordered by locks, barriers or `quiet` sees sequential
//!   consistency ([`sync`](crate::sync) calls `quiet` in locks and barriers).
//!
//! # Raw reads break I4
//!
//! A store travels to the board and from there into this node's copy, while an ordinary load that follows it in the
//! program reads the copy at once: it may find the older value. [`load`](Replicated::load) counts the stores of this
//! process, and waits until the board has put that many into the copy, which it usually has (SPEC E22b). Reads by
//! [`as_ptr`](Replicated::as_ptr) are not protected; [`settle`](Replicated::settle) is the same wait by itself.
//! [`load_trapped`](Replicated::load_trapped) loads through the window instead, behind the stores, for the price of a
//! trip to the board; and [`trapped_ptr`](Replicated::trapped_ptr) is a single pointer for both.
//!
//! # The home
//!
//! The home's node orders all stores, so its own are the fastest. [`take_home`](Replicated::take_home) moves it to
//! another node while all continue. When it dies, the copies are orphans until one of them is
//! [adopted](Replicated::adopt). The access rights there are those that the new home gave when it joined
//! ([`JoinBuilder::mode`], [`JoinBuilder::nodes`]).

mod adaptive;
mod builder;
mod home;
mod mode;
mod segment;
mod stores;

pub use adaptive::Adaptive;
pub use builder::{JoinBuilder, ReplicatedBuilder};
pub use mode::ReplicaMode;
pub use segment::{ReplicaState, Replicated};
