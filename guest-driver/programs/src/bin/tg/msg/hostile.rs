// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process that speaks what messages are made of, and lies. It states their layout
//! (`guest-driver/msg/core/src/layout.rs`) itself, as any other program could.

use super::{PATIENCE, must, open, serving};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use telegraphos::{Node, Queue, Remote, RemoteQueue, Rights, Segment};
use telegraphos_guest_tests::cli::{self, Failure, Outcome};
use telegraphos_msg::{Endpoint, Memory, Options, Pattern, Thread, Way};
use telegraphos_wire::names;

const MAGIC: u64 = 0x3100_4753_4d20_4754;
const SLOTS: u64 = 64;
const BLOCK: u64 = 4096;
const INBOX: u64 = 5 << 16;

/// Kinds of elements.
const HELLO: u64 = 0;
const READY: u64 = 1;
const GOODBYE: u64 = 2;
const EAGER: u64 = 3;
const REQUEST: u64 = 4;
const CLEAR: u64 = 5;
const WITHDRAW: u64 = 6;
const STORED: u64 = 7;
const DONE: u64 = 8;

fn element(kind: u64, slot: u64, answer: u64, high: u64) -> u64 {
    kind | slot << 4 | answer << 20 | high << 32
}

fn place_of(slot: u64) -> u64 {
    64 + SLOTS * 16 + slot * (32 + BLOCK)
}

/// Connected to a process, as far as that knows by messages.
struct Liar {
    queue: Queue,
    inbox: Segment,
    theirs: Remote,
    elements: RemoteQueue,
    key: u64,
}

impl Liar {
    fn connect(node: &Node, to: u16, number: u64, attempt: u64) -> Outcome<Liar> {
        let me = u64::from(std::process::id()) << 8 | attempt;
        let (own_key, own) = (0x1234, node.id());
        let queue = Queue::create(node, &names::queue(me, 0)).wide().words(64).create()?;
        let inbox = node.export(&names::inbox(me, (to, number)), INBOX).create()?;
        for (n, word) in [MAGIC, own_key, SLOTS | 1 << 16 | BLOCK << 32, BLOCK, u64::MAX, 0].into_iter().enumerate() {
            inbox.store(8 * n as u64, word)?;
        }
        let first = Queue::import(node, to, &names::queue(number, 0)).soft().open()?;
        first.enqueue(element(HELLO, own.into(), 0, me))?;
        // It has made an inbox for this one, and imported this one's.
        Liar::wait(&queue, |kind| kind == READY)?;
        let rights = Rights(Rights::READ.0 | Rights::WRITE.0);
        let name = names::inbox(number, (own, me));
        let theirs = node.import(to, &name).rights(rights).soft().open()?;
        let mut control = [0; 6];
        theirs.get_slice(0, &mut control)?;
        let (key, port) = (control[1], control[5]);
        let elements = Queue::import(node, to, &names::queue(number, port as u16)).soft().open()?;
        elements.enqueue(element(READY, own_key & 0xffff, 0, key))?;
        Ok(Liar { queue, inbox, theirs, elements, key })
    }

    /// Waits for an element whose kind is wanted.
    fn wait(queue: &Queue, wanted: impl Fn(u64) -> bool) -> Outcome<u64> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(word) = queue.pop_wait(Some(Duration::from_millis(100)))?.filter(|word| wanted(word & 15)) {
                return Ok(word);
            }
        }
        Err(Failure::Check(format!("what was waited for has not come in {PATIENCE:?}")))
    }

    fn say(&self, kind: u64, slot: u64, answer: u64) -> Outcome<()> {
        Ok(self.elements.enqueue(element(kind, slot, answer, self.key))?)
    }

    /// A packet with its head: of a thread to one, with a tag, fragment, length and place.
    fn packet(&self, kind: u64, slot: u64, fragment: u64, length: u64) -> Outcome<()> {
        self.tagged(kind, slot, 7 | fragment << 32, length)
    }

    fn tagged(&self, kind: u64, slot: u64, tag: u64, length: u64) -> Outcome<()> {
        let head = [5 | 1 << 32, tag, length, 0x1234_5678_u64];
        Ok(self.elements.put_notify(&self.theirs, place_of(slot), &head, element(kind, slot, 0, self.key))?)
    }
}

