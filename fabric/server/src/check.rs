// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-fabric --check`: is a topology in order, and what does it look like?

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use telegraphos_topology::{CheckReport, DEFAULT_NODES, Plan, Shape, Topology};

/// Why a topology, or the command about it, is refused.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Refused {
    text: String,
    /// The machine is the cause, not the arguments.
    pub(crate) is_failure: bool,
}

fn refused(text: String) -> Refused {
    Refused { text, is_failure: false }
}

/// The topology of a file, or one with a name such as `torus:4x4`; `nodes` is for the latter (default: 64).
pub fn plan(from: &str, nodes: Option<u32>) -> Result<Plan, Refused> {
    if Shape::is_meant_by(from) {
        let topology = Topology::parse_flag(from, nodes.unwrap_or(DEFAULT_NODES));
        return topology.map(Plan::in_one_process).map_err(|why| refused(why.to_string()));
    }
    let text = fs::read_to_string(from).map_err(|why| {
        refused(format!(
            "cannot read the topology file {from}: {why}; a regular topology is star, tree:4x2, mesh:4x4, torus:4x4 \
             or alike"
        ))
    })?;
    if let Some(nodes) = nodes {
        return Err(refused(format!(
            "--nodes is {nodes}: expected none beside a topology file; write `nodes = {nodes}` into {from}"
        )));
    }
    Plan::from_toml(&text).map_err(|why| refused(format!("topology file {from}: {why}")))
}

/// Checks the topology, draws it if `options` say so, and prints a report.
pub(crate) fn run(from: &str, nodes: Option<u32>, drawing: Option<&Path>) -> Result<(), Refused> {
    let draw = match drawing.map(|file| (file, file.extension().and_then(|e| e.to_str()))) {
        None => None,
        Some((file, Some("svg"))) => Some((file, Plan::svg as fn(&Plan) -> String)),
        Some((file, Some("dot"))) => Some((file, Plan::dot as fn(&Plan) -> String)),
        Some((file, _)) => {
            let file = file.display();
            return Err(refused(format!("--draw is {file}: expected the name of a file that ends in .svg or .dot")));
        }
    };
    let plan = plan(from, nodes)?;
    let found = plan.topology.check().map_err(|why| refused(format!("{from}: {why}")))?;
    let failed = |text| Refused { text, is_failure: true };
    if let Some((file, text)) = draw {
        fs::write(file, text(&plan))
            .map_err(|why| failed(format!("cannot write the drawing {}: {why}", file.display())))?;
    }
    let text = report(from, &plan, &found);
    io::stdout().write_all(text.as_bytes()).map_err(|why| failed(format!("cannot write the report: {why}")))
}

fn report(from: &str, plan: &Plan, found: &CheckReport) -> String {
    let mut out = format!("topology      {from}\n");
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{name:<13} {value}");
    };
    line("switches", found.switches.to_string());
    line("trunks", found.trunks.to_string());
    line("nodes", found.nodes.to_string());
    if plan.processes().len() > 1 {
        let of = |process: &String| format!("{process} ({})", plan.switches_of(process).count());
        line("processes", plan.processes().iter().map(of).collect::<Vec<_>>().join(", "));
    }
    line("longest route", format!("{} trunks", found.diameter));
    line("mean route", format!("{:.2} trunks", found.mean_distance()));
    line("layers", found.layers.to_string());
    line("channels", found.channels.to_string());
    line("dependencies", found.dependencies.to_string());
    line("result", "in order: no cycle of dependencies; every two switches joined, the same way there and back".into());
    line("digest", format!("{:016x}", plan.topology.digest()));
    out
}
