// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of a process share under one lock: the engine, the links, and who waits for what.

use crate::error::Error;
use crate::layout::{Element, HEAD, Kind, Layout, head, kind_of, of_head};
use crate::link::Link;
use crate::request::{Request, Transfer};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use telegraphos_msg_core::{Action, Config, Engine, Packet, Place, Process, ReceiveId, SendId};

/// Between two reports of processes that broke the rules.
const WARNINGS: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) links: BTreeMap<Process, Link>,
    /// Processes by the keys of their elements.
    keys: HashMap<u32, Process>,
    pub(crate) sends: BTreeMap<SendId, Request>,
    pub(crate) receives: BTreeMap<ReceiveId, Request>,
    /// Processes that the connecting thread is to look at.
    pub(crate) wanted: BTreeSet<Process>,
    /// Why it could not connect to processes, for those who wait for them.
    pub(crate) refused: BTreeMap<Process, Error>,
    /// Links that it is to close, since that takes time.
    pub(crate) ended: Vec<Link>,
    pub(crate) closed: bool,
    layout: Layout,
    slots: u16,
    /// When a process that broke the rules was last reported.
    warned: Option<Instant>,
    /// Of one packet, kept for the next.
    words: Vec<u64>,
}

impl State {
    pub(crate) fn new(engine: Engine, config: &Config) -> State {
        State {
            engine,
            links: BTreeMap::new(),
            keys: HashMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            wanted: BTreeSet::new(),
            refused: BTreeMap::new(),
            ended: Vec::new(),
            closed: false,
            layout: Layout::of(config),
            slots: config.slots,
            warned: None,
            words: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, process: Process, link: Link) {
        self.keys.insert(link.key, process);
        self.links.insert(process, link);
    }

    pub(crate) fn is_up(&self, process: Process) -> bool {
        self.links.get(&process).is_some_and(|link| link.up)
    }

    /// Packets are exchanged with a process as soon as both have what they need.
    pub(crate) fn try_up(&mut self, process: Process) {
        let Some(link) = self.links.get_mut(&process) else { return };
        if link.up || !link.ready || link.other.is_none() {
            return;
        }
        match self.engine.connect(process) {
            Ok(()) => link.up = true,
            Err(error) => {
                log::debug!("{process} is not connected to: {error}");
                self.lose(process);
            }
        }
    }

    /// A process has gone, or is treated so.
    pub(crate) fn lose(&mut self, process: Process) {
        let Some(link) = self.links.remove(&process) else { return };
        self.keys.remove(&link.key);
        let up = link.up;
        self.ended.push(link);
        if up {
            self.engine.gone(process);
            self.perform();
        }
    }

    /// Another process has appended an element to the queue. True if the connecting thread has something to do.
    pub(crate) fn element(&mut self, word: u64, config: &Config) -> bool {
        let Some(element) = Element::decode(word) else { return false };
        let by_key = |key: u32| self.keys.get(&key).copied();
        match element {
            Element::Hello(process) => {
                // Anybody can say hello: only so many are looked at.
                let room = self.wanted.len() < config.peers as usize;
                return !self.is_up(process) && room && self.wanted.insert(process);
            }
            Element::Ready { key } => {
                let Some(process) = by_key(key) else { return false };
                if let Some(link) = self.links.get_mut(&process) {
                    link.ready = true;
                }
                self.try_up(process);
                return true;
            }
            Element::Goodbye { key } => {
                if let Some(process) = by_key(key) {
                    self.lose(process);
                    return true;
                }
            }
            Element::Packet { key, kind, slot } => {
                if let Some(process) = by_key(key).filter(|process| self.is_up(*process)) {
                    return self.packet(process, kind, slot);
                }
            }
        }
        false
    }

    /// A packet of a process that is up. True if its link has ended.
    fn packet(&mut self, from: Process, kind: Kind, slot: u16) -> bool {
        let packet = self.read(from, kind, slot);
        let wrong = match packet {
            Some(packet) => self.engine.packet(from, packet).err().map(|violation| violation.to_string()),
            None => Some(format!("slot {slot}: expected less than {}", self.slots)),
        };
        self.perform();
        if let Some(wrong) = wrong {
            if self.warned.is_none_or(|at| at.elapsed() >= WARNINGS) {
                self.warned = Some(Instant::now());
                log::warn!("{from} has broken the rules and is given up: {wrong}");
            }
            self.lose(from);
            return true;
        }
        false
    }

    /// The packet that an element announces, with what is in the inbox.
    fn read(&self, from: Process, kind: Kind, slot: u16) -> Option<Packet> {
        let link = self.links.get(&from)?;
        if slot >= self.slots {
            return None;
        }
        let head = || link.words(self.layout.slot(slot)).ok().map(of_head);
        Some(match kind {
            Kind::Eager => {
                let (header, fragment, _) = head()?;
                Packet::Eager { slot, header, fragment }
            }
            Kind::Request => {
                let (header, _, at) = head()?;
                Packet::Request { slot, header, at }
            }
            Kind::Clear => {
                let [at, length] = link.words(self.layout.reply(slot)).ok()?;
                Packet::Clear { slot, at: Place(at), length }
            }
            Kind::Withdraw => Packet::Withdraw { slot },
            Kind::Stored { whole } => Packet::Stored { slot, whole },
            Kind::Done(answer) => Packet::Done { slot, answer },
        })
    }

    /// Does what the engine wants done.
    pub(crate) fn perform(&mut self) {
        let mut lost = Vec::new();
        while let Some(action) = self.engine.action() {
            match action {
                Action::Post { to, packet, bytes } => {
                    self.words.clear();
                    let at = self.words_of(packet);
                    if let Some((piece, request)) = bytes.and_then(|piece| Some((piece, self.sends.get(&piece.send)?)))
                    {
                        // SAFETY: the send has not ended, so its thread waits.
                        unsafe { request.buffer.read(piece.offset, piece.length, &mut self.words) };
                    }
                    if !self.post(to, packet, at) {
                        lost.push(to);
                    }
                }
                Action::Take { receive, from, slot, offset, length } => {
                    let (link, request) = (self.links.get(&from), self.receives.get(&receive));
                    let Some((link, request)) = link.zip(request) else { continue };
                    let mut at = self.layout.slot(slot) + HEAD;
                    let next = || {
                        // Within the inbox, whose slots all have room for a block.
                        let word = link.inbox.load(at).unwrap_or(0);
                        at += 8;
                        word
                    };
                    // SAFETY: the receive has not ended, so its thread waits.
                    unsafe { request.buffer.write(offset, length, next) };
                }
                Action::Fetch { transfer: id, receive, from: other, at, length } => {
                    if let Some(request) = self.receives.get_mut(&receive) {
                        request.run(Transfer { id, fetch: true, other, at, length });
                    }
                }
                Action::Store { transfer: id, send, to: other, at, length } => {
                    if let Some(request) = self.sends.get_mut(&send) {
                        request.run(Transfer { id, fetch: false, other, at, length });
                    }
                }
                Action::Received { receive, outcome } => {
                    if let Some(request) = self.receives.get_mut(&receive) {
                        request.end(outcome.map(Some));
                    }
                }
                Action::Sent { send, outcome } => {
                    if let Some(request) = self.sends.get_mut(&send) {
                        request.end(outcome.map(|()| None));
                    }
                }
            }
        }
        for process in lost {
            self.lose(process);
        }
    }

    /// Words that precede the bytes of a packet, and where they go; `None` if there are none.
    fn words_of(&mut self, packet: Packet) -> Option<u64> {
        match packet {
            Packet::Eager { slot, header, fragment } => {
                self.words.extend(head(header, fragment, Place(0)));
                Some(self.layout.slot(slot))
            }
            Packet::Request { slot, header, at } => {
                self.words.extend(head(header, 0, at));
                Some(self.layout.slot(slot))
            }
            Packet::Clear { slot, at, length } => {
                self.words.extend([at.0, length]);
                Some(self.layout.reply(slot))
            }
            Packet::Stored { .. } | Packet::Withdraw { .. } | Packet::Done { .. } => None,
        }
    }

    /// Sends a packet with its words. False if the process is not to be reached any more.
    fn post(&self, to: Process, packet: Packet, at: Option<u64>) -> bool {
        let Some(other) = self.links.get(&to).and_then(|link| link.other.as_ref()) else { return true };
        let (kind, slot) = kind_of(packet);
        let element = Element::Packet { key: other.key, kind, slot }.encode();
        match at {
            Some(at) => other.put(at, &self.words, element).is_ok(),
            None => other.elements.enqueue(element).is_ok(),
        }
    }
}
