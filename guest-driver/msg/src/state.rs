// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of a process share under one lock: the engine, the links, and who waits for what.

use crate::layout::{Element, HEAD, Kind, Layout, head, kind_of, of_head};
use crate::link::Link;
use crate::request::{Request, Transfer};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};
use telegraphos_msg_core::{Action, Config, Engine, Packet, Place, Process, ReceiveId, SendId};

/// Between two reports of processes that broke the rules.
const WARNINGS: Duration = Duration::from_secs(10);

/// What threads wait for that have no request.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// A link has changed.
    pub(crate) linked: Condvar,
    /// There is something for the connecting thread.
    pub(crate) work: Condvar,
}

impl Signals {
    pub(crate) fn notify(&self) {
        self.linked.notify_all();
        self.work.notify_all();
    }
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) links: BTreeMap<Process, Link>,
    /// Processes by the keys of their elements.
    keys: HashMap<u32, Process>,
    pub(crate) sends: BTreeMap<SendId, Request>,
    pub(crate) receives: BTreeMap<ReceiveId, Request>,
    /// Processes that a thread of this one waits for: the connecting thread is to connect to them.
    pub(crate) wanted: BTreeSet<Process>,
    /// Processes that have said hello, for the same, after those.
    pub(crate) hellos: BTreeSet<Process>,
    /// Why the last attempt to connect failed, for those who wait for that.
    pub(crate) refused: BTreeMap<Process, String>,
    /// The one that it is connecting to.
    pub(crate) connecting: Option<Process>,
    /// Links that it is to close, since that takes time.
    pub(crate) ended: Vec<Link>,
    pub(crate) closed: bool,
    signals: Arc<Signals>,
    layout: Layout,
    slots: u16,
    /// When a process that broke the rules was last reported.
    warned: Option<Instant>,
    /// Of one packet, kept for the next.
    words: Vec<u64>,
}

impl State {
    pub(crate) fn new(engine: Engine, config: &Config, signals: Arc<Signals>) -> State {
        State {
            signals,
            engine,
            links: BTreeMap::new(),
            keys: HashMap::new(),
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            wanted: BTreeSet::new(),
            hellos: BTreeSet::new(),
            refused: BTreeMap::new(),
            connecting: None,
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
        // One that began anew was perhaps ready before, too.
        let same = link.other.as_ref().is_some_and(|other| link.ready == Some(other.key as u16));
        if link.up || !same {
            return;
        }
        match self.engine.connect(process) {
            Ok(()) => {
                link.up = true;
                self.signals.notify();
            }
            Err(error) => {
                log::debug!("{process} is not connected to: {error}");
                self.lose(process);
            }
        }
    }

    /// A process has gone, or is treated so, and told.
    pub(crate) fn lose(&mut self, process: Process) {
        let Some(link) = self.links.remove(&process) else { return };
        self.keys.remove(&link.key);
        link.say(|key| Element::Goodbye { key });
        self.signals.notify();
        let up = link.up;
        self.ended.push(link);
        if up {
            self.engine.gone(process);
            self.perform();
        }
    }

    /// Another process has appended an element to the queue.
    pub(crate) fn element(&mut self, word: u64, config: &Config) {
        let Some(element) = Element::decode(word) else { return };
        let by_key = |key: u32| self.keys.get(&key).copied();
        match element {
            Element::Hello(process) => {
                // Anybody can say hello: only so many are looked at.
                if self.hellos.len() < config.peers as usize && self.hellos.insert(process) {
                    self.signals.work.notify_all();
                }
            }
            Element::Ready { key, of } => {
                let Some(process) = by_key(key) else { return };
                if let Some(link) = self.links.get_mut(&process) {
                    link.ready = Some(of);
                }
                self.try_up(process);
            }
            Element::Goodbye { key } => {
                if let Some(process) = by_key(key) {
                    self.lose(process);
                }
            }
            Element::Packet { key, kind, slot } => {
                if let Some(process) = by_key(key).filter(|process| self.is_up(*process)) {
                    self.packet(process, kind, slot);
                }
            }
        }
    }

    /// A packet of a process that is up.
    fn packet(&mut self, from: Process, kind: Kind, slot: u16) {
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
        }
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
        let (kind, slot) = kind_of(packet);
        let words = at.map(|at| (at, &self.words[..]));
        self.links.get(&to).is_none_or(|link| link.say_with(words, |key| Element::Packet { key, kind, slot }).is_ok())
    }
}
