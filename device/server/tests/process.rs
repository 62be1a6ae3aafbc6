// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `telegraphos-hib` from the user's side: messages, exit codes, sockets, signals, memory and processor
//! time.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::linked::{Switch, joined};
use crate::support::{self, RawClient, assert_healthy};
use rustix::process::{Pid, Signal, kill_process};
use telegraphos_device::vfio::message::command;
use telegraphos_testkit::{Daemon, Ended, eventually};

fn hib(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_telegraphos-hib"));
    command.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn standard(dir: &Path) -> Command {
    let mut command = hib(dir);
    command.args(["--socket", "hib.sock", "--node", "0", "--fabric", "fabric.sock"]);
    command
}

/// The command, once its socket takes connections.
fn start(mut command: Command, socket: &Path) -> Daemon {
    let daemon = Daemon::start(&mut command);
    eventually("the socket", || std::os::unix::net::UnixStream::connect(socket).ok());
    daemon
}

/// A standard one, and the directory of its socket.
fn started() -> (tempfile::TempDir, PathBuf, Daemon) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("hib.sock");
    let running = start(standard(dir.path()), &socket);
    (dir, socket, running)
}

fn signalled(daemon: Daemon, signal: Signal) -> Ended {
    kill_process(Pid::from_child(&daemon), signal).unwrap();
    daemon.finish()
}

/// Runs to its end and returns exit code and standard error.
fn fails(mut command: Command) -> (i32, String) {
    let out = Ended::of(&mut command);
    (out.code().expect("a signal ended it"), out.stderr)
}

#[test]
fn signals_stop_it_cleanly() {
    for signal in [Signal::INT, Signal::TERM] {
        let (_dir, socket, running) = started();
        let meta = std::fs::symlink_metadata(&socket).unwrap();
        assert!(meta.file_type().is_socket());
        assert_eq!(meta.permissions().mode() & 0o777, 0o600);
        let out = signalled(running, signal);
        assert_eq!(out.code(), Some(0), "{signal:?}");
        assert!(!socket.exists());
        let text = out.stdout;
        assert!(text.contains("vfio-user-pci") && text.contains(socket.to_str().unwrap()), "{text}");
        assert!(text.contains("memory-backend-memfd") && text.contains("share=on"), "{text}");
    }
}

#[test]
fn a_live_socket_is_refused_and_a_stale_one_replaced() {
    let (dir, socket, first) = started();
    let (code, text) = fails(standard(dir.path()));
    assert_eq!(code, 1);
    assert!(text.contains("hib.sock") && text.contains("another process"), "{text}");
    assert_healthy(&socket);
    kill_process(Pid::from_child(&first), Signal::KILL).unwrap();
    drop(first);
    assert!(socket.exists(), "left behind");
    let second = start(standard(dir.path()), &socket);
    assert_healthy(&socket);
    assert_eq!(signalled(second, Signal::TERM).code(), Some(0));
}

/// QEMU aborts if its socket is reset, which is what the kernel does to one that is closed with unread messages in it.
#[test]
fn however_it_ends_its_client_is_not_reset() {
    for signal in [Signal::KILL, Signal::TERM] {
        let (_dir, socket, running) = started();
        let mut client = RawClient::new(&socket);
        let guard = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.id()));
        let guard: u32 = guard.unwrap().trim().parse().expect("one child, the guard");
        // Messages that it has no chance to read.
        kill_process(Pid::from_child(&running), Signal::STOP).unwrap();
        for _ in 0..100 {
            client.post(command::REGION_READ, &[0; 16]);
        }
        kill_process(Pid::from_child(&running), signal).unwrap();
        kill_process(Pid::from_child(&running), Signal::CONT).unwrap();
        while client.reply().is_some() {}
        drop(running);
        eventually("the guard's end", || (!Path::new(&format!("/proc/{guard}/fd/0")).exists()).then_some(()));
    }
}

#[test]
fn a_second_client_is_not_reset() {
    let (_dir, socket, running) = started();
    let first = RawClient::new(&socket);
    kill_process(Pid::from_child(&running), Signal::STOP).unwrap();
    let mut second = RawClient::connect(&socket);
    second.post(command::VERSION, &[0; 16]);
    kill_process(Pid::from_child(&running), Signal::CONT).unwrap();
    assert!(second.reply().is_none());
    drop(first);
}

#[test]
fn the_service_manager_hears_when_the_socket_takes_connections() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, manager) = (dir.path().join("hib.sock"), dir.path().join("notify"));
    let notified = UnixDatagram::bind(&manager).unwrap();
    notified.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut command = standard(dir.path());
    command.env("NOTIFY_SOCKET", &manager);
    let running = Daemon::start(&mut command);
    let mut message = [0; 64];
    let n = notified.recv(&mut message).unwrap();
    assert_eq!(message[..n].trim_ascii_end(), b"READY=1");
    assert_healthy(&socket);
    assert_eq!(signalled(running, Signal::TERM).code(), Some(0));
}

