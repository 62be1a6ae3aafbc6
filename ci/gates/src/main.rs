// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gates over the source tree: each names file and line of what it refuses, and fails when it found no files.
//!
//! | File | What is refused |
//! |---|---|
//! | `imports.rs` | a file that no crate has; a circle of imports between the files of a crate, or of includes in C |
//! | `calls.rs` | a circle of calls and includes between the C files of the kernel modules |
//! | `arrows.rs` | an arrow between crates that `docs/architecture.md` does not have, a process that links what it does not need |
//! | `names.rs` | a file, a folder or a crate that documentation or a comment names and that is not there |
//! | `words.rs` | a word of the list in `CONTRIBUTING.md` |
//! | `width.rs` | a line wider than rustfmt's |
//! | `gates.rs` | a variable of the environment that changes the tests and that `.ci/run` does not unset |
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod arrows;
mod calls;
mod gates;
mod imports;
mod names;
mod width;
mod words;
mod workspace;
