// SPDX-License-Identifier: MIT OR Apache-2.0
//! The type [`Topology`]: switches, trunks, nodes, and the routes.

use crate::route::{Hop, Transit, Trunk};
use std::collections::HashSet;

use crate::digest::Digest;
use crate::error::{missing_nodes, refused};
use crate::graph::Graph;
use crate::grid::Grid;
use crate::lists::lists;
use crate::tree::Tree;
use crate::{MAX_GRAPH_SWITCHES, MAX_LAYERS, MAX_NODES, MAX_SWITCHES, NodeId, Shape, SwitchId, TopologyError, TrunkId};

/// The switches and trunks of a fabric, where its nodes are, and the routes. Share it by `Arc`.
///
/// No function fails for ids that do not exist: there is no route, no trunk, no node then.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) routing: Routing,
    trunks: Vec<Trunk>,
    trunks_of: Vec<Vec<TrunkId>>,
    switch_of: Vec<SwitchId>,
    nodes_of: Vec<Vec<NodeId>>,
    switches: u16,
    /// The given names; regular topologies derive them.
    names: Option<Vec<String>>,
}

#[derive(Clone, Debug)]
pub(crate) enum Routing {
    Star,
    Tree(Tree),
    Grid(Grid),
    Graph(Graph),
}

impl Topology {
    /// One switch with all nodes; their number is brought into 1 to [`MAX_NODES`].
    pub fn star(nodes: u32) -> Topology {
        Topology::assemble(Routing::Star, 1, Vec::new(), spread(nodes.clamp(1, MAX_NODES), 0, 1))
    }

    /// A regular topology as on the command line: `star`, `tree:4x2`, `mesh:4x4`, `torus:4x4`.
    pub fn parse_flag(text: &str, nodes: u32) -> Result<Topology, TopologyError> {
        Topology::new(text.parse()?, nodes, MAX_LAYERS)
    }

    /// A regular topology that uses at most `layers` layers, 1 to [`MAX_LAYERS`]. `nodes` nodes, 1 to [`MAX_NODES`],
    /// are spread evenly, in the order of their numbers, over the switches; of a tree, over its leaves. A torus with a
    /// ring of five or more switches needs two layers, all others one.
    pub fn new(shape: Shape, nodes: u32, layers: u8) -> Result<Topology, TopologyError> {
        checked_nodes(nodes.into())?;
        checked_layers(layers.into())?;
        let switches = shape.switches()?;
        match shape {
            Shape::Star => Ok(Topology::star(nodes)),
            Shape::Tree { arity, depth } => {
                let tree = Tree { arity, depth };
                let trunks = tree.trunks(switches).collect();
                let leaves = tree.first_leaf();
                let switch_of = spread(nodes, leaves, switches - leaves);
                Ok(Topology::assemble(Routing::Tree(tree), switches, trunks, switch_of))
            }
            Shape::Mesh { width, height } | Shape::Torus { width, height } => {
                let mut grid = Grid::new(width, height, matches!(shape, Shape::Torus { .. }));
                let trunks: Vec<_> = grid.trunks().collect();
                let refused = grid.dateline && layers < 2;
                grid.dateline &= !refused;
                let topology = Topology::assemble(Routing::Grid(grid), switches, trunks, spread(nodes, 0, switches));
                if refused {
                    topology.check().map_err(|why| TopologyError::NeedsLayers { needed: 2, allowed: layers, why })?;
                }
                Ok(topology)
            }
        }
    }

