// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between threads of processes on several nodes, checked.

mod all;
mod batches;
mod bytes;
mod deaths;
mod hostile;
mod layers;
mod pair;
mod papers;
mod ports;
mod routes;
mod wrong;

use deaths::State;
use std::time::Duration;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, number};
use telegraphos_guest_tests::messages::{self, open};
use telegraphos_msg::{
    Config, Endpoint, Handle, Memory, Messages, Name, Options, Process, Progress, Routing, Thread, Way,
};

pub(crate) const USAGE: &str = "\
tg-msg: messages between threads of processes

Usage: tg-msg all NODES THREADS COUNT [OPTIONS]
                                   on each of the nodes 0 to NODES-1, or those of a list, as 0-3,1000-1003: each thread sends each of all others, and
                                   itself, COUNT messages of up to 200 000 bytes, which are checked
       tg-msg many NODES THREADS COUNT [--processes N] [OPTIONS]
                                   the same with N processes on each node, but each thread sends COUNT messages to as
                                   many threads; some have 2 095 872 bytes
       tg-msg serve NAME [OPTIONS] has a name and thread 1, which receives a message when a line is entered, or as many
                                   as that says
       tg-msg send NODE NAME TAG BYTES [OPTIONS]
                                   sends thread 1 of that process a message, and waits until it has it
       tg-msg wide NODE NAME       sends such a process messages from more memory than the window of a node has room for
       tg-msg echo NAME [OPTIONS]  has a name and thread 1, which sends messages back, until one with tag 1
       tg-msg pair NODE NAME COUNT BYTES [OPTIONS]
                                   exchanges COUNT messages with such a process, and says how long one took
       tg-msg takes NAME COUNT BYTES
       tg-msg gives NODE NAME COUNT BYTES
                                   sends such a process messages, which that compares with what they are to be
       tg-msg sink NAME BYTES receives-first|sends-first
       tg-msg batches NODE NAME COUNT BYTES receives-first|sends-first [OPTIONS]
                                   sends such a process batches of 8 messages: one, and COUNT when a line is entered;
                                   ends at another line
       tg-msg full NODE NAME OTHER-NODE OTHER-NAME COUNT [OPTIONS]
                                   sends COUNT messages to a process that does not receive (`serve`), meanwhile others
                                   to one that does (`echo`); then waits for the first to be received
       tg-msg receiver NAME STATE [OPTIONS]
       tg-msg sender NODE NAME STATE [OPTIONS]
                                   bring each other into a state in which one of them may be killed, and say how it
                                   ended then: short or long (a message has arrived that is not received), full (as
                                   many as there are slots, and more), cleared (a long one is to be stored),
                                   amid-receiver-dies and amid-sender-dies (some of its bytes are there: that one kills
                                   itself), endless (one after the other)
       tg-msg partner NAME            answers what `layers` measures
       tg-msg layers NODE NAME ROUNDS [--sizes N,N...] [--stream NAME=COMMAND]...
                                   what each layer takes there and back, of 0 bytes to 1 MiB, by the board alone, by
                                   messages, and by such programs: for a line \"SIZE WARMING COUNT\" of its input each
                                   says how many nanoseconds there and back take
       tg-msg threshold NODE NAME COUNT [OPTIONS]
                                   exchanges COUNT messages of each length around the threshold between slots and
                                   requests with such a process (`echo`), and says where it is: with memory that may be
                                   locked, then without at the other process, then without at both
       tg-msg bounds               the longest message of the paper's profile, and one that is longer, to itself
       tg-msg taker NAME           takes messages as `rendezvous` or `single` tells it
       tg-msg rendezvous NODE NAME
                                   that a send to such a process ends when its bytes have been taken, in the order of
                                   the receives (s2)
       tg-msg single NODE NAME     a second send waits until the first one's message has been used (s2)
       tg-msg lies NODE NAME       tells such a process (`serve`) lies
       tg-msg nowhere NODE NAME    sends it a message whose bytes are nowhere
       tg-msg lends NAME           sends a process long messages from memory that it uses for something else afterwards
       tg-msg lingers NODE NAME    still uses later what such a process has sent it, or let it store
       tg-msg intrudes NODE MEMORY the same of a third node, which has the name
       tg-msg wrong                what cannot be done, and what that says
       tg-msg ports                that one port does not do where a thread blocks in it, and two do (s4)
       tg-msg gateway NAME         passes on what neighbours say to each other, and says whom it reaches, until its input
                                   ends
       tg-msg far NODE NAME        what cannot be done with such a process (`serve`) of another cluster
       tg-msg keyless ADDRESS      connects to a gateway without having the key, in several ways

