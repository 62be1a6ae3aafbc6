// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos ctl` and `telegraphos top` as commands, against a fabric process.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use telegraphos_testkit::Daemon;

use super::{ran, telegraphos};

/// A fabric process, which ends with this.
struct Fabric {
    _daemon: Daemon,
    log: BufReader<std::process::ChildStderr>,
}

impl Fabric {
    fn start(listen: &Path, options: &[&str]) -> Fabric {
        let mut command = telegraphos();
        command.arg("__fabric").arg("--listen").arg(listen).args(options).stderr(Stdio::piped());
        let mut daemon = Daemon::start(&mut command);
        let log = BufReader::new(daemon.stderr.take().unwrap());
        let mut fabric = Fabric { _daemon: daemon, log };
        fabric.wait_for("listening at");
        fabric
    }

    /// The next line of its log with these words.
    fn wait_for(&mut self, words: &str) -> String {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "it ended before it said {words:?}");
        }
        line
    }
}

fn run(args: &[&str], environment: Option<&Path>) -> (Option<i32>, String, String) {
    let mut command = telegraphos();
    command.args(args);
    if let Some(parent) = environment {
        command.env("XDG_RUNTIME_DIR", parent).env("TMPDIR", parent);
    }
    ran(&mut command)
}

fn control_of(listen: &Path) -> PathBuf {
    let mut path = listen.as_os_str().to_owned();
    path.push(".control");
    path.into()
}

#[test]
fn a_fabric_is_asked_and_told_with_stable_exit_codes() {
    let dir = tempfile::tempdir().unwrap();
    let listen = dir.path().join("f");
    let _fabric = Fabric::start(&listen, &["--topology", "mesh:2x1", "--nodes", "4"]);
    let control = control_of(&listen);
    let ctl = |args: &[&str]| run(&[&["ctl", "--control", control.to_str().unwrap()], args].concat(), None);
    for (args, code, parts) in [
        (&["status"][..], 0, ["0 of 4 present", "trunks    2 of 2 up"]),
        (&["topology"], 0, ["switch 1 x1y0 (here)", "trunk x0y0-x1y0: switches 0 and 1"]),
        (&["statistics"], 0, ["0 joined", "FROM PKT"]),
        (&["statistics"], 0, ["RTT", "x0y0-x1y0 at switch 0"]),
        (&["link", "0-1", "down"], 0, ["done (1)", ""]),
        (&["faults"], 0, ["trunk:x0y0-x1y0: kept down", ""]),
        (&["link", "trunks", "up"], 0, ["done (1)", ""]),
        (&["crash", "2"], 0, ["done (1)", ""]),
        (&["faults", "list"], 0, ["crashed: nodes 2", ""]),
        (&["restore", "2"], 0, ["done (1)", ""]),
        (&["log", "warn"], 0, ["done (1)", ""]),
        (&["crash", "9"], 1, ["node is 9", "expected 0 to 3"]),
        (&["link", "a-b", "down"], 1, ["\"a-b\"", "x0y0-x1y0"]),
        (&["log", "loud"], 1, ["\"loud\"", "expected off"]),
        (&["link", "nowhere", "down"], 2, ["nowhere", "trunk:NAME"]),
        (&["dance"], 2, ["dance", "Usage"]),
        (&[], 2, ["Usage", "status"]),
    ] {
        let (found, out, err) = ctl(args);
        assert_eq!(found, Some(code), "{args:?}: {out}{err}");
        assert!(parts.iter().all(|p| out.contains(p) || err.contains(p)), "{args:?}: {out}{err}");
    }
    let (_, out, _) = ctl(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status["status"]["nodes"].as_u64(), status["status"]["log"].as_str()), (Some(4), Some("warn")));
    let none = dir.path().join("none");
    let (code, _, err) = run(&["ctl", "--control", none.to_str().unwrap(), "status"], None);
    assert!(code == Some(3) && err.contains("none") && err.contains("is the fabric running"), "{err}");
}

