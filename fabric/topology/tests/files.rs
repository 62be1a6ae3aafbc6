// SPDX-License-Identifier: MIT OR Apache-2.0
//! Topology files: what they say, and every mistake by its text.

use crate::common::{promises, seeds};
use telegraphos_testkit::Rng;
use telegraphos_topology::{Plan, TrunkAddress};

const TWO_SITES: &str = r#"
nodes = 6

[[switch]]
name = "a"
nodes = "0-2"
process = "left"

[[switch]]
name = "spine"
process = "left"

[[switch]]
name = "b"
nodes = "5, 3-4"
process = "right"

[[trunk]]
between = ["spine", "a"]

[[trunk]]
between = ["b", "spine"]
at = "udp:10.0.0.1:7001"
"#;

fn refused(text: &str) -> String {
    Plan::from_toml(text).unwrap_err().to_string()
}

#[test]
fn a_file_names_switches_processes_and_addresses() {
    let plan = Plan::from_toml(TWO_SITES).unwrap();
    let t = &plan.topology;
    promises(t).unwrap();
    assert_eq!((t.switches(), t.nodes(), t.layers()), (3, 6, 1));
    assert_eq!((0..3).map(|s| t.name(s)).collect::<Vec<_>>(), ["a", "spine", "b"]);
    assert_eq!((0..6).map(|n| t.switch_of(n).unwrap()).collect::<Vec<_>>(), [0, 0, 0, 2, 2, 2]);
    assert_eq!(plan.processes(), ["left", "right"]);
    assert_eq!(plan.switches_of("left").collect::<Vec<_>>(), [0, 1]);
    assert_eq!((plan.process_of(2), plan.process_of(3)), (Some("right"), None));
    // The first-named switch's process listens, whatever the numbers of the switches are.
    let address = TrunkAddress { at: "udp:10.0.0.1:7001".into(), listener: 2, caller: 1, from: None };
    assert_eq!((plan.address(0), plan.address(1), plan.address(2)), (None, Some(&address), None));
}

#[test]
fn a_regular_topology_needs_one_line() {
    let plan = Plan::from_toml("topology = \"torus:4x4\"\nnodes = 16\n").unwrap();
    assert_eq!((plan.topology.switches(), plan.topology.nodes()), (16, 16));
    assert_eq!((plan.processes(), plan.process_of(15)), (&["fabric".to_owned()][..], Some("fabric")));
    assert_eq!(Plan::from_toml("topology = \"star\"").unwrap().topology.nodes(), 64);
    let two = Plan::from_toml("topology = \"torus:8x1\"\nlayers = 2").unwrap();
    assert_eq!(two.topology.layers(), 2);
}

#[test]
fn nodes_are_spread_if_no_switch_says_where_they_are() {
    let text =
        |nodes| format!("{nodes}\n[[switch]]\nname=\"a\"\n[[switch]]\nname=\"b\"\n[[trunk]]\nbetween=[\"a\",\"b\"]\n");
    let plan = Plan::from_toml(&text("nodes = 5")).unwrap();
    assert_eq!((0..5).map(|n| plan.topology.switch_of(n).unwrap()).collect::<Vec<_>>(), [0, 0, 0, 1, 1]);
    assert_eq!(Plan::from_toml(&text("")).unwrap().topology.nodes(), 64);
}

/// Four switches in a ring, with these lines for the switches `a` to `d`, and these trunks instead of the ring's if any
/// are given.
fn ring(head: &str, switches: [&str; 4], trunks: &[&str]) -> String {
    let usual = ["\"a\",\"b\"]", "\"b\",\"c\"]", "\"c\",\"d\"]", "\"d\",\"a\"]"];
    let mut text = format!("{head}\n");
    for (name, line) in ["a", "b", "c", "d"].iter().zip(switches) {
        text += &format!("[[switch]]\nname = \"{name}\"\n{line}\n");
    }
    for trunk in if trunks.is_empty() { &usual[..] } else { trunks } {
        text += &format!("[[trunk]]\nbetween = [{trunk}\n");
    }
    text
}

