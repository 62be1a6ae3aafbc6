// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernels that are ready to boot.

use crate::Manifest;
use crate::config::Config;
use std::path::PathBuf;

/// A kernel, ready to boot.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// `uname -r` of it.
    pub release: String,
    /// The kernel for QEMU's `-kernel`: uncompressed ELF, but for an own one that cannot be entered so.
    pub vmlinux: PathBuf,
    /// What it is made of.
    pub manifest: Manifest,
    /// Beginning of the names in the cache of what belongs to it.
    pub(crate) name: String,
    /// Its configuration, if that is known.
    pub(crate) config: Option<Config>,
    /// A driver of the boot root that it lacks, as far as that can be seen without its configuration.
    pub(crate) lacks: Option<&'static str>,
    pub(crate) headers: Headers,
    pub(crate) modules: Modules,
}

/// Where the driver is built for a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Headers {
    /// Debian root with this kernel's headers and the compiler they require.
    Root(PathBuf),
    /// A directory of a kernel build, with the host's compiler.
    Tree(PathBuf),
    /// Nowhere, for this reason: the kernel boots without the driver.
    Missing(String),
}

/// Where a kernel's own modules are.
#[derive(Clone, Debug)]
pub(crate) enum Modules {
    Package,
    Files(Vec<PathBuf>),
}
