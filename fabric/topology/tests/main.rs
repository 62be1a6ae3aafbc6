// SPDX-License-Identifier: MIT OR Apache-2.0
//! Topologies: their files, routes, checks and drawings.
//!
//! | File | What it shows |
//! |---|---|
//! | `check` | `Topology::check` is right about what is right, and finds each deliberate bug |
//! | `drawings` | drawings, compared with files |
//! | `files` | topology files: what they say, and every mistake by its text |
//! | `graphs` | arbitrary graphs: every route is walked; those that are refused |
//! | `regular` | stars, trees, meshes and toruses: every route of every small one |
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may")]

mod check;
mod common;
mod drawings;
mod files;
mod graphs;
mod regular;
