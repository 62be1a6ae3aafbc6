// SPDX-License-Identifier: MIT OR Apache-2.0
//! Engines, what is between them, and a record of what was asked of them and came of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use telegraphos_msg_core::{
    Action, Choice, Config, Endpoint, Engine, Error, Failure, Packet, Pattern, Piece, Place, Process, ReceiveId,
    Received, SendId, TransferId,
};
use telegraphos_testkit::counts;

pub(crate) fn process(n: usize) -> Process {
    Process { node: n as u16, number: 1 }
}

fn number(process: Process) -> usize {
    process.node.into()
}

/// What has been asked of an engine, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) from: Endpoint,
    pub(crate) to: Endpoint,
    pub(crate) tag: u32,
    pub(crate) length: usize,
    pub(crate) id: SendId,
    pub(crate) choice: Choice,
    pub(crate) outcome: Option<Result<(), Failure>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pub(crate) at: Endpoint,
    pub(crate) pattern: Pattern,
    pub(crate) id: ReceiveId,
    /// What has been written, and how often.
    pub(crate) buffer: Vec<(u8, u8)>,
    pub(crate) outcome: Option<Result<Received, Failure>>,
    /// The send that a plain list would have matched it with.
    pub(crate) expected: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Mover {
    receive: usize,
    /// None if it only makes room.
    send: Option<usize>,
    offset: usize,
    length: usize,
}

/// A packet on its way, and the send that it is of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flying {
    packet: Packet,
    send: Option<usize>,
}

/// Processes 0 to N - 1, whose threads are open, and their channels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct World {
    config: Config,
    pub(crate) engines: Vec<Engine>,
    pub(crate) channels: BTreeMap<(usize, usize), VecDeque<Flying>>,
    /// Bytes of slots, by owner, writer and slot.
    slots: BTreeMap<(usize, usize, u16), Vec<u8>>,
    /// Transfers under way, with whose engine they are.
    moves: Vec<(usize, TransferId, Mover)>,
    /// Sends that a board has moved (I17), and from where on.
    moved: BTreeSet<(usize, usize)>,
    pub(crate) sends: Vec<Sent>,
    pub(crate) receives: Vec<Wanted>,
    /// Sends that have arrived and are not matched, in the order of their arrival: what the plain list says.
    arrived: Vec<usize>,
    pub(crate) gone: BTreeSet<usize>,
    pub(crate) closed: BTreeSet<Endpoint>,
    /// Of so many requests, one goes in pieces; none if it is 0.
    pub(crate) pieces: usize,
    /// Messages go as the engine chooses, and not every other one another way.
    pub(crate) follows: bool,
    /// Microseconds that a message takes, to a slot and as a request.
    pub(crate) times: [u64; 2],
    pub(crate) counts: Counts,
}

counts! {
    pub(crate) struct Counts {
        fetches, stores, pieces, takes, withdrawn, truncated, refused,
        /// Messages that might have gone either way, by the one they went.
        slots, requests,
    }
}

/// The byte of a message at an offset.
fn byte(send: usize, offset: usize) -> u8 {
    (send * 31 + offset * 7 + 1) as u8
}

impl World {
    /// Every process is connected to every other, and to itself, and has threads 0 to `threads` - 1.
    pub(crate) fn new(processes: usize, threads: u32, config: &Config) -> World {
        let mut engines: Vec<_> = (0..processes).map(|_| Engine::new(config.clone()).unwrap()).collect();
        for engine in &mut engines {
            (0..processes).for_each(|peer| engine.connect(process(peer)).unwrap());
            (0..threads).for_each(|thread| engine.open(thread).unwrap());
        }
        World { config: config.clone(), engines, times: [2, 1], ..World::default() }
    }

