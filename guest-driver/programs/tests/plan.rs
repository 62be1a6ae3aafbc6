// SPDX-License-Identifier: MIT OR Apache-2.0
//! The self test's plan is a committed file: a test that disappears shows in review, and here.

use std::process::Command;

#[test]
fn committed_plan_is_the_programs() {
    let out = Command::new(env!("CARGO_BIN_EXE_tg-selftest")).arg("--list").output().expect("tg-selftest --list");
    assert!(out.status.success());
    let printed = String::from_utf8(out.stdout).expect("names are text");
    let committed = include_str!("../plan.txt");
    assert!(
        printed == committed,
        "guest-driver/programs/plan.txt is stale: run\n  cargo run -p telegraphos-guest-tests --bin tg-selftest -- --list > \
         guest-driver/programs/plan.txt"
    );
    let mut names: Vec<_> = printed.lines().collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), printed.lines().count(), "a name appears twice");
}

/// What every program does without a board: help, usage errors, and a message that says what is missing.
#[test]
fn programs_explain_themselves() {
    let programs = [
        (env!("CARGO_BIN_EXE_tg-selftest"), &[][..]),
        (env!("CARGO_BIN_EXE_tg-demo"), &[]),
        (env!("CARGO_BIN_EXE_tg-export"), &["name", "4096"]),
        (env!("CARGO_BIN_EXE_tg-store"), &["1", "name", "0", "1"]),
        (env!("CARGO_BIN_EXE_tg-load"), &["1", "name", "0"]),
        (env!("CARGO_BIN_EXE_tg-flood"), &["1", "name"]),
        (env!("CARGO_BIN_EXE_tg-watch"), &["name"]),
        (env!("CARGO_BIN_EXE_tg-bench"), &[]),
        (env!("CARGO_BIN_EXE_tg-notify"), &[]),
        (env!("CARGO_BIN_EXE_tg-queue"), &["receive", "name"]),
        (env!("CARGO_BIN_EXE_tg-replica"), &["here", "name"]),
        (env!("CARGO_BIN_EXE_tg-chaos"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-faults"), &[]),
        (env!("CARGO_BIN_EXE_tg-hostile"), &[]),
        (env!("CARGO_BIN_EXE_tg-traffic"), &["1", "copies", "/tmp/copies"]),
        (env!("CARGO_BIN_EXE_tg-race"), &[]),
        (env!("CARGO_BIN_EXE_tg-pingpong"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-work"), &["2"]),
        (env!("CARGO_BIN_EXE_tg-lock"), &["2"]),
        (env!("CARGO_BIN_EXE_tg-copy"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-register"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-farm"), &["0"]),
        (env!("CARGO_BIN_EXE_tg-whiteboard"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-hotpage"), &["2"]),
        (env!("CARGO_BIN_EXE_tg-broadcast"), &["1"]),
        (env!("CARGO_BIN_EXE_tg-mailbox"), &["1"]),
    ];
    for (program, arguments) in programs {
        let run = |arguments: &[&str]| {
            let out = Command::new(program).args(arguments).output().expect(program);
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            (out.status.code(), text(&out.stdout), text(&out.stderr))
        };
        let (code, stdout, stderr) = run(&["--help"]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{program}");
        for part in ["Usage:", "Exit codes:", "Example"] {
            assert!(stdout.contains(part), "{program} --help does not say {part}");
        }
        let (code, _, stderr) = run(&["--no-such-option"]);
        assert_eq!(code, Some(2), "{program}: {stderr}");
        assert!(stderr.contains("no-such-option") && stderr.contains("--help"), "{program}: {stderr}");
        if !std::path::Path::new("/dev/telegraphos0").exists() {
            let (code, _, stderr) = run(arguments);
            assert_eq!(code, Some(3), "{program} {arguments:?}: {stderr}");
            assert!(stderr.contains("/dev/telegraphos0"), "{program}: {stderr}");
        }
    }
}
