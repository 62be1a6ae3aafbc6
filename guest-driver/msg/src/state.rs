// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the threads of a process share under one lock: the engine, the links, and what waits for what. Nothing waits
//! under it: bytes and packets are handed to the links, which move them when it is unlocked.

use crate::beyond::{Beyond, PART, bytes_of};
use crate::link::{Item, Link, Other};
use crate::request::{Lease, Move, Outcome, Request, Transfer};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar};
use std::time::{Duration, Instant};
use telegraphos::RemoteQueue;
use telegraphos_msg_core::far::{Body, Step, Why};
use telegraphos_msg_core::layout::{Element, HEAD, Kind, Layout, kind_of};
use telegraphos_msg_core::{Action, Choice, Config, Engine, Failure, Packet, Piece, Process, ReceiveId, SendId};

/// Processes of one node that have said hello, at most, until they are looked at.
const HELLOS: usize = 64;
/// How long a process that ends may be there after its memory is not: the kernel gives that up first.
const EXIT: Duration = Duration::from_secs(1);
/// Between two reports of processes that broke the rules.
const WARNINGS: Duration = Duration::from_secs(10);

/// What threads wait for that have no request.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// A link has changed.
    pub(crate) linked: Condvar,
    /// There is something for the connecting thread.
    pub(crate) work: Condvar,
    /// There is something for the moving thread.
    pub(crate) moves: Condvar,
    /// Bytes have come that a far process was asked for, or its session has ended.
    pub(crate) answers: Condvar,
    /// Everything has ended. Set under the lock of the state.
    pub(crate) closed: AtomicBool,
}

impl Signals {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn notify(&self) {
        self.linked.notify_all();
        self.work.notify_all();
        self.moves.notify_all();
        self.answers.notify_all();
    }
}

/// Another process, as far as messages go to and fro.
#[derive(Debug)]
struct Peer {
    link: Arc<Link>,
    /// The other has imported this one's inbox, and takes packets in one of its own whose key ends so.
    ready: Option<u16>,
    /// Packets are exchanged.
    up: bool,
    /// Its sizes are others.
    unlike: bool,
}

/// What is known of a process that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Nothing,
    /// There is a link to it.
    Link,
    /// The same, and its sizes are others.
    Unlike,
    /// Packets are exchanged.
    Up,
}

/// Requests that have not ended, by their places.
#[derive(Debug, Default)]
struct Requests(Vec<Option<Arc<Request>>>);

impl Requests {
    fn insert(&mut self, place: usize, request: Arc<Request>) {
        if place >= self.0.len() {
            self.0.resize(place + 1, None);
        }
        self.0[place] = Some(request);
    }

    fn get(&self, place: usize) -> Option<&Arc<Request>> {
        self.0.get(place)?.as_ref()
    }

    fn find(&self, is_it: impl Fn(&Request) -> bool) -> Option<&Arc<Request>> {
        self.0.iter().flatten().find(|request| is_it(request))
    }

    fn remove(&mut self, place: usize) -> Option<Arc<Request>> {
        self.0.get_mut(place)?.take()
    }
}

/// A send whose time the engine decides by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) to: Process,
    pub(crate) length: u64,
    pub(crate) choice: Choice,
    pub(crate) begun: Instant,
}

/// A transfer that has failed, since the other process has gone, or otherwise: its message ends in another way then.
#[derive(Debug)]
struct Failed {
    transfer: Transfer,
    request: Arc<Request>,
    at: Instant,
}

