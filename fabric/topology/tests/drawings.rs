// SPDX-License-Identifier: MIT OR Apache-2.0
//! Drawings, compared with files. `TELEGRAPHOS_BLESS=1` writes them anew: look at them before you commit them.

use std::path::Path;

use telegraphos_topology::{Plan, Topology};

const SITES: &str = r#"
[[switch]]
name = "a1"
nodes = "0-2"
process = "left"
[[switch]]
name = "a2"
process = "left"
[[switch]]
name = "b1"
nodes = "3,5,7,9,11,13,15,17,19,21,23"
process = "right"
[[switch]]
name = "b2"
nodes = "4,6,8,10,12,14,16,18,20,22"
process = "right"
[[trunk]]
between = ["a1", "a2"]
[[trunk]]
between = ["a1", "b1"]
at = "udp:10.0.0.1:7001"
[[trunk]]
between = ["b2", "a2"]
at = "unix:/run/a \"<&>\".sock"
[[trunk]]
between = ["b1", "b2"]
"#;

fn compare(name: &str, drawing: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var("TELEGRAPHOS_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(&file, drawing).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert!(drawing == expected, "{} is another; now:\n{drawing}", file.display());
}

fn regular(flag: &str, nodes: u32) -> Plan {
    Plan::in_one_process(Topology::parse_flag(flag, nodes).unwrap())
}

#[test]
fn drawings_are_those_that_were_looked_at() {
    for (name, plan) in [
        ("star", regular("star", 4)),
        ("tree-2x2", regular("tree:2x2", 8)),
        ("mesh-2x2", regular("mesh:2x2", 3)),
        ("torus-3x3", regular("torus:3x3", 18)),
        ("sites", Plan::from_toml(SITES).unwrap()),
    ] {
        compare(&format!("tests/drawings/{name}.dot"), &plan.dot());
        compare(&format!("tests/drawings/{name}.svg"), &plan.svg());
    }
}

/// The files in docs/topologies.md are valid, and its drawings show them.
#[test]
fn the_documentation_shows_what_is_so() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/topologies.md")).unwrap();
    let blocks: Vec<_> = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [torus, sites] = blocks[..] else { panic!("{} blocks", blocks.len()) };
    let (torus, sites) = (Plan::from_toml(torus).unwrap(), Plan::from_toml(sites).unwrap());
    assert_eq!((sites.topology.nodes(), sites.processes()), (16, &["west".to_owned(), "east".to_owned()][..]));
    for plan in [&torus, &sites] {
        plan.topology.check().unwrap();
    }
    compare("../../docs/topology-torus.svg", &torus.svg());
    compare("../../docs/topology-sites.svg", &sites.svg());
}

#[test]
fn drawings_have_every_switch_and_trunk_once() {
    for flag in ["star", "tree:3x3", "mesh:5x4", "torus:6x7", "torus:64x64"] {
        let plan = regular(flag, 64);
        let (switches, trunks) = (usize::from(plan.topology.switches()), plan.topology.trunks().len());
        let (dot, svg) = (plan.dot(), plan.svg());
        assert_eq!((dot.matches("[label=").count(), dot.matches(" -- ").count()), (switches, trunks), "{flag}");
        // The background is a box, too.
        assert_eq!((svg.matches("<rect").count(), svg.matches("<path").count()), (switches + 1, trunks), "{flag}");
        for switch in 0..plan.topology.switches() {
            let name = plan.topology.name(switch);
            assert!(svg.contains(&format!(">{name}</text>")) && dot.contains(&format!("  \"{name}\" [label=")));
        }
    }
}
