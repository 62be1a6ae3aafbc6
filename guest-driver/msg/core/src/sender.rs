// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends: first in, first out to each process, as its slots allow (SPEC items 32 and 40; s4 §5.2).

use crate::action::{Action, Direction, Piece, SendId, TransferId};
use crate::address::{Endpoint, Process};
use crate::bugs::Bug;
use crate::config::Config;
use crate::error::{Error, Failure};
use crate::packet::{Answer, Header, Packet, Place, Violation};
use crate::slots::Slots;
use crate::store::{Id, Store};
use crate::threshold::{Choice, Eager, Threshold};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// Not all of it has been posted.
    Waiting,
    Posted,
    /// This board stores its bytes.
    Storing,
    /// The same, and the receiver has gone.
    Orphan,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Send {
    to: Process,
    header: Header,
    /// Of a request; fragments have none.
    request: Option<Place>,
    state: State,
    /// Fragments or requests that it has in slots, and that came back from there.
    posted: u16,
    returned: u16,
    slot: u16,
    /// Bytes of a request that the receiver has, of those that are stored piece by piece, and those that are being
    /// stored.
    stored: u64,
    piece: u64,
    withdrawn: bool,
    failure: Option<Failure>,
}

impl Send {
    fn is_in_pieces(&self) -> bool {
        self.request.is_some_and(Place::is_in_pieces)
    }
}

/// What this process has at another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Outgoing {
    slots: Slots,
    waiting: VecDeque<Id>,
    threshold: Threshold,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sender {
    sends: Store<Send>,
    peers: BTreeMap<Process, Outgoing>,
}

impl Sender {
    pub(crate) fn new(config: &Config) -> Sender {
        Sender { sends: Store::new(config.sends, 1), peers: BTreeMap::new() }
    }

    pub(crate) fn connect(&mut self, config: &Config, peer: Process, far: bool) {
        // Bytes of a request of a far process go by the same streams, after one more question.
        let threshold = if far { Threshold::fixed(config) } else { Threshold::new(config) };
        self.peers.insert(peer, Outgoing { slots: Slots::new(config), waiting: VecDeque::new(), threshold });
    }

    pub(crate) fn choose(&mut self, config: &Config, to: Process, length: u64) -> Choice {
        match self.peers.get_mut(&to) {
            Some(Outgoing { slots, waiting, threshold }) => {
                threshold.choose(length, waiting.is_empty() && slots.in_use() == 0)
            }
            None => Choice { request: length > config.eager, measured: false },
        }
    }

    pub(crate) fn took(&mut self, to: Process, length: u64, choice: Choice, time: Duration) {
        if let Some(peer) = self.peers.get_mut(&to).filter(|_| choice.measured) {
            peer.threshold.took(length, choice.request, time);
        }
    }

    pub(crate) fn eager(&self, to: Process) -> Option<Eager> {
        self.peers.get(&to).map(|peer| peer.threshold.eager())
    }

    /// Sends that have not ended.
    pub(crate) fn open(&self) -> u32 {
        self.sends.used()
    }

    pub(crate) fn slots_in_use(&self) -> usize {
        self.peers.values().map(|peer| peer.slots.in_use()).sum()
    }

    pub(crate) fn send(
        &mut self,
        config: &Config,
        to: Endpoint,
        header: Header,
        place: Option<Place>,
        out: &mut VecDeque<Action>,
    ) -> Result<SendId, Error> {
        if header.length > config.longest {
            return Err(Error::TooLong { length: header.length, most: config.longest });
        }
        let request = match place {
            None if header.length <= config.eager => None,
            Some(_) if header.length <= config.floor() => None,
            Some(place) => Some(place),
            None => return Err(Error::NoPlace { length: header.length, most: config.eager }),
        };
        let peer = self.peers.get_mut(&to.process).ok_or(Error::NoProcess(to.process))?;
        let send = Send {
            to: to.process,
            header,
            request,
            state: State::Waiting,
            posted: 0,
            returned: 0,
            slot: 0,
            stored: 0,
            piece: 0,
            withdrawn: false,
            failure: None,
        };
        let id = self.sends.allocate(send).ok_or(Error::Sends(config.sends))?;
        peer.waiting.push_back(id);
        self.pump(config, to.process, out);
        Ok(SendId(id))
    }

    /// Posts what slots allow.
    fn pump(&mut self, config: &Config, to: Process, out: &mut VecDeque<Action>) {
        let Some(peer) = self.peers.get_mut(&to) else { return };
        while let Some(id) = peer.waiting.front().copied() {
            let Some(send) = self.sends.get_mut(id) else {
                peer.waiting.pop_front();
                continue;
            };
            let free = peer.slots.free();
            let Some(slot) = free.or(config.has(Bug::IgnoreSlots).then_some(0)) else { return };
            peer.slots.set(slot, Some(id));
            let fragment = send.posted;
            send.posted += 1;
            let (packet, bytes, whole) = match send.request {
                Some(at) => {
                    send.slot = slot;
                    (Packet::Request { slot, header: send.header, at }, None, true)
                }
                None => {
                    let (offset, length) = config.fragment(send.header.length, fragment);
                    let bytes = Some(Piece { send: SendId(id), offset, length });
                    let whole = send.posted == config.fragments_of(send.header.length);
                    (Packet::Eager { slot, header: send.header, fragment }, bytes, whole)
                }
            };
            out.push_back(Action::Post { to, packet, bytes });
            if whole {
                send.state = State::Posted;
                peer.waiting.pop_front();
            }
        }
    }

