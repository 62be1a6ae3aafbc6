// SPDX-License-Identifier: MIT OR Apache-2.0
//! Helpers of the whole-system tests in `system/`.
//!
//! - [`Suite`] runs named parts one after the other, prints the time of each, and continues after a failure.
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
mod imports;
#[cfg(test)]
mod names;
#[cfg(test)]
mod width;
#[cfg(test)]
mod words;
#[cfg(test)]
mod workspace;

pub use suite::Suite;
