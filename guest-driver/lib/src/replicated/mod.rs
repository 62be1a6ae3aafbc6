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
//! let seen: u64 = board.load(8)?; // from this node's memory: 42, or what somebody has stored after it
//! board.quiet()?; // now every copy has it
//! # Ok(()) }
//! ```
//!
//! | Module | What is in it |
//! |---|---|
//! | `segment` | [`Replicated`]: a copy, and the window through which it is stored to |
//! | `builder` | how to create and to join one |
//! | `stores` | what a load waits for, so that a program reads its own stores |
//! | `adaptive` | [`Adaptive`]: a segment that is imported first, and copied once it is used much |
//!
//! # What a program sees
//!
//! - **One word.** All copies of a word take values in the home's order, each a subsequence of it (I1). With
//!   [`ReplicaMode::Counters`] nobody ever sees x, then y, then x again (I5), and [`load`](Replicated::load) never
//!   gives a value older than this process's own last store (I4): that value, or one that another process's store has
//!   put in its place. Bytes of a word that are stored separately count as separate words (E18).
//! - **Two words.** Stores by one thread into one page (64 KiB, from the segment's start) reach every copy in the order
//!   of the program: data, then a flag, is right for readers that [`load`](Replicated::load) the flag first (acquire).
//!   A program that has seen a store and then stores itself into the same page is seen after it, everywhere.
//! - **Two segments, or pages, or replicated and other memory.** No order but that of [`quiet`](Replicated::quiet),
//!   which returns when *every copy* has the stores (E19, I7). Without it, two readers may even see the stores of two
//!   writers in different orders: replicated memory of different homes is not multi-copy atomic (I6). And one's own
//!   store is seen at once by oneself, by others later: store to x, load of y in one node and store to y, load of x in
//!   another may both see the old values (store buffering); `quiet` between the two forbids it.
//! - **Together.** A program whose concurrent accesses are ordered by locks, barriers or `quiet` sees sequential
//!   consistency ([`sync`](crate::sync) calls it for what it orders).
//!
//! # Raw reads break I4
//!
//! A store travels to the board and comes back into the own copy, while an ordinary load that follows it in the program
//! looks into the copy at once: it may find the older value. [`load`](Replicated::load) knows how many stores this
//! process has made, and waits until the board has put that many into the copy, which usually it has (SPEC E22b).
//! Whoever reads by [`as_ptr`](Replicated::as_ptr) is not protected; [`settle`](Replicated::settle) is the same wait by
//! itself. [`load_trapped`](Replicated::load_trapped) loads through the window instead, behind the stores, for the
//! price of a trip to the board; and [`trapped_ptr`](Replicated::trapped_ptr) is a single pointer for both.
//!
//! # The home
//!
//! The home's node orders all stores, so its own are the fastest. [`take_home`](Replicated::take_home) moves it to
//! another node while all go on. When it dies, the copies are orphans until one of them is
//! [adopted](Replicated::adopt). Who may do what there, and who may join, is what that node said when it joined
//! ([`JoinBuilder::mode`], [`JoinBuilder::nodes`]).

mod adaptive;
mod builder;
mod segment;
mod stores;

pub use adaptive::Adaptive;
pub use builder::{JoinBuilder, ReplicaMode, ReplicatedBuilder};
pub use segment::{ReplicaState, Replicated};
