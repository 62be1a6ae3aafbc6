// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that this board does not reach, as part of the state: what their sessions bring is the engine's, and what
//! the engine says goes by them.

use crate::streams::Stream;
use std::collections::BTreeMap;
use std::sync::Arc;
use telegraphos_msg_core::far::{Body, Far, Step};
use telegraphos_msg_core::routes::StreamId;
use telegraphos_msg_core::{Config, Packet, Place, Process};

/// Bytes that are asked for at once.
pub(crate) const PART: u64 = 64 << 10;
/// Streams that there may be.
pub(crate) const MOST_STREAMS: usize = 256;

/// What was asked for, until it is taken.
#[derive(Debug)]
enum Asked {
    NotYet,
    Here(Option<Vec<u8>>),
}

/// What came of what was asked for.
#[derive(Debug)]
pub(crate) enum Answer {
    NotYet,
    Bytes(Vec<u8>),
    /// The other does not have such bytes.
    Refused,
    /// The session has ended.
    Gone,
}

/// A process that there is a session with.
#[derive(Debug, Default)]
struct Peer {
    /// Bytes of messages that are in slots.
    slots: BTreeMap<u16, Vec<u8>>,
    asked: BTreeMap<u64, Asked>,
}

/// All of them, and the streams that they are reached by.
#[derive(Debug)]
pub(crate) struct Beyond {
    pub(crate) far: Far,
    streams: BTreeMap<StreamId, Arc<Stream>>,
    peers: BTreeMap<Process, Peer>,
    next_stream: u64,
    next_question: u64,
}

impl Beyond {
    pub(crate) fn new(config: &Config, me: Process, gateway: bool, first: u64) -> Beyond {
        Beyond {
            far: Far::new(config, me, gateway, first),
            streams: BTreeMap::new(),
            peers: BTreeMap::new(),
            next_stream: 0,
            next_question: 0,
        }
    }

    /// A stream leads to a neighbour. `None` if there are as many as may be.
    pub(crate) fn join(&mut self, stream: &Arc<Stream>, neighbour: Process) -> Option<StreamId> {
        if self.streams.len() >= MOST_STREAMS {
            return None;
        }
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(id, stream.clone());
        self.far.join(id, neighbour);
        Some(id)
    }

    /// It has ended.
    pub(crate) fn leave(&mut self, id: StreamId) {
        self.streams.remove(&id);
        self.far.leave(id);
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = &Arc<Stream>> {
        self.streams.values()
    }

    /// What the state is to do next; frames go to their streams.
    pub(crate) fn step(&mut self) -> Option<Step> {
        loop {
            let (over, frame, of) = match self.far.step()? {
                Step::Say { over, frame, of } => (over, frame, of),
                step => return Some(step),
            };
            let of = of.and_then(|of| self.streams.get(&of)).map(|stream| &**stream);
            if let Some(stream) = self.streams.get(&over) {
                stream.push(&frame, of);
            }
        }
    }

    /// There is a session with a process.
    pub(crate) fn meet(&mut self, process: Process) {
        self.peers.insert(process, Peer::default());
    }

    /// There is none any more. False if there was none.
    pub(crate) fn part(&mut self, process: Process) -> bool {
        self.peers.remove(&process).is_some()
    }

    pub(crate) fn knows(&self, process: Process) -> bool {
        self.peers.contains_key(&process)
    }

    pub(crate) fn processes(&self) -> Vec<Process> {
        self.peers.keys().copied().collect()
    }

    /// Bytes have come for a slot.
    pub(crate) fn put(&mut self, from: Process, slot: u16, bytes: Vec<u8>) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.slots.insert(slot, bytes);
        }
    }

    /// They are taken, and no other packet has been in that slot since.
    pub(crate) fn take(&mut self, from: Process, slot: u16) -> Vec<u8> {
        self.peers.get_mut(&from).and_then(|peer| peer.slots.remove(&slot)).unwrap_or_default()
    }

    /// Asks for bytes of a message. `None` if there is no session with that process.
    pub(crate) fn ask(&mut self, process: Process, at: Place, offset: u64, length: u32) -> Option<u64> {
        let peer = self.peers.get_mut(&process)?;
        let number = self.next_question;
        self.next_question += 1;
        peer.asked.insert(number, Asked::NotYet);
        self.far.say(process, Body::Read { number, at, offset, length });
        Some(number)
    }

    /// An answer has come. What has not been asked for is nobody's.
    pub(crate) fn answered(&mut self, from: Process, number: u64, bytes: Option<Vec<u8>>) {
        if let Some(asked) = self.peers.get_mut(&from).and_then(|peer| peer.asked.get_mut(&number)) {
            *asked = Asked::Here(bytes);
        }
    }

    /// Takes what has come, if it has.
    pub(crate) fn answer(&mut self, process: Process, number: u64) -> Answer {
        let Some(peer) = self.peers.get_mut(&process) else { return Answer::Gone };
        match peer.asked.remove(&number) {
            None => Answer::Gone,
            Some(Asked::NotYet) => {
                peer.asked.insert(number, Asked::NotYet);
                Answer::NotYet
            }
            Some(Asked::Here(None)) => Answer::Refused,
            Some(Asked::Here(Some(bytes))) => Answer::Bytes(bytes),
        }
    }

    /// What was asked for is not wanted any more.
    pub(crate) fn forget(&mut self, process: Process, numbers: impl Iterator<Item = u64>) {
        if let Some(peer) = self.peers.get_mut(&process) {
            numbers.for_each(|number| drop(peer.asked.remove(&number)));
        }
    }
}

/// Bytes that belong to a packet, in its slot.
pub(crate) fn bytes_of(config: &Config, packet: &Packet) -> usize {
    match packet {
        Packet::Eager { header, fragment, .. } => config.fragment(header.length, *fragment).1 as usize,
        _ => 0,
    }
}
