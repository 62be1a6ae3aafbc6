// SPDX-License-Identifier: MIT OR Apache-2.0
//! `.ci/run` is a gate: the environment cannot change its tests.

use crate::workspace::{files, root, text_of};
use std::collections::BTreeMap;
use std::process::Command;

/// Variables that may stay set, since they do not change the tests: paths, programs that are checked before use, and
/// variables of the machine.
const KEPT: [&str; 12] = [
    "CARGO",
    "CARGO_TARGET_DIR",
    "HOME",
    "PATH",
    "TELEGRAPHOS_CACHE",
    "TELEGRAPHOS_LOG_DIR",
    "TELEGRAPHOS_QEMU",
    "TELEGRAPHOS_TSHARK",
    "XDG_CACHE_HOME",
    "XDG_RUNTIME_DIR",
    // Which kind of terminal a command in a guest gets, where it gets one.
    "TERM",
    // Set by Cargo for a build script.
    "OUT_DIR",
];

/// Environment variables that the source tree reads by a literal name, and the file of each.
fn read_by_name() -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for file in files(&["*.rs"], 300) {
        let text = text_of(&file);
        for start in ["env::var(\"", "env::var_os(\""] {
            for rest in text.split(start).skip(1) {
                let name = rest.split('"').next().unwrap_or_default();
                if !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_') {
                    names.insert(name.to_owned(), file.clone());
                }
            }
        }
    }
    names
}

#[test]
fn ci_unsets_whatever_the_tests_read() {
    let read = read_by_name();
    assert!(read.contains_key("TELEGRAPHOS_SEED") && read.contains_key("TELEGRAPHOS_SCALE"), "{read:?}");
    // Read by the crates that the tests use.
    let others = ["PROPTEST_CASES", "LOOM_MAX_PREEMPTIONS", "RUST_TEST_THREADS", "RUSTFLAGS", "RUST_LOG"];
    let names: Vec<&str> = read.keys().map(String::as_str).chain(others).filter(|name| !KEPT.contains(name)).collect();
    let mut command = Command::new(root().join(".ci/run"));
    command.arg("environment").envs(names.iter().map(|name| (name, "1")));
    let output = command.output().expect(".ci/run runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for name in names {
        let unset = said.lines().any(|line| line == format!("unset: {name}"));
        assert!(
            unset,
            ".ci/run does not unset {name}, which {:?} reads: add it there, or to KEPT here",
            read.get(name)
        );
    }
}

/// A cargo that a test starts in the build directory of the tests builds some of their crates again, with other
/// features: then those that are to be tested do not fit each other.
#[test]
fn cargo_builds_only_in_a_directory_of_its_own() {
    // The first gives each build its directory, the second builds nothing.
    let may = ["images/src/tools.rs", "ci/gates/src/workspace.rs"];
    let words = [["env!(\"CARGO", "\")"], ["var_os(\"CARGO", "\")"], ["new(\"car", "go\")"]].map(|word| word.concat());
    let starts = |file: &String| words.iter().any(|word| text_of(file).contains(word));
    let found: Vec<String> = files(&["*.rs"], 300).into_iter().filter(starts).collect();
    assert!(may.iter().all(|file| found.iter().any(|found| found == file)), "{found:?}");
    let others: Vec<_> = found.into_iter().filter(|file| !may.contains(&file.as_str())).collect();
    assert!(others.is_empty(), "{others:?} start cargo: use telegraphos_images::nested_cargo, with a target directory");
}
