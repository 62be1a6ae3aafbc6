// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was asked of the engines and came of it, a plain list of messages and receives, and the checks.

use super::pending::{Sent, Wanted};
use super::world::{PROCESSES, THREADS, World, node, which};
use telegraphos_msg_core::{Endpoint, Failure, Pattern, Place, ReceiveId, SendId, TransferId};

/// What the bytes of a buffer are before it is used.
const EMPTY: u8 = 0xee;

/// The byte of a message at an offset.
pub(crate) fn byte(send: usize, offset: u64) -> u8 {
    (send as u64 * 31 + offset * 7 + 1) as u8
}

impl World {
    // ---- operations ----

    /// Sends, if there is memory and the other has not gone.
    pub(crate) fn send(
        &mut self,
        who: usize,
        thread: u32,
        to: Endpoint,
        tag: u32,
        length: u64,
    ) -> Result<bool, String> {
        if !self.programs[who].links[which(to.process)].up {
            return Ok(false);
        }
        let number = self.sends.len();
        let mut place = None;
        let choice = self.programs[who].engine.choose(to.process, length);
        // A threshold that is wherever it may be: where either way is allowed, half of the messages go the other one.
        let either = length > self.config.floor() && length <= self.config.eager;
        let request = choice.request ^ (either && self.cluster.rng.percent(50));
        self.count("requests that might have gone to slots", u64::from(either && request));
        self.count("messages in slots that might have been requests", u64::from(either && !request));
        if request {
            place = self.allocate(who, false, length);
            let Some(at) = place else { return Ok(false) };
            let at = World::memory_at(who, at) as usize;
            for offset in 0..length {
                self.ram(who)[at + offset as usize] = byte(number, offset);
            }
        }
        // What its process may not lock at once goes in pieces.
        let in_pieces = if self.cluster.rng.percent(25) { Place::PIECES } else { 0 };
        let at = place.map(|place| Place(place.0 | in_pieces));
        let sent = self.programs[who].engine.send(thread, to, tag, length, at);
        let id = sent.map_err(|error| format!("a send is refused: {error}"))?;
        self.count("sends to no thread", u64::from(to.thread == THREADS));
        let from = Endpoint { process: PROCESSES[who], thread };
        self.sends.push(Sent { from, to, tag, length, id, place, withdrawn: false, outcome: None });
        self.act(who)?;
        Ok(true)
    }

    /// Begins a receive, if there is memory, its thread is open, and whom it is from has not gone.
    pub(crate) fn receive(
        &mut self,
        who: usize,
        thread: u32,
        pattern: Pattern,
        capacity: u64,
    ) -> Result<Option<usize>, String> {
        let at = Endpoint { process: PROCESSES[who], thread };
        let gone = pattern.process.is_some_and(|from| !self.programs[who].links[which(from)].up);
        if gone || self.closed.contains(&at) {
            return Ok(None);
        }
        let Some(place) = self.allocate(who, true, capacity) else { return Ok(None) };
        let start = World::memory_at(who, place) as usize;
        self.ram(who)[start - 8..start + capacity as usize + 8].fill(EMPTY);
        let begun = self.programs[who].engine.receive(thread, pattern, capacity, Some(place));
        let id = begun.map_err(|error| format!("a receive is refused: {error}"))?;
        let oldest = self.arrived.iter().position(|send| {
            let sent = &self.sends[*send];
            sent.to == at && pattern.accepts(sent.from, sent.tag)
        });
        let expected = oldest.map(|oldest| self.arrived.remove(oldest));
        let blocks = self.cluster.nodes[usize::from(node(who))].blocks.len();
        let wanted =
            Wanted { at, pattern, capacity, place, id, blocks, takes: 0, outcome: None, expected, checked: false };
        self.receives.push(wanted);
        let number = self.receives.len() - 1;
        self.act(who)?;
        Ok(Some(number))
    }

    pub(crate) fn withdraw_a_send(&mut self, who: usize) -> Result<bool, String> {
        let open = |sent: &Sent| sent.from.process == PROCESSES[who] && sent.outcome.is_none();
        let of_it: Vec<usize> = (0..self.sends.len()).filter(|send| open(&self.sends[*send])).collect();
        let Some(send) = of_it.get(self.below(of_it.len())).copied() else { return Ok(false) };
        self.sends[send].withdrawn = true;
        self.programs[who].engine.withdraw_send(self.sends[send].id);
        self.act(who)?;
        Ok(true)
    }

    pub(crate) fn withdraw_a_receive(&mut self, who: usize) -> Result<bool, String> {
        let open = |wanted: &Wanted| wanted.at.process == PROCESSES[who] && wanted.outcome.is_none();
        let of_it: Vec<usize> = (0..self.receives.len()).filter(|n| open(&self.receives[*n])).collect();
        let Some(receive) = of_it.get(self.below(of_it.len())).copied() else { return Ok(false) };
        self.withdraw_receive(receive)?;
        Ok(true)
    }

