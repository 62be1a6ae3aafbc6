// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a node differs from the others of its cluster: a table `[[node]]` of the file of `--config`.

use crate::node_name::NodeName;
use serde::{Deserialize, Deserializer};
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

/// A size in MiB: a number alone, or with M or G (also MiB, GiB).
pub(crate) fn mebibytes(text: &str) -> std::result::Result<u32, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "" | "M" | "MiB" => 1,
        "G" | "GiB" => 1024,
        _ => 0,
    };
    let size = number.parse::<u32>().ok().and_then(|number| number.checked_mul(factor)).filter(|_| factor != 0);
    size.ok_or_else(|| format!("{text:?} is no size of memory: expected one such as 512M or 2G; a number alone is MiB"))
}

/// A size in a file.
pub(crate) fn memory<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u32>, D::Error> {
    let text = match toml::Value::deserialize(from)? {
        toml::Value::String(text) => text,
        other => other.to_string(),
    };
    mebibytes(&text).map(Some).map_err(serde::de::Error::custom)
}
