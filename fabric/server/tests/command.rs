// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-fabric` as a process: exit codes, messages, signals.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{command, run};
use rustix::process::{Pid, Signal, kill_process};
use telegraphos_link::LinkClient;
use telegraphos_testkit::{Daemon, eventually};

/// Starts it at `path`, sends these signals once it listens, and returns its exit code and the rest of its log.
fn signalled(mut command: Command, path: &Path, signals: &[Signal]) -> (Option<i32>, String) {
    let mut child = Daemon::start(command.arg("--listen").arg(path).stderr(Stdio::piped()));
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("listening at") {
        line.clear();
        assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended before it listened");
    }
    for signal in signals {
        drop(LinkClient::connect(path).unwrap());
        kill_process(Pid::from_child(&child), *signal).unwrap();
    }
    let status = eventually("the end of the fabric after a signal", || child.try_wait().unwrap());
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    (status.code(), rest)
}

#[test]
fn signals_end_it_cleanly_and_a_killed_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fabric");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        // Under nohup the test itself ignores HUP, and its children would inherit that.
        let mut fresh = Command::new("env");
        fresh.args(["--default-signal=HUP,INT", env!("CARGO_BIN_EXE_telegraphos-fabric")]);
        let (code, log) = signalled(fresh, &path, &[signal]);
        assert_eq!(code, Some(0), "{log}");
        assert!(!path.exists());
    }
    assert_eq!(signalled(command(), &path, &[Signal::KILL]).0, None);
    assert!(path.exists(), "a killed process leaves its socket");
    assert_eq!(signalled(command(), &path, &[Signal::TERM]).0, Some(0));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn in_the_background_of_a_script_and_under_nohup_it_can_still_be_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' INT HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_telegraphos-fabric")]);
    let (code, log) = signalled(shell, &dir.path().join("fabric"), &[Signal::HUP, Signal::HUP, Signal::INT]);
    assert_eq!(code, Some(0), "{log}");
}

#[test]
fn wrong_usage_is_2_and_names_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fabric.toml");
    std::fs::write(&file, "listen = \"x\"\nnode = 4\n").unwrap();
    let file = file.to_str().unwrap();
    for (args, parts) in [
        (&[][..], ["--listen", "missing"]),
        (&["--nodes", "9"], ["--listen", "missing"]),
        (&["--listen", "x", "--nodes", "5000"], ["--nodes is 5000", "1 to 4096"]),
        (&["--listen", "x", "--nodes", "many"], ["many", "--nodes"]),
        (&["--listen", "x", "--speed", "9"], ["--speed", "Usage"]),
        (&["--config", file], ["fabric.toml", "`node`"]),
        (&["--config", "/does/not/exist.toml"], ["/does/not/exist.toml", "No such file"]),
    ] {
        let (code, out, err) = run(args);
        let text = out + &err;
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(parts.iter().all(|p| text.contains(p)), "{args:?}: {text}");
    }
}

#[test]
fn failure_to_listen_is_1_and_help_is_0() {
    let (code, _, text) = run(&["--listen", "/does/not/exist/fabric"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("/does/not/exist does not exist"), "{text}");
    let (code, text, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("Examples:") && text.contains("Exit codes"), "{text}");
}
