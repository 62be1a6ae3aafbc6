// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demonstration works, can fail, and its packets can be read.

use crate::command;
use crate::help::{Said, ends};
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use telegraphos_images::{Progress, Store};
use telegraphos_testkit::Scale;

/// Frames of the demonstration that are dissected in CI.
const SOME: u64 = 40_000;

/// The parts, as their lines begin; each is checked.
const LINES: [&str; 9] = [
    "store, 8 to 64 bit         0 -> 1 ",
    "store, 8 to 64 bit         1 -> 0 ",
    "load, 8 to 64 bit          1 -> 0 ",
    "load, 8 to 64 bit          0 -> 1 ",
    "fetch-and-increment ",
    "enqueue: room for 20 ",
    "store to a replicated page ",
    "node 2 is reset: noticed ",
    "it comes back: stores ",
];

pub(crate) fn shows_its_table(scale: Scale) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (capture, picture) = (at("demo.pcapng"), at("demo.svg"));
    let arguments = ["--quiet", "demo", "--plain", "--picture", &picture, "--fabric", &format!("capture={capture}")];
    let Said { out, err } = ends(&mut command(&arguments), 0)?;
    println!("{out}");
    // One screen.
    ensure!(out.lines().count() <= 24 && out.lines().all(|line| line.len() <= 116), "it does not fit a screen:\n{out}");
    ensure!(!out.contains('\x1b') && err.is_empty(), "more than plain lines:\n{out}{err}");
    for line in LINES {
        let found = out.lines().find(|found| found.starts_with(line));
        ensure!(found.is_some_and(|found| found.contains(" ok ")), "no line begins {line:?} and is ok:\n{out}");
    }
    // What an operation took of the guest: exactly one access.
    let each =
        [("store", "1 store ", 3), ("load", "1 load ", 2), ("fetch", "1 atomic ", 1), ("enqueue", "1 enqueue ", 1)];
    for (line, took, lines) in each {
        let count = out.lines().filter(|found| found.starts_with(line) && found.contains(took)).count();
        ensure!(count == lines, "{count} lines begin {line:?} and have {took:?}: expected {lines}\n{out}");
    }
    for word in ["QEMU", "kernel 6.12", "All 9 checks passed"] {
        ensure!(out.contains(word), "{word:?} is not in its output:\n{out}");
    }
    let svg = std::fs::read_to_string(&picture)?;
    ensure!(svg.starts_with("<svg") && svg.matches("<g ").count() == 6, "the picture has not six panels:\n{svg}");
    dissected(Path::new(&capture), scale)
}

/// No frame is malformed, and every operation has a name.
fn dissected(capture: &Path, scale: Scale) -> Result<()> {
    let tshark = Store::open(None, Progress::Plain)?.tshark()?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fabric/capture/dissector/telegraphos.lua");
    let mut command = tshark.command();
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(capture).args(["-T", "fields"]);
    for field in ["_ws.col.protocol", "telegraphos.operation_name", "_ws.expert.severity", "_ws.col.info"] {
        command.args(["-e", field]);
    }
    if scale != Scale::Full {
        command.args(["-c", &SOME.to_string()]);
    }
    let out = ends(&mut command, 0)?.out;
    let mut named: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, line) in out.lines().enumerate() {
        let mut fields = line.split('\t');
        let [protocol, operation, info] = [fields.next(), fields.next(), fields.nth(1)].map(Option::unwrap_or_default);
        ensure!(protocol == "Telegraphos", "frame {}: {line:?}", number + 1);
        ensure!(!line.to_lowercase().contains("malformed"), "frame {}: {line:?}", number + 1);
        // What is no frame of the wire is a note of the capture.
        ensure!(!operation.is_empty() || !info.is_empty(), "frame {} has no name: {line:?}", number + 1);
        *named.entry(operation).or_default() += 1;
    }
    for operation in ["write", "write-ack", "lookup", "hello", "welcome", "node-up", "credit"] {
        ensure!(named.contains_key(operation), "there is no {operation}: {named:?}");
    }
    println!("# {} frames dissected: {named:?}", out.lines().count());
    Ok(())
}

/// With a deliberate fault for each part, no check passes.
pub(crate) fn finds_an_injected_corruption() -> Result<()> {
    let arguments = ["--quiet", "demo", "--inject-corruption", "--break", "load,atomic,queue,replicas,leave"];
    let Said { out, err } = ends(&mut command(&arguments), 1)?;
    for line in LINES {
        let found = out.lines().find(|found| found.starts_with(line));
        ensure!(
            found.is_some_and(|found| found.contains(" WRONG ")),
            "no line begins {line:?} and is wrong:\n{out}{err}"
        );
    }
    ensure!(out.contains("9 of 9 checks FAILED"), "the verdict is another:\n{out}");
    let line = err.lines().find(|l| l.contains("MISMATCH")).with_context(|| format!("no mismatch is named:\n{err}"))?;
    for word in ["node=", "offset=0x", "expected=0x", "found=0x"] {
        ensure!(line.contains(word), "{word:?} is not in {line:?}");
    }
    Ok(())
}
