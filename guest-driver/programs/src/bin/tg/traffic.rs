// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traffic of one layer between two nodes, round after round, whatever becomes of their boards.
//!
//! What this node has for the other one lasts as long as its own board does: if it ended whenever the other one's ends,
//! the two would take it from each other again and again.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};
use telegraphos::{Error, Local, Node, NodeId, Queue, Remote, ReplicaMode, Replicated, Segment, copy};
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};

pub(crate) const USAGE: &str = "\
tg-traffic: traffic of one layer with another node, again and again, whatever becomes of the boards

Usage: tg-traffic PEER LAYER FILE [--seconds S]      (at the same time on node PEER with this node's id)

  LAYER          windows, copies, registrations, queues or replicas
  FILE           gets one byte for each round that went well; FILE.why has what was refused last
  --seconds S    how long [3600]

A round stores, loads or copies some words, and checks them. Where something is refused, as when a board has gone, all is
made anew. A board that goes under a window ends the program by SIGBUS: start it again.
Exit codes: 0 done, 1 a round found wrong words, 2 usage, 3 no board, no driver.

Example: tg-traffic 1 copies /tmp/copies
";

/// How long a round may wait for the other node.
const PATIENCE: Duration = Duration::from_secs(20);
const BYTES: u64 = 64 << 10;
/// Between two rounds: the processor is for all layers.
const PAUSE: Duration = Duration::from_millis(200);

/// Why no more rounds come of what there is.
enum Stop {
    /// It is to be made anew; the reason.
    Anew(String),
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Anew(e.to_string())
    }
}

type Round = Result<(), Stop>;

