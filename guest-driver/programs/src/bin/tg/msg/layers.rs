// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each layer adds to the one below: the same bytes there and back by the board's stores and copies alone, by
//! messages each way and in each mode, and by programs of their own, which have a stream of bytes between the nodes,
//! over whichever network; in turn, round by round. After those that count, one more exchange is compared.

use super::{PATIENCE, ended, find, open, reaching, serving};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;
use telegraphos::{Node, Queue, Registration, Remote, RemoteQueue, Rights, Segment};
use telegraphos_guest_tests::cli::{self, Failure, Outcome, refused};
use telegraphos_msg::{Config, Endpoint, Handle, Memory, Messages, Options, Pattern, Process, Progress, Thread, Way};

/// Unless others are asked for.
pub(crate) const SIZES: [usize; 5] = [0, 8, 1 << 10, 64 << 10, 1 << 20];
const MOST: usize = 1 << 20;
/// Bytes that are stored; more are copied by the board.
const STORED: usize = 4096;
/// Exchanges of a kind in a round: for so many bytes in all, at most.
const COUNT: u64 = 20;
const BYTES: u64 = 4 << 20;
/// Before those that count.
const WARMING: u64 = 3;
/// The same where the threshold between slots and requests settles.
const SETTLING: u64 = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Stores or a copy, and an element: what messages are made of.
    Notify,
    /// Bytes go to slots, however many there are.
    Eager,
    /// All messages that have bytes are requests.
    Rendezvous(Way),
    /// As threads use them: each message goes as has been faster.
    Message(Progress),
}

/// Each layer with those that it stands on, of which the fastest counts.
const LAYERS: [(&str, Layer, &[usize]); 7] = [
    ("put and notify", Layer::Notify, &[]),
    ("message, eager", Layer::Eager, &[0]),
    ("message, rendezvous, get", Layer::Rendezvous(Way::Get), &[0]),
    ("message, rendezvous, put", Layer::Rendezvous(Way::Put), &[0]),
    ("threads, blocking", Layer::Message(Progress::Blocking), &[1, 2]),
    ("threads, polling", Layer::Message(Progress::Polling), &[1, 2]),
    ("threads, adaptive", Layer::Message(Progress::Adaptive), &[1, 2]),
];
/// What programs with streams stand on.
const BELOW_STREAMS: &[usize] = &[0];

impl Layer {
    /// Exchanges before those that count.
    fn warming(self, size: usize) -> u64 {
        if matches!(self, Layer::Message(_)) && size as u64 <= Config::default().eager { SETTLING } else { WARMING }
    }

    /// How messages are opened for it; all that are of one way only are waited for alike.
    fn options(self, options: &Options) -> Options {
        let blocking = Options { progress: Progress::Blocking, ..options.clone() };
        let room = MOST as u64;
        let config = match self {
            Layer::Notify => return blocking,
            Layer::Message(progress) => return Options { progress, ..options.clone() },
            // Slots for the longest message: what it takes at once, no longer message waits for.
            Layer::Eager => {
                Config { slots: 16, block: 64 << 10, fragments: 16, eager: room, eager_floor: room, ..blocking.config }
            }
            Layer::Rendezvous(way) => Config { eager: 0, eager_floor: 0, way, ..blocking.config },
        };
        Options { config, ..blocking }
    }
}

/// One end of a layer: bytes go to the other end, and come from there.
trait End {
    fn send(&mut self, size: usize) -> Outcome<()>;
    fn receive(&mut self, size: usize) -> Outcome<()>;
    fn fill(&mut self, bytes: &[u8]) -> Outcome<()>;
    /// What has been received last.
    fn got(&mut self, size: usize) -> Outcome<Vec<u8>>;
    /// What was sent has been received.
    fn settled(&mut self) -> Outcome<()> {
        Ok(())
    }
}

/// What a node offers to the other one, and what it copies from.
struct Board {
    segment: Segment,
    queue: Queue,
    own: Registration,
    bytes: *mut [u8],
}

struct Notify<'a> {
    board: &'a Board,
    far: Remote,
    elements: RemoteQueue,
    /// What is stored, not copied.
    words: Vec<u64>,
}

fn names(name: &str, place: usize) -> [String; 2] {
    [format!("layers.{name}.{place}"), format!("layers.{name}.{place}.q")]
}

impl Board {
    fn offer(node: &Node, name: &str, place: usize) -> Outcome<Board> {
        let [segment, queue] = names(name, place);
        let bytes: *mut [u8] = Box::leak(vec![0x5a; MOST].into_boxed_slice());
        Ok(Board {
            segment: node.export(&segment, MOST as u64).create()?,
            queue: Queue::create(node, &queue).wide().words(64).quota(1).create()?,
            // SAFETY: it stays until the process ends, and others than the board use it between copies only.
            own: unsafe { node.register(bytes) }.create()?,
            bytes,
        })
    }

