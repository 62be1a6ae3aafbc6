// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary graphs: random ones, of which every route is walked, and those that are refused.

use crate::common::{names, promises, random_trunks, route, seeds};
use telegraphos_testkit::{Rng, scale};
use telegraphos_topology::{CheckError, MAX_LAYERS, SwitchId, Topology, TopologyError, TrunkId};

fn ring(switches: u16, layers: u8) -> Result<Topology, TopologyError> {
    let trunks: Vec<_> = (0..switches).map(|i| (i, (i + 1) % switches)).collect();
    Topology::graph(names(switches.into()), &trunks, vec![0], layers)
}

#[test]
fn i13_random_graphs_keep_all_promises() {
    seeds(60, 3000, |numbers| {
        let switches = 1 + numbers.below(24);
        let more = numbers.below(3 * switches);
        let trunks = random_trunks(numbers, switches, more);
        let layers = 1 + numbers.below(MAX_LAYERS);
        match Topology::graph(names(switches), &trunks, vec![0], layers) {
            Ok(t) => {
                let walked = promises(&t).map_err(|e| format!("{trunks:?}: {e}"))?;
                let report = t.check().map_err(|e| e.to_string())?;
                let reported = (report.diameter as usize, report.hops as usize, report.channels, report.dependencies);
                let expected = (walked.diameter, walked.hops, walked.channels, walked.dependencies);
                if reported != expected || t.layers() > layers {
                    return Err(format!("{trunks:?}: {report:?}, {walked:?}"));
                }
                Ok(())
            }
            // Right if it takes more when it may; 24 switches never need more than all.
            Err(TopologyError::NeedsLayers { needed, allowed, why: CheckError::Cycle(cycle) }) => {
                let more = Topology::graph(names(switches), &trunks, vec![0], MAX_LAYERS).map_err(|e| e.to_string())?;
                let joined = (0..cycle.len()).all(|i| cycle[i].to == cycle[(i + 1) % cycle.len()].from);
                if allowed == layers && usize::from(more.layers()) == needed && needed > layers.into() && joined {
                    return Ok(());
                }
                Err(format!("{trunks:?} in {layers}: {needed} needed, {} used, {cycle:?}", more.layers()))
            }
            Err(e) => Err(format!("{trunks:?}: {e}")),
        }
    });
}

/// The tie between equally short paths, with weights that are exact: that no two paths weigh the same is counted, not
/// believed.
#[test]
fn routes_are_the_only_paths_of_least_weight() {
    seeds(40, 1000, |numbers| {
        let switches = 2 + numbers.below(16);
        let more = numbers.below(4 * switches);
        let trunks = random_trunks(numbers, switches, more);
        let t = Topology::graph(names(switches), &trunks, vec![0], MAX_LAYERS).map_err(|e| e.to_string())?;
        // Length, then trunks as bits.
        let weigh = |trunks: &[TrunkId]| (trunks.len(), trunks.iter().map(|t| 1u128 << t).sum::<u128>());
        assert!(t.trunks().len() < 128);
        for source in 0..t.switches() {
            // Bellman and Ford, with how many paths there are of the least weight.
            let mut least = vec![(usize::MAX, 0u128, 0u32); switches];
            least[usize::from(source)] = (0, 0, 1);
            for length in 1..switches {
                let before = least.clone();
                for (id, trunk) in t.trunks().iter().enumerate() {
                    for (from, to) in [(trunk.a, trunk.b), (trunk.b, trunk.a)] {
                        let (hops, weight, paths) = before[usize::from(from)];
                        let to = &mut least[usize::from(to)];
                        let candidate = (hops.wrapping_add(1), weight | 1 << id);
                        if hops != length - 1 || candidate > (to.0, to.1) {
                        } else if candidate == (to.0, to.1) {
                            to.2 += paths;
                        } else {
                            *to = (candidate.0, candidate.1, paths);
                        }
                    }
                }
            }
            for destination in 0..t.switches() {
                let taken: Vec<_> = route(&t, source, destination)?.iter().map(|(_, (trunk, _, _))| *trunk).collect();
                let (hops, weight, paths) = least[usize::from(destination)];
                if weigh(&taken) != (hops, weight) || paths != 1 {
                    return Err(format!(
                        "{trunks:?}: {source}->{destination} by {taken:?}; {paths} of {hops} {weight:b}"
                    ));
                }
            }
        }
        Ok(())
    });
}

