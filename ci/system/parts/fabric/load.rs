// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of all boards at once with which loss, doubling and disorder show: elements that carry sender and number,
//! fetch-and-adds that give each number once, and numbered stores to words that the owner watches.

use anyhow::{Context, Result, ensure};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use telegraphos_cluster::client::{self, Guest, MEMORY, Queue};
use telegraphos_wire::regs::Register;
use telegraphos_wire::{NodeId, Rights, Status, event};

/// How many boards there are.
pub(super) const NODES: usize = 16;
const PEERS: u64 = NODES as u64 - 1;
/// Those with a counter on their page: one at each switch.
const COUNTERS: [NodeId; 3] = [2, 7, 12];
/// Words to which each sender stores its numbers in turn.
const WORDS: u64 = 16;
/// Words of a queue's buffer: few enough that it overflows.
const QUEUE_WORDS: u16 = 16;
/// Operations of one board that may be on their way.
const WINDOW: u64 = 512;
/// Operations sent at once.
const BATCH: usize = 64;
/// Slots for atomics: 1 and on.
const SLOTS: u8 = 24;
/// Where the page for stores and counters is.
const PAGE: u64 = MEMORY + 0x1_0000;
/// How long nothing at all may happen at a board.
const STUCK: Duration = Duration::from_secs(120);
/// What a board says that ends because of another.
pub(super) const STOPPED: &str = "stopped because another did";
const ALL: Rights = Rights(Rights::READ.0 | Rights::WRITE.0 | Rights::ATOMIC.0);

/// Where in the page of its owner the word of a sender is for its store of this number.
fn word(sender: u64, number: u64) -> u64 {
    8 * (WORDS + sender * WORDS + number % WORDS)
}

/// How many operations there are, and how many are done.
pub(super) struct Load {
    each: u64,
    done: AtomicU64,
}

impl Load {
    /// About so many.
    pub(super) fn new(total: u64) -> Load {
        Load { each: total.div_ceil(NODES as u64), done: AtomicU64::new(0) }
    }

    pub(super) fn total(&self) -> u64 {
        self.each * NODES as u64
    }

    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Of each four operations of a board two are elements, one a fetch-and-add, one a store.
    fn enqueues(&self) -> u64 {
        self.each.div_ceil(2)
    }

    fn adds(&self) -> u64 {
        (self.each + 2) / 4
    }

    fn stores(&self) -> u64 {
        self.each / 4
    }
}

/// The destination of operation number `nth` of a kind, and its number there, from 1.
fn target(node: NodeId, nth: u64) -> (NodeId, u64) {
    let peer = (u64::from(node) + 1 + nth % PEERS) % NODES as u64;
    (peer as NodeId, nth / PEERS + 1)
}

/// How many of `total` operations of `from` go to `to`.
fn count(from: NodeId, to: NodeId, total: u64) -> u64 {
    let place = (u64::from(to) + NODES as u64 - u64::from(from) - 1) % NODES as u64;
    (total + PEERS - 1 - place) / PEERS
}

/// The counter of a fetch-and-add: one of another node.
fn counter(node: NodeId, nth: u64) -> usize {
    let first = ((u64::from(node) + nth) % 3) as usize;
    if COUNTERS[first] == node { (first + 1) % 3 } else { first }
}

/// One board's part.
pub(super) struct Node {
    pub(super) node: NodeId,
    queue: Queue,
    /// The last number of each sender's elements.
    elements: [u64; NODES],
    /// The greatest number seen of each sender's stores.
    seen: [u64; NODES],
    watched: usize,
    /// What each fetch-and-add to a counter gave, in the order in which they were sent.
    sums: [Vec<Option<u64>>; 3],
    /// Cookie, counter and place among the sums of the atomic in a slot.
    slots: Vec<Option<(u64, usize, usize)>>,
    sent: u64,
    overflows: u64,
}

