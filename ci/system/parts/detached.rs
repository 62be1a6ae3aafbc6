// SPDX-License-Identifier: MIT OR Apache-2.0
//! `telegraphos up -d`, and all that is done to a cluster which runs so.

use crate::command;
use crate::help::{Said, ended, ends, signal, within};
use crate::leftovers::{nothing_left, processes_of};
use crate::page;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use telegraphos_testkit::Daemon;

/// The cluster that runs beside the first one.
const BESIDE: [&str; 2] = ["--cluster", "beside"];

/// Clusters with private directories in this one. A test that fails must not leave them.
struct Clusters<'a>(&'a Path);

impl Drop for Clusters<'_> {
    fn drop(&mut self) {
        for options in [&[][..], &BESIDE] {
            // Fails where it has ended, as it should.
            let _ = self.command(&[&["down"], options].concat()).output();
        }
    }
}

impl Clusters<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(&["--quiet", args[0], "--run-dir"]);
        command.arg(self.0).args(&args[1..]).stdin(Stdio::null());
        command
    }

    /// Its output, if it ends with this code.
    fn run(&self, args: &[&str], code: i32) -> Result<String> {
        Ok(ends(&mut self.command(args), code)?.out)
    }

    fn refused(&self, args: &[&str], code: i32, words: &str) -> Result<()> {
        crate::help::refused(self.command(args), code, &[words])
    }
}

pub(crate) fn serves_its_commands_until_down() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let clusters = Clusters(dir.path());
    let lock = tempfile::NamedTempFile::new()?;
    rustix::io::fcntl_setfd(lock.as_file(), rustix::io::FdFlags::empty())?;
    let text = clusters.run(&["up", "-d", "--nodes", "2", "--tgd"], 0)?;
    rustix::io::fcntl_setfd(lock.as_file(), rustix::io::FdFlags::CLOEXEC)?;
    ensure!(text.contains("Cluster default is up: 2 nodes."), "{text}");
    let text = clusters.run(&["status"], 0)?;
    for words in ["cluster default: up for", "node 0: Linux 6.12", "node 1: Linux 6.12", "telegraphos top --control"] {
        ensure!(text.contains(words), "{words:?} is not in the status:\n{text}");
    }
    holds_nothing_open(&text, lock.path())?;
    clusters.refused(&["up", "-d"], 2, "a cluster named default runs already")?;
    commands(&clusters)?;
    page::holds(&["all", "small"], |user, script| {
        clusters.run(&["exec", "0", "--user", user, "--", "sh", "-c", script], 0)
    })?;
    one_system(&clusters)?;
    interrupted(&clusters)?;
    unread(&clusters)?;
    copies(&clusters, dir.path())?;
    let text = clusters.run(&["logs"], 0)?;
    for node in ["[0] ", "[1] "] {
        ensure!(text.lines().any(|line| line.starts_with(node) && line.len() > 4), "nothing of {node} in:\n{text}");
    }
    restarted(&clusters)?;
    killed_beside(&clusters)?;
    // The other's end is nothing to this one.
    clusters.run(&["exec", "1", "--", "true"], 0)?;
    clusters.run(&["down"], 0)?;
    nothing_left(dir.path())
}

/// A file that was open where the cluster was started, such as a lock, is not open in the cluster's process.
fn holds_nothing_open(status: &str, file: &Path) -> Result<()> {
    let first = status.lines().next().unwrap_or_default();
    let pid = first.rsplit("process ").next().context("no process")?;
    let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("{first:?}"))?.collect();
    ensure!(!open.is_empty(), "process {pid} has no file open");
    for entry in open {
        ensure!(fs::read_link(entry?.path())? != file, "process {pid} has inherited {}", file.display());
    }
    Ok(())
}

/// The daemons that `--tgd` has started, and starts again, know each other and run tasks.
fn one_system(clusters: &Clusters<'_>) -> Result<()> {
    let spawned = || {
        let text = clusters.run(&["exec", "0", "--", "tg-spawn", "-N", "1", "--", "sh", "-c", "hostname; id -u"], 0)?;
        ensure!(text == "node1\n1000\n", "{text:?}");
        Ok(())
    };
    within(spawned)?;
    let kill = "kill $(grep -lx tgd /proc/[0-9]*/comm | cut -d/ -f3)";
    clusters.run(&["exec", "1", "--user", "root", "--", "sh", "-c", kill], 0)?;
    within(spawned)
}