/// What is done without the lock, since it may take a while.
#[derive(Debug)]
pub(crate) struct Due {
    /// Their bytes and packets are due.
    pub(crate) links: SmallVec<[(Process, Arc<Link>); 2]>,
    /// They have ended: their memory is released if no handle of them exists.
    pub(crate) requests: SmallVec<[Arc<Request>; 2]>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) engine: Engine,
    peers: BTreeMap<Process, Peer>,
    /// Processes by the keys of their elements.
    keys: HashMap<u32, Process>,
    /// By their places.
    sends: Requests,
    receives: Requests,
    /// Of the sends, those whose time is measured.
    timed: BTreeMap<SendId, Timed>,
    /// Processes that a thread of this one waits for: the connecting thread is to connect to them.
    pub(crate) wanted: BTreeSet<Process>,
    /// Processes that have said hello, for the same, after those.
    pub(crate) hellos: BTreeSet<Process>,
    /// Why the last attempt to connect failed, for those who wait for that.
    pub(crate) refused: BTreeMap<Process, String>,
    /// The one that it is connecting to.
    pub(crate) connecting: Option<Process>,
    /// Links that it is to close, since that takes time.
    pub(crate) ended: Vec<(Process, Arc<Link>)>,
    /// Requests without a thread that have transfers.
    pub(crate) moves: VecDeque<(Transfer, Lease)>,
    /// Transfers that have failed, until it is known why.
    failed: Vec<Failed>,
    /// Requests that have ended, whose memory is released when the state is unlocked.
    over: SmallVec<[Arc<Request>; 2]>,
    /// Links with something to be done.
    dirty: SmallVec<[(Process, Arc<Link>); 2]>,
    /// Processes that no board reaches, if there are streams to reach them by.
    pub(crate) beyond: Option<Beyond>,
    signals: Arc<Signals>,
    layout: Layout,
    config: Config,
    /// When a process that broke the rules was last reported.
    warned: Option<Instant>,
}

impl State {
    pub(crate) fn new(engine: Engine, config: &Config, signals: Arc<Signals>) -> State {
        State {
            signals,
            engine,
            peers: BTreeMap::new(),
            keys: HashMap::new(),
            sends: Requests::default(),
            receives: Requests::default(),
            timed: BTreeMap::new(),
            wanted: BTreeSet::new(),
            hellos: BTreeSet::new(),
            refused: BTreeMap::new(),
            connecting: None,
            ended: Vec::new(),
            moves: VecDeque::new(),
            failed: Vec::new(),
            over: SmallVec::new(),
            dirty: SmallVec::new(),
            beyond: None,
            layout: Layout::of(config),
            config: config.clone(),
            warned: None,
        }
    }

    pub(crate) fn add(&mut self, process: Process, link: Arc<Link>) {
        self.keys.insert(link.key, process);
        self.peers.insert(process, Peer { link, ready: None, up: false, unlike: false });
    }

