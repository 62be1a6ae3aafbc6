// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reliable datagram protocol over a faulty medium in virtual time.
//!
//! | File | What it shows |
//! |---|---|
//! | `arbitrary` | any input: no panic, no growth without bound, no endless datagrams |
//! | `bugs` | of each deliberate bug: the check that must find it |
//! | `faults` | exactly once and in order under any mix of faults (I16, item 35) |
//! | `goodput` | what losses cost: the table in `docs/rdp.md` |
//! | `rules` | the rules of item 35 one by one |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod arbitrary;
mod bugs;
mod faults;
mod goodput;
mod rules;
mod world;
