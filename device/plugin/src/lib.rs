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
//! - One of two modules is built: `ffi`, declarations of plugin interface 7 (QEMU 11.1), or, with the feature
//!   `plugin-api-v4`, `bindings`, on the crate `qemu-plugin`, for interfaces 4 and 5. The crate has no interface 7.
//!
//! Instructions are counted by code that QEMU compiles into the guest's, one addition each. Memory accesses and markers
//! are function calls; the former return at once unless a region is open.

#[cfg(feature = "plugin-api-v4")]
mod bindings;
#[cfg(not(feature = "plugin-api-v4"))]
mod ffi;
mod shell;
