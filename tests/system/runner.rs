// SPDX-License-Identifier: MIT OR Apache-2.0
//! How `run` and `up` end when a command, a kernel or a process of the cluster does not do what it should: exit code,
//! reason, last lines, and nothing left behind.

use crate::command;
use crate::leftovers::{Started, end, nothing_left, processes_of};
use anyhow::{Context, Result, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

/// Runs `run` on one node with these options and this command, expects this exit code, and nothing left behind.
fn run(options: &[&str], argv: &[&str], code: i32) -> Result<Output> {
    let dir = tempfile::tempdir()?;
    let mut command = command(&[&["--quiet", "run", "--nodes", "1"], options].concat());
    let output = command.arg("--run-dir").arg(dir.path()).arg("--").args(argv).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let ended = output.status.code();
    ensure!(ended == Some(code), "it ended with {ended:?}: expected {code}; it said:\n{stdout}{stderr}");
    nothing_left(dir.path())?;
    Ok(output)
}

fn says(output: &Output, words: &[&str]) -> Result<()> {
    let text = String::from_utf8_lossy(&output.stderr);
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in what it said:\n{text}");
    }
    Ok(())
}

pub(crate) fn a_panic_is_254_with_its_stack() -> Result<()> {
    // The output is with the host before the kernel stops: nothing takes it out of a kernel that has.
    let script = "echo before; sleep 1; echo c > /proc/sysrq-trigger; sleep 60";
    let output = run(&["--user", "root"], &["sh", "-c", script], 254)?;
    ensure!(String::from_utf8_lossy(&output.stdout).contains("[0] before"), "the output before it is not there");
    let stack = ["--- the kernel's stack", "sysrq_handle_crash+0x", "--- end of the console"];
    says(&output, &["node 0: the kernel has panicked: sysrq triggered crash"])?;
    says(&output, &stack)
}

pub(crate) fn a_panic_at_boot_is_254_at_once() -> Result<()> {
    // The kernel reads what is behind -append last.
    let begun = Instant::now();
    let output =
        run(&["--qemu-arg", "-append", "--qemu-arg", "console=ttyS0 panic=-1 root=/dev/none"], &["true"], 254)?;
    // It waits for no root, and the command for no limit.
    ensure!(begun.elapsed() < Duration::from_secs(90), "it took {:?}", begun.elapsed());
    says(
        &output,
        &["node 0: the kernel has panicked: VFS: Unable to mount root fs", "mount_root", "end of the console"],
    )
}

pub(crate) fn a_late_command_is_124() -> Result<()> {
    let output = run(&["--timeout", "2"], &["sleep", "1000"], 124)?;
    says(&output, &["node 0: sleep 1000: did not end within 2s"])
}

/// QEMU of one node is killed, then in another cluster the process that has all HIBs.
pub(crate) fn up_ends_with_its_processes() -> Result<()> {
    for (what, is_it) in [("QEMU of node 0", "-machine"), ("the host process", "__host")] {
        let dir = tempfile::tempdir()?;
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let run_dir = dir.path().join("run");
        fs::create_dir(&run_dir)?;
        let mut command = command(&["--quiet", "up", "--nodes", "1", "--run-dir"]);
        command.arg(&run_dir).stdin(Stdio::null()).stdout(File::create(&out)?).stderr(File::create(&err)?);
        let mut up = Started(command.spawn()?);
        wait_until_up(&out, &err, &mut up)?;
        let all = processes_of(&run_dir);
        let (pid, _) = all.iter().find(|(_, line)| line.contains(is_it)).with_context(|| format!("{what}: {all:?}"))?;
        let killed = std::process::Command::new("kill").arg("-9").arg(pid.to_string()).status()?;
        ensure!(killed.success(), "kill says {killed}");
        let code = end(&mut up)?;
        let text = fs::read_to_string(&err)?;
        ensure!(code == Some(3), "without {what} it ended with {code:?}: expected 3; it said:\n{text}");
        for word in [what, "signal: 9", "while the guests run"] {
            ensure!(text.contains(word), "{word:?} is not in what it said:\n{text}");
        }
        nothing_left(&run_dir)?;
    }
    Ok(())
}

fn wait_until_up(out: &Path, err: &Path, up: &mut Started) -> Result<()> {
    let begun = Instant::now();
    while !fs::read_to_string(out)?.contains("Up.") {
        let ended = up.0.try_wait()?;
        ensure!(ended.is_none(), "it ended ({ended:?}) before it was up:\n{}", fs::read_to_string(err)?);
        ensure!(begun.elapsed() < Duration::from_secs(240), "it is not up after 240 s");
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
