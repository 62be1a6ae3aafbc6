// SPDX-License-Identifier: MIT OR Apache-2.0
//! Actions of engines as stores, elements and copies of boards, and what comes of these.

use super::pending::{Flying, Item, Transfer};
use super::record::byte;
use super::world::{PROCESSES, Part, Program, World, context, node, which};
use crate::common::{Driver, copy_steps, copying};
use telegraphos_msg_core::layout::{Element, HEAD, PROBE, kind_of};
use telegraphos_msg_core::{Action, Packet, Piece, Place, TransferId};
use telegraphos_wire::{STREAM_BLOCK, Status, event};

impl World {
    /// Does what an engine wants, as far as that is done at once.
    pub(crate) fn act(&mut self, who: usize) -> Result<(), String> {
        while let Some(action) = self.programs[who].engine.action() {
            match action {
                Action::Post { to, packet, bytes } => self.post(who, which(to), packet, bytes)?,
                Action::Take { receive, from, slot, offset, length } => {
                    self.count("takes", 1);
                    let receive = self.receive_of(who, receive).ok_or("once: bytes for a receive that has ended")?;
                    self.receives[receive].takes += 1;
                    let link = &mut self.programs[who].links[which(from)];
                    link.items.push_back(Item::Take { slot, receive, offset, length });
                }
                Action::Fetch { transfer, receive, from, at, length } => {
                    self.count("fetches", 1);
                    let receive = self.receive_of(who, receive).ok_or("once: a fetch for a receive that has ended")?;
                    let send = self.send_at(which(from), at).ok_or("once: a fetch of a send that has ended")?;
                    self.begin_transfer(who, transfer, send, 0)?;
                    let near = (who, self.receives[receive].place);
                    self.launch(who, transfer, near, (which(from), at), length);
                }
                Action::Offer { transfer, receive, offset, length, .. } => {
                    self.count("pieces", 1);
                    let receive = self.receive_of(who, receive).ok_or("once: room for a receive that has ended")?;
                    let most = 1 + self.below(length as usize) as u64;
                    let place = Place(self.receives[receive].place.0 + offset);
                    // Copies keep the alignment of both.
                    let length = most.next_multiple_of(8).min(length);
                    self.programs[who].engine.offered(transfer, Some((place, length)));
                }
                Action::Store { transfer, send, to, at, offset, length } => {
                    self.count("stores", 1);
                    let send = self.send_of(who, send).ok_or("once: a store of a send that has ended")?;
                    self.begin_transfer(who, transfer, send, offset)?;
                    let near = self.sends[send].place.ok_or("a store of a message without a place")?;
                    let near = Place(near.0 + offset);
                    self.launch(who, transfer, (which(to), at), (who, near), length);
                }
                Action::Received { receive, outcome } => {
                    let receive = self.receive_of(who, receive).ok_or("once: a receive has ended twice")?;
                    self.receives[receive].outcome = Some(outcome);
                    self.check_received(receive)?;
                }
                Action::Sent { send, outcome } => {
                    let send = self.send_of(who, send).ok_or("once: a send has ended twice")?;
                    self.sends[send].outcome = Some(outcome);
                    self.check_sent(send)?;
                }
            }
        }
        Ok(())
    }