/// A guest that restarts in order is no accident, though its kernel says so behind the prompt of its shell.
fn restarted(clusters: &Clusters<'_>) -> Result<()> {
    // It ends before it can be followed to its end.
    clusters.command(&["exec", "0", "--user", "root", "--", "reboot", "-f"]).output()?;
    within(|| {
        let text = clusters.run(&["status"], 0)?;
        ensure!(text.contains("(2 boots)"), "{text}");
        Ok(())
    })
}

/// Exit code, output, errors and input of commands.
fn commands(clusters: &Clusters<'_>) -> Result<()> {
    let args = ["exec", "node1", "--", "sh", "-c", "cat; hostname; echo err >&2; exit 7"];
    let mut child =
        clusters.command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // More than any window on the way.
    let input = "0123456789abcde\n".repeat(6000);
    child.stdin.take().context("no stdin")?.write_all(input.as_bytes())?;
    let Said { out, err } = ended(child.wait_with_output()?, 7)?;
    ensure!(out == format!("{input}node1\n"), "{} bytes came back of {}: {out}", out.len(), input.len());
    ensure!(err == "err\n", "its errors are {err:?}");
    ensure!(clusters.run(&["exec", "0", "--user", "root", "--", "id", "-u"], 0)? == "0\n", "it is not root");
    clusters.run(&["exec", "0", "--", "sh", "-c", "kill -9 $$"], 137)?;
    // More arguments than one message to a guest has bytes, and one that is no text.
    let words = vec!["a word"; 20_000];
    let said = clusters.run(&[&["exec", "0", "--", "sh", "-c", "echo $#", "sh"], &words[..]].concat(), 0)?;
    ensure!(said == "20000\n", "of 20000 arguments the command has {said:?}");
    let mut odd = clusters.command(&["exec", "0", "--", "printf", "%s"]);
    let said = odd.arg(OsStr::from_bytes(b"\xff\xfe")).output()?;
    ensure!(said.status.success() && said.stdout == b"\xff\xfe", "of \\xff\\xfe comes {said:?}");
    // What closes its input early, as `head`, ends it as SIGPIPE does.
    let mut endless = clusters.command(&["exec", "0", "--", "yes"]).stdout(Stdio::piped()).spawn()?;
    drop(endless.stdout.take());
    let status = endless.wait()?;
    ensure!(status.code() == Some(141), "its output is closed, and it ends with {status}: expected 141");
    clusters.refused(&["exec", "5", "--", "true"], 125, "there is no node \"5\"; expected a number from 0 to 1")?;
    // What is left in the background continues, though what it writes is not read.
    let script = "(while :; do echo tick; echo >>/tmp/ticks; sleep .2; done) & echo started";
    let said = clusters.run(&["exec", "0", "--", "sh", "-c", script], 0)?;
    ensure!(said.lines().any(|line| line == "started"), "the command says {said:?}");
    let more = "before=$(wc -l </tmp/ticks); i=0; until [ $(wc -l </tmp/ticks) -gt $((before + 3)) ]; do \
                i=$((i + 1)); [ $i -lt 300 ] || exit 1; sleep .1; done";
    clusters.run(&["exec", "0", "--", "sh", "-c", more], 0)?;
    // File systems of the kernel, and names that shells take for granted.
    let script = "set -e; [ -e /sys/kernel/tracing/trace ]; [ -e /sys/kernel/debug/tracing ]; \
                  [ -e /sys/fs/cgroup/cgroup.procs ]; grep -q ' /sys/fs/bpf bpf ' /proc/mounts; echo a >/dev/stderr; \
                  [ -e /dev/fd/0 ]; grep -q modprobe /proc/sys/kernel/modprobe; echo a >/dev/stdout";
    ensure!(
        clusters.run(&["exec", "0", "--user", "root", "--", "sh", "-c", script], 0)? == "a\n",
        "no standard output"
    );
    // Files end before memory does, and a process before the agent.
    let script = "for dir in /tmp /dev/shm /run /root; do dd if=/dev/zero of=$dir/full bs=1M 2>/dev/null && exit 1; done; \
                  for dir in /tmp /dev/shm /run /root; do [ -s $dir/full ] && rm $dir/full || exit 2; done; echo full";
    ensure!(
        clusters.run(&["exec", "0", "--user", "root", "--", "sh", "-c", script], 0)? == "full\n",
        "no end of files"
    );
    clusters.run(&["exec", "0", "--", "dd", "if=/dev/zero", "of=/dev/null", "bs=205M", "count=1"], 137)?;
    clusters.run(&["exec", "0", "--", "true"], 0)?;
    clusters.refused(&["exec", "0", "--", "/etc/passwd"], 126, "/etc/passwd")?;
    clusters.refused(&["exec", "0", "--", "/no/program"], 127, "/no/program")
}

