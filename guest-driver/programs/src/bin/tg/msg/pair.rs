// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two processes, or three.

use super::{PATIENCE, bytes, ended, find, must, open, reaching, serving};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Instant;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Memory, Options, Pattern, Received};

/// Exchanges that pass a process that does not receive.
const EXCHANGES: u32 = 20;
/// The tag with which an echo ends.
const END: u32 = 1;
/// The tag with which it locks no more memory.
const UNLOCKED: u32 = 2;

/// No more memory of this process is locked; what is stays so.
fn lock_no_more() -> Outcome<()> {
    let now = getrlimit(Resource::Memlock);
    let none = Rlimit { current: Some(0), ..now };
    setrlimit(Resource::Memlock, none).map_err(|errno| Failure::Refused(format!("RLIMIT_MEMLOCK: {errno}")))
}

pub(crate) fn serve(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, _name) = serving(&messages, name)?;
    let mut buffer = vec![0; 1 << 20];
    for line in cli::lines() {
        let line = line?;
        let count = if line.trim().is_empty() { 1 } else { cli::number("the count", line.trim())? };
        for _ in 0..count {
            let got = thread.receive(Pattern::default(), &mut buffer)?;
            println!("{} bytes with tag {}", got.length, got.tag);
        }
    }
    Ok(())
}

pub(crate) fn send(options: Options, node: u16, name: &str, tag: u32, bytes: usize) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    messages.connect(to.process, PATIENCE)?;
    println!("sending");
    thread.send(to, tag, &vec![7; bytes])?;
    println!("sent");
    Ok(())
}

/// Sends messages from more memory than the window of a node has room for, twice from each part of it.
pub(crate) fn wide(options: Options, node: u16, name: &str) -> Outcome<()> {
    const PARTS: usize = 4;
    const BYTES: usize = 20 << 20;
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    let mut parts: Vec<Memory> = (0..PARTS).map(|_| vec![7; BYTES].into()).collect();
    for tag in 0..2 * PARTS as u32 {
        let memory = std::mem::take(&mut parts[tag as usize % PARTS]);
        parts[tag as usize % PARTS] = ended(thread.send_dma(to, tag, memory, BYTES)?)?;
    }
    println!("{} messages of {BYTES} bytes, from {PARTS} parts of memory", 2 * PARTS);
    Ok(())
}

/// Sends messages in turn from a buffer, and from memory of a handle. The receiver knows what is in them.
pub(crate) fn gives(options: Options, node: u16, name: &str, count: u32, length: usize) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    for tag in 0..count {
        let sent = bytes::of(thread.endpoint(), to, tag, length);
        match tag % 2 {
            0 => thread.send(to, tag, &sent)?,
            _ => drop(ended(thread.send_dma(to, tag, sent, length)?)?),
        }
    }
    println!("{count} messages of {length} bytes");
    Ok(())
}

/// Takes them, and has room for a byte less of the last one.
pub(crate) fn takes(options: Options, name: &str, count: u32, length: usize) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, _name) = serving(&messages, name)?;
    let to = thread.endpoint();
    for tag in 0..count {
        let room = if tag + 1 == count { length - 1 } else { length };
        let (got, buffer) = match tag / 2 % 2 {
            0 => {
                let mut buffer = vec![0; room];
                (thread.receive(Pattern::default(), &mut buffer)?, buffer)
            }
            _ => {
                let ended = thread.receive_dma(Pattern::default(), vec![0; room])?.wait();
                let got = ended.outcome?.ok_or_else(|| Failure::Check("a receive without a message".into()))?;
                (got, ended.memory.into_bytes())
            }
        };
        must(got.tag == tag && got.length == length as u64, "another message")?;
        bytes::check(&Received { length: room as u64, ..got }, to, room, &buffer)?;
    }
    Ok(())
}

pub(crate) fn echo(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, _name) = serving(&messages, name)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        let got = thread.receive(Pattern::default(), &mut buffer)?;
        thread.send(got.from, got.tag, &buffer[..buffer.len().min(got.length as usize)])?;
        match got.tag {
            END => return Ok(()),
            UNLOCKED => {
                lock_no_more()?;
                // Of which none is registered.
                buffer = vec![0; buffer.len()];
            }
            _ => {}
        }
    }
}