    /// Withdraws a receive, which must be possible exactly if it has no message.
    pub(crate) fn withdraw_receive(&mut self, receive: usize) -> Result<(), String> {
        let Wanted { at, id, expected, .. } = self.receives[receive];
        let who = which(at.process);
        let withdrawn = self.programs[who].engine.withdraw_receive(id);
        self.act(who)?;
        if withdrawn != expected.is_none() {
            return Err(format!("order: receive {receive}: withdrawn: {withdrawn}; a list has given it {expected:?}"));
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, at: Endpoint) -> Result<bool, String> {
        if !self.closed.insert(at) {
            return Ok(false);
        }
        self.count("threads that are closed", 1);
        self.arrived.retain(|send| self.sends[*send].to != at);
        let who = which(at.process);
        self.programs[who].engine.close(at.thread).map_err(|error| error.to_string())?;
        self.act(who)?;
        Ok(true)
    }

    // ---- what the ids of engines mean ----

    pub(crate) fn send_of(&self, who: usize, id: SendId) -> Option<usize> {
        let of = |sent: &Sent| sent.from.process == PROCESSES[who] && sent.id == id && sent.outcome.is_none();
        self.sends.iter().position(of)
    }

    pub(crate) fn receive_of(&self, who: usize, id: ReceiveId) -> Option<usize> {
        let of = |wanted: &Wanted| wanted.at.process == PROCESSES[who] && wanted.id == id && wanted.outcome.is_none();
        self.receives.iter().position(of)
    }

    /// The send of a process whose bytes are in a place, or were there last.
    pub(crate) fn send_at(&self, who: usize, place: Place) -> Option<usize> {
        let place = Place(place.0 & !Place::PIECES);
        let of = |sent: &Sent| sent.from.process == PROCESSES[who] && sent.place == Some(place);
        self.sends.iter().rposition(of)
    }

    // ---- the plain list ----

    /// The first packet of a send has arrived: the list gives it to the receive that began first.
    pub(crate) fn arrives(&mut self, send: usize) -> Result<(), String> {
        let Sent { from, to, tag, .. } = self.sends[send];
        if let Some(last) = self.last.insert((from, to), send).filter(|last| *last >= send) {
            return Err(format!("order: send {send} of {from} to {to} arrives behind {last}"));
        }
        if self.closed.contains(&to) || to.thread >= THREADS {
            return Ok(());
        }
        let waits = self.receives.iter_mut().find(|wanted| {
            let open = wanted.expected.is_none() && wanted.outcome.is_none();
            open && to == wanted.at && wanted.pattern.accepts(from, tag)
        });
        match waits {
            Some(wanted) => wanted.expected = Some(send),
            None => self.arrived.push(send),
        }
        Ok(())
    }

    // ---- checks ----

    /// I17: no second transfer of the same bytes.
    pub(crate) fn begin_transfer(
        &mut self,
        who: usize,
        transfer: TransferId,
        send: usize,
        offset: u64,
    ) -> Result<(), String> {
        if self.moved.insert((send, offset)) {
            return Ok(());
        }
        Err(format!("once: a second transfer of send {send} from {offset} on by process {who}, {transfer:?}"))
    }

    /// Bytes from a slot for a receive.
    pub(crate) fn fill(&mut self, receive: usize, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let Wanted { at, place, capacity, checked, .. } = self.receives[receive];
        if checked {
            return Err(format!("once: bytes for receive {receive}, which has ended"));
        }
        if offset + bytes.len() as u64 > capacity {
            return Err(format!("reassembly: bytes beyond the buffer of receive {receive}"));
        }
        let start = (World::memory_at(which(at.process), place) + offset) as usize;
        self.ram(which(at.process))[start..start + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// The buffer of a receive has these bytes of a send, and no other: if not, what is wrong.
    fn compare(&mut self, receive: usize, send: Option<usize>) -> Result<(), String> {
        let Wanted { at, place, capacity, .. } = self.receives[receive];
        let filled = send.map_or(0, |send| self.sends[send].length.min(capacity));
        let (who, start) = (which(at.process), World::memory_at(which(at.process), place));
        for offset in 0..capacity + 16 {
            let found = self.ram(who)[(start - 8 + offset) as usize];
            let inside = offset.checked_sub(8).filter(|offset| *offset < filled);
            let expected = inside.zip(send).map_or(EMPTY, |(offset, send)| byte(send, offset));
            if found != expected {
                let at = offset as i64 - 8;
                return Err(format!(
                    "reassembly: byte {at} of {filled} of receive {receive} is {found:#x}: expected {expected:#x} \
                     ({send:?})"
                ));
            }
        }
        Ok(())
    }

    /// Bytes that its board has stored in blocks to the buffer of a receive.
    fn stored(&self, receive: usize) -> u64 {
        let Wanted { at, place, capacity, blocks, .. } = self.receives[receive];
        let start = World::memory_at(which(at.process), place);
        let blocks = &self.cluster.nodes[usize::from(at.process.node)].blocks[blocks..];
        let inside = blocks.iter().filter(|(address, _)| (start..start + capacity).contains(address));
        inside.map(|(_, bytes)| *bytes as u64).sum()
    }

    /// Checks a receive that has ended and whose bytes are taken.
    pub(crate) fn check_received(&mut self, receive: usize) -> Result<(), String> {
        let Wanted { at, pattern, capacity, place, takes, outcome, expected, checked, .. } = self.receives[receive];
        let Some(outcome) = outcome.filter(|_| takes == 0 && !checked) else { return Ok(()) };
        let who = which(at.process);
        let lost = |process| self.lost.contains(&(who, which(process)));
        match outcome {
            Ok(received) => {
                let Some(send) = expected else {
                    return Err(format!("order: receive {receive} ended, and a list would have had it wait"));
                };
                let Sent { from, tag, length, .. } = self.sends[send];
                if (received.from, received.tag, received.length) != (from, tag, length) {
                    return Err(format!(
                        "order: receive {receive} got {received:?}, a list would have given it {send}"
                    ));
                }
                self.compare(receive, Some(send))?;
                let by_board = if self.sends[send].place.is_some() { length.min(capacity) } else { 0 };
                let stored = self.stored(receive);
                if stored != by_board {
                    return Err(format!("once: {stored} bytes were stored for receive {receive}, of {by_board}"));
                }
                self.count("messages received", 1);
                self.count("truncated messages", u64::from(length > capacity));
            }
            Err(Failure::Withdrawn | Failure::Closed) if expected.is_none() => {
                if outcome == Err(Failure::Closed) && !self.closed.contains(&at) {
                    return Err(format!("end: receive {receive} ended with {outcome:?}, and its thread is open"));
                }
                self.compare(receive, None)?;
                self.count("receives that are withdrawn", 1);
            }
            Err(Failure::Gone) if expected.is_some_and(|send| lost(self.sends[send].from.process)) => {
                self.count("receives whose sender has gone", 1);
            }
            Err(Failure::Gone) if pattern.process.is_some_and(lost) => {
                self.count("receives whose sender has gone", 1);
            }
            Err(Failure::Failed) if self.faulty && expected.is_some() => {}
            Err(failure) => {
                return Err(format!("end: receive {receive} ended with {failure:?}; a list has given it {expected:?}"));
            }
        }
        self.receives[receive].checked = true;
        // A board of a process that has gone may still store there.
        if !matches!(outcome, Err(Failure::Gone | Failure::Failed)) {
            self.free(who, place, capacity);
        }
        Ok(())
    }

    /// Checks a send that has ended.
    pub(crate) fn check_sent(&mut self, send: usize) -> Result<(), String> {
        let Sent { from, to, length, place, withdrawn, outcome, .. } = self.sends[send];
        let Some(outcome) = outcome else { return Ok(()) };
        let who = which(from.process);
        let receive = self.receives.iter().position(|wanted| wanted.expected == Some(send));
        let there = receive.map(|receive| self.receives[receive].outcome);
        let cause = match outcome {
            Ok(()) => match (receive, there.flatten()) {
                (Some(receive), Some(Ok(_))) => self.receives[receive].checked,
                // The bytes are there, or were when the process ended: that they are is on its way to it, and may be
                // lost with the connection.
                (Some(receive), None | Some(Err(Failure::Gone))) if place.is_some() => {
                    !self.programs[which(to.process)].alive || self.compare(receive, Some(send)).is_ok()
                }
                _ => false,
            },
            Err(Failure::Withdrawn) => {
                self.count("sends that are withdrawn", 1);
                if receive.is_some() {
                    return Err(format!("once: send {send} was withdrawn, and a thread receives it"));
                }
                withdrawn
            }
            Err(Failure::NoThread) => to.thread >= THREADS || self.closed.contains(&to),
            Err(Failure::Gone) => {
                self.count("sends whose receiver has gone", 1);
                self.lost.contains(&(who, which(to.process)))
            }
            Err(Failure::Failed) => self.faulty,
            Err(Failure::Closed) => false,
        };
        if !cause {
            return Err(format!("end: send {send} ended with {outcome:?}, and its thread: {receive:?}, {there:?}"));
        }
        // A board of a process that has gone may still fetch from there.
        if let Some(place) = place.filter(|_| !matches!(outcome, Err(Failure::Gone | Failure::Failed))) {
            self.free(who, place, length);
        }
        Ok(())
    }
}
