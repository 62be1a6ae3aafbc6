// SPDX-License-Identifier: MIT OR Apache-2.0
//! A notification queue under siege: senders that do not wait, and consumers that are slow, stopped, and killed at
//! random.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, QueueState};
use telegraphos_agent::{Figure, Received, rounded};
use telegraphos_guest_tests::child::End;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome, Word};
use telegraphos_guest_tests::queue::{self, Forked, Log, NUMBERS, SENDERS};
use telegraphos_guest_tests::random;

pub(crate) const USAGE: &str = "\
tg-queue: a notification queue whose senders do not wait and whose consumers are killed; everything is counted

Usage: tg-queue receive NAME [options]
       tg-queue send NODE NAME [options]
       tg-queue hold NAME [--words W] [--width 4|8] [--quota Q]

receive makes the queue and starts consumers, which take elements in processes of their own:
  --words W        words of a buffer, a power of two from 8 on [16384]
  --width 4|8      bytes of a word [4]
  --quota Q        buffers that may be linked behind the first [16]
  --senders S      senders there will be, numbered from 0 [1]
  --each N         elements of each [1000]
  --consumers C    consumers at once [2]
  --slow           consumers work or sleep a little at random, also while they take an element
  --preempted      they are stopped at random, and yield the processor while they take an element
  --killed         they are killed at random, and others started
  --idle S         fail after S seconds without a new element [120]

send appends elements that have their sender and number:
  --sender I       the sender's number [0]
  --each N         elements [1000]
  --width 4|8      refuse a queue of another width
  --patience S     how long to wait for the queue, and at last for quiet [120]

hold makes the queue, takes nothing, and keeps it until its standard input ends.

Consumers note each element in memory shared with the receiver, before they have taken it. At the end the receiver compares
these notes with what was sent, and prints one line:
  {\"received\":{\"received\":...,\"disordered\":0,\"lost\":0,\"doubled\":0,\"foreign\":0,\"again\":...,
  \"overflows\":...,\"evictions\":...,\"kills\":...,\"stops\":...,\"seconds\":...}}   (on one line)
again: elements that were in the hands of a consumer that was killed, and were handed to the next one; that is right.
A sender prints: {\"sent\":{\"sender\":...,\"elements\":...,\"seconds\":...,\"per_second\":...,\"longest_ms\":...}}
Exit codes: 0 all right, 1 something was lost, doubled or out of order, 2 usage, 3 board, driver or peer refused.

Examples:
  tg-queue receive box --words 8 --senders 2 --each 5000 --slow --killed     (on node 0)
  tg-queue send 0 box --sender 0 --each 5000                                 (on node 1)
  tg-queue send 0 box --sender 1 --each 5000                                 (on node 2)
  tg-queue hold sink --width 8 </dev/tty                                     (until ^D)
";

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let role = match line.next_word()? {
        Some(Word::Value(role)) => cli::text(role)?,
        Some(Word::Option(name)) => return Err(cli::unknown(&name)),
        None => return Err(Failure::Usage("expected receive, send or hold".into())),
    };
    match role.as_str() {
        "receive" => receive(line),
        "send" => send(line),
        "hold" => hold(line),
        _ => Err(Failure::Usage(format!("{role:?} is not expected: expected receive, send or hold"))),
    }
}

fn within(what: &str, value: u32, least: u32, most: u32) -> Outcome<u32> {
    if (least..=most).contains(&value) {
        return Ok(value);
    }
    Err(Failure::Usage(format!("{what} is {value}: expected {least} to {most}")))
}

fn width(line: &mut Line) -> Outcome<u32> {
    match line.number("--width")? {
        width @ (4 | 8) => Ok(width),
        other => Err(Failure::Usage(format!("--width is {other}: expected 4 or 8"))),
    }
}

// ---- send ----

fn send(mut line: Line) -> Outcome<()> {
    let (mut sender, mut each, mut expected) = (0, 1000, None);
    let mut patience = Duration::from_secs(120);
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "sender" => sender = within("--sender", line.number("--sender")?, 0, SENDERS - 1)?,
            "each" => each = within("--each", line.number("--each")?, 1, NUMBERS)?,
            "width" => expected = Some(width(&mut line)?),
            "patience" => patience = line.seconds("--patience")?,
            _ => return Err(cli::unknown(&option)),
        }
    }
    let [id, name] = line.exactly("NODE NAME")?;
    let node = Node::open()?;
    let queue = queue::import_patiently(&node, cli::number("NODE", id)?, name, patience)?;
    let width = queue.width();
    cli::must(expected.is_none_or(|expected| expected == width), Failure::Refused, || {
        format!("queue {name:?} has words of {width} bytes: --width says otherwise")
    })?;
    let begun = Instant::now();
    let mut longest = Duration::ZERO;
    for number in 0..each {
        let before = Instant::now();
        queue.enqueue(queue::element(width, sender, number))?;
        longest = longest.max(before.elapsed());
    }
    let took = begun.elapsed();
    queue.quiet_timeout(patience)?;
    let sent = Figure::Sent {
        sender,
        elements: each,
        seconds: rounded(took.as_secs_f64()),
        per_second: rounded(f64::from(each) / took.as_secs_f64().max(1e-9)),
        longest_ms: rounded(longest.as_secs_f64() * 1e3),
    };
    println!("{}", sent.line());
    queue.close()?;
    Ok(())
}

