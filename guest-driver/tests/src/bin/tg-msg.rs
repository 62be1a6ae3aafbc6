// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of processes on several nodes, checked.

use std::process::ExitCode;
use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_msg::{Config, Endpoint, Error, Failure as Ended, Messages, Pattern, Process, Thread, Way};

const USAGE: &str = "\
tg-msg: messages between threads of processes

Usage: tg-msg all NODES THREADS COUNT [--way get|put] [--paper]
                                   on each of the nodes 0 to NODES-1: each thread sends each of all others, and
                                   itself, COUNT messages of up to 200 000 bytes, which are checked
       tg-msg serve NAME           has a name and thread 1, which receives when a line is entered
       tg-msg send NODE NAME TAG BYTES
                                   sends thread 1 of that process a message, and waits until it has it
       tg-msg bounds               the longest message of the paper's profile, and one that is longer, to itself

Exit codes: 0 done, 1 something was lost or changed, or the other process has gone, 2 usage, 3 refused.
";

const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of messages; up to 4096 they go to slots.
const LENGTHS: [usize; 10] = [0, 1, 8, 100, 1000, 4095, 4096, 4097, 70_000, 200_000];

fn main() -> ExitCode {
    cli::main("tg-msg", USAGE, run)
}

fn run(parser: lexopt::Parser) -> Outcome<()> {
    let (mut words, mut config) = (Vec::new(), Config::default());
    let mut line = Line::new(parser);
    while let Some(word) = line.next_word()? {
        match word {
            Word::Option(option) if option == "way" => {
                config.way = match line.text()?.as_str() {
                    "get" => Way::Get,
                    "put" => Way::Put,
                    other => return Err(Failure::Usage(format!("--way is {other:?}: expected get or put"))),
                }
            }
            Word::Option(option) if option == "paper" => {
                // An inbox is locked memory, of which users have little.
                config = Config { way: config.way, slots: 16, ..Config::paper() };
            }
            Word::Option(option) => return Err(cli::unknown(&option)),
            Word::Value(value) => words.push(cli::text(value)?),
        }
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["all", nodes, threads, count] => {
            all(config, cli::number("NODES", nodes)?, cli::number("THREADS", threads)?, cli::number("COUNT", count)?)
        }
        ["serve", name] => serve(config, name),
        ["send", node, name, tag, bytes] => {
            send(config, cli::number("NODE", node)?, name, cli::number("TAG", tag)?, cli::number("BYTES", bytes)?)
        }
        ["bounds"] => bounds(),
        _ => Err(Failure::Usage(format!("arguments {words:?}: expected all, serve, send or bounds"))),
    }
}

fn refused(error: Error) -> Failure {
    match error {
        Error::Failed(Ended::Gone) => Failure::Check("the other process has gone".into()),
        error => Failure::Refused(error.to_string()),
    }
}

/// The byte at a place of a message.
fn byte(seed: u64, at: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add((at as u64).wrapping_mul(0x0123_4567_89ab_cdef)) >> 56) as u8
}

fn seed(from: Endpoint, to: Endpoint, tag: u32) -> u64 {
    u64::from(from.process.number) << 32
        ^ u64::from(to.process.number)
        ^ u64::from(from.thread) << 48
        ^ u64::from(to.thread) << 24
        ^ u64::from(tag)
}

