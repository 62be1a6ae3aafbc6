// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-fabric --check`: is a topology in order, and what does it look like?

use std::fmt::Write;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use telegraphos_topology::{CheckError, CheckReport, DEFAULT_NODES, Plan, PlanError, Shape, Topology, TopologyError};

/// Why a topology, or the command about it, is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The file cannot be read.
    #[error("cannot read the topology file {}: {why}; a regular topology is star, tree:4x2, mesh:4x4, torus:4x4 or alike", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The name does not describe a topology that can be.
    #[error(transparent)]
    Named(TopologyError),
    /// The file does not describe a topology that can be.
    #[error("topology file {}: {why}", file.display())]
    Plan {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        why: Box<PlanError>,
    },
    /// Its routes break a promise.
    #[error("{from}: {why}")]
    Check {
        /// File or name.
        from: String,
        /// Which one.
        why: CheckError,
    },
    /// A number of nodes beside a file, which has its own.
    #[error("--nodes is {nodes}: expected none beside a topology file; write `nodes = {nodes}` into {from}")]
    Nodes {
        /// The number.
        nodes: u32,
        /// The file.
        from: String,
    },
    /// No such kind of drawing.
    #[error("--draw is {}: expected the name of a file that ends in .svg or .dot", .0.display())]
    Kind(PathBuf),
    /// The drawing cannot be written.
    #[error("cannot write the drawing {}: {why}", file.display())]
    Draw {
        /// The file.
        file: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The report cannot be written.
    #[error("cannot write the report: {0}")]
    Report(io::Error),
}

impl Refused {
    /// Whether the machine is the cause, not the arguments.
    pub fn is_failure(&self) -> bool {
        matches!(self, Refused::Draw { .. } | Refused::Report(_))
    }
}

/// The topology of a file, or one with a name such as `torus:4x4`; `nodes` is for the latter (default: 64).
pub fn plan(from: &str, nodes: Option<u32>) -> Result<Plan, Refused> {
    if Shape::is_meant_by(from) {
        let topology = Topology::parse_flag(from, nodes.unwrap_or(DEFAULT_NODES));
        return topology.map(Plan::in_one_process).map_err(Refused::Named);
    }
    let text = fs::read_to_string(from).map_err(|why| Refused::Read { file: from.into(), why })?;
    if let Some(nodes) = nodes {
        return Err(Refused::Nodes { nodes, from: from.to_owned() });
    }
    Plan::from_toml(&text).map_err(|why| Refused::Plan { file: from.into(), why: Box::new(why) })
}

/// Checks the topology, draws it if `options` say so, and prints a report.
pub(crate) fn run(from: &str, nodes: Option<u32>, drawing: Option<&Path>) -> Result<(), Refused> {
    let draw = match drawing.map(|file| (file, file.extension().and_then(|e| e.to_str()))) {
        None => None,
        Some((file, Some("svg"))) => Some((file, Plan::svg as fn(&Plan) -> String)),
        Some((file, Some("dot"))) => Some((file, Plan::dot as fn(&Plan) -> String)),
        Some((file, _)) => return Err(Refused::Kind(file.to_owned())),
    };
    let plan = plan(from, nodes)?;
    let found = plan.topology.check().map_err(|why| Refused::Check { from: from.to_owned(), why })?;
    if let Some((file, text)) = draw {
        fs::write(file, text(&plan)).map_err(|why| Refused::Draw { file: file.to_owned(), why })?;
    }
    let text = report(from, &plan, &found);
    io::stdout().write_all(text.as_bytes()).map_err(Refused::Report)
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
    line(
        "result",
        "in order: no cycle of dependencies; every two switches joined, the same way there and back".to_owned(),
    );
    line("digest", format!("{:016x}", plan.topology.digest()));
    out
}
