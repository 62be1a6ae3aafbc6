// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts guest instructions, loads and stores between two points of a guest program, per device.
//!
//! - [`Marker`] is how a guest program says where a measured *region* begins and ends: a no-operation instruction that
//!   no compiler emits. It touches no device and no memory, needs no right, and does nothing on a machine that does not
//!   watch for it.
//! - [`Observer`] takes markers and memory accesses, each with its virtual processor, and counts.
//! - [`Report`] is what has been counted, as a table of text that [`Report::parse`] reads back; [`Code`] is where it
//!   ran.
//!
//! Nothing here depends on QEMU; the plugin (`device/plugin/`) feeds an observer from QEMU's callbacks.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), no_std)]

extern crate alloc;

mod code;
mod marker;
mod observer;
mod report;

pub use code::Code;
pub use marker::{Marker, REGIONS, Region};
pub use observer::{Access, Observer, Retired, WATCHED};
pub use report::{Accesses, ParseError, Passages, Range, RegionCounts, Report};
