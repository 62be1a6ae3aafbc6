// SPDX-License-Identifier: MIT OR Apache-2.0
//! `Topology::check`: right about what is right, for the largest too, and each deliberate bug is found.

use crate::common::{names, promises, random_trunks, seeds};
use telegraphos_testkit::scale;
use telegraphos_topology::{Bug, CheckError, CheckReport, Shape, Topology, TopologyError};

#[test]
fn it_counts_what_walking_all_routes_counts() {
    for flag in
        ["star", "tree:2x3", "tree:5x2", "mesh:1x1", "mesh:6x4", "mesh:1x9", "torus:8x3", "torus:5x6", "torus:9x1"]
    {
        let t = Topology::parse_flag(flag, 100).unwrap();
        let walked = promises(&t).unwrap();
        let expected = CheckReport {
            switches: t.switches(),
            trunks: t.trunks().len() as u32,
            nodes: 100,
            diameter: walked.diameter as u32,
            hops: walked.hops as u64,
            layers: t.layers(),
            channels: walked.channels,
            dependencies: walked.dependencies,
        };
        assert_eq!(t.check().unwrap(), expected, "{flag}");
    }
    assert_eq!(Topology::parse_flag("mesh:2x1", 1).unwrap().check().unwrap().mean_distance(), 1.0);
    assert_eq!(Topology::star(1).check().unwrap().mean_distance(), 0.0);
}

#[test]
fn i13_large_topologies_keep_their_promises() {
    let flags: &[&str] = if scale(false, true) {
        &["torus:64x64", "mesh:64x64", "tree:2x11", "tree:15x3", "tree:4095x1", "torus:4096x1", "mesh:1x4096"]
    } else {
        &["torus:32x16", "mesh:16x32", "tree:2x8", "tree:511x1", "torus:512x1", "mesh:1x512"]
    };
    for flag in flags {
        let t = Topology::parse_flag(flag, 4096).unwrap();
        let report = t.check().unwrap_or_else(|e| panic!("{flag}: {e}"));
        if let Ok(Shape::Torus { width, height }) = flag.parse() {
            assert_eq!(report.diameter, u32::from(width / 2 + height / 2));
        }
    }
}

#[test]
fn i13_a_torus_in_one_layer_is_refused_with_its_shortest_cycle() {
    let new = |width, height, layers| Topology::new(Shape::Torus { width, height }, 4, layers);
    assert_eq!(new(4, 4, 1).unwrap().layers(), 1);
    assert_eq!(
        new(7, 5, 1).unwrap_err().to_string(),
        "the routes need 2 layers, and 1 is allowed: packets could wait for each other in a circle: x0y0 -> x0y1 -> x0y2 \
         -> x0y3 -> x0y4 -> x0y0 (layer 0); expected none: allow more layers, or remove a trunk of the circle"
    );
    let Err(TopologyError::NeedsLayers { why: CheckError::Cycle(cycle), .. }) = new(40, 40, 1) else { panic!() };
    assert_eq!(cycle.len(), 40);
}

/// The bug must be found by the check, and by walking all routes: neither sees what is not there.
fn found(bug: Bug, t: &Topology) -> CheckError {
    assert!(promises(t).is_err(), "{bug:?}: not found by walking");
    match t.check() {
        Err(e) => e,
        Ok(report) => panic!("{bug:?}: {report:?}"),
    }
}

#[test]
fn each_deliberate_bug_is_found() {
    let mesh = |bug| Topology::parse_flag("mesh:3x3", 9).unwrap().with_bug(bug);
    let torus = |side, bug| Topology::parse_flag(&format!("torus:{side}x{side}"), 9).unwrap().with_bug(bug);
    let ring = |switches: u16, bug| {
        let trunks: Vec<_> = (0..switches).map(|i| (i, (i + 1) % switches)).collect();
        Topology::graph_with_bug(names(switches.into()), &trunks, vec![0], 4, bug).unwrap()
    };
    for (bug, t, text) in [
        (
            Bug::XFirstBothWays,
            mesh(Bug::XFirstBothWays),
            "the way there is x0y0 -> x1y0 -> x1y1, the way back is x1y1 -> x0y1 -> x0y0: expected the same trunks",
        ),
        (
            Bug::AsymmetricTie,
            torus(4, Bug::AsymmetricTie),
            "the way there is x0y0 -> x1y0 -> x2y0, the way back is x2y0 -> x3y0 -> x0y0",
        ),
        (Bug::AsymmetricTie, ring(6, Bug::AsymmetricTie), "the way there is s"),
        (
            Bug::NoDateline,
            torus(5, Bug::NoDateline),
            "packets could wait for each other in a circle: x0y0 -> x1y0 -> x2y0 -> x3y0 -> x4y0 -> x0y0 (layer 0)",
        ),
        (
            Bug::UncheckedLayers,
            ring(5, Bug::UncheckedLayers),
            "packets could wait for each other in a circle: s0 -> s1 -> s2 -> s3 -> s4 -> s0 (layer 0)",
        ),
        (Bug::ForgetRoute, ring(5, Bug::ForgetRoute), "the route s2 does not lead to s0: expected one that does"),
        (Bug::TurnBack, ring(5, Bug::TurnBack), "the route s1 -> s2 -> s1 -> s2 -> s1 -> s2 does not lead to s0"),
        (Bug::LayerBeyond, ring(5, Bug::LayerBeyond), "the route s0 -> s1 -> s2 uses layer 2: expected layers below 2"),
    ] {
        let error = found(bug, &t).to_string();
        assert!(error.starts_with(text), "{bug:?}: {error}");
    }
}

#[test]
fn i13_unchecked_layers_are_found_in_random_graphs() {
    let cycles = std::cell::Cell::new(0);
    let all = seeds(40, 1000, |numbers| {
        let switches = 5 + numbers.below(16);
        let trunks = random_trunks(numbers, switches, switches);
        let bug = Bug::UncheckedLayers;
        let t = Topology::graph_with_bug(names(switches), &trunks, vec![0], 4, bug).map_err(|e| e.to_string())?;
        // Some graphs need one layer only: then nothing is wrong, and walking finds nothing either.
        match (t.check(), promises(&t)) {
            (Err(CheckError::Cycle(_)), Err(_)) => cycles.set(cycles.get() + 1),
            (Ok(_), Ok(_)) => {}
            both => return Err(format!("{trunks:?}: {both:?}")),
        }
        Ok(())
    });
    assert!(cycles.get() > 0 || all.is_none());
}