pub(crate) fn exchange(options: Options, node: u16, name: &str, count: u32, bytes: usize) -> Outcome<()> {
    let progress = options.progress;
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    let (sent, mut got) = (vec![7; bytes], vec![0; bytes]);
    let mut times = Vec::new();
    // Some more, while connections are made and modes settle.
    let before = 100.min(count);
    for n in 0..before + count {
        let begun = Instant::now();
        let tag = if n + 1 == before + count { END } else { 0 };
        thread.send(to, tag, &sent)?;
        thread.receive(Pattern::exactly(to, tag), &mut got)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    cli::check(got == sent, || "the bytes that came back are others".into())?;
    let times = &mut times[before as usize..];
    times.sort_by(f64::total_cmp);
    let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or(0.0);
    println!("{progress:?}: {bytes} bytes there and back in {:.1} us ({:.1} to {:.1})", at(50), at(10), at(90));
    Ok(())
}

/// Where the threshold is after messages of all lengths around it, and that they come back as they were.
pub(crate) fn threshold(options: Options, node: u16, name: &str, count: u32) -> Outcome<()> {
    let (floor, most) = (options.config.floor() as usize, options.config.eager as usize);
    let messages = open(options)?;
    let (thread, to) = reaching(&messages, node, name)?;
    // Between the bounds, and beyond both.
    let lengths: Vec<usize> =
        (0..).map(|n| (floor / 2 + 1 + n) << n).take_while(|length| *length <= 2 * most).collect();
    let mut buffers = [vec![0_u8; 2 * most], vec![0_u8; 2 * most]];
    let mut seed = 0_u8;
    let mut exchange = |tag: u32, length: usize, [sent, got]: &mut [Vec<u8>; 2]| -> Outcome<()> {
        seed = seed.wrapping_add(37);
        sent.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at as u8 ^ (at >> 8) as u8 ^ seed) | 1);
        got.fill(0);
        thread.send(to, tag, &sent[..length])?;
        thread.receive(Pattern::exactly(to, tag), got)?;
        match got[..length] == sent[..length] && got[length..].iter().all(|byte| *byte == 0) {
            true => Ok(()),
            false => Err(Failure::Check(format!("{length} bytes that came back are others"))),
        }
    };
    for locked in ["both", "this one", "none"] {
        match locked {
            "this one" => exchange(UNLOCKED, 1, &mut buffers)?,
            "none" => {
                lock_no_more()?;
                // Of which none is registered.
                buffers = [vec![0; 2 * most], vec![0; 2 * most]];
            }
            _ => {}
        }
        for _ in 0..count {
            // What is too long for slots takes memory that is locked.
            let may = |length: &&usize| locked == "both" || **length <= most;
            lengths.iter().filter(may).try_for_each(|length| exchange(0, *length, &mut buffers))?;
        }
        let eager = messages.eager(to.process).ok_or(Failure::Check("it is not connected".into()))?;
        let (threshold, slots, requests) = (eager.threshold, eager.slots, eager.requests);
        println!("{locked} may lock memory: up to {threshold} bytes; {slots} to slots, {requests} requests");
    }
    exchange(END, 1, &mut buffers)
}

/// A process that does not receive delays what it is sent, and nothing else.
pub(crate) fn full(options: Options, full: (u16, &str), other: (u16, &str), count: u32) -> Outcome<()> {
    let messages = open(options)?;
    let thread = messages.thread(1)?;
    let endpoint = |(node, name)| Ok::<_, Failure>(Endpoint { process: find(&messages, node, name)?, thread: 1 });
    let (full, other) = (endpoint(full)?, endpoint(other)?);
    let handles = (0..count).map(|tag| thread.send_copy(full, tag, &tag.to_le_bytes()));
    let handles = handles.collect::<Result<Vec<_>, _>>()?;
    println!("sending");
    for _ in 0..EXCHANGES {
        let mut back = [0; 8];
        thread.send(other, 0, b"and back")?;
        thread.receive(Pattern::exactly(other, 0), &mut back)?;
    }
    thread.send(other, END, b"")?;
    thread.receive(Pattern::exactly(other, END), &mut [])?;
    let early = handles.iter().filter(|handle| handle.test()).count();
    println!("{EXCHANGES} exchanges with another; {early} of {count} had been received");
    for handle in handles {
        handle.wait().outcome?;
    }
    println!("all received");
    Ok(())
}
