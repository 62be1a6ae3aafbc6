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
use std::time::{Duration, Instant};
use telegraphos::Node;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_msg::{
    Config, Error, Failure as Ended, Handle, Memory, Messages, Options, Process, Progress, Routing, Way,
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
                options.config.way = match line.text()?.as_str() {
                    "get" => Way::Get,
                    "put" => Way::Put,
                    other => return Err(Failure::Usage(format!("--way is {other:?}: expected get or put"))),
                }
            }
            "paper" => {
                // An inbox is locked memory, of which users have little.
                options.config = Config { way: options.config.way, slots: 16, ..Config::paper() };
            }
            "slots" => slots = Some(cli::number("--slots", &line.text()?)?),
            "eager" => eager = Some(cli::number("--eager", &line.text()?)?),
            "sizes" => {
                sizes = line.text()?.split(',').map(|size| cli::number("--sizes", size)).collect::<Outcome<_>>()?;
            }
            "stream" => streams.push(line.text()?),
            "no-yield" => options.yields = false,
            "ports" => options.ports = cli::number("--ports", &line.text()?)?,
            "processes" => processes = cli::number("--processes", &line.text()?)?,
            "progress" => {
                options.progress = match line.text()?.as_str() {
                    "polling" => Progress::Polling,
                    "blocking" => Progress::Blocking,
                    "adaptive" => Progress::Adaptive,
                    other => {
                        let expected = "expected polling, blocking or adaptive";
                        return Err(Failure::Usage(format!("--progress is {other:?}: {expected}")));
                    }
                }
            }
            "key-file" => routing.key = routes::key(&line.text()?)?,
            "neighbour" => routing.neighbours.push(line.text()?),
            "listen" => routing.listen = Some(line.text()?),
            "first-node" => routing.first_node = cli::number("--first-node", &line.text()?)?,
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
            let (nodes, threads) = (routes::nodes(nodes)?, cli::number("THREADS", threads)?);
            all::all(options, &nodes, threads, cli::number("COUNT", count)?)
        }
        ["many", nodes, threads, count] => {
            let (nodes, threads) = (cli::number("NODES", nodes)?, cli::number("THREADS", threads)?);
            all::many(&options, nodes, processes, threads, cli::number("COUNT", count)?)
        }
        ["serve", name] => pair::serve(options, name),
        ["send", node, name, tag, bytes] => {
            let (node, tag) = (cli::number("NODE", node)?, cli::number("TAG", tag)?);
            pair::send(options, node, name, tag, cli::number("BYTES", bytes)?)
        }
        ["wide", node, name] => pair::wide(options, cli::number("NODE", node)?, name),
        ["echo", name] => pair::echo(options, name),
        ["pair", node, name, count, bytes] => {
            let (node, count) = (cli::number("NODE", node)?, cli::number("COUNT", count)?);
            pair::exchange(options, node, name, count, cli::number("BYTES", bytes)?)
        }
        ["sink", name, bytes, first] => {
            batches::sink(options, name, cli::number("BYTES", bytes)?, batches::first(first)?)
        }
        ["batches", node, name, count, bytes, first] => {
            let (node, count) = (cli::number("NODE", node)?, cli::number("COUNT", count)?);
            batches::batches(options, (node, name), count, cli::number("BYTES", bytes)?, batches::first(first)?)
        }
        ["threshold", node, name, count] => {
            pair::threshold(options, cli::number("NODE", node)?, name, cli::number("COUNT", count)?)
        }
        ["full", node, name, other, other_name, count] => {
            let (node, other) = (cli::number("NODE", node)?, cli::number("OTHER-NODE", other)?);
            pair::full(options, (node, name), (other, other_name), cli::number("COUNT", count)?)
        }
        ["receiver", name, state] => deaths::receiver(options, name, State::of(state)?),
        ["sender", node, name, state] => deaths::sender(options, cli::number("NODE", node)?, name, State::of(state)?),
        ["partner", name] => layers::partner(options, name),
        ["layers", node, name, rounds] => {
            let (node, rounds) = (cli::number("NODE", node)?, cli::number("ROUNDS", rounds)?);
            layers::layers(options, (node, name), rounds, &sizes, &streams)
        }
        ["bounds"] => papers::bounds(),
        ["taker", name] => papers::taker(options, name),
        ["rendezvous", node, name] => papers::rendezvous(options, cli::number("NODE", node)?, name),
        ["single", node, name] => papers::single(options, cli::number("NODE", node)?, name),
        ["ports"] => ports::ports(),
        ["wrong"] => wrong::wrong(),
        ["gateway", name] => routes::gateway(options, name),
        ["far", node, name] => routes::far(options, cli::number("NODE", node)?, name),
        ["keyless", address] => routes::keyless(address),
        ["lies", node, name] => hostile::lies(cli::number("NODE", node)?, name),
        ["lends", name] => hostile::lends(options, name),
        ["lingers", node, name] => hostile::lingers(cli::number("NODE", node)?, name, options.config.way),
        ["intrudes", node, memory] => hostile::intrudes(cli::number("NODE", node)?, memory),
        ["nowhere", node, name] => hostile::nowhere(cli::number("NODE", node)?, name),
        _ => Err(Failure::Usage(format!("arguments {words:?}: expected a command and what it needs"))),
    }
}

pub(crate) fn refused(error: Error) -> Failure {
    match error {
        Error::Failed(Ended::Gone) => Failure::Check("the other process has gone".into()),
        error => Failure::Refused(error.to_string()),
    }
}

pub(crate) fn open(options: impl Into<Options>) -> Outcome<Messages> {
    Messages::open(Node::open()?, options).map_err(refused)
}

/// Waits for the end of a send or a receive, which has not failed; its memory.
pub(crate) fn ended(handle: Handle) -> Outcome<Memory> {
    let ended = handle.wait();
    ended.outcome.map_err(refused)?;
    Ok(ended.memory)
}

/// Waits for the process of that name on a node.
pub(crate) fn find(messages: &Messages, node: u16, name: &str) -> Outcome<Process> {
    let begun = Instant::now();
    loop {
        match messages.find(node, name) {
            Ok(process) => return Ok(process),
            Err(error) if begun.elapsed() > PATIENCE => return Err(refused(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
