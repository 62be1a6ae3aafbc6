// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library as programs find it.
//!
//! | Module | What |
//! |---|---|
//! | `glibc` | which functions of glibc it replaces, and which it need not |
//! | `loading` | libraries that a program loads |
#![allow(clippy::unwrap_used, reason = "a test")]

mod glibc;
mod loading;

use std::path::PathBuf;
use telegraphos_images::{Progress, Store};

/// The library.
fn library() -> PathBuf {
    Store::open(None, Progress::Plain).unwrap().preload().unwrap()
}