    fn post(&mut self, who: usize, to: usize, packet: Packet, bytes: Option<Piece>) -> Result<(), String> {
        let send = match packet {
            Packet::Eager { fragment, .. } => {
                self.count("fragments", u64::from(fragment > 0));
                let Piece { send, .. } = bytes.ok_or("an eager packet without bytes")?;
                self.send_of(who, send)
            }
            Packet::Request { slot, at, .. } => {
                self.count("requests", 1);
                let send = self.send_at(who, at);
                self.requests.insert((who, to, slot), send);
                send
            }
            Packet::Withdraw { slot } => self.requests.get(&(who, to, slot)).copied().flatten(),
            _ => None,
        };
        let mut items = Vec::new();
        if let Some(words) = self.layout.words(packet) {
            let mut all = words.words().to_vec();
            if let (Some(send), Some(Piece { offset, length, .. })) = (send, bytes) {
                let bytes: Vec<u8> = (offset..offset + u64::from(length)).map(|at| byte(send, at)).collect();
                all.extend(bytes.chunks(8).map(|part| {
                    let mut word = [0; 8];
                    word[..part.len()].copy_from_slice(part);
                    u64::from_le_bytes(word)
                }));
            }
            let store = |(n, word)| Item::Store { at: words.at + 8 * n as u64, word };
            items.extend(all.into_iter().enumerate().map(store));
        }
        let (kind, slot) = kind_of(packet);
        let key = self.programs[to].links[who].key;
        items.push(Item::Enqueue(Element::Packet { key, kind, slot }.encode()));
        let link = &mut self.programs[who].links[to];
        if !link.up {
            return Err(format!("end: process {who} posts {packet:?} to {to}, which has gone"));
        }
        link.items.extend(items);
        let link = &mut self.programs[to].links[who];
        if link.up {
            link.coming.push_back(Flying { packet, send });
        }
        Ok(())
    }

    /// The next step of what a process does with another one.
    pub(crate) fn advance(&mut self, who: usize, of: usize) -> Result<bool, String> {
        let item = match self.programs[who].links[of].items.front() {
            None => return Ok(false),
            // The driver stops those who store.
            Some(Item::Store { .. } | Item::Enqueue(_)) if self.is_congested(who, of) => {
                self.count("waits for congestion", 1);
                return Ok(false);
            }
            Some(_) => self.programs[who].links[of].items.pop_front().unwrap(),
        };
        match item {
            Item::Store { at, word } => self.store(who, of, at, word),
            Item::Enqueue(element) => self.enqueue(who, of, element),
            Item::Take { slot, receive, offset, length } => {
                let from = World::inbox_at(who, of, self.layout.slot(slot) + HEAD) as usize;
                let bytes = self.ram(who)[from..from + length as usize].to_vec();
                self.fill(receive, offset, &bytes)?;
                self.receives[receive].takes -= 1;
                self.check_received(receive)?;
            }
        }
        Ok(true)
    }

    fn store(&mut self, who: usize, of: usize, at: u64, word: u64) {
        let address = self.window(who, of, Part::Inbox, at);
        self.cluster.store(node(who), address, 8, word);
    }

    /// A process takes an element.
    pub(crate) fn pop(&mut self, who: usize) -> Result<bool, String> {
        let Program { queue, alive, .. } = &mut self.programs[who];
        if !*alive || queue.is_stopped(&self.cluster) || !queue.resumed(&self.cluster) {
            return Ok(false);
        }
        let Some(word) = queue.pop(&mut self.cluster) else { return Ok(false) };
        let Some(Element::Packet { key, kind, slot }) = Element::decode(word) else {
            return Err(format!("slots: process {who} takes {word:#x}, which no process has appended"));
        };
        let Some(from) = self.programs[who].links.iter().position(|link| link.up && link.key == key) else {
            // Of one that it has lost.
            let known = self.faulty.then_some(true);
            return known.ok_or_else(|| format!("slots: process {who} takes an element with the key {key:#x}"));
        };
        let load = |at| Some(self.cluster.ram_u64(node(who), World::inbox_at(who, from, at)));
        let packet = self.layout.packet(kind, slot, load);
        let posted = self.programs[who].links[from].coming.pop_front();
        match (packet, posted) {
            (Some(packet), Some(flying)) if packet == flying.packet => self.packet(who, from, flying)?,
            (packet, posted) => {
                return Err(format!("slots: process {who} takes {packet:?} of {from}, which has posted {posted:?}"));
            }
        }
        Ok(true)
    }

    fn packet(&mut self, who: usize, from: usize, flying: Flying) -> Result<(), String> {
        let Flying { packet, send } = flying;
        match (packet, send) {
            (Packet::Eager { fragment: 0, .. } | Packet::Request { .. }, Some(send)) => self.arrives(send)?,
            (Packet::Withdraw { .. }, Some(send)) => self.arrived.retain(|arrived| *arrived != send),
            _ => {}
        }
        let taken = self.programs[who].engine.packet(PROCESSES[from], packet);
        taken.map_err(|violation| format!("rules: {violation}"))?;
        self.act(who)
    }