fn same(what: &str, found: u64, expected: u64) -> Round {
    match found == expected {
        true => Ok(()),
        // What a window without its board returns.
        false if found == u64::MAX => Err(Stop::Anew(format!("{what} is all ones"))),
        false => Err(Stop::Wrong(format!("{what} is {found:#x}: expected {expected:#x}"))),
    }
}

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut seconds = Duration::from_secs(3600);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "seconds" => seconds = line.seconds("--seconds")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let words = line.words();
    let [peer, layer, file] = words[..] else {
        return Err(Failure::Usage(format!("arguments {words:?}: expected PEER LAYER FILE")));
    };
    let peer = cli::number("PEER", peer)?;
    let layer = match layer {
        "windows" => windows,
        "copies" => copies,
        "registrations" => registrations,
        "queues" => queues,
        "replicas" => replicas,
        other => return Err(Failure::Usage(format!("layer {other:?}: see --help"))),
    };
    drop(Node::open()?);
    let rounds = File::options().create(true).append(true).open(file);
    let rounds = rounds.map_err(|e| Failure::Refused(format!("{file}: {e}")))?;
    let end = Instant::now() + seconds;
    let count = || {
        // A full disk costs the count, not the traffic.
        let _ = (&rounds).write_all(b".");
        std::thread::sleep(PAUSE);
        Instant::now() < end
    };
    while Instant::now() < end {
        match layer(peer, &count) {
            Ok(()) => return Ok(()),
            Err(Stop::Wrong(text)) => return Err(Failure::Check(text)),
            Err(Stop::Anew(why)) => {
                // As above.
                let _ = std::fs::write(format!("{file}.why"), why);
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
    Ok(())
}

/// Rounds until the time is over, or something is refused.
type Layer<'a> = &'a dyn Fn() -> bool;

/// What the other node has, as soon as it is there, and rounds over it; imported again when it has gone, for as long as
/// this node's board is there.
fn over<R>(node: &Node, import: impl Fn() -> Result<R, Error>, mut rounds: impl FnMut(&R) -> Round) -> Round {
    loop {
        let end = Instant::now() + PATIENCE;
        let imported = loop {
            match import() {
                Ok(imported) => break imported,
                Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(e.into()),
            }
        };
        match rounds(&imported) {
            Err(Stop::Anew(_)) if node.info().is_ok() => {}
            ended => return ended,
        }
    }
}

/// Rounds until the time is over.
fn each(more: Layer<'_>, mut round: impl FnMut() -> Round) -> Round {
    loop {
        round()?;
        if !more() {
            return Ok(());
        }
    }
}

/// This node's segment, which is there for the other one's rounds, and rounds over the other one's.
fn pair(node: &Node, peer: NodeId, name: &str, mut rounds: impl FnMut(&Segment, &Remote) -> Round) -> Round {
    let segment = node.export(name, BYTES).mode(0o606).create()?;
    over(node, || node.import(peer, name).open(), |remote| rounds(&segment, remote))
}

fn windows(peer: NodeId, more: Layer<'_>) -> Round {
    let node = Node::open()?;
    let mut number = 0;
    pair(&node, peer, "traffic-windows", |_, remote| {
        each(more, || {
            for word in 0..512 {
                number += 1;
                remote.put64(word * 8, number)?;
            }
            remote.quiet_timeout(PATIENCE)?;
            same("a stored word", remote.get64(511 * 8)?, number)?;
            let before = remote.fetch_add::<u64>(511 * 8, 1)?;
            same("a word that an atomic returns", before, number)
        })
    })
}

/// To the other node and back.
fn there_and_back(remote: &Remote, memory: &impl Local, check: impl Fn() -> Round) -> Round {
    remote.put_block(4096, memory, 0, 8192)?;
    remote.get_block(4096, memory, 8192, 8192)?;
    check()
}

fn copies(peer: NodeId, more: Layer<'_>) -> Round {
    let node = Node::open()?;
    let own = node.export("traffic-copies-own", BYTES).create()?;
    let mut number = 1;
    pair(&node, peer, "traffic-copies", |segment, remote| {
        each(more, || {
            number += 1;
            own.store(8184, number)?;
            there_and_back(remote, &own, || same("a copied word", own.load(16376)?, number))?;
            copy(own.remote()?, 32768, own.remote()?, 0, 8192)?;
            Ok(segment.store(0, number)?)
        })
    })
}

fn registrations(peer: NodeId, more: Layer<'_>) -> Round {
    let node = Node::open()?;
    let mut words = vec![0_u64; 4096];
    let mut number = 1;
    pair(&node, peer, "traffic-registrations", |_, remote| {
        each(more, || {
            number += 1;
            words[1023] = number;
            let bytes = std::ptr::slice_from_raw_parts_mut(words.as_mut_ptr().cast(), 32768);
            // SAFETY: no reference to the memory exists while it is registered.
            let registered = unsafe { node.register(bytes) }.create()?;
            there_and_back(remote, &registered, || Ok(()))?;
            registered.close()?;
            same("a copied word", words[2047], number)
        })
    })
}

fn queues(peer: NodeId, more: Layer<'_>) -> Round {
    const NAME: &str = "traffic-queues";
    let node = Node::open()?;
    let queue = Queue::create(&node, NAME).words(64).quota(4).mode(0o606).create()?;
    let mut seen = 0;
    let import = || Queue::import(&node, peer, NAME).open();
    over(&node, import, |sender| {
        let mut sent = 0;
        each(more, || {
            for _ in 0..32 {
                sent += 1;
                sender.enqueue(sent)?;
            }
            // The other one has taken them, or its queue holds them: this node takes what it has meanwhile.
            while let Some(found) = queue.try_pop()? {
                // A new sender begins with 1.
                if found != seen + 1 && found != 1 {
                    return Err(Stop::Wrong(format!("element {found} comes behind {seen}")));
                }
                seen = found;
            }
            Ok(sender.quiet_timeout(PATIENCE)?)
        })
    })
}

fn replicas(peer: NodeId, more: Layer<'_>) -> Round {
    const NAME: &str = "traffic-replicas";
    let node = Node::open()?;
    let mode = ReplicaMode::Counters;
    let home = Replicated::create(&node, NAME, BYTES).replica_mode(mode).mode(0o606).create()?;
    // Both nodes store to both segments, each to a word of its own.
    let own = u64::from(node.id()) * 8;
    let mut number = 0;
    let join = || Replicated::join(&node, peer, NAME).replica_mode(mode).open();
    over(&node, join, |copy| {
        each(more, || {
            [&home, copy].into_iter().try_for_each(|segment| {
                number += 1;
                segment.store(own, number)?;
                segment.quiet_timeout(PATIENCE)?;
                same("a word of a copy", segment.load(own)?, number)
            })
        })
    })
}