    /// An arbitrary connected graph of 1 to [`MAX_GRAPH_SWITCHES`] switches, given by their names. `trunks` are pairs
    /// of them by number, in any order, and get their numbers in the order of their ends. `switch_of` has the switch of
    /// each node. The routes are shortest paths, in at most `layers` layers, 1 to [`MAX_LAYERS`].
    ///
    /// Refused are duplicates, ends that do not exist, switches that cannot be reached, and routes that do not fit into
    /// the layers.
    pub fn graph(
        names: Vec<String>,
        trunks: &[(SwitchId, SwitchId)],
        switch_of: Vec<SwitchId>,
        layers: u8,
    ) -> Result<Topology, TopologyError> {
        checked_nodes(switch_of.len() as u64)?;
        checked_layers(layers.into())?;
        check_names(&names)?;
        // At most MAX_GRAPH_SWITCHES.
        let switches = names.len() as u16;
        let trunks = checked_trunks(&names, trunks)?;
        if let Some((node, _)) = switch_of.iter().enumerate().find(|(_, at)| **at >= switches) {
            return Err(missing_nodes([node as NodeId].into_iter(), switch_of.len()));
        }
        let mut topology = Topology::assemble(Routing::Star, switches, trunks, switch_of);
        topology.names = Some(names);
        topology.check_connected()?;
        let (graph, needed) = Graph::new(switches, &topology.trunks, &topology.trunks_of, layers);
        topology.routing = Routing::Graph(graph);
        if needed > usize::from(layers) {
            topology.check().map_err(|why| TopologyError::NeedsLayers { needed, allowed: layers, why })?;
        }
        Ok(topology)
    }