    pub(crate) fn send(&mut self, from: Endpoint, to: Endpoint, tag: u32, length: usize) -> Result<usize, String> {
        let number_of_it = self.sends.len();
        let engine = &mut self.engines[number(from.process)];
        let mut choice = engine.choose(to.process, length as u64);
        // A threshold that is wherever it may be: where either way is allowed, every other message goes the other one.
        let either = (self.config.floor() + 1..=self.config.eager).contains(&(length as u64));
        choice.request ^= either && !self.follows && number_of_it % 2 == 1;
        self.counts.slots += u64::from(either && !choice.request);
        self.counts.requests += u64::from(either && choice.request);
        let in_pieces = self.pieces > 0 && number_of_it % self.pieces == 0;
        let place = Place(number_of_it as u64 | if in_pieces { Place::PIECES } else { 0 });
        let place = choice.request.then_some(place);
        let id = match engine.send(from.thread, to, tag, length as u64, place) {
            Ok(id) => id,
            Err(e) => return Err(e.to_string()),
        };
        self.sends.push(Sent { from, to, tag, length, id, choice, outcome: None });
        self.act(number(from.process))?;
        Ok(number_of_it)
    }

    pub(crate) fn receive(&mut self, at: Endpoint, pattern: Pattern, capacity: usize) -> Result<usize, String> {
        let n = self.receives.len();
        let place = Some(Place(n as u64));
        let engine = &mut self.engines[number(at.process)];
        let id = match engine.receive(at.thread, pattern, capacity as u64, place) {
            Ok(id) => id,
            Err(Error::NoProcess(_)) if !self.gone.is_empty() => return Ok(usize::MAX),
            Err(Error::NoThread(_)) if self.closed.contains(&at) => return Ok(usize::MAX),
            Err(e) => return Err(e.to_string()),
        };
        let buffer = vec![(0, 0); capacity];
        self.receives.push(Wanted { at, pattern, id, buffer, outcome: None, expected: None });
        self.expect(n);
        self.act(number(at.process))?;
        Ok(n)
    }

    /// The plain list: what a receive that has just begun gets.
    fn expect(&mut self, receive: usize) {
        let wanted = &self.receives[receive];
        let found = self.arrived.iter().position(|send| {
            let sent = &self.sends[*send];
            sent.to == wanted.at && wanted.pattern.accepts(sent.from, sent.tag)
        });
        if let Some(at) = found {
            self.receives[receive].expected = Some(self.arrived.remove(at));
        }
    }

    /// The same: the receive that gets a message which has just arrived.
    fn arrives(&mut self, send: usize) {
        let sent = &self.sends[send];
        if self.closed.contains(&sent.to) {
            return;
        }
        let waits = self.receives.iter_mut().find(|wanted| {
            let open = wanted.expected.is_none() && wanted.outcome.is_none();
            open && sent.to == wanted.at && wanted.pattern.accepts(sent.from, sent.tag)
        });
        match waits {
            Some(wanted) => wanted.expected = Some(send),
            None => self.arrived.push(send),
        }
    }

    pub(crate) fn withdraw_send(&mut self, send: usize) -> Result<bool, String> {
        let sent = &self.sends[send];
        let from = number(sent.from.process);
        let withdrawn = self.engines[from].withdraw_send(sent.id);
        self.act(from)?;
        Ok(withdrawn)
    }

    pub(crate) fn withdraw_receive(&mut self, receive: usize) -> Result<bool, String> {
        let wanted = &self.receives[receive];
        let at = number(wanted.at.process);
        let withdrawn = self.engines[at].withdraw_receive(wanted.id);
        self.act(at)?;
        if withdrawn && self.receives[receive].outcome != Some(Err(Failure::Withdrawn)) {
            return Err("withdrawn: the receive has not ended".into());
        }
        Ok(withdrawn)
    }

    pub(crate) fn close(&mut self, at: Endpoint) -> Result<(), String> {
        self.engines[number(at.process)].close(at.thread).map_err(|e| e.to_string())?;
        self.closed.insert(at);
        self.arrived.retain(|send| self.sends[*send].to != at);
        self.act(number(at.process))
    }

