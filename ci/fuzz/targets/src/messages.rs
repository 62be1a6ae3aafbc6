// SPDX-License-Identifier: MIT OR Apache-2.0

use crate::input::Input;
use std::collections::BTreeMap;
use telegraphos_msg_core::layout::{Element, Layout};
use telegraphos_msg_core::{
    Action, Config, Endpoint, Engine, Failure, Pattern, Place, Process, ReceiveId, Received, SendId, TransferId, Way,
};

/// Processes that say anything, of which the second may be gone.
const PEERS: [Process; 2] = [Process { node: 1, number: 1 }, Process { node: 1, number: 2 }];
/// Threads that may be open.
const THREADS: u32 = 3;
/// Steps of one input.
const STEPS: usize = 2000;

fn config(way: Way) -> Config {
    let (slots, block, fragments) = (3, 16, 4);
    Config {
        slots,
        block,
        fragments,
        eager: 64,
        eager_floor: 16,
        longest: 1000,
        threads: 2,
        sends: 6,
        receives: 6,
        way,
        ..Config::default()
    }
}

/// Steps of an engine whose peers say anything. The first byte chooses the way of long messages; a step is a byte that
/// says what happens, and what that takes (little-endian):
///
/// | Byte modulo 8 | What happens | Takes |
/// |---|---|---|
/// | 0, 1 | a peer appends an element, of which the inbox says more | the element (8), words of the inbox (8 each) |
/// | 2 | a send | threads (1), tag (1), length (2) |
/// | 3 | a receive | thread (1), pattern (1), tag (1), capacity (2) |
/// | 4 | a send or a receive is withdrawn | which (1) |
/// | 5 | a transfer ends | which (1) |
/// | 6 | a thread is opened or closed | which (1) |
/// | 7 | a peer goes or comes | |
///
/// Bit 7 of the byte chooses the peer. Every request ends once, nothing is moved that is outside its buffer, and when
/// everybody has gone, nothing is left.
pub fn messages(data: &[u8]) {
    let mut input = Input(data);
    let way = if input.u8() & 1 == 0 { Way::Get } else { Way::Put };
    let Ok(engine) = Engine::new(config(way)) else { return };
    let mut world = World {
        engine,
        layout: Layout::of(&config(way)),
        sends: BTreeMap::new(),
        receives: BTreeMap::new(),
        transfers: Vec::new(),
    };
    // The limits are above these.
    _ = world.engine.connect(PEERS[0]);
    _ = world.engine.open(0);
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.perform();
    }
    world.end();
}

struct World {
    engine: Engine,
    layout: Layout,
    /// Lengths of those that have not ended.
    sends: BTreeMap<SendId, u64>,
    /// Capacities of those that have not ended.
    receives: BTreeMap<ReceiveId, u64>,
    /// What has not ended, and of room that is to be made, how much at most.
    transfers: Vec<(TransferId, Option<u64>)>,
}

