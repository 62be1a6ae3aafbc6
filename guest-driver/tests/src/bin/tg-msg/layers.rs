// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each layer adds to the one below: the same bytes there and back by the board's stores and copies alone, by
//! messages in each mode, and by programs of their own, which have a stream of bytes between the nodes, over whichever
//! network; in turn, round by round.

use crate::{PATIENCE, find, open, refused};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use telegraphos::{Node, Queue, Registration, Remote, RemoteQueue, Rights, Segment};
use telegraphos_guest_tests::cli::{Failure, Outcome};
use telegraphos_msg::{Endpoint, Handle, Memory, Messages, Options, Pattern, Process, Progress, Thread};

const SIZES: [usize; 5] = [0, 8, 1 << 10, 64 << 10, 1 << 20];
const MOST: usize = 1 << 20;
/// Bytes that are stored; more are copied by the board.
const STORED: usize = 4096;
/// Exchanges of a kind in a round: for so many bytes in all, at most.
const COUNT: u64 = 20;
const BYTES: u64 = 4 << 20;
/// Before those that count.
const WARMING: u64 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Stores or a copy, and an element: what messages are made of.
    Notify,
    Message(Progress),
}

const LAYERS: [(&str, Layer); 4] = [
    ("put and notify", Layer::Notify),
    ("message, adaptive", Layer::Message(Progress::Adaptive)),
    ("message, polling", Layer::Message(Progress::Polling)),
    ("message, blocking", Layer::Message(Progress::Blocking)),
];

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Refused(error.to_string())
}

/// One end of a layer: bytes go to the other end, and come from there.
trait End {
    fn send(&mut self, size: usize) -> Outcome<()>;
    fn receive(&mut self, size: usize) -> Outcome<()>;
    /// What was sent has been received.
    fn settled(&mut self) -> Outcome<()> {
        Ok(())
    }
}

/// What a node offers to the other one, and what it copies from.
struct Board {
    _segment: Segment,
    queue: Queue,
    own: Registration,
}

struct Notify<'a> {
    board: &'a Board,
    far: Remote,
    elements: RemoteQueue,
}

fn names(name: &str, place: usize) -> [String; 2] {
    [format!("layers.{name}.{place}"), format!("layers.{name}.{place}.q")]
}

impl Board {
    fn offer(node: &Node, name: &str, place: usize) -> Outcome<Board> {
        let [segment, queue] = names(name, place);
        let bytes = Box::leak(vec![0x5a; MOST].into_boxed_slice());
        Ok(Board {
            _segment: node.export(&segment, MOST as u64).create()?,
            queue: Queue::create(node, &queue).wide().words(64).quota(1).create()?,
            // SAFETY: it stays until the process ends, and only the board uses it.
            own: unsafe { node.register(std::ptr::from_mut(bytes)) }.create()?,
        })
    }

    fn connect(&self, node: &Node, name: &str, other: (u16, usize)) -> Outcome<Notify<'_>> {
        let [segment, queue] = names(name, other.1);
        let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
        let far = node.import(other.0, &segment).rights(rights).open()?;
        Ok(Notify { board: self, far, elements: Queue::import(node, other.0, &queue).open()? })
    }
}

impl End for Notify<'_> {
    fn send(&mut self, size: usize) -> Outcome<()> {
        if size <= STORED {
            let words = [7_u64; STORED / 8];
            return Ok(self.elements.put_notify(&self.far, 0, &words[..size / 8], 1)?);
        }
        self.far.put_block(0, &self.board.own, 0, size as u64)?;
        Ok(self.elements.enqueue(1)?)
    }

    fn receive(&mut self, _size: usize) -> Outcome<()> {
        match self.board.queue.pop_wait(Some(PATIENCE))? {
            Some(_) => Ok(()),
            None => Err(Failure::Refused(format!("no element has come in {PATIENCE:?}"))),
        }
    }
}

/// Memory of long messages is registered once. A send is not waited for: the answer says that it has arrived, as with
/// the other layers.
struct Message<'a> {
    thread: Thread<'a>,
    other: Option<Endpoint>,
    out: Memory,
    back: Memory,
    sent: Option<Handle>,
}

