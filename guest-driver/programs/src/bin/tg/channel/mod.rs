// SPDX-License-Identifier: MIT OR Apache-2.0
//! Channels between processes of two nodes, or of one, checked and measured.

mod bench;
mod hostile;

use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_channel::{Channel, Options};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, number};
use telegraphos_guest_tests::random;

pub(crate) const USAGE: &str = "\
tg-channel: channels between processes

Usage: tg-channel serve NAME [OPTIONS]   sends each record back to the process that connects, until it closes; then it
                                         serves the next one
       tg-channel check NODE NAME COUNT [OPTIONS]
                                         exchanges COUNT records of all lengths with such a process, and streams as many
       tg-channel hold NODE NAME [OPTIONS]
                                         sends one record, and then waits for a second one, which never comes
       tg-channel fill NODE NAME [OPTIONS]
                                         sends records and receives none, until it waits for room
       tg-channel lies NODE NAME SEED    connects, and stores anything into the memory of such a process
       tg-channel partner NAME           answers what `bench` measures
       tg-channel bench NODE NAME ROUNDS [OPTIONS]
                                         what 8 bytes to 64 KiB there and back take through a channel whose ends look,
                                         through one whose ends sleep, and through a bare ring in memory in common

Options: --look US                 how long an end looks before it sleeps, 100 by default
         --ring BYTES              of the ring in which this end receives
         --boards                  through the boards, also where there is memory in common
         --mode MODE               which users may connect, as 606

Exit codes: 0 done, 1 something was lost or changed, or the other process has gone, 2 usage, 3 refused.
";

/// For what takes some seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let mut options = Options { patience: Duration::from_secs(20), ..Options::default() };
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "look" => options.look = Duration::from_micros(line.number("--look")?),
            "ring" => options.ring = line.number("--ring")?,
            "boards" => options.direct = false,
            "mode" => {
                let mode = line.text()?;
                let wrong = |_| Failure::Usage(format!("--mode is {mode:?}: expected octal digits, as 606"));
                options.mode = u32::from_str_radix(&mode, 8).map_err(wrong)?;
            }
            _ => return Err(cli::unknown(&option)),
        }
    }
    match line.words()[..] {
        ["serve", name] => serve(options, name),
        ["check", node, name, count] => check(options, number("NODE", node)?, name, number("COUNT", count)?),
        ["hold", node, name] => hold(options, number("NODE", node)?, name),
        ["fill", node, name] => fill(options, number("NODE", node)?, name),
        ["lies", node, name, seed] => hostile::lies(number("NODE", node)?, name, number("SEED", seed)?),
        ["partner", name] => bench::partner(options, name),
        ["bench", node, name, rounds] => bench::bench(options, number("NODE", node)?, name, number("ROUNDS", rounds)?),
        ref words => Err(Failure::Usage(format!("arguments {words:?}: expected a command and what it needs"))),
    }
}

/// Sends records back: how many, when the other end has closed.
fn echo(channel: &mut Channel, buffer: &mut [u8]) -> telegraphos_channel::Result<u64> {
    let mut count = 0;
    while let Some(length) = channel.recv(buffer)? {
        channel.send(&buffer[..length])?;
        count += 1;
    }
    Ok(count)
}

fn serve(options: Options, name: &str) -> Outcome<()> {
    let listener = Channel::listen(&Node::open()?, name, options)?;
    let mut buffer = vec![0; options.ring as usize];
    println!("serving");
    while let Some(mut channel) = listener.accept(None)? {
        println!("connected: {:?}", channel.carriers());
        match echo(&mut channel, &mut buffer) {
            Ok(count) => println!("closed after {count} records"),
            Err(error) => println!("ended: {error}"),
        }
    }
    Ok(())
}

/// The bytes of a record.
fn bytes(seed: u64, number: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| random::word(seed ^ number, at / 8).to_le_bytes()[at as usize % 8]).collect()
}

/// The length of a record: short ones, around words and pages, and the longest.
fn length(seed: u64, number: u64, max: usize) -> usize {
    let word = random::word(seed, number);
    let most = [9, 64, 300, 4100, 20_000, max + 1][(word % 6) as usize];
    if word % 97 == 0 { max } else { (word >> 8) as usize % most.min(max + 1) }
}

fn received(channel: &mut Channel, buffer: &mut [u8], expected: &[u8], number: u64) -> Outcome<()> {
    let length = channel.recv_timeout(buffer, PATIENCE)?;
    let found = length.map(|length| &buffer[..length]);
    cli::check(found == Some(expected), || {
        format!("record {number} of {} bytes came with {length:?}, or other ones", expected.len())
    })
}

fn check(options: Options, node: u16, name: &str, count: u64) -> Outcome<()> {
    let board = Node::open()?;
    let mut channel = Channel::connect(&board, node, name, options)?;
    println!("connected: {:?}", channel.carriers());
    let max = channel.max_record().min(options.ring as usize / 2 - 16);
    let (seed, mut buffer) = (random::seed(), vec![0; max]);
    let begun = Instant::now();
    for number in 0..count {
        let sent = bytes(seed, number, length(seed, number, max));
        channel.send(&sent)?;
        received(&mut channel, &mut buffer, &sent, number)?;
    }
    println!("{count} records there and back in {:?}", begun.elapsed());
    // As many under way as the rings hold: what finds no room waits until one has come back.
    let (begun, mut next) = (Instant::now(), 0);
    for number in count..2 * count {
        let sent = bytes(seed, number, length(seed, number, max));
        while !channel.try_send(&sent)? {
            let expected = bytes(seed, count + next, length(seed, count + next, max));
            received(&mut channel, &mut buffer, &expected, count + next)?;
            next += 1;
        }
    }
    for number in count + next..2 * count {
        let expected = bytes(seed, number, length(seed, number, max));
        received(&mut channel, &mut buffer, &expected, number)?;
    }
    println!("{count} records in a stream in {:?}", begun.elapsed());
    Ok(channel.close()?)
}

fn hold(options: Options, node: u16, name: &str) -> Outcome<()> {
    let mut channel = Channel::connect(&Node::open()?, node, name, options)?;
    let mut buffer = [0; 8];
    channel.send(b"held")?;
    cli::check(channel.recv(&mut buffer)? == Some(4), || "the record did not come back".into())?;
    println!("holding");
    let ended = channel.recv(&mut buffer);
    println!(
        "{}",
        match ended {
            Ok(None) => "closed".into(),
            Ok(Some(length)) => format!("a record of {length} bytes"),
            Err(error) => format!("ended: {error}"),
        }
    );
    Ok(())
}

fn fill(options: Options, node: u16, name: &str) -> Outcome<()> {
    let mut channel = Channel::connect(&Node::open()?, node, name, options)?;
    let (bytes, mut count) = ([7; 1000], 0);
    // Records come back until this end has no room for them: then nothing takes those that it sends.
    while channel.try_send(&bytes)? || {
        std::thread::sleep(Duration::from_millis(500));
        channel.try_send(&bytes)?
    } {
        count += 1;
    }
    println!("full after {count} records");
    let ended = loop {
        if let Err(error) = channel.send(&bytes) {
            break error;
        }
    };
    println!("ended: {ended}");
    Ok(())
}