/// Waits for the process of that name on a node.
fn find(messages: &Messages, node: u16, name: &str) -> Outcome<Process> {
    let begun = Instant::now();
    loop {
        match messages.find(node, name) {
            Ok(process) => return Ok(process),
            Err(error) if begun.elapsed() > PATIENCE => return Err(refused(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn send_all(thread: &Thread<'_>, processes: &[Process], threads: u32, count: u32) -> Outcome<()> {
    for tag in 0..count {
        for process in processes {
            for number in 0..threads {
                let to = Endpoint { process: *process, thread: number };
                let length = LENGTHS[(tag as usize + number as usize) % LENGTHS.len()];
                let seed = seed(thread.endpoint(), to, tag);
                let bytes: Vec<u8> = (0..length).map(|at| byte(seed, at)).collect();
                thread.send(to, tag, &bytes).map_err(refused)?;
            }
        }
    }
    Ok(())
}

/// Receives what all send to a thread, in whatever order; of each in its own.
fn receive_all(thread: &Thread<'_>, processes: &[Process], threads: u32, count: u32) -> Outcome<()> {
    let mut next = std::collections::HashMap::new();
    let mut buffer = vec![0; 200_000];
    for _ in 0..processes.len() as u32 * threads * count {
        let got = thread.receive_timeout(Pattern::default(), &mut buffer, PATIENCE).map_err(refused)?;
        let expected: &mut u32 = next.entry(got.from).or_default();
        if got.tag != *expected {
            return Err(Failure::Check(format!("message {} of {} came, not {expected}", got.tag, got.from)));
        }
        *expected += 1;
        let length = LENGTHS[(got.tag as usize + thread.endpoint().thread as usize) % LENGTHS.len()];
        let seed = seed(got.from, thread.endpoint(), got.tag);
        let wrong = (0..length).find(|at| buffer[*at] != byte(seed, *at));
        if got.length != length as u64 || wrong.is_some() {
            let (bytes, from, tag) = (got.length, got.from, got.tag);
            return Err(Failure::Check(format!(
                "message {tag} of {from} has {bytes} bytes, of which {wrong:?} is wrong; sent were {length}"
            )));
        }
    }
    Ok(())
}

fn all(config: Config, nodes: u16, threads: u32, count: u32) -> Outcome<()> {
    let (way, slots) = (config.way, config.slots);
    let messages = Messages::open(Node::open()?, config).map_err(refused)?;
    let mine = (0..threads).map(|number| messages.thread(number)).collect::<Result<Vec<_>, _>>().map_err(refused)?;
    // Not that of a run before, which may be about to end elsewhere.
    let name = format!("all.{way:?}.{slots}.{threads}.{count}");
    let _name = messages.publish(&name).map_err(refused)?;
    let processes = (0..nodes).map(|node| find(&messages, node, &name)).collect::<Outcome<Vec<_>>>()?;
    let begun = Instant::now();
    let (processes, outcomes) = (
        &processes,
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for thread in &mine {
                let processes = &processes;
                running.push(scope.spawn(move || send_all(thread, processes, threads, count)));
                running.push(scope.spawn(move || receive_all(thread, processes, threads, count)));
            }
            running.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        }),
    );
    for outcome in outcomes {
        outcome.map_err(|_| Failure::Check("a thread has panicked".into()))??;
    }
    let sent = u64::from(threads) * u64::from(threads) * processes.len() as u64 * u64::from(count);
    println!("{sent} messages sent, as many received, in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn serve(config: Config, name: &str) -> Outcome<()> {
    let messages = Messages::open(Node::open()?, config).map_err(refused)?;
    let thread = messages.thread(1).map_err(refused)?;
    let _name = messages.publish(name).map_err(refused)?;
    println!("serving");
    let mut buffer = vec![0; 1 << 20];
    for _ in std::io::stdin().lines() {
        let got = thread.receive(Pattern::default(), &mut buffer).map_err(refused)?;
        println!("{} bytes with tag {}", got.length, got.tag);
    }
    Ok(())
}

fn send(config: Config, node: u16, name: &str, tag: u32, bytes: usize) -> Outcome<()> {
    let messages = Messages::open(Node::open()?, config).map_err(refused)?;
    let thread = messages.thread(1).map_err(refused)?;
    let process = find(&messages, node, name)?;
    messages.connect(process, PATIENCE).map_err(refused)?;
    println!("sending");
    thread.send(Endpoint { process, thread: 1 }, tag, &vec![7; bytes]).map_err(refused)?;
    println!("sent");
    Ok(())
}

/// SPEC E21: 32 fragments of 64 KiB less their header are accepted, and one byte more is refused.
fn bounds() -> Outcome<()> {
    const LONGEST: usize = 2_095_872;
    let messages = Messages::open(Node::open()?, Config::paper()).map_err(refused)?;
    let (from, to) = (messages.thread(1).map_err(refused)?, messages.thread(2).map_err(refused)?);
    let bytes: Vec<u8> = (0..=LONGEST).map(|at| byte(1, at)).collect();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| from.send(to.endpoint(), 9, &bytes[..LONGEST]));
        let mut buffer = vec![0; LONGEST];
        let got = to.receive_timeout(Pattern::exactly(from.endpoint(), 9), &mut buffer, PATIENCE).map_err(refused)?;
        if got.length != LONGEST as u64 || buffer != bytes[..LONGEST] {
            return Err(Failure::Check("the longest message came otherwise than it was sent".into()));
        }
        sending.join().map_err(|_| Failure::Check("the sender has panicked".into()))?.map_err(refused)
    })?;
    match from.send(to.endpoint(), 9, &bytes) {
        Err(Error::Refused(refused)) => println!("{LONGEST} bytes arrived; one more: {refused}"),
        other => return Err(Failure::Check(format!("one byte more: {other:?}"))),
    }
    Ok(())
}
