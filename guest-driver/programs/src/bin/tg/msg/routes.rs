// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes of other clusters, and gateways to them (SPEC item 42).

use super::wrong::is_refused;
use super::{PATIENCE, open, reaching};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Options, Process, Route};

/// Nodes: how many, or a list of numbers and ranges.
pub(crate) fn nodes(text: &str) -> Outcome<Vec<u16>> {
    if !text.contains([',', '-']) {
        return Ok((0..cli::number("NODES", text)?).collect());
    }
    let mut nodes = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (cli::number::<u16>("NODES", first)?, cli::number("NODES", last)?);
        nodes.extend(first..=last);
    }
    Ok(nodes)
}

/// What a file has, without the end of its last line.
pub(crate) fn key(path: &str) -> Outcome<Vec<u8>> {
    let mut key = std::fs::read(path).map_err(|error| Failure::Usage(format!("--key-file {path}: {error}")))?;
    while key.last().is_some_and(|byte| *byte == b'\n') {
        key.pop();
    }
    Ok(key)
}

pub(crate) fn gateway(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let _name = messages.publish(name)?;
    if let Some(at) = messages.listens_at() {
        println!("listening at {at}");
    }
    println!("serving");
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Whatever it is, it is not used.
            _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            ended.store(true, Ordering::Relaxed);
        });
        let mut known = BTreeMap::<Process, Route>::new();
        while !ended.load(Ordering::Relaxed) {
            let routes = messages.routes().into_iter().filter_map(|route| Some((route.process()?, route)));
            let now: BTreeMap<Process, Route> = routes.collect();
            known.keys().filter(|process| !now.contains_key(process)).for_each(|process| println!("- {process}"));
            for (process, route) in now.iter().filter(|(process, route)| known.get(process) != Some(route)) {
                println!("+ {process}: {} away, names {}", route.path.len(), route.names.join(" "));
            }
            known = now;
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    Ok(())
}

pub(crate) fn far(options: Options, node: u16, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    let process = to.process;
    messages.connect(process, PATIENCE)?;
    let absent = Endpoint { process, thread: 9 };
    for (what, length) in [("a thread that is not there", 8), ("a long message to it", 100_000)] {
        let sent = thread.send(absent, 0, &vec![7; length]);
        is_refused(what, sent, "the thread that it is for is not there")?;
    }
    for (what, process) in [
        ("a process that is not there", Process { number: process.number ^ 1, ..process }),
        ("a node that is not there", Process { node: 60_000, ..process }),
    ] {
        is_refused(what, thread.send(Endpoint { process, thread: 1 }, 0, b"x"), "no route leads there")?;
    }
    is_refused("a name that is not published", messages.find(node, "unpublished"), "no process of node")?;
    // The process is still there.
    Ok(thread.send(to, 5, b"whole")?)
}

/// Connects without a key, and says what is no hello; how many bytes came back until the end.
fn strange(address: &str, said: &[u8]) -> Outcome<usize> {
    let refused = |error: std::io::Error| Failure::Refused(format!("{address}: {error}"));
    let mut socket = TcpStream::connect(address).map_err(refused)?;
    // Longer than a gateway waits for a hello.
    socket.set_read_timeout(Some(Duration::from_secs(30))).map_err(refused)?;
    // It may have been ended already.
    _ = socket.write_all(said);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(Failure::Check(format!("{} strange bytes: the gateway waits for more", said.len())))
        }
        _ => Ok(answer.len()),
    }
}

pub(crate) fn keyless(address: &str) -> Outcome<()> {
    const SAID: [&[u8]; 3] = [b"", b"GET / HTTP/1.0\r\n\r\n", &[0xff; 4096]];
    std::thread::scope(|scope| {
        let attempts = SAID.map(|said| (said, scope.spawn(move || strange(address, said))));
        for (said, attempt) in attempts {
            let back = attempt.join().map_err(|_| Failure::Check("a thread has panicked".into()))??;
            println!("{} strange bytes: {back} came back, and that was the end", said.len());
        }
        Ok(())
    })
}
