// SPDX-License-Identifier: MIT OR Apache-2.0
//! Nothing is left behind, however the command ends.

use crate::command;
use crate::help::{LIMIT, signal, within};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use telegraphos_testkit::Daemon;

pub(crate) fn interrupt_at_any_time_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // While QEMU is looked for; while HIBs and QEMUs start; while guests boot.
    for delay in [100, 700, 2000] {
        let mut child = up(dir.path());
        std::thread::sleep(Duration::from_millis(delay));
        signal(child.id(), "INT")?;
        let code = end(&mut child)?;
        ensure!(code == Some(130), "interrupted after {delay} ms it ended with {code:?}: expected 130");
        nothing_left(dir.path()).with_context(|| format!("interrupted after {delay} ms"))?;
    }
    Ok(())
}

pub(crate) fn an_interrupted_measurement_leaves_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // While boards start; while they are measured.
    for processes in [5, 18] {
        let mut child = start(&["--quiet", "bench", "--replicas", "--rounds", "100000", "--run-dir"], dir.path());
        wait_for_processes(&mut child, dir.path(), processes, Duration::from_secs(600))?;
        signal(child.id(), "INT")?;
        let code = end(&mut child)?;
        ensure!(code == Some(130), "interrupted with {processes} processes it ended with {code:?}: expected 130");
        nothing_left(dir.path()).with_context(|| format!("interrupted with {processes} processes"))?;
    }
    Ok(())
}

pub(crate) fn even_a_killed_harness_takes_its_children_along() -> Result<()> {
    // The host process, its guard and two QEMUs; or the fabric, two HIBs and two QEMUs at least.
    killed("one", 4)?;
    killed("each", 5)
}

/// Kills a harness when its cluster, divided in this way, has so many processes.
fn killed(processes: &str, count: usize) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut child = start(&["--quiet", "up", "--nodes", "2", "--processes", processes, "--run-dir"], dir.path());
    wait_for_processes(&mut child, dir.path(), count, LIMIT)?;
    signal(child.id(), "KILL")?;
    end(&mut child)?;
    none_runs(dir.path())?;
    // The directory stays; the next start removes it.
    ensure!(fs::read_dir(dir.path())?.count() == 1, "the killed harness's directory was expected");
    let mut next = up(dir.path());
    wait_for_processes(&mut next, dir.path(), 1, LIMIT).context("the next one")?;
    ensure!(fs::read_dir(dir.path())?.count() == 1, "the next start did not remove the killed harness's directory");
    signal(next.id(), "INT")?;
    end(&mut next)?;
    nothing_left(dir.path())
}

/// Waits until a command's cluster in this directory has so many processes.
fn wait_for_processes(child: &mut Daemon, dir: &Path, count: usize, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    while processes_of(dir).len() < count {
        let late = format!("{count} processes did not start in {limit:?}: {:?}", processes_of(dir));
        ensure!(begun.elapsed() < limit, late);
        ensure!(child.try_wait()?.is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn up(dir: &Path) -> Daemon {
    start(&["--quiet", "up", "--nodes", "2", "--run-dir"], dir)
}

/// Starts a command. A test that fails does not leave it: it would keep the lock of all clusters.
fn start(arguments: &[&str], dir: &Path) -> Daemon {
    let mut command = command(arguments);
    Daemon::start(command.arg(dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

pub(crate) fn end(child: &mut Daemon) -> Result<Option<i32>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        if begun.elapsed() > LIMIT {
            anyhow::bail!("it did not end within {LIMIT:?} of the signal");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn nothing_left(dir: &Path) -> Result<()> {
    none_runs(dir)?;
    let files: Vec<_> = fs::read_dir(dir)?.filter_map(|e| Some(e.ok()?.path())).collect();
    ensure!(files.is_empty(), "still there: {files:?}");
    Ok(())
}

/// No process of a cluster in that directory runs. The guard of a board's process, for which the command does not wait,
/// ends by itself once that process has.
pub(crate) fn none_runs(dir: &Path) -> Result<()> {
    within(|| {
        let processes = processes_of(dir);
        ensure!(processes.is_empty(), "still run: {processes:?}");
        Ok(())
    })
}

/// Processes a cluster in that directory has started: all of them have a socket of it on their command line, and the
/// harness itself has the directory only.
pub(crate) fn processes_of(dir: &Path) -> Vec<(u32, String)> {
    let inside = format!("{}/", dir.display());
    let commands = fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    commands.filter(|(_, line)| line.contains(&inside)).collect()
}