impl World {
    fn step(&mut self, input: &mut Input<'_>) {
        let what = input.u8();
        let peer = PEERS[usize::from(what >> 7)];
        match what & 7 {
            0 | 1 => {
                let Some(Element::Packet { kind, slot, .. }) = Element::decode(input.u64()) else { return };
                let words = [(); 4].map(|()| input.u64());
                let base = self.layout.slot(slot);
                let reply = self.layout.reply(slot);
                let load = |at: u64| {
                    let from = if at >= base { base } else { reply };
                    words.get(((at - from) / 8) as usize).copied()
                };
                if let Some(packet) = self.layout.packet(kind, slot, load) {
                    // After a violation it has gone.
                    _ = self.engine.packet(peer, packet);
                }
            }
            2 => {
                let (threads, tag, length) = (u32::from(input.u8()), u32::from(input.u8()), u64::from(input.u16()));
                let to = Endpoint { process: peer, thread: threads >> 4 };
                let request = self.engine.choose(peer, length).request ^ (tag & 4 != 0);
                let pieces = if tag & 8 != 0 { Place::PIECES } else { 0 };
                let place = (request || length > 64).then_some(Place(length | pieces));
                if let Ok(send) = self.engine.send(threads & 15, to, tag & 3, length, place) {
                    assert!(self.sends.insert(send, length).is_none(), "two sends have one id");
                }
            }
            3 => {
                let (thread, wanted, tag) = (u32::from(input.u8()) % THREADS, input.u8(), u32::from(input.u8()) & 3);
                let capacity = u64::from(input.u16()) % 1100;
                let pattern = Pattern {
                    process: (wanted & 1 != 0).then_some(peer),
                    thread: (wanted & 2 != 0).then_some(u32::from(wanted >> 4)),
                    tag: (wanted & 4 != 0).then_some(tag),
                };
                let place = (wanted & 8 != 0).then_some(Place(capacity));
                if let Ok(receive) = self.engine.receive(thread, pattern, capacity, place) {
                    assert!(self.receives.insert(receive, capacity).is_none(), "two receives have one id");
                }
            }
            4 => {
                let which = usize::from(input.u8());
                let send = self.sends.keys().nth(which >> 1).copied();
                let receive = self.receives.keys().nth(which >> 1).copied();
                if let Some(send) = send.filter(|_| which & 1 == 0) {
                    self.engine.withdraw_send(send);
                } else if let Some(receive) = receive {
                    self.engine.withdraw_receive(receive);
                }
            }
            5 => {
                let which = input.u8();
                if !self.transfers.is_empty() {
                    let transfer = self.transfers.swap_remove(usize::from(which >> 1) % self.transfers.len());
                    self.transferred(transfer, which & 1 == 0);
                }
            }
            6 => {
                let thread = u32::from(input.u8()) % THREADS;
                if self.engine.open(thread).is_err() {
                    // It is open, or too many are.
                    _ = self.engine.close(thread);
                }
            }
            _ => {
                if self.engine.connect(peer).is_err() {
                    self.engine.gone(peer);
                }
            }
        }
    }

    /// Does what the engine wants done, which comes to an end.
    fn perform(&mut self) {
        let mut count = 0;
        while let Some(action) = self.engine.action() {
            count += 1;
            assert!(count < 1000, "no end of actions");
            match action {
                Action::Post { bytes, .. } => {
                    if let Some(piece) = bytes {
                        let end = piece.offset + u64::from(piece.length);
                        assert!(self.sends.get(&piece.send).is_some_and(|length| end <= *length), "{piece:?}");
                    }
                }
                Action::Take { receive, offset, length, .. } => {
                    self.fits(receive, offset + u64::from(length));
                }
                Action::Fetch { transfer, receive, length, .. } => {
                    self.fits(receive, length);
                    self.transfers.push((transfer, None));
                }
                Action::Offer { transfer, receive, offset, length, .. } => {
                    assert!(length > 0, "room for nothing");
                    self.fits(receive, offset + length);
                    self.transfers.push((transfer, Some(length)));
                }
                Action::Store { transfer, send, offset, length, .. } => {
                    let whole = self.sends.get(&send);
                    assert!(whole.is_some_and(|whole| offset + length <= *whole), "{length} bytes of {send:?}");
                    self.transfers.push((transfer, None));
                }
                Action::Received { receive, outcome } => self.received(receive, outcome),
                Action::Sent { send, .. } => {
                    assert!(self.sends.remove(&send).is_some(), "{send:?} ends twice");
                }
            }
        }
    }

    fn transferred(&mut self, (transfer, room): (TransferId, Option<u64>), whole: bool) {
        match room.filter(|_| whole) {
            Some(length) => self.engine.offered(transfer, Some((Place(0), length.div_ceil(2)))),
            None => self.engine.transferred(transfer, whole),
        }
    }

    fn fits(&self, receive: ReceiveId, end: u64) {
        let capacity = self.receives.get(&receive);
        assert!(capacity.is_some_and(|capacity| end <= *capacity), "{end} bytes for {capacity:?} of {receive:?}");
    }

    fn received(&mut self, receive: ReceiveId, outcome: Result<Received, Failure>) {
        assert!(self.receives.remove(&receive).is_some(), "{receive:?} ends twice");
        if let Ok(message) = outcome {
            assert!(message.length <= 1000, "a message of {} bytes", message.length);
        }
    }

    fn end(&mut self) {
        PEERS.into_iter().for_each(|peer| self.engine.gone(peer));
        self.perform();
        for transfer in std::mem::take(&mut self.transfers) {
            self.transferred(transfer, true);
        }
        // One that is not open is not closed.
        (0..THREADS).for_each(|thread| _ = self.engine.close(thread));
        self.perform();
        assert!(self.sends.is_empty() && self.receives.is_empty(), "{:?}, {:?}", self.sends, self.receives);
        assert!(self.engine.is_idle(), "something is left");
    }
}