    fn check_connected(&self) -> Result<(), TopologyError> {
        let mut reached = vec![false; self.switches.into()];
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            if !std::mem::replace(&mut reached[usize::from(at)], true) {
                open.extend(self.trunks_of(at).iter().map(|trunk| self.other_end(*trunk, at)));
            }
        }
        match reached.iter().position(|reached| !reached) {
            // Below the number of switches.
            Some(switch) => Err(refused!(
                "switch `{}` cannot be reached from switch `{}`: expected every two to be joined by trunks; add a \
                 trunk",
                self.name(switch as SwitchId),
                self.name(0)
            )),
            None => Ok(()),
        }
    }

    fn assemble(
        routing: Routing,
        switches: u16,
        trunks: Vec<(SwitchId, SwitchId)>,
        switch_of: Vec<SwitchId>,
    ) -> Topology {
        let trunks: Vec<Trunk> = trunks.into_iter().map(|(p, q)| Trunk { a: p.min(q), b: p.max(q) }).collect();
        let ends = (0..).zip(&trunks).flat_map(|(id, t)| [(t.a, id), (t.b, id)]);
        let trunks_of = lists(switches, ends);
        let nodes_of = lists(switches, switch_of.iter().copied().zip(0..));
        Topology { routing, trunks, trunks_of, switch_of, nodes_of, switches, names: None }
    }

    /// Number of switches; ids are below it.
    pub fn switches(&self) -> u16 {
        self.switches
    }

    /// Number of nodes; ids are below it.
    pub fn nodes(&self) -> u32 {
        self.switch_of.len() as u32
    }

    /// Number of layers that the routes use, 1 to [`MAX_LAYERS`].
    pub fn layers(&self) -> u8 {
        match &self.routing {
            Routing::Star | Routing::Tree(_) => 1,
            Routing::Grid(grid) => 1 + u8::from(grid.dateline),
            Routing::Graph(graph) => graph.layers,
        }
    }

    /// The name of a switch: as given, or `s0`, or in a mesh or torus `x0y0`.
    pub fn name(&self, switch: SwitchId) -> String {
        match (&self.names, &self.routing) {
            (Some(names), _) if switch < self.switches => names[usize::from(switch)].clone(),
            (None, Routing::Grid(grid)) => {
                let (x, y) = grid.place(switch);
                format!("x{x}y{y}")
            }
            _ => format!("s{switch}"),
        }
    }

    /// A number that two processes compare to see whether they were given the same topology, names included: the same
    /// on every host, and another for another topology (except by an accident of one in 2^64).
    pub fn digest(&self) -> u64 {
        let mut digest = Digest::new();
        // Raised when routes change though the topology does not.
        digest.text("fabric-topology 1");
        digest.text(match &self.routing {
            Routing::Star => "star",
            Routing::Tree(_) => "tree",
            Routing::Grid(grid) if grid.torus => "torus",
            Routing::Grid(_) => "mesh",
            Routing::Graph(_) => "graph",
        });
        digest.numbers([u16::from(self.layers())].into_iter());
        digest.numbers(self.switch_of.iter().copied());
        match &self.routing {
            Routing::Star => {}
            Routing::Tree(tree) => digest.numbers([tree.arity, tree.depth].into_iter()),
            Routing::Grid(grid) => digest.numbers([grid.width, grid.height].into_iter()),
            Routing::Graph(graph) => {
                digest.numbers([self.switches].into_iter());
                for switch in 0..self.switches {
                    digest.text(&self.name(switch));
                }
                digest.numbers(self.trunks.iter().map(|t| t.a));
                digest.numbers(self.trunks.iter().map(|t| t.b));
                graph.digest(&mut digest);
            }
        }
        digest.value()
    }

    /// All trunks; the index is the [`TrunkId`].
    pub fn trunks(&self) -> &[Trunk] {
        &self.trunks
    }

    /// The trunks of one switch, ascending.
    pub fn trunks_of(&self, at: SwitchId) -> &[TrunkId] {
        self.trunks_of.get(usize::from(at)).map_or(&[], Vec::as_slice)
    }

    /// Where the trunk leads to from `at`; `at` itself if it is no trunk of that switch.
    pub fn other_end(&self, trunk: TrunkId, at: SwitchId) -> SwitchId {
        match self.trunks.get(usize::from(trunk)) {
            Some(t) if t.a == at => t.b,
            Some(t) if t.b == at => t.a,
            _ => at,
        }
    }

    /// The switch of a node.
    pub fn switch_of(&self, node: NodeId) -> Option<SwitchId> {
        self.switch_of.get(usize::from(node)).copied()
    }

    /// The nodes of a switch, ascending.
    pub fn nodes_of(&self, switch: SwitchId) -> impl Iterator<Item = NodeId> + '_ {
        self.nodes_of.get(usize::from(switch)).into_iter().flatten().copied()
    }

    /// The next step at switch `at` of the route from `source` to `destination`, on which `at` is (it may be `source`).
    /// `None` at the destination. The trunk does not depend on the source, which makes every end of a route a route.
    pub fn hop(&self, at: SwitchId, source: SwitchId, destination: SwitchId) -> Option<Hop> {
        if at.max(source).max(destination) >= self.switches {
            return None;
        }
        let first_layer = |trunk| Hop { trunk, layer: 0 };
        match &self.routing {
            Routing::Star => None,
            Routing::Tree(tree) => tree.next(at, destination).map(first_layer),
            Routing::Grid(grid) => grid.hop(at, destination),
            Routing::Graph(graph) => graph.hop(at, source, destination),
        }
    }

    /// The trunk by which arrives at `at` what comes from `source`; `None` if that is `at` itself. By symmetry it is
    /// the first of the route from `at` to `source`.
    pub fn arrival(&self, at: SwitchId, source: SwitchId) -> Option<TrunkId> {
        self.hop(at, at, source).map(|hop| hop.trunk)
    }

    /// What [`Topology::hop`] and [`Topology::arrival`] say of a packet from `source` to `destination` that arrives at
    /// `at` by `trunk`, which is one of its trunks: all at once, since each packet asks for all of it at each switch.
    pub fn transit(&self, at: SwitchId, trunk: TrunkId, source: SwitchId, destination: SwitchId) -> Transit {
        let before = self.other_end(trunk, at);
        match &self.routing {
            Routing::Grid(grid) if before.max(at).max(source).max(destination) < self.switches => {
                grid.transit([before, at], trunk, source, destination)
            }
            _ => Transit {
                came: self.hop(before, source, destination),
                arrives: self.arrival(at, source) == Some(trunk),
                next: self.hop(at, source, destination),
            },
        }
    }

    /// The trunks by which a broadcast from `source` continues from `at` (which may be `source`).
    pub fn children(&self, at: SwitchId, source: SwitchId) -> impl Iterator<Item = TrunkId> + '_ {
        self.trunks_of(at).iter().copied().filter(move |t| self.continues(at, source, *t))
    }

    /// Whether a broadcast from `source` continues from `at` by `trunk`, which is one of its trunks.
    pub fn continues(&self, at: SwitchId, source: SwitchId, trunk: TrunkId) -> bool {
        self.arrival(self.other_end(trunk, at), source) == Some(trunk)
    }

    /// Whether the layer of a step depends on where the packet comes from.
    pub(crate) fn layers_by_pair(&self) -> bool {
        matches!(self.routing, Routing::Graph(_))
    }
}