// ---- receive ----

#[derive(Clone, Copy)]
struct Siege {
    slow: bool,
    preempted: bool,
    killed: bool,
}

struct Options {
    name: String,
    words: u32,
    width: u32,
    quota: u32,
    senders: u32,
    each: u32,
    consumers: u32,
    siege: Siege,
    idle: Duration,
}

impl Options {
    fn read(mut line: Line) -> Outcome<Options> {
        let (mut words, mut bytes) = (None, 4);
        let mut options = Options {
            name: String::new(),
            words: 0,
            width: 4,
            quota: 16,
            senders: 1,
            each: 1000,
            consumers: 2,
            siege: Siege { slow: false, preempted: false, killed: false },
            idle: Duration::from_secs(120),
        };
        while let Some(option) = line.next_option()? {
            match option.as_str() {
                "words" => words = Some(line.number("--words")?),
                "width" => bytes = width(&mut line)?,
                "quota" => options.quota = line.number("--quota")?,
                "senders" => options.senders = within("--senders", line.number("--senders")?, 1, SENDERS)?,
                "each" => options.each = within("--each", line.number("--each")?, 1, NUMBERS)?,
                "consumers" => options.consumers = within("--consumers", line.number("--consumers")?, 1, 64)?,
                "slow" => options.siege.slow = true,
                "preempted" => options.siege.preempted = true,
                "killed" => options.siege.killed = true,
                "idle" => options.idle = line.seconds("--idle")?,
                _ => return Err(cli::unknown(&option)),
            }
        }
        let [name] = line.only(["NAME"])?;
        options.name = name.into();
        options.width = bytes;
        options.words = words.unwrap_or(65536 / bytes);
        Ok(options)
    }

    fn make(&self, node: &Node) -> Outcome<Queue> {
        let builder = queue::shaped(Queue::create(node, &self.name), self.words, self.width);
        let queue = builder.quota(self.quota).mode(0o602).create()?;
        println!("queue {:?} of node {}: {} words of {} bytes", self.name, node.id(), self.words, self.width);
        Ok(queue)
    }
}

fn hold(line: Line) -> Outcome<()> {
    let options = Options::read(line)?;
    let _queue = options.make(&Node::open()?)?;
    // Until the parent closes the pipe.
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())
        .map(drop)
        .map_err(|e| Failure::Refused(format!("standard input: {e}")))
}

