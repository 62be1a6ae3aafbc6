// SPDX-License-Identifier: MIT OR Apache-2.0
//! Costs of notifying a receiver that a message has arrived, by the notification queue and by what the paper
//! compares it with.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{FULL, Node, Queue};
use telegraphos_agent::Figure;
use telegraphos_guest_tests::cli::{self, Failure, Line, Outcome};
use telegraphos_guest_tests::notify::{FLAGS, Imports, Layout, MESSAGE, Method, Receiver, SLOTS, Sender};
use telegraphos_guest_tests::peers::{Participants, Peers, import_patiently};
use telegraphos_guest_tests::queue::import_patiently as import_queue;
use telegraphos_guest_tests::{child, patience, random};

pub(crate) const USAGE: &str = "\
tg-notify: measures the costs of notifying a receiver of a message, by notification queues and by other means

Usage: tg-notify [options]      (on every node at the same time; the lowest receives, processes on the others send)

  --nodes N            wait for nodes 0 to N-1 [every node that is in the cluster now]
  --senders LIST       numbers of senders, each 1 to 64 [1,2,4,8,16]
  --methods LIST       req, req-batch, req-kernel, flag, flag-look, flags, groups, add, add-known, lock [all of them]
  --rounds N           rounds; in each, every method is measured with every number of senders, in turn [8]
  --burst N            messages of each sender while the receiver sleeps [32]
  --messages N         messages of each sender while the receiver polls [128]
  --limit MS           time after which a sender sends no more of them, for methods that take long [100]
  --must-lose          continues, for up to 100 rounds, until flag and flag-look have lost something; fails if they do not
  --patience SECONDS   how long to wait for the others [180]

Each message is 64 bytes, stored into the receiver's memory word by word, and then notified:
  req          its address goes into a notification queue; req-batch and req-kernel differ in how it is taken
  flag         ... into one flag in the receiver's memory; flag-look looks whether the flag is clear first. They lose.
  flags        the number of the message goes into a flag of the sender's own; the receiver polls all of them
  groups       the same, and 1 into a word of the sender's group, of the square root of all; the receiver polls these first
  add          a slot of a queue is drawn by fetch-and-add, the head is loaded to see that it is free, the word stored;
               add-known loads the head only when the one it remembers does not do
  lock         the same under a ticket lock, with head and tail as plain words