#[test]
fn i13_rings_need_a_second_layer_from_five_switches_on() {
    for switches in [3, 4] {
        assert_eq!(ring(switches, 1).unwrap().layers(), 1);
    }
    for switches in 5..=24 {
        assert_eq!(ring(switches, 4).unwrap().layers(), 2, "{switches}");
        assert_eq!(ring(switches, 2).unwrap().layers(), 2, "{switches}");
    }
    assert_eq!(
        ring(5, 1).unwrap_err().to_string(),
        "the routes need 2 layers, and 1 is allowed: packets could wait for each other in a circle: s0 -> s1 -> s2 -> s3 \
         -> s4 -> s0 (layer 0); expected none: allow more layers, or remove a trunk of the circle"
    );
}

/// The table in docs/topologies.md: up to so many layers. Graphs of up to 64 switches fit into those there are.
#[test]
fn i13_random_graphs_need_no_more_layers_than_documented() {
    let full = scale(false, true);
    let small = [(24, 12, 2), (24, 40, 2), (64, 32, 4), (64, 64, 4), (64, 128, 3), (64, 512, 2)];
    let large = [(128, 128, 5), (256, 128, 8), (256, 512, 6), (256, 2000, 3)];
    let cases = small.iter().map(|case| (case, if full { 10 } else { 3 }));
    for (&(switches, more, documented), graphs) in cases.chain(large.iter().filter(|_| full).map(|case| (case, 3))) {
        for seed in 0..graphs {
            let trunks = random_trunks(&mut Rng::new(seed), switches, more);
            let needed = match Topology::graph(names(switches), &trunks, vec![0], MAX_LAYERS) {
                Ok(t) => t.layers().into(),
                Err(TopologyError::NeedsLayers { needed, .. }) => needed,
                Err(e) => panic!("{e}"),
            };
            println!("{switches} switches, {more} trunks more than a tree, seed {seed}: {needed} layers");
            assert!(needed <= documented, "{switches}, {more}, seed {seed}: {needed} layers");
        }
    }
    let side = if full { 16 } else { 8 };
    for (shape, most) in [("mesh", 1), ("torus", 4)] {
        let regular = Topology::parse_flag(&format!("{shape}:{side}x{side}"), 1).unwrap();
        let trunks: Vec<_> = regular.trunks().iter().map(|t| (t.a, t.b)).collect();
        let layers = Topology::graph(names(regular.switches().into()), &trunks, vec![0], MAX_LAYERS).unwrap().layers();
        assert!(layers <= most, "{trunks:?}: {layers} layers");
    }
}

#[test]
fn the_order_of_trunks_in_a_file_means_nothing() {
    seeds(20, 200, |numbers| {
        let trunks = random_trunks(numbers, 12, 12);
        let t = Topology::graph(names(12), &trunks, vec![0, 3, 3], MAX_LAYERS).map_err(|e| e.to_string())?;
        let mut others = trunks.clone();
        others.sort_unstable();
        let other = Topology::graph(names(12), &others, vec![0, 3, 3], MAX_LAYERS).map_err(|e| e.to_string())?;
        if t.digest() != other.digest() || t.trunks() != other.trunks() {
            return Err(format!("{trunks:?}"));
        }
        Ok(())
    });
}

