// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the gates over the source tree look at.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directory with the workspace's `Cargo.toml`.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Names of the tree's files that match one of these patterns, from the root; an error if there are fewer than `least`,
/// so that a gate never holds because it has seen nothing.
pub(crate) fn files(patterns: &[&str], least: usize) -> Vec<String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .args(patterns)
        .current_dir(root())
        .output()
        .expect("git starts");
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).expect("names are UTF-8");
    // One that is deleted and not committed yet is listed.
    let found: Vec<String> = listed.lines().filter(|name| root().join(name).is_file()).map(str::to_owned).collect();
    assert!(found.len() >= least, "{} files match {patterns:?}: expected at least {least}", found.len());
    found
}

/// The text of one of them.
pub(crate) fn text_of(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The output of `cargo metadata` for the workspace as locked, for this machine.
pub(crate) fn metadata() -> Value {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform", &target])
        .current_dir(root())
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("cargo metadata has a list {key:?}"))
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("cargo metadata has a text {key:?}"))
}

/// The packages of the workspace.
pub(crate) fn packages(metadata: &Value) -> Vec<&Value> {
    let members: Vec<&str> = list(metadata, "workspace_members").iter().filter_map(Value::as_str).collect();
    list(metadata, "packages").iter().filter(|package| members.contains(&text(package, "id"))).collect()
}
