// SPDX-License-Identifier: MIT OR Apache-2.0
//! One guest's process of the demonstration: it makes the steps that `telegraphos demo` requests, and checks them.
//!
//! A program of its own: a first `telegraphos demo` builds no other one of the guests' (`Programs::Demo` of
//! `telegraphos-images`).
//!
//! Expected values are random: both ends of a step derive them from a seed that comes with the command.

mod pattern;
mod steps;

use std::process::ExitCode;
use std::time::Duration;
use steps::Demo;
use telegraphos::{Node, NodeId};
use telegraphos_guest_tests::cli::{self, Line, Outcome};
use telegraphos_guest_tests::peers::import_patiently;
use telegraphos_guest_tests::user;

const USAGE: &str = "\
tg-demo: one guest's process of `telegraphos demo`

Usage: tg-demo                         (makes what it shares, then reads commands, one a line)
       tg-demo --until-gone NODE       (stores to that node's segment without pause, until it is gone: SIGBUS)

Commands; each is answered by one line, {\"step\":{\"node\":0,\"step\":\"store\",\"count\":9,\"ns\":10000,\"wrong\":0}}:
  connect                 imports what the other nodes share; again, what a node shares that was away
  store NODE SEED         stores of 8 to 64 bits, and a long run; returns when they have arrived
  compare SEED            those that another node has stored here
  fill SEED               its own memory, for others to load
  load NODE SEED COUNT    loads of 8 to 64 bits
  atomic COUNT            fetch-and-increments of one word at node 0: each result is a ticket
  mark                    stores into the place of each of its tickets
  tickets COUNT           node 0: whether each place has a mark
  enqueue COUNT           appends to the queue of node 2, and waits for nothing
  dequeue COUNT SENDERS   node 2: takes them out, each sender's in order
  paint COUNT             stores to the replicated page, each to the one word that all nodes store to, and watches it
  look                    what it saw: counts values older than one that it had seen before
  digest                  checksum of the copy of the replicated page
  quiet                   until everything has arrived
  return NODE SEED COUNT  stores of 64 bits to a node that was away
  arrived SEED COUNT      those that nodes 0 and 1 have so stored here, with nothing else around them
`break` at the end of a command makes the deliberate fault that its check must find.
A wrong word is named on stderr with node, offset, expected and found value. Without input it ends.

Run by root, it becomes user 1000 in the device's group first.
Exit codes: 0 done, 2 usage, 3 board, driver or peer refused.

Example: telegraphos demo
";

/// How long to wait for what another node shares.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    cli::main("tg-demo", USAGE, run)
}

fn run(mut line: Line) -> Outcome<()> {
    let mut gone = None;
    while let Some(name) = line.next_option()? {
        match name.as_str() {
            "until-gone" => gone = Some(line.number("--until-gone")?),
            _ => return Err(cli::unknown(&name)),
        }
    }
    line.only([])?;
    user::leave_root()?;
    let node = Node::open()?;
    match gone {
        Some(peer) => until_gone(&node, peer),
        None => obey(Demo::new(node)?),
    }
}

/// Stores until the window is taken away: SIGBUS ends the process.
fn until_gone(node: &Node, peer: NodeId) -> Outcome<()> {
    let remote = import_patiently(node, peer, steps::DATA, PATIENCE)?;
    remote.put64(pattern::SPARE, 1)?;
    remote.quiet()?;
    println!("storing");
    for value in 2.. {
        remote.put64(pattern::SPARE, value)?;
        // At a pace that needs no processor.
        if value % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

fn obey(mut demo: Demo) -> Outcome<()> {
    println!("ready");
    for line in cli::lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((name, arguments)) = words.split_first() else { continue };
        let (arguments, broken) = match arguments.split_last() {
            Some((&"break", rest)) => (rest, true),
            _ => (arguments, false),
        };
        let numbers = arguments.iter().map(|word| cli::number(name, word)).collect::<Outcome<Vec<u64>>>()?;
        let step = demo.step(name, &numbers, broken)?;
        println!("{}", step.line());
    }
    Ok(())
}