impl<'a> Message<'a> {
    fn of(messages: &'a Messages, other: Option<Process>) -> Outcome<Message<'a>> {
        let thread = messages.thread(2).map_err(refused)?;
        let other = other.map(|process| Endpoint { process, thread: 2 });
        Ok(Message { thread, other, out: vec![7; MOST].into(), back: vec![0; MOST].into(), sent: None })
    }

    /// The last message has been received.
    fn settle(&mut self) -> Outcome<()> {
        let Some(sent) = self.sent.take() else { return Ok(()) };
        let sent = sent.wait();
        sent.outcome.map_err(refused)?;
        if sent.memory.len() == MOST {
            self.out = sent.memory;
        }
        Ok(())
    }
}

impl End for Message<'_> {
    fn send(&mut self, size: usize) -> Outcome<()> {
        self.settle()?;
        let to = self.other.ok_or(Failure::Check("nobody has sent yet".into()))?;
        let sent = match size <= STORED {
            true => self.thread.send_copy(to, 0, &self.out[..size]),
            false => self.thread.send_dma(to, 0, std::mem::take(&mut self.out), size),
        };
        self.sent = Some(sent.map_err(refused)?);
        Ok(())
    }

    fn receive(&mut self, size: usize) -> Outcome<()> {
        let received = if size <= STORED {
            self.thread.receive_timeout(Pattern::default(), &mut self.back[..size], PATIENCE).map_err(refused)?
        } else {
            let ended = self.thread.receive_dma(Pattern::default(), std::mem::take(&mut self.back)).map_err(refused)?;
            let ended = ended.wait();
            self.back = ended.memory;
            ended.outcome.map_err(refused)?.ok_or(Failure::Check("a receive without a message".into()))?
        };
        self.other = Some(received.from);
        Ok(())
    }

    fn settled(&mut self) -> Outcome<()> {
        self.settle()
    }
}

/// A program with a stream to its like on the other node (`guest-driver/sockets/tests/stream.c`). It is another
/// process, since a library is preloaded into whole processes, and not into this one, which is static.
struct Stream {
    name: String,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Stream {
    /// Starts what `NAME=COMMAND` says.
    fn of(words: &str) -> Outcome<Stream> {
        let usage = || Failure::Usage(format!("--stream is {words:?}: expected NAME=COMMAND"));
        let (name, command) = words.split_once('=').ok_or_else(usage)?;
        let mut command = command.split_whitespace();
        let mut child = Command::new(command.next().ok_or_else(usage)?);
        let mut child = child.args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::Refused(format!("{name}: no pipes to its program")));
        };
        let mut stream = Stream { name: name.into(), child, orders, answers: BufReader::new(answers) };
        // So much goes the system's way before a direction goes through memory (docs/sockets.md).
        stream.exchange(64 << 10, 15, 1)?;
        Ok(stream)
    }

    /// Nanoseconds of an exchange.
    fn exchange(&mut self, size: usize, warming: u64, count: u64) -> Outcome<f64> {
        let Stream { name, orders, answers, .. } = self;
        // A stream does not carry nothing.
        writeln!(orders, "{} {warming} {count}", size.max(1)).map_err(failed)?;
        let mut line = String::new();
        answers.read_line(&mut line).map_err(failed)?;
        line.trim().parse().map_err(|_| Failure::Check(format!("{name}: {line:?}: expected nanoseconds")))
    }

    fn end(self) -> Outcome<()> {
        let Stream { name, mut child, orders, .. } = self;
        drop(orders);
        let status = child.wait().map_err(failed)?;
        if !status.success() {
            return Err(Failure::Check(format!("{name}: its program ended with {status}")));
        }
        Ok(())
    }
}

fn count_of(size: usize) -> u64 {
    (BYTES / size.max(1) as u64).clamp(2, COUNT)
}

/// Nanoseconds of an exchange.
fn exchange(end: &mut dyn End, size: usize) -> Outcome<f64> {
    let count = count_of(size);
    let mut begun = Instant::now();
    for n in 0..WARMING + count {
        if n == WARMING {
            begun = Instant::now();
        }
        end.send(size)?;
        end.receive(size)?;
    }
    let taken = begun.elapsed().as_nanos() as f64 / count as f64;
    end.settled()?;
    Ok(taken)
}

fn answer(end: &mut dyn End, size: usize) -> Outcome<()> {
    for _ in 0..WARMING + count_of(size) {
        end.receive(size)?;
        end.send(size)?;
    }
    end.settled()
}

/// The name of a process that is there while messages are measured in a mode.
fn in_mode(name: &str, mode: Progress) -> String {
    format!("{name}.{mode:?}")
}

