// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs in C in guests. Those that are linked with our libraries are static, as all programs of the boot root are.

use crate::help::{LIMIT, Start, ends};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;
use telegraphos_cluster::Cluster;
use telegraphos_images::{Programs, guest_programs, library};

/// Where programs are that guests see in `/mnt/programs`.
pub(crate) fn programs() -> Result<PathBuf> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&directory)?;
    Ok(directory)
}

/// The static library of a crate, as the programs of guests are linked with it.
fn static_library(package: &str) -> Result<PathBuf> {
    // With those programs, so that what both need has the same features: it is there already. With others, each would
    // be built anew after the other.
    let mut cargo = guest_programs(Programs::All)?;
    cargo.args(["--lib", "--package", package]);
    let built = library(&ends(&mut cargo, 0)?.out, package, ".a");
    built.with_context(|| format!("cargo has not built the static library of {package}"))
}

/// The compiler, for a file of `guest-driver`.
fn gcc(source: &str) -> Command {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-s"]);
    gcc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-driver").join(source));
    gcc
}

/// Compiles an ordinary program, into which something can be preloaded; its name in guests.
pub(crate) fn ordinary(source: &str, name: &str) -> Result<String> {
    ends(gcc(source).arg("-O2").arg("-o").arg(programs()?.join(name)), 0)?;
    Ok(format!("/mnt/programs/{name}"))
}

/// Compiles a program with the messages of C, which guests run.
fn with_messages(source: &str, name: &str) -> Result<String> {
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-driver");
    let mut gcc = gcc(source);
    gcc.arg("-static").arg("-I").arg(driver.join("lib/include")).arg("-I").arg(driver.join("msg/include"));
    gcc.arg(static_library("telegraphos-msg")?);
    gcc.args(["-Wl,--gc-sections", "-lgcc_eh", "-lpthread", "-lm", "-ldl", "-o"]);
    ends(gcc.arg(programs()?.join(name)), 0)?;
    Ok(format!("/mnt/programs/{name}"))
}

/// `guest-driver/msg/tests/wrong.c`: what is not mapped, or open already, is refused, and nothing is lost.
fn messages_bad_input(cluster: &Cluster) -> Result<()> {
    let said = cluster.node(0).argv(&[with_messages("msg/tests/wrong.c", "wrong")?]).limit(LIMIT).check()?;
    said.lines().for_each(|line| println!("  {line}"));
    ensure!(said.ends_with("nothing was lost\n"), "{said}");
    Ok(())
}

/// `guest-driver/msg/examples/sum.c`: one process adds up numbers of another node's, which come in a short message and
/// in a long one; the program checks each sum.
pub(crate) fn messages_example(cluster: &Cluster) -> Result<()> {
    let (a, b) = (cluster.node(0), cluster.node(1));
    let program = with_messages("msg/examples/sum.c", "sum")?;
    let program = program.as_str();
    // 8 bytes; as many as go to a slot, and 8 more; 2 MiB, which a user may lock beside the inboxes.
    let questions = ["1", "512", "513", "262144"];
    let sums = ["1", "131328", "131841", "34359869440"];
    let mut server = b.argv(&[program, "serve", "sums", "4"]).until("serving")?;
    for (numbers, sum) in questions.into_iter().zip(sums) {
        let said = a.argv(&[program, "ask", "1", "sums", numbers]).limit(LIMIT).check()?;
        ensure!(said.trim() == sum, "the sum of 1 to {numbers} is {said:?}: expected {sum}");
        let line = server.wait_for_line(LIMIT, |_| true)?;
        ensure!(line == format!("{numbers} numbers from node 0: {sum}"), "{line:?}");
        println!("  {line}");
    }
    let output = server.check(LIMIT)?;
    ensure!(output.stderr.is_empty(), "{}", output.stderr);
    // Whom it does not find, it names.
    let output = a.argv(&[program, "ask", "1", "absent", "1"]).limit(LIMIT).run()?;
    let named = output.stderr.contains("no process of node 1 has the name \"absent\"");
    ensure!(output.status.code() == 3 && named, "{}: {}", output.status, output.stderr);
    messages_bad_input(cluster)
}
