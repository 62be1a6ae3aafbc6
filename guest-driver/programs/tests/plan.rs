// SPDX-License-Identifier: MIT OR Apache-2.0
//! The self test's plan is a committed file: a test that disappears shows in review, and here.

#![allow(clippy::expect_used, reason = "helpers of a test fail as it does")]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// What a program does, started by its name as in a guest: exit code, output, errors.
fn run(program: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
    let file = if program == "tg-demo" { env!("CARGO_BIN_EXE_tg-demo") } else { env!("CARGO_BIN_EXE_tg") };
    let out = Command::new(file).arg0(program).args(arguments).output().expect(program);
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (out.status.code(), text(out.stdout), text(out.stderr))
}

#[test]
fn committed_plan_is_the_programs() {
    let (code, printed, _) = run("tg-selftest", &["--list"]);
    assert_eq!(code, Some(0));
    let committed = include_str!("../plan.txt");
    assert!(
        printed == committed,
        "guest-driver/programs/plan.txt is stale: run\n  cargo run -p telegraphos-guest-tests -- selftest --list > \
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
        ("tg-selftest", &[][..]),
        ("tg-demo", &[]),
        ("tg-export", &["name", "4096"]),
        ("tg-store", &["1", "name", "0", "1"]),
        ("tg-load", &["1", "name", "0"]),
        ("tg-flood", &["1", "name"]),
        ("tg-watch", &["name"]),
        ("tg-bench", &[]),
        ("tg-notify", &[]),
        ("tg-queue", &["receive", "name"]),
        ("tg-replica", &["here", "name"]),
        ("tg-chaos", &["1"]),
        ("tg-faults", &[]),
        ("tg-hostile", &[]),
        ("tg-traffic", &["1", "copies", "/tmp/copies"]),
        ("tg-race", &[]),
        ("tg-pingpong", &["1"]),
        ("tg-work", &["2"]),
        ("tg-lock", &["2"]),
        ("tg-copy", &["1"]),
        ("tg-register", &["1"]),
        ("tg-farm", &["0"]),
        ("tg-whiteboard", &["1"]),
        ("tg-hotpage", &["2"]),
        ("tg-broadcast", &["1"]),
        ("tg-mailbox", &["1"]),
    ];
    for (program, arguments) in programs {
        let (code, stdout, stderr) = run(program, &["--help"]);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{program}");
        for part in ["Usage:", "Exit codes:", "Example"] {
            assert!(stdout.contains(part), "{program} --help does not say {part}");
        }
        let (code, _, stderr) = run(program, &["--no-such-option"]);
        assert_eq!(code, Some(2), "{program}: {stderr}");
        assert!(stderr.contains("no-such-option") && stderr.contains("--help"), "{program}: {stderr}");
        if !std::path::Path::new("/dev/telegraphos0").exists() {
            let (code, _, stderr) = run(program, arguments);
            assert_eq!(code, Some(3), "{program} {arguments:?}: {stderr}");
            assert!(stderr.contains("/dev/telegraphos0"), "{program}: {stderr}");
        }
    }
}

#[test]
fn a_program_is_found_by_its_name_or_by_the_first_word() {
    let (code, list, _) = run("/bin/tg", &["--list"]);
    assert_eq!(code, Some(0));
    let names: Vec<&str> = list.lines().collect();
    assert!(names.len() > 30 && names.is_sorted(), "{list}");
    let (_, help, _) = run("tg", &["--help"]);
    for name in names {
        let (code, usage, _) = run(&format!("/bin/{name}"), &["--help"]);
        assert!(code == Some(0) && usage.contains(&format!("Usage: {name}")), "{name}: {usage}");
        assert!(help.contains(&format!("\n  {name} ")), "{help}");
        for word in [name, &name[3..]] {
            assert_eq!(run("tg", &[word, "--help"]), (Some(0), usage.clone(), String::new()), "{word}");
        }
    }
    // The names that it has for itself are those of the program.
    let (code, _, errors) = run("tg", &["work", "x"]);
    assert!(code == Some(2) && errors.starts_with("tg-work: "), "{errors}");
    for arguments in [&[][..], &["none"], &["tg"], &["--none"]] {
        assert_eq!(run("tg", arguments), (Some(2), String::new(), help.clone()), "{arguments:?}");
    }
}