    /// A process ends: the others are notified, and what was on its way to it or from it is no more.
    pub(crate) fn kill(&mut self, who: usize) -> Result<(), String> {
        self.gone.insert(who);
        self.channels.retain(|(from, to), _| *from != who && *to != who);
        self.arrived.retain(|send| number(self.sends[*send].from.process) != who);
        self.moves.retain(|(of, ..)| *of != who);
        for other in (0..self.engines.len()).filter(|other| !self.gone.contains(other)).collect::<Vec<_>>() {
            self.engines[other].gone(process(who));
            self.act(other)?;
        }
        Ok(())
    }

    pub(crate) fn is_gone(&self, who: usize) -> bool {
        self.gone.contains(&who)
    }

    /// The first packet of a channel arrives.
    pub(crate) fn deliver(&mut self, from: usize, to: usize) -> Result<bool, String> {
        let Some(channel) = self.channels.get_mut(&(from, to)) else { return Ok(false) };
        let Some(flying) = channel.pop_front() else { return Ok(false) };
        if channel.is_empty() {
            self.channels.remove(&(from, to));
        }
        let begins = matches!(flying.packet, Packet::Eager { fragment: 0, .. } | Packet::Request { .. });
        if let (true, Some(send)) = (begins, flying.send) {
            self.arrives(send);
        }
        if let (Packet::Withdraw { .. }, Some(send)) = (flying.packet, flying.send) {
            self.arrived.retain(|arrived| *arrived != send);
        }
        self.engines[to].packet(process(from), flying.packet).map_err(|e| format!("rules: {e}"))?;
        self.act(to)?;
        Ok(true)
    }

    pub(crate) fn moves(&self) -> usize {
        self.moves.len()
    }

    pub(crate) fn finish(&mut self, at: usize, whole: bool) -> Result<(), String> {
        let (engine, transfer, mover) = self.moves.remove(at);
        let Mover { receive, send, offset, length } = mover;
        let Some(send) = send else {
            self.counts.pieces += 1;
            let place = whole.then(|| (Place(receive as u64), length.div_ceil(2) as u64));
            self.engines[engine].offered(transfer, place);
            return self.act(engine);
        };
        let sender = number(self.sends[send].from.process);
        let receiver = number(self.receives[receive].at.process);
        let whole = whole && !self.is_gone(sender) && !self.is_gone(receiver);
        if whole {
            self.fill(receive, offset, (offset..offset + length).map(|at| byte(send, at)))?;
        }
        self.engines[engine].transferred(transfer, whole);
        self.act(engine)
    }

    fn begin_move(&mut self, engine: usize, transfer: TransferId, mover: Mover) -> Result<(), String> {
        if let Some(send) = mover.send {
            if !self.moved.insert((send, mover.offset)) {
                return Err(format!("once: a second transfer of send {send} from byte {} on", mover.offset));
            }
        }
        self.moves.push((engine, transfer, mover));
        Ok(())
    }

    fn fill(&mut self, receive: usize, at: usize, bytes: impl Iterator<Item = u8>) -> Result<(), String> {
        if self.receives[receive].outcome.is_some() {
            return Err(format!("once: bytes for receive {receive}, which has ended"));
        }
        for (offset, byte) in bytes.enumerate() {
            let Some(cell) = self.receives[receive].buffer.get_mut(at + offset) else {
                return Err("reassembly: bytes beyond the buffer".into());
            };
            *cell = (byte, cell.1 + 1);
        }
        Ok(())
    }

    fn send_of(&self, engine: usize, id: SendId) -> usize {
        let of = |sent: &Sent| number(sent.from.process) == engine && sent.id == id && sent.outcome.is_none();
        self.sends.iter().position(of).unwrap()
    }

    fn receive_of(&self, engine: usize, id: ReceiveId) -> Option<usize> {
        let of = |wanted: &Wanted| number(wanted.at.process) == engine && wanted.id == id && wanted.outcome.is_none();
        self.receives.iter().position(of)
    }