/// A number of nodes that a fabric can have.
pub(crate) fn checked_nodes(nodes: u64) -> Result<u32, TopologyError> {
    let fits = u32::try_from(nodes).ok().filter(|nodes| (1..=MAX_NODES).contains(nodes));
    fits.ok_or_else(|| refused!("nodes is {nodes}: expected 1 to {MAX_NODES}"))
}

/// A number of layers that trunks can have.
pub(crate) fn checked_layers(layers: u64) -> Result<u8, TopologyError> {
    let fits = u8::try_from(layers).ok().filter(|layers| (1..=MAX_LAYERS).contains(layers));
    fits.ok_or_else(|| refused!("layers is {layers}: expected 1 to {MAX_LAYERS}"))
}

/// Checks the names of a graph's switches.
///
/// # Errors
/// There are none or too many, one is no name, or two are equal.
pub(crate) fn check_names(names: &[String]) -> Result<(), TopologyError> {
    if names.is_empty() || names.len() > MAX_GRAPH_SWITCHES {
        return Err(refused!(
            "{} switches: expected 1 to {MAX_GRAPH_SWITCHES} (a star, tree, mesh or torus may have {MAX_SWITCHES})",
            names.len()
        ));
    }
    let mut seen = HashSet::new();
    for name in names {
        if !is_name(name) {
            return Err(refused!("switch `{name}`: {NAME_EXPECTED}"));
        }
        if !seen.insert(name) {
            return Err(refused!("switch `{name}` is there twice: expected each name once"));
        }
    }
    Ok(())
}

/// What [`is_name`] allows, for a message.
pub(crate) const NAME_EXPECTED: &str = "expected a name of 1 to 64 letters, digits, '.', '_' or '-'";

/// Whether this can be the name of a switch or a process.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

/// The trunks in their order, the lower end first.
fn checked_trunks(
    names: &[String],
    trunks: &[(SwitchId, SwitchId)],
) -> Result<Vec<(SwitchId, SwitchId)>, TopologyError> {
    let name = |switch: SwitchId| names.get(usize::from(switch)).cloned().unwrap_or_else(|| format!("s{switch}"));
    let mut sorted = Vec::with_capacity(trunks.len());
    for &(p, q) in trunks {
        if let Some(unknown) = [p, q].into_iter().find(|end| usize::from(*end) >= names.len()) {
            return Err(unknown_switch(&name(p), &name(q), &name(unknown)));
        }
        if p == q {
            return Err(refused!("trunk between `{}` and itself: expected two switches", name(p)));
        }
        sorted.push((p.min(q), p.max(q)));
    }
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(refused!(
            "trunk between `{}` and `{}` is there twice: expected at most one between two switches; remove one",
            name(pair[0].0),
            name(pair[0].1)
        )),
        None => Ok(sorted),
    }
}

/// One end of a trunk between `a` and `b` does not exist.
pub(crate) fn unknown_switch(a: &str, b: &str, unknown: &str) -> TopologyError {
    refused!("trunk between `{a}` and `{b}`: there is no switch `{unknown}`; expected the name of a switch")
}

/// The switch of each node, if `nodes` are spread evenly over `count` switches from `first` on.
pub(crate) fn spread(nodes: u32, first: SwitchId, count: u16) -> Vec<SwitchId> {
    // Below `count`, so it fits.
    (0..nodes).map(|n| first + (u64::from(n) * u64::from(count) / u64::from(nodes)) as u16).collect()
}
