// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the whole-system tests in `system/` are written with.
//!
//! - [`Suite`] runs named parts one after the other, tells each one's time, and goes on after a failure.
//! - [`ktap`] reads what `tg-selftest` prints.
//! - [`lspci`] makes the listing of a board comparable.
#![forbid(unsafe_code)]

pub mod ktap;
pub mod lspci;
mod suite;

#[cfg(test)]
mod arrows;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod width;

pub use suite::Suite;
