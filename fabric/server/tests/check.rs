// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos-fabric --check` and `--draw` as a process: reports, drawings, messages, exit codes.

use std::path::Path;

use crate::common::run;

fn written(dir: &Path, text: &str) -> String {
    let file = dir.join("topology.toml");
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn a_topology_in_order_is_reported() {
    let (code, out, err) = run(&["--check", "torus:8x4", "--nodes", "32"]);
    let expected = "\
topology      torus:8x4
switches      32
trunks        64
nodes         32
longest route 6 trunks
mean route    3.10 trunks
layers        2
channels      144
dependencies  248
result        in order: no cycle of dependencies; every two switches joined, the same way there and back
digest        ";
    assert!(out.starts_with(expected), "{out}");
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let (code, out, _) = run(&["--check", "star"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("switches      1\n") && out.contains("nodes         64\n"), "{out}");
}

#[test]
fn a_file_is_reported_with_its_processes_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(
        dir.path(),
        "[[switch]]\nname = \"a\"\nnodes = \"0-1\"\nprocess = \"left\"\n\
         [[switch]]\nname = \"b\"\nnodes = \"2\"\nprocess = \"right\"\n\
         [[trunk]]\nbetween = [\"a\", \"b\"]\nat = \"udp:10.0.0.1:7001\"\n",
    );
    for (name, start, part) in
        [("t.svg", "<svg ", "udp:10.0.0.1:7001</text>"), ("t.dot", "graph fabric {", "\"a\" -- \"b\"")]
    {
        let drawing = dir.path().join(name);
        let (code, out, err) = run(&["--check", &file, "--draw", drawing.to_str().unwrap()]);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(out.contains("processes     left (1), right (1)\n") && out.contains("nodes         3\n"), "{out}");
        let text = std::fs::read_to_string(drawing).unwrap();
        assert!(text.starts_with(start) && text.contains(part), "{text}");
    }
}

#[test]
fn i13_a_cycle_is_printed_by_the_names_of_switches_and_the_code_is_2() {
    let dir = tempfile::tempdir().unwrap();
    let names = ["north", "east", "south", "west", "centre"];
    let mut text = "layers = 1\nnodes = 5\n".to_owned();
    for (i, name) in names.iter().enumerate() {
        text +=
            &format!("[[switch]]\nname = \"{name}\"\n[[trunk]]\nbetween = [\"{name}\", \"{}\"]\n", names[(i + 1) % 5]);
    }
    let file = written(dir.path(), &text);
    let drawing = dir.path().join("t.svg");
    let (code, out, err) = run(&["--check", &file, "--draw", drawing.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains(&file) && err.contains("the routes need 2 layers, and 1 is allowed"), "{err}");
    assert!(err.contains("north -> east -> south -> west -> centre -> north (layer 0)"), "{err}");
    assert!(!drawing.exists());
}

#[test]
fn mistakes_are_2_and_name_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = written(dir.path(), "topology = \"star\"\nspeed = 9\n");
    let good = dir.path().join("good.toml");
    std::fs::write(&good, "topology = \"star\"\n").unwrap();
    let good = good.to_str().unwrap();
    for (args, parts) in [
        (&["--check", "torus:65x64"][..], ["torus:65x64", "at most 4096"]),
        (&["--check", "mesh:4"], ["`mesh:4`", "mesh:WIDTHxHEIGHT"]),
        (&["--check", "mesh:2x2", "--nodes", "5000"], ["nodes is 5000", "1 to 4096"]),
        (&["--check", "/does/not/exist.toml"], ["/does/not/exist.toml", "No such file"]),
        (&["--check", "ring"], ["topology file ring", "torus:4x4"]),
        (&["--check", &file], ["topology.toml", "`speed`"]),
        (&["--check", good, "--nodes", "4"], ["--nodes is 4", "good.toml"]),
        (&["--check", "star", "--draw", "drawing.png"], ["--draw is drawing.png", ".svg or .dot"]),
        (&["--check", "star", "--draw", "svg"], ["--draw is svg", ".svg or .dot"]),
        (&["--draw", "x.svg"], ["--check", "required"]),
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}: {err}");
        assert!(parts.iter().all(|part| err.contains(part)), "{args:?}: {err}");
    }
}

#[test]
fn a_drawing_that_cannot_be_written_is_1() {
    let (code, _, err) = run(&["--check", "star", "--draw", "/does/not/exist/t.svg"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("/does/not/exist/t.svg") && err.contains("No such file"), "{err}");
}
