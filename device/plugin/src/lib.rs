// SPDX-License-Identifier: GPL-2.0-or-later
//! A plugin for QEMU's TCG that counts guest instructions, loads and stores between two markers of a guest program, per
//! device (`docs/plugin.md`).
//!
//! ```text
//! qemu-system-x86_64 -accel tcg -plugin libtelegraphos_plugin.so,out=counts.txt ...
//! ```
//!
//! - `telegraphos_plugin_core` counts, without QEMU.
//! - `shell` holds the one observer, reads the plugin's arguments and writes the table.
//! - `ffi` declares QEMU's plugin interface: version 7 (QEMU 11.1), or, with the feature `plugin-api-v4`, version 4.
//!
//! Instructions are counted by code that QEMU compiles into the guest's, one addition each. Memory accesses and markers
//! are function calls; the former return at once unless a region is open.

mod ffi;
mod shell;
