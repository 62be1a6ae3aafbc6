// SPDX-License-Identifier: MIT OR Apache-2.0
//! The type [`Topology`]: who is joined with whom, and the routes.

use crate::grid::Grid;
use crate::lists::Lists;
use crate::tree::Tree;
use crate::{MAX_LAYERS, MAX_NODES, NodeId, Shape, SwitchId, TopologyError, TrunkId};

/// What joins two switches; there is at most one trunk between any two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Trunk {
    /// The end with the lower number.
    pub a: SwitchId,
    /// The other end.
    pub b: SwitchId,
}

/// One step of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The trunk to take.
    pub trunk: TrunkId,
    /// The layer to take on it, below [`Topology::layers`].
    pub layer: u8,
}

/// The switches and trunks of a fabric, where its nodes are, and the routes. Share it by `Arc`.
///
/// No function fails for ids that do not exist: there is no route, no trunk, no node then.
#[derive(Clone, Debug)]
pub struct Topology {
    pub(crate) routing: Routing,
    trunks: Vec<Trunk>,
    trunks_of: Lists,
    switch_of: Vec<SwitchId>,
    nodes_of: Lists,
    switches: u16,
}

#[derive(Clone, Debug)]
pub(crate) enum Routing {
    Star,
    Tree(Tree),
    Grid(Grid),
}

impl Topology {
    /// One switch with all nodes; their number is brought into 1 to [`MAX_NODES`].
    pub fn star(nodes: u32) -> Topology {
        Topology::assemble(Routing::Star, 1, std::iter::empty(), spread(nodes.clamp(1, MAX_NODES), 0, 1))
    }

    /// A tree with the nodes at its leaves: a root and `depth` levels below, each switch with `arity` below itself.
    pub fn tree(arity: u16, depth: u16, nodes: u32) -> Result<Topology, TopologyError> {
        Topology::new(Shape::Tree { arity, depth }, nodes, MAX_LAYERS)
    }

    /// A mesh of `width` x `height` switches.
    pub fn mesh(width: u16, height: u16, nodes: u32) -> Result<Topology, TopologyError> {
        Topology::new(Shape::Mesh { width, height }, nodes, MAX_LAYERS)
    }

    /// A torus of `width` x `height` switches.
    pub fn torus(width: u16, height: u16, nodes: u32) -> Result<Topology, TopologyError> {
        Topology::new(Shape::Torus { width, height }, nodes, MAX_LAYERS)
    }

    /// A regular topology as on the command line: `star`, `tree:4x2`, `mesh:4x4`, `torus:4x4`.
    pub fn parse_flag(text: &str, nodes: u32) -> Result<Topology, TopologyError> {
        Topology::new(text.parse()?, nodes, MAX_LAYERS)
    }

    /// A regular topology that uses at most `layers` layers. `nodes` nodes, 1 to [`MAX_NODES`], are spread evenly, in the order of their
    /// numbers, over the switches; of a tree, over its leaves.
    pub fn new(shape: Shape, nodes: u32, _layers: u8) -> Result<Topology, TopologyError> {
        if nodes == 0 || nodes > MAX_NODES {
            return Err(TopologyError::Nodes { nodes: nodes.into() });
        }
        let switches = shape.switches()?;
        Ok(match shape {
            Shape::Star => Topology::star(nodes),
            Shape::Tree { arity, depth } => {
                let tree = Tree { arity, depth };
                let trunks: Vec<_> = tree.trunks(switches).collect();
                let leaves = tree.first_leaf();
                let at = spread(nodes, leaves, switches - leaves);
                Topology::assemble(Routing::Tree(tree), switches, trunks.into_iter(), at)
            }
            Shape::Mesh { width, height } | Shape::Torus { width, height } => {
                let grid = Grid::new(width, height, matches!(shape, Shape::Torus { .. }));
                let trunks: Vec<_> = grid.trunks().collect();
                Topology::assemble(Routing::Grid(grid), switches, trunks.into_iter(), spread(nodes, 0, switches))
            }
        })
    }

    fn assemble(
        routing: Routing,
        switches: u16,
        trunks: impl Iterator<Item = (SwitchId, SwitchId)>,
        switch_of: Vec<SwitchId>,
    ) -> Topology {
        let trunks: Vec<Trunk> = trunks.map(|(p, q)| Trunk { a: p.min(q), b: p.max(q) }).collect();
        let ends = (0..).zip(&trunks).flat_map(|(id, t)| [(t.a, id), (t.b, id)]);
        let trunks_of = Lists::new(switches.into(), ends);
        let nodes_of = Lists::new(switches.into(), switch_of.iter().copied().zip(0..));
        Topology { routing, trunks, trunks_of, switch_of, nodes_of, switches }
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
        }
    }

    /// All trunks; the index is the [`TrunkId`].
    pub fn trunks(&self) -> &[Trunk] {
        &self.trunks
    }

    /// The trunks of one switch, ascending.
    pub fn trunks_of(&self, at: SwitchId) -> &[TrunkId] {
        self.trunks_of.get(at)
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
        self.nodes_of.get(switch).iter().copied()
    }

    /// The next step at switch `at` of the route from `source` to `destination`, on which `at` is (it may be `source`). `None` at the
    /// destination.
    pub fn hop(&self, at: SwitchId, source: SwitchId, destination: SwitchId) -> Option<Hop> {
        if source >= self.switches {
            return None;
        }
        let trunk = self.next(at, destination)?;
        Some(Hop { trunk, layer: self.layer(at, source, destination) })
    }

    /// The trunk by which arrives at `at` what comes from `source`; `None` if that is `at` itself. By symmetry it is the first of the
    /// route from `at` to `source`.
    pub fn arrival(&self, at: SwitchId, source: SwitchId) -> Option<TrunkId> {
        self.next(at, source)
    }

    /// The trunks by which what comes from `source`, to all, goes on from `at` (which may be `source`).
    pub fn children(&self, at: SwitchId, source: SwitchId) -> impl Iterator<Item = TrunkId> + '_ {
        self.trunks_of(at).iter().copied().filter(move |t| self.arrival(self.other_end(*t, at), source) == Some(*t))
    }

    /// The trunk from `at` towards `destination`. That it does not depend on where the packet comes from makes every end of a route a
    /// route; with symmetry, every part.
    pub(crate) fn next(&self, at: SwitchId, destination: SwitchId) -> Option<TrunkId> {
        if at >= self.switches || destination >= self.switches {
            return None;
        }
        match &self.routing {
            Routing::Star => None,
            Routing::Tree(tree) => tree.next(at, destination),
            Routing::Grid(grid) => grid.next(at, destination),
        }
    }

    /// The layer of that step, for existing ids.
    pub(crate) fn layer(&self, at: SwitchId, _source: SwitchId, destination: SwitchId) -> u8 {
        match &self.routing {
            Routing::Star | Routing::Tree(_) => 0,
            Routing::Grid(grid) => grid.layer(at, destination),
        }
    }
}

/// The switch of each node, if `nodes` are spread evenly over `count` switches from `first` on.
fn spread(nodes: u32, first: SwitchId, count: u16) -> Vec<SwitchId> {
    // Below `count`, so it fits.
    (0..nodes).map(|n| first + (u64::from(n) * u64::from(count) / u64::from(nodes)) as u16).collect()
}
