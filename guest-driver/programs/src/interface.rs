// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's interface without the library: every ioctl of its table, with a sensible call of each.

pub mod call;
pub mod rows;