/// Answers, until there is nothing more to measure.
pub(crate) fn partner(options: Options, name: &str) -> Outcome<()> {
    let node = Node::open()?;
    let board = Board::offer(&node, name, 1)?;
    let messages = open(options.clone())?;
    let control = messages.thread(1).map_err(refused)?;
    let _name = messages.publish(name).map_err(refused)?;
    println!("serving");
    let mut notify = None;
    loop {
        let mut order = [0; 2];
        let got = control.receive(Pattern::default(), &mut order).map_err(refused)?;
        let (Some((_, layer)), Some(size)) = (LAYERS.get(usize::from(order[0])), SIZES.get(usize::from(order[1])))
        else {
            return Ok(());
        };
        match layer {
            Layer::Notify => {
                if notify.is_none() {
                    notify = Some(board.connect(&node, name, (got.from.process.node, 0))?);
                }
                if let Some(end) = &mut notify {
                    answer(end, *size)?;
                }
            }
            Layer::Message(mode) => {
                let messages = open(Options { progress: *mode, ..options.clone() })?;
                let mut end = Message::of(&messages, None)?;
                let _name = messages.publish(&in_mode(name, *mode)).map_err(refused)?;
                answer(&mut end, *size)?;
                // It is told when the other one has the last answer.
                control.receive(Pattern::default(), &mut order).map_err(refused)?;
            }
        }
    }
}

/// Measures all layers of this process, and the programs `streams`.
pub(crate) fn layers(options: Options, other: u16, name: &str, rounds: u32, streams: &[String]) -> Outcome<()> {
    let node = Node::open()?;
    let board = Board::offer(&node, name, 0)?;
    let messages = open(options.clone())?;
    let control = messages.thread(1).map_err(refused)?;
    let to = Endpoint { process: find(&messages, other, name)?, thread: 1 };
    let order = |layer: usize, size: usize| control.send(to, 0, &[layer as u8, size as u8]).map_err(refused);
    let mut streams = streams.iter().map(|words| Stream::of(words)).collect::<Outcome<Vec<_>>>()?;
    let mut notify = board.connect(&node, name, (other, 1))?;
    let mut values: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for _ in 0..rounds {
        for (s, size) in SIZES.into_iter().enumerate() {
            for (n, (_, layer)) in LAYERS.into_iter().enumerate() {
                order(n, s)?;
                let taken = match layer {
                    Layer::Notify => exchange(&mut notify, size)?,
                    Layer::Message(progress) => {
                        let messages = open(Options { progress, ..options.clone() })?;
                        let process = find(&messages, other, &in_mode(name, progress))?;
                        let taken = exchange(&mut Message::of(&messages, Some(process))?, size)?;
                        // When the other one has it, it knows that its last answer has come, which it would not if this
                        // process were gone.
                        order(n, s)?;
                        drop(messages);
                        taken
                    }
                };
                values.entry((n, s)).or_default().push(taken);
            }
            for (n, stream) in streams.iter_mut().enumerate() {
                let taken = stream.exchange(size, WARMING, count_of(size))?;
                values.entry((LAYERS.len() + n, s)).or_default().push(taken);
            }
        }
    }
    order(LAYERS.len(), 0)?;
    let names = LAYERS.iter().map(|(name, _)| *name).chain(streams.iter().map(|stream| stream.name.as_str()));
    print(&names.collect::<Vec<_>>(), &mut values);
    streams.into_iter().try_for_each(Stream::end)
}

/// Medians of microseconds there and back, with the middle eight tenths, and as multiples of the lowest layer.
fn print(layers: &[&str], values: &mut BTreeMap<(usize, usize), Vec<f64>>) {
    let mut medians = BTreeMap::new();
    println!("{:20} {}", "us there and back", SIZES.map(|size| format!("{:>32}", format!("{size} B"))).concat());
    for (n, layer) in layers.iter().enumerate() {
        let mut line = format!("{layer:20} ");
        for s in 0..SIZES.len() {
            let Some(times) = values.get_mut(&(n, s)) else { continue };
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times[(times.len() - 1) * part / 100] / 1e3;
            medians.insert((n, s), at(50));
            let times = medians.get(&(0, s)).map_or(1.0, |lowest| at(50) / lowest);
            line += &format!("{:>32}", format!("{:.0} ({:.0} to {:.0}) {times:.2}x", at(50), at(10), at(90)));
        }
        println!("{line}");
    }
}
