// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drawings: what both kinds say, and the text of Graphviz.

use std::fmt::Write;

use crate::lists::ranges;
use crate::{NodeId, Plan, SwitchId};

impl Plan {
    /// What a drawing says below the name of a switch: its nodes.
    pub(crate) fn nodes_label(&self, switch: SwitchId) -> String {
        let nodes: Vec<NodeId> = self.topology.nodes_of(switch).collect();
        match nodes.len() {
            0 => String::new(),
            1 => format!("node {}", nodes[0]),
            count => {
                let text = format!("nodes {}", ranges(nodes.iter().copied()).join(","));
                if text.len() <= 20 { text } else { format!("{count} nodes") }
            }
        }
    }

    /// The topology in the language of Graphviz (`neato -Tsvg`, `dot -Tpng`).
    pub fn dot(&self) -> String {
        let mut out = String::from("graph fabric {\n  node [shape=box, style=rounded, fontname=\"sans-serif\"];\n");
        let several = self.processes().len() > 1;
        for process in self.processes() {
            let indent = if several { "    " } else { "  " };
            if several {
                let name = escaped(process);
                let _ = writeln!(out, "  subgraph \"cluster_{name}\" {{\n    label=\"{name}\";");
            }
            for switch in self.switches_of(process) {
                let name = escaped(&self.topology.name(switch));
                let nodes = self.nodes_label(switch);
                let separator = if nodes.is_empty() { "" } else { "\\n" };
                let _ = writeln!(out, "{indent}\"{name}\" [label=\"{name}{separator}{nodes}\"];");
            }
            if several {
                out.push_str("  }\n");
            }
        }
        for (id, trunk) in (0..).zip(self.topology.trunks()) {
            let (a, b) = (escaped(&self.topology.name(trunk.a)), escaped(&self.topology.name(trunk.b)));
            let label = match self.address(id) {
                Some(address) => format!(" [style=dashed, label=\"{}\"]", escaped(&address.at)),
                None => String::new(),
            };
            let _ = writeln!(out, "  \"{a}\" -- \"{b}\"{label};");
        }
        out.push_str("}\n");
        out
    }
}

/// Text within the quotes of Graphviz. Line ends would be allowed there; a drawing has no use for them.
fn escaped(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let escape = matches!(c, '"' | '\\').then_some('\\');
            escape.into_iter().chain([if c.is_control() { ' ' } else { c }])
        })
        .collect()
}