    fn connect(&self, node: &Node, name: &str, other: (u16, usize)) -> Outcome<Notify<'_>> {
        let [segment, queue] = names(name, other.1);
        let rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::DMA.0);
        let far = node.import(other.0, &segment).rights(rights).open()?;
        let elements = Queue::import(node, other.0, &queue).open()?;
        Ok(Notify { board: self, far, elements, words: vec![7; STORED / 8] })
    }
}

impl End for Notify<'_> {
    fn send(&mut self, size: usize) -> Outcome<()> {
        if size <= STORED {
            return Ok(self.elements.put_notify(&self.far, 0, &self.words[..size / 8], 1)?);
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

    fn fill(&mut self, bytes: &[u8]) -> Outcome<()> {
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        self.words.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        // SAFETY: no copy is under way, and nothing else uses it.
        let own = unsafe { &mut *self.board.bytes };
        own[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn got(&mut self, size: usize) -> Outcome<Vec<u8>> {
        let words = (0..size as u64).step_by(8).map(|at| self.board.segment.load::<u64>(at));
        let words = words.collect::<Result<Vec<_>, _>>()?;
        Ok(words.into_iter().flat_map(u64::to_le_bytes).collect())
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
        let thread = messages.thread(2)?;
        let other = other.map(|process| Endpoint { process, thread: 2 });
        Ok(Message { thread, other, out: vec![7; MOST].into(), back: vec![0; MOST].into(), sent: None })
    }

    /// The last message has been received.
    fn settle(&mut self) -> Outcome<()> {
        let Some(sent) = self.sent.take() else { return Ok(()) };
        self.out = ended(sent)?;
        Ok(())
    }
}

impl End for Message<'_> {
    fn send(&mut self, size: usize) -> Outcome<()> {
        self.settle()?;
        let to = self.other.ok_or(Failure::Check("no process has sent yet".into()))?;
        let sent = self.thread.send_dma(to, 0, std::mem::take(&mut self.out), size);
        self.sent = Some(sent?);
        Ok(())
    }

    fn receive(&mut self, size: usize) -> Outcome<()> {
        let received = if size <= STORED {
            self.thread.receive_timeout(Pattern::default(), &mut self.back[..size], PATIENCE)?
        } else {
            let ended = self.thread.receive_dma(Pattern::default(), std::mem::take(&mut self.back))?;
            let ended = ended.wait();
            self.back = ended.memory;
            ended.outcome?.ok_or(Failure::Check("a receive without a message".into()))?
        };
        self.other = Some(received.from);
        Ok(())
    }

    fn fill(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.settle()?;
        self.out[..bytes.len()].copy_from_slice(bytes);
        // Nothing is found that was there before.
        self.back.fill(0);
        Ok(())
    }

    fn got(&mut self, size: usize) -> Outcome<Vec<u8>> {
        Ok(self.back[..size].to_vec())
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
        let mut child = child.args(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(refused)?;
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
        writeln!(orders, "{} {warming} {count}", size.max(1)).map_err(refused)?;
        let mut line = String::new();
        answers.read_line(&mut line).map_err(refused)?;
        line.trim().parse().map_err(|_| Failure::Check(format!("{name}: {line:?}: expected nanoseconds")))
    }

    fn end(self) -> Outcome<()> {
        let Stream { name, mut child, orders, .. } = self;
        drop(orders);
        let status = child.wait().map_err(refused)?;
        cli::check(status.success(), || format!("{name}: its program ended with {status}"))?;
        Ok(())
    }
}

fn count_of(size: usize) -> u64 {
    (BYTES / size.max(1) as u64).clamp(2, COUNT)
}

/// Nanoseconds of an exchange. Bytes are compared after those that count.
fn exchange(end: &mut dyn End, layer: Layer, size: usize, seed: u32) -> Outcome<f64> {
    let (warming, count) = (layer.warming(size), count_of(size));
    let mut begun = Instant::now();
    for n in 0..warming + count {
        if n == warming {
            begun = Instant::now();
        }
        end.send(size)?;
        end.receive(size)?;
    }
    let taken = begun.elapsed().as_nanos() as f64 / count as f64;
    let bytes: Vec<u8> =
        (0..size as u32).map(|at| (at ^ at >> 8 ^ seed).wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect();
    end.fill(&bytes)?;
    end.send(size)?;
    end.receive(size)?;
    cli::check(end.got(size)? == bytes, || format!("{size} bytes that came back are others"))?;
    end.settled()?;
    Ok(taken)
}

fn answer(end: &mut dyn End, layer: Layer, size: usize) -> Outcome<()> {
    for _ in 0..layer.warming(size) + count_of(size) {
        end.receive(size)?;
        end.send(size)?;
    }
    end.receive(size)?;
    let bytes = end.got(size)?;
    end.fill(&bytes)?;
    end.send(size)?;
    end.settled()
}

/// The name of a process that is there while messages of a layer are measured.
fn of_layer(name: &str, layer: usize) -> String {
    format!("{name}.{layer}")
}

/// Answers, until there is nothing more to measure.
pub(crate) fn partner(options: Options, name: &str) -> Outcome<()> {
    let node = Node::open()?;
    let board = Board::offer(&node, name, 1)?;
    let messages = open(options.clone())?;
    let (control, _name) = serving(&messages, name)?;
    let mut notify = None;
    loop {
        // Which layer, and how many bytes.
        let mut order = [0; 8];
        let got = control.receive(Pattern::default(), &mut order)?;
        let [number, size] = [0, 4].map(|at| u32::from_le_bytes([0, 1, 2, 3].map(|n| order[at + n])) as usize);
        let Some((_, layer, _)) = LAYERS.get(number) else { return Ok(()) };
        if *layer == Layer::Notify {
            if notify.is_none() {
                notify = Some(board.connect(&node, name, (got.from.process.node, 0))?);
            }
            if let Some(end) = &mut notify {
                answer(end, *layer, size)?;
            }
            continue;
        }
        let messages = open(layer.options(&options))?;
        let mut end = Message::of(&messages, None)?;
        let _name = messages.publish(&of_layer(name, number))?;
        answer(&mut end, *layer, size)?;
        // An order comes when the other one has the last answer.
        control.receive(Pattern::default(), &mut order)?;
    }
}

/// Measures all layers of this process, and the programs `streams`, with messages of such sizes.
pub(crate) fn layers(
    options: Options,
    (other, name): (u16, &str),
    rounds: u32,
    sizes: &[usize],
    streams: &[String],
) -> Outcome<()> {
    if let Some(size) = sizes.iter().find(|size| **size > MOST || **size % 8 != 0) {
        return Err(Failure::Usage(format!("--sizes has {size}: expected multiples of 8 up to {MOST}")));
    }
    let node = Node::open()?;
    let board = Board::offer(&node, name, 0)?;
    let messages = open(options.clone())?;
    let (control, to) = reaching(&messages, other, name)?;
    let order = |layer: usize, size: usize| {
        let [layer, size] = [layer, size].map(|number| (number as u32).to_le_bytes());
        control.send(to, 0, &[layer, size].concat())
    };
    let mut streams = streams.iter().map(|words| Stream::of(words)).collect::<Outcome<Vec<_>>>()?;
    let mut notify = board.connect(&node, name, (other, 1))?;
    let mut values: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
    for round in 0..rounds {
        for (s, size) in sizes.iter().copied().enumerate() {
            for (n, (_, layer, _)) in LAYERS.into_iter().enumerate() {
                order(n, size)?;
                let taken = if layer == Layer::Notify {
                    exchange(&mut notify, layer, size, round)?
                } else {
                    let messages = open(layer.options(&options))?;
                    let process = find(&messages, other, &of_layer(name, n))?;
                    let taken = exchange(&mut Message::of(&messages, Some(process))?, layer, size, round)?;
                    // When the other one has it, it knows that its last answer has come, which it would not if this
                    // process were gone.
                    order(n, size)?;
                    taken
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
    let layers = LAYERS.iter().map(|(name, _, below)| (*name, *below));
    let layers = layers.chain(streams.iter().map(|stream| (stream.name.as_str(), BELOW_STREAMS)));
    print(&layers.collect::<Vec<_>>(), sizes, &mut values);
    streams.into_iter().try_for_each(Stream::end)
}

/// Medians of microseconds there and back, with the middle eight tenths, what that is more than the layer below takes,
/// and as multiples of the lowest layer.
fn print(layers: &[(&str, &[usize])], sizes: &[usize], values: &mut BTreeMap<(usize, usize), Vec<f64>>) {
    let mut medians: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    let heads: Vec<String> = sizes.iter().map(|size| format!("{:>40}", format!("{size} B"))).collect();
    println!("{:25} {}", "us there and back", heads.concat());
    for (n, (layer, below)) in layers.iter().enumerate() {
        let mut line = format!("{layer:25} ");
        for s in 0..sizes.len() {
            let Some(times) = values.get_mut(&(n, s)) else { continue };
            times.sort_by(f64::total_cmp);
            let at = |part: usize| times[(times.len() - 1) * part / 100] / 1e3;
            medians.insert((n, s), at(50));
            let lower = below.iter().filter_map(|layer| medians.get(&(*layer, s))).copied().reduce(f64::min);
            let added = lower.map_or(String::new(), |lower| format!(" {:+.0}", at(50) - lower));
            let times = medians.get(&(0, s)).map_or(1.0, |lowest| at(50) / lowest);
            let cell = format!("{:.0} ({:.0} to {:.0}){added} {times:.2}x", at(50), at(10), at(90));
            line += &format!("{cell:>40}");
        }
        println!("{line}");
    }
}
