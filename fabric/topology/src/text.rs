// SPDX-License-Identifier: MIT OR Apache-2.0
//! A topology written down, for [`Plan::from_toml`](crate::Plan::from_toml).

use std::fmt::Write;

use crate::lists::ranges;
use crate::topology::Routing;
use crate::{Shape, SwitchId, Topology};

impl Topology {
    /// The topology as a file that describes it, without processes and addresses: what is read from it has the same
    /// [`digest`](Topology::digest).
    pub fn to_toml(&self) -> String {
        let shape = match &self.routing {
            Routing::Star => Some(Shape::Star),
            Routing::Tree(tree) => Some(Shape::Tree { arity: tree.arity, depth: tree.depth }),
            Routing::Grid(grid) if grid.torus => Some(Shape::Torus { width: grid.width, height: grid.height }),
            Routing::Grid(grid) => Some(Shape::Mesh { width: grid.width, height: grid.height }),
            Routing::Graph(_) => None,
        };
        // Layers are given out one by one, so those that are used are enough. Writing to a string cannot fail.
        let mut text = format!("nodes = {}\nlayers = {}\n", self.nodes(), self.layers());
        if let Some(shape) = shape {
            let _ = writeln!(text, "topology = \"{shape}\"");
            return text;
        }
        for switch in 0..self.switches() {
            // Names are letters, digits and few others: none needs to be escaped.
            let _ = writeln!(text, "[[switch]]\nname = \"{}\"", self.name(switch));
            let nodes = ranges(self.nodes_of(switch)).join(",");
            if !nodes.is_empty() {
                let _ = writeln!(text, "nodes = \"{nodes}\"");
            }
        }
        for trunk in self.trunks() {
            let name = |switch: SwitchId| self.name(switch);
            let _ = writeln!(text, "[[trunk]]\nbetween = [\"{}\", \"{}\"]", name(trunk.a), name(trunk.b));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_LAYERS, Plan};
    use proptest::prelude::*;

    fn same(topology: &Topology) {
        let text = topology.to_toml();
        let again = Plan::from_toml(&text).unwrap().topology;
        assert_eq!(again.digest(), topology.digest(), "{text}");
    }

    #[test]
    fn regular_topologies_come_back() {
        for flag in ["star", "tree:3x2", "mesh:4x3", "torus:4x4", "torus:7x5", "mesh:1x1"] {
            same(&Topology::parse_flag(flag, 37).unwrap());
        }
        same(&Topology::new(Shape::Torus { width: 4, height: 3 }, 5, 1).unwrap());
    }

    proptest! {
        #[test]
        fn graphs_come_back(
            switches in 2u16..12,
            more in prop::collection::vec(any::<(u16, u16)>(), 0..20),
            nodes in prop::collection::vec(any::<u16>(), 1..40),
        ) {
            let names = (0..switches).map(|s| format!("sw-{s}.{}", s * 7)).collect();
            let mut trunks: Vec<(u16, u16)> = (1..switches).map(|s| (s / 2, s)).collect();
            for (a, b) in more {
                let (a, b) = (a % switches, b % switches);
                if a != b && !trunks.contains(&(a.min(b), a.max(b))) {
                    trunks.push((a.min(b), a.max(b)));
                }
            }
            let nodes = nodes.into_iter().map(|n| n % switches).collect();
            if let Ok(topology) = Topology::graph(names, &trunks, nodes, MAX_LAYERS) {
                same(&topology);
            }
        }
    }
}
