// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands for detached clusters where there is none to use: what they say, and what they remove.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::{ran, telegraphos};

/// Exit code, output and errors of the command with clusters in this directory.
fn run(parent: &Path, args: &[&str]) -> (Option<i32>, String, String) {
    ran(telegraphos().args(&args[..1]).arg("--run-dir").arg(parent).args(&args[1..]))
}

/// A directory of a cluster whose process was killed, with its socket.
fn killed(parent: &Path, name: &str) -> PathBuf {
    let uid = rustix::process::getuid().as_raw();
    let dir = parent.join(format!("telegraphos-{uid}-up.{name}"));
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("owner"), "").unwrap();
    drop(UnixListener::bind(dir.join("cluster.control")).unwrap());
    dir
}

const USES: [&[&str]; 5] =
    [&["status"], &["exec", "0", "--", "true"], &["logs"], &["cp", "/dev/null", "0:/tmp/x"], &["down"]];

#[test]
fn without_a_cluster_each_says_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    for args in USES {
        let (code, _, errors) = run(dir.path(), args);
        assert_eq!(code, Some(if args[0] == "exec" { 125 } else { 3 }), "{args:?}: {errors}");
        assert!(errors.contains("no cluster default runs: start it with `telegraphos up -d`"), "{errors}");
    }
    killed(dir.path(), "lab");
    let (_, _, errors) = run(dir.path(), &["status"]);
    assert!(errors.contains("; there is --cluster lab"), "{errors}");
}

#[test]
fn a_killed_cluster_is_recognised_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let left = killed(dir.path(), "lab");
    for args in [&["status", "--cluster", "lab"][..], &["exec", "--cluster", "lab", "0", "--", "true"]] {
        let (code, _, errors) = run(dir.path(), args);
        assert_eq!(code, Some(if args[0] == "exec" { 125 } else { 3 }), "{errors}");
        assert!(errors.contains("cluster lab was killed") && errors.contains("down --cluster lab"), "{errors}");
    }
    let (code, output, errors) = run(dir.path(), &["down", "--cluster", "lab"]);
    assert_eq!((code, errors.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains("had ended") && !left.exists(), "{output}");
}

#[test]
fn what_an_ended_cluster_says_is_shown_with_its_code() {
    let dir = tempfile::tempdir().unwrap();
    let left = killed(dir.path(), "default");
    fs::remove_file(left.join("owner")).unwrap();
    fs::write(left.join("ended.json"), r#"{"code":254,"why":"node 1: the guest has hung"}"#).unwrap();
    let (code, _, errors) = run(dir.path(), &["status"]);
    assert_eq!(code, Some(254), "{errors}");
    assert!(errors.contains("cluster default has ended: node 1: the guest has hung"), "{errors}");
    // A record that is none is an error, and `down` removes it regardless.
    fs::write(left.join("ended.json"), "{").unwrap();
    let (code, _, errors) = run(dir.path(), &["status"]);
    assert!(code == Some(3) && errors.contains("ended.json says nothing"), "{errors}");
    let (code, ..) = run(dir.path(), &["down"]);
    assert!(code == Some(0) && !left.exists());
}

#[test]
fn wrong_usage_is_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (&["status", "--cluster", "a/b"][..], "is no name of a cluster"),
        (&["up", "--cluster", "lab"], "--detach"),
        (&["up", "-d", "--keep"], "--log-dir"),
        (&["exec", "0"], "COMMAND"),
        (&["cp", "a", "b"], "expected NODE:PATH"),
        (&["cp", "0:a", "1:b"], "both files are of guests"),
        (&["cp", "/", "0:/tmp"], "is a directory; give -r"),
    ] {
        let (code, _, errors) = run(dir.path(), args);
        let expected = if args[0] == "exec" { 125 } else { 2 };
        assert!(code == Some(expected) && errors.contains(words), "{args:?}: {code:?} {errors}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