#[test]
fn digests_tell_topologies_apart_and_never_change() {
    let graph = |names: Vec<String>, trunks: &[(SwitchId, SwitchId)], at: Vec<SwitchId>, layers| {
        Topology::graph(names, trunks, at, layers).unwrap().digest()
    };
    let path = [(0, 1), (1, 2)];
    let triangle = [(0, 1), (1, 2), (2, 0)];
    let flag = |text, nodes| Topology::parse_flag(text, nodes).unwrap().digest();
    let digests = [
        flag("star", 1),
        flag("star", 2),
        flag("mesh:2x3", 2),
        flag("mesh:3x2", 2),
        flag("torus:2x3", 2),
        flag("tree:2x2", 2),
        flag("tree:3x2", 2),
        flag("torus:5x5", 25),
        graph(names(1), &[], vec![0, 0], 4),
        graph(names(3), &path, vec![0, 1], 4),
        graph(names(3), &path, vec![0, 2], 4),
        graph(names(3), &triangle, vec![0, 1], 4),
        graph(vec!["s0".into(), "s2".into(), "s1".into()], &path, vec![0, 1], 4),
    ];
    for (i, digest) in digests.iter().enumerate() {
        assert!(!digests[..i].contains(digest), "{i}: {digests:x?}");
    }
    // Written down: a process of another version or on another host computes these.
    assert_eq!(digests[7], 0x107b_e3fd_650f_5094, "{digests:x?}");
    assert_eq!(digests[11], 0xc9c8_0d8d_85f8_6db2, "{digests:x?}");
}

#[test]
fn impossible_graphs_are_named_with_what_was_expected() {
    let refused = |names: &[&str], trunks: &[(SwitchId, SwitchId)], at: Vec<SwitchId>, layers| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Topology::graph(names, trunks, at, layers).unwrap_err().to_string()
    };
    for (error, text) in [
        (refused(&[], &[], vec![0], 4), "0 switches: expected 1 to 256 (a star, tree, mesh or torus may have 4096)"),
        (refused(&["a", "a"], &[(0, 1)], vec![0], 4), "switch `a` is there twice: expected each name once"),
        (
            refused(&["a b"], &[], vec![0], 4),
            "switch `a b`: expected a name of 1 to 64 letters, digits, '.', '_' or '-'",
        ),
        (refused(&["a", ""], &[(0, 1)], vec![0], 4), "switch ``: expected a name of 1 to 64 letters"),
        (refused(&["a", "b"], &[(0, 0)], vec![0], 4), "trunk between `a` and itself: expected two switches"),
        (
            refused(&["a", "b"], &[(0, 2)], vec![0], 4),
            "trunk between `a` and `s2`: there is no switch `s2`; expected the name of a switch",
        ),
        (
            refused(&["a", "b"], &[(0, 1), (1, 0)], vec![0], 4),
            "trunk between `a` and `b` is there twice: expected at most one between two switches; remove one",
        ),
        (
            refused(&["a", "b", "c"], &[(0, 2)], vec![0], 4),
            "switch `b` cannot be reached from switch `a`: expected every two to be joined by trunks; add a trunk",
        ),
        (refused(&["a"], &[], vec![], 4), "nodes is 0: expected 1 to 4096"),
        (refused(&["a"], &[], vec![0; 4097], 4), "nodes is 4097: expected 1 to 4096"),
        (
            refused(&["a"], &[], vec![0, 0, 1], 4),
            "nodes without a switch: 2; expected each of the 3 nodes (0 to 2) at one switch",
        ),
        (refused(&["a"], &[], vec![0], 0), "layers is 0: expected 1 to 4"),
        (refused(&["a"], &[], vec![0], 5), "layers is 5: expected 1 to 4"),
    ] {
        assert!(error.starts_with(text), "{error}");
    }
    let many = Topology::graph(names(257), &[], vec![0], 4).unwrap_err().to_string();
    assert!(many.starts_with("257 switches: expected 1 to 256"), "{many}");
    let largest: Vec<_> = (1..256).map(|i| (i - 1, i)).collect();
    assert_eq!(Topology::graph(names(256), &largest, vec![255], 1).unwrap().switches(), 256);
}