What arrives is compared with what was sent, each message once and each sender's in order. It prints, with medians and quartiles:
  {\"notify\":{\"method\":\"req\",\"senders\":4,\"part\":\"send\",\"ns\":{\"median\":...,\"low\":...,\"high\":...},\"samples\":...}}
  {\"rate\":{\"method\":\"req\",\"senders\":4,\"per_second\":{...},\"rounds\":...}}
  {\"lost\":{\"method\":\"flag\",\"senders\":4,\"sent\":...,\"lost\":...}}
part: `message` is the eight stores, `send` the notification after them, both while the receiver sleeps; `send-busy` the same while
it polls. `empty` is one look that finds nothing, `take` one that finds a message, per message, while it polls; `drain` is per
message when all of a burst are there. rate and lost are of the messages sent while it polls.
Exit codes: 0 done, 1 something was lost or wrong that must not be, 2 usage, 3 board, driver or peer refused.

Examples:
  telegraphos bench --notify --plot notify.svg
  telegraphos run --nodes 3 -- tg-notify --senders 1,2 --rounds 1 --methods req,flag,flags
";

#[derive(Clone)]
struct Options {
    participants: Participants,
    senders: Vec<usize>,
    methods: Vec<Method>,
    rounds: usize,
    burst: usize,
    messages: usize,
    limit: Duration,
    must_lose: bool,
    patience: Duration,
}

impl Options {
    fn layout(&self) -> Layout {
        let senders = self.senders.iter().copied().max().unwrap_or(1);
        Layout { senders, room: self.burst.max(self.messages) }
    }

    fn queued(&self) -> bool {
        self.methods.iter().any(|method| method.queued())
    }
}

/// Between two looks at what other nodes have sent.
const PAUSE: Duration = Duration::from_micros(500);

const SEGMENT: &str = "notify-data";
const QUEUE: &str = "notify-queue";
/// What messages are made of.
const SEED: u64 = 0x6e6f_7469_6679;

/// Mail from the receiver: method (or [`QUIT`]), senders, messages of each.
const MAIL: [u64; 3] = [0, 1, 2];
/// Mail to the receiver: the last order carried out, and whether a sender has failed. Only it is notified, since the
/// other senders may have left.
const DONE: u64 = 3;
const FAILED: u64 = 4;
const QUIT: u64 = u64::MAX;

pub(crate) fn run(mut line: Line) -> Outcome<()> {
    let mut options = Options {
        participants: Participants::Present,
        senders: vec![1, 2, 4, 8, 16],
        methods: Method::ALL.to_vec(),
        rounds: 8,
        burst: 32,
        messages: 128,
        limit: Duration::from_millis(100),
        must_lose: false,
        patience: Duration::from_secs(180),
    };
    let mut child = None;
    while let Some(option) = line.next_option()? {
        match option.as_str() {
            "nodes" => options.participants = Participants::Count(line.number("--nodes")?),
            "senders" => options.senders = list(&line.text()?, |word| cli::number("--senders", word))?,
            "methods" => {
                options.methods = list(&line.text()?, |word| {
                    let unknown = || Failure::Usage(format!("method {word:?} is unknown"));
                    Method::named(word).ok_or_else(unknown)
                })?;
            }
            "rounds" => options.rounds = line.number("--rounds")?,
            "burst" => options.burst = line.number("--burst")?,
            "messages" => options.messages = line.number("--messages")?,
            "limit" => options.limit = Duration::from_millis(line.number::<u32>("--limit")?.into()),
            "must-lose" => options.must_lose = true,
            "patience" => options.patience = line.seconds("--patience")?,
            // How the program starts itself: RECEIVER:SENDER.
            "child" => child = Some(line.text()?),
            _ => return Err(cli::unknown(&option)),
        }
    }
    line.only([])?;
    let within = |what: &str, value: usize, least: usize, most: usize| {
        if (least..=most).contains(&value) {
            return Ok(());
        }
        Err(Failure::Usage(format!("{what} is {value}: expected {least} to {most}")))
    };
    for senders in &options.senders {
        within("--senders", *senders, 1, 64)?;
    }
    within("--rounds", options.rounds, 1, 100_000)?;
    within("--messages", options.messages, 1, SLOTS)?;
    // A burst fits the queues in software, or their senders would wait for the receiver, which sleeps.
    within("--burst", options.burst, 1, SLOTS / options.layout().senders)?;
    if let Some(child) = child {
        let parts = child.split_once(':').ok_or_else(|| Failure::Usage("--child: expected RECEIVER:SENDER".into()))?;
        return one_sender(&options, cli::number("--child", parts.0)?, cli::number("--child", parts.1)?);
    }
    let node = Node::open()?;
    let peers = Peers::connect(&node, "notify-control", options.participants, options.patience)?;
    cli::must(peers.all.len() >= 2, Failure::Refused, || {
        "this is the only node: expected another one, to send".into()
    })?;
    if peers.me() != peers.all[0] {
        return send(&options, &peers);
    }
    let mut turn = Turn { peers: &peers, epoch: 0, patience: options.patience };
    let result = receive(&options, &mut turn);
    // Whatever has happened: the senders end, and announce it before the memory that they store to goes.
    let ended = turn.order(QUIT, 0, 0).and_then(|()| turn.until(Turn::left));
    result.and(ended)
}

fn list<T>(text: &str, read: impl FnMut(&str) -> Outcome<T>) -> Outcome<Vec<T>> {
    text.split(',').map(read).collect()
}

/// How the receiver leads the nodes of the senders.
struct Turn<'a> {
    peers: &'a Peers,
    epoch: u64,
    patience: Duration,
}

impl Turn<'_> {
    fn others(&self) -> impl Iterator<Item = u16> + '_ {
        self.peers.all[1..].iter().copied()
    }

    /// Has so many senders send so many messages each.
    fn order(&mut self, method: u64, senders: usize, messages: usize) -> Outcome<()> {
        for id in self.others() {
            for (slot, value) in MAIL.into_iter().zip([method, senders as u64, messages as u64]) {
                self.peers.send(id, slot, value)?;
            }
        }
        self.epoch += 1;
        self.peers.arrive(self.epoch)
    }

    /// Whether all is done, and performed here.
    fn done(&self) -> Outcome<bool> {
        for id in self.others() {
            cli::must(self.peers.received(id, FAILED)? == 0, Failure::Refused, || {
                format!("a sender on node {id} has failed: see what it printed")
            })?;
        }
        self.left()
    }

    /// Whether all have carried out the last order, in their way.
    fn left(&self) -> Outcome<bool> {
        for id in self.others() {
            if self.peers.received(id, DONE)? < self.epoch {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all is done, asleep, so that the senders have the processor.
    fn wait(&self) -> Outcome<()> {
        self.until(Turn::done)
    }

    fn until(&self, over: impl Fn(&Self) -> Outcome<bool>) -> Outcome<()> {
        patience::until(self.patience, PAUSE, || over(self), || self.late())
    }

    fn late(&self) -> Failure {
        Failure::Refused(format!("waited {:?} for the senders: have their programs ended?", self.patience))
    }
}

/// Samples of one method with one number of senders.
#[derive(Clone, Default)]
struct Samples {
    /// Nanoseconds, by part.
    parts: [Vec<f64>; PARTS.len()],
    /// Messages per second.
    rate: Vec<f64>,
    sent: u64,
    lost: u64,
}

/// What is measured, as it is called, and the places of that.
const PARTS: [&str; 6] = ["message", "send", "send-busy", "empty", "take", "drain"];
const SEND_BUSY: usize = 2;
const EMPTY: usize = 3;
const TAKE: usize = 4;
const DRAIN: usize = 5;

impl Samples {
    fn print(&self, method: Method, senders: usize) {
        let (method, senders) = (|| method.name().to_owned(), senders as u32);
        for (part, values) in PARTS.into_iter().zip(&self.parts) {
            if let Some(ns) = quartiles(values) {
                let samples = values.len();
                print_figure(&Figure::Notify { method: method(), senders, part: part.into(), ns: ns.into(), samples });
            }
        }
        if let Some(rate) = quartiles(&self.rate) {
            let rounds = self.rate.len();
            print_figure(&Figure::Rate { method: method(), senders, per_second: rate.into(), rounds });
        }
        if self.sent > 0 {
            print_figure(&Figure::Lost { method: method(), senders, sent: self.sent, lost: self.lost });
        }
    }
}

fn print_figure(figure: &Figure) {
    println!("{}", figure.line());
}

/// Median, and what a quarter is below and above.
fn quartiles(values: &[f64]) -> Option<[f64; 3]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quarter: usize| sorted.get((sorted.len().checked_sub(1)? * quarter + 2) / 4).copied();
    Some([at(2)?, at(1)?, at(3)?])
}

/// What reading the clock takes, which is taken off where little is measured.
fn clock() -> f64 {
    let reads: Vec<f64> = (0..2000)
        .map(|_| {
            let begun = Instant::now();
            begun.elapsed().as_nanos() as f64
        })
        .collect();
    quartiles(&reads).map_or(0.0, |[median, ..]| median)
}

/// Rounds in which a method that loses must have lost something.
const ROUNDS_TO_LOSE: usize = 100;

/// Flags without stores are polled, too: the cost of a poll needs no senders.
const QUIET_FLAGS: [usize; 3] = [64, 256, FLAGS];

fn receive(options: &Options, turn: &mut Turn<'_>) -> Outcome<()> {
    let node = &turn.peers.node;
    let layout = options.layout();
    let data = node.export(SEGMENT, layout.bytes()).owner(FULL).others(FULL).create()?;
    let queue = if options.queued() { Some(Queue::create(node, QUEUE).wide().mode(0o606).create()?) } else { None };
    let receiver = Receiver::of(&data, queue.as_ref(), layout)?;
    let mut trials =
        Trials { memory: receiver.memory, receiver, layout, numbers: vec![0; layout.senders], clock: clock(), turn };
    println!("CLOCK ns={:.1}", trials.clock);
    // The senders have imported all of it when they have done nothing.
    trials.turn.order(Method::Req as u64, 0, 0)?;
    trials.turn.wait()?;
    let mut samples = vec![vec![Samples::default(); options.senders.len()]; options.methods.len()];
    let mut idle = vec![[const { Vec::new() }; QUIET_FLAGS.len()]; options.methods.len()];
    // The first round pays for page faults.
    for round in 0..=options.rounds.max(ROUNDS_TO_LOSE) {
        let missing = options.must_lose && spared(options, &samples).is_some();
        if round > options.rounds && !missing {
            break;
        }
        println!("ROUND {round} of {}", options.rounds);
        for (column, senders) in options.senders.iter().enumerate() {
            for (row, method) in options.methods.iter().enumerate() {
                let mut one = Samples::default();
                trials.one(*method, *senders, options, &mut one)?;
                let all = &mut samples[row][column];
                all.sent += one.sent;
                all.lost += one.lost;
                if round > 0 {
                    all.add(one);
                }
            }
        }
        for (method, idle) in options.methods.iter().zip(&mut idle) {
            for (flags, values) in QUIET_FLAGS.iter().zip(idle) {
                trials.begin();
                trials.empty(*method, *flags, values)?;
            }
        }
    }
    for (row, method) in options.methods.iter().enumerate() {
        for (column, senders) in options.senders.iter().enumerate() {
            samples[row][column].print(*method, *senders);
        }
        for (flags, values) in QUIET_FLAGS.iter().zip(&idle[row]) {
            let mut of_flags = Samples::default();
            of_flags.parts[EMPTY].clone_from(values);
            of_flags.print(*method, *flags);
        }
    }
    for (row, method) in options.methods.iter().enumerate() {
        let lost: u64 = samples[row].iter().map(|samples| samples.lost).sum();
        cli::check(lost == 0 || method.loses(), || {
            format!("{} has lost {lost} notifications: expected none", method.name())
        })?;
    }
    if let Some((method, senders)) = spared(options, &samples).filter(|_| options.must_lose) {
        return Err(Failure::Check(format!("{method} with {senders} senders has lost nothing: expected that it does")));
    }
    Ok(())
}

impl Samples {
    fn add(&mut self, other: Samples) {
        self.parts.iter_mut().zip(other.parts).for_each(|(all, more)| all.extend(more));
        self.rate.extend(other.rate);
    }
}

/// A method that loses, but has not yet, with so many senders.
fn spared(options: &Options, samples: &[Vec<Samples>]) -> Option<(&'static str, usize)> {
    let methods = options.methods.iter().zip(samples).filter(|(method, _)| method.loses());
    let all = methods.flat_map(|(method, row)| options.senders.iter().map(|n| (method.name(), *n)).zip(row));
    // One alone loses only when it does not look first.
    all.filter(|((_, senders), one)| *senders > 1 && one.lost == 0).map(|(which, _)| which).next()
}

/// The receiver, trial after trial.
struct Trials<'a, 'b> {
    receiver: Receiver<'a, Queue>,
    memory: &'a [AtomicU64],
    layout: Layout,
    /// Of each sender, the number of its last message.
    numbers: Vec<u64>,
    clock: f64,
    turn: &'a mut Turn<'b>,
}

impl Trials<'_, '_> {
    fn begin(&mut self) {
        self.receiver.start(&self.numbers);
    }

    /// Nanoseconds of a look that finds nothing: of few at a time, so that most samples are not interrupted.
    fn empty(&mut self, method: Method, senders: usize, samples: &mut Vec<f64>) -> Outcome<()> {
        const LOOKS: u32 = 10;
        let mut taken = Vec::new();
        for _ in 0..50 {
            let begun = Instant::now();
            for _ in 0..LOOKS {
                self.receiver.look(method, senders, &mut taken)?;
            }
            samples.push((begun.elapsed().as_nanos() as f64 - self.clock).max(0.0) / f64::from(LOOKS));
        }
        cli::check(taken.is_empty(), || format!("{}: found {taken:x?} where no sender has sent", method.name()))
    }

    fn one(&mut self, method: Method, senders: usize, options: &Options, samples: &mut Samples) -> Outcome<()> {
        self.begin();
        self.empty(method, senders, &mut samples.parts[EMPTY])?;
        if method.runs_ahead() {
            self.burst(method, senders, options.burst, samples)?;
        }
        self.busy(method, senders, options.messages, samples)
    }

    /// One look: nanoseconds for each message it found, `None` without any.
    fn look(&mut self, method: Method, senders: usize, taken: &mut Vec<u64>) -> Outcome<Option<f64>> {
        let count = taken.len();
        let begun = Instant::now();
        self.receiver.look(method, senders, taken)?;
        let took = begun.elapsed().as_nanos() as f64 - self.clock;
        let found = taken.len() - count;
        Ok((found > 0).then(|| took.max(0.0) / found as f64))
    }

    /// The receiver does not poll while they send, and they do not send while it polls.
    fn burst(&mut self, method: Method, senders: usize, each: usize, samples: &mut Samples) -> Outcome<()> {
        self.begin();
        self.turn.order(method as u64, senders, each)?;
        self.turn.wait()?;
        let mut taken = Vec::with_capacity(senders * each);
        let mut drain = Vec::with_capacity(senders * each);
        while let Some(took) = self.look(method, senders, &mut taken)? {
            drain.push(took);
        }
        let mut check = Check::new(self, method, senders, each);
        taken.iter().try_for_each(|place| check.message(*place))?;
        let [message, send, ..] = &mut samples.parts;
        let sent = self.results(senders, message, send)?;
        // A flag that is not polled loses all but one: that is no measurement.
        if !method.loses() {
            samples.sent += sent;
            samples.lost += lost(method, sent, taken.len())?;
            samples.parts[DRAIN].extend(drain);
        }
        Ok(())
    }

    /// They send, and this one looks all the time.
    fn busy(&mut self, method: Method, senders: usize, each: usize, samples: &mut Samples) -> Outcome<()> {
        self.begin();
        let deadline = Instant::now() + self.turn.patience;
        self.turn.order(method as u64, senders, each)?;
        let mut taken = Vec::with_capacity(senders * each);
        let (mut first, mut last) = (None, Instant::now());
        let (mut looks, mut all_sent) = (0u32, false);
        let mut check = Check::new(self, method, senders, each);
        loop {
            let count = taken.len();
            if let Some(took) = check.trials.look(method, senders, &mut taken)? {
                samples.parts[TAKE].push(took);
                last = Instant::now();
                first.get_or_insert((last, taken.len() - count));
                // Immediately: a receiver that is notified of a message sees all of it.
                taken[count..].iter().try_for_each(|place| check.message(*place))?;
                continue;
            }
            // What was sent was here before this look, and there was nothing more.
            if all_sent {
                break;
            }
            looks = looks.wrapping_add(1);
            if looks % 64 == 0 {
                all_sent = check.trials.turn.done()?;
                if Instant::now() >= deadline {
                    return Err(check.trials.turn.late());
                }
            }
        }
        // Of the messages' own stores, only those count that were made while the receiver did not poll.
        let sent = self.results(senders, &mut Vec::new(), &mut samples.parts[SEND_BUSY])?;
        samples.sent += sent;
        samples.lost += lost(method, sent, taken.len())?;
        if let Some((first, found)) = first.filter(|(first, _)| last > *first) {
            samples.rate.push((taken.len() - found) as f64 / (last - first).as_secs_f64());
        }
        Ok(())
    }

    /// What the senders have measured; how many messages they have sent.
    fn results(&mut self, senders: usize, message: &mut Vec<f64>, send: &mut Vec<f64>) -> Outcome<u64> {
        let mut sent = 0;
        for sender in 0..senders {
            let at = self.layout.results(sender);
            let load = |place: usize| self.memory[place].load(Ordering::Acquire);
            let count = load(at);
            cli::check(count <= self.layout.room as u64, || {
                format!("sender {sender} says it has sent {count} messages")
            })?;
            for index in 1..=count as usize {
                let result = load(at + index);
                message.push((result & u64::from(u32::MAX)) as f64);
                send.push((result >> 32) as f64);
            }
            self.numbers[sender] += count;
            sent += count;
        }
        Ok(sent)
    }
}

fn lost(method: Method, sent: u64, taken: usize) -> Outcome<u64> {
    let wrong = || Failure::Check(format!("{}: {taken} messages have come: expected the {sent} sent", method.name()));
    sent.checked_sub(taken as u64).ok_or_else(wrong)
}

/// What was sent in a trial, against what has come.
struct Check<'t, 'a, 'b> {
    trials: &'t mut Trials<'a, 'b>,
    method: Method,
    each: usize,
    last: Vec<u64>,
}

impl<'t, 'a, 'b> Check<'t, 'a, 'b> {
    fn new(trials: &'t mut Trials<'a, 'b>, method: Method, senders: usize, each: usize) -> Self {
        let last = trials.numbers[..senders].to_vec();
        Check { trials, method, each, last }
    }

    /// A message has come: it is one of this trial, the next of its sender, or a later one if others were lost; and
    /// whole.
    fn message(&mut self, place: u64) -> Outcome<()> {
        let name = self.method.name();
        let layout = self.trials.layout;
        let found = layout.find(place).filter(|(sender, _)| *sender < self.last.len());
        let Some((sender, at)) = found else {
            return Err(Failure::Check(format!(
                "{name}: notified of a message at {place:#x}: expected one that was sent"
            )));
        };
        let last = self.last[sender];
        let end = self.trials.numbers[sender] + self.each as u64;
        let number = (last + 1..=end).find(|number| number % layout.room as u64 == at);
        let number = number.filter(|number| self.method.loses() || *number == last + 1).ok_or_else(|| {
            Failure::Check(format!("{name}: sender {sender}, place {at}: expected its message {}, once", last + 1))
        })?;
        for word in 0..MESSAGE {
            let found = self.trials.memory[place as usize + word].load(Ordering::Acquire);
            let expected = content(sender, number, word);
            cli::check(found == expected, || {
                format!(
                    "{name}: word {word} of message {number} of sender {sender} is {found:#x}: expected {expected:#x}"
                )
            })?;
        }
        self.last[sender] = number;
        Ok(())
    }
}

/// A word of a message.
fn content(sender: usize, number: u64, word: usize) -> u64 {
    random::word(random::derive(SEED, sender as u64), number * MESSAGE as u64 + word as u64)
}

/// A process that sends, and the two ends of its pipes.
struct Process {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    index: usize,
}

impl Process {
    fn start(options: &Options, receiver: u16, index: usize) -> Outcome<Process> {
        let failed = |e| Failure::Refused(format!("sender {index} does not start: {e}"));
        let list = options.senders.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let names = options.methods.iter().map(|method| method.name()).collect::<Vec<_>>().join(",");
        let mut child = child::again()
            .args(["--child", &format!("{receiver}:{index}"), "--senders", &list, "--methods", &names])
            .args(["--burst", &options.burst.to_string(), "--messages", &options.messages.to_string()])
            .args(["--limit", &options.limit.as_millis().to_string()])
            .args(["--patience", &options.patience.as_secs_f64().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (orders, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| Failure::Refused(format!("sender {index} has no output")))?;
        Ok(Process { child, orders, answers: BufReader::new(answers), index })
    }

    fn order(&mut self, text: &str) -> Outcome<()> {
        let index = self.index;
        let written = self.orders.as_mut().map(|orders| orders.write_all(text.as_bytes()));
        written.unwrap_or(Ok(())).map_err(|e| Failure::Refused(format!("sender {index} does not listen: {e}")))
    }

    fn answer(&mut self) -> Outcome<()> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(count) if count > 0 => Ok(()),
            _ => Err(Failure::Refused(format!("sender {} has ended before its time", self.index))),
        }
    }
}

impl Drop for Process {
    /// Without orders it ends by itself; one that does not, waits for the receiver no longer than its patience.
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}

fn send(options: &Options, peers: &Peers) -> Outcome<()> {
    let receiver = peers.all[0];
    let result = orders(options, peers, receiver);
    if result.is_err() {
        peers.send(receiver, FAILED, 1)?;
        // It starts all senders, and this node is among them.
        for epoch in 1.. {
            if order(options, peers, receiver, epoch)?.is_none() {
                break;
            }
        }
    }
    // Whatever it is that was ordered last.
    peers.send(receiver, DONE, u64::MAX)?;
    result
}

/// Waits for an order of the receiver: method, senders, messages of each; `None` when it is to go.
fn order(options: &Options, peers: &Peers, receiver: u16, epoch: u64) -> Outcome<Option<[u64; 3]>> {
    let patience = options.patience;
    let late = || format!("waited {patience:?} for orders of node {receiver}: has its program ended?");
    patience::until(patience, PAUSE, || Ok(peers.at(receiver)? >= epoch), || Failure::Refused(late()))?;
    let [method, senders, messages] = MAIL.map(|slot| peers.received(receiver, slot));
    let order = [method?, senders?, messages?];
    Ok((order[0] != QUIT).then_some(order))
}

fn orders(options: &Options, peers: &Peers, receiver: u16) -> Outcome<()> {
    let place = peers.all[1..].iter().position(|id| *id == peers.me()).unwrap_or(0);
    let mine = (place..options.layout().senders).step_by(peers.all.len() - 1);
    let mut processes = mine.map(|index| Process::start(options, receiver, index)).collect::<Outcome<Vec<_>>>()?;
    processes.iter_mut().try_for_each(Process::answer)?;
    for epoch in 1.. {
        let Some([method, senders, messages]) = order(options, peers, receiver, epoch)? else { break };
        let all = |process: &&mut Process| (process.index as u64) < senders;
        for process in processes.iter_mut().filter(all) {
            process.order(&format!("{method} {senders} {messages}\n"))?;
        }
        for process in processes.iter_mut().filter(all) {
            process.answer()?;
        }
        peers.send(receiver, DONE, epoch)?;
    }
    Ok(())
}

/// One sender: a trial for each line of orders, until there are no more.
fn one_sender(options: &Options, receiver: u16, index: usize) -> Outcome<()> {
    let node = Node::open()?;
    let layout = options.layout();
    let data = import_patiently(&node, receiver, SEGMENT, options.patience)?;
    // The receiver makes it after its memory.
    let queue = || import_queue(&node, receiver, QUEUE, options.patience);
    let queue = if options.queued() { Some(queue()?) } else { None };
    let mut sender = Sender::new(Imports { data, queue }, index, options.patience);
    let mut number = 0;
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Failure::Refused(format!("the orders of sender {index}: {e}")))?;
        let order = list(&line.replace(' ', ","), |word| cli::number::<usize>("an order", word))?;
        let [method, senders, messages] = order[..] else {
            return Err(Failure::Usage(format!("order {line:?}: expected three numbers")));
        };
        let method = *Method::ALL.get(method).ok_or_else(|| Failure::Usage(format!("method {method} is unknown")))?;
        let mut results = vec![0; 1];
        let first = Instant::now();
        for _ in 0..messages {
            if first.elapsed() > options.limit {
                break;
            }
            number += 1;
            let place = layout.message(index, number);
            let message: [u64; MESSAGE] = std::array::from_fn(|word| content(index, number, word));
            let begun = Instant::now();
            sender.far.data.put_slice(8 * place as u64, &message)?;
            let stored = Instant::now();
            sender.notify(method, senders, number, place as u64)?;
            let notified = Instant::now();
            let short = |time: Duration| time.as_nanos().min(u128::from(u32::MAX)) as u64;
            results.push(short(stored - begun) | short(notified - stored) << 32);
        }
        results[0] = results.len() as u64 - 1;
        let far = &sender.far;
        far.data.put_slice(8 * layout.results(index) as u64, &results)?;
        if let Some(queue) = &far.queue {
            queue.quiet()?;
        }
        far.data.quiet()?;
        println!("done");
    }
    Ok(())
}
