// SPDX-License-Identifier: GPL-2.0-or-later
//! A plugin for QEMU's TCG that counts guest instructions, loads and stores between two markers of a guest program, per
//! device (`docs/plugin.md`).
//!
//! ```text
//! qemu-system-x86_64 -accel tcg -plugin libtelegraphos_plugin.so,out=counts.txt ...
//! ```
//!
//! - `observer_core` counts; it knows no QEMU.
//! - `shell` holds the one observer, reads the plugin's arguments and writes the table.
//! - Two ways to QEMU, of which one is built: `ffi`, our own declarations of plugin interface 7 (QEMU 11.1), and, with
//!   a feature `plugin-api-v4` or `plugin-api-v5`, `bindings`, on the crate `qemu-plugin` for the QEMUs before.
//!
//! Instructions are counted by code that QEMU compiles into the guest's, one addition each. Memory accesses and markers
//! are function calls; the former return at once unless a region is open.

#[cfg(any(feature = "plugin-api-v4", feature = "plugin-api-v5"))]
mod bindings;
#[cfg(not(any(feature = "plugin-api-v4", feature = "plugin-api-v5")))]
mod ffi;
mod shell;
