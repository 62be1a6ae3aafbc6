// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a user can try against the daemon of its node, and so against all others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use telegraphos_daemon_core::protocol::{Answer, MAX_MESSAGE, Request, frame, unframe};
use telegraphos_daemon_core::{Refusal, TaskId};
use telegraphos_guest_tests::child;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, refused};

pub(crate) const USAGE: &str = "\
tg-hostile-tgd: tries what a user can do to the daemon of its node, and says what came of it

Usage: tg-hostile-tgd [--user UID] places        connects until it is refused, and holds all connections
       tg-hostile-tgd [--user UID] letters NODE  more requests to that node than may be on their way
       tg-hostile-tgd [--user UID] frames        messages that are none, cut off, too long, or never end
       tg-hostile-tgd [--user UID] threads PID   looks for threads of PID that it may send signals to, while it has
                                                 the daemon send some

--user needs root. places holds them until its standard input ends.
Exit codes: 0 done, 1 it could do harm, 2 usage, 3 there is no daemon.

Example: tg-hostile-tgd letters 1
";

const SOCKET: &str = "/run/telegraphos/tgd.sock";
/// Connections of one attack, and what each asks for: as much as a client may wait for.
const CLIENTS: u32 = 4;
const REQUESTS: u32 = 512;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut user = None;
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "user" => user = Some(line.number::<u32>("--user")?),
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    if let Some(uid) = user {
        // A process of that user from its first instruction.
        let error = child::again().args(&words).gid(uid).uid(uid).exec();
        return Err(refused(error));
    }
    match words[..] {
        ["places"] => places(),
        ["letters", node] => letters(cli::number("NODE", node)?),
        ["frames"] => frames(),
        ["threads", pid] => threads(cli::number("PID", pid)?),
        _ => Err(Failure::Usage("expected places, letters NODE, frames or threads PID".into())),
    }
}

fn connect() -> Outcome<UnixStream> {
    let absent = |error| Failure::Refused(format!("{SOCKET}: {error}; is tgd running on this node?"));
    let stream = UnixStream::connect(SOCKET).map_err(absent)?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).map_err(refused)?;
    Ok(stream)
}

/// The next answer; `None` if the daemon has closed the connection.
fn answer(mut stream: &UnixStream, buffer: &mut Vec<u8>) -> Outcome<Option<(u32, Answer)>> {
    let mut bytes = [0; 4096];
    loop {
        if let Some(answer) = unframe(buffer).map_err(refused)? {
            return Ok(Some(answer));
        }
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(None),
            Ok(count) => buffer.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(refused(error)),
        }
    }
}

fn request(id: u32, request: Request) -> Vec<u8> {
    frame(&(id, request)).unwrap_or_default()
}

fn places() -> Outcome<()> {
    let mut held = Vec::new();
    let why = loop {
        let mut stream = connect()?;
        // What is refused may be closed before.
        _ = stream.write_all(&request(1, Request::Nodes));
        match answer(&stream, &mut Vec::new())? {
            Some((_, Answer::Refused(refusal))) => break refusal,
            Some(_) => held.push(stream),
            None => break Refusal::new(Refusal::EAGAIN, "closed"),
        }
    };
    println!("{} held: {why}", held.len());
    _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn letters(node: u16) -> Outcome<()> {
    let (mut done, mut again) = (0, 0);
    let mut streams = Vec::new();
    for _ in 0..CLIENTS {
        let mut stream = connect()?;
        let all: Vec<u8> = (1..=REQUESTS)
            .flat_map(|id| request(id, Request::Signal { task: TaskId { node, pid: 1 }, signal: 0 }))
            .collect();
        stream.write_all(&all).map_err(refused)?;
        streams.push(stream);
    }
    for stream in &streams {
        let mut buffer = Vec::new();
        for _ in 0..REQUESTS {
            match answer(stream, &mut buffer)? {
                Some((_, Answer::Refused(refusal))) if refusal.errno == Refusal::EAGAIN => again += 1,
                // Process 1 is root's.
                Some((_, Answer::Refused(refusal))) if refusal.errno == Refusal::EPERM => done += 1,
                other => return Err(Failure::Refused(format!("expected EPERM or EAGAIN: {other:?}"))),
            }
        }
    }
    println!("{done} done, {again} refused");
    Ok(())
}

fn frames() -> Outcome<()> {
    let whole = request(3, Request::Tasks);
    let mut long = ((MAX_MESSAGE + 1) as u32).to_le_bytes().to_vec();
    long.resize(MAX_MESSAGE, 7);
    let cases = [
        Vec::new(),
        whole[..2].to_vec(),
        whole[..whole.len() - 1].to_vec(),
        vec![0; 4],
        vec![0xff; 64],
        long,
        [&whole[..], &[0xff; 4]].concat(),
        whole.repeat(2000),
    ];
    let count = cases.len();
    for bytes in cases {
        let mut stream = connect()?;
        // It may be closed before all of it is sent.
        _ = stream.write_all(&bytes);
        _ = stream.shutdown(std::net::Shutdown::Write);
        let mut buffer = Vec::new();
        while answer(&stream, &mut buffer)?.is_some() {}
    }
    println!("{count} kinds of frames");
    Ok(())
}

fn threads(pid: u32) -> Outcome<()> {
    let (ends, looked, may) = (AtomicBool::new(false), AtomicU32::new(0), AtomicU32::new(0));
    let target = TaskId { node: u16::MAX, pid: std::process::id() };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return };
                for thread in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok()) {
                    looked.fetch_add(1, Relaxed);
                    // SAFETY: no memory is involved; signal 0 is none.
                    if unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, 0) } == 0 {
                        may.fetch_add(1, Relaxed);
                    }
                }
            }
        });
        let asked = ask_for_signals(target);
        ends.store(true, Relaxed);
        asked
    })?;
    println!("{} of {} threads take its signals", may.load(Relaxed), looked.load(Relaxed));
    cli::check(may.load(Relaxed) == 0, || "this user may end the daemon".into())
}

/// Has the daemon of this node send signals to this process.
fn ask_for_signals(target: TaskId) -> Outcome<()> {
    let (mut stream, mut buffer) = (connect()?, Vec::new());
    for id in 1..=50 {
        // On each of the first nodes, of which one is this.
        for node in 0..3 {
            stream
                .write_all(&request(id, Request::Signal { task: TaskId { node, ..target }, signal: 0 }))
                .map_err(refused)?;
            cli::must(answer(&stream, &mut buffer)?.is_some(), Failure::Refused, || {
                "the daemon has closed the connection".into()
            })?;
        }
    }
    Ok(())
}
