// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench`: one run measures everything, the peers included, and leaves nothing behind.

use crate::command;
use crate::help::ends;
use crate::leftovers::nothing_left;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Figures of boards and switch alone.
const ALONE: [&str; 3] = ["alone_store_of_32", "alone_store_of_32_instructions", "alone_store_of_32_cycles"];
/// Figures of peers, one at least of each kind.
const PEERS: [&str; 14] = [
    "testdev_load",
    "bare_blocked_load",
    "bare_spinning_oneway",
    "crate_load",
    "ivshmem_roundtrip",
    "doorbell_roundtrip_looking",
    "doorbell_roundtrip_asleep",
    "udp_roundtrip",
    "tcp_roundtrip",
    "tcp_8m",
    "tcp_8m_both",
    "host_memcpy_16m",
    "host_writev_16m",
    "host_unix_roundtrip_blocked",
];
/// Figures with targets (docs/bench.md).
const TARGETS: [&str; 20] = [
    "store_drained_over_bare_spin",
    "store_isolated_over_bare_spin",
    "store_drained_over_crate",
    "load_local_over_bare",
    "load_remote_over_local",
    "fetch_add_over_load_local",
    "put_16m_over_memcpy",
    "put_1m_over_memcpy",
    "put_16m_registered_over_segment",
    "direct_load",
    "direct_store",
    "roundtrip_poll_over_doorbell",
    "roundtrip_poll_over_udp",
    "roundtrip_sleep_over_doorbell",
    "roundtrip_sleep_over_udp",
    "enqueue_over_best_software_queue",
    "net_udp_roundtrip_over_virtio",
    "net_tcp_roundtrip_over_virtio",
    "net_tcp_over_virtio",
    "net_tcp_both_over_virtio",
];

pub(crate) fn measures_everything_and_leaves_nothing() -> Result<()> {
    let (files, run_dir) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let json = files.path().join("figures.json");
    let mut bench = command(&["--quiet", "bench", "--quick", "--rounds", "2", "--hib", "spin-us=0", "--json"]);
    let out = ends(bench.arg(&json).arg("--run-dir").arg(run_dir.path()), 0)?.out;
    nothing_left(run_dir.path())?;
    let text = fs::read_to_string(&json)?;
    let list: Vec<Value> = serde_json::from_str(&text).with_context(|| text.clone())?;
    for figure in &list {
        let name = figure["measure"].as_str().with_context(|| format!("{figure} has no name"))?;
        ensure!(out.contains(&format!("| {name} ")), "{name} is not in the table:\n{out}");
        let uncounted = name.ends_with("_cycles") && figure["marks"][0].is_string();
        if uncounted {
            ensure!(figure["n"] == 0, "{figure}: expected no values");
            continue;
        }
        let number = |field: &str| figure[field].as_f64().filter(|value| value.is_finite() && *value >= 0.0);
        for field in ["median", "p10", "p90", "n"] {
            ensure!(number(field).is_some(), "{figure}: expected a number as {field}");
        }
        let once = ["idle", "servers_memory", "guest_memory", "start"].contains(&name);
        let rounds = if once || name.ends_with("_instructions") { 1 } else { 2 };
        ensure!(figure["n"] == rounds, "{figure}: expected {rounds} values");
        ensure!(figure["baseline"].is_null() || number("ratio").is_some(), "{figure}: expected a ratio");
    }
    let has = |name: &str| list.iter().filter(|figure| figure["measure"] == name).count() == 1;
    let missing: Vec<_> = ALONE.iter().chain(&PEERS).chain(&TARGETS).filter(|name| !has(name)).collect();
    ensure!(missing.is_empty(), "{missing:?} are not in {text}");
    bad_files_are_named_at_once(files.path())
}

/// Before anything boots: no cluster is waited for, so these take no time.
fn bad_files_are_named_at_once(directory: &Path) -> Result<()> {
    let old = directory.join("old.json");
    fs::write(&old, r#"[{"measure":"load_local","format":99}]"#)?;
    for (option, path, code, part) in [
        ("--json", Path::new("/nonexistent/figures.json"), 3, "cannot write the figures to /nonexistent/figures.json"),
        ("--compare", Path::new("/nonexistent/old.json"), 3, "cannot read the earlier figures /nonexistent/old.json"),
        ("--compare", &old, 2, "load_local has format 99, expected 1; measure again"),
    ] {
        let said = ends(command(&["bench", option]).arg(path), code)?;
        said.names(&[part])?;
        ensure!(!said.err.contains("Booting"), "{}", said.err);
    }
    Ok(())
}