/// Has each board grant its page and its queue, and import those of all others.
pub(super) fn prepare(guests: &mut [Guest]) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    let mut pages = Vec::new();
    for (node, guest) in (0..).zip(guests.iter_mut()) {
        let queue = guest.queue(node, 0, QUEUE_WORDS, MEMORY)?;
        pages.push((guest.grant(node, 1, 1, PAGE, ALL)?, queue.pages));
        nodes.push(Node {
            node,
            queue,
            elements: [0; NODES],
            seen: [0; NODES],
            watched: 0,
            sums: [const { Vec::new() }; 3],
            slots: vec![None; usize::from(SLOTS)],
            sent: 0,
            overflows: 0,
        });
    }
    std::thread::scope(|scope| {
        let all = guests.iter_mut().enumerate();
        let threads: Vec<_> = all
            .map(|(node, guest)| {
                let pages = &pages;
                scope.spawn(move || -> Result<()> {
                    let peers: Vec<NodeId> = (0..NODES as NodeId).filter(|peer| usize::from(*peer) != node).collect();
                    super::notified(guest, &peers, true)?;
                    for (peer, (page, queue)) in pages.iter().enumerate().filter(|(peer, _)| *peer != node) {
                        guest.import(data_slot(peer as NodeId), page, ALL)?;
                        guest.import(queue_slot(peer as NodeId), queue, Rights::ENQUEUE)?;
                        guest.events()?;
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    Ok(nodes)
}

fn data_slot(peer: NodeId) -> u16 {
    2 * peer
}

fn queue_slot(peer: NodeId) -> u16 {
    2 * peer + 1
}

impl Node {
    /// Sends this board's operations, and receives what the others send, until both are done.
    pub(super) fn run(&mut self, guest: &mut Guest, load: &Load, stop: &AtomicBool) -> Result<()> {
        let (mut quiet, mut done) = (None, 0);
        let mut moved = Instant::now();
        loop {
            let mut idle = !self.receive(guest)?;
            self.watch(guest)?;
            idle &= !self.finish_adds(guest)?;
            match quiet {
                None if done < self.sent => {
                    quiet = Some((guest.begin_quiet()?, self.sent));
                }
                Some((cookie, upto)) => {
                    if let Some(status) = guest.done(0, cookie)? {
                        ensure!(status == Status::Ok, "its operations up to {upto} ended with {status}");
                        load.done.fetch_add(upto - done, Ordering::Relaxed);
                        (quiet, done, idle) = (None, upto, false);
                    }
                }
                None => {}
            }
            idle &= !self.send(guest, load, done)?;
            if done == load.each && self.slots.iter().all(Option::is_none) && self.has_all(load) {
                return Ok(());
            }
            ensure!(!stop.load(Ordering::Relaxed), STOPPED);
            telegraphos_cluster::check_interrupt()?;
            if !idle {
                moved = Instant::now();
                continue;
            }
            ensure!(
                moved.elapsed() < STUCK,
                "stuck: {done} of {} operations done, elements {:?}",
                load.each,
                self.elements
            );
            std::thread::sleep(Duration::from_micros(300));
        }
    }

    fn has_all(&self, load: &Load) -> bool {
        (0..NODES as NodeId)
            .filter(|from| *from != self.node)
            .all(|from| self.elements[usize::from(from)] >= count(from, self.node, load.enqueues()))
    }

    /// Sends some; whether any.
    fn send(&mut self, guest: &mut Guest, load: &Load, done: u64) -> Result<bool> {
        let mut stores = Vec::new();
        let before = self.sent;
        while self.sent < load.each && self.sent - done < WINDOW && stores.len() < BATCH {
            let nth = self.sent / 4;
            match self.sent % 4 {
                kind @ (0 | 2) => {
                    let (to, number) = target(self.node, 2 * nth + kind / 2);
                    stores.push((client::enqueue_window(to, queue_slot(to)), u64::from(self.node) << 48 | number));
                }
                1 => {
                    let Some(free) = self.slots.iter().position(Option::is_none) else { break };
                    let (counter, slot) = (counter(self.node, nth), free as u8 + 1);
                    let owner = COUNTERS[counter];
                    let cookie = guest.begin_add(slot, owner, data_slot(owner), 0, 1)?;
                    self.slots[free] = Some((cookie, counter, self.sums[counter].len()));
                    self.sums[counter].push(None);
                }
                _ => {
                    let (to, number) = target(self.node, nth);
                    let at = client::window(to, data_slot(to), word(self.node.into(), number));
                    stores.push((at, number));
                }
            }
            self.sent += 1;
        }
        guest.client.store_all(client::WINDOW, stores)?;
        Ok(self.sent > before)
    }

    /// Takes the results of atomics that are done; whether there were any.
    fn finish_adds(&mut self, guest: &Guest) -> Result<bool> {
        let mut any = false;
        for (index, entry) in self.slots.iter_mut().enumerate() {
            let Some((cookie, counter, place)) = *entry else { continue };
            let slot = index as u8 + 1;
            if let Some(status) = guest.done(slot, cookie)? {
                ensure!(status == Status::Ok, "a fetch-and-add ended with {status}");
                self.sums[counter][place] = Some(guest.previous(slot)?);
                (*entry, any) = (None, true);
            }
        }
        Ok(any)
    }

    /// Takes elements: of each sender each number once, in order. Whether there were any.
    fn receive(&mut self, guest: &mut Guest) -> Result<bool> {
        let events = guest.events()?;
        let full = |e: &event::Entry| e.kind == event::QUEUE && e.value & event::QUEUE_OVERFLOW != 0;
        let overflowed = events.iter().any(full);
        let bad = events.iter().find(|e| e.kind == event::NODE_STATE && e.value == 0);
        ensure!(bad.is_none(), "it was notified that a node is gone: {bad:?}");
        let mut elements = Vec::new();
        guest.dequeue(&mut self.queue, overflowed, &mut elements)?;
        self.overflows += u64::from(overflowed);
        for element in &elements {
            let (from, number) = ((element >> 48) as usize, element & ((1 << 48) - 1));
            let last = self.elements.get_mut(from).with_context(|| format!("element {element:#x} of no sender"))?;
            ensure!(number == *last + 1, "after element {last} of node {from} comes its element {number}");
            *last = number;
        }
        Ok(!elements.is_empty() || overflowed)
    }

    /// Looks at the words of one sender: once its store of a number is there, all earlier ones are.
    fn watch(&mut self, guest: &Guest) -> Result<()> {
        self.watched = (self.watched + 1) % NODES;
        let from = self.watched as u64;
        let greatest = self.seen[self.watched];
        let found = guest.load64(PAGE + word(from, greatest + 1))?;
        if found <= greatest {
            return Ok(());
        }
        self.seen[self.watched] = found;
        for back in 1..WORDS.min(found) {
            let (earlier, value) = (found - back, guest.load64(PAGE + word(from, found - back))?);
            ensure!(
                value >= earlier,
                "node {from}'s store {found} is there, and {value} where {earlier} should be or later"
            );
        }
        Ok(())
    }
}

/// Operations that were performed.
pub(super) struct Counts {
    pub(super) enqueues: u64,
    pub(super) adds: u64,
    pub(super) stores: u64,
    pub(super) overflows: u64,
}

/// When all is done: that each operation was performed once.
pub(super) fn check(guests: &mut [Guest], nodes: &mut [Node], load: &Load) -> Result<Counts> {
    let mut counts = Counts { enqueues: 0, adds: 0, stores: 0, overflows: 0 };
    let all = 0..NODES as NodeId;
    let mut sums = [0; 3];
    let expected_sum = load.adds() * NODES as u64;
    for (index, owner) in COUNTERS.iter().enumerate() {
        let mut values = Vec::new();
        for node in nodes.iter() {
            let of_node: Vec<u64> =
                node.sums[index].iter().map(|sum| sum.context("no result")).collect::<Result<_>>()?;
            ensure!(of_node.is_sorted_by(|a, b| a < b), "the fetch-and-adds of node {} were out of order", node.node);
            values.extend(of_node);
        }
        values.sort_unstable();
        let wrong = values.iter().zip(0..).find(|(value, expected)| **value != *expected);
        ensure!(wrong.is_none(), "counter of node {owner}: result and place among all {wrong:?}");
        let sum = guests[usize::from(*owner)].load64(PAGE)?;
        ensure!(sum == values.len() as u64, "counter of node {owner} is {sum} after {} fetch-and-adds", values.len());
        sums[index] = sum;
        counts.adds += sum;
    }
    ensure!(counts.adds == expected_sum, "the counters are {sums:?}: expected {expected_sum} in all");
    for (guest, node) in guests.iter_mut().zip(nodes) {
        let owner = node.node;
        // What came after the last look would be too much.
        let last = node.elements;
        node.receive(guest)?;
        ensure!(node.elements == last, "node {owner} has got more elements than were sent");
        let (mut elements, mut stores) = (0, 0);
        for from in all.clone().filter(|from| *from != owner) {
            let expected = count(from, owner, load.enqueues());
            let found = node.elements[usize::from(from)];
            ensure!(found == expected, "{found} elements of node {from} at node {owner}: expected {expected}");
            let last = count(from, owner, load.stores());
            for number in last.saturating_sub(WORDS - 1).max(1)..=last {
                let value = guest.load64(PAGE + word(from.into(), number))?;
                ensure!(value == number, "where store {number} of node {from} should be at node {owner} is {value}");
            }
            (elements, stores) = (elements + expected, stores + last);
        }
        let adds = COUNTERS.iter().position(|node| *node == owner).map_or(0, |index| sums[index]);
        let (taken, served) =
            (guest.client.register(Register::CountElements)?, guest.client.register(Register::CountServed)?);
        ensure!(taken == elements, "node {owner} has put {taken} elements into its queue: expected {elements}");
        let refused = guest.client.register(Register::CountRefused)?;
        // Each peer has reserved its hold slots once.
        let expected = stores + adds + PEERS;
        ensure!(
            served == expected && refused == 0,
            "node {owner} has performed {served} requests and refused {refused}: expected {expected} ({stores} stores, {adds} atomics) and 0"
        );
        counts.enqueues += elements;
        counts.stores += stores;
        counts.overflows += node.overflows;
    }
    Ok(counts)
}
