// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos bench --replicas`: what a store to a replicated page costs (SPEC items 23 to 26), with boards and a
//! fabric as processes and test clients of this process instead of virtual machines.
//!
//! Two nodes are homes: one lets the switch copy what goes to all copies, the other sends each copy a packet of its
//! own. Each has a page for every number of copies, on the same other nodes.

mod figures;
mod measure;
mod show;

use crate::plot;
use figures::HOMES;
pub(super) use figures::{Quartiles, quartiles, short};
use measure::{Bench, CACHES, NODES};
use std::path::PathBuf;
use telegraphos_cluster::cli::{Context, print};
use telegraphos_cluster::{Error, Result};

pub(super) fn replicas(context: Context, rounds: u32, picture: Option<PathBuf>) -> Result<u8> {
    let Context { settings, progress, .. } = context;
    let least = CACHES.len() + HOMES.len();
    let nodes = settings.nodes.unwrap_or(NODES);
    if !(least..=NODES).contains(&nodes) {
        return Err(Error::Usage(format!("nodes is {nodes}: expected {least} to {NODES} with --replicas")));
    }
    let figures = Bench::start(&settings, progress, nodes, false)?.measure(rounds, progress)?;
    let mut counting = Bench::start(&settings, progress, nodes, true)?;
    let step = progress.step("Counting packets", None);
    let (mut packets, mut wrong) = (Vec::new(), Vec::new());
    for case in counting.cases() {
        let (counted, unexpected) = counting.count(case)?;
        packets.push(counted);
        wrong.extend(unexpected);
    }
    step.done();
    drop(counting);
    let mut out = show::tables(&figures, &packets);
    if let Some(path) = picture {
        out += &plot::write(&path, &show::charts(&figures, &packets))?;
    }
    print(&out)?;
    for line in &wrong {
        eprintln!("telegraphos: {line}");
    }
    Ok(u8::from(!wrong.is_empty()))
}