    fn end(&mut self, id: Id, outcome: Result<(), Failure>, out: &mut VecDeque<Action>) {
        if self.sends.free(id).is_some() {
            out.push_back(Action::Sent { send: SendId(id), outcome });
        }
    }

    /// The send in a slot at another process.
    fn in_slot(&self, from: Process, slot: u16) -> Result<Id, Violation> {
        let found = self.peers.get(&from).map_or(Ok(None), |peer| peer.slots.get(slot))?;
        found.ok_or(Violation::SlotWithoutMessage(slot))
    }

    /// The request in a slot at another process that has its bytes there.
    pub(crate) fn bytes_of(&self, peer: Process, at: Place, bytes: u64) -> Option<SendId> {
        let asked = |send: &Send| send.request == Some(at) && send.header.length >= bytes;
        let mut ids = self.peers.get(&peer)?.slots.ids();
        ids.find(|id| self.sends.get(*id).is_some_and(asked)).map(SendId)
    }

    fn free_slot(&mut self, at: Process, slot: u16) {
        if let Some(peer) = self.peers.get_mut(&at) {
            peer.slots.set(slot, None);
        }
    }

    /// No more of a send is posted.
    fn stop(&mut self, to: Process, id: Id) {
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.waiting.retain(|waiting| *waiting != id);
        }
    }

    pub(crate) fn done(
        &mut self,
        config: &Config,
        from: Process,
        slot: u16,
        answer: Answer,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        let id = self.in_slot(from, slot)?;
        let Some(send) = self.sends.get_mut(id) else { return Err(Violation::SlotWithoutMessage(slot)) };
        if send.state == State::Storing {
            return Err(Violation::SlotWithoutMessage(slot));
        }
        send.returned += 1;
        send.failure = send.failure.or(answer.failure());
        // The rest of a message that is refused is not sent.
        let ends = send.state == State::Posted || send.failure.is_some();
        let (ended, failure) = (ends && send.returned == send.posted, send.failure);
        if failure.is_some() && send.state == State::Waiting {
            send.state = State::Posted;
            self.stop(from, id);
        }
        self.free_slot(from, slot);
        if ended {
            self.end(id, failure.map_or(Ok(()), Err), out);
        }
        self.pump(config, from, out);
        Ok(())
    }

    pub(crate) fn clear(
        &mut self,
        from: Process,
        slot: u16,
        at: Place,
        length: u64,
        out: &mut VecDeque<Action>,
    ) -> Result<(), Violation> {
        let id = self.in_slot(from, slot)?;
        let request = self.sends.get_mut(id).filter(|send| send.request.is_some() && send.state == State::Posted);
        let send = request.ok_or(Violation::SlotWithoutMessage(slot))?;
        let (offset, most) = (send.stored, send.header.length - send.stored);
        // A piece without bytes would never be the last one.
        if length > most || length == 0 && send.is_in_pieces() {
            return Err(Violation::Length { length, most });
        }
        (send.state, send.piece) = (State::Storing, length);
        let (transfer, send) = (TransferId(Direction::Store(id)), SendId(id));
        out.push_back(Action::Store { transfer, send, to: from, at, offset, length });
        Ok(())
    }

    pub(crate) fn stored(&mut self, config: &Config, id: Id, whole: bool, out: &mut VecDeque<Action>) {
        let Some(send) = self.sends.get_mut(id) else { return };
        let (to, slot) = (send.to, send.slot);
        match send.state {
            State::Storing => {
                out.push_back(Action::Post { to, packet: Packet::Stored { slot, whole }, bytes: None });
                if whole && send.is_in_pieces() {
                    // The receiver says what follows.
                    send.stored += if config.has(Bug::RepeatPiece) { 0 } else { send.piece };
                    send.state = State::Posted;
                    return;
                }
                self.free_slot(to, slot);
                self.end(id, whole.then_some(()).ok_or(Failure::Failed), out);
                self.pump(config, to, out);
            }
            State::Orphan => self.end(id, Err(Failure::Gone), out),
            State::Waiting | State::Posted => {}
        }
    }

    /// Whether it can still be withdrawn; it ends later.
    pub(crate) fn withdraw(&mut self, id: Id, out: &mut VecDeque<Action>) -> bool {
        let Some(send) = self.sends.get_mut(id) else { return false };
        let to = send.to;
        if send.posted == 0 {
            self.stop(to, id);
            self.end(id, Err(Failure::Withdrawn), out);
            return true;
        }
        if send.request.is_none() || send.state != State::Posted || send.withdrawn {
            return false;
        }
        send.withdrawn = true;
        out.push_back(Action::Post { to, packet: Packet::Withdraw { slot: send.slot }, bytes: None });
        true
    }

    pub(crate) fn gone(&mut self, config: &Config, peer: Process, out: &mut VecDeque<Action>) {
        self.peers.remove(&peer);
        if config.has(Bug::ForgetSends) {
            return;
        }
        let of_it: Vec<Id> = self.sends.all().filter(|(_, send)| send.to == peer).map(|(id, _)| id).collect();
        for id in of_it {
            match self.sends.get_mut(id) {
                // Its bytes are in use.
                Some(send) if matches!(send.state, State::Storing | State::Orphan) => send.state = State::Orphan,
                _ => self.end(id, Err(Failure::Gone), out),
            }
        }
    }
}
