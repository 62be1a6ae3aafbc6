// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the plugin that counts instructions in guests (`device/plugin/`), as the QEMU at hand can load it.

use crate::qemu::Version;
use crate::store::Store;
use crate::{Error, Result, tools};
use std::path::PathBuf;

/// The first QEMU that only takes plugins of interface 7.
const INTERFACE_7: Version = Version { major: 11, minor: 1, micro: 0 };
/// The first QEMU with interface 4.
const INTERFACE_4: Version = Version { major: 9, minor: 2, micro: 0 };

impl Store {
    /// The counting plugin for a QEMU of this version, freshly built: a shared library for `-plugin`. Before 11.1 it
    /// needs a newer Rust than the rest of the project (`device/plugin/Cargo.toml`).
    pub fn plugin(&self, qemu: Version) -> Result<PathBuf> {
        let (target, features) = match qemu {
            v if v >= INTERFACE_7 => ("plugin", None),
            v if v >= INTERFACE_4 => ("plugin-api-v4", Some("plugin-api-v4")),
            old => {
                return Err(Error::Failed(format!(
                    "QEMU {old} cannot load the counting plugin: expected {INTERFACE_4} or newer"
                )));
            }
        };
        let mut command = tools::cargo(target)?;
        command.args(["--package", "telegraphos-plugin"]);
        if let Some(features) = features {
            command.args(["--features", features]);
        }
        let messages = self.build("the counting plugin", &mut command)?;
        let made = messages.lines().find_map(library);
        made.ok_or_else(|| Error::build("building the counting plugin", "no shared library was made", ""))
    }
}

/// The plugin's library, if this line of cargo's messages names it.
fn library(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message.get("target")?.get("name")? != "telegraphos_plugin" {
        return None;
    }
    let mut files = message.get("filenames")?.as_array()?.iter().filter_map(|f| f.as_str());
    files.find(|f| f.ends_with(".so")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;

    #[test]
    fn the_library_is_found_in_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"name":"telegraphos_plugin"},
            "filenames":["/t/release/libtelegraphos_plugin.so"]}"#;
        assert_eq!(library(line), Some("/t/release/libtelegraphos_plugin.so".into()));
        assert_eq!(
            library(r#"{"target":{"name":"telegraphos_plugin_core"},"filenames":["/t/libobserver_core.so"]}"#),
            None
        );
        assert_eq!(library("warning: x"), None);
    }

    #[test]
    fn a_qemu_without_the_interface_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path().join("cache")), Progress::Silent).unwrap();
        let e = store.plugin(Version { major: 7, minor: 2, micro: 22 }).unwrap_err().to_string();
        assert!(e.contains("7.2.22") && e.contains("9.2.0"), "{e}");
    }
}
