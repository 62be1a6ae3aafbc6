// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent itself on a pseudo terminal: real processes, real pipes, the rules of the conversation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says what is wrong by panicking")]

use rustix::fs::OFlags;
use rustix::pty::OpenptFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use telegraphos_agent::{Decoder, Exit, MAX_DATA, Run, STDIN_WINDOW, Terminal, ToGuest, ToHost, encode, words};
use telegraphos_testkit::Daemon;

struct Agent {
    daemon: Daemon,
    line: File,
    decoder: Decoder,
}

impl Agent {
    fn start() -> Agent {
        let line = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        rustix::pty::grantpt(&line).unwrap();
        rustix::pty::unlockpt(&line).unwrap();
        let name = rustix::pty::ptsname(&line, Vec::new()).unwrap().into_string().unwrap();
        // Held until the agent has it, or reading would fail with "no slave".
        let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, rustix::fs::Mode::empty()).unwrap();
        let daemon = Daemon::start(Command::new(env!("CARGO_BIN_EXE_tg-agent")).arg(&name).stdin(Stdio::null()));
        let mut agent = Agent { daemon, line: line.into(), decoder: Decoder::default() };
        assert!(matches!(agent.receive(), ToHost::Hello { .. }));
        drop(slave);
        agent
    }

    fn say(&mut self, message: &ToGuest) {
        self.line.write_all(&encode(message).unwrap()).unwrap();
    }

    fn receive(&mut self) -> ToHost {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.decoder.next() {
                return message;
            }
            let n = self.line.read(&mut bytes).unwrap();
            assert!(n > 0, "the agent closed the line");
            self.decoder.push(&bytes[..n]);
        }
    }

    fn run(&mut self, id: u32, script: &str) {
        let argv = words(["sh", "-c", script]);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let env = vec![("WORD".into(), "given".into())];
        self.say(&ToGuest::Run(Run { id, uid, gid, argv, env, cwd: Some("/tmp".into()), terminal: None }));
    }

    /// Ends a command that would outlive the test.
    fn kill(&mut self, id: u32) {
        self.say(&ToGuest::Signal { id, signal: 9 });
        let end = ToHost::Exited { id, exit: Exit::Signal(9) };
        while self.receive() != end {}
    }

    /// Everything until all these commands ended: output, error output and end by id.
    fn collect(&mut self, ids: &[u32]) -> BTreeMap<u32, (Vec<u8>, Vec<u8>, Exit)> {
        let mut all: BTreeMap<u32, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
        let mut ended = BTreeMap::new();
        while ended.len() < ids.len() {
            match self.receive() {
                ToHost::Started { id, pid } => {
                    assert!(pid > 0);
                    all.insert(id, Default::default());
                }
                ToHost::Stdout { id, bytes } => all.get_mut(&id).unwrap().0.extend(bytes),
                ToHost::Stderr { id, bytes } => all.get_mut(&id).unwrap().1.extend(bytes),
                ToHost::StdinTaken { .. } => {}
                ToHost::Exited { id, exit } => {
                    let (out, err) = all.remove(&id).unwrap();
                    ended.insert(id, (out, err, exit));
                }
                other => panic!("unexpected {other:?}"),
            }
        }
        ended
    }

    fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.daemon.id())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

#[test]
fn output_codes_directory_and_environment() {
    let mut agent = Agent::start();
    agent.run(7, "echo out $WORD; echo err >&2; pwd; exit 3");
    let got = agent.collect(&[7]);
    assert_eq!(got[&7].0, b"out given\n/tmp\n");
    assert_eq!(got[&7].1, b"err\n");
    assert_eq!(got[&7].2, Exit::Code(3));
    agent.run(7, "kill -9 $$");
    assert_eq!(agent.collect(&[7])[&7].2, Exit::Signal(9));
}

/// Its size, its lines' ends, its controlling terminal; and what is typed is a signal where a terminal makes one of it.
#[test]
fn a_command_has_a_terminal_where_it_is_wanted() {
    let mut agent = Agent::start();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let script = "stty -echo; tty >/dev/tty; echo err >&2; stty size; trap 'stty size' WINCH; trap 'exit 4' INT; \
                  echo ready; while :; do sleep .1; done";
    let terminal = Some(Terminal { rows: 40, columns: 132 });
    agent.say(&ToGuest::Run(Run {
        id: 1,
        uid,
        gid,
        argv: words(["sh", "-c", script]),
        env: vec![],
        cwd: None,
        terminal,
    }));
    let (mut said, mut resized, mut typed) = (String::new(), false, false);
    let exit = loop {
        match agent.receive() {
            ToHost::Started { .. } | ToHost::StdinTaken { .. } => {}
            ToHost::Stdout { id: 1, bytes } => said += std::str::from_utf8(&bytes).unwrap(),
            ToHost::Exited { id: 1, exit } => break exit,
            other => panic!("unexpected {other:?}"),
        }
        if said.contains("ready\r\n") && !resized {
            resized = true;
            agent.say(&ToGuest::Resize { id: 1, terminal: Terminal { rows: 25, columns: 80 } });
        }
        if said.contains("25 80\r\n") && !typed {
            typed = true;
            agent.say(&ToGuest::Stdin { id: 1, bytes: b"\x03".to_vec() });
        }
    };
    let lines: Vec<&str> = said.split("\r\n").collect();
    assert!(lines[0].starts_with("/dev/pts/"), "{lines:?}");
    assert_eq!(lines[1..], ["err", "40 132", "ready", "25 80", ""], "{said:?}");
    assert_eq!(exit, Exit::Code(4));
}