    /// Does what an engine wants.
    pub(crate) fn act(&mut self, engine: usize) -> Result<(), String> {
        while let Some(action) = self.engines[engine].action() {
            match action {
                Action::Post { to, packet, bytes } => {
                    let to = number(to);
                    let send = match packet {
                        Packet::Eager { slot, .. } => {
                            let Piece { send, offset, length } = bytes.ok_or("an eager packet without bytes")?;
                            let send = self.send_of(engine, send);
                            let range = offset as usize..offset as usize + length as usize;
                            self.slots.insert((to, engine, slot), range.map(|at| byte(send, at)).collect());
                            Some(send)
                        }
                        Packet::Request { slot, at, .. } => {
                            let send = (at.0 & !Place::PIECES) as usize;
                            self.slots.insert((to, engine, slot), send.to_le_bytes().to_vec());
                            Some(send)
                        }
                        Packet::Withdraw { slot } => self.last_request(engine, slot, to),
                        _ => None,
                    };
                    if matches!(packet, Packet::Done { answer: telegraphos_msg_core::Answer::NoThread, .. }) {
                        self.counts.refused += 1;
                    }
                    if !self.is_gone(to) {
                        self.channels.entry((engine, to)).or_default().push_back(Flying { packet, send });
                    }
                }
                Action::Take { receive, from, slot, offset, length } => {
                    self.counts.takes += 1;
                    let receive = self.receive_of(engine, receive).ok_or("once: bytes for a receive that has ended")?;
                    let bytes = self.slots.get(&(engine, number(from), slot)).cloned().unwrap_or_default();
                    self.fill(receive, offset as usize, bytes.into_iter().take(length as usize))?;
                }
                Action::Fetch { transfer, receive, at, length, .. } => {
                    self.counts.fetches += 1;
                    let receive =
                        self.receive_of(engine, receive).ok_or("once: a fetch for a receive that has ended")?;
                    let mover = Mover { receive, send: Some(at.0 as usize), offset: 0, length: length as usize };
                    self.begin_move(engine, transfer, mover)?;
                }
                Action::Offer { transfer, receive, offset, length, .. } => {
                    let receive = self.receive_of(engine, receive).ok_or("once: room for a receive that has ended")?;
                    let mover = Mover { receive, send: None, offset: offset as usize, length: length as usize };
                    self.begin_move(engine, transfer, mover)?;
                }
                Action::Store { transfer, send, at, offset, length, .. } => {
                    self.counts.stores += 1;
                    let (send, receive) = (self.send_of(engine, send), at.0 as usize);
                    let mover = Mover { receive, send: Some(send), offset: offset as usize, length: length as usize };
                    self.begin_move(engine, transfer, mover)?;
                }
                Action::Received { receive, outcome } => {
                    let receive = self.receive_of(engine, receive).ok_or("once: a receive has ended twice")?;
                    self.receives[receive].outcome = Some(outcome);
                    self.check_received(receive)?;
                }
                Action::Sent { send, outcome } => {
                    let send = self.send_of(engine, send);
                    self.sends[send].outcome = Some(outcome);
                    let Sent { to, length, choice, .. } = self.sends[send];
                    let time = Duration::from_micros(self.times[usize::from(choice.request)]);
                    if outcome.is_ok() {
                        self.engines[engine].took(to.process, length as u64, choice, time);
                    }
                    self.check_sent(send)?;
                }
            }
        }
        Ok(())
    }

    /// The send whose request was put into a slot last.
    fn last_request(&self, engine: usize, slot: u16, to: usize) -> Option<usize> {
        let bytes = self.slots.get(&(to, engine, slot))?;
        Some(usize::from_le_bytes(bytes.as_slice().try_into().ok()?))
    }