    /// The driver of a process's node handles an overflow of its queue.
    pub(crate) fn handle_overflow(&mut self, who: usize) -> bool {
        let Program { queue, alive, .. } = &mut self.programs[who];
        let stopped = *alive && queue.is_stopped(&self.cluster) && queue.resumed(&self.cluster);
        if stopped {
            queue.handle(&mut self.cluster);
            self.count("overflows of queues", 1);
        }
        stopped
    }

    // ---- transfers ----

    fn launch(&mut self, who: usize, id: TransferId, to: (usize, Place), from: (usize, Place), length: u64) {
        let [to, from] = [to, from].map(|(of, place)| self.window(who, of, Part::Memory, place.0));
        let cookie = self.cluster.cookie();
        let mut steps = copy_steps(copying(cookie), to, from, length);
        steps.reverse();
        let of_it = |slot: &u8| !self.transfers.iter().any(|other| other.who == who && other.slot == *slot);
        let slot = (0..64).find(of_it).unwrap();
        self.transfers.push(Transfer { who, id, length, steps, slot, cookie });
    }

    /// The next step of a transfer, or its end. False if nothing has changed.
    pub(crate) fn transfer(&mut self) -> Result<bool, String> {
        if self.transfers.is_empty() {
            return Ok(false);
        }
        let at = self.below(self.transfers.len());
        let &mut Transfer { who, slot, ref mut steps, .. } = &mut self.transfers[at];
        match steps.pop() {
            Some(step) => {
                self.cluster.launch_step(node(who), context(who), slot, step);
                Ok(true)
            }
            None => self.end_transfer(at),
        }
    }

    /// Ends a transfer, if its board has.
    pub(crate) fn end_transfer(&mut self, at: usize) -> Result<bool, String> {
        let Transfer { who, id, length, slot, cookie, .. } = self.transfers[at];
        let (status, done) = self.cluster.done(node(who), context(who), slot);
        if !self.transfers[at].steps.is_empty() || done != cookie {
            return Ok(false);
        }
        self.transfers.swap_remove(at);
        let whole = status == Status::Ok as u16;
        self.count("transfers of several blocks", u64::from(whole && length > STREAM_BLOCK as u64));
        self.count("transfers that fail", u64::from(!whole));
        self.programs[who].engine.transferred(id, whole);
        self.act(who)?;
        Ok(true)
    }

    // ---- whether others are there ----

    /// A store that shows whether another process is there.
    pub(crate) fn probe(&mut self, who: usize, of: usize) {
        if self.programs[who].alive && self.programs[who].links[of].up && !self.is_congested(who, of) {
            self.store(who, of, PROBE, 1);
        }
    }

    /// A process looks whether others have gone. True if one has.
    pub(crate) fn look(&mut self, who: usize) -> Result<bool, String> {
        let mut any = false;
        for of in 0..PROCESSES.len() {
            let failed = |part| self.import_state(who, of, part) & !event::IMPORT_CONGESTED != 0;
            if !self.programs[who].alive || !self.programs[who].links[of].up {
                continue;
            }
            if failed(Part::Inbox) || failed(Part::Queue) {
                if !self.faulty {
                    let state = self.import_state(who, of, Part::Inbox);
                    return Err(format!("loss: process {who} has lost {of} without a fault: {state:#x}"));
                }
                any = true;
                self.lose(who, of)?;
            }
        }
        Ok(any)
    }

    /// For a process another one has gone.
    fn lose(&mut self, who: usize, of: usize) -> Result<(), String> {
        let link = &mut self.programs[who].links[of];
        link.up = false;
        // What was received before is taken.
        link.items.retain(|item| matches!(item, Item::Take { .. }));
        link.coming.clear();
        self.lost.insert((who, of));
        let of_it = |send: &usize| {
            let sent = &self.sends[*send];
            sent.from.process == PROCESSES[of] && sent.to.process == PROCESSES[who]
        };
        self.arrived.retain(|send| !of_it(send));
        self.programs[who].engine.gone(PROCESSES[of]);
        self.act(who)
    }
}
