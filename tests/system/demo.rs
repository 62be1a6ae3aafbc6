// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demonstration works, can fail, and its packets can be read.

use crate::command;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use telegraphos_images::{Progress, Store};
use telegraphos_testkit::Scale;

/// Frames of the demonstration that are dissected in CI.
const SOME: u64 = 40_000;

pub(crate) fn shows_its_table(scale: Scale) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let capture = directory.path().join("demo.pcapng");
    let output = command(&["--quiet", "demo", "--fabric", &format!("capture={}", capture.display())]).output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(0), "it ended with {}:\n{out}{err}", output.status);
    for word in ["store, 64 bit, long run", "100000", "load, 8 bit", "0 -> 1", "1 -> 0", "QEMU", "kernel 6.12"] {
        ensure!(out.contains(word), "{word:?} is not in its output:\n{out}");
    }
    dissected(&capture, scale)
}

/// No frame is malformed, and every operation has a name.
fn dissected(capture: &Path, scale: Scale) -> Result<()> {
    let tshark = Store::open(None, Progress::Plain)?.tshark()?;
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fabric/dissector/telegraphos.lua");
    let mut command = tshark.command();
    command.arg("-X").arg(format!("lua_script:{}", script.display())).arg("-r").arg(capture).args(["-T", "fields"]);
    for field in ["_ws.col.protocol", "telegraphos.operation_name", "_ws.expert.severity", "_ws.col.info"] {
        command.args(["-e", field]);
    }
    if scale != Scale::Full {
        command.args(["-c", &SOME.to_string()]);
    }
    let output = command.output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "tshark ended with {}:\n{err}", output.status);
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

pub(crate) fn finds_an_injected_corruption() -> Result<()> {
    let output = command(&["--quiet", "demo", "--inject-corruption"]).output()?;
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "it ended with {}: expected 1\n{err}", output.status);
    let line = err.lines().find(|l| l.contains("MISMATCH")).with_context(|| format!("no mismatch is named:\n{err}"))?;
    for word in ["node=", "offset=0x", "expected=0x", "found=0x"] {
        ensure!(line.contains(word), "{word:?} is not in {line:?}");
    }
    Ok(())
}
