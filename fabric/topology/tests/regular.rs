// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stars, trees, meshes and toruses: every route of every small one is walked.

use crate::common::promises;
use telegraphos_topology::{MAX_NODES, Topology};

#[test]
fn i13_routes_of_meshes_up_to_8x8_keep_all_promises_in_one_layer() {
    for width in 1..=8 {
        for height in 1..=8 {
            let mesh = Topology::parse_flag(&format!("mesh:{width}x{height}"), 64).unwrap();
            assert_eq!(mesh.layers(), 1);
            promises(&mesh).unwrap_or_else(|e| panic!("mesh:{width}x{height}: {e}"));
        }
    }
}

#[test]
fn i13_routes_of_toruses_up_to_8x8_keep_all_promises_in_two_layers() {
    for width in 1..=8 {
        for height in 1..=8 {
            let torus = Topology::parse_flag(&format!("torus:{width}x{height}"), 64).unwrap();
            assert_eq!(torus.layers(), if width.max(height) >= 5 { 2 } else { 1 });
            promises(&torus).unwrap_or_else(|e| panic!("torus:{width}x{height}: {e}"));
        }
    }
}

#[test]
fn i13_routes_of_trees_keep_all_promises_in_one_layer() {
    for (arity, depth) in [(2, 1), (2, 2), (2, 5), (3, 3), (4, 2), (7, 2), (40, 1)] {
        let tree = Topology::parse_flag(&format!("tree:{arity}x{depth}"), 64).unwrap();
        assert_eq!(tree.layers(), 1);
        promises(&tree).unwrap_or_else(|e| panic!("tree:{arity}x{depth}: {e}"));
        // Nodes are at the leaves, which have only the trunk up.
        for node in 0..64 {
            assert_eq!(tree.trunks_of(tree.switch_of(node).unwrap()).len(), 1);
        }
    }
}

#[test]
fn nodes_are_spread_evenly_and_in_order() {
    let flags = ["star", "tree:4x2", "tree:2x11", "mesh:5x3", "mesh:64x64", "torus:1x1", "torus:7x9", "torus:64x64"];
    for flag in flags {
        for nodes in [1, 2, 63, 64, 1000, MAX_NODES] {
            let t = Topology::parse_flag(flag, nodes).unwrap();
            assert_eq!(t.nodes(), nodes);
            let of: Vec<_> = (0..t.switches()).flat_map(|s| t.nodes_of(s).map(move |n| (n, s))).collect();
            assert!((0..).zip(&of).all(|(n, (node, s))| n == *node && t.switch_of(n) == Some(*s)), "{flag}");
            assert_eq!(of.len(), nodes as usize);
            let taking = (0..t.switches()).filter(|s| !flag.starts_with("tree") || t.trunks_of(*s).len() == 1);
            let counts: Vec<_> = taking.map(|s| t.nodes_of(s).count()).collect();
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{flag} {nodes}: {counts:?}");
        }
    }
}

#[test]
fn ids_that_do_not_exist_have_no_routes() {
    for flag in ["star", "tree:4x2", "mesh:4x4", "torus:5x5"] {
        let t = Topology::parse_flag(flag, 16).unwrap();
        for bad in [t.switches(), u16::MAX] {
            assert_eq!((t.hop(bad, 0, 0), t.hop(0, bad, 0), t.hop(0, 0, bad)), (None, None, None));
            assert_eq!((t.arrival(bad, 0), t.arrival(0, bad)), (None, None));
            assert_eq!((t.children(bad, 0).count(), t.children(0, bad).count()), (0, 0));
            assert_eq!((t.trunks_of(bad).len(), t.nodes_of(bad).count()), (0, 0));
            assert_eq!(t.other_end(u16::MAX, 0), 0);
            assert_eq!((t.switch_of(16), t.switch_of(u16::MAX)), (None, None));
        }
    }
}

#[test]
fn impossible_flags_are_named_with_what_was_expected() {
    for (flag, nodes, text) in [
        (
            "ring",
            4,
            "topology `ring`: expected star, tree:ARITYxDEPTH, mesh:WIDTHxHEIGHT or torus:WIDTHxHEIGHT, such as torus:4x4",
        ),
        ("mesh:4", 4, "topology `mesh:4`: expected star, tree"),
        ("mesh:4x+4", 4, "topology `mesh:4x+4`: expected star, tree"),
        ("mesh:x4", 4, "topology `mesh:x4`: expected star, tree"),
        ("cube:4x4", 4, "topology `cube:4x4`: expected star, tree"),
        ("mesh:70000x1", 4, "topology `mesh:70000x1`: expected star, tree"),
        ("mesh:0x4", 4, "topology mesh:0x4: expected a width and a height of at least 1"),
        ("tree:1x4", 4, "topology tree:1x4: expected an arity of at least 2 and a depth of at least 1"),
        ("tree:4x0", 4, "topology tree:4x0: expected an arity of at least 2 and a depth of at least 1"),
        ("torus:65x64", 4, "topology torus:65x64 has more than 4096 switches: expected at most 4096"),
        ("torus:65535x65535", 4, "topology torus:65535x65535 has more than 4096 switches"),
        ("tree:2x12", 4, "topology tree:2x12 has more than 4096 switches"),
        ("tree:65535x65535", 4, "topology tree:65535x65535 has more than 4096 switches"),
        ("star", 0, "nodes is 0: expected 1 to 4096"),
        ("mesh:2x2", 4097, "nodes is 4097: expected 1 to 4096"),
    ] {
        let error = Topology::parse_flag(flag, nodes).unwrap_err().to_string();
        assert!(error.starts_with(text), "{flag}: {error}");
    }
    assert_eq!(Topology::parse_flag("tree:4095x1", 1).unwrap().switches(), 4096);
    assert_eq!(Topology::parse_flag("tree:2x11", 1).unwrap().switches(), 4095);
    assert_eq!(Topology::parse_flag("torus:64x64", 1).unwrap().trunks().len(), 8192);
}

#[test]
fn what_is_asked_at_once_is_what_is_asked_one_by_one() {
    for flag in ["star", "tree:3x3", "mesh:4x3", "torus:2x3", "torus:4x4", "torus:5x7"] {
        let t = Topology::parse_flag(flag, 64).unwrap();
        let switches = || 0..t.switches();
        for (at, trunk) in switches().flat_map(|at| t.trunks_of(at).iter().map(move |trunk| (at, *trunk))) {
            for (source, destination) in switches().flat_map(|s| switches().map(move |d| (s, d))) {
                let transit = t.transit(at, trunk, source, destination);
                assert_eq!(transit.came, t.hop(t.other_end(trunk, at), source, destination), "{flag}");
                assert_eq!(transit.arrives, t.arrival(at, source) == Some(trunk), "{flag}");
                assert_eq!(transit.next, t.hop(at, source, destination), "{flag}");
            }
            // Switches that do not exist.
            let none = t.transit(at, trunk, u16::MAX, u16::MAX);
            assert_eq!((none.came, none.arrives, none.next), (None, false, None), "{flag}");
        }
    }
}