Options: --way get|put             who moves the bytes of long messages
         --paper                   blocks of 64 KiB, and no message of more than 32 of them
         --eager N                 messages of up to N bytes go to slots, and no longer ones
         --slots N                 messages that a process may have at another one
         --ports N                 queues of a process, at most
         --progress polling|blocking|adaptive
         --no-yield                threads that look for messages keep the processor between two looks
         --key-file FILE           what all processes that route have in common, 16 bytes or more
         --neighbour HOST:PORT     a process that tells which others it reaches; may be said more than once
         --listen HOST:PORT        where neighbours connect to
         --first-node N            the number of this cluster's node 0 among the nodes of all clusters

Exit codes: 0 done, 1 something was lost or changed, or the other process has gone, 2 usage, 3 refused.
";

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    let (mut options, mut slots, mut processes) = (Options::default(), None, 1);
    let mut routing = Routing::default();
    let (mut streams, mut sizes, mut eager) = (Vec::new(), layers::SIZES.to_vec(), None);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "way" => {
                options.config.way = line.one_of("--way", [("get", Way::Get), ("put", Way::Put)], "get or put")?;
            }
            "paper" => {
                // An inbox is locked memory, of which users have little.
                options.config = Config { way: options.config.way, slots: 16, ..Config::paper() };
            }
            "slots" => slots = Some(line.number("--slots")?),
            "eager" => eager = Some(line.number("--eager")?),
            "sizes" => {
                sizes = line.text()?.split(',').map(|size| number("--sizes", size)).collect::<Outcome<_>>()?;
            }
            "stream" => streams.push(line.text()?),
            "no-yield" => options.yields = false,
            "ports" => options.ports = line.number("--ports")?,
            "processes" => processes = line.number("--processes")?,
            "progress" => {
                let ways = [
                    ("polling", Progress::Polling),
                    ("blocking", Progress::Blocking),
                    ("adaptive", Progress::Adaptive),
                ];
                options.progress = line.one_of("--progress", ways, "polling, blocking or adaptive")?;
            }
            "key-file" => routing.key = routes::key(&line.text()?)?,
            "neighbour" => routing.neighbours.push(line.text()?),
            "listen" => routing.listen = Some(line.text()?),
            "first-node" => routing.first_node = line.number("--first-node")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    routing.gateway = words.first().is_some_and(|word| *word == "gateway");
    options.routing = (routing != Routing::default()).then_some(routing);
    options.config.slots = slots.unwrap_or(options.config.slots);
    if let Some(eager) = eager {
        (options.config.eager, options.config.eager_floor) = (eager, eager);
    }
    match words[..] {
        ["all", nodes, threads, count] => {
            all::all(options, &routes::nodes(nodes)?, number("THREADS", threads)?, number("COUNT", count)?)
        }
        ["many", nodes, threads, count] => {
            let (nodes, threads) = (number("NODES", nodes)?, number("THREADS", threads)?);
            all::many(&options, nodes, processes, threads, number("COUNT", count)?)
        }
        ["serve", name] => pair::serve(options, name),
        ["send", node, name, tag, bytes] => {
            pair::send(options, number("NODE", node)?, name, number("TAG", tag)?, number("BYTES", bytes)?)
        }
        ["wide", node, name] => pair::wide(options, number("NODE", node)?, name),
        ["takes", name, count, bytes] => pair::takes(options, name, number("COUNT", count)?, number("BYTES", bytes)?),
        ["gives", node, name, count, bytes] => {
            let (node, count) = (number("NODE", node)?, number("COUNT", count)?);
            pair::gives(options, node, name, count, number("BYTES", bytes)?)
        }
        ["echo", name] => pair::echo(options, name),
        ["pair", node, name, count, bytes] => {
            pair::exchange(options, number("NODE", node)?, name, number("COUNT", count)?, number("BYTES", bytes)?)
        }
        ["sink", name, bytes, first] => batches::sink(options, name, number("BYTES", bytes)?, batches::first(first)?),
        ["batches", node, name, count, bytes, first] => {
            let (node, count) = (number("NODE", node)?, number("COUNT", count)?);
            batches::batches(options, (node, name), count, number("BYTES", bytes)?, batches::first(first)?)
        }
        ["threshold", node, name, count] => {
            pair::threshold(options, number("NODE", node)?, name, number("COUNT", count)?)
        }
        ["full", node, name, other, other_name, count] => {
            let (node, other) = (number("NODE", node)?, number("OTHER-NODE", other)?);
            pair::full(options, (node, name), (other, other_name), number("COUNT", count)?)
        }
        ["receiver", name, state] => deaths::receiver(options, name, State::of(state)?),
        ["sender", node, name, state] => deaths::sender(options, number("NODE", node)?, name, State::of(state)?),
        ["partner", name] => layers::partner(options, name),
        ["layers", node, name, rounds] => {
            layers::layers(options, (number("NODE", node)?, name), number("ROUNDS", rounds)?, &sizes, &streams)
        }
        ["bounds"] => papers::bounds(),
        ["taker", name] => papers::taker(options, name),
        ["rendezvous", node, name] => papers::rendezvous(options, number("NODE", node)?, name),
        ["single", node, name] => papers::single(options, number("NODE", node)?, name),
        ["ports"] => ports::ports(),
        ["wrong"] => wrong::wrong(),
        ["gateway", name] => routes::gateway(options, name),
        ["far", node, name] => routes::far(options, number("NODE", node)?, name),
        ["keyless", address] => routes::keyless(address),
        ["lies", node, name] => hostile::lies(number("NODE", node)?, name),
        ["lends", name] => hostile::lends(options, name),
        ["lingers", node, name] => hostile::lingers(number("NODE", node)?, name, options.config.way),
        ["intrudes", node, memory] => hostile::intrudes(number("NODE", node)?, memory),
        ["nowhere", node, name] => hostile::nowhere(number("NODE", node)?, name),
        _ => Err(Failure::Usage(format!("arguments {words:?}: expected a command and what it needs"))),
    }
}

/// Waits for the end of a send or a receive, which has not failed; its memory.
pub(crate) fn ended(handle: Handle) -> Outcome<Memory> {
    let ended = handle.wait();
    ended.outcome?;
    Ok(ended.memory)
}

/// Has a thread that receives, and a name under which it is found.
fn serving<'m>(messages: &'m Messages, name: &str) -> Outcome<(Thread<'m>, Name)> {
    let served = (messages.thread(1)?, messages.publish(name)?);
    println!("serving");
    Ok(served)
}

fn must(is_so: bool, otherwise: &str) -> Outcome<()> {
    cli::check(is_so, || otherwise.into())
}

/// A thread of this process, and thread 1 of that of a name.
fn reaching<'m>(messages: &'m Messages, node: u16, name: &str) -> Outcome<(Thread<'m>, Endpoint)> {
    let thread = messages.thread(1)?;
    Ok((thread, Endpoint { process: find(messages, node, name)?, thread: 1 }))
}

/// Waits for the process of that name on a node.
pub(crate) fn find(messages: &Messages, node: u16, name: &str) -> Outcome<Process> {
    messages::find(messages, node, name, PATIENCE)
}