    fn check_received(&mut self, receive: usize) -> Result<(), String> {
        let wanted = &self.receives[receive];
        let Some(Ok(received)) = wanted.outcome else {
            self.counts.withdrawn += u64::from(wanted.outcome == Some(Err(Failure::Withdrawn)));
            return Ok(());
        };
        let Some(send) = wanted.expected else {
            return Err(format!("order: receive {receive} ended, and a list would have had it wait"));
        };
        let sent = &self.sends[send];
        if (received.from, received.tag, received.length) != (sent.from, sent.tag, sent.length as u64) {
            return Err(format!("order: receive {receive} got {received:?}, and a list would have given it {sent:?}"));
        }
        let filled = sent.length.min(wanted.buffer.len());
        for (at, cell) in wanted.buffer.iter().enumerate() {
            let expected = if at < filled { (byte(send, at), 1) } else { (0, 0) };
            if *cell != expected {
                let what = if cell.1 > expected.1 { "once" } else { "reassembly" };
                return Err(format!(
                    "{what}: byte {at} of receive {receive}, {cell:?}: expected {expected:?} (send {send})"
                ));
            }
        }
        self.counts.truncated += u64::from(sent.length > wanted.buffer.len());
        Ok(())
    }

    fn check_sent(&mut self, send: usize) -> Result<(), String> {
        match self.sends[send].outcome {
            Some(Ok(())) => {
                let by = |wanted: &Wanted| wanted.expected == Some(send) && matches!(wanted.outcome, Some(Ok(_)));
                // A store is known to the sender first.
                let stored = |wanted: &Wanted| {
                    let filled = self.sends[send].length.min(wanted.buffer.len());
                    wanted.expected == Some(send)
                        && filled > 0
                        && wanted.buffer[..filled].iter().all(|cell| cell.1 == 1)
                };
                if !self.receives.iter().any(|wanted| by(wanted) || stored(wanted)) {
                    return Err(format!("end: send {send} ended, and no thread has it"));
                }
            }
            Some(Err(Failure::Withdrawn)) => {
                self.counts.withdrawn += 1;
                if self.receives.iter().any(|wanted| wanted.expected == Some(send) && wanted.outcome.is_none()) {
                    return Err(format!("once: send {send} was withdrawn, and a thread receives it"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.channels.is_empty() && self.moves.is_empty()
    }

    /// Delivers and moves until nothing is on its way.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        loop {
            if let Some((from, to)) = self.channels.keys().next().copied() {
                self.deliver(from, to)?;
            } else if !self.moves.is_empty() {
                self.finish(0, true)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Receives whatever there is, withdraws what waits, and checks that nothing is left.
    pub(crate) fn drain(&mut self) -> Result<(), String> {
        self.settle()?;
        for receive in 0..self.receives.len() {
            if self.receives[receive].outcome.is_none() && !self.is_gone(number(self.receives[receive].at.process)) {
                self.withdraw_receive(receive)?;
            }
        }
        self.settle()?;
        while let Some(send) = self.sends.iter().position(|sent| {
            let ends = [sent.from, sent.to].map(|of| number(of.process));
            sent.outcome.is_none() && !ends.iter().any(|of| self.is_gone(*of))
        }) {
            let (to, length) = (self.sends[send].to, self.sends[send].length);
            let before = self.receives.len();
            self.receive(to, Pattern::default(), length.max(8))?;
            self.settle()?;
            if self.receives[before].outcome.is_none() {
                return Err(format!("loss: send {send} waits, and so does its thread: {:?}", self.sends[send]));
            }
        }
        self.check_idle()
    }

    /// Everything has ended, and nothing is kept.
    pub(crate) fn check_idle(&self) -> Result<(), String> {
        for (n, engine) in self.engines.iter().enumerate().filter(|(n, _)| !self.is_gone(*n)) {
            if !engine.is_idle() {
                return Err(format!("freed: engine {n} keeps something"));
            }
        }
        for (n, sent) in self.sends.iter().enumerate() {
            if sent.outcome.is_none() && !self.is_gone(number(sent.from.process)) {
                return Err(format!("end: send {n} has not ended: {sent:?}"));
            }
        }
        Ok(())
    }
}
