// SPDX-License-Identifier: MIT OR Apache-2.0
//! The demonstration can fail.

use crate::command;
use anyhow::{Context, Result, ensure};

pub(crate) fn shows_its_table() -> Result<()> {
    let output = command(&["--quiet", "demo"]).output()?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.code() == Some(0), "it ended with {}:\n{out}{err}", output.status);
    for word in ["store, 64 bit, long run", "100000", "load, 8 bit", "0 -> 1", "1 -> 0", "QEMU", "kernel 6.12"] {
        ensure!(out.contains(word), "{word:?} is not in its output:\n{out}");
    }
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
