// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes, or three.

use crate::{PATIENCE, find, open, refused};
use std::time::Instant;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Options, Pattern};

/// The tag with which an echo ends.
const END: u32 = 1;

pub(crate) fn serve(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(1).map_err(refused)?;
    let _name = messages.publish(name).map_err(refused)?;
    println!("serving");
    let mut buffer = vec![0; 1 << 20];
    for line in std::io::stdin().lines() {
        let line = line.map_err(|error| Failure::Refused(format!("standard input: {error}")))?;
        let count = if line.trim().is_empty() { 1 } else { cli::number("the count", line.trim())? };
        for _ in 0..count {
            let got = thread.receive(Pattern::default(), &mut buffer).map_err(refused)?;
            println!("{} bytes with tag {}", got.length, got.tag);
        }
    }
    Ok(())
}

pub(crate) fn send(options: Options, node: u16, name: &str, tag: u32, bytes: usize) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(1).map_err(refused)?;
    let process = find(&messages, node, name)?;
    messages.connect(process, PATIENCE).map_err(refused)?;
    println!("sending");
    thread.send(Endpoint { process, thread: 1 }, tag, &vec![7; bytes]).map_err(refused)?;
    println!("sent");
    Ok(())
}

pub(crate) fn echo(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(1).map_err(refused)?;
    let _name = messages.publish(name).map_err(refused)?;
    println!("serving");
    let mut buffer = vec![0; 1 << 20];
    loop {
        let got = thread.receive(Pattern::default(), &mut buffer).map_err(refused)?;
        thread.send(got.from, got.tag, &buffer[..buffer.len().min(got.length as usize)]).map_err(refused)?;
        if got.tag == END {
            return Ok(());
        }
    }
}

pub(crate) fn exchange(options: Options, node: u16, name: &str, count: u32, bytes: usize) -> Outcome<()> {
    let progress = options.progress;
    let messages = open(options)?;
    let thread = messages.thread(1).map_err(refused)?;
    let to = Endpoint { process: find(&messages, node, name)?, thread: 1 };
    let (sent, mut got) = (vec![7; bytes], vec![0; bytes]);
    let mut times = Vec::new();
    // Some more, while connections are made and modes settle.
    let before = 100.min(count);
    for n in 0..before + count {
        let begun = Instant::now();
        let tag = if n + 1 == before + count { END } else { 0 };
        thread.send(to, tag, &sent).map_err(refused)?;
        thread.receive(Pattern::exactly(to, tag), &mut got).map_err(refused)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    if got != sent {
        return Err(Failure::Check("the bytes that came back are others".into()));
    }
    let times = &mut times[before as usize..];
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0.0);
    println!("{progress:?}: {bytes} bytes there and back in {:.1} us ({:.1} to {:.1})", at(50), at(10), at(90));
    Ok(())
}

/// A process that does not receive delays what it is sent, and nothing else.
pub(crate) fn full(options: Options, full: (u16, &str), other: (u16, &str), count: u32) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(1).map_err(refused)?;
    let endpoint = |(node, name)| Ok::<_, Failure>(Endpoint { process: find(&messages, node, name)?, thread: 1 });
    let (full, other) = (endpoint(full)?, endpoint(other)?);
    let handles = (0..count).map(|tag| thread.send_copy(full, tag, &tag.to_le_bytes()));
    let handles = handles.collect::<Result<Vec<_>, _>>().map_err(refused)?;
    println!("sending");
    let (begun, mut exchanged) = (Instant::now(), 0);
    while begun.elapsed().as_secs() < 10 {
        let mut back = [0; 8];
        thread.send(other, 0, b"and back").map_err(refused)?;
        thread.receive(Pattern::exactly(other, 0), &mut back).map_err(refused)?;
        exchanged += 1;
    }
    thread.send(other, END, b"").map_err(refused)?;
    thread.receive(Pattern::exactly(other, END), &mut []).map_err(refused)?;
    let early = handles.iter().filter(|handle| handle.test()).count();
    println!("{exchanged} exchanges with another; {early} of {count} had been received");
    for handle in handles {
        handle.wait().outcome.map_err(refused)?;
    }
    println!("all received");
    Ok(())
}