#[test]
fn top_prints_one_table_where_there_is_no_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let listen = dir.path().join("f");
    let _fabric = Fabric::start(&listen, &["--topology", "mesh:2x1", "--nodes", "4"]);
    let control = control_of(&listen);
    for more in [&["--interval", "0s"][..], &["--interval", "50ms", "--once"]] {
        let args = [&["top", "--control", control.to_str().unwrap()], more].concat();
        let (code, out, err) = run(&args, None);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.contains("0 of 4 nodes up, 1 of 1 trunks up") && out.contains("x0y0-x1y0"), "{out}");
        assert!(!out.contains('\x1b'), "{out:?}");
    }
    // The third column from the right, of those that are not empty: a time, once the trunk was measured.
    let start = std::time::Instant::now();
    loop {
        let (_, out, _) = run(&["top", "--control", control.to_str().unwrap(), "--interval", "0s"], None);
        let row = out.lines().find(|line| line.trim_start().starts_with("x0y0-x1y0")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        if out.contains("RTT") && words[words.len() - 3].ends_with('s') {
            break;
        }
        assert!(start.elapsed().as_secs() < 60, "no round trip in {out}");
    }
    let (code, _, err) = run(&["top", "--control", control.to_str().unwrap(), "--interval", "5"], None);
    assert!(code == Some(2) && err.contains("is no time"), "{err}");
}

#[test]
fn a_watch_is_lines_of_json_until_it_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let listen = dir.path().join("f");
    let _fabric = Fabric::start(&listen, &[]);
    let control = control_of(&listen);
    let mut command = telegraphos();
    command.args(["ctl", "watch", "--every", "50ms", "--control"]).arg(control).stdout(Stdio::piped());
    let mut daemon = Daemon::start(&mut command);
    let mut out = BufReader::new(daemon.stdout.take().unwrap());
    let mut uptimes = Vec::new();
    for _ in 0..3 {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let read: serde_json::Value = serde_json::from_str(&line).unwrap();
        uptimes.push(read["statistics"]["process"]["uptime_us"].as_u64().unwrap());
    }
    assert!(uptimes.is_sorted_by(|a, b| a < b), "{uptimes:?}");
    kill_process(Pid::from_child(&daemon), Signal::INT).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(daemon.wait().unwrap().code(), Some(130));
}

#[test]
fn the_one_running_cluster_is_found_and_of_two_one_must_be_named() {
    let parent = tempfile::tempdir().unwrap();
    let cluster = |name: &str| {
        let dir = parent.path().join(format!("telegraphos-{}-{name}", rustix::process::getuid().as_raw()));
        std::fs::create_dir(&dir).unwrap();
        dir.join("fabric")
    };
    let (code, _, err) = run(&["ctl", "status"], Some(parent.path()));
    assert!(code == Some(3) && err.contains("telegraphos up"), "{err}");
    let first = cluster("first");
    let _first = Fabric::start(&first, &[]);
    let (code, out, err) = run(&["ctl", "status"], Some(parent.path()));
    assert!(code == Some(0) && out.contains("0 of 64 present"), "{out}{err}");
    let second = cluster("second");
    let other = Fabric::start(&second, &[]);
    let (code, _, err) = run(&["top", "--once"], Some(parent.path()));
    let named = |socket: &Path| err.contains(&format!("--control {}", control_of(socket).display()));
    assert!(code == Some(2) && named(&first) && named(&second), "{err}");
    // One that was killed is no cluster any more.
    drop(other);
    assert!(control_of(&second).exists());
    assert_eq!(run(&["ctl", "status"], Some(parent.path())).0, Some(0));
}

#[test]
fn the_log_of_a_server_is_json_and_changes_its_level() {
    let dir = tempfile::tempdir().unwrap();
    let listen = dir.path().join("f");
    let mut fabric = Fabric::start(&listen, &["--log-format", "json"]);
    let control = control_of(&listen);
    let ctl = |args: &[&str]| run(&[&["ctl", "--control", control.to_str().unwrap()], args].concat(), None);
    assert_eq!(ctl(&["crash", "3"]).0, Some(0));
    let line = fabric.wait_for("cut off");
    let read: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((read["level"].as_str(), read["node"].as_u64()), (Some("info"), Some(3)));
    assert!(read["time"].as_str().unwrap().ends_with('Z') && read["target"].is_string(), "{line}");
    // Silent in between.
    assert_eq!(ctl(&["log", "error"]).0, Some(0));
    assert_eq!(ctl(&["crash", "4"]).0, Some(0));
    assert_eq!(ctl(&["log", "info"]).0, Some(0));
    assert_eq!(ctl(&["crash", "5"]).0, Some(0));
    let line = fabric.wait_for("by command");
    assert!(line.contains("filter is info"), "{line}");
    assert!(fabric.wait_for("cut off").contains("node 5"));
}