#[test]
fn each_mistake_is_named_with_value_and_what_was_expected() {
    const NO: [&str; 4] = [""; 4];
    let five = "[[switch]]\nname=\"a\"\n[[switch]]\nname=\"b\"\n[[switch]]\nname=\"c\"\n[[switch]]\nname=\"d\"\n[[switch]]\nname=\"e\"\n\
                [[trunk]]\nbetween=[\"a\",\"b\"]\n[[trunk]]\nbetween=[\"b\",\"c\"]\n[[trunk]]\nbetween=[\"c\",\"d\"]\n\
                [[trunk]]\nbetween=[\"d\",\"e\"]\n[[trunk]]\nbetween=[\"e\",\"a\"]\n";
    let halves = ["process = \"left\"", "process = \"left\"", "process = \"right\"", "process = \"right\""];
    let address = "\"udp:h:1\"";
    let joined = |extra: &str| {
        let trunks = [format!("\"a\",\"b\"]{extra}"), format!("\"b\",\"c\"]\nat={address}"), "\"c\",\"d\"]".to_owned()];
        ring("", halves, &trunks.each_ref().map(String::as_str))
    };
    Plan::from_toml(&joined("")).unwrap();
    let many: String = (0..257).map(|i| format!("[[switch]]\nname=\"s{i}\"\n")).collect();
    for (text, expected) in [
        // A cycle of channel dependencies.
        (
            format!("layers = 1\n{five}"),
            "the routes need 2 layers, and 1 is allowed: packets could wait for each other in a circle: a -> b -> c -> d -> e -> a \
             (layer 0); expected none: allow more layers, or remove a trunk of the circle",
        ),
        (
            "layers = 1\ntopology = \"torus:1x5\"".to_owned(),
            "the routes need 2 layers, and 1 is allowed: packets could wait for each other in a circle: x0y0 -> x0y1 -> x0y2 -> x0y3 \
             -> x0y4 -> x0y0 (layer 0); expected none: allow more layers, or remove a trunk of the circle",
        ),
        // Nodes.
        (
            ring("nodes = 8", ["nodes = \"0-1\"", "nodes = \"3\"", "nodes = \"5-6\"", ""], &[]),
            "nodes without a switch: 2,4,7; expected each of the 8 nodes (0 to 7) at one switch",
        ),
        (
            ring("", ["nodes = \"4000\"", "", "", ""], &[]),
            "nodes without a switch: 0-3999; expected each of the 4001 nodes (0 to 4000) at one switch",
        ),
        (
            ring("", ["nodes = \"0-3\"", "", "nodes = \"4,2\"", ""], &[]),
            "node 2 is at switch `a` and at switch `c`: expected each node once",
        ),
        (
            ring("", ["nodes = \"0-3,3\"", "", "", ""], &[]),
            "node 3 is at switch `a` and at switch `a`: expected each node once",
        ),
        (
            ring("nodes = 4", ["nodes = \"0-3\"", "nodes = \"4\"", "", ""], &[]),
            "switch `b`: node 4, but nodes = 4: expected numbers below it",
        ),
        (ring("nodes = 0", NO, &[]), "nodes is 0: expected 1 to 4096"),
        (ring("nodes = 4097", NO, &[]), "nodes is 4097: expected 1 to 4096"),
        (ring("nodes = 99999999999", NO, &[]), "nodes is 99999999999: expected 1 to 4096"),
        (ring("layers = 5", NO, &[]), "layers is 5: expected 1 to 4"),
        (ring("layers = 0", NO, &[]), "layers is 0: expected 1 to 4"),
        (ring("layers = 300", NO, &[]), "layers is 300: expected 1 to 4"),
        // Trunks.
        (
            ring("", NO, &["\"a\",\"b\"]", "\"b\",\"a\"]"]),
            "trunk between `a` and `b` is there twice: expected at most one between two switches; remove one",
        ),
        (ring("", NO, &["\"a\",\"a\"]"]), "trunk between `a` and itself: expected two switches"),
        (
            ring("", NO, &["\"a\",\"x\"]"]),
            "trunk between `a` and `x`: there is no switch `x`; expected the name of a switch",
        ),
        (
            ring("", NO, &["\"a\",\"b\"]", "\"c\",\"d\"]"]),
            "switch `c` cannot be reached from switch `a`: expected every two to be joined by trunks; add a trunk",
        ),
        // Switches.
        (
            "[[switch]]\nname = \"a\"\n[[switch]]\nname = \"a\"\n".to_owned(),
            "switch `a` is there twice: expected each name once",
        ),
        (
            "[[switch]]\nname = \"a/b\"\n".to_owned(),
            "switch `a/b`: expected a name of 1 to 64 letters, digits, '.', '_' or '-'",
        ),
        (many, "257 switches: expected 1 to 256 (a star, tree, mesh or torus may have 4096)"),
        // Kinds of files.
        (String::new(), "neither `topology` nor [[switch]]: expected one of them, such as topology = \"torus:4x4\""),
        (
            ring("topology = \"star\"", NO, &[]),
            "topology = \"star\" and [[switch]]: expected either a regular topology or [[switch]] and [[trunk]]",
        ),
        (
            "topology = \"star\"\n[[trunk]]\nbetween = [\"a\",\"b\"]".to_owned(),
            "topology = \"star\" and [[trunk]]: expected either a regular topology or [[switch]] and [[trunk]]",
        ),
        (
            "topology = \"ring:5\"".to_owned(),
            "topology `ring:5`: expected star, tree:ARITYxDEPTH, mesh:WIDTHxHEIGHT or torus:WIDTHxHEIGHT, such as torus:4x4",
        ),
        // Processes and addresses.
        (
            ring("", ["process = \"left\"", "", "", ""], &[]),
            "switch `b` has no `process`, switch `a` has one: expected one for each switch or for none",
        ),
        (
            ring("", ["process = \"l r\"", "", "", ""], &[]),
            "switch `a`: process = \"l r\": expected a name of 1 to 64 letters, digits, '.', '_' or '-'",
        ),
        (
            ring("", halves, &["\"a\",\"b\"]", "\"c\",\"b\"]", "\"c\",\"d\"]"]),
            "trunk between `c` and `b` has no `at`: expected the address where the process `right` listens and `left` connects, such as \
             at = \"udp:10.0.0.1:7001\"",
        ),
        (
            joined("\nat = \"udp:h:2\""),
            "trunk between `a` and `b`: at = \"udp:h:2\": expected none, both switches are in the process `left`",
        ),
        (
            ring("", NO, &["\"a\",\"b\"]\nat = \"udp:h:2\"", "\"b\",\"c\"]", "\"c\",\"d\"]"]),
            "trunk between `a` and `b`: at = \"udp:h:2\": expected none, both switches are in the process `fabric`",
        ),
        (
            ring("", halves, &["\"a\",\"b\"]", "\"b\",\"c\"]\nat = \"here\"", "\"c\",\"d\"]"]),
            "trunk between `b` and `c`: at = \"here\": expected TRANSPORT:ADDRESS, such as udp:10.0.0.1:7001",
        ),
        (
            ring("", halves, &["\"a\",\"d\"]\nat = \"udp:h:1\"", "\"c\",\"b\"]\nat = \"udp:h:1\"", "\"c\",\"d\"]"]),
            "at = \"udp:h:1\": the processes `left` and `right` would both listen there; expected addresses of their own",
        ),
    ] {
        assert_eq!(refused(&text), expected, "{text}");
    }
    for list in ["", "x", "1-", "-1", "3-2", "1,,2", "0-4096", "4096", "+1", "1.0", "0-1-2", "99999999999"] {
        let error = refused(&ring("", [&format!("nodes = \"{list}\""), "", "", ""], &[]));
        let expected = format!(
            "switch `a`: nodes = \"{list}\": expected numbers below 4096 and ranges of them, such as \"0-5,9\"; a switch without \
             nodes has no `nodes`"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn what_is_not_toml_or_no_setting_is_named_with_its_line() {
    for (text, parts) in [
        ("nodes = 4\nspeed = 9\n", ["line 2", "unknown field `speed`"]),
        ("[[switch]]\nname = \"a\"\nnode = \"1\"\n", ["line 3", "unknown field `node`"]),
        ("[[switch]]\nnodes = \"1\"\n", ["line 1", "missing field `name`"]),
        ("[[switch]]\nname = \"a\"\nnodes = 1\n", ["line 3", "expected a string"]),
        ("[[trunk]]\nbetween = [\"a\"]\n", ["line 2", "length"]),
        ("nodes = -1\n", ["line 1", "-1"]),
        ("nodes = \n", ["line 1", "nodes"]),
        ("topology = \"star\nnodes = 1\n", ["line 1", "string"]),
    ] {
        let error = refused(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
}

/// Parts of valid files in wild order: whatever comes of it, no panic; and what is taken keeps its promises.
#[test]
fn no_file_makes_it_panic() {
    const PARTS: [&str; 24] = [
        "nodes = 4\n",
        "layers = 1\n",
        "topology = \"torus:5x1\"\n",
        "topology = \"tree:2x2\"\n",
        "[[switch]]\n",
        "[[switch]]\nname = \"a\"\n",
        "[[switch]]\nname = \"b\"\n",
        "[[switch]]\nname = \"c\"\n",
        "name = \"a\"\n",
        "nodes = \"0\"\n",
        "nodes = \"1-2\"\n",
        "nodes = \"0-3\"\n",
        "process = \"left\"\n",
        "process = \"right\"\n",
        "[[trunk]]\n",
        "[[trunk]]\nbetween = [\"a\", \"b\"]\n",
        "[[trunk]]\nbetween = [\"b\", \"c\"]\n",
        "[[trunk]]\nbetween = [\"c\", \"a\"]\n",
        "at = \"udp:h:1\"\n",
        "at = \"\"\n",
        "\0",
        "[[",
        "=",
        "\"",
    ];
    let taken = std::cell::Cell::new(0);
    let all = seeds(3000, 300_000, |numbers: &mut Rng| {
        let mut text = String::new();
        for _ in 0..numbers.below(9) {
            // The broken ones rarely.
            let most = if numbers.below(20) == 0 { PARTS.len() } else { PARTS.len() - 4 };
            text.push_str(PARTS[numbers.below(most)]);
        }
        if let Ok(plan) = Plan::from_toml(&text) {
            taken.set(taken.get() + 1);
            promises(&plan.topology).map_err(|e| format!("{text}: {e}"))?;
            plan.topology.check().map_err(|e| format!("{text}: {e}"))?;
            assert!(plan.svg().ends_with("</svg>\n") && plan.dot().ends_with("}\n"));
        }
        Ok(())
    });
    assert!(taken.get() > 20 || all.is_none(), "{}", taken.get());
}
