// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of guests that others talk to, and what is left when they have ended.

use crate::help::{Start, nothing_is_pinned, tables, within};
use anyhow::{Context, Result, ensure};
use telegraphos_cluster::{Cluster, Guest, Running};

/// Starts `tg-msg` with a command that others talk to.
pub(crate) fn serving(node: &Guest, words: &[&str]) -> Result<Running> {
    node.argv(&[&["tg-msg"], words].concat()).keep_input_open().until("serving")
}

/// Processes that have ended, in whatever state, have left no object of boards with that in its name (no segment, no
/// queue), and no memory of any that is pinned.
pub(crate) fn nothing_is_left_of(cluster: &Cluster, what: &str) -> Result<()> {
    nothing_is_left_at(cluster.guests(), what)
}

/// The same at some nodes.
pub(crate) fn nothing_is_left_at<'a>(guests: impl IntoIterator<Item = &'a Guest>, what: &str) -> Result<()> {
    for node in guests {
        within(|| {
            let said = tables(node, &["exports", "imports", "queues", "registrations", "/proc/vmstat"])?;
            let left: Vec<&str> = said.lines().filter(|line| line.contains(what)).collect();
            ensure!(left.is_empty(), "{left:?}");
            nothing_is_pinned(&said)?;
            // A context closes after its last object, of whatever kind. That of `tg0` is of the process that has loaded
            // the module, which has ended.
            let contexts = tables(node, &["contexts"])?;
            let running = node.sh("ls /proc; ls /sys/class/net").check()?;
            let is_there = |name: &str| running.lines().any(|line| line == name);
            let has_ended = |line: &&str| {
                let process = line.split(' ').find_map(|word| word.strip_prefix("process="));
                !process.is_some_and(is_there)
            };
            let left: Vec<&str> = contexts.lines().filter(has_ended).collect();
            ensure!(left.len() <= usize::from(is_there("tg0")), "contexts of processes that have ended: {left:?}");
            Ok(())
        })
        .with_context(|| format!("node {}", node.node()))?;
    }
    Ok(())
}
