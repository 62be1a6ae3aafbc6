// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives and what has arrived, matched in the order of both (SPEC items 32, 39 and 41; s4 §5.1).

use crate::action::{Action, Direction, ReceiveId, Received, TransferId};
use crate::address::{Endpoint, Pattern, Process};
use crate::bugs::Bug;
use crate::config::{Config, Way};
use crate::error::{Error, Failure};
use crate::packet::{Answer, Header, Packet, Place, Violation};
use crate::slots::Slots;
use crate::store::{Id, Key, Store};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is known of the bytes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    NotYet,
    Fetching,
    /// A place is being made for those from here on.
    Offering(u64),
    /// The sender has been sent the place to store them to, up to here.
    Cleared(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Body {
    Eager {
        /// Fragments that have arrived.
        come: u16,
        /// Slots of the last of them, which have not been taken yet.
        held: SmallVec<[u16; 1]>,
    },
    Request {
        slot: u16,
        at: Place,
        is: Move,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Message {
    from: Endpoint,
    header: Header,
    body: Body,
    /// Whose it is.
    receive: Option<Id>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Receive {
    thread: u32,
    pattern: Pattern,
    capacity: u64,
    place: Option<Place>,
    /// Of all receives, by when they began.
    sequence: u64,
    matched: bool,
}

/// A message of which not all fragments have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Partial {
    header: Header,
    next: u16,
    /// None if no thread is open for it.
    message: Option<Id>,
}

/// What another process has here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Incoming {
    slots: Slots,
    /// No board reaches it.
    far: bool,
    partial: Option<Partial>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Receiver {
    messages: Store<Message>,
    receives: Store<Receive>,
    peers: BTreeMap<Process, Incoming>,
    threads: BTreeSet<u32>,
    next: u64,
}

impl Receiver {
    pub(crate) fn new(config: &Config) -> Receiver {
        let (messages, chains) = (config.peers * u32::from(config.slots), usize::from(config.chains));
        Receiver {
            messages: Store::new(messages, chains),
            receives: Store::new(config.receives, chains),
            peers: BTreeMap::new(),
            threads: BTreeSet::new(),
            next: 0,
        }
    }

    pub(crate) fn connect(&mut self, config: &Config, peer: Process, far: bool) -> Result<(), Error> {
        if self.peers.contains_key(&peer) {
            return Err(Error::Connected(peer));
        }
        if self.peers.len() >= config.peers as usize {
            return Err(Error::Peers(config.peers));
        }
        self.peers.insert(peer, Incoming { slots: Slots::new(config), far, partial: None });
        Ok(())
    }

    pub(crate) fn knows(&self, peer: Process) -> bool {
        self.peers.contains_key(&peer)
    }

    pub(crate) fn is_open(&self, thread: u32) -> bool {
        self.threads.contains(&thread)
    }

    /// Receives that have not ended.
    pub(crate) fn open(&self) -> u32 {
        self.receives.used()
    }

    /// Messages that are not all with their threads.
    pub(crate) fn messages(&self) -> u32 {
        self.messages.used()
    }

    pub(crate) fn open_thread(&mut self, config: &Config, thread: u32) -> Result<(), Error> {
        if self.threads.len() >= config.threads as usize {
            return Err(Error::Threads(config.threads));
        }
        if self.threads.insert(thread) { Ok(()) } else { Err(Error::ThreadOpen(thread)) }
    }

    pub(crate) fn receive(
        &mut self,
        config: &Config,
        thread: u32,
        pattern: Pattern,
        capacity: u64,
        place: Option<Place>,
        out: &mut VecDeque<Action>,
    ) -> Result<ReceiveId, Error> {
        if !self.is_open(thread) {
            return Err(Error::NoThread(thread));
        }
        if let Some(process) = pattern.process.filter(|process| !self.knows(*process)) {
            return Err(Error::NoProcess(process));
        }
        self.next += 1;
        let receive = Receive { thread, pattern, capacity, place, sequence: self.next, matched: false };
        let id = self.receives.allocate(receive).ok_or(Error::Receives(config.receives))?;
        let key = exact(thread, pattern);
        if let Some(message) = self.oldest(config, thread, pattern, key) {
            self.bind(config, message, id, out);
        } else if let Some(key) = key {
            self.receives.chain(id, key);
        } else {
            self.receives.list(id, thread);
        }
        Ok(ReceiveId(id))
    }

    /// The message for a receive that arrived first. `key` is that of all of them, if there is only one.
    fn oldest(&self, config: &Config, thread: u32, pattern: Pattern, key: Option<Key>) -> Option<Id> {
        if let Some(key) = key {
            return self.messages.first_of(&key);
        }
        let accepts =
            |id: &Id| self.messages.get(*id).is_some_and(|message| pattern.accepts(message.from, message.header.tag));
        let mut accepted = self.messages.of_thread(thread).filter(accepts);
        if config.has(Bug::NewestFirst) { accepted.last() } else { accepted.next() }
    }

    /// The receive for a message that began first.
    fn first(&self, config: &Config, from: Endpoint, header: Header) -> Option<Id> {
        let age = |id: &Id| self.receives.get(*id).map_or(u64::MAX, |receive| receive.sequence);
        let any = self
            .receives
            .of_thread(header.to)
            .find(|id| self.receives.get(*id).is_some_and(|receive| receive.pattern.accepts(from, header.tag)));
        match (self.receives.first_of(&key(from, header)), any) {
            (Some(exactly), Some(any)) if age(&any) < age(&exactly) && !config.has(Bug::ExactFirst) => Some(any),
            (exactly, any) => exactly.or(any),
        }
    }

    /// A message is a receive's.
    fn bind(&mut self, config: &Config, message: Id, receive: Id, out: &mut VecDeque<Action>) {
        self.receives.unlink(receive);
        if !config.has(Bug::TransferTwice) {
            self.messages.unlink(message);
        }
        let (Some(m), Some(r)) = (self.messages.get_mut(message), self.receives.get_mut(receive)) else { return };
        r.matched = true;
        m.receive = Some(receive);
        let (from, length) = (m.from.process, m.header.length.min(r.capacity));
        let Body::Request { slot, at, is } = &mut m.body else { return self.take(config, message, out) };
        if length == 0 {
            self.end_request(message, Ok(()), out);
            return;
        }
        let far = self.peers.get(&from).is_some_and(|peer| peer.far);
        match (config.way, r.place) {
            _ if at.is_in_pieces() && !far => self.offer(message, 0, out),
            (Way::Put, Some(place)) if !far => {
                *is = Move::Cleared(length);
                let packet = Packet::Clear { slot: *slot, at: place, length };
                out.push_back(Action::Post { to: from, packet, bytes: None });
            }
            _ => {
                *is = Move::Fetching;
                let (transfer, receive) = (TransferId(Direction::Fetch(message)), ReceiveId(receive));
                out.push_back(Action::Fetch { transfer, receive, from, at: *at, length });
            }
        }
    }

    /// The next bytes of a request are stored piece by piece; without any left it ends.
    fn offer(&mut self, id: Id, offset: u64, out: &mut VecDeque<Action>) {
        let Some(message) = self.messages.get_mut(id) else { return };
        let (Body::Request { is, .. }, Some(receive)) = (&mut message.body, message.receive) else { return };
        let capacity = self.receives.get(receive).map_or(0, |receive| receive.capacity);
        let length = message.header.length.min(capacity).saturating_sub(offset);
        if length == 0 {
            return self.end_request(id, Ok(()), out);
        }
        *is = Move::Offering(offset);
        let (transfer, receive) = (TransferId(Direction::Offer(id)), ReceiveId(receive));
        out.push_back(Action::Offer { transfer, receive, to: message.from.process, offset, length });
    }

    pub(crate) fn offered(&mut self, id: Id, place: Option<(Place, u64)>, out: &mut VecDeque<Action>) {
        // That of a process that has gone has ended.
        let Some(message) = self.messages.get_mut(id) else { return };
        let (to, Body::Request { slot, is, .. }) = (message.from.process, &mut message.body) else { return };
        let Move::Offering(offset) = *is else { return };
        match place.filter(|(_, length)| *length > 0) {
            Some((at, length)) => {
                *is = Move::Cleared(offset.saturating_add(length));
                out.push_back(Action::Post { to, packet: Packet::Clear { slot: *slot, at, length }, bytes: None });
            }
            None => self.end_request(id, Err(Failure::Failed), out),
        }
    }

    /// Takes the fragments of a message that have arrived.
    fn take(&mut self, config: &Config, id: Id, out: &mut VecDeque<Action>) {
        let Some(message) = self.messages.get_mut(id) else { return };
        let (Body::Eager { come, held }, Some(receive)) = (&mut message.body, message.receive) else { return };
        let capacity = self.receives.get(receive).map_or(0, |receive| receive.capacity);
        let (from, length) = (message.from.process, message.header.length);
        let first = *come - held.len() as u16;
        let all = *come == config.fragments_of(length);
        let slots = std::mem::take(held);
        for (fragment, slot) in (first..).zip(slots) {
            let (offset, bytes) = config.fragment(length, fragment);
            let bytes = u64::from(bytes).min(capacity.saturating_sub(offset)) as u32; // not more than before
            let offset = if config.has(Bug::ForgetOffset) { 0 } else { offset };
            if bytes > 0 {
                out.push_back(Action::Take { receive: ReceiveId(receive), from, slot, offset, length: bytes });
            }
            self.give_back(from, slot, id, Answer::Taken, out);
        }
        if all {
            self.end(id, Ok(()), out);
        }
    }

    /// The slot of a message is the sender's again.
    fn give_back(&mut self, to: Process, slot: u16, id: Id, answer: Answer, out: &mut VecDeque<Action>) {
        // The slot of a process that has gone, and perhaps come again, is not this message's.
        if self.peer(to).is_some_and(|peer| peer.slots.take(slot, id)) {
            out.push_back(done(to, slot, answer));
        }
    }

    /// A message is with its receive, or never will be.
    fn end(&mut self, id: Id, outcome: Result<(), Failure>, out: &mut VecDeque<Action>) {
        let Some(message) = self.messages.free(id) else { return };
        if let Some(receive) = message.receive.filter(|receive| self.receives.free(*receive).is_some()) {
            let Header { tag, length, .. } = message.header;
            let outcome = outcome.map(|()| Received { from: message.from, tag, length });
            out.push_back(Action::Received { receive: ReceiveId(receive), outcome });
        }
    }

    /// The same of a request, whose slot is given back.
    fn end_request(&mut self, id: Id, outcome: Result<(), Failure>, out: &mut VecDeque<Action>) {
        let Some((from, Body::Request { slot, .. })) = self.messages.get(id).map(|m| (m.from.process, &m.body)) else {
            return;
        };
        self.give_back(from, *slot, id, Answer::to(outcome), out);
        self.end(id, outcome, out);
    }

    fn peer(&mut self, from: Process) -> Option<&mut Incoming> {
        self.peers.get_mut(&from)
    }

    /// What is in a slot.
    fn slot(&self, from: Process, slot: u16) -> Result<Option<Id>, Violation> {
        self.peers.get(&from).map_or(Ok(None), |peer| peer.slots.get(slot))
    }

    fn arrives(&self, from: Process, slot: u16, most: u64, header: Header) -> Result<(), Violation> {
        if self.slot(from, slot)?.is_some() {
            return Err(Violation::SlotInUse(slot));
        }
        if header.length > most {
            return Err(Violation::Length { length: header.length, most });
        }
        Ok(())
    }

    /// A new message. There is a block for each slot, and this one's was free.
    fn begin(&mut self, process: Process, header: Header, body: Body) -> Option<Id> {
        let from = Endpoint { process, thread: header.from };
        self.messages.allocate(Message { from, header, body, receive: None })
    }

    pub(crate) fn eager(
        &mut self,
        config: &Config,
        from: Process,
        slot: u16,
        header: Header,
        fragment: u16,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        self.arrives(from, slot, config.eager, header)?;
        let open = self.is_open(header.to);
        let before = self.peer(from).and_then(|peer| peer.partial.take());
        let follows = before.as_ref().is_some_and(|partial| partial.next == fragment && partial.header == header);
        let message = match before {
            Some(partial) if fragment > 0 && follows => partial.message,
            Some(Partial { next, message: Some(_), .. }) => {
                return Err(Violation::Fragment { fragment, expected: next });
            }
            _ if fragment > 0 => return Err(Violation::Fragment { fragment, expected: 0 }),
            _ if !open => None,
            _ => {
                let body = Body::Eager { come: 0, held: SmallVec::new() };
                self.begin(from, header, body)
            }
        };
        let last = fragment + 1 == config.fragments_of(header.length);
        if let Some(peer) = self.peer(from) {
            peer.partial = (!last).then_some(Partial { header, next: fragment + 1, message });
            peer.slots.set(slot, message);
        }
        let Some(id) = message else {
            refuse(config, from, slot, out);
            return Ok(());
        };
        if let Some(Message { body: Body::Eager { come, held }, .. }) = self.messages.get_mut(id) {
            *come += 1;
            held.push(slot);
        }
        if config.has(Bug::ReturnEarly) {
            self.give_back(from, slot, id, Answer::Taken, out);
        }
        if fragment == 0 {
            self.match_arrived(config, id, out);
        } else {
            self.take(config, id, out);
        }
        Ok(())
    }

    /// Matches a message that has just arrived, or has it wait.
    fn match_arrived(&mut self, config: &Config, id: Id, out: &mut VecDeque<Action>) {
        let Some((from, header)) = self.messages.get(id).map(|message| (message.from, message.header)) else { return };
        if let Some(receive) = self.first(config, from, header) {
            self.bind(config, id, receive, out);
        } else {
            self.messages.chain(id, key(from, header));
            self.messages.list(id, header.to);
        }
    }

    pub(crate) fn request(
        &mut self,
        config: &Config,
        from: Process,
        slot: u16,
        header: Header,
        at: Place,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        self.arrives(from, slot, config.longest, header)?;
        let open = self.is_open(header.to);
        let before = self.peer(from).and_then(|peer| peer.partial.take());
        if let Some(Partial { next, message: Some(_), .. }) = before {
            return Err(Violation::Fragment { fragment: 0, expected: next });
        }
        if !open {
            refuse(config, from, slot, out);
            return Ok(());
        }
        let body = Body::Request { slot, at, is: Move::NotYet };
        let id = self.begin(from, header, body);
        if let (Some(peer), Some(id)) = (self.peer(from), id) {
            peer.slots.set(slot, Some(id));
            self.match_arrived(config, id, out);
        }
        Ok(())
    }

    pub(crate) fn fetched(&mut self, id: Id, whole: bool, out: &mut VecDeque<Action>) {
        let fetching = |m: &Message| matches!(m.body, Body::Request { is: Move::Fetching, .. });
        if self.messages.get(id).is_some_and(fetching) {
            self.end_request(id, whole.then_some(()).ok_or(Failure::Failed), out);
        }
    }

    pub(crate) fn stored(
        &mut self,
        from: Process,
        slot: u16,
        whole: bool,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        let id = self.slot(from, slot)?.ok_or(Violation::SlotWithoutMessage(slot))?;
        let body = self.messages.get(id).map(|message| &message.body);
        let Some(&Body::Request { at, is: Move::Cleared(until), .. }) = body else {
            return Err(Violation::SlotWithoutMessage(slot));
        };
        if whole && at.is_in_pieces() {
            self.offer(id, until, out);
            return Ok(());
        }
        if let Some(peer) = self.peer(from) {
            // Without an answer: the sender has it again already.
            peer.slots.set(slot, None);
        }
        self.end(id, whole.then_some(()).ok_or(Failure::Failed), out);
        Ok(())
    }

    pub(crate) fn withdrawn(
        &mut self,
        config: &Config,
        from: Process,
        slot: u16,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        // The answer to the message may be on its way.
        let Some(id) = self.slot(from, slot)? else { return Ok(()) };
        let message = self.messages.get(id);
        if !message.is_some_and(|message| matches!(message.body, Body::Request { .. })) {
            return Err(Violation::SlotWithoutMessage(slot));
        }
        if message.is_some_and(|message| message.receive.is_none()) || config.has(Bug::WithdrawMatched) {
            self.end_request(id, Err(Failure::Withdrawn), out);
        }
        Ok(())
    }

    /// Whether it was not matched yet.
    pub(crate) fn cancel(&mut self, id: Id, out: &mut VecDeque<Action>) -> bool {
        let waits = self.receives.get(id).is_some_and(|receive| !receive.matched);
        if waits {
            self.fail(id, Failure::Withdrawn, out);
        }
        waits
    }

    /// Whose message a receive has.
    pub(crate) fn matched(&self, id: Id) -> Option<Process> {
        self.messages.all().find(|(_, message)| message.receive == Some(id)).map(|(_, message)| message.from.process)
    }

    fn fail(&mut self, id: Id, failure: Failure, out: &mut VecDeque<Action>) {
        if self.receives.free(id).is_some() {
            out.push_back(Action::Received { receive: ReceiveId(id), outcome: Err(failure) });
        }
    }

    fn waiting(&self, which: impl Fn(&Receive) -> bool) -> Vec<Id> {
        self.receives.all().filter(|(_, receive)| !receive.matched && which(receive)).map(|(id, _)| id).collect()
    }

    pub(crate) fn close_thread(&mut self, thread: u32, out: &mut VecDeque<Action>) -> Result<(), Error> {
        if !self.threads.remove(&thread) {
            return Err(Error::NoThread(thread));
        }
        for id in self.waiting(|receive| receive.thread == thread) {
            self.fail(id, Failure::Closed, out);
        }
        let unmatched: Vec<Id> = self.messages.of_thread(thread).collect();
        for id in unmatched {
            let Some(message) = self.messages.get_mut(id) else { continue };
            let from = message.from.process;
            let Body::Eager { held, .. } = &mut message.body else {
                self.end_request(id, Err(Failure::NoThread), out);
                continue;
            };
            for slot in std::mem::take(held) {
                self.give_back(from, slot, id, Answer::NoThread, out);
            }
            if let Some(partial) = self.peer(from).and_then(|peer| peer.partial.as_mut()) {
                partial.message = partial.message.filter(|of| *of != id);
            }
            self.end(id, Err(Failure::NoThread), out);
        }
        Ok(())
    }

    pub(crate) fn gone(&mut self, peer: Process, out: &mut VecDeque<Action>) {
        self.peers.remove(&peer);
        let of_it = self.messages.all().filter(|(_, message)| message.from.process == peer);
        // Those whose buffers this board uses end when it has done.
        let fetching = |message: &Message| matches!(message.body, Body::Request { is: Move::Fetching, .. });
        let ended: Vec<Id> = of_it.filter(|(_, message)| !fetching(message)).map(|(id, _)| id).collect();
        for id in ended {
            self.end(id, Err(Failure::Gone), out);
        }
        for id in self.waiting(|receive| receive.pattern.process == Some(peer)) {
            self.fail(id, Failure::Gone, out);
        }
    }
}

fn done(to: Process, slot: u16, answer: Answer) -> Action {
    Action::Post { to, packet: Packet::Done { slot, answer }, bytes: None }
}

/// No thread is open for what has arrived in a slot.
fn refuse(config: &Config, from: Process, slot: u16, out: &mut VecDeque<Action>) {
    if !config.has(Bug::KeepRefused) {
        out.push_back(done(from, slot, Answer::NoThread));
    }
}

fn key(from: Endpoint, header: Header) -> Key {
    Key { process: from.process, thread: from.thread, to: header.to, tag: header.tag }
}

/// The key of the messages for a receive, if there is only one.
fn exact(to: u32, pattern: Pattern) -> Option<Key> {
    Some(Key { process: pattern.process?, thread: pattern.thread?, to, tag: pattern.tag? })
}