/// What a lie is, and whether the other process ends the connection with its sender.
type Lie = (&'static str, bool, fn(&Liar) -> Outcome<()>);

const LIES: [Lie; 14] = [
    ("a slot that there is not", true, |liar| liar.say(EAGER, SLOTS, 0)),
    ("more bytes than a slot has", true, |liar| liar.packet(EAGER, 0, 0, BLOCK + 1)),
    ("a fragment of nothing", true, |liar| liar.packet(EAGER, 0, 3, 100)),
    ("a message in a slot that has one", true, |liar| {
        liar.packet(EAGER, 1, 0, 8)?;
        liar.packet(EAGER, 1, 0, 8)
    }),
    ("a request in a slot that has a message", true, |liar| {
        liar.packet(EAGER, 2, 0, 8)?;
        liar.packet(REQUEST, 2, 0, 100_000)
    }),
    ("an answer to nothing", true, |liar| liar.say(DONE, 3, 0)),
    ("a place for nothing", true, |liar| liar.say(CLEAR, 3, 0)),
    ("bytes that were not requested", true, |liar| liar.say(STORED, 3, 1)),
    ("bytes of a request that were not requested", true, |liar| {
        liar.packet(REQUEST, 4, 0, 100_000)?;
        liar.say(STORED, 4, 1)
    }),
    ("to withdraw what is in a slot", true, |liar| {
        liar.packet(EAGER, 5, 0, 8)?;
        liar.say(WITHDRAW, 5, 0)
    }),
    ("to withdraw nothing", false, |liar| liar.say(WITHDRAW, 6, 0)),
    ("a kind that there is not", false, |liar| liar.say(12, 0, 0)),
    ("an answer that there is not", false, |liar| liar.say(DONE, 0, 9)),
    ("ten thousand elements with a wrong key", false, |liar| {
        (0..10_000).try_for_each(|n| Ok(liar.elements.enqueue(element(n % 9, n % SLOTS, 0, liar.key ^ 1))?))
    }),
];

fn number_of(node: &Node, to: u16, name: &str) -> Outcome<u64> {
    Ok(node.import(to, &names::of_process(name)).rights(Rights::READ).open()?.get64(0)? & 0xffff_ffff)
}

pub(crate) fn lies(to: u16, name: &str) -> Outcome<()> {
    let node = Node::open()?;
    let number = number_of(&node, to, name)?;
    for (attempt, (lie, ends, tell)) in (0..).zip(LIES) {
        let liar = Liar::connect(&node, to, number, attempt)?;
        tell(&liar)?;
        let (expected, otherwise) = match ends {
            true => (GOODBYE, "the other has not ended the connection"),
            false => {
                // It still listens: to a message for a thread that there is not, for which there is an answer.
                let head = [5 | 99 << 32, 7, 0, 0_u64];
                liar.elements.put_notify(&liar.theirs, place_of(9), &head, element(EAGER, 9, 0, liar.key))?;
                (DONE, "the other does not listen any more")
            }
        };
        let came = Liar::wait(&liar.queue, |kind| kind == expected);
        came.map_err(|_| Failure::Check(format!("{lie}: {otherwise}")))?;
        println!("{lie}: {}", if ends { "connection ended" } else { "nothing" });
    }
    hellos(&node, to, number)
}

/// Many processes that say hello, and nothing else: memory is only made for some of them.
fn hellos(node: &Node, to: u16, number: u64) -> Outcome<()> {
    const SAID: u64 = 40;
    const HEARD: usize = 16;
    let first = Queue::import(node, to, &names::queue(number, 0)).soft().open()?;
    let me = u64::from(std::process::id()) << 8 | 0x80;
    let name = |n: u64| names::queue(me + n, 0);
    let queues = (0..SAID)
        .map(|n| Queue::create(node, &name(n)).wide().words(8).quota(1).create())
        .collect::<Result<Vec<_>, _>>()?;
    (0..SAID).try_for_each(|n| first.enqueue(element(HELLO, node.id().into(), 0, me + n)))?;
    std::thread::sleep(Duration::from_secs(2));
    let mut heard = 0;
    for queue in &queues {
        heard += usize::from(queue.try_pop()?.is_some());
    }
    cli::check((1..=HEARD).contains(&heard), || {
        format!("{heard} of {SAID} hellos were answered: expected 1 to {HEARD}")
    })?;
    println!("{SAID} hellos: {heard} answered");
    Ok(())
}

/// A message whose bytes are not found: its receive says so, and this process is answered.
pub(crate) fn nowhere(to: u16, name: &str) -> Outcome<()> {
    let node = Node::open()?;
    let liar = Liar::connect(&node, to, number_of(&node, to, name)?, 0)?;
    liar.packet(REQUEST, 0, 0, 100_000)?;
    println!("requested");
    Liar::wait(&liar.queue, |kind| kind == DONE)?;
    println!("answered");
    Ok(())
}

/// Bytes of the long messages of `lends`.
const LONG: u64 = 20_000;
/// What they have, and what stands in the same memory behind them.
const MESSAGE: u8 = 0x11;
const SECRET: u8 = 0xee;
const SECRETS: u64 = 0xeeee_eeee_eeee_eeee;
/// Tags: the memory that the next message comes from, and a receive of one.
const HEAP: u64 = 0;
const STACK: u64 = 1;
const HANDLE: u64 = 2;
const RECEIVE: u64 = 3;
const END: u64 = 4;

/// Sends a long message from memory, and writes there what its receiver is not to read; says so, and waits until that
/// has been tried.
fn lend(thread: &Thread<'_>, to: Endpoint, memory: &mut [u8]) -> Outcome<()> {
    memory.fill(MESSAGE);
    thread.send(to, 0, memory)?;
    memory.fill(SECRET);
    tried(thread, to, memory)
}

fn from_process(from: Endpoint) -> Pattern {
    Pattern { process: Some(from.process), ..Pattern::default() }
}

fn tried(thread: &Thread<'_>, to: Endpoint, memory: &[u8]) -> Outcome<()> {
    thread.send(to, 0, b"over")?;
    thread.receive(from_process(to), &mut [])?;
    must(memory.iter().all(|byte| *byte == SECRET), "memory was changed after its message had ended")
}

/// A process that does what the one that has sent it a message asks for: see [`lingers`].
pub(crate) fn lends(options: Options, name: &str) -> Outcome<()> {
    let messages = open(options)?;
    let (thread, _name) = serving(&messages, name)?;
    let mut heap = vec![0; LONG as usize];
    let mut memory = Memory::from(vec![0; LONG as usize]);
    loop {
        let got = thread.receive(Pattern::default(), &mut [])?;
        match u64::from(got.tag) {
            HEAP => lend(&thread, got.from, &mut heap)?,
            STACK => lend(&thread, got.from, &mut [0; LONG as usize])?,
            HANDLE => {
                memory.fill(MESSAGE);
                memory = super::ended(thread.send_dma(got.from, 0, memory, LONG as usize)?)?;
                memory.fill(SECRET);
                tried(&thread, got.from, &memory)?;
            }
            RECEIVE => {
                thread.receive(from_process(got.from), &mut heap)?;
                cli::check(heap[..8] == [MESSAGE; 8], || "what was stored is not there".into())?;
                heap.fill(SECRET);
                tried(&thread, got.from, &heap)?;
            }
            _ => return Ok(()),
        }
    }
}

/// What a process can do with memory whose name it has: load, copy, and store.
struct Reach {
    import: Result<Remote, telegraphos::Error>,
    own: Segment,
}

impl Reach {
    fn new(node: &Node, at: u16, name: &str, right: Rights) -> Outcome<Reach> {
        // Memory that stays pinned has the same name for each message.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let rights = Rights(right.0 | Rights::DMA.0);
        let import = node.import(at, name).rights(rights).soft().open();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = node.export(&format!("reach.{}.{number}", std::process::id()), 1 << 16).create()?;
        Ok(Reach { import, own })
    }

    /// Whether the other's memory was read, or changed, in any way that there is.
    fn is_there(&self) -> bool {
        let Ok(import) = &self.import else { return false };
        let mut reached = false;
        if import.rights().contains(Rights::READ) {
            reached |=
                import.get64(64).is_ok_and(|word| [SECRETS, SECRETS / 0xee * u64::from(MESSAGE)].contains(&word));
            reached |= import.get_block(0, &self.own, 0, LONG).is_ok();
        } else {
            reached |= import.put_block(0, &self.own, 0, LONG).is_ok();
            // Stores to an import that has ended are lost in silence: the other looks whether they have arrived.
            _ = import.put64(64, SECRETS / 0xee * u64::from(MESSAGE)).and_then(|()| import.quiet());
        }
        // For the next attempt.
        _ = import.acknowledge();
        reached
    }
}

/// A receiver that still uses the memory of a message when that has ended, with all that it has had for it.
pub(crate) fn lingers(to: u16, name: &str, way: Way) -> Outcome<()> {
    let node = Node::open()?;
    let number = number_of(&node, to, name)?;
    let liars = [Liar::connect(&node, to, number, 0)?, Liar::connect(&node, to, number, 1)?];
    let mut slot = 0;
    let mut before: Vec<(String, Reach)> = Vec::new();
    // The second is another process to the sender, on the same node, for memory that the first has had.
    let cases = [(HEAP, 0), (STACK, 0), (HANDLE, 0), (HEAP, 1), (HANDLE, 1), (HEAP, 0)];
    let stored = [(RECEIVE, 0), (RECEIVE, 1)];
    for (case, who) in if way == Way::Get { &cases[..] } else { &stored[..] }.iter().copied() {
        let liar = &liars[who];
        let next = |slot: &mut u64| {
            *slot += 1;
            *slot % SLOTS
        };
        liar.tagged(EAGER, next(&mut slot), case, 0)?;
        let (place, right, ended) = match way {
            Way::Get => {
                let request = Liar::wait(&liar.queue, |kind| kind == REQUEST)? >> 4 & 0xffff;
                (liar.inbox.load::<u64>(place_of(request) + 24)?, Rights::READ, (DONE, request))
            }
            Way::Put => {
                let request = next(&mut slot);
                liar.tagged(REQUEST, request, 0, LONG)?;
                Liar::wait(&liar.queue, |kind| kind == CLEAR)?;
                (liar.inbox.load::<u64>(64 + request * 16)?, Rights::WRITE, (STORED, request))
            }
        };
        let memory = names::memory(number, place);
        let reach = Reach::new(&node, to, &memory, right)?;
        (0..LONG / 8).try_for_each(|n| reach.own.store(8 * n, SECRETS / 0xee * u64::from(MESSAGE)))?;
        must(reach.is_there(), "the memory of a message under way is not reached")?;
        let mut others = before.iter().filter(|(name, _)| *name != memory);
        let others_reach = others.any(|(_, reach)| reach.is_there());
        must(!others_reach, "an import of an earlier message reaches that of another process")?;
        if before.is_empty() {
            println!("under way {memory}");
            next_line()?;
        }
        liar.say(ended.0, ended.1, u64::from(ended.0 == STORED))?;
        let over = Liar::wait(&liar.queue, |kind| kind == EAGER)?;
        must(!reach.is_there(), "memory is reached after its message has ended")?;
        must(!Reach::new(&node, to, &memory, right)?.is_there(), "its name is found after its message has ended")?;
        if before.is_empty() {
            println!("ended {memory}");
            next_line()?;
        }
        before.push((memory, reach));
        liar.say(DONE, over >> 4 & 0xffff, 0)?;
        liar.tagged(EAGER, next(&mut slot), 0, 0)?;
    }
    slot += 1;
    liars[0].tagged(EAGER, slot % SLOTS, END, 0)?;
    println!("nothing was reached");
    Ok(())
}

fn next_line() -> Outcome<()> {
    std::io::stdin().read_line(&mut String::new()).map(drop).map_err(cli::refused)
}

/// A process of a third node that has the name of memory of a message.
pub(crate) fn intrudes(to: u16, memory: &str) -> Outcome<()> {
    let node = Node::open()?;
    for right in [Rights::READ, Rights::WRITE] {
        must(Reach::new(&node, to, memory, right)?.import.is_err(), "a third node has imported the memory")?;
    }
    Ok(())
}