#[test]
fn what_is_no_socket_stays() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hib.sock"), "precious").unwrap();
    let (code, text) = fails(standard(dir.path()));
    assert_eq!(code, 1);
    assert!(text.contains("hib.sock") && text.contains("not a socket"), "{text}");
    assert_eq!(std::fs::read(dir.path().join("hib.sock")).unwrap(), b"precious");
}

#[test]
fn an_impossible_socket_path_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let run = |socket: &str| {
        let mut command = hib(dir.path());
        command.args(["--node", "0", "--fabric", "f", "--socket", socket]);
        fails(command)
    };
    let (code, text) = run("missing/hib.sock");
    assert!(code == 1 && text.contains("missing/hib.sock") && text.contains("does not exist"), "{text}");
    let (code, text) = run(&"x".repeat(200));
    assert!(code == 1 && text.contains("107 bytes"), "{text}");
    // Even root may not write here.
    let (code, text) = run("/proc/hib.sock");
    assert!(code == 1 && text.contains("/proc/hib.sock") && text.contains("--socket"), "{text}");
}

#[test]
fn wrong_usage_is_code_2_and_names_the_thing() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let mut command = hib(dir.path());
        command.args(args);
        fails(command)
    };
    let base = ["--socket", "s", "--fabric", "f"];
    for (args, expected) in [
        (vec![], "--socket is missing"),
        (vec!["--node", "64"], "--node is 64"),
        (vec!["--node", "0", "--load-limit-ms", "5000"], "--load-limit-ms is 5000"),
        (vec!["--node", "0", "--pending-writes", "0"], "--pending-writes is 0: expected 1 to 1024"),
        (vec!["--node", "0", "--fanout-by-switch=maybe"], "--fanout-by-switch"),
        (vec!["--node", "x"], "--node"),
        (vec!["--bogus"], "--bogus"),
    ] {
        let all: Vec<_> = if args.is_empty() { vec![] } else { base.iter().copied().chain(args).collect() };
        let (code, text) = run(&all);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(expected), "{expected}: {text}");
    }
    std::fs::write(dir.path().join("c.toml"), "node = 0\nfrabic = 'f'\n").unwrap();
    let (code, text) = run(&["--config", "c.toml"]);
    assert!(code == 2 && text.contains("c.toml") && text.contains("frabic") && text.contains("fabric"), "{text}");
}

#[test]
fn help_shows_examples() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = hib(dir.path());
    command.arg("--help");
    let out = Ended::of(&mut command);
    assert_eq!(out.code(), Some(0));
    let text = out.stdout;
    assert!(text.contains("Examples:") && text.contains("--load-limit-ms"), "{text}");
}

#[test]
fn something_else_at_the_fabrics_socket_is_noticed_and_survived() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("hib.sock");
    let listener = UnixListener::bind(dir.path().join("fabric.sock")).unwrap();
    let running = start(standard(dir.path()), &socket);
    let (mut stream, _) = listener.accept().unwrap();
    std::io::Write::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    // It disconnects and retries.
    let (_again, _) = listener.accept().unwrap();
    assert_healthy(&socket);
    let out = signalled(running, Signal::TERM);
    let text = out.stderr;
    assert!(text.contains("fabric.sock"), "{text}");
}

/// Processor time of a process so far, in clock ticks of 10 ms.
fn ticks(pid: Pid) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// A number that the kernel has about a process.
fn status(pid: Pid, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn it_is_small_and_idle_when_nothing_happens() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("hib.sock");
    let _switch = Switch::start(dir.path());
    let running = start(standard(dir.path()), &socket);
    let mut guest = joined(&socket);
    guest.export("self", 0, 1, support::MEMORY, 3);
    guest.reach(0, 0, "self", 3);
    for n in 0..20_000u64 {
        guest.client.store(4, support::window(0, 0, 8 * (n % 8192)), &n.to_le_bytes());
    }
    guest.quiet();
    // The last check whether the guest pauses is a few milliseconds later.
    std::thread::sleep(Duration::from_millis(50));
    let pid = Pid::from_child(&running);
    let (before, resident) = (ticks(pid), status(pid, "RssAnon:") + status(pid, "RssFile:"));
    println!("resident after 20000 stores: {resident} KiB, processor time {} ms", before * 10);
    assert!(resident < 32 << 10, "{resident} KiB");
    let switches = status(pid, "voluntary_ctxt_switches");
    std::thread::sleep(Duration::from_secs(2));
    let (later, woken) = (ticks(pid), status(pid, "voluntary_ctxt_switches") - switches);
    println!("in 2 idle seconds: {} ms of processor time, woken {woken} times", (later - before) * 10);
    assert_eq!(woken, 0);
    assert_eq!(later, before);
}