fn receive(line: Line) -> Outcome<()> {
    let options = Options::read(line)?;
    let node = Node::open()?;
    let queue = options.make(&node)?;
    let file = queue::file_of(&node).map_err(Failure::Refused)?;
    let supervisor = Supervisor::new(&options, &queue, &file)?;
    let (log, counts) = supervisor.run()?;
    report(&options, &node, &queue, &log, &counts)
}

/// What became of the consumers.
#[derive(Default)]
struct Counts {
    /// By number of the consumer: whether it was killed, or lost its mapping.
    ended: Vec<bool>,
    kills: u64,
    stops: u64,
    seconds: f64,
}

struct Consumer {
    process: Forked,
    life: u64,
    /// Until when it is stopped.
    stopped: Option<Instant>,
}

/// Starts consumers, and gives them a hard time.
struct Supervisor<'a> {
    options: &'a Options,
    queue: &'a Queue,
    file: &'a OwnedFd,
    log: Log,
    consumers: Vec<Consumer>,
    counts: Counts,
    seed: u64,
    drawn: u64,
}

/// Whether consumers are to end.
const END: usize = 0;

impl<'a> Supervisor<'a> {
    fn new(options: &'a Options, queue: &'a Queue, file: &'a OwnedFd) -> Outcome<Supervisor<'a>> {
        // A kill makes at most one entry more.
        let capacity = options.senders as usize * options.each as usize * 2 + 10_000;
        let log = Log::new(capacity).map_err(Failure::Refused)?;
        let (consumers, counts) = (Vec::new(), Counts::default());
        Ok(Supervisor { options, queue, file, log, consumers, counts, seed: random::seed(), drawn: 0 })
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.drawn += 1;
        random::word(self.seed, self.drawn) % below.max(1)
    }

    fn start(&mut self) -> Outcome<()> {
        let life = self.counts.ended.len() as u64;
        self.counts.ended.push(false);
        let (file, handle, siege, seed) = (self.file, self.queue.handle(), self.options.siege, self.seed);
        let log = &self.log;
        let process = Forked::run(|| consume(file, handle, log, life, siege, random::derive(seed, life)));
        self.consumers.push(Consumer { process: process.map_err(Failure::Refused)?, life, stopped: None });
        Ok(())
    }

    fn run(mut self) -> Outcome<(Log, Counts)> {
        let expected = u64::from(self.options.senders) * u64::from(self.options.each);
        let (mut seen, mut changed, mut begun) = (0, Instant::now(), None);
        while seen < expected {
            while self.consumers.len() < self.options.consumers as usize {
                self.start()?;
            }
            std::thread::sleep(Duration::from_micros(200 + self.draw(4000)));
            let now = self.log.different();
            if now != seen {
                // Counted from the first element on: senders may start later.
                begun.get_or_insert(changed);
                (seen, changed) = (now, Instant::now());
            }
            if changed.elapsed() > self.options.idle {
                let QueueState { linked, overflows, .. } = self.queue.state()?;
                let idle = self.options.idle;
                return Err(Failure::Check(format!(
                    "no new element for {idle:?} after {seen} of {expected}; {linked} linked buffers, {overflows} overflows"
                )));
            }
            self.bury()?;
            self.harass();
        }
        self.counts.seconds = begun.map_or(0.0, |begun: Instant| begun.elapsed().as_secs_f64());
        self.end()?;
        Ok((self.log, self.counts))
    }

    /// Looks after those that have ended.
    fn bury(&mut self) -> Outcome<()> {
        for consumer in &mut self.consumers {
            match consumer.process.ended() {
                None => continue,
                // It has lost its mapping; or it was killed a moment ago.
                Some(End::Signal(libc::SIGBUS | libc::SIGKILL)) => {
                    self.counts.ended[consumer.life as usize] = true;
                }
                Some(end) => {
                    return Err(Failure::Check(format!("consumer {} ended with {end}", consumer.life)));
                }
            }
        }
        let ended = &self.counts.ended;
        self.consumers.retain(|consumer| !ended[consumer.life as usize]);
        Ok(())
    }

    /// Kills one, or stops one for a while, or none.
    fn harass(&mut self) {
        let Siege { preempted, killed, .. } = self.options.siege;
        let now = Instant::now();
        for consumer in &mut self.consumers {
            if consumer.stopped.is_some_and(|until| now >= until) {
                consumer.process.resume();
                consumer.stopped = None;
            }
        }
        let victim = self.draw(self.consumers.len() as u64) as usize;
        let (lot, pause) = (self.draw(8), Duration::from_micros(self.draw(15_000)));
        let Some(consumer) = self.consumers.get_mut(victim) else { return };
        match lot {
            0 | 1 if killed => {
                consumer.process.kill();
                consumer.process.wait();
                self.counts.kills += 1;
            }
            2 | 3 if preempted && consumer.stopped.is_none() => {
                consumer.process.stop();
                consumer.stopped = Some(now + pause);
                self.counts.stops += 1;
            }
            _ => {}
        }
    }

    /// Lets the consumers look until there is nothing more, and end.
    fn end(&mut self) -> Outcome<()> {
        self.log.note(END).store(1, Ordering::Release);
        for consumer in &mut self.consumers {
            consumer.process.resume();
        }
        for mut consumer in self.consumers.drain(..) {
            match consumer.process.wait() {
                End::Code(0) => {}
                End::Signal(libc::SIGBUS | libc::SIGKILL) => self.counts.ended[consumer.life as usize] = true,
                end => return Err(Failure::Check(format!("consumer {} ended with {end}", consumer.life))),
            }
        }
        Ok(())
    }
}

/// Takes elements until it gets the line to end and none are left, or is killed.
fn consume(file: &OwnedFd, handle: u32, log: &Log, life: u64, siege: Siege, seed: u64) -> Result<(), String> {
    let queue = queue::attach(file, handle).map_err(|e| e.to_string())?;
    let end: &AtomicU64 = log.note(END);
    let mut drawn = 0;
    let mut draw = |below: u64| {
        drawn += 1;
        random::word(seed, drawn) % below
    };
    loop {
        let (work, pause, lot) = (draw(64), draw(2000), draw(64));
        let took = queue.try_pop_with(|value| {
            if siege.slow && work < 8 {
                spin(Duration::from_micros(10 * work));
            }
            if siege.preempted && work % 8 == 1 {
                std::thread::yield_now();
            }
            log.push(value, life);
            if siege.preempted && work % 8 == 2 {
                std::thread::yield_now();
            }
        });
        match took.map_err(|e| e.to_string())? {
            Some(()) if siege.slow && lot == 0 => std::thread::sleep(Duration::from_micros(pause)),
            Some(()) => {}
            None if end.load(Ordering::Acquire) != 0 => return Ok(()),
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn report(options: &Options, node: &Node, queue: &Queue, log: &Log, counts: &Counts) -> Outcome<()> {
    let ended = |life: u64| counts.ended.get(life as usize).copied().unwrap_or(false);
    let tally = log.tally(options.width, options.senders, options.each, ended);
    // By a new mapping: this one may have been taken away.
    let more = Queue::attach(node, queue.handle())?.try_pop()?;
    let QueueState { overflows, evictions, dead, .. } = queue.state()?;
    let received = Figure::Received(Received {
        received: tally.received,
        disordered: tally.disordered,
        lost: tally.lost,
        doubled: tally.doubled,
        foreign: tally.foreign,
        again: tally.again,
        overflows,
        evictions,
        kills: counts.kills,
        stops: counts.stops,
        seconds: rounded(counts.seconds),
    });
    println!("{}", received.line());
    cli::check(more.is_none(), || format!("all elements have come, and then another one: {more:x?}"))?;
    cli::check(dead.is_none(), || format!("the queue is dead: {dead:?}"))?;
    cli::check(tally.is_right(), || format!("not every element came once and in order: {tally:?}"))
}
