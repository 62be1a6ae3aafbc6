// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of many processes that all send and receive.

use super::{PATIENCE, bytes, find, open};
use std::collections::HashMap;
use std::time::Instant;
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Messages, Options, Pattern, Process, Thread};

/// Bytes of messages; by default those up to 4096 go to slots.
const LENGTHS: [usize; 10] = [0, 1, 8, 100, 1000, 4095, 4096, 4097, 70_000, 200_000];

fn threads(messages: &Messages, count: u32) -> Outcome<Vec<Thread<'_>>> {
    Ok((0..count).map(|number| messages.thread(number)).collect::<Result<_, _>>()?)
}

/// Runs two jobs for each thread at once. The first that fails ends the program: others may wait for what it has not
/// done.
fn run<'t, 'm: 't>(
    threads: &'t [Thread<'m>],
    send: impl Fn(usize, &'t Thread<'m>) -> Outcome<()> + Sync,
    receive: impl Fn(usize, &'t Thread<'m>) -> Outcome<()> + Sync,
) {
    fn checked(outcome: Outcome<()>) {
        if let Err(failure) = outcome {
            eprintln!("tg-msg: {failure}");
            std::process::exit(1);
        }
    }
    std::thread::scope(|scope| {
        let (send, receive) = (&send, &receive);
        for (n, thread) in threads.iter().enumerate() {
            scope.spawn(move || checked(send(n, thread)));
            scope.spawn(move || checked(receive(n, thread)));
        }
    });
}

fn send_all(thread: &Thread<'_>, processes: &[Process], threads: u32, count: u32) -> Outcome<()> {
    for tag in 0..count {
        for process in processes {
            for number in 0..threads {
                let to = Endpoint { process: *process, thread: number };
                let length = LENGTHS[(tag as usize + number as usize) % LENGTHS.len()];
                thread.send(to, tag, &bytes::of(thread.endpoint(), to, tag, length))?;
            }
        }
    }
    Ok(())
}

/// Receives what all send to a thread, in whatever order; of each in its own.
fn receive_all(thread: &Thread<'_>, processes: &[Process], threads: u32, count: u32) -> Outcome<()> {
    let mut next = HashMap::new();
    let mut buffer = vec![0; 200_000];
    for _ in 0..processes.len() as u32 * threads * count {
        let got = thread.receive_timeout(Pattern::default(), &mut buffer, PATIENCE)?;
        let expected: &mut u32 = next.entry(got.from).or_default();
        cli::check(got.tag == *expected, || format!("message {} of {} came, not {expected}", got.tag, got.from))?;
        *expected += 1;
        let length = LENGTHS[(got.tag as usize + thread.endpoint().thread as usize) % LENGTHS.len()];
        bytes::check(&got, thread.endpoint(), length, &buffer)?;
    }
    Ok(())
}

pub(crate) fn all(options: Options, nodes: &[u16], count: u32, messages: u32) -> Outcome<()> {
    // Not that of a run before, which may be about to end elsewhere.
    let Options { config, ports, progress, .. } = &options;
    let name = format!("all.{:?}.{}.{ports}.{progress:?}.{count}.{messages}", config.way, config.slots);
    let opened = open(options)?;
    let mine = threads(&opened, count)?;
    let _name = opened.publish(&name)?;
    let processes = nodes.iter().map(|node| find(&opened, *node, &name)).collect::<Outcome<Vec<_>>>()?;
    let begun = Instant::now();
    run(
        &mine,
        |_, thread| send_all(thread, &processes, count, messages),
        |_, thread| receive_all(thread, &processes, count, messages),
    );
    let sent = u64::from(count) * u64::from(count) * processes.len() as u64 * u64::from(messages);
    println!("{sent} messages sent, as many received, in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Bytes of a message of `many`: the paper's bounds, those of a block, and between.
fn length_of(from: usize, tag: usize) -> usize {
    const LENGTHS: [usize; 9] = [1, 8, 100, 4096, 4097, 65_496, 65_497, 130_000, 200_000];
    // One of 64 threads, once.
    if from % 64 == 7 && tag == 2 { 2_095_872 } else { LENGTHS[(from + tag) % LENGTHS.len()] }
}

/// The thread that gets a message; each gets one with that tag.
fn receiver_of(from: usize, tag: usize, threads: usize) -> usize {
    (from + 1 + tag * 41) % threads
}

/// One process of `processes` on each node, with their names.
fn one_of_many(messages: &Messages, peers: &[Process], mine: usize, per: u32, count: u32) -> Outcome<()> {
    let all = peers.len() * per as usize;
    let endpoint = |n: usize| Endpoint { process: peers[n / per as usize], thread: (n % per as usize) as u32 };
    let threads = threads(messages, per)?;
    let number = |thread: usize| mine * per as usize + thread;
    // Nothing is sent to a process before it can receive.
    peers.iter().try_for_each(|process| messages.connect(*process, PATIENCE))?;
    run(
        &threads,
        |n, thread| {
            for tag in 0..count as usize {
                let (from, to) = (number(n), endpoint(receiver_of(number(n), tag, all)));
                let bytes = bytes::of(thread.endpoint(), to, tag as u32, length_of(from, tag));
                thread.send(to, tag as u32, &bytes)?;
            }
            Ok(())
        },
        |n, thread| {
            let mut buffer = vec![0; 2_095_872];
            for tag in 0..count as usize {
                let from = (0..all).find(|from| receiver_of(*from, tag, all) == number(n)).unwrap_or(0);
                let pattern = Pattern::exactly(endpoint(from), tag as u32);
                let got = thread.receive_timeout(pattern, &mut buffer, PATIENCE)?;
                bytes::check(&got, thread.endpoint(), length_of(from, tag), &buffer)?;
            }
            Ok(())
        },
    );
    Ok(())
}

pub(crate) fn many(options: &Options, nodes: u16, processes: u16, threads: u32, count: u32) -> Outcome<()> {
    let name = |process: u16| format!("many.{:?}.{process}", options.progress);
    // They open the device and have the memory of a process each, though they are threads of one.
    let opened = (0..processes).map(|_| open(options.clone())).collect::<Outcome<Vec<_>>>()?;
    let mut names = Vec::new();
    for (process, messages) in (0..).zip(&opened) {
        names.push(messages.publish(&name(process))?);
    }
    let mut peers = Vec::new();
    for node in 0..nodes {
        for process in 0..processes {
            peers.push(find(&opened[0], node, &name(process))?);
        }
    }
    let begun = Instant::now();
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let peers = &peers;
        let run = |messages| {
            let mine = peers.iter().position(|peer| *peer == Messages::process(messages)).unwrap_or(0);
            scope.spawn(move || one_of_many(messages, peers, mine, threads, count))
        };
        let running: Vec<_> = opened.iter().map(run).collect();
        running.into_iter().map(|process| process.join()).collect()
    });
    for outcome in outcomes {
        outcome.map_err(|_| Failure::Check("a thread has panicked".into()))??;
    }
    let all = peers.len() as u64 * u64::from(threads);
    let ports: Vec<_> = opened.iter().map(Messages::ports).collect();
    let seconds = begun.elapsed().as_secs_f64();
    println!("{all} threads over {ports:?} ports: {} messages in {seconds:.2} s", all * u64::from(count));
    Ok(())
}
