// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a node differs from the others of its cluster: a table `[[node]]` of the file of `--config`.

use crate::memory_size::memory;
use crate::node_name::NodeName;
use serde::Deserialize;
use std::path::PathBuf;
use telegraphos_images::{KernelChoice, Machine, RootChoice, Share};

/// One node's table. What it does not say is that of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeSettings {
    /// Its name, also its host name, beside `nodeN`.
    pub name: Option<NodeName>,
    pub cpus: Option<u32>,
    /// Its memory in MiB.
    #[serde(default, rename = "memory", deserialize_with = "memory")]
    pub memory_mib: Option<u32>,
    pub machine: Option<Machine>,
    /// Its kernel. `modules` and `initrd` of the cluster belong to the cluster's, and are not taken with it.
    pub kernel: Option<KernelChoice>,
    /// Where the modules of an own kernel are.
    pub modules: Option<PathBuf>,
    /// An initramfs that runs before its boot root.
    pub initrd: Option<PathBuf>,
    pub root: Option<RootChoice>,
    /// More words for its kernel, after the cluster's.
    pub append: Option<String>,
    /// More directories of the host.
    #[serde(default)]
    pub share: Vec<Share>,
    /// More arguments of its QEMU, after the cluster's.
    #[serde(default)]
    pub qemu_arg: Vec<String>,
}
