// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the whole-system tests in `parts/`.
//!
//! - [`Suite`] runs named parts one after the other, prints the time of each, and continues after a failure.
//! - [`ktap`] reads what `tg-selftest` prints.
//! - [`lspci`] makes the listing of a board comparable.
#![forbid(unsafe_code)]

pub mod ktap;
pub mod lspci;
mod suite;

pub use suite::Suite;