    pub(crate) fn link(&self, process: Process) -> Option<&Arc<Link>> {
        self.peers.get(&process).map(|peer| &peer.link)
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = (Process, &Arc<Link>, bool)> {
        self.peers.iter().map(|(process, peer)| (*process, &peer.link, peer.up))
    }

    pub(crate) fn knows(&self, process: Process) -> Known {
        match self.peers.get(&process) {
            None => Known::Nothing,
            Some(peer) if peer.up => Known::Up,
            Some(peer) if peer.unlike => Known::Unlike,
            Some(_) => Known::Link,
        }
    }

    pub(crate) fn is_up(&self, process: Process) -> bool {
        self.knows(process) == Known::Up
    }

    pub(crate) fn is_unlike(&mut self, process: Process) {
        if let Some(peer) = self.peers.get_mut(&process) {
            peer.unlike = true;
        }
    }

    /// A send has begun.
    pub(crate) fn sends(&mut self, send: SendId, request: Arc<Request>, timed: Option<Timed>) {
        self.sends.insert(send.place(), request);
        self.timed.extend(timed.map(|timed| (send, timed)));
    }

    /// A receive has begun.
    pub(crate) fn receives(&mut self, receive: ReceiveId, request: Arc<Request>) {
        self.receives.insert(receive.place(), request);
    }

    /// What is to be done when the state is unlocked.
    pub(crate) fn take_due(&mut self) -> Due {
        Due { links: std::mem::take(&mut self.dirty), requests: std::mem::take(&mut self.over) }
    }

    /// A process has been found, for the first time.
    pub(crate) fn meet(&mut self, process: Process, link: &Arc<Link>, other: Other) -> Option<RemoteQueue> {
        // Packets of the other follow its answer to this, and must find it up.
        let rest = link.meet(other);
        mark(&mut self.dirty, process, link);
        self.try_up(process);
        rest
    }

    /// Packets are exchanged with a process as soon as both have what they need.
    fn try_up(&mut self, process: Process) {
        let Some(peer) = self.peers.get_mut(&process) else { return };
        // One that began anew was perhaps ready before, too.
        let same = peer.link.other().is_some_and(|other| peer.ready == Some(other.key as u16));
        if peer.up || !same {
            return;
        }
        match self.engine.connect(process) {
            Ok(()) => {
                peer.up = true;
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
        self.part(process, true);
    }

    /// Nothing is exchanged with a process any more. What has been received is still taken, and what was to be said is,
    /// unless it has gone.
    fn part(&mut self, process: Process, gone: bool) {
        self.perform();
        if let Some(beyond) = self.beyond.as_mut().filter(|beyond| beyond.knows(process)) {
            beyond.far.close(process, Why::Ended);
            self.far_gone(process);
            self.perform();
            return;
        }
        let Some(peer) = self.peers.remove(&process) else { return };
        self.keys.remove(&peer.link.key);
        if gone {
            peer.link.close();
        }
        mark(&mut self.dirty, process, &peer.link);
        self.ended.push((process, peer.link));
        self.signals.notify();
        if peer.up {
            self.engine.gone(process);
            self.perform();
        }
        self.decide(process, Instant::now(), Failure::Gone);
    }

    /// A transfer of a request has ended, and the board has moved the bytes or not.
    pub(crate) fn transferred(&mut self, transfer: Transfer, request: &Arc<Request>, moved: bool) {
        if moved {
            return self.engine.transferred(transfer.id, true);
        }
        let (other, at) = (transfer.other, Instant::now());
        self.failed.push(Failed { transfer, request: request.clone(), at });
        if self.beyond.as_ref().is_some_and(|beyond| beyond.knows(other)) {
            self.decide(other, at, Failure::Failed);
        } else if !self.peers.contains_key(&other) {
            self.decide(other, at, Failure::Gone);
        }
        // Else a look decides.
    }

    /// A process was there at a look that began then, which may decide why some of its transfers have failed.
    pub(crate) fn is_there(&mut self, process: Process, at: Instant) {
        if let Some(before) = at.checked_sub(EXIT) {
            self.decide(process, before, Failure::Failed);
        }
    }

    /// It is known why transfers from or to a process have failed, of those that did before.
    fn decide(&mut self, process: Process, before: Instant, why: Failure) {
        let is_it = |failed: &Failed| failed.transfer.other == process && failed.at <= before;
        let (decided, left) = std::mem::take(&mut self.failed).into_iter().partition(is_it);
        self.failed = left;
        let decided: Vec<Failed> = decided;
        for Failed { transfer, request, .. } in decided {
            if why == Failure::Gone {
                // The first end counts, and the engine only knows that the bytes were not moved.
                request.end(Err(why));
            }
            self.engine.transferred(transfer.id, false);
        }
        self.perform();
    }

    /// The same, if that is its link, by which it was not reached.
    pub(crate) fn lose_by(&mut self, process: Process, link: &Arc<Link>) {
        if self.link(process).is_some_and(|now| Arc::ptr_eq(now, link)) {
            self.lose(process);
        }
    }

    /// Everything ends.
    pub(crate) fn close(&mut self) {
        self.signals.closed.store(true, Ordering::Relaxed);
        self.wanted.clear();
        self.hellos.clear();
        let far = self.beyond.iter().flat_map(Beyond::processes);
        let processes: Vec<Process> = self.peers.keys().copied().chain(far).collect();
        processes.into_iter().for_each(|process| self.part(process, false));
        let (sends, receives) = (std::mem::take(&mut self.sends), std::mem::take(&mut self.receives));
        sends.0.into_iter().flatten().for_each(|request| self.end(Some(request), Err(Failure::Gone)));
        receives.0.into_iter().flatten().for_each(|request| self.end(Some(request), Err(Failure::Closed)));
        self.signals.notify();
    }

    /// Another process has appended an element to a queue.
    pub(crate) fn element(&mut self, word: u64) {
        let Some(element) = Element::decode(word) else { return };
        let by_key = |key: u32| self.keys.get(&key).copied();
        match element {
            Element::Hello(process) => {
                // Any process can say hello: of each node, only so many are looked at.
                let first = Process { node: process.node, number: 0 };
                let last = Process { node: process.node, number: u32::MAX };
                if self.hellos.range(first..=last).count() < HELLOS && self.hellos.insert(process) {
                    self.signals.work.notify_all();
                }
            }
            Element::Ready { key, of } => {
                let Some(process) = by_key(key) else { return };
                if let Some(peer) = self.peers.get_mut(&process) {
                    peer.ready = Some(of);
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
            None => Some(format!("slot {slot}: expected less than {}", self.layout.slots())),
        };
        self.perform();
        if let Some(wrong) = wrong {
            self.breaks_rules(from, &wrong);
        }
    }

    fn breaks_rules(&mut self, from: Process, wrong: &str) {
        if self.warned.is_none_or(|at| at.elapsed() >= WARNINGS) {
            self.warned = Some(Instant::now());
            log::warn!("{from} has broken the rules and is disconnected: {wrong}");
        }
        self.lose(from);
    }

    /// Does what is next for far processes. False if there is nothing.
    fn step_far(&mut self) -> bool {
        let Some(step) = self.beyond.as_mut().and_then(Beyond::step) else { return false };
        match step {
            // It has been said.
            Step::Say { .. } => {}
            Step::Up(process) => {
                let connected = self.engine.connect_far(process);
                let Some(beyond) = &mut self.beyond else { return false };
                match connected {
                    Ok(()) => beyond.meet(process),
                    Err(error) => {
                        log::debug!("{process} is not connected to: {error}");
                        beyond.far.close(process, Why::Full);
                    }
                }
                self.signals.notify();
            }
            Step::Gone(process, why) => {
                // Threads wait for one that has not begun.
                if !self.far_gone(process) {
                    self.refuse(process, why.to_string());
                }
            }
            Step::Body(from, body) => self.far_body(from, body),
        }
        true
    }

    /// There is no session with a far process any more. False if it had not begun.
    fn far_gone(&mut self, process: Process) -> bool {
        let begun = self.beyond.as_mut().is_some_and(|beyond| beyond.part(process));
        if begun {
            self.engine.gone(process);
        }
        self.signals.notify();
        begun
    }

    /// Why a process was not connected to, for those who wait for that.
    pub(crate) fn refuse(&mut self, process: Process, why: String) {
        // No thread asks for a process that says hello and goes: its entry stays, hence the limit.
        if self.refused.len() < self.config.peers as usize {
            self.refused.insert(process, why);
        }
    }

    /// A far process says something.
    fn far_body(&mut self, from: Process, body: Body) {
        let Some(beyond) = self.beyond.as_mut().filter(|beyond| beyond.knows(from)) else { return };
        match body {
            Body::Alive => {}
            Body::Packet(packet, bytes) => {
                let expected = bytes_of(&self.config, &packet);
                let wrong = if bytes.len() == expected {
                    if let Packet::Eager { slot, .. } = packet {
                        beyond.put(from, slot, bytes);
                    }
                    self.engine.packet(from, packet).err().map(|violation| violation.to_string())
                } else {
                    Some(format!("{} bytes with {packet:?}: expected {expected}", bytes.len()))
                };
                self.act();
                if let Some(wrong) = wrong {
                    self.breaks_rules(from, &wrong);
                }
            }
            Body::Read { number, at, offset, length } => {
                let end = offset.checked_add(length.into()).filter(|_| u64::from(length) <= PART);
                let send = end.and_then(|end| self.engine.bytes_of(from, at, end));
                let request = send.and_then(|send| self.sends.get(send.place()));
                // SAFETY: the send has not ended, and the engine has compared the bytes that it has.
                let bytes = request.map(|request| unsafe { request.buffer.bytes(offset, length) });
                beyond.far.say(from, Body::Bytes { number, bytes });
            }
            Body::Bytes { number, bytes } => {
                beyond.answered(from, number, bytes);
                self.signals.answers.notify_all();
            }
        }
    }

    /// The packet that an element announces, with what is in the inbox.
    fn read(&self, from: Process, kind: Kind, slot: u16) -> Option<Packet> {
        let link = self.link(from)?;
        self.layout.packet(kind, slot, |at| link.inbox.load(at).ok())
    }

    /// Hands on what is to be done: what the engine wants, and what far processes say.
    pub(crate) fn perform(&mut self) {
        loop {
            self.act();
            if !self.step_far() {
                return;
            }
        }
    }

    /// Hands on what the engine wants done.
    fn act(&mut self) {
        while let Some(action) = self.engine.action() {
            match action {
                Action::Post { to, packet, bytes } => self.post(to, packet, bytes),
                Action::Take { receive, from, slot, offset, length } => {
                    let (link, request) = (self.peers.get(&from), self.receives.get(receive.place()));
                    if let (Some(beyond), Some(request)) =
                        (self.beyond.as_mut().filter(|beyond| beyond.knows(from)), request)
                    {
                        let bytes = beyond.take(from, slot);
                        // Not more than there are: that was checked when they came.
                        let taken = &bytes[..bytes.len().min(length as usize)];
                        // SAFETY: the receive has not ended, and the engine names bytes that it has room for.
                        unsafe { request.buffer.write_bytes(offset, taken) };
                        continue;
                    }
                    let Some((Peer { link, .. }, request)) = link.zip(request) else { continue };
                    let at = self.layout.slot(slot) + HEAD;
                    link.push(Item::Take { at, lease: Lease::of(request), offset, length });
                    mark(&mut self.dirty, from, link);
                }
                Action::Fetch { transfer: id, receive, from: other, at, length } => {
                    let transfer = Transfer { id, what: Move::Fetch(at), other, length };
                    self.transfer(self.receives.get(receive.place()).cloned(), transfer);
                }
                Action::Offer { transfer: id, receive, to: other, offset, length } => {
                    let transfer = Transfer { id, what: Move::Offer(offset), other, length };
                    self.transfer(self.receives.get(receive.place()).cloned(), transfer);
                }
                Action::Store { transfer: id, send, to: other, at, offset, length } => {
                    let transfer = Transfer { id, what: Move::Store(at, offset), other, length };
                    self.transfer(self.sends.get(send.place()).cloned(), transfer);
                }
                Action::Received { receive, outcome } => {
                    let request = self.receives.remove(receive.place());
                    self.end(request, outcome.map(Some));
                }
                Action::Sent { send, outcome } => {
                    if let Some(Timed { to, length, choice, begun }) = self.timed.remove(&send) {
                        if outcome.is_ok() {
                            self.engine.took(to, length, choice, begun.elapsed());
                        }
                    }
                    let request = self.sends.remove(send.place());
                    self.end(request, outcome.map(|()| None));
                }
            }
        }
    }

    fn end(&mut self, request: Option<Arc<Request>>, outcome: Outcome) {
        if let Some(request) = request {
            request.end(outcome);
            self.over.push(request);
        }
    }

    fn transfer(&mut self, request: Option<Arc<Request>>, transfer: Transfer) {
        match request {
            Some(request) if request.has_handle => {
                self.moves.push_back((transfer, Lease::of(&request)));
                self.signals.moves.notify_all();
            }
            Some(request) => request.run(transfer),
            None => {}
        }
    }

    /// Sends a packet, behind the words that belong to it.
    fn post(&mut self, to: Process, packet: Packet, bytes: Option<Piece>) {
        if let Some(beyond) = self.beyond.as_mut().filter(|beyond| beyond.knows(to)) {
            let sent = bytes.and_then(|piece| Some((self.sends.get(piece.send.place())?, piece)));
            // SAFETY: the send has not ended, and the engine names bytes that it has.
            let bytes = sent.map(|(request, piece)| unsafe { request.buffer.bytes(piece.offset, piece.length) });
            beyond.far.say(to, Body::Packet(packet, bytes.unwrap_or_default()));
            return;
        }
        let Some(Peer { link, .. }) = self.peers.get(&to) else { return };
        let Some(key) = link.other().map(|other| other.key) else { return };
        let words = self.layout.words(packet);
        let lease = |piece: Piece| Some((Lease::of(self.sends.get(piece.send.place())?), piece.offset, piece.length));
        let bytes = bytes.filter(|piece| piece.length > 0).and_then(lease);
        let opens = match packet {
            Packet::Clear { at, length, .. } => {
                self.receives.find(|request| request.is_at(at)).map(|request| (Lease::of(request), length))
            }
            _ => None,
        };
        let (kind, slot) = kind_of(packet);
        link.push(Item::Post { opens, words, bytes, element: Element::Packet { key, kind, slot } });
        mark(&mut self.dirty, to, link);
    }
}

/// A link has something to be done.
fn mark(dirty: &mut SmallVec<[(Process, Arc<Link>); 2]>, process: Process, link: &Arc<Link>) {
    if dirty.last().is_none_or(|(_, last)| !Arc::ptr_eq(last, link)) {
        dirty.push((process, link.clone()));
    }
}