/// What runs in node 0 under this name.
fn runs(clusters: &Clusters<'_>, name: &str) -> Result<bool> {
    let script = format!("pidof {name} >/dev/null; echo $?");
    Ok(clusters.run(&["exec", "0", "--", "sh", "-c", &script], 0)?.trim() == "0")
}

fn gone(clusters: &Clusters<'_>, name: &str) -> Result<()> {
    within(|| {
        ensure!(!runs(clusters, name)?, "{name} still runs in the guest");
        Ok(())
    })
}

/// Ctrl-C ends the command in the guest.
fn interrupted(clusters: &Clusters<'_>) -> Result<()> {
    let args = ["exec", "0", "--", "sh", "-c", "echo begun; exec sleep 1000"];
    let mut child = Daemon::start(clusters.command(&args).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
    ensure!(line == "begun\n" && runs(clusters, "sleep")?, "it has not begun: {line:?}");
    signal(child.id(), "INT")?;
    let code = crate::leftovers::end(&mut child)?;
    ensure!(code == Some(130), "interrupted it ended with {code:?}: expected 130");
    gone(clusters, "sleep")
}

/// A client that does not read holds up nothing else, and its command ends with it.
fn unread(clusters: &Clusters<'_>) -> Result<()> {
    let client = Daemon::start(clusters.command(&["exec", "0", "--", "cat", "/dev/zero"]).stdout(Stdio::piped()));
    // Its command is stopped at some MiB.
    within(|| {
        let state = clusters.run(&["exec", "0", "--", "sh", "-c", "cut -d' ' -f3 /proc/$(pidof cat)/stat"], 0)?;
        ensure!(state.trim() == "T", "it is not stopped, but {state:?}");
        Ok(())
    })?;
    drop(client);
    gone(clusters, "cat")
}

/// A file with every byte, which takes minutes over a serial line, goes into a guest and comes back, with its mode.
fn copies(clusters: &Clusters<'_>, dir: &Path) -> Result<()> {
    let files = tempfile::tempdir()?;
    let (here, back) = (files.path().join("here"), files.path().join("back"));
    let bytes: Vec<u8> = (0..24_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(&here, &bytes)?;
    fs::set_permissions(&here, fs::Permissions::from_mode(0o640))?;
    let (here, back) = (here.display().to_string(), back.display().to_string());
    clusters.run(&["cp", &here, "1:/tmp/"], 0)?;
    clusters.run(&["cp", "node1:/tmp/here", &back], 0)?;
    ensure!(fs::read(&back)? == bytes, "what came back is not what was sent");
    let mode = fs::metadata(&back)?.permissions().mode() & 0o777;
    ensure!(mode == 0o640, "its mode is {mode:o}: expected 640");
    clusters.refused(&["cp", "1:/tmp", &back], 1, "is a directory")?;
    clusters.refused(&["cp", "1:/tmp/none", &back], 1, "/tmp/none")?;
    clusters.refused(&["cp", &here, "1:/dev/x"], 1, "--user root")?;
    ensure!(fs::read(&back)? == bytes, "a copy that failed has changed the file in its place");
    trees(clusters, files.path())?;
    ensure!(!processes_of(dir).is_empty(), "the cluster has ended");
    Ok(())
}

/// A directory with a link, a program and an empty directory goes into a guest and comes back.
fn trees(clusters: &Clusters<'_>, dir: &Path) -> Result<()> {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/empty"))?;
    fs::write(tree.join("sub/program"), "#!/bin/sh\necho runs\n")?;
    fs::set_permissions(tree.join("sub/program"), fs::Permissions::from_mode(0o750))?;
    std::os::unix::fs::symlink("sub/program", tree.join("link"))?;
    let here = tree.display().to_string();
    clusters.refused(&["cp", &here, "1:/tmp/"], 2, "give -r")?;
    clusters.run(&["cp", "-r", &here, "1:/tmp/"], 0)?;
    clusters.run(&["cp", "-r", &here, "1:/tmp/other"], 0)?;
    let script = "/tmp/tree/link; cd /tmp/other; find . | sort";
    let text = clusters.run(&["exec", "1", "--", "sh", "-c", script], 0)?;
    ensure!(text == "runs\n.\n./link\n./sub\n./sub/empty\n./sub/program\n", "the guest has {text:?}");
    let back = dir.join("trees");
    let there = back.display().to_string();
    clusters.run(&["cp", "-r", "node1:/tmp/tree", &there], 0)?;
    let mode = fs::metadata(back.join("sub/program"))?.permissions().mode() & 0o777;
    ensure!(mode == 0o750 && fs::read_link(back.join("link"))? == Path::new("sub/program"), "its mode is {mode:o}");
    ensure!(back.join("sub/empty").is_dir(), "an empty directory was lost");
    // Into one that is there.
    clusters.run(&["cp", "-r", "1:/tmp/other", &there], 0)?;
    ensure!(fs::read_to_string(back.join("other/link"))?.contains("runs"), "the second is not in the first");
    // A link that leads outside is left out, by name.
    clusters.run(&["exec", "1", "--", "ln", "-s", "/etc/passwd", "/tmp/other/passwd"], 0)?;
    let out = dir.join("out");
    clusters.refused(&["cp", "-r", "1:/tmp/other", &out.display().to_string()], 1, "absolute")?;
    let left_out = fs::symlink_metadata(out.join("passwd")).is_err();
    ensure!(left_out && fs::read_to_string(out.join("link"))?.contains("runs"), "the rest is not there");
    let before = fs::read_dir(dir)?.count();
    clusters.refused(&["cp", "-r", "1:/tmp/none", &dir.join("new").display().to_string()], 1, "/tmp/none")?;
    ensure!(fs::read_dir(dir)?.count() == before, "a copy that failed has left something");
    Ok(())
}

/// A second cluster, of which QEMU is killed: it ends by itself, and says why until it is removed.
fn killed_beside(clusters: &Clusters<'_>) -> Result<()> {
    let with = |args: &[&'static str]| -> Vec<&'static str> { [args, &BESIDE].concat() };
    clusters.run(&with(&["up", "-d", "--nodes", "1"]), 0)?;
    let all = processes_of(clusters.0);
    let is_it = |line: &str| line.contains("up.beside") && line.contains("-machine");
    let (pid, _) = all.iter().find(|(_, line)| is_it(line)).with_context(|| format!("no QEMU: {all:?}"))?;
    signal(*pid, "KILL")?;
    within(|| {
        let said = clusters.command(&with(&["status"])).output()?.stderr;
        ensure!(String::from_utf8_lossy(&said).contains("has ended"), "it still runs");
        Ok(())
    })?;
    within(|| {
        let left: Vec<_> =
            processes_of(clusters.0).into_iter().filter(|(_, line)| line.contains("up.beside")).collect();
        ensure!(left.is_empty(), "still run: {left:?}");
        Ok(())
    })?;
    clusters.refused(&with(&["status"]), 3, "cluster beside has ended: QEMU of node 0 ended (signal: 9")?;
    ensure!(!clusters.run(&with(&["logs", "0"]), 0)?.is_empty(), "the console's log is gone");
    clusters.run(&with(&["down"]), 0)?;
    clusters.refused(&with(&["status"]), 3, "no cluster beside runs")
}