#[test]
fn several_commands_run_at_once_and_ids_are_checked() {
    let mut agent = Agent::start();
    // Each waits for the other: only together can they end.
    let dir = tempfile::tempdir().unwrap();
    let wait = |mine: &str, other: &str| {
        let d = dir.path().display();
        format!(
            "mkfifo {d}/{mine} 2>/dev/null; : >{d}/{mine}.up; while [ ! -e {d}/{other}.up ]; do sleep 0.01; done; echo {mine}"
        )
    };
    agent.run(1, &wait("a", "b"));
    agent.run(1, "echo twice");
    agent.run(2, &wait("b", "a"));
    let mut refused = 0;
    let mut out = BTreeMap::new();
    while out.len() < 2 {
        match agent.receive() {
            ToHost::Error { id: 1, text } => {
                assert!(text.contains("in use"), "{text}");
                refused += 1;
            }
            ToHost::Stdout { id, bytes } => drop(out.insert(id, bytes)),
            _ => {}
        }
    }
    assert_eq!(refused, 1);
    assert_eq!((out[&1].as_slice(), out[&2].as_slice()), (&b"a\n"[..], &b"b\n"[..]));
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let mut agent = Agent::start();
    agent.run(1, "sleep 1000 & sleep 1000 & echo ready; wait");
    loop {
        if matches!(agent.receive(), ToHost::Stdout { .. }) {
            break;
        }
    }
    agent.say(&ToGuest::Signal { id: 1, signal: 15 });
    assert_eq!(agent.receive(), ToHost::Exited { id: 1, exit: Exit::Signal(15) });
    agent.say(&ToGuest::Signal { id: 1, signal: 15 });
    assert!(matches!(agent.receive(), ToHost::Error { id: 1, .. }));
    agent.run(2, "sleep 1000");
    agent.say(&ToGuest::Signal { id: 2, signal: 4711 });
    assert!(matches!(agent.receive(), ToHost::Started { .. }));
    let ToHost::Error { text, .. } = agent.receive() else { panic!() };
    assert!(text.contains("4711"), "{text}");
    agent.kill(2);
}

#[test]
fn what_cannot_run_is_an_error_with_its_name() {
    let mut agent = Agent::start();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for (program, expected) in [("no-such-program", 127), ("/etc/passwd", 126), ("/etc/passwd/x", 127)] {
        agent.say(&ToGuest::Run(Run {
            id: 1,
            uid,
            gid,
            argv: words([program]),
            env: vec![],
            cwd: None,
            terminal: None,
        }));
        let ToHost::NotStarted { id: 1, code, text } = agent.receive() else { panic!("{program}") };
        assert!(code == expected && text.contains(&format!("{program:?}")), "{code}: {text}");
    }
    agent.say(&ToGuest::Run(Run { id: 1, uid, gid, argv: vec![], env: vec![], cwd: None, terminal: None }));
    let ToHost::Error { id: 1, text } = agent.receive() else { panic!("no command") };
    assert!(text.contains("\"\""), "{text}");
    agent.say(&ToGuest::Ping { nonce: 5 });
    assert_eq!(agent.receive(), ToHost::Pong { nonce: 5 });
}

