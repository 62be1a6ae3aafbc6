// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-lab` as a program, as `telegraphos` starts it. Cargo builds a program for tests where such a file needs
//! it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing check is a failing test")]

use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_telegraphos-lab")).args(args).output().unwrap()
}

#[test]
fn a_simulation_reports_on_every_operation() {
    let output = lab(&["--quiet", "sim", "--nodes", "4", "--duration", "20us", "--json"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["packets"]["delivered"].as_u64().is_some_and(|count| count > 0), "{report}");
}

#[test]
fn wrong_usage_is_2_and_named() {
    for (args, named) in [
        (&["sim", "--nodes", "1"][..], "nodes is 1"),
        (&["sim", "--nodes", "4", "--topology", "star", "--seed", "x"], "--seed"),
        (&["bench", "--replicas", "--nodes", "3"], "nodes is 3"),
        (&["bench", "--notify", "--latency"], "--latency"),
        (&["measure"], "measure"),
    ] {
        let output = lab(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(named), "{args:?}: {output:?}");
    }
}
