// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything a virtual cluster boots from: QEMU, guest kernels, the driver built for each kernel, and the guest
//! image, made from Debian's packages, or with a kernel and a root of the user's, without root.
//!
//! From the top down:
//!
//! - [`Store`] is the cache and the only entrance. What it has made once it hands out again without asking the
//!   network or any tool; what it lacks it makes whole in a temporary directory and renames into place.
//! - [`Qemu`] finds the host's QEMU if it can serve `vfio-user-pci`, else runs Debian's from a private prefix.
//! - [`Tshark`] is the same for the tests of the Wireshark dissector, [`Rust`] for the oldest compiler that must do,
//!   [`Store::valgrind`] for the budgets of instructions.
//! - [`LinuxSource`] is the source that a kernel with checks of its own is built from.
//! - [`Kernel`] is a Debian kernel with the build root (headers and the compiler it needs) that fits it. Or it is the
//!   user's own (`own.rs`): of a directory, the image that was built there; the host's compiler builds the driver
//!   against that tree.
//! - [`Guest`] is a bootable image: that kernel, a file system with busybox, the driver, the guest tools, the agent.
//! - [`Manifest`] records which versions went into any of them.
//!
//! Below them `sources` derives apt sources from the host's own, `apt` fetches through the host's apt-get (so apt's
//! signed metadata is the root of trust), `chroot` runs a build root, `owners` has files belong to whom packages say,
//! `vmlinux` unpacks a kernel, `ext4` writes the file system, `cpio` the initramfs of kernels that need one.
//!
//! The place of the cache is `$TELEGRAPHOS_CACHE`, else `$XDG_CACHE_HOME/telegraphos`, else `~/.cache/telegraphos`.
#![forbid(unsafe_code)]

mod apt;
mod choice;
mod chroot;
mod config;
mod cpio;
mod debian;
mod directories;
mod disk;
mod error;
mod exec;
mod ext4;
mod files;
mod guest;
mod intact;
mod kernel;
mod kvm;
mod linux_source;
mod machine;
mod manifest;
mod module;
mod modules;
mod own;
mod owners;
mod packaged;
mod peers;
mod prefix;
mod programs;
mod progress;
mod qemu;
mod root;
mod rust;
pub mod sources;
mod store;
mod tools;
mod tshark;
mod userland;
mod vmlinux;

pub use choice::{KernelChoice, KernelSeries};
pub use directories::Directory;
pub use error::{Error, Result};
pub use guest::{BootOptions, Guest, TCG};
pub use kernel::Kernel;
pub use kvm::{KvmState, kvm_state, kvm_usable};
pub use linux_source::LinuxSource;
pub use machine::Machine;
pub use manifest::{FileRecord, Manifest, PackageRecord};
pub use module::{Mistake, Module, Report};
pub use prefix::{Program, in_path};
pub use progress::{Progress, Step};
pub use qemu::{MIN_VERSION, Qemu, Version};
pub use root::{RootChoice, Share};
pub use rust::{OLDEST_RUST, Rust};
pub use store::Store;
pub use tools::{Programs, guest_programs, library, nested_cargo};
pub use tshark::Tshark;
pub use vmlinux::{VmlinuxError, extract};