/// Runs a script to its end, of whose output one line is the number of a process in the background.
fn left_behind(agent: &mut Agent, script: &str) -> u32 {
    agent.run(1, script);
    let mut said = Vec::new();
    loop {
        match agent.receive() {
            ToHost::Started { .. } => {}
            ToHost::Stdout { bytes, .. } => said.extend(bytes),
            ToHost::Exited { exit, .. } => {
                assert_eq!(exit, Exit::Code(0));
                let text = String::from_utf8(said).unwrap();
                // What is in the background may have written before.
                return text.lines().find_map(|line| line.parse().ok()).unwrap();
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Whether a process was there to be killed.
fn killed(pid: u32) -> bool {
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success()
}

#[test]
fn what_is_left_in_the_background_continues() {
    let mut agent = Agent::start();
    let dir = tempfile::tempdir().unwrap();
    let ticks = dir.path().join("ticks");
    let ticking = format!("(read wait; while :; do echo tick; echo >>{}; sleep .02; done)", ticks.display());
    let pid = left_behind(&mut agent, &format!("{ticking} </dev/null & echo $!"));
    let size = || std::fs::metadata(&ticks).map_or(0, |about| about.len());
    while size() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(killed(pid));
    // One that writes without end does not keep the command from its end.
    let pid = left_behind(&mut agent, "echo $$; exec 3>&1; (exec yes >&3) & sleep .2");
    agent.say(&ToGuest::Ping { nonce: 5 });
    assert_eq!(agent.receive(), ToHost::Pong { nonce: 5 });
    let group = format!("-{pid}");
    assert!(Command::new("kill").args(["-9", "--", &group]).status().unwrap().success(), "nothing of it runs");
}

#[test]
fn input_flows_by_window_and_more_is_refused() {
    let mut agent = Agent::start();
    agent.run(1, "cksum");
    let data: Vec<u8> = (0..200_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let mut window = STDIN_WINDOW as usize;
    for piece in data.chunks(MAX_DATA) {
        while window < piece.len() {
            match agent.receive() {
                ToHost::StdinTaken { id: 1, bytes } => window += bytes as usize,
                ToHost::Started { .. } => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        window -= piece.len();
        agent.say(&ToGuest::Stdin { id: 1, bytes: piece.to_vec() });
    }
    agent.say(&ToGuest::CloseStdin { id: 1 });
    let sum = loop {
        match agent.receive() {
            ToHost::StdinTaken { .. } | ToHost::Started { .. } => {}
            ToHost::Stdout { bytes, .. } => break bytes,
            other => panic!("unexpected {other:?}"),
        }
    };
    let mut child = Command::new("cksum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&data).unwrap();
    assert_eq!(sum, child.wait_with_output().unwrap().stdout);
    assert_eq!(agent.receive(), ToHost::Exited { id: 1, exit: Exit::Code(0) });

    // A command that never reads: its pipe takes some, the window bounds the rest.
    agent.run(2, "sleep 1000");
    for _ in 0..40 {
        agent.say(&ToGuest::Stdin { id: 2, bytes: vec![0; MAX_DATA] });
    }
    loop {
        if let ToHost::Error { id: 2, text } = agent.receive() {
            assert!(text.contains("window"), "{text}");
            break;
        }
    }
    agent.kill(2);
}

#[test]
fn a_deaf_host_does_not_make_the_agent_grow() {
    let mut agent = Agent::start();
    let before = agent.resident_kib();
    for id in 0..8 {
        agent.run(id, "exec yes");
    }
    // The output is not read, so the commands must block: CPU time of `yes` stops growing.
    std::thread::sleep(std::time::Duration::from_millis(700));
    let after = agent.resident_kib();
    assert!(after < before + 2048, "{before} -> {after} KiB");
    let mut started = 0;
    while started < 8 {
        if let ToHost::Started { .. } = agent.receive() {
            started += 1;
        }
    }
    for id in 0..8 {
        agent.say(&ToGuest::Signal { id, signal: 9 });
    }
    let mut ended = 0;
    while ended < 8 {
        match agent.receive() {
            ToHost::Exited { exit, .. } => {
                assert_eq!(exit, Exit::Signal(9));
                ended += 1;
            }
            ToHost::Stdout { .. } => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

#[test]
fn a_new_host_finds_a_clean_agent() {
    let mut agent = Agent::start();
    agent.run(1, "echo $$; exec sleep 1000");
    let pid = loop {
        if let ToHost::Stdout { bytes, .. } = agent.receive() {
            break String::from_utf8(bytes).unwrap().trim().to_owned();
        }
    };
    // The rest of a frame cut off, a stray kernel line, and then a new host.
    let cut = encode(&ToGuest::Stdin { id: 1, bytes: vec![1; 50] }).unwrap();
    agent.line.write_all(&cut[..30]).unwrap();
    agent.line.write_all(b"\n[  12.3] random: crng init done\n").unwrap();
    agent.say(&ToGuest::Attach);
    // A frame cut short takes the bytes of one more with it at most; a host sends Attach again until Hello comes.
    agent.say(&ToGuest::Attach);
    assert!(matches!(agent.receive(), ToHost::Hello { .. }));
    while std::path::Path::new("/proc").join(&pid).exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    agent.run(1, "echo fresh");
    loop {
        match agent.receive() {
            ToHost::Hello { .. } | ToHost::Started { .. } => {}
            ToHost::Stdout { id: 1, bytes } => {
                assert_eq!(bytes, b"fresh\n");
                break;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    assert_eq!(agent.receive(), ToHost::Exited { id: 1, exit: Exit::Code(0) });
}

#[test]
fn a_directory_is_entered_with_the_rights_of_the_user() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root changes its user");
        return;
    }
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let inner = closed.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("file"), "secret").unwrap();
    let mut agent = Agent::start();
    let argv = words(["cat", "file"]);
    let (uid, cwd) = (65_534, Some(inner.to_str().unwrap().to_owned()));
    agent.say(&ToGuest::Run(Run { id: 1, uid, gid: uid, argv, env: vec![], cwd, terminal: None }));
    let first = agent.receive();
    let ToHost::NotStarted { id: 1, code: 126, text } = first else { panic!("{first:?}") };
    assert!(text.contains("Permission denied"), "{text}");
}
